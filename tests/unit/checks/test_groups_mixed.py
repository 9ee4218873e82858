"""Graphs of one batch, which an index tells apart, keep to themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract

CHECK = "batch-independence"
SIZES = (5, 3, 7, 4, 6)


def graphs(sizes: tuple[int, ...] = SIZES, *, both: bool = True) -> dict[str, Tensor]:
    """Return rings of nodes; as many edges as nodes where these lead one way."""
    torch.manual_seed(0)
    edges, start = [], 0
    for size in sizes:
        ring = torch.arange(size)
        edges += [torch.stack([ring, (ring + 1) % size]) + start]
        edges += [torch.stack([ring[1:], ring[:-1]]) + start] if both else []
        start += size
    index = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    x = torch.randn(len(index), 6)
    return {"x": x, "edge_index": torch.cat(edges, 1), "index": index}


def found(model: nn.Module, inputs: dict[str, Tensor] | None = None, **fields: Any) -> Any:
    given = graphs() if inputs is None else inputs
    model.eval()
    return Contract(model=model, batch=(given, None), batch_dim=None, **fields).check([CHECK])


class Graph(nn.Module):
    """Messages over edges, then one row for each graph."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.own, self.other = nn.Linear(6, 16), nn.Linear(6, 16)
        self.gate, self.out = nn.Linear(16, 1), nn.Linear(16, 3)
        self.norm = nn.BatchNorm1d(16)

    def nodes(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        return F.relu(
            self.own(x) + x.new_zeros(len(x), 16).index_add(0, target, self.other(x)[source])
        )

    def summed(self, values: Tensor, index: Tensor) -> Tensor:
        count = int(index.max()) + 1
        return values.new_zeros(count, values.shape[1]).index_add(0, index, values)

    def counts(self, index: Tensor) -> Tensor:
        return torch.bincount(index)[:, None]

    def forward(self, x: Tensor, edge_index: Tensor, index: Tensor) -> Tensor:
        return self.out(self.read(self.nodes(x, edge_index), index))

    def read(self, h: Tensor, index: Tensor) -> Tensor:
        return self.summed(h, index) / self.counts(index)


# bugs


class SoftmaxOverAll(Graph):
    def read(self, h, index):
        weights = self.gate(h).softmax(0)  # BUG
        return self.summed(weights * h, index)


class DividesByAll(Graph):
    def read(self, h, index):
        return self.summed(h, index) / len(h)  # BUG


class NormOverAll(Graph):
    def read(self, h, index):
        h = h - h.mean(0)  # BUG
        return self.summed(h / 3, index)


class GlobalNode(Graph):
    """A node that all of them see is one for the batch, not one for each graph."""

    def read(self, h, index):
        h = h + self.gate(h).sigmoid().mul(h).sum(0)  # BUG
        return self.summed(h, index) / self.counts(index)


class SoftmaxOverEdges(Graph):
    def nodes(self, x, edge_index):
        source, target = edge_index
        weights = self.gate(self.own(x)[source]).softmax(0)  # BUG
        return x.new_zeros(len(x), 16).index_add(0, target, weights * self.other(x)[source])


@pytest.mark.parametrize(
    "kind", [SoftmaxOverAll, DividesByAll, NormOverAll, GlobalNode, SoftmaxOverEdges]
)
def test_entries_of_other_graphs_count(kind: type[Graph]) -> None:
    (finding,) = found(kind()).findings
    assert (finding.status, finding.code) == ("violated", "samples-mixed"), finding
    assert finding.location is not None
    assert "# BUG" in finding.location.text, finding


def test_as_many_edges_as_nodes() -> None:
    (finding,) = found(SoftmaxOverAll(), graphs(both=False)).findings
    assert finding.status == "violated", finding


# correct


class NormPerGraph(Graph):
    def read(self, h, index):
        h = h - (self.summed(h, index) / self.counts(index))[index]
        spread = (self.summed(h * h, index) / self.counts(index))[index]
        return self.summed(h / (spread + 1e-5).sqrt() * self.gate(h).sigmoid(), index)


class RunningStatistics(Graph):
    def read(self, h, index):
        return self.summed(self.norm(h), index) / self.counts(index)


class ShiftedByTheLargest(Graph):
    def read(self, h, index):
        score = self.gate(h)
        raised = (score - score.max()).exp()
        weights = raised / (self.summed(raised, index)[index] + 1e-16)
        return self.summed(weights * h, index)


class VirtualNodes(Graph):
    def read(self, h, index):
        h = h + self.own.weight.mean() * self.summed(h, index)[index]
        return self.summed(h, index) / self.counts(index)


class GraphByGraph(Graph):
    def read(self, h, index):
        return torch.stack([h[index == n].amax(0) for n in range(int(index.max()) + 1)])


class Padded(Graph):
    """Graphs become a padded batch with a mask."""

    def read(self, h, index):
        sizes = torch.bincount(index)
        parts = nn.utils.rnn.pad_sequence(h.split(sizes.tolist()), batch_first=True)
        mask = torch.arange(parts.shape[1]) < sizes[:, None]
        weights = self.gate(parts).squeeze(2).masked_fill(~mask, -torch.inf).softmax(1)
        return torch.einsum("gn,gnd->gd", weights, parts)


class PerNode(Graph):
    """One output for each node; a softmax over all of them is nobody's business here."""

    def forward(self, x, edge_index, index):
        h = self.nodes(x, edge_index)
        return self.out(h * self.gate(h).softmax(0))


@pytest.mark.parametrize(
    "kind",
    [Graph, NormPerGraph, RunningStatistics, ShiftedByTheLargest, VirtualNodes, GraphByGraph, Padded, PerNode],
)  # fmt: skip
def test_graphs_that_keep_to_themselves_pass(kind: type[Graph]) -> None:
    (finding,) = found(kind()).findings
    wanted = "not-applicable" if kind is PerNode else "passed"
    assert finding.status == wanted, finding


def test_graphs_of_one_size_may_be_told_apart_by_it() -> None:
    class Reshaped(Graph):
        def read(self, h, index):
            return h.view(int(index.max()) + 1, -1, 16).mean(1)

    (finding,) = found(Reshaped(), graphs((4, 4, 4, 4))).findings
    assert finding.status == "passed", finding


def test_a_reshape_of_graphs_of_other_sizes_is_told() -> None:
    class Reshaped(Graph):
        def read(self, h, index):
            return h.view(int(index.max()) + 1, -1, 16).mean(1)

    (finding,) = found(Reshaped()).findings
    assert finding.status == "suspicious", finding


class Pairs(Graph):
    """Nodes look at those of the graph beside theirs: graphs are matched in twos."""

    def read(self, h, index):
        beside = index[:, None] == (index ^ 1)
        scores = (h @ h.T).masked_fill(~beside, -torch.inf)
        return self.summed(h - scores.softmax(1).nan_to_num() @ h, index)


class Snapshots(Graph):
    """A recurrent layer runs over the graphs: they are one graph at several times."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.GRU(16, 8, bidirectional=True)

    def read(self, h, index):
        return self.time(super().read(h, index))[0]


class Polylines(Graph):
    """Each group is one object of a scene, and objects see each other."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = nn.MultiheadAttention(16, 2, batch_first=True)

    def read(self, h, index):
        rows = super().read(h, index)[None]
        return self.scene(rows, rows, rows)[0][0]


class Normalised(Graph):
    """Rows are compared with each other: as a contrastive loss does."""

    def read(self, h, index):
        rows = super().read(h, index)
        return rows - rows.mean(0)


@pytest.mark.parametrize("sizes", [(5, 3, 7, 4, 6, 2), (5, 3, 4, 1, 2, 1)])  # of 16 features
@pytest.mark.parametrize("kind", [Pairs, Snapshots, Polylines, Normalised])
def test_graphs_that_may_meet_on_purpose_are_a_question(
    kind: type[Graph], sizes: tuple[int, ...]
) -> None:
    (finding,) = found(kind(), graphs(sizes)).findings
    assert finding.status == "suspicious", finding
    assert "skip the check" in (finding.fix or "")


def test_similarities_of_all_graphs_are_no_rows_of_one() -> None:
    class Similar(Graph):
        def forward(self, x, edge_index, index):
            rows = super().forward(x, edge_index, index)
            return rows @ rows.T

    (finding,) = found(Similar()).findings
    assert finding.status == "not-applicable", finding


def without(name: str) -> dict[str, Tensor]:
    return {path: t for path, t in graphs().items() if path != name}


class Words(Graph):
    """Tokens see each other, and those of one word become one row."""

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        h = self.own(x)
        return self.out(super().read((h @ h.T).softmax(1) @ h, index))


def test_without_edges_it_is_a_question() -> None:
    (finding,) = found(Words(), without("edge_index")).findings
    assert finding.status == "suspicious", finding


@pytest.mark.parametrize("what", ["joined", "types", "unknown"])
def test_what_is_no_index_of_samples(what: str) -> None:
    inputs = graphs()
    if what == "joined":  # an edge leads from one to another
        inputs["edge_index"] = torch.cat([inputs["edge_index"], torch.tensor([[0], [9]])], 1)
    elif what == "types":  # of nodes, in no order
        inputs["index"] = inputs["index"][torch.randperm(len(inputs["x"]))]
    else:
        inputs["edge_index"] = torch.cat([inputs["edge_index"], inputs["edge_index"][:1]])

    class Typed(Graph):
        def nodes(self, x, edge_index):
            return super().nodes(x, edge_index[:2])

        def read(self, h, index):
            return self.summed(h * self.gate(h).softmax(0), index)

    (finding,) = found(Typed(), inputs).findings
    assert finding.status == "not-applicable", finding


class Atoms(Graph):
    """Kinds of atoms are whole numbers."""

    def __init__(self, across: bool) -> None:
        super().__init__()
        self.kinds, self.across = nn.Embedding(9, 6), across

    def forward(self, x: Tensor, edge_index: Tensor, index: Tensor) -> Tensor:
        h = self.nodes(self.kinds(x), edge_index)
        h = h * self.gate(h).softmax(0) if self.across else h
        return self.out(self.read(h, index))


@pytest.mark.parametrize(("across", "status"), [(True, "violated"), (False, "passed")])
def test_whole_numbers_are_features_too(across: bool, status: str) -> None:
    inputs = graphs()
    inputs["x"] = torch.randint(0, 9, (len(inputs["x"]),))
    (finding,) = found(Atoms(across), inputs).findings
    assert finding.status == status, finding


# attention over all nodes, without edges


class Attending(Graph):
    def read(self, h, index):
        same = index[:, None] == index[None]
        return self.summed(self.weights(h @ h.T, same) @ h, index) / self.counts(index)

    def weights(self, scores, same):
        return scores.masked_fill(~same, float("-inf")).softmax(-1)

    def forward(self, x, index):
        return self.out(self.read(F.relu(self.own(x)), index))


class MaskedLate(Attending):
    def weights(self, scores, same):
        return scores.softmax(-1) * same  # BUG


class FilledLate(Attending):
    def weights(self, scores, same):
        return scores.softmax(-1).masked_fill(~same, 0.0)  # BUG


class NormalisedAgain(Attending):
    def weights(self, scores, same):
        kept = scores.softmax(-1) * same
        return kept / kept.sum(-1, keepdim=True)


class OverAll(Attending):
    """Words of a sentence, as groups of tokens: first each by itself, then all of them."""

    def weights(self, scores, same):
        within = scores.masked_fill(~same, float("-inf")).softmax(-1)
        return within @ scores.softmax(-1)


def attended(cls: type[Graph]) -> Any:
    given = graphs()
    del given["edge_index"]
    return found(cls(), given)


@pytest.mark.parametrize("cls", [MaskedLate, FilledLate])
def test_weights_between_groups_that_are_zeroed_too_late(cls: type[Graph]) -> None:
    (finding,) = attended(cls).failing
    assert finding.code == "samples-mixed"
    assert finding.location.text.endswith("# BUG")
    assert "after the softmax" in finding.cause


@pytest.mark.parametrize("cls", [Attending, NormalisedAgain, OverAll])
def test_weights_between_groups_that_are_right_or_meant(cls: type[Graph]) -> None:
    assert not attended(cls).failing


def test_groups_that_all_attend_to_each_other_are_suspicious() -> None:
    assert [f.status for f in attended(OverAll).findings] == ["suspicious"]
