"""The container engine of this host, and one error where there is none.

On the straight line this stands under everything in ``workers.runtimes.docker``. Which engine it is, the environment
says (DOCKER_HOST and its like), as for every other client.
"""

from __future__ import annotations

import docker
from docker.errors import DockerException

from service.errors import GradmatrixError


class EngineError(GradmatrixError):
    """No container engine answers, or it does not let this user in."""


def connect() -> docker.DockerClient:
    """A client of this host's engine. Raises EngineError."""
    try:
        client = docker.from_env()
        client.ping()
    except DockerException as error:
        raise EngineError(unreachable(error)) from None
    return client


def unreachable(error: Exception) -> str:
    """What is wrong with the engine, and what would be right."""
    text = str(error)
    if "Permission denied" in text or "PermissionError" in text:
        return "this user may not use the container engine: add it to the group docker, or run as root"
    return (
        "no container engine answers: start Docker, or let DOCKER_HOST name the engine's socket "
        f"(the executor venv needs none)\n  {text}"
    )
