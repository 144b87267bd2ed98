"""DeepSpeed 0.14.2 and newer. Its API has changed shape several times: each shape is found by its names, never by
a version number, since a commit between two releases has whichever names it has.

One module per family: what of DeepSpeed the family's probes call, and in which shapes there has been of it.
"""

from __future__ import annotations

from jobs.subject.deepspeed.core import LAYER, SHARD, Core, SequenceUnit, quiet
from jobs.subject.deepspeed.exchange import Exchanges

__all__ = ["LAYER", "SHARD", "Core", "DeepSpeed", "SequenceUnit", "quiet"]


class DeepSpeed(Exchanges):
    """The adapter."""
