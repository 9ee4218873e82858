"""What the functions of a model keep in a file's own dicts and lists is put back, and asked about."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Ints, Labels
from pytest_torchcheck.objects.held import random_state
from pytest_torchcheck.state import ModuleState
from pytest_torchcheck.state.outer import holds_tensors, outer_containers

BIASES: dict[tuple[int, ...], torch.Tensor] = {}
TABLES: dict[int, torch.Tensor] = {}
LAST: list[torch.Tensor] = []
CALLS: list[int] = []
UNUSED: list[int] = []


def bias_of(ids):
    if ids.shape not in BIASES:
        BIASES[ids.shape] = (ids % 3).float()
    return BIASES[ids.shape]


def table_of(size):
    if size not in TABLES:
        TABLES[size] = torch.linspace(0, 1, size)
    return TABLES[size]


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

    def pool(self, ids, weights):
        CALLS.append(1)
        return self.head((self.words(ids) * weights[..., None]).mean(1))


class ByShape(Bag):
    def forward(self, ids):
        return self.pool(ids, bias_of(ids))


class BySize(Bag):
    def forward(self, ids):
        return self.pool(ids, table_of(ids.shape[1]).expand(ids.shape).to(ids.device))


class Counting(Bag):
    def forward(self, ids):
        LAST[:] = [LAST[0] + 1 if LAST else torch.zeros(8)]
        return self.head(self.words(ids).mean(1) + LAST[0] * 0.1)


@pytest.fixture(autouse=True)
def _emptied():
    yield
    for one in (BIASES, TABLES, LAST, CALLS):
        one.clear()


def checked(model):
    contract = Contract(model=model, inputs=Ints("B T", low=0, high=20),
                        targets=Labels("B", classes=3), loss=F.cross_entropy)  # fmt: skip
    return contract.check(["batch-independence", "batch-sizes", "eval-purity"])


def test_a_cache_by_shape_in_a_global_is_the_one_cause():
    report = checked(ByShape)
    wrong = [(f.check, f.code) for f in report.findings if f.status == "violated"]
    assert wrong == [("eval-purity", "eval-remembers")], str(report)
    (found,) = [f for f in report.findings if f.status == "violated"]
    assert "BIASES" in found.summary
    assert found.location is not None
    assert found.location.text.startswith("BIASES[ids.shape] =")
    assert not BIASES, "it is put back"


def test_a_global_that_carries_over_is_found():
    assert [f.check for f in checked(Counting).findings if f.status == "violated"] == [
        "eval-purity"
    ]


def test_a_cache_by_all_that_counts_passes():
    report = checked(BySize)
    assert report.ok, str(report)
    assert all(f.status == "passed" for f in report.findings), str(report)
    assert len(CALLS) > 2, "a count is left alone"


def test_containers_that_no_method_names_are_not_looked_at():
    assert set(outer_containers(ByShape())) == {"BIASES", "CALLS"}
    assert set(outer_containers(nn.Linear(2, 2))) == set()


def test_only_what_holds_tensors_is_put_back():
    model = ByShape()
    BIASES[1, 2] = kept = torch.ones(2)
    state = ModuleState(model)
    BIASES[3, 4] = torch.zeros(1)
    CALLS.append(7)
    state.restore()
    assert list(BIASES) == [(1, 2)]
    assert BIASES[1, 2] is kept
    assert CALLS == [7]
    assert holds_tensors([(1, kept)])
    assert not holds_tensors({"a": 1})


TORCHS, NUMPYS, PYTHONS = (
    torch.Generator().manual_seed(5),
    np.random.default_rng(5),
    random.Random(5),
)


class Draws(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        drawn = torch.rand((), generator=TORCHS), NUMPYS.random(), PYTHONS.random()
        return self.head(x) if drawn else x


@pytest.mark.parametrize("made", [Draws, Draws()])
def test_the_generators_of_a_file_are_put_back_after_the_last_run(made):
    then = [str(random_state(one)) for one in (TORCHS, NUMPYS, PYTHONS)]
    fields = {"inputs": "B 4", "targets": Labels("B", classes=3), "loss": F.cross_entropy}
    report = Contract(model=made, **fields).check(["backward", "eval-purity", "seeding"])
    assert report.ok, str(report)
    assert [str(random_state(one)) for one in (TORCHS, NUMPYS, PYTHONS)] == then


class Scaled(nn.Module):
    """Keeps on its class how large inputs are, how often it ran, and what it made."""

    reach = torch.ones(4)
    level = torch.zeros(())
    runs = 0
    made: dict[int, torch.Tensor] = {}  # noqa: RUF012
    last = None

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        kind = type(self)
        kind.runs += 1
        kind.last = x.detach().mean()
        kind.extra = kind.last
        kind.level.add_(1)
        kind.made.setdefault(len(x), x.detach() * 2)
        if self.training:
            kind.reach = torch.maximum(kind.reach.to(x), x.detach().abs().amax(0))
        return self.head(x / kind.reach.to(x))


@pytest.mark.parametrize("made", [Scaled, lambda: Scaled()], ids=["class", "factory"])
def test_attributes_of_a_class_are_what_they_were(made):
    reach, level = Scaled.reach, Scaled.level
    report = Contract(
        model=made, inputs="B 4", targets=Labels("B", classes=3), loss=F.cross_entropy
    ).check(["backward", "weights-update", "batch-independence", "batch-sizes", "eval-purity"])
    assert Scaled.reach is reach
    assert Scaled.level is level
    assert reach.dtype == torch.float32
    assert level.item() == 0
    assert (Scaled.runs, Scaled.last, Scaled.made) == (0, None, {})
    assert not hasattr(Scaled, "extra")
    assert "dtype-pair" not in {found.code for found in report.findings}


class Floor(nn.Module):
    """Makes its table once for all of its kind, in the dtype of the first input."""

    table = None

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        if Floor.table is None:
            Floor.table = torch.linspace(0, 1, 4).to(x)
        return self.head(x + Floor.table)


def test_no_run_takes_the_table_of_another_dtype():
    report = Contract(
        model=Floor, inputs="B 4", targets=Labels("B", classes=3), loss=F.cross_entropy
    ).check(["batch-independence", "batch-sizes", "seeding"])
    assert report.ok, str(report)
