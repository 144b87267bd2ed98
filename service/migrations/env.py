"""Alembic's entry: it migrates over the connection that ``service.db`` gave it, inside that one's transaction."""

from __future__ import annotations

from alembic import context

from service.models import Job

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run `gradmatrix db upgrade`: these migrations run inside a transaction of service.db")
context.configure(connection=connection, target_metadata=Job.metadata, render_as_batch=True, compare_type=True)
context.run_migrations()
