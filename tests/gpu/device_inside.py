"""Runs inside a runtime with one GPU: what jobs.accelerator promises of a device, one answer per promise."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from jobs import accelerator
from jobs.stream import tensor_message, tensor_of

folder = Path(sys.argv[1])
torch.backends.cuda.matmul.allow_tf32 = True
accelerator.take(0, 1, 120.0)
dist.init_process_group("nccl", store=dist.FileStore(str(folder / "store"), 1), rank=0, world_size=1)


def product_is_exact() -> bool:
    """1 + 2^-13 has more digits than TF32 keeps, and float32 keeps all of them."""
    value = 1.0 + 2.0**-13
    left = torch.full((64, 64), value, device="cuda")
    return bool((left @ torch.eye(64, device="cuda") == value).all())


def bytes_are_those_of_the_processor() -> bool:
    values = torch.arange(1000, dtype=torch.float32).sin()
    return tensor_message("grad", "x", values.cuda()) == tensor_message("grad", "x", values)


def exchanged() -> list[float]:
    """What one rank sends to itself, through NCCL."""
    sent = torch.arange(4.0, device="cuda")
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent)
    return list(map(float, got.cpu()))


def overlapping(waits: bool, where: str) -> list[dict[str, Any]]:
    """A sum on a side stream that the main stream reads, with or without waiting for it."""
    side = torch.cuda.Stream()
    with accelerator.delayed(where) as stretch:
        source = torch.zeros(1 << 16, device="cuda")
        result = torch.zeros(1 << 16, device="cuda")
        torch.cuda.synchronize()
        stretch()
        source += 1.0
        if waits:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            result += source
        if waits:
            torch.cuda.current_stream().wait_stream(side)
        read = result * 2.0
        return [tensor_message("forward", "y", read)]


right = overlapping(True, "main")
flight = folder / "flight"
accelerator.record_flight(flight)
said = {
    "product": product_is_exact(),
    "bytes": bytes_are_those_of_the_processor(),
    "exchanged": exchanged(),
    "value": float(tensor_of(right[0])[0]),
    "waits": {where: accelerator.same(right, overlapping(True, where)) for where in ("main", "side")},
    "does not wait": {where: accelerator.same(right, overlapping(False, where)) for where in ("main", "side")},
    "recorder": flight.exists(),
}
dist.destroy_process_group()
print(json.dumps(said))  # noqa: T201
