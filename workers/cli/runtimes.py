"""``gradmatrix runtimes``: the torch environments, what is built of them, and what they take on the disk."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Protocol

from rich.text import Text

from service import catalog
from service.catalog import RuntimeSpec
from service.config import Settings, load_settings
from service.errors import UsageError
from service.words import human_bytes, human_seconds, inert, plural
from workers.cli.console import DISAGREE, INCOMPLETE, OK, console, show_error, table
from workers.cli.progress import Watcher, watcher
from workers.runtimes import Progress, RuntimeBuildError, building
from workers.runtimes.checking import Check
from workers.runtimes.inventory import Built, key
from workers.runtimes.venv import VenvExecutor


def list_(*, everything: bool, as_json: bool) -> int:
    """The catalogue in its order, what is built of it, and what is built and no longer in it.

    Of variants that are not configured only what is built, unless ``everything`` is asked for.
    """
    settings = load_settings()
    executor = VenvExecutor(settings)
    known = catalog.load(settings)
    built = {item.key: item for item in executor.list_built()}
    cache = executor.cache_bytes()
    if as_json:
        console().print(json.dumps(_listing(known.runtimes, built, cache), indent=1), soft_wrap=True)
        return OK
    rows = [("runtime", "torch", "state", "on disk")]
    bare, hidden = set(known.bare()), Counter[str]()
    for spec in known.runtimes:
        item = built.pop(key(spec), None)
        if everything or item or spec in bare:
            rows.append((spec.name, spec.torch, *_state(spec, item)))
        else:
            hidden[spec.variant] += 1
    rows += [(item.key, "", "not in the catalogue any more", human_bytes(item.bytes)) for item in built.values()]
    table(rows)
    if hidden:
        more = ", ".join(f"{count} of variant {variant}" for variant, count in hidden.items())
        console().print(f"not shown: {more} (--all shows them)", soft_wrap=True)
    console().print(f"package cache: {human_bytes(cache)} beyond that; all in {settings.home}", soft_wrap=True)
    return OK


def _state(spec: RuntimeSpec, item: Built | None) -> tuple[str, str]:
    if item is None:
        return "not built" if spec.locked else "not locked", f"about {human_bytes(spec.installed_bytes)}"
    return "built" if item.complete else "unfinished", human_bytes(item.bytes)


def stated(spec: RuntimeSpec) -> dict[str, object]:
    """What a listing says of a runtime, whether it is built or not."""
    return {
        "name": spec.name,
        "torch": spec.torch,
        "variant": spec.variant,
        "channel": spec.channel,
        "locked": spec.locked,
        "digest": spec.digest,
    }


def _listing(specs: Sequence[RuntimeSpec], built: dict[str, Built], cache: int) -> dict[str, object]:
    return {
        "runtimes": [
            {
                **stated(spec),
                "built": key(spec) in built and built[key(spec)].complete,
                "bytes": built[key(spec)].bytes if key(spec) in built else 0,
            }
            for spec in specs
        ],
        "left_over": [item.key for item in built.values() if not item.current],
        "cache_bytes": cache,
    }


class Builder(Protocol):
    """What builds runtimes and checks them: :class:`VenvExecutor`, or the images of an engine."""

    @property
    def at_once(self) -> int:
        """How many are built at once at most."""

    def ready(self, runtime: RuntimeSpec) -> bool:
        """Whether it is built."""

    def ensure(self, runtime: RuntimeSpec, progress: Progress) -> bool:
        """Build it if it is not; whether this call did."""

    def check(self, runtime: RuntimeSpec) -> Check:
        """What it says of itself, and what is wrong with it."""


def builder(settings: Settings, executor: str | None) -> Builder:
    """What builds for ``executor``, or for the one that is configured. Raises UsageError and EngineError."""
    if in_containers(settings, executor):
        from workers.runtimes.docker.engine import connect
        from workers.runtimes.docker.images import Images

        return Images(settings, connect())
    return VenvExecutor(settings)


def in_containers(settings: Settings, executor: str | None) -> bool:
    """Whether images are meant, and not virtual environments."""
    return (executor or settings.executor) == "docker"


def build(names: Sequence[str], *, executor: str | None = None, everything: bool = False, push: bool = False) -> int:
    """Build the named runtimes, or all of the configured variant; one that fails does not keep the others from it.

    With ``push`` images are pushed to the registry, also those that were built before.
    """
    from workers.cli import images

    names = [*names, catalog.ALL] if everything else names
    if not names:
        raise UsageError("name the runtimes to build: 2.11.0, 2.2..2.11, latest, or all of them: all")
    settings = load_settings()
    if push and not (in_containers(settings, executor) and settings.registry):
        raise UsageError(
            "--push is for images: with --executor docker, and registry set (GRADMATRIX_REGISTRY=HOST/NAME)"
        )
    failed: dict[str, RuntimeBuildError] = {}
    with watcher(console(stderr=True)) as watch:
        wanted = _named(settings, names)
        many = len(wanted) > 1
        specs = _lockable(wanted, settings, watch, failed) if many else locked(wanted, settings, watch)
        ensure(builder(settings, executor), specs, watch, say_ready=True, failed=failed if many else None)
        if push:
            images.push(settings, [spec for spec in specs if spec.name not in failed], watch, failed)
    for name, error in failed.items():
        show_error(f"{name}: {error}")
    if failed:
        show_error(f"{len(failed)} of {plural(len(wanted), 'runtime')} could not be built: {', '.join(failed)}")
    return INCOMPLETE if failed else OK


def _lockable(
    specs: Sequence[RuntimeSpec], settings: Settings, watch: Watcher, failed: dict[str, RuntimeBuildError]
) -> tuple[RuntimeSpec, ...]:
    """The runtimes, each with its lock; those that cannot be locked are in ``failed`` instead."""
    made: list[RuntimeSpec] = []
    for spec in specs:
        try:
            made += locked([spec], settings, watch)
        except RuntimeBuildError as error:
            failed[spec.name] = error
    return tuple(made)


def ensure(
    executor: Builder,
    specs: Sequence[RuntimeSpec],
    watch: Watcher,
    *,
    say_ready: bool = False,
    stop: threading.Event | None = None,
    failed: dict[str, RuntimeBuildError] | None = None,
) -> tuple[RuntimeSpec, ...]:
    """Build what is missing of ``specs``, several at once, and say what each took; those that this call built.

    Raises the first build's error when those in progress have ended, or InterruptedError soon after ``stop`` is set; a
    build that was interrupted leaves nothing, and what was built stays: the next call builds only the rest. With
    ``failed``, the errors are kept there by the runtime's name instead, and the others are built.
    """
    built: list[RuntimeSpec] = []

    def one(spec: RuntimeSpec, check: building.Check) -> None:
        show, started = watch.growing(spec.name), watch.seconds

        def progress(what: str, done: int, total: int | None) -> None:
            check()
            show(what, done, total)

        try:
            if executor.ensure(spec, progress):
                built.append(spec)
        except BaseException as error:
            watch.ended(spec.name, "stopped" if isinstance(error, InterruptedError) else "could not be built")
            if failed is None or not isinstance(error, RuntimeBuildError):
                raise
            failed[spec.name] = error
            return
        size = human_bytes(spec.installed_bytes)
        watch.ended(spec.name, f"built, about {size}, in {human_seconds(watch.seconds - started)}")

    missing = [spec for spec in specs if not executor.ready(spec)]
    if say_ready:
        for spec in specs:
            if spec not in missing:
                watch.ended(spec.name, "is built already")
    building.build_all(one, missing, at_once=executor.at_once, stop=stop)
    return tuple(built)


def check(names: Sequence[str], *, executor: str | None = None) -> int:
    """Import torch in built runtimes and hold what is installed against the lock; images also exchange."""
    settings = load_settings()
    made = builder(settings, executor)
    specs = _named(settings, names)
    if not names:
        specs = tuple(spec for spec in catalog.load(settings).runtimes if spec.locked and made.ready(spec))
    if not specs:
        raise UsageError("no runtime is built yet: gradmatrix runtimes build")
    wrong = 0
    for spec in specs:
        found = made.check(spec)
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
    executor = VenvExecutor(settings)
    wanted = full_names(settings, names, {item.name for item in executor.list_built()})
    gone, freed = executor.remove(wanted, everything=everything, unused=unused)
    for item in gone:
        console().print(f"removed {inert(item.key)}", soft_wrap=True)
    console().print(f"{plural(len(gone), 'runtime')} removed, {human_bytes(freed)} freed", soft_wrap=True)
    return OK


def lock(names: Sequence[str], *, upgrade: bool) -> int:
    """Write lock files beside the catalogue anew; all that are there, and that must be, when none is named."""
    from workers.runtimes.locking import lock as write_lock

    settings = load_settings()
    known = catalog.load(settings, locked=False)
    beside = {spec.name: catalog.lock_beside(settings.catalog, spec.name) for spec in known.runtimes}
    for spec in known.select(names) if names else [spec for spec in known.runtimes if spec.lock == beside[spec.name]]:
        made = write_lock(spec, settings, to=beside[spec.name], upgrade=upgrade)
        size = "size unknown" if made.download_bytes is None else f"{made.download_bytes} bytes to download"
        console().print(f"{spec.name}: {plural(made.packages, 'package')}, {size}: {made.path}", soft_wrap=True)
    return OK


def add(version: str, *, variant: str | None) -> int:
    """Add a torch version to the catalogue, and show what that changed."""
    from workers.runtimes.adding import add as add_version

    settings = load_settings()
    variant = variant or settings.variant
    name = f"{version.partition('+')[0]}-{variant}"
    with watcher(console(stderr=True)) as watch:
        added = add_version(version, variant, settings, watch.growing(name))
        watch.ended(name, f"built and checked, {human_bytes(added.runtime.installed_bytes)}")
    lines = [*added.diff.splitlines(), ""]
    if added.older:
        lines.append(f"packages, {added.older} -> {added.runtime.name}:")
        lines += [f"  {change.name} {_changed(change.before, change.after)}" for change in added.changes]
        lines.append(f"  {plural(added.same, 'other')} the same" if added.same else "  no other")
    else:
        lines.append(f"no older torch of variant {added.runtime.variant} is locked: no packages to compare with")
    lines.append(f"lock: {added.runtime.lock}")
    for line in lines:
        console().print(inert(line), soft_wrap=True)
    return OK


def _changed(before: str | None, after: str | None) -> str:
    if before and after:
        return f"{before} -> {after}"
    return f"{after} added" if after else f"{before} removed"


def _named(settings: Settings, names: Sequence[str]) -> tuple[RuntimeSpec, ...]:
    known = catalog.load(settings)
    return known.select(names) if names else known.bare()


def locked(specs: Sequence[RuntimeSpec], settings: Settings, watch: Watcher) -> tuple[RuntimeSpec, ...]:
    """The runtimes, with locks for those that had none."""
    from workers.runtimes.locking import ensure_locked

    unlocked = sum(not spec.locked for spec in specs)
    made = ensure_locked(specs, settings, watch.growing("locks"))
    if unlocked:
        watch.ended("locks", f"{plural(unlocked, 'runtime')} locked on first use")
    return made


def full_names(settings: Settings, names: Sequence[str], built: Collection[str]) -> list[str]:
    """What the words mean everywhere; of several runtimes that a range means, those that are built."""
    known = catalog.load(settings)
    found: list[str] = []
    for name in names:
        try:
            meant = [spec.name for spec in known.select([name])]
        except catalog.UnknownRuntimeError:
            meant = [name]  # one with its digest, or one that the catalogue has no more
        found += [one for one in meant if one in built] or meant[:1]
    return found
