from __future__ import annotations

import pytest
import torch
from provoke import each, explain, line
from torch import nn


class Stem(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, 8, 3)

    def forward(self, x):
        return self.conv(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = Stem(channels=3)

    def forward(self, image):
        return self.stem(image)


def test_channels_are_followed_to_the_line_that_gives_the_number():
    model, x = Net(), torch.randn(2, 1, 8, 8)
    found = explain(lambda: model(x), model=model, batch=((x,), None))
    assert found.code == "channels"
    assert found.summary == "stem.conv expects 3 channels, got 1 (input [2, 1, 8, 8])"
    assert found.location.line == line(Net, "Stem(channels=3)")
    assert found.culprits[0].location.line == line(Stem, "nn.Conv2d")
    assert "the model's input image" in found.cause


def test_channels_that_stand_last():
    model = Net()
    found = explain(lambda: model(torch.randn(2, 8, 8, 3)), model=model)
    assert "channels come last" in found.cause
    assert ".permute(0, 3, 1, 2)" in found.fix
    assert found.location.line == line(Stem, "self.conv(x)")


def test_channels_of_a_sequence():
    model = nn.Sequential(nn.Conv1d(3, 4, 1))
    found = explain(lambda: model(torch.randn(2, 9, 3)), model=model)
    assert ".transpose(1, 2)" in found.fix


def test_missing_channel_dimension_of_grey_images():
    model = nn.Sequential(nn.Conv2d(1, 4, 3))
    found = explain(lambda: model(torch.randn(5, 8, 8)), model=model)
    assert "channel dimension is missing" in found.cause
    assert ".unsqueeze(1)" in found.fix


def test_functional_and_transposed_convolutions():
    run = lambda: torch.conv2d(torch.randn(1, 2, 5, 5), torch.randn(4, 3, 3, 3))  # noqa: E731
    assert explain(run).code == "channels"
    model = nn.Sequential(nn.ConvTranspose2d(3, 8, 5))
    assert (
        "3 channels, got 4" in explain(lambda: model(torch.randn(2, 4, 4, 4)), model=model).summary
    )


@pytest.mark.parametrize(
    ("module", "shape", "word"),
    [
        (nn.Conv2d(3, 8, 3), (2, 3), "lost 2 dimensions"),
        (nn.Conv2d(3, 8, 3), (1, 2, 3, 8, 8), "too many"),
        (nn.BatchNorm2d(8), (4, 8), "lost 2 dimensions"),
        (nn.LSTM(3, 2), (2, 2, 2, 3), "too many"),
    ],
)
def test_ranks(module, shape, word):
    model = nn.Sequential(module)
    found = explain(lambda: model(torch.randn(shape)), model=model)
    assert found.code == "input-rank"
    assert word in found.cause
    assert found.culprits[0].name == "0"


def test_missing_batch_dimension():
    model = nn.Sequential(nn.BatchNorm2d(3))
    found = explain(lambda: model(torch.randn(3, 8, 8)), model=model)
    assert "batch dimension is missing" in found.cause
    assert ".unsqueeze(0)" in found.fix


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv2d(3, 8, 5), (2, 3, 4, 4)),
        (nn.MaxPool2d(2), (2, 3, 1, 1)),
        (nn.AvgPool2d(4), (2, 3, 2, 2)),
        (nn.ReflectionPad1d(5), (1, 2, 3)),
    ],
)
def test_maps_smaller_than_the_kernel(module, shape):
    model, x = nn.Sequential(module), torch.randn(shape)
    found = explain(lambda: model(x), model=model, batch=((x,), None))
    assert found.code == "kernel-larger-than-input"


def test_batch_norm_of_one_value():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    found = explain(lambda: model(torch.randn(1, 4)), model=model)
    assert found.code == "norm-one-value"
    assert found.culprits[0].name == "1"
    assert "a batch of 1" in found.because
    pooled = nn.Sequential(nn.BatchNorm2d(8))
    found = explain(lambda: pooled(torch.randn(1, 8, 1, 1)), model=pooled)
    assert "maps of 1x1 and a batch of 1" in found.because
    instance = nn.Sequential(nn.InstanceNorm2d(8))
    assert "spatial" in explain(lambda: instance(torch.randn(4, 8, 1, 1)), model=instance).cause


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.LayerNorm(8), (2, 7)),
        (nn.RMSNorm(8), (2, 7)),
        (nn.BatchNorm2d(8), (4, 7, 3, 3)),
        (nn.GroupNorm(2, 8), (2, 6, 4)),
    ],
)
def test_normalised_sizes(module, shape):
    model = nn.Sequential(module)
    found = explain(lambda: model(torch.randn(shape)), model=model)
    assert found.code == "norm-shape"
    assert "8 features" in found.summary
    assert str(shape[1]) in found.summary


def test_layer_norm_of_swapped_dimensions():
    model = nn.Sequential(nn.LayerNorm(8))
    found = explain(lambda: model(torch.randn(2, 8, 5)), model=model)
    assert "swapped" in found.cause
    assert ".transpose(1, 2)" in found.fix


@pytest.mark.parametrize(
    "build",
    each(
        lambda: nn.GroupNorm(3, 8),
        lambda: nn.MultiheadAttention(6, 4),
        lambda: nn.Conv2d(6, 8, 3, groups=4),
        lambda: nn.functional.group_norm(torch.randn(2, 7, 4), 3),
    ),
)
def test_channels_that_cannot_be_split(build):
    found = explain(build, phase="build")
    assert found.code == "not-divisible"
    assert "remainder" in found.observed


class Tagger(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.rnn = nn.LSTM(width, 2)

    def forward(self, x, state=None):
        return self.rnn(x, state)[0]


def test_recurrent_features_and_states():
    model = Tagger()
    found = explain(lambda: model(torch.randn(5, 2, 4)), model=model)
    assert found.code == "feature-size"
    assert found.culprits[0].name == "rnn"
    assert found.location.line == line(Tagger, "width=3")
    x, h = torch.randn(5, 2, 3), torch.zeros(1, 5, 2)
    found = explain(lambda: model(x, (h, h)), model=model, batch=((x,), None))
    assert found.code == "hidden-size"
    assert "batch_first=True" in found.fix


def test_attention_masks_and_sizes():
    attention = nn.MultiheadAttention(8, 4)
    model = nn.ModuleDict({"attn": attention})
    q = torch.randn(2, 3, 8)
    found = explain(
        lambda: attention(q, q, q, attn_mask=torch.zeros(3, 3)), model=model, batch=((q,), None)
    )
    assert found.code == "mask-shape"
    assert found.culprits[0].name == "attn"
    assert "batch_first=True" in found.fix
    found = explain(lambda: attention(q, q, q, key_padding_mask=torch.zeros(2, 3) > 0), model=model)
    assert found.code == "mask-shape"
    wide = torch.randn(2, 3, 7)
    assert explain(lambda: attention(wide, wide, wide), model=model).code == "feature-size"
