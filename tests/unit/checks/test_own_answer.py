"""A model that reads the value of a series that it is trained to predict is found; what may be meant to read it is not sure."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Finding, promises

PAST = 7
SERIES = torch.randn(6, 31, generator=torch.Generator().manual_seed(3)).cumsum(1)
FEATURES = torch.randn(6, 24, 3, generator=torch.Generator().manual_seed(4))


class Lags(nn.Module):
    """Predicts each value from some before it; lags begin ``late`` steps after their place."""

    def __init__(self, late: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        self.late, self.lags = late, (1, 2, PAST)
        self.head = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))

    def forward(self, series: Tensor) -> Tensor:
        steps = series.shape[1] - PAST
        starts = [PAST - lag + self.late for lag in self.lags]
        return self.head(torch.stack([series[:, s : s + steps] for s in starts], -1)).squeeze(-1)


class Filter(nn.Module):
    """A convolution over time, to the left only but for ``ahead`` steps."""

    def __init__(self, ahead: int = 0, features: int = 3) -> None:
        super().__init__()
        self.ahead = ahead
        self.conv = nn.Conv1d(features, 8, 3)
        self.head = nn.Conv1d(8, features, 1)

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x.mT, (2 - self.ahead, self.ahead))
        return self.head(self.conv(padded).tanh()).mT


class Both(nn.Module):
    """Reads a series in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.GRU(3, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.read(x)[0])


def judged(model: Any, inputs: Any, targets: Tensor, loss: Any = F.mse_loss) -> Finding:
    contract = Contract(model=model, batch=((inputs,), targets), loss=loss)
    (found,) = contract.check(["label-shift"]).findings
    return found


def test_lags_that_begin_one_step_late_hold_the_answer() -> None:
    for loss in (F.mse_loss, F.l1_loss):
        found = judged(lambda: Lags(1), SERIES, SERIES[:, PAST:].clone(), loss)
        assert (found.status, found.code) == ("violated", "label-shift"), str(found)
        assert "[t+7], and reads it" in found.summary
        assert found.location is not None
        assert "s : s + steps" in found.location.text


def test_lags_before_the_value_pass() -> None:
    assert judged(Lags, SERIES, SERIES[:, PAST:].clone()).status == "passed"


def test_where_the_loss_cuts_the_targets_the_answer_is_found_too() -> None:
    def loss(output: Tensor, series: Tensor) -> Tensor:
        return F.mse_loss(output, series[:, PAST:])

    assert judged(lambda: Lags(1), SERIES, SERIES.clone(), loss).status == "violated"
    assert judged(Lags, SERIES, SERIES.clone(), loss).status == "passed"


def test_noise_in_training_may_be_what_a_filter_is_to_remove() -> None:
    found = judged(lambda: Lags(1, 0.2), SERIES, SERIES[:, PAST:].clone())
    assert (found.status, found.code) == ("suspicious", "label-shift")


def test_the_next_value_is_not_to_be_read() -> None:
    inputs, targets = FEATURES[:, :-1].clone(), FEATURES[:, 1:].clone()
    assert judged(Filter, inputs, targets).status == "passed"
    assert judged(lambda: Filter(1), inputs, targets).status == "violated"


def test_a_whole_window_may_be_mapped_to_the_next_one() -> None:
    inputs, targets = FEATURES[:, :-1].clone(), FEATURES[:, 1:].clone()
    assert judged(Both, inputs, targets).status == "suspicious"


def test_what_stands_in_its_own_place_is_read() -> None:
    assert judged(lambda: Filter(0), FEATURES, FEATURES.clone()).status == "not-applicable"


class Crop(nn.Module):
    """A convolution without padding, over a series without features."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, size)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x[:, None]).squeeze(1)


def test_a_window_that_is_cut_at_both_ends_is_read() -> None:
    found = judged(lambda: Crop(5), SERIES, SERIES[:, 2:-2].clone())
    assert found.status == "not-applicable"


class Repeats(nn.Module):
    """Reads a whole source, and writes it again from its past values."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.past = nn.GRU(3, 8, batch_first=True), nn.GRU(3, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, source: Tensor, past: Tensor) -> Tensor:
        return self.head(self.past(past, self.source(source)[1])[0])


def test_a_source_that_has_the_answer_is_meant_to_be_read() -> None:
    past, targets = FEATURES[:, :-1].clone(), FEATURES[:, 1:].clone()
    contract = Contract(model=Repeats, batch=((FEATURES, past), targets), loss=F.mse_loss)
    (found,) = contract.check(["label-shift"]).findings
    assert found.status == "not-applicable"


def test_a_series_that_repeats_says_nothing() -> None:
    series = SERIES[:, :5].repeat(1, 6)
    found = judged(lambda: Lags(1), series, series[:, PAST:].clone())
    assert found.status == "not-applicable"


STATES = torch.randn(6, 9, 4, generator=torch.Generator().manual_seed(5))
ACTIONS = torch.randn(6, 9, 2, generator=torch.Generator().manual_seed(6))


class Policy(nn.Module):
    """Predicts actions from states and the actions before; ``now`` of the present one as well."""

    def __init__(self, now: bool, noise: float = 0.0) -> None:
        super().__init__()
        self.now = now
        self.read, self.head = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 2)
        self.noise = nn.Dropout(noise)

    def forward(self, states: Tensor, actions: Tensor) -> Tensor:
        past = actions if self.now else F.pad(actions, (0, 0, 1, -1))
        return self.head(self.noise(self.read(torch.cat([states, past], -1))[0]))


def of_policy(model: Any, *causal: str) -> Finding:
    contract = Contract(
        model=model, batch=({"states": STATES, "actions": ACTIONS}, ACTIONS.clone()), loss=F.mse_loss,
        promises=[promises.Causal(input=name) for name in causal],
    )  # fmt: skip
    return contract.check(["label-shift"]).findings[0]


def test_a_causal_model_that_is_given_its_answers_beside_what_it_reads_is_found() -> None:
    found = of_policy(lambda: Policy(True), "states")
    assert (found.status, found.code) == ("violated", "label-shift"), str(found)
    assert "trained to predict actions[t], and reads it" in found.summary
    assert found.culprits[0].name == "actions"


def test_a_causal_model_may_read_the_answers_before_or_reconstruct_what_it_reads() -> None:
    assert of_policy(lambda: Policy(False), "states").status == "passed"
    assert of_policy(lambda: Policy(True)).status == "not-applicable"  # may be an autoencoder
    assert of_policy(lambda: Policy(True), "actions").status == "not-applicable"
    assert of_policy(lambda: Policy(True, noise=0.3), "states").status == "suspicious"


class Interleaved(nn.Module):
    """Reads states and actions in turn, and predicts actions from the tokens of ``taken``: 0 of states, 1 of actions."""

    def __init__(self, taken: int, *, named: bool = False) -> None:
        super().__init__()
        self.taken, self.named = taken, named
        self.states, self.actions = nn.Linear(4, 8), nn.Linear(2, 8)
        self.read, self.head = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, states: Tensor, actions: Tensor) -> Tensor:
        tokens = torch.stack([self.states(states), self.actions(actions)], 2).flatten(1, 2)
        read = self.read(tokens)[0].unflatten(1, (-1, 2))
        if self.named:
            _, by_action = read.unbind(2)
            return self.head(by_action)
        return self.head(read[:, :, self.taken])  # HERE


def test_the_slice_that_knows_the_answer_is_named() -> None:
    found = of_policy(lambda: Interleaved(1), "states")
    assert (found.status, found.code) == ("violated", "label-shift"), str(found)
    assert found.location is not None
    assert found.location.text.endswith("# HERE")
    assert "[:, :, 1] on line" in found.cause
    assert "[:, :, 0] does not" in found.cause
    assert "actions" in {c.name for c in found.culprits}


def test_the_slice_before_the_answer_passes() -> None:
    assert of_policy(lambda: Interleaved(0), "states").status == "passed"


def test_without_a_slice_of_that_kind_no_line_is_blamed() -> None:
    assert "does not" not in of_policy(lambda: Policy(True), "states").cause
    assert of_policy(lambda: Interleaved(1, named=True), "states").status == "violated"
