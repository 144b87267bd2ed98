"""The evidence of one cell in full: every tensor and rank, where it is wrong, what the tracer did. Pure.

On the straight line this is the end: ``service.evidence`` in, lines of text out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from service.evidence import BlockMap, Difference, ErrorInfo, Evidence, RankOutcome, TensorEvidence, TraceEvidence
from service.words import ALPHA, TIMES, inert, number, plural

OWNERS = {"subject": "yellow", "torch": "cyan"}
ORACLE_DTYPE = "float64"
"""What an oracle computes in where it asks for no type."""
FRAMES = 12
"""How many of a traceback's innermost frames are shown."""
MAPS = 8
"""How many block maps are drawn; beyond that, how many there are is said."""
BLOCK_STYLES = {".": "green", "0": "bold red", "x": "bold magenta", "!": "bold yellow"}
BLOCK_WORDS = {"0": "zero", "x": "wrong", "!": "not finite"}
HEADINGS = ("tensor", "rank", "shape", "non-zero", "max error", "relative", ALPHA, "residual", "first difference")


def evidence_lines(evidence: Evidence, width: int) -> list[Text]:
    """Everything measured, in the order in which it is judged: who answered, the forward, the gradient, the trace."""
    parts: list[list[Text]] = []
    if evidence.stop:
        stop = evidence.stop
        parts.append([Text(f"not run: {stop.kind}: {inert(stop.reason)}"), *_error(stop.error)])
    parts.append(list(_ranks(evidence.ranks)))
    for title, roles in (("forward", ("output",)), ("gradient", ("grad",)), ("inputs", ("input", "cotangent"))):
        tensors = evidence.of(*roles)
        if tensors:
            parts.append([Text(title, style="bold"), *_tensors(tensors, width)])
    parts.append(list(_maps(evidence.of("output", "grad"), width)))
    parts.append(list(_noise(evidence)))
    parts.append(_difference(evidence.fd))
    parts.append(list(_trace(evidence.trace)))
    parts.append([Text(f"importing the subject changed torch: {inert(text)}") for text in evidence.state_changes])
    filled = [part for part in parts if part]
    return [line for part in filled for line in (*part, Text())][:-1]


def _ranks(ranks: Sequence[RankOutcome]) -> Iterator[Text]:
    """One line if all ranks ended alike, else one each."""
    if not ranks:
        return
    repeat = {True: "; a second pass gave the same bits", False: "; a second pass gave other bits", None: ""}
    ended = {(r.status, r.phase, r.reason, r.error, r.repeat_equal) for r in ranks}
    shown = ranks[:1] if len(ended) == 1 else ranks
    for outcome in shown:
        who = f"all {plural(len(ranks), 'rank')}" if len(ended) == 1 else f"rank {outcome.rank}"
        where = f" in {inert(outcome.phase)}" if outcome.phase and outcome.status != "ok" else ""
        reason = f": {inert(outcome.reason)}" if outcome.reason else ""
        yield Text(f"{who}: {inert(outcome.status)}{where}{reason}{repeat[outcome.repeat_equal]}")
        yield from _error(outcome.error)


def _error(error: ErrorInfo | None) -> list[Text]:
    """An exception with its innermost frames, each with whose code it is."""
    if error is None:
        return []
    lines = [Text(f"  {inert(error.type)}: {inert(error.message, lines=True)}".replace("\n", "\n  "), style="bold")]
    hidden = len(error.frames) - FRAMES
    if hidden > 0:
        lines.append(Text(f"    … {plural(hidden, 'outer frame')}", style="dim"))
    for frame in error.frames[-FRAMES:]:
        text = f"    {frame.file}:{frame.line} in {frame.function} ({frame.owner})"
        lines.append(Text(inert(text), style=OWNERS.get(frame.owner, "dim")))
    return lines


def _tensors(tensors: Iterable[TensorEvidence], width: int) -> list[Text]:
    """A table with a line per tensor and rank; columns that say nothing anywhere are left out."""
    tensors = list(tensors)
    rows = [_tensor_row(tensor) for tensor in tensors]
    kept = [i for i, _ in enumerate(HEADINGS) if i < 4 or any(row[i] for row in rows)]
    table = [[HEADINGS[i] for i in kept], *([row[i] for i in kept] for row in rows)]
    widths = [max(cell_len(row[i]) for row in table) for i in range(len(kept))]
    while sum(widths) + 2 * len(widths) + 2 > width and len(widths) > 4:
        widths.pop()
    lines = []
    for index, row in enumerate(table):
        cells = [text + " " * (size - cell_len(text)) for text, size in zip(row, widths, strict=False)]
        style = "dim" if index == 0 else "" if tensors[index - 1].equal else "red"
        lines.append(Text(("  " + "  ".join(cells)).rstrip(), style=style))
        left_over = row[len(widths) :]
        if index and any(left_over):
            names = table[0][len(widths) :]
            said = ", ".join(f"{name} {text}" for name, text in zip(names, left_over, strict=True) if text)
            lines.append(Text(f"      {said}", style=style))
        lines += [Text(f"      {text}", style=style) for text in (_oddities(tensors[index - 1]) if index else [])]
    return lines


def _tensor_row(tensor: TensorEvidence) -> tuple[str, ...]:
    shape = "none" if tensor.missing else f"{tensor.dtype or '?'}{list(tensor.shape or ())}"
    if tensor.identical or tensor.equal:
        size = ("0", "same bits" if tensor.identical else "same values")
    else:
        size = (_maybe(tensor.max_abs), _maybe(tensor.rel_l2))
    apart = not tensor.equal and not tensor.missing
    return (
        inert(tensor.key),
        str(tensor.rank),
        inert(shape),
        f"{tensor.nonzero_got}/{tensor.nonzero_expected}",
        *size,
        _maybe(tensor.alpha) if apart else "",
        _maybe(tensor.residual) if apart else "",
        "" if tensor.first_diff is None else str(list(tensor.first_diff)),
    )


def _maybe(value: float | None) -> str:
    return "" if value is None else number(value)


def _oddities(tensor: TensorEvidence) -> list[str]:
    """What a row of numbers does not tell: absence, another shape or type, values that are no numbers."""
    said = []
    if tensor.missing != tensor.expected_missing:
        said.append("there is none, and there should be one" if tensor.missing else "there should be none")
    elif not tensor.missing and not tensor.same_shape:
        said.append(f"should have the shape {list(tensor.expected_shape or ())}")
    asked = tensor.expected_dtype if tensor.expected_dtype != ORACLE_DTYPE else None
    if not tensor.missing and asked and tensor.dtype != asked:
        said.append(inert(f"should be {asked}"))
    if tensor.nonfinite_got or tensor.nonfinite_expected:
        where = "in the same places" if tensor.nonfinite_same else "in other places"
        said.append(f"NaN or infinite: {tensor.nonfinite_got}, expected {tensor.nonfinite_expected}, {where}")
    return said


def _maps(tensors: Iterable[TensorEvidence], width: int) -> Iterator[Text]:
    """A drawing per tensor that is wrong somewhere; ranks that look the same share one."""
    drawn: dict[tuple[str, BlockMap], list[int]] = {}
    for tensor in tensors:
        if tensor.blocks and set(tensor.blocks.cells) - {"."}:
            drawn.setdefault((tensor.key, tensor.blocks), []).append(tensor.rank)
    if not drawn:
        return
    legend = "   . right   0 zero, and should not be   x wrong   ! not finite"
    yield Text.assemble(("where it is wrong", "bold"), (legend, "dim"))
    for (key, blocks), ranks in itertools.islice(drawn.items(), MAPS):
        named = ", ".join(map(str, ranks))
        same = f"; every block is {BLOCK_WORDS.get(blocks.cells[0], '?')}" if len(set(blocks.cells)) == 1 else ""
        yield Text(f"  {inert(key)}, {'rank' if len(ranks) == 1 else 'ranks'} {named}: {_axes(blocks)}{same}")
        if not same:
            yield from _draw(blocks, width)
    if len(drawn) > MAPS:
        yield Text(f"  … and {plural(len(drawn) - MAPS, 'more such map')} (export has them all)")


def _name(blocks: BlockMap, index: int) -> str:
    return inert(blocks.names[index]) if index < len(blocks.names) else f"dim {index}"


def _axes(blocks: BlockMap) -> str:
    wide = [i for i, count in enumerate(blocks.counts) if count > 1]
    if not wide:
        return "one block"
    between = f" {TIMES} "
    counts = between.join(str(blocks.counts[i]) for i in wide)
    return f"{between.join(_name(blocks, i) for i in wide)} in {counts} blocks"


def _draw(blocks: BlockMap, width: int) -> Iterator[Text]:
    """The last two dimensions that have more than one block as a square, once per index of the others."""
    cells, wide = blocks.cells, [i for i, count in enumerate(blocks.counts) if count > 1]
    rows_of, columns = (wide[-2] if len(wide) > 1 else None), (blocks.counts[wide[-1]] if wide else 1)
    rows = 1 if rows_of is None else blocks.counts[rows_of]
    outer = wide[:-2]
    indices = itertools.product(*(range(blocks.counts[i]) for i in outer))
    for number_of, index in enumerate(indices):
        if outer:
            place = ", ".join(
                f"{_name(blocks, i)} {at + 1} of {blocks.counts[i]}" for i, at in zip(outer, index, strict=True)
            )
            yield Text(f"    {place}", style="dim")
        for row in range(rows):
            first = (number_of * rows + row) * columns
            line = Text("    ")
            for cell in cells[first : first + min(columns, max(width - 4, 1))]:
                line.append(inert(cell), style=BLOCK_STYLES.get(cell, ""))
            yield line


def _noise(evidence: Evidence) -> Iterator[Text]:
    for key, noise in sorted(evidence.noise.items()):
        yield Text(
            f"noise of {inert(key)}: a dense run in the same type is itself off by {number(noise.max_abs)}"
            + ("" if noise.rel_l2 is None else f" (relative {number(noise.rel_l2)})")
        )


def _difference(fd: Difference | None) -> list[Text]:
    if fd is None:
        return []
    return [
        Text("the subject's own forward, differentiated numerically", style="bold"),
        Text(
            f"  central difference {fd.difference:.6g}, its backward {fd.got:.6g}, the oracle's {fd.expected:.6g}"
            f" (against {number(fd.size)})"
        ),
    ]


def _trace(trace: TraceEvidence | None) -> Iterator[Text]:
    if trace is None:
        return
    yield Text("trace", style="bold")
    where = "inside a graph" if trace.collective_in_graph else "in no graph: the traced mode proved nothing about it"
    names = f" ({', '.join(map(inert, trace.collectives))})" if trace.collectives else ""
    yield Text(
        f"  {plural(trace.graphs, 'graph')}, {plural(trace.recompiles, 'recompile')}; the collective is {where}{names}"
    )
    for item in trace.breaks:
        yield Text(f"  break: {inert(item.reason)} at {inert(item.where)}")
    if trace.fullgraph is not None:
        yield Text(f"  fullgraph: {inert(trace.fullgraph)}")
