"""Scripts of family ``exchange``: DeepSpeed's exchanges, each in the shape that the checkout's own source has.

The truth is that an exchange permutes: all ranks' parts are joined to the whole and cut along the other dimension.
"""

from __future__ import annotations

from service.repro import deepspeed
from service.repro.deepspeed import LAYER
from service.repro.families.around import called, out, part
from service.repro.given import Body, Given, NothingToReproduce

DIMS = {
    ("bshd", "heads"): (2, 1),
    ("bshd", "sequence"): (1, 2),
    ("sbhd", "heads"): (2, 0),
    ("sbhd", "sequence"): (0, 2),
}
"""The dimensions to scatter and to gather."""
SHARD = "deepspeed.module_inject.tp_shard"

SWAP = '''\
def dense(held):
    """Block j of process i becomes block i of process j: the matrix of blocks is transposed."""
    parts = torch.stack([{part} for h in held])
    return [{y} for y in parts.transpose(0, 1)]
'''
RECUT = '''\
def dense(held):
    """The whole, joined along dimension {joined} and cut along dimension {cut}, the first parts the largest."""
    whole = torch.cat([{part} for h in held], {joined})
    return [{y} for y in whole.tensor_split(len(held), {cut})]
'''
OVERLAPPED = """\
def inner(x):
    handle = {{}}
    single_all_to_all(x, {dims}, group, async_op=True, handle=handle, type="dq"{more})
    handle["dq_work"].wait()
    return handle["dq_post_all2all_func"](handle["dq_grad"])
"""


def body(given: Given) -> Body:
    """The call and the truth of one case."""
    if given.case.probe == "dim0":
        return _dim0(given)
    params = given.params
    imported, first, more = _recut(given)
    scatter, gather = DIMS[params["layout"], params["scatter"]]
    uneven = "uneven" in params["heads"] or params["before"] != "nothing"
    dense = RECUT.format(joined=gather, cut=scatter, part=part(given), y=out(given))
    setup = deepspeed.setup(given, placed=uneven)
    return Body(called(given, first, more), dense, deepspeed.imports(given, imported), "", setup)


def _dim0(given: Given) -> Body:
    if given.source.has(LAYER, "_dim_zero_all_to_all"):
        name, text = "_dim_zero_all_to_all", "_dim_zero_all_to_all(group, {})"
    elif given.source.has(LAYER, "_DimZeroAllToAll"):
        name, text = "_DimZeroAllToAll", "_DimZeroAllToAll.apply(group, {})"
    else:
        raise NothingToReproduce(f"{given.row.label} has no exchange along dimension 0 that a script could call")
    exchange = f"def inner(x):\n    return {text.format('x')}\n"
    call, dense = called(given, exchange), SWAP.format(part=part(given), y=out(given))
    return Body(call, dense, deepspeed.imports(given, name), "", deepspeed.setup(given))


# -- the exchange between sequence and heads, in each of its shapes ----------------------------------------------------


def _recut(given: Given) -> tuple[str, str, str]:
    """What is imported, the function ``exchange``, and the lines that ``call`` runs before it."""
    params, module = given.params, given.source.module(LAYER)
    signature = module.parameters("single_all_to_all") if module is not None else ()
    if not signature or module is None:
        raise NothingToReproduce(f"{given.row.label} has no single_all_to_all in {LAYER}")
    scatter, gather = DIMS[params["layout"], params["scatter"]]
    batched = "batch_dim_idx" in signature
    dims = f"{scatter}, {gather}" + (f", {0 if params['layout'] == 'bshd' else 1}" if batched else "")
    named, heads = "num_kv_heads" in signature, _heads(given)
    differentiable = given.case.probe != "single_all_to_all"
    name = "_SeqAllToAll" if differentiable else "single_all_to_all"

    def written(x: str, dims: str, heads: int) -> str:
        if differentiable:
            # stream, handle, type and direction stand before the heads: an autograd function takes no keywords
            return f"_SeqAllToAll.apply(group, {x}, {dims}{f', None, None, None, True, {heads}' if named else ''})"
        return f"single_all_to_all({x}, {dims}, group{f', num_kv_heads={heads}' if named else ''})"

    note = ""
    if (
        "uneven" in params["heads"]
        and params["scatter"] == "sequence"
        and not named
        and "uneven_heads_all2all" in module
    ):
        note = f"    deepspeed.module_inject.tp_shard.set_num_kv_heads({heads})  # one for the whole process\n"
    if params["how"] == "async":
        more = f", num_kv_heads={heads}" if named else ""
        return name, OVERLAPPED.format(dims=dims, more=more), ""
    exchange = f"def inner(x):\n{note}    return {written('x', dims, heads)}\n"
    first = ""
    if params["before"] != "nothing":
        towards = dims.replace(f"{scatter}, {gather}", ", ".join(map(str, DIMS[params["layout"], "heads"])), 1)
        (spec,) = (spec for spec in given.handed[0] if spec.name == "u")
        first = f"    {written('u', towards, spec.shape[2])}  # other heads, in the same process\n"
    return name, exchange, first


def _heads(given: Given) -> int:
    """The heads over all ranks of a group, from the shapes that they hand in."""
    shares = [next(spec for spec in rank if spec.name == "x").shape[2] for rank in given.handed[: given.size]]
    return shares[0] if given.params["scatter"] == "heads" else sum(shares)
