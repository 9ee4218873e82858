"""The line to look at for a change: the edit that explains it, where one does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import sources
from . import snapshot
from .traces import parting, trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from ..findings import Location
    from ..probes.recorded.operations import Step, Trace
    from ..subject import Subject
    from .judge import Judgement
    from .lines import Edit, Edits
    from .numbers import Verdict
    from .version import Version

ALLOWED = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a change comes from.

    Attributes:
        module: Qualified name of the module; empty for the model itself.
        cls: Name of its class.
        operation: The operation whose result differs, empty where none was found.
        called: The line of that operation.
        line: The line to look at: of the edit, else of the operation.
        edit: The edit that explains it, None where no edit of the project's files does.
        sure: Whether the edit is that of the operation's or the module's own line.
    """

    module: str = ""
    cls: str = ""
    operation: str = ""
    called: Location | None = None
    line: Location | None = None
    edit: Edit | None = None
    sure: bool = False


def of_numbers(
    subject: Subject, old: Version | None, found: Judgement, verdict: Verdict, edits: Edits
) -> Place:
    """Find the operation that first gives other numbers, and the edit that explains it.

    Of a record, whose operations are not known, it is the first module that returned other numbers.
    """
    model, load = subject.model, found.loading.load
    assert load is not None
    if old is None:
        parted = next((one.name for one in verdict.differences if one.kind == "module"), None)
        return Place() if parted is None else of_module(model, parted, edits)
    if verdict.differences[0].kind == "error":
        return Place(edit=_only(edits, model, ""), cls=type(model).__name__)
    batch = found.batches[verdict.way.batch]
    mine = trace(subject, batch, load, verdict.way, seed=subject.seed)
    theirs = old.trace(verdict.way)
    if verdict.differences[0].kind == "structure":
        step, before = _recast(mine, theirs), None
    else:
        step, before = parting(mine, theirs, ALLOWED), parting(theirs, mine, ALLOWED)
    if step is None:
        module = verdict.differences[0].name.rpartition(".")[0]
        if verdict.differences[0].kind not in ("gradient", "statistics"):
            module = ""
        return of_module(model, module, edits)
    return _of_step(model, step, before, edits)


def _of_step(model: nn.Module, step: Step, before: Step | None, edits: Edits) -> Place:
    module, own = step.op.module, _module(model, step.op.module)
    made = sources.of_parameter(model, module) if module else None
    called = step.op.location
    written = own is not None and sources.is_own_class(type(own))
    if not written and (edit := edits.at(made)) is not None:
        return _place(model, module, step, edit.new, edit, sure=True)
    around = module if written else module.rpartition(".")[0]  # whose forward holds the line
    if (edit := edits.at(called)) is not None:
        return _place(model, around, step, edit.new, edit, sure=True)
    if written and (edit := edits.at(made)) is not None:
        return _place(model, module, step, edit.new, edit, sure=True)
    if before is not None and (there := before.op.location) is not None:
        edit = edits.before(there.file, there.line)
        if edit is not None:
            return _place(model, around, step, edit.new, edit, sure=True)
    found = _edits_of(edits, model, module)
    if len(found) == 1:
        return _place(model, module, step, found[0].new, found[0], sure=False)
    return _place(model, module, step, called or made, next(iter(found), None), sure=False)


def _place(
    model: nn.Module,
    module: str,
    step: Step,
    line: Location | None,
    edit: Edit | None,
    *,
    sure: bool,
) -> Place:
    own = _module(model, module)
    cls = step.op.module_class if own is None else type(own).__name__
    return Place(
        module=module, cls=cls, operation=step.op.name, called=step.op.location, line=line, edit=edit,
        sure=sure,
    )  # fmt: skip


def of_module(model: nn.Module, name: str, edits: Edits) -> Place:
    """Find the edit that explains a change of a module, or of what it holds."""
    own = _module(model, name)
    made = sources.of_parameter(model, name) if name else None
    if (edit := edits.at(made)) is not None:
        return Place(module=name, cls=type(own).__name__, line=edit.new, edit=edit, sure=True)
    edit = _only(edits, model, name)
    return Place(
        module=name, cls=type(own).__name__ if own is not None else "",
        line=edit.new if edit is not None else made, edit=edit,
    )  # fmt: skip


def of_entry(model: nn.Module, name: str, edits: Edits) -> Place:
    """Find the edit that explains a change of a parameter or buffer; one that the model no longer has too."""
    made = sources.of_parameter(model, name)
    module = name.rpartition(".")[0]
    cls = type(_module(model, module)).__name__
    if (edit := edits.at(made)) is not None:
        return Place(module=module, cls=cls, line=edit.new, edit=edit, sure=True)
    return of_module(model, module, edits)


def of_costs(model: nn.Module, lines: Sequence[Location], edits: Edits) -> Place:
    """Find the edit of the lines that hold more memory, or of what runs more often."""
    for line in lines:
        if (edit := edits.at(line)) is not None:
            return Place(line=edit.new, edit=edit, sure=True)
    for module in (name for name, _ in model.named_modules()):
        own = _module(model, module)
        if own is not None and (found := edits.of_class(type(own))):
            return Place(module=module, cls=type(own).__name__, line=found[0].new, edit=found[0])
    edit = _only(edits, model, "")
    return Place(line=edit.new if edit else None, edit=edit)


def _module(model: nn.Module, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


def _only(edits: Edits, model: nn.Module, name: str) -> Edit | None:
    return next(iter(_edits_of(edits, model, name)), None)


def _edits_of(edits: Edits, model: nn.Module, name: str) -> list[Edit]:
    """Return the edits of the class of a module, else of the innermost one around it that has any, else of their files.

    Edits of files count only where there is one alone.
    """
    parts = name.split(".") if name else []
    for depth in range(len(parts), -1, -1):
        module = _module(model, ".".join(parts[:depth]))
        found = edits.of_class(type(module)) if module is not None else []
        if found:
            return found
    rest = edits.of_files(snapshot.files_of(model))
    return rest if len(rest) == 1 else []


def _recast(mine: Trace, theirs: Trace) -> Step | None:
    """Return the first operation that makes a dtype which the other run never has on the way to its outputs."""
    then = {theirs.values[place].dtype for place in theirs.outputs}
    for place in mine.outputs:
        dtype = mine.values[place].dtype
        if dtype in then or not (dtype.is_floating_point or dtype.is_complex):
            continue
        for step in mine.steps:
            made = {mine.values[p].dtype for p in step.results}
            read = {mine.values[p].dtype for p in step.operands if p in mine.makers}
            if dtype in made and dtype not in read:
                return step
    return None
