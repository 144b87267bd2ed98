"""Retention: whether anything refers to a blob is asked for each that may be removed."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TABLES = ("result_blob", "attempt_blob")


def upgrade() -> None:
    """Find a blob's references by its digest."""
    for table in TABLES:
        op.create_index(f"ix_{table}_digest", table, ["digest"])


def downgrade() -> None:
    """Take it away again."""
    for table in TABLES:
        op.drop_index(f"ix_{table}_digest", table)
