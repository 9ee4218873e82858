"""Traps that make a test pass without testing: each in plain torch code, and what becomes of it here.

Every trap was seen in the test suite of a well-known project. A test of this file first shows that the
trap passes on something broken, then that the same thing is caught here, or cannot be written.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

from pytest_torchcheck import Contract, ContractViolation, Labels, assert_contract, promises
from pytest_torchcheck.catalogue import catalogue
from pytest_torchcheck.ranks import launch
from pytest_torchcheck.verdicts import passed
from tests.gallery import gallery

if TYPE_CHECKING:
    from pathlib import Path


def verdict(contract: Contract, check: str) -> tuple[str, str]:
    """Return status and code of a check, the worst one where there are several."""
    order = ("violated", "suspicious", "inconclusive", "not-applicable", "passed")
    found = contract.check([check]).findings
    worst = min(found, key=lambda finding: order.index(finding.status))
    return worst.status, worst.code


def linear(**fields: Any) -> Contract:
    declared = {
        "model": lambda: nn.Linear(8, 4), "inputs": "B 8", "sizes": {"B": (2, 8)},
        "targets": Labels("B", classes=4), "loss": F.cross_entropy, **fields,
    }  # fmt: skip
    return Contract(**declared)


def test_trap_1_an_assertion_that_cannot_fail() -> None:
    """``shape == expected or fallback`` is true whatever the shape: the fallback is a non-empty tuple."""
    output, expected, fallback = nn.Linear(8, 4)(torch.randn(3, 8)), (3, 5), (3, 5)
    assert output.shape == expected or fallback  # passes, and the shape is wrong
    assert verdict(linear(output="B 5"), "output-spec") == ("violated", "output-shape")
    assert verdict(linear(output="B 4"), "output-spec")[0] == "passed"


class ReturnsFirst(promises.Promise):
    """A promise whose check returns before it has looked."""

    def verify(self, subject: Any) -> Any:
        skip_assert = True
        if skip_assert:
            return
        yield passed("never reached")


def test_trap_2_a_return_before_the_assertion() -> None:
    contract = linear(promises=(ReturnsFirst(),))
    assert verdict(contract, "own-promises") == ("inconclusive", "no-verdict")
    assert contract.check(["own-promises"], strict=True).ok is False


def test_trap_2_a_check_that_yields_nothing_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    known = catalogue()["mode-flags"]
    for module in ("selection", "contracts"):
        monkeypatch.setattr(
            f"pytest_torchcheck.runner.{module}.catalogue", lambda: {"mode-flags": Silent(known)}
        )
    (finding,) = linear().check(["mode-flags"]).findings
    assert (finding.status, finding.code) == ("error", "internal-error")


class Silent:
    """A check like another one that looks at nothing."""

    def __init__(self, other: Any) -> None:
        self._other = other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other, name)

    def run(self, subject: Any) -> Any:
        return iter(())


class NaNAtRandom(nn.Module):
    """Right wherever it is finite; each call loses other rows."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lost = torch.rand(len(x), 1, device=x.device) < 0.5
        return torch.where(lost, torch.nan, self.head(x))


def test_trap_3_not_a_number_filtered_before_the_comparison() -> None:
    model, x = NaNAtRandom().eval(), torch.randn(16, 8)
    first, second = model(x), model(x)
    both = first.isfinite() & second.isfinite()
    torch.testing.assert_close(first[both], second[both])  # passes, and half of the rows are NaN
    contract = linear(model=NaNAtRandom, sizes={"B": 16})
    assert verdict(contract, "eval-determinism") == ("suspicious", "random-in-eval")
    assert verdict(contract, "gradients-finite")[0] == "violated"


class Normalised(nn.Module):
    def __init__(self, dead: bool = False) -> None:
        super().__init__()
        self.body, self.dead = nn.Linear(8, 6), dead
        self.norm = nn.LayerNorm(6, elementwise_affine=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x)
        return self.norm(h.detach() + 0 * h if self.dead else h)


def test_trap_4_a_loss_whose_gradient_is_always_zero() -> None:
    """Of the mean behind a normalisation, the sound model's gradient is zero like that of the dead one."""
    torch.manual_seed(0)
    for dead in (False, True):
        model = Normalised(dead)
        model(torch.randn(4, 8)).mean().backward()
        assert model.body.weight.grad is not None
        assert model.body.weight.grad.abs().max() < 1e-6
    fields: dict[str, Any] = {"inputs": "B 8", "sizes": {"B": (4, 8)}}
    sound = Contract(model=Normalised, **fields)
    assert verdict(sound, "gradients-exist")[0] == "passed"
    assert sound.check(["gradients-exist"]).findings[0].evidence["norm"] > 0.1
    assert verdict(Contract(model=lambda: Normalised(True), **fields), "gradients-exist") == (
        "violated", "grad-zero",
    )  # fmt: skip


class OneOutput(nn.Module):
    """Writes every result into the same tensor and returns that."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.head, self.noise = nn.Linear(8, 4), noise
        self.register_buffer("out", torch.zeros(5, 4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() or len(x) != 5:
            return self.head(x)
        self.out.copy_(self.head(x) + self.noise * torch.randn(len(x), 4))
        out: torch.Tensor = self.out
        return out


def test_trap_5_test_and_reference_share_their_storage() -> None:
    """The second run overwrites the first one, and equals it: randomness cannot be seen."""
    model, x = OneOutput(1.0).eval(), torch.randn(5, 8)
    with torch.no_grad():
        first, second = model(x), model(x)
    assert torch.equal(first, second)  # passes, and the output is random
    fields: dict[str, Any] = {"inputs": "B 8", "sizes": {"B": 5}}
    assert verdict(Contract(model=lambda: OneOutput(1.0), **fields), "eval-determinism") == (
        "suspicious", "random-in-eval",
    )  # fmt: skip
    assert (
        verdict(Contract(model=lambda: OneOutput(0.0), **fields), "eval-determinism")[0] == "passed"
    )


class OneAttribute(OneOutput):
    """As above, with a tensor that no list of buffers knows."""

    def __init__(self, noise: float) -> None:
        super().__init__(noise)
        del self.out
        self.out = torch.zeros(5, 4)


def test_trap_5_neither_by_an_attribute() -> None:
    fields: dict[str, Any] = {"inputs": "B 8", "sizes": {"B": 5}}
    contract = Contract(model=lambda: OneAttribute(1.0), **fields)
    assert verdict(contract, "eval-determinism") == ("suspicious", "random-in-eval")
    contract = Contract(model=lambda: OneAttribute(0.0), **fields)
    assert verdict(contract, "eval-determinism")[0] == "passed"


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, list[torch.Tensor]]]:
        h = self.head(x)
        return h, {"extra": [h, h + torch.randn_like(h)]}


def test_trap_6_the_wrong_thing_is_compared() -> None:
    """The branch for tuples looks at the first of them alone."""
    model, x = Two().eval(), torch.randn(5, 8)
    first, second = model(x), model(x)
    if isinstance(first, tuple):
        first, second = first[0], second[0]
    torch.testing.assert_close(first, second)  # passes, and the third tensor is random
    contract = Contract(model=Two, inputs="B 8", sizes={"B": (2, 6)})
    (finding,) = contract.check(["eval-determinism"]).findings
    assert finding.code == "random-in-eval"
    assert "extra" in str(finding)


class Recomputed(nn.Module):
    """Checkpoints a block whose parameters then get no gradient: no input asks for one."""

    def __init__(self, on: bool = True) -> None:
        super().__init__()
        self.first, self.last, self.on = nn.Linear(8, 8), nn.Linear(8, 4), on

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        block = lambda t: torch.tanh(self.first(t))  # noqa: E731
        h = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=True) if self.on else block(x)
        return self.last(h)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_trap_7_parameters_without_a_gradient_are_passed_over() -> None:
    plain, recomputed = Recomputed(on=False), Recomputed()
    recomputed.load_state_dict(plain.state_dict())
    x, compared = torch.randn(3, 8), 0
    for model in (plain, recomputed):
        F.mse_loss(model(x), torch.ones(3, 4)).backward()
    for mine, theirs in zip(plain.parameters(), recomputed.parameters(), strict=True):
        if theirs.grad is None:
            continue
        torch.testing.assert_close(mine.grad, theirs.grad)
        compared += 1
    assert compared == 2  # passes, and two of four parameters do not learn
    assert verdict(linear(model=Recomputed), "gradients-exist") == ("violated", "grad-none")
    assert verdict(linear(model=Recomputed), "checkpointing")[0] == "violated"


class OneRow(nn.Module):
    """Of all samples the last one alone depends on another."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.head(x)
        return torch.cat([h[:-1], h[-1:] + 0.1 * h[:1]])


def test_trap_8_four_rows_of_five_are_enough() -> None:
    model, x = OneRow().eval(), torch.randn(8, 8)
    alone = torch.cat([model(torch.stack([row, row]))[:1] for row in x])
    equal = [torch.allclose(a, b, atol=1e-6) for a, b in zip(model(x), alone, strict=True)]
    assert sum(equal) / len(equal) >= 0.8  # passes, and one sample is wrong
    contract = linear(model=OneRow, sizes={"B": (2, 8)})
    assert verdict(contract, "batch-independence")[0] == "violated"
    assert verdict(linear(sizes={"B": (2, 8)}), "batch-independence")[0] == "passed"


def test_trap_9_a_process_whose_body_never_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that does nothing ends with success, as one does that has checked everything."""
    boot = "import sys"
    assert subprocess.run([sys.executable, "-c", boot], check=False).returncode == 0
    monkeypatch.setattr(launch, "_BOOT", boot)
    contract = linear(ranks=2)
    for check in ("ddp-equivalence", "rank-consistency"):
        assert verdict(contract, check)[0] in ("violated", "inconclusive"), check


SUITE = """
    import torch
    from pytest_torchcheck import contract

    @contract(inputs="B 4", sizes={"B": (2, 4)})
    def layer():
        return torch.nn.Linear(4, 3)
"""


def test_trap_10_and_11_nothing_collected_is_no_success_and_what_is_left_out_is_counted(
    tmp_path: Path,
) -> None:
    """A name that selects nothing ends with 5, and stays 5; what a name leaves out is told."""
    file = tmp_path / "test_layer.py"
    file.write_text(textwrap.dedent(SUITE))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--torchcheck",
        "-q",
        str(file),
        "-k",
    ]

    def run(name: str) -> tuple[int, str]:
        done = subprocess.run(
            [*command, name], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        return done.returncode, done.stdout

    code, text = run("no_such_check")
    assert code == 5, text
    code, text = run("gradients_exist or gradients-exist")
    assert code == 0, text
    assert "1 passed" in text
    assert "deselected" in text


def test_trap_11_a_check_left_out_by_declaration_is_run_and_counted() -> None:
    """A skip is no filter: it is shown while it is needed, and fails once it is not."""
    contract = linear(skip={"gradients-exist": "flaky on some machine"})
    assert verdict(contract, "gradients-exist") == ("violated", "skip-stale")
    cut = linear(model=lambda: Detached(), skip={"gradients-exist": "the encoder is meant to stay"})
    (finding,) = cut.check(["gradients-exist"]).findings
    assert finding.status != "passed"
    assert "the encoder is meant to stay" in str(finding)
    everything = linear().check(devices=["cpu"])
    assert sum(everything.counts().values()) == len(everything.findings)
    assert {f.check for f in everything.findings} >= {
        name
        for name, check in catalogue().items()
        if check.missing(linear()) is None and (not check.devices or "cpu" in check.devices)
    }


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x).detach())


class Settings(nn.LayerNorm):
    """Notes with which settings it was called."""

    seen: set[tuple[float, tuple[int, ...]]] = set()  # noqa: RUF012

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add((self.eps, tuple(self.normalized_shape)))
        return super().forward(x)


def test_trap_12_the_model_is_changed_to_make_the_test_stable() -> None:
    """With ``eps = 1`` a norm hides that its input vanishes; every check runs the model as it is."""
    norm = nn.LayerNorm(6, eps=1e-5)
    tiny = 1e-4 * torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    change = norm(tiny) - norm(tiny.roll(1, 0))
    norm.eps = 1.0
    assert (norm(tiny) - norm(tiny.roll(1, 0))).abs().max() < 1e-3 < change.abs().max()
    Settings.seen.clear()
    model = nn.Sequential(nn.Linear(8, 6), Settings(6), nn.Dropout(0.1), nn.Linear(6, 4))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    report = linear(model=model).check()
    assert len(report.findings) > 30
    assert Settings.seen == {(1e-5, (6,))}
    assert (model[1].eps, model[2].p) == (1e-5, 0.1)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_trap_13_a_missing_golden_file_is_no_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every entry of the gallery is found by its bug, so that a lost text fails when it is read."""
    assert len(gallery.ENTRIES) > 100
    lost = [
        name for name in gallery.ENTRIES if not (gallery.HERE / name / "expected.txt").is_file()
    ]
    assert lost == []
    with monkeypatch.context() as changed:
        changed.setattr(gallery, "HERE", gallery.HERE.parent)
        with pytest.raises(FileNotFoundError):
            (gallery.HERE / gallery.ENTRIES[0] / "expected.txt").read_text(encoding="utf-8")
    for name in ("test_bugs.py", "test_texts.py"):
        assert "pytest.skip" not in (gallery.HERE / name).read_text(encoding="utf-8")


class Swapped(torch.autograd.Function):
    """Of ``x * y``, each gradient is the other's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return gradient * x, gradient * y


def test_trap_14_symmetric_inputs_hide_swapped_gradients() -> None:
    ones = torch.ones(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Swapped.apply, (ones, ones.detach().clone().requires_grad_()))
    contract = Contract(functions={"product": (Swapped.apply, (torch.ones(3), torch.ones(3)))})
    assert verdict(contract, "gradcheck") == ("violated", "gradcheck-swapped")


def test_an_assertion_that_could_not_have_failed_fails() -> None:
    """Asked for by name, a check that says nothing of this model is no success."""
    from pytest_torchcheck import assert_gradients

    frozen = nn.Linear(8, 4).requires_grad_(False)
    with pytest.raises(ContractViolation, match="could not be asserted"):
        assert_gradients(frozen, (torch.randn(3, 8),))
    assert_contract(linear(), "gradients-exist")
