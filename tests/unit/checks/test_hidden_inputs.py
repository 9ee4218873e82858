"""What a batch's other inputs hide is not ignored; what no value of them shows is. An output kept detached is only suspicious."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_torchcheck import Contract, Ints


class Carried(nn.Module):
    """Goes on from a state, unless the mask says that something new begins."""

    def __init__(self, *, reads: bool) -> None:
        super().__init__()
        self.reads = reads
        self.mix = nn.Linear(4, 4)

    def forward(self, x: Tensor, keep: Tensor, state: Tensor) -> Tensor:
        begun = state * keep if self.reads else torch.zeros_like(state)
        return self.mix(x) + begun


@pytest.mark.parametrize("reads", [True, False])
def test_an_input_that_the_mask_of_this_batch_hides_is_not_ignored(reads: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, state = (torch.randn(5, 4, generator=generator) for _ in range(2))
    batch = {"x": x, "keep": torch.zeros(5, 1), "state": state}
    report = Contract(model=lambda: Carried(reads=reads), batch=(batch, None)).check(
        ["input-influence"]
    )
    ignored = [c.name for f in report.findings if f.status == "violated" for c in f.culprits]
    assert ("state" in ignored) is not reads


class Exponential(torch.autograd.Function):
    """Keeps its result without a graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.y = y.detach()
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * ctx.y


class Cyclic(Exponential):
    """Keeps the result itself, which keeps the context."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.y = x.exp()
        return ctx.y


@pytest.mark.parametrize(("kind", "status"), [(Exponential, "suspicious"), (Cyclic, "violated")])
def test_a_detached_output_on_the_context_is_suspicious(kind: Any, status: str) -> None:
    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    report = Contract(functions={"exp": (kind.apply, (x,))}).check(["gradcheck"])
    found = [f for f in report.findings if f.code == "saved-on-ctx"]
    assert [f.status for f in found] == [status]


class Neighbours(nn.Module):
    """Scores samples by stored ones, but not by their own earlier versions."""

    def __init__(self, *, compares: bool) -> None:
        super().__init__()
        self.compares = compares
        self.embed = nn.Linear(4, 6)
        self.register_buffer(
            "stored", torch.randn(7, 6, generator=torch.Generator().manual_seed(1))
        )
        self.register_buffer("numbers", torch.full((7,), -1))

    def forward(self, x: Tensor, number: Tensor) -> Tensor:
        scores = self.embed(x) @ self.stored.T
        same = number[:, None] == (
            self.numbers if self.compares else torch.full_like(self.numbers, -1)
        )
        return scores.masked_fill(same, 0.0)


@pytest.mark.parametrize("compares", [True, False])
def test_an_input_that_is_compared_with_what_steps_will_store_is_not_ignored(
    compares: bool,
) -> None:
    contract = Contract(
        model=lambda: Neighbours(compares=compares),
        inputs={"x": "B 4", "number": Ints("B", low=0, high=50)},
        sizes={"B": 6},
    )
    report = contract.check(["input-influence"])
    ignored = [c.name for f in report.findings if f.status == "violated" for c in f.culprits]
    assert ("number" in ignored) is not compares
