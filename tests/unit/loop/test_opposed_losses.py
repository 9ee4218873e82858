"""A loss that reaches one part through another must not move the other one against a loss of its own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Pair(nn.Module):
    """Makes something of noise, and judges or reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 5))
        self.judge = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, z):
        return self.maker(z)


def whole(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def apart(model):
    return {
        "maker": torch.optim.SGD(model.maker.parameters(), lr=0.01),
        "judge": torch.optim.SGD(model.judge.parameters(), lr=0.01),
    }


def told(step, optimizer=whole):
    torch.manual_seed(1)
    contract = Contract(
        model=Pair, batch=((torch.randn(8, 4),), torch.randn(8, 5)), optimizer=optimizer, train_step=step
    )  # fmt: skip
    return [f for f in contract.check(["step-protocol"]).findings if f.status != "not-applicable"]


def of_judge(model, fake, real):
    scores = model.judge(real), model.judge(fake.detach())
    return sum(
        F.binary_cross_entropy_with_logits(s, torch.full_like(s, float(y)))
        for s, y in zip(scores, (1, 0), strict=True)
    )


def fooling(model, z, optimizer, real):
    optimizer.zero_grad()
    of_judge(model, model(z[0]), real).backward()
    scores = model.judge(model(z[0]))  # through
    F.binary_cross_entropy_with_logits(scores, torch.ones_like(scores)).backward()
    optimizer.step()


def pleasing(model, z, optimizer, real):
    optimizer.zero_grad()
    value = -model.judge(model(z[0])).mean()  # through
    value.backward()
    (model.judge(real) - real.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()


def blending(model, z, optimizer, real):
    optimizer.zero_grad()
    made = model(z[0])
    fooled = F.softplus(-model.judge(made)).mean()  # through
    (F.mse_loss(made, real) + 0.5 * fooled).backward()
    of_judge(model, made, real).backward()
    optimizer.step()


@pytest.mark.parametrize("step", [fooling, pleasing, blending])
def test_one_optimizer_applies_what_moves_the_judge_too(step):
    (finding,) = told(lambda m, o, z, y: step(m, z, o, y))
    assert (finding.status, finding.code) == ("violated", "loss-moves-another-part")
    assert finding.culprits[0].name == "judge"
    assert finding.location.text.endswith("# through")


def overlapping(model):
    """The maker's optimizer was given all parameters, as is easily written."""
    return {"maker": torch.optim.Adam(model.parameters()), "judge": apart(model)["judge"]}


def test_the_optimizer_of_the_maker_moves_the_judge_too():
    (finding,) = told(cleared, overlapping)
    assert (finding.status, finding.code) == ("violated", "loss-moves-another-part")
    assert finding.culprits[0].name == "judge"
    assert "leave judge out of the optimizer" in finding.fix
    assert "optimizers['judge'].step() at" in finding.observed.replace('"', "'")


def frozen(model, optimizer, z, real):
    optimizer.zero_grad()
    of_judge(model, model(z[0]), real).backward()
    model.judge.requires_grad_(False)
    scores = model.judge(model(z[0]))
    F.binary_cross_entropy_with_logits(scores, torch.ones_like(scores)).backward()
    model.judge.requires_grad_(True)
    optimizer.step()


def cleared(model, optimizers, z, real):
    optimizers["judge"].zero_grad()
    of_judge(model, model(z[0]), real).backward()
    optimizers["judge"].step()
    optimizers["maker"].zero_grad()
    scores = model.judge(model(z[0]))
    F.binary_cross_entropy_with_logits(scores, torch.ones_like(scores)).backward()
    optimizers["maker"].step()


def agreeing(model, optimizer, z, real):
    """What is made is to be read as its sum, and what is given too: both losses have a best output."""
    optimizer.zero_grad()
    (model.judge(real) - real.sum(1, keepdim=True)).square().mean().backward()
    (model.judge(model(z[0])) - 40.0).abs().mean().backward()
    optimizer.step()


def supervised_twice(model, optimizer, z, real):
    """What is made is to be like the given, and to be read as it is: both losses of the judge have a best output."""
    optimizer.zero_grad()
    made, read = model(z[0]), real.sum(1, keepdim=True)
    F.mse_loss(model.judge(made.detach()), read).backward()
    (F.mse_loss(made, real) + F.mse_loss(model.judge(made), read)).backward()
    optimizer.step()


def read_beside(model, optimizer, z, real):
    """The judge reads what is given only; what is made has a loss of its own in the same pass."""
    optimizer.zero_grad()
    F.mse_loss(model.judge(real), real.sum(1, keepdim=True)).backward()
    (F.mse_loss(model(z[0]), real) - 0.01 * model.judge(real).mean()).backward()
    optimizer.step()


def two_tasks(model, optimizer, z, real):
    optimizer.zero_grad()
    (model(z[0]) - real).square().mean().backward()
    model.judge(model(z[0])).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("step", "optimizer"),
    [
        (frozen, whole),
        (cleared, apart),
        (agreeing, whole),
        (supervised_twice, whole),
        (read_beside, whole),
        (two_tasks, whole),
    ],
)
def test_several_losses_that_are_meant(step, optimizer):
    assert [f.status for f in told(step, optimizer)] == ["passed"]
