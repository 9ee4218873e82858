"""Quantisation whose scale is taken over the whole batch, beside mixing that rounding does not explain."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.runs.unrounded import Unrounded

G = torch.Generator().manual_seed(0)


class Coarse(nn.Module):
    """Rounds its activations to a few levels."""

    def __init__(self, levels):
        super().__init__()
        self.first, self.last, self.levels = nn.Linear(4, 8), nn.Linear(8, 2), levels

    def forward(self, x):
        return self.last(self.levels(self.first(x)))


def whole_batch(h):
    step = h.detach().abs().max() / 7
    return h + ((h / step).round() * step - h).detach()


def shifted(h):
    low, high = h.detach().min(), h.detach().max()
    step = (high - low) / 15
    return ((h - low) / step).floor() * step + low


def per_sample(h):
    step = h.detach().abs().amax(-1, keepdim=True) / 7
    return h + ((h / step).round() * step - h).detach()


def centred(h):
    return whole_batch(h - h.mean(0))


def stretched(h):
    return h / h.detach().abs().max()


def told(levels):
    x = torch.randn(6, 4, generator=G)
    contract = Contract(model=lambda: Coarse(levels), batch=((x,), None))
    return contract.check(["batch-independence", "batch-sizes"])


@pytest.mark.parametrize("levels", [whole_batch, shifted])
def test_one_grid_for_all_samples_is_suspicious(levels):
    report = told(levels)
    assert report.ok, str(report)
    (first, *_) = report.with_status("suspicious")
    assert first.code in ("samples-mixed", "batch-size-dependent")
    assert "scale" in first.cause


@pytest.mark.parametrize("levels", [centred, stretched])
def test_what_mixes_without_rounding_too_is_wrong(levels):
    assert not told(levels).ok


def test_a_grid_for_each_sample_mixes_nothing():
    report = told(per_sample)
    assert {f.status for f in report.findings} == {"passed"}, str(report)


def test_rounding_is_left_out_whatever_it_is_called():
    x = torch.tensor([0.3, 1.7])
    with Unrounded() as unrounded:
        made = [
            torch.round(x), x.floor(), x.clone().ceil_(), x.to(torch.int8), x.char(),
            torch.fake_quantize_per_tensor_affine(x, 0.5, 0, -8, 7),
        ]  # fmt: skip
        whole = torch.arange(3).to(torch.int32)
    assert all(torch.equal(one, x) for one in made)
    assert unrounded.left_out == len(made)
    assert whole.dtype == torch.int32
