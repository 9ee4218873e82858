from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, DeclarationError, Labels
from pytest_torchcheck.checks.steps import ways as training
from pytest_torchcheck.promises import Accumulates, Replicated
from pytest_torchcheck.subject import Subject

if TYPE_CHECKING:
    from pytest_torchcheck.findings import Finding


def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.transpose(1, 2), y, ignore_index=-1)


def verdict(**fields: object) -> Finding:
    torch.manual_seed(0)
    contract = Contract(
        model=nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5)), inputs="B T 6",
        targets=Labels("B T", classes=5, ignore_index=-1), sizes={"B": 8, "T": 7}, loss=loss,
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1), **fields,
    )  # fmt: skip
    (finding,) = training.accumulated(Subject(contract))
    return finding


def returns_its_loss(model, inputs, targets, n):
    return loss(model(*inputs), targets) / n


def goes_backward(model, inputs, targets, optimizer, i, total):
    out = model(*inputs).transpose(1, 2)
    (F.cross_entropy(out, targets, ignore_index=-1, reduction="sum") / total).backward()
    if i == 3:
        optimizer.step()


@pytest.mark.parametrize(
    ("micro_step", "status", "code"),
    [
        (returns_its_loss, "violated", "accumulation-mean-of-means"),
        (goes_backward, "passed", "held"),
    ],
)
def test_micro_steps_are_called_by_the_names_of_their_arguments(
    micro_step: object, status: str, code: str
) -> None:
    finding = verdict(promises=(Accumulates(4, micro_step=micro_step),))
    assert (finding.status, finding.code) == (status, code)


def test_a_step_without_passes_falls_back_to_the_micro_step() -> None:
    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss(model(*inputs), targets).backward()
        optimizer.step()

    finding = verdict(train_step=train_step, promises=(Accumulates(4, micro_step=goes_backward),))
    assert finding.status == "passed"
    finding = verdict(train_step=train_step, promises=(Accumulates(4),))
    assert finding.status == "inconclusive"  # nothing was accumulated: no pass


def test_nothing_to_run_is_no_pass() -> None:
    assert verdict(promises=(Accumulates(4),)).status == "inconclusive"


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.load_state_dict(self.a.state_dict())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) + self.b(x)


@pytest.mark.parametrize("rate", [0.1, 0.2])
def test_replicas_by_module(rate: float) -> None:
    def optimizer(model):
        return torch.optim.SGD(
            [{"params": model.a.parameters()}, {"params": model.b.parameters(), "lr": rate}], lr=0.1
        )

    contract = Contract(
        model=Two(), batch=((torch.randn(6, 4),), torch.randn(6, 4)), loss=F.mse_loss, optimizer=optimizer,
        promises=(Replicated("a", "b"),),
    )  # fmt: skip
    found = list(training.replicated(Subject(contract)))
    if rate == 0.1:
        assert [f.status for f in found] == ["passed"]
    else:
        assert [f.status for f in found] == ["violated", "violated"]
        assert {f.culprits[0].name for f in found} == {"b.weight", "b.bias"}


def test_unknown_replica_is_named() -> None:
    with pytest.raises(DeclarationError, match="names 'c', and the model has no such"):
        Contract(
            model=Two(), batch=((torch.randn(6, 4),), torch.randn(6, 4)), loss=F.mse_loss,
            promises=(Replicated("a", "c"),),
        )  # fmt: skip


def test_the_branch_that_ran_is_named() -> None:
    def step(exact: bool):
        def train_step(model, optimizer, inputs, targets):
            optimizer.zero_grad()
            total = (targets != -1).sum()
            for x, y in zip(inputs[0].chunk(4), targets.chunk(4), strict=True):
                out = model(x).transpose(1, 2)
                if not exact:
                    part = F.cross_entropy(out, y, ignore_index=-1)  # not divided
                else:
                    part = F.cross_entropy(out, y, ignore_index=-1, reduction="sum") / total
                part.backward()
            optimizer.step()
            return total

        return train_step

    wrong = verdict(train_step=step(False), promises=(Accumulates(4),))
    assert wrong.status == "violated"
    assert wrong.location.text.endswith("# not divided")
    assert verdict(train_step=step(True), promises=(Accumulates(4),)).status == "passed"


class Scorer(nn.Module):
    """Scores each element of a padded sequence, by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 12), nn.GELU(), nn.Linear(12, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).squeeze(-1)


def masked_error(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    real = ~y.isnan()
    return ((output - y.nan_to_num()) ** 2 * real).sum() / real.sum()


def nearest_is_own(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    scores = output @ y.nan_to_num().T
    return F.cross_entropy(scores, torch.arange(len(scores)))


def weighed(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    weight = 1 + 0.2 * (y.nan_to_num() > 0)  # as class weights do
    return (weight * (output - y.nan_to_num()) ** 2).sum() / weight.sum()


def without_promise(loss, lengths: tuple[int, ...], *, by_count: bool = False) -> Finding:
    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        for x, y in zip(inputs[0].chunk(3), targets.chunk(3), strict=True):
            share = (~y.isnan()).sum() / (~targets.isnan()).sum() if by_count else 1 / 3
            (loss(model(x), y) * share).backward()
        optimizer.step()

    torch.manual_seed(0)
    y = torch.randn(6, 8).masked_fill(torch.arange(8) >= torch.tensor(lengths)[:, None], torch.nan)
    contract = Contract(
        model=Scorer(), batch=((torch.randn(6, 8, 3),), y), loss=loss, train_step=train_step,
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    )  # fmt: skip
    (finding,) = training.accumulated(Subject(contract))
    return finding


RAGGED = (8, 8, 2, 3, 5, 1)


def test_micro_batches_of_unequal_lengths_are_not_averaged_as_equal() -> None:
    finding = without_promise(masked_error, RAGGED)
    assert (finding.status, finding.code) == ("violated", "accumulation-mean-of-means")
    assert "weights 0.593, 0.185, 0.222, here each has 0.333" in finding.because
    assert "nan" not in str(finding)


@pytest.mark.parametrize(
    ("loss", "lengths", "by_count"),
    [
        (masked_error, RAGGED, True),  # each by its share
        (masked_error, (8, 3, 3, 8, 8, 3), False),  # as many elements in each
        (nearest_is_own, RAGGED, False),  # relates samples: no split gives the whole
        (weighed, (8,) * 6, False),  # nearly equal weights
    ],
)
def test_other_sums_of_micro_batches_are_left_alone(loss, lengths, by_count) -> None:
    assert without_promise(loss, lengths, by_count=by_count).status in ("passed", "not-applicable")


def clips(often):
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        for x, y in zip(inputs[0].chunk(4), targets.chunk(4), strict=True):
            value = F.cross_entropy(model(x).transpose(1, 2), y, ignore_index=-1, reduction="sum")
            (value / (targets != -1).sum()).backward()
            if often:
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)  # HERE
        if not often:
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()

    return step


def sums(model, inputs, targets, n_items, often):
    value = F.cross_entropy(
        model(*inputs).transpose(1, 2), targets, ignore_index=-1, reduction="sum"
    )
    (value / n_items).backward()
    if often:
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)


def test_the_clipping_between_two_micro_batches_is_named():
    def often(model, inputs, targets, micro_batches, n_items):
        sums(model, inputs, targets, n_items, often=True)

    found = verdict(train_step=clips(often=True), promises=(Accumulates(4, micro_step=often),))
    assert (found.status, found.code) == ("violated", "accumulation-differs")
    assert "clip_grad_norm_" in found.cause
    assert found.location.text.endswith("# HERE")


def test_a_clipping_behind_the_last_micro_batch():
    def once(model, inputs, targets, micro_batches, n_items):
        sums(model, inputs, targets, n_items, often=False)

    found = verdict(train_step=clips(often=False), promises=(Accumulates(4, micro_step=once),))
    assert found.status == "passed"
