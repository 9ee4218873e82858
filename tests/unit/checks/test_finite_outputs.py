"""Outputs in eval mode without gradients are finite, whatever training mode gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, promises

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(6) % 4


def _text() -> torch.Tensor:
    ids = torch.randint(1, 30, (5, 10), generator=torch.Generator().manual_seed(3))
    for row, length in enumerate((10, 7, 5, 3, 2)):
        ids[row, length:] = 0
    return ids


class Tagger(nn.Module):
    """Reads the past alone; where ``wrong``, the mask leaves out the words and not the padding."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(30, 12), nn.Linear(12, 30)
        self.layer = nn.TransformerEncoderLayer(12, 2, 24, dropout=0.0, batch_first=True)
        self.wrong = wrong

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(ids.shape[1])
        future = steps[None, :] > steps[:, None]
        padding = ids.ne(0) if self.wrong else ids.eq(0)
        h = self.layer(self.embed(ids), src_mask=future, src_key_padding_mask=padding)
        return self.head(h)


def _tagged(wrong: bool, *checks: str) -> Any:
    def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output.flatten(0, 1), targets.flatten(), ignore_index=0)

    ids = _text()
    contract = Contract(
        model=lambda: Tagger(wrong), batch=((ids,), ids.roll(1, 1) * ids.ne(0)), loss=loss,
        promises=(promises.Causal(), promises.PaddingInvariant(ids=0, pad=0)),
    )  # fmt: skip
    return contract.check([*checks]).findings


def test_an_output_that_only_the_fused_path_makes_nan_is_found_and_explained() -> None:
    model, ids = Tagger(True).eval(), _text()
    with torch.no_grad():
        assert bool(model(ids).isnan().any())
    assert not bool(model(ids).isnan().any()), "with gradients on, all of it is finite"
    (finding,) = _tagged(True, "gradients-finite")
    assert (finding.status, finding.code) == ("violated", "non-finite-forward")
    assert finding.summary == "output is NaN in eval mode on an ordinary batch"
    assert "every key is masked" in finding.because
    assert "fused path" in finding.cause
    assert finding.location.text.startswith("h = self.layer(")
    (sound,) = _tagged(False, "gradients-finite")
    assert sound.status == "passed"


@pytest.mark.parametrize("check", ["causality", "past-influence", "padding-invariance"])
def test_comparisons_of_nan_say_so(check: str) -> None:
    (finding,) = _tagged(True, check)
    assert finding.status == "inconclusive"
    assert "is NaN" in finding.summary
    (sound,) = _tagged(False, check)
    assert "NaN" not in sound.summary


class Scores(nn.Module):
    """Scores of four classes, which ``after`` changes in eval mode only."""

    def __init__(self, after: Any) -> None:
        super().__init__()
        self.head, self.after = nn.Linear(8, 4), after
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.head(x)
        return scores if self.training else self.after(scores, self.count)


def averaged(scores: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    return (scores * count) / count  # nothing was counted yet


def overflowing(scores: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    return (scores.abs() * 1e4 + 100).exp()


def certain(scores: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    return F.one_hot(scores.argmax(1), 4).float().log()


def forbidden(scores: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(torch.arange(4) == 1, -torch.inf)


def normalised(scores: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    return forbidden(scores, count).log_softmax(1)


def missing(scores: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(scores < 0, torch.nan)


def farthest(scores: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(scores < 0, torch.inf)


def _scored(after: Any, x: torch.Tensor = X) -> Any:
    contract = Contract(model=lambda: Scores(after), batch=(x, Y), loss=F.cross_entropy)
    (finding,) = contract.check("gradients-finite").findings
    return finding


@pytest.mark.parametrize(
    ("after", "line"), [(averaged, "return (scores * count)"), (overflowing, "return (scores.abs")]
)
def test_what_eval_mode_alone_computes_is_found_at_its_line(after: Any, line: str) -> None:
    finding = _scored(after)
    assert (finding.status, finding.code) == ("violated", "non-finite-forward")
    assert finding.summary == "output is NaN or inf in eval mode on an ordinary batch"
    assert finding.location.text.startswith(line)


@pytest.mark.parametrize("after", [certain, forbidden, normalised, missing, farthest])
def test_infinities_and_nan_that_are_meant_raise_no_alarm(after: Any) -> None:
    assert _scored(after).status == "passed"


def test_outputs_of_a_batch_that_holds_nan_are_not_judged() -> None:
    class Filled(Scores):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.nan_to_num() if self.training else x)

    x = X.clone()
    x[2, 3] = torch.nan
    contract = Contract(
        model=lambda: Filled(lambda scores, _: scores), batch=(x, Y), loss=F.cross_entropy
    )
    assert contract.check("gradients-finite").ok


@pytest.mark.parametrize(("after", "status"), [(averaged, "violated"), (forbidden, "passed")])
def test_a_model_without_trainable_parameters_is_judged_alike(after: Any, status: str) -> None:
    contract = Contract(model=lambda: Scores(after).requires_grad_(False), batch=(X,))
    (finding,) = contract.check("gradients-finite").findings
    assert finding.status == status
