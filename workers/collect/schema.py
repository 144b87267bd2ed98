"""The form of every event, as tables: what is not exactly so is a violation.

On the straight line this is the first thing that an event meets in ``workers.collect``. Whoever wrote the line may be a
stranger's code: nothing is assumed of it but that it is bytes.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, NoReturn

from jobs.contract import DTYPES, EVENTS, MODES, RANK_STATUS, ROLES, SCHEMA, Limits
from service.errors import GradmatrixError
from workers.collect.measure import Raw

MAX_DIMS = 16
MAX_LIST = 4096
MAX_RANKS = 64
TEXT_LIMIT = 8192
PLAIN_ITEMS = 256
PLAIN_DEPTH = 3
OWNERS = ("subject", "torch", "jobs", "python", "other")
STAGES = ("before", "after")

_NAME = re.compile(r"[A-Za-z0-9_.,:=/\[\]-]{1,120}")
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class Violation(GradmatrixError):  # noqa: N818 - the word that the contract uses
    """A job broke the contract of its stream, and nothing more that it says is read.

    blame   ``infra`` before subject code could run (then it is ours), else ``crash``
    job     the job that was speaking, where that is known
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.blame: Literal["infra", "crash"] = "crash"
        self.job: int | None = None


Check = Callable[[Any, str], Any]
"""Takes a value and the name of where it stands; returns it cleaned, or raises Violation."""


def _refuse(where: str, wanted: str) -> NoReturn:
    raise Violation(f"{where} is not {wanted}")


def integer(low: int = 0, high: int = 2**63 - 1) -> Check:
    """A whole number within bounds; a bool is none."""

    def check(value: Any, where: str) -> int:
        if type(value) is not int or not low <= value <= high:
            _refuse(where, f"a whole number from {low} to {high}")
        return int(value)

    return check


def seconds(value: Any, where: str) -> float:
    """A finite duration."""
    if type(value) not in (int, float) or not 0 <= value < 1e9:
        _refuse(where, "a number of seconds")
    return float(value)


def boolean(value: Any, where: str) -> bool:
    """True or false."""
    if type(value) is not bool:
        _refuse(where, "true or false")
    return bool(value)


def text(limit: int = TEXT_LIMIT) -> Check:
    """Text for people: cut at ``limit`` (which it then says) and freed of what no database or terminal should see."""

    def check(value: Any, where: str) -> str:
        if type(value) is not str:
            _refuse(where, "text")
        cut = value if len(value) <= limit else f"{value[:limit]} [cut: {len(value)} characters]"
        return _CONTROL_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", cut)

    return check


def name(value: Any, where: str) -> str:
    """An identifier of ours, such as a tensor's name."""
    if type(value) is not str or not _NAME.fullmatch(value):
        _refuse(where, "a name of at most 120 letters, digits and _.,:=/[]-")
    return str(value)


def one_of(words: tuple[str, ...]) -> Check:
    """One of these words."""

    def check(value: Any, where: str) -> str:
        if type(value) is not str or value not in words:
            _refuse(where, f"one of {', '.join(words)}")
        return str(value)

    return check


def optional(inner: Check) -> Check:
    """Null, or what ``inner`` takes."""
    return lambda value, where: None if value is None else inner(value, where)


def items(inner: Check, most: int = MAX_LIST) -> Check:
    """A list of at most ``most`` of what ``inner`` takes; becomes a tuple."""

    def check(value: Any, where: str) -> tuple[Any, ...]:
        if type(value) is not list or len(value) > most:
            _refuse(where, f"a list of at most {most}")
        return tuple(inner(item, f"{where}[{i}]") for i, item in enumerate(value))

    return check


def record(fields: dict[str, Check], may: dict[str, Check] | None = None) -> Check:
    """An object with exactly ``fields``, and perhaps some of ``may``."""
    known = fields | (may or {})

    def check(value: Any, where: str) -> dict[str, Any]:
        if type(value) is not dict:
            _refuse(where, "an object")
        if missing := sorted(set(fields) - set(value)):
            raise Violation(f"{where} lacks {', '.join(missing)}")
        if unknown := sorted(set(value) - set(known)):
            raise Violation(f"{where} has unknown fields: {', '.join(unknown)[:200]!r}")
        return {key: known[key](item, f"{where}.{key}") for key, item in value.items()}

    return check


def plain(value: Any, where: str, depth: int = PLAIN_DEPTH) -> Any:
    """Facts in no fixed form, kept small and shallow."""
    kind = type(value)
    if kind is str:
        return text()(value, where)
    if kind is dict and depth and len(value) <= PLAIN_ITEMS:
        return {text(200)(key, where): plain(item, where, depth - 1) for key, item in value.items()}
    if kind is list and depth and len(value) <= PLAIN_ITEMS:
        return [plain(item, where, depth - 1) for item in value]
    if value is None or kind is bool or (kind in (int, float) and abs(value) < 2**63):
        return value
    _refuse(where, f"plain JSON of at most {PLAIN_ITEMS} items and {PLAIN_DEPTH} levels")


_shape = items(integer(0, 2**40), MAX_DIMS)


class Sent(NamedTuple):
    """A tensor as it was said; ``raw`` is None for one that is not there."""

    role: str
    name: str
    raw: Raw | None


def tensor(limits: Limits) -> Check:
    """A tensor whose bytes are as many as its shape and type say."""
    fields = record(
        {
            "role": one_of(ROLES),
            "name": name,
            "dtype": optional(one_of(tuple(DTYPES))),
            "shape": optional(_shape),
            "data": lambda value, _: value,
        }
    )

    def check(value: Any, where: str) -> Sent:
        said = fields(value, where)
        data = said["data"]
        if data is None:
            return Sent(said["role"], said["name"], None)
        if type(data) is not str or said["dtype"] is None or said["shape"] is None:
            _refuse(where, "a tensor: data needs base64 text, a dtype and a shape")
        size = math.prod(said["shape"]) * DTYPES[said["dtype"]]
        if size > limits.tensor_bytes:
            raise Violation(f"{where} has {size} bytes; a tensor may have {limits.tensor_bytes}")
        if len(data) != 4 * ((size + 2) // 3):
            raise Violation(f"{where} is not {size} bytes of base64, as its shape and dtype say")
        try:
            decoded = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            _refuse(f"{where}.data", "base64")
        if len(decoded) != size:
            raise Violation(f"{where} has {len(decoded)} bytes; its shape and dtype say {size}")
        return Sent(said["role"], said["name"], Raw(said["dtype"], said["shape"], decoded))

    return check


_rank = integer(0, MAX_RANKS - 1)
_key = integer()
_pass = integer(1, 2)
_world = integer(1, MAX_RANKS)
_frame = record({"file": text(500), "line": integer(), "function": text(200), "owner": one_of(OWNERS)})
_error = record({"type": text(200), "message": text(), "frames": items(_frame, 200)})
_outcome = record(
    {
        "rank": _rank, "status": one_of(RANK_STATUS), "phase": text(100), "error": optional(_error),
        "seconds": seconds, "repeat_equal": optional(boolean), "reason": optional(text(2000)),
    },
    may={"changed": items(text(500), 100)},
)  # fmt: skip
_trace = record(
    {
        "graphs": integer(), "breaks": items(record({"reason": text(2000), "where": text(500)}), 500),
        "recompiles": integer(), "collective_in_graph": boolean, "collectives": items(text(200), 500),
        "fullgraph": optional(text(2000)),
    }
)  # fmt: skip


class Reader:
    """Turns lines into events of the right form, under one attempt's limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        one = tensor(limits)
        at: dict[str, Check] = {"job": _key, "cell": _key, "pass": _pass}
        forms: dict[str, dict[str, Check]] = {
            "hello": {"torch": text(100)} | dict.fromkeys(_HELLO, plain),
            "phase": {"name": text(100), "seconds": seconds},
            "oracle": {"case": text(500), "version": integer(), "world_size": _world, "rank": _rank, "tensor": one},
            "control": {
                "control": text(500), "mode": one_of(MODES), "world_size": _world, "stage": one_of(STAGES),
                "ranks": items(_outcome, MAX_RANKS), "tensors": items(items(one), MAX_RANKS), "trace": optional(_trace),
            },
            "subject": {
                "status": one_of(("ok", "unimportable")), "adapter": text(200), "version": optional(text(200)),
                "error": optional(_error), "method": one_of(("fork", "spawn")), "changed": items(text(500), 500),
                "started": record({"threads": plain, "autograd": plain, "cuda": plain}), "seconds": seconds,
            },
            "tensor": at | {"rank": _rank, "tensor": one},
            "case": at | {"ranks": items(_outcome, MAX_RANKS), "trace": optional(_trace), "seconds": seconds},
            "stacks": at | {"rank": _rank, "text": text(limits.log_bytes)},
            "log": {
                "rank": optional(_rank), "stream": one_of(("stdout", "stderr", "launcher")),
                "text": text(limits.log_bytes), "job": optional(_key), "cell": optional(_key),
            },
            "ask": {"job": _key},
            "bye": {"ok": boolean, "reason": optional(text())},
        }  # fmt: skip
        assert set(forms) == set(EVENTS)  # noqa: S101 - an event added to the contract must have a form here
        version = {"v": integer(), "t": lambda value, _: value}
        self._forms = {kind: record(version | fields) for kind, fields in forms.items()}

    def read(self, line: bytes) -> tuple[str, dict[str, Any]]:
        """The event's type and its fields. Raises Violation."""
        if len(line) > self._limits.line_bytes:
            raise Violation(f"a line has {len(line)} bytes; it may have {self._limits.line_bytes}")
        try:
            event = json.loads(line.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise Violation(f"a line is not JSON: {str(error)[:200]}") from None
        if type(event) is not dict or event.get("v") != SCHEMA or type(event.get("v")) is not int:
            raise Violation(f"a line is not an event of schema {SCHEMA}")
        kind = event.get("t")
        if type(kind) is not str or kind not in self._forms:
            raise Violation(f"no event is called {str(kind)[:100]!r}")
        fields: dict[str, Any] = self._forms[kind](event, kind)
        return kind, fields


_HELLO = (
    "git_version", "python", "platform", "cuda", "nccl", "driver", "gpus", "numpy", "flags", "compiler", "processor",
)  # fmt: skip


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise Violation("an object names a field twice")
    return fields


def _no_constant(text: str) -> NoReturn:
    raise Violation(f"{text} is not JSON")
