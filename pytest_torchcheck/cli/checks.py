"""``checks [FILE]``: what applies to each contract of a file, and why the rest does not.

It also says what one more line of declaration would add.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..catalogue import catalogue
from ..contracts import Contract
from ..lean import dataclass
from ..text.printable import message_of
from ..text.wording import counted
from . import DONE, CommandError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from ..catalogue.check import Check, Need

LINES: Final[Mapping[Need, str]] = {
    "model": "model=Net",
    "model-or-functions": "model=Net",
    "loss": "loss=F.cross_entropy",
    "targets": 'targets=Labels("B", classes=10)',
    "train_step": "train_step=my_step",
    "step-or-accumulates": "train_step=my_step",
    "step-or-trainer": "train_step=my_step",
    "trainer": "trainer=my_trainer",
    "optimizer": "optimizer=lambda model: torch.optim.AdamW(model.parameters())",
    "dataset": "dataset=MyDataset()",
    "memory": 'memory="64 MiB"',
    "growth": 'growth={"B": 1}',
    "flops": 'flops="2 GFLOP"',
    "speed": 'speed={"forward": SlowerBy(than=Old, at_most=1.05)}',
    "functions": 'functions={"square": (Square.apply, (x,))}',
    "output": 'output="B 10"',
    "specs": 'inputs="B 3 H W"',
    "ranks": "ranks=2",
    "factory": "model=a function that builds it, instead of a module",
    "overfit": "loss=F.cross_entropy",
    "low-precision": 'dtypes=["float32", "bfloat16"]',
    "own-promises": "promises=[a Promise of your own with a verify method]",
    "set": "promises=[promises.PermutationInvariant(...)]",
    "padding": "batch=my_batch",
    "ignore-index": 'targets=Labels("B T", classes=10, ignore_index=-100)',
}
"""A line of declaration that meets each need."""


def run(given: argparse.Namespace) -> int:
    """List the checks."""
    found = contracts(Path(given.file))
    if not found:
        raise CommandError(
            f"{given.file} declares no contract at its top level; "
            "python -m pytest_torchcheck init PACKAGE.MODULE:NAME writes one"
        )
    show = described if given.verbose else short
    sys.stdout.write("\n\n".join(show(name, contract) for name, contract in found) + "\n")
    if not given.verbose:
        sys.stdout.write("\n-v lists every check, and why each of the others does not apply\n")
    return DONE


def contracts(path: Path) -> list[tuple[str, Contract]]:
    """Import a file and return its contracts by name, also those in lists, tuples and dicts.

    Raises:
        CommandError: There is no such file, or importing it fails.
    """
    if not path.is_file():
        raise CommandError(f"no such file: {path}; give a file that declares contracts")
    for folder in (str(path.parent.resolve()), str(Path.cwd())):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CommandError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a file may raise anything
        told = f"{type(error).__name__}: {message_of(error)}"
        raise CommandError(f"{path}: importing it failed: {told}") from error
    found: dict[int, tuple[str, Contract]] = {}
    for name, value in vars(module).items():
        for shown, contract in _held(name, value):
            found.setdefault(id(contract), (shown, contract))
    return list(found.values())


def _held(name: str, value: Any) -> Iterator[tuple[str, Contract]]:
    if isinstance(value, Contract):
        yield name, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _held(f"{name}.{key}", part)
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _held(f"{name}.{index}", part)


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Checks by whether they apply to a contract.

    Attributes:
        applies: Those that do.
        reasons: Those that do not, by the reason.
        added: Those that one more line of declaration would add, by that line, the largest first.
    """

    applies: list[str]
    reasons: dict[str, list[str]]
    added: dict[str, list[str]]


def _sorted(contract: Contract) -> _Sorted:
    applies: list[str] = []
    reasons: dict[str, list[str]] = {}
    added: dict[str, list[str]] = {}
    for check in catalogue().values():
        reason = check.missing(contract)
        if check.name in contract.skip:
            reasons.setdefault(f"skipped: {contract.skip[check.name]}", []).append(check.name)
        elif reason is None:
            applies.append(
                check.name + (f" (on {'/'.join(check.devices)})" if check.devices else "")
            )
        else:
            reasons.setdefault(reason, []).append(check.name)
            line = one_line(check, contract)
            if line is not None:
                added.setdefault(line, []).append(check.name)
    largest = dict(sorted(added.items(), key=lambda item: -len(item[1])))
    return _Sorted(applies, reasons, largest)


def short(name: str, contract: Contract) -> str:
    """Return a table: how many checks apply, and which do not, by the line of declaration that is missing."""
    found = _sorted(contract)
    rows = [(line, _few(names)) for line, names in found.added.items() if len(names) > 1]
    single = [names[0] for names in found.added.values() if len(names) == 1]
    addable = {name for names in found.added.values() for name in names}
    several: list[str] = []
    for reason, names in found.reasons.items():
        left = [name for name in names if name not in addable]
        if reason.startswith("the contract "):
            several += left
        elif left:
            rows.append((reason, _few(left)))
    if several:
        rows.append(("more than one line", _few(several)))
    if single:
        rows.append((f"{counted(len(single), 'other line')}, one check each", _few(single)))
    column = min(max((len(line) for line, _ in rows), default=0), _WIDE)
    lines = [_count(name, found)]
    if rows:
        lines.append(f"  {'without':{column}}  these do not apply")
    lines += [f"  {_cut(line, column):{column}}  {names}" for line, names in rows]
    return "\n".join(lines)


def _count(name: str, found: _Sorted) -> str:
    """Say how many checks apply, and how many of these have no item without an accelerator."""
    names = {text.partition(" ")[0] for text in found.applies}
    devices = [catalogue()[one].devices for one in names]
    elsewhere = sum(bool(kinds) and "cpu" not in kinds for kinds in devices)
    head = f"{name}: {len(found.applies)} of {len(catalogue())} checks apply"
    return head + (f", {elsewhere} of them on an accelerator only" if elsewhere else "")


_WIDE: Final = 48
"""Columns of the reason in a table."""


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _few(names: list[str], most: int = 2) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def described(name: str, contract: Contract) -> str:
    """Return what applies to one contract, what does not, and what one more line would add."""
    found = _sorted(contract)
    lines = [_count(name, found)]
    lines += [*_wrapped(found.applies, 2), "", "  do not apply:"]
    for reason, names in found.reasons.items():
        lines += [f"    {reason}:", *_wrapped(names, 6)]
    lines += ["", "  one more line would add:"]
    for line, names in found.added.items():
        lines += [f"    {line}", *_wrapped(names, 6)]
    return "\n".join(lines)


def one_line(check: Check, contract: Contract) -> str | None:
    """Return the line that alone would let a check apply; None where it takes more than one."""
    if contract.adapted is not None and check.name in contract.adapted.without:
        return None
    lacking = {LINES[need] for need in check.needs if not contract.declares(need)}
    if check.promise is not None and not contract.promised(check.promise):
        lacking.add(f"promises=[promises.{check.promise}(...)]")
    return lacking.pop() if len(lacking) == 1 else None


def _wrapped(names: list[str], indent: int, width: int = 100) -> list[str]:
    lines, line = [], ""
    for name in names:
        if line and indent + len(line) + len(name) + 2 > width:
            lines.append(" " * indent + line.rstrip())
            line = ""
        line += f"{name}, "
    return [*lines, " " * indent + line.rstrip(", ")] if line else lines
