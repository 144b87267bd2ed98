"""Runs inside a runtime, in an empty folder: a job over NCCL of more ranks than any machine has GPUs."""

from __future__ import annotations

import os
import sys

from jobs.contract import AttemptSpec, JobSpec
from jobs.launcher import Launcher
from jobs.stream import EventStream

os.chdir(sys.argv[1])
spec = AttemptSpec(
    attempt="a", subject="torch", label="torch", transport="nccl", jobs=(JobSpec(1, 64, ()),), tar_bytes=0
)
Launcher(spec, EventStream(1), 0).run()
