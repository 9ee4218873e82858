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


def one_kept(m: Any) -> Any:
    slow = {"params": [*m.stem.parameters(), *m.neck.parameters()], "lr": 0.01}
    fast = {"params": list(m.head.parameters())}
    gates = {"params": list(m.gate.parameters())}  # kept
    every = [slow, fast]
    assert gates
    return torch.optim.SGD(every, lr=0.1)


def appended(m: Any) -> Any:
    gates, every = (m.gate.weight, m.gate.bias), []  # kept
    every.append({"params": [*m.stem.parameters(), *m.neck.parameters()]})
    every.append({"params": list(m.head.parameters())})  # last
    return torch.optim.SGD(every, lr=0.1) if gates else None


def unread(m: Any) -> Any:
    rest = [*m.stem.parameters(), *m.neck.parameters(), *m.head.parameters()]
    gates = m.gate.parameters()  # kept
    assert gates is not None
    return torch.optim.SGD(rest, lr=0.1)


def sorted_out(m: Any) -> Any:
    gates: list[Any] = []  # kept
    rest = []
    for name, p in m.named_parameters():
        (gates if "gate" in name else rest).append(p)
    return torch.optim.SGD([{"params": rest}], lr=0.1)


def parts_of(m: Any) -> list[dict[str, Any]]:
    gates = {"params": list(m.gate.parameters())}  # kept
    rest = {"params": [*m.stem.parameters(), *m.neck.parameters(), *m.head.parameters()]}
    assert gates
    return [rest]


def gathered(m: Any) -> Any:
    return torch.optim.SGD(parts_of(m), lr=0.1)


def listed(m: Any) -> Any:
    body = list(m.stem.parameters())
    ends = [*m.neck.parameters(), *m.head.parameters()]
    every = [{"params": body}, {"params": ends}]
    return torch.optim.SGD(every, lr=0.1)


def chosen(m: Any) -> Any:
    everything = list(m.parameters())
    first = [p for p in everything if p is not m.gate.weight and p is not m.gate.bias]
    return torch.optim.SGD(first, lr=0.1)


def turned(m: Any) -> Any:
    every = []
    for part in (m.stem, m.neck, m.head, m.gate):
        own = list(part.parameters())
        if part is not m.gate:
            every.extend(own)
    return torch.optim.SGD(every, lr=0.1)


def findings(optimizer: Any) -> dict[str, Any]:
    contract = Contract(
        model=Net(),
        batch=((torch.randn(4, 3),), torch.randn(4, 3)),
        loss=nn.functional.mse_loss,
        optimizer=optimizer,
    )
    found = contract.check(["optimizer-coverage", "weights-update"]).findings
    return {f.code: f for f in found if f.status == "violated"}


@pytest.mark.parametrize(
    ("optimizer", "function", "text", "said"),
    [
        (one_kept, one_kept, "every = ", "and is not in `every`"),
        (appended, appended, "# last", "and is not in `every`"),
        (unread, unread, "rest = ", "and is not in `rest`"),
        (sorted_out, sorted_out, "optim.SGD", "and is not given to the optimizer"),
        (gathered, parts_of, "return", "and is not given to the optimizer"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_variable_that_holds_it_and_is_not_given(
    optimizer: Any, function: Any, text: str, said: str
) -> None:
    codes = findings(optimizer)
    missing, kept = codes["optimizer-missing"], line(function, "# kept")
    assert missing.location.line == codes["weight-static"].location.line == line(function, text)
    assert f"`gates` (line {kept}) holds gate.weight {said}" in missing.cause
    assert kept in {c.location.line for c in missing.culprits if c.location}
    assert "add `gates`" in missing.fix


def test_a_list_that_is_written_out_and_given_by_name() -> None:
    codes = findings(listed)
    wanted = line(listed, "every = ")
    assert codes["optimizer-missing"].location.line == wanted
    assert codes["weight-static"].location.line == wanted
    assert f"line {wanted} lists what `every` holds" in codes["optimizer-missing"].cause


@pytest.mark.parametrize(
    ("optimizer", "text"),
    [(chosen, "first = "), (turned, "for part in")],
    ids=["of_everything", "of_one_turn"],
)
def test_a_list_that_a_condition_chose_from_is_not_left_out(optimizer: Any, text: str) -> None:
    missing = findings(optimizer)["optimizer-missing"]
    assert "and is not" not in missing.cause
    assert missing.location.line == line(optimizer, text)


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
