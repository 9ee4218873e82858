"""A head with too few outputs is named by the graph of its logits, with the line that gives it its size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from provoke import explain, line
from torch import Tensor, nn

from pytest_torchcheck import Contract, Labels
from pytest_torchcheck.diagnosis.gradient.heads import head_of

if TYPE_CHECKING:
    from pytest_torchcheck.explanation import Explanation

TAGS = ["noun", "verb", "rest"]


class Tagger(nn.Module):
    """Two heads of one size; the one that gives the logits is not the last one."""

    def __init__(self, tags: int, cases: int = 3) -> None:
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.tags = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, tags, bias=False))
        self.cases = nn.Linear(8, cases)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x).relu()
        return self.tags(x), self.cases(x)


class Small(Tagger):
    """Built elsewhere than ``Tagger``, which is built in one place alone."""


def make() -> Tagger:
    count = len(TAGS)
    return Tagger(count)


class Centres(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(count, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x) @ F.normalize(self.centres).T


def of_head(model: nn.Module, which: int) -> Explanation:
    x, targets = torch.randn(4, 4), torch.tensor([0, 1, 2, 3])

    def run() -> Tensor:
        return F.cross_entropy(model(x)[which], targets)

    return explain(run, phase="loss", model=model, batch=((x,), targets))


def test_the_head_behind_the_logits_and_the_line_of_its_size() -> None:
    found = of_head(make(), 0)
    assert found.code == "label-range"
    head, size = found.culprits[-2:]
    assert (head.name, head.location.line) == ("tags.2", line(Tagger, "self.tags = "))
    assert size.location.line == line(make, "count = len(TAGS)")
    assert f"its value comes from line {size.location.line}" in found.fix


def test_a_default_of_the_constructor_gives_the_size() -> None:
    found = of_head(make(), 1)
    head, size = found.culprits[-2:]
    assert head.name == "cases"
    assert size.location.line == line(Tagger, "cases: int = 3")


def test_a_bare_parameter_is_a_head() -> None:
    model = Centres(5)
    assert head_of(model, model(torch.randn(2, 4)), 5) == "centres"
    assert head_of(model, model(torch.randn(2, 4)), 6) == ""


def test_without_a_graph_it_is_the_last_one() -> None:
    model = make()
    assert head_of(model, torch.randn(2, 3), 3) == "cases"


def test_targets_with_more_columns_than_the_head() -> None:
    model = make()
    x, targets = torch.randn(4, 4), torch.eye(4)
    for loss in (F.binary_cross_entropy_with_logits, F.cross_entropy):
        found = explain(lambda f=loss: f(model(x)[0], targets), phase="loss", model=model, batch=((x,), targets))  # fmt: skip
        assert "tags.2" in [c.name for c in found.culprits]
        assert f"its value comes from line {line(make, 'count = len(TAGS)')}" in found.fix


def test_declared_classes_lead_to_the_line_of_the_head() -> None:
    contract = Contract(
        model=Small(2),
        batch=((torch.randn(6, 4),), torch.tensor([0, 1, 0, 1, 1, 0])),
        targets=Labels("B", classes=3),
        loss=lambda output, targets: F.cross_entropy(output[0], targets),
    )
    (found,) = [f for f in contract.check(["label-range"]).findings if f.code == "label-classes"]
    assert found.culprits[0].name == "tags.2"
    assert found.location.line == line(Tagger, "self.tags = ")
