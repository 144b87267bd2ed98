"""What a probe tells a subject's adapter: where the rank stands, and the words between the two.

On the straight line this stands inside jobs, under the adapters and the probes. Nothing here imports torch: case
definitions are read without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Operation = Callable[["torch.Tensor"], "torch.Tensor"]
"""One tensor in, one tensor out: what this rank holds before and after an exchange."""


class Unsupported(Exception):  # noqa: N818 - an answer of its own ("no such API"), not an error
    """The subject has no such operation, or the runtime cannot carry it out; the text names what was looked for."""


@dataclass(frozen=True)
class RankContext:
    """Where one rank stands in one sequence-parallel group.

    sp_size  the ranks of a group; groups are consecutive: the first is 0 … sp_size-1
    sp_rank  this rank's place in its group
    group    torch's process group of ``ranks``
    ranks    the global ranks of this rank's group, in order
    """

    rank: int
    world_size: int
    transport: str
    sp_size: int
    sp_rank: int
    group: Any
    ranks: tuple[int, ...]

    @property
    def device(self) -> str:
        """The kind of device that tensors of this transport live on."""
        return "cuda" if self.transport == "nccl" else "cpu"
