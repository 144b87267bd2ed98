"""Numbers from raw tensors, against arithmetic done another way."""

from __future__ import annotations

import dataclasses
import math
import struct
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from service.evidence import BlockMap, Difference, TensorEvidence
from tests.workers.matter import a_case, raw
from workers.collect.measure import Raw, cuts, difference_of, measure, noise_of, number, sorted_over_ranks

INEXACT = a_case(exact=False)
FEW = settings(max_examples=60, deadline=None)
SHAPES = hnp.array_shapes(max_dims=3, max_side=5)
DYADIC = st.integers(-127, 127).map(lambda k: k / 16)


def take(got: Any, expected: Any, dtype: str = "float32", **case: Any) -> TensorEvidence:
    return measure(raw(got, dtype), raw(expected, dtype), a_case(dtype=dtype, **case), "grad", "x", 0)


@FEW
@given(st.data())
def test_numbers_equal_a_naive_loop_in_exact_fractions(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    got, expected = (data.draw(hnp.arrays(np.float64, shape, elements=DYADIC)) for _ in range(2))
    seen = take(got, expected, "float64")
    pairs = [(Fraction(float(g)), Fraction(float(e))) for g, e in zip(got.flat, expected.flat, strict=True)]
    gg, ee = sum((g * g for g, _ in pairs), Fraction()), sum((e * e for _, e in pairs), Fraction())
    ge, dd = sum((g * e for g, e in pairs), Fraction()), sum(((g - e) * (g - e) for g, e in pairs), Fraction())
    assert seen.max_abs == max(abs(g - e) for g, e in pairs)
    assert seen.nonzero_got == sum(g != 0 for g, _ in pairs)
    assert seen.nonzero_expected == sum(e != 0 for _, e in pairs)
    assert seen.zeroed == sum(g == 0 and e != 0 for g, e in pairs)
    assert seen.equal == (dd == 0)
    first = next((np.unravel_index(i, shape) for i, (g, e) in enumerate(pairs) if g != e), None)
    assert seen.first_diff == (None if first is None else tuple(map(int, first)))
    if ee == 0:
        assert seen.rel_l2 is seen.alpha is seen.cosine is None
        return
    assert seen.rel_l2 == pytest.approx(math.sqrt(dd / ee), rel=1e-12)
    assert seen.alpha == pytest.approx(float(ge / ee), rel=1e-12, abs=1e-15)
    if gg != 0:
        assert seen.cosine == pytest.approx(float(ge) / math.sqrt(gg * ee), rel=1e-12, abs=1e-15)
        assert seen.residual == pytest.approx(math.sqrt(max(Fraction(), gg - ge * ge / ee) / gg), rel=1e-9, abs=1e-12)


def test_what_is_left_beside_the_elements_that_are_zero_and_should_not_be() -> None:
    seen = take([0.0, 2.0, 3.5], [1.0, 2.0, 3.0], exact=False)
    assert seen.rel_l2 == pytest.approx(math.sqrt(1.25 / 14), rel=1e-12)
    assert seen.rest_rel == pytest.approx(0.5 / math.sqrt(13), rel=1e-12)
    fine = take([1.5, 2.0], [1.0, 2.0], exact=False)
    assert fine.rest_rel == fine.rel_l2 == pytest.approx(0.5 / math.sqrt(5), rel=1e-12)


def test_what_is_remembered_is_of_the_same_bytes_under_the_same_case_and_says_which_rank_and_tensor_it_is() -> None:
    got, expected = raw([1.0, 2.0, 0.0, 4.0]), raw([1.0, 2.5, 3.0, 4.0])
    first = measure(got, expected, INEXACT, "grad", "x", 0)
    assert measure(raw([1.0, 2.0, 0.0, 4.0]), expected, INEXACT, "grad", "w", 1) == dataclasses.replace(
        first, name="w", rank=1
    )
    named = measure(got, expected, a_case(exact=False, dims={"x": ("row",)}), "grad", "x", 0)
    assert named.blocks is not None
    assert dataclasses.replace(named, blocks=dataclasses.replace(named.blocks, names=())) == first != named
    assert first.rel_l2 == pytest.approx(math.sqrt(9.25 / 32.25), rel=1e-12)
    scaled = measure(got, expected, a_case(exact=False, scale=2.0), "grad", "x", 0)
    assert scaled.rel_l2 == pytest.approx(math.sqrt(62 / 129), rel=1e-12)
    assert measure(got, expected, a_case(exact=False, scale=2.0), "output", "x", 0).rel_l2 == first.rel_l2
    assert measure(expected, expected, INEXACT, "grad", "x", 0).equal


@FEW
@given(hnp.arrays(np.float64, SHAPES, elements=DYADIC), st.integers(-64, 64).filter(bool))
def test_a_known_scale_is_recovered_exactly(expected: Any, quarter: int) -> None:
    alpha = quarter / 4
    seen = take(alpha * expected, expected, "float64")
    if expected.any():
        assert (seen.alpha, seen.residual) == (alpha, 0.0)
        assert seen.rel_l2 == pytest.approx(abs(alpha - 1), rel=1e-12)
    else:
        assert seen.equal
        assert seen.alpha is None


@FEW
@given(st.data())
def test_a_permutation_is_seen_in_any_order_and_shape_and_nothing_else_is(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 24))
    expected = np.array(data.draw(st.lists(DYADIC.filter(bool), min_size=size, max_size=size)))
    order = data.draw(st.permutations(range(size)))
    assert take(expected[list(order)], expected).sorted_rel == 0.0
    changed = expected[list(order)]
    changed[0] += 1 / 16
    seen = take(changed, expected)
    assert seen.sorted_rel is not None
    # Sorting pairs the values best, and no pairing can hide that their sums differ.
    assert seen.sorted_rel >= (1 / 16) / math.sqrt(size) / np.linalg.norm(expected) * 0.999


def test_values_on_another_rank_are_a_permutation_of_all_ranks_only() -> None:
    a, b = raw([1.0, 2.0]), raw([3.0, 4.0])
    assert sorted_over_ranks([(b, a), (a, b)], 1.0) == 0.0
    assert sorted_over_ranks([(raw([2.0, 4.0]), a), (raw([6.0, 8.0]), b)], 2.0) == 0.0
    # Sorted, (3, 3, 4, 4) stands beside (1, 2, 3, 4).
    assert sorted_over_ranks([(b, a), (b, b)], 1.0) == pytest.approx(math.sqrt(6 / 30))
    lonely = take([3.0, 4.0], [1.0, 2.0]).sorted_rel
    assert lonely == pytest.approx(math.sqrt(8 / 5))


@pytest.mark.parametrize(
    ("dtype", "bits", "value"),
    [
        ("bfloat16", b"\x80\x3f", 1.0),
        ("bfloat16", b"\xc0\xc0", -6.0),
        ("bfloat16", b"\x01\x00", 2.0**-133),
        ("float16", struct.pack("<e", 0.333251953125), 0.333251953125),
        ("float32", struct.pack("<f", 1 + 2**-23), 1 + 2**-23),
        ("float64", struct.pack("<d", 1 + 2**-52), 1 + 2**-52),
        ("int64", struct.pack("<q", 2**62 + 1), 2**62 + 1),
        ("int32", struct.pack("<i", -7), -7),
        ("uint8", b"\xff", 255),
        ("bool", b"\x01", 1),
    ],
)
def test_every_type_is_read_exactly(dtype: str, bits: bytes, value: float) -> None:
    values = Raw(dtype, (1,), bits).values
    assert int(values[0]) == value if isinstance(value, int) else values[0] == value


def test_the_last_bit_of_float64_is_a_difference_with_the_right_size() -> None:
    seen = take([1 + 2.0**-52, 1.0], [1.0, 1.0], "float64")
    assert not seen.equal
    assert seen.max_abs == 2.0**-52
    assert seen.rel_l2 == pytest.approx(2.0**-52 / math.sqrt(2), rel=1e-9)


def test_minus_zero_is_zero_and_other_bytes() -> None:
    seen = take([-0.0, 1.0], [0.0, 1.0])
    assert seen.equal
    assert not seen.identical
    assert seen.digest != seen.expected_digest


def test_nan_equals_nothing_but_stands_where_it_should() -> None:
    nan, inf = math.nan, math.inf
    same = take([nan, inf, 1.0], [nan, inf, 1.0])
    assert same.identical
    assert not same.equal
    assert same.nonfinite_same
    assert (same.nonfinite_got, same.nonfinite_expected, same.max_abs) == (2, 2, 0.0)
    for got in ([1.0, nan, inf], [nan, -inf, 1.0], [inf, nan, 1.0], [nan, 1.0, 1.0]):
        assert not take(got, [nan, inf, 1.0]).nonfinite_same
    assert take([nan, 2.0], [1.0, 2.0]).sorted_rel is None


def test_huge_and_tiny_numbers_stay_finite_and_quiet() -> None:
    big, small = 1.7e308, 5e-324
    for got, expected in (([big, -big], [-big, big]), ([big, big], [small, small]), ([small, 0.0], [big, big])):
        seen = take(got, expected, "float64")
        told = [seen.max_abs, seen.rel_l2, seen.cosine, seen.alpha, seen.residual, seen.got_norm, seen.worst_block]
        assert all(value is None or math.isfinite(value) for value in told)
        assert seen.rel_l2
    assert take([big, -big], [-big, big], "float64").alpha == pytest.approx(-1.0)
    assert take([2e19, 2e19], [1e19, 1e19]).alpha == pytest.approx(2.0)


def test_a_number_is_always_one_that_json_can_hold() -> None:
    top = sys.float_info.max
    assert [number(value) for value in (math.inf, -math.inf, math.nan, np.longdouble(2) ** 2000, 1.5)] == [
        top, -top, top, top, 1.5,
    ]  # fmt: skip


def test_empty_and_scalar_tensors() -> None:
    assert take(np.zeros((0, 3)), np.zeros((0, 3))).equal
    seen = take(np.float32(3), np.float32(2))
    assert (seen.shape, seen.alpha, seen.first_diff) == ((), 1.5, ())
    assert seen.blocks == BlockMap((), (), "x")


def test_another_shape_has_no_errors_but_counts_and_an_order() -> None:
    seen = take(np.arange(1.0, 7.0).reshape(2, 3), np.arange(1.0, 7.0).reshape(3, 2))
    assert not seen.same_shape
    assert (seen.max_abs, seen.rel_l2, seen.alpha, seen.blocks) == (None, None, None, None)
    assert (seen.nonzero_got, seen.sorted_rel) == (6, 0.0)


def test_the_cases_scale_is_in_the_error_and_not_in_alpha() -> None:
    expected = np.array([1.0, -2.0, 3.0])
    stated = take(4 * expected, expected, scale=4.0)
    assert stated.equal
    assert (stated.alpha, stated.max_abs) == (4.0, 0.0)
    other = take(2 * expected, expected, scale=4.0)
    assert (other.alpha, other.residual) == (2.0, 0.0)
    assert other.max_abs == 6.0
    # The scale is a gradient's: an output is what it is.
    output = measure(raw(expected), raw(expected), a_case(scale=4.0), "output", "y", 0)
    assert output.equal


def test_blocks_say_where_along_which_dimension() -> None:
    expected = np.ones((8, 4))
    dead = expected.copy()
    dead[4:, :] = 0
    dead[0, 0] = 2
    dead[3, 3] = math.nan
    seen = take(dead, expected, dims={"x": ("heads", "features")})
    assert seen.blocks == BlockMap(("heads", "features"), (4, 4), "x......!00000000")
    assert seen.zeroed == 16


def test_a_zero_block_that_is_only_rounding_is_not_called_zero() -> None:
    expected = np.ones((4, 4))
    expected[3] = 1e-9
    got = expected.copy()
    got[3] = 0
    seen = measure(raw(got), raw(expected), INEXACT, "grad", "x", 0)
    assert seen.blocks is not None
    assert "0" not in seen.blocks.cells
    exact = take(got, expected)
    assert exact.blocks is not None
    assert exact.blocks.cells == "............0000"


def test_the_worst_block_shows_what_the_whole_norm_hides() -> None:
    expected = np.concatenate([np.full(96, 100.0), np.full(32, 0.01)])
    got = expected.copy()
    got[96:] = 0
    seen = measure(raw(got), raw(expected), INEXACT, "grad", "x", 0)
    assert seen.rel_l2 == pytest.approx(0.01 * math.sqrt(32) / math.sqrt(96e4 + 32e-4), rel=1e-6)
    assert seen.worst_block == pytest.approx(1.0)
    assert seen.blocks is not None
    assert seen.blocks.cells == "...0"


@pytest.mark.parametrize(
    ("shape", "counts"), [((), ()), ((3,), (3,)), ((5, 9, 2), (4, 4, 2)), ((9,) * 5, (4, 4, 4, 2, 2)), ((0, 4), (0, 4))]
)
def test_cuts(shape: tuple[int, ...], counts: tuple[int, ...]) -> None:
    assert cuts(shape) == counts
    assert math.prod(cuts((9,) * 16)) <= 256


def test_first_difference_in_rounding_is_no_difference() -> None:
    expected = np.array([1.0, 1.0, 1.0])
    got = expected + np.array([1e-7, 0, 0.5])
    assert measure(raw(got), raw(expected), INEXACT, "grad", "x", 0).first_diff == (2,)
    assert take(got, expected).first_diff == (0,)


def test_noise_is_the_worst_rank_of_each_tensor() -> None:
    dense = [
        measure(raw([1.0, 1.0 + error]), raw([1.0, 1.0]), INEXACT, "grad", "x", rank)
        for rank, error in enumerate((2.0**-10, 2.0**-20))
    ]
    noise = noise_of(dense)["grad/x"]
    assert noise.max_abs == 2.0**-10
    assert noise.rel_l2 == pytest.approx(2.0**-10 / math.sqrt(2))


def test_the_central_difference_is_summed_over_ranks_and_inputs() -> None:
    one = np.array([1.0, 2.0])
    v = raw(one, "float64")
    # L = Σ x² at x = (1, 2): the gradient is (2, 4) and ⟨gradient, (1, 2)⟩ = 10, on each of two ranks.
    triples = [(raw(2 * one), raw(2 * one), v), (raw(-2 * one), raw(2 * one), v)]
    told = difference_of([raw(10.0, "float64"), raw(10.0, "float64")], triples)
    assert told == Difference(difference=20.0, got=0.0, expected=20.0, size=20.0)
    assert told.agrees_with(1e-6) == "oracle"
    assert Difference(20.0, 20.0, 10.0, 10.0).agrees_with(1e-6) == "subject"
    assert Difference(20.0, 20.0, 20.0, 20.0).agrees_with(1e-6) == "both"
    assert Difference(15.0, 20.0, 10.0, 10.0).agrees_with(1e-6) == "neither"
    absent = difference_of([raw(20.0, "float64")], [(None, raw(2 * one), v)])
    assert absent is not None
    assert (absent.got, absent.expected) == (0.0, 10.0)
    assert difference_of([raw(math.nan, "float64")], triples) is None
    assert difference_of([raw(1.0, "float64")], [(raw([1.0]), None, v)]) is None
