"""docs/github.md: what it tells people to type is what there is."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml  # type: ignore[import-untyped]

from service.api.forms import SubmissionForm
from service.api.state import State
from service.broker import LocalBroker
from service.config import Settings, Webhook, load_settings
from service.db import Database
from service.main import create_app
from workers.cli import application

PAGE = (Path(__file__).parents[3] / "docs" / "github.md").read_text("utf-8")
BLOCKS = [
    (kind, re.sub(f"^{indent}", "", text, flags=re.MULTILINE))
    for indent, kind, text in re.findall(r"^( *)```(\w+)\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)
]


def blocks(kind: str) -> list[str]:
    found = [text for name, text in BLOCKS if name == kind]
    assert found, kind
    return found


def commands(text: str) -> list[list[str]]:
    return [shlex.split(line) for line in text.splitlines() if line.strip().startswith("gradmatrix ")]


def workflow() -> dict[Any, Any]:
    (text,) = blocks("yaml")
    read: dict[Any, Any] = yaml.safe_load(text)
    return read


def check(words: list[str]) -> None:
    """Raise unless the command line takes ``words``; nothing is run."""
    command: Any = typer.main.get_command(application())
    while hasattr(command, "commands"):
        _, *words = words
        command = command.commands[words[0]]
    command.make_context(words[0], words[1:])


def test_every_command_of_it_is_one() -> None:
    steps = workflow()["jobs"]["gradients"]["steps"]
    written = [words for text in blocks("sh") for words in commands(text)]
    written += [words for step in steps for words in commands(step.get("run", ""))]
    assert {words[1] for words in written} == {"submit", "approve", "token"}
    for words in written:
        check(words)
    for wrong in ("submit x --waits", "submit x --suite", "tokens list", "token create"):
        with pytest.raises(Exception, match=r"--waits|--suite|tokens|[Mm]issing"):
            check(["gradmatrix", *wrong.split()])


def test_the_workflow_is_one_that_fails_with_the_gradients() -> None:
    read = workflow()
    assert set(read[True]) == {"push", "pull_request"}, "YAML reads the key on as a truth"
    job = read["jobs"]["gradients"]
    assert {"GRADMATRIX_SERVER", "GRADMATRIX_TOKEN"} <= set(job["env"])
    assert set(job["env"]) - {"COMMIT"} <= {f"GRADMATRIX_{name.upper()}" for name in Settings.model_fields}
    runs = [step["run"] for step in job["steps"] if "run" in step]
    (asked,) = (words for text in runs for words in commands(text))
    assert {"--wait", "--junit"} <= set(asked)
    written = asked[asked.index("--junit") + 1]
    (kept,) = (step for step in job["steps"] if step.get("uses", "").startswith("actions/upload-artifact@"))
    assert (kept["with"]["path"], kept["if"]) == (written, "always()")
    assert not [step for step in job["steps"] if "continue-on-error" in step]
    assert not [text for text in runs if "${{" in text], "what GitHub fills in is no part of a script"


def test_what_curl_sends_is_what_the_service_takes() -> None:
    (body,) = re.findall(r"^body='(.*)'$", "\n".join(blocks("sh")), re.MULTILINE)
    assert SubmissionForm(**json.loads(body)).torch == ["2.11.0", "latest"]


def test_every_address_of_it_is_one(tmp_path: Path) -> None:
    from service.db import open_database

    database: Database = open_database(Settings(home=tmp_path))
    paths = create_app(State(Settings(home=tmp_path), database, LocalBroker(), False)).openapi()["paths"]
    database.dispose()
    known = [re.compile(re.sub(r"\{\w+\}", "[^/]+", path)) for path in paths]
    written = set(re.findall(r"(?:/api/v1|/webhooks|/badges)/[\w$./]+", PAGE))
    assert len(written) >= 7
    for address in written:
        assert any(path.fullmatch(address) for path in known), address


def test_its_settings_can_be_written_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = blocks("toml")
    (tmp_path / "config.toml").write_text(text)
    monkeypatch.setenv("GRADMATRIX_CONFIG", str(tmp_path / "config.toml"))
    hook = load_settings().webhook
    assert (hook.branches, hook.torch, hook.world_sizes) == (("master",), ("2.11.0", "latest"), (2, 4))


def test_the_table_of_the_webhook_is_the_codes_own() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", PAGE, re.MULTILINE)
    said = dict(re.findall(r"^    (\w+) {2,}(.+)$", str(Webhook.__doc__), re.MULTILINE))
    assert {name: what for name, _, what in rows} == {name: what.replace("``", "`") for name, what in said.items()}
    assert [name for name, _, _ in rows] == list(Webhook.__dataclass_fields__)
    for name, default, _ in rows:
        value = getattr(Webhook(), name)
        assert default.split() == ([] if value is None else list(value)), name
