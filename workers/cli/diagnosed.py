"""How the diagnosis of a failing cell is shown."""

from __future__ import annotations

from rich.text import Text

from service.diagnosis import Diagnosis
from service.extents import extent_text
from service.words import inert
from workers.cli.layout import sentence


def diagnosis_lines(diagnosis: Diagnosis | None, width: int) -> list[Text]:
    """A diagnosis as a list of what there is to say."""
    if diagnosis is None:
        return []
    said = {
        "what": diagnosis.what,
        "training": diagnosis.training,
        "eager": diagnosis.eager,
        "torch": extent_text(diagnosis.torch),
        "release": extent_text(diagnosis.release),
        "called": diagnosis.api,
    }
    lines = [Text("diagnosis", style="bold")]
    for title, text in said.items():
        if text:
            lines += map(Text, sentence(inert(f"{title}: {text}"), width, "  ", "    "))
    return lines
