"""The catalogue of runtimes: which torch versions there are, and what each is made of. Pure data.

On the straight line this is what ``service.matrix`` takes its runtimes from; ``workers.runtimes`` builds them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from service import catalog_file
from service.catalog_file import Build, CatalogError, CatalogFile, Entry
from service.config import Settings
from service.errors import UsageError, nearest

__all__ = ["RECIPE", "Catalog", "CatalogError", "RuntimeSpec", "UnknownRuntimeError", "load", "lock_beside", "relocked"]

RECIPE = 1
"""Raised when runtimes are built differently from the same lock, so that built ones are not taken for new ones."""

ALL, LATEST = "all", "latest"
_NUMBERS = re.compile(r"\d+(\.\d+)*")


class UnknownRuntimeError(UsageError):
    """A torch version or runtime was asked for that the catalogue does not have."""


@dataclass(frozen=True)
class RuntimeSpec:
    """One pinned torch environment.

    name             ``2.11.0-index``
    torch            the version that people ask for, without a local part
    variant          which build of it
    channel          ``release`` or ``nightly``
    python           the Python's minor version
    requirements     what the lock is made from, torch first
    without          packages that are left out although something asks for them
    lock             the lock file; where it would be, while there is none
    digest           the runtime's identity; empty while it is pinned by version only
    download_bytes   about what a first build downloads
    installed_bytes  about what it takes on the disk
    """

    name: str
    torch: str
    variant: str
    channel: str
    python: str
    requirements: tuple[str, ...]
    without: tuple[str, ...]
    lock: Path
    digest: str
    download_bytes: int
    installed_bytes: int

    @property
    def locked(self) -> bool:
        """Whether every file in it is pinned by hash; if not, ``workers.runtimes.locking`` does that on first use."""
        return bool(self.digest)


_Fits = Callable[[RuntimeSpec], bool]


@dataclass(frozen=True)
class Catalog:
    """All runtimes, in the catalogue's order; ``variant`` is what a bare version means."""

    runtimes: tuple[RuntimeSpec, ...]
    variant: str

    def select(self, texts: Sequence[str]) -> tuple[RuntimeSpec, ...]:
        """The runtimes that ``texts`` name, each once, in the order asked for. Raises UnknownRuntimeError.

        ``2.11.0``, ``2.11`` (its newest patch), ``2.2..2.11`` (every version from the one to the other, both
        included), ``all`` and ``latest``, each of the configured variant (or the only one there is), or with another
        at its end: ``all-cpu``. Several that one text names are in the catalogue's order.
        """
        return tuple(dict.fromkeys(runtime for text in texts for runtime in self._meant(text.strip())))

    def bare(self) -> tuple[RuntimeSpec, ...]:
        """The runtimes that a bare torch version names, in the catalogue's order."""
        variants = Counter(runtime.torch for runtime in self.runtimes)
        return tuple(
            runtime for runtime in self.runtimes if runtime.variant == self.variant or variants[runtime.torch] == 1
        )

    def _meant(self, text: str) -> Sequence[RuntimeSpec]:
        words, dash, variant = text.rpartition("-") if "-" in text else (text, "", "")
        pool = self._of_variant(text, variant) if dash else self.bare()
        fits = _reading(text, words)
        found = [runtime for runtime in pool if fits(runtime)]
        if not found:
            raise UnknownRuntimeError(self._unknown(text, words, pool, variant, fits))
        if words == ALL or ".." in words:
            return found
        # Beside the configured variant, versions that only another one has do not count as the latest.
        own = [runtime for runtime in found if runtime.variant == (variant or self.variant)]
        return [max(own or found, key=lambda runtime: Version(runtime.torch))]

    def _of_variant(self, text: str, variant: str) -> tuple[RuntimeSpec, ...]:
        known = {runtime.variant for runtime in self.runtimes}
        if variant not in known:
            raise UnknownRuntimeError(
                f"torch {text} is not in the catalogue: there is no variant {variant!r}, {nearest(variant, known)}"
            )
        return tuple(runtime for runtime in self.runtimes if runtime.variant == variant)

    def _unknown(self, text: str, words: str, pool: Sequence[RuntimeSpec], variant: str, fits: _Fits) -> str:
        if elsewhere := [runtime.name for runtime in self.runtimes if fits(runtime)]:
            which = f"{variant!r}" if variant else f"{self.variant!r}, which is configured"
            return (
                f"torch {words} is not in the catalogue as variant {which}; "
                f"name the runtime in full: {' or '.join(elsewhere[:6])}"
            )
        known = [*dict.fromkeys(runtime.torch for runtime in pool), ALL, LATEST]
        close = _neighbours(words, known[:-2]) or get_close_matches(words, known, cutoff=0.6)
        said = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
        return f"torch {text} is not in the catalogue: {said}"


def _reading(text: str, words: str) -> _Fits:
    """What fits ``words``, whatever its variant."""
    if words in (ALL, LATEST):
        return lambda runtime: True
    if ".." in words:
        return _range(text, words)
    asked = _release(words)
    begun = asked if len(asked) > 1 else None
    return lambda runtime: runtime.torch == words or Version(runtime.torch).release[: len(asked)] == begun


def _range(text: str, words: str) -> _Fits:
    first, _, last = words.partition("..")
    low, high = _release(first), _release(last)
    if not (low and high):
        raise UnknownRuntimeError(f"torch {text}: a range is written FIRST..LAST, such as 2.2..2.11")
    shared = min(len(low), len(high))
    if low[:shared] > high[:shared]:
        raise UnknownRuntimeError(f"torch {text}: the range runs backwards: did you mean {last}..{first}?")

    def inside(runtime: RuntimeSpec) -> bool:
        release = Version(runtime.torch).release
        return release[: len(low)] >= low and release[: len(high)] <= high

    return inside


def _release(text: str) -> tuple[int, ...]:
    """The numbers of ``2.11`` or ``2.11.0``; none where it is something else."""
    return tuple(map(int, text.split("."))) if _NUMBERS.fullmatch(text) else ()


def _neighbours(words: str, known: Iterable[str]) -> list[str]:
    """The known versions next to a version or range: of its own minor version where there are any."""
    first, _, last = words.partition("..")
    low, high = _release(first), _release(last or first)
    if not (low and high):
        return []
    order = [(Version(version).release, version) for version in sorted(known, key=Version)]
    minor = [version for release, version in order if release[:2] == low[:2] == high[:2]]
    below = [version for release, version in order if release < low]
    above = [version for release, version in order if release[: len(high)] > high]
    return minor or [*below[-1:], *above[:1]]


def load(settings: Settings, *, locked: bool = True) -> Catalog:
    """The catalogue that ``settings`` name. Raises CatalogError.

    A lock lies beside the catalogue or, made on this machine, in the home folder. One may be missing where the variant
    is pinned by version: the runtime is unlocked then. ``locked=False`` is for making the others: they may be
    missing too.
    """
    file = catalog_file.parse(catalog_file.read(settings.catalog), settings.catalog)
    if settings.variant not in file.variants:
        raise CatalogError(
            f"the configured variant {settings.variant!r} is not in {settings.catalog}: "
            f"{nearest(settings.variant, file.variants)}"
        )
    runtimes = tuple(
        _spec(file, entry, variant, build, settings, locked)
        for entry in file.runtimes
        for variant, build in entry.builds.items()
    )
    names = Counter(runtime.name for runtime in runtimes)
    if twice := [name for name, count in names.items() if count > 1]:
        raise CatalogError(f"{settings.catalog}: more than once: {', '.join(twice)}")
    return Catalog(runtimes, settings.variant)


def lock_beside(path: Path, name: str) -> Path:
    """Where the lock of the runtime ``name`` of the catalogue ``path`` is kept for everybody."""
    return path.parent / "locks" / f"{name}.txt"


def relocked(runtime: RuntimeSpec, lock: Path) -> RuntimeSpec:
    """The runtime with what ``lock`` holds now. Raises CatalogError."""
    try:
        content = lock.read_bytes()
    except OSError as error:
        raise CatalogError(f"{runtime.name}: cannot read its lock {lock}: {error.strerror}") from None
    return dataclasses.replace(runtime, lock=lock, digest=_digest(runtime, content))


def _spec(file: CatalogFile, entry: Entry, name: str, build: Build, settings: Settings, locked: bool) -> RuntimeSpec:
    path, full = settings.catalog, f"{entry.torch}-{name}"
    variant = file.variants.get(name)
    if variant is None:
        raise CatalogError(f"{path}: {full}: no such variant: {nearest(name, file.variants)}")
    local = variant.local if build.local is None else build.local
    if local is None:
        raise CatalogError(f'{path}: {full}: its version\'s end is missing: local = "+cu130", or as it was published')
    bounds = [
        add
        for bound in file.bounds
        if SpecifierSet(bound.torch).contains(entry.torch, prereleases=True)
        for add in bound.add
    ]
    runtime = RuntimeSpec(
        name=full,
        torch=entry.torch,
        variant=name,
        channel=entry.channel,
        python=file.python,
        # ===: with == the plain version would also mean a build of the same version with a local part.
        requirements=(f"torch==={entry.torch}{local}", *file.needs, *bounds),
        without=variant.without,
        lock=lock_beside(path, full),
        digest="",
        download_bytes=build.download_bytes,
        installed_bytes=build.installed_bytes,
    )
    if variant.pinned == "version" and not runtime.lock.exists():
        runtime = dataclasses.replace(runtime, lock=_own_lock(settings.home, runtime))
        return relocked(runtime, runtime.lock) if runtime.lock.exists() else runtime
    return relocked(runtime, runtime.lock) if locked or runtime.lock.exists() else runtime


def _own_lock(home: Path, runtime: RuntimeSpec) -> Path:
    """Where this machine keeps a lock of its own, named after what it is made from: catalogues change, and differ."""
    made_from = json.dumps([runtime.python, runtime.requirements, runtime.without])
    return home / "locks" / f"{runtime.name}-{hashlib.sha256(made_from.encode()).hexdigest()[:8]}.txt"


def _digest(runtime: RuntimeSpec, lock: bytes) -> str:
    """The identity: what decides which bytes are installed, and nothing else (no path, no size)."""
    content = hashlib.sha256(lock).hexdigest()
    parts = [RECIPE, runtime.torch, runtime.variant, runtime.channel, runtime.python, content]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
