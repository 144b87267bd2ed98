"""The rows of family ``tiled``: one case each, as the modes that it runs in and what differs from the defaults.

The defaults are those of the probe's class in ``shapes``. The axes are covered in pairs, not exhausted: of each probe
first the default suite, then what only the full one has. Nothing here imports torch.
"""

from __future__ import annotations

from jobs.probes.case import ALL, EAGER, TRACED, Rows

SUM, MEAN, BALANCED = {"reduction": "sum"}, {"reduction": "mean"}, {"reduction": "balanced"}
HALF, DOUBLE, BRAIN = {"dtype": "float16"}, {"dtype": "float64"}, {"dtype": "bfloat16"}
IN_MODULE, AS_TENSORS = {"passed": "module"}, {"passed": "tensors"}
FUNCTION = {"entry": "function"}

MLP: Rows = (
    (ALL, {}),
    (EAGER, {**DOUBLE, "batch": 2, "bias": "present"}),
    (EAGER, {**BRAIN, "batch": 3, "tokens": 5, "shards": 2}),
    (EAGER, {**HALF, "shards": 1, "tied": "yes"}),
    (EAGER, {"tokens": 5, "shards": 4, "bias": "present", "loss": "square"}),
    (EAGER, {"tokens": 3, "shards": 5, "batch": 2, "loss": "scaled"}),
    (EAGER, {"batch": 2, "cotangent": "transposed"}),
    (EAGER, {"batch": 2, "input": "transposed", "bias": "present"}),
    (EAGER, {"batch": 3, "input": "expanded", "loss": "shared"}),
    (EAGER, {"batch": 2, "cotangent": "expanded", **DOUBLE, "input": "offset"}),
    (EAGER, {"loss": "accumulate", "batch": 2, "tied": "yes"}),
    (EAGER, {"loss": "forward_only", "bias": "present"}),
    (EAGER, {"frozen": "x"}),
    (EAGER, {"frozen": "parameters", "batch": 2}),
    (EAGER, {"frozen": "up", "bias": "present", **DOUBLE}),
    (EAGER, {"listed": "none"}),
    (TRACED, {"wrap": "layer", "batch": 2}),
    (EAGER, {"wrap": "checkpoint", "bias": "present"}),
)
MORE_MLP: Rows = (
    (EAGER, {"rank": 2, "tokens": 7, "shards": 3}),
    (EAGER, {**DOUBLE}),
    (EAGER, {**HALF}),
    (EAGER, {**BRAIN}),
    *((EAGER, {**dtype, "loss": "square"}) for dtype in ({}, DOUBLE, HALF, BRAIN)),
    (ALL, {"loss": "square", "bias": "present"}),
    (TRACED, {"loss": "sum", "tied": "yes", "tokens": 5}),
    (TRACED, {**DOUBLE, "frozen": "x", "wrap": "layer"}),
    (EAGER, {"shards": 8}),
    (EAGER, {"shards": 12, **DOUBLE, "bias": "present"}),
    (EAGER, {"tokens": 1, "shards": 1, "batch": 3}),
    (EAGER, {"tokens": 1, "shards": 4, "loss": "square"}),
    (EAGER, {"batch": 3, "shards": 3, **BRAIN, "tied": "yes", "loss": "square"}),
    (EAGER, {"batch": 2, "tokens": 6, **HALF, "bias": "present", "loss": "shared"}),
    (EAGER, {"batch": 2, "tokens": 6, "shards": 4, "loss": "accumulate", **DOUBLE}),
    (EAGER, {"input": "offset", "batch": 2, "tokens": 5, "loss": "square"}),
    (EAGER, {"input": "transposed", "cotangent": "transposed", "batch": 2, **DOUBLE, "tied": "yes"}),
    (EAGER, {"loss": "forward_only", "frozen": "x", "batch": 2}),
    (EAGER, {"frozen": "gate", "tied": "yes", "loss": "square"}),
    (EAGER, {"rank": 2, "bias": "present", **DOUBLE, "cotangent": "transposed"}),
    (EAGER, {"wrap": "checkpoint", "batch": 2, "loss": "accumulate", **DOUBLE}),
    (EAGER, {"wrap": "layer", **BRAIN, "bias": "present", "loss": "scaled"}),
)
COMPUTE: Rows = (
    (EAGER, {}),
    (EAGER, {**FUNCTION, "batch": 2, "bias": "present"}),
    (EAGER, {**DOUBLE, **AS_TENSORS, "batch": 3, "loss": "square"}),
    (EAGER, {"tokens": 5, **FUNCTION, "loss": "square"}),
    (EAGER, {"tokens": 3, "shards": 5, "batch": 2}),
    (EAGER, {"batch": 2, "input": "transposed", "cotangent": "transposed", "bias": "present"}),
    (EAGER, {"frozen": "x"}),
    (EAGER, {"frozen": "parameters", "batch": 2, **DOUBLE}),
    (EAGER, {"listed": "none", **DOUBLE}),
    (EAGER, {**BRAIN, "batch": 2, "tokens": 6, "tied": "yes"}),
    (EAGER, {"loss": "accumulate", "shards": 1}),
    (EAGER, {"loss": "forward_only", "batch": 2}),
)
MORE_COMPUTE: Rows = (
    (ALL, {"wrap": "layer", "batch": 2, "loss": "square"}),
    (EAGER, {"widening": "yes"}),
    (EAGER, {"frozen": "x", **AS_TENSORS, "bias": "present"}),
    (EAGER, {"frozen": "up", "batch": 3, **FUNCTION, "loss": "scaled"}),
    (EAGER, {**HALF, "shards": 8, "bias": "present", "loss": "shared"}),
    (EAGER, {"input": "expanded", "tokens": 6, "shards": 3, "batch": 3}),
    (EAGER, {"input": "offset", "cotangent": "expanded", **DOUBLE, **FUNCTION}),
    (EAGER, {"tokens": 7, "shards": 3, "batch": 2, "loss": "accumulate", "tied": "yes"}),
    (EAGER, {"tokens": 6, "shards": 4, "batch": 3, **BRAIN, **AS_TENSORS}),
    (EAGER, {"wrap": "checkpoint", "bias": "present"}),
)
COMPUTE_LOSS: Rows = (
    (TRACED, {**MEAN}),
    (EAGER, {**MEAN, "loss": "weighted", "bias": "present"}),
    (EAGER, {**SUM, "loss": "weighted"}),
    (EAGER, {**SUM, "loss": "square", **FUNCTION}),
    (EAGER, {**MEAN, "batch": 2, "loss": "square", **DOUBLE}),
    (EAGER, {**SUM, "batch": 3, "labels": "uneven", **AS_TENSORS}),
    (EAGER, {**BALANCED, "labels": "shard", **FUNCTION, "bias": "present"}),
    (EAGER, {**BALANCED, "labels": "few", "batch": 2, "loss": "square"}),
    (EAGER, {**MEAN, "labels": "none"}),
    (EAGER, {**SUM, "labels": "none", "batch": 2, "tied": "yes"}),
    (EAGER, {**BALANCED, "tokens": 5, "labels": "uneven", "tied": "yes", "loss": "weighted"}),
    (EAGER, {**MEAN, "tokens": 3, "shards": 5}),
    (EAGER, {**MEAN, "unshard": 1}),
    (EAGER, {**MEAN, "loss": "accumulate", "shards": 2, "bias": "present"}),
)
MORE_COMPUTE_LOSS: Rows = (
    *((EAGER, {**SUM, **dtype, "loss": "weighted"}) for dtype in (DOUBLE, HALF, BRAIN)),
    (EAGER, {**MEAN, "labels": "uneven", "loss": "square"}),
    (EAGER, {**MEAN, "tokens": 5, "shards": 2, "batch": 2}),
    (EAGER, {**MEAN, "shards": 1, "labels": "uneven", **BRAIN}),
    (EAGER, {**SUM, "tokens": 5, "shards": 8, "loss": "square", "bias": "present"}),
    (EAGER, {**SUM, "frozen": "x", "labels": "uneven"}),
    (EAGER, {**SUM, "frozen": "parameters", "batch": 2, "loss": "shared"}),
    (EAGER, {**BALANCED, "batch": 3, "labels": "uneven", **DOUBLE, "loss": "weighted"}),
    (EAGER, {**BALANCED, "labels": "shard", **BRAIN, "bias": "present", "loss": "square"}),
    (EAGER, {**BALANCED, "labels": "few", **HALF}),
    (EAGER, {**MEAN, "loss": "forward_only", **AS_TENSORS, "bias": "present"}),
    (EAGER, {**SUM, "listed": "none", "batch": 2}),
    (TRACED, {**SUM, "wrap": "layer", "labels": "uneven"}),
    (EAGER, {**MEAN, "loss": "shared", "batch": 2, "tied": "yes"}),
    (EAGER, {**MEAN, "wrap": "checkpoint", "loss": "weighted"}),
)
FUSED_LOSS: Rows = (
    (EAGER, {**MEAN}),
    (EAGER, {**SUM, "batch": 2, "bias": "present"}),
    (EAGER, {**MEAN, "loss": "weighted", "bias": "present"}),
    (EAGER, {**SUM, "loss": "weighted", "frozen": "parameters"}),
    (EAGER, {**BALANCED, "labels": "uneven", **DOUBLE}),
    (EAGER, {**SUM, "labels": "shard", "mask": "given"}),
    (EAGER, {**SUM, "labels": "few", "batch": 2, "shards": 8}),
    (EAGER, {**MEAN, "labels": "none"}),
    (EAGER, {**SUM, "labels": "none", "bias": "present"}),
    (EAGER, {**MEAN, "tokens": 6, "frozen": "parameters"}),
    (EAGER, {**SUM, "tokens": 5, "labels": "uneven", "shards": 3, "tied": "yes"}),
    (EAGER, {**SUM, "frozen": "x"}),
    (EAGER, {**SUM, "loss": "forward_only"}),
    (EAGER, {**SUM, "loss": "accumulate", "frozen": "parameters", "batch": 2}),
    (EAGER, {**MEAN, "batch": 2, "input": "transposed", "frozen": "parameters"}),
    (EAGER, {**SUM, "wrap": "layer", "bias": "present"}),
)
MORE_FUSED_LOSS: Rows = (
    (EAGER, {**MEAN, "wrap": "checkpoint"}),
    (EAGER, {**MEAN, "tokens": 6, "loss": "square", **DOUBLE}),
    (EAGER, {**MEAN, "tokens": 3, "shards": 5, "frozen": "parameters", "bias": "present"}),
    (EAGER, {**MEAN, "labels": "uneven", "batch": 2, "frozen": "parameters"}),
    (EAGER, {**MEAN, "shards": 1, "tied": "yes", **BRAIN}),
    (EAGER, {**SUM, "shards": 12, "batch": 2, **HALF}),
    (EAGER, {**SUM, "batch": 3, "mask": "given", "labels": "uneven", "bias": "present"}),
    (EAGER, {**SUM, "loss": "weighted", **BRAIN, "labels": "uneven"}),
    (EAGER, {**SUM, "loss": "shared", "batch": 2}),
    (EAGER, {**SUM, "loss": "square", "frozen": "head_bias", "bias": "present"}),
    (EAGER, {**BALANCED, "labels": "shard", "frozen": "parameters"}),
    (EAGER, {**SUM, "listed": "none"}),
    (EAGER, {**SUM, "input": "offset", "frozen": "parameters"}),
    (EAGER, {**SUM, "input": "expanded", "batch": 3, "tied": "yes"}),
    (TRACED, {**SUM, "frozen": "parameters", "labels": "uneven", "wrap": "layer"}),
)
LOSS: Rows = (
    (EAGER, {}),
    (EAGER, {"loss": "weighted", **DOUBLE}),
    (EAGER, {"labels": "uneven", "loss": "square"}),
    (EAGER, {"labels": "shard"}),
    (EAGER, {"tokens": 7, "shards": 3, "loss": "weighted", **BRAIN}),
    (EAGER, {"batch": 2}),
)
MORE_LOSS: Rows = (
    (EAGER, {"labels": "none"}),
    (EAGER, {"labels": "few", "shards": 2, "loss": "shared"}),
    (EAGER, {"shards": 1, "labels": "uneven"}),
    (EAGER, {"tokens": 5, "shards": 4}),
    (EAGER, {"shards": 8, **HALF}),
    (EAGER, {"loss": "accumulate", "input": "transposed", "shards": 2}),
    (EAGER, {"loss": "forward_only", "labels": "uneven"}),
    (EAGER, {"wrap": "layer", **DOUBLE, "labels": "shard"}),
    (TRACED, {"loss": "weighted", "shards": 2}),
)
FPDT_FFN: Rows = (
    (EAGER, {}),
    (EAGER, {**DOUBLE, "batch": 2, "loss": "square", "wrap": "layer"}),
    (EAGER, {"bias": "returned", "batch": 2, "wrap": "layer"}),
    (EAGER, {"frozen": "x"}),
)
MORE_FPDT_FFN: Rows = (
    (EAGER, {"loss": "accumulate", "shards": 2}),
    (EAGER, {"shards": 1, **BRAIN, "wrap": "layer"}),
    (EAGER, {"shards": 8, **HALF, "batch": 3}),
    (EAGER, {"cotangent": "transposed", "batch": 2, "input": "transposed", "wrap": "layer"}),
    (EAGER, {"frozen": "parameters"}),
    (EAGER, {"loss": "forward_only", "batch": 2}),
    (EAGER, {"loss": "scaled", "frozen": "second_bias", "wrap": "layer"}),
    (EAGER, {"tokens": 7, "shards": 3}),
)
FPDT_LOGITS_LOSS: Rows = (
    (EAGER, {}),
    (EAGER, {"batch": 2, "loss": "square", **DOUBLE}),
    (EAGER, {"part": "whole", "loss": "forward_only"}),
    (EAGER, {"labels": "uneven"}),
    (EAGER, {"labels": "uneven", "vocabulary": "wide"}),
    (EAGER, {"sp": 2, "batch": 2}),
)
MORE_FPDT_LOGITS_LOSS: Rows = (
    (EAGER, {"logits": "large"}),
    (EAGER, {"shards": 1, **BRAIN, "batch": 2}),
    (EAGER, {"shards": 8, "loss": "sum", **HALF}),
    (EAGER, {"loss": "accumulate", "vocabulary": "wide"}),
    (EAGER, {"frozen": "x"}),
    (EAGER, {"frozen": "head", "cotangent": "transposed", "batch": 2}),
    (EAGER, {"part": "whole", "loss": "forward_only", "sp": 4, "batch": 2}),
    (EAGER, {"tokens": 7, "shards": 3}),
)
