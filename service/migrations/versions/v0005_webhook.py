"""Which hosts take only what somebody vouches for, and who asked for a checkout."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A host that has not said otherwise takes only what is trusted."""
    with op.batch_alter_table("host") as batch:
        batch.add_column(sa.Column("trusted_only", sa.Boolean(), nullable=False, server_default=sa.true()))
    with op.batch_alter_table("host") as batch:
        batch.alter_column("trusted_only", existing_type=sa.Boolean(), existing_nullable=False, server_default=None)
    op.create_index("ix_submission_checkout_checkout_id", "submission_checkout", ["checkout_id"])


def downgrade() -> None:
    """Take both away again."""
    op.drop_index("ix_submission_checkout_checkout_id", "submission_checkout")
    with op.batch_alter_table("host") as batch:
        batch.drop_column("trusted_only")
