"""Subjects: from a name such as ``deepspeed==0.18.3`` to a checkout, the files at one exact content.

On the straight line this stands after ``service.api`` and before ``service.matrix``::

    parse ─ resolve ┬ release (transfer) ─ archive ┐
                    ├ git (git_run) ───────────────┼ tree ─ cache
                    └ local ───────────────────────┘
"""

from service.subjects.cache import Cache, Checkout, verify
from service.subjects.errors import NotAllowed, SubjectError, TreeRefused, UnknownSubject, Unreachable, WrongHash
from service.subjects.parse import FORMS, Progress, SubjectRequest, parse_subject, repository_key
from service.subjects.resolve import caps, resolve
from service.subjects.tree import Caps

__all__ = [
    "FORMS",
    "Cache",
    "Caps",
    "Checkout",
    "NotAllowed",
    "Progress",
    "SubjectError",
    "SubjectRequest",
    "TreeRefused",
    "UnknownSubject",
    "Unreachable",
    "WrongHash",
    "caps",
    "parse_subject",
    "repository_key",
    "resolve",
    "verify",
]
