"""What a rank on a GPU needs that one on a CPU does not: NCCL's settings, exact numerics, settled devices, delays.

On the straight line this stands inside jobs, under the launcher and the ranks. torch is imported in the functions, for
the launcher imports it in a phase of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NCCL = "nccl"
DELAY_CYCLES = 20_000_000
"""Clock cycles that a delayed stream stands still: about 10 ms, and a case's kernels take far less than one."""
DELAYED_RUNS = 5
REORDERED = 64
"""Units in the last place, of a tensor's largest element, that sums may differ by when their order does."""
FAULTS = ("CUDA error", "CUDA out of memory", "CUBLAS_STATUS", "cuDNN error", "NCCL error", "device-side assert")
"""What errors say after which a process's device cannot be trusted."""
FAULT_TYPES = ("AcceleratorError", "OutOfMemoryError", "DistBackendError")


@dataclass(frozen=True)
class Variable:
    """An environment variable, for torch from ``since`` up to and without ``before``: releases as (major, minor)."""

    name: str
    value: str
    since: tuple[int, int] = (2, 2)
    before: tuple[int, int] = (99, 0)


# `{wait}` is how long a collective may take, in seconds. A test looks these names up in the libraries of torch.
ENVIRONMENT = (
    # What waits too long ends its process, with an error. The deadlines of cases come first: they say where it hung.
    Variable("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    Variable("TORCH_NCCL_BLOCKING_WAIT", "0"),
    # A loop that holds the interpreter lock stops the watchdog too: its own monitor must not be faster than we are.
    Variable("TORCH_NCCL_ENABLE_MONITORING", "1"),
    Variable("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "{wait}"),
    # The flight recorder: asked for at a deadline, see record_flight. It writes no file of its own.
    Variable("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000", before=(2, 8)),
    Variable("TORCH_FR_BUFFER_SIZE", "2000", since=(2, 8)),
    Variable("TORCH_NCCL_DUMP_ON_TIMEOUT", "0"),
    Variable("TORCH_NCCL_DESYNC_DEBUG", "0"),
    # Checking for NaN would end cases that are meant to have some.
    Variable("TORCH_NCCL_NAN_CHECK", "0", since=(2, 4)),
)
OF_NCCL = {
    # There is no network but the loopback.
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    # A container may not ask where its memory lies (get_mempolicy): NCCL then shares by /dev/shm, as it always could.
    "NCCL_CUMEM_HOST_ENABLE": "0",
    "NCCL_IGNORE_CPU_AFFINITY": "1",
    "NCCL_DEBUG": "WARN",
    # Of cuBLAS: one workspace, so that a product is the same every time.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
NUMERICS: dict[str, bool] = {
    "cuda.matmul.allow_tf32": False,
    "cudnn.allow_tf32": False,
    "cuda.matmul.allow_fp16_reduced_precision_reduction": False,
    "cuda.matmul.allow_bf16_reduced_precision_reduction": False,
    "cuda.matmul.allow_fp16_accumulation": False,
    "cudnn.benchmark": False,
    "cudnn.deterministic": True,
}
"""Switches of ``torch.backends`` as they are pinned; where a torch has one."""
ATTENTION = {"flash": False, "mem_efficient": False, "cudnn": False, "math": True}
"""Which back-ends of scaled_dot_product_attention may be taken: one that is there for every type, shape and device."""


def release(version: str) -> tuple[int, int]:
    """``2.11.0+cu130`` as (2, 11)."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def environment(version: str, wait_s: float) -> dict[str, str]:
    """What is set before the first process group of that torch is made; collectives may take ``wait_s`` seconds."""
    asked = release(version)
    known = {v.name: v.value.format(wait=int(wait_s)) for v in ENVIRONMENT if v.since <= asked < v.before}
    return {**known, **OF_NCCL}


def lacking(world_size: int) -> str:
    """Why ``world_size`` ranks cannot have a GPU each, or nothing. Makes no CUDA context."""
    import torch

    there = torch.cuda.device_count()
    return "" if there >= world_size else f"{world_size} ranks need a GPU each, and this job has {there}"


def pin_numerics() -> None:
    """Have this process, and each that it forks, calculate in the type that it was given, always the same way."""
    import torch

    torch.set_float32_matmul_precision("highest")
    for name, value in NUMERICS.items():
        owner, switch = _owner(name)
        if owner is not None:
            setattr(owner, switch, value)
    for name, value in ATTENTION.items():
        if enable := getattr(torch.backends.cuda, f"enable_{name}_sdp", None):
            enable(value)


def numerics() -> dict[str, Any]:
    """How this process calculates; a switch that cannot be read is told by why."""
    import torch

    found: dict[str, Any] = {}
    for name in NUMERICS:
        owner, switch = _owner(name)
        if owner is not None:
            found[name] = _read(lambda owner=owner, switch=switch: getattr(owner, switch))  # type: ignore[misc]
    for name in ATTENTION:
        if enabled := getattr(torch.backends.cuda, f"{name}_sdp_enabled", None):
            found[f"attention {name}"] = _read(enabled)
    return found


def _read(what: Callable[[], Any]) -> Any:
    try:
        return what()
    except RuntimeError as error:  # from 2.9 on: where somebody mixed the old switches with the new ones
        return str(error).splitlines()[0]


def _owner(name: str) -> tuple[Any, str]:
    """The object and its attribute of that name, or None where this torch has no such switch."""
    import torch

    *path, switch = name.split(".")
    owner: Any = torch.backends
    for part in path:
        owner = getattr(owner, part)
    try:
        getattr(owner, switch)
    except AttributeError:
        return None, switch
    except RuntimeError:
        pass
    return owner, switch


def take(rank: int, world_size: int, wait_s: float) -> None:
    """Take this rank's GPU, which is no other rank's, before anything else is done with CUDA. Raises RuntimeError."""
    import torch

    os.environ.update(environment(torch.__version__, wait_s))
    if why := lacking(world_size):
        raise RuntimeError(why)
    pin_numerics()
    torch.cuda.set_device(rank)


def settle() -> None:
    """Wait for everything that this process gave its device, if it has one: what is read then is final."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def at_fault(error: dict[str, Any] | None) -> bool:
    """Whether an error, as ``faults`` describes one, leaves its process with a device that is not to be trusted."""
    if error is None:
        return False
    return error.get("type") in FAULT_TYPES or any(text in str(error.get("message")) for text in FAULTS)


# -- overlapping streams ---------------------------------------------------------------------------------------------


@contextmanager
def delayed(where: str) -> Iterator[Callable[[], None]]:
    """Have one stream be late: the ``side`` streams that are entered meanwhile, or the ``main`` one.

    What is handed out is called where a new stretch of work begins on the main stream: before the forward and before
    the backward. Whoever forgot to wait for the other stream then reads what is not there yet.
    """
    import torch

    context = torch.cuda.StreamContext
    enter, leave = context.__enter__, context.__exit__

    def late_enter(self: Any) -> Any:
        entered = enter(self)
        if where == "side":
            torch.cuda._sleep(DELAY_CYCLES)
        return entered

    def late_leave(self: Any, *error: Any) -> Any:
        left = leave(self, *error)
        stretch()
        return left

    def stretch() -> None:
        if where == "main":
            torch.cuda._sleep(DELAY_CYCLES)

    context.__enter__, context.__exit__ = late_enter, late_leave
    try:
        yield stretch
    finally:
        context.__enter__, context.__exit__ = enter, leave
        settle()


def same(first: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    """Whether two passes' tensors, as messages, differ by no more than the order of their sums may make them."""
    return first == other or (len(first) == len(other) and all(map(_alike, first, other)))


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if one == other:
        return True
    if any(one[key] != other[key] for key in ("role", "name", "dtype", "shape")) or not one["data"]:
        return False
    import torch

    from jobs.stream import tensor_of

    left, right = tensor_of(one), tensor_of(other)
    if not left.is_floating_point():
        return False
    a, b = left.double(), right.double()
    if not torch.equal(a.isnan(), b.isnan()) or not torch.equal(a.isinf(), b.isinf()):
        return False
    a, b = (torch.nan_to_num(each, 0.0, 0.0, 0.0) for each in (a, b))
    return float((a - b).abs().max()) <= REORDERED * torch.finfo(left.dtype).eps * float(a.abs().max())


# -- the flight recorder ---------------------------------------------------------------------------------------------


def record_flight(path: Path) -> None:
    """Write what collectives this process has begun and ended into ``path``: JSON of torch's own, where it has that."""
    import torch

    module = torch._C._distributed_c10d
    dump = getattr(module, "_dump_fr_trace_json", None) or getattr(module, "_dump_nccl_trace_json", None)
    if dump is not None:
        with suppress(Exception):  # a recorder that fails must not be what is told of the hang
            path.write_bytes(dump())


def watch_flight(path: Path, asked: Path, poll_s: float = 0.2) -> None:
    """Write it as soon as ``asked`` is there: what a thread of a rank does, beside whatever hangs."""
    while not asked.exists():
        time.sleep(poll_s)
    record_flight(path)
