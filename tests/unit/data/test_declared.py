"""The line that makes a split, read from the file that declares the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_torchcheck.data.explaining.declared_lines import loader_line, making_line
from pytest_torchcheck.findings import Location

if TYPE_CHECKING:
    from pathlib import Path

CASES = {
    "under its key": ('splits = {"train": Points(a[:20]), "eval": Points(a[15:])}\n', 1),
    "a name under its key": (
        'train = Points(a[:20])\nheld_out = Points(a[15:])\nDATA = {"train": train, "eval": held_out}\n',
        2,
    ),
    "through two names": (
        'x = Points(a)\ny = x\nDATA = dict(z={"eval": y})\n',
        1,
    ),
    "by its own name": ("train_set, eval_set = random_split(a, [20, 15])\n", 1),
    "nowhere": ("contract = Contract(dataset=make())\n", 9),
    "a role that is part of a word": ("evaluate = 3\ncontract = 1\n", 9),
}


@pytest.mark.parametrize(("text", "line"), CASES.values(), ids=CASES)
def test_the_line(tmp_path, text, line):
    path = tmp_path / "train.py"
    path.write_text(text)
    found = making_line(Location(file=str(path), line=9), "eval")
    assert found is not None
    assert found.line == line


def test_a_file_that_is_not_there():
    place = Location(file="<stdin>", line=1)
    assert making_line(place, "eval") is place
    assert making_line(None, "eval") is None


LOADERS = """
from torch.utils.data import DataLoader

def make(dataset):
    return DataLoader(dataset, batch_size=4, drop_last=True)

evaluation = DataLoader(
    rows,
    batch_size=8,
    drop_last=True,
)
made = Contract(
    dataset={"train": rows, "eval": rows},
    loader={
        "train": {"batch_size": 4, "drop_last": True, "shuffle": True},
        "eval": evaluation,
    },
)
other = Contract(dataset=rows, loader=make(rows))
imported = Contract(dataset=rows, loader=elsewhere.loader)
none = Contract(dataset=rows)

@contract(
    dataset=rows,
    loader={"batch_size": 4},
)
@slow
def build():
    return Net()
"""


@pytest.mark.parametrize(
    ("line", "role", "expected"),
    [
        (12, "train", 15),
        (12, "eval", 10),
        (14, "eval", 10),
        (19, "", 5),
        (20, "", 20),  # in another file: the declaration itself
        (21, "", 21),
        (23, "", 25),  # nothing is said of it there: where the loader is told anything
        (28, "", 25),
    ],
)
def test_the_line_that_tells_a_loader(tmp_path: Path, line: int, role: str, expected: int) -> None:
    path = tmp_path / "loaders.py"
    path.write_text(LOADERS)
    found = loader_line(Location(file=str(path), line=line), role)
    assert found is not None
    assert found.line == expected
    if expected != line:
        assert found.text == LOADERS.splitlines()[expected - 1].strip()


def test_the_most_telling_word_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "loaders.py"
    path.write_text(
        "made = Contract(\n    loader=dict(\n        shuffle=True,\n        generator=g,\n    ),\n)\n"
    )
    found = loader_line(Location(file=str(path), line=1), "", ("generator", "shuffle"))
    assert found is not None
    assert found.line == 4
    assert loader_line(None, "eval") is None
