"""The decoder of families ``model`` and ``engine`` as text: one layer, which the processes run around the subject's
attention and the truth around a plain one, and all of it.
"""

from __future__ import annotations

from service.repro import deepspeed
from service.repro.families.attention import (
    CAUSAL,
    CORE,
    HF,
    SEEN,
    ULYSSES,
    VERSION,
    VISIBLE,
    attend_text,
    takes_length,
)
from service.repro.given import Given

TOKENS, FEATURES = 3, 4
"""Tokens of one rank, features of one head."""

LAYER = '''\
def normed(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight

def layer(x, w, attention{places}):
    """One layer: attention{gate}, then a feed-forward; ``attention`` takes all heads, [batch, tokens, heads, 4]."""
    h = normed(x, w["norm_before"])
    wide = F.linear(h, w["q_proj"].flatten(0, 1)){q_bias}
    k, v = F.linear(h, w["k_proj"]){k_bias}, F.linear(h, w["v_proj"]){v_bias}
    half = wide.shape[-1]{halved}
    q, k, v = (part.unflatten(-1, (-1, 4)) for part in (wide[..., :half], k, v))
{turned}    seen = attention(q, k, v).flatten(2){gated}
    x = x + F.linear(seen, w["o_proj"])
    return x + F.linear(F.silu(F.linear(normed(x, w["norm_after"]), w["up_proj"])), w["down_proj"])
'''
TURNED = '''\
def turned(x, places):
    """Pairs of features, half a head apart, turned by their token's place in the whole sequence."""
    angle = (places[:, None].double() / 256.0 ** (torch.arange(2) / 2)).repeat(1, 2)
    (first, second), (cosine, sine) = x.chunk(2, -1), (f(angle).to(x.dtype)[:, None] for f in (torch.cos, torch.sin))
    return x * cosine + torch.cat((-second, first), -1) * sine
'''
MODEL = '''\
def model(x, w, layer):
    """All of it: from mixtures of symbols to a number per token and symbol; w: every weight by name."""
    h = x @ w["embed"]
    for n in range(2):
        h = layer(h, *(t for name, t in w.items() if name.startswith(f"layer{{n}}.")))
    return F.linear(normed(h, w["norm"]), w["{last}"])
'''


def names(given: Given) -> list[str]:
    """The names of one layer's weights, in order."""
    return [spec.name.removeprefix("layer0.") for spec in given.handed[0] if spec.name.startswith("layer0.")]


def weights(given: Given) -> list[str]:
    """The names of all weights, in order."""
    return [spec.name for spec in given.handed[0] if spec.shared]


def decoder(given: Given) -> str:
    """The functions at the top of the script: the local attention, a layer, the model."""
    params, listed = given.params, names(given)
    rotary, gated = params.get("rotary") == "yes", params.get("gate", "yes") == "yes"
    causal = params.get("mask", "causal") == "causal"
    bias = "q_bias" in listed
    text = LAYER.format(
        places=", places" if rotary else "",
        gate=" with a gate" if gated else "",
        q_bias=' + w["q_bias"].flatten()' if bias else "",
        k_bias=' + w["k_bias"]' if bias else "",
        v_bias=' + w["v_bias"]' if bias else "",
        halved=" // 2" if gated else "",
        turned="    q, k = turned(q, places), turned(k, places)\n" if rotary else "",
        gated=" * torch.sigmoid(wide[..., half:])" if gated else "",
    )
    tied = params.get("tied") == "yes"
    local = attend_text(given, "bshd", CAUSAL if causal else "", grouped=params.get("kv", "half") != "same")
    return "\n".join([local, *([TURNED] if rotary else []), text, MODEL.format(last="embed" if tied else "head")])


def attention(given: Given) -> tuple[str, str, str]:
    """Imports, what stands at the top, and lines inside a process that define ``attention(q, k, v)``."""
    params = given.params
    if params["via"] == "ulysses":
        return _ulysses(given)
    sbhd = params.get("layout", "bshd") == "sbhd"
    order = "tokens first" if sbhd else "batch first"
    core = CORE if not sbhd else CORE_SBHD
    lines = [
        f"shared = DistributedAttention(Local(), group, scatter_idx=2, gather_idx={0 if sbhd else 1})  # {order}",
        "def attention(q, k, v):",
    ]
    module = given.source.module(deepspeed.LAYER)
    takes = () if module is None else module.parameters("DistributedAttention.forward")
    batch = f", {1 if sbhd else 0}" if "batch_dim_idx" in takes else ""
    if sbhd:
        lines.append(f"    return shared(*(x.transpose(0, 1) for x in (q, k, v)){batch}).transpose(0, 1)")
    else:
        lines.append(f"    return shared(q, k, v{batch})")
    return deepspeed.imports(given, "DistributedAttention"), core, "\n".join(lines) + "\n"


CORE_SBHD = """\
class Local(torch.nn.Module):  # tokens first
    def forward(self, q, k, v):
        return attend(*(x.transpose(0, 1) for x in (q, k, v))).transpose(0, 1)
"""


def _ulysses(given: Given) -> tuple[str, str, str]:
    shapes = {spec.name: spec.shape for spec in given.handed[0]}
    heads, kv = (shapes[f"layer0.{name}"][-2] // FEATURES for name in ("q_proj", "k_proj"))
    causal = given.params.get("mask", "causal") == "causal"
    seen = " & (positions[:, :, None] >= positions[:, None, :])" if causal else ""
    helpers = "\n".join([
        attend_text(given, "bhsd", SEEN, grouped=heads != kv).replace("def attend(", "def attend_hf("),
        VISIBLE.format(later=", none that comes later" if causal else "", causal=seen),
        HF.replace("attend(", "attend_hf("),
    ])  # fmt: skip
    batch, size = shapes["x"][0], given.size
    lengths = f", local_seq_length={TOKENS}, global_seq_length={TOKENS * size}" if takes_length(given) else ""
    inside = (
        f"shared = UlyssesSPAttentionHF(attn=local, batch_size={batch}, attn_head_count={heads}, attn_head_size=4,\n"
        f"    kv_head_count={kv}, num_hidden_layers=1, process_group=group, seq_length_is_variable=False{lengths})\n"
        "module = torch.nn.Module()  # the layer that calls: it says how many query heads share a key head\n"
        f"module.num_key_value_groups = {heads // kv}\n"
        f"positions = torch.arange({TOKENS} * place, {TOKENS} * place + {TOKENS}).repeat({batch}, 1)\n"
        "def attention(q, k, v):\n"
        "    q, k, v = (x.transpose(1, 2) for x in (q, k, v))\n"
        "    return shared(module, q, k, v, None, position_ids=positions)[0].unflatten(-1, (-1, 4))\n"
    )
    return deepspeed.imports(given, "UlyssesSPAttentionHF", module=ULYSSES) + VERSION, helpers, inside
