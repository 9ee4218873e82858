"""Whole numbers of 8 or 16 bits that an operation wraps around are found; those that fit, or are converted first, are not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

FRAMES = torch.randint(0, 256, (6, 3, 4), generator=torch.Generator().manual_seed(0)).to(
    torch.uint8
)
TARGETS = torch.arange(6) % 3


class Frames(nn.Module):
    def __init__(self, motion):
        super().__init__()
        self.head, self.motion = nn.Linear(8, 3), motion

    def forward(self, frames):
        return self.head(self.motion(frames).float().flatten(1) / 255)


def differences(frames):
    return frames[:, 1:] - frames[:, :-1]


def sums(frames):
    return frames[:, 1:] + frames[:, :-1]


def squares(frames):
    return frames[:, 1:] * frames[:, 1:]


def negated(frames):
    return -frames[:, 1:]


def converted(frames):
    return frames[:, 1:].float() - frames[:, :-1].float()


def wider(frames):
    return frames[:, 1:].int() - frames[:, :-1].int()


def fitting(frames):
    return frames[:, 1:] // 2 + frames[:, :-1] // 2


def larger(frames):
    return torch.maximum(frames[:, 1:], frames[:, :-1])


def told(motion):
    batch = (FRAMES,), TARGETS
    contract = Contract(model=lambda: Frames(motion), batch=batch, loss=F.cross_entropy)
    return [f for f in contract.check(["gradients-finite"]).findings if f.status != "passed"]


@pytest.mark.parametrize("motion", [differences, sums, squares, negated])
def test_what_does_not_fit(motion):
    (finding,) = told(motion)
    assert (finding.status, finding.code) == ("violated", "integer-wraps")
    assert "uint8" in finding.summary
    assert finding.location.text.startswith("return")


@pytest.mark.parametrize("motion", [converted, wider, fitting, larger])
def test_what_fits(motion):
    assert told(motion) == []


class Paths(nn.Module):
    """Adds up the weights of all paths through a sequence."""

    def __init__(self, stable):
        super().__init__()
        self.stable, self.head = stable, nn.Linear(4, 5)

    def forward(self, x):
        scores = self.head(x) + 1.0
        total = scores[:, 0]
        for step in range(1, x.shape[1]):
            both = total[:, :, None] + scores[:, step, None]
            total = both.logsumexp(1) if self.stable else both.exp().sum(1).log()
        return total


@pytest.mark.parametrize("stable", [False, True])
def test_what_is_infinite_at_larger_sizes(stable):
    contract = Contract(
        model=lambda: Paths(stable), inputs="B T 4", batch=((torch.randn(4, 8, 4),), torch.arange(4)),
        sizes={"B": (1, 4), "T": (1, 120)}, loss=F.cross_entropy,
    )  # fmt: skip
    wrong = [f for f in contract.check(["batch-sizes"]).findings if f.status == "violated"]
    assert [f.code for f in wrong] == ([] if stable else ["non-finite-forward"])
    for found in wrong:
        assert "T=120" in found.summary
        assert "exp" in found.location.text


class Words(nn.Module):
    """Looks words up behind a conversion of their ids."""

    def __init__(self, convert):
        super().__init__()
        self.table, self.head, self.convert = nn.Embedding(5000, 4), nn.Linear(4, 3), convert

    def forward(self, ids):
        looked = self.table(self.convert(ids))
        return self.head(looked.mean(1))


def looked_up(convert):
    ids = torch.randint(0, 5000, (6, 7), generator=torch.Generator().manual_seed(0))
    contract = Contract(model=lambda: Words(convert), batch=((ids,), TARGETS), loss=F.cross_entropy)
    return [f for f in contract.check(["gradients-finite"]).findings if f.status != "passed"]


@pytest.mark.parametrize(
    "convert",
    [
        lambda ids: ids.bfloat16().long(),
        lambda ids: ids.unsqueeze(2).to(torch.uint8).squeeze(2).int(),
        lambda ids: ids.half().reshape(ids.shape).long(),
    ],
    ids=["bfloat16", "uint8", "half"],
)
def test_indices_that_a_conversion_changes(convert):
    (found,) = looked_up(convert)
    assert (found.status, found.code) == ("violated", "integer-wraps")
    assert "changes indices" in found.summary


@pytest.mark.parametrize(
    "convert",
    [
        lambda ids: ids.int(),
        lambda ids: ids.float().long(),
        lambda ids: (ids % 256).to(torch.uint8).int(),
    ],
    ids=["int32", "float32", "hashed"],
)
def test_indices_that_stay(convert):
    assert looked_up(convert) == []


class Scaled(nn.Module):
    """Takes whole numbers as amounts, which may be rounded."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(7, 3)

    def forward(self, amounts):
        return self.head(amounts.half().float() / 5000)


def test_amounts_may_be_rounded():
    amounts = torch.randint(0, 5000, (6, 7), generator=torch.Generator().manual_seed(1))
    contract = Contract(model=Scaled, batch=((amounts,), TARGETS), loss=F.cross_entropy)
    assert [f.status for f in contract.check(["gradients-finite"]).findings] == ["passed"]
