"""Cells, grids, comparisons, runtimes and hosts over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from service import store
from service.db import HEAD
from service.models import Host
from service.verdicts import Verdict
from tests.service.api.conftest import Api
from tests.support.stored import T0, blob, checkout, host


def test_a_cell_has_its_row_its_case_its_evidence_and_its_judgements(api: Api) -> None:
    api.world.submit(["a"])
    (job,) = api.world.claimed().jobs
    cell = job.cells[0].cell
    api.world.answer(
        job, cell, Verdict.ZERO_GRADIENT, blobs=[blob("it went wrong", rank=1), blob("far", kind="stacks")]
    )
    said = api.get(f"/cells/{cell}").json()
    assert (said["row"]["verdict"], said["row"]["case"]) == ("zero_gradient", "exchange/a[dtype=float32]")
    assert said["case"]["dtype"] == "float32"
    assert said["evidence"]["tensors"][0]["name"] == "x"
    assert said["diagnosis"]["what"]
    assert [one["verdict"] for one in said["judgements"]] == ["zero_gradient"]
    past = api.get(f"/cells/{cell}/history").json()
    assert [one["verdict"] for one in past["attempts"]] == ["zero_gradient"]
    logs = api.get(f"/cells/{cell}/logs")
    assert logs.headers["content-type"] == "text/plain; charset=utf-8"
    assert logs.text == "== log/rank1, rank 1\nit went wrong\n== stacks/rankNone\nfar"
    assert api.get("/cells/99").json()["detail"] == "there is no cell 99: the newest is 1"


def test_the_history_names_the_same_question_in_other_runtimes(api: Api) -> None:
    api.world.submit(["a"], torch=["2.10.0"])
    api.world.run(Verdict.AGREE)
    number = api.world.submit(["a"], torch=["2.11.0"]).id
    (cell,) = api.world.run(Verdict.MISMATCH)
    others = api.get(f"/cells/{cell}/history").json()["other_runtimes"]
    assert [(row["torch"], row["verdict"]) for row in others] == [("2.10.0", "agree")]
    assert api.get("/grid", submission=number).json()["runtimes"] == ["2.11.0-index"]


def test_the_grid_is_rows_over_runtimes_in_the_order_of_versions(api: Api) -> None:
    api.world.submit(["a", "b"], torch=["2.9.1", "2.11.0", "2.10.0"], checkouts=[checkout("deepspeed==1")])
    api.world.run(Verdict.AGREE)
    grid = api.get("/grid", checkout="deepspeed==1").json()
    assert grid["runtimes"] == ["2.9.1-index", "2.10.0-index", "2.11.0-index"]
    assert [(row["case"], row["mode"], len(row["cells"])) for row in grid["rows"]] == [
        ("exchange/a[dtype=float32]", "eager", 3),
        ("exchange/b[dtype=float32]", "eager", 3),
    ]
    assert grid["rows"][0]["cells"]["2.9.1-index"] == {
        "cell": 1,
        "verdict": "agree",
        "says": "agree 0.25",
        "forward_ok": True,
    }
    assert api.get("/grid", checkout="deepspeed==1", mode="aot_eager").json()["rows"] == []
    assert len(api.get("/grid", checkout="deepspeed==1", world_size=2).json()["rows"]) == 2
    assert api.get("/grid", checkout="deepspeed==2").status_code == 404
    assert api.get("/grid").status_code == 422
    assert api.get("/grid", submission=1, checkout="deepspeed==1").status_code == 422


def test_two_submissions_compared(api: Api) -> None:
    first = api.world.submit(["a", "b"], checkouts=[checkout("deepspeed==1")]).id
    api.world.run(Verdict.AGREE)
    second = api.world.submit(["a", "b"], checkouts=[checkout("deepspeed==2")]).id
    (job,) = api.world.claimed().jobs
    api.world.answer(job, job.cells[0].cell, Verdict.ZERO_GRADIENT)
    api.world.answer(job, job.cells[1].cell, Verdict.AGREE)
    said = api.get("/compare", before=first, after=second).json()
    assert (said["axis"], said["compared"]) == ("checkout", 2)
    assert [(one["kind"], one["after"]["verdict"]) for one in said["changes"]] == [("regression", "zero_gradient")]
    assert len(api.get("/compare", before=first, after=second, unchanged=True).json()["changes"]) == 2
    assert api.get("/compare", before=first, after=99).status_code == 404


def test_a_cell_of_a_case_that_is_gone_is_not_run_again(api: Api) -> None:
    api.world.submit(["gone"])
    (cell,) = api.world.run()
    answer = api.post(f"/cells/{cell}/rerun")
    assert (answer.status_code, "which is no longer asked" in answer.json()["detail"]) == (409, True)


def test_a_cell_or_a_job_once_more(api: Api) -> None:
    api.world.submit(["a", "b"])
    cells = api.world.run(Verdict.AGREE)
    answer = api.post(f"/cells/{cells[0]}/rerun")
    assert (answer.status_code, answer.json()["cells"], answer.json()["state"]) == (202, 1, "queued")
    assert answer.headers["location"] == f"/api/v1/submissions/{answer.json()['id']}"
    again = api.post(f"/cells/{cells[0]}/rerun").json()
    assert [job["id"] for job in again["jobs"]] == [job["id"] for job in answer.json()["jobs"]], "shared, not run twice"
    assert api.world.run(Verdict.SCALED, seconds=5) == [cells[0]]
    assert api.get(f"/cells/{cells[0]}").json()["row"]["verdict"] == "scaled"
    assert api.get(f"/submissions/{again['id']}").json()["state"] == "done"
    job = answer.json()["jobs"][0]["id"]
    assert api.post(f"/jobs/{job}/rerun").json()["cells"] == 1
    assert api.post("/jobs/99/rerun").status_code == 404
    numbers = {api.post(f"/cells/{cells[0]}/rerun", key="k").json()["id"] for _ in range(2)}
    assert len(numbers) == 1, "sent twice it is one"
    assert api.post(f"/cells/{cells[1]}/rerun", key="k").status_code == 422
    assert api.post("/cells/99/rerun").status_code == 404


def test_runtimes_channels_and_hosts(api: Api) -> None:
    api.world.submit(["a"])
    api.world.run()
    names = [one["name"] for one in api.get("/runtimes").json()]
    assert "2.11.0-index" in names
    channels = {one["name"]: one["torch"] for one in api.get("/channels").json()}
    assert "2.11.0" in channels["release"]
    (worker,) = api.get("/workers").json()
    assert (worker["name"], worker["devices"], worker["alive"]) == ("here", [], False)
    assert worker["transports"] == ["gloo", "nccl-dispatch"]
    assert datetime.fromisoformat(worker["seen_at"]) == T0
    with api.world.db.session() as session:
        session.get_one(Host, 1).seen_at = datetime.now(UTC)
    assert api.get("/workers").json()[0]["alive"] is True
    assert host(2).name == "here"


def test_it_says_whether_it_is_there_and_ready(api: Api) -> None:
    assert api.client.get("/healthz").json() == {"status": "ok"}
    assert api.client.get("/readyz").json() == {"status": "ready"}
    with api.world.db.session() as session:
        from sqlalchemy import text

        session.execute(text("UPDATE alembic_version SET version_num = '0002'"))
    answer = api.client.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (503, 503)
    assert f"needs {HEAD}" in answer.json()["detail"]
    assert api.client.get("/healthz").status_code == 200


def test_what_is_not_there_is_a_problem_too(api: Api) -> None:
    answer = api.client.get("/api/v1/nothing")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert api.client.put("/api/v1/submissions").json()["type"] == "/problems/method-not-allowed"


def test_a_fault_of_the_service_is_a_problem_and_no_stack(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(store, "hosts", broken)
    answer = api.get("/workers")
    assert (answer.status_code, answer.json()["type"]) == (500, "/problems/internal")
    assert "secret" not in answer.text
