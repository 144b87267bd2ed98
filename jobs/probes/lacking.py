"""What torch itself lacks on this transport or device: no fault of the derivative, and told as unsupported.

On the straight line this stands inside jobs, around a family's passes.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import torch

from jobs.subject.base import RankContext, Unsupported

COLLECTIVE = re.compile(r"(?:\bbackend )?\S*gloo does not support \w+", re.IGNORECASE)
"""What torch says where the transport has no such collective."""
KERNEL = re.compile(r"\S+ not implemented for '(Half|BFloat16)'")
"""What torch says where it lacks a kernel for a type."""


@contextlib.contextmanager
def as_lacking(ctx: RankContext) -> Iterator[None]:
    """Raises Unsupported where torch says, inside, that it has no such collective or no such kernel."""
    try:
        yield
    except Exception as error:
        if lack := COLLECTIVE.search(str(error)):
            raise Unsupported(f"over {ctx.transport}, torch refuses: {lack[0]}") from error
        if lack := KERNEL.search(str(error)):
            raise Unsupported(f"torch {torch.__version__} on {ctx.device}: {lack[0]}") from error
        raise
