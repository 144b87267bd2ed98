"""What scripts are written from, made by hand: checkouts of each generation of DeepSpeed's API, by names alone."""

from __future__ import annotations

import functools
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.contract import CaseInfo
from jobs.probes.handed import handed
from service.evidence import ErrorInfo, Evidence, RankOutcome, TensorEvidence
from service.policy import load_policy
from service.repro import Given
from service.repro.handed import Ranks, parse
from service.repro.source import Source
from service.store.origin import Origin
from tests.workers.cli.rows import row

SEQUENCE_TILES = """
def sequence_tiled_compute(fn): pass
class SequenceTiledCompute: pass
class TiledMLP: pass
class TiledFusedLogitsLoss: pass
class TiledLoss: pass
class UlyssesSPDataLoaderAdapter:
    def shards(self): dist.all_gather([], None)
class UlyssesSPFwdLossBwdWithLogits: pass
class UlyssesSPAttentionHF:
    def __init__(self, attn, batch_size, local_seq_length, global_seq_length): pass
"""
FILES: dict[str, dict[str, str]] = {
    "gather index": {
        "deepspeed/sequence/layer.py": """
def single_all_to_all(input, scatter_idx, gather_idx, group): pass
class _SeqAllToAll: pass
class DistributedAttention:
    def __init__(self, local_attention, sequence_process_group, scatter_idx=2, gather_idx=0): pass
    def forward(self, query, key, value, *args): pass
"""
    },
    "process heads": {
        "deepspeed/comm/torch.py": "try:\n    def build_shm_op(): pass\nexcept ImportError: pass\n",
        "deepspeed/sequence/layer.py": """
from deepspeed.module_inject.tp_shard import set_num_kv_heads
def uneven_heads_all2all(): pass
def single_all_to_all(input, scatter_idx, gather_idx, batch_dim_idx, group, async_op=False): pass
class _SeqAllToAll: pass
class _DimZeroAllToAll: pass
class DistributedAttention:
    def __init__(self, local_attention, sequence_process_group, scatter_idx=2, gather_idx=0, sp_stream=None):
        self.dafult_stream = None
    def forward(self, query, key, value, batch_dim_idx, rotary_pos_emb=None, *args): pass
""",
        "deepspeed/runtime/sequence_parallel/ulysses_sp.py": SEQUENCE_TILES,
        "deepspeed/sequence/fpdt_layer.py": "class FPDT_FFN: pass\nclass FPDT_LogitsLoss: pass\n",
        "deepspeed/sequence/cross_entropy.py": "def vocab_sequence_parallel_cross_entropy(): dist.all_gather(0)\n",
    },
    "keyword heads": {
        "deepspeed/sequence/layer.py": """
def register_all_to_all_group(group): pass
def _dim_zero_all_to_all(group, x): pass
def uneven_heads_all2all(): pass
def single_all_to_all(input, scatter_idx, gather_idx, batch_dim_idx, group, num_kv_heads=None): pass
class _SeqAllToAll: pass
class DistributedAttention:
    def __init__(self, local, group, scatter_idx=2, gather_idx=0, sp_stream=None, num_kv_heads=None): pass
    def forward(self, query, key, value, batch_dim_idx, rotary_pos_emb=None): pass
""",
        "deepspeed/runtime/sequence_parallel/ulysses_sp.py": SEQUENCE_TILES,
        "deepspeed/sequence/fpdt_layer.py": "class FPDT_FFN: pass\nclass FPDT_LogitsLoss: pass\n",
        "deepspeed/sequence/cross_entropy.py": (
            "def vocab_sequence_parallel_cross_entropy(): pass\ndef vocab_parallel_cross_entropy(): pass\n"
        ),
        "deepspeed/compile/passes/sp_compile.py": "def apply_autosp(): pass\ndef prepare_autosp_inputs(): pass\n",
        "deepspeed/compile/custom_ops/all_to_all.py": (
            "def all_to_all(): pass\ndef all_gather_sequence(): pass\ndef reduce_scatter_sequence(): pass\n"
        ),
    },
}
"""Per generation, what its files have at their top."""


@functools.cache
def ranks_of(case_id: str, world: int) -> Ranks:
    """What the ranks hand in, after a way through JSON."""
    return parse(json.loads(json.dumps(handed(case_id, world))))


def source(folder: Path, files: Mapping[str, str]) -> Source:
    """A packed checkout of these files."""
    folder.mkdir(exist_ok=True)
    tar = folder / "checkout.tar"
    with tarfile.open(tar, "w") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return Source(tar, "deepspeed==0.0")


def given(case: CaseInfo, mode: str, world: int, files: Source, answered: bool = True, **changes: Any) -> Given:
    """A cell of the case; its ranks answered, or raised in the backward."""
    own = case.family != "torch-itself"
    said = {"label": "deepspeed==0.0" if own else "torch", "subject": "deepspeed" if own else "torch"}
    cell = {"case": case.id, "mode": mode, "family": case.family, "world_size": world, "verdict": "mismatch"}
    outcome = RankOutcome(0, "ok") if answered else RankOutcome(0, "raised", "backward", ErrorInfo("ValueError", "no"))
    tensors = (TensorEvidence("grad", "x", 0, dtype=case.dtype, shape=(4,), expected_shape=(4,), numel=4),)
    return Given(
        row=row(**{**said, **cell, "detail": "gradient of x is wrong on every rank: " * 3, **changes}),
        case=case,
        evidence=Evidence(ranks=(outcome,), tensors=tensors),
        policy=load_policy(),
        origin=Origin("release", "0.0", {}),
        needs=("torch===2.11.0", "numpy", "setuptools<81"),
        without=("triton",),
        handed=ranks_of(case.id, world),
        source=files,
    )
