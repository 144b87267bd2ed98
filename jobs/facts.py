"""What is true of the runtime and of torch's global state: the ``hello`` event, and what an import changed."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

from jobs import accelerator

COMPILERS = ("g++", "clang++", "c++")


def compiler() -> str | None:
    """The C++ compiler that inductor would use, or None."""
    chosen = os.environ.get("CXX")
    return next((path for name in ([chosen] if chosen else COMPILERS) if (path := shutil.which(name))), None)


def hello() -> dict[str, Any]:
    """The fields of the ``hello`` event. torch is imported already; no CUDA context is made."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if _gpu_files() else []
    return {
        "torch": torch.__version__,
        "git_version": torch.version.git_version,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cuda": torch.version.cuda,
        "nccl": _nccl_version(torch),
        "driver": _driver_version(),
        "gpus": gpus,
        "numpy": _installed("numpy"),
        "flags": {name: repr(value) for name, value in {**global_state(), **accelerator.numerics()}.items()},
        "compiler": compiler(),
        "processor": _processor(),
    }


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpu_files() -> bool:
    return any(node.name[6:].isdigit() for node in Path("/dev").glob("nvidia*"))


def _nccl_version(torch: Any) -> str | None:
    if not torch.distributed.is_nccl_available():
        return None
    try:
        return ".".join(map(str, torch.cuda.nccl.version()))
    except (AttributeError, RuntimeError, ImportError):
        return None


def _driver_version() -> str | None:
    try:
        with Path("/proc/driver/nvidia/version").open() as file:
            return file.readline().split("Kernel Module")[-1].split()[0]
    except (OSError, IndexError):
        return None


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open() as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")
    except OSError:
        return "unknown"


def global_state() -> dict[str, Any]:
    """torch's process-wide switches that change what a later computation does."""
    import torch

    return {
        "default dtype": torch.get_default_dtype(),
        "default device": str(torch.empty(0).device),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "anomaly detection": torch.is_anomaly_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic warnings": torch.is_deterministic_algorithms_warn_only_enabled(),
        "random seed": torch.initial_seed(),
        "threads": torch.get_num_threads(),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "flush denormal": bool(torch.tensor([1e-310], dtype=torch.float64).mul(1.0).item() == 0.0),
        "recursion limit": sys.getrecursionlimit(),
    }


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """One phrase per switch that differs."""
    return [f"{name}: {before[name]} became {after[name]}" for name in before if before[name] != after[name]]


def restore(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Put back the switches that a case changed, and touch no other: setting some of them has effects of its own."""
    import torch

    setters = {
        "default dtype": torch.set_default_dtype,
        "default device": torch.set_default_device,
        "grad mode": torch.set_grad_enabled,
        "anomaly detection": torch.autograd.set_detect_anomaly,
        "deterministic algorithms": torch.use_deterministic_algorithms,
        "threads": torch.set_num_threads,
        "float32 matmul precision": torch.set_float32_matmul_precision,
        "flush denormal": torch.set_flush_denormal,
        "recursion limit": sys.setrecursionlimit,
        "deterministic warnings": lambda only: torch.use_deterministic_algorithms(
            before["deterministic algorithms"], warn_only=only
        ),
        "random seed": torch.manual_seed,
    }
    for name, put_back in setters.items():
        if before[name] != after[name]:
            put_back(before[name])


def started(threads_before: int) -> dict[str, bool]:
    """What the subject's import started in this process that a fork does not carry over."""
    return {
        "threads": os_threads() > threads_before,
        "autograd": not _backward_survives_fork(),
        "cuda": _has_open("/dev/nvidia-uvm"),
    }


def os_threads() -> int:
    """How many threads this process has, as the kernel counts them."""
    return len(list(Path("/proc/self/task").iterdir()))


def _has_open(path: str) -> bool:
    for link in Path("/proc/self/fd").iterdir():
        try:
            if str(link.readlink()) == path:
                return True
        except OSError:
            continue
    return False


def _backward_survives_fork() -> bool:
    """Try a backward in a forked child: after a backward in the parent, torch raises there."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            import signal

            import torch

            signal.alarm(60)
            # As every rank does first: renewing torch's thread pool after a fork is not safe from the several threads
            # that the first backward starts (an internal assertion, now and then, on torch 2.11).
            torch.set_num_threads(1)
            x = torch.ones(2, requires_grad=True)
            (x * x).sum().backward()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0
