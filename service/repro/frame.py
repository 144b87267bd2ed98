"""The script around a template's body: it starts its own ranks, states the truth and compares.

On the straight line this is the middle of ``service.repro``. Pure: lines of text out of :class:`Given` and
:class:`Body`. Only what the case needs is written, so that a reader has nothing to skip: where every rank answered
there is nothing that catches an error, and where none could there is no truth.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from service.repro.comparing import compare_lines, main_lines
from service.repro.given import FEW, LIMIT_S, Body, Given
from service.repro.handed import draw_lines, input_lines, wrapped
from service.repro.heading import heading_lines

LINES = 120
"""A script that would be as long is written without a blank line between its functions, and described more briefly."""
BACKENDS = {"gloo": "gloo", "nccl-dispatch": "gloo", "nccl": "nccl"}

STEPS = {
    "square": ("(y * y).sum().backward()",),
    "frozen": ("(y * y).sum().backward()",),
    "scaled": ("((y * y).sum() * 1024.0).backward()",),
    "sum": ("y.sum().backward()",),
    "weighted": ("y.backward(w)",),
    "shared": ("((y * y).sum() + (y * w).sum()).backward()",),
    "accumulate": ("y.backward(w)",),
    "forward_only": (),
    "none": (),
}
"""Per loss, the backward of the first pass."""
LOSSES = {
    "square": "(y * y).sum()",
    "frozen": "(y * y).sum()",
    "scaled": "(y * y).sum() * 1024.0",
    "sum": "y.sum()",
    "weighted": '(y * h["w"]).sum()',
    "shared": '(y * y).sum() + (y * h["w"]).sum()',
    "accumulate": '(y * h["w"]).sum() + (y * h["w2"]).sum()',
}
"""Per loss, the same as a number, of one rank's output ``y`` and what it holds ``h``; those without a backward lack."""
_PLACE = re.compile(r"\bplace\b")
"""This rank's place in its group, in a template; its rank, where the group is the world."""


def frame(given: Given, body: Body) -> str:
    """The whole script."""
    text = _joint(given, body, "\n\n", brief=False)
    return text if text.count("\n") < LINES else _joint(given, body, "\n", brief=True)


def _joint(given: Given, body: Body, between: str, *, brief: bool) -> str:
    truth = body.truth.strip("\n").splitlines() or list(_truth(given))
    parts = [
        [*heading_lines(given, brief=brief), *_imports(given, body), *([] if brief else [""]), *_constants(given)],
        draw_lines(given.handed),
        input_lines(given.handed, given.size) if given.handed[0] else [],
        [line for line in body.helpers.strip("\n").splitlines() if line or not brief],
        list(_process(given, body)),
        [] if given.refusal else body.dense.strip("\n").splitlines(),
        [] if given.refusal else truth,
        [] if given.refusal else [line for line in compare_lines(given) if line or not brief],
        main_lines(given),
    ]
    return between.join("\n".join(part) for part in parts if part) + "\n"


def _imports(given: Given, body: Body) -> Iterator[str]:
    modules = ["faulthandler", "math", "multiprocessing", "os", "pickle", "random", "sys", "tempfile"]
    if not draw_lines(given.handed):
        modules = [name for name in modules if name not in ("math", "random")]
    modules += [] if given.answered else ["traceback"]
    if any("types." in part for part in (body.setup, body.call, body.helpers, body.dense, body.step)):
        modules.append("types")
    yield f"import {', '.join(modules)}"
    yield "from concurrent.futures import ProcessPoolExecutor"
    # DeepSpeed chooses by what else is installed, where it is not told.
    accelerator = ', DS_ACCELERATOR="cpu"' if given.own and given.row.transport != "nccl" else ""
    compiled = ', TORCHINDUCTOR_COMPILE_THREADS="1"' if given.row.mode == "inductor" else ""
    yield f'os.environ.update(OMP_NUM_THREADS="1"{compiled}{accelerator})'
    yield "import torch, torch.distributed as dist"
    if given.traced:
        yield "import torch._dynamo  # once, before the processes are forked"
    if body.imports:
        yield from body.imports.strip("\n").splitlines()


def _constants(given: Given) -> Iterator[str]:
    dtype = f"torch.{given.case.dtype}"
    if given.size < given.world:
        yield f"WORLD, GROUP, DTYPE = {given.world}, {given.size}, {dtype}  # processes, and those of one group"
    else:
        yield f"WORLD, DTYPE = {given.world}, {dtype}  # processes, and the type of what they hand in"
    if draw_lines(given.handed):
        yield f'SEED = "{given.case.id}|{given.case.version}"'


def _process(given: Given, body: Body) -> Iterator[str]:
    """The function of one rank."""
    yield "def process(rank, folder):  # one of them; they meet in ``folder``"
    yield f"    faulthandler.dump_traceback_later({LIMIT_S[given.row.mode]}, exit=True)  # says where, if it hangs"
    inner = [*_joined(given), *body.setup.strip("\n").splitlines(), *body.call.strip("\n").splitlines()]
    called = "call"
    if given.traced:
        inner.append(f'traced = torch.compile(call, backend="{given.row.mode}")')
        called = "traced"
    inner += body.step.format(call=called).strip("\n").splitlines() or _pass(given, called, named=body.named)
    if given.size == given.world:
        inner = [_PLACE.sub("rank", line) for line in inner]
    elif any(_PLACE.search(line) for line in inner):
        inner.insert(0, "place = rank % GROUP")
    yield "    got = {}"
    if given.answered:
        yield from (f"    {line}" if line else "" for line in inner)
    else:
        yield "    try:"
        yield from (f"        {line}" if line else "" for line in inner)
        yield "    except BaseException as error:"
        yield "        traceback.print_exc()"
        yield '        got["error"] = f"{type(error).__name__}: {error}"'
    yield "    return pickle.dumps(got)"


def _joined(given: Given) -> Iterator[str]:
    """How a rank joins the others, and ``group``."""
    backend = BACKENDS[given.row.transport]
    how = 'init_method=f"file://{folder}/store", rank=rank, world_size=WORLD'
    yield f'dist.init_process_group("{backend}", {how})'
    if backend == "nccl":
        yield "torch.cuda.set_device(rank)"
    if given.size < given.world:
        yield "groups = [dist.new_group(list(range(n, n + GROUP))) for n in range(0, WORLD, GROUP)]"
        yield "group = groups[rank // GROUP]"
    else:
        yield "group = dist.group.WORLD"


def _pass(given: Given, called: str, *, named: bool) -> Iterator[str]:
    """Forward, backward, and what is kept of them in ``got``."""
    names = [spec.name for spec in given.handed[0]]
    inputs = [spec.name for spec in given.handed[0] if spec.role == "input"]
    arguments = ", ".join(given.arguments)
    few = not named and len(inputs) <= FEW
    if named:
        arguments = "given"
        yield "given = inputs(rank)"
        yield from (f'{name} = given["{name}"]' for name in names if name not in given.arguments)
    else:
        source = "inputs(rank)" if few else "(given := inputs(rank))"
        yield from wrapped(f"{', '.join(names)}{',' if len(names) == 1 else ''} = {source}.values()")
    yield f"y = {called}({arguments})"
    yield 'got["output/y"] = y.detach().clone()'
    if given.refusal:
        return
    steps = list(STEPS[given.loss])
    if given.loss == "accumulate":
        again = f"y2 = {called}({arguments})"
        steps += [again, 'got["output/y2"] = y2.detach().clone()', "y2.backward(w2)"]
    if steps and given.row.verdict == "no_gradient":
        yield "if y.requires_grad:"
        yield from (f"    {line}" for line in steps)
    else:
        yield from steps
    yield from _kept(given, inputs, few=few)


def _kept(given: Given, inputs: Sequence[str], *, few: bool) -> Iterator[str]:
    """The lines that keep the gradients, and what was handed in where it was changed."""
    if few:
        for name in (*inputs, *_uncalled_for(given)):
            grad = f"{name}.grad" if given.own else f"{name}.grad if {name}.grad is None else {name}.grad.clone()"
            yield f'got["grad/{name}"] = {grad}'
    else:
        yield 'got |= {f"grad/{name}": t.grad for name, t in given.items()}'
    roles = {spec.name: "cotangent" if spec.role == "cotangent" else "input" for spec in given.handed[0]}
    for name in _changed(given):
        tensor = name if few else f'given["{name}"]'
        yield f'got["{roles[name]}/{name}"] = {tensor}.detach()'


def _changed(given: Given) -> list[str]:
    """What was handed in and had another content afterwards."""
    changed = {tensor.name for tensor in given.evidence.of("input", "cotangent") if not tensor.equal}
    return [spec.name for spec in given.handed[0] if spec.name in changed]


def _uncalled_for(given: Given) -> list[str]:
    """What has a gradient and must have none."""
    there = {one.name for one in given.evidence.of("grad") if one.expected_missing and not one.missing}
    return [spec.name for spec in given.handed[0] if spec.role == "frozen" and spec.name in there]


def _truth(given: Given) -> Iterator[str]:
    grads = given.loss in LOSSES
    yield "def truth():  # what each process must have: the same in one process, in float64"
    keep = ".requires_grad_(t.requires_grad)" if grads else ""
    if any(spec.integers for spec in given.handed[0]):
        yield f"    wide = lambda t: t.detach().double(){keep} if t.is_floating_point() else t"
        yield "    held = [{n: wide(t) for n, t in inputs(rank).items()} for rank in range(WORLD)]"
    else:
        yield f"    held = [{{n: t.detach().double(){keep} for n, t in inputs(r).items()}} for r in range(WORLD)]"
    if given.size < given.world:
        yield "    ys = [y for first in range(0, WORLD, GROUP) for y in dense(held[first : first + GROUP])]"
    else:
        yield "    ys = dense(held)"
    if grads:
        yield f"    sum({LOSSES[given.loss]} for y, h in zip(ys, held)).backward()"
    outputs = ["y", "y2"] if given.loss == "accumulate" else ["y"]
    inputs = [spec.name for spec in given.handed[0] if spec.role == "input"]
    rows = [f'"output/{name}": y.detach()' for name in outputs]
    if len(inputs) <= FEW:
        rows += [f'"grad/{name}": h["{name}"].grad' for name in inputs]
    else:
        rows.append('**{f"grad/{n}": t.grad for n, t in h.items() if t.requires_grad}')
    rows += [f'"grad/{name}": None' for name in _uncalled_for(given)]
    cotangents = {spec.name for spec in given.handed[0] if spec.role == "cotangent"}
    for name in _changed(given):
        rows.append(f'"{"cotangent" if name in cotangents else "input"}/{name}": h["{name}"].detach()')
    yield from wrapped(f"    return [{{{', '.join(rows)}}} for y, h in zip(ys, held)]", "        ")
