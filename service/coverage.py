"""What of a checkout the probes reach, and what not.

On the straight line this stands beside ``service.cases``: source text (of a checkout that is never imported here) and
the catalogue in, one row per name out. Pure. Which probe reaches what is data, ``coverage.toml``; that every name in it
exists, and every probe, is tested over a real release.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any

from service.cases import fits
from service.errors import GradmatrixError, nearest
from service.globs import matches
from service.holding import Held, held

SCHEMA = 1
KEYS = {"skip": list, "skip_files": list, "modules": list, "probes": dict, "former": dict, "uncovered": dict}


class CoverageError(GradmatrixError):
    """The table of what is covered is not what it has to be."""


@dataclass(frozen=True)
class Map:
    """The data beside this module: which paths count, and which probe reaches which name.

    skip, skip_files  first components of paths, and names of files, that are no part of a package
    modules           globs of the modules whose public names are listed
    probes, former    globs of probes by name; those of ``former`` exist in earlier releases only
    uncovered         why a name is not covered
    """

    skip: tuple[str, ...]
    skip_files: tuple[str, ...]
    modules: tuple[str, ...]
    probes: Mapping[str, tuple[str, ...]]
    former: Mapping[str, tuple[str, ...]]
    uncovered: Mapping[str, str]

    def counts(self, path: str) -> bool:
        """Whether a file is part of the package."""
        parts = PurePosixPath(path).parts
        named = any(fnmatchcase(parts[-1], pattern) for pattern in self.skip_files)
        return path.endswith(".py") and parts[0] not in self.skip and not named

    def under_test(self, path: str) -> bool:
        """Whether it is one of the modules whose public names are listed."""
        folder, name = str(PurePosixPath(path).parent), PurePosixPath(path).name
        globs = ((str(PurePosixPath(glob).parent), PurePosixPath(glob).name) for glob in self.modules)
        return any(folder == at and fnmatchcase(name, pattern) for at, pattern in globs)

    def probes_of(self, key: str) -> tuple[str, ...]:
        """The globs of the probes that reach ``module:name``; its own entry goes before one with wildcards."""
        every = {**self.former, **self.probes}
        if key in every:
            return every[key]
        return next((globs for pattern, globs in every.items() if matches(pattern, key)), ())

    def why_not(self, key: str) -> str:
        """Why it is not covered, where that is known."""
        return next((reason for pattern, reason in self.uncovered.items() if matches(pattern, key)), "")


@dataclass(frozen=True)
class Row:
    """One name of the checkout.

    public  it is a public name of a module under test
    probes  the probes that reach it, as ids without parameters; empty: not covered, and ``reason`` may say why
    """

    module: str
    name: str
    kind: str
    line: int
    public: bool
    collectives: tuple[str, ...]
    probes: tuple[str, ...]
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**vars(self), "collectives": list(self.collectives), "probes": list(self.probes)}


def coverage(sources: Mapping[str, str], cases: Iterable[str], table: Map) -> tuple[Row, ...]:
    """A row for everything that holds a collective, and for every public name of a module under test.

    ``sources`` is the text of the package's files by path, ``cases`` the ids of all cases. A probe that has no case
    covers nothing.
    """
    known = tuple(dict.fromkeys(case.partition("[")[0] for case in cases))
    package = {path: text for path, text in sources.items() if table.counts(path)}
    rows = [_row(one, known, table) for one in held(package, [path for path in package if table.under_test(path)])]
    return tuple(sorted(rows, key=lambda row: (row.module, row.line, row.name)))


def _row(one: Held, known: Sequence[str], table: Map) -> Row:
    globs = table.probes_of(one.key)
    probes = tuple(probe for probe in known if any(fits(glob, probe) for glob in globs))
    reason = "" if probes else table.why_not(one.key) or (f"no case of {', '.join(globs)}" if globs else "")
    return Row(one.module, one.name, one.kind, one.line, one.public, one.collectives, probes, reason)


def stale(rows: Iterable[Row], table: Map) -> tuple[str, ...]:
    """What the table says of names that this checkout has not, or has although they are said to be former."""
    keys = [f"{row.module}:{row.name}" for row in rows]
    said = [
        f"{pattern} is in [probes], and there is no such name"
        for pattern in table.probes
        if not any(matches(pattern, key) for key in keys)
    ]
    return (*said, *(f"{name} is in [former], and is there" for name in table.former if name in keys))


@lru_cache
def load_map() -> Map:
    """The table of this package. Raises CoverageError."""
    return parse_map((files("service") / "coverage.toml").read_text(encoding="utf-8"))


def parse_map(text: str) -> Map:
    """A table from its TOML. Raises CoverageError naming the key that is unknown, missing or of another form."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CoverageError(f"coverage.toml is not TOML: {error}") from None
    for key in data:
        if key not in KEYS:
            raise CoverageError(f"coverage.toml has an unknown key {key!r}: {nearest(key, KEYS)}")
    for key, kind in KEYS.items():
        if not isinstance(data.get(key), kind):
            raise CoverageError(f"coverage.toml: {key} is not a {'list' if kind is list else 'table'}, or not there")
    for table in ("probes", "former"):
        for name, globs in data[table].items():
            if ":" not in name or not (isinstance(globs, list) and globs and all(isinstance(g, str) for g in globs)):
                raise CoverageError(f"coverage.toml: [{table}] {name!r} is not MODULE:NAME = a list of probes")
    return Map(
        skip=tuple(data["skip"]),
        skip_files=tuple(data["skip_files"]),
        modules=tuple(data["modules"]),
        probes={name: tuple(globs) for name, globs in data["probes"].items()},
        former={name: tuple(globs) for name, globs in data["former"].items()},
        uncovered=dict(data["uncovered"]),
    )
