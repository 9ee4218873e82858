"""Start a new check: every file that it needs, in its place, with what is left to write marked.

    python -m tests.new check positive-scales --family behaviour --code scale-negative

writes the function, its entry in the catalogue, its explanation, its page, a folder of the gallery and a test.
The tests that it writes fail until the check is written. Nothing that exists is overwritten.
"""

from __future__ import annotations

import argparse
import ast
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

NEEDED = {
    "explain": "from {up}codes import {home} as explain",
    "trees": "from {up}objects import trees",
    "not_applicable": "from {up}verdicts import not_applicable",
    "passed": "from {up}verdicts import passed",
}
"""What the check calls, and the line that imports it."""
LARGEST = 400  # lines of a file
FULL = 370  # a check needs some

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
    assert all(f.status != "error" and "TODO" not in str(f) for f in report.findings)
'''

NEXT = """
{made}

What is left, in this order (CONTRIBUTING.md says how):

1. Write the check in pytest_torchcheck/checks/{file}.py ({left} lines are left there), and its summary and cost in the catalogue.
2. Write the explanation in pytest_torchcheck/diagnosis/{flat}_{snake}.py.
3. Write the bug and its mended twin in tests/gallery/{code}/.
4. TORCHCHECK_GALLERY=write python -m pytest tests/gallery -k {code}     # writes expected.txt: read it
5. Write the tests in tests/unit/checks/test_{snake}.py, sound models above all.
6. Write the page docs/checks/{name}.md, then: python docs/build.py
7. ruff check --fix . && ruff format . && mypy --strict -p pytest_torchcheck
8. python -m pytest tests/unit/checks/test_{snake}.py tests/gallery/test_bugs.py     # the check may see old bugs too
"""


def write(path: Path, text: str, made: list[str]) -> None:
    """Write a file that does not exist yet."""
    if path.exists():
        raise SystemExit(f"{path.relative_to(ROOT)} exists; nothing of it is overwritten")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    made.append(f"made     {path.relative_to(ROOT)}")


def enter(name: str, family: str, made: list[str]) -> None:
    """Add the check to the catalogue, at the end of its family."""
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
    raise SystemExit(f"no table of the catalogue has the family {family!r}")


def append(path: Path, text: str, made: list[str]) -> None:
    """Add to the end of a file."""
    path.write_text(path.read_text(encoding="utf-8").rstrip() + "\n" + text, encoding="utf-8")
    made.append(f"added to {path.relative_to(ROOT)}")


def codes_of(module: Path) -> str:
    """Return which module of ``codes/`` the checks of a module explain by; empty where none does by that name."""
    found = re.search(r"^from \.+codes import (\w+) as explain$", module.read_text("utf-8"), re.M)
    return found[1] if found else ""


def families() -> list[str]:
    """Return the modules of checks that have a family in the catalogue, and room for one more."""
    package = ROOT / "pytest_torchcheck"
    tables = "".join(path.read_text("utf-8") for path in (package / "catalogue").glob("*.py"))
    return [
        name
        for path in sorted((package / "checks").rglob("*.py"))
        if codes_of(path)
        and len(path.read_text("utf-8").splitlines()) <= FULL
        and f'*family(\n        "{(name := _dotted(path))}"' in tables
    ]


def _dotted(path: Path) -> str:
    folder = ROOT / "pytest_torchcheck" / "checks"
    return ".".join(path.relative_to(folder).with_suffix("").parts)


def add_imports(module: Path, fields: dict[str, str]) -> None:
    """Import what the check calls and the module does not know yet."""
    text = module.read_text(encoding="utf-8")
    known = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    lines = [line.format(**fields) for name, line in NEEDED.items() if name not in known]
    if "Iterator" not in known:
        lines.append("from collections.abc import Iterator  # noqa: TC003")
    start = re.search(r"^from \.", text, re.M)
    assert start is not None
    text = text[: start.start()] + "".join(f"{line}\n" for line in lines) + text[start.start() :]
    module.write_text(text, encoding="utf-8")


def check(name: str, family: str, code: str) -> str:
    """Make everything that a new check needs, and return what is left to do."""
    snake = name.replace("-", "_")
    explainer = code.replace("-", "_")
    package = ROOT / "pytest_torchcheck"
    file, flat = family.replace(".", "/"), family.replace(".", "_")
    module = package / "checks" / f"{file}.py"
    home = codes_of(module)
    fields = {
        "name": name, "family": family, "code": code, "snake": snake, "function": snake,
        "explainer": explainer, "home": home, "file": file, "flat": flat, "up": ".." + "." * family.count("."),
        "left": str(LARGEST - len(module.read_text("utf-8").splitlines())),
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
    append(module, CHECK.format(**fields), made)
    add_imports(module, fields)
    given = f'"diagnosis.{flat}_{snake}:{explainer}", "{code}"'
    line = f"{explainer} = One({given})\n"
    if len(line) > 101:
        line = f"{explainer} = One(\n    {given}\n)\n"
    enter_code(package / "codes" / f"{home}.py", line, made)
    enter(name, family, made)
    return NEXT.format(**fields, made="\n".join(made))


def enter_code(path: Path, line: str, made: list[str]) -> None:
    """Add a code behind the others of its module, in front of its rules."""
    text = path.read_text(encoding="utf-8")
    imported = re.search(r"^from \.explainer import (.*)$", text, re.M)
    assert imported is not None
    if "One" not in re.findall(r"\w+", imported[1]):
        text = text.replace(imported[0], f"from .explainer import One, {imported[1]}", 1)
    rules = text.find("\nENTAILS")
    place = len(text) if rules < 0 else rules
    path.write_text(
        text[:place].rstrip() + f"\n{line}\n" + text[place:].lstrip("\n"), encoding="utf-8"
    )
    made.append(f"added to {path.relative_to(ROOT)}")


def main(arguments: list[str]) -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.new", description=__doc__)
    what = parser.add_subparsers(required=True)
    new = what.add_parser(
        "check", help="a check with its explanation, page, gallery folder and test"
    )
    new.add_argument("name", help="a few words for what is promised, such as gradients-exist")
    new.add_argument(
        "--family",
        required=True,
        help="module of pytest_torchcheck/checks in which the check is to stand, such as losses.bounds",
    )
    new.add_argument(
        "--code",
        required=True,
        help="the symptom that users see, spelt as its relatives in docs/gallery.md are, such as grad-none",
    )
    given = parser.parse_args(arguments)
    for field in ("name", "code"):
        if not NAME.fullmatch(getattr(given, field)):
            parser.error(
                f"{field}: lower-case words joined by hyphens; got {getattr(given, field)!r}"
            )
    if given.family not in families():
        parser.error(
            f"--family: a module of checks that has room for one more; got {given.family!r}; these have: "
            + ", ".join(families())
        )
    print(check(given.name, given.family, given.code))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
