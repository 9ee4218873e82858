"""In training mode, too, a sample's output follows its own input."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels


class Net(nn.Module):
    """Two layers; subclasses say what training does before and after them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 12), nn.Linear(12, 3)

    def forward(self, x):
        x = self.before(x) if self.training else x
        h = torch.relu(self.body(x))
        h = self.between(h) if self.training else h
        y = self.head(h)
        return self.after(y) if self.training else y

    def before(self, x):
        return x

    def between(self, h):
        return h

    def after(self, y):
        return y


class ShufflesInputs(Net):
    def before(self, x):
        return x[torch.randperm(len(x))]


class ShufflesOutputs(Net):
    def after(self, y):
        return y[torch.randperm(len(y))]


class RollsFeatures(Net):
    def between(self, h):
        return h.roll(1, 0)


class TrainsOnNoise(Net):
    def before(self, x):
        return torch.randn_like(x)


class TrainsOnConstants(Net):
    def between(self, h):
        return torch.zeros_like(h)


class MixesInputs(Net):
    def before(self, x):
        factor = 0.3 + 0.4 * torch.rand(())
        return factor * x + (1 - factor) * x[torch.randperm(len(x))]


class MixesFeatures(Net):
    def between(self, h):
        return 0.5 * h + 0.5 * h[torch.randperm(len(h))]


class AddsNoise(Net):
    def before(self, x):
        return x + torch.randn_like(x)


class MasksFeatures(Net):
    def before(self, x):
        return x * (torch.rand_like(x) > 0.6)


class DropsPaths(Net):
    def between(self, h):
        keep = (torch.rand(len(h), 1) > 0.5).float()
        return h * keep / 0.5


class DropsSamples(Net):
    def before(self, x):
        return x * (torch.rand(len(x), 1) > 0.5)


class FlipsAtRandom(Net):
    def before(self, x):
        return x.flip(-1) if torch.rand(()) < 0.5 else x


class Mixup(Net):
    """Keeps how it has mixed, for the loss."""

    def before(self, x):
        self.factor, self.partners = torch.rand(()), torch.randperm(len(x))
        return self.factor * x + (1 - self.factor) * x[self.partners]


class MixupReturned(Net):
    def forward(self, x):
        if not self.training:
            return super().forward(x)
        partners, factor = torch.randperm(len(x)), torch.rand(())
        h = torch.relu(self.body(factor * x + (1 - factor) * x[partners]))
        return self.head(h), partners, factor


class ShuffledNegatives(Net):
    """Scores each sample, and shuffled ones beside it, as Deep Graph Infomax does."""

    def forward(self, x):
        y = super().forward(x)
        return y, (super().forward(x[torch.randperm(len(x))]) if self.training else y)


class Unshuffled(Net):
    """Shuffles before its body and puts the order back behind it, as MoCo's second encoder does."""

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        order = torch.randperm(len(x))
        return super().forward(x[order])[order.argsort()]


class OwnStatistics(Net):
    def between(self, h):
        return (h - h.mean(0)) / (h.std(0) + 0.1)


class MixesStyles(nn.Module):
    """Mixes the mean and the spread of each image with those of another one (Zhou et al., 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 16, 3)

    def forward(self, x):
        h = torch.tanh(self.conv(x))
        if self.training:
            mean, std = h.mean((2, 3), keepdim=True), h.std((2, 3), keepdim=True) + 1e-3
            order, factor = torch.randperm(len(h)), 0.9
            h = (h - mean) / std
            h = h * (factor * std + (1 - factor) * std[order])
            h = h + factor * mean + (1 - factor) * mean[order]
        return self.head(F.adaptive_avg_pool2d(h, 4).flatten(1))


class Capacity(Net):
    """Two experts, each with room for three samples; what finds none passes by."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = (
            nn.Linear(12, 2),
            nn.ModuleList(nn.Linear(12, 12) for _ in range(2)),
        )

    def between(self, h):
        chosen, out = self.gate(h).argmax(1), h.clone()
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().flatten()[:3]
            out[rows] = h[rows] + expert(h[rows])
        return out


def found(model, **declared):
    declared = {"inputs": "B 6", "loss": F.cross_entropy, **declared}
    report = Contract(model=model, targets=Labels("B", classes=3), **declared).check(
        ["mode-agreement"]
    )
    (only,) = report.findings
    return only


@pytest.mark.parametrize(
    ("model", "status", "code"),
    [
        (ShufflesInputs, "violated", "sample-order"),
        (ShufflesOutputs, "violated", "sample-order"),
        (RollsFeatures, "violated", "sample-order"),
        (TrainsOnNoise, "violated", "input-ignored"),
        (TrainsOnConstants, "violated", "input-ignored"),
        (MixesInputs, "suspicious", "samples-mixed"),
        (MixesFeatures, "suspicious", "samples-mixed"),
    ],
)
def test_outputs_that_do_not_follow_their_own_samples_in_training_are_told(model, status, code):
    finding = found(model)
    assert (finding.status, finding.code) == (status, code)
    assert "train mode" in finding.summary
    assert finding.location is not None


def test_the_line_that_draws_the_order_is_named():
    assert "torch.randperm" in found(ShufflesInputs).location.text


@pytest.mark.parametrize(
    "model",
    [
        AddsNoise,
        MasksFeatures,
        DropsPaths,
        DropsSamples,
        FlipsAtRandom,
        Mixup,
        MixupReturned,
        ShuffledNegatives,
        Unshuffled,
        OwnStatistics,
        Capacity,
    ],
)
def test_noise_masks_and_mixing_that_the_model_declares_are_not_blamed(model):
    kind = Contract(model=model, inputs="B 6").check(["mode-agreement"]).findings[0]
    assert kind.code not in ("sample-order", "input-ignored", "samples-mixed"), kind
    if model not in (MixupReturned, ShuffledNegatives):
        assert found(model).code not in ("sample-order", "input-ignored", "samples-mixed")


def test_mixed_styles_are_not_mixed_samples():
    assert found(MixesStyles, inputs="B 3 8 8").code not in ("sample-order", "samples-mixed")


def test_without_targets_another_order_is_only_suspicious():
    (only,) = Contract(model=ShufflesOutputs, inputs="B 6").check(["mode-agreement"]).findings
    assert (only.status, only.code) == ("suspicious", "sample-order")
