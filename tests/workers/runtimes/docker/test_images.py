"""Images for real: built from a stand-in index, found, checked, pushed, pulled and removed; and one of a real torch.

What the stand-in index has is a torch of a kilobyte. One image of it is built for all tests here, by whichever needs it
first.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import docker
import pytest
from docker.models.images import Image
from typer.testing import CliRunner

from service import catalog
from service.catalog import RuntimeSpec
from service.config import Settings, load_settings
from tests.support.engine import base_image, engine  # noqa: F401 - fixtures
from tests.support.index import StandInIndex
from tests.support.registry import StandInRegistry
from tests.support.wheels import make_catalog, make_lock, make_torch, make_wheel
from workers.cli import application
from workers.runtimes import NotEnoughDiskError, RuntimeBuildError, SourceUnavailableError
from workers.runtimes.docker import context, labels, stock
from workers.runtimes.docker.images import Images
from workers.runtimes.guard import Guard
from workers.runtimes.locking import exactly

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]
PASSWORD = "hunter2"


@dataclass
class Yard:
    """Two runtimes of a stand-in index, and what the engine has of them."""

    client: docker.DockerClient
    index: StandInIndex
    settings: Settings
    said: list[str] = field(default_factory=list)
    marks: set[str] = field(default_factory=set)

    @property
    def images(self) -> Images:
        return Images(self.settings, self.client)

    def spec(self, name: str = "9.9.9") -> RuntimeSpec:
        spec = catalog.load(self.settings).select([name])[0]
        base = str(self.client.images.get(self.settings.base_image).id)
        self.marks.add(labels.layer(base, context.parts(exactly(spec.lock))[0]))
        return spec

    def progress(self, what: str, done: int, total: int | None) -> None:
        self.said.append(what)

    def made(self, name: str = "9.9.9-index") -> tuple[stock.Made, ...]:
        """Images of these runtimes, which nobody else has: their locks are this test's."""
        found = stock.list_made(self.client, catalog.load(self.settings).runtimes)
        return tuple(item for item in found if item.name == name and item.current)

    def image(self, spec: RuntimeSpec) -> Image:
        """The runtime's image, built if it is not there."""
        self.images.ensure(spec, self.progress)
        return self.client.images.get(self.images.image(spec))

    def fetched(self, name: str) -> int:
        return sum(path.startswith(f"/files/{name}-") for path in self.index.requests)

    def unfinished(self) -> tuple[int, int]:
        """How many containers and images there are that only a build of these needs."""
        mine = tuple(labels.tag(spec) for spec in catalog.load(self.settings).runtimes)
        containers = self.client.containers.list(all=True, filters={"label": labels.BUILD}, ignore_removed=True)
        images = self.client.images.list(all=True, filters={"label": labels.BUILD})
        return (
            sum(item.labels[labels.BUILD].startswith(mine) for item in containers),
            sum(item.labels[labels.BUILD].startswith(mine) for item in images),
        )

    def layers(self) -> list[Image]:
        """Images of torch alone that were made here."""
        found = self.client.images.list(all=True, filters={"label": labels.LAYER})
        return [image for image in found if image.labels[labels.LAYER] in self.marks]


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory,
    engine: docker.DockerClient,  # noqa: F811
    base_image: str,  # noqa: F811
) -> Iterator[Yard]:
    folder = tmp_path_factory.mktemp("yard")
    shelf = folder / "shelf"
    path = make_catalog(folder / "images", ["9.9.9", "8.8.8"])
    extra = make_wheel(shelf, "extra", "1.0")
    for version in ("9.9.9", "8.8.8"):
        make_lock(path.parent / "locks" / f"{version}-index.txt", [make_torch(shelf, version), extra])
    settings = Settings(home=folder / "home", catalog=path, base_image=base_image)
    with StandInIndex(shelf) as index, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
            patch.delenv(name)
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("PIP_INDEX_URL", index.url.replace("//", f"//me:{PASSWORD}@"))
        yard = Yard(engine, index, settings)
        yield yard
    for name in ("9.9.9-index", "8.8.8-index"):
        stock.remove(engine, settings.home, yard.made(name), layers=False)
    for image in yard.layers():
        engine.images.remove(str(image.id), force=True)


@pytest.fixture
def yard(shared: Yard) -> Iterator[Yard]:
    """The same with its own settings and locks; an image that a test made of other locks is removed."""
    locks = {path: path.read_bytes() for path in (shared.settings.catalog.parent / "locks").iterdir()}
    yield dataclasses.replace(shared)
    for path, content in locks.items():
        if path.read_bytes() != content:
            stock.remove(shared.client, shared.settings.home, shared.made(), layers=False)
            path.write_bytes(content)
    shared.index.heal()


def test_of_two_builders_one_builds_and_the_other_waits(yard: Yard) -> None:
    spec, outcomes = yard.spec("8.8.8"), list[bool]()
    assert not yard.images.ready(spec)
    with pytest.raises(RuntimeBuildError, match=r"no image of runtime 8\.8\.8-index .*--executor docker 8\.8\.8-index"):
        yard.images.image(spec)
    threads = [
        threading.Thread(target=lambda: outcomes.append(yard.images.ensure(spec, yard.progress))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [False, True]
    assert "8.8.8-index: waiting for another builder" in yard.said
    assert "8.8.8-index: downloading torch" in yard.said
    assert yard.images.image(spec) == yard.made("8.8.8-index")[0].id
    assert yard.unfinished() == (0, 0)


def test_an_image_says_what_it_is_and_not_where_it_comes_from(yard: Yard) -> None:
    spec = yard.spec()
    image = yard.image(spec)
    assert not yard.images.ensure(spec, yard.progress), "it is there"
    assert image.labels[labels.GIT] == "feedbeef"
    assert image.labels[labels.DIGEST] == spec.digest
    config = image.attrs["Config"]
    assert config["User"] == "10002:10002"
    assert config["Entrypoint"] == ["/opt/runtime/bin/python", "-I", "/opt/gradmatrix/bootstrap.py"]
    said = str([image.history(), config, image.labels])
    assert spec.digest in said
    assert PASSWORD not in said
    assert yard.index.url.split("/")[2] not in said
    (made,) = yard.made()
    assert (made.id, made.git, made.current) == (image.id, "feedbeef", True)


def test_what_a_container_finds_inside(yard: Yard) -> None:
    code = "import extra, torch, shutil, pathlib, sysconfig; print(extra.version, torch.__version__)"
    code += "; print(sorted(path.name for path in pathlib.Path('/opt').iterdir()), pathlib.Path('/site').exists())"
    code += "; print(shutil.which('g++'), (pathlib.Path(sysconfig.get_path('include')) / 'Python.h').exists())"
    said = yard.client.containers.run(
        str(yard.image(yard.spec()).id),
        ["-c", code],
        entrypoint="/opt/runtime/bin/python",
        remove=True,
        network_mode="none",
        read_only=True,
    )
    assert said.decode().splitlines() == ["1.0 9.9.9", "['gradmatrix', 'runtime'] False", "/usr/bin/g++ True"]


def test_other_needs_download_no_torch(yard: Yard) -> None:
    first = yard.image(yard.spec())
    torch, extra = yard.fetched("torch"), yard.fetched("extra")
    newer = make_wheel(yard.index.folder, "extra", "2.0")
    make_lock(yard.spec().lock, [yard.index.folder / "torch-9.9.9-py3-none-any.whl", newer])
    second = yard.image(yard.spec())
    assert (yard.fetched("torch"), yard.fetched("extra")) == (torch, extra + 1)
    before, after = (image.attrs["RootFS"]["Layers"] for image in (first, second))
    assert before[:-2] == after[:-2], "all but the needs and the bootstrap"
    assert before != after
    stock.remove(yard.client, yard.settings.home, yard.made(), layers=False)
    assert yard.client.images.get(str(first.id)), "the torch under it stays, for the other stands on it"


def test_an_interrupted_build_leaves_nothing_and_counts_for_nothing(yard: Yard) -> None:
    wheel = make_torch(yard.index.folder, "9.9.7")
    make_lock(yard.spec().lock, [wheel, yard.index.folder / "extra-1.0-py3-none-any.whl"])
    spec = yard.spec()
    yard.index.fail(wheel.name, "held")

    def impatient(what: str, done: int, total: int | None) -> None:
        if any("torch-9.9.7" in path for path in yard.index.requests):
            raise InterruptedError

    with pytest.raises(InterruptedError):
        yard.images.ensure(spec, impatient)
    assert yard.unfinished() == (0, 0)
    assert not yard.images.ready(spec)
    assert yard.made() == ()


def test_another_file_than_the_one_that_was_locked_is_not_installed(yard: Yard) -> None:
    wheel = make_torch(yard.index.folder, "9.9.6")
    make_lock(yard.spec().lock, [wheel])
    make_torch(yard.index.folder, "9.9.6", needs=["forged"])
    with pytest.raises(RuntimeBuildError, match="another file than the one that was locked") as caught:
        yard.images.ensure(yard.spec(), yard.progress)
    assert PASSWORD not in str(caught.value)
    assert not yard.images.ready(yard.spec())
    assert yard.unfinished() == (0, 0)


def test_a_package_that_differs_from_the_lock_is_found(yard: Yard) -> None:
    spec = yard.spec()
    content = b"Metadata-Version: 2.1\nName: extra\nVersion: 6.6\n"
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo("METADATA")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    container = yard.client.containers.create(str(yard.image(spec).id))
    try:
        container.put_archive("/opt/runtime/lib/python3.11/site-packages/extra-1.0.dist-info", archive.getvalue())
        broken = container.commit("gradmatrix-runtime", f"{labels.tag(spec)}-broken")
    finally:
        container.remove()
    try:
        found = yard.images.check(spec)
    finally:
        yard.client.images.remove(broken.tags[0])
    assert found.problems[0] == "extra is 6.6, locked is 1.0"
    assert "an exchange between two ranks failed" in found.problems[1], "that torch has no collectives"
    assert len(found.problems) == 2


def test_what_one_host_pushed_another_pulls(yard: Yard) -> None:
    spec = yard.spec()
    image = yard.image(spec)
    fetched = yard.fetched("torch")
    with StandInRegistry() as registry:
        yard.settings = yard.settings.model_copy(update={"registry": f"{registry.address}/site/runtimes"})
        name = yard.images.push(spec, yard.progress)
        assert name.startswith(f"{registry.address}/site/runtimes@sha256:")
        stock.remove(yard.client, yard.settings.home, yard.made(), layers=False)
        assert not yard.images.ready(spec)
        assert yard.images.ensure(spec, yard.progress)
        assert yard.images.image(spec) == image.id, "the very same image"
        assert yard.fetched("torch") == fetched
        assert yard.made()[0].remote == (name,)


def test_a_registry_that_has_something_else_under_the_name_is_not_believed(yard: Yard) -> None:
    make_lock(yard.spec().lock, [yard.index.folder / "torch-9.9.9-py3-none-any.whl"])
    spec, other = yard.spec(), yard.image(yard.spec("8.8.8"))
    with StandInRegistry() as registry:
        repository = f"{registry.address}/site/runtimes"
        other.tag(repository, labels.tag(spec))
        yard.client.images.push(repository, tag=labels.tag(spec))
        yard.client.images.remove(f"{repository}:{labels.tag(spec)}")
        yard.settings = yard.settings.model_copy(update={"registry": repository})
        with pytest.raises(RuntimeBuildError, match=r"is no image of runtime 9\.9\.9-index: its labels say otherwise"):
            yard.images.ensure(spec, yard.progress)
    assert not yard.images.ready(spec)


def test_a_base_image_that_no_registry_gives_is_named_with_the_remedy(yard: Yard) -> None:
    make_lock(yard.spec().lock, [yard.index.folder / "torch-9.9.9-py3-none-any.whl"])
    spec = yard.spec()
    yard.settings = yard.settings.model_copy(update={"base_image": "127.0.0.1:1/none:1"})
    with pytest.raises(SourceUnavailableError, match=r"127\.0\.0\.1:1/none:1 is not here.*runtimes base.*base_image"):
        yard.images.ensure(spec, yard.progress)


def test_what_would_not_fit_is_not_begun(yard: Yard) -> None:
    wheel = make_torch(yard.index.folder, "9.9.5")
    make_lock(yard.spec().lock, [wheel])
    spec = dataclasses.replace(yard.spec(), installed_bytes=10**18)
    with pytest.raises(NotEnoughDiskError, match=r"needs 2000000\.0 TB of disk while it is built"):
        yard.images.ensure(spec, yard.progress)
    assert not any("torch-9.9.5" in path for path in yard.index.requests)


def test_the_commands_list_check_and_remove(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    image = yard.image(yard.spec("8.8.8"))
    mark = image.labels[labels.LAYER]
    for name in ("home", "catalog", "base_image"):
        monkeypatch.setenv(f"GRADMATRIX_{name.upper()}", str(getattr(yard.settings, name)))

    def gradmatrix(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(application(), ["runtimes", *words, "--executor", "docker"], prog_name="gradmatrix")
        return done.exit_code, done.output

    status, out = gradmatrix("list", "--json")
    listed = {entry["name"]: entry["image"] for entry in json.loads(out)["runtimes"]}
    assert (status, listed["8.8.8-index"]["id"], listed["8.8.8-index"]["torch_git"]) == (0, image.id, "feedbeef")
    rows = [line.split()[:4] for line in gradmatrix("list")[1].splitlines()]
    assert ["8.8.8-index", "8.8.8", "built", str(image.id)[:19]] in rows
    status, out = gradmatrix("check", "8.8.8")
    assert status == 1, "that torch has no collectives"
    assert "wrong 8.8.8-index: torch 8.8.8 (feedbeef)" in out
    container = yard.client.containers.create(str(image.id))
    try:
        status, out = gradmatrix("remove", "8.8.8")
        assert (status, "in use: wait for its job to end" in out) == (2, True)
    finally:
        container.remove()
    assert yard.images.ready(yard.spec("8.8.8"))
    with Guard(yard.settings.home / stock.LOCKS / stock.BUILDERS) as guard:
        assert guard.take(shared=True)
        status, out = gradmatrix("remove", "8.8.8")
        assert (status, "images are being built: wait for that to end" in out) == (2, True)
    status, out = gradmatrix("remove", "8.8.8")
    assert (status, "removed 8.8.8-index-" in out, "1 image removed" in out) == (0, True, True)
    assert not yard.images.ready(yard.spec("8.8.8"))
    assert mark not in [found.labels[labels.LAYER] for found in yard.layers()], "and the torch that it stood on"


@pytest.mark.torch
def test_a_real_torch_passes_its_check(
    engine: docker.DockerClient,  # noqa: F811
    base_image: str,  # noqa: F811
) -> None:
    settings = load_settings().model_copy(update={"base_image": base_image})
    spec = catalog.load(settings).select(["2.13.0-cpu"])[0]
    images = Images(settings, engine)
    try:
        images.ensure(spec, lambda what, done, total: None)
    except (SourceUnavailableError, NotEnoughDiskError) as error:
        pytest.skip(f"no image of runtime {spec.name} on this machine: {error}")
    found, image = images.check(spec), images.find(spec)
    assert found.problems == ()
    assert found.torch == "2.13.0+cpu"
    assert image is not None
    assert (found.git, len(found.git)) == (image.labels[labels.GIT], 40)
