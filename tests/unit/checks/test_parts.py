"""A part of a layer's outputs that nothing reads is named with the line that was to read it, unless that may be meant."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Finding

X = torch.randn(4, 5, 12, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0])


class Base(nn.Module):
    """Four chunks of a wide layer."""

    other = False

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.head = nn.Linear(12, 24), nn.LazyLinear(3)
        self.few = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self(X)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.mixed(self.wide(x).relu()).mean(1))

    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class ForgetsItsChunk(Base):
    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        made = []
        for i, chunk in enumerate(h.chunk(4, -1)):
            if i == 0:
                y = chunk
            elif i == 1:
                y = self.few[0](chunk)
            else:
                y = self.few[i - 1](y)  # HERE
            made.append(y)
        return torch.cat(made, -1)


class ForgetsUnderACondition(Base):
    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        y, made = h[..., :6], []
        for i, chunk in enumerate(h.chunk(4, -1)):
            y = self.few[i % 3](chunk if i < 2 else y)  # HERE
            made.append(y)
        return torch.cat(made, -1)


class ForgetsTheItem(Base):
    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        parts = torch.split(h, 6, -1)
        made = [parts[3]]
        for i, layer in enumerate(self.few):
            if i == 0:  # noqa: SIM108
                y = parts[i]
            else:
                y = y.tanh()  # HERE
            made.append(layer(y))
        return torch.cat(made, -1)


class NeverComesToTheLast(Base):
    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        made = []
        for layer, chunk in zip(self.few, h.chunk(4, -1), strict=False):  # HERE
            made.append(layer(chunk))
        return torch.cat(made, -1)


class ReadsAnItemTwice(Base):
    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        parts = h.chunk(4, -1)
        first = self.few[0](parts[1])
        second = self.few[1](parts[1])  # HERE
        return torch.cat([parts[0], first, second, self.few[2](parts[3])], -1)


class SlicesTwice(Base):
    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        values = h[..., :12]
        gates = h[..., :12]  # HERE
        return values * gates.sigmoid()


class TakesEverySecondTwice(Base):
    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        values, gates = h[..., 0::2], h[..., 0::2]  # HERE
        return values * gates.sigmoid()


class OfEachHead(Base):
    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        q, k, v = h.unflatten(-1, (2, 12)).transpose(1, 2).chunk(3, -1)  # noqa: RUF059
        return ((q @ k.mT).softmax(-1) @ k).transpose(1, 2).flatten(-2)  # HERE


class FirstHalf(Base):
    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        return h[..., :12]


class OneOfFour(Base):
    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        parts = h.chunk(4, -1)
        return parts[0]


class ReadElsewhere(Base):
    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        parts = h.chunk(4, -1)
        if self.other:
            return parts[2] + parts[3]
        return parts[0] * parts[1].sigmoid()


class Deliberate(Base):
    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        first, second, *_ = h.chunk(4, -1)
        return first * second.sigmoid()


class ReadsEach(Base):
    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        y, made = h[..., :6], []
        for i, chunk in enumerate(h.chunk(4, -1)):
            y = chunk if i == 0 else self.few[i - 1](chunk + y)
            made.append(y)
        return torch.cat(made, -1)


def told(model: type[nn.Module]) -> list[Finding]:
    """Return what dead-modules finds."""
    torch.manual_seed(0)
    report = Contract(model=model, batch=((X,), Y), loss=F.cross_entropy).check(["dead-modules"])
    return [f for f in report.findings if f.status in ("violated", "suspicious", "error")]


@pytest.mark.parametrize(
    "model",
    [
        ForgetsItsChunk,
        ForgetsUnderACondition,
        ForgetsTheItem,
        NeverComesToTheLast,
        ReadsAnItemTwice,
        SlicesTwice,
        TakesEverySecondTwice,
        OfEachHead,
    ],
)
def test_the_line_that_goes_past_a_part_is_named(model: type[nn.Module]) -> None:
    (finding,) = told(model)
    assert (finding.status, finding.code) == ("violated", "features-unread")
    assert finding.culprits[0].name == "wide.weight"
    assert finding.location is not None
    assert finding.location.text.endswith("HERE")


@pytest.mark.parametrize("model", [FirstHalf, OneOfFour, ReadElsewhere, Deliberate])
def test_parts_that_may_be_left_out_on_purpose_are_suspicious(model: type[nn.Module]) -> None:
    (finding,) = told(model)
    assert (finding.status, finding.code) == ("suspicious", "features-unread")
    assert finding.location is not None
    assert "h" in finding.location.text


def test_parts_that_are_all_read_are_silent() -> None:
    assert told(ReadsEach) == []


class ReadsAllButSome(Base):
    """Columns 2 and 7 of each half do not count: several blocks in one period, which no rows describe."""

    def mixed(self, h: torch.Tensor) -> torch.Tensor:
        counts = torch.ones(12)
        counts[[2, 7]] = 0
        return h.unflatten(-1, (2, 12)).mul(counts).flatten(-2)


def test_several_blocks_in_one_period_are_no_block() -> None:
    assert all(finding.code != "features-unread" for finding in told(ReadsAllButSome))


class Density(nn.Module):
    """Returns the centre of a normal density; its spread is the other half of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = nn.Linear(12, 20), nn.Linear(20, 6)

    def both(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        centre, spread = self.last(self.body(x).tanh()).chunk(2, -1)
        return centre, spread

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.both(x)[0]


@pytest.mark.parametrize("zeroed", [False, True])
@pytest.mark.parametrize("reads", [True, False])
def test_rows_that_the_step_alone_reads_are_read(reads: bool, zeroed: bool) -> None:
    def step(model: Density, optimizer: torch.optim.Optimizer, inputs: tuple, y: torch.Tensor):
        centre, spread = model.both(inputs[0])
        error = (centre - y) ** 2
        loss = (error * (-spread).exp() + spread).mean() if reads else error.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if zeroed:
            optimizer.zero_grad()
        return loss.detach()

    torch.manual_seed(0)
    contract = Contract(
        model=Density, inputs="B 12", targets="B 3", train_step=step,
        optimizer=lambda model: torch.optim.Adam(model.parameters(), 1e-3),
    )  # fmt: skip
    found = contract.check(["dead-modules"]).findings
    assert ("features-unread" in {f.code for f in found}) is not reads
