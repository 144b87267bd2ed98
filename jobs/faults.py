"""An exception as evidence: type, message and frames, with paths that mean the same on every machine."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

MESSAGE_LIMIT = 2000
FRAME_LIMIT = 40


def describe(error: BaseException, checkout: str) -> dict[str, Any]:
    """``error`` as an event carries it: the innermost frame is last, and each names whose code it is.

    A SyntaxError happened in the file that it names, which has no frame of its own: one is added.
    """
    frames = [_frame(f.filename, f.lineno or 0, f.name, checkout) for f in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append(_frame(error.filename, error.lineno or 0, "<syntax>", checkout))
    return {
        "type": type(error).__name__,
        "message": str(error).replace(checkout + os.sep, "")[:MESSAGE_LIMIT],
        "frames": frames[-FRAME_LIMIT:],
    }


def _frame(path: str, line: int, function: str, checkout: str) -> dict[str, Any]:
    owner, short = owner_of(path, checkout)
    return {"file": short, "line": line, "function": function, "owner": owner}


def owner_of(path: str, checkout: str) -> tuple[str, str]:
    """Whose code ``path`` is, and the path without the part that differs between machines."""
    real = Path(path).resolve()
    roots = {
        "subject": Path(checkout).resolve(),
        "jobs": Path(__file__).resolve().parent,
        "packages": Path(sysconfig.get_paths()["purelib"]).resolve(),
        "python": Path(sysconfig.get_paths()["stdlib"]).resolve(),
    }
    for owner, root in roots.items():
        if real.is_relative_to(root):
            short = real.relative_to(root)
            if owner == "packages":
                owner = "torch" if short.parts[0] in ("torch", "functorch") else "other"
            return owner, str(short)
    return ("python", path) if path.startswith("<frozen") else ("other", Path(path).name)


def forget_frames() -> None:
    """Drop what the interpreter keeps of the last exception, so that its tensors are freed before the next case."""
    for name in ("last_type", "last_value", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)
