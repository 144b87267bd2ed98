"""Asking a service from the command line: what is asked arrives, and what it comes to is shown as `run` shows it."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service import store
from service.api.state import State
from service.verdicts import Verdict
from tests.service.api.conftest import Api, api, database, migrated  # noqa: F401 - fixtures
from tests.support.serving import served
from tests.support.stored import at, host
from tests.support.trees import git
from tests.workers.cli.conftest import Gradmatrix
from workers.fetch import Fetcher

ONE = ("--torch", "2.11.0", "--mode", "eager", "--transport", "gloo", "--case", "dim0[dtype=float32,loss=square]")


@pytest.fixture
def there(api: Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:  # noqa: F811
    """A service that the settings name, with a token that may submit."""
    with served(State(api.settings, api.world.db, api.broker, embedded=False)) as address:
        monkeypatch.setenv("GRADMATRIX_SERVER", address)
        monkeypatch.setenv("GRADMATRIX_TOKEN", api.secrets["submit"])
        yield api


def there_is(out: str) -> str:
    """The address at which everything is kept."""
    (address,) = re.findall(r"kept in (http://\S+)", out)
    return str(address)


def fetch_one(api: Api) -> None:  # noqa: F811
    """Take on the next submission that comes in."""
    while not Fetcher(api.settings, api.world.db, api.broker).one():
        time.sleep(0.05)


def test_submit_says_its_number_and_cancel_takes_it(gradmatrix: Gradmatrix, there: Api) -> None:
    assert gradmatrix("submit", "deepspeed==0.18.3", *ONE) == (0, "submission s1: resolving\n", "")
    assert there.world.view(1).request["wanted"]["cases"] == ["dim0[dtype=float32,loss=square]"]
    assert gradmatrix("cancel", "s1") == (0, "submission s1: cancelled\n", "")


def test_what_is_over_is_not_cancelled_and_says_so(
    gradmatrix: Gradmatrix, there: Api, caplog: pytest.LogCaptureFixture
) -> None:
    there.world.submit(["a"])
    there.world.run()
    with caplog.at_level("INFO", "service.api.submissions"):
        told = "submission s1 is done already: there was nothing to cancel\n"
        assert gradmatrix("cancel", "s1") == (0, told, "")
    assert [record.getMessage() for record in caplog.records if record.name == "service.api.submissions"] == [
        "not cancelled, as the submit one would have it: it is done already"
    ]


def test_what_is_held_goes_on_once_an_admin_approves_it(
    gradmatrix: Gradmatrix, there: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {"requester": "github", "reason": "webhook", "priority": 20, "request": {}}
    with there.world.db.session() as session:
        store.open_submission(session, **asked, held="it is a stranger's")
    status, _, err = gradmatrix("approve", "s1")
    assert status == 2 and "admin" in err
    monkeypatch.setenv("GRADMATRIX_TOKEN", there.secrets["admin"])
    assert gradmatrix("approve", "s1") == (0, "submission s1: resolving\n", "")


@pytest.mark.parametrize(("verdict", "status"), [(Verdict.AGREE, 0), (Verdict.ZERO_GRADIENT, 1), (Verdict.INFRA, 2)])
def test_wait_follows_it_and_exits_as_run_does(
    gradmatrix: Gradmatrix, there: Api, tmp_path: Path, verdict: Verdict, status: int
) -> None:
    sha = git(there.repository, "rev-parse", "HEAD")

    def work() -> None:
        fetch_one(there)
        for seconds in (0.0, 120.0, 240.0):  # what the machine failed at is tried three times
            there.world.run(verdict, seconds)

    worker = threading.Thread(target=work)
    worker.start()
    report = tmp_path / "report.json"
    done, out, err = gradmatrix("submit", sha, *ONE, "--wait", "--json", str(report), "--junit", str(tmp_path / "x"))
    worker.join()
    assert done == status, err
    assert "s1: done, 1 of 1 cell" in err
    assert f"deepspeed@{sha[:12]}" in out
    assert f"in full: {there_is(out)}/api/v1/cells/" in out
    assert "gradmatrix show" not in out, "that reads this machine's own store"
    (cell,) = json.loads(report.read_text())
    assert cell["verdict"] == verdict
    assert "<testsuites" in (tmp_path / "x").read_text()


def test_what_cannot_be_resolved_is_an_error(gradmatrix: Gradmatrix, there: Api) -> None:
    worker = threading.Thread(target=lambda: fetch_one(there))
    worker.start()
    status, out, err = gradmatrix("submit", f"git+{there.repository}@nowhere", *ONE, "--wait")
    worker.join()
    assert (status, out) == (2, "")
    assert "submission s1 could not be run: " in err
    assert "has no branch or tag 'nowhere'" in err


def test_a_cell_once_more(gradmatrix: Gradmatrix, there: Api) -> None:
    there.world.submit(["a"])
    (cell,) = there.world.run()
    assert gradmatrix("rerun", str(cell)) == (0, "submission s2: queued\n", "")
    assert gradmatrix("rerun", "j1")[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("submit", *ONE), "name at least one subject to test"),
        (("submit", "deepspeed==0.18.3"), "say on which torch: --torch V"),
        (("submit", "deepspeed==0.18.3", "--torch", "9"), "torch 9 is not in the catalogue"),
        (("submit", "deepspeed==0.18.3", "--torch", "2.11.0", "--world-size", "two"), "a world size is a number"),
        (("submit", "deepspeed==0.18.3", *ONE, "--json", "x"), "they need --wait"),
        (("submit", "deepspeed==0.18.3", *ONE, "--suite", "all"), "suite: is to be 'default' or 'full', not 'all'"),
        (("submit", "deepspeed==0.18.3", *ONE, "--priority", "99"), "needs scope admin"),
        (("cancel", "s3"), "there is no submission 3"),
        (("cancel", "3"), "'3' is no submission: those are s1, s2"),
        (("rerun", "99"), "there is no cell 99"),
        (("rerun", "s0"), "'s0' is no submission"),
    ],
)
def test_bad_input_is_one_error(gradmatrix: Gradmatrix, there: Api, words: tuple[str, ...], said: str) -> None:
    status, out, err = gradmatrix(*words)
    assert (status, out) == (2, "")
    assert said in err


def test_devices_are_listed_and_put_back_into_service(
    gradmatrix: Gradmatrix,
    there: Api,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert gradmatrix("workers", "list")[1].startswith("no host has looked for work yet")
    here = dataclasses.replace(host(), devices=("GPU-aa1", "GPU-ab2"), shares=False, transports=("nccl",))
    with there.world.db.session() as session:
        store.record_devices(session, here, {"GPU-aa1": "NVIDIA H200"}, at(0))
        store.quarantine(session, "here", {"GPU-ab2": "reported Xid 79"}, at(60))
    assert gradmatrix("workers", "list")[1].splitlines() == [
        "here: seen at 2026-01-01 00:00, runs nccl",
        "  GPU-aa1  NVIDIA H200  well since 2026-01-01 00:00",
        "  GPU-ab2  sick since 2026-01-01 00:01: reported Xid 79",
    ]
    assert "needs scope admin" in gradmatrix("workers", "well", "here", "GPU-ab2")[2]
    monkeypatch.setenv("GRADMATRIX_TOKEN", there.secrets["admin"])
    assert gradmatrix("workers", "well", "here", "GPU-ab")[:2] == (0, "here GPU-ab2: well\n")
    said = (0, "here GPU-aa1: sick, new fan\n")
    assert gradmatrix("workers", "sick", "here", "GPU-aa1", "--reason", "new fan")[:2] == said
    assert (
        "is not one device of host 'here': it has GPU-aa1, GPU-ab2" in gradmatrix("workers", "well", "here", "GPU-a")[2]
    )
    assert "`gradmatrix workers list` shows" in gradmatrix("workers", "well", "there", "GPU-aa1")[2]
    assert "needs a reason" in gradmatrix("workers", "sick", "here", "GPU-aa1", "--reason", " ")[2]


def test_a_service_that_is_not_there(gradmatrix: Gradmatrix, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    status, _, err = gradmatrix("cancel", "s1", "--server", "http://127.0.0.1:9")
    assert status == 2
    assert "http://127.0.0.1:9/api/v1 cannot be reached" in err
