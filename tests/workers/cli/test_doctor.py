from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pynvml
import pytest

from service.config import Settings
from service.db import journal_mode
from tests.support.nvml import FakeNvml, machine
from tests.workers.cli.conftest import Gradmatrix
from workers.cli import doctor
from workers.cli.doctor import CHECKS, Finding, examine, lines
from workers.gpus.nvml import load


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


@pytest.fixture
def bare_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but what a test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    return folder


def script(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n", "utf-8")
    (folder / name).chmod(0o755)


def test_nothing_installed_is_a_warning_each_with_its_remedy(settings: Settings, bare_path: Path) -> None:
    for check in (doctor.check_compiler, doctor.check_git, doctor.check_engine):
        finding = check(settings)
        assert finding.status == "warn"
        assert finding.remedy


def test_a_compiler_that_compiles_nothing_is_told_from_none(settings: Settings, bare_path: Path) -> None:
    assert "inductor cells are unsupported" in doctor.check_compiler(settings).text
    script(bare_path, "g++", "exit 1")
    assert "cannot compile a program of two lines" in doctor.check_compiler(settings).text
    script(bare_path, "g++", "echo 'g++ 99.1'")
    assert doctor.check_compiler(settings).text == f"{bare_path / 'g++'}: g++ 99.1"


def test_the_compiler_named_in_the_environment_is_the_one_that_counts(
    settings: Settings, bare_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(bare_path, "g++", "echo g++ 99.1")
    monkeypatch.setenv("CXX", "mine")
    assert doctor.check_compiler(settings).status == "warn"


def test_an_engine_that_does_not_answer_is_told_from_none(settings: Settings, bare_path: Path) -> None:
    assert doctor.check_engine(settings).text.startswith("none")
    script(bare_path, "docker", "exit 1")
    assert doctor.check_engine(settings).text == "docker is installed but does not answer"
    script(bare_path, "docker", "echo 24.0.7")
    assert doctor.check_engine(settings) == Finding("container engine", "ok", "docker 24.0.7")


def test_gpus_are_counted_and_named_as_a_worker_would_lease_them(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.gpus.nvml.load", lambda: machine(2))
    assert doctor.check_gpus(settings) == Finding("GPUs", "ok", "2: NVIDIA H200; driver 570.0")
    for nothing in (FakeNvml(), None):
        monkeypatch.setattr("workers.gpus.nvml.load", lambda nothing=nothing: nothing)
        finding = doctor.check_gpus(settings)
        assert finding.status == "warn"
        assert finding.remedy


def test_a_driver_that_does_not_work_is_a_failure(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = FakeNvml(init=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    monkeypatch.setattr("workers.gpus.nvml.load", lambda: load(broken))
    (finding,) = (one for one in examine(settings) if one.name == "GPUs")
    assert finding.status == "fail"
    assert "does not work: Driver Not Loaded" in finding.text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_state_folder_without_the_right_to_write_fails(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    assert doctor.check_state(Settings(home=tmp_path / "locked" / "home")).status == "fail"


def test_a_state_folder_below_a_file_fails_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    finding = doctor.check_state(Settings(home=tmp_path / "file" / "home"))
    assert finding.status == "fail"
    assert "GRADMATRIX_HOME" in finding.remedy


def test_a_disk_that_is_too_small_fails_with_both_numbers(tmp_path: Path) -> None:
    finding = doctor.check_disk(Settings(home=tmp_path, disk_spare_bytes=10**18))
    assert finding.status == "fail"
    assert "free at" in finding.text
    assert "1000000.0 TB" in finding.text


def test_the_journal_is_said_and_why(settings: Settings) -> None:
    mode = journal_mode(sqlite3.sqlite_version_info)
    text = doctor.check_sqlite(settings).text
    assert text.startswith(f"{sqlite3.sqlite_version}, journal {mode}")
    assert ("can corrupt" in text) == (mode != "WAL")


def test_an_index_that_is_configured_away_is_a_warning(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    finding = doctor.check_index(settings)
    assert finding.status == "warn"
    assert "no-index" in finding.text


def test_an_index_that_cannot_be_reached_fails_where_nothing_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    finding = doctor.check_index(Settings(home=tmp_path, connect_s=1.0))
    assert finding.status == "fail"
    assert "127.0.0.1:9" in finding.text
    assert "pip config list" in finding.remedy


def test_a_check_that_breaks_is_a_finding_and_the_others_go_on(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Settings) -> Finding:
        raise ZeroDivisionError("x")

    monkeypatch.setattr(doctor, "CHECKS", {"first": broken, "Python": doctor.check_python})
    first, second = examine(settings)
    assert (first.name, first.status) == ("first", "fail")
    assert second.status == "ok"


def test_a_finding_is_printed_with_its_remedy_and_inertly() -> None:
    printed = [line.plain for line in lines(Finding("disk", "warn", "10 B\x1b[2J [red]", "buy one"))]
    assert printed == [r"warn disk             10 B\x1b[2J [red]", "     remedy: buy one"]


def test_the_command_prints_every_check_and_ends_with_2_if_one_fails(
    gradmatrix: Gradmatrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    status, out, _ = gradmatrix("doctor")
    failures = sum(line.startswith("fail ") for line in out.splitlines())
    assert status == (2 if failures else 0)
    assert all(any(name in line for line in out.splitlines()) for name in CHECKS)
    monkeypatch.setenv("GRADMATRIX_DISK_SPARE_BYTES", str(10**18))
    status, out, _ = gradmatrix("doctor")
    assert status == 2
    assert "fail disk" in out


def test_runtimes_of_the_only_variant_there_is_are_counted(tmp_path: Path) -> None:
    assert doctor.check_runtimes(Settings(home=tmp_path)).text == "0 of 14 built; a run builds what it needs"
