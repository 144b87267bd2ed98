"""What was measured about a cell: numbers per tensor and rank, and never a verdict.

On the straight line ``workers.collect`` makes it from raw tensors, ``service.store`` keeps it under its digest, and
``service.judge`` reads it, today or again in a year under another policy. Pure data: neither time, host nor database
key is in it, so that equal gradients share one row.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal, Self

SCHEMA = 1

StopKind = Literal["invalid", "infra", "unsupported", "unimportable", "crash", "hang"]
OK_BLOCK, ZERO_BLOCK, WRONG_BLOCK, NONFINITE_BLOCK = ".", "0", "x", "!"


@dataclass(frozen=True)
class Frame:
    """One line of a traceback; ``file`` is relative to the checkout or to site-packages."""

    file: str
    line: int
    function: str
    owner: str


@dataclass(frozen=True)
class ErrorInfo:
    """An exception as a rank reported it; the innermost frame is last."""

    type: str
    message: str
    frames: tuple[Frame, ...] = ()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of :func:`dataclasses.asdict`."""
        return cls(data["type"], data["message"], tuple(Frame(**frame) for frame in data["frames"]))


@dataclass(frozen=True)
class RankOutcome:
    """How one rank ended the case.

    status        one of ``jobs.contract.RANK_STATUS``
    phase         where it was (``forward``, ``backward``, …)
    reason        why it is ``unsupported``
    repeat_equal  whether a second identical pass gave the same bits; None where there was none
    changed       what the case changed in torch's global state, as sentences
    """

    rank: int
    status: str
    phase: str = ""
    error: ErrorInfo | None = None
    reason: str | None = None
    repeat_equal: bool | None = None
    changed: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of :func:`dataclasses.asdict`."""
        return cls(**{**data, "error": _error(data["error"]), "changed": tuple(data["changed"])})


@dataclass(frozen=True)
class BlockMap:
    """Where a tensor is wrong: each dimension cut into a few blocks, one character per block in row-major order.

    names   the dimensions' names, empty where the case gives none
    counts  the number of blocks along each dimension; the i-th of n blocks starts at ``i * size // n``
    cells   ``.`` right, ``0`` zero though it should not be, ``x`` wrong, ``!`` non-finite values differ
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]
    cells: str


@dataclass(frozen=True)
class TensorEvidence:
    """One tensor of one rank beside the oracle's. Numbers are None where they mean nothing.

    missing           the rank sent none (``reported`` tells whether it said so itself, as for a gradient of None)
    expected_missing  the oracle says that there must be none
    identical, equal  the same bytes; the same values (-0.0 equals 0.0, NaN equals nothing)
    nonfinite_same    NaNs and infinities stand in the same places
    zeroed            elements that are zero where the oracle's are not
    max_abs, rel_l2   error against the oracle's value times the case's stated scale, over elements finite in both
    rest_rel          the relative L2 error over the elements that are not ``zeroed``
    alpha, residual   got ≈ alpha · oracle (not scaled), and ‖got - alpha · oracle‖ / ‖got‖
    sorted_rel        the relative L2 error after sorting both; 0 if one is a permutation of the other;
                      ``sorted_rel_all`` the same over all ranks together
    worst_block       the largest relative error of any block that is not itself below the tensor's own rounding
    """

    role: str
    name: str
    rank: int
    dtype: str | None = None
    expected_dtype: str | None = None
    shape: tuple[int, ...] | None = None
    expected_shape: tuple[int, ...] | None = None
    numel: int = 0
    missing: bool = False
    reported: bool = True
    expected_missing: bool = False
    digest: str | None = None
    expected_digest: str | None = None
    identical: bool = False
    equal: bool = False
    nonfinite_got: int = 0
    nonfinite_expected: int = 0
    nonfinite_same: bool = True
    nonzero_got: int = 0
    nonzero_expected: int = 0
    zeroed: int = 0
    max_abs: float | None = None
    rel_l2: float | None = None
    rest_rel: float | None = None
    cosine: float | None = None
    alpha: float | None = None
    residual: float | None = None
    sorted_rel: float | None = None
    sorted_rel_all: float | None = None
    got_norm: float | None = None
    expected_norm: float | None = None
    first_diff: tuple[int, ...] | None = None
    worst_block: float | None = None
    blocks: BlockMap | None = None

    @property
    def key(self) -> str:
        """``grad/x``: what the tensor is, on whatever rank."""
        return f"{self.role}/{self.name}"

    @property
    def same_shape(self) -> bool:
        """Whether the shape is the oracle's."""
        return self.shape == self.expected_shape

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of :func:`dataclasses.asdict`."""
        values = dict(data)
        for name in ("shape", "expected_shape", "first_diff"):
            values[name] = None if values[name] is None else tuple(values[name])
        if (blocks := values["blocks"]) is not None:
            values["blocks"] = BlockMap(tuple(blocks["names"]), tuple(blocks["counts"]), blocks["cells"])
        return cls(**values)


@dataclass(frozen=True)
class GraphBreak:
    """Why and where tracing stopped."""

    reason: str
    where: str


@dataclass(frozen=True)
class TraceEvidence:
    """What the tracer did in a traced mode."""

    graphs: int = 0
    breaks: tuple[GraphBreak, ...] = ()
    recompiles: int = 0
    collective_in_graph: bool = False
    collectives: tuple[str, ...] = ()
    fullgraph: str | None = None

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of :func:`dataclasses.asdict`."""
        values = dict(data)
        values["breaks"] = tuple(GraphBreak(**item) for item in values["breaks"])
        values["collectives"] = tuple(values["collectives"])
        return cls(**values)


@dataclass(frozen=True)
class Noise:
    """The error of the dense run in the case's own type against the oracle: worst over ranks, for one tensor name."""

    rel_l2: float | None
    max_abs: float
    worst_block: float | None = None


@dataclass(frozen=True)
class Difference:
    """The subject's forward, differentiated numerically along the oracle's direction, beside both backwards.

    difference  the central difference, summed over ranks
    got         ⟨gradient of the subject, direction⟩, summed over inputs and ranks
    expected    the same with the oracle's gradient, without any convention's scale
    size        the sum of the absolute products behind ``expected``: what an error is small against
    """

    difference: float
    got: float
    expected: float
    size: float

    def agrees_with(self, tolerance: float) -> Literal["both", "subject", "oracle", "neither"]:
        """Whose backward the subject's own forward supports, errors measured against ``size``."""
        room = tolerance * max(self.size, abs(self.difference))
        subject, oracle = abs(self.difference - self.got) <= room, abs(self.difference - self.expected) <= room
        if subject and oracle:
            return "both"
        return "subject" if subject else "oracle" if oracle else "neither"


@dataclass(frozen=True)
class Stop:
    """Why there is nothing to compare at all, where it is not a rank's own outcome."""

    kind: StopKind
    reason: str
    error: ErrorInfo | None = None


@dataclass(frozen=True)
class Evidence:
    """Everything measured about one pass of one cell.

    trace          only in traced modes
    noise          per ``role/name``; empty where the case is exact
    fd             None where no central difference was taken
    state_changes  what importing the subject changed in torch, as sentences
    stop           set where the ranks could not be asked, or not be judged
    """

    ranks: tuple[RankOutcome, ...] = ()
    tensors: tuple[TensorEvidence, ...] = ()
    trace: TraceEvidence | None = None
    noise: dict[str, Noise] = field(default_factory=dict)
    fd: Difference | None = None
    state_changes: tuple[str, ...] = ()
    stop: Stop | None = None

    @classmethod
    def stopped(cls, kind: StopKind, reason: str, error: ErrorInfo | None = None) -> Self:
        """The evidence of a cell whose ranks were never asked."""
        return cls(stop=Stop(kind, reason, error))

    @property
    def repeat_equal(self) -> bool | None:
        """Whether a second identical pass gave the same bits on every rank that tried; None where none did."""
        said = [outcome.repeat_equal for outcome in self.ranks if outcome.repeat_equal is not None]
        return all(said) if said else None

    def of(self, *roles: str) -> tuple[TensorEvidence, ...]:
        """The tensors of these roles, by role, name and rank."""
        return tuple(sorted((t for t in self.tensors if t.role in roles), key=_tensor_key))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, in an order that does not depend on who answered first."""
        ordered = dataclasses.replace(
            self,
            ranks=tuple(sorted(self.ranks, key=lambda outcome: outcome.rank)),
            tensors=tuple(sorted(self.tensors, key=_tensor_key)),
        )
        return {"schema": SCHEMA, **_plain(ordered)}

    def canonical(self) -> bytes:
        """The one byte string that stands for this evidence."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
        return text.encode("ascii")

    def digest(self) -> str:
        """sha256 of :meth:`canonical`, in hex."""
        return hashlib.sha256(self.canonical()).hexdigest()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of :meth:`to_json`. Raises ValueError for another schema."""
        if data.get("schema") != SCHEMA:
            raise ValueError(f"evidence of schema {data.get('schema')!r}; this version reads {SCHEMA}")
        stop, trace, fd = data["stop"], data["trace"], data["fd"]
        return cls(
            ranks=tuple(RankOutcome.from_json(item) for item in data["ranks"]),
            tensors=tuple(TensorEvidence.from_json(item) for item in data["tensors"]),
            trace=None if trace is None else TraceEvidence.from_json(trace),
            noise={key: Noise(**item) for key, item in data["noise"].items()},
            fd=None if fd is None else Difference(**fd),
            state_changes=tuple(data["state_changes"]),
            stop=None if stop is None else Stop(stop["kind"], stop["reason"], _error(stop["error"])),
        )


def _plain(value: Any) -> Any:
    """What ``dataclasses.asdict`` makes of it, without a copy of every string: each cell has hundreds of these."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return {name: _plain(item) for name, item in vars(value).items()}


@dataclass(frozen=True)
class Blob:
    """Bytes kept beside the evidence of a cell that does not agree.

    kind  ``got`` or ``expected`` (a tensor's raw little-endian bytes), ``log``, ``stacks``
    name  for people and files: ``grad/x/rank0``, ``stacks/rank1``
    """

    kind: Literal["got", "expected", "log", "stacks"]
    name: str
    data: bytes
    rank: int | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None

    @property
    def meta(self) -> dict[str, Any]:
        """What is needed to read the bytes, as plain JSON types."""
        return {"name": self.name, "dtype": self.dtype, "shape": None if self.shape is None else list(self.shape)}

    @property
    def digest(self) -> str:
        """sha256 of the bytes, in hex."""
        return hashlib.sha256(self.data).hexdigest()


def _tensor_key(tensor: TensorEvidence) -> tuple[str, str, int]:
    return tensor.role, tensor.name, tensor.rank


def _error(data: dict[str, Any] | None) -> ErrorInfo | None:
    return None if data is None else ErrorInfo.from_json(data)
