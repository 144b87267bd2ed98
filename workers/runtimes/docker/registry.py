"""Images from a registry, and to it.

On the straight line this stands under ``workers.runtimes.docker.images``: what others have built need not be built
here. Where no registry answers, runtimes are built; only the base image has to be there.
"""

from __future__ import annotations

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.models.images import Image

from service.catalog import RuntimeSpec
from workers.runtimes import Progress, RuntimeBuildError, SourceUnavailableError
from workers.runtimes.docker import labels
from workers.runtimes.docker.following import Entry, follow


class _Heard:
    """What a pull or push has said so far, as progress of ``name``."""

    def __init__(self, name: str, doing: str, progress: Progress) -> None:
        self.error: str | None = None
        self._what, self._progress = f"{name}: {doing}", progress
        self._layers: dict[str, tuple[int, int]] = {}

    def hear(self, entry: Entry) -> None:
        self.error = entry.get("error", self.error)
        detail = entry.get("progressDetail") or {}
        if entry.get("status") in ("Downloading", "Pushing") and "current" in detail:
            self._layers[str(entry.get("id"))] = (int(detail["current"]), int(detail.get("total") or 0))

    def tick(self) -> None:
        done, total = (sum(sizes) for sizes in zip(*self._layers.values(), strict=True)) if self._layers else (0, 0)
        self._progress(self._what, done, total or None)


def base(client: docker.DockerClient, name: str, runtime: RuntimeSpec, progress: Progress) -> Image:
    """The base image ``name``, pulled where it is not here. Raises SourceUnavailableError."""
    try:
        return client.images.get(name)
    except ImageNotFound:
        pass
    repository, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "latest")
    said = _pull(client, repository, tag, _Heard(runtime.name, f"pulling {name}", progress))
    if said is not None:
        raise SourceUnavailableError(
            f"the base image {name} is not here, and no registry answers for it: `gradmatrix runtimes base` makes one "
            f"from Debian's packages; the setting base_image (GRADMATRIX_BASE_IMAGE) names it\n  {said}"
        )
    return client.images.get(name)


def pull_runtime(client: docker.DockerClient, repository: str | None, runtime: RuntimeSpec, progress: Progress) -> bool:
    """Pull the runtime's image from ``repository``; False where none is configured, or it does not have it.

    Raises RuntimeBuildError where it has something else under that name.
    """
    if repository is None:
        return False
    tag = labels.tag(runtime)
    if _pull(client, repository, tag, _Heard(runtime.name, f"pulling from {repository}", progress)) is not None:
        return False
    image = client.images.get(f"{repository}:{tag}")
    if not labels.fits(image.labels, runtime):
        client.images.remove(f"{repository}:{tag}")
        raise RuntimeBuildError(
            f"{repository}:{tag} is no image of runtime {runtime.name}: its labels say otherwise. Remove it there, and "
            f"`gradmatrix runtimes build --executor docker --push {runtime.name}` puts the right one in its place"
        )
    return True


def push_runtime(
    client: docker.DockerClient, repository: str, image: Image, runtime: RuntimeSpec, progress: Progress
) -> str:
    """Push the runtime's image: what ``repository`` has it under, with its digest. Raises RuntimeBuildError."""
    tag = labels.tag(runtime)
    image.tag(repository, tag)
    heard = _Heard(runtime.name, f"pushing to {repository}", progress)
    try:
        follow(
            client,
            lambda stop: client.api.push(repository, tag=tag, stream=True, decode=True),
            heard.hear,
            heard.tick,
        )
    except DockerException as error:
        heard.error = str(error)
    if heard.error is not None:
        raise RuntimeBuildError(f"runtime {runtime.name} could not be pushed to {repository}: {heard.error}")
    image.reload()
    return next((name for name in image.attrs.get("RepoDigests") or () if name.startswith(repository)), repository)


def _pull(client: docker.DockerClient, repository: str, tag: str, heard: _Heard) -> str | None:
    """Pull; what was said where it did not work."""
    try:
        follow(
            client,
            lambda stop: client.api.pull(repository, tag=tag, stream=True, decode=True),
            heard.hear,
            heard.tick,
        )
    except (APIError, NotFound) as error:
        return str(error.explanation or error)
    return heard.error
