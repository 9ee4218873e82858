"""Give findings the edit that their fix describes, and try it: whether the check passes with it.

Only the user's own code runs, as it did before, with one line of it changed. The function gets its own code
back afterwards, on every way out.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import sys
import types
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from .. import sources
from ..loop.closures import functions_of
from ..sources import edits
from ..sources.rewriting import edit_of
from .other_sizes import for_all_sizes
from .selection import cases

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import nn

    from ..contracts import Contract
    from ..findings import Edit, Finding
    from .running import Runner
    from .selection import Case

_SHORT: Final = 90


def with_edits(
    runner: Runner, case: Case, found: tuple[Finding, ...], seconds: float
) -> tuple[Finding, ...]:
    """Return the findings of a case with their edits, those that can be tried tried.

    Args:
        runner: Who ran the case.
        case: The case.
        found: What it found.
        seconds: What running it again would take of the processor.
    """
    made = []
    for finding in found:
        if finding.status not in ("violated", "suspicious"):
            made.append(finding)
            continue
        fix = for_all_sizes(runner, case, finding) if seconds <= LONG_SECONDS else finding.fix
        edit = edit_of(finding.replace(fix=fix))
        if edit is not None:
            if seconds <= MOST_SECONDS and case.device == "cpu" and runner.trials:
                edit = _tried(runner, case, found, finding, edit)
            fix = _without(fix) if edit is None else fix + _said(edit, fix)
        else:
            fix = edits.clarified(fix, finding.location, _sizes(runner, case))
        made.append(finding.replace(edit=edit, fix=fix))
    return tuple(made)


def _sizes(runner: Runner, case: Case) -> Mapping[str, int]:
    """Return the sizes of the base batch, where there is one."""
    if runner.contract.model is None:
        return {}
    batch = runner.subject(case).cache.get(("batch", 0))
    return {} if batch is None else batch.sizes


def _said(edit: Edit, fix: str) -> str:
    """Return what to add to a fix, which may name more than the edit."""
    if not edit.tried:
        return "; likely: the edit was not tried"
    several = ", or " in fix or "; " in fix
    new = edit.new.strip()
    it = new if several and new != "pass" and len(new) <= _SHORT else "it"
    return (
        f"; tried: the check passes with {it}"
        if edit.tried == "passes"
        else f"; tried: the check does not pass with {it} alone"
    )


def _without(fix: str) -> str:
    """Return what else a fix offers than the edit that it begins with."""
    return "".join(re.split(r"; (?:or,? )?|, or ", fix, maxsplit=1)[1:])


def _tried(
    runner: Runner, case: Case, found: tuple[Finding, ...], finding: Finding, edit: Edit
) -> Edit | None:
    """Run the check of a case again with an edit; None where this shows that it cannot be right."""
    contract = runner.contract
    subject = None if contract.model is None else runner.subject(case)
    model = None if subject is None else subject._model
    with edited(edit, contract, model) as runs:
        if not runs:
            return edit
        runner.trials -= 1
        again = type(runner)(
            contract,
            seed=runner.seed,
            examples=runner.examples,
            explain_seconds=MOST_SECONDS,
            trials=0,
        )
        try:
            after = again.run(case)
            seen = judged(found, finding, after)
            whole = seen == "passes" and " or more " not in finding.fix  # other sizes may need more
            elsewhere = _of_sizes(runner, case, edit) if whole else None
            named = {culprit.name for culprit in finding.culprits}
            if elsewhere is not None and any(
                f.code == finding.code and named & {culprit.name for culprit in f.culprits}
                for f in again.run(elsewhere)
            ):
                return None  # it fits the drawn sizes alone
        finally:
            again.close()
    return None if seen == "fails" and misleads(finding, edit, after) else replace(edit, tried=seen)


def _of_sizes(runner: Runner, case: Case, edit: Edit) -> Case | None:
    """Return the case that runs the model at other sizes, where an edit brings in a number; None where it was that."""
    if not set(re.findall(r"\d+", edit.new)) - set(re.findall(r"\d+", edit.old)):
        return None
    others = cases(runner.contract, devices=[case.device])
    named = (c for c in others if c.check.name == "batch-sizes" and c.dtype == case.dtype)
    return next((c for c in named if c.id != case.id), None)


LONG_SECONDS: Final = 30.0
"""Of a model that takes longer, a fix is not looked at for other sizes."""
MOST_SECONDS: Final = 3.0
"""A check that takes longer is not run again."""


@contextlib.contextmanager
def edited(edit: Edit, contract: Contract, model: nn.Module | None) -> Iterator[bool]:
    """Let the function that holds an edit's line run with the edit within the block.

    Args:
        edit: The edit.
        contract: Whose factory, loss and step are looked through.
        model: Whose classes are.

    Yields:
        Whether it does: no function in reach may hold the line, or it may not be changed in memory.
    """
    function = _holder(edit, contract, model)
    code = None if function is None else _edited_code(function.__code__, edit)
    built = contract.is_factory or function is None or function.__name__ != "__init__"
    if (
        function is None or code is None or not built
    ):  # a model that stands already is not built again
        yield False
        return
    before = function.__code__
    function.__code__ = code
    try:
        yield True
    finally:
        function.__code__ = before


def _holder(edit: Edit, contract: Contract, model: nn.Module | None) -> types.FunctionType | None:
    """Return the innermost function in reach that holds the line of an edit."""
    if sources.rank(edit.file) != 2 or (model is not None and _is_scripted(model)):
        return None
    found = [f for f in _functions(edit.file, contract, model) if _holds(f.__code__, edit)]
    return max(found, key=lambda f: f.__code__.co_firstlineno, default=None)


def _is_scripted(model: nn.Module) -> bool:
    """Say whether a part of a model was compiled from its source, which a changed function does not change."""
    torch = sys.modules["torch"]
    return any(isinstance(part, torch.jit.RecursiveScriptModule) for part in model.modules())


def _functions(
    file: str, contract: Contract, model: nn.Module | None
) -> Iterator[types.FunctionType]:
    roots = (contract.model, contract.loss, contract.optimizer, contract.train_step, contract.batch)
    yield from functions_of(*(root for root in roots if callable(root)))
    classes: dict[type, None] = {}
    for module in model.modules() if model is not None else ():
        classes |= dict.fromkeys(type(module).__mro__)
    for loaded in list(sys.modules.values()):
        if getattr(loaded, "__file__", None) == file:
            yield from _of_namespace(vars(loaded).values(), classes)
    for cls in classes:
        yield from _of_namespace(vars(cls).values(), {})


def _of_namespace(values: Iterable[Any], classes: dict[type, None]) -> Iterator[types.FunctionType]:
    for value in list(values):
        if isinstance(value, type):
            classes.setdefault(value)
            continue
        inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if isinstance(inner, types.FunctionType):
            yield inner


def _holds(code: types.CodeType, edit: Edit) -> bool:
    return _same_file(code, edit.file) and any(line == edit.line for _, _, line in code.co_lines())


def _same_file(code: types.CodeType, file: str) -> bool:
    return code.co_filename == file or os.path.realpath(code.co_filename) == file


def _edited_code(old: types.CodeType, edit: Edit) -> types.CodeType | None:
    """Compile the file with the edit; return the code that takes the place of ``old``."""
    lines = linecache.getlines(edit.file)
    if not 0 < edit.line <= len(lines) or lines[edit.line - 1].rstrip("\n") != edit.old:
        return None
    lines = [*lines[: edit.line - 1], f"{edit.new}\n", *lines[edit.line :]]
    try:
        stack = [compile("".join(lines), old.co_filename, "exec", dont_inherit=True)]
    except SyntaxError:
        return None
    while stack:
        code = stack.pop()
        if (code.co_qualname, code.co_firstlineno) == (old.co_qualname, old.co_firstlineno):
            # a default on the line of a def is no part of its code: nothing would be tried
            return (
                code if code.co_freevars == old.co_freevars and _does(code) != _does(old) else None
            )
        stack += [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return None


def _does(code: types.CodeType) -> list[object]:
    """Return what a function's code does, without the places where it is written."""
    inner = [_does(one) if isinstance(one, types.CodeType) else repr(one) for one in code.co_consts]
    return [code.co_code, code.co_names, code.co_varnames, inner]


def judged(
    before: tuple[Finding, ...], finding: Finding, after: tuple[Finding, ...]
) -> Literal["passes", "fails", ""]:
    """Say what a run of the check with the edit shows of it.

    Args:
        before: What the check found without it.
        finding: The one whose edit was tried.
        after: What it found with it.

    Returns:
        ``passes`` where the check passes; ``fails`` where the finding is there again, or another one
        than before; nothing where neither can be said.
    """
    wrong = [f for f in after if f.status in ("violated", "suspicious", "error")]
    known = {_mark(f) for f in before if f is not finding}
    if any(_mark(f) not in known for f in wrong):
        return "fails"
    return "passes" if not wrong and any(f.status == "passed" for f in after) else ""


def misleads(finding: Finding, edit: Edit, after: tuple[Finding, ...]) -> bool:
    """Say whether a run that fails with an edit shows that it helps nothing, not even as one of several.

    The same is found where it was, up to its numbers, or the edited line has another fault now. What was only
    doubtful needs an edit that is enough.
    """
    if finding.status == "suspicious":
        return True

    def place(one: Finding) -> tuple[str, int] | None:
        return None if one.location is None else (one.location.file, one.location.line)

    def said(one: Finding) -> tuple[Any, ...]:
        return (one.code, place(one), *(re.sub(r"\d+", "#", t) for t in (one.summary, one.because)))

    wrong = [f for f in after if f.status in ("violated", "suspicious", "error")]
    return any(
        said(f) == said(finding) or (f.code != finding.code and place(f) == (edit.file, edit.line))
        for f in wrong
    )


def _mark(finding: Finding) -> tuple[str, ...]:
    return (finding.code, *sorted(culprit.name for culprit in finding.culprits))
