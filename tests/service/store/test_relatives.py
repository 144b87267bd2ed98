"""What stands beside a failing cell: its eager answer, and the same cell of other releases of the subject."""

from __future__ import annotations

import dataclasses
from typing import Any

from service import store
from service.verdicts import Verdict
from tests.support.stored import World, checkout

RELEASES = [checkout(f"deepspeed=={version}") for version in ("1", "2")]
TREE = dataclasses.replace(checkout("path:x"), kind="path")
OTHER = dataclasses.replace(checkout("other==1"), subject="other")


def answered(world: World, verdicts: dict[tuple[str, str], Verdict]) -> None:
    """One case, eager and traced, of every checkout on two torch versions, answered by (label, mode) or right."""
    asked: dict[str, Any] = {"modes": ["eager", "aot_eager"], "torch": ["2.10.0", "2.11.0"]}
    world.submit(["a"], checkouts=[*RELEASES, TREE, OTHER], **asked)
    while claim := world.claim():
        for job in claim.jobs:
            for spec in job.cells:
                world.answer(job, spec.cell, verdicts.get((claim.label, spec.mode), Verdict.AGREE))
            world.finish(job)


def beside(world: World, **which: int) -> set[tuple[str, str, str]]:
    with world.db.read() as session:
        return {(row.label, row.torch, row.mode) for row in store.relatives(session, **which)}


def test_a_failing_traced_cell_has_its_eager_one_and_the_other_releases(world: World) -> None:
    answered(world, {("deepspeed==1", "aot_eager"): Verdict.ZERO_GRADIENT})
    (cell,) = [
        row.cell for row in world.rows(1) if (row.label, row.torch, row.mode) == ("deepspeed==1", "2.11.0", "aot_eager")
    ]
    expected = {("deepspeed==1", "2.11.0", "eager"), ("deepspeed==2", "2.11.0", "aot_eager")}
    assert beside(world, cell=cell) == expected
    assert beside(world, submission=1) == expected | {(label, "2.10.0", mode) for label, _, mode in expected}


def test_a_tree_has_no_releases_and_what_is_right_has_nothing_beside_it(world: World) -> None:
    answered(world, {("path:x", "aot_eager"): Verdict.ZERO_GRADIENT, ("path:x", "eager"): Verdict.ZERO_GRADIENT})
    tree = [row for row in world.rows(1) if row.label == "path:x" and row.torch == "2.11.0"]
    (eager,), (traced,) = ([row.cell for row in tree if row.mode == mode] for mode in ("eager", "aot_eager"))
    assert beside(world, cell=eager) == set()
    assert beside(world, cell=traced) == {("path:x", "2.11.0", "eager")}
    right = next(row.cell for row in world.rows(1) if row.label == "deepspeed==1")
    assert beside(world, cell=right) == set()
