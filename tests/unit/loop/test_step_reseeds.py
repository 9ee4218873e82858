"""A step that seeds a generator of the process for something else, and what it may do instead."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

if TYPE_CHECKING:
    from pytest_torchcheck.findings import Finding

Change = Callable[[Any], None]
X, Y = torch.linspace(-1, 1, 24).view(8, 3), torch.linspace(1, -1, 16).view(8, 2)


def nothing(model: Any) -> None:
    """An evaluation that does nothing."""


def findings(
    after: Change = nothing, *, before: Change = nothing, dropout: bool = True, noise: Any = None
) -> list[Finding]:
    """Run something before and after the update of a noisy step, and return what is found."""

    def train_step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
        before(model)
        optimizer.zero_grad()
        (x,) = inputs
        if noise is not None:
            x = x + noise()
        loss = F.mse_loss(model(x), targets)
        loss.backward()
        optimizer.step()
        after(model)
        return loss.detach()

    contract = Contract(
        model=nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5 if dropout else 0.0)),
        batch=((X,), Y),
        loss=F.mse_loss,
        train_step=train_step,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    )
    found = contract.check(["evaluation-leaves-trace"]).findings
    return [one for one in found if one.status in ("violated", "suspicious")]


@torch.no_grad()
def seeded_preview(model: Any) -> None:
    torch.manual_seed(7)  # HERE
    model(torch.randn(2, 3))


def set_seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def with_a_helper(model: Any) -> None:
    set_seed(3)  # CALL
    with torch.no_grad():
        model(torch.randn(2, 3))


def test_a_preview_seeds_what_dropout_draws_from() -> None:
    (found,) = findings(seeded_preview)
    assert (found.code, found.status) == ("step-reseeds", "violated")
    assert found.location is not None
    assert found.location.text.endswith("# HERE")
    assert found.cause.startswith("seeded_preview seeds")


def test_it_may_come_before_the_forward_that_trains() -> None:
    assert [one.status for one in findings(before=seeded_preview)] == ["violated"]


def test_every_second_step_is_enough() -> None:
    calls = [0]

    def now_and_then(model: Any) -> None:
        calls[0] += 1
        if calls[0] % 2 == 0:
            seeded_preview(model)

    assert [one.code for one in findings(now_and_then)] == ["step-reseeds"]


def test_a_helper_is_named_with_its_caller() -> None:
    (found,) = findings(with_a_helper)
    assert found.location is not None
    assert found.location.text == "torch.manual_seed(seed)"
    assert any(
        c.location is not None and c.location.text.endswith("# CALL") for c in found.culprits
    )


def test_numpy_noise() -> None:
    (found,) = findings(
        lambda model: np.random.seed(0),
        dropout=False,
        noise=lambda: torch.tensor(np.random.randn(8, 3), dtype=torch.float32),
    )
    assert "np.random" in found.summary
    assert "default_rng" in found.fix


def test_a_step_that_pins_its_own_seed_may_mean_it() -> None:
    (found,) = findings(before=lambda model: torch.manual_seed(0) and None)
    assert found.status == "suspicious"


def forked(model: Any) -> None:
    with torch.random.fork_rng():
        seeded_preview(model)


def put_back(model: Any) -> None:
    state = torch.get_rng_state()
    seeded_preview(model)
    torch.set_rng_state(state)


def own_generator(model: Any) -> None:
    with torch.no_grad():
        model(torch.randn(2, 3, generator=torch.Generator().manual_seed(0)))


def drawn_seed(model: Any) -> None:
    torch.manual_seed(int(torch.randint(2**31, ())))


def random_again(model: Any) -> None:
    seeded_preview(model)
    torch.seed()


@pytest.mark.parametrize("after", [forked, put_back, own_generator, drawn_seed, random_again])
def test_evaluations_that_leave_the_generators_alone(after: Change) -> None:
    assert findings(after) == []


def test_a_seed_of_the_step_s_number() -> None:
    count = [0]

    def numbered(model: Any) -> None:
        count[0] += 1
        torch.manual_seed(100 + count[0])

    assert findings(before=numbered) == []


def test_a_seed_that_training_does_not_draw_from() -> None:
    assert findings(seeded_preview, dropout=False) == []


def test_a_seed_made_from_the_batch() -> None:
    def train_step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
        optimizer.zero_grad()
        with torch.no_grad():
            torch.manual_seed(hash(inputs[0].numpy().tobytes()) % 2**31)
            x = inputs[0] + torch.randn(8, 3)
        loss = F.mse_loss(model(x), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    contract = Contract(
        model=nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)),
        batch=((X,), Y),
        loss=F.mse_loss,
        train_step=train_step,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    )
    found = contract.check(["evaluation-leaves-trace"]).findings
    assert [one.status for one in found] == ["passed"]
