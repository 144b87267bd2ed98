"""DeepSpeed 0.14.2 and newer. Its API has changed shape several times: each shape is found by its names, never by
a version number, since a commit between two releases has whichever names it has.

One module per family: what of DeepSpeed the family's probes call, and in which shapes there has been of it.
"""

from __future__ import annotations

from jobs.subject.deepspeed.attention import DistributedAttentions
from jobs.subject.deepspeed.autosp import AutoSequenceParallel
from jobs.subject.deepspeed.core import LAYER, SHARD, Core, SequenceUnit, quiet
from jobs.subject.deepspeed.engine import Engines
from jobs.subject.deepspeed.exchange import Exchanges
from jobs.subject.deepspeed.loss import Losses
from jobs.subject.deepspeed.tiled import Tiles
from jobs.subject.deepspeed.ulysses import WrappedAttentions

__all__ = ["LAYER", "SHARD", "Core", "DeepSpeed", "SequenceUnit", "quiet"]


class DeepSpeed(Exchanges, DistributedAttentions, WrappedAttentions, Tiles, Losses, Engines, AutoSequenceParallel):
    """The adapter."""
