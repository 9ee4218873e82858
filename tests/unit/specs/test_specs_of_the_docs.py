"""The specs of the table in docs/batches.md draw as they are written there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_torchcheck import specs
from pytest_torchcheck.batches.source import BatchSource

PAGE = Path(__file__).parents[3] / "docs" / "batches.md"
NEEDED = {"Ints": {"high": 3}, "Labels": {"classes": 3}, "Tokens": {"vocab": 9}}


def written() -> list[str]:
    """Return the code of the table's first column, without arguments that it only names."""
    table = PAGE.read_text(encoding="utf-8").partition("| a spec | draws |")[2].partition("\n\n")[0]
    cells = [line.split(" | ")[0] for line in table.splitlines()[2:]]
    found = [code for cell in cells for code in re.findall(r"`(\w+\(.*?\))`", cell)]
    return [re.sub(r", \w+=(?=[,)])", "", code) for code in found if "shape" not in code]


def test_the_table_is_read() -> None:
    assert len(written()) >= 15


@pytest.mark.parametrize("code", written())
def test_a_spec_draws_as_it_is_written(code: str) -> None:
    known = vars(specs)
    kind = known[code.partition("(")[0]]

    def made(*shape: str, **given: Any) -> Any:
        return kind(*shape, **{**NEEDED.get(kind.__name__, {}), **given})

    spec = eval(code, {kind.__name__: made})
    inputs = {"ids": specs.Tokens("B T", vocab=9), "nodes": "N D", "x": spec}
    value = BatchSource(inputs).base().x
    assert isinstance(value, torch.Tensor | torch.nn.utils.rnn.PackedSequence)
