"""One more torch version in the catalogue: resolved, locked, built and checked before anything of it is written.

On the straight line this stands before everything, like ``workers.runtimes.locking``. All of it happens in a copy of
the catalogue; entry and lock are put where they belong at the very end, so that a failure at any step changes nothing.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from service import catalog, catalog_file
from service.catalog import RuntimeSpec, UnknownRuntimeError
from service.catalog_file import Build, CatalogFile
from service.config import Settings
from service.errors import GradmatrixError, UsageError, nearest
from workers.runtimes import Progress, RuntimeBuildError, SourceUnavailableError, disk, inventory
from workers.runtimes.guard import Guard
from workers.runtimes.locking import lock, locked_versions, neighbours, without_source
from workers.runtimes.venv import VenvExecutor

_GUESS_BYTES = 5_000_000_000
"""What a runtime is taken to need on the disk while the catalogue has none to compare it with."""
_DIGITS = 3


class AddingError(GradmatrixError):
    """A version could not be added; the message says at which step, and nothing was changed."""


@dataclass(frozen=True)
class Change:
    """A package whose locked version differs; None where it is not in the lock at all."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Added:
    """What came of it.

    diff     the catalogue's, unified
    older    the runtime whose lock the packages are compared with: the next older torch of the variant that has one
    changes  packages that differ from it, torch first; empty without ``older``
    same     how many packages do not
    """

    runtime: RuntimeSpec
    diff: str
    older: str | None
    changes: tuple[Change, ...]
    same: int


def add(version: str, variant: str, settings: Settings, progress: Progress) -> Added:
    """Add torch ``version`` (``2.12.1``, or ``2.12.1+cu130`` where the variant's builds differ) in that variant.

    Raises UsageError for what cannot be asked for, UnknownRuntimeError where no index has it, and AddingError.
    """
    text = catalog_file.read(settings.catalog)
    file = catalog_file.parse(text, settings.catalog)
    torch, local = _asked(version, variant, file, settings)
    name = f"{torch}-{variant}"
    _demand_writable(settings.catalog)
    with tempfile.TemporaryDirectory(prefix="gradmatrix-add-") as folder:
        guess = Build(local=local, download_bytes=_GUESS_BYTES, installed_bytes=_guess(torch, variant, settings))
        with _step(name, "writing the entry"):
            runtime = _staged(text, torch, variant, guess, settings, Path(folder) / "catalog.toml")
        progress(f"{name}: resolving and locking", 0, None)
        with _step(name, "resolving and locking"):
            runtime, download = _locked(runtime, settings)
        executor = VenvExecutor(settings)
        with _removed_on_failure(executor, runtime):
            with _step(name, "building"):
                executor.ensure(runtime, progress)
            progress(f"{name}: checking", 0, None)
            with _step(name, "checking what was built"):
                _check(executor, runtime)
            installed = disk.used(executor.folder(runtime))
            # An index of plain pages states no sizes; a wheel is smaller than what it holds.
            build = Build(
                local=local, download_bytes=_rounded(download or installed), installed_bytes=_rounded(installed)
            )
            with _step(name, "writing catalogue and lock"):
                return _written(runtime, build, settings)


def _asked(version: str, variant: str, file: CatalogFile, settings: Settings) -> tuple[str, str | None]:
    """The version without and with its end, the end being None where the variant says it."""
    if variant not in file.variants:
        raise UsageError(f"there is no variant {variant!r} in {settings.catalog}: {nearest(variant, file.variants)}")
    try:
        parsed = Version(version)
    except InvalidVersion:
        raise UsageError(f"{version!r} is no version: write a release such as 2.12.1") from None
    torch, local = parsed.public, f"+{parsed.local}" if parsed.local else None
    if len(parsed.release) < 3:
        raise UsageError(f"{version!r} is not one exact version: write all its numbers, such as 2.12.1")
    if any(entry.torch == torch and variant in entry.builds for entry in file.runtimes):
        raise UsageError(
            f"torch {torch} is in {settings.catalog} already, as {torch}-{variant}; "
            f"`gradmatrix runtimes lock {torch}-{variant}` writes its lock anew"
        )
    fixed = file.variants[variant].local
    if fixed is None and local is None:
        raise UsageError(
            f"builds of variant {variant!r} end differently from release to release: write the version with its end, "
            f"such as {torch}+cu130"
        )
    if fixed is not None and local not in (None, fixed or None):
        raise UsageError(f"{version} is no build of variant {variant!r}: there it is {torch}{fixed}")
    return torch, local if fixed is None else None


def _demand_writable(path: Path) -> None:
    for folder in (path.parent, path.parent / "locks"):
        if folder.exists() and not os.access(folder, os.W_OK):
            raise UsageError(
                f"{folder} cannot be written; the setting `catalog` may name a copy of the catalogue and its locks "
                f"in a folder of your own"
            )


@contextmanager
def _step(name: str, doing: str) -> Iterator[None]:
    """Say of every failure at which step it happened. Errors in what was asked for stay what they are."""
    try:
        yield
    except UsageError:
        raise
    except (GradmatrixError, OSError) as error:
        raise AddingError(
            f"{name} was not added, and catalogue and locks are as they were: {doing} failed\n{error}"
        ) from error


@contextmanager
def _removed_on_failure(executor: VenvExecutor, runtime: RuntimeSpec) -> Iterator[None]:
    """A build that no catalogue knows would only take space."""
    there = executor.ready(runtime)
    try:
        yield
    except BaseException:
        if not there and executor.ready(runtime):
            executor.remove([inventory.key(runtime)])
        raise


def _staged(text: str, torch: str, variant: str, build: Build, settings: Settings, path: Path) -> RuntimeSpec:
    """The new runtime as the catalogue's copy at ``path`` has it, with its lock beside that."""
    path.write_text(_inserted(text, torch, variant, build, settings.catalog), "utf-8")
    name = f"{torch}-{variant}"
    staged = catalog.load(settings.model_copy(update={"catalog": path}), locked=False)
    runtime = next(runtime for runtime in staged.runtimes if runtime.name == name)
    return dataclasses.replace(runtime, lock=catalog.lock_beside(path, name), digest="")


def _inserted(text: str, torch: str, variant: str, build: Build, path: Path) -> str:
    """The catalogue's text with the new build, read again: all else in it must be what it was."""
    result = catalog_file.with_build(text, torch, variant, build)
    try:
        after = catalog_file.parse(result, path)
    except catalog_file.CatalogError as error:
        raise AddingError(f"a line for it cannot be written into {path} as that file is laid out: {error}") from None
    builds = {(entry.torch, name): made for entry in after.runtimes for name, made in entry.builds.items()}
    new = builds.pop((torch, variant), None)
    before = catalog_file.parse(text, path)
    old = {(entry.torch, name): made for entry in before.runtimes for name, made in entry.builds.items()}
    rest = {"runtimes": ()}
    if new != build or builds != old or after.model_copy(update=rest) != before.model_copy(update=rest):
        raise AddingError(f"a line for it cannot be written into {path} as that file is laid out")
    return result


def _locked(runtime: RuntimeSpec, settings: Settings) -> tuple[RuntimeSpec, int | None]:
    """The runtime with its lock, and what there is to download."""
    try:
        made = lock(runtime, settings)
    except SourceUnavailableError as error:
        near = neighbours(runtime, settings)
        if near and runtime.torch not in near:
            raise UnknownRuntimeError(
                f"no index or find-links folder of pip's configuration has torch {runtime.torch}: "
                f"nearest there: {', '.join(near)}"
            ) from None
        raise SourceUnavailableError(without_source(runtime, error) if near else str(error)) from None
    download = made.download_bytes or runtime.download_bytes
    return dataclasses.replace(catalog.relocked(runtime, made.path), download_bytes=download), made.download_bytes


def _check(executor: VenvExecutor, runtime: RuntimeSpec) -> None:
    found = executor.check(runtime)
    if found.problems:
        raise RuntimeBuildError("\n".join(found.problems))


def _guess(torch: str, variant: str, settings: Settings) -> int:
    """What it may need on the disk, for the demand before the download: what its like needs."""
    known = catalog.load(settings, locked=False).runtimes
    like = [spec for spec in known if spec.variant == variant]
    nearer = [spec for spec in like if Version(spec.torch) < Version(torch)] or like
    return max(nearer, key=lambda spec: Version(spec.torch)).installed_bytes if nearer else _GUESS_BYTES


def _rounded(count: int) -> int:
    """Upwards, to the digits that mean something."""
    unit: int = 10 ** max(0, len(str(count)) - _DIGITS)
    return -(-count // unit) * unit


def _written(runtime: RuntimeSpec, build: Build, settings: Settings) -> Added:
    """Put lock and entry in place, one command at a time, and read both back; undone whole if that fails."""
    path = settings.catalog
    target = catalog.lock_beside(path, runtime.name)
    with Guard(settings.home / "locks" / ".catalog.lock") as guard:
        guard.wait()
        before = catalog_file.read(path)  # anew: somebody may have changed it during the build
        after = _inserted(before, runtime.torch, runtime.variant, build, path)
        old = target.read_bytes() if target.exists() else None
        try:
            _replace(target, runtime.lock.read_bytes())
            _replace(path, after.encode())
            known = catalog.load(settings, locked=False).runtimes
            added = next(spec for spec in known if spec.name == runtime.name)
            if added.digest != runtime.digest:
                raise AddingError(f"{path} reads back as another runtime than the one that was built")
        except BaseException:
            _replace(path, before.encode())
            if old is None:
                target.unlink(missing_ok=True)
            else:
                _replace(target, old)
            raise
    older = _older(added, known)
    changes, same = _changes(older, added) if older else ((), 0)
    return Added(added, _diff(before, after, path), older.name if older else None, changes, same)


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(path)


def _older(added: RuntimeSpec, known: tuple[RuntimeSpec, ...]) -> RuntimeSpec | None:
    newest = Version(added.torch)
    older = [spec for spec in known if spec.variant == added.variant and spec.locked and Version(spec.torch) < newest]
    return max(older, key=lambda spec: Version(spec.torch), default=None)


def _changes(older: RuntimeSpec, added: RuntimeSpec) -> tuple[tuple[Change, ...], int]:
    before, after = locked_versions(older.lock), locked_versions(added.lock)
    names = sorted({*before, *after}, key=lambda name: (name != "torch", name))
    changes = [Change(name, before.get(name), after.get(name)) for name in names]
    differing = tuple(change for change in changes if change.before != change.after)
    return differing, len(changes) - len(differing)


def _diff(before: str, after: str, path: Path) -> str:
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), str(path), f"{path} with it", n=2, lineterm=""
    )
    return "\n".join(lines)
