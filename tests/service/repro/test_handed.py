from __future__ import annotations

import pytest

from service.cases import CatalogueError
from service.repro.handed import Handed, handed, input_lines, wrapped


def spec(**changes: object) -> Handed:
    values = {"name": "x", "role": "input", "shape": (2, 3), "drawn": (2, 3), "strides": "contiguous"}
    return Handed(**{**values, "factor": 1.0, "shared": False, "integers": (), **changes})  # type: ignore[arg-type]


def line(*places: Handed) -> str:
    """The one line that makes a tensor, where each of ``places`` is one rank of one group."""
    (found,) = [text.strip() for text in input_lines(tuple((one,) for one in places), len(places)) if '"x": ' in text]
    return found.removeprefix("return {").removesuffix("}").removesuffix(",")


def test_jobs_states_what_every_rank_hands_in() -> None:
    ranks = handed("exchange/dim0[dtype=float32,loss=weighted]", 4)
    assert len(ranks) == 4
    assert [(one.name, one.role, one.shape) for one in ranks[3]] == [
        ("x", "input", (4, 2, 4, 4)),
        ("w", "cotangent", (4, 2, 4, 4)),
    ]


@pytest.mark.parametrize(
    ("case", "world"), [("exchange/none[]", 2), ("exchange/dim0[dtype=float32,loss=square,sp=2]", 2)]
)
def test_a_case_that_is_not_there_is_named(case: str, world: int) -> None:
    with pytest.raises(CatalogueError, match=r"there is no case exchange/"):
        handed(case, world)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, 'draw("x", rank, (2, 3)).requires_grad_()'),
        ({"role": "frozen"}, 'draw("x", rank, (2, 3))'),
        ({"shared": True, "factor": 0.125}, 'draw("x", "every rank", (2, 3), 1 / 8).requires_grad_()'),
        ({"factor": 16.0, "role": "frozen"}, 'draw("x", rank, (2, 3), 16.0)'),
        ({"strides": "expanded", "drawn": (1, 3)}, 'draw("x", rank, (1, 3)).expand((2, 3)).requires_grad_()'),
        ({"role": "frozen", "integers": (5, 1), "shape": (2,), "drawn": (2,)}, "torch.tensor([5, 1])"),
        (
            {"role": "frozen", "integers": (3, 4, 5, 6), "shape": (2, 2), "drawn": (2, 2)},
            "(torch.arange(4) + 3).reshape((2, 2))",
        ),
        (
            {"role": "frozen", "integers": (0, 1, 2, 0, 1, 2), "shape": (2, 3), "drawn": (2, 3)},
            "torch.arange(3).repeat(2).reshape((2, 3))",
        ),
    ],
)
def test_a_tensor_is_drawn_laid_out_and_marked(changes: dict[str, object], text: str) -> None:
    assert line(spec(**changes), spec(**changes)) == f'"x": {text}'


def test_what_differs_between_the_places_of_a_group_is_looked_up() -> None:
    first, second = spec(shape=(2, 3), drawn=(2, 3)), spec(shape=(1, 3), drawn=(1, 3))
    assert line(first, second) == '"x": draw("x", rank, ([2, 1][rank], 3)).requires_grad_()'


def test_long_lines_are_cut_after_commas_and_their_comments_stand_before() -> None:
    lines = wrapped(f"    x = [{', '.join(map(str, range(60)))}]  # numbers, and more of them")
    assert lines[0] == "    # numbers, and more of them"
    assert all(len(text) < 120 for text in lines)
    assert eval("".join(lines[1:]).partition("=")[2]) == list(range(60))  # noqa: S307 - our own text
    assert wrapped("x = 1  # short") == ["x = 1  # short"]
