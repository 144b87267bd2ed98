"""``gradmatrix show`` and ``logs``: a submission's grid again, or everything that is known about one cell."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from service import store
from service.config import load_settings
from service.db import open_database
from service.errors import UsageError
from service.evidence import Evidence
from service.reports.beside import beside, diagnoses, hello
from service.words import TIMES, human_bytes, human_seconds, inert, known_word, plural, verdict_of
from workers.cli.console import OK, console
from workers.cli.console import show as show_lines
from workers.cli.diagnosed import diagnosis_lines
from workers.cli.evidence import evidence_lines
from workers.cli.named import one_cell
from workers.cli.stored import check_targets, is_submission, named_submission, print_submission
from workers.cli.versions import version_lines
from workers.cli.words import cell_text

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from service.config import Settings
    from service.diagnosis import Diagnosis
    from service.edges import Known
    from service.store.views import AttemptView, BlobView, CellDetail, CellRow, JudgementView, SubmissionView

TEXT_KINDS = ("stacks", "log")
NEWEST = 20
STACK_LINES = 60
"""How much of each rank's stacks `show` prints; `logs` prints all."""


def show(text: str, *, json: str | None, junit: str | None, all_rows: bool) -> int:
    """Print what ``text`` names: a submission, a cell, or (empty) the list of the newest submissions."""
    check_targets(json, junit)
    settings = load_settings()
    database = open_database(settings)
    try:
        if is_submission(text):
            with database.read() as session:
                view = named_submission(session, text)
            if view.standstill:
                console(stderr=True).print(inert(f"s{view.id} is {view.standstill}"), soft_wrap=True)
            print_submission(settings, database, view.id, json=json, junit_file=junit, all_rows=all_rows)
            return OK
        if json or junit:
            raise UsageError("--json and --junit write a whole submission: gradmatrix show s3 --json FILE")
        with database.read() as session:
            return _show_cell(session, settings, text) if text else _list(session)
    finally:
        database.dispose()


def _list(session: Session) -> int:
    out = console()
    views = store.submissions(session, NEWEST)
    if not views:
        out.print("nothing was run here yet: gradmatrix run SUBJECT --torch V", soft_wrap=True)
    for view in views:
        out.print(_submission_line(view), soft_wrap=True)
    return OK


def _submission_line(view: SubmissionView) -> Text:
    counts = ", ".join(f"{count} {known_word(verdict)}" for verdict, count in view.counts.items())
    subjects = " ".join(map(str, view.request.get("subjects", ())))
    text = f"{view.created_at.astimezone():%Y-%m-%d %H:%M}  {view.state}  {view.done} of {plural(view.cells, 'cell')}"
    said = counts or (view.note if view.state in ("held", "failed", "resolving") else "")
    return Text.assemble((f"s{view.id:<4}", "bold"), inert(f" {text}  {subjects}  {said}".rstrip()))


def _show_cell(session: Session, settings: Settings, text: str) -> int:
    detail = one_cell(session, text)
    known = beside(session, settings, [detail.row], cell=detail.row.cell)
    stacks = [(blob, _text(session, blob)) for blob in detail.blobs if blob.kind == "stacks"]
    documents = {detail.row.evidence_digest or "": detail.evidence}
    found = diagnoses(session, [detail.row], documents, known, cell=detail.row.cell)
    out = console()
    show_lines(out, cell_lines(detail, known, stacks, out.width, found.get(detail.row.cell)))
    return OK


def cell_lines(
    detail: CellDetail,
    known: Known,
    stacks: list[tuple[BlobView, str]],
    width: int,
    diagnosis: Diagnosis | None = None,
) -> list[Text]:
    """Everything about one cell, in lines: the verdict first and what is wrong, then the same row on other torch
    versions (from ``known``), then what the verdict rests on, then where it comes from.
    """
    parts = [list(_verdict(detail)), diagnosis_lines(diagnosis, width), version_lines(detail.row, known)]
    if detail.evidence:
        parts.append(evidence_lines(Evidence.from_json(detail.evidence), width))
    parts.append([line for blob, text in stacks for line in _stack_lines(blob, text)])
    parts.append(list(_attempts(detail.attempts)))
    parts.append(list(_kept(detail)))
    return [line for part in parts if part for line in (*part, Text())][:-1]


def _verdict(detail: CellDetail) -> Iterator[Text]:
    row, verdict = detail.row, verdict_of(detail.row)
    place = f"cell {row.cell}: {row.label} · torch {row.torch} · {row.transport} · {plural(row.world_size, 'rank')}"
    yield Text(inert(place), style="bold")
    yield Text(inert(f"{row.case} · {row.mode} · version {row.version}"), style="bold")
    if summary := detail.info.get("summary"):
        yield Text(inert(str(summary)))
    yield Text()
    yield cell_text(row)
    if verdict is None:
        return
    yield Text(verdict.info.meaning)
    if row.detail:
        yield Text(inert(row.detail))
    if verdict.failing and row.forward_ok is not None:
        yield Text("The forward was right." if row.forward_ok else "The forward was wrong too.", style="bold")
    if row.worst_tensor:
        yield Text(inert(f"worst: {row.worst_tensor}"))
    if row.signature:
        yield Text(inert(f"signature: {row.signature}"))


def _stack_lines(blob: BlobView, text: str) -> Iterator[Text]:
    yield Text(f"stacks of {inert(blob.name)}", style="bold")
    lines = text.splitlines()
    for line in lines[:STACK_LINES]:
        yield Text(f"  {inert(line)}")
    if len(lines) > STACK_LINES:
        yield Text(f"  … {plural(len(lines) - STACK_LINES, 'more line')} (gradmatrix logs)", style="dim")


def _attempts(attempts: Sequence[AttemptView]) -> Iterator[Text]:
    """Every attempt by a line, and what the newest that answered said about itself."""
    answered = [attempt for attempt in attempts if attempt.verdict]
    for attempt in attempts:
        yield _attempt_line(attempt)
        if attempt.note:
            yield Text(inert(f"  {attempt.note}", limit=400))
        if attempt is (answered or attempts)[-1]:
            yield from _told(attempt)


def _attempt_line(attempt: AttemptView) -> Text:
    took = ""
    if attempt.ended_at is not None:
        took = f", {human_seconds((attempt.ended_at - attempt.started_at).total_seconds())}"
    when = f"{attempt.started_at.astimezone():%Y-%m-%d %H:%M:%S}"
    answer = f", answered {attempt.verdict}" if attempt.verdict else ", did not answer this cell"
    title = f"attempt {attempt.attempt} of job {attempt.job} on {attempt.host}, {when}{took}: {attempt.state}{answer}"
    return Text(inert(title), style="bold")


def _told(attempt: AttemptView) -> Iterator[Text]:
    """What the container said about runtime, machine and subject, and how the controls went."""
    said = hello(attempt.facts)
    if said:
        yield from _facts(said)
    if isinstance(subject := attempt.facts.get("subject"), Mapping):
        shown = ", ".join(f"{key} {_plain(value)}" for key, value in subject.items() if value not in (None, [], {}, ""))
        yield Text(inert(f"  subject: {shown}"))
    wrong = [control for control in attempt.controls if not control.as_expected]
    if attempt.controls:
        right = len(attempt.controls) - len(wrong)
        yield Text(f"  controls: {right} of {len(attempt.controls)} as they must be")
    for control in wrong:
        where = f"{control.control} {control.mode}, {plural(control.world_size, 'rank')}, {control.stage} the import"
        yield Text(inert(f"    {where}: {control.verdict}: {control.detail}"), style="bold blue")


def _facts(said: Mapping[str, Any]) -> Iterator[Text]:
    names = ("torch", "git_version", "python", "numpy", "cuda", "nccl", "driver", "gpus", "compiler")
    known = [f"{name.removesuffix('_version')} {_plain(said[name])}" for name in names if said.get(name)]
    machine = [str(said[name]) for name in ("platform", "processor") if said.get(name)]
    if known:
        yield Text(inert(f"  runtime: {', '.join(known)}"))
    if machine:
        yield Text(inert(f"  machine: {', '.join(machine)}"))


def _plain(value: Any) -> str:
    """A fact as a few words."""
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_plain(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value).strip()


def _kept(detail: CellDetail) -> Iterator[Text]:
    row = detail.row
    sizes: dict[str, list[int]] = {}
    for blob in detail.blobs:
        sizes.setdefault(blob.kind, []).append(blob.size)
    kept = [f"{inert(kind)} {TIMES}{len(size)} ({human_bytes(sum(size))})" for kind, size in sizes.items()]
    if kept:
        yield Text(f"kept: {', '.join(kept)} (gradmatrix export has them)")
    if any(blob.kind in TEXT_KINDS for blob in detail.blobs):
        yield Text(f"logs: gradmatrix logs {row.cell}")
    if row.evidence_digest:
        policy = f", judged by policy {inert(row.policy_version or '?')}"
        took = "" if row.seconds is None else f", measured in {human_seconds(row.seconds)}"
        yield Text(f"evidence {inert(row.evidence_digest[:16])}{policy}{took}", style="dim")
    if len(detail.judgements) > 1:
        yield Text("judged", style="bold")
        for one in detail.judgements:
            yield _judgement_line(row, one)


def _judgement_line(row: CellRow, one: JudgementView) -> Text:
    """One judgement of the answer: when, by which policy, and what it was."""
    names = ("verdict", "forward_ok", "signature", "detail", "error", "alpha", "nonzero_got", "nonzero_expected")
    said = dataclasses.replace(row, **{name: getattr(one, name) for name in names})
    when = f"{one.judged_at.astimezone():%Y-%m-%d %H:%M:%S}"
    line = Text.assemble(inert(f"  {when}, policy {one.policy_version}: "), cell_text(said))
    return line.append(" (now)", style="bold") if one.current else line.append(inert(f": {one.detail}"), style="dim")


def logs(text: str) -> int:
    """Print what a cell's processes wrote, then what its attempts wrote outside every cell."""
    database = open_database(load_settings())
    out = console()
    try:
        with database.read() as session:
            detail = one_cell(session, text)
            named = [(blob, f"cell {detail.row.cell}, {blob.name}") for blob in detail.blobs]
            for attempt in detail.attempts:
                named += [(blob, f"attempt {attempt.attempt}, {blob.name}") for blob in attempt.blobs]
            written = [(title, _text(session, blob)) for blob, title in named if blob.kind in TEXT_KINDS]
    finally:
        database.dispose()
    for title, body in written:
        out.print(Text(f"== {inert(title)}", style="bold"), soft_wrap=True)
        out.print(Text(inert(body.rstrip("\n"), lines=True)), soft_wrap=True)
    if not written:
        out.print(nothing_written(detail.row), soft_wrap=True)
    return OK


def nothing_written(row: CellRow) -> str:
    """Why there is no log."""
    if row.verdict is None:
        return f"cell {row.cell} has no answer yet: it is {inert(row.state)}"
    return f"cell {row.cell} ({cell_text(row).plain}) wrote nothing"


def _text(session: Session, blob: BlobView) -> str:
    """A blob as text, whatever bytes a subject wrote."""
    if "removed" in blob.meta:
        return f"({human_bytes(blob.size)} were written, and removed on {blob.meta['removed']}: see retention)"
    if blob.digest is None:
        return f"({human_bytes(blob.size)} were written, too much to keep)"
    cut = "… (its beginning was too much to keep)\n" if blob.meta.get("cut") else ""
    return cut + store.blob(session, blob.digest).decode("utf-8", "replace")
