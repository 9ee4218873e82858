"""A masked model is trained on the tokens that are hidden from it; to copy all but separators may be meant."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, promises

MASK, SEPARATOR = 1, 2
GENERATOR = torch.Generator().manual_seed(0)
TEXT = torch.randint(3, 24, (8, 12), generator=GENERATOR)


class Encoder(nn.Module):
    """Reads every token in both directions, or gives each position the tokens before it alone."""

    def __init__(self, *, before: bool = False):
        super().__init__()
        self.tokens, self.places = nn.Embedding(24, 16), nn.Embedding(12, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head, self.before = nn.Linear(16, 24), before

    def forward(self, ids):
        if self.before:
            ids = F.pad(ids, (1, 0))[:, :-1]
        mask = nn.Transformer.generate_square_subsequent_mask(12) if self.before else None
        return self.head(self.layer(self.tokens(ids) + self.places.weight, src_mask=mask))


def drawn(generator, share=0.8, *, visible):
    """Return masked tokens and their labels: of those that are given, or of those that are hidden."""
    asked = torch.rand(TEXT.shape, generator=generator) < 0.25
    hidden = asked & (torch.rand(TEXT.shape, generator=generator) < share)
    labels = TEXT.masked_fill(asked if visible else ~asked, -100)
    return TEXT.masked_fill(hidden, MASK), labels


def loss(logits, labels):
    return F.cross_entropy(logits.transpose(1, 2), labels)


def told(ids, labels, model=Encoder, **more):
    contract = Contract(model=model, batch=((ids,), labels), loss=loss, **more)
    return [f for f in contract.check(["label-shift"]).findings if f.status == "violated"]


def step_of(generator, *, visible):
    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        ids, labels = drawn(generator, 1.0, visible=visible)
        value = loss(model(ids), labels)
        value.backward()
        optimizer.step()
        return value.detach()

    return {"train_step": train_step, "optimizer": lambda m: torch.optim.SGD(m.parameters(), 0.1)}


def test_labels_of_the_tokens_that_are_given():
    (finding,) = told(*drawn(torch.Generator().manual_seed(1), visible=True))
    assert finding.code == "visible-labels"


def test_a_step_that_draws_other_masks_shows_what_they_hide():
    generator = torch.Generator().manual_seed(1)
    (finding,) = told(*drawn(generator, 1.0, visible=True), **step_of(generator, visible=True))
    assert finding.code == "visible-labels"
    assert "other positions" in finding.because


def separated():
    ids = TEXT.clone()
    ids[torch.rand(TEXT.shape, generator=torch.Generator().manual_seed(3)) < 0.2] = SEPARATOR
    return ids, ids.masked_fill(ids == SEPARATOR, -100)


def padded():
    ids = TEXT.clone()
    for row, length in enumerate((12, 9, 7, 10, 12, 6, 8, 11)):
        ids[row, length:] = 0
    return ids, ids.masked_fill(ids == 0, -100)


def noised():
    hidden = torch.rand(TEXT.shape, generator=torch.Generator().manual_seed(4)) < 0.25
    return TEXT.masked_fill(hidden, MASK), TEXT


@pytest.mark.parametrize(
    "batch",
    [
        lambda: drawn(torch.Generator().manual_seed(1), visible=False),
        lambda: drawn(torch.Generator().manual_seed(1), 1.0, visible=False),
        separated, padded, noised,
        lambda: (TEXT, TEXT.clone()),
    ],
    ids=["masked", "all-masked", "separators", "padding", "noise", "autoencoder"],
)  # fmt: skip
def test_masked_models_autoencoders_and_noise(batch):
    assert told(*batch()) == []


def test_a_step_of_the_hidden_tokens():
    generator = torch.Generator().manual_seed(1)
    assert told(*drawn(generator, visible=False), **step_of(generator, visible=False)) == []


def test_a_model_that_does_not_see_the_token_at_its_own_place():
    ids, labels = drawn(torch.Generator().manual_seed(1), visible=True)
    assert told(ids, labels, model=lambda: Encoder(before=True)) == []


def test_a_promise_of_causality_is_told_first():
    ids, labels = drawn(torch.Generator().manual_seed(1), visible=True)
    found = told(ids, labels, promises=(promises.Causal(),))
    assert [f.code for f in found] == ["label-shift"]
