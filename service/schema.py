"""What all tables share: portable column types, and a name for every constraint.

On the straight line this stands beneath ``service.models``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, CheckConstraint, DateTime, Dialect, Double, LargeBinary, MetaData, TypeDecorator
from sqlalchemy.orm import DeclarativeBase


class UTCDateTime(TypeDecorator[datetime]):
    """A moment: aware on the way in, UTC on the way out, on databases that keep a zone and on those that do not."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a naive datetime: which moment it means would depend on the machine."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"naive datetime {value!r}: use an aware one")
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give every moment back in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def one_of(column: str, words: tuple[str, ...]) -> CheckConstraint:
    """A named constraint that holds ``column`` to a few words."""
    return CheckConstraint(f"{column} IN ({', '.join(repr(word) for word in words)})", name=column)


class Base(DeclarativeBase):
    """Every constraint has a name, so that a later migration can drop it on both databases."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - read by SQLAlchemy from the class
        datetime: UTCDateTime(),
        dict[str, Any]: JSON(),
        dict[str, int]: JSON(),
        list[str]: JSON(),
        bytes: LargeBinary(),
        float: Double(),
    }
