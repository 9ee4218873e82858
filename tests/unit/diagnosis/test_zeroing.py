"""The line that makes a parameter all zeros is found in a finished model, and seen where a factory builds it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.diagnosis.training.zeroing_lines import zeroing_lines
from pytest_torchcheck.subject import Subject


def zero_all(module):
    for p in module.parameters():
        nn.init.zeros_(p)


class Factors(nn.Module):
    """Adds a product of two factors to a layer."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(4, 3)
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 3, bias=False)
        self.start()

    def start(self):
        nn.init.zeros_(self.up.weight)  # UP

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Loop(Factors):
    def start(self):
        for name, p in self.named_parameters():
            if "down" in name:
                nn.init.constant_(p, 0.0)  # DOWN
            elif "up" in name:
                p.data.fill_(0)  # UP


class Applied(Factors):
    def start(self):
        def start(module):
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.weight)  # DOWN  # UP

        self.apply(start)


class Helped(Factors):
    def start(self):
        zero_all(self.up)  # UP


class Made(Factors):
    def start(self):
        self.up.weight = nn.Parameter(torch.zeros(3, 2))  # UP
        self.base.bias = nn.Parameter(torch.zeros(3))


class Doubtful(Factors):
    def start(self):
        for p in self.up.parameters():
            nn.init.zeros_(p)
        for p in self.base.parameters():
            p.data.zero_()


def lines(model, name, *, factory):
    contract = Contract(
        model=model if factory else model(), inputs="B 4", targets="B 3", loss=F.mse_loss
    )
    subject = Subject(contract, device="cpu", dtype=None, seed=0)
    try:
        return [place.text for place in zeroing_lines(subject, name)]
    finally:
        subject.close()


@pytest.mark.parametrize(
    ("model", "part"),
    [(Factors, "up"), (Loop, "up"), (Loop, "down"), (Applied, "up"), (Helped, "up"), (Made, "up")],
)
def test_the_line_is_read_from_the_source(model, part):
    found = lines(model, f"{part}.weight", factory=False)
    assert f"# {part.upper()}" in found[0]
    assert len(found) == (2 if model is Helped else 1)


def test_several_lines_that_could_have_done_it_are_none():
    assert lines(Doubtful, "up.weight", factory=False) == []
    (seen,) = lines(Doubtful, "up.weight", factory=True)
    assert seen == "nn.init.zeros_(p)"


@pytest.mark.parametrize("factory", [True, False])
def test_two_factors_of_zeros_are_told_by_the_line_that_zeroes_them(factory):
    made = {"inputs": "B 4", "targets": "B 3", "loss": F.mse_loss}
    report = Contract(model=Loop if factory else Loop(), **made).check(["gradients-exist"])
    (found,) = report.causes
    assert found.code == "grad-zero"
    assert "# DOWN" in found.location.text
    assert "start at zero" in found.because
    assert any(c.location is not None and "# UP" in c.location.text for c in found.culprits)
    assert Contract(model=Factors, **made).check(["gradients-exist"]).ok  # one factor of zeros
