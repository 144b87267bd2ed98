"""DeepSpeed's attention for Hugging Face's models, and its attention by chunks, which needs a package and a GPU."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from jobs.subject.base import RankContext, Unsupported
from jobs.subject.deepspeed.core import Core, quiet
from jobs.subject.operations.attention import Attend

ULYSSES, HF_CLASS = "deepspeed.runtime.sequence_parallel.ulysses_sp", "UlyssesSPAttentionHF"
FPDT, FPDT_CLASS = "deepspeed.sequence.fpdt_layer", "FPDT_Attention"
KERNELS = ("_flash_attn_forward", "_flash_attn_backward")
PACKAGE = "transformers"
ANY_VERSION = "1000.0"
"""Later than whatever is asked for at least."""


class WrappedAttentions(Core):
    """The other probes of family ``attention``."""

    def load(self, root: str) -> None:
        """Import their modules too, so that not every rank has to. What they raise, whoever asks for them will see."""
        super().load(root)
        for name in (ULYSSES, FPDT):
            with contextlib.suppress(Exception), quiet():
                importlib.import_module(name)

    def ulysses_attention(
        self,
        ctx: RankContext,
        *,
        core: Any,
        heads: int,
        kv_heads: int,
        features: int,
        batch: int,
        tokens: int | None,
    ) -> Attend:
        """``UlyssesSPAttentionHF``, made by keywords: their order has changed."""
        import torch

        self.unit.context = ctx
        cls = getattr(_module(ULYSSES), HF_CLASS, None)
        if cls is None:
            raise Unsupported(f"{ULYSSES} has no {HF_CLASS}")
        made = {
            "attn": core,
            "batch_size": batch,
            "attn_head_count": heads,
            "attn_head_size": features,
            "kv_head_count": kv_heads,
            "num_hidden_layers": 1,
            "process_group": ctx.group,
            "seq_length_is_variable": tokens is None,
        }
        signature = inspect.signature(cls)
        made |= _lengths(signature, tokens, ctx.sp_size)
        try:
            signature.bind(**made)
        except TypeError as error:
            raise Unsupported(f"{ULYSSES}.{HF_CLASS}{signature} is of no known signature: {error}") from None
        with _package_installed():
            attention = cls(**made)
        # The layer that calls: it says how many query heads share a key head, and may be told otherwise.
        module = torch.nn.Module()
        module.num_key_value_groups = heads // kv_heads
        return lambda q, k, v, positions: attention(module, q, k, v, None, position_ids=positions)[0]

    def chunked_attention(
        self, ctx: RankContext, *, heads: int, kv_heads: int, features: int, tokens: int, chunks: int
    ) -> Attend:
        """``FPDT_Attention``, everything on the GPU."""
        self.unit.context = ctx
        module = _module(FPDT)
        cls = getattr(module, FPDT_CLASS, None)
        if cls is None:
            raise Unsupported(f"{FPDT} has no {FPDT_CLASS}")
        if any(getattr(module, kernel, None) is None for kernel in KERNELS):
            raise Unsupported(f"{FPDT}.{FPDT_CLASS} needs the package flash-attn, which is not in this runtime")
        if ctx.device != "cuda":
            raise Unsupported(f"{FPDT}.{FPDT_CLASS} needs a GPU, and this transport's tensors are on the {ctx.device}")
        config = SimpleNamespace(
            kv_channels=features,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            hidden_size=heads * features,
            attention_dropout=0.0,
        )
        chunk_size = tokens * ctx.sp_size // chunks

        def attend(x: Any, w_qkv: Any, b_qkv: Any, w_out: Any) -> Any:
            attention = cls(
                config, w_qkv, b_qkv, w_out, None, ctx.group, gather_idx=1, scatter_idx=2, chunk_size=chunk_size
            )
            return attention(x, None, None, None, cpu_offloading=False)[0]

        return attend


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        raise Unsupported(f"there is no {name}") from None


def _lengths(signature: inspect.Signature, tokens: int | None, ranks: int) -> dict[str, int]:
    """The local and the global length. Where they are asked for though they are variable, those of a longest batch."""
    names = ("local_seq_length", "global_seq_length")
    if tokens is None:
        demanded = [signature.parameters[name] for name in names if name in signature.parameters]
        if not any(parameter.default is inspect.Parameter.empty for parameter in demanded):
            return {}
        tokens = 64
    return dict(zip(names, (tokens, tokens * ranks), strict=True))


@contextlib.contextmanager
def _package_installed() -> Iterator[None]:
    """Have transformers be of any version where it is not installed: the class asks for no more of it."""
    original = importlib.metadata.version

    def version(distribution_name: str) -> str:
        try:
            return original(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != PACKAGE:
                raise
            return ANY_VERSION

    importlib.metadata.version = version
    try:
        yield
    finally:
        importlib.metadata.version = original
