"""What a process asks of the machine: how it waits for its turn on a processor."""

from __future__ import annotations

import os
import subprocess
import sys

SAID = """
import os, subprocess, sys
from jobs.channel import take_long_turns
if sys.argv[1] == "denied":
    def denied(*_): raise PermissionError(1, "not here")
    os.sched_setscheduler = denied
take_long_turns()
started = [sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"]
print(os.sched_getscheduler(0), subprocess.check_output(started).decode())
"""


def said(how: str) -> list[int]:
    done = subprocess.run([sys.executable, "-c", SAID, how], capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


def test_long_turns_are_taken_by_the_process_and_by_those_that_it_starts() -> None:
    assert said("allowed") == [os.SCHED_BATCH] * 2


def test_where_they_are_not_allowed_everything_goes_on_as_before() -> None:
    assert said("denied") == [os.sched_getscheduler(0)] * 2
