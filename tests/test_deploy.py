"""docker-compose.yml and the page about it say the same."""

from __future__ import annotations

import re
from pathlib import Path

from service.config import Settings

ROOT = Path(__file__).parents[1]
COMPOSE = (ROOT / "docker-compose.yml").read_text("utf-8")


def test_the_table_of_variables_is_the_files_own() -> None:
    text = (ROOT / "docs" / "deploy.md").read_text("utf-8")
    table = dict(re.findall(r"^\| `(GRADMATRIX_\w+)` \| ([^|]*?) ?\|", text, re.MULTILINE))
    assert table == dict(re.findall(r"\$\{(GRADMATRIX_\w+):-([^}]*)\}", COMPOSE))


def test_what_a_file_of_settings_cannot_change_is_named() -> None:
    """Compose puts what stands under ``environment`` before what a file has."""
    text = (ROOT / "docs" / "deploy.md").read_text("utf-8")
    table = set(re.findall(r"^\| `(GRADMATRIX_\w+)` \|", text, re.MULTILINE))
    (said,) = re.findall(r"A variable of this table goes before the file: .*?\n\n", text, re.DOTALL)
    fixed = set(re.findall(r"^ +(GRADMATRIX_\w+):", COMPOSE, re.MULTILINE)) - table
    assert fixed == set(re.findall(r"GRADMATRIX_\w+", said))


def test_every_variable_that_a_container_is_given_is_a_setting() -> None:
    given = re.findall(r"^ +GRADMATRIX_(\w+):", COMPOSE, re.MULTILINE)
    assert given
    assert [name for name in given if name.lower() not in Settings.model_fields] == []
