"""The line of a dead process's log that says why, harmless and short."""

from __future__ import annotations

import pytest

from service.lastwords import LENGTH, last_words

WARNED = """\
/home/me/work/jobs/housekeeping.py:134: FutureWarning: `reduce_op` is deprecated
  if callable(value) or isinstance(value, staticmethod)
"""
GLOO = f"""{WARNED}terminate called after throwing an instance of 'gloo::EnforceNotMet'
  what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] length <= nbytes. 128 vs 64
"""


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (GLOO, "[enforce fail at pair.cc:456] length <= nbytes. 128 vs 64"),
        (f"{GLOO}frame #0: c10::Error at 0x7f00ab\n\nAborted (core dumped)\n", last_words(GLOO)),
        (WARNED, ""),
        ("", ""),
        ("step 1\nstep 2\n----\n", "step 2"),
        ("RuntimeError: no such group\nstep 2", "RuntimeError: no such group"),
        ("fatal: at 0x7f00abcd", "fatal: at <address>"),
        ("error \x1b[31mred\x07", "error \\x1b[31mred\\x07"),
    ],
)
def test_last_words(log: str, said: str) -> None:
    assert last_words(log) == said


def test_they_are_short() -> None:
    assert len(last_words("error " * 200)) == LENGTH
