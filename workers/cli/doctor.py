"""``gradmatrix doctor``: what this machine has of what a run needs, and the remedy for each thing that is missing.

Every check answers ``ok``, ``warn`` (something will not work, or worse; the rest will) or ``fail`` (nothing will).
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.text import Text

from service import catalog
from service.config import Settings, load_settings
from service.errors import GradmatrixError
from service.words import human_bytes, inert, plural
from workers.cli.console import INCOMPLETE, OK, console, show
from workers.runtimes import disk
from workers.runtimes.venv import VenvExecutor

ANSWER_S = 20
"""How long another program may take to say its version."""
SAMPLE = ("deepspeed", "0.18.3")
"""A release that an index for this work has."""
OLDEST_SQLITE = (3, 35, 0)
"""The first one with everything that the store's statements use."""
STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@dataclass(frozen=True)
class Finding:
    """One thing looked at."""

    name: str
    status: Literal["ok", "warn", "fail"]
    text: str
    remedy: str = ""


def doctor() -> int:
    """Print every check and its remedy; the exit status says whether something required is missing."""
    out = console()
    findings = []
    for finding in examine(load_settings()):
        findings.append(finding)
        show(out, lines(finding))
    failed = sum(finding.status == "fail" for finding in findings)
    warned = sum(finding.status == "warn" for finding in findings)
    out.print(Text(f"\n{plural(failed, 'failure')}, {plural(warned, 'warning')}"), soft_wrap=True)
    return INCOMPLETE if failed else OK


def lines(finding: Finding) -> list[Text]:
    """A finding as it is printed: the word, what was found, and below it the remedy."""
    word = (f"{finding.status:<5}", STYLES[finding.status])
    first = Text.assemble(word, (f"{finding.name:<17}", "bold"), inert(finding.text))
    return [first, Text(f"     remedy: {inert(finding.remedy)}")] if finding.remedy else [first]


def examine(settings: Settings) -> Iterator[Finding]:
    """All checks, in the order in which a run would need them; one that breaks is a failure of its own."""
    for name, check in CHECKS.items():
        try:
            yield check(settings)
        except GradmatrixError as error:
            yield Finding(name, "fail", str(error), "mend what the message names")
        except Exception as error:  # noqa: BLE001 - a doctor that dies of what it finds helps nobody
            yield Finding(name, "fail", f"the check itself broke: {type(error).__name__}: {error}", "report this")


def check_python(settings: Settings) -> Finding:
    """The one Python that every runtime has, since they are made by this interpreter."""
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] == (3, 11):
        return Finding("Python", "ok", found)
    return Finding("Python", "fail", f"{found}, not 3.11", "install Python 3.11 and make the environment with it")


def check_state(settings: Settings) -> Finding:
    """The folder where everything is kept."""
    home = settings.home
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        remedy = "give yourself the right to write there, or set GRADMATRIX_HOME to a folder where you have it"
        return Finding("state folder", "fail", f"{home} cannot be written: {error.strerror}", remedy)
    return Finding("state folder", "ok", str(home))


def check_disk(settings: Settings) -> Finding:
    """Whether what is not built yet fits."""
    free = disk.free(settings.home)
    needs = [spec.installed_bytes for spec in _missing(settings)]
    smallest, everything = min(needs, default=0) + settings.disk_spare_bytes, sum(needs) + settings.disk_spare_bytes
    text = f"{human_bytes(free)} free at {settings.home}"
    remedy = "free some space (gradmatrix runtimes remove), or set GRADMATRIX_HOME to a folder on a larger disk"
    if needs and free < smallest:
        return Finding("disk", "fail", f"{text}; the smallest missing runtime needs {human_bytes(smallest)}", remedy)
    if free < everything:
        runtimes = plural(len(needs), "missing runtime")
        return Finding("disk", "warn", f"{text}; all of the {runtimes} need {human_bytes(everything)}", remedy)
    return Finding("disk", "ok", text)


def check_runtimes(settings: Settings) -> Finding:
    """Which torch versions need no building any more."""
    missing = {spec.name for spec in _missing(settings)}
    known = catalog.load(settings).bare()
    built = [spec.torch for spec in known if spec.name not in missing]
    text = f"{len(built)} of {len(known)} built" + (f": torch {', '.join(built)}" if built else "")
    return Finding("runtimes", "ok", text + ("; a run builds what it needs" if missing else ""))


def _missing(settings: Settings) -> list[catalog.RuntimeSpec]:
    """The catalogue's runtimes that a bare version names and that are not built."""
    executor = VenvExecutor(settings)
    return [spec for spec in catalog.load(settings).bare() if not executor.ready(spec)]


def check_index(settings: Settings) -> Finding:
    """Whether the index that pip is configured for answers, asked just as a run asks it."""
    from service.pip_config import pip_configuration, shown
    from service.subjects.errors import UnknownSubject, Unreachable
    from service.subjects.release import IndexClient

    config = pip_configuration()
    indexes = ", ".join(shown(url) for url in config.index_urls) or "no index"
    client = IndexClient(config, connect_s=settings.connect_s, fetch_s=settings.fetch_s)
    try:
        release = client.find(*SAMPLE)
    except UnknownSubject as error:
        remedy = "add an index that has it to pip's configuration (pip config set global.extra-index-url ...)"
        return Finding("package index", "warn", f"{indexes} answers, but: {error}", remedy)
    except Unreachable as error:
        executor = VenvExecutor(settings)
        offline = any(executor.ready(spec) for spec in catalog.load(settings).runtimes)
        text = f"{error}{'; what is built and cached still works' if offline else ''}"
        remedy = "check the network, and pip's index-url, proxy and cert (pip config list)"
        return Finding("package index", "warn" if offline else "fail", text, remedy)
    finally:
        client.close()
    return Finding("package index", "ok", f"{indexes} has {release.filename}")


def check_sqlite(settings: Settings) -> Finding:
    """The SQLite inside this Python, and the journal that is safe with it."""
    from service.db import journal_mode

    version = sqlite3.sqlite_version
    mode = journal_mode(sqlite3.sqlite_version_info)
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        return Finding("SQLite", "fail", f"{version}, older than {oldest}", "install a Python with a newer SQLite")
    why = "" if mode == "WAL" else " (WAL only from 3.51.3, 3.50.7 or 3.44.6: older ones can corrupt it)"
    return Finding("SQLite", "ok", f"{version}, journal {mode}{why}")


def check_compiler(settings: Settings) -> Finding:
    """What inductor compiles its C++ with; the same choice as the runtime makes."""
    chosen = os.environ.get("CXX")
    names = [chosen] if chosen else ["g++", "clang++", "c++"]
    path = next((found for name in names if (found := shutil.which(name))), None)
    remedy = "install one (the package is called g++ or gcc-c++), or name it in CXX"
    if path is None:
        return Finding(
            "C++ compiler", "warn", f"none ({', '.join(names)}): inductor cells are unsupported, the rest works", remedy
        )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "try.cpp"
        source.write_text("#include <vector>\nint main() { return static_cast<int>(std::vector<int>().size()); }\n")
        tried = _ask(path, str(source), "-o", str(Path(folder) / "try"))
    if tried is None:
        return Finding("C++ compiler", "warn", f"{path} cannot compile a program of two lines", remedy)
    version = (_ask(path, "--version") or "").splitlines()
    return Finding("C++ compiler", "ok", f"{path}: {version[0] if version else 'version unknown'}")


def check_git(settings: Settings) -> Finding:
    """What fetches commits."""
    version = _ask("git", "--version")
    if version is None:
        return Finding("git", "warn", "none: commits cannot be tested, releases and paths can", "install git")
    return Finding("git", "ok", version.strip())


def check_engine(settings: Settings) -> Finding:
    """The container engine, which only the docker executor needs."""
    for name in ("docker", "podman"):
        if shutil.which(name):
            version = _ask(name, "version", "--format", "{{.Server.Version}}")
            if version:
                return Finding("container engine", "ok", f"{name} {version.strip()}")
            remedy = (
                "start its daemon, and give yourself access to its socket; runs in virtual environments need neither"
            )
            return Finding("container engine", "warn", f"{name} is installed but does not answer", remedy)
    text = "none: runs use virtual environments, which is right for code that you trust"
    return Finding("container engine", "warn", text, "install docker to test code that you do not trust")


def check_gpus(settings: Settings) -> Finding:
    """NVIDIA GPUs, which nothing needs but NCCL, as a worker would lease them."""
    from workers.gpus.inventory import gpus_of
    from workers.gpus.nvml import load

    library = load()
    found = None if library is None else gpus_of(library)
    if found is not None and found.models:
        kinds = ", ".join(dict.fromkeys(found.models.values()))
        return Finding("GPUs", "ok", f"{len(found.models)}: {kinds}; driver {found.driver}")
    slots = plural(settings.slots, "CPU slot")
    text = f"none: cells run on the CPU over gloo, in {slots}"
    return Finding("GPUs", "warn", text, "none is needed; with an NVIDIA GPU, check that nvidia-smi lists it")


def _ask(program: str, *arguments: str) -> str | None:
    """What a program prints, or None where it is not there, fails, or does not answer."""
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, errors="replace", timeout=ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


CHECKS: dict[str, Callable[[Settings], Finding]] = {
    "Python": check_python,
    "state folder": check_state,
    "SQLite": check_sqlite,
    "package index": check_index,
    "runtimes": check_runtimes,
    "disk": check_disk,
    "C++ compiler": check_compiler,
    "git": check_git,
    "container engine": check_engine,
    "GPUs": check_gpus,
}
