"""How gradmatrix calls tinysp: batches are folded into the width, since tinysp knows none."""

from __future__ import annotations

import importlib
from typing import Any

from jobs.subject.base import Operation, RankContext, Subject, Unsupported


class TinySP(Subject):
    name = "tinysp"

    def load(self, root: str) -> None:
        self.library = importlib.import_module("tinysp")

    def version(self) -> str:
        return str(self.library.__version__)

    def seq_head_exchange(self, ctx: RankContext, *, layout: str, scatter: str, heads: int) -> Operation:
        if heads % ctx.sp_size:
            raise Unsupported("tinysp.deal_heads deals out even heads only")
        deal = self.library.deal_heads if scatter == "heads" else self.library.deal_tokens
        team = self.library.Team(ctx.group)
        inner = (2, 1, 0, 3) if layout == "bshd" else (2, 0, 1, 3)
        outer = (2, 1, 0, 3) if layout == "bshd" else (1, 2, 0, 3)

        def exchange(x: Any) -> Any:
            folded = x.permute(inner)
            batch, features = folded.shape[2:]
            dealt = deal(team, folded.flatten(2))
            return dealt.unflatten(2, (batch, features)).permute(outer)

        return exchange


def adapter() -> Subject:
    return TinySP()
