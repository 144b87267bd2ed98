"""What stands for a container: a real process that speaks the jobs' events, without torch and within milliseconds.

What it says comes from a file of events (``script``) that its executor wrote; which cells there are, from its stdin.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jobs.contract import PHASE_JOB, SCHEMA, AttemptSpec, JobSpec
from tests.campaign.deaths import DIE_AT, JOURNAL, Death, Reaper

SCRIPT, PACE = "CAMPAIGN_SCRIPT", "CAMPAIGN_PACE_S"
WRONG = "wrong"
"""Cases with this in their id answer a gradient of zero."""


def opening(spec: AttemptSpec, script: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Everything before the cells, for every world size and case."""
    yield script["hello"]
    for job in spec.jobs:
        yield from script[str(job.world_size)]["oracle"]
        for case in dict.fromkeys(cell.case for cell in job.cells):
            for event in script[str(job.world_size)]["oracle"]:
                yield {**event, "case": case}
        yield script[str(job.world_size)]["control"]
    yield {"v": SCHEMA, "t": "phase", "name": "subject", "seconds": 0.0}
    yield script["subject"]


def cells(job: JobSpec, script: dict[str, Any], number: int, asked: set[int] | None = None) -> Iterator[dict[str, Any]]:
    """One pass of the job's cells, or of those that were asked for again."""
    for cell in job.cells:
        if asked is None or cell.cell in asked:
            for event in script[str(job.world_size)]["wrong" if WRONG in cell.case else "right"]:
                yield {**event, "job": job.job, "cell": cell.cell, "pass": number}


def main() -> None:
    """Answer every cell of the spec."""
    death = Death.parse(os.environ[DIE_AT]) if DIE_AT in os.environ else None
    reaper = Reaper("child", death, Path(os.environ[JOURNAL]), group=True)
    pace = float(os.environ[PACE])
    spec = AttemptSpec.parse(sys.stdin.buffer.readline())
    sys.stdin.buffer.read(spec.tar_bytes)
    script = json.loads(Path(os.environ[SCRIPT]).read_text())

    def say(event: dict[str, Any]) -> None:
        reaper.passes(f"before {event['t']}")
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()
        reaper.passes(f"after {event['t']}")
        if event["t"] == "case":
            time.sleep(pace)

    for event in opening(spec, script):
        say(event)
    for job in spec.jobs:
        for event in cells(job, script, 1):
            say(event)
        say({"v": SCHEMA, "t": "ask", "job": job.job})
        answer = json.loads(sys.stdin.buffer.readline() or b'{"again": []}')
        for event in cells(job, script, 2, set(answer["again"])):
            say(event)
        say({"v": SCHEMA, "t": "phase", "name": PHASE_JOB.format(job.job), "seconds": 0.1})
    say({"v": SCHEMA, "t": "bye", "ok": True, "reason": None})


if __name__ == "__main__":
    main()
