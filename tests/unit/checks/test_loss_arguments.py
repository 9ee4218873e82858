"""A loss that writes to its arguments, and one whose writing nobody notices."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


def status(loss, targets):
    report = Contract(
        model=nn.Linear(3, 4), batch=((torch.linspace(-1, 1, 18).view(6, 3),), targets), loss=loss
    ).check(["loss-arguments"])
    (found,) = report.findings
    return found.status, found


def test_a_padding_label_set_in_place_is_no_finding():
    def loss(output, labels):
        labels[labels == 3] = -100
        return F.cross_entropy(output, labels)

    told, found = status(loss, torch.arange(6) % 4)
    assert told == "passed"
    assert "targets is changed in the first call only" in found.summary


def test_a_loss_that_is_random_is_no_finding():
    calls = []

    def loss(output, labels):
        labels += 0
        calls.append(1)
        return F.cross_entropy(output, labels) + len(calls)

    assert status(loss, torch.arange(6) % 4)[0] == "passed"


def test_labels_that_count_down_are_named_with_their_line():
    def loss(output, labels):
        labels -= 1
        return F.cross_entropy(output, labels.clamp(0))

    told, found = status(loss, torch.arange(6) % 4 + 1)
    assert told == "violated"
    assert found.location.text == "labels -= 1"
