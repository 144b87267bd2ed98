"""How DeepSpeed is made ready in a process, as its own users do it. Shared by the templates of its families."""

from __future__ import annotations

from service.repro.given import Given

LAYER = "deepspeed.sequence.layer"

SHM = 'sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # a C++ build, for what is not used here\n'
UNIT = """\
unit = {"rank": place, "world_size": dist.get_world_size(group), "group": group}  # instead of Megatron's mpu
unit = {f"get_sequence_parallel_{name}": lambda value=value: value for name, value in unit.items()}
deepspeed.utils.groups.mpu = types.SimpleNamespace(**unit)
"""


def imports(given: Given, *names: str, module: str = LAYER) -> str:
    """The import of ``names`` from ``module``, and what spares a compiler."""
    shm = SHM if given.source.has("deepspeed.comm.torch", "build_shm_op") else ""
    named = f"from {module} import {', '.join(names)}\n" if names else ""
    return f"import deepspeed\n{named}{shm}"


def setup(given: Given, *, placed: bool = False) -> str:
    """Its communication on top of torch's; ``placed``: it has to know this rank's place in the group.

    Without Megatron's ``mpu`` every rank takes itself for rank 0 of its group.
    """
    backend = "nccl" if given.row.transport == "nccl" else "gloo"
    lines = f'deepspeed.init_distributed("{backend}", auto_mpi_discovery=False)\n'
    if given.source.has(LAYER, "register_all_to_all_group"):
        lines += "from deepspeed.sequence import layer as exchanges; exchanges.register_all_to_all_group(group)\n"
    return lines + (UNIT if placed else "")
