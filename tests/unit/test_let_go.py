"""A contract that is gone holds nothing: no model, no module, no batch, no class."""

from __future__ import annotations

import gc
import importlib.util
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.objects.weak import by_class

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """
import torch
from torch import nn

HELD = torch.ones(3)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.last(%s)
"""
WAYS = {
    "sound": "h",
    "cut": "h.detach()",
    "crash": "h[:, :5]",
    "says too much": "self.fail(h)",
}


def made_in_a_file(folder: Path, name: str, expression: str) -> type[nn.Module]:
    path = folder / f"{name}.py"
    path.write_text(SOURCE % expression)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: type[nn.Module] = module.Net
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("factory", [True, False])
def test_nothing_outlives_a_contract(tmp_path: Path, way: str, factory: bool) -> None:
    held: list[weakref.ref[Any]] = []

    def check() -> bool:
        net = made_in_a_file(tmp_path, f"net_{way.replace(' ', '_')}", WAYS[way])
        batch = torch.randn(5, 4), torch.randint(0, 3, (5,))

        def build() -> nn.Module:
            model = net()
            held.extend(map(weakref.ref, (model, *model.children(), model.first.weight)))
            return model

        held.extend(map(weakref.ref, (net, net.forward.__globals__["HELD"], *batch)))
        contract = Contract(
            model=build if factory else build(), loss=nn.functional.cross_entropy, batch=batch
        )
        held.append(weakref.ref(contract))
        return contract.check().ok

    assert check() == (way == "sound")
    gc.collect()
    assert len(held) > 5
    assert [type(one()).__name__ for one in held if one() is not None] == []


def test_what_is_known_of_a_class_goes_with_it() -> None:
    calls = []

    @by_class
    def words(cls: type, extra: str = "") -> str:
        calls.append(extra)
        return cls.__name__ + extra

    class Gone:
        pass

    assert (words(Gone), words(Gone), words(Gone, "!"), words(Gone, extra="!")) == (
        "Gone", "Gone", "Gone!", "Gone!",
    )  # fmt: skip
    assert calls == ["", "!", "!"]
    reference = weakref.ref(Gone)
    del Gone
    gc.collect()
    assert reference() is None
