from __future__ import annotations

from pathlib import Path

import pytest

from service.config import Settings
from workers import memory

GIB = 2**30


def test_a_rank_has_its_share_of_three_quarters_among_as_many_as_may_run_at_once(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, cpu_slots=2)
    assert memory.rank_bytes(settings, [2], machine=64 * GIB) == 24 * GIB
    assert memory.rank_bytes(settings, [2, 8], machine=64 * GIB) == 6 * GIB
    assert memory.rank_bytes(Settings(home=tmp_path, cpu_slots=12), [4], machine=64 * GIB) == 4 * GIB


def test_a_small_machine_leaves_what_an_import_needs(tmp_path: Path) -> None:
    assert memory.rank_bytes(Settings(home=tmp_path, cpu_slots=8), [8], machine=4 * GIB) == 2 * GIB


def test_what_is_set_goes_before_and_an_unknown_machine_has_no_limit(tmp_path: Path) -> None:
    assert memory.rank_bytes(Settings(home=tmp_path, rank_memory_bytes=5), [2], machine=64 * GIB) == 5
    assert memory.rank_bytes(Settings(home=tmp_path), [2], machine=0) == 0


def test_a_container_of_less_than_the_machine_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo, limit, none = tmp_path / "meminfo", tmp_path / "memory.max", tmp_path / "limit_in_bytes"
    meminfo.write_text("MemTotal:       16777216 kB\nMemFree:        1 kB\n")
    monkeypatch.setattr(memory, "MEMORY", meminfo)
    monkeypatch.setattr(memory, "CGROUPS", (limit, none))
    limit.write_text("max\n")
    assert memory.machine_bytes() == 16 * GIB
    limit.write_text(f"{4 * GIB}\n")
    assert memory.machine_bytes() == 4 * GIB
    meminfo.unlink()
    limit.unlink()
    assert memory.machine_bytes() == 0
