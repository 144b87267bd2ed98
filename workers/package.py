"""What a job is sent on stdin after its spec: ``jobs/`` as it is here, and the checkout, as one tar.

On the straight line this stands between ``service.subjects`` (which keeps a normalised tar per checkout) and
``workers.runtimes`` (which pipes it in); nothing of the host is mounted.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from functools import cache
from pathlib import Path

import jobs.contract

JOBS = Path(jobs.contract.__file__).resolve().parent


def pack(checkout: Path | None) -> bytes:
    """The tar: ``jobs/…`` and ``checkout/…``; no times, owners or absolute paths."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, body in _sources():
            member = tarfile.TarInfo(f"jobs/{name}")
            member.size, member.mode = len(body), 0o644
            archive.addfile(member, io.BytesIO(body))
        folder = tarfile.TarInfo("checkout")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(folder)
        if checkout is not None:
            with tarfile.open(checkout, mode="r:") as source:
                for member in source:
                    body_file = source.extractfile(member) if member.isfile() else None
                    member.name = f"checkout/{member.name}"
                    archive.addfile(member, body_file)
    return buffer.getvalue()


@cache
def _sources() -> tuple[tuple[str, bytes], ...]:
    return tuple((str(path.relative_to(JOBS)), path.read_bytes()) for path in sorted(JOBS.rglob("*.py")))


def jobs_digest() -> str:
    """sha256 over the files of ``jobs/``: which code measured."""
    digest = hashlib.sha256()
    for name, body in _sources():
        digest.update(f"{name}\0{len(body)}\0".encode() + body)
    return digest.hexdigest()
