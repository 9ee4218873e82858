"""What a GPU's kernel can only assert, told from what is raised before anything is queued."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pytest_torchcheck.state import is_range_error


def _raised(call: Any) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # each in its own words
        call()
    return caught.value


ONE = torch.tensor([7])


ASSERTED = [
    lambda: F.embedding(ONE, torch.ones(3, 2)),
    lambda: F.cross_entropy(torch.ones(1, 3), ONE),
    lambda: torch.ones(3)[ONE],
    lambda: torch.ones(3).gather(0, ONE),
    lambda: torch.ones(3).index_select(0, ONE),
    lambda: torch.ones(3).scatter(0, ONE, 1.0),
    lambda: torch.take(torch.ones(3), ONE),
    lambda: F.one_hot(ONE, 3),
    lambda: torch.multinomial(torch.tensor([-1.0, 1.0]), 1),
    lambda: torch.bernoulli(torch.tensor([2.0])),
    lambda: F.binary_cross_entropy(torch.tensor([2.0]), torch.tensor([1.0])),
]


@pytest.mark.parametrize("number", range(len(ASSERTED)))
def test_values_out_of_range_are_what_a_kernel_can_only_assert(number: int) -> None:
    assert is_range_error(_raised(ASSERTED[number]))


OF_THE_HOST = [
    lambda: torch.ones(2, 3) @ torch.ones(2, 3),
    lambda: torch.ones(2).sum(5),
    lambda: torch.ones(2, dtype=torch.int) @ torch.ones(2),
    lambda: np.ones(3)[7],
    lambda: [][3],
    lambda: {}["GROUP"],
    lambda: torch.ones(2).view(3),
]


@pytest.mark.parametrize("number", range(len(OF_THE_HOST)))
def test_errors_of_the_host_lose_no_context(number: int) -> None:
    assert not is_range_error(_raised(OF_THE_HOST[number]))
