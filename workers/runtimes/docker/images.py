"""Images of runtimes: made from a lock, found by what they are labelled with, removed with what only they needed.

On the straight line this stands between a claimed job and its container. An image counts by its labels alone, which the
engine sets in a build's last step: what was interrupted has none. The image of torch and its CUDA libraries lies under
the others and is found by what it was made from, so that it is downloaded once for all sets of needs.
"""

from __future__ import annotations

import re
import tarfile
from io import BytesIO
from pathlib import Path

import docker
from docker.models.images import Image

from service.catalog import RuntimeSpec
from service.config import Settings
from service.errors import UsageError
from service.pip_config import pip_configuration
from workers.runtimes import NotEnoughDiskError, Progress, RuntimeBuildError, disk
from workers.runtimes.checking import Check
from workers.runtimes.docker import context, labels, registry, stock
from workers.runtimes.docker.asking import asking
from workers.runtimes.docker.building import Tell, build
from workers.runtimes.docker.checking import check
from workers.runtimes.guard import Guard
from workers.runtimes.locking import exactly

_GIT = re.compile(r"^git_version\s*=\s*['\"]([0-9a-f]+)['\"]", re.MULTILINE)


class Images:
    """The images of this host's engine; see :class:`workers.runtimes.Executor` for ``ensure``."""

    at_once = 1
    """Builds at once: one keeps the engine's disk and this host's network busy."""

    def __init__(self, settings: Settings, client: docker.DockerClient) -> None:
        self._settings, self._client = settings, client
        self._pip = pip_configuration()

    def ready(self, runtime: RuntimeSpec) -> bool:
        """Whether an image of this content is here."""
        return self.find(runtime) is not None

    def image(self, runtime: RuntimeSpec) -> str:
        """The id to start it by, ``sha256:…``. Raises RuntimeBuildError where it is not here."""
        return str(self._here(runtime).id)

    def find(self, runtime: RuntimeSpec) -> Image | None:
        """The runtime's image, the newest where there are several; None where it is not here."""
        with asking("looking for images"):
            found = self._client.images.list(filters={"label": f"{labels.DIGEST}={runtime.digest}"})
        fitting = [image for image in found if labels.fits(image.labels, runtime)]
        return max(fitting, key=lambda image: str(image.attrs.get("Created")), default=None)

    def check(self, runtime: RuntimeSpec) -> Check:
        """Start it, compare what is installed with the lock, and let two ranks exchange. Raises RuntimeBuildError."""
        image = self._here(runtime)
        with asking(f"checking {runtime.name}"):
            return check(self._client, image, runtime)

    def push(self, runtime: RuntimeSpec, progress: Progress) -> str:
        """Push it to the registry of the settings: its name there, with its digest. Raises RuntimeBuildError."""
        if self._settings.registry is None:
            raise UsageError("there is no registry to push to: set registry (GRADMATRIX_REGISTRY) to HOST/NAME")
        with asking(f"pushing {runtime.name}"):
            return registry.push_runtime(self._client, self._settings.registry, self._here(runtime), runtime, progress)

    def _here(self, runtime: RuntimeSpec) -> Image:
        image = self.find(runtime)
        if image is None:
            raise RuntimeBuildError(
                f"there is no image of runtime {runtime.name} here; "
                f"`gradmatrix runtimes build --executor docker {runtime.name}` makes it"
            )
        return image

    def ensure(self, runtime: RuntimeSpec, progress: Progress) -> bool:
        """Pull the image or build it, if it is not here; whether this call did. Raises RuntimeBuildError.

        Of several builders of one runtime one builds and the others wait.
        """
        if self.ready(runtime):
            return False
        folder = self._settings.home / stock.LOCKS
        with Guard(folder / f"{labels.tag(runtime)}.lock") as guard, Guard(folder / stock.BUILDERS) as building:
            guard.wait(waiting=lambda: progress(f"{runtime.name}: waiting for another builder", 0, None))
            building.wait(shared=True)
            if self.ready(runtime):
                return False
            with asking(f"building {runtime.name}"):
                if not registry.pull_runtime(self._client, self._settings.registry, runtime, progress):
                    self._build(runtime, progress)
            return True

    def _build(self, runtime: RuntimeSpec, progress: Progress) -> None:
        def tell(doing: str, done: int) -> None:
            progress(f"{runtime.name}: {doing}", min(done, runtime.download_bytes), runtime.download_bytes)

        base = registry.base(self._client, self._settings.base_image, runtime, progress)
        torch, needs = context.parts(exactly(runtime.lock))
        layer = self._torch(runtime, base, torch, tell)
        made = labels.of(runtime, base=_named(base), git=self._git(runtime, layer))
        tag = f"{labels.REPOSITORY}:{labels.tag(runtime)}"
        build(self._client, runtime, needs, self._pip, tell, base=layer, label=made, tag=tag)
        progress(f"{runtime.name}: built", runtime.download_bytes, runtime.download_bytes)

    def _torch(self, runtime: RuntimeSpec, base: Image, packages: str, tell: Tell) -> str:
        """The id of the image of torch alone, which may be there already."""
        wanted = labels.layer(str(base.id), packages)
        tag = labels.layer_tag(wanted)
        for image in self._client.images.list(tag, filters={"label": f"{labels.LAYER}={wanted}"}):
            return str(image.id)
        self._demand_disk(runtime)
        return build(
            self._client,
            runtime,
            packages,
            self._pip,
            tell,
            base=str(base.id),
            label={labels.LAYER: wanted},
            target="packages",
            tag=tag,
        )

    def _demand_disk(self, runtime: RuntimeSpec) -> None:
        """Raise NotEnoughDiskError where it will not fit: downloaded, unpacked, and copied into its layer."""
        root = Path(str(self._client.info().get("DockerRootDir", "")))
        if not root.is_absolute() or not root.exists():  # the engine is on another host
            return
        need, spare = runtime.download_bytes + 2 * runtime.installed_bytes, self._settings.disk_spare_bytes
        if (free := disk.free(root)) < need + spare:
            raise NotEnoughDiskError(
                f"an image of runtime {runtime.name} needs {disk.human(need)} of disk while it is built "
                f"({disk.human(runtime.installed_bytes)} afterwards), and {disk.human(spare)} must stay free; "
                f"{disk.human(free)} is free at {root}. Nothing was downloaded. "
                f"`gradmatrix runtimes remove --executor docker` frees some"
            )

    def _git(self, runtime: RuntimeSpec, layer: str) -> str:
        """The commit that torch was built from, read out of the image without starting anything."""
        path = f"/opt/runtime/lib/python{runtime.python}/site-packages/torch/version.py"
        container = self._client.containers.create(layer, command=["true"], network_mode="none")
        try:
            chunks, _ = container.get_archive(path)
            with tarfile.open(fileobj=BytesIO(b"".join(chunks))) as archive:
                file = archive.extractfile("version.py")
                text = file.read().decode("utf-8", "replace") if file else ""
        finally:
            container.remove(force=True)
        found = _GIT.search(text)
        if found is None:
            raise RuntimeBuildError(f"runtime {runtime.name}: torch does not say which commit it was built from")
        return found[1]


def _named(base: Image) -> str:
    """The base image so that it can be had again: by its digest in its registry, else by its id."""
    digests = base.attrs.get("RepoDigests") or [base.id]
    return str(digests[0])
