"""A fix uses the names that stand there, no size that was drawn, and is no second cause of what a choice of classes is."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels


def told(model, checks, **fields):
    given = {"inputs": "B 6", "targets": Labels("B", classes=3), "loss": F.cross_entropy, **fields}
    found = Contract(model=model, **given).check(checks).findings
    return [f for f in found if f.status in ("violated", "suspicious")]


class Centred(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 3)

    def forward(self, rows):
        rows -= rows.mean(1, keepdim=True) + 1.0
        return super().forward(rows)


def test_an_assignment_in_place_is_rewritten_with_its_own_names():
    (found,) = told(Centred, ["inputs-unchanged"])
    assert found.fix.startswith(
        "write to a new tensor: rows = rows - (rows.mean(1, keepdim=True) + 1.0) instead of rows -= "
    )


class Cut(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 3)

    def forward(self, x):
        scores = super().forward(x).detach()
        return scores  # noqa: RET504


def test_an_edit_that_helps_is_said_to_help_by_each_check():
    found = told(Cut, ["backward", "loss-sound"])
    assert len(found) == 2
    assert all(
        "drop .detach()" in f.fix and "tried: the check passes with it" in f.fix for f in found
    )


class Decides(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 3)

    def forward(self, x):
        return F.one_hot(super().forward(x).argmax(-1), 3).float()


def test_a_class_that_was_chosen_is_no_softmax():
    codes = {f.code for f in told(Decides, ["backward", "loss-input", "loss-sound"])}
    assert "no-graph" in codes
    assert "double-softmax" not in codes


class Flattens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.Conv1d(2, 5, 3, padding=1), nn.Linear(45, 3)

    def forward(self, signal):
        return self.out(self.mix(signal).flatten(1))


def test_a_length_that_was_drawn_is_not_written_into_a_layer_alone():
    (found,) = told(Flattens, ["backward"], inputs="B 2 L", sizes={"B": 4, "L": (7, 13)})
    assert "in_features" not in found.fix
    assert "declare L=9" in found.fix
    (found,) = told(Flattens, ["backward"], inputs="B 2 8", sizes={"B": 4})
    assert "in_features=40" in found.fix


class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.Conv1d(2, 5, 3, padding=1), nn.Linear(5, 3)

    def forward(self, signal):
        return self.out(self.mix(signal).mean(2))


def test_inputs_are_rearranged_in_words():
    (found,) = told(ChannelsLast, ["backward"], inputs="B L 2", sizes={"B": 4, "L": (7, 13)})
    assert "give signal with its channels in dimension 1" in found.fix


def test_probabilities_are_told_as_before():
    (found,) = told(
        lambda: nn.Sequential(nn.Linear(6, 3), nn.Softmax(-1)), ["loss-input"], sizes={"B": 5}
    )
    assert found.code == "double-softmax"
