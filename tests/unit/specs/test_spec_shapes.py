"""The shape language: what it accepts, where errors point, what shapes resolve to and match."""

from __future__ import annotations

import pytest

from pytest_torchcheck.specs.shape_parsing import parse_relation, parse_shape
from pytest_torchcheck.specs.shapes import ShapeMismatch, SpecError


@pytest.mark.parametrize(
    ("text", "sizes", "expected"),
    [
        ("", {}, ()),
        ("B 3 H W", {"B": 2, "H": 5, "W": 7}, (2, 3, 5, 7)),
        ("  B   T ", {"B": 2, "T": 5}, (2, 5)),
        ("B (H*W) D", {"B": 2, "H": 3, "W": 4, "D": 5}, (2, 12, 5)),
        ("B H*W D", {"B": 2, "H": 3, "W": 4, "D": 5}, (2, 12, 5)),
        ("B (H * W)", {"B": 2, "H": 3, "W": 4}, (2, 12)),
        ("T+1", {"T": 4}, (5,)),
        ("T-1 2*D", {"T": 4, "D": 3}, (3, 6)),
        ("(H//2)*(W//2)", {"H": 5, "W": 6}, (6,)),
        ("2*(H+W)-1", {"H": 1, "W": 2}, (5,)),
        ("heads=4 D", {"D": 2}, (4, 2)),
        ("*batch D", {"*batch": 2, "batch[0]": 3, "batch[1]": 4, "D": 5}, (3, 4, 5)),
        ("*batch D", {"*batch": 0, "D": 5}, (5,)),
        ("... 10", {"...": 1, "...[0]": 6}, (6, 10)),
        ("B T? D", {"B": 2, "T": 3, "D": 4, "T?": 1}, (2, 3, 4)),
        ("B T? D", {"B": 2, "T": 3, "D": 4, "T?": 0}, (2, 4)),
        ("#B T", {"B": 2, "T": 3, "#B": 1}, (1, 3)),
        ("#B T", {"B": 2, "T": 3, "#B": 0}, (2, 3)),
        ("B _ D", {"B": 2, "_1": 9, "D": 3}, (2, 9, 3)),
    ],
)
def test_shapes_resolve(text: str, sizes: dict[str, int], expected: tuple[int, ...]) -> None:
    assert parse_shape(text).resolve(sizes) == expected


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("B 3 H!W", 5, "unexpected '!'"),
        ("B,3", 1, "separate axes with spaces"),
        ("2D", 1, "write 2*D"),
        ("B (H*W", 6, "expected ')'"),
        ("B H* W", 4, "unexpected ' '"),
        ("*", 1, "missing"),
        ("B 3?", 3, "optional"),
        ("H **", 3, "a name must follow"),
        ("a=", 2, "missing"),
        ("B )", 2, "unexpected ')'"),
        ("*a D *a", 5, "twice"),
        ("B # T", 3, "unexpected ' '"),
    ],
)
def test_errors_point_to_the_character(text: str, column: int, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_shape(text, "inputs")
    lines = str(caught.value).splitlines()
    assert problem in lines[0]
    assert lines[0].startswith("inputs: ")
    assert lines[1] == f"    {text}"
    assert lines[2].index("^") == 4 + column
    assert lines[3].startswith("allowed: ")


def test_a_missing_size_is_named() -> None:
    with pytest.raises(SpecError, match="no size for W"):
        parse_shape("B W").resolve({"B": 1})


def test_a_negative_size_is_an_error() -> None:
    with pytest.raises(SpecError, match="negative"):
        parse_shape("T-3").resolve({"T": 1})


@pytest.mark.parametrize(
    ("text", "shape", "known", "expected"),
    [
        ("B 3 H W", (2, 3, 5, 7), {}, {"B": 2, "H": 5, "W": 7}),
        ("B (H*W)", (2, 12), {"H": 3}, {"H": 3, "B": 2, "W": 4}),
        ("T+1", (5,), {}, {"T": 4}),
        ("T-1", (5,), {}, {"T": 6}),
        ("9-T", (5,), {}, {"T": 4}),
        ("2*D+1", (9,), {}, {"D": 4}),
        ("H*H", (16,), {}, {"H": 4}),
        ("... D", (1, 2, 3), {}, {"...": 2, "...[0]": 1, "...[1]": 2, "D": 3}),
        ("B T? D", (4, 2), {}, {"B": 4, "T?": 0, "D": 2}),
        ("B T? D", (4, 9, 2), {}, {"B": 4, "T?": 1, "T": 9, "D": 2}),
        ("#B T", (1, 3), {"B": 4}, {"B": 4, "#B": 1, "T": 3}),
        ("#B T", (4, 3), {"B": 4}, {"B": 4, "#B": 0, "T": 3}),
        ("H W (H*W)", (3, 4, 12), {}, {"H": 3, "W": 4}),
    ],
)
def test_sizes_are_read_off_a_shape(
    text: str, shape: tuple[int, ...], known: dict[str, int], expected: dict[str, int]
) -> None:
    assert parse_shape(text).match(shape, known) == expected


@pytest.mark.parametrize(
    ("text", "shape", "known", "message"),
    [
        ("B 3 H W", (2, 4, 5, 7), {}, "axis 1 is 4, where 'B 3 H W' says 3"),
        ("B 3", (2,), {}, "1 axes, where 'B 3' asks for 2"),
        ("B T", (2, 5), {"B": 3}, r"axis 0 is 2, where 'B T' says B = 3 \(B=3\)"),
        ("B B", (2, 3), {}, "axis 1 is 3"),
        ("2*D", (5,), {}, r"axis 0 is 5, which 2\*D of '2\*D' cannot be"),
        ("T+3", (2,), {}, "cannot be"),
        ("*b D", (2, 3, 4), {"*b": 1}, r"2 axes for \*b"),
    ],
)
def test_mismatches_say_which_axis(
    text: str, shape: tuple[int, ...], known: dict[str, int], message: str
) -> None:
    with pytest.raises(ShapeMismatch, match=message):
        parse_shape(text).match(shape, known, name="x")


def test_a_product_of_two_unknowns_is_solved_within_their_ranges() -> None:
    shape = parse_shape("B (H*W)")
    unique = {"H": range(3, 5), "W": range(4, 6)}
    assert shape.match((1, 20), choices=unique) == {"B": 1, "H": 4, "W": 5}
    ambiguous = {"H": range(4, 6), "W": range(4, 6)}
    assert shape.match((1, 20), choices=ambiguous) == {"B": 1}


@pytest.mark.parametrize("text", ["H", "2*H", "H//2+1", "(H+W)*2"])
def test_relations_read_as_they_are_written(text: str) -> None:
    assert str(parse_relation(text)) == text


def test_an_error_in_a_relation_points_to_the_character() -> None:
    with pytest.raises(SpecError) as caught:
        parse_relation("2*H W", "sizes['W']")
    assert str(caught.value).splitlines()[2].index("^") == 4 + 4
