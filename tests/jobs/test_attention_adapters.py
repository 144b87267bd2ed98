"""DeepSpeed's attentions by generation: what each is made and called with, and what is unsupported and why."""

from __future__ import annotations

import importlib.metadata
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from jobs.subject.base import RankContext, Subject, Unsupported
from jobs.subject.deepspeed import LAYER, SHARD, DeepSpeed
from jobs.subject.deepspeed.streams import StandInAccelerator, StandInStream
from jobs.subject.deepspeed.ulysses import FPDT, ULYSSES

GROUP = object()
CONTEXT = RankContext(rank=3, world_size=4, transport="gloo", sp_size=2, sp_rank=1, group=GROUP, ranks=(2, 3))
EVEN: dict[str, Any] = {"core": "core", "layout": "bshd", "heads": 4, "kv_heads": 2}
UNEVEN: dict[str, Any] = {"core": "core", "layout": "bshd", "heads": 6, "kv_heads": 3}
HF: dict[str, Any] = {"core": "core", "heads": 8, "kv_heads": 2, "features": 4, "batch": 3}
CHUNKS: dict[str, Any] = {"heads": 4, "kv_heads": 2, "features": 16, "tokens": 6, "chunks": 3}


class Made:
    """An attention that notes how it was made and called."""

    log: list[Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def attention_of(generation: str, log: list[Any]) -> type[Made]:
    class Oldest(Made):
        def __init__(self, local_attention: Any, group: Any, scatter_idx: int = 2, gather_idx: int = 0) -> None:
            log.append(("made", local_attention, group, scatter_idx, gather_idx))

        def forward(self, query: Any, key: Any, value: Any, *args: Any) -> Any:
            log.append(("called", query, key, value, *args))

    class Overlapping(Made):
        def __init__(
            self, local_attention: Any, group: Any, scatter_idx: int = 2, gather_idx: int = 0, sp_stream: Any = None
        ) -> None:
            log.append(("made", local_attention, group, scatter_idx, gather_idx))
            if sp_stream is not None:
                self.dafult_stream = sys.modules[LAYER].__dict__["get_accelerator"]().default_stream()

        def forward(self, query: Any, key: Any, value: Any, batch_dim_idx: int, *args: Any, **kwargs: Any) -> Any:
            log.append(("called", query, key, value, batch_dim_idx, *args))

    class Rotary(Overlapping):
        def forward(
            self, query: Any, key: Any, value: Any, batch_dim_idx: int, rotary_pos_emb: Any = None, *args: Any
        ) -> Any:
            log.append(("called", query, key, value, batch_dim_idx, rotary_pos_emb))

    class Counting(Rotary):
        def __init__(
            self, local_attention: Any, group: Any, scatter_idx: int = 2, gather_idx: int = 0, sp_stream: Any = None,
            num_kv_heads: Any = None,
        ) -> None:  # fmt: skip
            log.append(("made", local_attention, group, scatter_idx, gather_idx, num_kv_heads))

    class Strange(Made):
        def __init__(self, config: Any, local_attention: Any, group: Any, mesh: Any) -> None:
            log.append("made")

    return {
        "0.14.2": Oldest, "0.14.5": Overlapping, "0.15.4": Overlapping, "0.16.1": Rotary, "0.19.7": Counting,
        "strange": Strange,
    }[generation]  # fmt: skip


@pytest.fixture
def log() -> list[Any]:
    return []


@pytest.fixture
def adapter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, log: list[Any]) -> DeepSpeed:
    layer, shard = ModuleType(LAYER), ModuleType(SHARD)
    layer.__dict__["DistributedAttention"] = attention_of(request.param, log)
    layer.__dict__["get_accelerator"] = lambda: SimpleNamespace(default_stream=lambda: None, name="cpu")
    if request.param not in ("0.14.2", "0.14.5"):
        layer.__dict__["uneven_heads_all2all"] = lambda: None
    if request.param in ("0.15.4", "0.16.1"):
        layer.__dict__["set_num_kv_heads"] = shard.__dict__["set_num_kv_heads"] = lambda n: log.append(("noted", n))
    monkeypatch.setitem(sys.modules, LAYER, layer)
    monkeypatch.setitem(sys.modules, SHARD, shard)
    return DeepSpeed()


def generation(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("adapter", names, indirect=True)


@generation("0.14.2")
def test_0_14_2_is_called_without_a_batch_dimension(adapter: DeepSpeed, log: list[Any]) -> None:
    adapter.distributed_attention(CONTEXT, **EVEN)("q", "k", "v")
    assert log == [("made", "core", GROUP, 2, 1), ("called", "q", "k", "v")]
    for more, why in (
        ({"rotary": True}, "rotary_pos_emb"),
        ({"overlap": "stand_in"}, "sp_stream"),
        ({"told": True}, "num_kv_heads"),
    ):
        with pytest.raises(Unsupported, match=why):
            adapter.distributed_attention(CONTEXT, **EVEN, **more)
    with pytest.raises(Unsupported, match="uneven_heads_all2all"):
        adapter.distributed_attention(CONTEXT, **UNEVEN)


@generation("0.14.5", "0.15.4")
def test_from_0_14_5_on_the_batch_dimension_is_named(adapter: DeepSpeed, log: list[Any]) -> None:
    adapter.distributed_attention(CONTEXT, **{**EVEN, "layout": "sbhd"})("q", "k", "v")
    adapter.distributed_attention(CONTEXT, **EVEN, gather="zero")("q", "k", "v")
    assert log == [
        ("made", "core", GROUP, 2, 0),
        ("called", "q", "k", "v", 1),
        ("made", "core", GROUP, 2, 0),
        ("called", "q", "k", "v", 0),
    ]


@generation("0.14.5")
def test_fewer_key_heads_than_ranks_reach_every_generation_which_has_to_refuse_them(adapter: DeepSpeed) -> None:
    adapter.distributed_attention(CONTEXT, **{**EVEN, "kv_heads": 1})


@generation("0.15.4")
def test_until_0_19_6_heads_are_stated_once_for_the_process_and_before_every_call(
    adapter: DeepSpeed, log: list[Any]
) -> None:
    call = adapter.distributed_attention(CONTEXT, **UNEVEN, told=True)
    call("q", "k", "v")
    call("q", "k", "v")
    noted = ("noted", 3)
    assert log[1:] == [noted, ("called", "q", "k", "v", 0), noted, ("called", "q", "k", "v", 0)]


@generation("0.19.7")
def test_from_0_19_7_on_heads_are_stated_to_the_constructor(adapter: DeepSpeed, log: list[Any]) -> None:
    adapter.distributed_attention(CONTEXT, **UNEVEN)
    adapter.distributed_attention(CONTEXT, **UNEVEN, told=True)
    assert log == [("made", "core", GROUP, 2, 1, None), ("made", "core", GROUP, 2, 1, 3)]


@generation("0.16.1")
def test_a_rotary_embedding_follows_the_batch_dimension(adapter: DeepSpeed, log: list[Any]) -> None:
    adapter.distributed_attention(CONTEXT, **EVEN, rotary=True)("q", "k", "v", "cos", "sin")
    assert log[1:] == [("called", "q", "k", "v", 0, ("cos", "sin"))]


@generation("0.14.5")
def test_overlapping_has_streams_from_the_call_until_the_reset(adapter: DeepSpeed) -> None:
    layer: Any = sys.modules[LAYER]
    own = layer.get_accelerator
    call = adapter.distributed_attention(CONTEXT, **EVEN, overlap="stand_in")
    assert layer.get_accelerator is own
    for _ in range(2):
        call("q", "k", "v")
        assert isinstance(layer.get_accelerator().current_stream(), StandInStream)
        assert layer.get_accelerator().name == "cpu"
        adapter.reset()
        assert layer.get_accelerator is own


@generation("strange")
def test_an_unknown_signature_is_unsupported_and_named(adapter: DeepSpeed, log: list[Any]) -> None:
    with pytest.raises(Unsupported, match=r"DistributedAttention\(config.*no known signature"):
        adapter.distributed_attention(CONTEXT, **EVEN)
    assert log == []


@generation("0.16.1")
def test_a_class_that_is_gone_is_unsupported(adapter: DeepSpeed) -> None:
    del sys.modules[LAYER].__dict__["DistributedAttention"]
    with pytest.raises(Unsupported, match=f"{LAYER} has no DistributedAttention"):
        adapter.distributed_attention(CONTEXT, **EVEN)


def test_a_stream_that_stands_in_waits_for_streams_alone_and_can_be_relieved_of_its_buffers() -> None:
    stream = StandInStream()
    stream.wait_stream(StandInAccelerator(None).default_stream())
    with pytest.raises(TypeError, match="not for NoneType"):
        stream.wait_stream(None)
    stream.activation_buffer_list.append("held")
    del stream.activation_buffer_list
    assert stream.activation_buffer_list == []


# -- Hugging Face's models -----------------------------------------------------------------------------------------


def ulysses(monkeypatch: pytest.MonkeyPatch, log: list[Any], demanded: bool) -> DeepSpeed:
    """An attention for Hugging Face's models whose lengths must be given, or need not be."""

    class Attention:
        def __init__(self, attn: Any, batch_size: int, attn_head_count: int, attn_head_size: int, kv_head_count: int,
                     num_hidden_layers: int, process_group: Any, seq_length_is_variable: bool = False,
                     local_seq_length: Any = None, global_seq_length: Any = None) -> None:  # fmt: skip
            sizes = (batch_size, attn_head_count, attn_head_size, kv_head_count, num_hidden_layers)
            needed = importlib.metadata.version("transformers")
            log.append(
                (attn, sizes, process_group, seq_length_is_variable, local_seq_length, global_seq_length, needed)
            )

        def __call__(self, module: Any, q: Any, k: Any, v: Any, mask: Any, **more: Any) -> Any:
            log.append((module.num_key_value_groups, q, k, v, mask, more))
            return "y", "weights"

    class Demanding(Attention):
        def __init__(self, attn: Any, local_seq_length: int, global_seq_length: int, batch_size: int,
                     attn_head_count: int, attn_head_size: int, kv_head_count: int, num_hidden_layers: int,
                     process_group: Any, seq_length_is_variable: bool = False) -> None:  # fmt: skip
            super().__init__(attn, batch_size, attn_head_count, attn_head_size, kv_head_count, num_hidden_layers,
                             process_group, seq_length_is_variable, local_seq_length, global_seq_length)  # fmt: skip

    module, torch = ModuleType(ULYSSES), ModuleType("torch")
    module.__dict__["UlyssesSPAttentionHF"] = Demanding if demanded else Attention
    torch.__dict__["nn"] = SimpleNamespace(Module=SimpleNamespace)
    monkeypatch.setitem(sys.modules, ULYSSES, module)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return DeepSpeed()


@pytest.mark.parametrize(("demanded", "variable"), [(False, (None, None)), (True, (64, 128))])
def test_ulysses_is_made_by_keywords_and_told_lengths_where_they_are_fixed_or_demanded(
    monkeypatch: pytest.MonkeyPatch, log: list[Any], demanded: bool, variable: Any
) -> None:
    adapter = ulysses(monkeypatch, log, demanded)
    original = importlib.metadata.version
    adapter.ulysses_attention(CONTEXT, **HF, tokens=5)
    assert adapter.ulysses_attention(CONTEXT, **HF, tokens=None)("q", "k", "v", "at") == "y"
    sizes = (3, 8, 4, 2, 1)
    assert log[0][:6] == ("core", sizes, GROUP, False, 5, 10)
    assert log[1][:6] == ("core", sizes, GROUP, True, *variable)
    assert log[2] == (4, "q", "k", "v", None, {"position_ids": "at"})
    assert importlib.metadata.version is original


def test_packages_other_than_transformers_are_as_absent_as_they_were(
    monkeypatch: pytest.MonkeyPatch, log: list[Any]
) -> None:
    adapter = ulysses(monkeypatch, log, demanded=False)

    def picky(**made: Any) -> None:
        importlib.metadata.version("no-such-package")

    monkeypatch.setitem(sys.modules[ULYSSES].__dict__, "UlyssesSPAttentionHF", lambda **made: picky(**made))
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        adapter.ulysses_attention(CONTEXT, **HF, tokens=5)


def test_where_there_is_no_such_module_that_is_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    with pytest.raises(Unsupported, match=f"there is no {ULYSSES}"):
        DeepSpeed().ulysses_attention(CONTEXT, **HF, tokens=5)
    with pytest.raises(Unsupported, match=f"there is no {FPDT}"):
        DeepSpeed().chunked_attention(CONTEXT, **CHUNKS)


# -- by chunks -----------------------------------------------------------------------------------------------------


def test_attention_by_chunks_needs_a_package_and_a_gpu_and_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[Any] = []

    class Chunked:
        def __init__(self, config: Any, *weights: Any, **more: Any) -> None:
            log.append((vars(config), weights, more))

        def __call__(self, x: Any, *nothing: Any, cpu_offloading: bool = True) -> Any:
            log.append((x, nothing, cpu_offloading))
            return "y", None

    module = ModuleType(FPDT)
    monkeypatch.setitem(sys.modules, FPDT, module)
    with pytest.raises(Unsupported, match="has no FPDT_Attention"):
        DeepSpeed().chunked_attention(CONTEXT, **CHUNKS)
    module.__dict__.update(FPDT_Attention=Chunked, _flash_attn_forward=None, _flash_attn_backward=None)
    with pytest.raises(Unsupported, match="flash-attn"):
        DeepSpeed().chunked_attention(CONTEXT, **CHUNKS)
    module.__dict__.update(_flash_attn_forward=print, _flash_attn_backward=print)
    with pytest.raises(Unsupported, match="needs a GPU"):
        DeepSpeed().chunked_attention(CONTEXT, **CHUNKS)
    on_gpu = RankContext(rank=0, world_size=2, transport="nccl", sp_size=2, sp_rank=0, group=GROUP, ranks=(0, 1))
    assert DeepSpeed().chunked_attention(on_gpu, **CHUNKS)("x", "w", "b", "o") == "y"
    config, weights, more = log[0]
    assert config["num_key_value_heads"] == 2
    assert (config["hidden_size"], config["kv_channels"]) == (64, 16)
    assert weights == ("w", "b", "o", None, GROUP)
    # 6 tokens on each of 2 ranks, in 3 chunks of the whole sequence.
    assert (more["chunk_size"], more["gather_idx"], more["scatter_idx"]) == (4, 1, 2)
    assert log[1] == ("x", (None, None, None), False)


def test_a_subject_without_attention_says_so() -> None:
    subject = Subject()
    with pytest.raises(Unsupported, match="no distributed attention"):
        subject.distributed_attention(CONTEXT, **EVEN)
    with pytest.raises(Unsupported, match="no attention for Hugging Face"):
        subject.ulysses_attention(CONTEXT, **HF, tokens=1)
    with pytest.raises(Unsupported, match="no attention by chunks"):
        subject.chunked_attention(CONTEXT, **CHUNKS)
