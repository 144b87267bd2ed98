"""What a process said last before it died: the one line of its log that says why.

On the straight line this serves ``workers.collect``, which keeps it with the rank's outcome, and ``service.diagnosis``
for what was stored before it did. Pure: text in, a short and harmless line out.
"""

from __future__ import annotations

import re

from service.signature import without_addresses
from service.words import inert

LENGTH = 240
LABEL = "last words: "
"""What stands before them in a reason and in a sentence."""

_NOTHING = re.compile(
    r"^\W*$"
    r"|Warning\b"
    r"|^\s*(?:frame #\d+|File \"|#\d+ |Traceback |Thread 0x|Current thread|Extension modules)"
    r"|^terminate called"
    r"|^\[Gloo\] Rank \d+ is connected"
    r"|^(?:Aborted|Killed|Segmentation fault)(?: \(core dumped\))?$"
)
"""Lines that do not say why: decoration, warnings, frames, and what the signal says already."""
_WHY = re.compile(
    r"\bwhat\(\):|\b(?:error|fail(?:ed|ure)?|fatal|abort(?:ed)?|assert\w*|check)\b|\w(?:Error|Exception)\b",
    re.IGNORECASE,
)
"""How a line that says why sounds."""
_BEFORE = re.compile(r"^\s*(?:what\(\):\s*)?")
_FOLDERS = re.compile(r"(?:\.\.?)?(?:/[\w.+@~-]+)+/(?=[\w.+@~-]+)")


def last_words(text: str) -> str:
    """The last line that sounds like a reason, else the last that is none of a warning or a stack; may be empty.

    Without folders, addresses and characters that a terminal could obey, and at most LENGTH characters long.
    """
    said = [line for line in text.splitlines() if not _NOTHING.search(line)]
    # What stands under a warning is the line of code that it is about.
    reasons = [line for line in said if _WHY.search(line)] or [line for line in said if not line.startswith(" ")]
    if not reasons:
        return ""
    line = _FOLDERS.sub("", _BEFORE.sub("", reasons[-1]).strip())
    return inert(without_addresses(line), limit=LENGTH)
