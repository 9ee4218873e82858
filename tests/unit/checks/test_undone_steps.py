"""An optimizer does not come back to where it began, whatever else it keeps, averages, or accumulates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.promises import Frozen


class _Resets(torch.optim.Adam):
    """Meant to forget its moments every four steps; it loads what it began with, weights included."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.01)
        self.begun = [p.detach().clone() for g in self.param_groups for p in g["params"]]
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        self.count += 1
        if self.count % 4 == 0:
            for p, value in zip(self.param_groups[0]["params"], self.begun, strict=True):
                p.copy_(value)
        return result


class _Forgets(_Resets):
    """Forgets its moments alone."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.count += 1
        if self.count % 4 == 0:
            self.state.clear()
        return torch.optim.Adam.step(self, closure)


class _Accumulates(torch.optim.SGD):
    """Applies the sum of three gradients in each third call."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.05)
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.count += 1
        for p in self.param_groups[0]["params"]:
            kept = self.state[p].setdefault("sum", torch.zeros_like(p))
            kept.add_(p.grad)
            if self.count % 3 == 0:
                p.sub_(0.05 * kept)
                kept.zero_()
        return None


class _Averages(torch.optim.SGD):
    """Means to move slow weights towards those of every third step, and go on from them."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.05)
        self.slow = [p.detach().clone() for g in self.param_groups for p in g["params"]]
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        self.count += 1
        if self.count % 3 == 0:
            for p, slow in zip(self.param_groups[0]["params"], self.slow, strict=True):
                slow.lerp(p, 0.5)
                p.copy_(slow)
        return result


def _of(kind: Any) -> dict[str, Any]:
    g = torch.Generator().manual_seed(5)
    report = Contract(
        model=lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(12, 1), nn.Flatten(0)),
        batch=((torch.randn(4, 2, 6, generator=g),), torch.randn(4, generator=g)),
        loss=nn.functional.mse_loss,
        optimizer=lambda model: kind(model.parameters()),
    ).check(["weights-update"])  # fmt: skip
    return {f.code: f for f in report.findings}


@pytest.mark.parametrize(
    ("kind", "red"), [(_Resets, True), (_Forgets, False), (_Accumulates, False)]
)
def test_what_steps_learn_stays(kind: Any, *, red: bool) -> None:
    assert ("weight-put-back" in _of(kind)) is red


def test_a_result_that_the_steps_drop_is_named() -> None:
    found = _of(_Averages)["weight-put-back"]
    assert found.location.text == "slow.lerp(p, 0.5)"
    assert "nothing reads the result of slow.lerp(p, 0.5)" in found.cause
    assert "dropped" not in str(_of(_Resets)["weight-put-back"])


class _Step:
    """A training step of one's own, which does something else in some of its calls."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __call__(self, model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
        optimizer.calls = calls = getattr(optimizer, "calls", 0) + 1
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        optimizer.kept = kept = getattr(optimizer, "kept", before)
        loss = nn.functional.mse_loss(model(*inputs), targets)
        (loss / 8 if self.how == "accumulates" else loss).backward()
        if self.how == "accumulates" and calls % 7:
            return loss.detach()
        if not (self.how == "tires" and calls > 4):
            optimizer.step()
        optimizer.zero_grad()
        if (self.how == "returns" and calls == 2) or (self.how == "rejects" and loss > 1e3):
            model.load_state_dict(kept, strict=False)
        return loss.detach()


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("returns", "weight-put-back"),
        ("tires", "batch-unused"),
        ("accumulates", None),
        ("rejects", None),
        ("plain", None),
    ],
)
def test_a_step_keeps_what_it_has_learned(how: str, code: str | None) -> None:
    g = torch.Generator().manual_seed(4)
    report = Contract(
        model=lambda: nn.Sequential(nn.Linear(5, 9), nn.SiLU(), nn.Linear(9, 2)),
        batch=((torch.randn(6, 5, generator=g),), torch.randn(6, 2, generator=g)),
        train_step=_Step(how),
        optimizer=lambda model: torch.optim.RMSprop(model.parameters(), 1e-3),
    ).check(["repeatable-steps"])
    assert [f.code for f in report.findings if f.status != "passed"] == ([code] if code else [])


class _Leaves(torch.optim.Optimizer):
    """Goes by the sign of each gradient; at a parameter without one it goes on with the next, or ends."""

    ends, decay = True, 0.0

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(1 - self.decay)
            for p in group["params"]:
                if p.grad is None:
                    if self.ends:
                        break
                    continue
                p.sub_(p.grad.sign() * group["lr"])
        return None


class _GoesOn(_Leaves):
    ends = False


class _Decays(_Leaves):
    decay = 0.1


class _Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(5, 8)
        self.places = nn.Parameter(torch.randn(8), requires_grad=False)
        self.after = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(torch.tanh(self.before(x)) + self.places)


@pytest.mark.parametrize(
    ("kind", "code"), [(_Leaves, "weight-static"), (_Decays, "weight-only-decays"), (_GoesOn, "")]
)
def test_a_step_that_ends_its_loop_early_is_told_by_the_break(kind: Any, code: str) -> None:
    g = torch.Generator().manual_seed(4)
    report = Contract(
        model=_Positions,
        batch=((torch.randn(6, 5, generator=g),), torch.randn(6, 2, generator=g)),
        loss=nn.functional.mse_loss,
        optimizer=lambda m: kind([*m.before.parameters(), m.places, *m.after.parameters()]),
        promises=[Frozen("places", reason="drawn once")] if kind is not _Decays else [],
    ).check(["weights-update"])  # fmt: skip
    found = [f for f in report.findings if f.status == "violated"]
    assert [f.code for f in found] == ([code] if code else [])
    for one in found:
        assert one.location.text == "break"
