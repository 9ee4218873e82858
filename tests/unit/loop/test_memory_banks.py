"""What only a loss keeps, such as a memory bank, may be filled anew after a resume; what trains must not forget."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from loop_bugs import Net, task
from torch import nn

from pytest_torchcheck import Contract


class Loss(nn.Module):
    """Cross-entropy, and a term of what earlier batches gave."""

    def forward(self, output, labels):
        loss = F.cross_entropy(output, labels) + 0.1 * self.beside(output)
        self.keep(output.detach())
        return loss


class Queue(Loss):
    """The bank is a buffer, its pointer a plain number: as in pytorch-metric-learning."""

    def __init__(self):
        super().__init__()
        self.register_buffer("bank", torch.zeros(32, 3))
        self.place = 0

    def beside(self, output):
        return (output @ self.bank.clone().T).logsumexp(1).mean()

    def keep(self, output):
        self.bank[(torch.arange(len(output)) + self.place) % 32] = output
        self.place = (self.place + len(output)) % 32


class Recent(Loss):
    def __init__(self):
        super().__init__()
        self.bank = deque([torch.zeros(3)], maxlen=16)

    def beside(self, output):
        return (output @ torch.stack(list(self.bank)).T).logsumexp(1).mean()

    def keep(self, output):
        self.bank.extend(output)


class Centre(Loss):
    def __init__(self, saved=False):
        super().__init__()
        if saved:
            self.register_buffer("centre", torch.zeros(3))
        else:
            self.centre = torch.zeros(3)

    def beside(self, output):
        return (output - self.centre).square().mean()

    def keep(self, output):
        self.centre = 0.9 * self.centre + 0.1 * output.mean(0)


class Rising(torch.optim.SGD):
    """Its step depends on a count that no state holds."""

    count = 0

    def step(self, closure=None):
        self.count += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(1 + 0.1 * self.count)
        return super().step(closure)


def found(loss: nn.Module, model: Any = Net, kind: Any = torch.optim.SGD) -> Any:
    def train_step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
        optimizer.zero_grad()
        value = loss(model(*inputs), targets)
        value.backward()
        optimizer.step()
        return value.detach()

    declared = task(model, train_step, optimizer=lambda m: kind(m.parameters(), lr=0.1))
    (finding,) = Contract(**declared).check(["resume"]).findings
    return finding


@pytest.mark.parametrize(
    ("loss", "name"),
    [(Queue, "loss.place"), (Recent, "loss.bank[0]"), (Centre, "loss.centre")],
)
def test_what_only_the_loss_keeps_may_be_filled_anew(loss: Any, name: str) -> None:
    finding = found(loss())
    assert (finding.status, finding.code) == ("suspicious", "resume-differs")
    assert finding.culprits[0].name == name
    assert "carried over too, the runs are equal bit for bit" in finding.because
    assert finding.fix.startswith(f"make {name} a buffer of loss")


def test_what_a_loss_saves_resumes() -> None:
    assert found(Centre(saved=True)).status == "passed"


def test_a_count_that_decides_nothing_is_not_blamed_for_the_bank() -> None:
    class Counting(Net):
        seen = 0

        def forward(self, x):
            self.seen += 1
            return super().forward(x)

    finding = found(Centre(), Counting)
    assert finding.status == "suspicious"
    assert [c.name for c in finding.culprits] == ["loss.centre"]


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss, Centre])
def test_what_an_optimizer_forgets_is_violated_beside_a_bank_too(loss: Any) -> None:
    finding = found(loss(), kind=Rising)
    assert (finding.status, finding.code) == ("violated", "resume-differs")
    assert {c.name for c in finding.culprits} == {"optimizer.count"}
