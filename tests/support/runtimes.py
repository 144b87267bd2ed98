"""Real runtimes for ``torch``-marked tests, built once and shared through GRADMATRIX_HOME."""

from __future__ import annotations

import functools

import pytest

from service import catalog
from service.catalog import RuntimeSpec
from service.config import load_settings
from workers.runtimes import NotEnoughDiskError, SourceUnavailableError
from workers.runtimes.venv import VenvExecutor


@functools.cache
def _built(name: str) -> RuntimeSpec | str:
    settings = load_settings()
    spec = catalog.load(settings).select([name])[0]
    try:
        VenvExecutor(settings).ensure(spec, lambda what, done, total: None)
    except (SourceUnavailableError, NotEnoughDiskError) as error:
        return f"no runtime {name} on this machine: {error}"
    return spec


def runtime(name: str) -> RuntimeSpec:
    """The runtime ``name``, built; skips the test where its wheels, the network or the disk are not there."""
    built = _built(name)
    if isinstance(built, str):
        pytest.skip(built)
    return built
