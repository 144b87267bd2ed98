"""Scripts of family ``tiled``: DeepSpeed's tiled functions around a function of the user's.

The truth is that function in one piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from service.repro import deepspeed
from service.repro.families.around import called, out
from service.repro.given import Body, Given, NothingToReproduce

TILES, CHUNKS = "deepspeed.runtime.sequence_parallel.ulysses_sp", "deepspeed.sequence.fpdt_layer"
FUNCTIONAL = "import torch.nn.functional as F\n"
CHECKPOINT = "import torch.utils.checkpoint\n"
IGNORED = -100

MLP = '''\
def mlp(module, x):
    """A gated feed-forward layer."""
    gated = F.silu(F.linear(x, module.gate{gate_bias})) * F.linear(x, module.up{up_bias})
    return F.linear(gated, {down}{down_bias})
'''
HEAD_LOSS = '''\
def loss(module, x, labels{mask}):
    """The cross entropy of a projection of x, in 32 bits where it has fewer."""
    logits = F.linear(x, module.head{head_bias}).flatten(0, -2)
{masked}    logits = logits.float() if logits.itemsize == 2 else logits
    return F.cross_entropy(logits, labels.flatten(), ignore_index=-100, reduction="{reduction}")
'''
MASKED = "    labels = labels.masked_fill(mask == 0, -100)\n"
LOGITS_LOSS = '''\
def loss(logits, labels, vocab_size, shift_labels):
    """The mean over the tokens that count, as a causal language model calls it."""
    logits = logits.flatten(0, -2).float() if logits.itemsize == 2 else logits.flatten(0, -2)
    return F.cross_entropy(logits, shift_labels.flatten(), ignore_index=-100)
'''
FFN = '''\
def dense(held):
    """The same layer in one piece."""
    inner = [F.gelu(F.linear({part}, h["first"], h["first_bias"]), approximate="tanh") for h in held]
    ys = [F.linear(y, h["second"], h["second_bias"]) for y, h in zip(inner, held)]
    return [{y} for y in ys]
'''
CHUNKED_LOSS = '''\
def dense(held):
    """The loss of every token, [tokens, batch], 0 where its label does not count{whole}."""
    logits = [F.linear({part}, h["head"]).movedim(-1, 1) for h in held]
    ys = [F.cross_entropy(y, h["labels"].T, ignore_index=-100, reduction="none") for y, h in zip(logits, held)]
    return {ys}
'''
CALLED_WHOLE = '''\
def dense(held):
    """The same function in one piece."""
    return [{y} for h in held]
'''
OF_SHARDS = '''\
def dense(held):
    """The mean of the shards' means, as it is documented."""
    ys = []
    for h in held:
        parts = zip({x}.split({size}, {dim}), {labels}.split({size}, {dim}))
        ys.append(torch.stack([{one} for x, labels in parts]).mean())
    return [{y} for y in ys]
'''


def body(given: Given) -> Body:
    """The call and the truth of one case."""
    made = BUILDERS[given.case.probe](given)
    checkpoint = CHECKPOINT if given.params.get("wrap") == "checkpoint" else ""
    return Body(made.call, made.dense, FUNCTIONAL + checkpoint + made.imports, made.helpers, deepspeed.setup(given))


def _parameters(given: Given) -> list[str]:
    return [name for name in given.arguments if name not in ("x", "labels", "ids", "mask")]


def _module(names: list[str], of: str = "{}") -> str:
    return f"types.SimpleNamespace({', '.join(f'{name}={of.format(name)}' for name in names)})"


def _listed(given: Given) -> str:
    return f"[{', '.join(_parameters(given))}]" if given.params.get("listed", "all") == "all" else "None"


def _found(given: Given, module: str, name: str) -> str:
    if not given.source.has(module, name):
        raise NothingToReproduce(f"{given.row.label} has no {name} in {module}")
    return deepspeed.imports(given, name, module=module)


def _part(given: Given) -> str:
    return 'h["x"] * 0.5' if given.params["wrap"] == "layer" else 'h["x"]'


# -- the feed-forward layer --------------------------------------------------------------------------------------------


def _layer(given: Given) -> str:
    names = _parameters(given)
    biases = {
        f"{name}_bias": f", module.{name}_bias" if f"{name}_bias" in names else "" for name in ("gate", "up", "down")
    }
    return MLP.format(down="module.down" if "down" in names else "module.gate.t()", **biases)


def _whole_layer(given: Given) -> str:
    module = _module(_parameters(given), 'h["{}"]')
    return CALLED_WHOLE.format(y=out(given, f"mlp({module}, {_part(given)})"))


def _mlp(given: Given) -> Body:
    names, shards = _parameters(given), given.params["shards"]
    module = _module(names)
    inner = f"def inner({', '.join(given.arguments)}):\n    module = {module}\n"
    inner += f"    return TiledMLP.apply(mlp, module, x, {shards}, {_listed(given)})\n"
    return Body(called(given, inner), _whole_layer(given), _found(given, TILES, "TiledMLP"), _layer(given))


def _compute(given: Given) -> Body:
    helpers, function = _layer(given), "def function(x, {}):\n    return mlp({}, x)\n"
    inner, imports = _tiled(given, 'kwargs_to_shard={"x": x}', "1", "None")
    helpers += "\n" + _function(given, function)
    return Body(called(given, inner), _whole_layer(given), imports, helpers)


def _function(given: Given, function: str) -> str:
    """What is tiled, with the parameters as it gets them."""
    if given.params["passed"] == "module":
        return function.format("module", "module")
    return function.format("**weights", "types.SimpleNamespace(**weights)")


def _tiled(given: Given, sharded: str, unshard: str, reduction: str) -> tuple[str, str]:
    names, params = _parameters(given), given.params
    module = params["passed"] == "module"
    passed = f'{{"module": {_module(names)}}}' if module else f"dict({', '.join(f'{n}={n}' for n in names)})"
    lines = [f"def inner({', '.join(given.arguments)}):"]
    if "ids" in given.arguments:
        lines.append("    x = x + F.embedding(ids, head)")
    lines.append(f"    passed = {passed}")
    if params["entry"] == "wrapper":
        name = "sequence_tiled_compute"
        lines += [
            f"    y = sequence_tiled_compute(fn=function, seqlen=x.shape[1], shards={params['shards']},",
            f'        {sharded}, kwargs_to_pass=passed, grad_requiring_tensor_key="x",',
            f"        compute_params={_listed(given)},",
            f"        output_unshard_dimension={unshard}, output_reduction={reduction})",
        ]
    else:
        name = "SequenceTiledCompute"
        keys = ["x", "labels"] if "labels" in given.arguments else ["x"]
        lines += [
            f'    y = SequenceTiledCompute.apply(function, x.shape[1], {params["shards"]}, {keys}, list(passed), "x",',
            f"        {_listed(given)}, {unshard}, {reduction}, {', '.join(keys)}, *passed.values())",
        ]
    lines.append("    return y / (labels != -100).sum()" if params.get("reduction") == "balanced" else "    return y")
    return "\n".join(lines) + "\n", _found(given, TILES, name)


# -- losses ------------------------------------------------------------------------------------------------------------


def _compute_loss(given: Given) -> Body:
    part = ".reshape(1, 1)" if given.params["unshard"] == "1" else ""
    function = f"def function(x, labels, {{}}):\n    return loss({{}}, x, labels){part}\n"
    reduction = '"mean"' if given.params["reduction"] == "mean" else '"sum"'
    inner, imports = _tiled(given, 'kwargs_to_shard={"x": x, "labels": labels}', given.params["unshard"], reduction)
    helpers = _head_loss(given) + "\n" + _function(given, function)
    return Body(called(given, inner), _whole_loss(given), imports, helpers)


def _fused(given: Given) -> Body:
    names, params, masked = _parameters(given), given.params, "mask" in given.arguments
    reduction = '"mean"' if params["reduction"] == "mean" else '"sum"'
    labels, mask = ("labels.clamp(min=0)", "mask") if masked else ("labels", "None")
    listed = f"[{', '.join(names)}]" if masked else _listed(given)
    lines = [f"def inner({', '.join(given.arguments)}):"]
    if "ids" in given.arguments:
        lines.append("    x = x + F.embedding(ids, head)")
    lines += [
        f"    module = {_module(names)}",
        f"    more = {mask}, {params['shards']}, {listed}, {reduction}",
        f"    y = TiledFusedLogitsLoss.apply(loss, module, x, {labels}, *more)",
        "    return y / (labels != -100).sum()" if params["reduction"] == "balanced" else "    return y",
    ]
    imports = _found(given, TILES, "TiledFusedLogitsLoss")
    return Body(called(given, "\n".join(lines) + "\n"), _whole_loss(given), imports, _head_loss(given))


def _head_loss(given: Given) -> str:
    masked = "mask" in given.arguments
    return HEAD_LOSS.format(
        mask=", mask" if masked else ", mask=None" if given.case.probe == "fused_logits_loss" else "",
        masked=MASKED if masked else "",
        head_bias=", module.head_bias" if "head_bias" in given.arguments else "",
        reduction="mean" if given.params["reduction"] == "mean" else "sum",
    )


def _whole_loss(given: Given) -> str:
    params, x = given.params, _part(given)
    if "ids" in given.arguments:
        x += ' + F.embedding(h["ids"], h["head"])'
    module = _module(_parameters(given), 'h["{}"]')

    def loss(x: str, labels: str) -> str:
        return f"loss({module}, {x}, {labels}{f', torch.ones_like({labels})' if 'mask' in given.arguments else ''})"

    if params["reduction"] != "mean":
        total = loss(x, 'h["labels"]')
        total += ' / (h["labels"] != -100).sum()' if params["reduction"] == "balanced" else ""
        return CALLED_WHOLE.format(y=out(given, total))
    by_row = given.case.probe == "compute_loss"
    count = int(params["tokens"]) * (1 if by_row else int(params["batch"]))
    return OF_SHARDS.format(
        x=f"({x})" if by_row else f"({x}).flatten(0, 1)",
        labels='h["labels"]' if by_row else 'h["labels"].flatten(0, 1)',
        size=math.ceil(count / int(params["shards"])),
        dim=1 if by_row else 0,
        one=loss("x", "labels") if by_row else loss("x[None]", "labels[None]"),
        y=out(given),
    )


def _logits_loss(given: Given) -> Body:
    shards = given.params["shards"]
    vocabulary = given.handed[0][0].shape[-1]
    inner = f"def inner(x, labels):\n    return TiledLoss.apply(loss, x, {vocabulary}, labels, {shards})\n"
    y = out(given, f'loss({_part(given)}, None, {vocabulary}, h["labels"])')
    return Body(called(given, inner), CALLED_WHOLE.format(y=y), _found(given, TILES, "TiledLoss"), LOGITS_LOSS)


# -- chunks ------------------------------------------------------------------------------------------------------------


def _ffn(given: Given) -> Body:
    chunk = -(-int(given.params["tokens"]) // int(given.params["shards"]))
    inner = (
        "def inner(x, first, first_bias, second, second_bias):\n"
        "    # A gelu that it compiles by itself runs as it is written.\n"
        '    stance = getattr(torch.compiler, "set_stance", lambda _: contextlib.nullcontext())\n'
        '    with stance("force_eager"):\n'
        "        y, bias = FPDT_FFN.apply(x, first, first_bias, second, second_bias, "
        f"{given.params['bias'] == 'added'}, {chunk})\n"
        "    return y if bias is None else y + bias\n"
    )
    imports = "import contextlib\n" + _found(given, CHUNKS, "FPDT_FFN")
    return Body(called(given, inner), FFN.format(part=_part(given), y=out(given)), imports)


def _token_losses(given: Given) -> Body:
    tokens, whole = int(given.params["tokens"]), given.params["part"] == "whole"
    size = "GROUP" if given.size < given.world else "WORLD"
    own = "" if whole else f"[place * {tokens} : (place + 1) * {tokens}]"
    inner = (
        "def inner(x, labels, head):\n"
        f"    losses = FPDT_LogitsLoss.apply(x, labels, head, place, {size}, group, {given.params['shards']})\n"
        f"    return losses{own}\n"
    )
    ys = "[torch.cat(ys)] * len(ys)" if whole else "ys"
    if given.params["wrap"] == "layer":
        ys = f"[{out(given)} for y in {ys}]"
    dense = CHUNKED_LOSS.format(part=_part(given), whole=", of all processes" if whole else "", ys=ys)
    return Body(called(given, inner), dense, _found(given, CHUNKS, "FPDT_LogitsLoss"))


BUILDERS: dict[str, Callable[[Given], Body]] = {
    "mlp": _mlp,
    "compute": _compute,
    "compute_loss": _compute_loss,
    "fused_logits_loss": _fused,
    "loss": _logits_loss,
    "fpdt_ffn": _ffn,
    "fpdt_logits_loss": _token_losses,
}
"""Per probe, its template."""
