"""The migrated schema is what the tables state, on both databases, and a step back and forth keeps what it can."""

from __future__ import annotations

from typing import Any

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from service import store
from service.schema import Base
from tests.support.stored import World, at, migrate


def test_the_migrated_schema_is_the_tables_own(world: World) -> None:
    with world.db.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []


def test_a_service_that_goes_back_and_forth_keeps_its_submissions(world: World) -> None:
    """What only the service knows is lost on the way back: a failed submission is a cancelled one there."""
    done = world.submit(["a"]).id
    world.run()
    with world.db.session() as session:
        asked: dict[str, Any] = {"requester": "x", "reason": "manual", "priority": 0, "request": {}, "now": at(0)}
        failed = store.open_submission(session, **asked).id
        task = store.claim_resolution(session, at(0))
        assert task is not None
        store.fail_resolution(session, task, "no such branch", at(1))
        store.create_token(session, "x", "read")
    url = world.db.engine.url
    world.db.dispose()
    for to in ("0002", "head"):
        migrate(url, to)
    assert (world.view(done).state, world.view(done).done) == ("done", 1)
    assert (world.view(failed).state, world.view(failed).note) == ("cancelled", "")
