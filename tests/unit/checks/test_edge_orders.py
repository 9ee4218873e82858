"""The columns of an ``edge_index`` have no order, unless the model has a convention for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_torchcheck import Contract, Floats, Ints, Labels
from pytest_torchcheck.specs.kinds import Edges

CHECK = "permutation-invariance"


class Graph(nn.Module):
    """Messages of edges with features, summed at their targets."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.edge, self.out = nn.Linear(6, 16), nn.Linear(3, 16), nn.Linear(16, 3)
        self.loop = nn.Parameter(torch.randn(3))

    def summed(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        h, (source, target) = self.lin(x), edge_index
        messages = torch.relu(h[source] + self.edge(edge_attr))
        return self.out(torch.zeros_like(h).index_add(0, target, messages))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Any:
        return self.summed(x, edge_index, edge_attr)


class LoopsInFront(Graph):
    """Self-loops come last among the edges, and first among their features."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        edges = torch.cat([edge_index, torch.arange(len(x)).expand(2, -1)], 1)
        return self.summed(x, edges, torch.cat([self.loop.expand(len(x), -1), edge_attr]))


class LoopsBehind(Graph):
    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        edges = torch.cat([edge_index, torch.arange(len(x)).expand(2, -1)], 1)
        return self.summed(x, edges, torch.cat([edge_attr, self.loop.expand(len(x), -1)]))


class SortsOne(Graph):
    """Edges are sorted by target, their features are not."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.summed(x, edge_index[:, edge_index[1].argsort(stable=True)], edge_attr)


class SortsBoth(Graph):
    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        order = edge_index[1].argsort(stable=True)
        return self.summed(x, edge_index[:, order], edge_attr[order])


class Reverses(Graph):
    """Directed edges are made undirected: the reversed ones get features in reversed order."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        edges = torch.cat([edge_index, edge_index.flip(0)], 1)
        return self.summed(x, edges, torch.cat([edge_attr, edge_attr.flip(0)]))


class Both(Graph):
    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        edges = torch.cat([edge_index, edge_index.flip(0)], 1)
        return self.summed(x, edges, torch.cat([edge_attr, edge_attr]))


class Scores(Graph):
    """One score for each edge, and the weights of edges and loops."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Any:
        h = self.summed(x, edge_index, edge_attr)
        weights = torch.cat([self.edge(edge_attr).sum(1), h.sum(1)])
        return (h[edge_index[0]] * h[edge_index[1]]).sum(1), weights.softmax(0)


class Chosen(Graph):
    """The scores of those edges that a feature chooses."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.out(self.edge(edge_attr))[edge_attr[:, 0] > 0.5]


class Recurrent(Graph):
    """GraphSAGE with an LSTM: the messages to a node in the order in which they stand."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 16, batch_first=True)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        h = self.lin(x)[edge_index[0]] + self.edge(edge_attr)
        rows = [h[edge_index[1] == node] for node in range(len(x))]
        return self.out(
            torch.stack([self.lstm(r[None])[0][0, -1] if len(r) else h[0] * 0 for r in rows])
        )


class Halves(Graph):
    """CompGCN: the second half of the edges holds the first, reversed."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        half = edge_index.shape[1] // 2
        there = self.summed(x, edge_index[:, :half], edge_attr[:half])
        return there - 2 * self.summed(x, edge_index[:, half:], edge_attr[half:])


class Pairs(Graph):
    """Directed message passing: each edge stands beside its reverse."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        edges = edge_index[:, : edge_index.shape[1] // 2 * 2]
        h = self.edge(edge_attr[: edges.shape[1]])
        into = torch.zeros(len(x), 16, dtype=h.dtype).index_add(0, edges[1], h)
        back = torch.arange(edges.shape[1]) ^ 1
        h = torch.relu(into[edges[0]] - h[back])
        return self.out(torch.zeros(len(x), 16, dtype=h.dtype).index_add(0, edges[1], h))


class Overwrites(Graph):
    """A dense adjacency; of two edges between the same nodes the last one counts."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        dense = torch.zeros(len(x), len(x), 16, dtype=x.dtype)
        for (s, d), e in zip(edge_index.T.tolist(), self.edge(edge_attr), strict=True):
            dense[s, d] = dense[d, s] = e
        return self.out((dense * self.lin(x)).sum(1))


class Events(Graph):
    """A memory of each node, updated by one event after the other."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, t: Any = None) -> Tensor:
        memory = list(self.lin(x))
        for (s, d), e in zip(edge_index.T.tolist(), self.edge(edge_attr), strict=True):
            memory[s], memory[d] = torch.tanh(memory[d] + e), torch.tanh(memory[s] - e)
        return self.out(torch.stack(memory))


class First(Graph):
    """The first events say which nodes a question is about."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, t: Any = None) -> Tensor:
        return self.summed(x, edge_index, edge_attr)[edge_index[:, :5].flatten()].sum(0)


class Segments(Graph):
    """Edges that are sorted by target, cut at the number of each node."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        h = torch.relu(self.lin(x)[edge_index[0]] + self.edge(edge_attr))
        counts = torch.bincount(edge_index[1], minlength=len(x)).tolist()
        return self.out(torch.stack([part.sum(0) for part in h.split(counts)]))


class Noisy(Graph):
    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.summed(x, edge_index, edge_attr + torch.randn_like(edge_attr))


class Counted(Graph):
    """Several graphs in one: how many edges each has, in order."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, edges_of: Tensor) -> Tensor:
        parts = self.edge(edge_attr).split(edges_of.tolist())
        return self.out(torch.stack([part.sum(0) for part in parts]))


def graph(model: type[nn.Module], **more: Any) -> Contract:
    inputs = {"x": "N 6", "edge_index": Edges("2 E", nodes="N"), "edge_attr": "E 3"}
    inputs |= more.pop("inputs", {})
    sizes = {"N": (8, 12), "E": (20, 30), **more.pop("sizes", {})}
    return Contract(model=model, inputs=inputs, sizes=sizes, batch_dim=None, **more)


def told(contract: Contract) -> list[tuple[str, str]]:
    report = contract.check(CHECK)
    assert not list(report.with_status("error")), str(report)
    return [(f.status, f.code) for f in report.findings if f.status in ("violated", "suspicious")]


@pytest.mark.parametrize("bug", [LoopsInFront, SortsOne, Reverses])
def test_features_that_edges_of_another_place_get(bug: type[Graph]) -> None:
    drawn = told(graph(bug))  # edges in no order of their own may be meant to be sorted
    assert drawn == ([] if bug is SortsOne else [("violated", "order-dependent")])
    edges = torch.randint(0, 9, (2, 24), generator=torch.Generator().manual_seed(1))
    real = {"x": torch.randn(9, 6), "edge_index": edges, "edge_attr": torch.randn(24, 3)}
    given = {"edge_index": Ints("2 E", low=0, high=8)}
    assert told(graph(bug, inputs=given, batch=(real,))) == [("violated", "order-dependent")]


def test_the_line_that_joins_in_another_order_is_named() -> None:
    (finding,) = [f for f in graph(LoopsInFront).check(CHECK).findings if f.status == "violated"]
    assert finding.location is not None
    assert "self.loop.expand" in str(finding), str(finding)
    assert finding.summary == "output depends on the order of the edges"
    assert "torch.cat puts the entries behind" in finding.cause


SOUND = [
    Graph, LoopsBehind, SortsBoth, Both, Scores, Chosen, Recurrent, Halves, Pairs, Overwrites, Events
]  # fmt: skip


@pytest.mark.parametrize("model", SOUND)
def test_a_convention_for_the_order_is_no_mistake(model: type[Graph]) -> None:
    for seed in range(3):
        report = graph(model).check(CHECK, seed=seed)
        assert report.ok, str(report)
        assert not list(report.with_status("suspicious", "error")), str(report)


def test_edges_that_are_sorted_may_be_relied_on() -> None:
    edges = torch.randint(0, 9, (2, 24), generator=torch.Generator().manual_seed(1))
    edges = edges[:, edges[1].argsort()]
    real = {"x": torch.randn(9, 6), "edge_index": edges, "edge_attr": torch.randn(24, 3)}
    given = {"edge_index": Ints("2 E", low=0, high=8)}
    for inputs in ({}, given):
        assert told(graph(Segments, inputs=inputs, batch=(real,) if inputs else None)) == []


@pytest.mark.parametrize(
    ("model", "more"),
    [
        (First, {"inputs": {"t": Floats("E")}}),
        (First, {"sizes": {"E": 20}}),
        (
            First,
            {
                "inputs": {"edge_index": Edges("2 20", nodes="N"), "edge_attr": "20 3"},
                "sizes": {"E": None},
            },
        ),
    ],
)
def test_events_and_edges_of_a_fixed_number_are_not_asked_of(
    model: type[Graph], more: dict[str, Any]
) -> None:
    sizes = {k: v for k, v in ({"N": (8, 12), "E": (20, 30)} | more.get("sizes", {})).items() if v}
    inputs = {
        "x": "N 6",
        "edge_index": Edges("2 E", nodes="N"),
        "edge_attr": "E 3",
        **more.get("inputs", {}),
    }
    assert told(Contract(model=model, inputs=inputs, sizes=sizes, batch_dim=None)) == []


def test_events_without_times_may_be_read_in_their_order() -> None:
    assert told(graph(First)) == [("suspicious", "order-dependent")]


def test_random_numbers_in_eval_mode_are_no_order() -> None:
    assert told(graph(Noisy)) == []


def test_edges_that_an_input_counts_are_not_asked_of() -> None:
    real = {
        "x": torch.randn(9, 6),
        "edge_index": torch.randint(0, 9, (2, 24)),
        "edge_attr": torch.randn(24, 3),
        "edges_of": torch.tensor([10, 8, 6]),
    }
    given = {"edge_index": Ints("2 E", low=0, high=8), "edges_of": Ints("G", low=0, high=24)}
    assert told(graph(Counted, inputs=given, batch=(real,))) == []


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.out = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h, (source, target) = self.lin(x), edge_index
        return self.out(h + torch.zeros_like(h).index_add(0, target, h[source]))


@pytest.mark.parametrize("seed", range(6))
def test_nodes_are_no_samples_whatever_edges_were_drawn(seed: int) -> None:
    report = Contract(
        model=Plain,
        inputs={"x": "N 6", "edge_index": Edges("2 E", nodes="N")},
        targets=Labels("N", classes=3),
        sizes={"N": (5, 9), "E": (1, 2)},
        loss=nn.functional.cross_entropy,
    ).check(["batch-independence", "batch-sizes", "target-ownership"], seed=seed)
    found = {one.check: one.status for one in report.findings}
    assert found == {
        "batch-independence": "not-applicable",
        "batch-sizes": "passed",
        "target-ownership": "passed",
    }
