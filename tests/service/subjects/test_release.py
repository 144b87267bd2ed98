"""Releases, against a stand-in index on loopback with every fault that an index can have."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from service.config import Settings
from service.subjects import (
    Checkout,
    SubjectError,
    UnknownSubject,
    Unreachable,
    WrongHash,
    parse_subject,
    resolve,
    verify,
)
from tests.service.subjects.conftest import left_over
from tests.support.index import StandInIndex, wait_for_request
from tests.support.trees import SAMPLE, digest_of, write_folder, write_sdist


def get(text: str, settings: Settings) -> Checkout:
    return resolve(parse_subject(text, settings), settings)


def test_a_release_is_the_indexs_file_and_the_same_as_a_folder_with_its_files(
    index: StandInIndex, settings: Settings, tmp_path: Path
) -> None:
    archive = write_sdist(index.folder, "deepspeed", "1.0")
    said: list[tuple[str, int, int | None]] = []
    release = resolve(parse_subject("DeepSpeed==1.0", settings), settings, lambda *step: said.append(step))
    assert (release.subject, release.kind, release.label, release.ref) == (
        "deepspeed", "release", "deepspeed==1.0", "1.0",
    )  # fmt: skip
    assert release.digest == digest_of(SAMPLE)
    assert release.meta["archive_sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    size = archive.stat().st_size
    assert (f"downloading {archive.name}", size, size) in said
    assert release.size == release.tar.stat().st_size
    folder = get(str(write_folder(tmp_path / "tree", SAMPLE)), settings)
    assert (folder.digest, folder.tar, folder.label) == (release.digest, release.tar, "path:tree")


def test_a_known_release_needs_no_network_and_a_damaged_tar_is_rebuilt(index: StandInIndex, settings: Settings) -> None:
    write_sdist(index.folder, "deepspeed", "1.0")
    first = get("deepspeed==1.0", settings)
    asked = len(index.requests)
    assert asked
    assert get("deepspeed==1.0", settings) == first
    assert get("deepspeed==1.0.0", settings) == first, "two spellings of one version"
    assert len(index.requests) == asked
    good = first.tar.read_bytes()
    first.tar.write_bytes(good.replace(b"version = '1.0'", b"version = '6.6'"))
    assert not verify(first)
    assert not first.tar.exists()
    assert get("deepspeed==1.0", settings) == first
    assert first.tar.read_bytes() == good
    assert len(index.requests) == 2 * asked
    assert verify(first)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("deepspeed==0.18.30", "nearest: deepspeed==0.9, deepspeed==0.18.3, deepspeed==0.19.8; newest: 0.19.8"),
        ("deepsped==0.18.3", "no package index .* knows this project; did you mean deepspeed"),
        ("deepspeed==7", "no source archive .*, only deepspeed-7-py3-none-any.whl"),
    ],
)
def test_an_unknown_release_names_the_nearest(index: StandInIndex, settings: Settings, text: str, words: str) -> None:
    for version in ("0.9", "0.18.3", "0.19.8"):
        write_sdist(index.folder, "deepspeed", version)
    (index.folder / "deepspeed-7-py3-none-any.whl").write_bytes(b"")
    with pytest.raises(UnknownSubject, match=words):
        get(text, settings)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("wrong-hash", WrongHash, "wrong hash, nothing was kept: sha256 0{64} is promised"),
        ("no-hash", SubjectError, "states no sha256"),
        ("truncated", Unreachable, "ended too early|closed half-way|connection fails"),
        ("drop", Unreachable, "connection fails"),
        ("missing", Unreachable, "lists this file but does not have it"),
        ("error", Unreachable, "answers 500"),
        ("endless", Unreachable, "larger than the 1,048,576 bytes allowed"),
        ("stall", Unreachable, "no answer in time"),
        ("drip", Unreachable, "not whole in time"),
    ],
)
def test_a_fault_in_the_file_is_named_and_leaves_nothing(
    index: StandInIndex, settings: Settings, fault: str, error: type[Exception], words: str
) -> None:
    write_sdist(index.folder, "deepspeed", "1.0")
    index.fail("deepspeed-1.0.tar.gz", fault)
    quick = {"connect_s": 0.3, "fetch_s": 0.6} if fault in ("stall", "drip") else {}
    with pytest.raises(error, match=words):
        get("deepspeed==1.0", settings.model_copy(update=quick))
    assert left_over(settings.home) == []
    index.heal()
    assert get("deepspeed==1.0", settings).digest == digest_of(SAMPLE)


@pytest.mark.parametrize("fault", ["error", "drop", "truncated"])
@pytest.mark.parametrize("where", ["deepspeed", "deepspeed-1.0.tar.gz"])
def test_a_fault_that_passes_is_tried_again(index: StandInIndex, settings: Settings, fault: str, where: str) -> None:
    write_sdist(index.folder, "deepspeed", "1.0")
    index.fail(where, fault, times=1)
    assert get("deepspeed==1.0", settings).digest == digest_of(SAMPLE)


@pytest.mark.parametrize("fault", ["drop", "error", "stall", "drip", "truncated"])
def test_an_index_that_cannot_be_reached_says_what_to_check(
    index: StandInIndex, settings: Settings, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//me:secret@"))
    index.fail("deepspeed", fault)
    with pytest.raises(Unreachable, match=r"http://\*\*\*\*@127.* check the network.*pip config list") as raised:
        get("deepspeed==1.0", settings.model_copy(update={"connect_s": 0.3}))
    assert "secret" not in str(raised.value)
    assert left_over(settings.home) == []


def test_a_closed_port_is_unreachable_and_not_an_unknown_project(
    index: StandInIndex, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    with StandInIndex(tmp_path / "gone") as gone:
        url = gone.url
    monkeypatch.setenv("PIP_INDEX_URL", url)
    with pytest.raises(Unreachable, match="connection fails"):
        get("deepspeed==1.0", settings)
    write_sdist(index.folder, "deepspeed", "1.0")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", index.url)
    assert get("deepspeed==1.0", settings).ref == "1.0", "another index has it"


def test_every_index_of_pips_is_asked_and_a_folder_may_be_one(
    index: StandInIndex, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "simple" / "deepspeed"
    archive = write_sdist(page, "deepspeed", "2.0")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    (page / "index.html").write_text(f'<a href="{archive.name}#sha256={digest}">{archive.name}</a>')
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", (tmp_path / "simple").as_uri())
    assert get("deepspeed==2.0", settings).digest == digest_of(SAMPLE)
    assert index.requests == ["/simple/deepspeed/"], "the first index is asked first"


def test_a_page_from_the_network_cannot_name_a_file_of_this_machine(
    index: StandInIndex, settings: Settings, tmp_path: Path
) -> None:
    archive = write_sdist(tmp_path, "deepspeed", "1.0")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    index.links["deepspeed"] = [f'<a href="{archive.as_uri()}#sha256={digest}">{archive.name}</a>']
    with pytest.raises(UnknownSubject):
        get("deepspeed==1.0", settings)


def test_no_index_asks_nobody(index: StandInIndex, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UnknownSubject, match="no-index"):
        get("deepspeed==1.0", settings)
    assert index.requests == []


def test_a_tree_without_an_adapter_is_refused_and_one_with_its_own_needs_no_deepspeed(
    index: StandInIndex, settings: Settings
) -> None:
    write_sdist(index.folder, "other", "1.0", {"other.py": b"x = 1\n"})
    with pytest.raises(UnknownSubject, match=r"neither gradmatrix_adapter\.py nor deepspeed/__init__\.py"):
        get("other==1.0", settings)
    assert left_over(settings.home) == []
    write_sdist(index.folder, "other", "2.0", {"other.py": b"x = 1\n", "gradmatrix_adapter.py": b""})
    assert get("other==2.0", settings).subject == "checkout"


SCRIPT = """
import sys
from pathlib import Path
from service.config import Settings
from service.subjects import parse_subject, resolve
settings = Settings(home=Path(sys.argv[1]))
print(resolve(parse_subject("deepspeed==1.0", settings), settings).digest)
"""


def start(home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(home)], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )


def test_two_processes_at_once_agree_and_a_killed_one_leaves_nothing(index: StandInIndex, settings: Settings) -> None:
    write_sdist(index.folder, "deepspeed", "1.0")
    index.fail("deepspeed-1.0.tar.gz", "drip")
    with start(settings.home) as killed:
        wait_for_request(index, "/files/", 60)
        killed.send_signal(signal.SIGKILL)
    assert left_over(settings.home) == []
    index.heal()
    with start(settings.home) as one, start(settings.home) as two:
        answers = [process.communicate()[0].strip() for process in (one, two)]
    assert answers == [digest_of(SAMPLE)] * 2
    tar, note = left_over(settings.home)
    assert (tar, note[:16]) == (f"checkouts/{digest_of(SAMPLE)}.tar", "checkouts/known/")
