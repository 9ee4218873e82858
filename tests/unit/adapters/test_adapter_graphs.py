"""Graphs as PyTorch Geometric holds them, with that package and with a class of the same form."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from pytest_torchcheck import Contract, DeclarationError

FAST = ("backward", "gradients-exist", "weights-update", "input-influence", "eval-determinism")


@dataclass
class Graph:
    """As torch_geometric.data.Data, for models that want no such package."""

    x: Tensor
    edge_index: Tensor
    y: Tensor
    batch: Tensor
    name: str = "a graph"


def graph() -> Graph:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, 4, generator=generator)
    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 7, 8], [1, 0, 3, 2, 5, 4, 6, 7]])
    return Graph(x=x, edge_index=edges, y=torch.tensor([0, 1, 2]), batch=torch.arange(9) // 3)


class ByName(nn.Module):
    def __init__(self, cut: bool = False) -> None:
        super().__init__()
        self.layer, self.head, self.cut = nn.Linear(4, 8), nn.Linear(8, 3), cut

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.layer(x)
        h = torch.relu(h.index_add(0, edge_index[1], h[edge_index[0]]))
        pooled = h.new_zeros(3, 8).index_add(0, batch, h)
        return self.head(pooled.detach() if self.cut else pooled)


class Whole(ByName):
    def forward(self, data: Any) -> Tensor:  # type: ignore[override]
        assert data.name == "a graph"  # what is no tensor comes along
        return super().forward(data.x, data.edge_index, data.batch)


class Lacks(ByName):
    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return x


def broken(contract: Contract, *checks: str) -> list[str]:
    report = contract.check(checks or None)
    return [str(f) for f in report.findings if f.status == "violated" or f.code == "internal-error"]


@pytest.mark.parametrize(
    "model", [ByName(), Whole(), lambda: Whole()], ids=["name", "whole", "factory"]
)
def test_a_graph_is_a_batch(model: Any) -> None:
    given = graph()
    contract = Contract(model=model, batch=given, loss=F.cross_entropy)
    assert contract.adapted is not None
    assert (contract.adapted.name, contract.batch_dim) == ("graphs", None)
    assert contract.source is not None
    batch = contract.source.base()
    assert set(batch.kwargs) == {"x", "edge_index", "batch"}
    assert torch.equal(batch.targets, given.y)
    assert broken(contract) == []
    assert torch.equal(given.x, graph().x)


def test_a_cut_graph_is_found() -> None:
    (finding,) = (
        Contract(model=Whole(cut=True), batch=graph(), loss=F.cross_entropy)
        .check(["gradients-exist"])
        .findings
    )
    assert finding.code == "grad-none"
    assert "layer.weight" in finding.summary


def test_what_a_graph_does_not_have_is_said() -> None:
    with pytest.raises(
        DeclarationError, match=r"Lacks.forward takes 'edge_attr'.*x, edge_index, y, batch"
    ):
        Contract(model=Lacks(), batch=graph(), loss=F.cross_entropy)


def test_batches_of_torch_geometric() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torch_geometric")
        from torch_geometric.data import Batch, Data
        from torch_geometric.loader import DataLoader
        from torch_geometric.nn import GCNConv, global_mean_pool

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv, self.head = GCNConv(4, 8), nn.Linear(8, 3)

            def forward(self, data: Any) -> Tensor:
                h = self.conv(data.x, data.edge_index).relu()
                return self.head(global_mean_pool(h, data.batch, data.num_graphs))

        def one(seed: int) -> Any:
            generator = torch.Generator().manual_seed(seed)
            nodes = 4 + seed % 3
            edges = torch.randint(0, nodes, (2, 2 * nodes), generator=generator)
            x = torch.randn(nodes, 4, generator=generator)
            return Data(x=x, edge_index=edges, y=torch.tensor([seed % 3]))

        rows = [one(seed) for seed in range(12)]
        for given in (Batch.from_data_list(rows[:4]), DataLoader(rows, batch_size=4)):
            contract = Contract(model=Net(), batch=given, loss=F.cross_entropy)
            assert contract.adapted is not None
            assert contract.adapted.name == "graphs"
            assert broken(contract, *FAST) == []


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        for i in range(64):
            yield torch.full((8,), i / 64), i % 3


class Unsized(Dataset[Any]):
    def __getitem__(self, at: int) -> Any:
        return torch.full((8,), at / 64), at % 3


class Raises(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, at: int) -> Any:
        raise FileNotFoundError("no data here")


class Draws(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, at: int) -> Any:
        return torch.rand(8), at % 3


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Stream(), batch_size=8),
        DataLoader(Unsized(), batch_sampler=[[0, 1, 2, 3], [4, 5, 6, 7]]),
        DataLoader(Draws(), batch_size=8),
    ],
    ids=["stream", "unsized", "draws"],
)
def test_a_loader_without_graphs_needs_no_length(loader: Any) -> None:
    state = torch.get_rng_state()
    contract = Contract(model=lambda: nn.Linear(8, 3), batch=loader, loss=F.cross_entropy)
    assert contract.adapted is None
    assert torch.equal(torch.get_rng_state(), state)
    assert broken(contract, *FAST) == []


def test_what_a_dataset_raises_is_reported_when_it_is_read() -> None:
    loader = DataLoader(Raises(), batch_size=4)
    contract = Contract(model=lambda: nn.Linear(8, 3), batch=loader, loss=F.cross_entropy)
    (finding,) = contract.check(["backward"]).findings
    assert "no data here" in str(finding)
    assert finding.code != "internal-error"
