"""The border between a job and everything outside it: what goes in on stdin, what comes out on stdout.

On the straight line this stands between ``workers.runtimes`` (which writes the spec) and ``workers.collect`` (which
reads the events). It is pure data on the standard library, so that both sides of the border can import it.

In:  one line of JSON (:class:`AttemptSpec`), then exactly ``tar_bytes`` bytes of tar holding ``jobs/`` and
     ``checkout/``, then one line of JSON per answer to an ``ask`` event.
Out: one JSON object per line. Every event carries ``v`` (:data:`SCHEMA`) and ``t`` (its type, :data:`EVENTS`).
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1

MODES = ("eager", "aot_eager", "inductor")
TRACED_MODES = ("aot_eager", "inductor")
TRANSPORTS = ("gloo", "nccl", "nccl-dispatch")
WORLD_SIZES = (2, 4, 8)
SUITES = ("default", "full")
"""Which cases run: a set that covers each axis in pairs, or everything. Each contains the one before."""
TORCH, TORCH_FAMILY = "torch", "torch-itself"
"""The subject of whoever asks about torch alone, and the only family that it has; no other subject has any of it."""
FAMILIES = ("exchange", TORCH_FAMILY, "attention", "tiled", "loss", "model", "engine", "autosp")

DTYPES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "uint8": 1, "bool": 1}
"""Types a tensor may travel in, with bytes per element."""

ROLES = ("output", "grad", "input", "cotangent", "fd")
"""What a tensor is evidence of.

``output``     a result of the forward
``grad``       the gradient of an input or parameter; absent data means that there was none
``input``      the bytes of an input after the call, to show that it was left alone
``cotangent``  the bytes of the incoming gradient after the call, for the same reason
``fd``         one float64: this rank's part of the central difference of the subject's own forward along the
               oracle's direction (from the subject), or that direction's own tensors (from the oracle)
"""

EVENTS = (
    "hello", "phase", "oracle", "control", "subject", "tensor", "case", "stacks", "log", "ask", "bye",
)  # fmt: skip
TRUSTED_EVENTS = ("oracle", "control")
"""Refused from the moment that subject code may have run."""

PHASE_CONTROLS = "controls"
"""The phase after which torch's own cells run."""
PHASE_RANKS = "in ranks"
"""The phase whose seconds are what the ranks themselves took so far: per cell and control, the slowest rank."""
PHASE_STARTS = "starting ranks"
"""The same for starting the processes of the ranks. Neither of the two is a step that somebody waits for."""
PHASE_JOB = "job {}"
"""The phase that ends a job: nothing more will be said about its cells."""

RANK_STATUS = ("ok", "raised", "unsupported", "crash", "hang", "lost")
"""How one rank ended one case. ``lost``: it was well, and retired because another rank was not."""


@dataclass(frozen=True)
class Limits:
    """Caps on what one attempt may say and one rank may take, in bytes.

    rank_bytes  memory of the process that imports the subject, and of each of its ranks; 0: no limit
    """

    tensor_bytes: int = 4 * 2**20
    job_bytes: int = 256 * 2**20
    log_bytes: int = 2**20
    line_bytes: int = 8 * 2**20
    rank_bytes: int = 0


@dataclass(frozen=True)
class Deadlines:
    """Seconds. Each is inside the next; the case's starts at a barrier, after compilation."""

    case_s: float = 20.0
    compile_s: float = 240.0
    import_s: float = 240.0
    job_s: float = 1800.0
    attempt_s: float = 3600.0


@dataclass(frozen=True)
class CaseInfo:
    """One case as data: everything the service needs to plan it and to judge its evidence.

    id        readable and stable: ``family/probe[param=value,…]``
    version   raised by the author whenever inputs, oracle or parameters change; versions are never compared
    sp        the sequence-parallel size, or 0 for "the whole world"; a case with ``sp`` runs only where the world
              is larger
    expect    ``values`` (agree with the oracle) or ``refusal`` (outside the contract: refused on every rank)
    exact     the operation only moves data, so that every bit must be right
    scale     the factor on the gradient that is this case's stated convention
    dims      per tensor name, the names of its dimensions (for the block map)
    transports  over which it exists
    suite     the smallest of :data:`SUITES` that it is in
    weights   the inputs that are the same on every rank, as a model's weights are; the others are activations
    compiles  the compiler that it runs whatever its mode is, by the mode of that name; empty for none
    accepts   ``oracle``, or ``oracle or zero`` where a subject may as well answer zero everywhere (a mean over nothing)
    api       what it calls, in the user's words; where that is not the documented way, which one is
    summary   one sentence for people
    """

    id: str
    version: int
    family: str
    probe: str
    params: dict[str, str]
    modes: tuple[str, ...]
    dtype: str
    sp: int = 0
    expect: str = "values"
    exact: bool = True
    scale: float = 1.0
    dims: dict[str, tuple[str, ...]] = field(default_factory=dict)
    transports: tuple[str, ...] = ("gloo", "nccl")
    suite: str = "default"
    weights: tuple[str, ...] = ()
    compiles: str = ""
    accepts: str = "oracle"
    api: str = ""
    summary: str = ""

    def runs_at(self, world_size: int) -> bool:
        """Whether this case exists at ``world_size``."""
        return self.sp == 0 or (self.sp < world_size and world_size % self.sp == 0)

    def to_json(self) -> dict[str, Any]:
        """The case as plain JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CaseInfo:
        """The inverse of :meth:`to_json`. Raises ContractError on a missing or unknown field."""
        values = _exact_fields(cls, data)
        values["modes"] = tuple(values["modes"])
        values["transports"] = tuple(values.get("transports", cls.transports))
        values["weights"] = tuple(values.get("weights", cls.weights))
        values["dims"] = {name: tuple(dims) for name, dims in values["dims"].items()}
        return cls(**values)


@dataclass(frozen=True)
class ControlInfo:
    """A control: an implementation of ours whose verdict is known beforehand.

    id        ``family/name``
    case      the id of the case whose inputs and oracle it uses
    expected  the verdicts that are right for it, any one of them
    summary   one sentence for people
    suite     ``default``: it stands beside every run; ``full``: only a self-test asks it
    hidden    of a mutant that this case's type hides by nature: why; the self-test lists it and does not count it
    """

    id: str
    family: str
    case: str
    modes: tuple[str, ...]
    expected: tuple[str, ...]
    summary: str = ""
    suite: str = "default"
    hidden: str = ""

    def to_json(self) -> dict[str, Any]:
        """The control as plain JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ControlInfo:
        """The inverse of :meth:`to_json`. Raises ContractError on a missing or unknown field."""
        values = _exact_fields(cls, data)
        values["modes"] = tuple(values["modes"])
        values["expected"] = tuple(values["expected"])
        return cls(**values)


@dataclass(frozen=True)
class CellSpec:
    """One cell of a job: the database key that events are stamped with, and what to run."""

    cell: int
    case: str
    version: int
    mode: str


@dataclass(frozen=True)
class JobSpec:
    """One job of an attempt: a world size and its cells, in the order in which they run."""

    job: int
    world_size: int
    cells: tuple[CellSpec, ...]


@dataclass(frozen=True)
class AttemptSpec:
    """The line of JSON on stdin: all jobs of one checkout and runtime that share a container.

    subject    the adapter's name (``deepspeed``), that of a checkout that brings its own adapter, or :data:`TORCH`:
               then no subject is imported, and every cell runs where controls do
    tar_bytes  the length of the tar that follows the line
    suite      which controls run: those of ``default`` stand beside every run, those of ``full`` are a self-test's
    families   of a self-test, which has no cells: whose controls run, in every mode that they have
    seed       drawn values depend on it; 0 for everything that is stored
    """

    attempt: str
    subject: str
    label: str
    transport: str
    jobs: tuple[JobSpec, ...]
    tar_bytes: int = 0
    suite: str = "default"
    families: tuple[str, ...] = ()
    seed: int = 0
    deadlines: Deadlines = field(default_factory=Deadlines)
    limits: Limits = field(default_factory=Limits)

    def line(self) -> bytes:
        """The spec as the bytes of its line, newline included."""
        data = {"schema": SCHEMA, **dataclasses.asdict(self)}
        return json.dumps(data, separators=(",", ":"), sort_keys=True).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> AttemptSpec:
        """The inverse of :meth:`line`. Raises ContractError, naming the field that is wrong."""
        try:
            data = json.loads(line)
        except ValueError as error:
            raise ContractError(f"the spec is not JSON: {error}") from error
        if not isinstance(data, dict) or data.pop("schema", None) != SCHEMA:
            raise ContractError(f"the spec is not of schema {SCHEMA}")
        values = _exact_fields(cls, data)
        if values["transport"] not in TRANSPORTS:
            raise ContractError(f"transport {values['transport']!r} is none of {', '.join(TRANSPORTS)}")
        if values.get("suite", SUITES[0]) not in SUITES:
            raise ContractError(f"suite {values['suite']!r} is none of {', '.join(SUITES)}")
        values["families"] = tuple(values.get("families", ()))
        values["deadlines"] = Deadlines(**_exact_fields(Deadlines, values["deadlines"]))
        values["limits"] = Limits(**_exact_fields(Limits, values["limits"]))
        jobs = []
        for job in values["jobs"]:
            fields = _exact_fields(JobSpec, job)
            cells = tuple(CellSpec(**_exact_fields(CellSpec, cell)) for cell in fields["cells"])
            jobs.append(JobSpec(fields["job"], fields["world_size"], cells))
        values["jobs"] = tuple(jobs)
        return cls(**values)


class ContractError(ValueError):
    """What crossed the border does not have the agreed form."""


def _exact_fields(cls: type, data: Any) -> dict[str, Any]:
    """``data`` as keyword arguments of the dataclass ``cls``: none unknown, none missing without a default."""
    if not isinstance(data, dict):
        raise ContractError(f"{cls.__name__} is not an object")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    unknown = sorted(set(data) - set(fields))
    required = {
        name
        for name, f in fields.items()
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    missing = sorted(required - set(data))
    if unknown or missing:
        raise ContractError(f"{cls.__name__}: unknown fields {unknown}, missing fields {missing}")
    return dict(data)
