"""What a forward of the base batch does: looked at once for all the checks that ask."""

from __future__ import annotations

import contextlib
import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from . import trees
from .functions.discovery import recording
from .probes.leaks import LiveBytes, count_hooks
from .state import is_lazy, seed_everything
from .subject import SubjectError

if TYPE_CHECKING:
    from torch import nn

    from .batches import Batch
    from .functions.discovery import RecordedCall
    from .subject import Subject

Structure = tuple[tuple[str, str], ...]
"""Path and type of every leaf, as :func:`~pytest_torchcheck.trees.signature` gives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardFacts:
    """What one forward without gradients was seen to do, from the pristine state and the subject's seed.

    Attributes:
        outputs: Copies of the output tensors by path.
        structure: Path and type of every leaf of the output.
        with_graph: Outputs that carry a graph although gradients were off.
        inputs: How many input tensors there were.
        changed_inputs: Those of them that the forward wrote to.
        containers: Structure of the inputs before and after the forward.
        settings: Global settings before and after it.
        consumed: Whether torch's random state moved.
        grown: Keys of ``state_dict()`` that the forward added or reshaped.
        repeats: In eval mode: whether the state is bit-equal afterwards and two further calls run, the first
            with the same outputs. None in training mode.
        steady: In eval mode: whether the last call, with another seed, gave the same outputs too.
        grows: In eval mode: whether the last call left more bytes or hooks behind than the one before.
        compared: How many parameters and buffers ``repeats`` is about.
        applied: In eval mode: calls of the user's autograd Functions and operators in the second call.
    """

    outputs: dict[str, torch.Tensor]
    structure: Structure
    with_graph: tuple[str, ...]
    inputs: int
    changed_inputs: tuple[str, ...]
    containers: tuple[Structure, Structure]
    settings: tuple[dict[str, object], dict[str, object]]
    consumed: bool
    grown: tuple[str, ...]
    repeats: bool | None = None
    steady: bool = False
    grows: bool = False
    compared: int = 0
    applied: tuple[RecordedCall, ...] = ()


def forward_facts(subject: Subject, *, train: bool = False) -> ForwardFacts:
    """Run the base batch once in a mode, in eval mode twice more, and say what happened; cached.

    The first call runs plain, so that its outputs are what any other call of the model gives. The two
    further ones run under a count of live bytes; what they show is a reason to look, never a verdict.

    Raises:
        SubjectError: The first call raised.
    """
    key = ("forward-facts", train)
    if key not in subject.cache:
        subject.cache[key] = _look(subject, train=train)
    found: ForwardFacts = subject.cache[key]
    return found


def outputs(
    subject: Subject, batch: Batch | None = None, *, train: bool = False, seed: int = 0
) -> dict[str, torch.Tensor]:
    """Return copies of the output tensors of a forward without gradients, by path.

    Those of the base batch with the subject's own seed are taken from :func:`forward_facts`.

    Args:
        batch: The base batch by default.
        train: Mode of the model.
        seed: Added to the subject's seed.

    Raises:
        SubjectError: The model raised.
    """
    if seed == 0 and (batch is None or batch is subject.batch()):
        return forward_facts(subject, train=train).outputs
    batch = (subject.batch() if batch is None else batch).clone()
    with subject.pristine() as model, torch.no_grad():
        model.train(train)
        seed_everything(subject.seed + seed)
        return copied(subject.call(model, batch))


def copied(output: object) -> dict[str, torch.Tensor]:
    """Return copies of the tensors of an output: it may hold the model's own, which are put back."""
    return {path: tensor.detach().clone() for path, tensor in trees.tensors(output).items()}


def settings() -> dict[str, object]:
    """Return the global settings that a forward must leave alone, by the call that reads them."""
    return {
        "torch.get_default_dtype()": torch.get_default_dtype(),
        "torch.get_default_device()": torch.get_default_device(),
        "torch.is_grad_enabled()": torch.is_grad_enabled(),
        "torch.get_num_threads()": torch.get_num_threads(),
        "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled(),
        "torch.is_anomaly_enabled()": torch.is_anomaly_enabled(),
        "torch.backends.cudnn.benchmark": torch.backends.cudnn.benchmark,
        "torch.backends.cudnn.deterministic": torch.backends.cudnn.deterministic,
    }


def _look(subject: Subject, *, train: bool) -> ForwardFacts:
    batch = subject.batch().clone()
    inputs = {path: tensor.detach().clone() for path, tensor in batch.tensors().items()}
    holders = dict(batch.tensors())
    containers = trees.signature((batch.args, batch.kwargs))
    with subject.pristine() as model, torch.no_grad():
        model.train(train)
        state = {} if train else _values(subject, model)
        keys = {} if train else _shapes(model)
        seed_everything(subject.seed)
        before, rng = settings(), torch.get_rng_state()
        output = subject.call(model, batch)
        after, consumed = settings(), not torch.equal(rng, torch.get_rng_state())
        grown = () if train else tuple(k for k, s in _shapes(model).items() if keys.get(k) != s)
        made = copied(output)
        structure = trees.signature(output)
        with_graph = tuple(p for p, t in trees.tensors(output).items() if t.grad_fn is not None)
        changed = tuple(p for p, t in holders.items() if not trees.same(inputs[p], t))
        containers_after = trees.signature((batch.args, batch.kwargs))
        del output
        further = {} if train else _repeat(subject, model, state, made)
    return ForwardFacts(
        outputs=made, structure=structure, with_graph=with_graph, inputs=len(inputs), changed_inputs=changed,
        containers=(containers, containers_after), settings=(before, after), consumed=consumed, grown=grown,
        compared=len(state), **further,
    )  # fmt: skip


def _repeat(
    subject: Subject,
    model: nn.Module,
    state: dict[str, torch.Tensor],
    first: dict[str, torch.Tensor],
) -> dict[str, Any]:
    """Call twice more; return what that shows: the fields ``repeats``, ``steady``, ``grows`` and ``applied``."""
    saved = set(model.state_dict(keep_vars=True))
    now = dict((*model.named_buffers(), *model.named_parameters()))
    kept = all(trees.same(t, now[n]) for n, t in state.items() if n in now and n in saved)
    counter = LiveBytes()
    live: list[int] = []
    hooks: list[int] = []
    applied: list[RecordedCall] = []
    same: list[bool] = []
    for number in range(2):
        seed_everything(subject.seed + number)
        batch = subject.batch().clone()
        watch = recording() if number == 0 else contextlib.nullcontext(applied)
        try:
            with counter, watch as applied:
                output = subject.call(model, batch)
        except SubjectError:
            return {
                "repeats": False,
                "grows": True,
            }  # whoever asks runs it plain, and tells the error
        again = trees.tensors(output)
        same.append(all(path in again and trees.same(t, again[path]) for path, t in first.items()))
        del again, output, batch
        if live and counter.live > live[-1]:
            gc.collect(0)  # young cycles, such as those of a traceback, are no leak
        live.append(counter.live)
        hooks.append(count_hooks(model).total())
    return {
        "repeats": kept and same[0],
        "steady": same[1],
        "grows": live[1] > live[0] or hooks[1] > hooks[0],
        "applied": tuple(applied),
    }


def _values(subject: Subject, model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the values of every buffer and parameter: the subject's own copies where it has them."""
    found = {}
    for name, tensor in (*model.named_buffers(), *model.named_parameters()):
        if tensor.device.type == "meta" or tensor.layout != torch.strided:
            continue
        known = subject.state.original(tensor)
        found[name] = tensor.detach().clone() if known is None else known
    return found


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {
        key: tuple(t.shape)
        for key, t in model.state_dict().items()
        if isinstance(t, torch.Tensor) and not is_lazy(t)
    }
