"""The tables of the first release."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make every table."""
    op.create_table(
        "blob",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_blob"),
    )
    op.create_table(
        "case_version",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("case_id", sa.String(length=255), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("family", sa.String(length=32), nullable=False),
        sa.Column("info", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_case_version"),
        sa.UniqueConstraint("case_id", "version", name="uq_case_version_case_id_version"),
    )
    op.create_table(
        "checkout",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("label", sa.String(length=255), nullable=False),
        sa.Column("ref", sa.String(length=255), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("meta", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_checkout"),
        sa.UniqueConstraint("digest", name="uq_checkout_digest"),
    )
    op.create_table(
        "evidence",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_evidence"),
    )
    op.create_table(
        "host",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("devices", sa.Integer(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_host"),
        sa.UniqueConstraint("name", name="uq_host_name"),
    )
    op.create_table(
        "runtime",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("torch", sa.String(length=64), nullable=False),
        sa.Column("variant", sa.String(length=32), nullable=False),
        sa.Column("channel", sa.String(length=32), nullable=False),
        sa.Column("python", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_runtime"),
        sa.UniqueConstraint("digest", name="uq_runtime_digest"),
    )
    op.create_table(
        "submission",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("requester", sa.String(length=255), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('resolving', 'queued', 'running', 'done', 'cancelled')", name=op.f("ck_submission_state")
        ),
        sa.PrimaryKeyConstraint("id", name="pk_submission"),
        sa.UniqueConstraint("key", name="uq_submission_key"),
    )
    op.create_index("ix_submission_state_id", "submission", ["state", "id"], unique=False)
    op.create_table(
        "gpu_lease",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("host_id", sa.Integer(), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("container", sa.String(length=32), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["host_id"], ["host.id"], name="fk_gpu_lease_host_id"),
        sa.PrimaryKeyConstraint("id", name="pk_gpu_lease"),
        sa.UniqueConstraint("host_id", "device", name="uq_gpu_lease_host_id_device"),
    )
    op.create_index("ix_gpu_lease_container", "gpu_lease", ["container"], unique=False)
    op.create_table(
        "job",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=32), nullable=False),
        sa.Column("checkout_id", sa.Integer(), nullable=False),
        sa.Column("runtime_id", sa.Integer(), nullable=False),
        sa.Column("transport", sa.String(length=32), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("cells_digest", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("wall_s", sa.Double(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("host_id", sa.Integer(), nullable=True),
        sa.Column("container", sa.String(length=32), nullable=True),
        sa.Column("reserved_host_id", sa.Integer(), nullable=True),
        sa.Column("reserved_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cells_total", sa.Integer(), nullable=False),
        sa.Column("cells_done", sa.Integer(), nullable=False),
        sa.Column("counts", sa.JSON(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("queued_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('queued', 'leased', 'running', 'done', 'cancelled')", name=op.f("ck_job_state")),
        sa.ForeignKeyConstraint(["checkout_id"], ["checkout.id"], name="fk_job_checkout_id"),
        sa.ForeignKeyConstraint(["host_id"], ["host.id"], name="fk_job_host_id"),
        sa.ForeignKeyConstraint(["reserved_host_id"], ["host.id"], name="fk_job_reserved_host_id"),
        sa.ForeignKeyConstraint(["runtime_id"], ["runtime.id"], name="fk_job_runtime_id"),
        sa.PrimaryKeyConstraint("id", name="pk_job"),
        sa.UniqueConstraint("key", name="uq_job_key"),
    )
    op.create_index("ix_job_container", "job", ["container"], unique=False)
    op.create_index("ix_job_state_lease_until", "job", ["state", "lease_until"], unique=False)
    op.create_index("ix_job_state_priority_queued_at", "job", ["state", "priority", "queued_at"], unique=False)
    op.create_index(
        "uq_job_live",
        "job",
        ["checkout_id", "runtime_id", "transport", "world_size", "cells_digest"],
        unique=True,
        sqlite_where=sa.text("state IN ('queued', 'leased', 'running')"),
        postgresql_where=sa.text("state IN ('queued', 'leased', 'running')"),
    )
    op.create_table(
        "submission_checkout",
        sa.Column("submission_id", sa.Integer(), nullable=False),
        sa.Column("checkout_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("label", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["checkout_id"], ["checkout.id"], name="fk_submission_checkout_checkout_id"),
        sa.ForeignKeyConstraint(["submission_id"], ["submission.id"], name="fk_submission_checkout_submission_id"),
        sa.PrimaryKeyConstraint("submission_id", "checkout_id", name="pk_submission_checkout"),
    )
    op.create_table(
        "attempt",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("container", sa.String(length=32), nullable=False),
        sa.Column("host_id", sa.Integer(), nullable=False),
        sa.Column("machine", sa.String(length=255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("pid_started", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('running', 'done', 'released', 'lost', 'cancelled')", name=op.f("ck_attempt_state")
        ),
        sa.ForeignKeyConstraint(["host_id"], ["host.id"], name="fk_attempt_host_id"),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_attempt_job_id"),
        sa.PrimaryKeyConstraint("id", name="pk_attempt"),
        sa.UniqueConstraint("job_id", "fence", name="uq_attempt_job_id_fence"),
    )
    op.create_index("ix_attempt_state", "attempt", ["state"], unique=False)
    op.create_index("ix_attempt_container", "attempt", ["container"], unique=False)
    op.create_table(
        "cell",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("checkout_id", sa.Integer(), nullable=False),
        sa.Column("runtime_id", sa.Integer(), nullable=False),
        sa.Column("transport", sa.String(length=32), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("case_version_id", sa.Integer(), nullable=False),
        sa.Column("mode", sa.String(length=32), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=True),
        sa.Column("result_id", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["case_version_id"], ["case_version.id"], name="fk_cell_case_version_id"),
        sa.ForeignKeyConstraint(["checkout_id"], ["checkout.id"], name="fk_cell_checkout_id"),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_cell_job_id"),
        sa.ForeignKeyConstraint(["runtime_id"], ["runtime.id"], name="fk_cell_runtime_id"),
        sa.PrimaryKeyConstraint("id", name="pk_cell"),
        sa.UniqueConstraint(
            "checkout_id", "runtime_id", "transport", "world_size", "case_version_id", "mode", name="uq_cell_identity"
        ),
    )
    op.create_index(
        "ix_cell_case_version_id_mode_world_size_transport",
        "cell",
        ["case_version_id", "mode", "world_size", "transport"],
        unique=False,
    )
    op.create_index("ix_cell_job_id", "cell", ["job_id"], unique=False)
    op.create_table(
        "submission_job",
        sa.Column("submission_id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_submission_job_job_id"),
        sa.ForeignKeyConstraint(["submission_id"], ["submission.id"], name="fk_submission_job_submission_id"),
        sa.PrimaryKeyConstraint("submission_id", "job_id", name="pk_submission_job"),
    )
    op.create_index("ix_submission_job_job_id", "submission_job", ["job_id"], unique=False)
    op.create_table(
        "attempt_blob",
        sa.Column("attempt_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("meta", sa.JSON(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], name="fk_attempt_blob_attempt_id"),
        sa.ForeignKeyConstraint(["digest"], ["blob.digest"], name="fk_attempt_blob_digest"),
        sa.PrimaryKeyConstraint("attempt_id", "position", name="pk_attempt_blob"),
    )
    op.create_table(
        "control_result",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.Integer(), nullable=False),
        sa.Column("control", sa.String(length=255), nullable=False),
        sa.Column("mode", sa.String(length=32), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("verdict", sa.String(length=32), nullable=False),
        sa.Column("as_expected", sa.Boolean(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("policy_version", sa.String(length=32), nullable=False),
        sa.Column("evidence_digest", sa.String(length=64), nullable=True),
        sa.CheckConstraint("stage IN ('before', 'after')", name=op.f("ck_control_result_stage")),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], name="fk_control_result_attempt_id"),
        sa.ForeignKeyConstraint(["evidence_digest"], ["evidence.digest"], name="fk_control_result_evidence_digest"),
        sa.PrimaryKeyConstraint("id", name="pk_control_result"),
        sa.UniqueConstraint(
            "attempt_id",
            "control",
            "mode",
            "world_size",
            "stage",
            name="uq_control_result_attempt_id_control_mode_world_size_stage",
        ),
    )
    op.create_table(
        "result",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("cell_id", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.Integer(), nullable=False),
        sa.Column("verdict", sa.String(length=32), nullable=False),
        sa.Column("policy_version", sa.String(length=32), nullable=False),
        sa.Column("forward_ok", sa.Boolean(), nullable=True),
        sa.Column("signature", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("worst_tensor", sa.String(length=255), nullable=True),
        sa.Column("error", sa.Double(), nullable=True),
        sa.Column("alpha", sa.Double(), nullable=True),
        sa.Column("nonzero_got", sa.Integer(), nullable=True),
        sa.Column("nonzero_expected", sa.Integer(), nullable=True),
        sa.Column("evidence_digest", sa.String(length=64), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], name="fk_result_attempt_id"),
        sa.ForeignKeyConstraint(["cell_id"], ["cell.id"], name="fk_result_cell_id"),
        sa.ForeignKeyConstraint(["evidence_digest"], ["evidence.digest"], name="fk_result_evidence_digest"),
        sa.PrimaryKeyConstraint("id", name="pk_result"),
        sa.UniqueConstraint("cell_id", "attempt_id", name="uq_result_cell_id_attempt_id"),
    )
    op.create_index("ix_result_attempt_id", "result", ["attempt_id"], unique=False)
    op.create_table(
        "submission_cell",
        sa.Column("submission_id", sa.Integer(), nullable=False),
        sa.Column("cell_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["cell_id"], ["cell.id"], name="fk_submission_cell_cell_id"),
        sa.ForeignKeyConstraint(["submission_id"], ["submission.id"], name="fk_submission_cell_submission_id"),
        sa.PrimaryKeyConstraint("submission_id", "cell_id", name="pk_submission_cell"),
    )
    op.create_index("ix_submission_cell_cell_id", "submission_cell", ["cell_id"], unique=False)
    op.create_table(
        "result_blob",
        sa.Column("result_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("meta", sa.JSON(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(["digest"], ["blob.digest"], name="fk_result_blob_digest"),
        sa.ForeignKeyConstraint(["result_id"], ["result.id"], name="fk_result_blob_result_id"),
        sa.PrimaryKeyConstraint("result_id", "position", name="pk_result_blob"),
    )
    # cell and result point at each other; SQLite adds a constraint by making the table anew, which batch mode does
    with op.batch_alter_table("cell") as batch:
        batch.create_foreign_key("fk_cell_result_id", "result", ["result_id"], ["id"])


def downgrade() -> None:
    """Drop every table."""
    with op.batch_alter_table("cell") as batch:
        batch.drop_constraint("fk_cell_result_id", type_="foreignkey")
    for table in (
        "result_blob",
        "submission_cell",
        "result",
        "control_result",
        "attempt_blob",
        "submission_job",
        "cell",
        "attempt",
        "submission_checkout",
        "job",
        "gpu_lease",
        "submission",
        "runtime",
        "host",
        "evidence",
        "checkout",
        "case_version",
        "blob",
    ):
        op.drop_table(table)
