"""Whether a fleet kept its word, read from the recorded history with plain SQL and none of the store's code.

Triggers write down every change of a job's claim, every result and every lease, in the order in which the database let
them happen: whoever changes a job holds its row until the commit, and so does whoever accepts for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

RECORD = """
CREATE TABLE campaign (
    seq bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(), what text NOT NULL,
    job int, fence int, state text, cell int, result int, host int, device text
);
CREATE FUNCTION campaign_job() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO campaign (what, job, fence, state) VALUES ('job', NEW.id, NEW.fence, NEW.state);
    RETURN NULL;
END $$;
CREATE FUNCTION campaign_result() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO campaign (what, job, fence, cell, result)
        SELECT 'result', job_id, fence, NEW.cell_id, NEW.id FROM attempt WHERE id = NEW.attempt_id;
    RETURN NULL;
END $$;
CREATE FUNCTION campaign_lease() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO campaign (what, host, device) VALUES ('leased', NEW.host_id, NEW.device);
    ELSE
        INSERT INTO campaign (what, host, device) VALUES ('freed', OLD.host_id, OLD.device);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER campaign_job AFTER INSERT OR UPDATE ON job FOR EACH ROW EXECUTE FUNCTION campaign_job();
CREATE TRIGGER campaign_result AFTER INSERT ON result FOR EACH ROW EXECUTE FUNCTION campaign_result();
CREATE TRIGGER campaign_lease AFTER INSERT OR DELETE ON gpu_lease FOR EACH ROW EXECUTE FUNCTION campaign_lease();
"""
RULES = {
    "a cell that was asked for has no answer": """
        SELECT s.submission_id, s.cell_id FROM submission_cell s JOIN cell c ON c.id = s.cell_id
        LEFT JOIN result r ON r.id = c.result_id AND r.cell_id = c.id WHERE r.id IS NULL""",
    "an answer that was accepted is gone": """
        SELECT h.cell, h.result FROM campaign h LEFT JOIN result r ON r.id = h.result AND r.cell_id = h.cell
        WHERE h.what = 'result' AND r.id IS NULL""",
    "a cell was answered more than once, though asked for once": """
        SELECT cell, count(*) FROM campaign WHERE what = 'result' GROUP BY cell HAVING count(*) > 1""",
    "an answer counts that was accepted under no fence that held": """
        SELECT h.seq, h.job, h.fence, held.fence, held.state FROM campaign h LEFT JOIN LATERAL (
            SELECT fence, state FROM campaign j WHERE j.what = 'job' AND j.job = h.job AND j.seq < h.seq
            ORDER BY j.seq DESC LIMIT 1
        ) held ON true
        WHERE h.what = 'result'
        AND (held.fence IS DISTINCT FROM h.fence OR held.state NOT IN ('leased', 'running'))""",
    "the fences of a job's answers go back": """
        SELECT * FROM (
            SELECT job, fence, lag(fence) OVER (PARTITION BY job ORDER BY seq) before FROM campaign
            WHERE what = 'result'
        ) f WHERE fence < before""",
    "a job's fence does not count its claims": """
        SELECT * FROM (
            SELECT job, fence, state, lag(fence) OVER w fence_before, lag(state) OVER w state_before FROM campaign
            WHERE what = 'job' WINDOW w AS (PARTITION BY job ORDER BY seq)
        ) f WHERE fence <> fence_before + (state = 'leased' AND state_before = 'queued')::int""",
    "a job is not over": "SELECT id, state FROM job WHERE state <> 'done'",
    "a job was given up": "SELECT id, note FROM job WHERE note <> ''",
    "a job was over too late": """
        SELECT job, min(at) FROM campaign WHERE what = 'job' AND state = 'done' GROUP BY job
        HAVING min(at) > to_timestamp(%(latest)s)""",
    "a job's count is not that of its answers": """
        SELECT j.id, j.cells_done, j.counts::text FROM job j WHERE (
            SELECT count(*) FROM result r JOIN attempt a ON a.id = r.attempt_id WHERE a.job_id = j.id
        ) <> ANY (ARRAY[j.cells_done, (SELECT coalesce(sum(v::int), 0) FROM json_each_text(j.counts) e(k, v))])""",
    "a device was given out while it was in use": """
        SELECT * FROM (
            SELECT host, device, what, lag(what) OVER (PARTITION BY host, device ORDER BY seq) before FROM campaign
            WHERE what IN ('leased', 'freed')
        ) f WHERE what = before""",
    "a device is still leased": "SELECT host_id, device FROM gpu_lease",
    "an attempt is still open": "SELECT id, job_id, fence FROM attempt WHERE state = 'running'",
    "a submission is not done": "SELECT id, state, note FROM submission WHERE state <> 'done'",
    "a hint was never sent": "SELECT id, kind FROM hint",
}
"""What must never be, and the rows that show that it is."""


@dataclass(frozen=True)
class Broken:
    """A rule that does not hold, and the first rows that show it."""

    rule: str
    rows: tuple[Any, ...]


def record(conninfo: str) -> None:
    """Begin to record, in a migrated database in which nothing has happened yet."""
    with psycopg.connect(conninfo) as connection:
        connection.execute(RECORD)


def read(conninfo: str, *, latest: float) -> list[Broken]:
    """What is broken, by rule. ``latest``: when every job had to be over, in seconds since 1970."""
    found = []
    with psycopg.connect(conninfo) as connection:
        for rule, query in RULES.items():
            if rows := connection.execute(query, {"latest": latest}).fetchmany(5):
                found.append(Broken(rule, tuple(rows)))
    return found


def count(conninfo: str) -> dict[str, int]:
    """How much there was: submissions, cells that were asked for, jobs, claims, and answers."""
    counted = {
        "submissions": "SELECT count(*) FROM submission",
        "cells": "SELECT count(DISTINCT cell_id) FROM submission_cell",
        "jobs": "SELECT count(*) FROM job",
        "claims": "SELECT count(*) FROM attempt",
        "lost": "SELECT count(*) FROM attempt WHERE state = 'lost'",
        "answers": "SELECT count(*) FROM campaign WHERE what = 'result'",
    }
    with psycopg.connect(conninfo) as connection:
        return {name: connection.execute(query).fetchall()[0][0] for name, query in counted.items()}
