"""What every rank of a case is handed, as plain data: for whoever writes the case down for readers outside jobs.

On the straight line this stands beside ``python -m jobs --list``, whose caller may ask for one case in full. Nothing
here imports torch. The tensors are those of the ``params_of`` that each family's module ``shapes`` offers.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from jobs import probes


def handed(case_id: str, world_size: int) -> list[list[dict[str, Any]]]:
    """Per rank, the fields of each :class:`jobs.probes.case.TensorSpec` that it hands in, in their order.

    Raises LookupError for an unknown case, a world size at which it does not exist, and a family that does not state
    its tensors.
    """
    case = next((case for case in probes.catalogue() if case.id == case_id), None)
    if case is None or not case.runs_at(world_size):
        raise LookupError(f"there is no case {case_id} at {world_size} ranks")
    name = probes.FAMILIES[case.family][2].rpartition(".")[0] + ".shapes"
    try:
        params_of = importlib.import_module(name).params_of
    except (ImportError, AttributeError) as error:
        raise LookupError(f"family {case.family} does not state its tensors: {error}") from error
    params, ranks = params_of(case), case.sp or world_size
    return [
        [dataclasses.asdict(spec) for spec in params.tensors(world_size, rank % ranks)] for rank in range(world_size)
    ]
