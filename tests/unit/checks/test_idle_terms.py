"""Each term of a loss that a step differentiates trains something; constants that are meant so are no terms."""

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


def judged(model: Any, made: Any, inputs: Any, targets: Any, *, frozen: bool, cut: bool) -> Tensor:
    painter, judge = made
    picture = model(*inputs)
    judge.zero_grad()
    both = model.judge(picture.detach()).mean() - model.judge(targets).mean()
    both.backward()
    judge.step()

    model.judge.requires_grad_(not frozen)
    painter.zero_grad()
    shown = picture.detach() if cut else picture
    praise = model.judge(shown).sigmoid().mean()
    loss = F.l1_loss(picture, targets) - 0.1 * praise
    loss.backward()
    painter.step()
    model.judge.requires_grad_(True)
    return loss.detach()


JUDGE = ["judge.0.weight", "judge.0.bias", "judge.2.weight", "judge.2.bias"]


def check(step: Any, made: Any = optimizers) -> Any:
    return Contract(
        model=Painter, inputs="B 5", sizes={"B": 6}, targets="B 6", optimizer=made, train_step=step
    ).check(["step-losses"])


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_a_term_that_moves_nothing_is_told(frozen: bool, cut: bool) -> None:
    report = check(lambda *given: judged(*given, frozen=frozen, cut=cut))
    assert report.ok is not cut
    for found in report.failing:
        assert (found.status, found.code) == ("violated", "term-idle")
        assert found.location.text == "shown = picture.detach() if cut else picture"
        assert [c.name for c in found.culprits][-2:] == ["detach", "mean"]
        assert frozen or found.culprits[0].name == "paint"
        assert found.evidence["reached"] == ([] if frozen else JUDGE)


def at_once(model: Any, made: Any, inputs: Any, targets: Any) -> Tensor:
    """Both parts learn from one sum, and each optimizer applies its own."""
    for one in made:
        one.zero_grad()
    loss = F.l1_loss(model(*inputs), targets) + model.judge(targets).square().mean()
    loss.backward()
    for one in made:
        one.step()
    return loss.detach()


def baseline(model: Any, made: Any, inputs: Any, targets: Any) -> Tensor:
    """The reward beyond that of a detached mean, and the value of another loss beside the gradient of this."""
    made[0].zero_grad()
    picture = model(*inputs)
    reward = model.judge(picture.detach()).mean().detach()
    surrogate = picture.square().mean()
    loss = (picture.mean() - reward).square() + F.l1_loss(picture, targets)
    loss = loss.detach() + surrogate - surrogate.detach() + 0.5 + loss
    loss.backward()
    made[0].step()
    return loss.detach()


def in_parts(model: Any, made: Any, inputs: Any, targets: Any) -> Tensor:
    """Two backward passes before any step."""
    for one in made:
        one.zero_grad()
    total = torch.zeros(())
    for x, y in zip(inputs[0].chunk(2), targets.chunk(2), strict=True):
        loss = F.l1_loss(model(x), y) / 2 + 0.1 * model.judge(y).square().mean()
        loss.backward()
        total += loss.detach()
    for one in made:
        one.step()
    return total


@pytest.mark.parametrize("step", [at_once, baseline, in_parts])
def test_terms_that_are_applied_and_constants_that_are_meant_so_pass(step: Any) -> None:
    report = check(step)
    assert report.ok, str(report)


def for_some(model: Any, made: Any, inputs: Any, targets: Any, *, cut: bool) -> Tensor:
    """One optimizer for both parts, and a backward pass that is for the painter's leaves."""
    made.zero_grad()
    picture = model(*inputs)
    praise = model.judge(picture.detach() if cut else picture).sigmoid().mean()  # praised
    loss = F.l1_loss(picture, targets) - 0.1 * praise
    loss.backward(inputs=list(model.paint.parameters()))
    (model.judge(picture.detach()).mean() - model.judge(targets).mean()).backward()
    made.step()
    return loss.detach()


@pytest.mark.parametrize("cut", [False, True])
def test_a_term_that_reaches_none_of_the_leaves_that_backward_is_for(cut: bool) -> None:
    report = check(
        lambda *given: for_some(*given, cut=cut), lambda m: torch.optim.SGD(m.parameters(), lr=0.05)
    )
    assert report.ok is not cut
    for found in report.failing:
        assert found.code == "term-idle"
        assert found.location.text.endswith("# praised")
        assert "backward(inputs=...) computes none of it" in found.because


class Player(nn.Module):
    """Draws an action, and has it valued."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.value = nn.Linear(5, 2), nn.Linear(7, 1)

    def forward(self, seen: Tensor) -> Tensor:
        return self.mean(seen)


def played(model: Any, made: Any, inputs: Any, targets: Any, *, how: str) -> Tensor:
    (seen,) = inputs
    made.zero_grad()
    chances = torch.distributions.Normal(model(seen), 0.3)
    action = chances.rsample() if how == "rsample" else chances.sample()  # drawn
    reward = model.value(torch.cat([seen, action], 1))
    model.value.requires_grad_(False)
    praise = model.value(torch.cat([seen, action], 1))
    model.value.requires_grad_(True)
    if how == "score":  # the likelihood of what was drawn, weighed by its value
        actor = -(chances.log_prob(action).sum(1, keepdim=True) * praise).mean()
    else:
        actor = (0.1 * chances.log_prob(action).sum(1, keepdim=True) - praise).mean()
    loss = actor + F.mse_loss(reward.squeeze(1), targets)
    loss.backward()
    made.step()
    return loss.detach()


@pytest.mark.parametrize("how", ["sample", "rsample", "score"])
def test_a_value_of_what_was_drawn_without_a_gradient_is_a_constant(how: str) -> None:
    report = Contract(
        model=Player, inputs="B 5", sizes={"B": 6}, targets="B", optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.05),
        train_step=lambda *given: played(*given, how=how),
    ).check(["step-losses"])  # fmt: skip
    assert report.ok is (how != "sample"), str(report)
    for found in report.failing:
        assert found.code == "term-idle"
        assert found.location.text.endswith("# drawn")
        assert "rsample()" in found.fix
