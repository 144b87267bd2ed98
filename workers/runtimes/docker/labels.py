"""What images are labelled with, and called. Pure.

On the straight line this stands under ``workers.runtimes.docker.images``: labels are how an image is found again, in
the engine that built it, in a registry, and in a result that names it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from service.catalog import RuntimeSpec
from workers.runtimes import inventory

RECIPE = "1"
"""Raised when the Dockerfile makes something else of the same lock, so that older images do not count any more."""

REPOSITORY = "gradmatrix-runtime"
LAYERS = "gradmatrix-torch"
"""Images of torch alone, on which those of runtimes stand."""
_LETTERS = 12
_PREFIX = "org.gradmatrix."
NAME = _PREFIX + "runtime"
DIGEST = _PREFIX + "digest"
LOCK = _PREFIX + "lock"
TORCH = _PREFIX + "torch"
GIT = _PREFIX + "torch.git"
BASE = _PREFIX + "base"
MADE_BY = _PREFIX + "recipe"
LAYER = _PREFIX + "layer"
"""On the image of torch alone, and so on those that stand on it: what it was made from."""
BUILD = _PREFIX + "build"
"""On what only a build itself needs: which build."""
CHECK = _PREFIX + "check"
"""On a container that checks an image: which runtime's."""


def of(runtime: RuntimeSpec, *, base: str, git: str) -> dict[str, str]:
    """The labels of the runtime's image, made on the image ``base`` with a torch of commit ``git``."""
    return {
        NAME: runtime.name,
        DIGEST: runtime.digest,
        LOCK: hashlib.sha256(runtime.lock.read_bytes()).hexdigest(),
        TORCH: runtime.torch,
        GIT: git,
        BASE: base,
        MADE_BY: RECIPE,
    }


def fits(labels: Mapping[str, str] | None, runtime: RuntimeSpec) -> bool:
    """Whether an image with these labels is the runtime's."""
    labels = labels or {}
    return bool(runtime.digest) and labels.get(DIGEST) == runtime.digest and labels.get(MADE_BY) == RECIPE


def layer(base: str, packages: str) -> str:
    """The identity of the image of torch alone: the base image's id, and the locked packages that were added."""
    return hashlib.sha256("\0".join((RECIPE, base, packages)).encode()).hexdigest()


def layer_tag(mark: str) -> str:
    """What the image of torch alone is called."""
    return f"{LAYERS}:{mark[:_LETTERS]}"


def tag(runtime: RuntimeSpec) -> str:
    """What the runtime's image is tagged, in any repository."""
    return inventory.key(runtime)
