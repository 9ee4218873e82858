"""Declarations are validated when they are made; each error names the field, the value and what is allowed."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, DeclarationError, Labels, Overfit, contract, promises
from pytest_torchcheck.catalogue import catalogue
from pytest_torchcheck.declared.fields import Fields
from pytest_torchcheck.promises import PromiseError


def build() -> nn.Module:
    return nn.Linear(4, 3)


GOOD: dict[str, Any] = {
    "model": build,
    "inputs": "B 4",
    "targets": Labels("B", classes=3),
    "loss": F.cross_entropy,
}

WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "model-is-a-number": ({"model": 3}, "model", "3"),
    "model-missing": ({"model": None}, "model", "none was given"),
    "no-data": ({"inputs": None, "targets": None, "loss": None}, "inputs", "neither was given"),
    "loss-is-a-class": ({"loss": nn.CrossEntropyLoss}, "loss", "CrossEntropyLoss()"),
    "loss-is-a-word": ({"loss": "cross_entropy"}, "loss", "'output'"),
    "loss-without-targets": ({"targets": None}, "loss", "targets="),
    "optimizer-already-built": (
        {"optimizer": torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)},
        "optimizer",
        "optimizer=lambda model: torch.optim.SGD(model.parameters())",
    ),
    "train-step-is-a-tensor": ({"train_step": torch.zeros(2)}, "train_step", "must be callable"),
    "promise-is-a-class": ({"promises": (promises.Causal,)}, "promises", "as an object"),
    "promise-is-a-word": ({"promises": "causal"}, "promises", "'causal'"),
    "memory-unit": ({"memory": "64 apples"}, "memory", "64 apples"),
    "memory-phase": ({"memory": {"forwards": "1 MiB"}}, "memory", "forward"),
    "growth-symbol": ({"growth": {"T": 1}}, "growth", "'T'"),
    "growth-power": ({"growth": {"B": -1}}, "growth", "-1"),
    "flops-unit": ({"flops": "2 BLOP"}, "flops", "2 BLOP"),
    "device": ({"devices": ("gpu",)}, "devices", "cuda"),
    "dtype": ({"dtypes": ("float23",)}, "dtypes", "float32"),
    "ranks": ({"ranks": 0}, "ranks", "1 to 16"),
    "skip-unknown": ({"skip": {"gradients-exists": "because"}}, "skip", "'gradients-exist'"),
    "skip-without-reason": ({"skip": {"overfit": ""}}, "skip", "reason"),
    "overfit-none-without-reason": ({"overfit": None}, "overfit", "skip="),
    "overfit-number": ({"overfit": 300}, "overfit", "Overfit(steps=, ratio=)"),
    "sizes-empty-range": ({"sizes": {"B": (8, 2)}}, "B", "8"),
    "sizes-unknown-type": ({"sizes": {"B": "many, many"}}, "B", "many"),
    "shape-character": ({"inputs": "B 3 H%"}, "inputs", "%"),
    "batch-dim": ({"batch_dim": "first"}, "batch_dim", "'first'"),
    "output-range": ({"output_range": (1.0, 0.0)}, "output_range", "low < high"),
    "functions": ({"functions": {"f": torch.sin}}, "functions['f']", "pair"),
    "dataset": ({"dataset": 3}, "dataset", "int"),
    "loader-argument": ({"loader": {"batchsize": 4}}, "loader", "'batch_size'"),
    "name": ({"name": "a::b"}, "name", "a::b"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_declaration_names_field_value_and_what_is_allowed(case: str) -> None:
    fields, *words = WRONG[case]
    with pytest.raises(DeclarationError) as caught:
        Contract(**{**GOOD, **fields})
    for word in words:
        assert word in str(caught.value)


def test_the_declaration_that_the_wrong_ones_start_from_is_right() -> None:
    assert Contract(**GOOD).name == "build"


def test_the_decorator_names_an_unknown_field_and_the_nearest() -> None:
    with pytest.raises(DeclarationError, match=r"'losss'.*'loss'"):
        contract(inputs="B 4", losss=F.cross_entropy)


def test_the_decorator_keeps_name_and_place_of_the_factory() -> None:
    made = contract(inputs="B 4")(build)
    assert made.name == "build"
    assert made.location is not None
    assert made.location.file == __file__
    assert made.model is build


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: promises.Frozen(reason="x"), "at least one glob"),
        (lambda: promises.Frozen("encoder.*", reason=" "), "must say why"),
        (lambda: promises.PaddingInvariant(ids=0, side="top"), '"right" or "left"'),
        (lambda: promises.PermutationInvariant(), "either dim="),
        (lambda: promises.PermutationInvariant(dim=1, inputs={"x": 1}), "either dim="),
        (lambda: promises.Tied("a", "a"), "two different names"),
        (lambda: promises.Accumulates(1), "at least 2"),
        (lambda: promises.Schedule("cosine"), "function step -> lr"),
        (lambda: promises.ClipsGradients(0.0), "positive number"),
        (lambda: promises.Causal(dim="time"), "'time'"),
        (lambda: promises.Stochastic(reason=""), "must say why"),
    ],
    ids=[
        "frozen-nothing", "frozen-reason", "padding-side", "permutation-nothing", "permutation-both", "tied-same",
        "accumulates-one", "schedule-word", "clip-zero", "causal-dim", "stochastic-reason",
    ],
)  # fmt: skip
def test_a_wrong_promise_says_what_is_allowed(make: Any, words: str) -> None:
    with pytest.raises(PromiseError) as caught:
        make()
    assert words in str(caught.value)


@pytest.mark.parametrize("value", [{"steps": 0}, {"ratio": 1.0}, {"steps": True}])
def test_overfit_validates_its_numbers(value: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError, match="Overfit"):
        Overfit(**value)


def test_every_promise_of_the_module_is_accepted_by_a_contract() -> None:
    made = (
        promises.Frozen("*", reason="r"), promises.Trainable("*"), promises.MayLackGradient("*", reason="r"),
        promises.MayChange("*", reason="r"), promises.Causal(), promises.PaddingInvariant(ids=0),
        promises.PermutationInvariant(dim=1), promises.PermutationEquivariant(dim=1), promises.Tied("a", "b"),
        promises.Replicated("a", "b"), promises.TwiceDifferentiable(), promises.Accumulates(2), promises.Schedule([0.1]),
        promises.ClipsGradients(1.0), promises.RandomAugmentation(), promises.Stochastic(reason="r"),
        promises.StraightThrough(functions="Round", reason="r"),
        promises.Differentiable(),
        promises.SkipsNonFinite(),
        promises.MovingAverage(target="a", source="b", decay=0.9),
        promises.SharesData(print), promises.Checkpoints(print, print), promises.FullyShards(),
        promises.AllowsTF32(), promises.CapturesGraph(), promises.Deterministic(), promises.Autocasts(),
        promises.Loads("old.pt"),
        promises.Matches(nn.Identity),
    )  # fmt: skip
    kinds = {type(p).__name__ for p in made} | {"Promise"}
    assert kinds == set(promises.__all__)
    assert Contract(**GOOD, promises=made).promises == made


def test_every_promise_has_a_check_or_is_used_by_one() -> None:
    source = "".join(
        p.read_text()
        for p in Path(sys.modules[catalogue.__module__].__file__ or "").parent.parent.rglob("*.py")
    )
    for name in set(promises.__all__) - {"Promise"}:
        assert f'"{name}"' in source.replace(f'    "{name}",\n', ""), f"no check asks for {name}"


def test_check_names_an_unknown_check() -> None:
    with pytest.raises(DeclarationError, match="'gradients-exist'"):
        Contract(**GOOD).check(["gradient-exist"])


def test_a_wrong_device_for_check_is_named() -> None:
    with pytest.raises(DeclarationError, match="gpu"):
        Contract(**GOOD).check(devices=["gpu"])


def test_importing_the_package_imports_no_torch() -> None:
    code = (
        "import sys, pytest_torchcheck, pytest_torchcheck.plugin\n"
        "heavy = [m for m in ('torch', 'numpy', 'hypothesis') if m in sys.modules]\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_nothing_outside_the_plugin_imports_pytest() -> None:
    root = Path(sys.modules["pytest_torchcheck"].__file__ or "").parent
    offenders = [
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if path.relative_to(root).parts[0] != "plugin"
        and any(line.strip().startswith(("import pytest\n", "from pytest ", "from _pytest")) or line.strip() == "import pytest"
                for line in path.read_text().splitlines())
    ]  # fmt: skip
    assert offenders == []


def test_one_check_on_one_device_by_name() -> None:
    report = Contract(**GOOD).check("backward", devices="cpu")
    assert {(finding.check, finding.device) for finding in report.findings} == {("backward", "cpu")}
    with pytest.raises(DeclarationError, match="unknown name 'backwards'"):
        Contract(**GOOD).check("backwards")


MISUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a promise as a field": ({"frozen": ["0.*"]}, r"write promises=\[promises.Frozen\(...\)\]"),
    "reasons left out": ({"skip": ["overfit"]}, r"as in skip=\{'overfit': 'why'\}; got"),
    "one of many names": ({"skip": {"overfits": "x"}}, r"did you mean 'overfit'\?$"),
    "one of few names": ({"dtypes": ["float23"]}, r"did you mean 'float32'\? allowed are: float64"),
}


@pytest.mark.parametrize("name", MISUSED)
def test_misuse_says_what_to_write(name: str) -> None:
    fields, said = MISUSED[name]
    with pytest.raises(DeclarationError, match=said):
        Contract(**{**GOOD, **fields})


def test_the_decorator_without_brackets_says_how_it_is_written() -> None:
    with pytest.raises(DeclarationError, match=r"keyword arguments only.*@contract\(inputs="):
        contract(lambda: nn.Linear(2, 1))


def test_the_decorator_has_the_fields_of_a_contract_with_their_types() -> None:
    parameters = dict(inspect.signature(Contract.__init__).parameters)
    written = {name: p.annotation for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    written.pop("model")
    written["overfit"] = "Overfit | None"  # the default, not declared, is nothing to write
    assert {n: str(a) for n, a in written.items()} == {
        name: found.__forward_arg__ for name, found in Fields.__annotations__.items()
    }


def test_a_class_is_no_dataset():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(DeclarationError, match=r"Stream is a class; write Stream\(\.\.\.\)"):
        Contract(dataset=Stream)
