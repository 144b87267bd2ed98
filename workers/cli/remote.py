"""``gradmatrix submit``, ``cancel``, ``rerun`` and ``workers``: what is asked of a service, here or elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.text import Text

from service.config import load_settings
from service.errors import UsageError
from service.words import inert, known_word, plural
from workers.cli.console import INCOMPLETE, OK, check_writable, console, show, write_text
from workers.cli.run import Asked, Shown

if TYPE_CHECKING:
    from service.client import Client, Event
    from service.store.views import DeviceView, SubmissionView


@dataclass(frozen=True)
class Server:
    """Where the service is, and with which token; None: as the settings say."""

    address: str | None = None
    token: str | None = None


def submit(asked: Asked, shown: Shown, server: Server, *, wait: bool, priority: int | None) -> int:
    """Ask for an evaluation; with ``wait`` follow it, print its outcome and exit as ``run`` does."""
    from pydantic import ValidationError

    from service.api.forms import SubmissionForm
    from service.order import split

    if (shown.json or shown.junit) and not wait:
        raise UsageError("--json and --junit write what a submission comes to: they need --wait")
    check_writable(shown.json)
    check_writable(shown.junit)
    try:
        form = SubmissionForm(
            subjects=[_whole(text) for text in asked.subjects],
            torch=list(split(asked.torch)),
            world_sizes=[int(word) for word in split(asked.world_sizes)],
            transports=list(split(asked.transports)),
            modes=list(split(asked.modes)),
            cases=list(asked.cases),
            suite=asked.suite,
            rerun=asked.rerun,
            priority=priority,
        )
    except (ValidationError, ValueError) as error:
        raise UsageError(_why(error)) from None
    with _client(server) as client:
        view = client.submit(form)
        return _followed(client, view, shown) if wait else _told(view)


def _whole(text: str) -> str:
    """A folder by its whole path: the service stands in another one."""
    looks = text.startswith(("./", "../", "~")) or text in (".", "..")
    return str(Path(text).expanduser().absolute()) if looks else text


def _why(error: Exception) -> str:
    from pydantic import ValidationError

    from service.api.wording import where, why

    if not isinstance(error, ValidationError):
        return f"a world size is a number: {error}"
    first = error.errors()[0]
    named = {"subjects": "name at least one subject to test", "torch": "say on which torch: --torch V"}
    return named.get(str(first["loc"][0]), f"{where(first)}: {why(first)}")


def cancel(text: str, server: Server) -> int:
    """Cancel the submission ``s3``."""
    with _client(server) as client:
        view = client.cancel(_number(text, "s"))
    if view.state != "cancelled":
        console().print(f"submission s{view.id} is {view.state} already: there was nothing to cancel", soft_wrap=True)
        return OK
    return _told(view)


def approve(text: str, server: Server) -> int:
    """Let the submission ``s3`` go on, which is held."""
    with _client(server) as client:
        return _told(client.approve(_number(text, "s")))


def rerun(text: str, server: Server, *, wait: bool) -> int:
    """Run a cell (``17``), a job (``j4``) or a submission (``s3``) again."""
    kinds = {"s": "submissions", "j": "jobs"}
    what = kinds.get(text[:1], "cells")
    with _client(server) as client:
        view = client.rerun(what, _number(text, text[:1] if what != "cells" else ""))
        return _followed(client, view, Shown()) if wait else _told(view)


def _number(text: str, letter: str) -> int:
    digits = text.removeprefix(letter)
    if not text.startswith(letter) or not digits.isdecimal() or int(digits) == 0:
        what = {"s": "submission: those are s1, s2, …", "j": "job: those are j1, j2, …"}
        raise UsageError(f"{text!r} is no {what.get(letter, 'cell: those are 1, 2, …')}")
    return int(digits)


def list_workers(server: Server) -> int:
    """A line for every host, and one for each of its devices."""
    with _client(server) as client:
        found = client.workers()
    out = console()
    if not found:
        out.print("no host has looked for work yet: gradmatrix worker, on each of them, does")
    for one in found:
        seen = f"{inert(one.name)}: seen at {one.seen_at:%Y-%m-%d %H:%M}, runs {', '.join(one.transports)}"
        show(out, [Text(seen), *map(_device, one.devices)])
    return OK


def _device(one: DeviceView) -> Text:
    said = f"{one.state} since {one.since:%Y-%m-%d %H:%M}" + (f": {one.reason}" if one.reason else "")
    jobs = ", ".join(f"j{job}" for job in one.jobs)
    return Text(inert("  " + "  ".join(filter(None, (one.name, one.model, said, jobs)))))


def set_device(host: str, text: str, state: Literal["well", "sick"], reason: str, server: Server) -> int:
    """Say how a device is that is named by the beginning of its name."""
    from pydantic import ValidationError

    from service.api.forms import DeviceForm
    from service.api.wording import why

    try:
        form = DeviceForm(state=state, reason=reason)
    except ValidationError as error:
        raise UsageError(why(error.errors()[0])) from None
    with _client(server) as client:
        there = [device.name for one in client.workers() if one.name == host for device in one.devices]
        fitting = [name for name in there if name == text] or [name for name in there if name.startswith(text)]
        if len(fitting) != 1:
            known = f"it has {', '.join(there)}" if there else "`gradmatrix workers list` shows what there is"
            raise UsageError(f"{text!r} is not one device of host {host!r}: {known}")
        view = client.set_device(host, fitting[0], form)
    console().print(f"{host} {view.name}: {view.state}" + (f", {view.reason}" * bool(view.reason)), soft_wrap=True)
    return OK


@contextmanager
def _client(server: Server) -> Iterator[Client]:
    from service.client import Client

    settings = load_settings()
    address = server.address or settings.server or f"http://{settings.listen}"
    client = Client(address, server.token or settings.token)
    try:
        yield client
    finally:
        client.close()


def _told(view: SubmissionView) -> int:
    console().print(f"submission s{view.id}: {view.state}", soft_wrap=True)
    return OK


def _events(client: Client, submission: int) -> Iterator[Event]:
    """What happens, until its end. Ctrl-C ends only the following."""
    try:
        yield from client.events(submission)
    except KeyboardInterrupt:
        goes_on = f"it goes on: gradmatrix cancel s{submission} stops it"
        raise UsageError(f"no longer following submission s{submission}; {goes_on}") from None


def _followed(client: Client, view: SubmissionView, shown: Shown) -> int:
    """Say what happens until the end, then what it came to."""
    from service.findings import sentences
    from service.reports.cells import cells_json
    from workers.cli.summary import Heading, exit_status, submission_lines

    progress = console(stderr=True)
    progress.print(f"submission s{view.id}: {view.state}", soft_wrap=True)
    state, done, note = view.state, -1, view.note
    for event in _events(client, view.id):
        data: dict[str, Any] = event.data
        if event.kind == "fetching":
            progress.print(inert(str(data)), soft_wrap=True)
        elif event.kind == "submission" and (data["state"], data["done"]) != (state, done):
            state, done = data["state"], data["done"]
            counts = ", ".join(f"{count} {known_word(word)}" for word, count in data["counts"].items())
            said = f"s{view.id}: {state}, {done} of {plural(data['cells'], 'cell')}" + (f": {counts}" if counts else "")
            progress.print(said, soft_wrap=True)
        if event.kind == "submission" and data["note"] not in ("", note):
            note = data["note"]
            progress.print(inert(note), soft_wrap=True)
    view = client.submission(view.id)
    if view.state == "failed":
        if shown.junit:
            write_text(shown.junit, client.junit(view.id))
        raise UsageError(f"submission s{view.id} could not be run: {view.note}")
    rows = client.cells(view.id)
    out = console(stderr="-" in (shown.json, shown.junit))
    cell, again = client.address + "/api/v1/cells/{cell}", f"gradmatrix rerun s{view.id} --wait"
    heading = Heading(view.id, client.address, {}, in_full=cell, to_finish=again)
    show(out, submission_lines(heading, rows, sentences(rows), out.width))
    if shown.json:
        write_text(shown.json, cells_json(rows, {}))
    if shown.junit:
        write_text(shown.junit, client.junit(view.id))
    return exit_status(rows) if view.state == "done" else INCOMPLETE
