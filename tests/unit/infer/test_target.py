"""A model by its name: what is read, what is refused, and what each refusal says."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from torch import nn

from pytest_torchcheck.infer.target import TargetError, arguments_of, load, parse_target

if TYPE_CHECKING:
    from pathlib import Path


def test_a_name_and_a_call_are_read_without_import() -> None:
    named = parse_target("no.such.package:Net")
    assert (named.module, named.path, named.called) == ("no.such.package", ("Net",), False)
    called = parse_target("pkg:make.it('a', [1, 2], width=-3, deep={'k': None})")
    assert called.path == ("make", "it")
    assert called.args == ("a", [1, 2])
    assert called.kwargs == {"width": -3, "deep": {"k": None}}
    assert called.package == "pkg"
    assert "[" not in called.name


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("torch.nn.Linear(4, 2)", "write package.module:name"),
        ("torch.nn.ReLU", "write package.module:name"),
        ("my.models.Net.(", "is not Python|write package"),
        ("torch.nn:Linear(4, nn.ReLU())", r"'nn.ReLU\(\)' is not a literal"),
        ("torch.nn:Linear(*[4, 2])", "not a literal"),
        ("torch.nn:Linear(**{'a': 1})", r"\*\* is not allowed"),
        ("torch.nn:(lambda: 1)()", "is not a name"),
        ("os:system('ls') or 1", "is not a name"),
        ("torch.nn:Linear(4,", "is not Python"),
        ("a-b:Net", "does not name a model"),
    ],
)
def test_other_forms_are_refused(text: str, told: str) -> None:
    with pytest.raises(TargetError, match=told):
        parse_target(text)


def test_a_dotted_name_without_colon_is_corrected() -> None:
    with pytest.raises(TargetError, match=r"did you mean mypkg.models:Net\?"):
        parse_target("mypkg.models.Net")


def test_what_is_named_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_models_of_test.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Linear):\n    def __init__(self, width, bias=True): super().__init__(width, 2, bias)\n"
        "def make(): return Net(3)\n"
        "built = Net(5)\n"
        "number = 7\n"
    )
    folder = str(tmp_path)

    def loaded(text: str) -> object:
        return load(parse_target(f"own_models_of_test:{text}"), folder=folder)

    made = loaded("Net(6)")
    assert isinstance(made, functools.partial)
    assert made().in_features == 6
    target = parse_target("own_models_of_test:Net(6)")
    assert arguments_of(target, made) == {"width": 6, "bias": True}
    assert loaded("make")().in_features == 3  # type: ignore[operator]
    assert isinstance(loaded("built"), nn.Module)
    for text, told in (
        ("Net", r"missing a required argument: 'width'; write own_models_of_test:Net\(width=...\)"),
        ("Net(width=2, deep=3)", "unexpected keyword argument 'deep'"),
        ("Nett(2)", "has no 'Nett'; did you mean 'Net'"),
        ("number", "is of type int"),
        ("built()", "write own_models_of_test:built"),
    ):
        with pytest.raises(TargetError, match=told):
            loaded(text)
    with pytest.raises(TargetError, match="no module named 'own_model_of_test'"):
        load(parse_target("own_model_of_test:Net"), folder=folder)


def test_a_module_that_raises_is_told_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "raises_on_import.py").write_text("1 / 0\n")
    (tmp_path / "imports_missing.py").write_text("import no_such_thing_here\n")
    with pytest.raises(TargetError, match="ZeroDivisionError: division by zero"):
        load(parse_target("raises_on_import:Net"), folder=str(tmp_path))
    with pytest.raises(TargetError, match="No module named 'no_such_thing_here'"):
        load(parse_target("imports_missing:Net"), folder=str(tmp_path))


class _Config:
    def __init__(self, width: int = 4) -> None:
        self.width = width


class Configured(nn.Linear):
    config_class = _Config

    def __init__(self, config: _Config) -> None:
        super().__init__(config.width, 2)


def test_a_class_that_is_built_from_a_configuration_takes_its_fields() -> None:
    target = parse_target(f"{__name__}:Configured(width=9)")
    made = load(target)
    assert made().in_features == 9
    assert arguments_of(target, made) == {"width": 9}
    assert load(parse_target(f"{__name__}:Configured"))().in_features == 4


def test_reading_a_target_imports_no_torch() -> None:
    code = (
        "import sys; from pytest_torchcheck.infer.target import parse_target; "
        "parse_target('torch.nn:Linear(4, 2)'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
