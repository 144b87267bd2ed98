"""Runs inside a runtime: pins the numerics and says what they are then, and which pairs of tensors are the same."""

from __future__ import annotations

import functools
import json
from typing import Any

import torch

from jobs import accelerator
from jobs.stream import tensor_message

torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.benchmark = True
accelerator.pin_numerics()

# Sums of the same numbers from either end: what an order of summation makes of them, and no more.
numbers = torch.sin(torch.arange(512, dtype=torch.float32)).reshape(64, 8)
forwards, backwards = (functools.reduce(torch.add, each) for each in (numbers, numbers.flip(0)))
assert not torch.equal(forwards, backwards)


def message(tensor: Any, name: str = "x") -> list[dict[str, Any]]:
    return [tensor_message("grad", name, tensor)]


def changed(tensor: Any, index: int, value: float) -> Any:
    made = tensor.clone()
    made[index] = value
    return made


plain = torch.tensor([1.0, 2.0, 1e-3])
whole = torch.tensor([1, 2, 3])
nan, inf = float("nan"), float("inf")
pairs = {
    "itself": (message(plain), message(plain.clone())),
    "another order": (message(forwards), message(backwards)),
    "a small element off by little of the largest": (message(plain), message(changed(plain, 2, 1e-3 + 2e-6))),
    "one element of another size": (message(plain), message(changed(plain, 2, 2e-3))),
    "an element less": (message(plain), message(plain[:2])),
    "integers": (message(whole), message(changed(whole, 0, 2))),
    "NaN elsewhere": (message(changed(plain, 0, nan)), message(plain)),
    "infinity elsewhere": (message(changed(plain, 0, inf)), message(plain)),
    "another name": (message(plain), message(plain, "y")),
}
said = {
    "numerics": accelerator.numerics(),
    "precision": torch.get_float32_matmul_precision(),
    "lacking": accelerator.lacking(64),
    "same": {name: accelerator.same(*pair) for name, pair in pairs.items()},
}
print(json.dumps(said))  # noqa: T201
