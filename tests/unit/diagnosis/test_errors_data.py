from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from provoke import each, explain, line
from torch import nn
from torch.utils.data import DataLoader, Dataset

from pytest_torchcheck import Contract, Labels


class Encoder(nn.Module):
    def __init__(self, vocab, dim, max_length):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(max_length, dim)

    def forward(self, ids):
        pos = torch.arange(ids.shape[1]).unsqueeze(0).expand(ids.shape[0], -1)
        return self.tok(ids) + self.pos(pos)


class Model(nn.Module):
    def __init__(self, vocab=40):
        super().__init__()
        if vocab > 1000:
            self.encoder = Encoder(vocab, 8, max_length=64)
        else:
            self.encoder = Encoder(vocab, 8, max_length=20)

    def forward(self, src):
        return self.encoder(src)


def test_a_position_table_is_followed_to_the_branch_that_was_taken():
    model, ids = Model(), torch.randint(0, 40, (4, 24))
    found = explain(lambda: model(ids), model=model, batch=((ids,), None))
    assert found.code == "position-range"
    assert found.summary == "encoder.pos has 20 positions, and the sequence has 24"
    assert found.location.line == line(Model, "max_length=20")
    assert found.culprits[0].name == "encoder.pos"
    assert found.culprits[0].location.line == line(Encoder, "self.pos = nn.Embedding")
    assert f"arange on line {line(Encoder, 'torch.arange')}" in found.because
    assert "src has length 24 in dimension 1" in found.because
    assert "max_length=24 or more instead of 20" in found.fix


def test_positions_are_known_without_a_replay():
    model, ids = Model(), torch.randint(0, 40, (4, 24))
    found = explain(lambda: model(ids), model=model, batch=((ids,), None), rerun=False)
    assert found.code == "position-range"


def test_ids_beyond_the_vocabulary():
    model, ids = Model(), torch.tensor([[0, 40, 3]])
    found = explain(lambda: model(ids), model=model, batch=((ids,), None))
    assert found.code == "embedding-range"
    assert "off by one" in found.cause
    assert "src" in found.summary
    assert found.location.line == line(Model, "vocab=40")


def test_negative_ids():
    model, ids = Model(), torch.tensor([[0, -1, 3]])
    found = explain(lambda: model(ids), model=model, batch=((ids,), None))
    assert found.code == "embedding-range"
    assert "indexed with -1" in found.summary
    assert found.location.line == line(Encoder, "self.tok(ids)")


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 3))

    def forward(self, ids):
        return F.embedding(ids, self.table)


def test_functional_embedding_and_bag():
    model = Own()
    found = explain(lambda: model(torch.tensor([5])), model=model)
    assert found.code == "embedding-range"
    assert found.culprits[0].name == "table"
    bag = nn.Sequential(nn.EmbeddingBag(10, 3))
    assert explain(lambda: bag(torch.tensor([[10]])), model=bag).code == "embedding-range"


@pytest.mark.parametrize(
    "run",
    each(
        lambda: torch.randn(3, 4).gather(1, torch.tensor([[4]])),
        lambda: torch.randn(3, 4).index_select(1, torch.tensor([4])),
        lambda: torch.randn(3, 4)[torch.tensor([3])],
        lambda: torch.randn(3, 4)[3],
        lambda: torch.zeros(3, 4).scatter_(1, torch.tensor([[4]]), 1.0),
        lambda: torch.zeros(3, 4).index_add_(0, torch.tensor([5]), torch.randn(1, 4)),
        lambda: F.one_hot(torch.tensor([5]), 4),
    ),
)
@pytest.mark.parametrize("rerun", [True, False])
def test_indices_out_of_bounds(run, rerun):
    assert explain(run, rerun=rerun).code == "index-range"


def test_index_dtypes_and_masks():
    model, x = nn.Sequential(nn.Embedding(10, 3)), torch.randn(3)
    found = explain(lambda: model(x), model=model, batch=((x,), None))
    assert found.code == "index-dtype"
    assert found.culprits[0].name == "0"
    assert explain(lambda: torch.randn(3, 4)[torch.randn(2)]).code == "index-dtype"
    mask = torch.ones(3, 3, dtype=torch.bool)
    assert explain(lambda: torch.randn(3, 4)[mask]).code == "mask-shape"


def loss(output, target):
    return F.cross_entropy(output, target)


def of_labels(logits, target, **arguments):
    return explain(lambda: F.cross_entropy(logits, target, **arguments), phase="loss")


def test_labels_that_count_from_one():
    target = torch.arange(1, 11).repeat(3)
    found = explain(lambda: loss(torch.randn(30, 10), target), phase="loss")
    assert found.code == "label-range"
    assert found.summary == "targets reach 10 but the head has 10 classes, 0..9"
    assert found.cause == "labels start at 1"
    assert "0 never occurs in 30 targets, 10 occurs 3 times" in found.because
    assert found.location.line == line(loss, "cross_entropy")
    assert found.culprits[0].kind == "target"


def test_labels_with_a_mark_for_ignored():
    found = of_labels(torch.randn(4, 10), torch.tensor([-1, 0, 2, 3]))
    assert "ignore_index=-1" in found.fix
    found = of_labels(torch.randn(4, 10), torch.tensor([255, 0, 2, 3]))
    assert "ignore_index=255" in found.fix


def test_labels_beyond_the_head_and_class_dimension():
    found = of_labels(torch.randn(4, 10), torch.tensor([0, 0, 2, 12]))
    assert "13 classes" in found.fix
    found = of_labels(torch.randn(4, 7, 30), torch.randint(10, 30, (4, 30)))
    assert "class dimension must be dimension 1" in found.cause


@pytest.mark.parametrize(
    ("dtype", "word"),
    [
        (torch.float32, "float32"),
        (torch.int32, "int32"),
        (torch.bool, "bool"),
        (torch.float64, "float64"),
    ],
)
def test_label_dtypes(dtype, word):
    found = of_labels(torch.randn(4, 10), torch.ones(4).to(dtype))
    assert found.code == "label-dtype"
    assert found.summary == f"targets are {word}, and cross_entropy needs int64 class indices"
    assert ".long()" in found.fix


@pytest.mark.parametrize(
    ("logits", "target", "fix"),
    [
        ((4, 10), torch.eye(10)[:4].long(), ".argmax(1)"),
        ((4, 10), torch.ones(4, 1).long(), ".squeeze(1)"),
        ((4, 7, 10), torch.ones(4, 7).long(), ".movedim(-1, 1)"),
        ((4, 10), torch.ones(4, 9), "last layer 9 classes"),
        ((4, 10), torch.ones(5).long(), "one row"),
        ((28, 10), torch.ones(7).long(), "flatten"),
    ],
    ids=["one-hot", "column", "class-last", "probabilities", "batch", "flattened"],
)
def test_label_shapes(logits, target, fix):
    found = of_labels(torch.randn(logits), target)
    assert found.code == "label-shape"
    assert fix in found.fix


def test_labels_shifted_on_one_side_only():
    x = torch.zeros(4, 8, dtype=torch.long)
    found = explain(
        lambda: F.cross_entropy(torch.randn(32, 10), torch.ones(28).long()),
        phase="loss",
        model=nn.Identity(),
        batch=((x,), None),
    )
    assert "one more position per sample (32 - 28 = 4, the batch size)" in found.cause


def test_class_weights():
    found = of_labels(torch.randn(4, 10), torch.ones(4).long(), weight=torch.ones(9))
    assert found.code == "class-weights"


def test_binary_targets():
    p = torch.rand(4, 1)
    found = explain(lambda: F.binary_cross_entropy(p, torch.ones(4)), phase="loss")
    assert found.code == "target-shape"
    assert ".squeeze(-1) on the output" in found.fix
    found = explain(lambda: F.binary_cross_entropy_with_logits(p, torch.ones(4)), phase="loss")
    assert found.code == "target-shape"
    wide = torch.rand(4, 3)
    found = explain(lambda: F.binary_cross_entropy_with_logits(wide, torch.ones(4)), phase="loss")
    assert "cross_entropy" in found.fix
    for run in (F.binary_cross_entropy, F.binary_cross_entropy_with_logits):
        found = explain(lambda run=run: run(torch.rand(4), torch.ones(4).long()), phase="loss")
        assert found.code == "target-dtype"
        assert "int64" in found.summary
    found = explain(
        lambda: F.binary_cross_entropy(torch.rand(4), torch.ones(4).double()), phase="loss"
    )
    assert "NumPy" in found.cause


def test_probabilities_out_of_range():
    found = explain(
        lambda: F.binary_cross_entropy(torch.full((4,), 3.0), torch.ones(4)), phase="loss"
    )
    assert found.code == "probability-range"
    assert "sigmoid is missing" in found.cause
    nan = torch.tensor([0.5, float("nan")])
    found = explain(lambda: F.binary_cross_entropy(nan, torch.ones(2)), phase="loss")
    assert "1 values that are not finite" in found.summary
    found = explain(
        lambda: F.binary_cross_entropy(torch.rand(4), torch.full((4,), 2.0)), phase="loss"
    )
    assert found.culprits[0].kind == "target"


class Ragged(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.zeros(index + 1)


class Nothing(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return None


class Broken(Ragged):
    def __getitem__(self, index):
        return {}["absent"]


class Held(Ragged):
    def __init__(self):
        self.scale = 2
        self.transform = lambda x: x


def test_collate_of_ragged_samples():
    found = explain(lambda: next(iter(DataLoader(Ragged(), batch_size=2))), phase="data")
    assert found.code == "collate-sizes"
    assert found.summary == "samples of Ragged.__getitem__ have different shapes: [1] and [2]"
    assert found.location.line == line(Ragged.__getitem__, "return")
    assert "pad_sequence" in found.fix


def test_collate_of_other_types():
    found = explain(lambda: next(iter(DataLoader(Nothing(), batch_size=2))), phase="data")
    assert found.code == "collate-type"
    assert "None" in found.cause
    objects = [functools, functools]
    assert (
        explain(lambda: next(iter(DataLoader(objects, batch_size=2))), phase="data").code
        == "collate-type"
    )
    lists = [[1, 2], [1]]
    assert (
        explain(lambda: next(iter(DataLoader(lists, batch_size=2))), phase="data").code
        == "collate-sizes"
    )
    assert explain(lambda: DataLoader([], shuffle=True), phase="data").code == "dataset-empty"


def reads_badly():
    try:
        {}["absent"]
    except KeyError:
        return torch._utils.ExceptionWrapper(where="in DataLoader worker process 0")


def test_an_error_in_a_worker_is_found_in_its_own_traceback():
    found = explain(reads_badly().reraise, phase="data")
    assert found.code == "worker-error"
    assert found.location.line == line(reads_badly, '{}["absent"]')


def test_what_cannot_be_pickled_is_named_by_its_attribute():
    def run():
        dataset = Held()
        loader = DataLoader(dataset, num_workers=1, multiprocessing_context="spawn")
        return next(iter(loader))

    found = explain(run, phase="data", rerun=False)
    assert found.code == "not-picklable"
    assert found.summary == "Held.transform cannot be sent to a worker: it is a lambda"
    assert found.location.line == line(Held, "self.transform")


def test_workers_that_die():
    message = "DataLoader worker (pid(s) 4711) exited unexpectedly"
    found = explain(lambda: None, phase="data", error=RuntimeError(message), rerun=False)
    assert found.code == "worker-died"
    message = "DataLoader worker (pid 4711) is killed by signal: Killed. "
    found = explain(lambda: None, phase="data", error=RuntimeError(message), rerun=False)
    assert "memory runs out" in found.cause


def test_numpy_inputs():
    model = nn.Sequential(nn.Linear(3, 2))
    x = torch.from_numpy(np.ones((2, 3)))
    found = explain(lambda: model(x), model=model, batch=((x,), None))
    assert found.code == "dtype-pair"
    assert "input is float64, NumPy's default dtype" in found.cause
    assert found.culprits[0].kind == "input"


class Halved(nn.Module):
    def __init__(self, exact):
        super().__init__()
        self.exact = exact
        self.down = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 3, 2, stride=2)

    def forward(self, x):
        maps = self.up(self.down(x))
        if self.exact:
            maps = maps[..., : x.shape[-1]]
        return torch.relu(maps)


def test_maps_of_another_size_than_the_labels_are_followed_to_the_call_that_made_them():
    specs = {"inputs": "B 1 8 9", "targets": Labels("B 8 9", classes=3), "loss": F.cross_entropy}
    assert Contract(model=Halved(exact=True), **specs).check(["backward"]).ok
    report = Contract(model=Halved(exact=False), **specs).check(["backward"])
    (found,) = report.with_status("violated")
    assert found.code == "label-shape"
    assert found.location.text == "maps = self.up(self.down(x))"
    assert "9 instead of 10" in found.fix
