"""What the ranks of a case hand in, and the lines of Python that draw it anew without any code of ours.

On the straight line this stands in ``service.repro``, between ``python -m jobs --handed``, which states the tensors,
and the frame of the script. Pure but for the one question to ``jobs``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from service.cases import CatalogueError, ask

SCHEMA = 1
WIDTH = 116
MANY = 6
"""From how many tensors on several of them share a line."""


@dataclass(frozen=True)
class Handed:
    """One tensor of one rank, with the fields of jobs.probes.case.TensorSpec that its values depend on."""

    name: str
    role: str
    shape: tuple[int, ...]
    drawn: tuple[int, ...]
    strides: str
    factor: float
    shared: bool
    integers: tuple[int, ...]


Ranks = tuple[tuple[Handed, ...], ...]
"""Per rank what it hands in, in order."""


def handed(case_id: str, world_size: int) -> Ranks:
    """Asked of the installed ``jobs``. Raises CatalogueError where it does not know the case."""
    data = json.loads(ask("--handed", case_id, str(world_size)))
    if data.get("schema") != SCHEMA:
        raise CatalogueError(f"the tensors of {case_id} are not of schema {SCHEMA}")
    return parse(data["ranks"])


def parse(ranks: list[list[dict[str, Any]]]) -> Ranks:
    """The tensors as ``jobs`` states them: per rank, the fields of each."""
    return tuple(tuple(_handed(spec) for spec in rank) for rank in ranks)


def _handed(spec: dict[str, Any]) -> Handed:
    values: dict[str, Any] = {field.name: spec[field.name] for field in fields(Handed)}
    return Handed(**(values | {name: tuple(value) for name, value in values.items() if isinstance(value, list)}))


# -- as lines of Python --------------------------------------------------------------------------------------------

DRAW = """\
def draw(name, rank, shape{parameter}):  # ±k/16, k from 1 to 127{times}: exact in every type, the same in every Python
    count = math.prod(shape)
    drawn = random.Random(f"{{SEED}}|{{name}}|{{rank}}").getrandbits(8 * count).to_bytes(count, "little")
    values = [(byte & 127 or 127) * (1 if byte < 128 else -1) / 16{by} for byte in drawn]
    return torch.tensor(values, dtype=DTYPE).reshape(shape)
"""

STRIDES: dict[str, Callable[[str, Handed, str], str]] = {
    "contiguous": lambda text, spec, shape: text,
    # The outermost dimensions swap places in memory, and so do the innermost ones where there are others.
    "transposed": lambda text, spec, shape: f"{text}{_swap(spec)}.contiguous(){_swap(spec)}",
    "expanded": lambda text, spec, shape: f"{text}.expand({shape})",
    # A window into a wider tensor, as a slice of a fused projection is.
    "offset": lambda text, spec, shape: f"torch.nn.functional.pad({text}, (2, 1))[..., 2:-1]",
}
"""How a tensor lies in memory, around the text that draws it."""


def _swap(spec: Handed) -> str:
    count = len(spec.shape)
    inner = (count - 1, count - 2) if count > 3 else tuple(range(2, count))
    return f".permute{(1, 0, *range(2, count - 2), *inner)}"


def draw_lines(ranks: Ranks) -> list[str]:
    """The function that draws values, where anything is drawn."""
    specs = [spec for rank in ranks for spec in rank if not spec.integers]
    if not specs:
        return []
    factor = any(spec.factor != 1.0 for spec in specs)
    parts = (", factor=1", ", times a factor", " * factor") if factor else ("", "", "")
    return DRAW.format(parameter=parts[0], times=parts[1], by=parts[2]).splitlines()


def input_lines(ranks: Ranks, size: int) -> list[str]:
    """The function ``inputs(rank)``: what a rank hands in, by name; ``size`` ranks are one group."""
    roles = {spec.name: spec.role for spec in ranks[0]}
    named = {role: ", ".join(name for name in roles if roles[name] == role) for role in ROLES if role in roles.values()}
    said = "; ".join(f"{names} {ROLES[role]}" for role, names in named.items())
    lines = [f"def inputs(rank):  # {said}" if len(said) < WIDTH - 20 else "def inputs(rank):"]
    rows = [_row(tuple(rank[index] for rank in ranks), size) for index in range(len(ranks[0]))]
    if any("[place]" in row for row in rows):
        if size < len(ranks):
            lines.append("    place = rank % GROUP")
        else:
            rows = [row.replace("[place]", "[rank]") for row in rows]
    short = f"    return {{{' '.join(rows).rstrip(',')}}}"
    if len(short) <= WIDTH:
        return [*lines, short]
    inner: list[str] = []
    for row in rows:
        last = inner[-1] if inner else ""
        if len(rows) > MANY and last and len(last) + len(row) < WIDTH:
            inner[-1] = f"{last} {row}"
        else:
            inner += wrapped(f"        {row}", "            ")
    if len(rows) > MANY:
        inner[-1] = inner[-1].rstrip(",") + "}"
        return [*lines, "    return {", *inner]
    return [*lines, "    return {", *inner, "    }"]


ROLES = {"input": "(for gradients)", "frozen": "(no gradient)", "cotangent": "(incoming gradient)"}
"""What tensors are there for, in words."""


def _row(specs: tuple[Handed, ...], size: int) -> str:
    first, places = specs[0], specs[:size]
    if first.integers:
        drawn = _whole_numbers([list(spec.integers) for spec in places])
        if len(first.drawn) != 1:
            drawn += f".reshape({_shape([spec.drawn for spec in places])})"
    else:
        who = '"every rank"' if first.shared else "rank"
        factor = f", {_number(first.factor)}" if first.factor != 1.0 else ""
        drawn = f'draw("{first.name}", {who}, {_shape([spec.drawn for spec in places])}{factor})'
    text = STRIDES[first.strides](drawn, first, _shape([spec.shape for spec in places]))
    return f'"{first.name}": {text}{".requires_grad_()" if first.role == "input" else ""},'


def _whole_numbers(values: list[list[int]]) -> str:
    """Labels, positions and the like as text: the same at every place, or looked up by place."""
    same = all(value == values[0] for value in values)
    starts, count = [value[0] for value in values], len(values[0])
    if all(value == list(range(value[0], value[0] + count)) for value in values) and count > 2:
        return f"(torch.arange({count}) + {starts[0] if same else f'{starts}[place]'})"
    length = max(values[0]) + 1
    if same and values[0] == list(range(length)) * (count // max(length, 1)):
        return f"torch.arange({length}).repeat({count // length})"
    return f"torch.tensor({values[0] if same else f'{values}[place]'})"


def _shape(shapes: Sequence[tuple[int, ...]]) -> str:
    """A shape as text; a dimension that differs between the places of a group is looked up by place."""
    sizes = [list(size) for size in zip(*shapes, strict=True)]
    texts = [str(size[0]) if len(set(size)) == 1 else f"{size}[place]" for size in sizes]
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"


def _number(value: float) -> str:
    return f"1 / {round(1 / value)}" if value < 1 and (1 / value).is_integer() else repr(value)


def wrapped(text: str, indent: str = "    ") -> list[str]:
    """``text`` cut after commas where it is too long for a line, its comment on a line before; nothing else changes."""
    lines = []
    if len(text) > WIDTH and "  # " in text:
        text, _, comment = text.partition("  # ")
        lines.append(f"{text[: len(text) - len(text.lstrip())]}# {comment}")
    while len(text) > WIDTH:
        at = text.rfind(", ", 0, WIDTH)
        if at < len(indent):
            break
        lines.append(text[: at + 1])
        text = indent + text[at + 2 :]
    return [*lines, text]
