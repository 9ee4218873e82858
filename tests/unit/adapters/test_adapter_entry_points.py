"""Adapters are entry points, that a third party can register too."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import pytest_torchcheck.adapters as found
from pytest_torchcheck import Contract, DeclarationError
from pytest_torchcheck.adapters import BUILT_IN, GROUP, adapters

if TYPE_CHECKING:
    from collections.abc import Iterator

ACME = """
from torch import nn
from pytest_torchcheck.adapters import Adapted

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def compute(self, x, y):
        return (self.layer(x) - y).square().mean()

class Adapter:
    def recognises(self, declared):
        return declared.is_a("acme:Model")

    def adapt(self, declared):
        return Adapted(fields=FIELDS, call=call, without={"overfit": "acme models do not learn"})

def call(model, batch):
    return {"loss": model.compute(*batch.args, batch.targets)}

FIELDS = {"loss": "output"}
"""


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    for each in (adapters, found._places, found._loaded):
        each.cache_clear()
    yield
    for each in (adapters, found._places, found._loaded):
        each.cache_clear()
    sys.modules.pop("acme", None)


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install a distribution with adapters: ``acme(acme="acme:Adapter")``."""

    def install(source: str = ACME, **places: str) -> Any:
        info = tmp_path / "acme-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
        lines = [f"{name} = {place}" for name, place in places.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines]) + "\n")
        (tmp_path / "acme.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        import acme  # type: ignore[import-not-found]

        return acme

    return install


BATCH = (torch.ones(3, 4), torch.zeros(3, 3))


def test_a_third_party_registers_its_own(acme: Any) -> None:
    package = acme(acme="acme:Adapter")
    contract = Contract(model=package.Model(), batch=BATCH)
    assert contract.adapted is not None
    assert (contract.adapted.name, contract.loss) == ("acme", "output")
    report = contract.check(["backward", "gradients-exist", "weights-update", "overfit"])
    assert len(list(report.with_status("passed"))) == 3
    (idle,) = report.with_status("not-applicable")
    assert (idle.check, idle.summary) == ("overfit", "acme models do not learn")
    # what is declared is left alone, and other models are not its own
    assert Contract(model=package.Model(), batch=BATCH, loss=lambda o, t: o).loss != "output"
    assert Contract(model=nn.Linear(4, 3), batch=BATCH).adapted is None


@pytest.mark.parametrize("order", [1, -1])
def test_one_of_a_known_name_takes_its_place(
    acme: Any, monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    """Whichever distribution is found first: this package's own entry points are there too where it is installed."""
    acme(lightning="acme:Adapter")
    own = [EntryPoint(name, value, GROUP) for name, value in BUILT_IN.items()]
    others = [found for found in entry_points(group=GROUP) if found.value == "acme:Adapter"]
    monkeypatch.setattr(
        "pytest_torchcheck.adapters.entry_points", lambda group: [*own, *others][::order]
    )
    assert type(adapters()["lightning"]).__module__ == "acme"
    assert next(iter(adapters())) == "lightning"


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("acme_missing:Adapter", "ModuleNotFoundError"),
        ("acme:Nothing", "AttributeError"),
        ("acme:FIELDS", "recognises"),
    ],
)
def test_a_broken_one_breaks_no_other(acme: Any, place: str, reason: str) -> None:
    acme(acme=place)
    with pytest.warns(
        UserWarning, match=rf"the adapter 'acme' \({place}\) cannot be loaded: .*{reason}"
    ):
        assert list(adapters()) == list(BUILT_IN)


def test_it_supplies_fields_only(acme: Any) -> None:
    package = acme(ACME.replace('"loss": "output"', '"skip": {}'), acme="acme:Adapter")
    with pytest.raises(
        DeclarationError, match="the adapter 'acme' supplies 'skip'; allowed are: batch"
    ):
        Contract(model=package.Model(), batch=BATCH)


def test_those_of_this_package_are_entry_points_too() -> None:
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    section = project.partition(f'[project.entry-points."{GROUP}"]\n')[2].partition("\n\n")[0]
    declared = dict(line.replace('"', "").split(" = ") for line in section.splitlines())
    assert declared == BUILT_IN
    installed = {found.name: found.value for found in entry_points(group=GROUP)}
    assert set(installed.items()) <= set(BUILT_IN.items())
    assert list(adapters()) == list(BUILT_IN)


def test_no_framework_is_imported_and_no_factory_built() -> None:
    code = (
        "import sys, torch\n"
        "from pytest_torchcheck import Contract\n"
        "built = []\n"
        "def build():\n    built.append(1)\n    return torch.nn.Linear(4, 3)\n"
        "made = Contract(model=build, inputs='B 4')\n"
        "assert made.adapted is None and not built\n"
        "for name in ('lightning', 'pytorch_lightning', 'transformers', 'torch_geometric'):\n"
        "    assert name not in sys.modules, name\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
