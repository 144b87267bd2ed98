"""The root of every error that gradmatrix raises for people; each module derives its own from it.

::

    GradmatrixError
    ├── UsageError            what was asked for does not exist or does not fit; exit status 2
    └── (one branch per module, beside the code that raises it)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GradmatrixError(Exception):
    """Something went wrong that a person can act on; the message says what and what would be right."""


class UsageError(GradmatrixError):
    """The request itself is wrong."""


def nearest(wrong: str, known: Iterable[str], count: int = 3) -> str:
    """A clause that names the known words nearest to ``wrong``, for the end of an error message."""
    words = sorted(set(known))
    close = difflib.get_close_matches(wrong, words, n=count, cutoff=0.4)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "known: " + (", ".join(words[:12]) + (", …" if len(words) > 12 else "") if words else "none")
