"""An image that was made, tried: Python in it says what is installed, and two ranks exchange and differentiate.

On the straight line this stands beside the jobs: a container is started as for one, with nothing but its own memory to
write to and no network, so that what passes here is what a job finds.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import docker
import requests
from docker.errors import APIError
from docker.models.images import Image

from service.catalog import RuntimeSpec
from workers.runtimes import RuntimeBuildError
from workers.runtimes.checking import SCRIPT, Check, compared
from workers.runtimes.docker import labels

_WAIT_S = 300
_PYTHON = "/opt/runtime/bin/python"
_EXCHANGE = """
import os, sys
import torch
import torch.distributed as dist

class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x)
        return y

    @staticmethod
    def backward(ctx, g):
        x = torch.empty_like(g)
        dist.all_to_all_single(x, g.contiguous())
        return x

def rank(me):
    dist.init_process_group("gloo", init_method="file:///tmp/store", rank=me, world_size=2)
    x = (torch.arange(4, dtype=torch.float64) + 10 * me).requires_grad_()
    y = Exchange.apply(x)
    (y * (torch.arange(4, dtype=torch.float64) + 100 * (me + 1))).sum().backward()
    first = 2.0 * me
    right = [first, first + 1, first + 10, first + 11], [first + 100, first + 101, first + 200, first + 201]
    dist.barrier()
    return (y.tolist(), x.grad.tolist()) == right

children = []
for me in range(2):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if rank(me) else 3
        finally:
            os._exit(status)
    children.append(child)
statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
print(statuses)
sys.exit(0 if statuses == [0, 0] else 1)
"""
"""Rank r holds 10 r + (0, 1, 2, 3) and weighs what it gets with 100 (r + 1) + (0, 1, 2, 3): the rest is arithmetic."""


def check(client: docker.DockerClient, image: Image, runtime: RuntimeSpec) -> Check:
    """Start the image and say what is in it, and what is not as it should be. Raises RuntimeBuildError.

    It is an error where torch cannot be imported at all.
    """
    said: dict[str, Any] = json.loads(_output(client, image, runtime, "importing torch", SCRIPT))
    found = compared(runtime, said)
    problems = list(found.problems)
    if found.git != image.labels.get(labels.GIT):
        problems.append(f"torch was built from {found.git}, the image's label says {image.labels.get(labels.GIT)}")
    try:
        _output(client, image, runtime, "an exchange between two ranks", _EXCHANGE)
    except RuntimeBuildError as error:
        problems.append(str(error))
    return dataclasses.replace(found, problems=tuple(problems))


def _output(client: docker.DockerClient, image: Image, runtime: RuntimeSpec, what: str, script: str) -> str:
    """What ``script`` prints in a container of the image. Raises RuntimeBuildError with the end of what it said."""
    container = client.containers.create(
        str(image.id),
        entrypoint=[_PYTHON, "-I", "-c", script],
        labels={labels.CHECK: runtime.name},
        environment={"HOME": "/tmp", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},  # noqa: S108 - the container's
        working_dir="/tmp",  # noqa: S108
        network_mode="none",
        read_only=True,
        tmpfs={"/tmp": "rw,exec,nosuid,nodev,size=1g,mode=1777"},  # noqa: S108
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        pids_limit=256,
        init=True,
    )
    try:
        container.start()
        try:
            status = container.wait(timeout=_WAIT_S)["StatusCode"]
        except (requests.Timeout, requests.ConnectionError):
            raise RuntimeBuildError(f"runtime {runtime.name}: {what} took over {_WAIT_S} s") from None
        if status != 0:
            said = container.logs(tail=6).decode("utf-8", "replace").splitlines()
            tail = "\n".join(f"  {line}" for line in said)
            raise RuntimeBuildError(f"runtime {runtime.name}: {what} failed (remove and build it again):\n{tail}")
        return container.logs(stdout=True, stderr=False).decode()
    except APIError as error:
        raise RuntimeBuildError(f"runtime {runtime.name}: {what} failed: {error.explanation or error}") from None
    finally:
        container.remove(force=True, v=True)
