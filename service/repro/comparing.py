"""The end of the script: two tensors beside each other in numbers, every rank's answer in one line, and the status."""

from __future__ import annotations

from collections.abc import Iterator

from service.repro.given import Given
from service.repro.handed import wrapped
from service.room import Room


def compare_lines(given: Given) -> list[str]:
    """The room that errors have, and the function that prints one tensor of one rank."""
    return [*([] if given.case.exact else [*_room(given), ""]), *_compare(given)]


def _room(given: Given) -> list[str]:
    """Per tensor, the relative error allowed, and the absolute one where what is expected is below the noise."""
    relative: dict[str, float] = {}
    for tensor in given.evidence.of("output", "grad"):
        relative[tensor.key] = max(relative.get(tensor.key, 0.0), _judged(given).relative(tensor))
    lines = wrapped(f"ROOM = {_table(relative)}  # relative errors, from that of one process in the same type")
    if floor := _floor(given):
        lines += wrapped(f"FLOOR = {_table(floor)}  # absolute ones, where what is expected is below the noise")
    return lines


def _rest(given: Given) -> str:
    """The room of a tensor that never came: where the fault is mended it will, and rounds like any other."""
    rules = given.policy.tolerance
    return "0" if given.answered else f"{rules.c * _judged(given).eps:.3g} * g.numel() ** 0.5"


def _floor(given: Given) -> dict[str, float]:
    room, floor = _judged(given), dict[str, float]()
    for tensor in given.evidence.of("output", "grad"):
        if room.below_noise(tensor):
            slack = 1.0 if tensor.key in given.evidence.noise else given.policy.tolerance.c
            floor[tensor.key] = max(floor.get(tensor.key, 0.0), slack * room.floor(tensor))
    return floor


def _judged(given: Given) -> Room:
    return Room(given.evidence, given.case, given.policy)


def _table(values: dict[str, float]) -> str:
    return "{" + ", ".join(f'"{key}": {value:.3g}' for key, value in values.items()) + "}"


def _compare(given: Given) -> Iterator[str]:
    scale = "" if given.case.scale == 1.0 else f" * {given.case.scale!r}"
    odd = any(tensor.nonfinite_got or tensor.nonfinite_expected for tensor in given.evidence.tensors)
    yield "def compare(rank, name, got, want):  # prints the numbers of one tensor, and says whether they are right"
    yield "    shapes = [None if t is None else list(t.shape) for t in (got, want)]"
    yield "    if None in shapes or shapes[0] != shapes[1]:"
    yield '        print(f"rank {rank} {name}: shape {shapes[0]}, expected {shapes[1]}")'
    yield "        return got is want"
    yield f"    g, w = got.double().cpu(), want{scale}"
    if odd:
        yield "    finite = g.isfinite() & w.isfinite()"
        yield "    a, b = g[finite], w[finite]"
    a, b = ("a", "b") if odd else ("g", "w")
    yield f"    error, alpha = ({a} - {b}).norm() / {b}.norm(), ({a} * {b}).sum() / ({b} * {b}).sum(){scale}"
    counts = "non-zero {g.count_nonzero()} of {w.count_nonzero()}"
    yield f'    print(f"rank {{rank}} {{name}}: {counts}, error {{error:.6g}}, alpha {{alpha:.6g}}")'
    same = "bool(((g == w) | (g.isnan() & w.isnan())).all())" if odd else "torch.equal(g, w)"
    answer = (
        [same]
        if given.case.exact
        else [same, f"{'finite.all() and ' if odd else ''}error <= ROOM.get(name, {_rest(given)}) and not lost"]
    )
    if not given.case.exact:
        # A part that is zero is seen although the norm of the rest hides it.
        yield "    lost = ((g == 0) & (w.abs() > 1e-3 * w.abs().max())).any()"
    if not given.case.exact and _floor(given):
        answer.append("(g - w).abs().max() <= FLOOR.get(name, -1)")
    if given.case.accepts == "oracle or zero":
        answer.append("not g.any()")
    yield f"    return bool({' or '.join(answer)})" if len(answer) > 1 else f"    return {same}"


def main_lines(given: Given) -> list[str]:
    """What runs the processes and has the last word."""
    method = "spawn" if given.row.transport == "nccl" else "fork"
    lines = [
        'if __name__ == "__main__":',
        f"    {_versions(given)}",
        f'    method = multiprocessing.get_context("{method}")',
        "    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(WORLD, method) as pool:",
    ]
    if given.answered:
        lines.append("        said = [pickle.loads(one) for one in pool.map(process, range(WORLD), [folder] * WORLD)]")
    else:
        error = '{"error": str(r.exception())} if r.exception()'
        lines += [
            "        ranks = [pool.submit(process, rank, folder) for rank in range(WORLD)]",
            f"        said = [{error} else pickle.loads(r.result()) for r in ranks]",
        ]
    return [*lines, *(_refused(given) if given.refusal else _compared(given))]


def _versions(given: Given) -> str:
    """The line that prints what is installed."""
    subject = ", deepspeed {deepspeed.__version__.strip()}" if given.own else ""
    return f'print(f"torch {{torch.__version__}}{subject}, Python {{sys.version.split()[0]}}")'


def _compared(given: Given) -> Iterator[str]:
    told = "not compare(rank, name, said[rank].get(name), want)"
    if not given.answered:
        told = f"name in said[rank] and {told}"
    yield '    wrong = [f"{name} on rank {rank}" for rank, right in enumerate(truth()) for name, want in right.items()'
    yield f"             if {told}]"
    if not given.answered:
        error = "f\"rank {rank}: {one['error'].splitlines()[0]}\""
        yield f'    wrong += [{error} for rank, one in enumerate(said) if "error" in one]'
    yield from _last_word("agrees")


def _refused(given: Given) -> Iterator[str]:
    """Outside the contract, a clear error on every rank is right, before anything is returned."""
    accidents = ", ".join(f'"{name}"' for name in (*given.policy.refusal.unclear, "A process in the process pool"))
    yield from wrapped(f"    accidents = ({accidents})  # not said to whoever called", "        ")
    yield "    wrong = []"
    yield "    for rank, one in enumerate(said):"
    yield '        error = one.get("error", "accepted")'
    yield '        print(f"rank {rank}: {error}")'
    yield '        if "error" not in one or "output/y" in one or error.startswith(accidents):'
    yield '            wrong.append(f"rank {rank}: {error.splitlines()[0]}")'
    yield from _last_word("agrees: refused on every rank")


def _last_word(right: str) -> Iterator[str]:
    """The last line that is printed, and the exit status that says the same to a program: 1 for what is wrong."""
    yield f'    print("does not agree: " + "; ".join(wrong) if wrong else "{right}")'
    yield "    sys.exit(1 if wrong else 0)"
