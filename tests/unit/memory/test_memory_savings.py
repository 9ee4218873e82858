from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from memory_zoo import MLP, ZOO, Transformer
from torch import nn

from pytest_torchcheck import Contract, ContractViolation, DeclarationError, Labels, Tokens
from pytest_torchcheck.measure import (
    OutOfMemory,
    Unmeasurable,
    assert_fits,
    assert_saves,
    largest_batch,
    measure_memory,
)
from pytest_torchcheck.measure.budget import is_out_of_memory, run_within


def language_model(depth: int = 1, **options) -> Contract:
    return Contract(
        model=lambda: Transformer(depth=depth, fused=False, **options),
        inputs=Tokens("B T", vocab=100),
        targets=Labels("B T", classes=100),
        sizes={"B": (1, 16), "T": (8, 256)},
        loss=lambda output, targets: F.cross_entropy(output, targets.flatten()),
    )


def test_checkpointing_saves_activations_and_gives_the_same():
    saving = assert_saves(
        language_model(depth=2),
        language_model(depth=2, checkpointed=True),
        at_least="30%",
        what="activations",
        at={"T": 64},
    )
    assert saving.share > 0.3
    assert saving.difference == 0.0
    assert saving.after_bytes == saving.after.category_peaks["activations"]


def test_a_saving_that_is_not_made_fails_with_figures_and_line():
    with pytest.raises(ContractViolation, match=r"saves 0\.0% of the peak of .*, not 10%") as error:
        assert_saves(language_model(), language_model(), at_least="10%")
    finding = error.value.findings[0]
    assert (finding.check, finding.code) == ("savings", "savings-missing")
    assert finding.location.text
    assert finding.evidence["before_bytes"] == finding.evidence["after_bytes"]


def test_a_saving_that_changes_the_result_is_none():
    model, x = MLP(width=32, depth=6), torch.randn(64, 32)

    def exact():
        return model(x)

    def cheaper():
        with torch.no_grad():
            return model(x) + 1e-3

    with pytest.raises(
        ContractViolation, match="cheaper gives a different result from exact: result"
    ) as error:
        assert_saves(exact, cheaper, at_least="10%")
    assert error.value.findings[0].code == "savings-differ"
    assert assert_saves(exact, cheaper, at_least="10%", tolerance=0.1).difference > 1e-4


def test_validation_without_gradients_saves():
    model, x = MLP(width=64, depth=6), torch.randn(512, 64)

    def validate():
        return model(x)

    def quietly():
        with torch.no_grad():
            return model(x)

    saving = assert_saves(validate, quietly, at_least=0.4)
    assert saving.difference == 0.0


def test_accumulation_saves_activations_and_gives_the_same_gradients():
    model = MLP(width=64, depth=4)
    x, y = torch.randn(256, 64), torch.randint(0, 10, (256,))

    def gradients(parts: int):
        model.zero_grad()
        for a, b in zip(x.chunk(parts), y.chunk(parts), strict=True):
            (F.cross_entropy(model(a), b) / parts).backward()
        return [p.grad.clone() for p in model.parameters()]

    saving = assert_saves(
        lambda: gradients(1), lambda: gradients(4), at_least="50%", what="activations"
    )
    assert 0 < saving.difference < 1e-5


def test_gradients_that_are_dropped_save_over_zeroed_ones():
    model = nn.Linear(256, 256)
    x = torch.randn(4, 256)

    def step(drop: bool):
        model.zero_grad(set_to_none=drop)
        return model(x).relu()

    model(x).sum().backward()
    saving = assert_saves(lambda: step(False), lambda: step(True), at_least=0.0, what="total")
    assert saving.share >= 0


def test_half_precision_saves_within_a_wider_tolerance():
    entry = ZOO["mlp"]
    torch.manual_seed(0)
    batch = entry.batch()

    def contract(half: bool) -> Contract:
        return Contract(
            model=lambda: MLP().bfloat16() if half else MLP(),
            batch=((batch[0][0].bfloat16() if half else batch[0][0],), batch[1]),
            loss=entry.loss,
        )

    saving = assert_saves(contract(False), contract(True), at_least="40%", tolerance=0.5)
    assert saving.share == pytest.approx(0.5, abs=0.1)


def test_results_that_cannot_be_compared_are_no_pass():
    with pytest.raises(ContractViolation, match="return nothing that could be compared") as error:
        assert_saves(lambda: None, lambda: None, at_least=0.0)
    assert error.value.findings[0].code == "savings-vacuous"


def test_the_arguments_of_a_saving_are_checked():
    with pytest.raises(TypeError, match="both be contracts, or both be functions"):
        assert_saves(language_model(), lambda: None, at_least=0.1)
    with pytest.raises(ValueError, match="what must be one of total, forward"):
        assert_saves(lambda: None, lambda: None, at_least=0.1, what="everything")
    with pytest.raises(ValueError, match="at_least must"):
        assert_saves(lambda: None, lambda: None, at_least="much")


def test_the_largest_batch_is_measured_with_its_neighbour():
    contract = language_model()
    found = largest_batch(contract, "32 MiB", at={"T": 128})
    assert found.symbol == "B"
    assert found.profile.peak_bytes <= 32 * 2**20 < found.next_bytes
    assert (
        found.profile.peak_bytes
        == measure_memory(contract, at={"T": 128, "B": found.size}).peak_bytes
    )
    assert len(found.tried) <= 6


def test_no_batch_fits_a_tiny_budget():
    found = largest_batch(language_model(), "100 KiB", at={"T": 16})
    assert found.size == 0
    assert found.next_bytes == found.profile.peak_bytes > 100 * 1024


def test_a_budget_far_above_is_searched_in_few_runs():
    contract = Contract(model=lambda: nn.Linear(64, 64), inputs="B 64")
    found = largest_batch(contract, "1 GiB")
    assert found.profile.peak_bytes <= 2**30 < found.next_bytes
    assert len(found.tried) < 15
    assert found.size == pytest.approx(
        2**30 / (2 * 256), rel=0.01
    )  # a row of input and one of output


def test_other_symbols_can_be_searched_and_unknown_ones_are_named():
    contract = language_model()
    found = largest_batch(contract, "1 MiB", symbol="T", at={"B": 1})
    assert found.symbol == "T"
    with pytest.raises(DeclarationError, match="there is no symbol 'X'; symbols are: B, T"):
        largest_batch(contract, "1 GiB", symbol="X")
    entry = ZOO["moe"]
    routed = Contract(model=entry.build, batch=entry.batch(), loss=entry.loss)
    with pytest.raises(Unmeasurable):
        largest_batch(routed, "1 GiB")


def test_a_simulated_out_of_memory_says_when_and_what_was_live():
    found = run_within(language_model(), "6 MiB", at={"B": 8, "T": 128})
    assert isinstance(found, OutOfMemory)
    assert found.phase == "forward"
    assert found.live_bytes > 6 * 2**20 == found.budget_bytes
    assert len(found.largest) == 10
    assert all(h.location is not None for h in found.largest)
    assert found.location.text
    assert found.op.startswith("aten.")
    assert sum(found.profile.by_category.values()) == found.live_bytes
    assert run_within(language_model(), "1 GiB", at={"B": 8}).peak_bytes < 2**30


def test_a_step_that_does_not_fit_a_device_is_explained():
    contract = language_model()
    assert assert_fits(contract, "1 GiB").peak_bytes < 2**30
    with pytest.raises(ContractViolation, match=r"runs out of memory in the \w+ phase") as error:
        assert_fits(contract, "8 MiB", at={"B": 16, "T": 128})
    finding = error.value.findings[0]
    assert finding.code == "out-of-memory"
    assert "B=" in finding.fix
    assert "would fit" in finding.fix
    assert len(finding.evidence["largest_tensors"]) == 10


def test_out_of_memory_errors_are_recognised():
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    refused = RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"
    )
    assert is_out_of_memory(refused)
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
