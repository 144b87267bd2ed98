"""The service: approval and failure of submissions, fetching as a task of its own, tokens, devices, the outbox."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)
BEFORE = "state IN ('resolving', 'queued', 'running', 'done', 'cancelled')"
AFTER = "state IN ('held', 'resolving', 'queued', 'running', 'done', 'cancelled', 'failed')"
SCOPES = "scope IN ('read', 'submit', 'admin')"


def upgrade() -> None:
    """Add what a service has that one person's runs do not need."""
    with op.batch_alter_table("submission") as batch:
        batch.add_column(sa.Column("note", sa.Text(), nullable=False, server_default=""))
        batch.add_column(sa.Column("pinned", sa.Boolean(), nullable=False, server_default=sa.false()))
        batch.drop_constraint(op.f("ck_submission_state"), type_="check")
        batch.create_check_constraint(op.f("ck_submission_state"), AFTER)
    with op.batch_alter_table("submission") as batch:
        batch.alter_column("note", existing_type=sa.Text(), existing_nullable=False, server_default=None)
        batch.alter_column("pinned", existing_type=sa.Boolean(), existing_nullable=False, server_default=None)
    with op.batch_alter_table("host") as batch:
        batch.add_column(sa.Column("transports", sa.JSON(), nullable=False, server_default="[]"))
    with op.batch_alter_table("host") as batch:
        batch.alter_column("transports", existing_type=sa.JSON(), existing_nullable=False, server_default=None)
    _work()
    _access()


def _work() -> None:
    op.create_table(
        "resolution",
        sa.Column("submission_id", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("lease_until", MOMENT, nullable=True),
        sa.Column("doing", sa.Text(), nullable=False),
        sa.Column("bytes_done", sa.BigInteger(), nullable=False),
        sa.Column("bytes_total", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("state IN ('waiting', 'fetching', 'done')", name=op.f("ck_resolution_state")),
        sa.ForeignKeyConstraint(["submission_id"], ["submission.id"], name="fk_resolution_submission_id"),
        sa.PrimaryKeyConstraint("submission_id", name="pk_resolution"),
    )
    op.create_index("ix_resolution_state_lease_until", "resolution", ["state", "lease_until"])
    op.create_table(
        "checkout_part",
        sa.Column("checkout_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["checkout_id"], ["checkout.id"], name="fk_checkout_part_checkout_id"),
        sa.PrimaryKeyConstraint("checkout_id", "position", name="pk_checkout_part"),
    )
    op.create_table(
        "device",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("host_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=128), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("since", MOMENT, nullable=False),
        sa.CheckConstraint("state IN ('well', 'sick')", name=op.f("ck_device_state")),
        sa.ForeignKeyConstraint(["host_id"], ["host.id"], name="fk_device_host_id"),
        sa.PrimaryKeyConstraint("id", name="pk_device"),
        sa.UniqueConstraint("host_id", "name", name="uq_device_host_id_name"),
    )
    op.create_table(
        "hint",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_hint"),
    )
    op.create_table(
        "act",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_act"),
    )


def _access() -> None:
    op.create_table(
        "token",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("prefix", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("used_at", MOMENT, nullable=True),
        sa.Column("revoked_at", MOMENT, nullable=True),
        sa.CheckConstraint(SCOPES, name=op.f("ck_token_scope")),
        sa.PrimaryKeyConstraint("id", name="pk_token"),
        sa.UniqueConstraint("digest", name="uq_token_digest"),
    )
    op.create_table(
        "idempotency_key",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("requester", sa.String(length=255), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("body", sa.String(length=64), nullable=False),
        sa.Column("submission_id", sa.Integer(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["submission_id"], ["submission.id"], name="fk_idempotency_key_submission_id"),
        sa.PrimaryKeyConstraint("id", name="pk_idempotency_key"),
        sa.UniqueConstraint("requester", "key", name="uq_idempotency_key_requester_key"),
    )
    op.create_index("ix_idempotency_key_created_at", "idempotency_key", ["created_at"])
    op.create_table(
        "delivery",
        sa.Column("guid", sa.String(length=64), nullable=False),
        sa.Column("repository", sa.String(length=255), nullable=False),
        sa.Column("sha", sa.String(length=64), nullable=False),
        sa.Column("event", sa.String(length=32), nullable=False),
        sa.Column("submission_id", sa.Integer(), nullable=True),
        sa.Column("received_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["submission_id"], ["submission.id"], name="fk_delivery_submission_id"),
        sa.PrimaryKeyConstraint("guid", name="pk_delivery"),
        sa.UniqueConstraint("repository", "sha", "event", name="uq_delivery_repository_sha_event"),
    )


def downgrade() -> None:
    """Take it away again. What was waiting or had failed is cancelled there, where no other word is known."""
    for table in ("act", "delivery", "idempotency_key", "token", "hint", "device", "checkout_part", "resolution"):
        op.drop_table(table)
    with op.batch_alter_table("host") as batch:
        batch.drop_column("transports")
    op.execute("UPDATE submission SET state = 'cancelled' WHERE state IN ('held', 'failed')")
    with op.batch_alter_table("submission") as batch:
        batch.drop_constraint(op.f("ck_submission_state"), type_="check")
        batch.create_check_constraint(op.f("ck_submission_state"), BEFORE)
        batch.drop_column("pinned")
        batch.drop_column("note")
