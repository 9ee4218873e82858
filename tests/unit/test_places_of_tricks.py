"""What hides itself is found at its own line: writes without a count, hooks, switches, overrides of ``nn.Module``."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

_DRAW = torch.Generator().manual_seed(9)
X, Y = torch.randn(6, 5, generator=_DRAW), torch.tensor([0, 1, 2, 2, 1, 0])


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(5, 6), nn.Tanh()), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.body(x))


def findings(model: Any, check: str, loss: Any = F.cross_entropy) -> list[Any]:
    return list(Contract(model=model, batch=((X,), Y), loss=loss).check([check]).findings)


def at(found: Any) -> str:
    return found.location.text.partition("  #")[0]


class Scales(Base):
    def forward(self, x: torch.Tensor) -> Any:
        rows = x[:, 1:].detach()
        rows.data.clamp_(-1, 1)
        return super().forward(x)


class ByNumPy(Base):
    def forward(self, x: torch.Tensor) -> Any:
        x.detach().numpy()[:] = 0.5
        return super().forward(x + 1)


def test_a_write_that_torch_does_not_count() -> None:
    (found,) = findings(Scales, "inputs-unchanged")
    assert at(found) == "rows.data.clamp_(-1, 1)"
    (found,) = findings(ByNumPy, "inputs-unchanged")
    assert found.location.text.startswith("def forward")


class Pops(Base):
    def state_dict(self, *args: Any, **options: Any) -> Any:
        state = super().state_dict(*args, **options)
        state.pop("body.0.bias")
        return state

    def load_state_dict(self, state: Any, strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict(state, strict=False, assign=assign)


class Filters(Pops):
    def state_dict(self, *args: Any, **options: Any) -> Any:
        state = nn.Module.state_dict(self, *args, **options)
        return {k: v for k, v in state.items() if "body" not in k}


@pytest.mark.parametrize("model", [Pops, Filters])
def test_the_line_by_which_an_entry_is_left_out(model: Any) -> None:
    (found,) = findings(model, "state-dict-roundtrip")
    assert found.code == "state-lost"
    line = 'state.pop("body.0.bias")' if model is Pops else "return {k: v for k, v"
    assert at(found).startswith(line)


class Itself(nn.Linear):
    def __deepcopy__(self, memo: Any) -> Any:
        return self


class Part(nn.Linear):
    def __deepcopy__(self, memo: Any) -> Any:
        twin = Part(self.in_features, self.out_features)
        twin.weight = self.weight
        twin.bias = copy.deepcopy(self.bias, memo)
        return twin


@pytest.mark.parametrize("part", [Itself, Part])
def test_what_a_copy_takes_over(part: Any) -> None:
    def build() -> nn.Module:
        model = Base()
        model.head = part(6, 3)
        return model

    found = next(f for f in findings(build, "copy-and-pickle") if f.code == "copy-depends")
    assert at(found) == ("return self" if part is Itself else "twin.weight = self.weight")


class Off(Base):
    def forward(self, x: torch.Tensor) -> Any:
        if self.training:
            torch.set_grad_enabled(True)
            return super().forward(x)
        with torch.enable_grad():
            y = super().forward(x)
        torch._C._set_grad_enabled(False)
        return y


def test_gradients_that_an_evaluation_leaves_off() -> None:
    (found,) = findings(Off, "rng-hygiene")
    assert "from True to False in evaluation mode" in found.summary
    assert at(found) == "torch._C._set_grad_enabled(False)"
    assert [c.location.text for c in found.culprits][1] == "torch.set_grad_enabled(True)"


class Frozen(Base):
    def forward(self, x: torch.Tensor) -> Any:
        for p in self.body.parameters():
            p.requires_grad = False
        y = super().forward(x)
        for p in self.body.parameters():
            p.requires_grad = True
        return y, sum(p.square().sum() for p in self.body.parameters())


def decayed(output: Any, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output[0], targets) + 0.1 * output[1]


def test_gradients_that_are_off_for_a_part_of_the_forward() -> None:
    """A part may be meant to be frozen in one term of a loss: that is suspicious, no wrong derivative."""
    (found,) = findings(Frozen, "descent", decayed)
    assert (found.status, found.code) == ("suspicious", "gradient-partial")
    assert at(found) == "p.requires_grad = False"
    (found,) = findings(Frozen, "weights-update", decayed)
    assert found.code == "weight-untaught"
    assert at(found) == "p.requires_grad = False"


class Skips(Base):
    def __call__(self, x: torch.Tensor) -> Any:
        return self.head(x[:, :1].expand(-1, 6)), sum(
            p.pow(2).sum() for p in self.body.parameters()
        )


def test_a_call_that_skips_forward() -> None:
    (found,) = findings(Skips, "weights-update", decayed)
    assert found.code == "weight-untaught"
    assert at(found).startswith("return self.head(")
    assert "Skips.forward does not run" in found.cause


class Later(Base):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        h = self.body(x)
        if self.calls > 6 and self.training:
            h = torch.tensor(h.tolist())
        return self.head(h)


def test_the_cut_of_a_later_step() -> None:
    (found,) = findings(Later, "repeatable-steps")
    assert found.code == "weight-stops"
    assert at(found) == "h = torch.tensor(h.tolist())"


class Hooked(Base):
    def __init__(self, hook: Any, eps: float = 0.0) -> None:
        super().__init__()
        self.eps = eps
        for p in self.parameters():
            p.register_hook(hook)

    def forward(self, x: torch.Tensor) -> Any:
        h = self.body(x)
        apart = (h[:, None] - h[None]).square().sum(-1)
        return self.head(h) + (apart + self.eps).sqrt().mean()


def test_gradients_whose_nan_a_hook_replaces() -> None:
    (found,) = findings(lambda: Hooked(lambda g: g.nan_to_num(0.1)), "gradients-finite")
    assert (found.status, found.code) == ("violated", "non-finite-gradient")
    assert at(found).startswith("return self.head(h) + (apart")
    assert "a hook puts other numbers" in found.cause
    for hook in (lambda g: g.nan_to_num(0.1), lambda g: g.clamp(-0.1, 0.1)):
        (found,) = findings(lambda h=hook: Hooked(h, 1e-6), "gradients-finite")
        assert found.status == "passed"
