"""Warnings of a model's training come out once; those of probing do not come out."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

X, Y = torch.ones(4, 5), torch.zeros(4)


class Talks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        warnings.warn("my own words", UserWarning, stacklevel=1)
        if x.dtype == torch.float64:
            warnings.warn("nobody else calls it in float64", UserWarning, stacklevel=1)
        return self.head(x)


def step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = F.smooth_l1_loss(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    return loss


@pytest.mark.parametrize(
    "own",
    [
        {"loss": F.smooth_l1_loss},
        {"train_step": step, "optimizer": lambda m: torch.optim.SGD(m.parameters(), lr=0.1)},
    ],
    ids=["plain", "own step"],
)
def test_each_comes_out_once(own: Any) -> None:
    made = Contract(model=Talks, batch=((X,), Y), **own)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made.check(["backward", "weights-update", "dtype-conversion", "gradients-exist"])
    texts = [str(one.message) for one in caught]
    assert texts.count("my own words") == 1
    assert sum("target size" in text for text in texts) == 1
    assert len(texts) == 2
    assert all(one.filename == __file__ for one in caught if "my own" in str(one.message))


class Rings(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        warnings.warn("title \x1b]0;mine\x07 and \u202e back", UserWarning, stacklevel=1)
        return super().forward(x)


def test_what_a_terminal_acts_on_is_escaped() -> None:
    with pytest.warns(UserWarning, match="title") as caught:
        Contract(model=lambda: Rings(5, 1), batch=((X,), None)).check(["backward"])
    assert all(text.isprintable() for text in (str(one.message) for one in caught))


class Reports(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        warnings.warn("while building", UserWarning, stacklevel=1)
        self.head = nn.Linear(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mode = "training" if self.training else "evaluation"
        warnings.warn(f"in {mode} mode", UserWarning, stacklevel=1)
        return self.head(x)


def talking_loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    warnings.warn("in the loss", UserWarning, stacklevel=1)
    return F.mse_loss(output[:, 0], targets)


def talking_batch(seed: int) -> Any:
    warnings.warn("in the batch", UserWarning, stacklevel=1)
    return (torch.randn(4, 5),), torch.randn(4)


@pytest.mark.parametrize(
    ("check", "heard"),
    [
        ("batch-independence", {"while building", "in evaluation mode"}),
        ("loss-sound", {"while building", "in training mode", "in the loss"}),
        (
            None,
            {"while building", "in evaluation mode", "in training mode", "in the loss"},
        ),
    ],
)
def test_outside_of_training_steps(check: str | None, heard: set[str]) -> None:
    made = Contract(model=Reports, batch=talking_batch, loss=talking_loss)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made.check(None if check is None else [check])
    texts = sorted(str(one.message) for one in caught)
    assert texts == sorted(heard | {"in the batch"})


def test_a_filter_that_raises_acts() -> None:
    made = Contract(model=Talks, batch=((X,), Y[:, None]), loss=F.mse_loss)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="my own words"):
            made.check("backward")


def test_pytest_shows_it_once_and_fails_where_it_is_an_error(
    pytester: pytest.Pytester, models: Any
) -> None:
    models(
        """
        import warnings

        class Talks(Net):
            def forward(self, x):
                warnings.warn("my own words")
                return super().forward(x)

        @contract(**FIELDS)
        def net():
            return Talks()
        """
    )
    arguments = ("--torchcheck", "--torchcheck-checks=backward,weights-update,gradients-exist")
    result = pytester.runpytest_inprocess(*arguments, "-Walways")
    result.assert_outcomes(passed=3, warnings=1)
    result.stdout.fnmatch_lines(["*UserWarning: my own words*"])
    result = pytester.runpytest_inprocess(*arguments, "-Werror::UserWarning")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["UserWarning: my own words", "training the model warns of it*"])
