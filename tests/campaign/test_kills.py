"""The kill campaign: parts of a fleet die at every named point, and nothing is lost, doubled or left behind."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.campaign import reader
from tests.campaign.fleet import ENDS_S, Campaign, campaign_fleet

pytestmark = pytest.mark.services


def campaign(folder: Path, *, cells: int, **more: Any) -> None:
    """Run one, and hold the fleet to its word."""
    began = time.monotonic()
    with campaign_fleet(folder) as fleet:
        done = Campaign(fleet, cells=cells, **more).run()
        killed = time.monotonic()
        latest = max(kill.at for kill in done) + ENDS_S
        while fleet.unfinished():
            assert time.time() < latest, (reader.read(fleet.conninfo, latest=latest), fleet.logs())
            time.sleep(0.1)
        ended = time.monotonic()
        assert reader.read(fleet.conninfo, latest=latest) == []
        there = reader.count(fleet.conninfo)
        assert there["submissions"] == fleet.posts
        assert there["answers"] == there["cells"] >= cells
    print(f"{len(done)} kills in {killed - began:.0f} s; all over {ended - killed:.1f} s after the last: {there}")  # noqa: T201


@pytest.mark.timeout(600)
def test_twenty_kills_lose_nothing(tmp_path: Path) -> None:
    campaign(tmp_path, seed=1, number=20, cells=32)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_three_hundred_kills_at_every_point_lose_nothing(tmp_path: Path) -> None:
    campaign(tmp_path, seed=2, number=300, cells=500, every=True)
