"""What the probes of family ``tiled`` are about, in the user's words."""

from __future__ import annotations

TILED = "documented, for models with very long sequences"
API = {
    "mlp": f"TiledMLP.apply(fn, module, x, shards, compute_params): {TILED}",
    "compute": f"sequence_tiled_compute(…) or SequenceTiledCompute.apply(…), which it wraps: {TILED}",
    "compute_loss": f"sequence_tiled_compute(…) or SequenceTiledCompute.apply(…) with a loss: {TILED}",
    "fused_logits_loss": f"TiledFusedLogitsLoss.apply(fn, module, x, y, mask, shards, …): {TILED}",
    "loss": "TiledLoss.apply(loss_fn, logits, vocab_size, shift_labels, shards): kept as an older version until "
    "0.19.7, then removed; TiledFusedLogitsLoss replaces it",
    "fpdt_ffn": "FPDT_FFN.apply(x, w1, b1, w2, b2, add_bias, chunk_size): for Megatron-DeepSpeed's FPDT, not "
    "documented by itself; TiledMLP is the general one",
    "fpdt_logits_loss": "FPDT_LogitsLoss.apply(lm_output, labels, weights, rank, size, group, chunks): for "
    "Megatron-DeepSpeed's FPDT, not documented by itself; TiledFusedLogitsLoss is the general one",
}
"""Per probe, what it calls, and whether that is the documented way."""

SUMMARY = {
    "mlp": "A gated feed-forward layer, tiled",
    "compute": "A gated feed-forward layer through the tiling of any function",
    "compute_loss": "An output projection and its cross entropy through the tiling of any function",
    "fused_logits_loss": "An output projection and its cross entropy, tiled together",
    "loss": "The cross entropy of logits, tiled",
    "fpdt_ffn": "A feed-forward layer in chunks",
    "fpdt_logits_loss": "An output projection and the loss of every token, in chunks, gathered from all ranks",
}
"""Per probe, one sentence for people."""
