"""Settings: the file, the environment, their order, and errors that name the nearest known word."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from service.config import ConfigError, Settings, load_settings

Write = Callable[[str], Path]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("GRADMATRIX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GRADMATRIX_HOME", str(tmp_path / "home"))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(text: str) -> Path:
        path = tmp_path / "home" / "config.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
        return path

    return _write


def test_defaults_without_file_or_variables(tmp_path: Path) -> None:
    settings = load_settings()
    assert settings.home == tmp_path / "home"
    assert settings.catalog.is_file()
    assert settings.allowed_repositories == (settings.default_repository,)
    assert settings.slots == (os.cpu_count() or 1)
    assert not settings.home.exists(), "loading settings creates nothing"


def test_the_environment_goes_before_the_file_key_by_key(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("cpu_slots = 3\narchive_files = 7\n[deadlines]\ncase_s = 5\njob_s = 50\n")
    monkeypatch.setenv("GRADMATRIX_CPU_SLOTS", "9")
    monkeypatch.setenv("GRADMATRIX_DEADLINES__JOB_S", "60")
    settings = load_settings()
    assert (settings.cpu_slots, settings.slots, settings.archive_files) == (9, 9, 7)
    assert (settings.deadlines.case_s, settings.deadlines.job_s) == (5.0, 60.0)


def test_arguments_alone_read_nothing_of_the_machine(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("archive_files = 7")
    monkeypatch.setenv("GRADMATRIX_CPU_SLOTS", "9")
    assert (Settings().cpu_slots, Settings().archive_files) == (0, 50_000)


def test_a_named_file_may_set_home_and_paths_relative_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "etc" / "mine.toml"
    path.parent.mkdir()
    path.write_text('home = "data"\ncatalog = "../c.toml"', "utf-8")
    monkeypatch.delenv("GRADMATRIX_HOME")
    monkeypatch.setenv("GRADMATRIX_CONFIG", str(path))
    settings = load_settings()
    assert settings.home == tmp_path / "etc" / "data"
    assert settings.catalog.resolve() == tmp_path / "c.toml"


def test_lists_in_variables_are_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADMATRIX_REPOSITORIES", "/srv/a.git, https://example.org/b.git")
    assert load_settings().repositories == ("/srv/a.git", "https://example.org/b.git")


def test_the_table_of_the_webhook_is_read_key_by_key(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write('[webhook]\nbranches = ["dev"]\nworld_sizes = [2, 4]\ntorch = ["2.11", "latest"]\n')
    monkeypatch.setenv("GRADMATRIX_WEBHOOK__SECRET", "It's a Secret to Everybody")
    monkeypatch.setenv("GRADMATRIX_WEBHOOK__TORCH", "2.10.0, 2.9.1")
    hook = load_settings().webhook
    assert (hook.secret, hook.branches) == ("It's a Secret to Everybody", ("dev",))
    assert (hook.torch, hook.world_sizes) == (("2.10.0", "2.9.1"), (2, 4))
    assert Settings().webhook.secret is None, "there is none that everybody knows"


def test_repositories_are_allowed_besides_the_default_one_and_local_ones_become_paths(write: Write) -> None:
    write('repositories = ["file:///srv/my%20repo", "/srv/100%25/", "https://example.org/b.git"]')
    settings = load_settings()
    assert settings.repositories == ("/srv/my repo", "/srv/100%25", "https://example.org/b.git")
    assert settings.allowed_repositories == (Settings().default_repository, *settings.repositories)
    mine = Settings(default_repository="file:///srv/a", repositories=("/srv/b", "/srv/a"))
    assert mine.default_repository == "/srv/a"
    assert mine.allowed_repositories == ("/srv/a", "/srv/b")


def test_what_allows_a_repository_can_be_put_into_the_named_file_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Write
) -> None:
    odd = '/srv/a "b" \\ ü'
    path = write('repositories = ["/srv/first"]')
    said, line = load_settings().allowing(odd).splitlines()
    assert str(path) in said
    assert "unset" not in said
    path.write_text(line, "utf-8")
    assert load_settings().repositories == ("/srv/first", odd)
    named = tmp_path / "mine.toml"
    named.touch()
    monkeypatch.setenv("GRADMATRIX_CONFIG", str(named))
    monkeypatch.setenv("GRADMATRIX_REPOSITORIES", "/srv/second")
    said, line = load_settings().allowing("/srv/x").splitlines()
    assert f"into {named}," in said
    assert "unset GRADMATRIX_REPOSITORIES" in said
    assert line == 'repositories = ["/srv/second", "/srv/x"]'


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("GRADMATRIX_CPU_SLOT", "1", ["GRADMATRIX_CPU_SLOT is not known", "GRADMATRIX_CPU_SLOTS"]),
        ("GRADMATRIX_DEADLINES__CASES", "1", ["GRADMATRIX_DEADLINES__CASES is", "GRADMATRIX_DEADLINES__CASE_S"]),
        ("GRADMATRIX_PARALLEL_BUILDS", "0", ["GRADMATRIX_PARALLEL_BUILDS", "greater than 0"]),
        ("GRADMATRIX_CPU_SLOTS", "many", ["GRADMATRIX_CPU_SLOTS", "integer"]),
        ("GRADMATRIX_DEADLINES__CASE_S", "soon", ["GRADMATRIX_DEADLINES__CASE_S", "number"]),
        ("GRADMATRIX_DEADLINES__CASE_S", "99999", ["case_s may not be above job_s"]),
        ("GRADMATRIX_DEADLINES__CASE_S", "0", ["above 0"]),
        ("GRADMATRIX_DEADLINES", "nonsense", ["environment variable", "deadlines"]),
        ("GRADMATRIX_REPOSITORIES", "srv/a.git", ["GRADMATRIX_REPOSITORIES", "'srv/a.git'", "file:///path"]),
        ("GRADMATRIX_REPOSITORIES", "file://host/a.git", ["GRADMATRIX_REPOSITORIES", "'file://host/a.git'"]),
        ("GRADMATRIX_DEFAULT_REPOSITORY", "http://example.org/b.git", ["GRADMATRIX_DEFAULT_REPOSITORY", "https://"]),
        ("GRADMATRIX_CONFIG", "/nonexistent/g.toml", ["/nonexistent/g.toml", "No such file"]),
        ("GRADMATRIX_WEBHOOK__SECRETS", "x", ["GRADMATRIX_WEBHOOK__SECRETS is", "GRADMATRIX_WEBHOOK__SECRET"]),
        ("GRADMATRIX_WEBHOOK__SECRET", "", ["GRADMATRIX_WEBHOOK__SECRET", "at least 16 characters"]),
        ("GRADMATRIX_WEBHOOK__WORLD_SIZES", "two", ["GRADMATRIX_WEBHOOK__WORLD_SIZES", "integer"]),
        ("GRADMATRIX_WEBHOOK__TRUSTED", "MEMBERS", ["trusted: 'MEMBERS' is no author_association", "MEMBER"]),
    ],
)
def test_wrong_variables_are_named(variable: str, value: str, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert all(part in str(caught.value) for part in said), str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("archive_byte = 1", ["archive_byte is not known", "archive_bytes"]),
        ("[deadlines]\ncase = 1", ["[deadlines]", "case is not known", "case_s"]),
        ("[webhook]\nbranch = 1", ["[webhook]", "branch is not known", "branches"]),
        ('[webhook]\nsecret = "too short"', ["webhook.secret", "at least 16 characters"]),
        ("archive_bytes = -1", ["archive_bytes", "greater than 0"]),
        ("archive_bytes == 1", ["is not TOML", "line 1"]),
        ('home = "/elsewhere"', ["home cannot be set", "GRADMATRIX_HOME"]),
        ('deadlines = "long"', ["deadlines"]),
    ],
)
def test_wrong_keys_are_named_with_their_file(text: str, said: list[str], write: Write) -> None:
    path = write(text)
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert all(part in str(caught.value) for part in [str(path), *said]), str(caught.value)


@pytest.mark.parametrize("written", ["postgresql", "postgres", "postgresql+psycopg"])
def test_a_database_is_postgresql_with_the_driver_that_is_there(monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.setenv("GRADMATRIX_DATABASE_URL", f"{written}://me@there/name?sslmode=require")
    assert load_settings().database_url == "postgresql+psycopg://me@there/name?sslmode=require"


@pytest.mark.parametrize("wrong", ["sqlite:///x.db", "mysql://a/b", "there", "postgresql://host", "postgresql://host/"])
def test_another_database_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("GRADMATRIX_DATABASE_URL", wrong)
    with pytest.raises(ConfigError, match=r"GRADMATRIX_DATABASE_URL: .*postgresql://USER@HOST/NAME"):
        load_settings()


def test_the_table_of_settings_is_the_codes_own() -> None:
    """Every key with its default and what its docstring says, and none that is gone."""
    text = (Path(__file__).parents[2] / "docs" / "service.md").read_text("utf-8")
    table = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text.partition("## Settings")[2], re.MULTILINE))
    assert list(table) == list(Settings.model_fields)
    said = dict(re.findall(r"^    (\w+) {2,}(.+)$", str(Settings.__doc__), re.MULTILINE))
    for name, field in Settings.model_fields.items():
        default, _, what = table[name].partition(" | ")
        assert what == said[name], name
        value = field.get_default(call_default_factory=True)
        if isinstance(value, bool):
            assert default == str(value).lower(), name
        elif isinstance(value, int | float | str):
            assert default == str(value), name
        elif value is None:
            assert default == "", name
