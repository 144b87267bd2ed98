"""Scripts of family ``loss``: DeepSpeed's losses over a sequence that is split over processes.

The truth is the cross entropy over the whole sequence. Where the processes hold one and the same loss, its gradient
counts once, each process having a share of it.
"""

from __future__ import annotations

from collections.abc import Callable

from service.repro import deepspeed
from service.repro.families.around import around, called, out
from service.repro.given import Body, Given, NothingToReproduce

CROSS_ENTROPY, ULYSSES = "deepspeed.sequence.cross_entropy", "deepspeed.runtime.sequence_parallel.ulysses_sp"
VOCABULARY, NEW = "vocab_sequence_parallel_cross_entropy", "vocab_parallel_cross_entropy"
LOADER, STEPS = "UlyssesSPDataLoaderAdapter", "UlyssesSPFwdLossBwdWithLogits"
NN = "import torch.distributed.nn.functional as nn\n"

ENTROPY = '''\
def entropy(x, labels, reduction):
    """Cross entropy in float64, or in 32 bits where logits have fewer; 0 where a label is -100."""
    x = (x.float() if x.itemsize == 2 else x).reshape(-1, x.shape[-1])
    return torch.nn.functional.cross_entropy(x, labels.reshape(-1), ignore_index=-100, reduction=reduction)
'''
EACH = '''\
def dense(held):
    """Cross entropy per token{what}."""
    {name} = [{losses} for h in held]
    return {result}
'''
SHARED_OUT = '''\
def shared_out(y, count):
    """One value on ``count`` processes, each with its share of the derivative."""
    return [y / count + (y - y / count).detach() for _ in range(count)]
'''
AGGREGATE = '''\
def dense(held):
    """The {reduction} over the tokens of all processes{what}."""
    y = sum({total} for h in held)
{mean}    return {result}
'''
RECIPES = {
    "all_gather": """\
def inner(x, t):
    losses = nn.all_gather(entropy(x, t, "mean"), group=group)
    counts = nn.all_gather((t != -100).sum(), group=group)
    terms = [losses[rank] * counts[rank] for rank in range(len(counts)) if counts[rank] > 0]
    return {result}
""",
    "all_reduce": """\
def inner(x, t):
    total, count = nn.all_reduce(entropy(x, t, "sum"), group=group), (t != -100).sum()
    deepspeed.comm.all_reduce(count, group=group)
    return {result}
""",
    "weighted_all_reduce": """\
def inner(x, t):
    count = (t != -100).sum()
    mine = entropy(x, t, "mean") * count if count > 0 else (x.float() if x.itemsize == 2 else x).sum() * 0.0
    total, count = nn.all_reduce(mine, group=group), count.clone()  # its own, which the backward needs, stays
    deepspeed.comm.all_reduce(count, group=group)
    return {result}
""",
}
RESULTS = {
    ("all_gather", "mean"): "sum(terms[1:], terms[0]) / max(sum(counts), 1)",
    ("all_gather", "sum"): "sum(terms[1:], terms[0])",
    ("all_reduce", "mean"): "total / count",
    ("all_reduce", "sum"): "total",
    ("weighted_all_reduce", "mean"): "total / count",
    ("weighted_all_reduce", "sum"): "total",
}

LIKE_NCCL = """\
class LikeNccl:  # gathers that compare no shapes, as NCCL's do
    __getattr__ = lambda self, name: getattr(deepspeed.comm, name)
{methods}
sys.modules["{module}"].dist = LikeNccl()
"""
GATHERS = {
    "all_gather_into_tensor": """\
    def all_gather_into_tensor(self, output, tensor, group=None):
        deepspeed.comm.all_gather_into_tensor(output.view(-1), tensor.reshape(-1), group=group)
""",
    "all_gather": """\
    def all_gather(self, tensors, tensor, group=None):
        for source, buffer in zip(dist.get_process_group_ranks(group), tensors):
            if source == dist.get_rank():
                buffer.copy_(tensor.reshape(buffer.shape))
            deepspeed.comm.broadcast(buffer, source, group=group)
""",
}
"""Per collective of its own that a module calls, the one that takes its place."""
CUT = """\
def batch_of(i, t):
    return {"input_ids": i, "position_ids": torch.arange(i.shape[1]).expand(i.shape).contiguous(), "labels": t}
"""
OVER_SHARDS = """\
def call(x, i, t):
    loader = UlyssesSPDataLoaderAdapter([batch_of(i, t)], place, group, {size}, "cpu")
    return torch.stack([entropy(x[b["input_ids"]], b["shift_labels"], "sum") for b in loader])
"""
WHOLE_SEQUENCES = '''\
def dense(held):
    """The tokens that follow, of each whole sequence; then what of that is in each process's shard{then}."""
    follow = [torch.cat([h["t"][:, 1:], torch.full_like(h["t"][:, :1], -100)], 1) for h in held]
    cut = [list(zip(h["i"].tensor_split(len(held), 1), t.tensor_split(len(held), 1))) for h, t in zip(held, follow)]
    sums = [torch.stack([entropy(h["x"][i], t, "sum") for i, t in (c[n] for c in cut)]) for n, h in enumerate(held)]
{end}
'''
ENGINE = """\
class Engine(types.SimpleNamespace):  # what the step takes an engine for: a model, and a backward that takes means
    __call__ = lambda self, input_ids, **_: types.SimpleNamespace(logits=self.table[input_ids])
    backward = lambda self, loss: (loss / {size}).backward()
    set_gradient_accumulation_boundary = lambda self, is_boundary: None
"""
STEPPED = """\
def call(x, i, t):
    loss_of = lambda logits, labels, vocab_size, shift_labels: entropy(logits, shift_labels, "mean")
    bare = types.SimpleNamespace(loss_function=loss_of, config=types.SimpleNamespace(vocab_size=None))
    step = UlyssesSPFwdLossBwdWithLogits(Engine(table=x), bare, "cpu", {pieces})
    return x.new_tensor(float(step.sp_fwd_loss_bwd(batch_of(i, t))))
"""
AFTER_STEP = """\
x, i, t{w} = inputs(rank).values()
got["output/y"] = call(x, i, t)  # the step runs its own backward
got["grad/x"] = x.grad{factor}
"""


def body(given: Given) -> Body:
    """The call and the truth of one case."""
    return BUILDERS[given.case.probe](given)


def _imports(given: Given, module: str, *names: str) -> str:
    if missing := [name for name in names if not given.source.has(module, name)]:
        raise NothingToReproduce(f"{given.row.label} has no {missing[0]} in {module}")
    return deepspeed.imports(given, *names, module=module)


def _size(given: Given) -> str:
    return "GROUP" if given.size < given.world else "WORLD"


def _losses(given: Given, reduction: str) -> str:
    """One process's losses, beside those of frozen logits or not."""
    shape = '.reshape(h["t"].shape)' if reduction == "none" else ""
    xs = [around(f'h["{name}"]', given) for name in ("x", "c") if name in given.arguments]
    texts = [f'entropy({x}, h["t"], "{reduction}"){shape}' for x in xs]
    text = " + ".join(texts)
    return out(given, f"({text})" if len(texts) > 1 and given.params.get("wrap") == "layer" else text)


def _helpers(given: Given, module: str, *more: str) -> str:
    """``entropy``, and the gathers of NCCL where the case has them."""
    parts = [] if given.refusal and not more else [ENTROPY]
    if given.params.get("gather") == "nccl":
        found = given.source.module(module)
        asked = [text for name, text in GATHERS.items() if found is not None and f"dist.{name}(" in found.text]
        parts.insert(0, LIKE_NCCL.format(methods="\n".join(asked), module=module))
    return "\n".join([*parts, *more])


def _tokens(given: Given) -> Body:
    how = given.params["how"]
    if how == "gathered":
        name, text = VOCABULARY, f"{VOCABULARY}(x, t, group)"
    else:
        name = NEW
        text = f'{NEW}(x, t, sp_group=group, reduction="none", gather_sequence_loss={how == "summed"})'
    call = called(given, f"def inner(x, t):\n    return {text}\n")
    once = how == "gathered"
    result = {"local": "ys", "summed": "[torch.cat(ys)] * len(held)"}.get(how, "shared_out(torch.cat(ys), len(held))")
    what = "" if how == "local" else " of the whole sequence, on each process"
    dense = EACH.format(what=what, name="ys", losses=_losses(given, "none"), result=result)
    helpers = _helpers(given, CROSS_ENTROPY, *([SHARED_OUT] if once and not given.refusal else []))
    return Body(call, dense, _imports(given, CROSS_ENTROPY, name), helpers, deepspeed.setup(given, placed=True))


def _aggregate(given: Given) -> Body:
    recipe, reduction = given.params["recipe"], given.params["reduction"]
    if recipe == "own":
        imports = _imports(given, CROSS_ENTROPY, NEW)
        inner = f'def inner(x, t):\n    return {NEW}(x, t, sp_group=group, reduction="{reduction}")\n'
    else:
        imports = NN + deepspeed.imports(given)
        inner = RECIPES[recipe].format(result=RESULTS[recipe, reduction])
    once = recipe == "own"
    dense = AGGREGATE.format(
        reduction=reduction,
        what=", counted once" if once else ", on each",
        total=_losses(given, "sum"),
        mean='    y = y / sum((h["t"] != -100).sum() for h in held)\n' if reduction == "mean" else "",
        result="shared_out(y, len(held))" if once else "[y] * len(held)",
    )
    helpers = ENTROPY + ("\n" + SHARED_OUT if once else "")
    return Body(called(given, inner), dense, imports, helpers, deepspeed.setup(given, placed=True))


def _loader(given: Given) -> Body:
    dense = WHOLE_SEQUENCES.format(then="", end="    return sums")
    call = OVER_SHARDS.format(size=_size(given))
    helpers = _helpers(given, ULYSSES, CUT)
    return Body(call, dense, _imports(given, ULYSSES, LOADER), helpers, deepspeed.setup(given, placed=True))


def _steps(given: Given) -> Body:
    end = (
        '    counts = torch.stack([(h["t"][:, 1:] != -100).sum() for h in held])\n'
        "    return [(torch.stack(sums).sum(0) / counts).mean()] * len(held)"
    )
    dense = WHOLE_SEQUENCES.format(then=", and the mean of each sequence's mean", end=end)
    weighted = given.loss == "weighted"
    step = AFTER_STEP.format(w=", w" if weighted else "", factor=" * w" if weighted else "")
    return Body(
        STEPPED.format(pieces=given.params["pieces"]),
        dense,
        _imports(given, ULYSSES, STEPS),
        _helpers(given, ULYSSES, CUT, ENGINE.format(size=_size(given))),
        deepspeed.setup(given, placed=True),
        step=step,
    )


BUILDERS: dict[str, Callable[[Given], Body]] = {
    "vocab_cross_entropy": _tokens,
    "aggregate": _aggregate,
    "loader": _loader,
    "fwd_loss_bwd": _steps,
}
"""Per probe, its template."""
