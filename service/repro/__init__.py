"""One stored cell as one Python file that needs torch and the subject and nothing of ours.

On the straight line this stands behind the store, and ``workers.cli`` writes what it returns to a file. ::

    handed    what the ranks hand in, from ``python -m jobs --handed``, as lines that draw it
    source    which API the checkout has, from its files
    families  a template per family: the call, and its truth in plain torch for one process
    frame     everything around it;  comparing: numbers and the last word;  heading: what was found, how to run it

The script calls the subject as its users do and states the truth a second time, so that it shows a fault to somebody
who believes nothing of ours; that both come to the same numbers is tested. Text only: no torch is imported.
"""

from __future__ import annotations

from service.errors import nearest
from service.repro.families import FAMILIES
from service.repro.frame import frame
from service.repro.given import Given, NothingToReproduce
from service.repro.unimportable import script as import_script

__all__ = ["Given", "NothingToReproduce", "refuse", "script"]

SILENT = {
    "unsupported": "the checkout or the runtime has no such call",
    "infra": "the machine failed, and nothing is known of the subject",
    "invalid": "a control of ours failed, so that the answer means nothing",
    "leak": "alone in a new process it is right, and only what ran before it in the same process made it wrong",
}
"""Verdicts of which a script of one case has nothing to show, and why."""


def refuse(verdict: str | None, subject: str, family: str) -> None:
    """Raise NothingToReproduce where there is no script for such a cell; cheap, and before anything is looked up."""
    if verdict is None:
        raise NothingToReproduce("the cell has no answer yet: gradmatrix run --resume finishes what was begun")
    if verdict in SILENT:
        raise NothingToReproduce(f"there is nothing to reproduce: the cell is {verdict}: {SILENT[verdict]}")
    if subject == "checkout":
        raise NothingToReproduce(
            "the checkout brings its own gradmatrix_adapter.py, and only that says how it is called: there are scripts "
            "for deepspeed and for torch"
        )
    if family not in FAMILIES:
        raise NothingToReproduce(f"there are no scripts for family {family!r} yet: {nearest(family, FAMILIES)}")


def script(given: Given) -> str:
    """The text of the file. Raises NothingToReproduce, and UsageError where the checkout's files are gone."""
    refuse(given.row.verdict, given.row.subject, given.case.family)
    if given.row.verdict == "unimportable":
        return import_script(given)
    return frame(given, FAMILIES[given.case.family](given))
