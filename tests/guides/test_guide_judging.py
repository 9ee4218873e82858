"""Rows 37 and 38: what a model is judged by: validation, splits and the loss."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from pytest_torchcheck import Contract
from tests.guides.rows import Net, Symptom, contract, holds, named, sgd

CE = F.cross_entropy


class Normed(Net):
    """A model with running statistics and dropout, which a validation must not touch."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.5)

    def middle(self, h):
        return self.drop(self.norm(h))


def validate_in_training_mode(model, x, y):
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean()  # BUG


def validate_for_good(model, x, y):
    model.eval()  # BUG
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean()


def validate_and_switch_off(model, x, y):
    model.eval()
    torch.set_grad_enabled(False)  # BUG
    score = (model(x).argmax(1) == y).float().mean()
    model.train()
    return score


def validate(model, x, y):
    model.eval()
    with torch.no_grad():
        score = (model(x).argmax(1) == y).float().mean()
    model.train()
    return score


def validated(wrong):
    """Declare a loop that validates after each step, as one that would see overfitting early."""

    def make(broken):
        def step(model, optimizer, inputs, targets):
            optimizer.zero_grad()
            loss = CE(model(*inputs), targets)
            loss.backward()
            optimizer.step()
            (wrong if broken else validate)(model, *inputs, targets)
            return loss.detach()

        return contract(Normed, train_step=step, optimizer=sgd)

    return make


DATA = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(40) % 3


class Points(Dataset):
    """Computes its samples, so that only what it gives can be compared."""

    def __init__(self, start, stop):
        self.start, self.stop = start, stop

    def __len__(self):
        return self.stop - self.start

    def __getitem__(self, index):
        return torch.full((8,), float(self.start + index)), index % 3


def subsets(broken):
    whole = TensorDataset(DATA, LABELS)
    held_out = Subset(whole, range(25 if broken else 30, 40))  # BUG
    return Contract(dataset={"train": Subset(whole, range(30)), "eval": held_out})


def slices(broken):
    first = 25 if broken else 30
    held_out = TensorDataset(DATA[first:], LABELS[first:])  # BUG
    return Contract(dataset={"train": TensorDataset(DATA[:30], LABELS[:30]), "eval": held_out})


def computed(broken):
    return Contract(
        dataset={"train": Points(0, 30), "eval": Points(25 if broken else 30, 40)}
    )  # BUG


TRACE, SPLIT = ("evaluation-leaves-trace",), ("split-hygiene",)
ROW_37 = (
    Symptom(name="a validation in training mode", make=validated(validate_in_training_mode), checks=TRACE,
            code="evaluation-updates-statistics", says=("norm.running_mean", "call model.eval() before")),
    Symptom(name="a validation that leaves eval mode on", make=validated(validate_for_good), checks=TRACE,
            code="eval-mode-left", says=("training runs in eval mode", "call model.train()")),
    Symptom(name="a validation that leaves gradients off", make=validated(validate_and_switch_off), checks=TRACE,
            code="gradients-left-off", says=("with torch.no_grad():",)),
    Symptom(name="subsets that overlap", make=subsets, checks=SPLIT, code="split-overlap",
            says=("5 of 15 samples of eval are in train too", "eval[0] equals train[25]")),
    Symptom(name="slices that overlap", make=slices, checks=SPLIT, code="split-overlap",
            says=("5 of 15 samples of eval are in train too",)),
    Symptom(name="datasets that overlap", make=computed, checks=SPLIT, code="split-overlap",
            says=("5 of 15 samples of eval are in train too",)),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_37))
def test_row_37(symptom: Symptom) -> None:
    """A validation that can be run after every step, on samples that were not trained on."""
    holds(symptom)


class Ends(Net):
    """Ends in some activation."""

    def __init__(self, last, out=3):
        super().__init__(out=out)
        self.last = last

    def forward(self, x):
        return self.last(super().forward(x))  # BUG


def logits(h):
    return h


def column(h):
    return h.squeeze(1)


def probability(h):
    return torch.sigmoid(h).squeeze(1)  # BUG


def softmax(h):
    return h.softmax(1)  # BUG


def log_softmax(h):
    return h.log_softmax(1)


def nll(output, targets):
    return F.nll_loss(output, targets)


def bce(output, targets):
    return F.binary_cross_entropy(output, targets)  # BUG


def bce_swapped(output, targets):
    return F.binary_cross_entropy(targets, output)  # BUG


def bce_logits(output, targets):
    return F.binary_cross_entropy_with_logits(output, targets)  # BUG


def cross_entropy(output, targets):
    return F.cross_entropy(output, targets)  # BUG


def mse(output, targets):
    return F.mse_loss(output, targets)  # BUG


def mse_of_labels(output, targets):
    return F.mse_loss(output[:, 0], targets.float())  # BUG


def log_of_softmax(output, targets):
    return -torch.log(output.softmax(1)).gather(1, targets[:, None]).mean()  # BUG


G = torch.Generator().manual_seed(0)
X = torch.randn(8, 8, generator=G)
BITS = torch.tensor([0.0, 1, 1, 0, 1, 0, 0, 1])
SEVERAL = torch.randint(0, 2, (8, 3), generator=G).float()
VALUES = torch.randn(8, generator=G)


def classes(wrong, right, *, last=(logits, logits)):
    """Declare a classifier: its losses, and what it ends in, wrong and right."""
    return lambda b: contract(lambda: Ends(last[not b]), loss=wrong if b else right)


def given(targets, wrong, right, *, last=(column, column), out=1):
    """Declare a model with targets of a real batch."""
    return lambda b: Contract(
        model=lambda: Ends(last[not b], out), batch=((X,), targets), loss=wrong if b else right
    )  # fmt: skip


LOSS = ("backward", "loss-input", "loss-shapes", "loss-sign")
ROW_38 = (
    Symptom(name="softmax before cross entropy", make=classes(CE, CE, last=(softmax, logits)), checks=LOSS,
            code="double-softmax", says=("softmax is applied twice", "drop the softmax")),
    Symptom(name="softmax and the loss as modules", checks=LOSS, code="double-softmax", says=("last",),
            make=classes(nn.CrossEntropyLoss(), nn.CrossEntropyLoss(), last=(nn.Softmax(dim=1), nn.Identity()))),
    Symptom(name="sigmoid before cross entropy", make=classes(CE, CE, last=(torch.sigmoid, logits)), checks=LOSS,
            code="sigmoid-logits", says=("hardly separate the classes",)),
    Symptom(name="a rectifier before cross entropy", make=classes(CE, CE, last=(torch.relu, logits)), checks=LOSS,
            code="relu-logits", says=("drop the ReLU",)),
    Symptom(name="nll_loss of logits", make=classes(nll, nll, last=(logits, log_softmax)), checks=LOSS,
            code="nll-without-log", says=("expects the output of log_softmax",)),
    Symptom(name="nll_loss of probabilities", make=classes(nll, nll, last=(softmax, log_softmax)), checks=LOSS,
            code="nll-without-log", says=("expects the output of log_softmax",)),
    Symptom(name="a logarithm of a softmax", make=classes(log_of_softmax, CE), checks=LOSS,
            code="log-of-probabilities", says=("F.cross_entropy on the logits",), status="suspicious"),
    Symptom(name="sigmoid twice", make=given(BITS, bce_logits, bce_logits, last=(probability, column)), checks=LOSS,
            code="double-sigmoid", says=("drop the sigmoid",)),
    Symptom(name="binary cross entropy of logits", make=given(BITS, bce, bce, last=(column, probability)),
            checks=LOSS, code="probability-range", says=("a sigmoid is missing", "_with_logits")),
    Symptom(name="binary cross entropy with the targets first", checks=LOSS, code="loss-arguments-swapped",
            make=given(BITS, bce_swapped, bce, last=(probability, probability)), says=("(output, targets) on line",)),
    Symptom(name="binary cross entropy for classes", make=classes(bce_logits, CE), checks=LOSS, code="target-shape",
            says=("class indices need cross_entropy",)),
    Symptom(name="a regression on the numbers of classes", make=classes(mse_of_labels, CE), checks=LOSS,
            code="labels-as-numbers", says=("an order and distances",), status="suspicious"),
    Symptom(name="a regression for classes", make=classes(mse, CE), checks=LOSS, code="target-shape",
            says=("class indices need cross_entropy, not a regression loss",)),
    Symptom(name="cross entropy for two classes in one column", make=given(BITS, cross_entropy, bce_logits),
            checks=LOSS, code="targets-no-distribution", status="suspicious",
            says=("the softmax runs over the batch", "binary_cross_entropy_with_logits for 0 and 1")),
    Symptom(name="cross entropy for quantities", make=given(VALUES, cross_entropy, mse), checks=LOSS,
            code="targets-no-distribution", says=("mse_loss for quantities",), status="suspicious"),
    Symptom(name="cross entropy for several labels", checks=LOSS, code="targets-no-distribution", status="suspicious",
            make=given(SEVERAL, cross_entropy, bce_logits, last=(logits, logits), out=3), says=("classes of a row compete",)),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_38))
def test_row_38(symptom: Symptom) -> None:
    """The loss gets what it expects, and is one for the task."""
    holds(symptom)
