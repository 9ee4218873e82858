"""A cause is named where a measurement shows it; where one shows that it cannot be, another is named, or none."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Labels, Tokens, promises


def reds(contract: Contract, *checks: str) -> list[Any]:
    """Return what a contract finds, inconclusive findings included."""
    return [f for f in contract.check(checks or None).findings if f.status != "passed"]


class Jitter(nn.Module):
    """Scales its result by a number that the operating system draws."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x) * (1.0 + secrets.randbelow(1_000_000) / 1_000_000)
        return made


class Steps(nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(6, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        made: Tensor = self.layer(x) * self.calls
        return made


def test_noise_that_no_seed_repeats_is_neither_state_nor_mixed_samples() -> None:
    contract = Contract(model=Jitter, inputs="B 6")
    checks = ("batch-independence", "eval-determinism", "eval-purity")
    found = {f.check: f for f in reds(contract, *checks)}
    assert found["batch-independence"].status == "inconclusive"
    assert found["eval-determinism"].status == "inconclusive"
    assert "outside of the model" in found["eval-purity"].cause
    (kept,) = reds(Contract(model=Steps, inputs="B 6"), "eval-purity")
    assert "keeps state" in kept.cause


class Merged(nn.Module):
    """Flattens what has its samples in dimension 1, into as many rows as there are samples."""

    def __init__(self, right: bool) -> None:
        super().__init__()
        self.right = right
        self.enter, self.leave = nn.Conv1d(2, 4, 1), nn.Linear(20, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.enter(x)).permute(1, 0, 2)
        h = h.permute(1, 0, 2) if self.right else h
        made: Tensor = self.leave(h.reshape(len(x), -1))
        return made


def test_the_view_that_merges_samples_is_blamed_and_not_the_layer_after_it() -> None:
    def run(right: bool) -> list[Any]:
        batch = ((torch.randn(4, 2, 5),), None)
        return reds(Contract(model=lambda: Merged(right), batch=batch), "batch-independence")

    (found,) = run(False)
    assert "Tensor.reshape reads [4, 4, 5] as [4, 20]" in found.cause
    assert found.fix.startswith("use .transpose(0, 1).reshape(len(x), -1) instead of this reshape")
    assert not run(True)


def test_a_step_that_raises_shows_nothing_of_weights_that_begin_without_influence() -> None:
    class Carry(nn.Module):
        def __init__(self, cut: bool) -> None:
            super().__init__()
            self.cut = cut
            self.rnn, self.out = nn.RNNCell(4, 6, bias=False), nn.Linear(6, 2)
            self.kept = torch.zeros(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            self.kept = self.rnn(x, self.kept.detach() if self.cut else self.kept)
            made: Tensor = self.out(self.kept)
            return made

    batch = ((torch.randn(6, 4),), torch.arange(6) % 2)
    for cut in (True, False):
        contract = Contract(model=lambda cut=cut: Carry(cut), batch=batch, loss=F.cross_entropy)
        assert not [f for f in reds(contract, "weights-update") if f.code == "weight-static"]


@pytest.mark.parametrize("order", ["draw", "flip", "view"])
def test_a_reshape_is_a_cause_only_where_there_is_one(order: str) -> None:
    def loss(o: Tensor, y: Tensor) -> Tensor:
        if order == "view":
            return F.cross_entropy(o.reshape(-1, 3), y.reshape(-1))
        index = torch.randperm(len(y)) if order == "draw" else torch.arange(len(y)).flip(0)
        return F.cross_entropy(o, y[index])

    batch = ((torch.randn(5, 2, 4, 4),), torch.randint(0, 3, (5, 4, 4)))
    contract = Contract(model=lambda: nn.Conv2d(2, 3, 1), batch=batch, loss=loss)
    found = [f for f in reds(contract, "target-alignment") if f.code == "target-misplaced"]
    assert found
    assert ("by a reshape" in found[0].cause) is (order == "view")


def test_columns_that_are_classes_have_no_partners() -> None:
    def last(o: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(o, y[-1:].repeat(len(y)))

    batch = ((torch.randn(5, 6),), torch.tensor([0, 1, 2, 3, 4]))
    contract = Contract(model=lambda: nn.Linear(6, 5), batch=batch, loss=last)
    (found,) = reds(contract, "in-batch-pairs")
    assert found.code == "pairs-mixed"
    assert "ranks" not in found.summary
    assert "torch.arange" not in found.fix


def test_a_step_that_puts_weights_back_is_not_told_to_order_its_calls() -> None:
    def restoring(model: nn.Module, optimizer: Any, inputs: Any, targets: Tensor) -> Tensor:
        kept = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), kept, strict=True):
                parameter.copy_(value)
        return loss.detach()

    def idle(model: nn.Module, optimizer: Any, inputs: Any, targets: Tensor) -> Tensor:
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
        return loss.detach()

    def run(step: Any) -> Any:
        (found,) = reds(
            Contract(
                model=lambda: nn.Linear(6, 3),
                batch=((torch.randn(6, 6),), torch.arange(6) % 3),
                loss=F.cross_entropy,
                train_step=step,
                optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
            ),
            "weights-update",
        )
        return found

    assert "parameter.copy_(value)" in run(restoring).location.text
    assert "puts it back" in run(restoring).cause
    assert run(idle).fix == "order the calls as zero_grad, forward, backward, step"


def test_nan_in_the_data_is_the_cause_of_nan() -> None:
    def loss(o: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(o, y).nan_to_num(0.5)

    x = torch.randn(6, 5)
    x[2, 3] = float("nan")
    contract = Contract(model=lambda: nn.Linear(5, 2), batch=((x,), torch.randn(6, 2)), loss=loss)
    (found,) = reds(contract, "gradients-finite")
    assert "what the run is given holds NaN" in found.cause
    assert "mend the data" in found.fix


class Towers(nn.Module):
    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.dim = dim
        self.left, self.right = nn.Linear(6, 5), nn.Linear(6, 5)
        self.top = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat((self.left(x), self.right(x)), self.dim)
        made: Tensor = self.top(torch.relu(both))
        return made


def test_tensors_joined_along_the_batch_are_the_cause_of_missing_features() -> None:
    (found, *_) = reds(Contract(model=lambda: Towers(0, 10), inputs="B 6"), "backward")
    assert "torch.cat((self.left(x)" in found.location.text
    assert "5 + 5 = 10" in found.because
    (other, *_) = reds(Contract(model=lambda: Towers(1, 12), inputs="B 6"), "backward")
    assert "in_features" in other.fix or "write width=10" in other.fix
    assert not reds(Contract(model=lambda: Towers(1, 10), inputs="B 6"), "backward")


class Halves(nn.Module):
    """Halves a signal and doubles it, and adds it to itself; or adds what has one entry more."""

    def __init__(self, token: bool) -> None:
        super().__init__()
        self.token = token
        self.layer = nn.Conv1d(4, 4, 1)

    def forward(self, wave: Tensor) -> Tensor:
        h = self.layer(wave)
        if self.token:
            return torch.cat([h[..., :1], h], -1) + wave
        return F.avg_pool1d(h, 2, ceil_mode=True).repeat_interleave(2, -1) + wave


@pytest.mark.parametrize("token", [True, False])
def test_one_entry_more_is_a_token_only_where_it_is_at_every_size(token: bool) -> None:
    contract = Contract(model=lambda: Halves(token), inputs="B 4 T", sizes={"T": (7, 7)})
    (found, *_) = reds(contract, "backward")
    assert ("class or start token" in found.cause) is token
    assert ("declare T=" in found.fix) is not token


class Named(nn.Module):
    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong = wrong
        self.emb, self.out = nn.Embedding(9, 6), nn.Linear(6, 4)

    def forward(self, glyphs: Tensor) -> Tensor:
        h = self.emb(glyphs)
        made: Tensor = self.out(h.flip(1) if self.wrong == "future" else h)
        if self.wrong == "write":
            glyphs.zero_()
        return made


def test_inputs_have_the_names_of_forward() -> None:
    def run(wrong: str, check: str) -> list[Any]:
        contract = Contract(
            model=lambda: Named(wrong),
            inputs=Tokens("B S", vocab=9),
            targets=Labels("B S", classes=4),
            sizes={"S": (4, 7)},
            loss=lambda o, y: F.cross_entropy(o.mT, y),
            promises=(promises.Causal(),),
        )
        return reds(contract, check)

    assert "depends on glyphs after it" in run("future", "causality")[0].summary
    assert "changes its input glyphs" in run("write", "inputs-unchanged")[0].summary
    assert not run("", "causality")


def test_a_layer_made_in_forward_is_random_in_evaluation_for_that_reason() -> None:
    class Passing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            last = nn.Linear(4, 2)
            made: Tensor = last(torch.relu(self.first(x)))
            return made

    contract = Contract(model=Passing, inputs="B 6", targets="B 2", loss=F.mse_loss)
    found = {f.code: f for f in reds(contract, "registration", "eval-determinism")}
    assert found["random-in-eval"].root == "registration/module-made-in-forward"


class Framed(nn.Module):
    """Reads its frames with a number of them that is written in."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 5)

    def forward(self, frames: Tensor) -> Tensor:
        made: Tensor = self.layer(frames).reshape(-1, 7, 5).amax(1)
        return made


def test_a_number_in_a_view_is_named_where_the_tensor_has_another_size() -> None:
    (found, *_) = reds(Contract(model=Framed, inputs="B T 4", sizes={"T": (3, 6)}), "batch-sizes")
    assert found.cause.startswith("7 is written in for dimension 1 of the reshape")
    assert found.fix.startswith("write frames.shape[1] instead of 7 on line")
    assert not reds(Contract(model=Framed, inputs="B T 4", sizes={"T": (7, 7)}), "batch-sizes")
