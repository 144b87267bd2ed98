"""What people write, and what they are told when it is not right."""

from __future__ import annotations

import tarfile
import tomllib
from pathlib import Path

import pytest

from service.config import Settings
from service.subjects import UnknownSubject, parse_subject, resolve

HTTPS = "https://host.invalid/owner/name"


@pytest.fixture
def allowed(settings: Settings, tmp_path: Path) -> Settings:
    (tmp_path / "repo").mkdir()
    return settings.model_copy(update={"default_repository": HTTPS, "repositories": (str(tmp_path / "repo"),)})


@pytest.mark.parametrize(
    ("text", "kind", "fields"),
    [
        ("deepspeed==0.18.3", "release", {"name": "deepspeed", "version": "0.18.3"}),
        (" Deep_Speed == 0.18.3rc1 ", "release", {"name": "deep-speed", "version": "0.18.3rc1"}),
        (" torch ", "torch", {"name": "torch"}),
        ("1f2e3d4", "commit", {"repository": HTTPS, "ref": "1f2e3d4"}),
        ("1F2E3D4" + "a" * 33, "commit", {"repository": HTTPS, "ref": "1f2e3d4" + "a" * 33}),
        (f"git+{HTTPS}@main", "commit", {"repository": HTTPS, "ref": "main"}),
        (f"git+{HTTPS}.git@feature/x-1.0", "commit", {"repository": HTTPS, "ref": "feature/x-1.0"}),
        ("git+https://HOST.invalid/owner/name/@v0.1", "commit", {"repository": HTTPS, "ref": "v0.1"}),
    ],
)
def test_forms(allowed: Settings, text: str, kind: str, fields: dict[str, str]) -> None:
    request = parse_subject(text, allowed)
    assert request.kind == kind
    assert {name: getattr(request, name) for name in fields} == fields


def test_folders(allowed: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "abcdef1").mkdir()
    for text in ("repo", "./repo", str(tmp_path / "repo")):
        request = parse_subject(text, allowed)
        assert (request.kind, request.path) == ("path", (tmp_path / "repo").resolve())
    assert parse_subject("abcdef1", allowed).kind == "commit", "hex digits are a commit; ./abcdef1 is the folder"
    assert parse_subject("./abcdef1", allowed).kind == "path"
    for text in (f"git+file://{tmp_path}/repo@main", f"git+{tmp_path}/repo@main", f"git+{tmp_path}/x/../repo/@main"):
        local = parse_subject(text, allowed)
        assert (local.kind, local.repository, local.ref) == ("commit", str(tmp_path / "repo"), "main")


def test_torch_has_no_files_and_one_content_everywhere(allowed: Settings, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    checkout = resolve(parse_subject("torch", allowed), allowed)
    assert (checkout.subject, checkout.kind, checkout.label, checkout.ref) == ("torch", "torch", "torch", "")
    assert read_tar(checkout.tar) == []
    elsewhere = allowed.model_copy(update={"home": tmp_path / "elsewhere"})
    assert resolve(parse_subject("torch", elsewhere), elsewhere).digest == checkout.digest


def read_tar(tar: Path) -> list[str]:
    with tarfile.open(tar) as archive:
        return archive.getnames()


def test_a_path_is_taken_literally_and_an_address_is_not(allowed: Settings, tmp_path: Path) -> None:
    settings = allowed.model_copy(update={"repositories": ("/srv/a%20b#c",)})
    for text in ("git+/srv/a%20b#c@main", "git+file:///srv/a%2520b%23c@main"):
        assert parse_subject(text, settings).repository == "/srv/a%20b#c"
    with pytest.raises(UnknownSubject, match="not on the allow-list"):
        parse_subject("git+file:///srv/a%20b%23c@main", settings)


@pytest.mark.parametrize("form", ["git+file://{}@main", "git+{}@main"])
def test_a_repository_that_is_not_allowed_is_told_with_the_line_that_allows_it(
    allowed: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.delenv("GRADMATRIX_CONFIG", raising=False)
    other = str(tmp_path / "other")
    with pytest.raises(UnknownSubject) as raised:
        parse_subject(form.format(other), allowed)
    *_, said, line = str(raised.value).splitlines()
    assert str(allowed.home / "config.toml") in said
    assert line == f'repositories = ["{tmp_path}/repo", "{other}"]'
    more = Settings(home=allowed.home, repositories=tuple(tomllib.loads(line)["repositories"]))
    assert parse_subject(form.format(other), more).repository == other


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "right would be"),
        ("deepspeed", "name one exact version: deepspeed==VERSION"),
        ("deepspeed>=0.18", "name one exact version: deepspeed==VERSION"),
        ("deepspeed=0.18", "name one exact version: deepspeed==VERSION"),
        ("deepsped", "did you mean deepspeed"),
        ("deepspeed==latest", "'latest' is no version"),
        ("deepspeed==0.18.*", "no version"),
        ("1f2e3d", "right would be"),
        ("./rep", "no such folder; did you mean repo"),
        ("./file", "is a file; a folder is needed"),
        (HTTPS, r"git\+https"),
        (f"git+{HTTPS}", "REF being a branch, a tag or a SHA"),
        (f"git+{HTTPS}@", "REF being"),
        (f"git+{HTTPS}@--upload-pack=x", "REF being"),
        ("git+repo@main", "REF being"),
        (f"git+{HTTPS}@a..b", "REF must be a branch, a tag or a SHA"),
        (f"git+{HTTPS}@HEAD~1", "HEAD~1': REF must be a branch, a tag or a SHA"),
        (f"git+{HTTPS}@feature/x^2", "REF must be a branch, a tag or a SHA"),
        (f"git+{HTTPS}@HEAD@{{1}}", "REF must be a branch, a tag or a SHA"),
        ("git+file:///srv@HEAD~1", r"'git\+file:///srv@HEAD~1': REF must be"),
        ("git+/srv/repo@main:deepspeed", "REF must be a branch, a tag or a SHA"),
        ("HEAD~1", "not evaluated.*git rev-parse"),
        ("1f2e3d4^", "not evaluated.*git rev-parse"),
        (
            "git+https://host.invalid/owner/nam@main",
            "not on the allow-list.*did you mean https://host.invalid/owner/name",
        ),
        ("git+file:///etc@main", "not on the allow-list"),
        ("git+ssh://git@host.invalid/owner/name@main", "ssh:// is not allowed"),
        ("git+http://host.invalid/owner/name@main", "http:// is not allowed"),
        ("git+ext::sh -c touch /@main", "REF being|not allowed"),
        ("git+https://me:secret@host.invalid/owner/name@main", "no user and no password"),
        ("git+https://me:secret@host.invalid/owner/name", "REF being"),
        ("git+https://me:secret@host.invalid/owner/name@HEAD~1", "REF must be"),
        ("git+file://host/srv/repo@main", "file:// is not allowed"),
        ("git+file:///srv/a%00b@main", "file:// is not allowed"),
    ],
)
def test_what_is_wrong_is_told_with_what_would_be_right(
    allowed: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UnknownSubject, match=words) as raised:
        parse_subject(text, allowed)
    assert "secret" not in str(raised.value)
