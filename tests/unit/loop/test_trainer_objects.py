"""A trainer that is an object: a second optimizer of its own, a network that only its own loss trains."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

X, Y = torch.linspace(-1, 1, 24).view(8, 3), torch.linspace(1, -1, 16).view(8, 2)


class Judge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(2, 6), nn.LeakyReLU(0.2), nn.Linear(6, 1))

    def forward(self, y):
        return self.score(y)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.maker, self.judge = nn.Linear(3, 2), Judge()

    def forward(self, x):
        return self.maker(x)


class Trainer:
    def __init__(self, *, stale: bool = False) -> None:
        self.stale, self.judging = stale, None

    def optimizers(self, model):
        self.judging = torch.optim.Adam(model.judge.parameters(), lr=1e-2)
        return torch.optim.Adam(model.maker.parameters(), lr=1e-2)

    def step(self, model, optimizer, inputs, targets):
        made = model(*inputs)
        false = model.judge(made)
        self.judging.zero_grad()
        (F.softplus(false) + F.softplus(-model.judge(targets))).mean().backward(retain_graph=True)
        self.judging.step()
        if not self.stale:
            false = model.judge(made)
        optimizer.zero_grad()
        loss = F.mse_loss(made, targets) + F.softplus(-false).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()


def contract(trainer: Trainer) -> Contract:
    torch.manual_seed(0)
    return Contract(
        model=Pair(),
        batch=((X,), Y),
        loss=F.mse_loss,
        optimizer=trainer.optimizers,
        train_step=trainer.step,
    )


def test_a_second_optimizer_of_the_trainer_is_saved_and_its_network_trained():
    report = contract(Trainer()).check(["gradients-exist", "resume", "dead-modules"])
    assert [f.status for f in report.findings] == ["passed"] * 3, report
    resumed = next(f for f in report.findings if f.check == "resume")
    assert "self.judging" in resumed.summary


def test_what_the_trainer_keeps_is_put_back():
    trainer = Trainer()
    contract(trainer).check(["resume", "step-protocol"])
    assert trainer.judging is None


def test_a_stale_forward_names_the_step_and_the_backward():
    report = contract(Trainer(stale=True)).check(["backward"])
    (found,) = [f for f in report.findings if f.status == "violated"]
    assert found.code == "inplace-saved"
    texts = [c.location.text for c in found.culprits if c.location is not None]
    assert "self.judging.step()" in texts
    assert "loss.backward()" in texts


def test_an_optimizer_that_no_checkpoint_can_hold_is_no_verdict():

    class Once(dict):
        pass

    def make(model):
        optimizer = torch.optim.SGD(model.maker.parameters(), lr=1e-2)
        Once.other = torch.optim.Adam(model.judge.parameters(), lr=1e-2)
        return optimizer

    def step(model, optimizer, inputs, targets):
        loss = F.mse_loss(model(*inputs), targets) + model.judge(targets).square().mean()
        optimizer.zero_grad()
        Once.other.zero_grad()
        loss.backward()
        optimizer.step()
        Once.other.step()
        return loss.detach()

    report = Contract(
        model=Pair(), batch=((X,), Y), loss=F.mse_loss, optimizer=make, train_step=step
    ).check(["resume"])
    (found,) = report.findings
    assert (found.status, found.code) == ("inconclusive", "state-elsewhere"), report
    assert "Adam" in found.summary
