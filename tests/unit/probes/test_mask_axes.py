"""A padding mask along the queries of an attention is told by the line that lays it there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, promises
from pytest_torchcheck.probes.positions.hiding import find_query_mask


class Reader(nn.Module):
    """Attention over ids, the padding masked along the keys, along the queries, or both."""

    def __init__(self, *, along: str, by_ids: bool) -> None:
        super().__init__()
        self.along, self.by_ids = along, by_ids
        self.embed = nn.Embedding(20, 8, padding_idx=0)
        self.query, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(ids) + 0.1
        scores = self.query(x) @ x.transpose(1, 2)
        hidden = ids.eq(0) if self.by_ids else mask < 0.5
        if "queries" in self.along:
            lying = hidden.unsqueeze(-1)  # along the queries
            scores = scores.masked_fill(lying, -1e4)
        if "keys" in self.along:
            scores = scores + hidden[:, None, :] * -1e4
        return self.head((scores.softmax(-1) @ x)[:, 0])


def _batch() -> tuple[Any, Tensor]:
    lengths = torch.tensor([5, 3, 2, 5])
    mask = (torch.arange(5) < lengths[:, None]).float()
    ids = torch.randint(1, 20, (4, 5), generator=torch.Generator().manual_seed(0)) * mask.long()
    return (ids, mask), torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize("by_ids", [False, True], ids=["mask", "ids"])
@pytest.mark.parametrize("along", ["queries", "keys", "queries and keys", "none"])
def test_the_line_that_lays_the_mask(along: str, by_ids: bool) -> None:
    model, (inputs, _) = Reader(along=along, by_ids=by_ids), _batch()
    found = find_query_mask(lambda: model(*inputs), model, [inputs[1]], 5)
    if along != "queries":
        assert found is None
        return
    assert found is not None
    assert (found.shape, found.scores) == ((4, 5, 1), (4, 5, 5))
    assert found.location is not None
    assert found.location.text.endswith("# along the queries")


def test_the_finding_says_so() -> None:
    def report(along: str) -> Any:
        return Contract(
            model=Reader(along=along, by_ids=False), batch=_batch(), inputs=("B T", "B T"), loss=F.cross_entropy,
            sizes={"B": (1, 4), "T": (1, 8)}, promises=(promises.PaddingInvariant(ids=0, mask=1),),
        ).check("padding-invariance")  # fmt: skip

    (finding,) = report("queries").findings
    assert "hides padded queries" in (finding.cause or "")
    assert finding.location.text.endswith("# along the queries")
    assert report("keys").ok
