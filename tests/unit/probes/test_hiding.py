"""Masks of attention scores that do not hide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, promises

if TYPE_CHECKING:
    from collections.abc import Callable

B, T, D = 4, 7, 8
Mask = torch.Tensor
NEVER = -1e9


class Reader(nn.Module):
    """One head of attention; ``weigh`` makes the weights of the scores and the mask of what is to be seen."""

    def __init__(self, weigh: Callable[[Mask, Mask], Mask], *, causal: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.query, self.head = nn.Embedding(20, D), nn.Linear(D, D), nn.Linear(D, 3)
        self.weigh, self.causal = weigh, causal

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        scores = self.query(x) @ x.transpose(1, 2)
        seen = (ids != 0)[:, None, :].expand_as(scores)
        if self.causal:
            n = ids.shape[1]
            seen = torch.ones(n, n, dtype=torch.bool).tril().expand_as(scores)
        y = self.head(self.weigh(scores, seen) @ x)
        return y if self.causal else (y * (ids != 0)[:, :, None]).sum(1)


def filled(scores, seen):
    return scores.masked_fill(~seen, -1e-9).softmax(-1)  # HERE


def positive(scores, seen):
    scores = scores.masked_fill(seen == 0, 1e9)  # HERE
    return F.softmax(scores, -1)


def by_where(scores, seen):
    scores = torch.where(seen, scores, torch.tensor(-0.5, dtype=scores.dtype))  # HERE
    return scores.softmax(-1)


def by_index(scores, seen):
    scores = scores.clone()
    scores[~seen] = 1e-4  # HERE
    return scores.softmax(-1)


def added(scores, seen):
    bias = (1 - seen.to(scores.dtype)) * -2
    scores = scores + bias  # HERE
    return scores.softmax(-1)


def named(scores, seen):
    least = -torch.finfo(scores.dtype).tiny  # HERE
    bias = (1 - seen.to(scores.dtype)) * least
    scores = scores + bias
    return scores.softmax(-1)


def multiplied(scores, seen):
    scores = scores * seen  # HERE
    return scores.softmax(-1)


def inverted(scores, seen):
    scores = scores.masked_fill(seen, NEVER)  # HERE
    return scores.softmax(-1)


def added_inverted(scores, seen):
    scores = scores + seen.to(scores.dtype) * NEVER  # HERE
    return scores.softmax(-1)


def late(scores, seen):
    weights = scores.softmax(-1)
    return weights * seen  # HERE


def late_filled(scores, seen):
    weights = scores.softmax(-1)
    return weights.masked_fill(~seen, 0.0)  # HERE


def right(scores, seen):
    return scores.masked_fill(~seen, -torch.inf).softmax(-1)


def right_added(scores, seen):
    return ((1 - seen.to(scores.dtype)) * NEVER + scores).softmax(-1)


def right_late(scores, seen):
    weights = scores.softmax(-1) * seen
    return weights / weights.sum(-1, keepdim=True)


def ids() -> torch.Tensor:
    made = torch.randint(1, 20, (B, T), generator=torch.Generator().manual_seed(0))
    for row, length in enumerate((7, 4, 2, 5)):
        made[row, length:] = 0
    return made


def check(weigh: Any, *, causal: bool = False) -> Any:
    x = ids().clamp(min=1) if causal else ids()
    promise = promises.Causal() if causal else promises.PaddingInvariant(ids=0, pad=0)
    contract = Contract(
        model=lambda: Reader(weigh, causal=causal), batch=((x,), torch.zeros(B)), inputs=("B T",),
        loss=lambda y, t: y.sum(), promises=(promise,),
    )  # fmt: skip
    return contract.check("causality" if causal else "padding-invariance").findings[0]


WRONG = {
    filled: "does not mask: it fills in -1e-09",
    positive: "does not mask: it fills in 1e+09",
    by_where: "does not mask: it fills in -0.5",
    by_index: "does not mask: it fills in 0.0001",
    added: "does not mask: it adds -2",
    named: "does not mask: it adds -2.23e-308",
    multiplied: "does not mask: it multiplies by 0",
    inverted: "masks the positions to be kept, and none of the others",
    added_inverted: "masks the positions to be kept, and none of the others",
    late: "is applied after the softmax",
    late_filled: "is applied after the softmax",
}


@pytest.mark.parametrize("causal", [False, True], ids=["padding", "causal"])
@pytest.mark.parametrize(
    ("weigh", "cause"), WRONG.items(), ids=lambda v: getattr(v, "__name__", "")
)
def test_a_mask_that_does_not_hide(weigh: Any, cause: str, causal: bool) -> None:
    finding = check(weigh, causal=causal)
    assert finding.status == "violated"
    assert finding.location.text.endswith("# HERE"), finding
    assert cause in finding.cause
    assert "% of the weight" in finding.because
    assert len(finding.culprits) <= 3


@pytest.mark.parametrize("causal", [False, True], ids=["padding", "causal"])
@pytest.mark.parametrize("weigh", [right, right_added, right_late])
def test_masks_that_hide_raise_no_alarm(weigh: Any, causal: bool) -> None:
    assert check(weigh, causal=causal).status == "passed"


def test_a_mask_that_hides_is_not_blamed_for_another_leak() -> None:
    def leaking(scores, seen):
        weights = scores.masked_fill(~seen, NEVER).softmax(-1)
        return weights - weights.mean(1, keepdim=True)  # HERE

    finding = check(leaking, causal=True)
    assert finding.location.text.endswith("# HERE")
    assert "softmax" not in finding.because


def test_what_rounding_changes_is_not_blamed_for_another_leak() -> None:
    """Weights that are normalised again do not depend on what was zeroed, but for their last bits."""

    def leaking(scores, seen):
        weights = right_late(scores, seen)
        return weights + 0.1 * weights.roll(-1, 1)  # HERE

    finding = check(leaking, causal=True)
    assert finding.location.text.endswith("# HERE"), finding
    assert check(right_late, causal=True).status == "passed"
