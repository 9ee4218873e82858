"""Parameters and outputs that torch itself can do little with: nothing fails on them, and what is not known is said."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

_DRAW = torch.Generator().manual_seed(8)
X, Y = torch.randn(6, 4, generator=_DRAW), torch.tensor([0, 1, 2, 2, 1, 0])


def report(model: Any, loss: Any = F.cross_entropy, targets: Any = Y) -> Any:
    return Contract(model=model, batch=((X,), targets), loss=loss).check()


def wrong(found: Any) -> list[str]:
    return [str(f) for f in found.findings if f.status in ("violated", "error")]


class Spread(nn.Module):
    """A sparse matrix that is trained: no optimizer of torch's can update it."""

    def __init__(self) -> None:
        super().__init__()
        ring = torch.eye(4) + torch.eye(4).roll(1, 0)
        self.ring = nn.Parameter(ring.to_sparse_csr())
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head((self.ring @ x.T).T)


@pytest.mark.filterwarnings("ignore:Sparse CS")
def test_a_parameter_that_no_optimizer_of_torch_updates() -> None:
    found = report(Spread)
    assert wrong(found) == []
    (update,) = [f for f in found.findings if f.check == "weights-update"]
    assert update.status == "inconclusive"
    assert "ring is stored as sparse_csr" in update.summary


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_model_of_which_nothing_can_be_trained() -> None:
    def build() -> nn.Module:
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).eval()
        return torch.ao.quantization.quantize_dynamic(net, {nn.Linear})

    assert wrong(report(build)) == []


class Parts(nn.Module):
    """Cuts rows into parts at fixed places, whatever the number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nested.nested_tensor_from_jagged(self.net(x), torch.tensor([0, 2, 6]))


def test_an_output_whose_parts_go_beyond_its_values_fails_as_its_forward_does() -> None:
    assert wrong(report(Parts, lambda o, _: o.values().square().mean(), None)) == []


class Refusing(torch.Tensor):
    """A tensor that only some functions take."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("equal", "eq", "isnan", "isfinite", "clone"):
            raise TypeError(f"no {func.__name__} of a {cls.__name__}")
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapping(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).as_subclass(Refusing)


def test_an_output_that_cannot_be_compared_is_said() -> None:
    found = report(
        lambda: Wrapping(4, 3), lambda o, t: F.cross_entropy(o.as_subclass(torch.Tensor), t)
    )
    assert [f for f in found.findings if f.status == "error"] == []
    assert any("is a Refusing, which cannot be compared" in f.summary for f in found.findings)


class Flat(nn.Module):
    """Parameters that are views of one buffer, as some collectives want them."""

    def __init__(self, *, views: bool = True) -> None:
        super().__init__()
        self.views = views
        flat = torch.randn(4 * 6 + 6 * 3) / 3
        self.register_buffer("flat", flat, persistent=False)
        one, two = flat[: 4 * 6].view(6, 4), flat[4 * 6 :].view(3, 6)
        self.one = nn.Parameter(one if views else one.clone())
        self.two = nn.Parameter(two if views else two.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x @ self.one.T).tanh() @ self.two.T
        return y if self.views else y + self.flat[:3]


def test_parameters_in_the_memory_of_a_buffer() -> None:
    assert wrong(report(Flat())) == []
    apart = report(Flat(views=False))
    assert [f.code for f in apart.with_status("violated")] == ["state-lost"]
