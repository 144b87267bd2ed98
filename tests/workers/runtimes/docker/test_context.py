"""What a build is given: a lock in two parts, the site's addresses and certificates, and wheels that no index has."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from pathlib import Path

import pytest

from service import catalog
from service.catalog import RuntimeSpec
from service.config import Settings, images_folder
from service.pip_config import PipConfig
from tests.support.wheels import make_wheel
from workers.runtimes.docker import context
from workers.runtimes.locking import exactly

SPECS = [spec for spec in catalog.load(Settings(home=Path("/nonexistent/home"))).runtimes if spec.locked]
DOCKERFILE = (images_folder() / "Dockerfile").read_text("utf-8")
NAME = re.compile(r"^([A-Za-z0-9._-]+)===", re.MULTILINE)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_torch_and_what_it_brings_of_cuda_are_apart_from_all_else(spec: RuntimeSpec) -> None:
    lock = exactly(spec.lock)
    torch, needs = map(set, map(NAME.findall, context.parts(lock)))
    assert torch | needs == set(NAME.findall(lock))
    assert not torch & needs
    assert {name for name in torch if not name.startswith(("nvidia-", "cuda-"))} == {"torch"} | (
        {"triton"} if spec.variant == "gpu" else set()
    )
    assert {"numpy", "einops", "sympy"} <= needs
    assert not {name for name in needs if name.startswith(("nvidia", "cuda"))}


def test_no_line_of_a_lock_is_lost_but_its_comments() -> None:
    lock = exactly(SPECS[0].lock)
    lines = [line for part in context.parts(lock) for line in part.splitlines()]
    assert sorted(lines) == sorted(line for line in lock.splitlines() if not line.startswith("#"))
    assert sum(line.startswith("    --hash=sha256:") for line in lines) > 100


def test_a_site_without_a_configuration_passes_nothing_on() -> None:
    assert context.arguments(PipConfig()) == {}
    assert context.certificates(PipConfig()) == b""


def test_a_sites_configuration_is_passed_on_but_for_what_no_build_can_reach() -> None:
    pip = PipConfig(
        index_url="https://me:pass@packages.test/simple",
        extra_index_urls=("file:///opt/simple", "https://more.test/simple", "https://other.test/simple"),
        find_links=("/opt/wheels", "https://links.test/page.html"),
        proxy="http://proxy.test:3128",
        no_index=True,
    )
    assert context.arguments(pip) == {
        "INDEX_URL": "https://me:pass@packages.test/simple",
        "EXTRA_INDEX_URLS": "https://more.test/simple https://other.test/simple",
        "FIND_LINKS": "https://links.test/page.html",
        "NO_INDEX": "true",
        "HTTP_PROXY": "http://proxy.test:3128",
        "HTTPS_PROXY": "http://proxy.test:3128",
    }


def test_certificates_are_a_file_or_all_files_of_a_folder(tmp_path: Path) -> None:
    for name in ("b.pem", "a.pem"):
        (tmp_path / name).write_text(f"{name}\n", "utf-8")
    assert context.certificates(PipConfig(cert=str(tmp_path / "a.pem"))) == b"a.pem\n"
    assert context.certificates(PipConfig(cert=str(tmp_path))) == b"a.pem\n\nb.pem\n"


def test_of_a_folder_of_wheels_only_what_is_locked_is_taken(tmp_path: Path) -> None:
    wanted = make_wheel(tmp_path, "some_dep", "1.0")
    make_wheel(tmp_path, "other", "1.0")
    sha256 = hashlib.sha256(wanted.read_bytes()).hexdigest()
    lock = f"Some.Dep===1.0 --hash=sha256:{sha256}\nother===1.0 --hash=sha256:00\n"
    for link in (str(tmp_path), tmp_path.as_uri()):
        pip = PipConfig(find_links=("https://links.test/", str(tmp_path / "none"), link))
        assert context.local_wheels(pip, lock) == (wanted,)
    assert context.local_wheels(PipConfig(find_links=(str(tmp_path),)), "other===1.0 --hash=sha256:00\n") == ()


def test_the_context_holds_what_the_dockerfile_copies(tmp_path: Path) -> None:
    wheel, file = make_wheel(tmp_path, "extra", "1.0"), io.BytesIO()
    context.write(file, images_folder() / "Dockerfile", "extra===1.0\n", b"certificate", [wheel])
    with tarfile.open(fileobj=file) as archive:
        members = {member.name: member for member in archive}
        content = {name: archive.extractfile(name) for name, member in members.items() if member.isfile()}
        read = {name: part.read() for name, part in content.items() if part}
    assert read == {
        "Dockerfile": DOCKERFILE.encode(),
        "packages.txt": b"extra===1.0\n",
        "site/ca.pem": b"certificate",
        "bootstrap.py": context.BOOTSTRAP.read_bytes(),
        "site/wheels/extra-1.0-py3-none-any.whl": wheel.read_bytes(),
    }
    assert members["site/wheels"].isdir()
    copied = re.findall(r"^COPY (?!--from)(\S+)", DOCKERFILE, re.MULTILINE)
    assert {name.rstrip("/") for name in copied} <= set(members)


def test_the_dockerfile_takes_every_argument_and_needs_no_buildkit() -> None:
    every = context.arguments(PipConfig("i", ("e",), ("https://f",), None, "p", no_index=True))
    own = {name for name in every if not name.endswith("_PROXY")}
    assert set(re.findall(r"^ARG (\w+)=", DOCKERFILE, re.MULTILINE)) == own | {"BASE_IMAGE", "PYTHON", "BUILD"}
    for word in ("--mount", "<<", "# syntax", "--chmod", "--link"):
        assert word not in DOCKERFILE


def test_only_the_stage_that_is_thrown_away_knows_the_site() -> None:
    """What a stage says is in the history of those that stand on it."""
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    names = [match[1] if (match := re.match(r"\S+ AS (\w+)", stage)) else "" for stage in stages]
    assert names == ["base", "install", "packages", ""]
    knowing = [name for name, stage in zip(names, stages, strict=True) if "site" in stage or "INDEX" in stage]
    assert knowing == ["install"]
    assert [stage.split()[0] for stage in stages] == ["${BASE_IMAGE}", "base", "base", "packages"]
    assert "--require-hashes --only-binary :all:" in stages[1]
