"""Outputs that are one number for every input and weight cannot follow targets that differ."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Curve(nn.Module):
    """Draws a curve of 24 points from 3 numbers and the place of each point."""

    def __init__(self, places: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("places", places)
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, z):
        points = self.places.expand(len(z), -1)[..., None]
        codes = z[:, None].expand(-1, points.shape[1], -1)
        return self.layers(torch.cat([codes, points], -1)).squeeze(-1)


def told(model, targets=None):
    torch.manual_seed(0)
    z = torch.randn(5, 3)
    wanted = (
        torch.sin(torch.linspace(0, 5, 24) * (1 + z[:, :1].abs())) if targets is None else targets
    )
    contract = Contract(model=model, batch=((z,), wanted), loss=F.mse_loss)
    (finding,) = contract.check(["target-alignment"]).findings
    return finding


def test_places_that_a_rounding_makes_equal():
    finding = told(lambda: Curve((torch.arange(24) // 23).float()))
    assert (finding.status, finding.code) == ("violated", "outputs-tied")
    assert "23 of 24 entries" in finding.summary
    assert finding.culprits[0].name == "places"


def upsampled():
    layers = nn.Sequential(nn.Linear(3, 6), nn.Unflatten(1, (1, 6)))
    return nn.Sequential(layers, nn.Upsample(scale_factor=4), nn.Flatten())


class Repeated(nn.Module):
    """One number for each curve, repeated on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, z):
        return self.layer(z).expand(-1, 24)


class Rectified(nn.Module):
    """Most entries are zero at first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 24)

    def forward(self, z):
        return (self.layer(z) - 2).relu()


class StartsEqual(nn.Module):
    """All units start alike but a few: other weights part them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 24)
        with torch.no_grad():
            self.layer.weight[4:] = self.layer.weight[4]
            self.layer.bias[4:] = 0

    def forward(self, z):
        return self.layer(z)


@pytest.mark.parametrize(
    "model",
    [lambda: Curve(torch.arange(24) / 23), upsampled, Repeated, Rectified, StartsEqual],
    ids=["places", "upsampled", "repeated", "rectified", "starts equal"],
)
def test_equal_outputs_that_are_meant_or_part_later(model):
    assert told(model).code != "outputs-tied"


def test_targets_that_do_not_differ_there():
    steps = torch.randn(5, 1).expand(-1, 24).clone()
    steps[:, -1] += 1
    assert told(lambda: Curve((torch.arange(24) // 23).float()), steps).code != "outputs-tied"
