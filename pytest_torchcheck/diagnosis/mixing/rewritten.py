"""Statistics that an eval forward takes from its own batch, keeps in buffers, and computes with."""

from __future__ import annotations

import ast
import contextlib
from typing import TYPE_CHECKING, Any

from torch import nn

from ... import sources
from ...explanation import on_line
from ...findings import Culprit
from ...loop.patches import wrap
from ...probes.holding.holders import lines_run
from ...record.tracing import find_line, line_of
from ...runs.outputs import gaps_between, outputs_of
from ...subject.errors import SubjectError
from ...text.wording import names_text
from ..crashes.place import Place
from ..outputs.eval_lines import callers_of, eval_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    import torch

    from ...batches import Batch
    from ...findings import Location
    from ...runs.outputs import Rows
    from ...subject import Subject

_SLIGHT = 1e-5
_SHORT = 60


def rewritten(
    subject: Subject,
    first: Batch,
    second: Batch,
    rows: Rows,
    of_first: torch.Tensor,
    of_second: torch.Tensor,
) -> Place | None:
    """Return the line at which an eval forward replaces a buffer, where samples are alike in two batches without that.

    Args:
        subject: The model; it runs three times more where its eval forward replaces buffers.
        first, second: The batches.
        rows: Where the samples stand in the outputs.
        of_first, of_second: int64 ``[n]``, which samples of each are compared.
    """
    try:
        with subject.pristine() as model:
            before = dict(model.named_buffers())
            outputs_of(subject, model, first)
            now = dict(model.named_buffers())
        names = [n for n, buffer in before.items() if now.get(n) is not buffer]
        if not names:
            return None
        with subject.pristine() as model, _held(model, names):
            made = [outputs_of(subject, model, batch) for batch in (first, second)]
    except SubjectError:
        return None
    if max(gaps_between(made[0], made[1], rows, of_first, of_second).values()) >= _SLIGHT:
        return None
    return _place(subject, names)


@contextlib.contextmanager
def _held(model: nn.Module, names: list[str]) -> Iterator[None]:
    """Leave out every assignment to some buffers inside."""
    parts = (name.rpartition(".") for name in names)
    kept = {(id(model.get_submodule(owner)), leaf) for owner, _, leaf in parts}

    def assign(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (id(args[0]), args[1]) not in kept:
            original(*args, **kwargs)

    with contextlib.ExitStack() as stack:
        wrap(stack, nn.Module, "__setattr__", assign)
        yield


def _by(guard: Location) -> str:
    """Return what a line that decides reads, as the end of a sentence; nothing where it is no short expression."""
    line = sources.statement(guard.file, guard.line)
    read = line.test if isinstance(line, ast.If) else getattr(line, "value", None)
    told = ast.unparse(read) if isinstance(read, ast.expr) else ""
    return f", by {told}" if 0 < len(told) <= _SHORT else ""


def _place(subject: Subject, names: list[str]) -> Place:
    """Return the first line that replaces one of the buffers, with what decides that it runs."""
    found: list[tuple[Location, tuple[Culprit, ...]]] = []
    with subject.pristine() as model:
        given = dict(model.named_buffers())

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            now = dict(model.named_buffers()) if event != "call" else given
            if any(now.get(name) is not given[name] for name in names):
                frames, outer = [frame], frame.f_back
                while outer is not None:
                    frames.append(outer)
                    outer = outer.f_back
                found.append((line_of(frame.f_code, line), callers_of(frames)))
            return bool(found)

        find_line(eval_run(subject, subject.batch()), watcher)
    with subject.pristine(), lines_run() as ran:
        eval_run(subject, subject.batch())()
    line, settings = found[0] if found else (None, ())
    guards = [c for c in settings if c.location and (c.location.file, c.location.line) in ran]
    guard = next((c.location for c in guards if c.name == "condition"), None)
    buffers = names_text(names)
    return Place(
        op="assignment",
        location=line,
        module=names[0].rpartition(".")[0],
        fact=f"with the assignments to {buffers} left out, the sample keeps its output",
        settings=(
            *(Culprit("buffer", n, "replaced in eval mode", line) for n in names[:3]),
            *guards,
        ),
        cause=f"an eval forward computes {buffers} from its own batch, and reads "
        + ("it" if len(names) == 1 else "them")
        + (f"; line {guard.line} decides that it does{_by(guard)}" if guard is not None else ""),
        fix="write to buffers in training mode only: "
        + ("if self.training" if guard is None else f"add self.training{on_line(guard)}"),
    )
