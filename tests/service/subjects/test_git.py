"""Commits of real repositories made here: exactly their files, and nothing of theirs or of this machine's is run."""

from __future__ import annotations

import concurrent.futures
import functools
import http.server
import os
import random
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.config import Settings
from service.subjects import Checkout, SubjectError, TreeRefused, UnknownSubject, Unreachable, parse_subject, resolve
from service.subjects.git import Mirror
from tests.service.subjects.conftest import left_over
from tests.support.trees import SAMPLE, Tree, commit_all, digest_of, git, make_repository, write_folder

ODD: Tree = {
    **SAMPLE,
    ".gitattributes": b"*.py export-subst text eol=crlf\nsecret export-ignore\n*.bin filter=lfs -text\n",
    "secret": b"left out by git archive",
    "deepspeed/version.py": b"id = '$Format:%H$'\n",
    "weights.bin": b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n",
    ".gitmodules": b'[submodule "sub"]\n\tpath = sub\n\turl = https://host.invalid/x\n',
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "origin"


@pytest.fixture
def settings(home: Path, repository: Path) -> Settings:
    return Settings(
        home=home, default_repository=str(repository), connect_s=5, fetch_s=20, archive_bytes=2**20,
        archive_file_bytes=2**18,
    )  # fmt: skip


def get(ref: str, settings: Settings) -> Checkout:
    return resolve(parse_subject(f"git+file://{settings.default_repository}@{ref}", settings), settings)


def test_a_commit_is_exactly_its_files(settings: Settings, repository: Path, tmp_path: Path) -> None:
    plain = make_repository(repository, ODD)
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{plain},sub")  # a submodule
    git(repository, "commit", "--quiet", "-m", "with a submodule")
    sha = git(repository, "rev-parse", "HEAD")
    checkout = get("main", settings)
    assert checkout.digest == digest_of(ODD)
    assert (checkout.subject, checkout.kind, checkout.ref) == ("deepspeed", "commit", sha)
    assert (checkout.label, checkout.meta) == (f"deepspeed@{sha[:12]}", {"repository": str(repository)})
    folder = resolve(parse_subject(str(write_folder(tmp_path / "tree", ODD)), settings), settings)
    assert folder.digest == checkout.digest


def test_every_way_to_name_a_commit(settings: Settings, repository: Path) -> None:
    first = make_repository(repository)
    git(repository, "tag", "-a", "v1", "-m", "annotated")
    git(repository, "branch", "feature/x", first)
    write_folder(repository, {"new.py": b"second"})
    second = commit_all(repository)
    git(repository, "update-ref", "refs/pull/7/head", first)
    assert {get(ref, settings).ref for ref in ("v1", "feature/x", "refs/pull/7/head", "refs/tags/v1", first)} == {first}
    assert get("HEAD", settings).ref == second
    assert resolve(parse_subject(second[:9], settings), settings).ref == second
    write_folder(repository, {"new.py": b"third"})
    third = commit_all(repository)
    assert get("main", settings).ref == third, "a branch is looked up anew"
    assert get("main", settings).digest == digest_of({**SAMPLE, "new.py": b"third"})


def test_a_short_sha_is_found_in_the_history_even_after_single_commits(settings: Settings, repository: Path) -> None:
    shas = [make_repository(repository), *(commit_all(repository, str(number)) for number in range(4))]
    assert get("main", settings).ref == shas[4]
    assert get(shas[1][:8], settings).ref == shas[1]
    assert get(shas[3], settings).ref == shas[3]


def test_what_is_known_needs_no_repository(settings: Settings, repository: Path) -> None:
    sha = make_repository(repository)
    first = get("main", settings)
    repository.rename(repository.with_name("moved"))
    assert get(sha, settings) == first
    assert get(sha[:10], settings) == first, "out of the mirror"
    first.tar.write_bytes(first.tar.read_bytes()[:-600])
    assert get(sha, settings) == first, "rebuilt out of the mirror"
    with pytest.raises(Unreachable, match=r"cannot fetch from file://.*origin: fatal: .*check the network"):
        get("main", settings)


@pytest.mark.parametrize(
    ("ref", "words"),
    [
        ("mian", "has no branch or tag 'mian'; did you mean main"),
        ("0123456789", "no commit, or more than one, begins with 0123456789"),
        ("f" * 40, "has no commit f{40}, or no longer hands it out"),
        ("blob", "has no commit [0-9a-f]{40}, or no longer"),
    ],
)
def test_an_unknown_commit_is_named_with_the_nearest(
    settings: Settings, repository: Path, ref: str, words: str
) -> None:
    make_repository(repository)
    git(repository, "tag", "blob", git(repository, "rev-parse", "HEAD:setup.py"))
    with pytest.raises(UnknownSubject, match=words):
        get(ref, settings)
    assert left_over(settings.home) == []


def test_a_bare_sha_of_another_repository_is_told_how_to_name_it(
    settings: Settings, repository: Path, tmp_path: Path
) -> None:
    make_repository(repository)
    sha = make_repository(tmp_path / "the other", {**SAMPLE, "new.py": b""})
    with pytest.raises(UnknownSubject, match=f"has no commit {sha}") as alone:
        resolve(parse_subject(sha, settings), settings)
    assert "git+" not in str(alone.value), "there is no other repository to name"
    both = settings.model_copy(update={"repositories": (str(tmp_path / "the other"), str(repository) + "/")})
    for missing in (UnknownSubject, Unreachable):
        with pytest.raises(missing, match=r"in the default repository alone") as raised:
            resolve(parse_subject(sha, both), both)
        named = str(raised.value).split(" it is named ")[1]
        assert named == f"git+file://{tmp_path}/the%20other@{sha}"
        shutil.rmtree(repository, ignore_errors=True)
    assert resolve(parse_subject(named, both), both).ref == sha


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose git is configured to run a script at every turn; returns what the script would leave behind."""
    marker = tmp_path / "was-run"
    hooks = write_folder(tmp_path / "hooks", {
        f"{name}*": f"#!/bin/sh\ntouch {marker}\n".encode()
        for name in ("reference-transaction", "post-checkout", "post-merge", "pre-auto-gc", "fsmonitor")
    })  # fmt: skip
    script = str(hooks / "post-checkout")
    configuration = tmp_path / "gitconfig"
    configuration.write_text(
        f"[core]\n hooksPath = {hooks}\n fsmonitor = {script}\n"
        f'[filter "lfs"]\n smudge = {script}\n clean = {script}\n required = true\n'
        f'[url "file:///nowhere/"]\n insteadOf = file://\n[uploadpack]\n packObjectsHook = {script}\n'
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(configuration))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "2")
    monkeypatch.setenv("GIT_CONFIG_KEY_1", "url.file:///nowhere/.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_1", "file://")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.hooksPath")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(hooks))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", script)
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(write_folder(tmp_path / "template", {
        "hooks/reference-transaction*": f"#!/bin/sh\ntouch {marker}\n".encode(),
    })))  # fmt: skip
    return marker


def test_nothing_that_is_configured_is_run(settings: Settings, repository: Path, trap: Path) -> None:
    sha = make_repository(repository, ODD)
    write_folder(repository / ".git/hooks", {"reference-transaction*": f"#!/bin/sh\ntouch {trap}\n".encode()})
    assert get("main", settings).digest == digest_of(ODD)
    assert get(sha[:8], settings).digest == digest_of(ODD)
    assert not trap.exists()


def test_a_hook_in_the_mirror_itself_is_not_run(settings: Settings, repository: Path, tmp_path: Path) -> None:
    make_repository(repository)
    get("main", settings)
    (mirror,) = (settings.home / "mirrors").glob("*.git")
    hook = f"#!/bin/sh\ntouch {tmp_path}/was-run\n".encode()
    write_folder(mirror / "hooks", {"reference-transaction*": hook, "post-fetch*": hook})
    write_folder(repository, {"new.py": b""})
    commit_all(repository)
    get("main", settings)
    assert not (tmp_path / "was-run").exists()
    git(mirror, "update-ref", "refs/wanted/x", commit_sha(mirror))
    assert (tmp_path / "was-run").exists(), "the trap itself works"


def commit_sha(folder: Path) -> str:
    return git(folder, "for-each-ref", "--count=1", "--format=%(objectname)")


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"l": "/etc/passwd"}, "absolute path"),
        ({"d/l": "../../x"}, "leaves the tree"),
        ({"big": bytes(2**18 + 1)}, "262,145 bytes; one file may have 262,144"),
        ({f"big{i}": bytes(2**18) for i in range(5)}, "beyond 1,048,576 bytes"),
        ({"a\x1bb": b""}, "control character"),
    ],
)
def test_the_same_checks_hold_as_for_archives(settings: Settings, repository: Path, tree: Tree, words: str) -> None:
    make_repository(repository, {**SAMPLE, **tree})
    with pytest.raises(TreeRefused, match=words):
        get("main", settings)
    assert left_over(settings.home) == []


def raw_tree(repository: Path, lines: str) -> str:
    """A tree object out of ``mktree`` lines, which git itself would not check out."""
    done = subprocess.run(
        ["git", "-C", str(repository), "mktree", "--missing"], input=lines, text=True, capture_output=True, check=True
    )
    return done.stdout.strip()


def test_a_tree_that_unfolds_without_end_is_stopped_at_the_cap(settings: Settings, repository: Path) -> None:
    make_repository(repository)
    tree = git(repository, "rev-parse", "HEAD:")
    for _ in range(12):  # ten of each, twelve levels: 6 · 10^12 files
        tree = raw_tree(repository, "".join(f"040000 tree {tree}\t{i}\n" for i in range(10)))
    git(repository, "update-ref", "refs/heads/bomb", git(repository, "commit-tree", tree, "-m", "bomb"))
    with pytest.raises(TreeRefused, match="more than 50,000 members"):
        get("bomb", settings)


def test_several_at_once_agree(settings: Settings, repository: Path) -> None:
    make_repository(repository)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda _: get("main", settings), range(4)))
    assert {checkout.digest for checkout in got} == {digest_of(SAMPLE)}


def mirror(home: Path, remote: str, *, max_bytes: int = 2**30, connect_s: float = 5) -> Mirror:
    """A mirror that may use plain http, for a server of our own."""
    return Mirror(home, remote, connect_s=connect_s, fetch_s=20, max_bytes=max_bytes, protocols=("http", "file"))


def test_a_repository_beyond_the_cap_is_given_up_and_removed(home: Path, repository: Path) -> None:
    make_repository(repository, {"noise": random.Random(1).randbytes(2**20)})
    small = mirror(home, str(repository), max_bytes=2**19)
    with small.locked(), pytest.raises(SubjectError, match="larger than the 524,288 bytes allowed; nothing was kept"):
        small.resolve("main")
    assert list((home / "mirrors").glob("*.git")) == []
    roomy = mirror(home, str(repository))
    with roomy.locked():
        assert roomy.resolve("main") == git(repository, "rev-parse", "HEAD")


def test_what_a_killed_git_left_behind_is_no_hindrance(settings: Settings, repository: Path) -> None:
    make_repository(repository)
    get("main", settings)
    (folder,) = (settings.home / "mirrors").glob("*.git")
    left = [folder / "shallow.lock", folder / "objects/pack/tmp_pack_x", folder / "refs/wanted/x.lock"]
    for path in left:
        path.touch()
    write_folder(repository, {"new.py": b""})
    sha = commit_all(repository)
    assert get("main", settings).ref == sha
    assert not any(path.exists() for path in left)


class Web(http.server.SimpleHTTPRequestHandler):
    """Serves repositories as files, and redirects ``/moved/…`` to them."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Keep the tests' output clean."""

    def do_GET(self) -> None:
        if self.path.startswith("/moved/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/moved"))
            self.end_headers()
        else:
            super().do_GET()


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    handler = functools.partial(Web, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_redirects_are_not_followed(home: Path, repository: Path, web: str) -> None:
    sha = make_repository(repository)
    git(repository, "update-server-info")
    straight, moved = mirror(home, f"{web}/origin/.git"), mirror(home, f"{web}/moved/origin/.git")
    with straight.locked():
        assert straight.resolve("main") == sha, "an old server, which does not hand out commits by their SHA"
    with moved.locked(), pytest.raises(Unreachable, match="redirects are not followed"):
        moved.resolve("main")


def test_only_https_and_local_repositories_can_be_fetched(home: Path, repository: Path, web: str) -> None:
    make_repository(repository)
    git(repository, "update-server-info")
    strict = Mirror(home, f"{web}/origin/.git", connect_s=5, fetch_s=20)
    with strict.locked(), pytest.raises(Unreachable, match="transport 'http' not allowed"):
        strict.resolve("main")


def test_a_server_that_never_answers_is_given_up(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = mirror(home, f"http://127.0.0.1:{server.getsockname()[1]}/x", connect_s=0.2)
        with silent.locked(), pytest.raises(Unreachable, match="did not finish in time"):
            silent.resolve("main")
