"""What loading the plugin costs to those who do not use it, and that it can be left out."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_torchcheck

ROOT = Path(pytest_torchcheck.__file__).parent
HEAVY = ("torch", "numpy", "hypothesis")
OWN = ("-p", "torchcheck")  # the name of the entry point


def python(code: str, *arguments: str, cwd: Path) -> str:
    # other plugins import what they like, so that they are left out
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip().splitlines()[-1]


RUN = """
import sys, pytest
pytest.main(sys.argv[1:])
names = ("torch", "numpy", "hypothesis")
parts = sorted(name.rpartition(".")[2] for name in sys.modules if name.startswith("pytest_torchcheck.plugin."))
print([name for name in names if name in sys.modules], parts)
"""


def test_an_empty_folder_pays_for_the_table_of_settings_alone(tmp_path: Path) -> None:
    assert (
        python(RUN, *OWN, "--co", "-q", cwd=tmp_path)
        == "[] ['marker_help', 'options', 'parts', 'settings']"
    )


def test_ordinary_tests_pay_for_markers_and_fixtures_alone(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test(): pass\n")
    assert (
        python(RUN, *OWN, "-q", cwd=tmp_path)
        == "[] ['declared', 'fixtures', 'marker_help', 'markers', 'options', 'parts', 'settings']"
    )


def test_a_test_that_imports_torch_itself_is_watched_from_then_on(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_a(): import torch\n\ndef test_b(): pass\n")
    found = python(RUN, *OWN, "-q", cwd=tmp_path)
    assert "'devices'" in found


def test_contracts_that_nobody_declares_import_no_torch(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test(): pass\n")
    found = python(RUN, *OWN, "-q", "--torchcheck", "--torchcheck-json=x.json", cwd=tmp_path)
    assert found.startswith("[] ")
    assert (tmp_path / "x.json").exists()


def test_the_controller_of_xdist_imports_no_torch(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    (tmp_path / "test_it.py").write_text(
        "import torch\nfrom pytest_torchcheck import contract\n\n"
        "@contract(inputs='B 3')\ndef net():\n    return torch.nn.Linear(3, 2)\n"
    )
    arguments = (
        *OWN,
        "-p",
        "xdist",
        "-q",
        "--torchcheck",
        "--torchcheck-checks=backward",
        "-n1",
        "--torchcheck-json=x.json",
    )
    found = python(RUN, *arguments, cwd=tmp_path)
    assert '"ok": true' in (tmp_path / "x.json").read_text()
    assert "'torch'" not in found, found


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n1")])
def test_hypothesis_stays_out_of_a_run_that_does_not_use_it(
    workers: tuple[str, ...], tmp_path: Path
) -> None:
    """Its own plugin imports all of it for its summary; where a test uses it, that summary is as it was."""
    pytest.importorskip("_hypothesis_pytestplugin")
    pytest.importorskip("xdist")
    options = (*OWN, "-p", "hypothesispytest", *workers, "-q", "-p", "no:cacheprovider")
    (tmp_path / "test_it.py").write_text("def test(): pass\n")
    assert python(RUN, *options, "--torchcheck", cwd=tmp_path).startswith("[]")
    (tmp_path / "test_it.py").write_text(
        "from hypothesis import given, strategies as st\n\n@given(st.none())\ndef test(n): pass\n"
    )
    # the controller of xdist collects nothing: what its reports carry tells
    assert python(RUN, *options, "--torchcheck", cwd=tmp_path).startswith("['hypothesis']")


def test_statistics_of_other_plugins_may_hold_anything(tmp_path: Path) -> None:
    """What Hypothesis's plugin left is looked for among all that the terminal reporter counts."""
    pytest.importorskip("_hypothesis_pytestplugin")
    (tmp_path / "conftest.py").write_text(
        "def pytest_collection_finish(session):\n"
        "    reporter = session.config.pluginmanager.get_plugin('terminalreporter')\n"
        "    reporter.stats['notes'] = ['a string', 3, None]\n"
    )
    (tmp_path / "test_it.py").write_text("def test(): pass\n")
    code = "import sys, pytest; print(int(pytest.main(sys.argv[1:])))"
    options = (*OWN, "-p", "hypothesispytest", "-q", "-p", "no:cacheprovider", "--torchcheck")
    assert python(code, *options, cwd=tmp_path) == "0"


PASSING = """
import torch
from torch import nn
from pytest_torchcheck import Contract, Labels, Tokens, promises

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.cell, self.head = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 20)

    def forward(self, ids):
        return self.head(self.cell(self.table(ids))[0])

def by_token(output, targets):
    return nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())

def step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = by_token(model(*inputs), targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss

def perceptron():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

def convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(8 * 36, 4)
    )

def trained(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)

small = Contract(
    model=perceptron, inputs="B 8", targets=Labels("B", classes=3), loss=nn.functional.cross_entropy,
    output="B 3",
)
bounded = Contract(
    model=lambda: nn.Sequential(perceptron(), nn.Sigmoid()), inputs="B 8", output="B 3", output_range=(0, 1),
)
sequences = Contract(
    model=Recurrent,
    inputs=Tokens("B T", vocab=20),
    targets=Labels("B T", classes=20),
    sizes={"T": (2, 9)},
    output="B T 20",
    loss=by_token,
    optimizer=trained,
    train_step=step,
    promises=[promises.Causal(), promises.ClipsGradients(1.0), promises.Trainable("head.*")],
)
images = Contract(
    model=convolutional,
    inputs="B 3 8 8",
    targets=Labels("B", classes=4),
    loss=nn.CrossEntropyLoss(),
    optimizer=trained,
    skip={"overfit": "its dropout keeps it from a loss of 0"},
)
"""
LOADED = """
import sys, pytest
code = pytest.main(sys.argv[1:])
own = "pytest_torchcheck."
kept = (own + "diagnosis.explanation", own + "codes.explainer")  # the words, and the registry of names
explainers = [
    n for n in sys.modules
    if n not in kept and (n.startswith(own + "diagnosis.") or n.startswith(own) and "explain" in n)
]
heavy = [n for n in ("torch._dynamo", "sympy", "hypothesis", own + "ranks", own + "strategies.drawing") if n in sys.modules]
parts = ("functions.engine", "functions.operators", "adapters.lightning", "adapters.transformers", "ranks",
    "data.relations", "data.explaining", "render.html", "render.sarif", "infer.inference", "change.running")
unused = [part for part in parts for name in [own + part] if any(n == name or n.startswith(name + ".") for n in sys.modules)]
print([int(code), explainers, heavy, unused])
"""


def test_a_run_in_which_everything_passes_imports_no_explainer_and_nothing_that_its_contract_does_not_use(
    tmp_path: Path,
) -> None:
    """No custom function is applied, no dataset or rank declared, no trainer of a framework, no report asked for."""
    (tmp_path / "test_it.py").write_text(PASSING)
    assert python(LOADED, *OWN, "-q", "--torchcheck", cwd=tmp_path) == "[0, [], [], []]"


def test_contracts_are_collected_without_the_checks(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(PASSING)
    code = LOADED.replace('"diagnosis."', '"checks."')
    assert python(code, *OWN, "-q", "--torchcheck", "--co", cwd=tmp_path) == "[0, [], [], []]"


@pytest.mark.parametrize(
    "module", ["pytest_torchcheck", "pytest_torchcheck.plugin", "pytest_torchcheck.findings"]
)
def test_importing_it_imports_nothing_heavy(module: str, tmp_path: Path) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert python(code, cwd=tmp_path) == "[]"


def test_it_can_be_left_out(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test(): pass")
    result = pytester.runpytest_subprocess("-p", "no:torchcheck", "-W", "error")
    result.assert_outcomes(passed=1)
    assert (
        "torchcheck"
        not in pytester.runpytest_subprocess("-p", "no:torchcheck", "--help").stdout.str()
    )


def test_help_shows_a_group_of_its_own(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("--help")
    result.stdout.fnmatch_lines(
        [
            "contracts for PyTorch models (torchcheck):",
            "  --torchcheck *",
            "  --torchcheck-seed=N*",
            "  torchcheck_seed *",
        ]
    )


def imports(path: Path) -> set[str]:
    """Return the top-level modules that a file imports when it is loaded, and those it imports at all."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        found |= {name.partition(".")[0] for name in names}
    return found


def test_nothing_but_the_plugin_knows_pytest() -> None:
    files = {str(path.relative_to(ROOT)): imports(path) for path in ROOT.rglob("*.py")}
    knowing = {name for name, found in files.items() if found & {"pytest", "_pytest", "pluggy"}}
    assert all(name.startswith("plugin") for name in knowing), knowing
    assert not any("_pytest" in found for found in files.values())
