"""The form of an export: one record per line, with natural keys in place of the database's own numbers.

``service.store.exporting`` writes these in the order of :data:`KINDS`, so that whatever a record refers to stands
before it; ``service.store.importing`` reads them as untrusted input, checked field by field against this table.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from jobs.contract import CaseInfo, ContractError
from service.models import ATTEMPT_STATES, JOB_STATES, LIVE, STAGES
from service.policy import PolicyError, policy_from_data
from service.store.sql import StoreError

VERSION = 1

Check = Callable[[Any], Any]
"""Gives the value as the database takes it. Raises ValueError, saying what would be right."""


class ImportRefusedError(StoreError):
    """An import holds something that is not of the agreed form; nothing of it was stored."""

    def __init__(self, line: int, what: str, why: str) -> None:
        super().__init__(f"line {line}: {what}: {why}; nothing was imported")


def words(longest: int = 2**20) -> Check:
    """A text of at most ``longest`` characters."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or len(value) > longest or "\0" in value:
            raise ValueError(f"must be a text of at most {longest} characters")
        return value

    return check


def pattern(form: str, what: str) -> Check:
    """A text of one form."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(form, value):
            raise ValueError(f"must be {what}")
        return value

    return check


def one_of(*choices: str) -> Check:
    """One of a few words."""

    def check(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return str(value)

    return check


def number(value: Any) -> int:
    """A whole number that every database can hold."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise ValueError("must be a whole number from 0 to 2147483647")
    return value


def signed(value: Any) -> int:
    """A whole number, possibly negative."""
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**31:
        raise ValueError("must be a whole number")
    return value


def size(value: Any) -> int:
    """A number of bytes."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise ValueError("must be a number of bytes")
    return value


def real(value: Any) -> float:
    """A number; infinities are written as texts, for JSON has none."""
    if value in ("inf", "-inf"):
        return float(value)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError("must be a number")
    return float(value)


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def mapping(value: Any) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise ValueError("must be an object")
    return value


def case_info(value: Any) -> dict[str, Any]:
    """A case's definition."""
    try:
        CaseInfo.from_json(mapping(value))
    except (ContractError, TypeError, AttributeError) as error:
        raise ValueError(f"must define a case: {error}") from error
    return mapping(value)


def policy_content(value: Any) -> dict[str, Any]:
    """A tolerance policy."""
    try:
        policy_from_data(mapping(value))
    except PolicyError as error:
        raise ValueError(f"must be a policy: {error}") from error
    return mapping(value)


def moment(value: Any) -> datetime:
    """A time with its zone, as ISO 8601."""
    try:
        parsed = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        parsed = None
    if parsed is None or parsed.tzinfo is None:
        raise ValueError("must be a time with its zone, as ISO 8601")
    return parsed.astimezone(UTC)


def packed(value: Any) -> bytes:
    """Compressed bytes, in base64."""
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise ValueError("must be base64") from error


def optional(check: Check) -> Check:
    """Null, or what ``check`` asks for."""
    return lambda value: None if value is None else check(value)


def row(*checks: Check) -> Check:
    """A list with one value per check."""

    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(checks):
            raise ValueError(f"must be a list of {len(checks)} values")
        return tuple(each(item) for each, item in zip(checks, value, strict=True))

    return check


def many(check: Check) -> Check:
    """A list of any length."""

    def checked(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValueError("must be a list")
        return [check(item) for item in value]

    return checked


DIGEST = pattern("[0-9a-f]{64}", "a sha256 digest in hex")
KEY = pattern("[0-9a-f]{32}", "a key of 32 hex digits")
CELL = row(DIGEST, DIGEST, words(32), number, words(255), number, words(32))
"""Checkout, runtime, transport, world size, case, version, mode."""
ATTEMPT = row(KEY, number)
"""Job, fence."""
BLOBS = many(row(words(32), words(255), optional(number), size, mapping, optional(DIGEST)))
"""Kind, name, rank, size, meta, digest."""
ENDED = tuple(state for state in JOB_STATES if state not in LIVE)
STORED = {"digest": DIGEST, "size": size, "data": packed}

KINDS: dict[str, dict[str, Check]] = {
    "checkout": {
        "digest": DIGEST,
        "subject": words(64),
        "kind": words(16),
        "label": words(255),
        "ref": words(255),
        "size": size,
        "meta": mapping,
    },
    "runtime": {
        "digest": DIGEST,
        "name": words(64),
        "torch": words(64),
        "variant": words(32),
        "channel": words(32),
        "python": words(32),
    },
    "case": {"case": words(255), "version": number, "family": words(32), "info": case_info},
    "job": {
        "key": KEY,
        "checkout": DIGEST,
        "runtime": DIGEST,
        "transport": words(32),
        "world_size": number,
        "cells_digest": DIGEST,
        "state": one_of(*ENDED),
        "priority": signed,
        "wall_s": real,
        "fence": number,
        "failures": number,
        "cells_total": number,
        "note": words(),
        "created_at": moment,
        "queued_at": moment,
        "finished_at": optional(moment),
    },
    "cell": {"cell": CELL, "job": optional(KEY)},
    "submission": {
        "key": KEY,
        "state": one_of("done", "cancelled"),
        "requester": words(255),
        "reason": words(64),
        "priority": signed,
        "request": mapping,
        "created_at": moment,
        "finished_at": optional(moment),
        "checkouts": many(row(DIGEST, words(255))),
        "jobs": many(KEY),
        "cells": many(CELL),
    },
    "policy": {"version": words(32), "content": policy_content, "created_at": moment},
    "control_set": STORED,
    "evidence": STORED,
    "blob": STORED,
    "attempt": {
        "attempt": ATTEMPT,
        "container": KEY,
        "host": words(255),
        "state": one_of(*ATTEMPT_STATES[1:]),
        "note": words(),
        "facts": mapping,
        "started_at": moment,
        "ended_at": optional(moment),
        "control_set_digest": optional(DIGEST),
        "blobs": BLOBS,
    },
    "result": {
        "cell": CELL,
        "attempt": ATTEMPT,
        "verdict": words(32),
        "policy_version": words(32),
        "forward_ok": optional(flag),
        "signature": words(),
        "detail": words(),
        "worst_tensor": optional(words(255)),
        "error": optional(real),
        "alpha": optional(real),
        "nonzero_got": optional(number),
        "nonzero_expected": optional(number),
        "evidence_digest": DIGEST,
        "first_digest": optional(DIGEST),
        "alone_digest": optional(DIGEST),
        "seconds": real,
        "created_at": moment,
        "judged_at": optional(moment),
        "blobs": BLOBS,
    },
    "control": {
        "attempt": ATTEMPT,
        "control": words(255),
        "mode": words(32),
        "world_size": number,
        "stage": one_of(*STAGES),
        "verdict": words(32),
        "as_expected": flag,
        "detail": words(),
        "policy_version": words(32),
        "evidence_digest": optional(DIGEST),
    },
}
"""Every kind of record with its fields, in the order in which an export holds them."""

LATER = {"attempt": {"control_set_digest"}, "result": {"first_digest", "alone_digest", "judged_at"}}
"""Fields that exports of older programs lack; they are null then."""


def checked(line: int, record: Any) -> tuple[str, dict[str, Any]]:
    """The kind of ``record`` and its values as the database takes them. Raises ImportRefusedError."""
    if not isinstance(record, dict):
        raise ImportRefusedError(line, "the record", "must be an object")
    kind = record.get("record")
    if record.get("v") != VERSION:
        raise ImportRefusedError(
            line, "field 'v'", f"version {record.get('v')!r} is not {VERSION}, which is known here"
        )
    if not isinstance(kind, str) or kind not in KINDS:
        raise ImportRefusedError(line, "field 'record'", f"{kind!r} is none of {', '.join(KINDS)}")
    fields = KINDS[kind]
    given = set(record) - {"v", "record"}
    missing = [name for name in fields if name not in given and name not in LATER.get(kind, ())]
    for name in (*sorted(given - set(fields)), *missing):
        why = "is not known" if name in given else "is missing"
        raise ImportRefusedError(line, f"{kind}: field {name!r}", why)
    values: dict[str, Any] = {}
    for name, check in fields.items():
        try:
            values[name] = check(record.get(name))
        except ValueError as error:
            raise ImportRefusedError(line, f"{kind}: field {name!r}", str(error)) from error
    return kind, values


def load_lines(lines: Iterable[str | bytes]) -> Iterator[dict[str, Any]]:
    """The records of a file, one JSON object per line. Raises ImportRefusedError."""
    for number_, line in enumerate(lines, 1):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ImportRefusedError(number_, "the line", f"is not JSON: {error}") from error
