"""The examples' training scripts come under contract as they are, by at most ten lines each."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = {"train_digits": "digits_script", "train_sonnets": "sonnets_script"}


@pytest.fixture
def contracts(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("test_scripts")


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_knows_nothing_of_contracts_and_runs(script: str) -> None:
    pytest.importorskip("sklearn")
    assert "torchcheck" not in (EXAMPLES / f"{script}.py").read_text()
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{script}.py", "1"],
        capture_output=True, text=True, timeout=1800, check=True,
    )  # fmt: skip
    assert "loss " in done.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_its_contract_takes_ten_lines(script: str) -> None:
    tree = ast.parse((EXAMPLES / "test_scripts.py").read_text())
    wanted = [
        node
        for node in tree.body
        if (isinstance(node, ast.Import) and node.names[0].name == script)
        or (isinstance(node, ast.ImportFrom) and node.module == "pytest_torchcheck")
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == SCRIPTS[script])
    ]
    lines = sum(1 + (node.end_lineno or node.lineno) - node.lineno for node in wanted)
    assert len(wanted) == 3
    assert lines <= 10


@pytest.mark.parametrize("name", SCRIPTS.values())
def test_it_holds(contracts: Any, name: str) -> None:
    report = getattr(contracts, name).check(
        ("gradients-exist", "weights-update", "step-protocol", "resume", "overfit")
    )
    assert report.ok
    assert len(list(report.with_status("passed"))) == 5


def test_a_bug_put_into_the_script_is_found_at_its_line(contracts: Any, tmp_path: Path) -> None:
    text = (EXAMPLES / "train_digits.py").read_text()
    broken = tmp_path / "broken_digits.py"
    broken.write_text(text.replace("    optimizer.zero_grad()\n", ""))
    sys.path.insert(0, str(tmp_path))
    try:
        script: Any = importlib.import_module("broken_digits")
        declared = contracts.digits_script
        contract = type(declared)(
            model=script.make_model,
            batch=script.load(train=True),
            loss=script.F.cross_entropy,
            optimizer=script.make_optimizer,
            train_step=script.train_step,
        )
        (finding,) = contract.check(["step-protocol"]).with_status("violated")
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("broken_digits", None)
    assert finding.code == "zero-grad-missing"
    assert finding.location is not None
    assert finding.location.file == str(broken)
