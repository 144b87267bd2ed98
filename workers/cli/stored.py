"""What several commands read from the store: the submission that somebody named, and its print-out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from service import store
from service.errors import UsageError
from service.reports.beside import beside, diagnoses, evidence_of, runtime_facts
from service.reports.cells import cells_json
from service.reports.junit import junit
from workers.cli.console import check_writable, console, show, write_text
from workers.cli.summary import Heading, exit_status, submission_lines

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from service.config import Settings
    from service.db import Database
    from service.store.views import SubmissionView

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
        standstill = store.submission(session, submission).standstill
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
        write_text(junit_file, junit(rows, standstill))
    return exit_status(rows)
