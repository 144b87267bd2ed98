"""What versions of torch word otherwise is one error, and what is another stays another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.alike import same_name

SIZES = "The size of tensor a ({}) must match the size of tensor b ({}) at non-singleton dimension <n>"


@pytest.mark.parametrize(
    ("one", "two"),
    [
        # As torch 2.8.0 and 2.9.1, 2.12.1 and 2.15.0, and its tracer and eager calls, word them.
        ("RuntimeError: torch.cat(): expected a non-empty list", "ValueError: torch.cat(): expected a non-empty list"),
        (
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied (<n>x3 and <n>x12) in a.py f",
            "RuntimeError: addmm: mat1 and mat2 shapes cannot be multiplied (<n>x2 and <n>x12) in a.py f",
        ),
        (f"RuntimeError: {SIZES.format('<n>', '<n>')}", f"RuntimeError: {SIZES.format('s27', '(s27//<n>)')})"),
        (
            "RuntimeError: shape '[<n>, …]' is invalid for input of size <n>",
            "TorchRuntimeError: shape '[<n>, (s0//<n>), s1, <n>]' is invalid for input of size <n>*s0*s1",
        ),
        (
            "crash in forward op.preamble.length <= op.nbytes. <n> vs <n>",
            "crash in forward op.preamble.length <= op.nbytes. <n> vs <n>. Received data size doesn't match",
        ),
    ],
)
def test_one_error_in_two_wordings(one: str, two: str) -> None:
    assert same_name(one) == same_name(two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("RuntimeError: torch.cat(): a", "RuntimeError: torch.cat(): b"),
        ("ValueError: f", "RuntimeError: f"),
        ("RuntimeError: f in a.py g", "RuntimeError: f in a.py h"),
        ("ImportError: cannot import name 's1'", "ImportError: cannot import name 's2'"),
        ("KeyError: 'mm: mat'", "KeyError: 'mat'"),
    ],
)
def test_two_errors_stay_two(one: str, two: str) -> None:
    assert same_name(one) != same_name(two)


@given(st.text(max_size=80))
def test_any_name_is_stable(text: str) -> None:
    assert same_name(same_name(text)) == same_name(text)
