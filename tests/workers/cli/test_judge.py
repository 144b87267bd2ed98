"""``gradmatrix judge``, on a home that the real store filled from measured evidence."""

from __future__ import annotations

import dataclasses
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.contract import ControlInfo
from service import store
from service.config import Settings
from service.db import open_database
from service.evidence import Evidence
from service.judge import judge, judge_control
from service.policy import load_policy
from tests.support.stored import Template, World, case, open_world
from tests.workers.cli.conftest import Gradmatrix
from tests.workers.matter import Named, evidence_of, raw

X = np.arange(1.0, 17.0).reshape(2, 8) / 16
CASE = dataclasses.replace(case("a"), exact=False)
CONTROL = ControlInfo("exchange/off", "exchange", CASE.id, ("eager",), ("scaled",))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    """An empty database, migrated once."""
    path = tmp_path_factory.mktemp("template")
    open_world(path).db.dispose()
    return Template(path)


@pytest.fixture(autouse=True)
def migrated(home: Path, template: Template) -> None:
    open_world(home, template).db.dispose()


def seen(error: float) -> Evidence:
    """16 elements, off by ``error`` of themselves; policy 1 allows 4 · 2⁻²³ · √16, which is 1.9e-6."""

    def rank(off: float) -> Named:
        return {("output", "y"): raw(X), ("grad", "x"): raw(X * (1 + off))}

    return evidence_of([rank(error)] * 2, [rank(0.0)] * 2, CASE)


def fill(home: Path, *errors: float, control: float = 1e-2, controls: bool = True) -> None:
    """A submission of one cell per error, each judged by policy 1 beside a control that is off by ``control``."""
    world, policy = open_world(home), load_policy()
    names = [f"case{number}" for number in range(len(errors))]
    infos = [dataclasses.replace(case(name), exact=False) for name in names]
    _submit(world, infos)
    (job,) = world.claimed().jobs
    told: dict[str, Any] = {"job": job.job, "fence": job.fence, "attempt": job.attempt}
    found = judge_control(seen(control), CASE, CONTROL, policy)
    with world.db.session() as session:
        if controls:
            store.record_control_set(session, **told, controls=[(CONTROL, CASE)])
        shown = seen(control) if controls else None
        told_by = store.ControlAnswer(CONTROL.id, "eager", 2, "before", found.judgement, found.ok, shown)
        store.record_controls(session, **told, controls=[told_by])
    for spec, error in zip(job.cells, errors, strict=True):
        evidence = seen(error)
        passes: dict[str, Any] = {"first": evidence, "alone": evidence if error > 1.9e-6 else None} if controls else {}
        said = judge(evidence, infos[0], policy)
        world.answer(job, spec.cell, evidence=evidence, judgement=said, **passes)
    world.finish(job)
    world.db.dispose()


def _submit(world: World, infos: list[Any]) -> None:
    from service.matrix import plan
    from tests.support.stored import checkout, runtime

    one, where = checkout("deepspeed==1"), runtime("2.11.0")
    planned = plan([one], [where], ["gloo"], [2], infos, ["eager"])
    with world.db.session() as session:
        store.submit(
            session, checkouts=[one], runtimes=[where], plan=planned,
            requester="me", reason="manual", priority=0, request={},
        )  # fmt: skip


def policy_file(folder: Path, version: str = "2", **changes: str) -> str:
    """The shipped policy with other numbers."""
    text = (files("service.policies") / "v1.toml").read_text("utf-8").replace('version = "1"', f'version = "{version}"')
    for key, value in changes.items():
        lines = [f"{key} = {value}" if line.startswith(f"{key} = ") else line for line in text.splitlines()]
        text = "\n".join(lines)
    path = folder / f"v{version}.toml"
    path.write_text(text, "utf-8")
    return str(path)


def stored(home: Path) -> dict[str, tuple[str | None, str | None]]:
    """Verdict and policy by case."""
    database = open_database(Settings(home=home))
    with database.read() as session:
        rows = store.cells_of(session, 1)
    database.dispose()
    return {row.case.partition("[")[0].partition("/")[2]: (row.verdict, row.policy_version) for row in rows}


def test_nothing_changes_and_nothing_is_written(home: Path, gradmatrix: Gradmatrix, tmp_path: Path) -> None:
    fill(home, 0.0, 1e-2)
    before = stored(home)
    status, out, err = gradmatrix("judge", "--policy", policy_file(tmp_path))
    assert (status, err) == (0, "")
    assert "nothing would change" in out.splitlines()
    assert "  2 under policy 1: the same but for its version" in out.splitlines()
    assert stored(home) == before == {"case0": ("agree", "1"), "case1": ("scaled", "1")}


def test_what_would_change_is_shown_by_cell_and_written_only_when_asked(
    home: Path, gradmatrix: Gradmatrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    fill(home, 0.0, 1e-5, 1e-2)
    loose = policy_file(tmp_path, c="100.0")
    status, out, _ = gradmatrix("judge", "--policy", loose)
    lines = out.splitlines()
    assert status == 1
    assert all(len(line) <= 80 for line in lines)
    assert "  3 under policy 1: tolerance.c 4 -> 100" in lines
    assert "1  scaled -> agree" in lines
    assert "scaled -> agree: 1 cell" in lines
    assert "  deepspeed==1 · torch 2.11.0" in lines
    assert "    2: exchange/case1[dtype=float32] · eager · 2 ranks" in lines
    assert any(line.startswith("      scaled \N{MULTIPLICATION SIGN}1 -> agree 1e-5") for line in lines)
    assert "nothing was written: --apply makes these the current answers, and keeps the old" in " ".join(out.split())
    assert {policy for _, policy in stored(home).values()} == {"1"}
    status, out, _ = gradmatrix("judge", "--policy", loose, "--apply")
    assert status == 1
    assert "3 answers judged by policy 2 now" in out.splitlines()
    assert stored(home) == {"case0": ("agree", "2"), "case1": ("agree", "2"), "case2": ("scaled", "2")}
    status, out, _ = gradmatrix("show", "2")
    assert ", judged by policy 2" in out
    assert "policy 1: scaled \N{MULTIPLICATION SIGN}1: gradient of x is 1.00001 times the oracle's" in out
    assert "policy 2: agree 1e-5 (now)" in out
    # And back: the history grows, and nothing of it is lost.
    back = policy_file(tmp_path, version="1")
    assert gradmatrix("judge", "--policy", back, "--apply")[0] == 1
    assert stored(home) == {"case0": ("agree", "1"), "case1": ("scaled", "1"), "case2": ("scaled", "1")}
    told = [line for line in gradmatrix("show", "2")[1].splitlines() if ", policy " in line and line.startswith("  2")]
    assert len(told) == 3
    assert gradmatrix("judge", "--policy", back)[0] == 0


def test_a_control_that_no_longer_behaves_makes_its_familys_cells_invalid(
    home: Path, gradmatrix: Gradmatrix, tmp_path: Path
) -> None:
    fill(home, 0.0, 1e-2, control=1e-5)
    loose = policy_file(tmp_path, c="100.0")
    status, out, _ = gradmatrix("judge", "--policy", loose, "--json", "-")
    said = json.loads(out)
    assert status == 1
    assert {(cell["before"]["verdict"], cell["after"]["verdict"]) for cell in said["cells"]} == {
        ("agree", "invalid"), ("scaled", "invalid"),
    }  # fmt: skip
    assert said["changes"] == [
        {"before": "agree", "after": "invalid", "cells": 1}, {"before": "scaled", "after": "invalid", "cells": 1},
    ]  # fmt: skip
    (control,) = said["controls"]
    assert (control["control"], control["before"], control["after"], control["as_expected"]) == (
        CONTROL.id, "scaled", "agree", False,
    )  # fmt: skip
    assert (said["bases"]["whole"], said["controls_not_kept"], said["applied"]) == (2, 0, None)
    _, out, _ = gradmatrix("judge", "--policy", loose)
    assert "control exchange/off (eager, 2 ranks, before the import) no longer behaves: scaled -> agree" in " ".join(
        out.split()
    )


def test_what_older_versions_did_not_keep_is_said(home: Path, gradmatrix: Gradmatrix, tmp_path: Path) -> None:
    fill(home, 0.0, 1e-5, control=1e-5, controls=False)
    status, out, _ = gradmatrix("judge", "--policy", policy_file(tmp_path, c="100.0"))
    text = " ".join(out.split())
    assert status == 1
    assert "- 1 answer judged by one of two passes, which is all that an older version of this program kept" in text
    assert "- 2 answers from attempts whose controls left no evidence" in text
    assert "scaled \N{MULTIPLICATION SIGN}1 -> agree 1e-5 (one pass)" in text


def test_a_stricter_policy_says_which_cells_were_never_repeated(
    home: Path, gradmatrix: Gradmatrix, tmp_path: Path
) -> None:
    fill(home, 1.5e-6)
    status, out, _ = gradmatrix("judge", "--policy", policy_file(tmp_path, c="1.0"))
    assert status == 1
    assert "- 1 answer failing now but not then, so never repeated alone in fresh ranks" in " ".join(out.split())


def test_misuse_is_named(home: Path, gradmatrix: Gradmatrix, tmp_path: Path) -> None:
    good = policy_file(tmp_path)
    status, _, err = gradmatrix("judge", "--policy", good)
    assert (status, err) == (2, "gradmatrix: there is nothing to judge again: nothing was run here yet\n")
    fill(home, 0.0)
    other = policy_file(tmp_path, version="1", k="5.0")
    status, _, err = gradmatrix("judge", "--policy", other)
    assert status == 2
    assert "calls itself version '1', which is another policy (tolerance.k 4 -> 5): give it a version of its own" in err
    gradmatrix("judge", "--policy", good, "--apply")
    changed = policy_file(tmp_path, k="5.0")
    status, _, err = gradmatrix("judge", "--policy", changed)
    assert status == 2
    assert "version '2', which is another policy (tolerance.k 4 -> 5)" in err
    assert err.rstrip().endswith("none of 1, 2")
    (tmp_path / "wrong.toml").write_text("version = 3", "utf-8")
    status, _, err = gradmatrix("judge", "--policy", str(tmp_path / "wrong.toml"))
    assert status == 2
    assert "wrong.toml: the policy lacks tolerance" in err
    status, _, err = gradmatrix("judge", "--policy", str(tmp_path / "none.toml"))
    assert (status, err) == (2, f"gradmatrix: cannot read {tmp_path / 'none.toml'}: No such file or directory\n")
    assert gradmatrix("judge")[0] == 2
    assert gradmatrix("judge", "--policy", good, "--json", str(tmp_path))[0] == 2


def test_a_long_history_is_judged_whole(home: Path, gradmatrix: Gradmatrix, tmp_path: Path) -> None:
    import workers.cli.judge as command

    fill(home, *([0.0, 1e-5] * (command.CHUNK // 2 + 1)))
    status, out, _ = gradmatrix("judge", "--policy", policy_file(tmp_path, c="100.0"), "--apply", "--json", "-")
    said = json.loads(out)
    assert status == 1
    assert (said["judged"], said["applied"]) == (command.CHUNK + 2, command.CHUNK + 2)
    assert set(stored(home).values()) == {("agree", "2")}
