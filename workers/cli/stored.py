"""What several commands read from the store: the submission that somebody named, and its print-out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from service import catalog, store
from service.edges import Known
from service.errors import UsageError
from workers.cli.console import check_writable, console, show, write_text
from workers.cli.diagnosed import diagnoses
from workers.cli.junit import junit
from workers.cli.report import cells_json
from workers.cli.summary import Heading, exit_status, submission_lines

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from service.config import Settings
    from service.db import Database
    from service.store.views import CellRow, SubmissionView

_SUBMISSION = re.compile(r"s(\d{1,18})")


def named_submission(session: Session, text: str) -> SubmissionView:
    """The submission called ``s3``. Raises UsageError for any other form, StoreError where there is none."""
    found = _SUBMISSION.fullmatch(text)
    if not found:
        raise UsageError(f"{text!r} is no submission: those are written s1, s2, … (gradmatrix show lists the newest)")
    return store.submission(session, int(found.group(1)))


def is_submission(text: str) -> bool:
    """Whether ``text`` has the form of a submission's name."""
    return _SUBMISSION.fullmatch(text) is not None


def runtime_facts(session: Session, rows: Iterable[CellRow]) -> dict[str, Mapping[str, Any]]:
    """Per runtime, what a container said about itself when it answered one of ``rows``."""
    facts: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        if row.runtime not in facts and row.verdict is not None:
            said = [attempt.facts for attempt in store.find_cell(session, row.cell).attempts if attempt.verdict]
            facts[row.runtime] = hello(said[-1]) if said else {}
    return facts


def hello(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of an attempt's facts that says what the runtime is."""
    inner = facts.get("hello", facts)
    return inner if isinstance(inner, Mapping) else {}


def check_targets(json: str | None, junit: str | None) -> None:
    """Refuse report files that cannot be written, before anything runs. Raises UsageError."""
    if json == "-" and junit == "-":
        raise UsageError("--json - and --junit - would both write to stdout: give one of them a file")
    check_writable(json)
    check_writable(junit)


def print_submission(
    settings: Settings,
    database: Database,
    submission: int,
    *,
    json: str | None = None,
    junit_file: str | None = None,
    all_rows: bool = False,
    seconds: float | None = None,
    executed: int | None = None,
) -> int:
    """Print a submission and write its reports; its exit status. With a report on stdout the rest goes to stderr."""
    from service.compare import sentences

    with database.read() as session:
        rows = store.cells_of(session, submission)
        facts = runtime_facts(session, rows)
        known = beside(session, settings, rows, submission=submission)
        documents = evidence_of(session, rows) if json else {}
        found = diagnoses(session, rows, documents, known, submission=submission) if json else {}
    heading = Heading(submission, str(settings.home), facts, seconds, executed)
    out = console(stderr="-" in (json, junit_file))
    show(out, submission_lines(heading, rows, sentences(rows, known), out.width, all_rows=all_rows))
    if json:
        write_text(json, cells_json(rows, documents, known, found))
    if junit_file:
        write_text(junit_file, junit(rows))
    return exit_status(rows)


def beside(
    session: Session,
    settings: Settings,
    rows: Iterable[CellRow],
    *,
    submission: int | None = None,
    cell: int | None = None,
) -> Known:
    """What store and catalogue hold beside ``rows``, which are those of ``submission``, or one ``cell``."""
    past = store.history(session, submission=submission, cell=cell)
    return Known(past, store.imports(session, {row.checkout for row in rows}), torches_of(settings))


def torches_of(settings: Settings) -> tuple[str, ...]:
    """Every torch version that there is to try.

    A catalogue that cannot be read is no reason to show nothing: then only what was tried is known.
    """
    try:
        return tuple(spec.torch for spec in catalog.load(settings, locked=False).runtimes)
    except catalog.CatalogError:
        return ()


def evidence_of(session: Session, rows: Sequence[CellRow]) -> dict[str, dict[str, Any]]:
    """The evidence documents of ``rows``, each once."""
    digests = {row.evidence_digest for row in rows if row.evidence_digest}
    return {digest: store.evidence(session, digest) for digest in digests}
