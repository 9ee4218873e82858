"""Graphs that are joined into one, with edges shifted by the graph before alone."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('collate-pairing', 'samples-valid')


class Graphs(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        count = 3 + (5 * index) % 7
        ring = torch.arange(count)
        return torch.full((count, 2), float(index)), torch.stack([ring, ring.roll(1)])


def collate(graphs):
    sizes = [len(nodes) for nodes, _ in graphs]
    shifts = [0] + sizes[:-1]
    return {
        "nodes": torch.cat([nodes for nodes, _ in graphs]),
        "edges": torch.cat([edges + shift for (_, edges), shift in zip(graphs, shifts)], dim=1),
    }


contract = Contract(dataset=Graphs(), loader={"batch_size": 4, "collate_fn": collate}, name="graphs")
