"""Which line writes to the inputs of a forward, or lets a graph out of an eval forward though gradients are off."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...explanation import by_forward, counted, on_line
from ...findings import Culprit, Finding
from ...objects import peek, trees
from ...probes.holding.aliasing import find_alias
from ...probes.holding.leaks import grad_line
from ...probes.recorded.watch import Watch, name_of, version_of
from ...record.tracing import find_line
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...text.units import format_bytes
from ...text.wording import have, names_text
from ...verdicts import suspicious, violated
from ..crashes.place import Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from ...findings import Location
    from ...probes.gradient.kept_graph import KeptGraph
    from ...probes.holding.aliasing import Alias
    from ...probes.recorded.overwriting import InPlace
    from ...subject import Subject


def overwritten_input(subject: Subject, written: InPlace) -> Finding:
    """Explain an activation in place of what a block was given, which something else reads afterwards."""
    line, name = written.location, written.module
    layer = (
        subject.model.get_submodule(name) if name in dict(subject.model.named_modules()) else None
    )
    own = bool(name) and peek.attribute(layer, "inplace", False) is True
    held = _written_with(subject, line)
    return violated(
        "block-input-overwritten",
        f"line {line.line} applies an activation in place to the input of its block, and what reads that input later "
        "gets the activated values",
        culprits=[
            Culprit("call", line.function, "overwrites what its block was given", line),
            *(Culprit("tensor", one, "holds the activated values", line) for one in held[:3]),
            *([Culprit("module", name, "works in place", line)] if own else []),
        ],
        location=line,
        observed="with a copy of the input on this line, the output of the model is another one",
        cause="an activation in place writes to the tensor that the caller handed over: a skip connection from it, or "
        "the caller, reads the result of the activation instead",
        because="nothing but this one call was given a copy, and the activation gave the same values"
        + (
            f"; after line {line.line} {names_text(held)} {have(held, 'holds')} them"
            if held
            else ""
        ),
        fix=f"make {name} without inplace=True"
        if own
        else f"leave out inplace=True{on_line(line)}",
    )


def _written_with(subject: Subject, place: Location) -> list[str]:
    """Return the variables whose tensor a line writes to, without those that it assigns where there are others."""
    versions: dict[FrameType, dict[str, tuple[int, int | None]]] = {}
    found: list[str] = []

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        if frame.f_code.co_filename != place.file:
            return False
        now = {
            name: (id(value), version_of(value))
            for name, value in frame.f_locals.items()
            if isinstance(value, torch.Tensor)
        }
        before = versions.get(frame, {})
        versions[frame] = now
        if event != "call" and line == place.line:
            assigned = sources.assigned_name(place)
            same = (n for n, (one, _) in now.items() if n in before and before[n][0] == one)
            written = [n for n in same if now[n][1] != before[n][1]]
            found.extend([n for n in written if n != assigned] or written)
        return bool(found)

    batch = subject.batch().clone()
    with subject.pristine(train=True, seeded=True) as model, torch.no_grad():
        find_line(lambda: subject.call(model, batch), watcher)
    return found


def changed_inputs(subject: Subject, changed: list[str], *, train: bool) -> Iterator[Finding]:
    """Explain inputs that the forward writes to."""
    writer = _writer(subject, changed[0], train=train)
    location = writer.location
    alias = _alias(subject, changed[0], location, train=train)
    names = [by_forward(subject, path) for path in changed]
    yield violated(
        "input-mutated",
        f"the forward changes its input {names_text(names)} in place",
        culprits=[Culprit("input", name, "changed", location) for name in names]
        + ([alias.culprit(names[0])] if alias is not None else []),
        location=location or sources.of_object(type(subject.model).forward),
        observed=f"{counted(len(changed), 'input')} {have(changed, 'differs')} after a forward in "
        f"{'train' if train else 'eval'} mode",
        cause="an operation writes to a tensor that the caller passed"
        + (f" ({writer.ran})" if writer.op else ""),
        because="the values before and after the call are not bit-equal",
        fix=alias.fix if alias is not None else f"{_elsewhere(location)}, or clone the input first",
    )


def _elsewhere(place: Location | None) -> str:
    """Say how the statement on a line writes to a new tensor: by its own names where it is an augmented assignment."""
    for node in sources.around(place.file, place.line, ast.AugAssign) if place is not None else ():
        name = ast.unparse(node.target)
        instead = ast.unparse(ast.BinOp(ast.Name(name), node.op, node.value))
        return f"write to a new tensor: {name} = {instead} instead of {ast.unparse(node)}"
    return "write to a new tensor instead of in place"


def _alias(subject: Subject, path: str, write: Any, *, train: bool) -> Alias | None:
    """Find the line by which an input gets the name that is written to."""
    batch = subject.batch().clone()
    with subject.pristine() as model, torch.no_grad():
        model.train(train)
        seed_everything(subject.seed)
        return find_alias(lambda: subject.call(model, batch), dict(batch.tensors())[path], write)


def _writer(subject: Subject, path: str, *, train: bool) -> Place:
    """Find the line that first changes an input, by watching its values after every operation."""
    batch = subject.batch().clone()
    target = dict(batch.tensors())[path]
    given = target.detach().clone()
    found: list[Place] = []

    class Writer(Watch):
        def before(self, func: Any, args: Any, kwargs: Any) -> bool:
            return not found and trees.same(target, given)  # NumPy may have written before

        def after(self, func: Any, args: Any, kwargs: Any, result: Any, token: Any) -> None:
            if token and not trees.same(target, given):
                op = self.op(name_of(func))
                found.append(
                    Place(
                        op=op.name,
                        location=op.location,
                        module=op.module,
                        module_class=op.module_class,
                    )
                )

    with subject.pristine() as model, torch.no_grad(), Writer(model):
        model.train(train)
        seed_everything(subject.seed)
        try:
            subject.call(model, batch)
        except SubjectError:
            return Place()
    return found[0] if found else Place()


def inference_graph(subject: Subject, paths: Sequence[str], total: int, kept: KeptGraph) -> Finding:
    """Explain outputs that carry a graph under ``no_grad``.

    Where the forward or the loss differentiates them, gradients are on for a reason: then the graph
    costs memory, and the model is not wrong.

    Args:
        paths: Those outputs.
        total: How many outputs there are.
        kept: What was seen.
    """
    summary = f"{paths[0]} carries a graph under no_grad"
    observed = f"{len(paths)} of {total} outputs have a grad_fn; {format_bytes(kept.kept_bytes)} are saved for backward"
    culprits = [Culprit("output", path, "has a grad_fn") for path in paths]
    known = kept.derivatives.get(paths[0])
    if known is None:
        return violated(
            "inference-graph",
            summary,
            culprits=culprits,
            location=grad_line(subject),
            observed=observed,
            cause="the forward enables gradients itself, so inference retains activations",
            because="the call ran under torch.no_grad() and its output still has a grad_fn",
            fix="enable gradients only around the code that needs them, and return the output "
            "detached in eval mode",
        )
    line = on_line(known.location)
    who = "the forward" if known.within else "the loss"
    connected = known.within and known.connected
    return suspicious(
        "inference-graph",
        summary,
        culprits=[
            *culprits,
            Culprit(
                "call",
                "autograd.grad",
                (
                    "computes a derivative, with create_graph=True"
                    if connected
                    else "computes a derivative"
                ),
                known.location,
            ),
        ],
        location=known.location if known.within else grad_line(subject),
        observed=observed,
        cause=f"{who} computes a derivative{line}, which needs gradients enabled; in evaluation "
        "too, the output keeps its graph",
        because="the call ran under torch.no_grad() in eval mode, and its output still has a grad_fn",
        fix=("pass create_graph=self.training" + line + ", and " if connected else "")
        + "return the output detached (.detach()) when not self.training",
    )
