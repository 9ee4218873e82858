"""Functions that a contract cannot call as it must are refused when they are declared, with the line to write."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, DeclarationError, Labels
from pytest_torchcheck.declared.callables import takes, takes_output_alone


def make(width: int, depth: int = 1) -> nn.Module:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))


class Needy(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()


def step_of_three(model: nn.Module, optimizer: Any, batch: Any) -> None: ...


def loss_of_three(output: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
    return F.cross_entropy(output, targets, weight)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"model": make}, "make(width, depth=1) needs width; write model=lambda: make(width=...)"),
        ({"model": Needy}, "needs width; write model=lambda: Needy(width=...)"),
        ({"model": functools.partial(make, depth=2)}, "needs width"),
        (
            {"optimizer": lambda: None},
            (
                "the lambda() does not take one argument; write optimizer=lambda model: "
                "torch.optim.AdamW(model.parameters())"
            ),
        ),
        (
            {"optimizer": torch.optim.SGD},
            "got the class SGD; write optimizer=lambda model: torch.optim.SGD(model.parameters())",
        ),
        (
            {"train_step": step_of_three},
            (
                "step_of_three(model, optimizer, batch) does not take four arguments; write def "
                "train_step(model, optimizer, inputs, targets)"
            ),
        ),
        (
            {"loss": loss_of_three},
            (
                "loss_of_three(output, targets, weight) does not take two arguments; write "
                "loss=lambda output, targets: loss_of_three(...)"
            ),
        ),
        (
            {"loss": lambda output: output.sum()},
            "takes the output alone; write loss=lambda output, targets: ..., or omit targets=",
        ),
        ({"loss": F.cross_entropy, "targets": None}, "loss(output, targets) needs targets"),
    ],
)
def test_misuse_is_told_with_the_line_to_write(fields: dict[str, Any], told: str) -> None:
    declared = {
        "model": lambda: make(3), "inputs": "B 3", "targets": Labels("B", classes=3),
        "loss": F.cross_entropy, **fields,
    }  # fmt: skip
    with pytest.raises(DeclarationError) as caught:
        Contract(**declared)
    assert told in str(caught.value)


def test_what_can_be_called_is_taken() -> None:
    def step(model: Any, *rest: Any) -> None: ...

    Contract(
        model=functools.partial(make, 3),
        inputs="B 3",
        targets=Labels("B", classes=3),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda model, lr=0.1: torch.optim.SGD(model.parameters(), lr),
        train_step=step,
    )
    assert takes(max, 2) in (True, None)
    assert not takes_output_alone(nn.MSELoss())


class Energy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


def test_a_loss_of_the_output_alone_is_trained_by() -> None:
    def spread(output: Tensor) -> Tensor:
        return (output - 1).pow(2).mean()

    report = Contract(model=Energy, inputs="B 3", loss=spread).check()
    assert report.ok, str(report)
    assert {"weights-update", "overfit"} <= {f.check for f in report.with_status("passed")}
    detached = Contract(model=Energy, inputs="B 3", loss=lambda output: output.detach().sum())
    assert not detached.check(["backward"]).ok


def plain_step(model: nn.Module, optimizer: Any, inputs: Any, targets: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    return loss


def step_by_hand(model: nn.Module, optimizer: Any, inputs: Any, targets: Tensor) -> Tensor:
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    with torch.no_grad():
        for leaf in model.parameters():
            leaf -= 0.1 * leaf.grad
            leaf.grad = None
    return loss


X, Y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"train_step": plain_step}, "write optimizer=lambda model: torch.optim.AdamW("),
        ({"optimizer": torch.optim.SGD(nn.Linear(1, 1).parameters())}, "already built, SGD"),
        ({"model": lambda width: make(width)}, "write width=... between lambda and its colon"),
        ({"loss": lambda output, targets, c: c}, "write loss=lambda output, targets: ..."),
        ({"batch": lambda: ((X,), Y)}, "write batch=lambda seed: (inputs, targets)"),
        ({"batch": X, "targets": None, "inputs": None}, "the batch has none; a batch with targets"),
        ({"batch": (X, Y, Y), "targets": None, "inputs": None}, "is a pair: batch=(inputs, targ"),
        ({"batch": ((X, X), Y)}, "declare as many inputs, by the same names, as the batch holds"),
        ({"inputs": X}, "got a tensor of shape [4, 3]; inputs= takes specs"),
        ({"sizes": {"B": "many"}}, "no spec has the symbol 'many'; symbols are: B"),
    ],
)
def test_what_cannot_work_is_told_when_it_is_declared(fields: dict[str, Any], told: str) -> None:
    declared = {
        "model": lambda: make(3), "inputs": "B 3", "targets": Labels("B", classes=3),
        "loss": F.cross_entropy, **fields,
    }  # fmt: skip
    with pytest.raises(DeclarationError) as caught:
        Contract(**declared)
    assert told in str(caught.value)


def test_a_step_that_leaves_the_optimizer_alone_needs_none() -> None:
    step = Contract(
        model=lambda: make(3),
        inputs="B 3",
        targets=Labels("B", classes=3),
        loss=F.cross_entropy,
        train_step=step_by_hand,
    )
    assert step.check(["backward", "weights-update"]).ok


@pytest.mark.parametrize(
    "loss",
    [lambda output, _: output.pow(2).mean(), lambda output, y=None: output.sum()],
    ids=["ignores", "optional"],
)
def test_a_loss_that_leaves_its_targets_alone_needs_none(loss: Any) -> None:
    assert Contract(model=lambda: make(3), batch=X, loss=loss).check(["backward"]).ok
    with pytest.raises(DeclarationError, match="the batch has none"):
        Contract(model=lambda: make(3), batch=X, loss=nn.MSELoss())


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, *, features: Tensor) -> Tensor:
        return self.head(features)


@pytest.mark.parametrize(
    ("fields", "fix"),
    [
        (
            {"model": Energy, "inputs": "B 5"},
            "declare x in the contract with 3 instead of 5 in dim",
        ),
        ({"model": Energy, "inputs": "B T 7"}, "with 3 instead of 7 in dimension 2"),
        (
            {"model": lambda: nn.Conv2d(3, 4, 3), "inputs": "B 1 9 9", "loss": None},
            "declare input in the contract with 3 instead of 1 in dimension 1",
        ),
        ({"model": Named}, "give features by name: inputs={'features': ...}"),
        ({"model": lambda: Energy, "loss": None}, "return Energy(...) in the function"),
        ({"model": lambda: None, "loss": None}, "return the model in the function"),
        ({"optimizer": lambda model: None}, "return the optimizer in the function"),
    ],
)
def test_the_first_failure_says_what_to_declare(fields: dict[str, Any], fix: str) -> None:
    declared = {
        "model": lambda: make(3), "inputs": "B 3", "targets": Labels("B", classes=3),
        "loss": F.cross_entropy, **fields,
    }  # fmt: skip
    if declared["loss"] is None:
        declared.pop("targets")
    (found,) = Contract(**declared).check(["backward"]).with_status("violated")
    assert fix in " ".join(found.fix.split())


def test_a_layer_behind_others_is_not_told_to_change_the_declaration() -> None:
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(5, 3))
    (found,) = Contract(model=model, inputs="B 3").check(["backward"]).with_status("violated")
    assert "in_features" in found.fix
    assert "declare" not in found.fix
