"""Several judgements of one answer, and what is needed to judge again: both passes, the controls, the policies."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make room for later judgements. What is stored was judged when it was answered."""
    op.create_table(
        "policy",
        sa.Column("version", sa.String(length=32), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("version", name="pk_policy"),
    )
    op.create_table(
        "control_set",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_control_set"),
    )
    with op.batch_alter_table("attempt") as batch:
        batch.add_column(sa.Column("control_set_digest", sa.String(length=64), nullable=True))
        batch.create_foreign_key("fk_attempt_control_set_digest", "control_set", ["control_set_digest"], ["digest"])
    with op.batch_alter_table("result") as batch:
        for name in ("first_digest", "alone_digest"):
            batch.add_column(sa.Column(name, sa.String(length=64), nullable=True))
            batch.create_foreign_key(f"fk_result_{name}", "evidence", [name], ["digest"])
        batch.add_column(sa.Column("judged_at", sa.DateTime(timezone=True), nullable=True))
    op.execute("UPDATE result SET judged_at = created_at")
    with op.batch_alter_table("result") as batch:
        batch.alter_column("judged_at", existing_type=sa.DateTime(timezone=True), nullable=False)
        batch.drop_constraint("uq_result_cell_id_attempt_id", type_="unique")
        columns = ["cell_id", "attempt_id", "judged_at"]
        batch.create_unique_constraint("uq_result_cell_id_attempt_id_judged_at", columns)


def downgrade() -> None:
    """Keep of every answer the judgement that came with it."""
    op.execute("""
        UPDATE cell SET result_id = (
            SELECT first.id FROM result AS first JOIN result AS now ON now.id = cell.result_id
            WHERE first.cell_id = now.cell_id AND first.attempt_id = now.attempt_id
            ORDER BY first.judged_at, first.id LIMIT 1
        ) WHERE result_id IS NOT NULL
    """)
    op.execute("DELETE FROM result WHERE judged_at <> created_at")
    with op.batch_alter_table("result") as batch:
        batch.drop_constraint("uq_result_cell_id_attempt_id_judged_at", type_="unique")
        for name in ("first_digest", "alone_digest"):
            batch.drop_constraint(f"fk_result_{name}", type_="foreignkey")
            batch.drop_column(name)
        batch.drop_column("judged_at")
        batch.create_unique_constraint("uq_result_cell_id_attempt_id", ["cell_id", "attempt_id"])
    with op.batch_alter_table("attempt") as batch:
        batch.drop_constraint("fk_attempt_control_set_digest", type_="foreignkey")
        batch.drop_column("control_set_digest")
    op.drop_table("control_set")
    op.drop_table("policy")
