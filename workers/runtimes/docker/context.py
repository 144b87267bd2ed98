"""What a build of an image is given: parts of a lock, packages that no index has, and where the site's packages are.

On the straight line this stands under ``workers.runtimes.docker.images``. pip's configuration is this machine's; inside
a build there is none, so it is handed over as build arguments and files, to the one stage that is thrown away.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from service.pip_config import PipConfig

_ROOT = Path(__file__).resolve().parents[3]
BOOTSTRAP = _ROOT / "jobs" / "bootstrap.py"
_BLOCK = re.compile(r"^(?=[A-Za-z0-9])", re.MULTILINE)
_NAME = re.compile(r"^[A-Za-z0-9._-]+")
_TORCH_AND_ITS_OWN = ("torch", "triton", "nvidia-", "cuda-")


def parts(lock: str) -> tuple[str, str]:
    """The lines of a lock that are torch with its compiler and CUDA libraries, and all others."""
    torch, needs = list[str](), list[str]()
    for block in _BLOCK.split(lock)[1:]:
        (torch if block.startswith(_TORCH_AND_ITS_OWN) else needs).append(block)
    return "".join(torch), "".join(needs)


def arguments(pip: PipConfig) -> dict[str, str]:
    """The build arguments that say where packages come from. Proxies are those that every builder keeps to itself."""
    remote = [url for url in pip.extra_index_urls if not url.startswith("file:")]
    pages = [link for link in pip.find_links if link.startswith(("http://", "https://"))]
    named = {
        "INDEX_URL": pip.index_url or "",
        "EXTRA_INDEX_URLS": " ".join(remote),
        "FIND_LINKS": " ".join(pages),
        "NO_INDEX": "true" if pip.no_index else "",
        "HTTP_PROXY": pip.proxy or "",
        "HTTPS_PROXY": pip.proxy or "",
    }
    return {name: value for name, value in named.items() if value}


def certificates(pip: PipConfig) -> bytes:
    """The bundle that pip is told to believe, of one file or of a folder; empty where it is told none."""
    if pip.cert is None:
        return b""
    path = Path(pip.cert)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return b"\n".join(file.read_bytes() for file in files if file.is_file())


def local_wheels(pip: PipConfig, packages: str) -> tuple[Path, ...]:
    """Of the wheels in pip's find-links folders those that ``packages`` has the hashes of."""
    names = {_canonical(match[0]) for block in _BLOCK.split(packages) if (match := _NAME.match(block))}
    found: dict[str, Path] = {}
    for folder in map(_folder, pip.find_links):
        for path in sorted(folder.glob("*.whl")) if folder else ():
            if path.name not in found and _project(path) in names and _sha256(path) in packages:
                found[path.name] = path
    return tuple(found.values())


def _folder(link: str) -> Path | None:
    if link.startswith("file:"):
        return Path(unquote(urlsplit(link).path))
    return None if "://" in link else Path(link).expanduser()


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _project(path: Path) -> str | None:
    try:
        return str(parse_wheel_filename(path.name)[0])
    except InvalidWheelFilename:
        return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(to: BinaryIO, dockerfile: Path, packages: str, cert: bytes, wheels: Sequence[Path]) -> None:
    """Write the context as a tar, and go back to its beginning."""
    files: Mapping[str, bytes] = {
        "Dockerfile": dockerfile.read_bytes(),
        "packages.txt": packages.encode(),
        "site/ca.pem": cert,
        "bootstrap.py": BOOTSTRAP.read_bytes(),
    }
    with tarfile.open(fileobj=to, mode="w") as archive:
        for name in ("site", "site/wheels"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        for name, content in files.items():
            archive.addfile(_member(name, len(content)), io.BytesIO(content))
        for path in wheels:
            with path.open("rb") as file:
                archive.addfile(_member(f"site/wheels/{path.name}", path.stat().st_size), file)
    to.seek(0)


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    return member


def digest(*texts: str) -> str:
    """One name for several texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()
