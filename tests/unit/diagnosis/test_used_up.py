"""An iterator that gives its elements once, and through which an optimizer's parameters were chosen afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from provoke import line
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.diagnosis.training.used_up_iterators import used_up


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(self.body(x).relu())
        return made


def overlapping(m: Any) -> Any:
    special = (id(p) for p in m.head.parameters())
    rest = []
    for p in m.parameters():
        if id(p) in special:
            continue
        rest.append(p)
    return torch.optim.SGD([{"params": rest}, {"params": m.head.parameters()}], lr=0.1)


def groups_of(m: Any) -> list[dict[str, Any]]:
    special = map(id, m.head.parameters())
    rest = [p for p in m.parameters() if id(p) not in special]
    return [{"params": m.head.parameters()}, {"params": rest}]


def helped(m: Any) -> Any:
    return torch.optim.SGD(groups_of(m), lr=0.1)


def read_twice(m: Any) -> Any:
    every = m.named_parameters()
    decay = [p for n, p in every if not n.endswith("bias")]
    plain = [p for n, p in every if n.endswith("bias")]
    return torch.optim.SGD([{"params": decay}, {"params": plain}], lr=0.1)


def counted(m: Any) -> Any:
    trained = filter(lambda p: p.requires_grad, m.parameters())
    size = sum(p.numel() for p in trained)
    return torch.optim.SGD(trained, lr=1.0 / size)


def two_optimizers(m: Any) -> Any:
    special = zip(*[map(id, m.head.parameters())], strict=True)
    rest = [p for p in m.parameters() if (id(p),) not in special]
    return torch.optim.SGD(rest, lr=0.1), torch.optim.SGD(m.head.parameters(), lr=0.1)


def found(optimizer: Any, step: Any = None) -> dict[str, Any]:
    contract = Contract(
        model=Net(),
        batch=((torch.randn(4, 3),), torch.randn(4, 2)),
        loss=nn.functional.mse_loss,
        optimizer=optimizer,
        train_step=step,
    )
    report = contract.check(["backward", "optimizer-coverage", "weights-update"])
    return {f.code: f for f in report.findings if f.status == "violated"}


@pytest.mark.parametrize(
    ("optimizer", "code", "function", "made", "reader"),
    [
        (overlapping, "optimizer-parameters", overlapping, "special =", "if id(p) in"),
        (helped, "optimizer-parameters", groups_of, "special =", "rest ="),
        (read_twice, "optimizer-missing", read_twice, "every =", "decay ="),
        (read_twice, "weight-static", read_twice, "every =", "decay ="),
        (counted, "optimizer-parameters", counted, "trained =", "size ="),
    ],
)
def test_it_is_named_with_the_line_that_uses_it_up(
    optimizer: Any, code: str, function: Any, made: str, reader: str
) -> None:
    finding = found(optimizer)[code]
    assert finding.location.line == line(function, made)
    assert line(function, reader) in [c.location.line for c in finding.culprits if c.location]
    assert f"line {finding.location.line}" in finding.fix


def test_two_optimizers_of_one_gradient() -> None:
    def step(model: Any, made: Any, inputs: Any, targets: Any) -> Any:
        for one in made:
            one.zero_grad()
        loss = nn.functional.mse_loss(model(*inputs), targets)
        loss.backward()
        for one in made:
            one.step()
        return loss.detach()

    finding = found(two_optimizers, step)["optimizer-twice"]
    assert finding.location.line == line(two_optimizers, "special =")


def kept(m: Any) -> Any:
    special = map(id, m.head.parameters())
    special = set(special)
    return [p for p in m.parameters() if id(p) in special]


def made_anew(m: Any) -> Any:
    chosen = []
    for p in m.parameters():
        special = map(id, m.head.parameters())
        if id(p) in special:
            chosen.append(p)
    return chosen


def one_or_the_other(m: Any, flat: bool) -> Any:
    every = m.parameters()
    if flat:
        return list(every)
    return [{"params": [p]} for p in every]


def left_early(m: Any) -> Any:
    every = m.parameters()
    for p in every:
        if p.ndim > 1:
            break
    return list(every)


def asked_once(m: Any) -> Any:
    return 3 in map(len, m.children())


@pytest.mark.parametrize("function", [kept, made_anew, one_or_the_other, left_early, asked_once])
def test_what_is_not_used_up(function: Any) -> None:
    code = function.__code__
    assert used_up(__file__, code.co_firstlineno + 1, lambda _: True) == []
