"""Forwards and losses are tried on the CPU before a GPU sees them, and called with the graph that they need."""

from __future__ import annotations

import contextlib
import copy
import re
import traceback
import warnings
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from .. import sources
from ..declared.callables import loss_of
from ..objects import trees
from ..record.lines import traced
from ..state import has_drawn, is_range_error, random_states, randomness_kept
from ..text.printable import message_of
from .errors import SubjectError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..batches import Batch
    from ..findings import Location
    from .errors import Phase

_PACKAGE: Final = __name__.partition(".")[0] + "."
_INDICES = (torch.int64, torch.int32, torch.int16)
_HOOKS: tuple[dict[Any, Any], ...] = (
    nn.modules.module._global_forward_pre_hooks,
    nn.modules.module._global_forward_hooks,
)


class Tried:
    """What raised on the CPU, and does so again.

    Attributes:
        model: The copy that ran; None where only a loss did.
        batch: On the CPU.
        device: Where they are.
    """

    device = "cpu"

    def __init__(self, model: nn.Module | None, batch: Batch, run: Callable[[], Any]) -> None:
        self.model, self.batch, self._run = model, batch, run

    def __call__(self) -> Any:
        """Do it again."""
        return self._run()


class Rehearsal:
    """Tries on the CPU what a kernel of a GPU can only assert, each set of sizes and indices once.

    Checks give models and losses other sizes, orders and labels than their users do, and what does not fit
    is to be an error of that run, not the loss of the device. A user's own index out of range is told with its
    line, too. What cannot be moved to the CPU is not tried.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: dict[Any, tuple[Exception, Tried] | None] = {}
        self._copy: nn.Module | None = None
        self.once: list[tuple[SubjectError, bool]] = []
        self._again: set[tuple[Any, ...]] = set()

    def notice(self, error: SubjectError, again: Callable[[], Any] | None) -> None:
        """Keep an error that does not come when the same call is made again: no check may take it for an answer.

        Of forwards and losses only: a step that is taken again is another one.

        Args:
            error: Of one phase.
            again: Makes the call again. Whether that draws random numbers is kept too: they may be the reason.
        """
        if again is None or error.phase not in ("forward", "loss"):
            return
        frames = [frame for frame, _ in traceback.walk_tb(error.error.__traceback__)]
        if not frames or str(frames[-1].f_globals.get("__name__")).startswith(_PACKAGE):
            return  # an observer's own
        last = frames[-1]
        key = error.phase, type(error.error), last.f_code, last.f_lineno, message_of(error.error)
        if key in self._again:
            return  # it came again before
        before = random_states()
        try:
            again()
        except Exception:  # as it did
            self._again.add(key)
        else:
            self.once.append((error, has_drawn(before)))

    def forward(self, model: nn.Module, batch: Batch, invoke: Callable[..., Any]) -> None:
        """Try a forward where the batch holds indices.

        Args:
            model: On the device.
            batch: On the device.
            invoke: Calls a model with a batch.

        Raises:
            SubjectError: An index or a value is out of range.
        """
        if not _is_due(self._device):
            return
        with _unrecorded():
            tensors = _held(dict(batch.input_leaves()), self._device)
            if not any(map(_is_index, tensors.values())):
                return
            key = ("forward", model.training, _sizes(tensors))
        if key not in self._known:
            self._known[key] = _tried(
                batch, lambda own, moved: invoke(own, moved), lambda: self._on_cpu(model)
            )
        self._tell("forward", key)

    def loss(self, loss: Any, output: Any, batch: Batch) -> None:
        """Try a loss of an output: one that a model has computed once for each set of targets, any other each time.

        Args:
            loss: A function or a module.
            output: On the device.
            batch: With the targets.

        Raises:
            SubjectError: As in :meth:`forward`.
        """
        if not _is_due(self._device):
            return
        with _unrecorded():
            held = _held(trees.tensors(output), self._device)
            if not held:
                return
            inputs = dict(batch.input_leaves())
            targets = {path: t for path, t in batch.tensors().items() if path not in inputs}
            key = ("loss", _sizes(held), _sizes(targets))
            computed = any(t.grad_fn is not None for t in held.values())
        if not computed or key not in self._known:

            def run(_model: object, moved: Batch) -> None:
                on_cpu = {id(t): t.detach().to("cpu", copy=True) for t in held.values()}
                own = copy.deepcopy(loss) if isinstance(loss, nn.Module) else loss
                loss_of(own, trees.substitute(output, on_cpu), moved.targets)

            self._known[key] = _tried(batch, run, lambda: None)
        self._tell("loss", key)

    def _tell(self, phase: Phase, key: Any) -> None:
        if (found := self._known[key]) is not None:
            error, tried = found
            raise SubjectError(phase, error, tried.batch, tried) from error

    def _on_cpu(self, model: nn.Module) -> nn.Module:
        """Return a copy of the model on the CPU, in its modes; no copy is made on the device."""
        if self._copy is None:
            held: dict[int, Any] = {}
            for tensor in (*model.parameters(), *model.buffers()):
                moved = tensor.detach().to("cpu")
                held[id(tensor)] = (
                    nn.Parameter(moved, requires_grad=tensor.requires_grad)
                    if isinstance(tensor, nn.Parameter)
                    else moved
                )
            self._copy = copy.deepcopy(model, held)
        for one, other in zip(self._copy.modules(), model.modules(), strict=False):
            one.training = other.training
        return self._copy


def _tried(
    batch: Batch, run: Callable[[Any, Batch], Any], copied: Callable[[], nn.Module | None]
) -> tuple[Exception, Tried] | None:
    """Do something on the CPU that no watch sees; return what it raised, where a GPU could only assert it."""
    model = moved = None
    with _unseen():
        try:
            model, moved = copied(), batch.to(device="cpu")
            run(model, moved.clone())
        except Exception as error:  # whatever else it raises, it raises on the device too
            if moved is not None and (isinstance(error, IndexError) or is_range_error(error)):
                given = moved
                return error, Tried(model, given, lambda: run(model, given.clone()))
    return None


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    """Let no tracer, mode or hook of a recorded run see what happens inside, and draw from no generator."""
    hooks = [dict(held) for held in _HOOKS]
    for held in _HOOKS:
        held.clear()
    try:
        with (
            traced(None), _unrecorded(), randomness_kept(), warnings.catch_warnings(),
            torch.no_grad(),
        ):  # fmt: skip
            warnings.simplefilter("ignore")
            yield
    finally:
        for held, before in zip(_HOOKS, hooks, strict=True):
            held.update(before)


@contextlib.contextmanager
def _unrecorded() -> Iterator[None]:
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


def _is_due(device: torch.device) -> bool:
    """Say whether kernels of a device assert, where nothing is captured and nobody counts what waits."""
    return (
        device.type == "cuda"
        and not torch.cuda.is_current_stream_capturing()
        and not torch.cuda.get_sync_debug_mode()
    )


def _held(leaves: dict[str, Any], device: torch.device) -> dict[str, torch.Tensor]:
    """Return the tensors among leaves where one of them is on a device."""
    tensors = {p: t for p, t in leaves.items() if isinstance(t, torch.Tensor) and not t.is_nested}
    return tensors if any(t.device.type == device.type for t in tensors.values()) else {}


def _is_index(leaf: torch.Tensor) -> bool:
    return leaf.dtype in _INDICES


def _sizes(tensors: dict[str, torch.Tensor]) -> tuple[Any, ...]:
    """Return what tells sizes and indices of some tensors apart."""
    return tuple(
        (path, t.shape, tuple(t.flatten().tolist()) if _is_index(t) else None)
        for path, t in tensors.items()
    )


_NEEDS_GRAPH: Final = re.compile(r"requires?[_ ]grad|grad_fn|require gradient")


class Graphs:
    """Knows in which mode a model raises where no graph is recorded, and calls it with one there.

    Attributes:
        needed: By mode (True for training): the line that raised without a graph, and ran with one;
            absent where the model runs without.
    """

    def __init__(self) -> None:
        self.needed: dict[bool, Location | None] = {}
        self._free: set[bool] = set()

    def call(self, model: nn.Module, forward: Callable[[], Any]) -> Any:
        """Run a forward of the model; where gradients are off and it cannot do without, the output is cut off."""
        mode = model.training
        if torch.is_grad_enabled() or torch.is_inference_mode_enabled() or mode in self._free:
            return forward()
        if mode in self.needed:
            return _with_graph(forward)
        before = torch.default_generator.clone_state()  # no tensor: memory may be measured here
        try:
            made = forward()
        except RuntimeError as error:
            if not _NEEDS_GRAPH.search(str(error)):
                raise
            torch.set_rng_state(before.get_state())
            try:
                made = _with_graph(forward)
            except Exception:  # it fails for another reason, which the first error tells as well
                raise error from None
            self.needed[mode] = sources.of_error(error)
            return made
        self._free.add(mode)
        return made


def opened(output: Any) -> Any:
    """Take the nested tensors of an output apart, and return it as it was.

    Sizes that do not fit the values are a mistake of the forward, and raise only where somebody reads them.
    """
    many = isinstance(output, dict | list | tuple)
    for part in (output.values() if isinstance(output, dict) else output) if many else (output,):
        if isinstance(part, torch.Tensor) and part.is_nested:
            part.unbind()
    return output


def _with_graph(forward: Callable[[], Any]) -> Any:
    with torch.enable_grad():
        made = forward()
    return trees.substitute(made, {id(t): t.detach() for t in trees.tensors(made).values()})
