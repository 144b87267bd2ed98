"""The name of a subject, as people write it, taken apart; nothing is looked up here but whether a folder exists.

On the straight line this stands at the door of ``service.subjects``. The forms::

    deepspeed==0.18.3                     a release on the package index
    git+https://host/owner/name@REF       a commit of a repository on the allow-list
    git+file:///folder@REF                the same, of a local repository on the allow-list
    1f2e3d4                               a commit of the default repository, by 7 to 40 hex digits
    ./folder  /folder  folder             a working tree

A subject without a checkout (torch itself) would be one more kind here and one more branch in ``resolve``.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from service.config import Settings
from service.errors import nearest
from service.subjects.errors import UnknownSubject
from service.subjects.git import REF, SHA

Kind = Literal["release", "commit", "path"]
Progress = Callable[[str, int, int | None], None]
"""What is being done, bytes done so far, and bytes in all where that is known."""

KNOWN_NAMES = ("deepspeed",)
"""What an unknown name is compared with; any project that carries its own adapter is a subject too."""

FORMS = "NAME==VERSION (a release), git+URL@REF or 7 to 40 hex digits (a commit), or a folder as ./NAME or /NAME"


@dataclass(frozen=True)
class SubjectRequest:
    """A subject as it was asked for; which of the fields are set depends on its kind."""

    kind: Kind
    text: str
    name: str = ""
    version: str = ""
    repository: str = ""
    ref: str = ""
    path: Path = Path()


def parse_subject(text: str, settings: Settings) -> SubjectRequest:
    """Raise UnknownSubject, which says what would be right, unless ``text`` is of one of the known forms."""
    text = text.strip()
    if text.startswith("git+"):
        return _commit(text, settings)
    if text.startswith(("./", "../", "/", "~")) or text in (".", ".."):
        return _folder(text)
    if release := re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*==\s*([^=<>,;\s]+)", text):
        return _release(text, *release.groups())
    if SHA.fullmatch(text.lower()):
        return SubjectRequest("commit", text, repository=settings.default_repository, ref=text.lower())
    if text and Path(text).is_dir():
        return _folder(text)
    raise UnknownSubject(f"{text!r} names no subject: {_hint(text)}")


def _hint(text: str) -> str:
    if bare := re.match(r"[A-Za-z][A-Za-z0-9._-]*(?=\s*(?:[=<>~!@]|$))", text):
        name = canonicalize_name(bare[0])
        if name in KNOWN_NAMES:
            return f"name one exact version: {name}==VERSION"
        return f"{nearest(name, KNOWN_NAMES).rstrip('?')}; right would be {FORMS}"
    if re.match(r"(https?|ssh|git|file)://|git@", text):
        return "a repository is named as git+https://HOST/OWNER/NAME@REF"
    return f"right would be {FORMS}"


def _release(text: str, name: str, version: str) -> SubjectRequest:
    try:
        exact = str(Version(version))
    except InvalidVersion:
        raise UnknownSubject(
            f"{text!r}: {version!r} is no version; one exact version is needed: {name}==1.2.3"
        ) from None
    return SubjectRequest("release", text, name=canonicalize_name(name), version=exact)


def _folder(text: str) -> SubjectRequest:
    path = Path(text).expanduser().absolute()
    if path.is_dir():
        return SubjectRequest("path", text, path=path.resolve())
    if path.exists():
        raise UnknownSubject(f"{text!r} is a file; a folder is needed, one that holds a package such as deepspeed/")
    beside = [child.name for child in path.parent.iterdir() if child.is_dir()] if path.parent.is_dir() else []
    raise UnknownSubject(f"{text!r}: there is no such folder; {nearest(path.name, beside)}")


def _commit(text: str, settings: Settings) -> SubjectRequest:
    url, at, ref = text.removeprefix("git+").rpartition("@")
    if not at or "/" not in url.partition("://")[2] or not REF.fullmatch(ref):
        raise UnknownSubject(f"{text!r}: a commit is named as git+URL@REF, REF being a branch, a tag or a SHA")
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("https", "file") or (parts.scheme == "file" and parts.netloc):
        raise UnknownSubject(f"{parts.scheme}:// is not allowed: name the repository as git+https://… or git+file:///…")
    if "@" in parts.netloc:
        raise UnknownSubject("a repository's address may hold no user and no password: only public ones are fetched")
    wanted = repository_key(url)
    allowed = {repository_key(repository): repository for repository in settings.repositories}
    if wanted not in allowed:
        hint = nearest(wanted, allowed)
        raise UnknownSubject(f"the repository {url} is not on the allow-list (repositories in the settings); {hint}")
    return SubjectRequest("commit", text, repository=allowed[wanted], ref=ref)


def repository_key(address: str) -> str:
    """One spelling for each repository: addresses that differ only in case of the host, ``.git`` or a slash are one."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme in ("", "file"):
        return str(Path(urllib.parse.unquote(parts.path)).resolve())
    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/').removesuffix('.git')}"
