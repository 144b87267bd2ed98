"""The tables. The database is the truth; messages between processes are hints.

On the straight line this stands beneath ``service.store``, the only package that reads or writes these rows. Column
types are the portable ones: the same schema serves SQLite and PostgreSQL, and ``migrations`` must equal it.

No table has a row per tensor or rank: those numbers are one compressed document in ``evidence``, shared by digest.
"""

from __future__ import annotations

from service.models.access import SCOPES, Delivery, IdempotencyKey, Token
from service.models.answers import (
    STAGES,
    AttemptBlob,
    Blob,
    ControlResult,
    ControlSet,
    Evidence,
    Policy,
    Result,
    ResultBlob,
)
from service.models.matrix import CaseVersion, Cell, Checkout, CheckoutPart, Runtime
from service.models.work import (
    ATTEMPT_STATES,
    DEVICE_STATES,
    HELD,
    JOB_STATES,
    LIVE,
    OVER,
    RESOLUTION_STATES,
    SUBMISSION_STATES,
    Act,
    Attempt,
    Device,
    GpuLease,
    Hint,
    Host,
    Job,
    Resolution,
    Submission,
    SubmissionCell,
    SubmissionCheckout,
    SubmissionJob,
)

__all__ = [
    "ATTEMPT_STATES",
    "DEVICE_STATES",
    "HELD",
    "JOB_STATES",
    "LIVE",
    "OVER",
    "RESOLUTION_STATES",
    "SCOPES",
    "STAGES",
    "SUBMISSION_STATES",
    "Act",
    "Attempt",
    "AttemptBlob",
    "Blob",
    "CaseVersion",
    "Cell",
    "Checkout",
    "CheckoutPart",
    "ControlResult",
    "ControlSet",
    "Delivery",
    "Device",
    "Evidence",
    "GpuLease",
    "Hint",
    "Host",
    "IdempotencyKey",
    "Job",
    "Policy",
    "Resolution",
    "Result",
    "ResultBlob",
    "Runtime",
    "Submission",
    "SubmissionCell",
    "SubmissionCheckout",
    "SubmissionJob",
    "Token",
]
