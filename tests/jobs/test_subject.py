"""Finding adapters, and DeepSpeed's generations told apart by the names and parameters that each has."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jobs.subject import load_adapter
from jobs.subject.base import RankContext, Subject, Unsupported
from jobs.subject.deepspeed import LAYER, SHARD, Core, DeepSpeed

GROUP = object()
CONTEXT = RankContext(rank=3, world_size=4, transport="gloo", sp_size=2, sp_rank=1, group=GROUP, ranks=(2, 3))
EVEN: dict[str, Any] = {"layout": "sbhd", "scatter": "heads", "heads": 4}
UNEVEN: dict[str, Any] = {"layout": "bshd", "scatter": "sequence", "heads": 3}


def forward_0_14_2(ctx: Any, group: Any, x: Any, scatter_idx: int, gather_idx: int) -> None: ...


def forward_0_14_5(
    ctx: Any, group: Any, x: Any, scatter_idx: int, gather_idx: int, batch_dim_idx: int, stream: Any = None,
    handle: Any = None, type: Any = None, is_fwd: bool = True,  # noqa: A002
) -> None: ...  # fmt: skip


def forward_0_19_7(
    ctx: Any, group: Any, x: Any, scatter_idx: int, gather_idx: int, batch_dim_idx: int, stream: Any = None,
    handle: Any = None, type: Any = None, is_fwd: bool = True, num_kv_heads: Any = None,  # noqa: A002
) -> None: ...  # fmt: skip


class Work:
    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def wait(self) -> None:
        self.log.append("waited")


def layer(generation: str, log: list[Any]) -> ModuleType:
    """A sequence layer of one generation that notes how it is called instead of exchanging anything."""
    module = ModuleType(LAYER)

    def exchange_0_14_2(x: Any, scatter_idx: int, gather_idx: int, group: Any) -> Any:
        log.append(("single", x, scatter_idx, gather_idx, group))
        return x

    def asynchronous(x: Any, handle: Any, name: str) -> Any:
        handle[f"{name}_work"], handle[f"{name}_grad"] = Work(log), f"raw {x}"
        handle[f"{name}_post_all2all_func"] = lambda raw: f"finished {raw}"
        return "not finished"

    def exchange_0_14_5(
        x: Any, scatter_idx: int, gather_idx: int, batch_dim_idx: int, group: Any, async_op: bool = False,
        handle: Any = None, type: Any = None,  # noqa: A002
    ) -> Any:  # fmt: skip
        log.append(("single", x, scatter_idx, gather_idx, batch_dim_idx, group))
        return asynchronous(x, handle, type) if async_op else x

    def exchange_0_19_7(
        x: Any, scatter_idx: int, gather_idx: int, batch_dim_idx: int, group: Any, async_op: bool = False,
        handle: Any = None, type: Any = None, num_kv_heads: Any = None,  # noqa: A002
    ) -> Any:  # fmt: skip
        log.append(("single", x, scatter_idx, gather_idx, batch_dim_idx, group, num_kv_heads))
        return asynchronous(x, handle, type) if async_op else x

    class _SeqAllToAll:
        forward: Any = {"0.14.2": forward_0_14_2, "0.19.7": forward_0_19_7}.get(generation, forward_0_14_5)

        @staticmethod
        def apply(*arguments: Any) -> None:
            log.append(("apply", *arguments))

    class _DimZeroAllToAll:
        @staticmethod
        def apply(*arguments: Any) -> None:
            log.append(("dim0 function", *arguments))

    module.__dict__["_SeqAllToAll"] = _SeqAllToAll
    if generation == "0.14.2":
        module.__dict__["single_all_to_all"] = exchange_0_14_2
        return module
    module.__dict__["single_all_to_all"] = exchange_0_19_7 if generation == "0.19.7" else exchange_0_14_5
    if generation != "0.14.5":
        module.__dict__["uneven_heads_all2all"] = lambda: None
    if generation == "0.17":
        module.__dict__["_DimZeroAllToAll"] = _DimZeroAllToAll
    if generation == "0.19.7":
        module.__dict__["_dim_zero_all_to_all"] = lambda *arguments: log.append(("dim0 operator", *arguments))
    return module


@pytest.fixture
def log() -> list[Any]:
    return []


@pytest.fixture
def adapter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, log: list[Any]) -> DeepSpeed:
    shard = ModuleType(SHARD)

    def set_num_kv_heads(count: int) -> None:
        log.append(("noted", count))
        shard.__dict__["num_kv_heads"] = count

    shard.__dict__["set_num_kv_heads"] = set_num_kv_heads
    monkeypatch.setitem(sys.modules, LAYER, layer(request.param, log))
    monkeypatch.setitem(sys.modules, SHARD, shard)
    return DeepSpeed()


def generation(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("adapter", [name], indirect=True)


@generation("0.14.2")
def test_0_14_2_is_told_the_layout_by_the_dimension_to_gather(adapter: DeepSpeed, log: list[Any]) -> None:
    adapter.seq_head_exchange(CONTEXT, **EVEN)("x")
    adapter.single_all_to_all(CONTEXT, **EVEN, overlapped=False)("x")
    assert log == [("apply", GROUP, "x", 2, 0), ("single", "x", 2, 0, GROUP)]
    with pytest.raises(Unsupported, match="async_op"):
        adapter.single_all_to_all(CONTEXT, **EVEN, overlapped=True)
    with pytest.raises(Unsupported, match="uneven_heads_all2all"):
        adapter.seq_head_exchange(CONTEXT, **UNEVEN)
    with pytest.raises(Unsupported, match="neither _dim_zero_all_to_all nor _DimZeroAllToAll"):
        adapter.dim0_exchange(CONTEXT)


@generation("0.14.5")
def test_0_14_5_is_told_the_batch_dimension(adapter: DeepSpeed, log: list[Any]) -> None:
    adapter.seq_head_exchange(CONTEXT, **EVEN)("x")
    assert log == [("apply", GROUP, "x", 2, 0, 1)]
    with pytest.raises(Unsupported, match="uneven_heads_all2all"):
        adapter.seq_head_exchange(CONTEXT, **UNEVEN)


@generation("0.14.5")
def test_an_overlapped_exchange_is_finished_through_its_handle(adapter: DeepSpeed, log: list[Any]) -> None:
    finished: Any = adapter.single_all_to_all(CONTEXT, **EVEN, overlapped=True)("x")
    assert finished == "finished raw x"
    assert log == [("single", "x", 2, 0, 1, GROUP), "waited"]


@generation("0.17")
def test_0_17_notes_uneven_heads_for_the_process_and_reset_forgets_them(adapter: DeepSpeed, log: list[Any]) -> None:
    adapter.seq_head_exchange(CONTEXT, **EVEN)("x")
    adapter.seq_head_exchange(CONTEXT, **UNEVEN)("x")
    adapter.dim0_exchange(CONTEXT)("x")
    assert log == [
        ("apply", GROUP, "x", 2, 0, 1),
        ("noted", 3),
        ("apply", GROUP, "x", 1, 2, 0),
        ("dim0 function", GROUP, "x"),
    ]
    assert sys.modules[SHARD].__dict__["num_kv_heads"] == 3
    adapter.reset()
    assert "num_kv_heads" not in sys.modules[SHARD].__dict__


@generation("0.19.7")
def test_0_19_7_is_told_the_heads_in_every_call(adapter: DeepSpeed, log: list[Any]) -> None:
    adapter.seq_head_exchange(CONTEXT, **UNEVEN)("x")
    adapter.single_all_to_all(CONTEXT, **EVEN, overlapped=False)("x")
    adapter.dim0_exchange(CONTEXT)("x")
    assert log == [
        ("apply", GROUP, "x", 1, 2, 0, None, None, None, True, 3),
        ("single", "x", 2, 0, 1, GROUP, 4),
        ("dim0 operator", GROUP, "x"),
    ]


@generation("0.17")
def test_a_signature_that_is_not_known_is_unsupported_and_named(adapter: DeepSpeed) -> None:
    sequence = sys.modules[LAYER].__dict__
    right = sequence["single_all_to_all"]
    sequence["single_all_to_all"] = lambda x, scatter_idx, gather_idx, batch_dim_idx, ranks, group: x
    with pytest.raises(
        Unsupported, match=r"single_all_to_all\(x, scatter_idx, gather_idx, batch_dim_idx, ranks, group\)"
    ):
        adapter.seq_head_exchange(CONTEXT, **EVEN)
    sequence["single_all_to_all"] = right

    def reversed_order(ctx: Any, group: Any, x: Any, gather_idx: int, scatter_idx: int) -> None: ...

    sequence["_SeqAllToAll"].forward = reversed_order
    with pytest.raises(Unsupported, match=r"_SeqAllToAll\.forward.*gather_idx.* no known signature"):
        adapter.seq_head_exchange(CONTEXT, **EVEN)


@generation("0.19.7")
def test_a_parameter_that_is_new_and_need_not_be_given_changes_nothing(adapter: DeepSpeed, log: list[Any]) -> None:
    sequence = sys.modules[LAYER].__dict__
    known = sequence["single_all_to_all"]

    def newer(
        x: Any, scatter_idx: int, gather_idx: int, batch_dim_idx: int, group: Any, async_op: bool = False,
        handle: Any = None, type: Any = None, num_kv_heads: Any = None, fast: bool = False,  # noqa: A002
    ) -> Any:  # fmt: skip
        return known(x, scatter_idx, gather_idx, batch_dim_idx, group, async_op, handle, type, num_kv_heads)

    sequence["single_all_to_all"] = newer
    adapter.single_all_to_all(CONTEXT, **EVEN, overlapped=False)("x")
    assert log == [("single", "x", 2, 0, 1, GROUP, 4)]


def test_what_a_subject_has_not_is_unsupported_and_says_so() -> None:
    subject = Subject()
    for ask in (subject.dim0_exchange, subject.seq_head_exchange, subject.single_all_to_all):
        more = {} if ask == subject.dim0_exchange else EVEN
        more = {**more, "overlapped": False} if ask == subject.single_all_to_all else more
        with pytest.raises(Unsupported, match="subject has no exchange"):
            ask(CONTEXT, **more)


def test_a_checkout_brings_its_own_adapter(tmp_path: Path) -> None:
    (tmp_path / "gradmatrix_adapter.py").write_text(
        "from jobs.subject.base import Subject\n\n\n"
        "class Mine(Subject):\n    name = 'mine'\n\n\n"
        "def adapter():\n    return Mine()\n"
    )
    assert load_adapter("checkout", str(tmp_path)).name == "mine"


def test_a_checkout_whose_adapter_is_missing_or_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match=r"no gradmatrix_adapter\.py at its root"):
        load_adapter("checkout", str(tmp_path))
    (tmp_path / "gradmatrix_adapter.py").write_text("adapter = 3\n")
    with pytest.raises(LookupError, match=r"no function adapter\(\)"):
        load_adapter("checkout", str(tmp_path))
    with pytest.raises(LookupError, match="'megatron'; there are 'deepspeed'"):
        load_adapter("megatron", str(tmp_path))


def test_no_two_parts_of_the_adapter_have_a_name_of_their_own_in_common() -> None:
    """One class is made of all of them: a second ``_mesh`` would silently take the place of the first."""
    own = [set(vars(part)) - set(dir(Subject)) for part in DeepSpeed.__mro__ if issubclass(part, Core)]
    names = [name for part in own for name in part]
    assert sorted(names) == sorted(set(names))
