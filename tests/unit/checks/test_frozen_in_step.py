"""What a step freezes and does not thaw is told by the call that chose it; a detach that is right is not blamed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from pytest_torchcheck import Contract


class Pair(nn.Module):
    """A writer, a reader that scores what it writes, and a lens that nobody trains."""

    def __init__(self) -> None:
        super().__init__()
        self.writer = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6))
        self.reader = nn.Sequential(spectral_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 1))
        self.lens = nn.Linear(6, 4)

    def forward(self, words: Tensor) -> Tensor:
        return self.writer(words)


def by_method(parts: Any, on: bool) -> None:
    for part in parts:
        part.requires_grad_(on)


def by_assignment(parts: Any, on: bool) -> None:
    for part in parts:
        for weight in part.parameters():
            weight.requires_grad = on


def nested(parts: Any, on: bool) -> None:
    by_assignment(list(parts), on)


def learn(model: Any, optimizer: Any, words: Tensor, targets: Tensor) -> Tensor:
    """Train all parts, the reader and the lens on one sum."""
    optimizer.zero_grad()
    written = model(words)
    F.l1_loss(written, targets).backward()
    seen = F.mse_loss(model.lens(targets), torch.ones(6, 4))
    loss = seen + model.reader(written.detach()).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def contract(step: Any, model: Any = Pair, optimizer: Any = None, **given: Any) -> Any:
    return Contract(
        model=model,
        inputs="B 5",
        sizes={"B": 6},
        targets="B 6",
        optimizer=optimizer or (lambda m: torch.optim.SGD(m.parameters(), lr=0.05)),
        train_step=step,
        **given,
    )


def tell(switch: Any) -> Any:
    def step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Tensor:
        switch([model.reader, model.lens], False)
        switch([model.lens], True)
        return learn(model, optimizer, *inputs, targets)

    return step


@pytest.mark.parametrize("switch", [by_method, by_assignment, nested])
def test_the_call_that_freezes_is_named_and_the_one_that_thaws_too_little(switch: Any) -> None:
    (found,) = contract(tell(switch)).check(["step-losses"]).failing
    assert (found.code, found.location.text) == (
        "term-idle",
        "switch([model.reader, model.lens], False)",
    )
    assert "reader computes it, and no parameter of reader requires a gradient then" in found.cause
    assert "does so for lens alone" in found.cause
    assert "detach" not in found.cause + found.fix
    assert "switch([model.lens], True)" in [c.location.text for c in found.culprits if c.location]
    (static,) = contract(tell(switch)).check(["weights-update"]).failing
    assert static.code == "weight-static"
    assert static.location == found.location
    assert "for lens alone" in static.cause


def frozen_here(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Tensor:
    model.reader.requires_grad_(False)
    loss = learn(model, optimizer, *inputs, targets)
    model.reader.requires_grad_(True)
    return loss


def test_a_line_that_freezes_by_itself_is_named_and_the_one_that_thaws_too_late() -> None:
    (found,) = contract(frozen_here).check(["step-losses"]).failing
    assert found.location.text == "model.reader.requires_grad_(False)"
    assert "switches it on again only later" in found.cause


def perceived(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Tensor:
    """Compare what a fixed reader sees; the prediction is detached by mistake."""
    optimizer.zero_grad()
    written = model(*inputs)
    like = F.mse_loss(model.reader(written.detach()), model.reader(targets))
    loss = F.l1_loss(written, targets) + like
    loss.backward()
    optimizer.step()
    return loss.detach()


class Fixed(Pair):
    def __init__(self) -> None:
        super().__init__()
        self.reader.requires_grad_(False)


def test_a_detach_is_blamed_where_nothing_trains_what_is_frozen() -> None:
    made = lambda m: torch.optim.SGD(m.writer.parameters(), lr=0.05)  # noqa: E731
    (found,) = contract(perceived, Fixed, made).check(["step-losses"]).failing
    assert "written.detach()" in found.location.text
    assert "by reader, which is frozen" in found.cause
    assert "drop .detach()" in found.fix


def test_what_is_frozen_from_the_start_and_held_leaves_both_ways() -> None:
    (found,) = contract(perceived, Fixed).check(["step-losses"]).failing
    assert "no parameter of reader requires a gradient" in found.cause
    assert "let the parameters of reader require gradients, or drop .detach()" in found.fix


def test_a_part_that_trains_is_not_called_frozen() -> None:
    def step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Tensor:
        by_method([model.reader, model.lens], False)
        by_method([model.reader, model.lens], True)
        return learn(model, optimizer, *inputs, targets)

    report = contract(step).check(["step-losses"])
    assert report.ok, str(report)
