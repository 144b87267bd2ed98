"""What a call may leave behind in its process: found, said, and put back for the next case.

On the straight line this stands inside jobs, under the ranks: torch's switches (which ``facts`` knows), functions of
torch that were replaced, the state of the random generators, processes that still run, and memory.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import resource
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from jobs import facts, faults

PR_SET_CHILD_SUBREAPER = 36
WATCHED = (
    "torch",
    "torch.Tensor",
    "torch.autograd",
    "torch.autograd.Function",
    "torch.nn.functional",
    "torch.nn.Module",
    "torch.distributed",
    "torch.distributed.distributed_c10d",
    "torch.distributed.nn.functional",
    "torch.distributed._functional_collectives",
)
"""Modules and classes whose functions are looked after."""
OF_TORCH = ("addr2line",)
"""Processes that torch starts by itself, for the stack of an error of its own: ended like others, and not told."""
METHODS = (staticmethod, classmethod)
"""Functions of a class that cannot be called as they lie in it."""
INHERITED = object()
"""Stands for a method that a class only inherits."""
SHOWN = 8
POISON_SIZES = (16, 64, 128, 256, 512, 1024, 4096, 16384)
ROUNDS = 100
HEADROOM = 64 * 2**20
"""Bytes beyond its limit that a rank gets to say that it met it."""
NO_MEMORY = ("can't allocate memory", "Cannot allocate memory", "not enough memory", "bad_alloc")


class OverMemoryLimit(Exception):  # noqa: N818 - what happened, in the words of the answer
    """A call asked for more memory than one rank may take."""


class Surroundings:
    """How this process is now: what it is compared with after a cell, and put back to."""

    def __init__(self) -> None:
        self._switches, self._functions, self._generators = facts.global_state(), Functions(), Generators()
        self._children = children()

    def changes(self) -> list[str]:
        """A phrase for each thing that is another way by now."""
        now, left = facts.global_state(), children()
        return self._told(self._functions.replaced(), now, [left[pid] for pid in left if pid not in self._children])

    def settle(self) -> list[str]:
        """The same, and all of it is put back; processes that were left running are ended."""
        replaced = self._functions.replaced()
        self._functions.put_back()  # first: what comes now calls some of them
        now = facts.global_state()
        phrases = self._told(replaced, now, end_children(self._children))
        facts.restore(self._switches, now)
        self._generators.put_back()
        renew_limit()
        return phrases

    def _told(self, replaced: list[str], now: dict[str, Any], left: list[str]) -> list[str]:
        return [
            *facts.changes(self._switches, now),
            *told(replaced, "functions of torch", "replaced"),
            *told([name for name in left if name not in OF_TORCH], "processes left running", ""),
        ]


# -- functions of torch ----------------------------------------------------------------------------------------------


class Functions:
    """The functions of torch as they are now, to be compared with later."""

    def __init__(self) -> None:
        # Only what is imported already: looking must not import.
        self._before = [(name, owner, _functions(owner)) for name in WATCHED if (owner := _named(name)) is not None]

    def replaced(self) -> list[str]:
        """The full names of those that are other functions by now."""
        return [f"{name}.{key}" for name, _, key, _ in self._changes()]

    def put_back(self) -> None:
        """Put the old ones back."""
        for _, owner, key, value in list(self._changes()):
            if value is INHERITED:
                delattr(owner, key)
            else:
                setattr(owner, key, value)

    def _changes(self) -> Iterator[tuple[str, Any, str, Any]]:
        for name, owner, before in self._before:
            now = vars(owner)
            for key, value in before.items():
                if now.get(key) is not value and not _wrapped_by_torch(now.get(key), value):
                    yield name, owner, key, value
            for key in now.keys() - before.keys() if isinstance(owner, type) else ():
                # Most methods of a tensor are inherited: one of its own of that name takes the other's place.
                if any(key in vars(base) for base in owner.__mro__[1:]) and callable(now[key]):
                    yield name, owner, key, INHERITED


def _wrapped_by_torch(now: Any, before: Any) -> bool:
    """Whether torch itself put a wrapper around its function, as its tracer does where it is imported late."""
    code, home = getattr(now, "__code__", None), str(Path(str(sys.modules["torch"].__file__)).parent)
    return code is not None and code.co_filename.startswith(home) and getattr(now, "__wrapped__", None) is before


def _named(name: str) -> Any:
    if name in sys.modules:
        return sys.modules[name]
    module, _, attribute = name.rpartition(".")
    return getattr(sys.modules.get(module), attribute, None)


def _functions(owner: Any) -> dict[str, Any]:
    return {key: value for key, value in vars(owner).items() if callable(value) or isinstance(value, METHODS)}


def told(names: list[str], what: str, became: str) -> list[str]:
    """A phrase about ``names``, or none."""
    if not names:
        return []
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return [f"{what}: {', '.join(names[:SHOWN])}{more} {became}".rstrip()]


# -- random generators -----------------------------------------------------------------------------------------------


class Generators:
    """The state of torch's and Python's random generators: to draw is no fault, and must not be noticed afterwards."""

    def __init__(self) -> None:
        import torch

        self._torch, self._python = torch.get_rng_state(), random.getstate()
        self._cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None

    def put_back(self) -> None:
        """Have them go on from here again."""
        import torch

        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda)
        random.setstate(self._python)


# -- processes -------------------------------------------------------------------------------------------------------


def adopt() -> None:
    """Become the parent of what descends from this process and loses its own: so that nothing slips away."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


def children() -> dict[int, str]:
    """The processes that this one has started and that still run, by number, and what they are called."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return {}
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                name, _, fields = (entry / "stat").read_text("utf-8", "replace").partition("(")[2].rpartition(")")
                state, parent = fields.split()[:2]
                if int(parent) == os.getpid() and state not in "ZX":
                    found[int(entry.name)] = name
    return found


def end_children(but: dict[int, str]) -> list[str]:
    """Kill every process that is left running, and those that it leaves in turn, but not these; their names."""
    names: list[str] = []
    for _ in range(ROUNDS):
        left = {pid: name for pid, name in children().items() if pid not in but}
        if not left:
            break
        for pid, name in left.items():
            names.append(name)
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass  # those that ended by themselves, and that nobody waited for
    return names


# -- memory ----------------------------------------------------------------------------------------------------------


def limit_memory(allowed: int) -> None:
    """Let this process, and each that it forks, take no more than ``allowed`` bytes; 0: what the machine has."""
    if allowed:
        there = resource.getrlimit(resource.RLIMIT_DATA)[1]
        hard = allowed + HEADROOM if there == resource.RLIM_INFINITY else min(there, allowed + HEADROOM)
        resource.setrlimit(resource.RLIMIT_DATA, (hard - HEADROOM, hard))


def explained(error: BaseException) -> BaseException:
    """``error``, or what it says where it only says that the limit was met.

    It then gives the memory back that the failed call still held, and leaves room to go on speaking.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    met = isinstance(error, MemoryError) or any(text in str(error) for text in NO_MEMORY)
    if resource.RLIM_INFINITY in (soft, hard) or not met:
        return error
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    traceback.clear_frames(error.__traceback__)
    size = f"{(hard - HEADROOM) / 1e9:.1f} GB"
    over = OverMemoryLimit(f"more memory than one rank may take here, {size} (setting rank_memory_bytes)")
    return over.with_traceback(error.__traceback__)


def renew_limit() -> None:
    """Take back the room that :func:`explained` left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == hard != resource.RLIM_INFINITY:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (hard - HEADROOM, hard))


def clean_up() -> None:
    """Free what the last cell left behind, and make it unfit to be read."""
    faults.forget_frames()
    gc.collect()
    poison_free_memory()


def poison_free_memory() -> None:
    """Fill freed buffers of the usual sizes with NaN, so that whatever reads memory that nobody wrote is seen."""
    import torch

    for device in ("cpu", "cuda") if torch.cuda.is_initialized() else ("cpu",):
        for size in POISON_SIZES:
            buffers = [torch.full((size,), float("nan"), dtype=torch.float32, device=device) for _ in range(4)]
            del buffers
