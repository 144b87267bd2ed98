"""The only package that reads and writes the tables. Every function takes the session of one transaction.

On the straight line this stands in the middle: ``service.matrix`` plans, the store keeps, ``workers.loop`` claims and
answers, and everything that shows anything reads from here. Nothing is published from inside: call the broker after
the commit.
"""

from __future__ import annotations

from service.store.accept import (
    CellAnswer,
    ControlAnswer,
    accept,
    record_attempt_facts,
    record_control_set,
    record_controls,
)
from service.store.again import cells_of_job, pin, rerun_cells
from service.store.branches import newest_of_branch
from service.store.checkouts import checkout_part, keep_checkout, kept_commit
from service.store.claim import beat, claim
from service.store.deliveries import act_once, withdraw
from service.store.detail import blob, case_infos, evidence, find_cell, find_cells
from service.store.devices import quarantine, record_devices, set_device
from service.store.exporting import export_all
from service.store.held import cancel, finish, reclaim, release, requeue, start
from service.store.history import history, imports, relatives
from service.store.idempotent import KeyReusedError, forget_keys, posted_before, remember_post
from service.store.importing import Imported, import_records
from service.store.judging import (
    answers,
    append_judgements,
    controls_of,
    count_answers,
    keep_policy,
    policies,
)
from service.store.numbers import Numbers, count_act, numbers
from service.store.origin import Origin, origin
from service.store.outbox import drop_hints, hints
from service.store.paging import (
    cells_of_checkouts,
    hosts,
    newest_checkout,
    page_of_cells,
    page_of_submissions,
    runtimes_in_use,
)
from service.store.progress import Progress, newest_results, progress
from service.store.read import cells_of, jobs_of, submission, submissions, tally, unfinished_submission
from service.store.records import ImportRefusedError, load_lines
from service.store.resolving import (
    Resolving,
    approve,
    claim_resolution,
    fail_resolution,
    give_back_resolution,
    open_submission,
    plan_resolved,
    release_resolution,
    report_resolution,
    was_let_go,
)
from service.store.retaining import Expired, expired, remove_expired
from service.store.settle import settle_all
from service.store.sql import NotFound, StaleFence, StoreError
from service.store.submit import CaseChangedError, submit
from service.store.tokens import TokenView, create_token, find_token, note_use, revoke_token, stale_use, tokens
from service.store.views import (
    Answer,
    AttemptView,
    BlobView,
    CellDetail,
    CellRow,
    Claim,
    ClaimedJob,
    ControlRow,
    DeviceView,
    HostView,
    JobView,
    JudgementView,
    KeptControl,
    KeptControls,
    RuntimeView,
    SubmissionView,
)

__all__ = [
    "Answer",
    "AttemptView",
    "BlobView",
    "CaseChangedError",
    "CellAnswer",
    "CellDetail",
    "CellRow",
    "Claim",
    "ClaimedJob",
    "ControlAnswer",
    "ControlRow",
    "DeviceView",
    "Expired",
    "HostView",
    "ImportRefusedError",
    "Imported",
    "JobView",
    "JudgementView",
    "KeptControl",
    "KeptControls",
    "KeyReusedError",
    "NotFound",
    "Numbers",
    "Origin",
    "Progress",
    "Resolving",
    "RuntimeView",
    "StaleFence",
    "StoreError",
    "SubmissionView",
    "TokenView",
    "accept",
    "act_once",
    "answers",
    "append_judgements",
    "approve",
    "beat",
    "blob",
    "cancel",
    "case_infos",
    "cells_of",
    "cells_of_checkouts",
    "cells_of_job",
    "checkout_part",
    "claim",
    "claim_resolution",
    "controls_of",
    "count_act",
    "count_answers",
    "create_token",
    "drop_hints",
    "evidence",
    "expired",
    "export_all",
    "fail_resolution",
    "find_cell",
    "find_cells",
    "find_token",
    "finish",
    "forget_keys",
    "give_back_resolution",
    "hints",
    "history",
    "hosts",
    "import_records",
    "imports",
    "jobs_of",
    "keep_checkout",
    "keep_policy",
    "kept_commit",
    "load_lines",
    "newest_checkout",
    "newest_of_branch",
    "newest_results",
    "note_use",
    "numbers",
    "open_submission",
    "origin",
    "page_of_cells",
    "page_of_submissions",
    "pin",
    "plan_resolved",
    "policies",
    "posted_before",
    "progress",
    "quarantine",
    "reclaim",
    "record_attempt_facts",
    "record_control_set",
    "record_controls",
    "record_devices",
    "relatives",
    "release",
    "release_resolution",
    "remember_post",
    "remove_expired",
    "report_resolution",
    "requeue",
    "rerun_cells",
    "revoke_token",
    "runtimes_in_use",
    "set_device",
    "settle_all",
    "stale_use",
    "start",
    "submission",
    "submissions",
    "submit",
    "tally",
    "tokens",
    "unfinished_submission",
    "was_let_go",
    "withdraw",
]
