"""The border between a job and the outside keeps its form, and says what is wrong with another."""

from __future__ import annotations

import json

import pytest

from jobs.contract import AttemptSpec, CaseInfo, CellSpec, ContractError, ControlInfo, Deadlines, JobSpec


def spec() -> AttemptSpec:
    cells = (
        CellSpec(7, "exchange/dim0[loss=square]", 1, "eager"),
        CellSpec(8, "exchange/dim0[loss=square]", 1, "inductor"),
    )
    return AttemptSpec(
        "a1", "deepspeed", "deepspeed==1", "gloo", (JobSpec(3, 2, cells),), 512, deadlines=Deadlines(case_s=1.5)
    )


def case(**changes: object) -> CaseInfo:
    values: dict[str, object] = {
        "id": "f/p[a=b]", "version": 2, "family": "f", "probe": "p", "params": {"a": "b"},
        "modes": ("eager",), "dtype": "float32", "dims": {"x": ("s", "h")},
    }  # fmt: skip
    return CaseInfo(**{**values, **changes})  # type: ignore[arg-type]


def test_a_spec_survives_its_line() -> None:
    assert AttemptSpec.parse(spec().line()) == spec()
    assert spec().line().count(b"\n") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "not of schema 1"),
        ({"transport": "mpi"}, "'mpi' is none of gloo"),
        ({"colour": "red"}, "unknown fields ['colour']"),
        ({"deadlines": {"case": 1}}, "Deadlines: unknown fields ['case']"),
        ({"jobs": [{"job": 1}]}, "JobSpec: unknown fields [], missing fields ['cells', 'world_size']"),
        ({"jobs": [{"job": 1, "world_size": 2, "cells": ["x"]}]}, "CellSpec is not an object"),
    ],
)
def test_a_wrong_spec_is_named(change: dict[str, object], message: str) -> None:
    data = {**json.loads(spec().line()), **change}
    with pytest.raises(ContractError) as caught:
        AttemptSpec.parse(json.dumps(data).encode())
    assert message in str(caught.value)


def test_a_self_test_names_families_and_has_no_cells() -> None:
    asked = AttemptSpec("a1", "torch", "selftest", "gloo", (JobSpec(0, 2, ()),), suite="full", families=("f",), seed=3)
    assert AttemptSpec.parse(asked.line()) == asked


def test_a_spec_that_is_not_json_is_named() -> None:
    with pytest.raises(ContractError, match="not JSON"):
        AttemptSpec.parse(b"{")


def test_cases_and_controls_survive_json() -> None:
    control = ControlInfo("f/c", "f", "f/p[a=b]", ("eager", "aot_eager"), ("scaled",), "a mutant")
    assert CaseInfo.from_json(json.loads(json.dumps(case().to_json()))) == case()
    assert ControlInfo.from_json(json.loads(json.dumps(control.to_json()))) == control


@pytest.mark.parametrize(
    ("sp", "world_size", "runs"), [(0, 2, True), (0, 8, True), (2, 2, False), (2, 4, True), (4, 8, True), (4, 4, False)]
)
def test_a_subgroup_case_needs_a_larger_world(sp: int, world_size: int, runs: bool) -> None:
    assert case(sp=sp).runs_at(world_size) is runs
