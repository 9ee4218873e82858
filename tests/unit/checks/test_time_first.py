"""Samples along another dimension, and samples whose order a model relies on."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

G = torch.Generator().manual_seed(0)
SEQUENCES = torch.randn(6, 4, 5, generator=G)


class Tagger(nn.Module):
    """Attends over dimension 0, as every layer of torch does by default."""

    def __init__(self, **options):
        super().__init__()
        self.mix = nn.MultiheadAttention(5, 1, **options)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.mix(x, x, x, need_weights=False)[0])


class Pooled(Tagger):
    """One output per entry of dimension 0, which is therefore the batch."""

    def forward(self, x):
        return super().forward(x).mean(1)


def independence(model, batch, **fields):
    (finding,) = Contract(model=model, batch=batch, **fields).check(["batch-independence"]).findings
    return finding


def test_time_first_sequences_are_asked_about():
    found = independence(Tagger, ((SEQUENCES,), None))
    assert (found.status, found.code) == ("suspicious", "batch-axis")
    assert "is batch_dim=1?" in found.summary
    assert independence(Tagger, ((SEQUENCES,), None), batch_dim=1).status == "passed"
    batch_first = lambda: Tagger(batch_first=True)  # noqa: E731 - a factory
    assert independence(batch_first, ((SEQUENCES,), None)).status == "passed"


@pytest.mark.parametrize("make", [Pooled, Tagger])
def test_what_shows_that_dimension_0_is_the_batch_keeps_the_verdict(make):
    labels = torch.randint(0, 3, (6,), generator=G)
    found = independence(make, ((SEQUENCES,), labels), loss=lambda o, t: F.mse_loss(
        o.mean(1) if o.dim() == 3 else o, F.one_hot(t, 3).float()))  # fmt: skip
    assert found.status == "violated"


class Ordered(nn.Module):
    """Reads dimension 0 in its order, as every recurrent layer of torch does by default."""

    def __init__(self, *, last=False, **options):
        super().__init__()
        self.rnn, self.head, self.last = nn.GRU(5, 6, **options), nn.Linear(6, 3), last

    def forward(self, x):
        states = self.rnn(x)[0]
        return self.head(states[-1] if self.last else states)


def told(model, **fields):
    report = Contract(model=model, **fields).check(["batch-independence", "batch-sizes"])
    return {(f.status, f.code) for f in report.findings if f.status in ("violated", "suspicious")}


@pytest.mark.parametrize("model", [Tagger, Ordered])
def test_a_spec_that_names_the_batch_second_is_asked_about(model):
    asked = {("suspicious", "batch-axis")}
    assert told(model, inputs="T B 5") == asked
    assert told(model, inputs={"x": "S B 5"}, sizes={"S": (2, 9), "B": (2, 6)}) == asked
    assert told(model, inputs="T B 5", batch_dim=1) == set()
    for letters in ("B T 5", "N T 5"):
        assert {status for status, _ in told(model, inputs=letters)} == {"violated"}
        assert told(lambda: model(batch_first=True), inputs=letters) == set()


def test_one_output_for_a_sequence_that_stands_first_is_not_blamed():
    last = lambda: Ordered(last=True)  # noqa: E731 - a factory
    assert told(last, inputs="T B 5", targets="B 3", loss=F.mse_loss) == set()


class Packs(nn.Module):
    """Packs samples that its caller sorts by length."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(5, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.head(self.rnn(packed)[1][-1])


class Leaks(Packs):
    def forward(self, x, lengths):
        return super().forward(x - x.mean(0), lengths)


def test_samples_sorted_by_length_stay_sorted():
    lengths = torch.tensor([4, 4, 3, 3, 2, 1])
    assert independence(Packs, ((SEQUENCES, lengths), None)).status == "passed"
    found = independence(Leaks, ((SEQUENCES, lengths), None))
    assert (found.status, found.code) == ("violated", "samples-mixed")
