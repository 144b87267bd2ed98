"""The script's docstring: what was found, on what, and how to run it in an environment of its own. Pure."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator

from service.repro.given import Given

WIDTH = 116
NAME = "repro.py"
_PATH = re.compile(r"(?<![\w.:/])/(?:[^\s/'\",;:()]+/)+([^\s/'\",;:()]+)")
_LOCAL_BUILD = re.compile(r"\+\w+$")


def heading_lines(given: Given, *, brief: bool = False) -> list[str]:
    """The docstring, in lines; ``brief``: without what the case is about."""
    found = plain(_sentence(given))
    said = [
        *_wrapped(textwrap.shorten(found, 2 * WIDTH, placeholder=" …") if brief else found),
        *([] if brief else [""]),
        *_wrapped(_where(given)),
        *_wrapped(plain(f"{given.case.id}." if brief else _what(given))),
    ]
    said += ["", *_commands(given)]
    said[0] = f'"""{said[0]}'
    return [*said, '"""']


def plain(text: str) -> str:
    """``text`` as it can stand in a docstring: printable, in one line, and without any folder of this machine.

    It may come from a stranger's code, so nothing in it can end the string.
    """
    shown = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(_PATH.sub(r"…/\1", shown).replace("\\", "/").replace('"""', "'''").split())


def _sentence(given: Given) -> str:
    verdict = given.row.verdict or ""
    text = f"{verdict.replace('_', ' ')}: {given.row.detail}".rstrip(": ")
    return text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _where(given: Given) -> str:
    row = given.row
    traced = f'traced by torch.compile(backend="{row.mode}")' if given.traced else "eager"
    own = f"{plain(row.label)}, " if given.own else ""
    over = {"nccl-dispatch": "gloo, with torch's branches for NCCL taken"}.get(row.transport, row.transport)
    return f"{own}torch {torch_version(given)}, {given.world} processes over {over}, {traced}."


def _what(given: Given) -> str:
    return " ".join(part for part in (f"{given.case.id}:", given.case.summary, given.case.api) if part)


def torch_version(given: Given) -> str:
    """The torch that the runtime has, as its requirement names it."""
    return given.needs[0].partition("==")[2].lstrip("=")


def _commands(given: Given) -> Iterator[str]:
    words, note = _installed(given)
    without = " ".join(given.without if given.own else ())
    removed = f"pip uninstall -y {without} && " if without else ""  # it looks for a GPU when it is imported
    installed = f"pip install {' '.join(shlex.quote(word) for word in words)} && {removed}{_variables(given)}"
    yield "    python3.11 -m venv venv && . venv/bin/activate     # in a new environment, or in a container:"
    yield '    docker run --rm -it -v "$PWD:/here" -w /here python:3.11 bash'
    yield f"    {installed}python {NAME}"
    yield from _wrapped(note) if note else ()


FOLDER = "subject"
"""What the folder of a checkout that no index has is called in the commands."""


def _installed(given: Given) -> tuple[list[str], str]:
    """What is installed, and a note on what that does not say."""
    torch = f"torch=={torch_version(given)}"
    words, notes = [torch, *(need for need in given.needs[1:] if given.own or need.startswith("numpy"))], []
    if (build := _LOCAL_BUILD.search(torch)) is not None:
        notes.append(f"{torch} is the build {build[0]}: from an index or a folder that holds it.")
    if given.own and "==" in given.row.label:
        words.insert(1, given.row.label)
    elif given.own and given.origin.kind == "commit" and given.origin.meta.get("repository", "").startswith("http"):
        words.insert(1, f"git+{given.origin.meta['repository']}@{given.origin.ref}")
    elif given.own:
        notes.append(f"{FOLDER} is a folder with the files of {plain(given.row.label)}.")
    return words, " ".join(notes)


def _variables(given: Given) -> str:
    """What stands before the interpreter: where a checkout lies that cannot be installed."""
    words, _ = _installed(given)
    installed = any(word.startswith(("deepspeed==", "git+")) for word in words)
    return "" if installed or not given.own else f"PYTHONPATH={FOLDER} "


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False) or [""]
