"""The name of a subject, as people write it, taken apart; nothing is looked up here but whether a folder exists.

On the straight line this stands at the door of ``service.subjects``. The forms::

    deepspeed==0.18.3                     a release on the package index
    git+https://host/owner/name@REF       a commit of a repository on the allow-list
    git+file:///folder@REF                the same, of a local repository on the allow-list
    git+/folder@REF                       the same, shorter
    1f2e3d4                               a commit of the default repository, by 7 to 40 hex digits
    ./folder  /folder  folder             a working tree
    torch                                 torch itself: no checkout, only what is torch's own
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

from jobs.contract import TORCH
from service.config import Settings, local_path
from service.errors import nearest
from service.subjects.errors import NotAllowed, UnknownSubject
from service.subjects.git import REF, SHA

Kind = Literal["release", "commit", "path", "torch"]
Progress = Callable[[str, int, int | None], None]
"""What is being done, bytes done so far, and bytes in all where that is known."""

KNOWN_NAMES = ("deepspeed", TORCH)
"""What an unknown name is compared with; any project that carries its own adapter is a subject too."""

_EXPRESSION = re.compile(r"[~^:{}]|\.\.")
"""What marks an expression that git would evaluate; it may stand in no name of a branch or tag."""

_EVALUATED = "expressions such as HEAD~1 are not evaluated: git rev-parse says which SHA is meant"
_AS_GIT = "a commit is named as git+https://HOST/OWNER/NAME@REF or git+/PATH@REF, REF being a branch, a tag or a SHA"

_NO_VERSION = f"as a subject torch has no version: name it {TORCH}, and choose versions with --torch"

FORMS = (
    "NAME==VERSION (a release), git+URL@REF or 7 to 40 hex digits (a commit), a folder as ./NAME or /NAME, "
    "or torch (what is torch's own)"
)


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
    if text == TORCH:
        return SubjectRequest("torch", text, name=TORCH)
    if text.startswith("git+"):
        return _commit(text, settings)
    if text.startswith(("./", "../", "/", "~")) or text in (".", ".."):
        return _folder(text)
    if release := re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*==\s*([^=<>,;\s]+)", text):
        return _release(text, *release.groups())
    if SHA.fullmatch(text.lower()):
        return SubjectRequest("commit", text, repository=settings.default_repository, ref=text.lower())
    if text and _is_folder(text):
        return _folder(text)
    raise UnknownSubject(f"{text!r} names no subject: {_hint(text)}")


def _hint(text: str) -> str:
    if re.match(r"(?:HEAD|[0-9a-fA-F]{7,40})(?:[~^:@]|\.\.)", text):
        return f"{_EVALUATED}; right would be {FORMS}"
    if bare := re.match(r"[A-Za-z][A-Za-z0-9._-]*(?=\s*(?:[=<>~!@]|$))", text):
        name = canonicalize_name(bare[0])
        if name == TORCH:
            return _NO_VERSION
        if name in KNOWN_NAMES:
            return f"name one exact version: {name}==VERSION"
        return f"{nearest(name, KNOWN_NAMES).rstrip('?')}; right would be {FORMS}"
    if re.match(r"(https?|ssh|git|file)://|git@", text):
        return _AS_GIT
    return f"right would be {FORMS}"


def _release(text: str, name: str, version: str) -> SubjectRequest:
    if canonicalize_name(name) == TORCH:
        raise UnknownSubject(f"{text!r}: {_NO_VERSION}")
    try:
        exact = str(Version(version))
    except InvalidVersion:
        raise UnknownSubject(
            f"{text!r}: {version!r} is no version; one exact version is needed: {name}==1.2.3"
        ) from None
    return SubjectRequest("release", text, name=canonicalize_name(name), version=exact)


def _is_folder(text: str) -> bool:
    try:
        return Path(text).is_dir()
    except (OSError, ValueError):  # too long for a name, or none that there could be
        return False


def _folder(text: str) -> SubjectRequest:
    try:
        path = Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise UnknownSubject(f"{text!r}: {error}") from None
    if path.is_dir():
        return SubjectRequest("path", text, path=path.resolve())
    if path.exists():
        raise UnknownSubject(f"{text!r} is a file; a folder is needed, one that holds a package such as deepspeed/")
    beside = [child.name for child in path.parent.iterdir() if child.is_dir()] if path.parent.is_dir() else []
    raise UnknownSubject(f"{text!r}: there is no such folder; {nearest(path.name, beside)}")


def _commit(text: str, settings: Settings) -> SubjectRequest:
    url, _, ref = text.removeprefix("git+").rpartition("@")
    shown = re.sub("://[^/]*@", "://…@", text)  # a password is not repeated
    is_address = url.startswith("/") or "/" in url.partition("://")[2]
    if is_address and _EXPRESSION.search(ref):
        raise UnknownSubject(f"{shown!r}: REF must be a branch, a tag or a SHA; {_EVALUATED}")
    if not is_address or not REF.fullmatch(ref):
        raise UnknownSubject(f"{shown!r}: {_AS_GIT}")
    _refuse_address(url)
    allowed = {repository_key(repository): repository for repository in reversed(settings.allowed_repositories)}
    wanted = repository_key(url)
    if wanted not in allowed:
        raise NotAllowed(url, nearest(wanted, allowed), settings.allowing(local_path(url) or url))
    return SubjectRequest("commit", text, repository=allowed[wanted], ref=ref)


def _refuse_address(url: str) -> None:
    """Raise where an address is of a kind that is fetched from nowhere."""
    if local_path(url):
        return
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" or not parts.netloc:
        raise UnknownSubject(f"{parts.scheme}:// is not allowed so: {_AS_GIT}")
    if "@" in parts.netloc:
        raise UnknownSubject("a repository's address may hold no user and no password: only public ones are fetched")


def repository_key(address: str) -> str:
    """One spelling for each repository: addresses that differ only in case of the host, ``.git`` or a slash are one."""
    if path := local_path(address):
        return str(Path(path).resolve())
    parts = urllib.parse.urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/').removesuffix('.git')}"


def elsewhere(request: SubjectRequest, settings: Settings) -> list[str]:
    """A bare SHA as it would be named in each allowed repository but the default one, where alone it is looked up."""
    if request.kind != "commit" or request.text.startswith("git+"):
        return []
    default = repository_key(settings.default_repository)
    others = [address for address in settings.repositories if repository_key(address) != default]
    return [f"git+{Path(a).as_uri() if local_path(a) else a}@{request.ref}" for a in others]
