"""Inputs that are no dense tensor: every check that takes samples apart keeps their layout."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels
from pytest_torchcheck.batches.rows import choose_rows, take_rows
from pytest_torchcheck.specs import Nested, Sparse


class Summed(nn.Module):
    """Each ragged sample is padded with zeros and summed."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(torch.nested.to_padded_tensor(torch.sigmoid(self.into(x)), 0.0).sum(1))


class Bag(nn.Module):
    """A bag of words as a sparse matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(12, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(torch.relu(torch.sparse.mm(x, self.into.weight.T) + self.into.bias))


def ragged(seed):
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(n, 6, generator=generator) for n in (3, 5, 2, 4)]
    labels = torch.randint(2, (4,), generator=generator)
    return (torch.nested.nested_tensor(parts, layout=torch.jagged),), labels


DECLARED = {
    "nested, drawn": (Summed, {"inputs": Nested("B T 6"), "targets": Labels("B", classes=2)}),
    "nested, real": (Summed, {"batch": ragged}),
    "csr": (Bag, {"inputs": Sparse("B 12", layout="csr"), "targets": Labels("B", classes=2)}),
    "coo": (Bag, {"inputs": Sparse("B 12", layout="coo"), "targets": Labels("B", classes=2)}),
}


@pytest.mark.parametrize(("model", "declared"), DECLARED.values(), ids=DECLARED)
def test_every_check_runs_on_inputs_of_any_layout(model, declared):
    report = Contract(model=model, loss=F.cross_entropy, **declared).check()
    assert report.ok, str(report)
    wrong = [f.check for f in report.findings if f.status in ("error", "violated", "suspicious")]
    assert not wrong, str(report)
    if "inputs" in declared:  # which axis holds the samples of a real ragged batch is not inferred
        assert "batch-independence" in {f.check for f in report.findings if f.status == "passed"}


def test_a_ragged_sample_that_depends_on_its_neighbours_is_found():
    class Pooled(Summed):
        def forward(self, x):
            made = super().forward(x)
            return made + made.flip(0)

    declared = DECLARED["nested, drawn"][1]
    contract = Contract(model=Pooled, loss=F.cross_entropy, **declared)
    report = contract.check(["batch-independence"])
    assert [f.status for f in report.findings] == ["violated"], str(report)


def parts(seed, lengths=(1, 3, 2)):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, 4, generator=generator) for n in lengths]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_rows_of_nested_tensors(layout):
    one, two = parts(1), parts(2, (2, 2, 5))
    a, b = (torch.nested.nested_tensor(p, layout=layout) for p in (one, two))
    taken = take_rows(a, 0, torch.tensor([2, 0])).unbind()
    assert [t.tolist() for t in taken] == [one[2].tolist(), one[0].tolist()]
    mixed = choose_rows(torch.tensor([True, False, True]), a, b, 0).unbind()
    wanted = [one[0], two[1], one[2]]
    assert [t.tolist() for t in mixed] == [t.tolist() for t in wanted]


@pytest.mark.filterwarnings("ignore:Sparse CS")  # of torch, once in a process
@pytest.mark.parametrize(
    "layout", [torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc]
)
def test_rows_of_other_layouts(layout):
    a, b = torch.arange(12.0).view(3, 4), -torch.arange(12.0).view(3, 4)

    def laid(tensor):
        return tensor if layout == torch.strided else tensor.to_sparse(layout=layout)

    taken = take_rows(laid(a), 0, torch.tensor([2, 0]))
    assert taken.layout == layout
    assert taken.to_dense().tolist() == a[[2, 0]].tolist()
    keep = torch.tensor([False, True, False])
    mixed = choose_rows(keep, laid(a), laid(b), 0)
    assert mixed.layout == layout
    assert mixed.to_dense().tolist() == torch.where(keep[:, None], a, b).tolist()
    columns = choose_rows(torch.tensor([True, False, False, True]), laid(a), laid(b), 1)
    assert columns.to_dense()[:, 0].tolist() == a[:, 0].tolist()
    assert columns.to_dense()[:, 1].tolist() == b[:, 1].tolist()
