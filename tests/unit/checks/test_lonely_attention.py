"""Attention over one position, and random numbers that a library draws from NumPy."""

from __future__ import annotations

import sys
import types

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

G = torch.Generator().manual_seed(0)


class Attends(nn.Module):
    """Queries over positions that a strided convolution reduces."""

    def __init__(self, stride):
        super().__init__()
        self.reduce = nn.Conv1d(4, 4, 2, stride=stride)
        self.q, self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        few = self.reduce(x.mT).mT
        return F.scaled_dot_product_attention(self.q(x), self.k(few), self.v(few))


def gradients(model):
    x = torch.randn(3, 4, 4, generator=G)
    return Contract(model=model, batch=((x,), None)).check(["gradients-exist"])


def test_one_position_to_attend_to_is_a_matter_of_the_input():
    report = gradients(lambda: Attends(4))
    assert not list(report.with_status("violated")), str(report)
    assert any("one position to attend to" in f.summary for f in report.with_status("inconclusive"))
    assert [f.status for f in gradients(lambda: Attends(2)).findings] == ["passed"]


LIBRARY = """
import numpy as np, torch
from torch import nn
class Masks(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)
    def forward(self, x):
        keep = np.random.rand(*x.shape) > 0.5 if self.training else np.ones(x.shape)
        return self.head(x * torch.as_tensor(keep, dtype=x.dtype, device=x.device))
"""
library = types.ModuleType("library")
exec(compile(LIBRARY, f"{sys.prefix}/lib/python3/site-packages/library.py", "exec"), vars(library))


def test_numpy_numbers_that_a_library_draws_are_named_as_such():
    x = torch.randn(3, 4, generator=G)
    (finding,) = Contract(model=library.Masks, batch=((x,), None)).check(["seeding"]).findings
    assert (finding.status, finding.code) == ("suspicious", "numpy-random")
    assert "numpy" in finding.because
