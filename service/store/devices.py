"""A host's devices: recorded when its worker starts, taken out of service when they fall sick, put back by people.

On the straight line this stands beside ``service.store.claim``, which gives no job to a device that is sick.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.claims import SLOT, HostView
from service.models import HELD, Device, GpuLease, Host, Job
from service.store.sql import NotFound, insert_missing, lock, touched, utcnow
from service.store.views import DeviceView

GONE = "its host no longer lists it"
COLUMNS = ("host_id", "name", "model", "state", "reason", "since")


def lock_host(session: Session, name: str) -> None:
    """Until the end of the transaction nobody else claims for the host or changes its devices."""
    lock(session, f"host:{name}")


def seen(session: Session, host: HostView, now: datetime) -> int:
    """Note that the host was seen, and as what; its number."""
    values = {"devices": len(host.devices), "transports": list(host.transports), "trusted_only": host.trusted_only}
    values["seen_at"] = now
    insert_missing(session, Host, [{"name": host.name, **values}], ["name"])
    touched(session, sa.update(Host).where(Host.name == host.name).values(**values))
    return session.scalars(sa.select(Host.id).where(Host.name == host.name)).one()


def record_devices(
    session: Session, host: HostView, models: Mapping[str, str], now: datetime | None = None
) -> tuple[str, ...]:
    """Bring the rows of the host's devices up to date; the answer is its devices, each in its place.

    A GPU that was listed once and is not now is sick. It keeps its place, so that the blocks of the others stay as they
    are wired; only where another one is new, which takes hands in the host, do they move up. A CPU slot that is not
    offered any more is forgotten.
    """
    now = now or utcnow()
    lock_host(session, host.name)
    host_id = seen(session, host, now)
    slots = Device.name.startswith(SLOT, autoescape=True)
    mine = (Device.host_id == host_id, slots if host.shares else ~slots)
    found = session.scalars(sa.select(Device).where(*mine).order_by(Device.id))
    known = {row.name: {column: getattr(row, column) for column in COLUMNS} for row in found}
    gone = [] if host.shares else [name for name in known if name not in host.devices]
    for name in gone:
        if known[name]["state"] == "well":
            known[name] |= {"state": "sick", "reason": GONE, "since": now}
    as_before = gone and known.keys() >= set(host.devices)
    places = tuple(known) if as_before else (*host.devices, *gone)
    fresh: dict[str, Any] = {"host_id": host_id, "model": "", "state": "well", "reason": "", "since": now}
    rows = [{**fresh, **known.get(name, {}), "name": name} for name in places]
    touched(session, sa.delete(Device).where(*mine))  # written anew, for their numbers are their order
    if rows:
        session.execute(sa.insert(Device), [{**row, "model": models.get(row["name"], row["model"])} for row in rows])
    return places


def sick_devices(session: Session, host_id: int) -> frozenset[str]:
    """Those that get no job."""
    return frozenset(session.scalars(sa.select(Device.name).where(Device.host_id == host_id, Device.state == "sick")))


def quarantine(session: Session, host: str, reasons: Mapping[str, str], now: datetime | None = None) -> None:
    """Give no more jobs to these devices, each for its reason. One that is sick already keeps its first reason."""
    now = now or utcnow()
    lock_host(session, host)
    host_id = _host(session, host)
    for device, reason in reasons.items():
        well = (Device.host_id == host_id, Device.name == device, Device.state == "well")
        touched(session, sa.update(Device).where(*well).values(state="sick", reason=reason, since=now))


def set_device(
    session: Session, host: str, device: str, state: str, reason: str, now: datetime | None = None
) -> DeviceView:
    """A person says how a device is. Raises NotFound. What runs on one that is now sick goes on to its end."""
    lock_host(session, host)
    host_id = _host(session, host)
    row = session.scalars(sa.select(Device).where(Device.host_id == host_id, Device.name == device)).first()
    if row is None:
        raise NotFound(f"host {host} has no device {device}")
    row.state, row.reason, row.since = state, reason, now or utcnow()
    session.flush()
    return next(view for view in devices_of(session, host_id) if view.name == device)


def devices_of(session: Session, host_id: int) -> tuple[DeviceView, ...]:
    """The host's devices in their places, with what runs on them."""
    leased = session.execute(
        sa.select(GpuLease.device, Job.id)
        .join(Job, Job.container == GpuLease.container)
        .where(GpuLease.host_id == host_id, Job.state.in_(HELD))
        .order_by(Job.id)
    ).all()
    jobs: dict[str, tuple[int, ...]] = {}
    for device, job in leased:
        jobs[device] = (*jobs.get(device, ()), job)
    rows = session.scalars(sa.select(Device).where(Device.host_id == host_id).order_by(Device.id))
    return tuple(
        DeviceView(row.name, row.model, row.state, row.reason, row.since, jobs.get(row.name, ())) for row in rows
    )


def _host(session: Session, name: str) -> int:
    found = session.scalars(sa.select(Host.id).where(Host.name == name)).first()
    if found is None:
        raise NotFound(f"there is no host {name}")
    return found
