"""A term of a loss whose gradients are cleared before any optimizer applies them trains nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract


class Painter(nn.Module):
    """Makes rows, and judges them."""

    def __init__(self) -> None:
        super().__init__()
        self.paint = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 6))
        self.judge = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))

    def forward(self, sketch: Tensor) -> Tensor:
        return self.paint(sketch)


def optimizers(model: Any) -> tuple[torch.optim.Optimizer, ...]:
    return (
        torch.optim.SGD(model.paint.parameters(), lr=0.05),
        torch.optim.SGD(model.judge.parameters(), lr=0.05),
    )


def check(step: Any, made: Any = optimizers) -> Any:
    return Contract(
        model=Painter, inputs="B 5", sizes={"B": 6}, targets="B 6", optimizer=made, train_step=step
    ).check(["step-losses"])


def apply(optimizer: Any, loss: Tensor, *, none: bool = True) -> None:
    optimizer.zero_grad(set_to_none=none)
    loss.backward()
    optimizer.step()


def learn_to_judge(
    model: Any, made: Any, picture: Tensor, targets: Tensor, none: bool = True
) -> None:
    """The judge tells pictures from targets."""
    apply(made[1], model.judge(picture.detach()).mean() - model.judge(targets).mean(), none=none)


@pytest.mark.parametrize("none", [False, True])
@pytest.mark.parametrize("given", ["cut", "targets", "picture"])
def test_the_judge_is_cleared_after_the_painters_step(given: str, none: bool) -> None:
    def step(model: Any, made: Any, inputs: Any, targets: Any) -> Tensor:
        picture = model(*inputs)
        shown = {"cut": picture.detach(), "targets": targets, "picture": picture}[given]
        praise = model.judge(shown).sigmoid().mean()  # praised
        loss = F.l1_loss(picture, targets) - 0.1 * praise
        apply(made[0], loss, none=none)
        learn_to_judge(model, made, picture, targets, none)
        return loss.detach()

    report = check(step)
    assert report.ok is (given == "picture"), str(report)
    for found in report.failing:
        assert (found.status, found.code) == ("violated", "term-idle")
        assert found.location.text.startswith("shown" if given == "cut" else "praise")
        assert "zero_grad() on line" in found.because
        assert found.evidence["reached"][0] == "judge.0.weight"


def test_a_judge_that_the_model_does_not_hold() -> None:
    """It is put back as the model is, for it belongs to the step."""

    def made(model: Any) -> Any:
        judge = nn.Linear(6, 1)
        return [
            torch.optim.SGD(model.parameters(), lr=0.05),
            torch.optim.SGD(judge.parameters(), lr=0.05),
            judge,
        ]

    def step(model: Any, made: Any, inputs: Any, targets: Any, cut: bool) -> Tensor:
        painter, judging, judge = made
        picture = model(*inputs)
        praise = judge(picture.detach() if cut else picture).mean()  # praised
        loss = F.l1_loss(picture, targets) - 0.1 * praise
        apply(painter, loss)
        apply(judging, judge(picture.detach()).mean() - judge(targets).mean())
        return loss.detach()

    report = check(lambda *given: step(*given, cut=True), made)
    assert [found.code for found in report.failing] == ["term-idle"]
    assert "reaches parameters outside of the model" in report.failing[0].because
    assert check(lambda *given: step(*given, cut=False), made).ok


def warm_up(model: Any, made: Any, inputs: Any, targets: Any) -> Tensor:
    """What is said of the judge counts later."""
    picture = model(*inputs)
    loss = F.l1_loss(picture, targets) - 0.0 * model.judge(picture.detach()).mean()
    apply(made[0], loss)
    learn_to_judge(model, made, picture, targets)
    return loss.detach()


def held(model: Any, made: Any, inputs: Any, targets: Any) -> Tensor:
    """A bound holds the term, as it does most of the time."""
    picture = model(*inputs)
    loss = F.l1_loss(picture, targets) + (model.judge(picture.detach()) - 50.0).relu().mean()
    apply(made[0], loss)
    learn_to_judge(model, made, picture, targets)
    return loss.detach()


def all_in_use(model: Any, made: Any, inputs: Any, targets: Any) -> Tensor:
    """Every parameter is to have a gradient, for the sake of other processes."""
    picture = model(*inputs)
    loss = F.l1_loss(picture, targets) + 0.0 * sum(p.sum() for p in model.judge.parameters())
    apply(made[0], loss)
    learn_to_judge(model, made, picture, targets)
    return loss.detach()


def losses_of(model: Any, inputs: Any, targets: Any) -> dict[str, Tensor]:
    picture = model(*inputs)
    return {
        "paint": F.l1_loss(picture, targets) - 0.1 * model.judge(picture).mean(),
        "judge": model.judge(picture.detach()).mean() - model.judge(targets).mean(),
    }


def summed(model: Any, made: Any, inputs: Any, targets: Any) -> Tensor:
    """One function computes all losses, and the judge takes its own from a second call."""
    losses = losses_of(model, inputs, targets)
    apply(made[0], sum(losses.values()))
    apply(made[1], losses_of(model, inputs, targets)["judge"])
    return losses["paint"].detach()


def again(model: Any, made: Any, inputs: Any, targets: Any) -> Tensor:
    """The judge's loss is differentiated a second time."""
    losses = losses_of(model, inputs, targets)
    made[0].zero_grad()
    sum(losses.values()).backward(retain_graph=True)
    made[1].zero_grad()
    losses["judge"].backward()
    for one in made:
        one.step()
    return losses["paint"].detach()


def projected(model: Any, made: Any, inputs: Any, targets: Any) -> Tensor:
    """Gradients of what two tasks share are kept, cleared, and put together."""
    shared, kept = list(model.paint.parameters()), []
    for one in made:
        one.zero_grad()
    for task in range(2):
        picture = model(*inputs)
        fit = F.l1_loss(picture, targets) if task else model.judge(picture).square().mean()
        loss = fit + 0.01 * model.judge(targets).square().mean()
        loss = loss + 0.01 * sum(p.square().sum() for p in shared)
        loss.backward()
        kept.append([p.grad.clone() for p in shared])
        for p in shared:
            p.grad = None
    for p, gradients in zip(shared, zip(*kept, strict=True), strict=True):
        p.grad = sum(gradients)
    for one in made:
        one.step()
    return loss.detach()


def perturbed(model: Any, made: Any, inputs: Any, targets: Any) -> Tensor:
    """The first gradient of the painter decides where the second is taken."""
    painter, shared = made[0], list(model.paint.parameters())
    for one in made:
        one.zero_grad()
    for ahead in (True, False):
        loss = F.l1_loss(model(*inputs), targets) + model.judge(targets).square().mean()
        loss = loss + 0.01 * sum(p.square().sum() for p in shared)
        loss.backward()
        if ahead:
            moves = [0.05 * p.grad / p.grad.norm() for p in shared]
        with torch.no_grad():
            for p, move in zip(shared, moves, strict=True):
                p.add_(move if ahead else -move)
        if ahead:
            painter.zero_grad()
    for one in made:
        one.step()
    return loss.detach()


@pytest.mark.parametrize("step", [warm_up, held, all_in_use, summed, again, projected, perturbed])
def test_gradients_that_are_cleared_and_meant_to_be(step: Any) -> None:
    report = check(step)
    assert report.ok, str(report)
