"""Parameters that get a gradient from a plain forward and none in the user's own step: the line of the step that cuts it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Finding


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 6), nn.Linear(6, 4)
        self.judge = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(torch.tanh(self.encoder(x)))


def judged(step: Any) -> Finding:
    contract = Contract(
        model=Pair,
        batch=((torch.randn(8, 4),), torch.randn(8, 4)),
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
        train_step=step,
    )
    (found,) = contract.check(["weights-update"]).findings
    return found


def adversarial(model: Pair, optimizer: Any, inputs: Any, targets: Tensor) -> Tensor:
    """The encoder learns from the judge alone, and the judge from codes that are cut off by right."""
    codes = torch.tanh(model.encoder(*inputs))
    optimizer.zero_grad()
    model.judge.requires_grad_(False)
    fooled = F.softplus(-model.judge(codes.detach())).mean()
    loss = F.mse_loss(model.decoder(codes.detach()), targets) + 0.5 * fooled
    loss.backward()
    model.judge.requires_grad_(True)
    F.softplus(model.judge(codes.detach())).mean().backward()
    optimizer.step()
    return loss.detach()


def without_gradients(model: Pair, optimizer: Any, inputs: Any, targets: Tensor) -> Tensor:
    optimizer.zero_grad()
    with torch.no_grad():
        codes = torch.tanh(model.encoder(*inputs))
    loss = F.mse_loss(model.decoder(codes), targets) + model.judge(codes).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def sound(model: Pair, optimizer: Any, inputs: Any, targets: Tensor) -> Tensor:
    codes = torch.tanh(model.encoder(*inputs))
    optimizer.zero_grad()
    model.judge.requires_grad_(False)
    fooled = F.softplus(-model.judge(codes)).mean()
    loss = F.mse_loss(model.decoder(codes), targets) + 0.5 * fooled
    loss.backward()
    model.judge.requires_grad_(True)
    F.softplus(model.judge(codes.detach())).mean().backward()
    optimizer.step()
    return loss.detach()


def test_a_term_that_is_a_constant_names_the_detach_in_it() -> None:
    found = judged(adversarial)
    assert (found.status, found.code) == ("violated", "weight-static")
    assert {c.name for c in found.culprits if c.kind == "parameter"} == {
        "encoder.weight",
        "encoder.bias",
    }
    assert found.location is not None
    assert found.location.text.startswith("fooled = ")
    assert "detach() cuts the graph" in found.cause


def test_a_region_without_gradients_in_the_step_is_the_line() -> None:
    found = judged(without_gradients)
    assert found.location is not None
    assert found.location.text == "with torch.no_grad():"


def test_a_step_that_trains_every_part_passes() -> None:
    assert judged(sound).status == "passed"
