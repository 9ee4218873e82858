"""A result that nothing reads is named with its line; results that something reads later, elsewhere or not in torch are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Finding

IDS = torch.arange(30).reshape(5, 6) % 11
X = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 2])


class Base(nn.Module):
    """A small net with spare parts."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 12), nn.Linear(12, 12), nn.Linear(12, 3)
        self.act, self.drop = nn.SiLU(), nn.Dropout(0.1)
        self.kept: Any = None


class DropsActivation(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.b(self.a(x).tanh())
        self.act(h)  # HERE
        return self.c(h)


class DropsClamp(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        torch.clamp(h, min=0.0)  # HERE
        return self.c(self.b(h).tanh())


class NeverReadsMask(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).tanh()
        keep = h > 0  # noqa: F841 HERE
        return self.c(self.b(h).tanh())


class BindsAgain(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).tanh()
        y = F.normalize(h)  # HERE
        y = self.b(h)
        return self.c(y.relu())


class ReadsSiblingTwice(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        left, right = h[:, :6], h[:, 6:]  # noqa: F841
        both = torch.cat([left, left], 1)  # HERE
        return self.c(self.b(both).relu())


class LastHeadOnly(nn.Module):
    """Its value projection is chunked off and not read."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.qkv = nn.Embedding(11, 8), nn.Linear(8, 24)
        self.head = nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        q, k, v = self.qkv(x).chunk(3, -1)  # noqa: RUF059
        mixed = (q @ k.mT).softmax(-1) @ k  # HERE
        return self.head((x + mixed).mean(1))


def told(model: Any, x: Any = X, y: Any = Y) -> list[Finding]:
    """Return what dead-modules finds."""
    torch.manual_seed(0)
    report = Contract(model=model, batch=((x,), y), loss=F.cross_entropy).check(checks=["dead-modules"])  # fmt: skip
    bad = [f for f in report.findings if f.status in ("violated", "suspicious", "error")]
    return [f for f in bad if f.code != "module-idle"]


@pytest.mark.parametrize(
    "model", [DropsActivation, DropsClamp, NeverReadsMask, BindsAgain, ReadsSiblingTwice]
)
def test_the_line_that_loses_a_result_is_named(model: type[nn.Module]) -> None:
    (finding,) = told(model)
    assert (finding.status, finding.code) == ("violated", "result-unread")
    assert finding.location is not None
    assert finding.location.text.endswith("HERE")


def test_a_part_of_a_layer_that_goes_nowhere_is_named_with_the_line_that_reads_its_sibling() -> (
    None
):
    (finding,) = told(LastHeadOnly, IDS, Y[:5])
    assert (finding.status, finding.code) == ("violated", "features-unread")
    assert finding.culprits[0].name == "qkv.weight"
    assert finding.location is not None
    assert finding.location.text.endswith("HERE")


class Sound(Base):
    """Everything that its variants compute is read, or kept, or is not meant to be."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.extra(self.a(x).tanh())
        return self.c(self.b(h).relu())

    def extra(self, h: torch.Tensor) -> torch.Tensor:
        return h


class InPlace(Sound):
    def extra(self, h: torch.Tensor) -> torch.Tensor:
        h = h * 1.0
        h.clamp_(min=-0.5)
        with torch.no_grad():
            torch.add(h, 1.0, out=torch.empty_like(h))
        F.silu(h, inplace=True)
        return h


class Kept(Sound):
    def extra(self, h: torch.Tensor) -> torch.Tensor:
        self.kept = h.detach().mean()
        return h


class OneOfTwo(Sound):
    def extra(self, h: torch.Tensor) -> torch.Tensor:
        best, place = h.topk(3, dim=1)  # noqa: RUF059
        _, order = h.sort(dim=1)
        return h + place.float().mean() * 0.0 + order.float().mean() * 0.0


class ForNumPy(Sound):
    def extra(self, h: torch.Tensor) -> torch.Tensor:
        size = np.asarray(h.detach().abs())
        return h / float(size.max())


class InEvalOnly(Sound):
    def extra(self, h: torch.Tensor) -> torch.Tensor:
        spread = h.std()
        return h if self.training else h / spread


class OtherConfiguration(Sound):
    residual = False

    def extra(self, h: torch.Tensor) -> torch.Tensor:
        short = self.act(h)
        return h + short if self.residual else h


class Deliberate(Sound):
    def extra(self, h: torch.Tensor) -> torch.Tensor:
        _unused = h.square()
        spare = h.square()
        del spare
        return h


class UpdatesStatistics(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(12, affine=False)

    def extra(self, h: torch.Tensor) -> torch.Tensor:
        self.norm(h.detach())
        return (h - self.norm.running_mean) / self.norm.running_var.sqrt()


class Loops(Sound):
    def extra(self, h: torch.Tensor) -> torch.Tensor:
        total = h * 0.0
        for _ in range(3):
            h = h.tanh()
            total = total + h
        return total


class Judged(Sound):
    def extra(self, h: torch.Tensor) -> torch.Tensor:
        if h.isnan().any():
            raise ValueError("not a number")
        assert h.dim() == 2
        return h


@pytest.mark.parametrize(
    "model",
    [
        InPlace,
        Kept,
        OneOfTwo,
        ForNumPy,
        InEvalOnly,
        OtherConfiguration,
        Deliberate,
        UpdatesStatistics,
        Loops,
        Judged,
    ],
)
def test_what_is_read_or_kept_or_not_meant_to_be_is_silent(model: type[nn.Module]) -> None:
    assert told(model) == []


class DeadRectifier(Sound):
    """Half of a layer is dead for now: other weights would wake it."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.a.bias[6:] = -50.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.a(x).relu()).relu())


class PadsClasses(nn.Module):
    """Returns more than the loss reads; what is returned is not lost."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(5, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x)


def test_dead_units_and_unread_outputs_are_no_lost_features() -> None:
    assert [f for f in told(DeadRectifier) if f.code == "features-unread"] == []
    contract = Contract(
        model=PadsClasses, batch=((X,), Y), loss=lambda o, t: F.cross_entropy(o[:, :3], t)
    )
    assert all(f.code != "features-unread" for f in contract.check(checks=["dead-modules"]).findings)  # fmt: skip
