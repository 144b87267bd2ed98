"""How much error a tensor may have, where the whole tensor and its smallest blocks say different things."""

from __future__ import annotations

import dataclasses

import pytest

from service.evidence import Evidence, Noise, TensorEvidence
from service.policy import load_policy
from service.room import Room
from tests.workers.matter import a_case

CASE = a_case(id="attention/distributed[dtype=float16]", family="attention", exact=False)
NOISE = {"grad/v": Noise(rel_l2=3e-4, max_abs=1e-3, worst_block=2e-3)}


@pytest.mark.parametrize(("max_abs", "wrong"), [(1e-3, False), (4e-3, False), (5e-3, True)])
def test_a_block_is_wrong_only_beyond_what_the_dense_run_rounds_anywhere(max_abs: float, wrong: bool) -> None:
    """A block of one small element is off by a tenth of itself where the elements beside it round as they should."""
    tensor = TensorEvidence(
        "grad", "v", 0, "float16", "float64", (64,), (64,),
        numel=64, rel_l2=4e-4, max_abs=max_abs, worst_block=0.1, expected_norm=8.0, nonzero_got=64, nonzero_expected=64,
    )  # fmt: skip
    evidence = Evidence(tensors=(tensor,), noise=NOISE)
    room = Room(evidence, dataclasses.replace(CASE, dtype="float16"), load_policy())
    assert room.is_wrong(tensor) is wrong
