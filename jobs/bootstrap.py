"""The first code of a job: unpack what came on stdin and become ``python -m jobs``.

It stands alone (an image carries just this file), so it imports only the standard library. It reads stdin without
buffering, byte for byte as far as the spec says, since what follows belongs to the launcher.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
from pathlib import Path

PINNED_ENVIRONMENT = {
    # Forked children hang when the parent ran a parallel region, and compile workers are processes of their own.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    # Asking whether there is a GPU must not create a CUDA context in a process that forks.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}
FRESH_FOLDERS = {
    "HOME": "home",
    "TMPDIR": "tmp",
    "TORCHINDUCTOR_CACHE_DIR": "cache/inductor",
    "TRITON_CACHE_DIR": "cache/triton",
    "TORCH_EXTENSIONS_DIR": "cache/extensions",
    "XDG_CACHE_HOME": "cache/xdg",
}


class _Exactly:
    """The next ``left`` bytes of a file descriptor, as something that tarfile can read."""

    def __init__(self, fd: int, left: int) -> None:
        self.fd, self.left = fd, left

    def read(self, size: int = -1) -> bytes:
        wanted = self.left if size < 0 else min(size, self.left)
        parts = []
        while wanted:
            part = os.read(self.fd, min(wanted, 1 << 20))
            if not part:
                break
            parts.append(part)
            wanted -= len(part)
            self.left -= len(part)
        return b"".join(parts)


def read_line(fd: int, limit: int = 64 * 2**20) -> bytes:
    """One line from ``fd``, newline included, and not a byte more; fewer bytes at the end of the stream."""
    line = bytearray()
    while len(line) < limit:
        byte = os.read(fd, 1)
        line += byte
        if not byte or byte == b"\n":
            break
    return bytes(line)


def main() -> None:
    """Read the spec and the tar, lay them out in the working directory, and start the job there."""
    work = Path.cwd()
    line = read_line(0)
    source = _Exactly(0, int(json.loads(line)["tar_bytes"]))
    with tarfile.open(fileobj=source, mode="r|") as archive:  # type: ignore[call-overload]
        # Debian 12's Python knows no filters. What comes was checked by whoever packed it, and here it meets nothing.
        archive.extractall(work, **({"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}))  # noqa: S202
    source.read()
    (work / "spec.json").write_bytes(line)
    environment = {**os.environ, **PINNED_ENVIRONMENT}
    for name, folder in FRESH_FOLDERS.items():
        (work / folder).mkdir(parents=True, exist_ok=True)
        environment[name] = str(work / folder)
    os.execve(sys.executable, [sys.executable, "-s", "-m", "jobs", "spec.json"], environment)  # noqa: S606


if __name__ == "__main__":
    main()
