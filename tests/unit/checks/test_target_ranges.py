"""Targets beyond what torch defines a loss for are found, whether they are given, declared or made by the loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Floats, Ints, Labels

G = torch.Generator().manual_seed(0)
X = torch.randn(6, 5, generator=G)
MARKS = torch.tensor([0, 1, 1, 0, 1, 0])
SIGNS = 2 * MARKS - 1
ROWS = torch.tensor([[0, 1, 1], [1, 0, 0], [0, 0, 1], [1, 1, 1], [0, 0, 0], [1, 0, 1]])
LISTS = torch.tensor([[0, 2, -1], [1, -1, -1], [2, 1, 0], [0, -1, 0], [1, 2, -1], [2, -1, 2]])


class Twins(nn.Module):
    """Gives two embeddings of the halves of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), self.layer(x.flip(1))


class Score(nn.Linear):
    def __init__(self) -> None:
        super().__init__(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, 0]


def told(model: Any, loss: Any, **fields: Any) -> Any:
    (found,) = Contract(model=model, loss=loss, **fields).check(["label-range"]).findings
    return found


def pairs(o: Any, y: Tensor) -> Tensor:
    return F.cosine_embedding_loss(o[0], o[1], target=y.float())


def ranked(o: Any, y: Tensor) -> Tensor:
    return F.margin_ranking_loss(o[0][:, 0], o[1][:, 0], y, margin=0.2)


def margin(o: Tensor, y: Tensor) -> Tensor:
    return nn.SoftMarginLoss()(o, y)


def hinge(o: Tensor, y: Tensor) -> Tensor:
    return F.hinge_embedding_loss(o.abs(), y)


@pytest.mark.parametrize(
    ("model", "loss"), [(Twins, pairs), (Twins, ranked), (Score, margin), (Score, hinge)]
)
def test_zeros_and_ones_where_signs_are_due(model: Any, loss: Any) -> None:
    wrong = told(model, loss, batch=((X,), MARKS))
    assert (wrong.status, wrong.code) == ("violated", "label-range")
    assert wrong.fix.startswith("map them to -1 and 1")
    sound = told(model, loss, batch=((X,), SIGNS))
    assert sound.status == "passed"
    assert sound.summary.endswith(": -1 or 1")


def by_order(o: Any, y: Tensor) -> Tensor:
    """Pairs whose first is larger, and ties, which the loss leaves out."""
    high = torch.sign(y.sort(descending=True).values[::2] - y.sort(descending=True).values[1::2])
    return F.margin_ranking_loss(o[::2], o[1::2], high)


def test_zeros_that_a_loss_makes_may_be_ties() -> None:
    found = told(Score, by_order, batch=((X,), torch.tensor([3.0, 3.0, 2.0, 1.0, 0.5, 0.5])))
    assert (found.status, found.code) == ("suspicious", "label-range")


def test_signs_with_zeros_that_leave_samples_out() -> None:
    assert told(Score, margin, batch=((X,), SIGNS * (X[:, 0] > 0))).status != "violated"


def test_rows_of_marks_are_no_lists_of_classes() -> None:
    wrong = told(lambda: nn.Linear(5, 3), F.multilabel_margin_loss, batch=((X,), ROWS))
    assert (wrong.status, wrong.code) == ("violated", "label-range")
    assert "indices of the classes" in wrong.fix
    sound = told(lambda: nn.Linear(5, 3), F.multilabel_margin_loss, batch=((X,), LISTS))
    assert sound.status == "passed"


def signed(o: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(o, 1.0 - 2.0 * y)  # signed


def test_declared_targets_are_judged_too() -> None:
    shape: dict[str, Any] = {"inputs": "B 5", "sizes": {"B": (4, 8)}}
    wrong = told(Score, signed, targets=Ints("B", high=2), **shape)
    assert (wrong.status, wrong.location.text.endswith("# signed")) == ("violated", True)
    assert wrong.fix.startswith("pass the targets of the batch as they are")
    plain = F.binary_cross_entropy_with_logits
    assert told(Score, plain, targets="B", **shape).status == "not-applicable"
    assert told(Score, plain, targets=Floats("B", low=0, high=1), **shape).status == "passed"


def text(o: Tensor, y: Tensor) -> Tensor:
    frames, letters = torch.full((len(o),), o.shape[1]), torch.full((len(o),), 2)
    return F.ctc_loss(o.log_softmax(-1).transpose(0, 1), y, frames, letters)


@pytest.mark.parametrize(
    ("targets", "status"),
    [(Ints("B 2", low=1, high=7), "passed"), (Labels("B 2", classes=7), "suspicious")],
)
def test_declared_letters_may_be_the_blank(targets: Any, status: str) -> None:
    found = told(
        lambda: nn.Linear(5, 7), text, inputs="B 12 5", targets=targets, sizes={"B": (2, 3)}
    )
    assert found.status in (status, status.replace("suspicious", "violated"))


def test_labels_that_are_left_out_are_counted() -> None:
    def loss(o: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(o, y, ignore_index=1)

    found = told(lambda: nn.Linear(5, 2), loss, batch=((X,), MARKS))
    assert found.summary.endswith("; 3 more are left out of the loss")
