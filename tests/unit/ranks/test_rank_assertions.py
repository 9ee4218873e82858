"""The assertions over real processes: what holds passes, what does not is told, and nothing is changed."""

from __future__ import annotations

import pytest
import rank_bugs
import torch

from pytest_torchcheck import ContractViolation, assertions
from pytest_torchcheck.declared.limits import DeclarationError

BATCH = (torch.randn(8, 6, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3)


def test_equal_ranks_pass() -> None:
    assertions.assert_ddp_equivalent(rank_bugs.Net, BATCH, loss=rank_bugs.cross_entropy)


def test_a_sum_is_told() -> None:
    with pytest.raises(ContractViolation, match="summed is a sum over samples") as raised:
        assertions.assert_ddp_equivalent(rank_bugs.Net, BATCH, loss=rank_bugs.summed)
    assert [f.code for f in raised.value.findings] == ["loss-sum"]


def test_a_sharded_module_is_left_as_it_was() -> None:
    module = rank_bugs.TyingInModules()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    assertions.assert_fsdp_equivalent(module, BATCH, loss=rank_bugs.cross_entropy)
    assert type(module) is rank_bugs.TyingInModules
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_a_plan_that_splits_a_tie_is_told() -> None:
    with pytest.raises(ContractViolation, match="two after it"):
        assertions.assert_fsdp_equivalent(
            rank_bugs.TyingInModules, BATCH, wrap=rank_bugs.shards_head_too
        )


def test_synchronised_normalisation_on_a_cpu_is_no_verdict() -> None:
    contract = rank_bugs.made(rank_bugs.Synchronised)
    by_check = {f.check: f for f in contract.check(["ddp-equivalence", "synchronised-statistics"]).findings}  # fmt: skip
    assert by_check["ddp-equivalence"].status == "passed"
    assert by_check["synchronised-statistics"].status == "inconclusive"
    assert by_check["synchronised-statistics"].code == "needs-gpu"


@pytest.mark.parametrize(
    "assertion", [assertions.assert_ddp_equivalent, assertions.assert_fsdp_equivalent]
)
def test_one_rank_is_none(assertion) -> None:
    with pytest.raises(DeclarationError, match="from 2 to 16"):
        assertion(rank_bugs.Net, BATCH, ranks=1)
