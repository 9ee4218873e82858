"""A learning rate other than the one meant: which line set it last."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR

from pytest_torchcheck import Contract
from pytest_torchcheck.promises import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchcheck.findings import Finding

X, Y = torch.linspace(-1, 1, 24).view(8, 3), torch.linspace(1, -1, 16).view(8, 2)


def plain(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
    optimizer.zero_grad()
    loss = F.mse_loss(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def finding(
    make: Callable[[Any], Any], lr: Callable[[int], float], step: Callable[..., Any] = plain
) -> Finding:
    contract = Contract(
        model=nn.Linear(3, 2),
        batch=((X,), Y),
        loss=F.mse_loss,
        train_step=step,
        optimizer=make,
        promises=(Schedule(lr),),
    )
    (found,) = contract.check(["schedule"]).findings
    return found


def text(found: Finding) -> str:
    return "" if found.location is None else found.location.text


class Saved:
    """A checkpoint of a run that ended with a small rate."""

    def __init__(self) -> None:
        optimizer = torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=1e-5, momentum=0.9)
        self.state = optimizer.state_dict()

    def resume(self, optimizer: Any) -> None:
        optimizer.load_state_dict(copy.deepcopy(self.state))  # HERE


def test_a_saved_rate_is_put_over_the_one_configured() -> None:
    saved = Saved()

    def make(model: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        saved.resume(optimizer)
        return optimizer

    found = finding(make, lambda step: 0.1)
    assert found.code == "schedule-differs"
    assert text(found).endswith("# HERE")
    assert found.culprits[0].name == "optimizer.load_state_dict"
    assert "1e-05" in found.cause


def test_a_line_that_sets_the_rate() -> None:
    def step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
        for group in optimizer.param_groups:
            group["lr"] = 0.3  # HERE
        return plain(model, optimizer, inputs, targets)

    found = finding(lambda m: torch.optim.SGD(m.parameters(), lr=0.1), lambda step: 0.1, step)
    assert text(found).endswith("# HERE")
    assert found.culprits[0].name == "lr"


def test_a_formula_that_gives_a_rate_by_hand() -> None:
    def warm_up(step: int) -> float:
        return 0.1 * step / 4  # FORMULA

    count = [0]

    def step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
        optimizer.param_groups[0]["lr"] = warm_up(count[0])
        count[0] += 1
        return plain(model, optimizer, inputs, targets)

    found = finding(
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1), lambda n: 0.1 * (n + 3) ** 0.5, step
    )
    assert any(c.location and c.location.text.endswith("# FORMULA") for c in found.culprits), found


def test_an_optimizer_that_is_made_with_another_rate() -> None:
    def make(model: Any) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.01)  # HERE

    found = finding(make, lambda step: 0.1)
    assert text(found).endswith("# HERE")
    assert "base rate" in found.cause
    assert found.culprits[0].name == "lr"


def test_a_scheduler_that_is_not_stepped_stays_the_cause() -> None:
    saved = Saved()
    saved.state["param_groups"][0]["lr"] = 0.1

    def make(model: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        saved.resume(optimizer)
        return optimizer

    found = finding(make, lambda step: 0.1 * 0.9**step)
    assert "no scheduler is stepped" in found.cause


def test_a_rate_that_is_set_again_after_loading() -> None:
    saved = Saved()

    def make(model: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        saved.resume(optimizer)
        optimizer.param_groups[0]["lr"] = 0.1
        return optimizer, ExponentialLR(optimizer, 0.9)

    def step(model: Any, made: Any, inputs: Any, targets: Any) -> Any:
        loss = plain(model, made[0], inputs, targets)
        made[1].step()
        return loss

    found = finding(make, lambda step: 0.1 * 0.9**step, step)
    assert found.status == "passed", found


class Polynomial:
    """A scheduler of the user's own, for all groups; ``start`` says at which position it begins."""

    def __init__(self, optimizer: Any, start: int = 0) -> None:
        self.optimizer, self.count = optimizer, start
        self.apply()

    def apply(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = meant(self.count)  # SETS

    def advance(self) -> None:
        self.count += 1
        self.apply()


def meant(step: int) -> float:
    return 0.1 * (1 - step / 400) ** 2


def groups(model: Any) -> Any:
    return torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias]}], lr=0.1)


def in_parts(after: str, start: int = 0, parts: int = 4) -> Callable[..., Any]:
    """Make a step in parts whose schedule advances after each of them, in the loop or behind it, or after the step."""

    def step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
        if not hasattr(optimizer, "own"):
            optimizer.own = Polynomial(optimizer, start)
        optimizer.zero_grad()
        for x, y in zip(inputs[0].chunk(parts), targets.chunk(parts), strict=True):
            loss = F.mse_loss(model(x), y, reduction="sum") / targets.numel()
            loss.backward()
            if after == "part":
                optimizer.own.advance()  # HERE
            if after == "written out":
                optimizer.own.count += 1
                for group in optimizer.param_groups:
                    group["lr"] = meant(optimizer.own.count)  # HERE
        if after == "twice":
            optimizer.own.advance()
            optimizer.own.advance()
        optimizer.step()
        if after == "step":
            optimizer.own.advance()
        if after == "often":
            for _ in range(3):
                optimizer.own.apply()
            optimizer.own.advance()
        return loss.detach()

    return step


@pytest.mark.parametrize("after", ["part", "written out"])
@pytest.mark.parametrize("start", [0, -1])
def test_rates_that_are_set_with_each_part_of_a_step(after: str, start: int) -> None:
    found = finding(groups, meant, in_parts(after, start))
    assert found.code == "schedule-differs"
    assert found.cause.startswith("the rates are set 4 times in one step: the schedule advances 4")
    assert text(found).endswith("# HERE")
    assert "# HERE" in next(c.location for c in found.culprits if c.location).text
    assert "stepped" not in found.because
    if start:
        assert "declared for 4 * n + 3" in found.because


def test_two_calls_on_two_lines_have_no_one_line() -> None:
    found = finding(groups, meant, in_parts("twice"))
    assert "advances 2 positions" in found.cause
    assert "set 4 times" not in found.cause
    assert text(found).endswith("# SETS")


@pytest.mark.parametrize("after", ["step", "often"])
def test_rates_that_are_right_however_often_they_are_set(after: str) -> None:
    assert finding(groups, meant, in_parts(after)).status == "passed"


def test_what_sets_the_rates_is_not_said_to_be_idle() -> None:
    found = finding(groups, lambda n: 0.1 / (n + 3) ** 0.5, in_parts("step"))
    assert "no shift or stretch" in found.because
    assert "stepped" not in found.because


def in_a_row(optimizer: Any, first: int, whole: int) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: (n + 1) / first if n < first else (whole - n) / (whole - first)
    )


def test_the_call_that_gives_a_schedule_its_numbers_is_named() -> None:
    def make(model: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        return optimizer, in_a_row(optimizer, 30, 3)  # CALL

    def step(model: Any, made: Any, inputs: Any, targets: Any) -> Any:
        loss = plain(model, made[0], inputs, targets)
        made[1].step()
        return loss

    found = finding(make, lambda n: (n + 1) / 3 if n < 3 else (30 - n) / 27, step)
    assert found.code == "schedule-differs"
    (named,) = [c for c in found.culprits if c.name == "in_a_row"]
    assert named.location is not None
    assert named.location.text.endswith("# CALL")


class Phased:
    """Rates of a warm-up of 3 steps and a fall over 48, which is to begin after it."""

    def __init__(self, way: str) -> None:
        self.way, self.warmup, self.period = way, 3, 48

    def rates(self, t: int) -> list[float]:
        if t < self.warmup:
            return [0.1 * (t + 1) / self.warmup]
        if self.way == "chain":
            elapsed = t  # HERE
            whole = elapsed // self.period
            now = elapsed - self.period * whole
        elif self.way == "both":
            whole = t // self.period
            now = t - self.period * whole  # HERE
        elif self.way == "call":
            elapsed = t
            now = divmod(elapsed, self.period)[1]  # HERE
        else:
            now = t % self.period  # HERE
        return [0.01 + 0.09 * (1 - now / self.period)]


@pytest.mark.parametrize(
    ("way", "said"), [("chain", "from now, and that from elapsed"), ("both", "from now, set"),
                      ("call", "from now, set"), ("plain", "from now, set")],
)  # fmt: skip
def test_the_line_by_which_the_steps_enter_a_count(way: str, said: str) -> None:
    """Where they enter at one line, all that is computed from it follows; else the count itself is named."""
    phased, count = Phased(way), [0]

    def make(model: Any) -> Any:
        count[0] = 0
        return torch.optim.SGD(model.parameters(), lr=phased.rates(0)[0])

    def step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
        loss = plain(model, optimizer, inputs, targets)
        count[0] += 1
        for group, rate in zip(optimizer.param_groups, phased.rates(count[0]), strict=True):
            group["lr"] = rate
        return loss

    def meant(step: int) -> float:
        return 0.1 * (step + 1) / 3 if step < 3 else 0.01 + 0.09 * (1 - (step - 3) / 48)

    found = finding(make, meant, step)
    assert "counts its steps otherwise" in found.cause
    assert text(found).endswith("# HERE")
    assert said in found.because
