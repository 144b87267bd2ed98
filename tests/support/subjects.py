"""Small subjects that misbehave, each a checkout with its own adapter, for tests of the job's process design."""

from __future__ import annotations

import textwrap
from pathlib import Path

HEAD = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from jobs.subject.base import Subject


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x.contiguous(), group=group)
        return y

    @staticmethod
    def backward(ctx, g):
        return Exchange.apply(g, ctx.group), None


class Odd(Subject):
    name = "odd"

    def load(self, root):
        LOAD

    def setup(self, contexts):
        SETUP

    def dim0_exchange(self, ctx):
        def call(x):
            CALL
            return Exchange.apply(x, ctx.group)
        return call


def adapter():
    return Odd()
"""


def write_subject(folder: Path, *, call: str = "pass", load: str = "pass", setup: str = "pass") -> Path:
    """A checkout at ``folder`` whose dim-0 exchange is right, but for what ``call``, ``load`` or ``setup`` do."""
    text = HEAD
    for mark, code in (("LOAD", load), ("SETUP", setup), ("CALL", call)):
        indent = next(line for line in text.splitlines() if line.strip() == mark)
        spaces = len(indent) - len(mark)
        text = text.replace(indent, textwrap.indent(textwrap.dedent(code).strip(), " " * spaces))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gradmatrix_adapter.py").write_text(text)
    return folder
