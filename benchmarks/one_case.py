"""One case of one subject under torchrun, the way it is done without gradmatrix: every rank imports everything itself.

torchrun --standalone --nproc-per-node 2 one_case.py CHECKOUT CASE MODE      (jobs/ on PYTHONPATH)
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

from jobs import probes
from jobs.subject import load_adapter
from jobs.subject.base import RankContext
from jobs.trace import Recorder


def main(checkout: str, case_id: str, mode: str) -> None:
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    subject = load_adapter("deepspeed", checkout)
    subject.prepare_import(checkout)
    sys.path.insert(0, checkout)
    subject.load(checkout)
    dist.init_process_group("gloo")
    context = RankContext(rank, world, "gloo", world, rank, dist.group.WORLD, tuple(range(world)))
    subject.setup([context])
    case = next(case for case in probes.catalogue() if case.id == case_id)
    module = probes.module(case.family)
    function = module.build(case, context, subject)
    if mode != "eager":
        function = Recorder(mode).wrap(function)
    for _ in range(2):
        module.exercise(case, context, function, lambda role, name, tensor: None)
    module.difference(case, context, function, lambda role, name, tensor: None)
    dist.barrier()  # one that leaves early aborts the others
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
