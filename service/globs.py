"""Patterns for case ids and other names: ``*`` and ``?`` only, since ids themselves hold brackets. Pure."""

from __future__ import annotations

import re
from functools import lru_cache


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = {"*": ".*", "?": "."}
    return re.compile("".join(parts.get(char, re.escape(char)) for char in pattern), re.DOTALL)


def matches(pattern: str, text: str) -> bool:
    """Whether ``pattern`` covers the whole of ``text``."""
    return _compiled(pattern).fullmatch(text) is not None
