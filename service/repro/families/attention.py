"""Scripts of family ``attention``: DeepSpeed's attention layers around a plain local attention.

The truth is that same attention over the whole sequence, in one process.
"""

from __future__ import annotations

from service.repro import deepspeed
from service.repro.deepspeed import LAYER
from service.repro.given import Body, Given, NothingToReproduce

ULYSSES = "deepspeed.runtime.sequence_parallel.ulysses_sp"
TO_CORE = {"bshd": "(0, 2, 1, 3)", "sbhd": "(1, 2, 0, 3)", "bhsd": ""}
FROM_CORE = {"bshd": "(0, 2, 1, 3)", "sbhd": "(2, 0, 1, 3)"}
SEQUENCE = {"bshd": 1, "sbhd": 0, "bhsd": 2}

ATTEND = '''\
def attend(q, k, v{seen}):
    """softmax(q kᵀ / √features) v{order}."""
{permuted}{grouped}    scores = torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5
{masked}    return torch.matmul(torch.softmax(scores, -1), v){back}
'''
GROUPED = """\
    groups = q.shape[1] // k.shape[1]
{check}    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)  # each serves several query heads
"""
CHECK = """\
    if groups * k.shape[1] != q.shape[1]:
        raise ValueError(f"{q.shape[1]} query heads cannot share {k.shape[1]} key heads")
"""
CAUSAL = '    scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).bool().tril(), float("-inf"))\n'
SEEN = '    scores = scores.masked_fill(~seen[:, None], float("-inf"))\n'
CORE = """\
class Local(torch.nn.Module):
    forward = lambda self, q, k, v: attend(q, k, v)
"""
TURNED = '''\
def turned(x, cos, sin):
    """The first features rotated: (a, b) becomes (a cos - b sin, b cos + a sin), a and b their two halves."""
    x, rest = x.split([cos.shape[-1], x.shape[-1] - cos.shape[-1]], -1)
    a, b = x.chunk(2, -1)
    return torch.cat([x * cos + torch.cat([-b, a], -1) * sin, rest], -1)
'''
STREAM = """\
class Stream:  # one on which everything is already done: of the overlap only the logic is left
    wait_stream = wait_event = lambda self, other: None
    activation_buffer_list = property(lambda self: [], fdel=lambda self: None)

class Accelerator:
    own, stream = deepspeed.sequence.layer.get_accelerator(), Stream()
    default_stream = current_stream = lambda self, index=None: self.stream
    __getattr__ = lambda self, name: getattr(self.own, name)
"""
OVERLAPPED = "deepspeed.sequence.layer.get_accelerator = Accelerator\n"
VISIBLE = '''\
def visible(positions):
    """Which keys a query sees: those of its own document, which starts at position 0{later}."""
    document = (positions == 0).cumsum(1)
    seen = document[:, :, None] == document[:, None, :]
    return seen{causal}
'''
HF = """\
def local(module, q, k, v, mask, **more):  # as a Hugging Face attention function
    return attend(q, k, v, visible(more["position_ids"])).transpose(1, 2).contiguous(), None
"""


def body(given: Given) -> Body:
    """The call and the truth of one case."""
    if given.case.probe == "distributed":
        return _distributed(given)
    if given.case.probe == "ulysses_hf":
        return _ulysses(given)
    raise NothingToReproduce(f"{given.case.probe} needs a GPU and flash-attn: there is no script for it")


def attend_text(given: Given, layout: str, masked: str, *, grouped: bool) -> str:
    """The function ``attend``, on tensors of that layout; ``masked``: the line that hides keys."""
    to, back = TO_CORE[layout], FROM_CORE.get(layout, "")
    uneven = "uneven" in given.params.get("kv", "") + given.params.get("heads", "")
    return ATTEND.format(
        seen=", seen" if masked == SEEN else "",
        order="" if to else ", heads before tokens",
        permuted=f"    q, k, v = (x.permute{to} for x in (q, k, v))\n" if to else "",
        grouped=GROUPED.format(check=CHECK if uneven else "") if grouped else "",
        masked=masked,
        back=f".permute{back}" if back else "",
    )


def _call(given: Given, run: str, own: tuple[str, ...], first: str) -> str:
    """``call``: ``run`` on q, k and v, and ``own``, what attention takes besides."""
    layer, views = given.params["wrap"] == "layer", given.params.get("overlap", "no") != "no"
    lines = [f"def call({', '.join(given.arguments)}):"]
    if layer:
        lines.append("    q, k, v = q * a_q, k * a_k, v * a_v")
    lines += [f"    {line}" for line in first.splitlines()]
    if views:
        lines.append("    q, k, v = ((x * 1.0).view(x.shape) for x in (q, k, v))  # as a projection returns them")
    arguments = ", ".join(("q", "k", "v", *own))
    result = run.format(arguments)
    lines.append(f"    return {result} * 4.0" if layer else f"    return {result}")
    return "\n".join(lines) + "\n"


def _whole(given: Given, layout: str) -> list[str]:
    """Lines of ``dense`` that put the parts of q, k and v together."""
    scaled = ' * h["a_" + n]' if given.params["wrap"] == "layer" else ""
    return [f'    q, k, v = (torch.cat([h[n]{scaled} for h in held], {SEQUENCE[layout]}) for n in "qkv")']


def _parts(given: Given, y: str, dim: int) -> list[str]:
    sizes = f'[h["q"].shape[{SEQUENCE[given.params["layout"]]}] for h in held]'
    after = " * 4.0" if given.params["wrap"] == "layer" else ""
    return (
        [f"    return list(({y}{after}).split({sizes}, {dim}))"]
        if after
        else [f"    return list({y}.split({sizes}, {dim}))"]
    )


# -- DistributedAttention ----------------------------------------------------------------------------------------------


def _distributed(given: Given) -> Body:
    params, module = given.params, given.source.module(LAYER)
    if module is None or "DistributedAttention" not in module:
        raise NothingToReproduce(f"{given.row.label} has no DistributedAttention in {LAYER}")
    made, forward = (module.parameters(f"DistributedAttention.{name}") for name in ("__init__", "forward"))
    layout, stand_in = params["layout"], params["overlap"] == "stand_in"
    gather = 0 if params["gather"] == "zero" or layout == "sbhd" else 1
    options = [f"scatter_idx=2, gather_idx={gather}"]
    if params["overlap"] != "no":
        options.append("sp_stream=Stream()" if stand_in else "sp_stream=torch.cuda.Stream()")
    first = ""
    if params["told"] == "yes":
        heads = given.handed[0][1].shape[2]
        if "num_kv_heads" in made:
            options.append(f"num_kv_heads={heads}")
        else:
            first = f"deepspeed.module_inject.tp_shard.set_num_kv_heads({heads})\n"
    batch = f", {0 if layout == 'bshd' else 1}" if "batch_dim_idx" in forward else ""
    new = f"DistributedAttention(Local(), group, {', '.join(options)})"
    call, own = f"attention = {new}\n", ()
    if params["before"] != "nothing":
        call += f"other = {new}\n"
        first = f"other(u_q, u_k, u_v{batch})  # with other heads, in the same process\n{first}"
    run = f"attention({{}}{batch})"
    if params["rotary"] != "no":
        run = f"attention({{}}{batch}, (cos, sin))"
    if stand_in:
        name = "dafult_stream" if "dafult_stream" in module.text else "default_stream"
        call += f"attention.{name} = Accelerator.stream\n"
    setup = deepspeed.setup(given, placed=True) + (OVERLAPPED if stand_in else "")
    causal = params["causal"] == "yes"
    helpers = [STREAM] if stand_in else []
    helpers += [attend_text(given, layout, CAUSAL if causal else "", grouped=params["kv"] != "same"), CORE]
    if params["rotary"] != "no":
        helpers.append(TURNED)
    dense = ["def dense(held):", '    """The same attention over the whole sequence."""', *_whole(given, layout)]
    if params["rotary"] != "no":
        shape = "(-1, 1, cos.shape[-1])" if layout == "bshd" else "(-1, 1, 1, cos.shape[-1])"
        dense.append('    cos, sin = held[0]["cos"], held[0]["sin"]')
        dense.append(f"    q, k = (turned(x, cos.reshape{shape}, sin.reshape{shape}) for x in (q, k))")
    dense += _parts(given, "attend(q, k, v)", SEQUENCE[layout])
    imports = deepspeed.imports(given, "DistributedAttention")
    return Body(call + _call(given, run, own, first), "\n".join(dense), imports, "\n".join(helpers), setup)


# -- UlyssesSPAttentionHF ----------------------------------------------------------------------------------------------


def _ulysses(given: Given) -> Body:
    params, module = given.params, given.source.module(ULYSSES)
    if module is None or "UlyssesSPAttentionHF" not in module:
        raise NothingToReproduce(f"{given.row.label} has no UlyssesSPAttentionHF in {ULYSSES}")
    named = {spec.name: spec.shape for spec in given.handed[0]}
    heads, kv, tokens = named["q"][1], named["k"][1], named["q"][2]
    fixed = params["lengths"] == "fixed"
    size = tokens if fixed else 64  # where lengths are variable, those of a longest batch
    call = (
        "attention = UlyssesSPAttentionHF(attn=local, batch_size={batch}, attn_head_count={heads}, "
        "attn_head_size={features},\n"
        "    kv_head_count={kv}, num_hidden_layers=1, process_group=group,\n"
        "    seq_length_is_variable={variable}{lengths})\n"
        "module = torch.nn.Module()  # the layer that calls: it says how many query heads share a key head\n"
        "module.num_key_value_groups = {groups}\n"
    )
    takes = module.parameters("UlyssesSPAttentionHF.__init__")
    asked = fixed or demands_length(given)
    lengths = ""
    if asked and "local_seq_length" in takes:
        whole = sum(rank_tokens(given)) if fixed else size * given.size
        lengths = f", local_seq_length={size}, global_seq_length={whole}"
    call = call.format(
        batch=params["batch"], heads=heads, features=params["features"], kv=kv, variable=not fixed, lengths=lengths,
        groups=heads // kv,
    )  # fmt: skip
    first = ""
    if params["before"] != "nothing":
        first = "attention(module, u_q, u_k, u_v, None, position_ids=u_positions)  # more tokens\n"
    run = "attention(module, {}, None, position_ids=positions)[0]"
    causal = params["causal"] == "yes"
    seen = " & (positions[:, :, None] >= positions[:, None, :])" if causal else ""
    helpers = [
        attend_text(given, "bhsd", SEEN, grouped=params["kv"] != "same"),
        VISIBLE.format(later=", none that comes later" if causal else "", causal=seen),
        HF,
    ]
    dense = ["def dense(held):", '    """The same attention over the whole sequence."""', *_whole(given, "bhsd")]
    dense.append('    seen = visible(torch.cat([h["positions"] for h in held], 1))')
    dense += _parts(given, "attend(q, k, v, seen).transpose(1, 2).flatten(2)", 1)
    imports = deepspeed.imports(given, "UlyssesSPAttentionHF", module=ULYSSES) + VERSION
    setup = deepspeed.setup(given, placed=True)
    return Body(call + _call(given, run, (), first), "\n".join(dense), imports, "\n".join(helpers), setup)


VERSION = """\
import importlib.metadata
importlib.metadata.version = lambda name: "1000.0"  # it asks for transformers, and uses no more of it
"""


def demands_length(given: Given) -> bool:
    """Whether UlyssesSPAttentionHF wants lengths although they are variable."""
    module = given.source.module(ULYSSES)
    return module is not None and "local_seq_length" in module.demanded("UlyssesSPAttentionHF.__init__")


def takes_length(given: Given) -> bool:
    """Whether it can be told lengths at all."""
    module = given.source.module(ULYSSES)
    return module is not None and "local_seq_length" in module.parameters("UlyssesSPAttentionHF.__init__")


def rank_tokens(given: Given) -> list[int]:
    """The tokens of each rank of the first group."""
    return [next(spec.shape[2] for spec in rank if spec.name == "q") for rank in given.handed[: given.size]]
