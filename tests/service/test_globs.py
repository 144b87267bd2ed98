from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.globs import matches

LETTERS = st.text("ab[*?", max_size=8)


@given(pattern=LETTERS, text=st.text("ab[", max_size=10))
def test_a_pattern_means_what_the_regular_expression_of_it_means(pattern: str, text: str) -> None:
    expression = "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern)
    assert matches(pattern, text) == (re.fullmatch(expression, text, re.DOTALL) is not None)


@pytest.mark.parametrize("pattern", ["*" * 200 + "@", "*a" * 100 + "@", "?*" * 100 + "@"])
def test_no_pattern_takes_for_ever(pattern: str) -> None:
    """Tried one after the other, the ways to share out a text among many stars would outlive us."""
    assert not matches(pattern, "a" * 300)
