"""What an import lacked, told apart by whose it is; and on which torch versions a checkout can be imported.

On the straight line the first half serves ``service.signature`` and the second ``service.findings`` and the command
line, from the facts that ``service.store.imports`` keeps. Pure. A signature says what is missing and never which
direction would help: that is read from the versions that import the same checkout.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from service.edges import BAD, GOOD, NO_IMPORT, in_order, merged, version_order
from service.evidence import ErrorInfo
from service.spans import spans

ANOTHER_TORCH, PACKAGE = "needs another torch: ", "needs package: "
"""How the signatures begin of an import that lacked something of torch's, and of one that lacked a package."""

TORCH = frozenset({"torch", "functorch", "torchgen"})
"""What comes with torch."""

_SCHEMA = "torch.library.infer_schema"
_LACKS: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern), template, whose)
    for pattern, template, whose in (
        (r"infer_schema\(func\): .*unsupported type ([\w.\[\], ]+?)\.", rf"{_SCHEMA} to take \1", "torch"),
        (r"'_OpNamespace' '(\w+)' object has no attribute '(\w+)'", r"torch.ops.\1.\2", "torch"),
        (r"No module named '([\w.]+)'", r"\1", "by name"),
        (r"cannot import name '(\w+)' from (?:partially initialized module )?'([\w.]+)'", r"\2.\1", "by name"),
        (r"^module '([\w.]+)' has no attribute '(\w+)'", r"\1.\2", "by name"),
        (r"No package metadata was found for ([\w.-]+)", r"\1", "package"),
        (r"^The '([\w.-]+)[^']*' distribution was not found", r"\1", "package"),
        (r"^([A-Za-z][\w.-]*?)(?:\[[\w, -]+\])?(?: ?[<>=!~]=? ?[\w.*]+,?)+ is required\b", r"\1", "package"),
    )
)  # fmt: skip
"""How Python, torch and packages say that something is missing: what it is, and whose, where the name does not tell."""

_OLD = re.compile(r"needs (?!another torch: |package: )(.+)")
"""A signature as it was before what is missing was told apart."""


def lacking(error: ErrorInfo) -> str | None:
    """The signature of an import that failed for want of something; None where it failed in another way.

    A name of the subject's own, or of Python's library, that is missing is the subject's own fault, or another
    Python's matter: neither another torch nor a package would help.
    """
    for pattern, template, whose in _LACKS:
        if (found := pattern.search(error.message)) is None:
            continue
        name = found.expand(template)
        root = name.partition(".")[0]
        if whose == "torch" or (whose == "by name" and root in TORCH):
            return ANOTHER_TORCH + name
        if whose == "package" or root not in _own(error) | sys.stdlib_module_names:
            return PACKAGE + name
        return None
    return None


def _own(error: ErrorInfo) -> frozenset[str]:
    """The subject's top-level modules, as far as the traceback went through them."""
    files = (frame.file for frame in error.frames if frame.owner == "subject")
    return frozenset(file.partition("/")[0].removesuffix(".py") for file in files)


def current(signature: str) -> str:
    """A stored signature of a failed import in today's words: older ones said only ``needs NAME``."""
    if (old := _OLD.fullmatch(signature)) is None:
        return signature
    return (ANOTHER_TORCH if old[1].partition(".")[0] in TORCH else PACKAGE) + old[1]


# -- over the versions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Import:
    """Whether a checkout could be imported in a runtime; ``signature`` says why not, and is empty where it could."""

    checkout: str
    torch: str
    runtime: str
    channel: str
    signature: str


Kind = Literal["newer torch", "older torch", "another torch", "package", "error"]


@dataclass(frozen=True)
class Need:
    """What would make an import go well, as ``--json`` has it.

    kind         ``another torch`` where the versions do not say whether a newer or an older one
    missing      what was not there; empty where the import failed in another way
    first_torch  the first version known to import the checkout, None where none is
    last_torch   the last such version
    untried      versions beside the failing ones of which it is not known, towards those that import it
    """

    kind: Kind
    missing: str
    first_torch: str | None
    last_torch: str | None
    untried: tuple[str, ...] = ()


def import_columns(facts: Iterable[Import], signature: str, known: Iterable[str] = ()) -> list[tuple[str, str]]:
    """What each version says of an import that fails with ``signature``, as ``service.edges`` puts it, in order."""
    by_torch: dict[str, list[str]] = {torch: [] for torch in known}
    for fact in facts:
        said = GOOD if not fact.signature else BAD if fact.signature == signature else NO_IMPORT
        by_torch.setdefault(fact.torch, []).append(said)
    return [(torch, merged(by_torch[torch])) for torch in in_order(by_torch)]


def need(signature: str, columns: Sequence[tuple[str, str]]) -> Need:
    """What the import needs that fails with ``signature`` on the BAD ones of ``columns``."""
    good = [index for index, (_, said) in enumerate(columns) if said == GOOD]
    bad = [index for index, (_, said) in enumerate(columns) if said == BAD]
    first, last = (columns[good[0]][0], columns[good[-1]][0]) if good else (None, None)
    if signature.startswith(PACKAGE):
        return Need("package", signature.removeprefix(PACKAGE), first, last)
    if not signature.startswith(ANOTHER_TORCH):
        return Need("error", "", first, last)
    missing = signature.removeprefix(ANOTHER_TORCH)
    if good and bad and good[0] > bad[-1]:
        return Need("newer torch", missing, first, last, _untried(columns[: good[0]][::-1])[::-1])
    if good and bad and good[-1] < bad[0]:
        return Need("older torch", missing, first, last, _untried(columns[good[-1] + 1 :]))
    return Need("another torch", missing, first, last)


def _untried(columns: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The versions before the first failing one that are not known to fail."""
    failing = next(index for index, (_, said) in enumerate(columns) if said in (BAD, NO_IMPORT))
    return tuple(torch for torch, _ in columns[:failing])


def need_text(signature: str, columns: Sequence[tuple[str, str]]) -> str:
    """``needs a newer torch (2.6.0 is the first in the catalogue that imports it; missing: torch.library.custom_op)``.

    Empty where it is not known that anything is missing.
    """
    wanted = need(signature, columns)
    names = [torch for torch, _ in columns]
    if wanted.kind == "error":
        return ""
    if wanted.kind == "package":
        return f"needs the package {wanted.missing}"
    newer = wanted.kind == "newer torch"
    edge = wanted.first_torch if newer else wanted.last_torch
    if wanted.kind == "another torch":
        importing = [torch for torch, said in columns if said == GOOD]
        told = f"{spans(importing, names)} {'import' if len(importing) > 1 else 'imports'} it; " if importing else ""
        return f"needs another torch ({told}missing: {wanted.missing})"
    told = f"{edge} is the {'first' if newer else 'last'} in the catalogue that imports it"
    if wanted.untried:
        told = f"{edge} imports it, {spans(wanted.untried, names)} untried"
    return f"needs {'a newer' if newer else 'an older'} torch ({told}; missing: {wanted.missing})"


def reasons(facts: Iterable[Import]) -> list[str]:
    """The signatures with which an import fails somewhere, by the first version on which each does."""
    failing = [fact for fact in facts if fact.signature]
    return list(dict.fromkeys(fact.signature for fact in sorted(failing, key=lambda fact: version_order(fact.torch))))
