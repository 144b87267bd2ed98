"""House law that import-linter cannot say: what jobs may import at all, and which modules are pure."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PURE = (
    "service/matrix.py",
    "service/judge.py",
    "service/gradients.py",
    "service/rejudging.py",
    "service/compare.py",
    "service/findings.py",
    "service/diagnosis.py",
    "service/evidence.py",
    "service/detection.py",
    "service/source.py",
    "service/holding.py",
    "service/coverage.py",
    "workers/choose.py",
)
RUNS = {"run", "mutants"}
EFFECTS = {"os", "subprocess", "socket", "time", "random", "sqlalchemy", "requests", "threading", "tempfile", "sqlite3"}


def imports(path: Path) -> Iterator[str]:
    """The top-level name of everything that a module imports, wherever it stands in it."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module).partition(".")[0]


def modules(path: Path) -> Iterator[str]:
    """The full name of everything that a module imports; of ``from a import b`` both ``a`` and ``a.b``."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_jobs_imports_the_standard_library_and_torch_alone(path: Path) -> None:
    assert set(imports(path)) <= {*sys.stdlib_module_names, "torch", "jobs"}  # the subject is looked up by its name


@pytest.mark.parametrize("name", PURE)
def test_what_decides_is_pure(name: str) -> None:
    assert not set(imports(ROOT / name)) & EFFECTS


@pytest.mark.parametrize("path", sorted((ROOT / "jobs" / "oracle").glob("*.py")), ids=lambda path: path.name)
def test_the_oracle_knows_neither_subjects_nor_how_probes_run(path: Path) -> None:
    assert not [name for name in modules(path) if name.startswith("jobs.subject") or RUNS & set(name.split("."))]


def test_every_way_to_import_what_an_oracle_must_not_is_seen(tmp_path: Path) -> None:
    for line in (
        "from jobs.probes.x.run import a",
        "from jobs.probes.x import run",
        "import jobs.probes.x.mutants as m",
    ):
        (tmp_path / "m.py").write_text(line)
        assert [name for name in modules(tmp_path / "m.py") if RUNS & set(name.split("."))], line
    for line in ("from jobs import subject", "import jobs.subject", "from jobs.subject.base import Subject"):
        (tmp_path / "m.py").write_text(line)
        assert [name for name in modules(tmp_path / "m.py") if name.startswith("jobs.subject")], line


def test_the_packages_resolve_into_this_tree() -> None:
    import jobs
    import service
    import workers

    for package in (jobs, service, workers):
        assert Path(str(package.__file__)).resolve().is_relative_to(ROOT)
