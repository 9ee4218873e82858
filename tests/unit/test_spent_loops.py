"""An iterator that is used up before it is gone through again is named where it is made; so is a field that is collated from an old order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract, promises


def scaled(parameters: Any, most: float, *, kept: bool) -> None:
    chosen = (p for p in parameters if p.grad is not None)  # once
    if kept:
        chosen = list(chosen)
    norm = torch.stack([p.grad.norm() for p in chosen]).norm()
    for p in chosen:
        p.grad.mul_((most / norm).clamp(max=1.0))


@pytest.mark.parametrize("kept", [True, False])
def test_clipping_by_hand_with_a_generator_is_told_where_it_is_made(kept: bool) -> None:
    def step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = 50 * (model(*inputs) - targets).square().mean()
        loss.backward()
        scaled(model.parameters(), 0.5, kept=kept)
        optimizer.step()
        return loss.detach()

    report = Contract(
        model=lambda: nn.Linear(4, 2), inputs="B 4", sizes={"B": 6}, targets="B 2", train_step=step,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
        promises=[promises.ClipsGradients(0.5)],
    ).check(["gradient-clipping"])  # fmt: skip
    assert report.ok is kept
    for found in report.failing:
        assert (
            found.location.text == "chosen = (p for p in parameters if p.grad is not None)  # once"
        )
        assert "chosen yields its elements only once" in found.cause
        assert [c.name for c in found.culprits[:2]] == ["chosen", "for"]


class Words(torch.utils.data.Dataset[dict[str, Any]]):
    """Sequences of other lengths, with the number of each."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"ids": torch.arange(2 + (5 * index) % 7) + 10 * index, "label": index}


def collate(samples: list[dict[str, Any]], *, sorted_too: bool) -> dict[str, torch.Tensor]:
    longest = sorted(samples, key=lambda sample: -len(sample["ids"]))
    ids = nn.utils.rnn.pad_sequence([sample["ids"] for sample in longest], batch_first=True)
    if sorted_too:
        return {"ids": ids, "label": torch.tensor([sample["label"] for sample in longest])}
    label = torch.tensor([sample["label"] for sample in samples])  # as they came
    return {"ids": ids, "label": label}


@pytest.mark.parametrize("sorted_too", [True, False])
def test_a_field_collated_from_the_old_order_is_named(sorted_too: bool) -> None:
    report = Contract(
        dataset=Words(),
        loader={"batch_size": 4, "collate_fn": lambda s: collate(s, sorted_too=sorted_too)},
    ).check(["collate-pairing"])
    assert report.ok is sorted_too
    for found in report.failing:
        assert (
            found.location.text
            == 'label = torch.tensor([sample["label"] for sample in samples])  # as they came'
        )
        assert "longest" in {c.name for c in found.culprits}
