"""Weights that a step copies onto themselves, or replaces by a tensor that the optimizer does not hold."""

from __future__ import annotations

import contextlib
import re
import sys
from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ... import sources
from ...findings import Culprit, Finding
from ...lean import dataclass
from ...objects import trees
from ...probes.recorded.watch import readable
from ...record.tracing import line_of
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.gradients import clear_gradients
from ...verdicts import violated
from ..patches import listening
from ..replay import replay
from ..steps import StepWatch, begun, take_steps
from .kept_weights import kept_as_it_is
from .wording import at, few

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import CodeType, FrameType

    from torch import nn

    from ...findings import Location
    from ...record.tracing import Watcher
    from ...subject import Subject
    from ..trace import Trace

_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Other types may have no memory to compare."""


def is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether two tensors are the same elements in the same memory."""
    if "meta" in (one.device.type, other.device.type) or {one.layout, other.layout} != {
        torch.strided
    }:
        return one is other
    return (
        one.device == other.device
        and one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.stride() == other.stride()
    )


@dataclass(slots=True)
class Copies:
    """Counts, by the user's line, the tensors that are copied and those of the model that are copied onto themselves.

    Attributes:
        model: Whose parameters are meant.
        lines: By code and line: how many copies were onto themselves, and how many there were.
    """

    model: nn.Module
    lines: dict[tuple[CodeType, int], list[int]] = field(default_factory=dict)

    def note(self, frame: FrameType | None, args: tuple[Any, ...]) -> tuple[str, ...]:
        """Note one call of ``copy_`` or ``_foreach_copy_``; return the parameters that it copies onto themselves."""
        if frame is None or sources.rank(frame.f_code.co_filename) == 0 or len(args) < 2:
            return ()
        many = isinstance(args[0], list | tuple)
        pairs = list(zip(args[0], args[1], strict=False)) if many else [(args[0], args[1])]
        same = [
            a
            for a, b in pairs
            if type(a) in _PLAIN
            and type(b) in _PLAIN
            and readable(a)
            and readable(b)
            and is_same(a, b)
        ]
        own = [name for one in same if (name := self._name(one))]
        count = self.lines.setdefault((frame.f_code, frame.f_lineno), [0, 0])
        count[0] += len(own)
        count[1] += len(pairs)
        return tuple(own)

    def onto_themselves(self) -> tuple[Location, ...]:
        """Return the lines that copy parameters of the model onto themselves, and nothing else."""
        return tuple(
            line_of(code, line) for (code, line), (own, every) in self.lines.items() if 0 < own == every
        )  # fmt: skip

    def _name(self, tensor: torch.Tensor) -> str:
        """Return the only name of the parameter whose memory a tensor is; a tied one may be copied to its twin."""
        found = [
            name
            for name, parameter in self.model.named_parameters(remove_duplicate=False)
            if tensor.numel() and is_same(parameter, tensor)
        ]
        return found[0] if len(found) == 1 else ""


def copying_findings(subject: Subject, trace: Trace) -> Iterator[Finding]:
    """Yield a line that is to bring weights back after they were exchanged, and copies each onto itself.

    To copy a tensor onto itself is harmless where two names stand for one tensor. Here other values
    were put into the weights since the optimizer set them, a forward ran with those, and they are
    still there after the copying.
    """
    for place in trace.copied_onto_themselves:
        names = _kept_exchanged(subject, place)
        if names:
            yield _finding(place, names)
            return


def _finding(place: Location, names: tuple[str, ...]) -> Finding:
    container, filled = kept_as_it_is(place)
    moved = re.search(r"\.(cpu|to)\(", "" if filled is None else filled.text)
    stays = f"; {moved[0][:-1]}() copies nothing where they already are" if moved else ""
    keeps = f"{container or 'the source of the copy'} holds the weights themselves, not copies"
    return violated(
        "state-loaded-itself",
        f"{place.text} copies {few(names)} onto "
            f"{'itself' if len(names) == 1 else 'themselves'}: nothing is restored",
        culprits=(
            *(
                [Culprit("tensor", container, "keeps the weights themselves", filled)]
                if filled is not None
                else ()
            ),
            Culprit("call", "copy_", "copies them onto themselves", place),
            *(Culprit("parameter", name, "not restored") for name in names[:3]),
        ),
        location=filled or place,
        observed=f"{len(names)} parameters that were replaced for a forward keep the replaced "
            f"values after {at(place)}",
        cause=f"{keeps}: overwriting the weights overwrote the kept values too",
        because=f"at {at(place)} source and destination are the same memory{stays}",
        fix=f"keep copies{f' at {at(filled)}' if filled is not None else ''}: p.detach().clone()",
        evidence={"parameters": list(names)},
    )  # fmt: skip


def _kept_exchanged(subject: Subject, place: Location) -> tuple[str, ...]:
    """Return the parameters that a line copies onto themselves while they hold what a forward ran with in exchange."""
    with begun(subject) as (model, made):
        watch = _Exchanges(model, place)
        with watch.listening(), contextlib.suppress(SubjectError):
            take_steps(subject, model, made, 4, watch)
        return tuple(sorted(watch.kept))


class _Exchanges(StepWatch):
    """Follows parameters from what an optimizer made of them, over a forward with other values, to a copying."""

    def __init__(self, model: nn.Module, place: Location) -> None:
        self.model, self.place = model, place
        self.copies = Copies(model)
        self.settled: dict[str, torch.Tensor] = {}
        self.exchanged: set[str] = set()
        self.kept: set[str] = set()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        handle = register_optimizer_step_post_hook(lambda *_: self._settle())
        with (
            handle,
            listening(
                {"copy": self._copy},
                before_step=lambda *_: None,
                before_forward=lambda _: self._look(),
            ),
        ):
            yield

    def before(self, step: int) -> None:
        if step:
            self._settle()

    def _settle(self) -> None:
        self.settled = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        self.exchanged.clear()

    def _differing(self) -> set[str]:
        return {
            name
            for name, parameter in self.model.named_parameters()
            if (then := self.settled.get(name)) is not None
            and (then.shape != parameter.shape or not torch.equal(then, parameter.detach()))
        }

    def _look(self) -> None:
        self.exchanged |= self._differing()

    def _copy(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        frame = calling_frame()
        own = self.copies.note(frame, args)
        if own and frame is not None and line_of(frame.f_code, frame.f_lineno) == self.place:
            self.kept |= set(own) & self.exchanged & self._differing()
        return original(*args, **kwargs)


def calling_frame() -> FrameType | None:
    """Return the frame that called a function that is patched, from within its handler."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(2):  # the handler and the wrapper
        frame = None if frame is None else frame.f_back
    return frame


class Rebinding:
    """Knows which parameters of a model are other tensors than before, and since when."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._first = dict(model.named_parameters())
        self._since: dict[str, int] = {}
        self._then: dict[str, torch.Tensor] = {}
        self._steps = 0

    def look(self) -> None:
        """Look at the parameters after a step."""
        for name, parameter in self._model.named_parameters():
            if self.before(name, parameter) is not parameter:
                self._since.setdefault(name, self._steps)
                self._then.setdefault(name, parameter.detach().clone())
        self._steps += 1

    def before(self, name: str, parameter: nn.Parameter) -> nn.Parameter:
        """Return the parameter that had a name at first."""
        return self._first.get(name, parameter)

    def left_behind(self, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, int]:
        """Return those that no optimizer holds and that hardly move, and in which step each was first put in place.

        What the last step puts in place is not judged, nor is what the step itself moves: an
            average of its own.
        """
        held = {id(p) for one in optimizers for group in one.param_groups for p in group["params"]}
        return {
            name: self._since[name]
            for name, parameter in self._model.named_parameters()
            if name in self._since and id(parameter) not in held and parameter.requires_grad
            and self._since[name] < self._steps - 1 and _hardly_moves(self._then[name], parameter.detach())
        }  # fmt: skip


_HARDLY = 1e-4
"""Share of its size by which a parameter may change that is only brought back into its range."""


def _hardly_moves(before: torch.Tensor, after: torch.Tensor) -> bool:
    if before.shape != after.shape or not after.numel():
        return False
    return float((after - before).abs().max()) <= _HARDLY * float(before.abs().max())


def is_trained(subject: Subject, name: str, since: int) -> bool:
    """Say whether the gradient of a parameter decides its next values, once a step has put it in place.

    The step after that runs twice: as it is, and with this gradient turned round. Also True where
        it has none.
    """
    plain, turned = _stepped(subject, name, since, None), _stepped(subject, name, since, -3.0)
    return plain is None or turned is None or not trees.same(plain, turned)


def _stepped(subject: Subject, name: str, since: int, factor: float | None) -> torch.Tensor | None:
    """Return a parameter after a step in which its gradient was multiplied; None where it got none."""
    reached: list[bool] = []

    def turn(gradient: torch.Tensor) -> torch.Tensor | None:
        reached.append(bool(gradient.any()))
        return None if factor is None else factor * gradient

    with subject.pristine(steps=True, train=True, seeded=True) as model:
        made = subject.make_optimizer(model)
        clear_gradients(model)
        try:
            for step in range(since + 2):
                seed_everything(subject.seed + step)
                if step == since + 1:
                    dict(model.named_parameters())[name].register_hook(turn)
                subject.train_step(model, made, subject.batch().clone())
        except SubjectError:
            return None
        end = dict(model.named_parameters()).get(name)
        return None if end is None or not any(reached) else end.detach().clone()


def where_rebound(subject: Subject, name: str) -> Location | None:
    """Find the line of the user's step that puts another tensor in a parameter's place."""

    def watch(model: nn.Module, _: Any) -> Watcher:
        first = model.get_parameter(name)

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            return event != "call" and dict(model.named_parameters()).get(name) is not first

        return watcher

    return replay(subject, watch)
