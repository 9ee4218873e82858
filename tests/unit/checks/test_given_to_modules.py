"""A result that no operation reads is followed to the last module that is given it, and to the line there."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels


def first_given(value, otherwise):
    return otherwise if value is None else value


class Reader(nn.Module):
    def __init__(self, swapped):
        super().__init__()
        self.swapped, self.key = swapped, nn.Linear(6, 6)

    def forward(self, x, notes=None):
        order = (x, notes) if self.swapped else (notes, x)  # SWAPPED
        notes = first_given(*order)
        return x + self.key(notes).mean(1, keepdim=True)


class Stack(nn.Module):
    def __init__(self, swapped):
        super().__init__()
        self.readers = nn.ModuleList([Reader(False), Reader(swapped)])

    def forward(self, x, notes):
        return self.readers[1](self.readers[0](x), notes=notes)


class Captioner(nn.Module):
    def __init__(self, swapped):
        super().__init__()
        self.words, self.stack, self.head = nn.Embedding(9, 6), Stack(swapped), nn.Linear(6, 3)

    def forward(self, x, ids):
        return self.head(self.stack(x, self.words(ids)).mean(1))


def test_the_line_of_the_module_that_loses_what_it_is_given():
    torch.manual_seed(0)
    batch = (torch.randn(4, 5, 6), torch.randint(0, 9, (4, 3))), torch.arange(4) % 3
    report = Contract(model=Captioner(True), batch=batch, loss=F.cross_entropy).check(
        ["gradients-exist"]
    )
    (found,) = report.causes
    assert found.code == "grad-none"
    assert "# SWAPPED" in found.location.text
    assert "stack.readers.1 (Reader) receives it as notes" in found.cause


def test_what_reads_its_notes_is_sound():
    torch.manual_seed(0)
    batch = (torch.randn(4, 5, 6), torch.randint(0, 9, (4, 3))), torch.arange(4) % 3
    made = Contract(model=Captioner(False), batch=batch, loss=F.cross_entropy)
    assert not made.check(["gradients-exist"]).causes


class Block(nn.Module):
    """Two readers, of which the second one is meant to read the notes."""

    crossed = False

    def __init__(self, right):
        super().__init__()
        self.right = right
        self.own, self.cross = Reader(False), Reader(False)

    def forward(self, x, notes=None):
        x = self.own(x, notes=notes if self.crossed else None)
        if self.right:
            return self.cross(x, notes=notes)
        return self.cross(x, notes=notes if self.crossed else None)  # WRONG


@pytest.mark.parametrize("right", [True, False])
def test_the_expression_that_does_not_choose_what_is_given(right):
    torch.manual_seed(0)
    model = Captioner(False)
    model.stack = Block(right)
    batch = (torch.randn(4, 5, 6), torch.randint(0, 9, (4, 3))), torch.arange(4) % 3
    report = Contract(model=model, batch=batch, loss=F.cross_entropy).check(["gradients-exist"])
    if right:
        assert not report.causes
        return
    (found,) = report.causes
    assert found.location.text.endswith("# WRONG")
    assert (
        "stack (Block) receives it as notes, and no operation there reads it: lines" in found.cause
    )
    assert found.fix.startswith(f"let line {found.location.line} choose notes")
    assert any("self.own(" in c.location.text for c in found.culprits if c.location is not None)


@pytest.mark.parametrize("reshaped", [True, False])
def test_scores_that_the_loss_only_reshapes_are_told_there(reshaped):
    def loss(scores, labels):
        if reshaped:
            scores = scores.movedim(1, -1).flatten(0, 1)
            return F.nll_loss(scores, labels.flatten())
        return F.nll_loss(scores, labels)

    report = Contract(
        model=nn.Conv1d(4, 3, 1),
        inputs="B 4 7",
        targets=Labels("B 7", classes=3),
        loss=loss,
    ).check(["loss-input"])
    (found,) = report.causes
    assert found.code == "nll-without-log"
    text = found.location.text if found.location is not None else ""
    assert ("movedim" in text) is reshaped
