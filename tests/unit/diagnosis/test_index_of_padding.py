"""A state that is selected behind the last real one: the line that makes the index, and the right one beside it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pytest_torchcheck import Contract, Finding, Ints, promises


class LastState(nn.Module):
    """Reads the state at the end of each sequence, of which the lengths are given."""

    def __init__(self, *, ahead: int) -> None:
        super().__init__()
        self.embed, self.ahead = nn.Embedding(20, 6), ahead
        self.layer, self.head = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        states = self.layer(self.embed(ids))[0]
        at = (mask.sum(1) - 1 + self.ahead).clamp(max=ids.shape[1] - 1)
        rows = torch.arange(len(ids), device=ids.device)
        return self.head(states[rows, at])


def judged(model: nn.Module) -> Finding:
    mask = (torch.arange(6)[None] < torch.tensor([6, 3, 4, 2])[:, None]).long()
    ids = torch.randint(1, 20, (4, 6), generator=torch.Generator().manual_seed(0)) * mask
    contract = Contract(
        model=model,
        inputs={"ids": Ints("B T", low=1, high=20), "mask": Ints("B T", low=1, high=2)},
        batch=({"ids": ids, "mask": mask}, None),
        promises=[promises.PaddingInvariant(ids="ids", mask="mask")],
    )
    (found,) = contract.check(["padding-invariance"]).findings
    return found


def test_the_index_that_points_behind_the_sequence_is_the_line() -> None:
    found = judged(LastState(ahead=1))
    assert (found.status, found.code) == ("violated", "padding-leak")
    assert found.location is not None
    assert found.location.text.startswith("at = ")
    assert "the index at" in found.cause


def test_the_last_real_state_passes() -> None:
    assert judged(LastState(ahead=0)).status == "passed"
