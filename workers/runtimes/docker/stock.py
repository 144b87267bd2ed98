"""What images this host has: listing them with their sizes, and removing them with what only they needed.

On the straight line this stands beside ``workers.runtimes.docker.images``, as ``workers.runtimes.inventory`` does
beside virtual environments. The engine knows all of it; nothing is written down beside.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError

from service.catalog import RuntimeSpec
from service.errors import UsageError, nearest
from workers.runtimes import RuntimeBusyError
from workers.runtimes.docker import labels
from workers.runtimes.docker.asking import asking
from workers.runtimes.guard import Guard
from workers.runtimes.inventory import DIGEST_LETTERS

LOCKS = "images"
"""The folder in home with a lock per runtime that is built, and one that all builders share."""
BUILDERS = "builders.lock"
_CONFLICT = 409


@dataclass(frozen=True)
class Made:
    """One image.

    key      RUNTIME-DIGEST, as with virtual environments
    id       the image's own, sha256:…
    remote   what registries have it under, with their digests; empty where it was only built here
    git      the commit that torch was built from
    base     the image that it was made on
    current  whether the catalogue still has this runtime with this content
    bytes    on the disk
    shared   of those, what other images have too; None where the engine does not say
    tags     its names
    layer    what the torch under it was made from
    """

    key: str
    name: str
    digest: str
    id: str
    remote: tuple[str, ...]
    git: str
    base: str
    current: bool
    bytes: int
    shared: int | None
    tags: tuple[str, ...]
    layer: str


def list_made(client: docker.DockerClient, catalog: Iterable[RuntimeSpec]) -> tuple[Made, ...]:
    """Every image of a runtime, whoever built it. Raises EngineError."""
    current = {runtime.digest for runtime in catalog if runtime.locked}
    with asking("listing images"):
        entries = client.df()["Images"] or ()
    made = (_made(entry, current) for entry in entries if labels.DIGEST in (entry.get("Labels") or {}))
    return tuple(sorted(made, key=lambda item: item.key))


def _made(entry: dict[str, Any], current: Collection[str]) -> Made:
    said = entry["Labels"]
    digest, name = said[labels.DIGEST], said.get(labels.NAME, "?")
    shared = entry.get("SharedSize", -1)
    return Made(
        key=f"{name}-{digest[:DIGEST_LETTERS]}",
        name=name,
        digest=digest,
        id=entry["Id"],
        remote=tuple(entry.get("RepoDigests") or ()),
        git=said.get(labels.GIT, ""),
        base=said.get(labels.BASE, ""),
        current=digest in current and said.get(labels.MADE_BY) == labels.RECIPE,
        bytes=entry["Size"],
        shared=shared if shared >= 0 else None,
        tags=tuple(entry.get("RepoTags") or ()),
        layer=said.get(labels.LAYER, ""),
    )


def choose(made: Sequence[Made], names: Collection[str], *, unused: bool = False) -> tuple[Made, ...]:
    """The images that ``names`` mean (with or without the digest); ``unused`` adds those no longer needed."""
    known = {item.name for item in made} | {item.key for item in made}
    for name in names:
        if name not in known:
            raise UsageError(f"there is no image of runtime {name}: {nearest(name, known)}")
    return tuple(item for item in made if item.name in names or item.key in names or (unused and not item.current))


def remove(client: docker.DockerClient, home: Path, gone: Sequence[Made], *, layers: bool) -> int:
    """Remove ``gone`` with the torch that only they stood on; with ``layers`` all that nothing stands on. Bytes freed.

    Raises RuntimeBusyError, before anything is removed, where a container is made of one of them, or somebody builds:
    what only lies under an image goes with it, and a build may just stand on that.
    """
    with asking("removing images"), Guard(home / LOCKS / BUILDERS) as guard:
        if not guard.take():
            raise RuntimeBusyError("images are being built: wait for that to end")
        before = client.df()["LayersSize"]
        for item in gone:
            if client.containers.list(all=True, filters={"ancestor": item.id}, ignore_removed=True):
                raise RuntimeBusyError(f"the image of runtime {item.key} is in use: wait for its job to end")
        for item in gone:
            for name in item.tags or (item.id,):
                _remove(client, name, item.key)
        _remove_layers(client, None if layers else {item.layer for item in gone})
        return int(before - client.df()["LayersSize"])


def _remove_layers(client: docker.DockerClient, marks: Collection[str] | None) -> None:
    """Of the images of torch alone those that no image of a runtime stands on; of ``marks`` only, or of all."""
    needed = {item.layer for item in list_made(client, ())}
    unfinished = client.images.list(filters={"dangling": True, "label": labels.LAYER})
    for image in [*unfinished, *client.images.list(labels.LAYERS)]:
        mark = image.labels.get(labels.LAYER, "")
        if mark not in needed and (marks is None or mark in marks):
            _remove(client, (image.tags or [str(image.id)])[0], mark[:DIGEST_LETTERS])


def _remove(client: docker.DockerClient, name: str, key: str) -> None:
    try:
        client.images.remove(name)
    except APIError as error:
        if error.status_code == _CONFLICT:
            raise RuntimeBusyError(f"the image of runtime {key} is in use: {error.explanation}") from None
        raise
