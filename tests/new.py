"""Start a new check: every file that it needs, in its place, with what is left to write marked.

    python -m tests.new check positive-scales --family behaviour --code scale-negative

writes the function, its entry in the catalogue, its explanation, its page, a folder of the gallery and a test.
The tests that it writes fail until the check is written. Nothing that exists is overwritten.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = re.compile(r"[a-z]+(-[a-z0-9]+)*")

CHECK = '''

def {function}(subject: Subject) -> Iterator[Finding]:
    """TODO: what is run and compared, in one sentence; it becomes the page's "How"."""
    outputs = trees.floats(subject.forward())
    if not outputs:
        yield not_applicable("the model returns no floating-point tensor")
        return
    wrong = [path for path, tensor in outputs.items() if bool((tensor < 0).any())]  # TODO
    if wrong:
        yield explain.{explainer}(subject, wrong)
        return
    yield passed(f"TODO: what was measured on {{len(outputs)}} outputs")
'''

HEAD = '''"""TODO: what this family of checks holds, in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from {up}codes import {home} as explain
from {up}objects import trees
from {up}verdicts import not_applicable, passed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from {up}findings import Finding
    from {up}subject import Subject
'''

EXPLAINER = '''"""TODO: what these findings have in common, in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import sources
from ..findings import Culprit, Finding
from ..verdicts import violated

if TYPE_CHECKING:
    from ..subject import Subject


def {explainer}(subject: Subject, paths: list[str]) -> Finding:
    """TODO: explain the finding by what was measured."""
    return violated(
        "{code}",
        f"TODO: {{paths[0]}} is negative",
        culprits=[Culprit(kind="output", name=path, detail="TODO") for path in paths],
        location=sources.of_own_class(subject.model),
        observed="TODO: the numbers",
        cause="TODO: why it happens",
        because="TODO: the measured fact that shows this cause",
        fix="TODO: one edit",
    )
'''

PAGE = """# {name}

<!-- {name}:head -->
<!-- /{name}:head -->

## Why

TODO: which mistake this finds, what it costs its author, and why nothing else shows it.

## How

<!-- {name}:how -->
<!-- /{name}:how -->

## When it does not apply, and how to opt out

<!-- {name}:optout -->
<!-- /{name}:optout -->

## What it says

<!-- {name}:says -->
<!-- /{name}:says -->
"""

PROGRAM = '''"""TODO: {what}, in one sentence."""

import torch
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "{name}")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(6, 3)

    def forward(self, x):
        return {line}


@contract(inputs="B 6")
def net():
    return Net()
'''

TEST = '''"""TODO: what is held, in one sentence."""

from __future__ import annotations

from torch import nn

from pytest_torchcheck import Contract


def check(model) -> list[str]:
    """Return the codes of what the check finds."""
    report = Contract(model=model, inputs="B 6").check(checks=["{name}"])
    return [f.code for f in report.findings if f.status in ("violated", "suspicious", "error")]


def test_it_is_found() -> None:
    assert check(lambda: nn.Linear(6, 3)) == ["{code}"]


def test_a_sound_model_passes() -> None:
    assert check(lambda: nn.Sequential(nn.Linear(6, 3), nn.Softplus())) == []


def test_nothing_is_left_to_write() -> None:
    report = Contract(model=lambda: nn.Linear(6, 3), inputs="B 6").check(checks=["{name}"])
    assert "TODO" not in str(report)
'''

NEXT = """
{made}

What is left, in this order:

1. Write the check in pytest_torchcheck/checks/{file}.py, and its summary and cost in the catalogue.
2. Write the bug and its mended twin in tests/gallery/{code}/.
3. Write the explanation in pytest_torchcheck/diagnosis/{flat}_{snake}.py.
4. Write the tests in tests/unit/checks/test_{snake}.py, sound models above all.
5. TORCHCHECK_GALLERY=write python -m pytest tests/gallery -k {code}     # writes expected.txt: read it
6. Write the page docs/checks/{name}.md, then: python docs/build.py
7. python -m pytest tests/unit/checks/test_{snake}.py tests/gallery -k "{snake} or {code}" && ruff check . && ruff format . && mypy --strict -p pytest_torchcheck
"""


def write(path: Path, text: str, made: list[str]) -> None:
    """Write a file that does not exist yet."""
    if path.exists():
        raise SystemExit(f"{path.relative_to(ROOT)} exists; nothing of it is overwritten")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    made.append(f"made     {path.relative_to(ROOT)}")


def enter(name: str, family: str, made: list[str]) -> None:
    """Add the check to the catalogue: at the end of its family, or of the table where the family is new."""
    entry = (
        f'        check(\n            "{name}",\n            "TODO: what is promised, in one sentence.",\n'
        '            cost="1 F",\n        ),\n'
    )
    folder = ROOT / "pytest_torchcheck" / "catalogue"
    tables = sorted(path for path in folder.glob("*.py") if "CHECKS" in path.read_text("utf-8"))
    tables = [path for path in tables if path.name != "__init__.py"]
    for path in tables:
        text = path.read_text(encoding="utf-8")
        start = text.find(f'    *family(\n        "{family}",\n')
        if start >= 0:
            end = re.compile(r"^(        \w+=.*\n)*    \),$", re.M).search(text, start)
            assert end is not None
            path.write_text(text[: end.start()] + entry + text[end.start() :], encoding="utf-8")
            made.append(f"added to {path.relative_to(ROOT)}")
            return
    path = tables[0]
    text = path.read_text(encoding="utf-8").rstrip()
    block = f'    *family(\n        "{family}",\n{entry}    ),\n)\n'
    path.write_text(text.removesuffix(")") + block, encoding="utf-8")
    made.append(f"added to {path.relative_to(ROOT)}")


def append(path: Path, text: str, made: list[str]) -> None:
    """Add to the end of a file."""
    path.write_text(path.read_text(encoding="utf-8").rstrip() + "\n" + text, encoding="utf-8")
    made.append(f"added to {path.relative_to(ROOT)}")


def check(name: str, family: str, code: str) -> str:
    """Make everything that a new check needs, and return what is left to do."""
    snake = name.replace("-", "_")
    explainer = code.replace("-", "_")
    package = ROOT / "pytest_torchcheck"
    file, flat = family.replace(".", "/"), family.replace(".", "_")
    home = flat
    module = package / "checks" / f"{file}.py"
    if module.exists():
        body = module.read_text(encoding="utf-8")
        found = re.search(r"^from \.+codes import (\w+) as explain$", body, re.M)
        home = found[1] if found else flat
    fields = {
        "name": name, "family": family, "code": code, "snake": snake, "function": snake,
        "explainer": explainer, "home": home, "file": file, "flat": flat, "up": ".." + "." * family.count("."),
    }  # fmt: skip
    made: list[str] = []
    folder = ROOT / "tests" / "gallery" / code
    write(folder / "bug.py", PROGRAM.format(
        **fields, what="a model with the bug", line="self.scale(x)"), made)  # fmt: skip
    write(folder / "fixed.py", PROGRAM.format(
        **fields, what="a model with the bug", line="torch.nn.functional.softplus(self.scale(x))"), made)  # fmt: skip
    write(package / "diagnosis" / f"{flat}_{snake}.py", EXPLAINER.format(**fields), made)
    write(ROOT / "docs" / "checks" / f"{name}.md", PAGE.format(**fields), made)
    write(ROOT / "tests" / "unit" / "checks" / f"test_{snake}.py", TEST.format(**fields), made)
    if module.exists():
        append(module, CHECK.format(**fields), made)
    else:
        write(module, HEAD.format(**fields) + CHECK.format(**fields), made)
    given = f'"diagnosis.{flat}_{snake}:{explainer}", "{code}"'
    line = f"\n{explainer} = One({given})\n"
    if len(line) > 102:
        line = f"\n{explainer} = One(\n    {given}\n)\n"
    codes = package / "codes" / f"{home}.py"
    if codes.exists():
        append(codes, line, made)
    else:
        write(
            codes, '"""TODO: whose codes these are."""\n\nfrom .explainer import One\n' + line, made
        )
    enter(name, family, made)
    return NEXT.format(**fields, made="\n".join(made))


def main(arguments: list[str]) -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.new", description=__doc__)
    what = parser.add_subparsers(required=True)
    new = what.add_parser(
        "check", help="a check with its explanation, page, gallery folder and test"
    )
    new.add_argument("name", help="a noun phrase of what is promised, such as gradients-exist")
    new.add_argument(
        "--family",
        required=True,
        help="module of pytest_torchcheck/checks, old or new, such as losses.targets",
    )
    new.add_argument("--code", required=True, help="the symptom that users see, such as grad-none")
    given = parser.parse_args(arguments)
    for field in ("name", "code"):
        if not NAME.fullmatch(getattr(given, field)):
            parser.error(
                f"{field}: lower-case words joined by hyphens; got {getattr(given, field)!r}"
            )
    if not re.fullmatch(r"[a-z][a-z_]*(\.[a-z][a-z_]*)?", given.family):
        parser.error(
            f"--family: a module's name in lower case, such as behaviour or losses.targets; got {given.family!r}"
        )
    print(check(given.name, given.family, given.code))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
