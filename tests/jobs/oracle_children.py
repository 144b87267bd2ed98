"""Runs inside a runtime: the oracle's child, time after time in a process that has traced; prints JSON.

    python oracle_children.py CASE TIMES

The answer is how many tensors each child gave, or the error of one that gave none.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed

from jobs import probes, trace
from jobs.contract import CaseInfo
from jobs.oracle.child import OracleChild


def main() -> None:
    case, times = sys.argv[1:]
    torch.set_num_threads(1)
    trace.warm(("aot_eager",))
    wanted = [(one, one.version, 2) for one in probes.catalogue() if one.id == case]
    sys.stdout.write(json.dumps([given(wanted) for _ in range(int(times))]))


def given(wanted: list[tuple[CaseInfo, int, int]]) -> int | str:
    tensors: list[object] = []
    try:
        OracleChild(wanted).hand_over(tensors.append)
    except RuntimeError as error:
        return str(error)
    return len(tensors)


if __name__ == "__main__":
    main()
