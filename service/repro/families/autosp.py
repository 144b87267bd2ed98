"""Scripts of family ``autosp``: the operators of DeepSpeed's AutoSP, and its pass over a small model's graph.

The truth is what they do to a sequence that was never cut.
"""

from __future__ import annotations

from service.repro import deepspeed
from service.repro.families.around import called, out, part
from service.repro.given import Body, Given, NothingToReproduce

OPERATORS, REGISTRY = "deepspeed.compile.custom_ops.all_to_all", "deepspeed.compile.custom_ops.sp_dp_registry"
REWRITING = "deepspeed.compile.passes.sp_compile"
DIMS = {"heads": (1, 2), "sequence": (2, 1)}
"""The dimensions of [batch, heads, sequence, features] to scatter and to gather."""

RECUT = '''\
def dense(held):
    """The whole, joined along dimension {joined} and cut along dimension {cut}."""
    whole = torch.cat([{part} for h in held], {joined})
    return [{y} for y in whole.tensor_split(len(held), {cut})]
'''
GATHERED = '''\
def dense(held):
    """What all hold, joined along dimension {dim}, on each."""
    y = torch.cat([{part} for h in held], {dim})
    return [{y}] * len(held)
'''
SUMMED = '''\
def dense(held):
    """The sum of what all hold, each its own part along dimension {dim}."""
    total = torch.stack([{part} for h in held]).sum(0)
    return [{y} for y in total.tensor_split(len(held), {dim})]
'''
MODEL = """\
def model({ids}, labels, {positions}, {keys}, *weights):  # the loss of every token, row by row
    symbols, places, *layers, head = weights
    h = F.embedding({ids}, symbols) + F.embedding({positions}, places)
{mask}    for *projections, last in (layers[:4], layers[4:]):
        q, k, v = (F.linear(h, w).unflatten(-1, (-1, 4)).transpose(1, 2) for w in projections)
        seen = F.scaled_dot_product_attention(q, k, v, {seen})
        h = h + F.linear(seen.transpose(1, 2).flatten(2), last)
    return F.cross_entropy(F.linear(h, head).flatten(0, 1), labels.flatten(), reduction="none")
"""
NAMES = {
    "short": {"ids": "ids", "positions": "pos", "keys": "keys"},
    "hf": {"ids": "input_ids", "positions": "position_ids", "keys": "attention_mask"},
}
"""What the model calls its arguments: the tracer calls sizes after them."""
COMPILED = """\
def backend(graph, example):
    apply_autosp(graph, example, debug=False, sp_size={sp}, dp_size={dp})
    return {then}
def call(given):
    prepare_autosp_inputs(*list(given.values())[:3], attention_mask=given["keys"])
    return torch.compile(model, backend=backend)(*list(given.values())[:15])
"""
WHOLE = """\
def dense(held):  # the model on the whole sequence, each token with its own process's copy of the weights
    weights = [list(h.values())[4:] for h in held]
    ids, labels, positions = (held[0][n].tensor_split(len(held), 1) for n in ("ids", "labels", "positions"))
    hs = [F.embedding(i, w[0]) + F.embedding(p, w[1]) for i, p, w in zip(ids, positions, weights)]
    for n in (2, 6):
        q, k, v = (torch.cat([F.linear(h, w[n + j]) for h, w in zip(hs, weights)], 1) for j in range(3))
        q, k, v = (x.unflatten(-1, (-1, 4)).transpose(1, 2) for x in (q, k, v))
        later = torch.ones(q.shape[2], q.shape[2]).triu(1).bool()
        shares = (q @ k.mT / 2).masked_fill(later, float("-inf")).softmax(-1)
        seen = (shares @ v).transpose(1, 2).flatten(2).tensor_split(len(held), 1)
        hs = [h + F.linear(s, w[n + 3]) for h, s, w in zip(hs, seen, weights)]
    logits = [F.linear(h, w[10]).flatten(0, 1) for h, w in zip(hs, weights)]
    return [F.cross_entropy(y, l.flatten(), reduction="none") for y, l in zip(logits, labels)]
"""
LATER = "    mask = {positions}[:, None, :, None] >= {keys}[:, None, None, :]\n"


def body(given: Given) -> Body:
    """The call and the truth of one case."""
    if given.case.probe == "pass":
        return _pass(given)
    params = given.params
    if given.case.probe == "all_to_all":
        name, (scatter, gather) = "all_to_all", DIMS[params["scatter"]]
        text = f'torch.ops.autosp.all_to_all(x, {scatter}, {gather}, "{"q" if params["scatter"] == "heads" else "o"}")'
        dense = RECUT.format(joined=gather, cut=scatter, part=part(given), y=out(given))
    else:
        name = "all_gather_sequence" if params["way"] == "gather" else "reduce_scatter_sequence"
        text = f"torch.ops.autosp.{name}(x, {params['dim']})"
        dense = (GATHERED if params["way"] == "gather" else SUMMED).format(
            dim=params["dim"], part=part(given), y=out(given)
        )
    if not given.source.has(OPERATORS, name):
        raise NothingToReproduce(f"{given.row.label} has no {name} in {OPERATORS}")
    imports = f"import {OPERATORS}\n" + deepspeed.imports(given, "populate_registry", module=REGISTRY)
    call = called(given, f"def inner(x):\n    return {text}\n")
    return Body(call, dense, imports, "", deepspeed.setup(given) + _registry(given))


def _registry(given: Given) -> str:
    """The groups that the operators look into."""
    return f"populate_registry({given.size}, {given.world // given.size})  # groups of one sequence, and how many\n"


def _pass(given: Given) -> Body:
    if not given.source.has(REWRITING, "apply_autosp"):
        raise NothingToReproduce(f"{given.row.label} has no apply_autosp in {REWRITING}")
    rows = given.params["mask"] == "rows"
    named = NAMES[given.params.get("names", "short")]
    seen = "attn_mask=mask" if rows else "is_causal=True"
    model = MODEL.format(mask=LATER.format(**named) if rows else "", seen=seen, **named)
    then = "graph.forward"
    if given.params["then"] != "graph":
        then = f'torch._dynamo.backends.registry.lookup_backend("{given.params["then"]}")(graph, example)'
    call = COMPILED.format(sp=given.size, dp=given.world // given.size, then=then)
    imported = deepspeed.imports(given, "apply_autosp", "prepare_autosp_inputs", module=REWRITING)
    imports = f"import torch._dynamo, torch.nn.functional as F\n{imported}from {REGISTRY} import populate_registry\n"
    return Body(call, WHOLE, imports, model, deepspeed.setup(given) + _registry(given), named=True)
