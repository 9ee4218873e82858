"""The line to look at for a change: the edit that explains it, where one does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import sources
from ..findings import Location
from ..lean import dataclass
from . import snapshot
from .traces import ALLOWED, parting, trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from ..probes.recorded.operations import Step, Trace
    from ..subject import Subject
    from .judge import Judgement
    from .lines import Edit, Edits
    from .traces import Verdict
    from .version import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a change comes from.

    Attributes:
        module: Qualified name of the module; empty for the model itself.
        cls: Name of its class; empty where no module is known.
        step: The operation whose result differs, None where none was found.
        line: The line to look at: of the edit, else of the operation.
        edit: The edit that explains it, None where no edit of the project's files does.
        sure: Whether the edit is that of a line that ran, or that made the module.
    """

    module: str = ""
    cls: str = ""
    step: Step | None = None
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
    first = verdict.differences[0]
    if old is None:
        parted = next((one.name for one in verdict.differences if one.kind == "module"), None)
        return Place() if parted is None else of_module(model, parted, edits)
    if first.kind == "error":
        return _of_line(model, "", first.line, edits)
    mine = trace(subject, found.batches[verdict.way.batch], load, verdict.way, seed=subject.seed)
    theirs = old.trace(verdict.way)
    if first.kind == "structure":
        step, before = _recast(mine, theirs), None
    else:
        step, before = parting(mine, theirs, ALLOWED), parting(theirs, mine, ALLOWED)
    if step is not None:
        return _of_step(model, step, before, edits)
    owned = first.kind in ("gradient", "statistics")
    return of_module(model, first.name.rpartition(".")[0] if owned else "", edits, around=True)


def _of_step(model: nn.Module, step: Step, before: Step | None, edits: Edits) -> Place:
    """Find the edit that explains an operation: of its line, its module's or the old one's, else one around these."""
    module, called = step.op.module, step.op.location
    own = _module(model, module)
    made = sources.of_parameter(model, module) if module else None
    written = own is not None and sources.is_own_class(type(own))
    around = module if written else module.rpartition(".")[0]  # whose forward holds the line
    lines = [(called, around), (made, module)]
    tried = [(edits.at(line), name) for line, name in (lines if written else reversed(lines))]
    if before is not None and (there := before.op.location) is not None:
        tried.append((edits.before(there.file, there.line), around))
    for edit, name in tried:
        if edit is not None:
            return _place(model, name, edit.new, edit, sure=True, step=step)
    callers = [edit for line in step.callers if (edit := edits.at(line)) is not None]
    holder, found = _edits_of(edits, model, module)
    if called is not None and (nearer := edits.of_function(called)):
        holder, found = module, nearer
    found = [edit for edit in callers if edit in found] or found or callers
    if not found:
        return _place(model, module, called or made, None, step=step)
    calls = found[0] in callers and not edits.of_class(type(own))
    return _place(model, holder if calls else module, found[0].new, found[0], step=step)


def _place(
    model: nn.Module,
    module: str,
    line: Location | None,
    edit: Edit | None,
    *,
    sure: bool = False,
    step: Step | None = None,
) -> Place:
    own = _module(model, module)
    cls = type(own).__name__ if own is not None else step.op.module_class if step else ""
    return Place(module=module, cls=cls, step=step, line=line, edit=edit, sure=sure)


def _of_line(
    model: nn.Module, name: str, line: Location | None, edits: Edits, *, around: bool = True
) -> Place:
    """Find the edit of a line of a module, else the first one of its class, or of a module around it.

    Args:
        model: The model.
        name: The module.
        line: The line.
        edits: The edits.
        around: Whether the place is the module whose class was edited, and not the one named.
    """
    if (edit := edits.at(line)) is not None:
        return _place(model, name, edit.new, edit, sure=True)
    holder, found = _edits_of(edits, model, name)
    if not found:
        return _place(model, name, line, None)
    return _place(model, holder if around else name, found[0].new, found[0])


def of_module(model: nn.Module, name: str, edits: Edits, *, around: bool = False) -> Place:
    """Find the edit that explains a change of a module, or of what it holds."""
    made = sources.of_parameter(model, name) if name else None
    return _of_line(model, name, made, edits, around=around)


def of_entry(
    model: nn.Module, name: str, edits: Edits, was: Mapping[str, Any] | None = None
) -> Place:
    """Find the edit that explains a change of a parameter or buffer.

    Args:
        model: The model.
        name: The entry.
        edits: The edits.
        was: The line of the reference that made an entry which the model no longer has.
    """
    module = name.rpartition(".")[0]
    gone = None if was is None else edits.before(was["file"], was["line"])
    if gone is not None:
        return _place(model, module, gone.new, gone, sure=True)
    made = sources.of_parameter(model, name)
    if edits.at(made) is None:
        return of_module(model, module, edits)
    return _of_line(model, module, made, edits)


def of_costs(
    model: nn.Module,
    now: Sequence[Mapping[str, Any]],
    then: Sequence[Mapping[str, Any]],
    edits: Edits,
) -> Place:
    """Find the edit of the line whose memory at the peak grew most, else one of what runs.

    Args:
        model: The model.
        now: Its lines that hold memory, with their bytes.
        then: Those of the reference; a line is known again by its function and its old text.
        edits: The edits.
    """
    before: dict[tuple[str, str], int] = {}
    for one in then:
        key = (one["function"], one["text"])
        before[key] = before.get(key, 0) + one["bytes"]
    grown: list[tuple[int, int, Edit]] = []
    for one in now:
        place = Location(**{key: one[key] for key in ("file", "line", "text", "function")})
        if (edit := edits.at(place)) is not None:
            more = one["bytes"] - before.get((one["function"], edit.was), 0)
            grown.append((more, -len(grown), edit))
    if grown and max(grown)[0] > 0:
        edit = max(grown)[2]
        return Place(line=edit.new, edit=edit, sure=True)
    for module, _ in model.named_modules():
        if found := edits.of_class(type(_module(model, module))):
            return _place(model, module, found[0].new, found[0])
    return _of_line(model, "", None, edits)


def _module(model: nn.Module, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


def _edits_of(edits: Edits, model: nn.Module, name: str) -> tuple[str, list[Edit]]:
    """Return the innermost module around one, or itself, whose class was edited, and these edits.

    Where no class was, those of the model's files count if there is one alone.
    """
    parts = name.split(".") if name else []
    for depth in range(len(parts), -1, -1):
        around = ".".join(parts[:depth])
        module = _module(model, around)
        if module is not None and (found := edits.of_class(type(module))):
            return around, found
    rest = edits.of_files(snapshot.files_of(model))
    return "", rest if len(rest) == 1 else []


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
