"""How much padding there is: the operation through which it reaches the real positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Ints, Labels, Mask, Tokens, promises
from pytest_torchcheck.probes.positions.lengthening import Lengthened, first_lengthening
from pytest_torchcheck.probes.recorded.divergence import record

B, T, D, EXTRA = 5, 6, 8, 3


class Reader(nn.Module):
    """Knows padding by its id; subclasses pool."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.body, self.head = nn.Embedding(20, D), nn.Linear(D, D), nn.Linear(D, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.body(self.embed(ids)))
        return self.head(self.pool(h, (ids != 0)[:, :, None].to(h.dtype)))

    def pool(self, h: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        return (h * real).sum(1) / real.sum(1)


class ByLength(Reader):
    def pool(self, h, real):
        total = (h * real).sum(1)
        return total / h.size(1)  # HERE


class ByName(Reader):
    def pool(self, h, real):
        _, steps, _ = h.shape  # SIZE
        total = (h * real).sum(1)
        return total / steps  # HERE


class ByRoot(Reader):
    def pool(self, h, real):
        return (h * real).sum(1) * h.shape[1] ** -0.5  # HERE


class Mean(Reader):
    def pool(self, h, real):
        h = h * real  # FILLED
        return h.mean(1)  # HERE


class Undone(Reader):
    """Masks before the exponential, which gives 1 for 0."""

    def pool(self, h, real):
        h = torch.exp(h * real)  # MASKED
        return h.sum(1) / real.sum(1)


class Ones(Reader):
    """Fills the padded positions with 1 itself: nothing is undone."""

    def pool(self, h, real):
        h = h.masked_fill(real == 0, 1.0)
        return h.sum(1) / real.sum(1)


class Exponential(Reader):
    """Masks twice: the second time counts."""

    def pool(self, h, real):
        h = torch.exp(h * real) * real
        return h.sum(1) / real.sum(1)


class Largest(Reader):
    def pool(self, h, real):
        h = (h - 3).masked_fill(real == 0, 0.0)  # FILLED
        return h.amax(1)


class Last(Reader):
    def pool(self, h, real):
        return h[:, -1]  # HERE


class Attending(Reader):
    def pool(self, h, real):
        weights = (h @ h.transpose(1, 2)).softmax(-1)  # HERE
        return ((weights @ h) * real).sum(1) / real.sum(1)


class Flattened(Reader):
    """Padded queries differ, and nothing reads them; rows are merged with the samples."""

    def pool(self, h, real):
        seen = h + h.mean(1, keepdim=True) * (1 - real)
        flat = self.body(seen.reshape(-1, D)).view(*h.shape)
        total = (flat * real).sum(1)
        return total / h.shape[1]  # HERE


def ids() -> torch.Tensor:
    made = torch.randint(1, 20, (B, T), generator=torch.Generator().manual_seed(0))
    for row, length in enumerate((6, 4, 2, 5, 3)):
        made[row, length:] = 0
    return made


def found_in(model: nn.Module) -> Lengthened | None:
    model, x = model.double(), ids()
    base, longer = (record(lambda y=y: model(y), model) for y in (x, F.pad(x, (0, EXTRA))))
    return first_lengthening(base, longer, length=T, extra=EXTRA, allowed=1e-11, real=x != 0)


@pytest.mark.parametrize("cls", [ByLength, ByName, ByRoot, Mean, Last, Attending, Flattened])
def test_the_operation_that_reads_the_padded_length(cls: type[Reader]) -> None:
    found = found_in(cls())
    assert found is not None
    assert found.location is not None
    assert found.location.text.endswith("# HERE"), found
    if cls in (ByLength, ByName, Flattened):
        assert found.numbers == (T, T + EXTRA)


def test_a_sum_over_more_zeros_is_the_same_sum() -> None:
    assert found_in(Reader()) is None


def test_what_filled_the_padded_positions() -> None:
    found = found_in(Mean())
    assert found is not None
    assert (found.filled, found.filler and found.filler.name) == (0.0, "Tensor.mul")


def test_a_mask_that_the_next_operation_undoes() -> None:
    found = found_in(Undone())
    assert found is not None
    assert (found.filled, found.emptied and found.emptied.name) == (1.0, "Tensor.mul")
    finding = finding_of(Undone)
    assert finding.location.text.endswith("# MASKED")
    assert "are set to 0 on line" in finding.cause


@pytest.mark.parametrize("cls", [Mean, Ones, Largest, Attending])
def test_nothing_is_undone_where_the_number_was_chosen(cls: type[Reader]) -> None:
    found = found_in(cls())
    assert found is not None
    assert found.emptied is None


def test_a_mask_after_the_exponential_hides_the_padding() -> None:
    assert found_in(Exponential()) is None


def finding_of(model: type[Reader]) -> Any:
    contract = Contract(
        model=model, inputs=Tokens("B T", vocab=20, pad=0), batch=((ids(),), torch.zeros(B, dtype=torch.int64)),
        sizes={"B": (2, 5), "T": (3, 8)}, loss=F.cross_entropy, promises=(promises.PaddingInvariant(ids=0, pad=0),),
    )  # fmt: skip
    return contract.check("padding-invariance").findings[0]


def test_the_division_and_the_size_are_named() -> None:
    finding = finding_of(ByName)
    assert finding.location.text.endswith("# HERE")
    assert (
        "computes with the length, padding included: 6, and 9 with 3 more padded positions"
        in finding.cause
    )
    assert "divide by the number of real positions" in finding.fix
    sizes = [c.location.text for c in finding.culprits if c.name == "steps"]
    assert sizes == ["_, steps, _ = h.shape  # SIZE"]
    assert finding_of(Reader).status == "passed"


@pytest.mark.parametrize("model", [Mean, Largest])
def test_the_line_that_filled_the_padding_is_a_culprit(model: type[Reader]) -> None:
    finding = finding_of(model)
    assert finding.code == "padding-leak"
    filled = [c for c in finding.culprits if c.location.text.endswith("# FILLED")]
    assert [c.detail for c in filled] == ["gives 0 at the padded positions"]
    assert ("torch.finfo(dtype).min" in finding.fix) == (model is Largest)


class ByLengths(Reader):
    """Knows padding by the length of each row."""

    def keeps(self, places: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return places <= lengths  # HERE

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.body(self.embed(ids)))
        kept = self.keeps(torch.arange(ids.shape[1]), lengths[:, None])
        weights = h.sum(-1).masked_fill(~kept, float("-inf")).softmax(-1)
        return self.head((weights[:, :, None] * h).sum(1))


class Before(ByLengths):
    def keeps(self, places, lengths):
        return places < lengths


class Everything(ByLengths):
    """A mask of another purpose, that hides no padding at all."""

    def keeps(self, places, lengths):
        return (places >= 0) & (lengths > 0)


class Alternating(ByLengths):
    """A mask of another purpose, the same for every sample."""

    def keeps(self, places, lengths):
        return (places % 2 == 0) & (places >= lengths - lengths)


def finding_by_lengths(model: type[ByLengths]) -> Any:
    x, lengths = ids(), torch.tensor((6, 4, 2, 5, 3))
    contract = Contract(
        model=model,
        inputs={"ids": Tokens("B T", vocab=20, pad=0), "lengths": Ints("B", low=1, high=7)},
        batch=({"ids": x, "lengths": lengths}, torch.zeros(B, dtype=torch.int64)),
        sizes={"B": (2, 5), "T": (6, 9)},
        loss=F.cross_entropy,
        promises=(promises.PaddingInvariant(ids="ids", pad=0),),
    )
    return contract.check("padding-invariance").findings[0]


def test_a_mask_that_lets_one_padded_position_in() -> None:
    finding = finding_by_lengths(ByLengths)
    assert finding.code == "padding-leak"
    assert finding.location.text.endswith("# HERE")
    assert "padded positions in" in finding.cause


@pytest.mark.parametrize("model", [Everything, Alternating])
def test_a_mask_of_another_purpose_is_not_blamed(model: type[ByLengths]) -> None:
    assert "padded positions in" not in finding_by_lengths(model).cause


def test_a_mask_that_hides_all_padding_passes() -> None:
    assert finding_by_lengths(Before).status == "passed"


def test_other_values_behind_a_mask_are_still_looked_at_first() -> None:
    class Masked(Reader):
        def forward(self, ids, mask):
            h = self.embed(ids)
            return self.head(h.sum(1) / mask.sum(1, keepdim=True))  # HERE

    contract = Contract(
        model=Masked, inputs={"ids": Tokens("B T", vocab=20), "mask": Mask("B T", kind="right")}, sizes={"B": (2, 5), "T": (3, 8)},
        targets=Labels("B", classes=3), loss=F.cross_entropy, promises=(promises.PaddingInvariant(ids="ids", mask="mask"),),
    )  # fmt: skip
    (finding,) = contract.check("padding-invariance").findings
    assert finding.location.text.endswith("# HERE")
    assert "change with the input after its first" in finding.because
