"""The parameters of a case of the model, and the tensors that follow from them. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jobs.contract import CaseInfo
from jobs.probes.case import TensorSpec, from_strings

LAYERS = 2
SYMBOLS, HIDDEN, INNER, FEATURES = 8, 8, 12, 4
"""What a token may be, the width between layers, that inside the feed-forward, and the features of one head."""
TOKENS = 3
"""Of one rank."""
NORM_EPS = 1e-6
ROTARY_BASE = 256.0
"""Of two features and their partners: angles are exact in any type, however they are worked out."""

KV_HEADS: dict[str, Callable[[int], int]] = {"same": lambda p: 2 * p, "half": lambda p: p}
"""The key/value heads over all ranks, from the number of ranks; there are two query heads a rank."""

LEARNING_RATE, BETAS, ADAM_EPS = 2.0**-4, (0.9, 0.999), 2.0**-2
"""Of the one step. The last is larger than a gradient: beside a small one every update is the gradient's sign alone, so
that an element below the noise moves as far as any other one."""
STEP, MOMENT, ROOT = "step/", "moment/", "root/"
"""Before a parameter's name: what the optimiser added to it, its first moment, and the root of its second one."""

WEIGHT, ACTIVATION, NORM = 2.0**-4, 2.0**-3, 2.0**-3
"""Factors on drawn values of ±8, so that neither softmax nor norm saturates."""
DIFFERENCE = 2.0**-9
"""How far a central difference goes: the loss is no polynomial."""

DIMS = {
    "q_proj": ("query/gate", "head and feature", "input"),
    "q_bias": ("query/gate", "head and feature"),
    "k_proj": ("head and feature", "input"),
    "v_proj": ("head and feature", "input"),
    "o_proj": ("output", "head and feature"),
    "k_bias": ("head and feature",),
    "v_bias": ("head and feature",),
    "up_proj": ("inner", "input"),
    "down_proj": ("output", "inner"),
    "embed": ("symbol", "hidden"),
    "head": ("symbol", "hidden"),
}
"""The dimensions of a parameter, for where it is wrong; those of a norm are just ``hidden``."""


@dataclass(frozen=True)
class Decoder:
    """The parameters of one case.

    via     which of the subject's attentions: distributed (DistributedAttention) · ulysses (UlyssesSPAttentionHF)
    traced  what a traced mode traces: a layer at a time (layer), only the attention (attention), or all of it (model)
    layout  what the attention takes: bshd ([batch, sequence, heads, features]) · sbhd
    kv      key/value heads beside the query's: KV_HEADS
    gate    ``yes``: q_proj is twice as wide, and half of it is a gate after the attention
    bias    of q, k and v: none · qkv
    rotary  whether q and k are turned by their position in the whole sequence
    tied    whether the last projection is the embedding's weight
    loss    entropy (against drawn weights, over the group's tokens) · weighted (a random incoming gradient) · scaled ·
            shared (one activation, two losses) · accumulate (two micro-batches into one gradient) · forward_only
    frozen  ``embed``: the embedding needs no gradient · ``but_k_bias``: nothing needs one but the keys' biases, which
            add the same to every score of a row: their gradient is zero where nothing is turned by its position
    step    ``adam``: one step of it without weight decay follows
    """

    via: str = "distributed"
    traced: str = "layer"
    layout: str = "bshd"
    kv: str = "half"
    gate: str = "yes"
    mask: str = "causal"
    bias: str = "none"
    rotary: str = "no"
    tied: str = "no"
    dtype: str = "float32"
    loss: str = "entropy"
    frozen: str = "none"
    step: str = "none"
    batch: int = 1
    sp: int = 0

    def ranks(self, world_size: int) -> int:
        """The ranks of one sequence-parallel group."""
        return self.sp or world_size

    def heads(self, world_size: int) -> tuple[int, int]:
        """Query and key/value heads over all ranks of a group."""
        ranks = self.ranks(world_size)
        return 2 * ranks, KV_HEADS[self.kv](ranks)

    def layer(self, world_size: int) -> dict[str, tuple[int, ...]]:
        """The parameters of one layer and their shapes, in the order of its arguments."""
        query, keys = (count * FEATURES for count in self.heads(world_size))
        halves = 2 if self.gate == "yes" else 1
        shapes: dict[str, tuple[int, ...]] = {
            "norm_before": (HIDDEN,),
            "q_proj": (halves, query, HIDDEN),
            "k_proj": (keys, HIDDEN),
            "v_proj": (keys, HIDDEN),
            "o_proj": (HIDDEN, query),
            "norm_after": (HIDDEN,),
            "up_proj": (INNER, HIDDEN),
            "down_proj": (HIDDEN, INNER),
        }
        if self.bias == "qkv":
            shapes |= {"q_bias": (halves, query), "k_bias": (keys,), "v_bias": (keys,)}
        return shapes

    def weights(self, world_size: int) -> dict[str, tuple[int, ...]]:
        """Every parameter of the model and its shape, in the order of its arguments."""
        shapes: dict[str, tuple[int, ...]] = {"embed": (SYMBOLS, HIDDEN)}
        for index in range(LAYERS):
            shapes |= {f"layer{index}.{name}": shape for name, shape in self.layer(world_size).items()}
        shapes["norm"] = (HIDDEN,)
        if self.tied == "no":
            shapes["head"] = (SYMBOLS, HIDDEN)
        return shapes

    def batches(self) -> tuple[str, ...]:
        """What follows the names of the activations, per micro-batch."""
        return ("", "2") if self.loss == "accumulate" else ("",)

    def tensors(self, world_size: int, place: int) -> tuple[TensorSpec, ...]:
        """What the rank at ``place`` hands in: tokens as mixtures of symbols, weights, then cotangents."""
        whole = (self.batch, TOKENS, SYMBOLS)
        specs = [_spec(f"x{n}", self._role("x"), whole, ACTIVATION) for n in self.batches()]
        for name, shape in self.weights(world_size).items():
            factor = NORM if "norm" in name else ACTIVATION if name == "embed" else WEIGHT
            specs.append(_spec(name, self._role(name), shape, factor, shared=True))
        if self.loss != "forward_only":
            specs += [_spec(f"w{n}", "cotangent", whole, ACTIVATION) for n in self.batches()]
        return tuple(specs)

    def _role(self, name: str) -> str:
        still = not name.endswith("k_bias") if self.frozen == "but_k_bias" else name == self.frozen
        return "frozen" if still else "input"

    def dims(self, world_size: int) -> dict[str, tuple[str, ...]]:
        """The names of the dimensions of every tensor."""
        names = {name: DIMS.get(name.rpartition(".")[2], ("hidden",)) for name in self.weights(world_size)}
        stepped = (STEP, MOMENT, ROOT) if self.step == "adam" else ()
        after = {prefix + name: dims for prefix in stepped for name, dims in names.items()}
        activations = {f"{name}{n}": ("batch", "sequence", "symbol") for n in self.batches() for name in "xwy"}
        return names | after | activations


def params_of(case: CaseInfo) -> Decoder:
    """The typed parameters of a case of this family."""
    return from_strings(Decoder, case)


def _spec(name: str, role: str, shape: tuple[int, ...], factor: float, shared: bool = False) -> TensorSpec:
    return TensorSpec(name, role, shape, shape, factor=factor, step=DIFFERENCE, shared=shared)
