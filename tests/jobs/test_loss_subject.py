"""DeepSpeed's losses, found by their names and parameters: what is called how, and what is unsupported and why."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from jobs.subject.base import RankContext, Subject, Unsupported
from jobs.subject.deepspeed import DeepSpeed
from jobs.subject.deepspeed.loss import CROSS_ENTROPY, ULYSSES

GROUP = object()
CONTEXT = RankContext(rank=3, world_size=4, transport="gloo", sp_size=2, sp_rank=1, group=GROUP, ranks=(2, 3))


@pytest.fixture
def log() -> list[Any]:
    return []


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The two modules, without anything in them."""
    made = {}
    for name in (CROSS_ENTROPY, ULYSSES):
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            module = ModuleType(".".join(parts[:end]))
            monkeypatch.setitem(sys.modules, module.__name__, module)
        made[name] = module
    return made


def legacy(log: list[Any], module: ModuleType) -> None:
    def vocab_sequence_parallel_cross_entropy(vocab_parallel_logits: Any, target: Any, sp_group: Any) -> str:
        log.append((vocab_parallel_logits, target, sp_group))
        return "losses"

    module.__dict__["vocab_sequence_parallel_cross_entropy"] = vocab_sequence_parallel_cross_entropy


def rewritten(log: list[Any], module: ModuleType) -> None:
    def vocab_parallel_cross_entropy(
        vocab_parallel_logits: Any, target: Any, tp_group: Any = None, sp_group: Any = None, reduction: str = "mean",
        gather_sequence_loss: bool = False,
    ) -> str:  # fmt: skip
        log.append((vocab_parallel_logits, target, tp_group, sp_group, reduction, gather_sequence_loss))
        return "losses"

    legacy(log, module)
    module.__dict__["vocab_parallel_cross_entropy"] = vocab_parallel_cross_entropy


def test_the_function_that_every_release_has_is_handed_the_group(
    modules: dict[str, ModuleType], log: list[Any]
) -> None:
    legacy(log, modules[CROSS_ENTROPY])
    loss: Any = DeepSpeed().token_losses(CONTEXT, how="gathered", strict=True)
    assert loss("logits", "labels") == "losses"
    assert log == [("logits", "labels", GROUP)]
    for how in ("summed", "local"):
        with pytest.raises(Unsupported, match=f"{CROSS_ENTROPY} has no vocab_parallel_cross_entropy"):
            DeepSpeed().token_losses(CONTEXT, how=how, strict=True)
    with pytest.raises(Unsupported, match=f"{CROSS_ENTROPY} has no vocab_parallel_cross_entropy"):
        DeepSpeed().aggregated_loss(CONTEXT, recipe="own", reduction="mean")


def test_the_function_of_0_19_8_is_told_what_to_gather_and_to_reduce(
    modules: dict[str, ModuleType], log: list[Any]
) -> None:
    rewritten(log, modules[CROSS_ENTROPY])
    for how in ("summed", "local"):
        loss: Any = DeepSpeed().token_losses(CONTEXT, how=how, strict=True)
        loss("logits", "labels")
    loss = DeepSpeed().aggregated_loss(CONTEXT, recipe="own", reduction="sum")
    loss("logits", "labels")
    assert log == [
        ("logits", "labels", None, GROUP, "none", True),
        ("logits", "labels", None, GROUP, "none", False),
        ("logits", "labels", None, GROUP, "sum", False),
    ]


def test_a_signature_that_is_not_known_is_named(modules: dict[str, ModuleType]) -> None:
    def vocab_sequence_parallel_cross_entropy(logits: Any, target: Any, mesh: Any) -> None: ...

    modules[CROSS_ENTROPY].__dict__["vocab_sequence_parallel_cross_entropy"] = vocab_sequence_parallel_cross_entropy
    with pytest.raises(Unsupported, match=r"mesh: .*is a signature that is not known here: it lacks sp_group"):
        DeepSpeed().token_losses(CONTEXT, how="gathered", strict=True)


def test_a_batch_goes_through_the_adapter_s_loader_and_is_left_alone(
    modules: dict[str, ModuleType], log: list[Any]
) -> None:
    class UlyssesSPDataLoaderAdapter:
        def __init__(self, dl: Any, sp_rank: int, sp_group: Any, sp_world_size: int, device: str) -> None:
            self.batches = dl
            log.append((sp_rank, sp_group, sp_world_size, device))

        def __iter__(self) -> Any:
            for batch in self.batches:
                batch["shift_labels"] = batch.pop("labels")
                yield batch

    modules[ULYSSES].__dict__["UlyssesSPDataLoaderAdapter"] = UlyssesSPDataLoaderAdapter
    batch: Any = {"labels": "labels"}
    assert DeepSpeed().sequence_shards(CONTEXT, strict=True)(batch) == [{"shift_labels": "labels"}]
    assert log == [(1, GROUP, 2, "cpu")]
    assert batch == {"labels": "labels"}


def test_a_step_is_given_a_model_whose_backward_means_over_the_batches(
    modules: dict[str, ModuleType], log: list[Any]
) -> None:
    class UlyssesSPFwdLossBwdWithLogits:
        def __init__(self, model: Any, model_unwrapped: Any, device: str, num_loss_logit_shards: int) -> None:
            self.model, self.pieces = model, num_loss_logit_shards

        def sp_fwd_loss_bwd(self, batch: Any) -> float:
            self.model.set_gradient_accumulation_boundary(False)
            logits = self.model(input_ids=batch["input_ids"], position_ids=None, use_cache=False).logits
            self.model.backward(Value(8.0, log))
            return float(logits * self.pieces)

    class Value:
        def __init__(self, value: float, kept: list[Any]) -> None:
            self.value, self.kept = value, kept

        def __truediv__(self, other: float) -> Value:
            return Value(self.value / other, self.kept)

        def backward(self) -> None:
            self.kept.append(self.value)

    modules[ULYSSES].__dict__["UlyssesSPFwdLossBwdWithLogits"] = UlyssesSPFwdLossBwdWithLogits
    step: Any = DeepSpeed().sequence_step(CONTEXT, pieces=3, strict=True)
    assert step({"input_ids": 2}, lambda ids: ids + 5) == 21.0
    assert log == [4.0]


def test_what_is_absent_is_unsupported_by_name(modules: dict[str, ModuleType]) -> None:
    for ask, name in ((DeepSpeed().sequence_shards, "UlyssesSPDataLoaderAdapter"),):
        with pytest.raises(Unsupported, match=f"{ULYSSES} has no {name}"):
            ask(CONTEXT, strict=True)
    with pytest.raises(Unsupported, match=f"{ULYSSES} has no UlyssesSPFwdLossBwdWithLogits"):
        DeepSpeed().sequence_step(CONTEXT, pieces=1, strict=True)


def test_a_library_without_losses_says_so() -> None:
    subject = Subject()
    for ask, more in (
        (subject.token_losses, {"how": "local", "strict": False}),
        (subject.aggregated_loss, {"recipe": "own", "reduction": "mean"}),
        (subject.sequence_shards, {"strict": False}),
        (subject.sequence_step, {"pieces": 1, "strict": False}),
    ):
        with pytest.raises(Unsupported, match="subject "):
            ask(CONTEXT, **more)


def test_a_module_that_a_release_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, ULYSSES, raising=False)
    with pytest.raises(Unsupported, match=f"there is no {ULYSSES}"):
        DeepSpeed().sequence_shards(CONTEXT, strict=True)
