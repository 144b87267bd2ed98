"""The only package that reads and writes the tables. Every function takes the session of one transaction.

On the straight line this stands in the middle: ``service.matrix`` plans, the store keeps, ``workers.loop`` claims and
answers, and everything that shows anything reads from here. Nothing is published from inside: call the broker after
the commit.
"""

from __future__ import annotations

from service.store.accept import accept, record_attempt_facts, record_control
from service.store.claim import beat, claim
from service.store.detail import blob, evidence, find_cell, find_cells
from service.store.exporting import export_all
from service.store.held import cancel, finish, reclaim, release, requeue, start
from service.store.history import history, imports
from service.store.importing import Imported, import_records
from service.store.read import cells_of, jobs_of, submission, submissions, unfinished_submission
from service.store.records import ImportRefusedError, load_lines
from service.store.sql import AlreadyAccepted, StaleFence, StoreError
from service.store.submit import CaseChangedError, submit
from service.store.views import (
    AttemptView,
    BlobView,
    CellDetail,
    CellRow,
    Claim,
    ClaimedJob,
    ControlRow,
    JobView,
    SubmissionView,
)

__all__ = [
    "AlreadyAccepted",
    "AttemptView",
    "BlobView",
    "CaseChangedError",
    "CellDetail",
    "CellRow",
    "Claim",
    "ClaimedJob",
    "ControlRow",
    "ImportRefusedError",
    "Imported",
    "JobView",
    "StaleFence",
    "StoreError",
    "SubmissionView",
    "accept",
    "beat",
    "blob",
    "cancel",
    "cells_of",
    "claim",
    "evidence",
    "export_all",
    "find_cell",
    "find_cells",
    "finish",
    "history",
    "import_records",
    "imports",
    "jobs_of",
    "load_lines",
    "reclaim",
    "record_attempt_facts",
    "record_control",
    "release",
    "requeue",
    "start",
    "submission",
    "submissions",
    "submit",
    "unfinished_submission",
]
