"""The catalogue of cases and controls, as ``jobs`` itself states it.

On the straight line this stands beside ``service.matrix``, which takes the cases from here. The service knows of
``jobs`` only its contract; so the list is asked for in a process of its own, with this interpreter and without torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import jobs
from jobs.contract import FAMILIES, SUITES, CaseInfo, ContractError, ControlInfo
from service.errors import GradmatrixError, UsageError, nearest
from service.globs import matches
from service.suite import default_cases

SCHEMA = 1
LIST_S = 60.0


class CatalogueError(GradmatrixError):
    """The cases could not be listed: the installation is broken, or a probe's definition is."""


@dataclass(frozen=True)
class CaseCatalogue:
    """Everything that can be exercised, in the order in which ``jobs`` lists it."""

    cases: tuple[CaseInfo, ...]
    controls: tuple[ControlInfo, ...]

    @cached_property
    def _usual(self) -> frozenset[str]:
        """The ids of the default suite: choosing them takes longer than all else that a POST waits for."""
        return frozenset(case.id for case in default_cases(self.cases))

    def select(
        self, globs: Sequence[str] = (), families: Sequence[str] = (), suite: str | None = None
    ) -> tuple[CaseInfo, ...]:
        """The cases that fit any of ``globs``, are of any of ``families`` and in ``suite``; an empty list means all.

        Without a suite those that fit a glob are taken from all of them, and without globs those of the first. A glob
        is held against the id as :func:`fits` says. Raises UsageError for a glob or a family that fits nothing, naming
        the nearest known.
        """
        present = {case.family for case in self.cases}
        for family in families:
            if family not in present:
                where = "has no cases yet" if family in FAMILIES else "is not known"
                raise UsageError(f"family {family!r} {where}: {nearest(family, present)}")
        within = suite or usual_suite(globs)
        there = self._usual if within == SUITES[0] else {case.id for case in self.cases}
        chosen: set[str] = set()
        for glob in globs:
            fitting = {case.id for case in self.cases if fits(glob, case.id)}
            if not fitting:
                known = [case.id if "[" in glob else case.id.partition("[")[0] for case in self.cases]
                raise UsageError(f"no case fits {glob!r}: {nearest(glob, known)}")
            if not fitting & there:
                raise UsageError(
                    f"no case of suite {within} fits {glob!r}; suite {SUITES[-1]} has {len(fitting)} that do"
                )
            chosen |= fitting
        return tuple(
            case
            for case in self.cases
            if (not globs or case.id in chosen) and (not families or case.family in families) and case.id in there
        )


def usual_suite(globs: Sequence[str]) -> str:
    """The suite that is meant where none is named: who names cases wants them, whichever suite they are in."""
    return SUITES[-1] if globs else SUITES[0]


def fits(glob: str, case_id: str) -> bool:
    """Whether ``glob`` covers the id, with or without its parameters, with or without its family."""
    whole = (case_id, case_id.partition("[")[0])
    return any(matches(glob, name) for name in (*whole, *(name.partition("/")[2] for name in whole)))


@lru_cache
def catalogue() -> CaseCatalogue:
    """The catalogue of the installed ``jobs``, asked for once. Raises CatalogueError."""
    return parse(ask("--list"))


def ask(*arguments: str) -> bytes:
    """What ``python -m jobs`` answers. Raises CatalogueError."""
    root = Path(str(jobs.__file__)).resolve().parents[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [sys.executable, "-W", "ignore", "-m", "jobs", *arguments]
    try:
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, timeout=LIST_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CatalogueError(f"the cases cannot be listed: {error}") from error
    if done.returncode != 0:
        tail = done.stderr.decode(errors="replace").strip().splitlines()[-5:]
        raise CatalogueError("the cases cannot be listed:\n" + "\n".join(tail))
    return done.stdout


def parse(listing: bytes) -> CaseCatalogue:
    """The catalogue in ``listing``. Raises CatalogueError where it has not the agreed form."""
    try:
        data: Any = json.loads(listing)
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise CatalogueError(f"the list of cases is not of schema {SCHEMA}")
        cases = tuple(CaseInfo.from_json(item) for item in data["cases"])
        controls = tuple(ControlInfo.from_json(item) for item in data["controls"])
    except (ValueError, KeyError, TypeError, ContractError) as error:
        raise CatalogueError(f"the list of cases cannot be read: {error}") from error
    ids = [case.id for case in cases]
    if twice := sorted({case_id for case_id in ids if ids.count(case_id) > 1}):
        raise CatalogueError(f"the list of cases names some twice: {', '.join(twice)}")
    return CaseCatalogue(cases, controls)
