"""A layer that a branch reads which the data did not take is not proved unused; one that nothing can reach is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.extra = nn.Linear(5, 8), nn.Linear(8, 2), nn.Linear(8, 8)
        self.wide = False
        self.calls = 0

    def more(self, h: torch.Tensor) -> torch.Tensor:
        return h


class ManySamples(Net):
    def forward(self, x: torch.Tensor) -> Any:
        h = self.body(x).relu()
        if len(x) > 500: return self.head(self.extra(h))  # fmt: skip  # noqa: E701
        return self.head(h)


class Chosen(Net):
    def forward(self, x: torch.Tensor) -> Any:
        h = self.body(x).relu()
        return self.head(self.extra(h) if x.abs().max() > 1e6 else h)


class Early(Net):
    def forward(self, x: torch.Tensor) -> Any:
        h = self.body(x).relu()
        rare = x.abs().max() > 1e6
        if not rare:
            return self.head(h)
        h = self.extra(h)
        return self.head(h)


class Later(Net):
    def forward(self, x: torch.Tensor) -> Any:
        h = self.body(x).relu()
        self.calls += 1
        if self.calls > 10**6:
            h = self.extra(h)
        return self.head(h)


class Configured(Net):
    def forward(self, x: torch.Tensor) -> Any:
        h = self.body(x).relu()
        if self.wide:
            h = self.extra(h)
        return self.head(h)


class NeverCalled(Net):
    def more(self, h: torch.Tensor) -> torch.Tensor:
        return self.extra(h) if len(h) else h

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.body(x).relu())


class NotGiven(Net):
    def more(self, h: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        if scale is not None:
            h = self.extra(h) * scale
        return h

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.more(self.body(x).relu()))


def found(model: type[Net]) -> Any:
    report = Contract(model=model, inputs="B 5", targets="B 2", loss=nn.functional.mse_loss).check(
        ["gradients-exist", "weights-update"]
    )
    return [
        (f.status, f.code, f.location.text)
        for f in report.findings
        if f.status in ("violated", "suspicious")
    ]


@pytest.mark.parametrize("model", [ManySamples, Chosen, Early, Later])
def test_a_branch_that_was_not_taken_is_no_proof(model: type[Net]) -> None:
    assert [(status, code) for status, code, _ in found(model)] == [("suspicious", "grad-none")]
    assert "self.extra(h)" in found(model)[0][2]


@pytest.mark.parametrize("model", [Configured, NeverCalled, NotGiven])
def test_what_no_data_can_reach_is_unused(model: type[Net]) -> None:
    assert ("violated", "grad-none") in [(status, code) for status, code, _ in found(model)]
