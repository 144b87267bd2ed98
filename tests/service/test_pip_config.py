"""pip's configuration, held to what pip itself says."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from service import pip_config
from service.pip_config import PipConfig, PipConfigError, pip_configuration, shown

MACHINE = (
    "[global]\nindex-url = https://machine.invalid/simple\nextra_index_url =\n  https://one.invalid/s\n  file:///two\n"
)
USER = "[global]\nindex-url = https://user.invalid/simple\ncert = ~/bundle.pem\n[install]\nfind-links = /wheels /more\n"


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine and a user of our own making, with nothing configured."""
    monkeypatch.setattr(pip_config, "ETC", tmp_path / "etc")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    return {"XDG_CONFIG_DIRS": str(tmp_path / "xdg"), "HOME": str(tmp_path), "PATH": os.defpath}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def test_nothing_configured_leaves_the_default_to_the_client_library(env: dict[str, str]) -> None:
    assert pip_configuration(env) == PipConfig()
    assert pip_configuration(env).index_urls == (None,)


def test_the_user_goes_before_the_machine_and_the_environment_before_both(env: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path / "xdg/pip/pip.conf", MACHINE)
    machine = pip_configuration(env)
    assert machine.index_urls == ("https://machine.invalid/simple", "https://one.invalid/s", "file:///two")
    write(tmp_path / ".config/pip/pip.conf", USER)
    user = pip_configuration(env)
    assert user.index_url == "https://user.invalid/simple"
    assert user.extra_index_urls == ("https://one.invalid/s", "file:///two")
    assert user.find_links == ("/wheels", "/more")
    assert user.cert == str(Path.home() / "bundle.pem")
    env |= {"PIP_INDEX_URL": "https://env.invalid/simple", "PIP_EXTRA_INDEX_URL": "https://a b", "PIP_CERT": "/c"}
    both = pip_configuration(env)
    assert both.index_urls == ("https://env.invalid/simple", "https://a", "b")
    assert both.cert == "/c"


def test_a_named_file_is_strongest_and_hides_the_users(env: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path / "xdg/pip/pip.conf", MACHINE)
    write(tmp_path / ".config/pip/pip.conf", USER)
    env["PIP_CONFIG_FILE"] = str(write(tmp_path / "named.conf", "[global]\nindex-url = https://named.invalid/simple\n"))
    config = pip_configuration(env)
    assert (config.index_url, config.cert, config.find_links) == ("https://named.invalid/simple", None, ())
    assert config.extra_index_urls == ("https://one.invalid/s", "file:///two")
    env["PIP_CONFIG_FILE"] = os.devnull
    assert pip_configuration(env) == PipConfig()


def test_no_index_means_that_no_index_is_asked(env: dict[str, str]) -> None:
    assert pip_configuration(env | {"PIP_NO_INDEX": "1"}).index_urls == ()
    assert pip_configuration(env | {"PIP_NO_INDEX": "0"}).index_urls == (None,)


def test_a_broken_file_is_named(env: dict[str, str], tmp_path: Path) -> None:
    path = write(tmp_path / ".config/pip/pip.conf", "index-url = before any section\n")
    with pytest.raises(PipConfigError, match=str(path)):
        pip_configuration(env)


def test_a_password_is_never_shown() -> None:
    assert shown("https://me:secret@host.invalid:8/simple") == "https://****@host.invalid:8/simple"
    assert shown("https://host.invalid/simple") == "https://host.invalid/simple"
    assert shown(None) == "the default package index"


@pytest.mark.parametrize("named", [False, True])
def test_pip_itself_says_the_same(
    env: dict[str, str], tmp_path: Path, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # pip sees this machine's own files below ours
    write(tmp_path / "xdg/pip/pip.conf", MACHINE)
    write(tmp_path / ".config/pip/pip.conf", USER)
    write(tmp_path / ".pip/pip.conf", "[global]\ncert = /legacy\nproxy = http://legacy.invalid\n")
    env["PIP_FIND_LINKS"] = "/from-env"
    if named:
        env["PIP_CONFIG_FILE"] = str(write(tmp_path / "named.conf", "[global]\nno-index = true\n"))
    answer = subprocess.run(
        [sys.executable, "-I", "-m", "pip", "config", "list"], env=env, capture_output=True, text=True, check=False
    )
    if "No module named pip" in answer.stderr:
        pytest.skip("this interpreter has no pip to compare with")
    assert answer.returncode == 0, answer.stderr
    said = {key: ast.literal_eval(value) for key, value in (line.split("=", 1) for line in answer.stdout.splitlines())}

    def option(name: str) -> str:
        return str(next((said[f"{s}.{name}"] for s in (":env:", "install", "global") if f"{s}.{name}" in said), ""))

    config = pip_configuration(env)
    assert config.index_url == (option("index-url") or None)
    assert config.extra_index_urls == tuple(option("extra-index-url").split())
    assert config.find_links == tuple(option("find-links").split())
    assert config.cert == (str(Path(option("cert")).expanduser()) if option("cert") else None)
    assert config.proxy == (option("proxy") or None)
    assert config.no_index == (option("no-index") == "true")
