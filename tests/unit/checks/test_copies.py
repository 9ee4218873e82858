"""A deep copy and its pickle are run once where both hold, and each by itself where one of them does not."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

Y = torch.tensor([0, 1, 2, 0])


class Sound(nn.Module):
    """A layer with a scale beside it."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.scale = 2.0

    def forward(self, x):
        runs.append(1)
        return self.head(x) * self.scale


class Forgetful(Sound):
    """Loses its scale when pickled, and so when copied."""

    def __getstate__(self):
        return {**self.__dict__, "scale": 1.0}


class CopiesBadly(Sound):
    """Loses its scale when copied, and gets it back when unpickled."""

    def __deepcopy__(self, memo):
        made = type(self)()
        made.head = copy.deepcopy(self.head, memo)
        made.scale = 1.0
        return made

    def __setstate__(self, state):
        super().__setstate__({**state, "scale": 2.0})


class Handing(Sound):
    """Hands its layer over to its copy."""

    def __deepcopy__(self, memo):
        made = type(self)()
        made.head = self.head
        return made


runs: list[int] = []


@pytest.mark.parametrize(
    ("kind", "codes"),
    [
        (Sound, {"ok"}),
        (Forgetful, {"pickle-differs"}),
        (CopiesBadly, {"ok", "copy-differs"}),
        (Handing, {"ok", "copy-depends"}),
    ],
)
def test_what_copying_loses_is_told(kind, codes):
    torch.manual_seed(0)
    contract = Contract(model=kind(), batch=((torch.randn(4, 4),), Y), loss=F.cross_entropy)
    found = [f for f in contract.check("copy-and-pickle").findings if f.check]
    told = {"ok" if f.status == "passed" else f.code for f in found}
    assert told == codes


def test_a_sound_model_runs_once_for_both():
    torch.manual_seed(0)
    contract = Contract(model=Sound(), batch=((torch.randn(4, 4),), Y), loss=F.cross_entropy)
    runs.clear()
    contract.check("rng-hygiene")
    before = len(runs)
    runs.clear()
    found = contract.check(["rng-hygiene", "copy-and-pickle"]).findings
    assert len(runs) == before + 1  # two samples, of the copy; those of the model ran anyway
    assert [f.summary for f in found if f.check == "copy-and-pickle"] == [
        "a pickled copy gives the same outputs",
        "a deep copy gives the same outputs after 2 tensors of the original changed",
    ]


class Tapped(nn.Module):
    """Reads a layer's result where a hook that closes over the model left it."""

    def __init__(self, strict: bool) -> None:
        super().__init__()
        self.body, self.head, self.strict = nn.Linear(5, 8), nn.Linear(8, 3), strict
        self.taps: list[torch.Tensor] = []

        def tap(module, given, made):
            self.taps.append(made)

        self.body.register_forward_hook(tap)

    def forward(self, x):
        made = self.body(x)
        taken = self.taps.pop() if self.strict or self.taps else made * 0
        return self.head(torch.relu(taken))


class TappedByMethod(Tapped):
    """A method is bound to the copy."""

    def __init__(self) -> None:
        super().__init__(True)
        self.body._forward_hooks.clear()
        self.body.register_forward_hook(self.tap)

    def tap(self, module, given, made):
        self.taps.append(made)


@pytest.mark.parametrize(
    ("strict", "summary"),
    [
        (True, "a deep copy of Tapped raises IndexError: pop from empty list"),
        (False, "a deep copy of Tapped gives different outputs"),
    ],
)
def test_a_hook_that_closes_over_the_original_is_named(strict, summary):
    contract = Contract(model=lambda: Tapped(strict), inputs="B 5")
    (found,) = [f for f in contract.check(["copy-and-pickle"]).findings if f.status == "violated"]
    assert (found.code, found.summary) == ("copy-differs", summary)
    assert "a hook of body" in found.cause
    assert found.location is not None
    assert found.location.text.startswith("def tap(")


def test_a_hook_that_is_a_method_is_copied():
    report = Contract(model=TappedByMethod, inputs="B 5").check(["copy-and-pickle"])
    assert report.ok, str(report)
