"""``gradmatrix runtimes … --executor docker``: images of runtimes, and the base image that they stand on.

What building and checking share with virtual environments is in ``workers.cli.runtimes``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence

from service import catalog
from service.catalog import RuntimeSpec
from service.config import Settings, images_folder, load_settings
from service.errors import UsageError
from service.words import human_bytes, inert, plural
from workers.cli.console import OK, console, table
from workers.cli.progress import Watcher
from workers.cli.runtimes import stated
from workers.runtimes import RuntimeBuildError
from workers.runtimes.docker import stock
from workers.runtimes.docker.engine import connect
from workers.runtimes.docker.images import Images
from workers.runtimes.docker.stock import Made
from workers.runtimes.inventory import key

_SHOWN_LETTERS = 19
"""Of an image's id: sha256: and what Docker shows."""


def list_(*, everything: bool, as_json: bool) -> int:
    """The catalogue in its order, what images there are of it, and those that are no longer in it."""
    settings = load_settings()
    known = catalog.load(settings)
    made = stock.list_made(connect(), known.runtimes)
    if as_json:
        console().print(json.dumps(_listing(known.runtimes, made), indent=1), soft_wrap=True)
        return OK
    here = {item.key: item for item in made if item.current}
    rows: list[tuple[str, ...]] = [("runtime", "torch", "state", "image", "on disk", "shared")]
    bare, hidden = set(known.bare()), Counter[str]()
    for spec in known.runtimes:
        item = here.get(key(spec)) if spec.locked else None
        if everything or item or spec in bare:
            rows.append((spec.name, spec.torch, *_state(spec, item)))
        else:
            hidden[spec.variant] += 1
    rows += [(item.key, "", "not in the catalogue any more", *_image(item)) for item in made if not item.current]
    table(rows)
    if hidden:
        more = ", ".join(f"{count} of variant {variant}" for variant, count in hidden.items())
        console().print(f"not shown: {more} (--all shows them)", soft_wrap=True)
    return OK


def _state(spec: RuntimeSpec, item: Made | None) -> tuple[str, ...]:
    if item is None:
        return "not built" if spec.locked else "not locked", "", f"about {human_bytes(spec.installed_bytes)}", ""
    return "built", *_image(item)


def _image(item: Made) -> tuple[str, ...]:
    return item.id[:_SHOWN_LETTERS], human_bytes(item.bytes), "" if item.shared is None else human_bytes(item.shared)


def _listing(specs: Sequence[RuntimeSpec], made: Sequence[Made]) -> dict[str, object]:
    here = {item.digest: item for item in made if item.current}
    return {
        "runtimes": [
            {
                **stated(spec),
                "built": spec.locked and spec.digest in here,
                "image": _facts(here[spec.digest]) if spec.locked and spec.digest in here else None,
            }
            for spec in specs
        ],
        "left_over": [{"key": item.key, **_facts(item)} for item in made if not item.current],
    }


def _facts(item: Made) -> dict[str, object]:
    return {
        "id": item.id,
        "remote": list(item.remote),
        "torch_git": item.git,
        "base": item.base,
        "bytes": item.bytes,
        "shared_bytes": item.shared,
    }


def remove(names: Sequence[str], *, unused: bool, everything: bool) -> int:
    """Remove images, and with ``unused`` or ``everything`` also what unfinished builds left."""
    if not (names or unused or everything):
        raise UsageError("name the runtimes to remove, or say --unused or --all (gradmatrix runtimes list shows them)")
    from workers.cli.runtimes import full_names

    settings, client = load_settings(), connect()
    made = stock.list_made(client, catalog.load(settings).runtimes)
    wanted = full_names(settings, names, {item.name for item in made})
    gone = made if everything else stock.choose(made, wanted, unused=unused)
    freed = stock.remove(client, settings.home, gone, layers=unused or everything)
    for item in gone:
        console().print(f"removed {inert(item.key)}", soft_wrap=True)
    console().print(f"{plural(len(gone), 'image')} removed, {human_bytes(freed)} freed", soft_wrap=True)
    return OK


def push(
    settings: Settings, specs: Sequence[RuntimeSpec], watch: Watcher, failed: dict[str, RuntimeBuildError]
) -> None:
    """Push the images of ``specs``, and say what the registry has them under; errors are kept in ``failed``."""
    made = Images(settings, connect())
    for spec in specs:
        try:
            watch.ended(spec.name, f"pushed as {made.push(spec, watch.growing(spec.name))}")
        except RuntimeBuildError as error:
            failed[spec.name] = error


def base() -> int:
    """Make a base image from Debian's packages, and say which setting names it. Raises RuntimeBuildError."""
    missing = [program for program in ("debootstrap", "docker", "tar") if shutil.which(program) is None]
    if missing:
        raise UsageError(f"making a base image takes {' and '.join(missing)}: apt-get install debootstrap docker.io")
    if os.geteuid() != 0:
        raise UsageError("making a base image takes root, for debootstrap does: sudo gradmatrix runtimes base")
    connect()
    script = images_folder() / "debian" / "base.sh"
    done = subprocess.run(["bash", str(script)], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeBuildError(f"the base image could not be made: {script} ended with status {done.returncode}")
    console().print(done.stdout.rstrip(), soft_wrap=True)
    name = done.stdout.strip().partition("=")[2]
    console().print(f"or in config.toml: base_image = {json.dumps(name)}", soft_wrap=True)
    return OK
