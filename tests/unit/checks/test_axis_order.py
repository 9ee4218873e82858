"""Views in place of a transpose are found at their line; views that divide, merge, halve or shift are sound."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Finding
from pytest_torchcheck.probes.numbers.views import moved, order


def judged(module: nn.Module, *shape: int, **declared: Any) -> Finding:
    """Hold a module whose output has one number for each sample to the check."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    if not declared:
        declared = {"batch": ((x,), x.flatten(1).mean(1))}
    contract = Contract(model=Head(module), loss=F.mse_loss, **declared)
    (found,) = contract.check(["axis-order"]).findings
    return found


class Head(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.scale = body, nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.scale * x).flatten(1).mean(1)


class Does(nn.Module):
    """What a function of the input gives."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def channels_first(x: Tensor) -> Tensor:
    return torch.tanh(x.reshape(x.shape[0], x.shape[2], x.shape[1]))


def split_heads(x: Tensor) -> Tensor:
    return torch.tanh(x.view(x.shape[0], 3, x.shape[1], x.shape[2] // 3))


def pixels_as_tokens(x: Tensor) -> Tensor:
    return torch.tanh(x.reshape(len(x), -1, x.shape[1]))


@pytest.mark.parametrize(
    ("function", "shape", "edit"),
    [
        (channels_first, (4, 7, 5), "write .transpose(1, 2) before the reshape"),
        (split_heads, (4, 7, 6), "write .transpose(1, 2) after it"),
        (pixels_as_tokens, (4, 6, 5, 5), "write .permute(0, 2, 3, 1) before the reshape"),
    ],
)
def test_a_view_in_place_of_a_transpose(function: Any, shape: Any, edit: str) -> None:
    found = judged(Does(function), *shape)
    assert (found.status, found.code) == ("violated", "axes-swapped")
    assert found.location is not None
    assert "torch.tanh(x." in found.location.text
    assert edit in found.fix


def test_sizes_that_leave_a_doubt_are_told_apart_at_other_sizes() -> None:
    sizes = {"B": (2, 5), "T": 8}
    found = judged(Does(channels_first), inputs="B T 4", targets="B", sizes=sizes)
    assert found.status == "violated"


class Image(nn.Module):
    """Folds the pixels of its own map into rows, and back into an image."""

    def __init__(self, back: Any) -> None:
        super().__init__()
        self.body, self.back = nn.Conv2d(3, 32, 4, stride=4), back

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return torch.tanh(self.back(y.flatten(2).transpose(1, 2), y.shape))


def folded_back(rows: Tensor, shape: torch.Size) -> Tensor:
    return rows.reshape(shape)


def turned_back(rows: Tensor, shape: torch.Size) -> Tensor:
    return rows.transpose(1, 2).reshape(shape)


def at_one_size(rows: Tensor, shape: torch.Size) -> Tensor:
    return rows.reshape(shape[0], 32, 4, 4)


@pytest.mark.parametrize(
    ("back", "status"),
    [
        (folded_back, "violated"),
        (turned_back, "passed"),
        (at_one_size, "passed"),  # no other size runs
    ],
)
def test_a_doubt_at_fixed_sizes_is_told_by_a_larger_image(back: Any, status: str) -> None:
    sizes = {"B": (2, 5)}
    found = judged(Image(back), inputs="B 3 16 16", targets="B", sizes=sizes)
    assert found.status == status, found


def test_a_doubt_that_no_other_sizes_clear_up_is_no_finding() -> None:
    assert judged(Does(lambda x: x.reshape(-1, 4, 8)), 4, 8, 4).status == "passed"


def pyramid(x: Tensor) -> Tensor:
    length = x.shape[1] // 2 * 2
    return x[:, :length].reshape(len(x), length // 2, 2 * x.shape[2])


def shifted(x: Tensor) -> Tensor:
    """Return relative scores moved to absolute places, as in Transformer-XL."""
    scores = F.pad(x, (1, 0))
    rows = scores.view(len(x), scores.shape[2], scores.shape[1])
    return rows[:, 1:].reshape(x.shape)


def shifted_twice(x: Tensor) -> Tensor:
    """The same without padding, as in XLNet: the rows are as wide as the columns are high, and back."""
    first = x.reshape(len(x), x.shape[2], x.shape[1])[:, 1:]
    return first.reshape(len(x), x.shape[1], x.shape[2] - 1)


def heads(x: Tensor) -> Tensor:
    parts = x.view(len(x), x.shape[1], 3, -1).transpose(1, 2)
    return parts.transpose(1, 2).reshape(x.shape)


def shuffled(x: Tensor) -> Tensor:
    return x.view(len(x), 2, 3, -1).transpose(1, 2).reshape(x.shape)


def folded(x: Tensor) -> Tensor:
    return torch.tanh(x.reshape(-1, x.shape[-1])).view(x.shape)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (pyramid, (4, 8, 4)),
        (pyramid, (4, 6, 3)),
        (shifted, (4, 5, 5)),
        (shifted_twice, (4, 5, 9)),
        (heads, (4, 7, 6)),
        (shuffled, (4, 6, 5)),
        (folded, (4, 7, 5)),
    ],
)
def test_sound_views(function: Any, shape: Any) -> None:
    assert judged(Does(function), *shape).status == "passed"


def test_a_model_without_views() -> None:
    assert judged(nn.Linear(5, 5), 4, 7, 5).status == "not-applicable"


@pytest.mark.parametrize(
    ("given", "made", "expected"),
    [
        ((4, 4, 9, 4), (4, 9, 16), (2, 1, True)),
        ((8, 4), (4, 8), (1, 0, False)),
        ((16, 6, 16), (32, 6, 8), (1, 1, True)),  # heads by a bare view
        ((16, 8, 4), (16, 4, 8), (2, 1, False)),  # a pyramid halves the length
        ((12, 3), (6, 6), None),  # no size is kept
        ((5, 6, 8), (30, 8), None),
        ((4, 1, 9, 16), (4, 9, 1, 16), None),
        ((3, 10, 10), (30, 10), None),
    ],
)
def test_which_dimension_moves(given: Any, made: Any, expected: Any) -> None:
    assert moved(given, made) == expected


def test_the_order_in_which_dimensions_stay() -> None:
    assert order((4, 4, 9, 4), (4, 9, 16)) == (0, 2, 1, 3)
    assert order((4, 1, 9, 16), (4, 9, 1, 16)) == (0, 1, 2, 3)
    assert order((5, 7), (35, 1)) == (0, 1)
    assert order((12, 3), (6, 6)) is None


@pytest.mark.parametrize("wrong", [True, False])
def test_two_sizes_that_are_alike_by_chance(wrong: bool) -> None:
    """A literal that is as large as the drawn length is no dimension that was moved: other lengths do not fit it."""

    def literal(x: Tensor) -> Tensor:
        return torch.tanh(x.view(x.shape[0], 4, 3, 9))

    def of_input(x: Tensor) -> Tensor:
        return torch.tanh(x.view(x.shape[0], 4, 3, x.shape[1]))

    contract = Contract(
        model=Head(Does(of_input if wrong else literal)),
        inputs="B T 12", sizes={"B": (2, 5), "T": (2, 9)}, targets="B", loss=F.mse_loss,
        batch=((torch.randn(4, 9, 12),), torch.randn(4)),
    )  # fmt: skip
    (found,) = contract.check(["axis-order"]).findings
    assert found.code == ("axes-swapped" if wrong else "held")
