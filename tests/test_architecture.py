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
EFFECTS = {"os", "subprocess", "socket", "time", "random", "sqlalchemy", "requests", "threading", "tempfile", "sqlite3"}
SUBJECT_ADAPTER = ROOT / "jobs" / "subject" / "deepspeed.py"


def imports(path: Path) -> Iterator[str]:
    """The top-level name of everything that a module imports, wherever it stands in it."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module).partition(".")[0]


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_jobs_imports_the_standard_library_torch_and_in_its_adapter_the_subject(path: Path) -> None:
    allowed = {*sys.stdlib_module_names, "torch", "jobs"} | ({"deepspeed"} if path == SUBJECT_ADAPTER else set())
    assert set(imports(path)) <= allowed


@pytest.mark.parametrize("name", PURE)
def test_what_decides_is_pure(name: str) -> None:
    assert not set(imports(ROOT / name)) & EFFECTS


@pytest.mark.parametrize("path", sorted((ROOT / "jobs" / "oracle").glob("*.py")), ids=lambda path: path.name)
def test_the_oracle_knows_neither_subjects_nor_how_probes_run(path: Path) -> None:
    wanted = [
        str(node.module)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module
    ]
    assert not [name for name in wanted if name.startswith("jobs.subject") or name.endswith((".run", ".mutants"))]


def test_the_packages_resolve_into_this_tree() -> None:
    import jobs
    import service
    import workers

    for package in (jobs, service, workers):
        assert Path(str(package.__file__)).resolve().is_relative_to(ROOT)
