"""Lines of a forward that draw, seed, write and keep."""

from __future__ import annotations

import ast
import functools
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...findings import Culprit
from ...objects.peek import length
from ...probes.randomness import find_draws
from ...probes.recorded.watch import Watch, name_of, tensors_in
from ...record.tracing import find_line, line_of
from ...state import seed_everything
from ...state.outer import outer_containers
from ...subject.errors import SubjectError
from ..crashes.place import Place
from ..lines.conditions import deciding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from ...batches import Batch
    from ...findings import Location
    from ...probes.randomness import Draw
    from ...subject import Subject


def eval_run(
    subject: Subject, batch: Batch, *, seed: int = 0, train: bool = False
) -> Callable[[], Any]:
    """Return a function that runs one forward, for probes; call it inside ``pristine``."""
    made = [batch.clone()]  # out of sight of a probe that sees the first call

    def run() -> Any:
        copy = made.pop() if made else batch.clone()
        seed_everything(subject.seed + seed)
        with torch.no_grad():
            subject.model.train(train)
            return subject.call(subject.model, copy)

    return run


def _draws(subject: Subject, *, train: bool) -> tuple[Draw, ...]:
    """List what one forward draws and seeds; the seeding before it is not part of it."""
    copy = subject.batch().clone()
    with subject.pristine() as model, torch.no_grad():
        model.train(train)
        seed_everything(
            subject.seed + 12345
        )  # a seed that no forward sets by itself, so that setting one shows
        return find_draws(lambda: subject.call(model, copy), model)


def drawing_line(
    subject: Subject, *, train: bool = False, global_only: bool = False
) -> Place | None:
    """Return the first line of the forward that draws random numbers.

    Args:
        subject: The model.
        train: Mode of the model.
        global_only: Only draws from the generators of numpy and random count.
    """
    for draw in _draws(subject, train=train):
        if draw.kind != "draw" or (global_only and draw.generator not in ("numpy", "random")):
            continue
        return Place(
            op=draw.op,
            location=draw.location,
            module=draw.module,
            fact=f"this line draws from {_GENERATORS.get(draw.generator, draw.generator)}",
        )
    return None


def seeding_line(subject: Subject, *, train: bool = True) -> Place | None:
    """Return the first line of a forward that seeds a generator, or None."""
    for draw in _draws(subject, train=train):
        if draw.kind == "reseed":
            fact = f"this line seeds {_GENERATORS.get(draw.generator, draw.generator)}"
            return Place(op=draw.op, location=draw.location, module=draw.module, fact=fact)
    return None


_GENERATORS = {
    "torch": "torch's generator",
    "numpy": "numpy's global generator",
    "random": "Python's random",
}


def writing_line(subject: Subject, name: str, *, train: bool = False) -> Place | None:
    """Return the first line of a forward, in eval mode or in train mode, that changes a buffer or parameter."""
    with subject.pristine() as model:
        tensors = dict((*model.named_buffers(), *model.named_parameters()))
        target = tensors[name]
        before = target.detach().clone()
        owner_name, _, leaf = name.rpartition(".")
        owner = model.get_submodule(owner_name)
        found: list[Place] = []
        bound: list[bool] = []

        class Writer(Watch):
            def after(self, func: Any, args: Any, kwargs: Any, result: Any, token: Any) -> None:
                if found or bound:
                    return
                if getattr(owner, leaf, target) is not target:
                    bound.append(True)  # by a statement that ran before this operation
                elif not torch.equal(target, before):
                    scope = self.module_name
                    found.append(
                        Place(
                            op=name_of(func),
                            location=self.locate(),
                            module=scope,
                            fact=f"{name} differs after this line",
                            settings=callers_of(self.frames()),
                        )
                    )

        try:
            with Writer(model):
                eval_run(subject, subject.batch(), train=train)()
        except SubjectError:
            return None
    if bound and (line := _binding_line(subject, name)) is not None:
        fact = f"this line replaces {name} by another tensor"
        return Place(op="", location=line, module="", fact=fact)
    return found[0] if found else None


def _binding_line(subject: Subject, name: str) -> Location | None:
    return next((c.location for c in keeping_lines(subject) if c.name == name), None)


def callers_of(frames: Iterable[FrameType]) -> tuple[Culprit, ...]:
    """Return the lines, up to the module's forward, that call the helper which is running."""
    own = [f for f in frames if sources.rank(f.f_code.co_filename) == 2]
    depth = next((n for n, f in enumerate(own) if f.f_code.co_name == "forward"), 0)
    pairs = [*pairwise(own[: depth + 1])]
    called = [
        Culprit("call", inner.f_code.co_name, "called", sources.of_frame(outer))
        for inner, outer in (pairs if len(pairs) < 3 else (*pairs[:2], pairs[-1]))
    ]
    guards = [
        at for one in called[-1:] if one.location for at in deciding(one.location, whether=True)
    ]
    return (
        *called,
        *(Culprit("call", "condition", "decides whether it runs", at) for at in guards),
    )


def regrouping_line(subject: Subject, batch: Batch, size: int, wrong: int) -> Place | None:
    """Return the operation that reads as many samples as the batch has and gives another number of them.

    Args:
        subject: Whose forward.
        batch: On which the output has a wrong number of samples.
        size: How many samples it has.
        wrong: How many the output has.
    """
    found: list[Place] = []

    class Regrouping(Watch):
        def after(self, func: Any, args: Any, kwargs: Any, result: Any, token: Any) -> None:
            if found or not isinstance(result, torch.Tensor) or not self.scopes:
                return
            read = [t for t in tensors_in((args, kwargs)) if t.dim() and t.shape[0] == size]
            if read and result.dim() and result.shape[0] == wrong:
                before, after = list(read[0].shape), list(result.shape)
                found.append(
                    Place(
                        op=name_of(func),
                        location=self.locate(),
                        module=self.scopes[-1].name,
                        fact=f"{name_of(func)} gives {after} from {before}",
                    )
                )

    with subject.pristine() as model:
        try:
            with Regrouping(model):
                eval_run(subject, batch)()
        except SubjectError:
            return None
    return found[0] if found else None


def keeping_lines(
    subject: Subject, *, train: bool = False, batch: Batch | None = None
) -> list[Culprit]:
    """Return the attributes that a forward binds anew or lengthens, and the lines that do."""
    found: dict[str, Culprit] = {}
    with subject.pristine() as model:
        seen = _attributes(model)

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            if event == "call":
                return False
            for path, (value, size) in _attributes(model).items():
                known = seen.get(path)
                if known is None or known[0] is not value or known[1] != size:
                    seen[path] = (value, size)
                    found[path] = Culprit(
                        "tensor",
                        path,
                        "kept from one call to the next",
                        line_of(frame.f_code, line)
                        if batch is None
                        else _deciding_line(frame, line),
                    )
            return False

        run = eval_run(subject, batch or subject.batch())
        find_line(functools.partial(_training, subject, model) if train else run, watcher)
    return list(found.values())


def resetting(subject: Subject, kept: Culprit) -> str | None:
    """Return the method, beside the constructor and the one that keeps an attribute, that gives it another value."""
    owner, _, attribute = kept.name.rpartition(".")
    module = dict(subject.model.named_modules()).get(owner)
    keeping = "" if kept.location is None else kept.location.function.rpartition(".")[2]
    for cls in type(module).__mro__ if sources.is_own_class(type(module)) else ():
        for place in sources.matches(cls, rf"self\.{re.escape(attribute)}\s*=[^=]"):
            around = sources.function_around(place.file, place.line)
            if around is not None and around.name not in ("__init__", "forward", keeping):
                return around.name
    return None


def reading_lines(kept: list[Culprit]) -> list[Culprit]:
    """Return the first statement, above the line that binds each attribute anew, that reads it in the same function."""
    found = []
    for one in kept:
        name, place = f"self.{one.name.rpartition('.')[2]}", one.location
        function = None if place is None else sources.function_around(place.file, place.line)
        reads = [
            node.lineno
            for node in sources.own_nodes(function)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Load)
            and ast.unparse(node) == name
        ]
        if place is not None and reads and min(reads) < place.line:
            at = sources.of_line(place.file, min(reads), place.function)
            found.append(Culprit("tensor", one.name, "is read here", at))
    return found


_ASKS = frozenset({"size", "dim", "numel", "__len__", "__get__", "is_floating_point", "type"})


class _Reading(Watch):
    """Finds the first operation that takes one tensor."""

    def __init__(self, wanted: torch.Tensor) -> None:
        super().__init__()
        self._wanted = wanted
        self.place: Location | None = None

    def before(self, func: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Look whether the tensor is among the arguments."""
        if self.place is None and getattr(func, "__name__", "") not in _ASKS:
            given = tensors_in((args, kwargs))
            if any(tensor is self._wanted for tensor in given):
                self.place = self.locate()


def reading_line(subject: Subject, path: str, other: Batch) -> Location | None:
    """Return the line at which the base batch's forward reads a tensor that another batch's left in an attribute."""
    with subject.pristine() as model, torch.no_grad():
        eval_run(subject, other)()
        value = _attributes(model).get(path, (None, 0))[0]
        if not isinstance(value, torch.Tensor):
            return None
        run, watch = eval_run(subject, subject.batch()), _Reading(value)
        with watch:
            run()
    return watch.place


def buffer_line(subject: Subject, name: str) -> Location | None:
    """Return the line at which an evaluation of the base batch first reads a buffer."""
    with subject.pristine() as model, torch.no_grad():
        run, watch = eval_run(subject, subject.batch()), _Reading(dict(model.named_buffers())[name])
        with watch:
            run()
    return watch.place


def _deciding_line(frame: FrameType, line: int) -> Location:
    """Return the line that decides to keep something: of a method that the constructor calls too, its call now."""
    owner, caller = frame.f_locals.get("self"), frame.f_back
    built = getattr(getattr(type(owner), "__init__", None), "__code__", None)
    if caller is not None and built is not None and frame.f_code.co_name in built.co_names:
        return line_of(caller.f_code, caller.f_lineno)
    return line_of(frame.f_code, line)


def _training(subject: Subject, model: torch.nn.Module) -> None:
    model.train()
    seed_everything(subject.seed)
    subject.call(model, subject.batch().clone())


_TORCHS_OWN = frozenset(vars(torch.nn.Module()))


def _attributes(model: torch.nn.Module) -> dict[str, tuple[Any, int]]:
    """Return every plain attribute and buffer of the modules by its path, with the length of containers."""
    found: dict[str, tuple[Any, int]] = {}
    for name, module in model.named_modules():
        own = {k: v for k, v in vars(module).items() if k not in _TORCHS_OWN} | dict(
            module._buffers
        )
        for key, value in own.items():
            size = length(value)
            found[f"{name}.{key}" if name else key] = (value, size)
    for name, value in outer_containers(model).items():
        found.setdefault(name, (value, length(value)))
    return found
