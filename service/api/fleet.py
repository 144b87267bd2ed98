"""What there is to test on: the catalogue's runtimes, the hosts, the channels that torch versions come from."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel

from service import catalog, store
from service.api.access import ADMIN, READ, Admin, Reader, scoped
from service.api.forms import PLAIN, DeviceForm
from service.api.problems import documented
from service.api.state import state_of
from service.claims import LEASE_S
from service.store import DeviceView
from service.store.sql import utcnow

router = APIRouter(tags=["fleet"])
Name = Annotated[str, Path(max_length=255, pattern=PLAIN, description="As /workers has it.")]


class RuntimeEntry(BaseModel):
    """A runtime of the catalogue, and how many cells have an answer in it.

    ``digest`` is null until the runtime is locked, on its first use.
    """

    name: str
    torch: str
    variant: str
    channel: str
    python: str
    digest: str | None
    download_bytes: int
    installed_bytes: int
    answered: int


class Worker(BaseModel):
    """A host: its devices in their places, and whether it was seen within a lease's time.

    ``trusted_only``: code runs there without a container, so that it takes nothing that only a webhook asked for.
    """

    name: str
    devices: list[DeviceView]
    transports: list[str]
    trusted_only: bool
    seen_at: datetime
    alive: bool


class Channel(BaseModel):
    """Where torch versions come from, and which of them there are, the newest last."""

    name: str
    torch: list[str]


@router.get("/runtimes", openapi_extra=scoped(READ), responses=documented(401))
def runtimes(request: Request, _: Reader) -> list[RuntimeEntry]:
    """Every runtime that may be asked for."""
    state = state_of(request)
    with state.database.read() as session:
        answered = {one.digest: one.answered for one in store.runtimes_in_use(session)}
    columns = ("name", "torch", "variant", "channel", "python", "download_bytes", "installed_bytes")
    return [
        RuntimeEntry(
            **{name: getattr(spec, name) for name in columns},
            digest=spec.digest or None,
            answered=answered.get(spec.digest, 0),
        )
        for spec in catalog.load(state.settings).runtimes
    ]


@router.get("/workers", openapi_extra=scoped(READ), responses=documented(401))
def workers(request: Request, _: Reader) -> list[Worker]:
    """Every host that ever looked for work, the one that did last first."""
    since = utcnow() - timedelta(seconds=LEASE_S)
    with state_of(request).database.read() as session:
        return [Worker(**vars(host), alive=host.seen_at >= since) for host in store.hosts(session)]


@router.patch("/workers/{host}/devices/{device}", openapi_extra=scoped(ADMIN), responses=documented(401, 403, 404, 422))
def set_device(host: Name, device: Name, form: DeviceForm, request: Request, _: Admin) -> DeviceView:
    """Take a device out of service, or say that it is well again. What runs on it goes on."""
    with state_of(request).database.session() as session:
        return store.set_device(session, host, device, form.state, form.reason)


@router.get("/channels", openapi_extra=scoped(READ), responses=documented(401))
def channels(request: Request, _: Reader) -> list[Channel]:
    """Every channel, with the torch versions that the catalogue has of it."""
    found: dict[str, dict[str, None]] = {}
    for spec in catalog.load(state_of(request).settings).runtimes:
        found.setdefault(spec.channel, {})[spec.torch] = None
    return [Channel(name=name, torch=list(versions)) for name, versions in found.items()]
