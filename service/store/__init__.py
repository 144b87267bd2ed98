"""The only package that reads and writes the tables. Every function takes the session of one transaction.

On the straight line this stands in the middle: ``service.matrix`` plans, the store keeps, ``workers.loop`` claims and
answers, and everything that shows anything reads from here. Nothing is published from inside: call the broker after
the commit.
"""

from __future__ import annotations

from service.store.accept import accept, record_attempt_facts, record_control, record_control_set
from service.store.checkouts import checkout_part, keep_checkout
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
from service.store.outbox import drop_hints, hints
from service.store.read import cells_of, jobs_of, submission, submissions, unfinished_submission
from service.store.records import ImportRefusedError, load_lines
from service.store.resolving import (
    Resolving,
    approve,
    claim_resolution,
    fail_resolution,
    give_back_resolution,
    open_submission,
    plan_resolved,
    report_resolution,
)
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
    "Resolving",
    "StaleFence",
    "StoreError",
    "SubmissionView",
    "accept",
    "answers",
    "append_judgements",
    "approve",
    "beat",
    "blob",
    "cancel",
    "case_infos",
    "cells_of",
    "checkout_part",
    "claim",
    "claim_resolution",
    "controls_of",
    "count_answers",
    "drop_hints",
    "evidence",
    "export_all",
    "fail_resolution",
    "find_cell",
    "find_cells",
    "finish",
    "give_back_resolution",
    "hints",
    "history",
    "import_records",
    "imports",
    "jobs_of",
    "keep_checkout",
    "keep_policy",
    "load_lines",
    "open_submission",
    "origin",
    "plan_resolved",
    "policies",
    "reclaim",
    "record_attempt_facts",
    "record_control",
    "record_control_set",
    "relatives",
    "release",
    "report_resolution",
    "requeue",
    "start",
    "submission",
    "submissions",
    "submit",
    "unfinished_submission",
]
