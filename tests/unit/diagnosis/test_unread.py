"""A result under a name that is never read, beside a sibling that is read in its place."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Finding


class Pair(nn.Module):
    """Two trunks of one make, each with a head."""

    def __init__(self, slip: str = "") -> None:
        super().__init__()
        self.slip = slip
        self.a, self.b = nn.Linear(4, 6), nn.Linear(4, 6)
        self.c, self.d = nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        left = F.relu(self.a(x))
        right = F.relu(self.b(x))
        if self.slip == "one":
            return self.c(left) + self.d(left)
        if self.slip == "two":
            first = self.c(left)
            second = self.d(left)
            return first + second
        if self.slip == "forgotten":
            made: Tensor = self.c(left)
            return made
        return self.c(left) + self.d(right)


class Again(nn.Module):
    """The use-less result is read, by what the loss does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        left = self.a(x)
        right = self.b(x)
        return left * left, right


def _judge(model: nn.Module) -> Finding:
    def loss(output: Tensor | tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        return F.mse_loss(output[0] if isinstance(output, tuple) else output, y)

    contract = Contract(model=model, batch=((torch.randn(3, 4),), torch.randn(3, 2)), loss=loss)
    return contract.check(["gradients-exist"]).findings[0]


def test_each_head_with_its_own_trunk_passes() -> None:
    assert _judge(Pair()).status == "passed"


@pytest.mark.parametrize(
    ("slip", "line"),
    [("one", "return self.c(left) + self.d(left)"), ("two", "second = self.d(left)")],
)
def test_the_sibling_that_is_read_in_its_place(slip: str, line: str) -> None:
    found = _judge(Pair(slip))
    assert found.code == "grad-none"
    assert "right is never read" in found.cause
    assert "reads left" in found.cause
    assert "right" in found.fix
    assert any(c.location is not None and c.location.text == line for c in found.culprits)


def test_a_name_that_is_not_read_and_has_no_stand_in() -> None:
    found = _judge(Pair("forgotten"))
    assert found.code == "grad-none"
    assert "left" not in found.cause


def test_a_result_that_is_returned_is_read() -> None:
    found = _judge(Again())
    assert found.code == "grad-none"
    assert found.location is not None
    assert found.location.text == "right = self.b(x)"
    assert "never read" not in found.cause


class Pool(nn.Module):
    """Keeps the frames of the highest scores, and weighs them by their scores or not."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.score, self.head = how, nn.Linear(4, 1), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        score = self.score(x).sigmoid()[..., 0]
        if self.how == "argsort":
            order = score.argsort(dim=1, descending=True)
            return self.head(pick(x, order[:, :2]).mean(1))
        best, order = score.sort(dim=1, descending=True)
        order = order[:, :2]
        if self.how == "copied":
            picked = x.gather(1, order[:, :, None].expand(-1, -1, x.shape[2]))
            x = picked
            return self.head(x.mean(1))
        kept = pick(x, order)
        if self.how == "gated":
            kept = kept * best[:, :2, None]
        made: Tensor = self.head(kept.mean(1))
        return made


def pick(x: Tensor, order: Tensor) -> Tensor:
    rows = order[:, :, None]
    return x.gather(1, rows.expand(-1, -1, x.shape[2]))


def _pool(how: str) -> Finding:
    batch = ((torch.randn(3, 5, 4),), torch.randn(3, 2))
    contract = Contract(model=Pool(how), batch=batch, loss=F.mse_loss)
    return contract.check(["gradients-exist"]).findings[0]


@pytest.mark.parametrize("how", ["sort", "argsort"])
def test_what_uses_the_indices_of_a_ranking_is_named(how: str) -> None:
    found = _pool(how)
    assert found.code == "grad-none"
    assert "return x.gather" in next(
        c.location.text for c in found.culprits if c.detail == "uses the indices" and c.location
    )
    assert ("(best) are never read" in found.cause) == (how == "sort")
    assert ("multiply it by best" in found.fix) == (how == "sort")


def test_values_that_weigh_what_was_picked_give_a_gradient() -> None:
    assert _pool("gated").status == "passed"


def test_the_line_that_gets_what_a_helper_picked_is_named() -> None:
    given = [c for c in _pool("sort").culprits if c.detail == "passed on without the scores"]
    assert [c.location.text for c in given if c.location] == ["kept = pick(x, order)"]


def test_the_line_that_gives_on_what_was_picked_is_named() -> None:
    found = _pool("copied")
    given = [c for c in found.culprits if c.detail == "passed on without the scores"]
    assert [c.location.text for c in given if c.location] == ["x = picked"]
    picks = [c for c in found.culprits if c.detail == "uses the indices"]
    assert [c.location.text for c in picks if c.location] == [
        "picked = x.gather(1, order[:, :, None].expand(-1, -1, x.shape[2]))"
    ]


class Bypassed(nn.Module):
    """The result of a block, and lines that read what it was computed from."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.gate, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.block(x))  # noqa: F841
        rows = x.shape[0]
        x = self.head(x)
        made: Tensor = x.view(rows, -1)
        return made


def test_lines_that_go_past_an_unread_result_are_named() -> None:
    found = _judge(Bypassed())
    block = next(f for f in (found,) if f.code == "grad-none")
    assert "h is never read" in block.cause
    lines = {c.location.text: c.detail for c in block.culprits if c.location and "h" in c.detail}
    assert lines["x = self.head(x)"] == "read here; h, which is computed from it, is not"
    assert lines["return made"] == "returned here; h is never read"
    assert not any("rows" in text for text in lines)  # a shape, and another x
