"""Losses that read padding beside the last real value, and masks that select what they should."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

LENGTHS = torch.tensor([12, 5, 9, 7, 12, 6])
STEPS = torch.arange(12)
MASK = LENGTHS[:, None] > STEPS


def series(mask=MASK):
    generator = torch.Generator().manual_seed(0)
    return (1 + torch.rand(6, 12, 3, generator=generator)) * mask[..., None]


def finding(loss, targets, *, dim=3):
    x = torch.randn(6, 12, dim)
    contract = Contract(model=lambda: nn.Linear(dim, 3), batch=(x, targets), loss=loss)
    (found,) = contract.check(["excluded-targets"]).findings
    return found


def shifted(output, targets):
    values, mask = targets
    error = F.mse_loss(output[:, :-1], values[:, 1:], reduction="none")
    return error[mask[:, :-1]].mean()  # HERE


def by_product(output, targets):
    values, mask = targets
    error = (output[:, :-1] - values[:, 1:]).abs().mean(2)
    keep = mask[:, :-1]  # HERE
    return (error * keep).sum() / keep.sum()


def two_ahead(output, targets):
    values, mask = targets
    error = (output[:, :-2] - values[:, 2:]).square().mean(2)
    keep = mask[:, :-2]  # HERE
    return ((error * keep).sum(1) / keep.sum(1)).mean()


def inverted(output, targets):
    values, padding = targets
    error = (output[:, :-1] - values[:, 1:]).square()
    return error.masked_fill(padding[:, :-1, None], 0).sum() / len(error)  # HERE


def to_length(output, targets):
    values, lengths = targets
    error = F.smooth_l1_loss(output, values, reduction="none").mean(2)
    keep = lengths[:, None] >= STEPS  # HERE
    return (error * keep).sum() / keep.sum()


@pytest.mark.parametrize(
    ("loss", "marks"),
    [
        (shifted, MASK), (by_product, MASK.float()), (two_ahead, MASK.long()), (inverted, ~MASK),
        (to_length, LENGTHS.clamp(max=11)),
    ],
)  # fmt: skip
def test_padding_beside_the_last_real_value_is_read(loss, marks):
    values = series(LENGTHS.clamp(max=11)[:, None] > STEPS) if loss is to_length else series()
    found = finding(loss, (values, marks))
    assert (found.status, found.code) == ("violated", "mask-shifted"), found
    assert found.location.text.endswith("# HERE"), found
    assert found.culprits[0].name == "y[1]"
    assert found.evidence["reach"] == (2 if loss is two_ahead else 1)


def aligned(output, targets):
    values, mask = targets
    error = F.mse_loss(output[:, :-1], values[:, 1:], reduction="none")
    return error[mask[:, 1:]].mean()


def in_place(output, targets):
    values, mask = targets
    return F.mse_loss(output[mask], values[mask])


def root(output, targets):
    return in_place(output, targets).sqrt()


def whole(output, targets):
    values, mask = targets
    return F.mse_loss(output, values) + 0 * mask.sum()


def smoothed(output, targets):
    """Compares an output with the mean of three values around it, which is what the mask is taken of."""
    values, mask = targets
    mean = F.avg_pool1d(values.movedim(1, 2), 3, 1, 1).movedim(2, 1)
    return F.mse_loss(output[mask], mean[mask])


def observed(output, targets):
    """Is trained on what comes after a part that is known."""
    values, known = targets
    return F.mse_loss(output[~known.bool()], values[~known.bool()])


def stop(output, targets):
    """Learns to stop: the flags of all padding are 1, and the first of them counts."""
    flags, mask = targets
    keep = torch.cat([torch.ones(6, 1, dtype=torch.bool), mask[:, :-1]], 1)
    return F.binary_cross_entropy_with_logits(output[..., 0][keep], flags[keep])


def labels(output, targets):
    """Labels have an end that the mask of the inputs does not cover."""
    ids, mask = targets
    keep = torch.cat([torch.ones(6, 1, dtype=torch.bool), mask[:, :-1]], 1)
    return F.cross_entropy(output[keep], ids[keep])


@pytest.mark.parametrize("loss", [aligned, in_place, root, whole])
def test_the_mask_is_that_of_the_values(loss):
    assert finding(loss, (series(), MASK)).status == "passed"


def test_padding_at_the_start():
    left = MASK.flip(1)
    assert finding(shifted, (series(left), left)).status == "passed"  # it leaves out one value
    assert finding(in_place, (series(left), left)).status == "passed"


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (observed, (1 + torch.rand(6, 12, 3), MASK)),
        (shifted, (1 + torch.rand(6, 12, 3), MASK)),  # all of the values are real
        (shifted, (series(), torch.rand(6, 12).argsort(1) < 6)),  # scattered, as of a masked autoencoder
        (stop, ((~MASK).float(), MASK)),
        (labels, (torch.where(MASK, STEPS % 2 + 1, 0), MASK)),
    ],
)  # fmt: skip
def test_masks_of_something_else(loss, targets):
    assert finding(loss, targets).status == "not-applicable"


def test_values_that_are_averaged_with_their_neighbours():
    assert finding(smoothed, (series(), MASK)).status == "passed"
