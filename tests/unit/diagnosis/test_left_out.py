"""A parameter that no optimizer holds: the line where it would have to be added, however the list is built."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from provoke import line
from torch import nn

from pytest_torchcheck import Contract

PARTS = ("stem", "neck")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.neck, self.gate, self.head = (nn.Linear(3, 3) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.gate(self.neck(self.stem(x)))
        made: torch.Tensor = self.head(x)
        return made


def extended(m: Any) -> Any:
    held = list(m.stem.parameters())
    held.extend(m.neck.parameters())
    held += [m.head.weight, m.head.bias]
    return torch.optim.SGD(held, lr=0.1)


def looped(m: Any) -> Any:
    held = [m.head.weight, m.head.bias]
    for part in PARTS:
        held += list(getattr(m, part).parameters())
    return torch.optim.SGD(held, lr=0.1)


def written_out(m: Any) -> Any:
    return torch.optim.SGD(
        [
            {"params": m.stem.parameters()},
            {"params": [*m.neck.parameters(), *m.head.parameters()]},
        ],
        lr=0.1,
    )


def groups_of(m: Any) -> list[dict[str, Any]]:
    decay, rest = [], []
    for name, p in m.named_parameters():
        if not p.requires_grad:
            continue
        if "gate" not in name:
            (rest if p.ndim == 1 else decay).append(p)
    return [{"params": decay, "weight_decay": 0.01}, {"params": rest}]


def helped(m: Any) -> Any:
    return torch.optim.SGD(groups_of(m), lr=0.1)


def make(params: Any) -> Any:
    return torch.optim.SGD(params, lr=0.1)


def handed_over(m: Any) -> Any:
    heads = [p for p in m.head.parameters() if p.ndim]
    held = [{"params": heads}]
    held.append({"params": [*m.stem.parameters(), *m.neck.parameters()]})
    return make(held)


def grown(m: Any) -> Any:
    made = torch.optim.SGD(m.stem.parameters(), lr=0.1)
    made.add_param_group({"params": m.neck.parameters()})
    made.add_param_group({"params": m.head.parameters()})
    return made


@pytest.mark.parametrize(
    ("optimizer", "function", "text"),
    [
        (extended, extended, "held += [m.head.weight"),
        (looped, looped, "for part in PARTS"),
        (written_out, written_out, "*m.neck.parameters()"),
        (helped, groups_of, 'if "gate" not in name'),
        (handed_over, handed_over, "held.append("),
        (grown, grown, "m.head.parameters()"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_line_where_it_would_have_to_be_added(optimizer: Any, function: Any, text: str) -> None:
    contract = Contract(
        model=Net(),
        batch=((torch.randn(4, 3),), torch.randn(4, 3)),
        loss=nn.functional.mse_loss,
        optimizer=optimizer,
    )
    found = contract.check(["optimizer-coverage", "weights-update"]).findings
    codes = {f.code: f for f in found if f.status == "violated"}
    wanted = line(function, text)
    assert codes["optimizer-missing"].location.line == wanted
    assert codes["weight-static"].location.line == wanted
    cited = {c.location.line for c in codes["optimizer-missing"].culprits if c.location}
    if optimizer in (extended, looped, handed_over):
        assert line(make if optimizer is handed_over else optimizer, "optim.SGD(") in cited


def test_a_condition_over_other_parameters_is_not_blamed() -> None:
    contract = Contract(
        model=Net(),
        batch=((torch.randn(4, 3),), torch.randn(4, 3)),
        loss=nn.functional.mse_loss,
        optimizer=handed_over,
    )
    (found,) = (
        f for f in contract.check(["optimizer-coverage"]).findings if f.status == "violated"
    )
    assert "the last line that adds any" in found.cause
