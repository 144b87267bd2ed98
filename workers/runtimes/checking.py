"""What a built runtime says of itself, held against its lock.

On the straight line this stands beside every way of building runtimes: what is installed is asked of Python in there,
in whatever way the executor starts it, and compared here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.utils import canonicalize_name

from service.catalog import RuntimeSpec
from workers.runtimes.locking import locked_versions

SCRIPT = """
import importlib.metadata, json, sys
import torch
print(json.dumps({
    "torch": torch.__version__,
    "git": torch.version.git_version,
    "python": ".".join(map(str, sys.version_info[:3])),
    "packages": {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()},
}))
"""


@dataclass(frozen=True)
class Check:
    """What a built runtime says of itself, and what is wrong with it (nothing, if ``problems`` is empty)."""

    name: str
    torch: str
    git: str
    python: str
    packages: int
    problems: tuple[str, ...]


def compared(runtime: RuntimeSpec, said: Mapping[str, Any]) -> Check:
    """What :data:`SCRIPT` printed, with every difference from the lock."""
    have = {str(canonicalize_name(name)): version for name, version in said["packages"].items()}
    want = locked_versions(runtime.lock)
    problems = [
        f"{name} is {have.get(name, 'missing')}, locked is {version}"
        for name, version in want.items()
        if have.get(name) != version
    ]
    problems += [f"{name} {version} is installed and not locked" for name, version in have.items() if name not in want]
    if not said["python"].startswith(runtime.python + "."):
        problems.append(f"Python is {said['python']}, asked for is {runtime.python}")
    return Check(runtime.name, said["torch"], said["git"], said["python"], len(have), tuple(problems))
