"""Indices of joined graphs: shifted by the graph before alone they reach into other graphs; any other layout is left alone."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from torch.utils.data import Dataset

from pytest_torchcheck import Contract


class Graphs(Dataset):
    def __init__(self, alike: bool = False) -> None:
        self.sizes = [4] * 12 if alike else [4, 7, 5, 9, 3, 6, 8, 4, 5, 7, 6, 3]

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, i):
        ring = torch.arange(self.sizes[i])
        return {
            "x": torch.full((self.sizes[i], 2), float(i)),
            "edges": torch.stack([ring, ring.roll(1)]),
            "y": i % 3,
        }


class Joins:
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, graphs):
        sizes = [len(graph["x"]) for graph in graphs]
        shifts = {
            "sum": [0, *accumulate(sizes[:-1])],
            "none": [0] * len(sizes),
            "padded": [max(sizes) * place for place in range(len(sizes))],
            "previous": [0, *sizes[:-1]],
        }[self.kind]
        offsets = torch.tensor(shifts)
        edges = [graph["edges"] + offset for graph, offset in zip(graphs, offsets, strict=True)]
        return {
            "x": torch.cat([graph["x"] for graph in graphs]),
            "edges": torch.cat(edges, dim=1),
            "y": torch.tensor([graph["y"] for graph in graphs]),
        }


def codes(kind, alike=False):
    loader = {"batch_size": 4, "collate_fn": Joins(kind)}
    findings = Contract(dataset=Graphs(alike), loader=loader).check("collate-pairing").findings
    return [
        (one.code, one.location) for one in findings if one.status in ("violated", "suspicious")
    ]


def test_a_shift_by_the_graph_before():
    ((code, location),) = codes("previous")
    assert code == "collate-shift"
    assert "shifts" in location.text or "offsets" in location.text


@pytest.mark.parametrize("kind", ["sum", "none", "padded"])
def test_other_layouts(kind):
    assert not codes(kind)


def test_graphs_that_do_not_tell():
    assert not codes("previous", alike=True)
