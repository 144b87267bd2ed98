"""How much error a tensor may have: the policy, the case and the measured noise, never anything that the subject says.

On the straight line a part of ``service.judge``. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jobs.contract import CaseInfo
from service.evidence import ZERO_BLOCK, Evidence, TensorEvidence
from service.policy import Policy

OR_ZERO = "oracle or zero"
"""What a case accepts whose truth is a mean over nothing: not a number, or zero, and gradients of zero."""


@dataclass(frozen=True)
class Room:
    """How much error this case's tensors may have.

    ``params["effective"]`` of a case is the type that its calculation really runs in, where that is coarser than its
    tensors' type (legacy code that casts to float32).
    """

    evidence: Evidence
    case: CaseInfo
    policy: Policy

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.evidence.ranks)

    @property
    def eps(self) -> float:
        """The rounding of the type that is calculated in."""
        return self.policy.eps.of(self.case.params.get("effective", self.case.dtype))

    def relative(self, tensor: TensorEvidence) -> float:
        """The relative error that a tensor may have."""
        if self.case.exact:
            return 0.0
        noise = self.evidence.noise.get(tensor.key)
        rules = self.policy.tolerance
        measured = rules.k * (noise.rel_l2 or 0.0) if noise else 0.0
        return max(measured, min(rules.cap, rules.c * self.eps * math.sqrt(max(tensor.numel, 1))))

    def telling(self, tensor: TensorEvidence) -> float:
        """The room in which an order, or that a rest is right, is still told: an exact case's own arithmetic is ours.

        However wide the noise makes the tolerance, what is left after a factor has to be small to be called a factor.
        """
        rules = self.policy.tolerance
        return max(min(self.relative(tensor), rules.cap), rules.exact_room)

    def after_factor(self, tensor: TensorEvidence) -> float:
        """The room for what is left after a factor: multiplying rounds in the type itself, be the case exact or not."""
        return max(self.telling(tensor), self.eps)

    def floor(self, tensor: TensorEvidence) -> float:
        """The size below which an element is noise: measured, else the rounding of the largest tensor beside it."""
        noise = self.evidence.noise.get(tensor.key)
        if noise is not None:
            return self.policy.tolerance.k * noise.max_abs
        return self.eps * max(map(_rms, self.evidence.of(tensor.role)), default=0.0)

    def below_noise(self, tensor: TensorEvidence) -> bool:
        """Whether the expected tensor itself is noise."""
        return not self.case.exact and _rms(tensor) <= self.floor(tensor)

    def is_wrong(self, tensor: TensorEvidence) -> bool:
        """Whether a tensor is not what it should be, for any reason."""
        if tensor.missing or tensor.expected_missing:
            return tensor.missing != tensor.expected_missing
        if not tensor.same_shape or self.other_type(tensor):
            return True
        if self.case.accepts == OR_ZERO and not tensor.nonzero_got:
            return False
        if self.case.exact or tensor.equal:
            return not tensor.equal
        if not tensor.nonfinite_same:
            return True
        if tensor.rel_l2 is None or self.below_noise(tensor):
            slack = 1.0 if tensor.key in self.evidence.noise else self.policy.tolerance.c
            return (tensor.max_abs or 0.0) > slack * self.floor(tensor)
        return tensor.rel_l2 > self.relative(tensor) or self._wrong_block(tensor)

    def _wrong_block(self, tensor: TensorEvidence) -> bool:
        """Whether a block is wrong that is too small to show in the whole tensor's norm."""
        noise = self.evidence.noise.get(tensor.key)
        measured = self.policy.tolerance.k * noise.worst_block if noise and noise.worst_block is not None else None
        if noise is not None and measured is not None and tensor.worst_block is not None:
            # A block of a few small elements is off by much of its own size wherever larger ones beside it round.
            if (tensor.max_abs or 0.0) <= self.policy.tolerance.k * noise.max_abs:
                return False
            return tensor.worst_block > max(measured, self.relative(tensor))
        return tensor.blocks is not None and ZERO_BLOCK in tensor.blocks.cells

    def other_type(self, tensor: TensorEvidence) -> bool:
        """Whether an exact result came in another type than the oracle's; a dense oracle is in float64 anyway."""
        return self.case.exact and tensor.expected_dtype == self.case.dtype and tensor.dtype != tensor.expected_dtype

    def insensitive(self, tensor: TensorEvidence) -> bool:
        """Whether a gradient that is not wrong could not have been seen to be."""
        if self.case.exact or tensor.missing or tensor.expected_missing or not tensor.expected_norm:
            return False
        return self.below_noise(tensor) or self.relative(tensor) >= self.policy.classes.insensitive

    @property
    def forward(self) -> str:
        """The forward in words, for the end of a sentence."""
        outputs = self.evidence.of("output")
        if not outputs:
            return "no forward to compare"
        if all(tensor.equal for tensor in outputs):
            return "forward exact"
        return f"forward right to {max(tensor.rel_l2 or 0.0 for tensor in outputs):.2g}"


def _rms(tensor: TensorEvidence) -> float:
    return (tensor.expected_norm or 0.0) / math.sqrt(max(tensor.numel, 1))
