"""The catalogue of runtimes: which torch versions there are, and what each is made of. Pure data.

On the straight line this is what ``service.matrix`` takes its runtimes from; ``workers.runtimes`` builds them.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from service.config import Settings
from service.errors import GradmatrixError, UsageError, nearest

RECIPE = 1
"""Raised when runtimes are built differently from the same lock, so that built ones are not taken for new ones."""


class CatalogError(GradmatrixError):
    """The catalogue itself is wrong; the message names the file and the entry."""


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
    requirements     what the lock is made from
    without          packages that are left out although something asks for them
    lock             the lock file
    digest           the runtime's identity
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


@dataclass(frozen=True)
class Catalog:
    """All runtimes, in the catalogue's order; ``variant`` is what a bare version means."""

    runtimes: tuple[RuntimeSpec, ...]
    variant: str

    def select(self, texts: Sequence[str]) -> tuple[RuntimeSpec, ...]:
        """The runtimes that ``texts`` name (``2.11.0``, or ``2.11.0-index``), each once, in the order asked for.

        A bare version means the configured variant, or the only one that there is.
        """
        return tuple(dict.fromkeys(self._one(text.strip()) for text in texts))

    def _one(self, text: str) -> RuntimeSpec:
        by_name = {runtime.name: runtime for runtime in self.runtimes}
        found = by_name.get(text) or by_name.get(f"{text}-{self.variant}")
        if found:
            return found
        variants = [runtime for runtime in self.runtimes if runtime.torch == text]
        if len(variants) == 1:
            return variants[0]
        if variants:
            others = [runtime.name for runtime in variants]
            raise UnknownRuntimeError(
                f"torch {text} is not in the catalogue as variant {self.variant!r}, which is configured; "
                f"name the runtime in full: {' or '.join(others)}"
            )
        versions = {runtime.torch for runtime in self.bare()}
        begun = {version for version in versions if text and version.startswith(f"{text.rstrip('.')}.")}
        hint = f"did you mean {begun.pop()}?" if len(begun) == 1 else nearest(text, versions | set(by_name))
        raise UnknownRuntimeError(f"torch {text} is not in the catalogue: {hint}")

    def bare(self) -> tuple[RuntimeSpec, ...]:
        """The runtimes that a bare torch version names, in the catalogue's order."""
        variants = Counter(runtime.torch for runtime in self.runtimes)
        return tuple(
            runtime for runtime in self.runtimes if runtime.variant == self.variant or variants[runtime.torch] == 1
        )


def _readable(as_what: Callable[[str], object]) -> AfterValidator:
    """A string that the packaging library can read; its error names the string."""

    def check(text: str) -> str:
        as_what(text)
        return text

    return AfterValidator(check)


_Version = Annotated[str, _readable(Version)]
_Specifier = Annotated[str, _readable(SpecifierSet)]
_Requirement = Annotated[str, _readable(Requirement)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Variant(_Strict):
    summary: str
    local: str
    without: tuple[str, ...]


class _Bound(_Strict):
    torch: _Specifier
    add: tuple[_Requirement, ...]


class _Entry(_Strict):
    torch: _Version
    variant: str
    channel: str = "release"
    download_bytes: Annotated[int, Field(gt=0)]
    installed_bytes: Annotated[int, Field(gt=0)]

    @property
    def name(self) -> str:
        return f"{self.torch}-{self.variant}"


class _File(_Strict):
    python: str
    needs: tuple[_Requirement, ...]
    bounds: tuple[_Bound, ...] = ()
    variants: dict[str, _Variant]
    runtimes: tuple[_Entry, ...]


def load(settings: Settings, *, locked: bool = True) -> Catalog:
    """The catalogue that ``settings`` name. Raises CatalogError.

    ``locked=False`` is for making the locks: missing ones are no error then, and their runtimes' digests are empty.
    """
    file = _parse(settings.catalog)
    names = Counter(entry.name for entry in file.runtimes)
    if twice := [name for name, count in names.items() if count > 1]:
        raise CatalogError(f"{settings.catalog}: more than once: {', '.join(twice)}")
    if settings.variant not in file.variants:
        raise CatalogError(
            f"the configured variant {settings.variant!r} is not in {settings.catalog}: "
            f"{nearest(settings.variant, file.variants)}"
        )
    runtimes = tuple(_spec(file, entry, settings.catalog, locked) for entry in file.runtimes)
    return Catalog(runtimes, settings.variant)


def _parse(path: Path) -> _File:
    try:
        return _File.model_validate(tomllib.loads(path.read_text("utf-8")))
    except OSError as error:
        raise CatalogError(f"cannot read the catalogue {path}: {error.strerror}") from None
    except ValidationError as error:
        raise CatalogError("\n".join(_explain(path, dict(entry)) for entry in error.errors())) from None
    except ValueError as error:
        raise CatalogError(f"the catalogue {path} is not TOML: {error}") from None


def _spec(file: _File, entry: _Entry, path: Path, locked: bool) -> RuntimeSpec:
    variant = file.variants.get(entry.variant)
    if variant is None:
        raise CatalogError(f"{path}: {entry.name}: no such variant: {nearest(entry.variant, file.variants)}")
    lock = path.parent / "locks" / f"{entry.name}.txt"
    bounds = [
        add
        for bound in file.bounds
        if SpecifierSet(bound.torch).contains(entry.torch, prereleases=True)
        for add in bound.add
    ]
    return RuntimeSpec(
        name=entry.name,
        torch=entry.torch,
        variant=entry.variant,
        channel=entry.channel,
        python=file.python,
        requirements=(f"torch=={entry.torch}{variant.local}", *file.needs, *bounds),
        without=variant.without,
        lock=lock,
        digest=_digest(file.python, entry, lock, locked),
        download_bytes=entry.download_bytes,
        installed_bytes=entry.installed_bytes,
    )


def _digest(python: str, entry: _Entry, lock: Path, locked: bool) -> str:
    """The identity: what decides which bytes are installed, and nothing else (no path, no size)."""
    try:
        content = lock.read_bytes()
    except OSError as error:
        if locked:
            raise CatalogError(f"{entry.name}: cannot read its lock {lock}: {error.strerror}") from None
        return ""
    parts = [RECIPE, entry.torch, entry.variant, entry.channel, python, hashlib.sha256(content).hexdigest()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


_MODELS: dict[str, type[BaseModel]] = {"bounds": _Bound, "variants": _Variant, "runtimes": _Entry}


def _explain(path: Path, entry: dict[str, Any]) -> str:
    """One error of pydantic's, with the nearest known key where one is misspelt."""
    where = [str(part) for part in entry["loc"]]
    text = f"{path}: {'.'.join(where)}: {entry['msg']}"
    if entry["type"] != "extra_forbidden":
        return text
    model = _MODELS.get(where[0], _File) if len(where) > 1 else _File
    return f"{path}: {'.'.join(where)} is not known: {nearest(where[-1], model.model_fields)}"
