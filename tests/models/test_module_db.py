"""Torch's own modules, each with the inputs that torch tests it with."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_torchcheck import Batch, Contract
from tests.models.population import Population, unused_is_true

pytest.importorskip("expecttest", reason="torch's internal test data needs it")
from torch.testing._internal.common_modules import module_db

POPULATION = Population("torch module_db")
pytestmark = pytest.mark.filterwarnings("ignore")  # what public packages warn of is theirs


@pytest.fixture(scope="module", autouse=True)
def _counts() -> Any:
    yield
    print(f"\n{POPULATION}")


@pytest.mark.parametrize(
    "info", module_db, ids=[info.name.replace("::", ".") for info in module_db]
)
def test_no_false_alarm(info: Any) -> None:
    torch.manual_seed(0)
    wrong = []
    samples = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
    )
    for number, sample in enumerate(samples[:4]):
        if sample.forward_input is None:
            continue
        build, call = sample.constructor_input, sample.forward_input

        def model(build: Any = build) -> torch.nn.Module:
            return info.module_cls(*build.args, **build.kwargs)

        contract = Contract(
            model=model,
            batch=Batch(args=tuple(call.args), kwargs=dict(call.kwargs), targets=None),
            batch_dim=None,
        )
        wrong += POPULATION.hold(f"{info.name}[{number}]", contract, truth=unused_is_true(contract))
    assert not wrong, "\n\n".join(str(f) for f in wrong)
