"""Batches of mixed samples: labels have the weights of their inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import default_collate

from pytest_torchcheck import Contract


class Images(torch.utils.data.Dataset[Any]):
    def __init__(self, *, shares: bool = False, flips: bool = False) -> None:
        self.x = torch.rand(20, 3, 4, 4, generator=torch.Generator().manual_seed(0))
        self.shares, self.flips = shares, flips

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        x = self.x[index]
        x = x.flip(2) if self.flips and torch.rand(()) < 0.5 else x
        label = torch.tensor(index % 4)
        return x, F.one_hot(label, 4).float() if self.shares else int(label)


def drawn() -> torch.Tensor:
    return torch.distributions.Beta(0.4, 0.4).sample()


def stacked(rows: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = default_collate(rows)
    return x, F.one_hot(y, 4).float() if y.dim() == 1 else y


def mixed(rows: list[Any]) -> Any:
    (x, y), share = stacked(rows), drawn()
    return share * x + (1 - share) * x.roll(1, 0), share * y + (1 - share) * y.roll(1, 0)


def crossed(rows: list[Any]) -> Any:
    (x, y), share = stacked(rows), drawn()
    labels = share * y + (1 - share) * y.roll(1, 0)
    return share * x.roll(1, 0) + (1 - share) * x, labels  # CROSSED


def crossed_in_any_order(rows: list[Any]) -> Any:
    (x, y), share, order = stacked(rows), drawn(), torch.randperm(len(rows))
    images = x.lerp(x[order], share)  # CROSSED
    return {"image": images, "label": y[order].lerp(y, share)}


def smoothed(rows: list[Any]) -> Any:
    x, y = mixed(rows)
    return x, 0.9 * y + 0.1 / 4


def by_majority(rows: list[Any]) -> Any:
    """Labels go with one of the two, as for rare classes."""
    (x, y), share = stacked(rows), drawn()
    return share * x + (1 - share) * x.roll(1, 0), y if share > 0.7 else y.roll(1, 0)


def patches(rows: list[Any]) -> Any:
    x, y = stacked(rows)
    width = int(torch.randint(0, 5, ()))
    x[..., :width] = x.roll(1, 0)[..., :width]
    return x, (1 - width / 4) * y + width / 4 * y.roll(1, 0)


def of_three(rows: list[Any]) -> Any:
    (x, y), shares = stacked(rows), torch.rand(3).softmax(0)
    return tuple(sum(s * t.roll(n, 0) for n, s in enumerate(shares)) for t in (x, y))


def halves(rows: list[Any]) -> Any:
    x, y = stacked(rows)
    return 0.5 * x + 0.5 * x.roll(1, 0), 0.5 * y + 0.5 * y.roll(1, 0)


def told(collate: Any, **kind: Any) -> Any:
    loader = {"batch_size": 10, "collate_fn": collate}
    (found,) = Contract(dataset=Images(**kind), loader=loader).check(["collate-pairing"]).findings
    return found


@pytest.mark.parametrize("kind", [{}, {"shares": True}, {"flips": True}])
@pytest.mark.parametrize("collate", [crossed, crossed_in_any_order])
def test_labels_with_the_weights_of_the_partner_are_told(collate: Any, kind: Any) -> None:
    found = told(collate, **kind)
    assert (found.status, found.code) == ("violated", "mixed-weights-exchanged")
    assert found.location.text.endswith("# CROSSED")


@pytest.mark.parametrize("kind", [{}, {"shares": True}, {"flips": True}])
@pytest.mark.parametrize(
    "collate", [mixed, stacked, smoothed, by_majority, patches, of_three, halves]
)
def test_other_ways_to_mix_samples_pass(collate: Any, kind: Any) -> None:
    assert told(collate, **kind).status in ("passed", "not-applicable")
