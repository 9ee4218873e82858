"""A gradient that cancels at the first weights alone is no zero by structure."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract


class Centred(nn.Module):
    """Takes a learnable share of the mean over positions away, or all of it, and averages what is left."""

    def __init__(self, *, learnt: bool) -> None:
        super().__init__()
        self.into, self.mix, self.out = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.share = nn.Parameter(torch.ones(8), requires_grad=learnt)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.into(x))
        branch = self.mix(h)
        branch = branch - self.share * branch.mean(1, keepdim=True)
        return self.out((h + branch).mean(1))


@pytest.mark.parametrize("learnt", [True, False])
def test_a_mean_that_cancels_until_its_scale_moves(learnt: bool) -> None:
    torch.manual_seed(0)
    report = Contract(
        model=lambda: Centred(learnt=learnt), batch=((torch.randn(6, 7, 5),), torch.arange(6) % 3),
        loss=F.cross_entropy,
    ).check(["gradients-exist"])  # fmt: skip
    found = {f.code: f for f in report.failing}
    assert ("grad-zero" in found) is not learnt, str(report)
    if not learnt:
        assert "mix.weight" in found["grad-zero"].summary
