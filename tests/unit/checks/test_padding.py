"""Padding: how much there is and what stands there are both varied."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels, Mask, Tokens, promises
from pytest_torchcheck.specs.kinds import Lengths


class Pooled(nn.Module):
    """Reads the padding's contents where ``leak`` says so, and is right as long as zeros stand there."""

    def __init__(self, leak: bool) -> None:
        super().__init__()
        self.head, self.leak = nn.Linear(6, 4), leak

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        kept = x if self.leak else x * mask[:, :, None].to(x.dtype)
        return self.head(kept.sum(1) / mask.sum(1, keepdim=True))


class ByLengths(nn.Module):
    def __init__(self, leak: bool) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 4)
        self.leak = leak

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        last = self.head(self.lstm(packed)[1][0][-1])
        return last + x.sum(1)[:, :4] if self.leak else last


class ByPad(nn.Module):
    """Knows padding by its id alone: anything else that stands there is text."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 6), nn.Linear(6, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        real = (ids != 0)[:, :, None]
        return self.head((self.embed(ids) * real).sum(1) / real.sum(1))


def hold(model: Any, inputs: Any, promise: promises.PaddingInvariant) -> Any:
    contract = Contract(
        model=model, inputs=inputs, sizes={"B": (2, 5), "T": (3, 8)}, targets=Labels("B", classes=4),
        loss=F.cross_entropy, promises=(promise,),
    )  # fmt: skip
    (finding,) = contract.check(["padding-invariance"]).findings
    return finding


def masked(leak: bool) -> Any:
    return hold(
        lambda: Pooled(leak),
        {"x": "B T 6", "mask": Mask("B T", kind="right")},
        promises.PaddingInvariant(ids="x", mask="mask"),
    )


def ragged(leak: bool) -> Any:
    return hold(
        lambda: ByLengths(leak),
        {"x": "B T 6", "lengths": Lengths("B", longest="T")},
        promises.PaddingInvariant(ids="x"),
    )


@pytest.mark.parametrize("held", [masked, ragged])
def test_what_stands_at_padded_positions_is_varied(held: Any) -> None:
    """Zeros alone hide the leak: a sum over zeros is the sum without them."""
    finding = held(leak=True)
    assert (finding.status, finding.code) == ("violated", "padding-leak")
    assert "the values at padded positions of x change output" in finding.summary


@pytest.mark.parametrize("held", [masked, ragged])
def test_masks_and_packed_sequences_raise_no_alarm(held: Any) -> None:
    finding = held(leak=False)
    assert finding.status == "passed"
    assert "and their values" in finding.summary


def test_without_a_mask_only_the_pad_id_pads() -> None:
    finding = hold(ByPad, Tokens("B T", vocab=20, pad=0), promises.PaddingInvariant(ids=0))
    assert finding.status == "passed"
    assert "3 more positions of 0 change" in finding.summary


class Upcast(nn.Module):
    """Right, and takes its softmax in float32 whatever the dtype, as language models do."""

    def __init__(self, leak: float = 0.0) -> None:
        super().__init__()
        self.embed, self.qkv, self.head = nn.Embedding(50, 32), nn.Linear(32, 96), nn.Linear(32, 3)
        self.leak = leak

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.embed(ids)).chunk(3, -1)
        real = ids != 0
        scores = (q @ k.transpose(1, 2)).masked_fill(~real[:, None], torch.finfo(q.dtype).min)
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        y = (weights @ v) * real[:, :, None]
        return self.head(y.sum(1) / real.sum(1, keepdim=True) + self.leak * ids.shape[1])


@pytest.mark.parametrize("length", [11, 13, 14, 30])
def test_rounding_to_float32_in_between_is_no_leak(length: int) -> None:
    """A softmax over more zeros rounds differently, in float64 too where it is taken in float32."""
    ids = torch.randint(1, 50, (8, length), generator=torch.Generator().manual_seed(length))
    ids[1:, length // 2 :] = 0

    def held(leak: float) -> Any:
        contract = Contract(
            model=lambda: Upcast(leak), batch=((ids,), torch.zeros(8, dtype=torch.int64)), inputs=("B T",),
            loss=F.cross_entropy, promises=(promises.PaddingInvariant(ids=0),),
        )  # fmt: skip
        return contract.check("padding-invariance").findings[0]

    assert held(0.0).status == "passed"
    finding = held(0.1)
    assert finding.status == "violated"
    assert "self.leak * ids.shape[1]" in finding.location.text


class Block(nn.Module):
    """Attention that masks padding, before or after an operation along the positions that does not."""

    def __init__(self, between: str, first: bool) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(6, 16), nn.Linear(16, 4)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.pool = nn.MaxPool1d(3, 1, 1)
        self.norm = nn.GroupNorm(4, 16)
        self.rnn = nn.GRU(16, 8, batch_first=True, bidirectional=True)
        self.between, self.first = between, first

    def mix(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.between == "masked":
            return self.conv((x * mask[:, :, None]).mT).mT
        if self.between == "rnn":
            return self.rnn(x)[0]
        return getattr(self, self.between)(x.mT).mT

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for mixes in (self.first, not self.first):
            if mixes:
                x = x + self.mix(x, mask)
            else:
                x = x + self.attend(x, x, x, key_padding_mask=~mask.bool(), need_weights=False)[0]
        real = mask[:, :, None].to(x.dtype)
        return self.head((x * real).sum(1) / real.sum(1))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("between", "op", "fix"),
    [
        ("conv", "F.conv1d", "to 0 before"),
        ("pool", "F.max_pool1d", "lowest number before"),
        ("norm", "F.group_norm", "mean and variance over real positions only"),
        ("rnn", "torch.gru", "pack_padded_sequence"),
        ("masked", "", ""),
    ],
)
def test_the_operation_without_a_mask_is_named_not_the_masked_attention(
    between: str, op: str, fix: str, first: bool
) -> None:
    """The samples have padding of their own, which may change: it is not where padding leaks."""
    finding = hold(
        lambda: Block(between, first),
        {"x": "B T 6", "mask": Mask("B T", kind="right")},
        promises.PaddingInvariant(ids="x", mask="mask"),
    )
    if not op:
        assert finding.status == "passed"
        return
    assert finding.code == "padding-leak"
    assert f"an operation reads padded positions ({op} in {between} (" in finding.cause
    assert fix in finding.fix


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(40, 8, padding_idx=0), nn.Linear(8, 6)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids).tanh())


def _drawn(labels: Labels, ignored: int) -> Any:
    def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output.transpose(1, 2), targets, ignore_index=ignored)

    contract = Contract(
        model=Words, inputs=Tokens("B T", vocab=40, pad=0), targets=labels, loss=loss,
        promises=(promises.PaddingInvariant(ids=0, pad=0),),
    )  # fmt: skip
    (finding,) = contract.check(["padding-loss"]).findings
    return finding


@pytest.mark.parametrize("mark", [0, -100, 5])
def test_drawn_labels_are_ignored_at_padding(mark: int) -> None:
    """Only the plugin knows where it pads: its labels there are what the contract says is ignored."""
    labels = Labels("B T", classes=6, ignore_index=mark)
    assert _drawn(labels, mark).status == "passed"
    other = _drawn(labels, 3)
    if mark != -100:  # a loss that takes -100 for a class does not run
        assert (other.status, other.code) == ("violated", "padding-counted")


def test_drawn_labels_that_nothing_marks_decide_nothing() -> None:
    finding = _drawn(Labels("B T", classes=6), -100)
    assert finding.status == "inconclusive"
    assert "ignore_index" in finding.summary


class ByIdToo(nn.Module):
    """Takes a mask, and positions from the ids that are no padding, as RoBERTa does."""

    def __init__(self, leak: bool) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(20, 6), nn.Embedding(40, 6, padding_idx=0)
        self.head, self.leak = nn.Linear(6, 4), leak

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        text = (ids != 1).long()
        x = self.embed(ids) + self.place(text.cumsum(1) * text)
        kept = torch.ones_like(mask) if self.leak else mask
        return self.head((x * kept[:, :, None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1))


@pytest.mark.parametrize("leak", [False, True])
def test_a_model_that_also_tells_padding_by_its_id_is_sound_unless_it_reads_the_contents(
    leak: bool,
) -> None:
    ids = torch.randint(3, 20, (4, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    ids[1, :2], mask[1, :2] = 1, 0
    made = Contract(
        model=lambda: ByIdToo(leak), batch=((ids, mask), torch.tensor([0, 1, 2, 3])), inputs=("B T", "B T"),
        loss=F.cross_entropy, promises=(promises.PaddingInvariant(ids=0, mask=1, pad=1, side="left"),),
    )  # fmt: skip
    (finding,) = made.check(["padding-invariance"]).findings
    assert finding.status == ("violated" if leak else "passed"), finding


class Inverted(nn.Module):
    """Attends from a learnt query to the tokens; scaled_dot_product_attention sees where the mask is True."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.query = nn.Embedding(12, 8), nn.Parameter(torch.randn(1, 8))
        self.place = nn.Embedding(16, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        words = self.words(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        query = self.query.expand(len(ids), -1, -1)
        hidden = (ids == 0)[:, None, :]
        return F.scaled_dot_product_attention(query, words, words, attn_mask=hidden)[:, 0]


def test_the_line_that_makes_the_mask_of_an_attention_is_named() -> None:
    ids = torch.randint(1, 12, (5, 9))
    for row, length in enumerate((8, 5, 7, 3, 6)):
        ids[row, length:] = 0
    report = Contract(
        model=Inverted,
        inputs="B T",
        sizes={"B": (1, 5), "T": (2, 12)},
        batch=((ids,), torch.arange(5) % 3),
        loss=F.cross_entropy,
        promises=[promises.PaddingInvariant(ids="ids", pad=0)],
    ).check(["padding-invariance"])
    (found,) = report.with_status("violated")
    masks = [c.location.text for c in found.culprits if c.detail == "the mask" and c.location]
    assert masks
    assert "hidden =" in masks[0]
    assert "its mask is made on line" in found.because
