"""Asking for evaluations over HTTP, and following them."""

from __future__ import annotations

import json
import threading
from typing import Any
from xml.etree import ElementTree

import pytest

from service import store
from service.verdicts import Verdict
from tests.service.api.conftest import Api
from tests.support.stored import at
from workers.fetch import Fetcher

ASKED: dict[str, Any] = {"subjects": ["deepspeed==0.18.3"], "torch": ["2.11.0"], "families": ["exchange"]}


def test_what_is_asked_for_is_stored_to_be_resolved(api: Api) -> None:
    answer = api.post("/submissions", ASKED)
    assert answer.status_code == 202
    said = answer.json()
    assert (said["state"], said["requester"], said["reason"], said["priority"]) == (
        "resolving",
        "the submit one",
        "manual",
        30,
    )
    assert answer.headers["location"] == f"/api/v1/submissions/{said['id']}"
    assert api.broker.wait(0), "whoever fetches is told"
    assert api.get(f"/submissions/{said['id']}").json() == said


@pytest.mark.parametrize("name", [{"branch": "main"}, {"pull": 7}, {"tag": "v1"}, {"commit": None}])
def test_a_commit_by_any_of_its_names_is_tested_as_its_full_sha(api: Api, name: dict[str, Any]) -> None:
    from tests.support.trees import git

    sha = git(api.repository, "rev-parse", "HEAD")
    git(api.repository, "update-ref", "refs/pull/7/head", sha)
    git(api.repository, "tag", "v1")
    subject = {"commit": sha[:12]} if name == {"commit": None} else name
    asked = {**ASKED, "subjects": [subject], "modes": ["eager"], "transports": ["gloo"]}
    number = api.post("/submissions", asked).json()["id"]
    assert Fetcher(api.settings, api.world.db, api.broker).one()
    view = api.get(f"/submissions/{number}").json()
    assert (view["state"], view["note"]) == ("queued", "")
    (row, *_) = api.get(f"/submissions/{number}/cells", limit=1).json()["items"]
    assert row["label"] == f"deepspeed@{sha[:12]}"


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"torch": ["2.11.9"]}, 422, "torch 2.11.9 is not in the catalogue"),
        ({"subjects": ["deepsped"]}, 422, "did you mean deepspeed"),
        ({"subjects": ["git+https://elsewhere.invalid/a/b@main"]}, 422, "not on this service's allow-list"),
        ({"subjects": ["/"]}, 422, "this service tests releases and commits only"),
        ({"subjects": []}, 422, "body.subjects"),
        ({"subjects": [{"branch": "a", "tag": "b"}]}, 422, "exactly one of commit, branch, tag, pull"),
        ({"subjects": [{"branch": "a~1"}]}, 422, "expressions such as HEAD~1 are not evaluated"),
        ({"torch": None}, 422, "body.torch"),
        ({"modes": ["jit"]}, 422, "mode 'jit' is not known"),
        ({"world_sizes": [3]}, 422, "world size '3' is not known: the nearest is 2"),
        ({"families": ["exchang"]}, 422, "did you mean exchange"),
        ({"cases": ["exchange/dim9*"]}, 422, "no case fits"),
        ({"transports": ["tcp"]}, 422, "transport 'tcp' is not known"),
        ({"priority": 99}, 403, "a priority above 30 needs scope admin"),
        ({"priorty": 1}, 422, "body.priorty: is no field of this; did you mean priority?"),
    ],
)
def test_bad_input_is_a_problem_that_says_what_would_be_right(
    api: Api, change: dict[str, Any], status: int, said: str
) -> None:
    answer = api.post("/submissions", {**ASKED, **change})
    problem = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert said in problem["detail"]
    assert problem["status"] == status
    assert api.get("/submissions").json()["items"] == [], "nothing was stored"


def test_a_body_that_is_not_json_is_said_to_be_none(api: Api) -> None:
    answer = api.client.post("/api/v1/submissions", content=b"{", headers=api.headers("submit"))
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid")
    headers = {**api.headers("submit"), "content-type": "application/json"}
    answer = api.client.post("/api/v1/submissions", content=b"{", headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (400, "/problems/bad-request")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_not_read(api: Api, chunked: bool) -> None:
    body = b'{"subjects": ["' + b"x" * 2**20 + b'"]}'
    sent: Any = iter([body[:1000], body[1000:]]) if chunked else body
    headers = {"content-type": "application/json"}
    answer = api.client.post("/api/v1/submissions", content=sent, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (413, "/problems/too-large")


def test_what_no_database_can_hold_is_bad_input(api: Api) -> None:
    for path in ("/submissions?requester=%00", "/grid?checkout=%00", "/submissions/1/cells?family=%00"):
        assert api.client.get(f"/api/v1{path}", headers=api.headers("read")).status_code == 422, path


@pytest.mark.parametrize("subject", ["~nosuchuser/x", "x" * 290, "/root/.sshh", "../.."])
def test_folders_of_this_host_are_nobody_elses_business(api: Api, subject: str) -> None:
    answer = api.post("/submissions", {**ASKED, "subjects": [subject]})
    assert answer.status_code == 422
    assert "known: ." not in answer.json()["detail"], "no names of what is there"


def a_strangers(api: Api) -> int:
    """A submission that is held, of a stranger's pull request."""
    request = {"wanted": {}, "rerun": False}
    with api.world.db.session() as session:
        return store.open_submission(
            session, requester="x", reason="webhook", priority=20, request=request, held="of a stranger", now=at(0)
        ).id


def test_a_held_one_is_not_run_by_asking_for_it_once_more(api: Api) -> None:
    held = a_strangers(api)
    assert api.post(f"/submissions/{held}/rerun").status_code == 409
    api.post(f"/submissions/{held}/cancel")
    answer = api.post(f"/submissions/{held}/rerun")
    assert (answer.status_code, "was never approved" in answer.json()["detail"]) == (409, True)


def test_the_same_key_is_the_same_submission_and_another_body_is_refused(api: Api) -> None:
    first = api.post("/submissions", ASKED, key="k1").json()["id"]
    assert api.post("/submissions", ASKED, key="k1").json()["id"] == first
    assert api.post("/submissions", ASKED, key="k2").json()["id"] != first
    assert api.post("/submissions", ASKED).json()["id"] != first
    answer = api.post("/submissions", {**ASKED, "rerun": True}, key="k1")
    assert answer.status_code == 422
    assert "was used for another request" in answer.json()["detail"]
    assert api.post("/submissions", ASKED, scope="admin", key="k1").json()["id"] != first, "a key is its sender's own"


def test_pages_go_through_all_of_them_whatever_comes_in_meanwhile(api: Api) -> None:
    numbers = [api.world.submit(["a"]).id for _ in range(5)]
    first = api.get("/submissions", limit=2).json()
    assert [one["id"] for one in first["items"]] == numbers[:2:-1]
    api.world.submit(["a"])
    second = api.get("/submissions", limit=2, cursor=first["next"]).json()
    third = api.get("/submissions", limit=2, cursor=second["next"]).json()
    assert [one["id"] for one in second["items"] + third["items"]] == numbers[2::-1]
    assert third["next"] is None
    for wrong in ("x", "YWZ0ZXI6eA==", "YWZ0ZXI6LTE="):
        assert api.get("/submissions", cursor=wrong).status_code == 422


def test_lists_are_narrowed_by_state_and_requester(api: Api) -> None:
    done = api.world.submit(["a"]).id
    api.world.run()
    waiting = api.post("/submissions", ASKED).json()["id"]
    assert [one["id"] for one in api.get("/submissions", state="done").json()["items"]] == [done]
    assert [one["id"] for one in api.get("/submissions", requester="the submit one").json()["items"]] == [waiting]
    answer = api.get("/submissions", state="dne")
    assert (answer.status_code, "there are held" in answer.json()["detail"]) == (422, True)


def test_cells_come_in_pages_and_by_verdict(api: Api) -> None:
    number = api.world.submit(list("abc"), sizes=[2]).id
    (job,) = api.world.claimed().jobs
    for spec, verdict in zip(job.cells, (Verdict.AGREE, Verdict.ZERO_GRADIENT, Verdict.AGREE), strict=True):
        api.world.answer(job, spec.cell, verdict)
    first = api.get(f"/submissions/{number}/cells", limit=2).json()
    second = api.get(f"/submissions/{number}/cells", limit=2, cursor=first["next"]).json()
    cells = [row["cell"] for row in first["items"] + second["items"]]
    assert cells == [spec.cell for spec in job.cells]
    assert second["next"] is None
    zero = api.get(f"/submissions/{number}/cells", verdict="zero_gradient").json()["items"]
    assert [(row["cell"], row["verdict"]) for row in zero] == [(job.cells[1].cell, "zero_gradient")]
    assert api.get(f"/submissions/{number}/cells", family="loss").json()["items"] == []
    assert api.get(f"/submissions/{number}/cells", verdict="zero").status_code == 422
    assert api.get("/submissions/99/cells").status_code == 404


def test_its_report_for_test_systems(api: Api) -> None:
    number = api.world.submit(["a", "b"]).id
    api.world.run(Verdict.ZERO_GRADIENT)
    answer = api.get(f"/submissions/{number}/junit.xml")
    assert answer.headers["content-type"] == "application/xml"
    root = ElementTree.fromstring(answer.text)  # noqa: S314 - our own
    assert (root.get("tests"), root.get("failures")) == ("2", "2")


def test_cancel_rerun_and_pin(api: Api) -> None:
    number = api.post("/submissions", ASKED).json()["id"]
    assert api.post(f"/submissions/{number}/cancel").json()["state"] == "cancelled"
    assert api.post(f"/submissions/{number}/cancel").json()["state"] == "cancelled", "twice is once"
    again = api.post(f"/submissions/{number}/rerun").json()
    assert (again["state"], again["request"]["rerun"]) == ("resolving", True)
    assert again["request"]["wanted"] == api.get(f"/submissions/{number}").json()["request"]["wanted"]
    pinned = api.client.patch(f"/api/v1/submissions/{number}", json={"pinned": True}, headers=api.headers("admin"))
    assert pinned.json()["pinned"] is True
    assert api.post("/submissions/99/cancel").status_code == 404
    foreign = api.world.submit(["a"]).id
    assert api.post(f"/submissions/{foreign}/rerun").status_code == 409


def test_a_held_one_goes_on_when_an_admin_says_so(api: Api) -> None:
    held = a_strangers(api)
    assert api.post(f"/submissions/{held}/approve").status_code == 403
    assert api.post(f"/submissions/{held}/approve", scope="admin").json()["state"] == "resolving"
    assert api.post(f"/submissions/{held}/approve", scope="admin").status_code == 409


def test_events_tell_how_it_is_and_what_comes_until_its_end(api: Api) -> None:
    number = api.world.submit(["a", "b"]).id
    (job,) = api.world.claimed().jobs
    api.world.answer(job, job.cells[0].cell)

    def later() -> None:
        api.world.answer(job, job.cells[1].cell, Verdict.SCALED)
        api.world.finish(job)

    timer = threading.Timer(0.3, later)
    timer.start()
    with api.client.stream("GET", f"/api/v1/submissions/{number}/events", headers=api.headers("read")) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        told = _events(list(stream.iter_lines()))
    timer.join()
    assert told[0][0] == "submission"
    assert told[0][1]["done"] == 1
    assert [(data["cell"], data["verdict"]) for kind, data in told if kind == "cell"] == [(job.cells[1].cell, "scaled")]
    assert told[-1] == ("end", {"state": "done"})
    assert [data["done"] for kind, data in told if kind == "submission"][-1] == 2
    assert api.get("/submissions/99/events").status_code == 404


def _events(lines: list[str]) -> list[tuple[str, Any]]:
    kinds = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    datas = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    return list(zip(kinds, datas, strict=True))
