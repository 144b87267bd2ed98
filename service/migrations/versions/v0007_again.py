"""When a job may be tried again where it failed, and how often a submission was fetched for to an end."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None
COUNTS = ("tries", "lost")


def upgrade() -> None:
    """What waits now has all of its tries before it."""
    with op.batch_alter_table("job") as batch:
        batch.add_column(sa.Column("not_before", sa.DateTime(timezone=True), nullable=True))
    with op.batch_alter_table("resolution") as batch:
        for name in COUNTS:
            batch.add_column(sa.Column(name, sa.Integer(), nullable=False, server_default="0"))
    with op.batch_alter_table("resolution") as batch:
        for name in COUNTS:
            batch.alter_column(name, existing_type=sa.Integer(), existing_nullable=False, server_default=None)


def downgrade() -> None:
    """Take all three away again."""
    with op.batch_alter_table("resolution") as batch:
        for name in COUNTS:
            batch.drop_column(name)
    with op.batch_alter_table("job") as batch:
        batch.drop_column("not_before")
