"""A model and a loss run for a shorter batch, and return as many samples as they are given."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels

ROWS = 6
G = torch.Generator().manual_seed(0)
SIGNALS, LEVELS = torch.randn(6, 2, 6, generator=G), torch.randn(6, 3, generator=G)


class Base(nn.Module):
    rows = 6

    def __init__(self, rows=6):
        super().__init__()
        self.given, self.kept = rows, 6
        self.mix, self.head = nn.Linear(6, 6), nn.Linear(12, 3)
        self.rnn = nn.GRU(6, 12)


class OfClass(Base):
    def forward(self, x):
        return self.head(self.mix(x).reshape(self.rows, 12))


class OfModule(Base):
    def forward(self, x):
        return self.head(self.mix(x).reshape(ROWS, 12))


class OfConstant(Base):
    def __init__(self):
        super().__init__()
        self.kept = 6

    def forward(self, x):
        mixed = self.mix(x)
        return self.head(mixed.reshape(self.kept, 12))


class OfName(Base):
    def forward(self, x):
        count = 6
        return self.head(
            self.mix(x).reshape(
                count,
                12,
            )
        )


class OfState(Base):
    def forward(self, x):
        state = torch.zeros(1, 6, 12)
        return self.head(self.rnn(x.transpose(0, 1), state)[0][-1])


class Rest(Base):
    """The rest of the elements goes where it is not seen."""

    def forward(self, x):
        return self.head(self.mix(x).flatten(1).reshape(6, -1, 12).mean(1))


class Read(Base):
    def forward(self, x):
        count = len(x)
        return self.head(self.mix(x).reshape(count, 12))


class Given(Base):
    def forward(self, x):
        return self.head(self.mix(x).reshape(self.given, 12))


class Carried(Base):
    """Keeps the state of each stream from one batch to the next."""

    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(1, 6, 12))

    def forward(self, x):
        return self.head(self.rnn(x.transpose(0, 1), self.state)[0][-1])


class Nodes(Base):
    """Samples that have to do with each other, such as the nodes of one graph."""

    def forward(self, x):
        every = torch.full((6, 6), 1 / 6)
        return self.head(every @ self.mix(x).flatten(1))


def sizes(model, loss=F.mse_loss, **fields):
    report = Contract(model=model, batch=(SIGNALS, LEVELS), loss=loss, **fields).check(
        ["batch-sizes"]
    )
    (found,) = report.findings
    return found


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (OfClass, "self.rows"),
        (OfModule, "ROWS"),
        (OfConstant, "self.kept"),
        (OfName, "count"),
        (OfState, "6"),
        (Rest, "6"),
    ],
)
def test_what_stands_for_the_batch_size_is_named(model, word):
    found = sizes(model)
    assert (found.status, found.code) == ("violated", "size-crash"), str(found)
    assert found.summary.startswith(f"the batch size is hard-coded in the model: {word} on line")
    assert "x.shape[0]" in found.fix
    assert ("it returns 6 outputs" in found.because) is (model is Rest)


@pytest.mark.parametrize(
    ("model", "status"),
    [(Read, "passed"), (Given, "inconclusive"), (Carried, "inconclusive"), (Nodes, "inconclusive")],
)
def test_a_size_that_may_be_meant_is_no_mistake(model, status):
    assert sizes(model).status == status


class Filled(Base):
    """Gives an output for each of six samples, whether they are there or not."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def forward(self, x):
        rows = self.head(self.mix(x).flatten(1))
        return F.pad(rows, (0, 0, 0, (self.count or len(x)) - len(x)))


@pytest.mark.parametrize("count", [6, None])
def test_as_many_outputs_for_fewer_samples(count):
    found = sizes(lambda: Filled(count))
    if count is None:
        assert found.status == "passed"
        return
    assert (found.status, found.code) == ("violated", "batch-size-dependent")
    assert found.summary == "output has 6 entries for 5 samples"
    assert "F.pad" in found.location.text
    assert "[5, 3] into [6, 3]" in found.because


def spelled(output, target):
    return F.mse_loss(output.reshape(6, 3), target)


def read(output, target):
    return F.mse_loss(output.reshape(len(output), 3), target)


def halves(output, target):
    first, second = output.reshape(2, -1, 3)
    return F.mse_loss(first, second) + F.mse_loss(output, target)


def groups(output, target):
    return F.mse_loss(output.reshape(-1, 6, 3).mean(1), target.reshape(-1, 6, 3).mean(1))


class Table(nn.Module):
    """A weight for each sample of the data."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weights", torch.rand(6, 1, generator=G))

    def forward(self, output, target):
        return ((output - target).square() * self.weights).mean()


@pytest.mark.parametrize(
    ("loss", "wrong"),
    [(spelled, True), (read, False), (halves, False), (groups, False), (Table(), False)],
)
def test_the_loss_runs_for_a_shorter_batch(loss, wrong):
    found = sizes(Read, loss)
    assert found.status == ("violated" if wrong else "passed"), str(found)
    if wrong:
        assert found.summary.startswith("the batch size is hard-coded in the loss: 6 on line")
        assert "without the last one the loss raises RuntimeError" in found.observed
        assert "output.shape[0]" in found.fix
        fixed = sizes(Read, loss, inputs="B 2 6", sizes={"B": 6})
        assert fixed.status != "violated"


class Squeezed(nn.Module):
    """Loses the dimension of the batch where it is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.unsqueeze(1)).squeeze().log_softmax(1)


@pytest.mark.parametrize(("least", "status"), [(1, "violated"), (2, "passed"), (8, "passed")])
def test_a_batch_smaller_than_the_declared_ones_need_not_run(least: int, status: str) -> None:
    report = Contract(
        model=Squeezed,
        inputs="B 6",
        sizes={"B": (least, 8)},
        targets=Labels("B", classes=3),
        loss=nn.functional.nll_loss,
    ).check(["batch-sizes"])
    assert [one.status for one in report.findings] == [status]


class Flattened(nn.Module):
    """Gives no dimension of the batch for a batch of one."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x[:, None]).squeeze()


@pytest.mark.parametrize(("least", "status"), [(1, "violated"), (2, "suspicious")])
def test_a_shape_that_one_sample_loses_is_suspicious_below_the_declared_sizes(
    least: int, status: str
) -> None:
    report = Contract(model=Flattened, inputs="B 6", sizes={"B": (least, 8)}).check(["batch-sizes"])
    assert [(one.status, one.code) for one in report.findings] == [(status, "batch-of-one")]
