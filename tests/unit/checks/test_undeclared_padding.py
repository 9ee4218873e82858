"""Rows of a batch that end in runs of an id of their own: the loss must not compare scores with it there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Ints
from pytest_torchcheck.probes.positions.padding import padding_of

LENGTHS = (9, 4, 6, 3, 7)


def padded(side: str = "right", lengths: tuple[int, ...] = LENGTHS, width: int = 9) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    ids = torch.zeros(len(lengths), width, dtype=torch.int64)
    for row, length in zip(ids, lengths, strict=True):
        text = torch.randint(1, 12, (length,), generator=generator)
        row[slice(length) if side == "right" else slice(width - length, width)] = text
    return ids


class Model(nn.Module):
    def __init__(self, padding_idx: int | None = None, cut: int = 0) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8, padding_idx=padding_idx)
        self.mix, self.head, self.cut = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 12), cut

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.mix(self.embed(ids[:, : ids.shape[1] - self.cut]))[0])


def told(loss: Any, ids: Tensor, low: int = 0, **model: Any) -> Any:
    contract = Contract(
        model=lambda: Model(**model), batch=((ids,), ids), loss=loss,
        inputs=Ints("B T", low=low, high=12), sizes={"B": (1, 5), "T": (3, 9)},
    )  # fmt: skip
    (finding,) = contract.check(["padding-loss"]).findings
    return finding


def next_token(scores: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(scores[:, :-1].transpose(1, 2), ids[:, 1:])


def of_cut(scores: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())


def contrast(scores: Tensor, ids: Tensor) -> Tensor:
    """Prefer the answers of some rows: an answer begins behind its question, and does not end."""
    each = scores[:, :-1].log_softmax(2).gather(2, ids[:, 1:, None])[..., 0]
    answer = torch.arange(1, ids.shape[1]) >= torch.full((len(ids), 1), 2)
    total = (each * answer.float()).sum(1)
    return F.softplus(total[1:] - total[:1]).mean()


def test_an_id_outside_of_the_declared_range() -> None:
    finding = told(contrast, padded(), low=1)
    assert (finding.status, finding.code) == ("violated", "padding-counted")
    assert finding.culprits[0].name == "answer"
    assert finding.location.text.startswith("answer = ")
    assert "declared to hold 1 to 11" in finding.because


@pytest.mark.parametrize(("loss", "cut"), [(next_token, 0), (of_cut, 1)])
def test_the_padding_idx_of_an_embedding(loss: Any, cut: int) -> None:
    finding = told(loss, padded(), padding_idx=0, cut=cut)
    assert (finding.status, finding.code) == ("violated", "padding-counted")
    assert "embed has padding_idx=0" in finding.because


def test_padding_in_front() -> None:
    assert told(next_token, padded("left"), padding_idx=0).status == "violated"


def test_an_id_that_nothing_declares_may_be_meant() -> None:
    finding = told(next_token, padded())
    assert finding.status == "suspicious"
    assert "nothing is wrong" in finding.fix


def ignoring(scores: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(scores[:, :-1].transpose(1, 2), ids[:, 1:], ignore_index=0)


def once(scores: Tensor, ids: Tensor) -> Tensor:
    """Learn that the text ends, at the first position behind it."""
    labels = ids[:, 1:].clone()
    labels[(labels == 0) & (ids[:, :-1] == 0)] = -100
    return F.cross_entropy(scores[:, :-1].transpose(1, 2), labels)


def penalised(scores: Tensor, ids: Tensor) -> Tensor:
    return ignoring(scores, ids) + 1e-3 * scores.logsumexp(2).square().mean()


def distilled(scores: Tensor, ids: Tensor) -> Tensor:
    teacher = torch.linspace(0, 1, 12).softmax(0).expand_as(scores)
    return ignoring(scores, ids) - (teacher * scores.log_softmax(2)).sum(2).mean()


def by_lengths(scores: Tensor, ids: Tensor) -> Tensor:
    real = torch.arange(1, ids.shape[1]) < (ids != 0).sum(1, keepdim=True)
    each = scores[:, :-1].log_softmax(2).gather(2, ids[:, 1:, None])[..., 0]
    return -(each * real).sum() / real.sum()


LEAVING_OUT = (ignoring, once, penalised, distilled)


@pytest.mark.parametrize(
    ("loss", "side"),
    [*((loss, side) for loss in LEAVING_OUT for side in ("right", "left")), (by_lengths, "right")],
)
def test_losses_that_leave_padding_out(loss: Any, side: str) -> None:
    assert told(loss, padded(side), low=1, padding_idx=0).status == "passed"


def packed() -> Tensor:
    ids = torch.randint(1, 12, (5, 9), generator=torch.Generator().manual_seed(1))
    ids[0, 3], ids[1, 6:], ids[2, 8], ids[3, 7:] = 0, 0, 0, 0  # 0 ends a text, wherever that is
    return ids


def repeating() -> Tensor:
    ids = torch.randint(1, 11, (5, 9), generator=torch.Generator().manual_seed(1))
    ids[2, 7:] = 11
    return ids


@pytest.mark.parametrize(
    "ids",
    [packed(), padded(lengths=(7,) * 5), padded(lengths=(8, 9, 8, 8, 9)), repeating()],
    ids=["packed", "one length", "ends once", "repeats"],
)
def test_rows_that_are_not_padded(ids: Tensor) -> None:
    assert told(next_token, ids).status == "not-applicable"


def test_a_mask_of_flags_is_no_text() -> None:
    assert padding_of({"mask": (padded() != 0).long()}) == []
    [found] = padding_of({"ids": padded(), "again": padded()})
    assert (found.path, found.pad, found.runs) == ("ids", 0, (0, 5, 3, 6, 2))
    assert found.inner.sum(1).tolist() == [0, 4, 2, 5, 1]


class Pooled(Model):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).mean(1)


def test_no_scores_at_each_position() -> None:
    contract = Contract(
        model=Pooled, batch=((padded(),), torch.arange(5)), loss=F.cross_entropy,
    )  # fmt: skip
    (finding,) = contract.check(["padding-loss"]).findings
    assert finding.status == "not-applicable"
