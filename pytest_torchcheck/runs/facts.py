"""What a forward of the base batch does: looked at once for all the checks that ask."""

from __future__ import annotations

import contextlib
import gc
import random
import sys
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..functions.discovery import recording
from ..lean import dataclass
from ..objects import trees
from ..objects.peek import tuple_like
from ..probes.holding.leaks import count_hooks
from ..probes.holding.live_bytes import LiveBytes
from ..state import has_drawn, is_lazy, random_states, saved_state, seed_everything
from ..subject.errors import SubjectError
from .pieces import kept_since, marks

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ..batches import Batch
    from ..functions.discovery import RecordedCall
    from ..subject import Subject

Structure = tuple[tuple[str, str], ...]
"""Path and type of every leaf, as :func:`~pytest_torchcheck.objects.trees.signature` gives it."""


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
        others_moved: Whether the random state of numpy or ``random`` did.
        grown: Keys of ``state_dict()`` that the forward added or reshaped.
        output: The output rebuilt from the copies; None where it is not of tensors in plain containers.
        repeats: In eval mode: whether the state is bit-equal afterwards and a further call runs,
            with the same outputs. None in training mode.
        steady: In eval mode: whether a call with another seed gave the same outputs too.
        grows: In eval mode: whether calls go on leaving bytes or hooks behind.
        compared: How many parameters and buffers ``repeats`` is about.
        applied: In eval mode: calls of the user's autograd Functions and operators in the second call.
        keeps: In eval mode: attributes that the first call binds anew, writes to or makes longer.
        flipped: Modules whose training flag the forward changed.
        shared: In eval mode: outputs whose memory lives on, with the caller's reference gone.
    """

    outputs: dict[str, torch.Tensor]
    structure: Structure
    with_graph: tuple[str, ...]
    inputs: int
    changed_inputs: tuple[str, ...]
    containers: tuple[Structure, Structure]
    settings: tuple[dict[str, object], dict[str, object]]
    consumed: bool
    others_moved: bool
    grown: tuple[str, ...]
    output: Any = None
    repeats: bool | None = None
    steady: bool = False
    grows: bool = False
    compared: int = 0
    applied: tuple[RecordedCall, ...] = ()
    keeps: tuple[str, ...] = ()
    flipped: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()


def forward_facts(subject: Subject, *, train: bool = False) -> ForwardFacts:
    """Run the base batch once in a mode, in eval mode once or twice more, and say what happened; cached.

    The first call runs plain, so that its outputs are what any other call of the model gives. The
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

    Those of the base batch with the subject's own seed are taken from :func:`forward_facts`; those of
    its first samples, and of another batch's, in eval mode are kept, since several checks compare with them.

    Args:
        batch: The base batch by default.
        train: Mode of the model.
        seed: Added to the subject's seed.

    Raises:
        SubjectError: The model raised.
    """
    if seed == 0 and (batch is None or batch is subject.batch()):
        return forward_facts(subject, train=train).outputs
    kept: dict[int, dict[str, torch.Tensor]] | None = None
    fewer = subject.cache.get("few", {}).values()
    if seed == 0 and not train and any(batch is few for _, few in fewer):
        kept = subject.cache.setdefault("few-outputs", {})
        if id(batch) in kept:
            return kept[id(batch)]
    given = (subject.batch() if batch is None else batch).clone()
    with subject.pristine() as model, torch.no_grad():
        model.train(train)
        seed_everything(subject.seed + seed)
        found = copied(subject.call(model, given))
    if kept is not None:
        kept[id(batch)] = found
    return found


def evaluated(subject: Subject) -> Any:
    """Return the output of the base batch in eval mode, without a graph, as :meth:`Subject.forward` does.

    The caller may write to its tensors. Cost: that of a copy where :func:`forward_facts` could
        rebuild the output.

    Raises:
        SubjectError: The model raised.
    """
    seen = forward_facts(subject).output
    return subject.forward() if seen is None else _rebuilt(seen, lambda t: t.detach().clone())


def output_for_loss(subject: Subject) -> Any:
    """Return an output that the declared loss is made for, without a graph.

    That of the base batch in eval mode; where the model returns something of another form in training
    (heads for auxiliary losses, a prediction for each level), or other masks and numbers of what is to
    be compared, that of training.

    Raises:
        SubjectError: The model raised.
    """
    seen, trained = forward_facts(subject).outputs, forward_facts(subject, train=True).outputs
    if forms(seen) == forms(trained) and all(
        trees.same(tensor, trained[path])
        for path, tensor in seen.items()
        if not (tensor.is_floating_point() or tensor.is_complex())
    ):
        return evaluated(subject)
    return subject.forward(train=True)


def forms(outputs: dict[str, torch.Tensor]) -> dict[str, int]:
    """Return how many dimensions each tensor of an output has, by its path."""
    return {path: tensor.dim() for path, tensor in outputs.items()}


class _UnknownClassError(Exception):
    """An object that is put together in its own way."""


def _only_fields(value: dict[Any, Any]) -> bool:
    """Say whether a dict is a dataclass too and holds its fields and nothing else, as the outputs of model hubs do."""
    if not is_dataclass(value) or "__init__" not in vars(type(value)):
        return False
    names = {field.name for field in fields(value)}
    held = {name: item for name, item in vars(value).items() if item is not None}
    return held.keys() == value.keys() <= names and all(held[k] is value[k] for k in held)


def _rebuilt(value: Any, copy: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a structure of plain containers with its tensors copied, one copy for each of them."""
    memo: dict[int, torch.Tensor] = {}

    def again(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in memo:
                memo[id(value)] = copy(value)
            return memo[id(value)]
        if type(value) is dict:
            return {key: again(item) for key, item in value.items()}
        if isinstance(value, dict) and _only_fields(value):
            return type(value)(**{key: again(item) for key, item in value.items()})
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return tuple_like(value, [again(item) for item in value])
        if type(value) in (list, tuple):
            return type(value)(again(item) for item in value)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise _UnknownClassError(type(value).__name__)

    return again(value)


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
    few = None if train else _few(subject)
    with subject.pristine() as model, torch.no_grad():
        model.train(train)
        state = {} if train else _values(subject, model)
        keys = {} if train else _shapes(model)
        held = {} if train else marks(model)
        modes = {name: module.training for name, module in model.named_modules()}
        seed_everything(subject.seed)
        before, rng, others = settings(), random_states(), _other_states()
        with subject.ear.listening():
            output = subject.call(model, batch)
        after, consumed = settings(), has_drawn(rng)
        others_moved = others != _other_states()
        grown = () if train else tuple(k for k, s in _shapes(model).items() if keys.get(k) != s)
        keeps = () if train else kept_since(model, held, modes)
        flipped = tuple(
            n for n, m in model.named_modules() if m.training != modes.get(n, m.training)
        )
        if flipped:
            model.train(train)
        made = copied(output)
        structure = trees.signature(output)
        with_graph = tuple(p for p, t in trees.tensors(output).items() if t.grad_fn is not None)
        changed = tuple(p for p, t in holders.items() if not trees.same(inputs[p], t))
        containers_after = trees.signature((batch.args, batch.kwargs))
        whole = None if train else _whole(output, made)
        memory = {} if train else _memory(output)
        del output
        shared = tuple(path for path, storage in memory.items() if not storage.expired())
        # where random numbers are drawn, they may move the other samples
        again = few if few and not consumed else (subject.batch(), made)
        further = {} if train else _repeat(subject, model, state, *again)
    return ForwardFacts(
        outputs=made, structure=structure, with_graph=with_graph, inputs=len(inputs), changed_inputs=changed,
        containers=(containers, containers_after), settings=(before, after), consumed=consumed, others_moved=others_moved,
        grown=grown, output=whole, compared=len(state), keeps=keeps,
        flipped=flipped, shared=shared, **further,
    )  # fmt: skip


def _memory(output: Any) -> dict[str, StorageWeakRef]:
    """Return weak references to what the tensors of an output lie in."""
    return {
        path: StorageWeakRef(tensor.untyped_storage())
        for path, tensor in trees.tensors(output).items()
        if trees.computable(tensor) and trees.address(tensor) is not None
    }


def _whole(output: Any, made: dict[str, torch.Tensor]) -> Any:
    """Return the output with copies in place of its tensors, or None where it cannot be put together from them."""
    copies = {id(t): made[path] for path, t in trees.tensors(output).items()}
    if any(t.is_inference() for t in trees.tensors(output).values()):
        return None  # such tensors take no gradient, which copies would
    try:
        return _rebuilt(output, lambda t: copies[id(t)])
    except (_UnknownClassError, KeyError, TypeError):
        return None


def _other_states() -> tuple[Any, ...]:
    """Return the random states of ``random`` and, where it is loaded, numpy."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return (random.getstate(),)
    kind, words, *rest = numpy.random.get_state()
    return random.getstate(), kind, words.tobytes(), tuple(rest)


def _few(subject: Subject) -> tuple[Batch, dict[str, torch.Tensor]] | None:
    """Return some samples and their outputs in eval mode; None where the model has not so few, or refuses them."""
    few = subject.few(subject.batch())
    with contextlib.suppress(SubjectError):
        return None if few is None else (few, outputs(subject, few))
    return None


def _repeat(
    subject: Subject,
    model: nn.Module,
    state: dict[str, torch.Tensor],
    given: Batch,
    first: dict[str, torch.Tensor],
) -> dict[str, Any]:
    """Call again with another seed, and with the same where that is not decided; return what that shows.

    Args:
        subject: Whose model.
        model: The model, after a forward of the base batch.
        state: Its values before that.
        given: What it is called with now: a few samples show what all of them show.
        first: The outputs that a call with these gave from the pristine state, in eval mode.

    Returns:
        The fields ``repeats``, ``steady``, ``grows`` and ``applied``.
    """
    saved = saved_state(model)
    now = dict((*model.named_buffers(), *model.named_parameters()))
    kept = all(trees.same(t, now[n]) for n, t in state.items() if n in now and n in saved)
    counter = LiveBytes()
    counter.know((*model.parameters(), *model.buffers()))
    live = [counter.live]
    hooks: list[int] = [count_hooks(model).total()]
    applied: list[RecordedCall] = []
    same: list[bool] = []
    for seed in (1, 0):  # what is the same with another seed repeats with the same one
        seed_everything(subject.seed + seed)
        batch = given.clone()
        watch = recording() if seed else contextlib.nullcontext(applied)
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
        if counter.live > live[-1]:
            gc.collect(0)  # young cycles, such as those of a traceback, are no leak
        live.append(counter.live)
        hooks.append(count_hooks(model).total())
        if same[0] and live[1] <= live[0] and hooks[1] <= hooks[0]:
            break
    return {
        "repeats": kept and same[-1],
        "steady": same[0],
        "grows": len(live) > 2 and (live[2] > live[1] or hooks[2] > hooks[1]),
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


def kept_by(subject: Subject, batch: Batch) -> tuple[tuple[str, ...], dict[str, torch.Tensor]]:
    """Run a batch in eval mode; return the attributes that the call binds, writes to or lengthens, and its outputs.

    Raises:
        SubjectError: The model raised.
    """
    with subject.pristine(train=False, seeded=True) as model, torch.no_grad():
        held, there = marks(model), {name for name, _ in model.named_modules()}
        output = subject.call(model, batch.clone())
        return kept_since(model, held, there), copied(output)


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {
        key: tuple(t.shape)
        for key, t in saved_state(model).items()
        if isinstance(t, torch.Tensor) and not is_lazy(t)
    }
