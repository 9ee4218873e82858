"""Frames of a CTC loss beyond the longest length, and lengths that are right."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

LENGTHS = torch.tensor([32, 20, 28, 32])


class Heard(nn.Module):
    def __init__(self, halvings, padding=1):
        super().__init__()
        self.halvings = halvings
        self.conv = nn.Conv1d(3, 8, 3, stride=2, padding=padding)
        self.head = nn.Linear(8, 5)

    def forward(self, sound, lengths):
        x = self.conv(sound.transpose(1, 2)).relu().transpose(1, 2)
        for _ in range(self.halvings):
            lengths = lengths // 2  # halved
        return self.head(x).log_softmax(-1), lengths.clamp(max=x.shape[1])


def loss(output, targets):
    scores, lengths = output
    words, counts = targets
    return F.ctc_loss(scores.transpose(0, 1), words, lengths, counts, zero_infinity=True)


def found(model, size=32, lengths=LENGTHS):
    words = torch.randint(1, 5, (4, 2))
    inputs = torch.randn(4, size, 3), lengths
    contract = Contract(model=model, batch=(inputs, (words, torch.tensor([2, 1, 2, 2]))), loss=loss)
    return [f for f in contract.check(["label-range"]).findings if f.status == "violated"]


@pytest.mark.parametrize("halvings", [2, 3])
def test_lengths_that_are_halved_too_often(halvings):
    (finding,) = found(lambda: Heard(halvings))
    assert finding.code == "frames-unread"
    assert any(c.location and c.location.text.endswith("# halved") for c in finding.culprits)


@pytest.mark.parametrize(
    ("model", "size", "lengths"),
    [
        (lambda: Heard(1), 32, LENGTHS),
        (lambda: Heard(1, padding=0), 32, LENGTHS),
        (lambda: Heard(1), 80, LENGTHS),  # padded to a fixed size
        (lambda: Heard(1), 32, LENGTHS // 2),  # a batch of short samples in a long one
    ],
)
def test_lengths_that_follow_the_layers(model, size, lengths):
    assert not found(model, size, lengths)
