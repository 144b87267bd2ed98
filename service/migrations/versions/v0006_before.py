"""Deliveries that come late are told from what the newer ones say that they replaced."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Of deliveries of before nothing is known."""
    with op.batch_alter_table("delivery") as batch:
        batch.add_column(sa.Column("before", sa.String(length=64), nullable=True))


def downgrade() -> None:
    """Take it away again."""
    with op.batch_alter_table("delivery") as batch:
        batch.drop_column("before")
