"""The names of a model's gradients in its reader's words: ``the q, k and v projections``, ``the MLP``.

On the straight line a part of ``service.diagnosis``; pure. Names are those that the cases give: ``x``, ``q_proj``,
``layer1.up_proj``, and ``step/`` or ``moment/`` before them for what the optimiser made of a gradient.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from service.spans import listed

MANY = 6
"""From how many names on only the first ones are said."""

_LAYER = re.compile(r"^(?:\w+\.)*?layers?\.?(?P<layer>\d+)\.(?P<base>.+)$")
KINDS = ("gradient", "step", "moment", "root")
"""What is told of a parameter, in the order in which one follows from another: its gradient, what an optimiser added to
it, and the moments that it keeps."""

_STEPPED = re.compile(r"^(?P<kind>step|moment|root)/(?P<name>.+)$")
_PROJECTION = re.compile(r"^(?:\w+\.)*(?P<which>[qkvo])_proj(?:\.weight)?$")

_TOGETHER: tuple[tuple[str, frozenset[str]], ...] = (
    ("the MLP", frozenset({"gate_proj", "up_proj", "down_proj"})),
    ("the norms", frozenset({"norm", "norm_before", "norm_after", "input_norm", "final_norm"})),
)
"""What several parameters are called together."""

_ALONE = {
    "embed": "the embedding",
    "head": "the head",
    "norm": "the last norm",
    "norm_before": "the norm before attention",
    "norm_after": "the norm after attention",
}


def stepped(name: str) -> str:
    """The parameter whose step or moment this is; empty for a gradient itself."""
    found = _STEPPED.match(name)
    return found["name"] if found else ""


def kind_of(name: str) -> str:
    """Which of :data:`KINDS` a name is of."""
    found = _STEPPED.match(name)
    return found["kind"] if found else KINDS[0]


def spoken(names: Sequence[str], among: Sequence[str] = ()) -> str:
    """Names as people would say them: those that belong together together, and those of every layer once.

    ``among``: all names that there are; where it has a parameter in more layers than ``names``, the layers are said.
    """
    everywhere, mine = _layers(among), _layers(names)
    parts: dict[tuple[str, ...], list[str]] = {}
    for base, layers in mine.items():
        partly = set(layers) != set(everywhere.get(base, layers))
        parts.setdefault(tuple(layers) if partly else (), []).append(base)
    said = []
    for within, bases in sorted(parts.items()):
        where = f" of layer{'s' if len(within) > 1 else ''} {listed(within)}" if within else ""
        said.append(f"{_together(bases)}{where}")
    return ", and ".join(said)


def _layers(names: Sequence[str]) -> dict[str, list[str]]:
    """Every parameter without its layer, and the layers that have it."""
    found: dict[str, list[str]] = {}
    for name in names:
        plain = stepped(name) or name
        match = _LAYER.match(plain)
        layers = found.setdefault(match["base"] if match else plain, [])
        if match and match["layer"] not in layers:
            layers.append(match["layer"])
    return found


def _together(bases: Sequence[str]) -> str:
    """Parameters without their layers, in a list."""
    said: list[str] = []
    projections = [found["which"] for base in bases if (found := _PROJECTION.match(base))]
    if projections:
        projections.sort(key="qkvo".index)
        said.append(f"the {listed(projections)} projection{'s' if len(projections) > 1 else ''}")
    rest = [base for base in bases if not _PROJECTION.match(base)]
    for word, members in _TOGETHER:
        if len(mine := [base for base in rest if base in members]) > 1:
            said.append(word)
            rest = [base for base in rest if base not in mine]
    said += [_ALONE.get(base, base) for base in rest]
    more = len(said) - MANY
    return listed([*said[:MANY], f"{more} more"] if more > 0 else said)


def have(names: Sequence[str], one: str, many: str) -> str:
    """The verb that goes with :func:`spoken`."""
    text = spoken(names)
    return many if " and " in text or (text.endswith("s") and text.startswith("the ")) else one
