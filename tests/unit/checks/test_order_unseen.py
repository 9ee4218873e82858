"""A batch of rearranged samples that cannot be told apart names the module that counts along another dimension."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

ROWS = torch.stack([torch.arange(9).roll(3 * shift) for shift in range(3)])


class Waves(nn.Module):
    """Adds waves along dimension 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)
        waves = torch.sin(steps * 1.7)
        return x * (2.0 + waves.view(1, -1, *[1] * (x.dim() - 2)))


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.waves = nn.Embedding(9, 8), Waves()
        self.mix, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids).unflatten(-1, (2, 4))
        x = self.waves(x.transpose(1, 2)).transpose(1, 2)  # HERE
        return self.head(self.mix(x.flatten(2)).tanh().mean(1))


def test_the_module_that_counts_heads_is_named() -> None:
    torch.manual_seed(0)
    contract = Contract(model=Reader, batch=((ROWS,), torch.arange(3)), loss=F.cross_entropy)
    findings = contract.check(checks=["overfit"]).findings
    (finding,) = [f for f in findings if f.status == "violated"]
    assert finding.code == "overfit-stuck"
    assert "waves" in [c.name for c in finding.culprits]
    assert finding.location is not None
    assert finding.location.text.endswith("# HERE")
    assert "counts 2 positions, and the samples have 9" in finding.because
