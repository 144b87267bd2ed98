"""``gradmatrix runtimes``: the torch environments, what is built of them, and what they take on the disk."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence

from rich.text import Text

from service import catalog
from service.catalog import RuntimeSpec
from service.config import Settings, load_settings
from service.errors import UsageError
from workers.cli.console import DISAGREE, OK, console
from workers.cli.progress import Watcher, watcher
from workers.cli.words import human_bytes, human_seconds, inert, plural
from workers.runtimes import Progress
from workers.runtimes.inventory import Built, key
from workers.runtimes.venv import VenvExecutor


def list_(*, as_json: bool) -> int:
    """The catalogue in its order, what is built of it, and what is built and no longer in it."""
    settings = load_settings()
    executor = VenvExecutor(settings)
    known = catalog.load(settings)
    built = {item.key: item for item in executor.list_built()}
    cache = executor.cache_bytes()
    if as_json:
        console().print(json.dumps(_listing(known.runtimes, built, cache), indent=1), soft_wrap=True)
        return OK
    rows = [("runtime", "torch", "state", "on disk")]
    for spec in known.runtimes:
        item = built.pop(key(spec), None)
        rows.append((spec.name, spec.torch, *_state(spec, item)))
    rows += [(item.key, "", "not in the catalogue any more", human_bytes(item.bytes)) for item in built.values()]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for index, row in enumerate(rows):
        line = "  ".join(inert(text).ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        console().print(Text(line, style="" if index else "bold"), soft_wrap=True)
    console().print(f"package cache: {human_bytes(cache)} beyond that; all in {settings.home}", soft_wrap=True)
    return OK


def _state(spec: RuntimeSpec, item: Built | None) -> tuple[str, str]:
    if item is None:
        return "not built", f"about {human_bytes(spec.installed_bytes)}"
    return "built" if item.complete else "unfinished", human_bytes(item.bytes)


def _listing(specs: Sequence[RuntimeSpec], built: dict[str, Built], cache: int) -> dict[str, object]:
    return {
        "runtimes": [
            {
                "name": spec.name,
                "torch": spec.torch,
                "variant": spec.variant,
                "channel": spec.channel,
                "digest": spec.digest,
                "built": key(spec) in built and built[key(spec)].complete,
                "bytes": built[key(spec)].bytes if key(spec) in built else 0,
            }
            for spec in specs
        ],
        "left_over": [item.key for item in built.values() if not item.current],
        "cache_bytes": cache,
    }


def build(names: Sequence[str]) -> int:
    """Build the named runtimes; all that a bare version names when none is named."""
    settings = load_settings()
    with watcher(console(stderr=True)) as watch:
        ensure(VenvExecutor(settings), _named(settings, names), watch, say_ready=True)
    return OK


def ensure(
    executor: VenvExecutor,
    specs: Sequence[RuntimeSpec],
    watch: Watcher,
    *,
    say_ready: bool = False,
    stop: threading.Event | None = None,
) -> None:
    """Build what is missing of ``specs``, one after the other, and say what each took.

    Raises InterruptedError as soon as ``stop`` is set; a build that was interrupted leaves nothing.
    """
    for spec in specs:
        if executor.ready(spec):
            if say_ready:
                watch.ended(spec.name, "is built already")
            continue
        show, started = watch.growing(spec.name), watch.seconds

        def progress(what: str, done: int, total: int | None, show: Progress = show) -> None:
            if stop is not None and stop.is_set():
                raise InterruptedError
            show(what, done, total)

        executor.ensure(spec, progress)
        size = human_bytes(spec.installed_bytes)
        watch.ended(spec.name, f"built, about {size}, in {human_seconds(watch.seconds - started)}")


def check(names: Sequence[str]) -> int:
    """Import torch in built runtimes and hold what is installed against the lock."""
    settings = load_settings()
    executor = VenvExecutor(settings)
    specs = _named(settings, names)
    if not names:
        specs = tuple(spec for spec in catalog.load(settings).runtimes if executor.ready(spec))
    if not specs:
        raise UsageError("no runtime is built yet: gradmatrix runtimes build")
    wrong = 0
    for spec in specs:
        found = executor.check(spec)
        wrong += bool(found.problems)
        word = ("wrong", "bold red") if found.problems else ("ok   ", "green")
        facts = f" {found.name}: torch {found.torch} ({found.git[:12]}), Python {found.python}, "
        console().print(Text.assemble(word, inert(facts + plural(found.packages, "package"))), soft_wrap=True)
        for problem in found.problems:
            console().print(f"      {inert(problem)}", soft_wrap=True)
    if wrong:
        console().print("remedy: gradmatrix runtimes remove, and build again", soft_wrap=True)
    return DISAGREE if wrong else OK


def remove(names: Sequence[str], *, unused: bool, everything: bool) -> int:
    """Remove built runtimes, and from the package cache what only they needed."""
    if not (names or unused or everything):
        raise UsageError("name the runtimes to remove, or say --unused or --all (gradmatrix runtimes list shows them)")
    settings = load_settings()
    gone, freed = VenvExecutor(settings).remove(_full_names(settings, names), everything=everything, unused=unused)
    for item in gone:
        console().print(f"removed {inert(item.key)}", soft_wrap=True)
    console().print(f"{plural(len(gone), 'runtime')} removed, {human_bytes(freed)} freed", soft_wrap=True)
    return OK


def lock(names: Sequence[str], *, upgrade: bool) -> int:
    """Write lock files anew; all of them when none is named."""
    from workers.runtimes.locking import lock as write_lock

    settings = load_settings()
    known = catalog.load(settings, locked=False)
    for spec in known.select(names) if names else known.runtimes:
        made = write_lock(spec, settings, upgrade=upgrade)
        size = "size unknown" if made.download_bytes is None else f"{made.download_bytes} bytes to download"
        console().print(f"{spec.name}: {plural(made.packages, 'package')}, {size}: {made.path}", soft_wrap=True)
    return OK


def _named(settings: Settings, names: Sequence[str]) -> tuple[RuntimeSpec, ...]:
    known = catalog.load(settings)
    if names:
        return known.select(names)
    return known.bare()


def _full_names(settings: Settings, names: Sequence[str]) -> list[str]:
    """A bare torch version means the configured variant or the only one, as everywhere."""
    known = {spec.torch: spec.name for spec in catalog.load(settings).bare()}
    return [known.get(name, name) for name in names]
