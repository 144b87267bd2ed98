"""The hosts of a fleet over HTTP, and taking their devices out of service."""

from __future__ import annotations

import dataclasses
from typing import Any

from httpx2 import Response

from service import store
from tests.service.api.conftest import Api
from tests.support.stored import T0, at, host

HERE = dataclasses.replace(host(), devices=("GPU-a", "GPU-b"), shares=False)


def patch(api: Api, device: str, body: dict[str, Any], scope: str = "admin") -> Response:
    return api.client.patch(f"/api/v1/workers/{device}", json=body, headers=api.headers(scope))


def test_devices_are_shown_with_state_reason_and_job(api: Api) -> None:
    with api.world.db.session() as session:
        store.record_devices(session, HERE, {"GPU-a": "NVIDIA H200"}, T0)
    api.world.submit(["a"])
    (job,) = api.world.claimed(0, HERE).jobs
    with api.world.db.session() as session:
        store.quarantine(session, "here", {"GPU-b": "reported Xid 79"}, at(9))
    (worker,) = api.get("/workers").json()
    assert worker["devices"] == [
        {"name": "GPU-a", "model": "NVIDIA H200", "state": "well", "reason": "", "since": "2026-01-01T00:00:00Z",
         "jobs": [job.job]},
        {"name": "GPU-b", "model": "", "state": "sick", "reason": "reported Xid 79", "since": "2026-01-01T00:00:09Z",
         "jobs": [job.job]},
    ]  # fmt: skip
    answer = patch(api, "here/devices/GPU-b", {"state": "well"})
    assert (answer.status_code, answer.json()["state"], answer.json()["reason"]) == (200, "well", "")


def test_only_an_admin_says_how_a_device_is_and_gives_a_reason(api: Api) -> None:
    with api.world.db.session() as session:
        store.record_devices(session, HERE, {}, T0)
    assert patch(api, "here/devices/GPU-a", {"state": "well"}, "submit").status_code == 403
    answer = patch(api, "here/devices/GPU-a", {"state": "sick", "reason": " "})
    assert (answer.status_code, "needs a reason" in answer.json()["detail"]) == (422, True)
    assert patch(api, "here/devices/GPU-a", {"state": "ill", "reason": "x"}).status_code == 422
    assert patch(api, "here/devices/GPU-a", {"state": "sick", "reason": "new fan"}).json()["reason"] == "new fan"
    assert patch(api, "here/devices/GPU-z", {"state": "well"}).status_code == 404
    assert patch(api, "there/devices/GPU-a", {"state": "well"}).json()["detail"] == "there is no host there"
