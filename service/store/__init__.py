"""The only package that reads and writes the tables. Every function takes the session of one transaction.

On the straight line this stands in the middle: ``service.matrix`` plans, the store keeps, ``workers.loop`` claims and
answers, and everything that shows anything reads from here. Nothing is published from inside: call the broker after
the commit.
"""

from __future__ import annotations

from service.store.accept import accept, record_attempt_facts, record_control, record_control_set
from service.store.claim import beat, claim
from service.store.detail import blob, case_infos, evidence, find_cell, find_cells
from service.store.exporting import export_all
from service.store.held import cancel, finish, reclaim, release, requeue, start
from service.store.history import history, imports, relatives
from service.store.importing import Imported, import_records
from service.store.judging import (
    answers,
    append_judgements,
    controls_of,
    count_answers,
    keep_policy,
    policies,
)
from service.store.origin import Origin, origin
from service.store.read import cells_of, jobs_of, submission, submissions, unfinished_submission
from service.store.records import ImportRefusedError, load_lines
from service.store.sql import AlreadyAccepted, StaleFence, StoreError
from service.store.submit import CaseChangedError, submit
from service.store.views import (
    Answer,
    AttemptView,
    BlobView,
    CellDetail,
    CellRow,
    Claim,
    ClaimedJob,
    ControlRow,
    JobView,
    JudgementView,
    KeptControl,
    KeptControls,
    SubmissionView,
)

__all__ = [
    "AlreadyAccepted",
    "Answer",
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
    "JudgementView",
    "KeptControl",
    "KeptControls",
    "Origin",
    "StaleFence",
    "StoreError",
    "SubmissionView",
    "accept",
    "answers",
    "append_judgements",
    "beat",
    "blob",
    "cancel",
    "case_infos",
    "cells_of",
    "claim",
    "controls_of",
    "count_answers",
    "evidence",
    "export_all",
    "find_cell",
    "find_cells",
    "finish",
    "history",
    "import_records",
    "imports",
    "jobs_of",
    "keep_policy",
    "load_lines",
    "origin",
    "policies",
    "reclaim",
    "record_attempt_facts",
    "record_control",
    "record_control_set",
    "relatives",
    "release",
    "requeue",
    "start",
    "submission",
    "submissions",
    "submit",
    "unfinished_submission",
]
