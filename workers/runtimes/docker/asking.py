"""One kind of error for all that can go wrong between us and the engine.

On the straight line this stands between ``engine``, which is the way to it, and whatever asks it for something.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import requests
from docker.errors import APIError, DockerException

from workers.runtimes.docker.engine import EngineError, unreachable


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Raise EngineError for whatever goes wrong while the engine is asked to do ``what``, or takes too long for it."""
    try:
        yield
    except InterruptedError:  # somebody gave up waiting; it happens to be an OSError
        raise
    except APIError as error:
        raise EngineError(f"{what}: the container engine says: {error.explanation or error}") from error
    except (DockerException, requests.RequestException, OSError) as error:
        raise EngineError(f"{what}: {unreachable(error)}") from error
