"""A factory that loads a checkpoint of which no key matches is found; loads of a part are not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Finding

X, Y = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.arange(5) % 3
torch.manual_seed(1)
BODY = nn.Sequential(nn.Linear(4, 8), nn.Tanh()).state_dict()
WRAPPED = {f"module.{name}": value for name, value in BODY.items()}
WHOLE = {f"0.{name}": value for name, value in BODY.items()} | {"head.weight": torch.zeros(7, 8)}


def net() -> nn.Sequential:
    return nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 3))


def wrapped() -> nn.Module:
    made = net()
    made[0].load_state_dict(WRAPPED, strict=False)  # HERE
    return made


def into_the_whole() -> nn.Module:
    made = net()
    made.load_state_dict(BODY | {"2.weight": BODY["0.bias"]}, strict=False)  # HERE
    return made


def unwrapped() -> nn.Module:
    made = net()
    made[0].load_state_dict({name.removeprefix("module."): v for name, v in WRAPPED.items()})
    return made


def without_the_head() -> nn.Module:
    made = net()
    made.load_state_dict(WHOLE, strict=False)
    return made


def tried_twice() -> nn.Module:
    """What does not match is tried under its other name."""
    made = net()
    if made[0].load_state_dict(WRAPPED, strict=False).missing_keys:
        made[0].load_state_dict(BODY)
    return made


def found_in(factory: object) -> list[Finding]:
    contract = Contract(model=factory, batch=((X,), Y), loss=F.cross_entropy)
    return list(contract.check(["state-dict-roundtrip"]).with_status("violated"))


@pytest.mark.parametrize(
    ("factory", "fix"),
    [
        (wrapped, "take 'module.' off the keys"),
        (into_the_whole, "load into the part of Sequential"),
    ],
)
def test_a_checkpoint_that_gives_nothing(factory: object, fix: str) -> None:
    (finding,) = found_in(factory)
    assert finding.code == "loads-nothing"
    assert finding.location is not None
    assert finding.location.text.endswith("# HERE")
    assert finding.fix.startswith(fix)


@pytest.mark.parametrize("factory", [net, unwrapped, without_the_head, tried_twice])
def test_loads_that_give_something(factory: object) -> None:
    before = nn.Module.load_state_dict
    assert found_in(factory) == []
    assert nn.Module.load_state_dict is before


def without(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {k.lstrip("module."): v for k, v in state.items()}


class Stripped(nn.Module):
    """Takes the prefix of a wrapper off the keys: as a prefix, or letter by letter."""

    def __init__(self, by_letter: bool) -> None:
        super().__init__()
        self.by_letter = by_letter
        self.embed, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(x).tanh())

    def load_state_dict(self, state_dict, strict=True, assign=False):  # type: ignore[no-untyped-def]
        if self.by_letter:
            return super().load_state_dict(without(state_dict), strict=False)  # HERE
        state_dict = {k.removeprefix("module."): v for k, v in state_dict.items()}
        return super().load_state_dict(state_dict, strict=strict, assign=assign)


def test_entries_that_an_own_load_loses_on_the_way_are_told_by_the_call_that_lacks_them() -> None:
    assert found_in(lambda: Stripped(False)) == []
    (finding,) = found_in(lambda: Stripped(True))
    assert finding.code == "state-lost"
    assert finding.location is not None
    assert finding.location.text.endswith("# HERE")
    assert "given the keys bed.weight" in finding.cause
