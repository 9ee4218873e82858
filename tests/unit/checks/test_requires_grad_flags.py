"""``requires_grad`` set on a module: without effect, and attributes of that name that are meant."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.promises import Frozen


class Stages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.middle = nn.Linear(4, 6), nn.Linear(6, 6)
        self.top = nn.Linear(6, 2)

    def forward(self, x):
        return self.top(torch.tanh(self.middle(torch.tanh(self.stem(x)))))


class ByName(Stages):
    def __init__(self) -> None:
        super().__init__()
        self.stem.requires_grad = False  # does nothing


class InLoop(Stages):
    def __init__(self) -> None:
        super().__init__()
        for layer in (self.stem, self.middle):
            layer.requires_grad = False  # does nothing


class Thawed(Stages):
    def __init__(self) -> None:
        super().__init__()
        self.stem.requires_grad_(False)
        self.stem.requires_grad = True  # does nothing


class Called(Stages):
    def __init__(self) -> None:
        super().__init__()
        self.stem.requires_grad_(False)


class ByParameter(Stages):
    def __init__(self) -> None:
        super().__init__()
        self.stem.weight.requires_grad = False


class Agrees(Stages):
    def __init__(self) -> None:
        super().__init__()
        self.stem.requires_grad_(False)
        self.stem.requires_grad = False


class Gate(nn.Linear):
    """Has such an attribute of its own."""

    def __init__(self) -> None:
        super().__init__(6, 6)
        self.requires_grad = False

    def forward(self, x):
        return super().forward(x if self.requires_grad else x.detach())


class WithGate(Stages):
    def __init__(self) -> None:
        super().__init__()
        self.middle = Gate()


class Reads(Stages):
    """Uses the attribute as a switch for its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.top.requires_grad = False

    def forward(self, x):
        x = torch.tanh(self.middle(torch.tanh(self.stem(x))))
        return self.top(x) if self.top.requires_grad else self.top(x * 1.0)


def _findings(model: nn.Module) -> list:
    torch.manual_seed(0)
    contract = Contract(
        model=model, batch=((torch.randn(5, 4),), torch.randn(5, 2)), loss=F.mse_loss
    )
    return list(contract.check(["mode-flags"]).findings)


@pytest.mark.parametrize(
    ("model", "names"),
    [(ByName, ["stem"]), (InLoop, ["stem", "middle"]), (Thawed, ["stem"])],
)
def test_a_flag_without_effect_is_named_by_its_line(model, names):
    (finding,) = _findings(model())
    assert (finding.status, finding.code) == ("violated", "requires-grad-of-module")
    assert finding.location.text.endswith("# does nothing")
    assert [one.name for one in finding.culprits] == names


@pytest.mark.parametrize("model", [Stages, Called, ByParameter, Agrees, WithGate, Reads])
def test_what_is_frozen_otherwise_passes(model):
    (finding,) = _findings(model())
    assert finding.status == "passed"


def test_a_flag_explains_what_moves_though_it_was_promised_to_stay():
    torch.manual_seed(0)
    contract = Contract(
        model=ByName(),
        batch=((torch.randn(5, 4),), torch.randn(5, 2)),
        loss=F.mse_loss,
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
        promises=[Frozen("stem.*", reason="pretrained")],
    )
    found = {f.code: f for f in contract.check(["mode-flags", "frozen-stays"]).findings}
    assert found["frozen-moved"].root is not None
    assert found["requires-grad-of-module"].root is None
