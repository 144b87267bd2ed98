"""Runtimes as virtual environments on this machine: no daemon needed, and no protection from the code that runs.

On the straight line this is the executor of the embedded service and of ``run``. An environment is built where it
stays, in home/runtimes/NAME-DIGEST, and counts only once the marker is in it, which is written last; whatever has no
marker is cleared by the next builder. Files are hard links into the package cache, so a version shared by several
runtimes lies on the disk once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from service import catalog
from service.catalog import RuntimeSpec
from service.claims import SLOT
from service.config import Settings
from workers.runtimes import NotEnoughDiskError, Progress, RuntimeBuildError, disk, inventory
from workers.runtimes.checking import SCRIPT, Check, compared
from workers.runtimes.guard import Guard
from workers.runtimes.inventory import MARKER, Built
from workers.runtimes.locking import exactly, locked_versions
from workers.runtimes.process import JobProcess, clean_environment, sweep_orphans
from workers.runtimes.uv import Uv

_BOOTSTRAP = Path(__file__).resolve().parents[2] / "jobs" / "bootstrap.py"
_CHECK_S = 300.0
_POLL_S = 0.2


class VenvExecutor:
    """Builds virtual environments with uv and runs jobs in them; see :class:`workers.runtimes.Executor`."""

    name = "venv"
    trusted_only = True

    def __init__(self, settings: Settings, *, free_bytes: Callable[[Path], int] = disk.free) -> None:
        """``free_bytes`` says how much is free at a folder."""
        self._settings = settings
        self._free_bytes = free_bytes
        self._uv = Uv(settings)
        self._promised = disk.Promised()
        self.root = settings.home / "runtimes"

    def folder(self, runtime: RuntimeSpec) -> Path:
        """Where the runtime is, or would be."""
        return self.root / inventory.key(runtime)

    def python(self, runtime: RuntimeSpec) -> Path:
        """Its interpreter."""
        return self.folder(runtime) / "bin" / "python"

    def ready(self, runtime: RuntimeSpec) -> bool:
        """Whether it has been built whole, and the interpreter that it was built with is still there."""
        marker = inventory.read_marker(self.folder(runtime))
        return marker is not None and marker.get("digest") == runtime.digest and self.python(runtime).exists()

    @property
    def at_once(self) -> int:
        """How many runtimes are built at once at most."""
        return self._settings.parallel_builds

    def ensure(self, runtime: RuntimeSpec, progress: Progress) -> bool:
        """Build the runtime if it is not there, and say whether this call did.

        Of several builders of one runtime one builds and the others wait. Builds of several runtimes in threads of one
        process count on the disk what the others will still write, and wait for them where there is no room for all.
        """
        sweep_orphans()  # now, so that a job that nobody waits for any more holds no GPU when the next one is to start
        if self.ready(runtime):
            return False
        with self._guard(runtime) as guard:
            guard.wait(waiting=lambda: progress(f"{runtime.name}: waiting for another builder", 0, None))
            if self.ready(runtime):
                return False
            self._build(runtime, guard, progress)
            return True

    def start(self, runtime: RuntimeSpec, *, workdir: Path, wall_s: float, devices: Sequence[str] = ()) -> JobProcess:
        """Start a job. CUDA numbers the GPUs that it sees in the order of ``devices``; of slots it sees none."""
        guard = self._guard(runtime)
        try:
            guard.wait(shared=True)
            if not self.ready(runtime):
                raise RuntimeBuildError(
                    f"runtime {runtime.name} is not built; `gradmatrix runtimes build {runtime.name}` builds it"
                )
            command = [str(self.python(runtime)), "-I", str(_BOOTSTRAP)]
            seen = {"CUDA_VISIBLE_DEVICES": ",".join(name for name in devices if not name.startswith(SLOT))}
            return JobProcess(command, workdir=workdir, wall_s=wall_s, extra=seen, on_end=guard.close)
        except BaseException:
            guard.close()
            raise

    def check(self, runtime: RuntimeSpec) -> Check:
        """Import torch in the built runtime, and compare every installed version with the lock."""
        if not self.ready(runtime):
            raise RuntimeBuildError(
                f"runtime {runtime.name} is not built; `gradmatrix runtimes build {runtime.name}` builds it"
            )
        return compared(runtime, self._ask(runtime))

    def list_built(self) -> tuple[Built, ...]:
        """Every runtime's folder with its size, complete or not."""
        return inventory.list_built(self.root, catalog.load(self._settings).runtimes)

    def cache_bytes(self) -> int:
        """What the package cache takes beyond what runtimes share with it."""
        return inventory.cache_bytes(self._uv, self.list_built())

    def remove(
        self,
        names: Collection[str] = (),
        *,
        everything: bool = False,
        unused: bool = False,
        tick: Callable[[], None] = lambda: None,
    ) -> tuple[tuple[Built, ...], int]:
        """Remove runtimes, and from the package cache what only they needed. Returns them and the bytes freed.

        Pruning waits for whoever else installs from the cache; what ``tick`` raises meanwhile ends that.
        """
        built = self.list_built()
        gone = built if everything else inventory.choose(built, names, unused=unused)
        return gone, inventory.remove(self.root, self._uv, gone, built, tick)

    def _guard(self, runtime: RuntimeSpec) -> Guard:
        return Guard(inventory.lock_path(self.root, inventory.key(runtime)))

    def _build(self, runtime: RuntimeSpec, guard: Guard, progress: Progress) -> None:
        """Build it in place, under the lock. Whatever fails or interrupts, nothing half-built is left."""
        started = time.monotonic()
        folder = self.folder(runtime)
        base = _base_python(runtime)
        try:
            (folder / MARKER).unlink(missing_ok=True)
            if folder.exists():
                progress(f"{runtime.name}: clearing an unfinished build", 0, None)
                shutil.rmtree(folder)
                self._uv.tidy()
            progress(f"{runtime.name}: asking the package index", 0, runtime.installed_bytes)
            self._uv.run(f"creating {folder}", ["venv", "--quiet", "--python", base, str(folder)], hold=[guard.fd])
            self._install(runtime, guard, progress)
            _write_marker(runtime, folder, base, time.monotonic() - started)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            self._uv.tidy()
            raise
        if not self._settings.keep_package_cache and self._uv.idle():  # if not, the last one to build empties it
            self._uv.run("emptying the package cache", ["cache", "clean"])

    def _install(self, runtime: RuntimeSpec, guard: Guard, progress: Progress) -> None:
        what, wanted = f"runtime {runtime.name}", self.folder(runtime) / "locked.txt"
        wanted.write_text(exactly(runtime.lock), "utf-8")
        command = ["pip", "install", "--no-deps", "--require-hashes", "--no-build", "--link-mode=hardlink"]
        command += ["--compile-bytecode"]  # jobs write none, and would compile thousands of modules at each start
        command += [*self._uv.index_arguments(), "--python", str(self.python(runtime)), "-r", str(wanted)]
        asking = f"{runtime.name}: asking the package index"
        plan = self._uv.run(
            what,
            [*command, "--dry-run"],
            quick=True,
            hold=[guard.fd],
            tick=lambda written: progress(asking, 0, runtime.installed_bytes),
        )
        try:
            if "Would download" in plan:
                self._demand_disk(runtime, progress)
                self._uv.run(
                    what, command, hold=[guard.fd], tick=lambda written: self._grow(runtime, progress, written)
                )
            else:
                linking = f"{runtime.name}: linking and compiling"
                self._uv.run(what, command, hold=[guard.fd], tick=lambda written: progress(linking, 0, None))
        finally:
            self._promised.release(runtime.name)
        progress(f"{runtime.name}: built", runtime.installed_bytes, runtime.installed_bytes)

    def _grow(self, runtime: RuntimeSpec, progress: Progress, written: int) -> None:
        size = runtime.installed_bytes
        self._promised.written(runtime.name, max(size - written, 0))
        linked = any(self.folder(runtime).glob("lib/python*/site-packages/torch"))
        doing = "compiling" if linked else "downloading and unpacking"
        progress(f"{runtime.name}: {doing}", min(written, size), size)

    def _demand_disk(self, runtime: RuntimeSpec, progress: Progress) -> None:
        """Take the room that the runtime needs, waiting for builds in progress. Raises NotEnoughDiskError."""
        spare, size = self._settings.disk_spare_bytes, runtime.installed_bytes
        home = self._settings.home
        while others := self._promised.take(runtime.name, size, lambda: self._free_bytes(home) - spare):
            progress(f"{runtime.name}: waiting for room on the disk", 0, None)
            time.sleep(_POLL_S)
        if others is None:
            return
        raise NotEnoughDiskError(
            f"runtime {runtime.name} needs {disk.human(size)} of disk "
            f"({disk.human(runtime.download_bytes)} to download), and {disk.human(spare)} must stay free; "
            f"{disk.human(self._free_bytes(home))} is free at {home}. Nothing was downloaded. `gradmatrix runtimes "
            f"remove` frees some; GRADMATRIX_HOME may name a folder on a larger disk"
        )

    def _ask(self, runtime: RuntimeSpec) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="gradmatrix-check-") as workdir:
            try:
                done = subprocess.run(
                    [self.python(runtime), "-I", "-c", SCRIPT],
                    env=clean_environment(Path(workdir)),
                    cwd=workdir,
                    capture_output=True,
                    timeout=_CHECK_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise RuntimeBuildError(f"runtime {runtime.name}: importing torch took over {_CHECK_S:.0f} s") from None
        if done.returncode != 0:
            tail = "\n".join(f"  {line}" for line in done.stderr.decode("utf-8", "replace").splitlines()[-6:])
            raise RuntimeBuildError(
                f"runtime {runtime.name}: torch cannot be imported (remove and build it again):\n{tail}"
            )
        said: dict[str, Any] = json.loads(done.stdout)
        return said


def _base_python(runtime: RuntimeSpec) -> str:
    """The interpreter that runs us, outside any environment: it must be the one that runtimes are made for."""
    have = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if have != runtime.python:
        raise RuntimeBuildError(
            f"runtime {runtime.name} needs Python {runtime.python}, and this is {have}: "
            f"install gradmatrix with Python {runtime.python}"
        )
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def _write_marker(runtime: RuntimeSpec, folder: Path, base: str, seconds: float) -> None:
    """Say that the build is whole: on the disk after everything else, and at once or not at all."""
    data = {
        "name": runtime.name,
        "digest": runtime.digest,
        "base": base,
        "seconds": round(seconds, 1),
        "packages": locked_versions(runtime.lock),
    }
    temporary = folder / f"{MARKER}.part"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(data, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / MARKER)
