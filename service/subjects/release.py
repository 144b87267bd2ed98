"""A release: its source archive from the package index that pip is configured for, held to the index's sha256.

On the straight line this stands inside ``service.subjects``, before ``archive``. The file is taken as it is; none of
its build steps is run, which is why pip itself is not used to download it.
"""

from __future__ import annotations

import hashlib
import json
import re
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

import pypi_simple
from packaging.version import InvalidVersion, Version

from service.errors import nearest
from service.pip_config import PipConfig, shown
from service.subjects.errors import SubjectError, UnknownSubject, Unreachable, WrongHash
from service.subjects.parse import KNOWN_NAMES, Progress
from service.subjects.transfer import Body, Transfer

_PAGE_BYTES = 64 * 2**20
_SUFFIX = ".tar.gz"


@dataclass(frozen=True)
class Release:
    """A source archive that an index promises."""

    version: str
    filename: str
    url: str
    sha256: str


class IndexClient:
    """Asks the configured indexes, in pip's order. ``connect_s`` bounds each wait, ``fetch_s`` a whole download."""

    def __init__(self, config: PipConfig, *, connect_s: float, fetch_s: float) -> None:
        self._config, self._connect_s, self._fetch_s = config, connect_s, fetch_s
        self._transfer = Transfer(config, connect_s=connect_s)

    def close(self) -> None:
        """Close every connection."""
        self._transfer.session.close()

    def find(self, name: str, version: str) -> Release:
        """The source archive of one release, from the first index that has it."""
        if not self._config.index_urls:
            raise UnknownSubject(f"{name}=={version}: pip is configured to ask no package index (no-index)")
        seen: list[pypi_simple.DistributionPackage] = []
        failure: Unreachable | None = None
        for url in self._config.index_urls:
            try:
                page = self._page(url, name)
            except Unreachable as error:
                failure = failure or error
                continue
            for package in page:
                if _is_source(package) and _version(package) == Version(version):
                    return _promised(package)
            seen += page
        raise failure or UnknownSubject(_not_found(name, version, seen))

    def _page(self, index: str | None, name: str) -> list[pypi_simple.DistributionPackage]:
        """Every file that one index lists for the project; none where it does not know it."""
        client = pypi_simple.PyPISimple(index or pypi_simple.PYPI_SIMPLE_ENDPOINT, session=self._transfer.session)
        url, what = client.get_project_url(name), f"the package index {shown(index)}" if index else shown(None)
        if url.startswith("file:"):
            url += "index.html"

        def parse(body: Body) -> pypi_simple.ProjectPage:
            data = b"".join(body)
            try:
                if "json" in body.kind:
                    return pypi_simple.ProjectPage.from_json_data(json.loads(data), body.url)
                return pypi_simple.ProjectPage.from_html(name, data, body.url)
            except (ValueError, KeyError, TypeError, pypi_simple.UnsupportedRepoVersionError) as error:
                raise Unreachable(f"it answers with something that is no index page ({error})") from None

        page = self._transfer.fetch(
            url, what, parse, seconds=2 * self._connect_s, cap=_PAGE_BYTES, headers={"Accept": client.accept}
        )
        # A page from the network may not name files of this machine.
        schemes = ("file",) if url.startswith("file:") else ("http", "https")
        return [p for p in page.packages if urllib.parse.urlsplit(p.url).scheme in schemes] if page else []

    def download(self, release: Release, target: BinaryIO, cap: int, progress: Progress | None) -> int:
        """Write the archive to ``target`` and return its size; raises WrongHash when it is not the promised one."""
        what = f"{release.filename} on the package index"

        def save(body: Body) -> tuple[int, str]:
            target.seek(0)
            target.truncate()
            sha, done = hashlib.sha256(), 0
            for data in body:
                target.write(data)
                sha.update(data)
                done += len(data)
                if progress:
                    progress(f"downloading {release.filename}", done, body.total)
            target.flush()
            return done, sha.hexdigest()

        headers = {"Accept-Encoding": "identity"}  # or the bytes would not be those that were hashed
        saved = self._transfer.fetch(release.url, what, save, seconds=self._fetch_s, cap=cap, headers=headers)
        if saved is None:
            raise Unreachable(f"{what}: the index lists this file but does not have it")
        size, sha256 = saved
        if sha256 != release.sha256:
            raise WrongHash(
                f"{what}: wrong hash, nothing was kept: sha256 {release.sha256} is promised, "
                f"and the {size:,} bytes that arrived have {sha256}"
            )
        return size


def _is_source(package: pypi_simple.DistributionPackage) -> bool:
    return package.package_type == "sdist" and package.filename.endswith(_SUFFIX)


def _version(package: pypi_simple.DistributionPackage) -> Version | None:
    try:
        return Version(package.version or "")
    except InvalidVersion:
        return None


def _promised(package: pypi_simple.DistributionPackage) -> Release:
    sha256 = package.digests.get("sha256", "").lower()
    if not re.fullmatch("[0-9a-f]{64}", sha256):
        raise SubjectError(f"{package.filename}: the index states no sha256 for it, so it cannot be checked")
    return Release(str(_version(package)), package.filename, package.url, sha256)


def _not_found(name: str, version: str, seen: Iterable[pypi_simple.DistributionPackage]) -> str:
    """The error for a release that no index has, with what it may have been meant for."""
    packages = list(seen)
    if not packages:
        return f"{name}: no package index that pip is configured for knows this project; {nearest(name, KNOWN_NAMES)}"
    wanted = Version(version)
    if others := sorted({p.filename for p in packages if _version(p) == wanted}):
        return f"{name}=={version} has no source archive ({_SUFFIX}), only {', '.join(others[:4])}"
    known = sorted({found for p in packages if _is_source(p) and (found := _version(p))})
    if not known:
        return f"{name} has no release with a source archive ({_SUFFIX})"
    below, above = [v for v in known if v < wanted][-2:], [v for v in known if v > wanted][:2]
    words = ", ".join(f"{name}=={v}" for v in [*below, *above])
    return f"{name} has no release {version}; nearest: {words}; newest: {known[-1]}"
