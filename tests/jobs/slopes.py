"""The losses of the cases, differentiated by hand; runs inside a runtime."""

from __future__ import annotations

from collections.abc import Callable

from jobs.probes.case import LOSS_SCALE

SLOPES: dict[str, Callable[[float, dict[str, float]], float]] = {
    "sum": lambda y, w: 1.0,
    "square": lambda y, w: 2 * y,
    "frozen": lambda y, w: 2 * y,
    "scaled": lambda y, w: 2 * y * LOSS_SCALE,
    "weighted": lambda y, w: w["w"],
    "shared": lambda y, w: 2 * y + w["w"],
    "accumulate": lambda y, w: w["w"] + w["w2"],
}
"""The derivative of each loss at one element of the output."""
