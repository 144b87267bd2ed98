"""The catalogue's file: its form, reading it, and writing one more build of torch into its text.

On the straight line this stands under ``service.catalog``, which makes runtimes of what is read here. Text goes in and
comes out whole, so that a person's comments stay where they are.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from service.errors import GradmatrixError, nearest

_HEADER = "[[runtimes]]"
_VARIANT = re.compile(r"^\[variants\.([a-z0-9]+)\]")
_BUILD = re.compile(r"^builds\.([a-z0-9]+)")
_TORCH = re.compile(r"^torch\s*=\s*[\"']([^\"']+)[\"']")


class CatalogError(GradmatrixError):
    """The catalogue itself is wrong; the message names the file and the entry."""


def _readable(as_what: Callable[[str], object]) -> AfterValidator:
    """A string that the packaging library can read; its error names the string."""

    def check(text: str) -> str:
        as_what(text)
        return text

    return AfterValidator(check)


_Version = Annotated[str, _readable(Version)]
_Specifier = Annotated[str, _readable(SpecifierSet)]
_Requirement = Annotated[str, _readable(Requirement)]
_Local = Annotated[str, Field(pattern=r"^(\+[a-z0-9.]+)?$")]
_Bytes = Annotated[int, Field(gt=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Variant(_Strict):
    """A kind of build.

    local    what its torch versions end with; absent where that differs from release to release
    pinned   ``hash``: every lock lies beside the catalogue; ``version``: one that does not is made on first use
    """

    summary: str
    local: _Local | None = None
    without: tuple[str, ...]
    pinned: Literal["hash", "version"] = "hash"


class Bound(_Strict):
    """Requirements that some torch versions add."""

    torch: _Specifier
    add: tuple[_Requirement, ...]


class Build(_Strict):
    """One build of one torch version; ``local`` where its variant does not say it."""

    local: _Local | None = None
    download_bytes: _Bytes
    installed_bytes: _Bytes


class Entry(_Strict):
    """One torch version, and its builds by variant."""

    torch: _Version
    channel: str = "release"
    builds: Annotated[dict[str, Build], Field(min_length=1)]


class CatalogFile(_Strict):
    """The whole file."""

    python: str
    needs: tuple[_Requirement, ...]
    bounds: tuple[Bound, ...] = ()
    variants: dict[str, Variant]
    runtimes: tuple[Entry, ...]


def read(path: Path) -> str:
    """The catalogue's text. Raises CatalogError."""
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise CatalogError(f"cannot read the catalogue {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CatalogError(f"the catalogue {path} is not UTF-8: {error}") from None


def parse(text: str, path: Path) -> CatalogFile:
    """What ``text`` says; ``path`` is for the errors. Raises CatalogError with a line for every mistake."""
    try:
        return CatalogFile.model_validate(tomllib.loads(text))
    except ValidationError as error:
        raise CatalogError("\n".join(_explain(path, dict(entry)) for entry in error.errors())) from None
    except ValueError as error:
        raise CatalogError(f"the catalogue {path} is not TOML: {error}") from None


_MODELS: dict[str, type[BaseModel]] = {"bounds": Bound, "variants": Variant, "runtimes": Entry}


def _explain(path: Path, entry: dict[str, Any]) -> str:
    """One error of pydantic's, with the nearest known key where one is misspelt."""
    where = [str(part) for part in entry["loc"]]
    if entry["type"] != "extra_forbidden":
        return f"{path}: {'.'.join(where)}: {entry['msg']}"
    model = _MODELS.get(where[0], CatalogFile) if len(where) > 1 else CatalogFile
    known = Build.model_fields if "builds" in where[:-1] else model.model_fields
    return f"{path}: {'.'.join(where)} is not known: {nearest(where[-1], known)}"


def with_build(text: str, torch: str, variant: str, build: Build) -> str:
    """The catalogue's text with one more build: in its version's table, or in a new one before the next newer version.

    Comments stay, and those right above a table stay with it. Whether the outcome says what it should is for
    :func:`parse` to find out: a file may be written in ways that are not looked for here.
    """
    lines = text.splitlines()
    tables = _tables(lines)
    local = f'local = "{build.local}", ' if build.local is not None else ""
    sizes = f"download_bytes = {build.download_bytes:_}, installed_bytes = {build.installed_bytes:_}"
    row = f"builds.{variant} = {{ {local}{sizes} }}"
    same = next((table for table in tables if table.torch == torch), None)
    if same:
        at = _row_place(lines, same, variant)
        added = [row]
    else:
        newer = [table for table in tables if table.torch and Version(table.torch) > Version(torch)]
        at = newer[0].start if newer else tables[-1].end if tables else len(lines)
        added = [_HEADER, f'torch = "{torch}"', row]
        added = [*added, ""] if newer else ["", *added]
    return "\n".join([*lines[:at], *added, *lines[at:]]) + "\n"


@dataclass(frozen=True)
class _Table:
    """Lines of a ``[[runtimes]]`` table: from its own comments to the last one that is not blank."""

    start: int
    header: int
    end: int
    torch: str | None


def _row_place(lines: list[str], table: _Table, variant: str) -> int:
    """Before which line a build goes in its version's table: variants are in one order everywhere, the file's."""
    order = [match[1] for line in lines if (match := _VARIANT.match(line))]
    earlier = order[: order.index(variant)] if variant in order else order
    rows = [(n, match[1]) for n in range(table.header, table.end) if (match := _BUILD.match(lines[n]))]
    before = [n for n, name in rows if name in earlier]
    if before or not rows:
        heads = (n for n in range(table.header, table.end) if n == table.header or _TORCH.match(lines[n]))
        return max(before or heads) + 1
    return rows[0][0]


def _tables(lines: list[str]) -> list[_Table]:
    headers = [n for n, line in enumerate(lines) if line.lstrip().startswith("[")]
    starts = {header: _with_comments(lines, header) for header in headers}
    found = []
    for header, after in zip(headers, [*headers[1:], None], strict=True):
        if lines[header].split("#")[0].strip() != _HEADER:
            continue
        end = len(lines) if after is None else starts[after]
        while not lines[end - 1].strip():
            end -= 1
        torch = next((match[1] for line in lines[header:end] if (match := _TORCH.match(line))), None)
        found.append(_Table(starts[header], header, end, torch))
    return found


def _with_comments(lines: list[str], header: int) -> int:
    """Where the comment right above a header begins, or the header's own line."""
    while header and lines[header - 1].startswith("#"):
        header -= 1
    return header
