"""Whether what a model gives for one input depends on the input that it was given before."""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from ..objects import trees
from ..objects.held import restore_container, shallow
from ..objects.modes import sets_modes
from ..state import isolated, seed_everything
from ..state.outer import outer_containers
from ..state.tensors import named_tensors, refuses
from ..subject.errors import SubjectError
from .facts import copied, forward_facts, outputs
from .outputs import gap
from .saving import perturb, saved_tensors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from torch import nn

    from ..batches import Batch
    from ..subject import Subject


def trained_otherwise(subject: Subject, forget: Collection[str] = ()) -> tuple[str, ...]:
    """Evaluate another batch, then run the base batch in training mode, as :func:`remembered` does.

    Returns:
        Nothing where a forward of the other batch in training mode changes the next one too: the model
        carries something on from call to call, in either mode.
    """
    try:
        found = remembered(subject, forget, then_train=True)
        if not found or forget:
            return found
        return () if remembered(subject, first_train=True, then_train=True) else found
    except SubjectError:
        return ()  # the training forward raises, which other checks explain


def moved_by_modes(subject: Subject) -> list[str]:
    """Return the trained parameters that have other values after eval() and train(), more than rounding can explain.

    What eval() merges and train() takes out again is back. A first train() that initialises is another
    matter, and so is a model whose parameters are too large to be copied.
    """
    state, start = subject.state, subject.model.training
    if not (start and state.has_parameter_copies and sets_modes(subject.model)):
        return []

    def moved(*modes: bool) -> list[str]:
        with subject.pristine(steps=True) as model:
            for mode in modes:
                (model.train if mode else model.eval)()
            return [
                name
                for name, p in model.named_parameters()
                if p.requires_grad and _differs(p, state.original(p))
            ]

    found = moved(False, True)
    first = moved(True) if found else []
    return [
        name for name in found if name not in first and not subject.is_promised("MayChange", name)
    ]


def _differs(now: torch.Tensor, then: torch.Tensor | None) -> bool:
    if then is None or not now.is_floating_point():
        return False
    if not (gap := trees.worst(now, then)):
        return False
    return gap > max(1e-4, 8 * torch.finfo(now.dtype).eps) * (trees.scale(then) or 1.0)


def remembered(
    subject: Subject,
    forget: Collection[str] = (),
    *,
    first_train: bool = False,
    then_train: bool = False,
    other: Batch | None = None,
    base: Batch | None = None,
) -> tuple[str, ...]:
    """Evaluate another batch, then the base batch, with nothing put back in between.

    Args:
        subject: Whose model.
        forget: Paths of attributes that are put back after the first of the two calls.
        first_train: Whether the other batch runs in training mode.
        then_train: Whether the base batch does.
        other: The other batch; one of the same sizes by default.
        base: What is evaluated in place of the base batch.

    Returns:
        Paths of the outputs that are not those of the base batch alone; empty where the other batch
        cannot be run.
    """
    wanted = outputs(subject, base, train=then_train)
    with subject.pristine() as model, torch.no_grad():
        before = {path: kept_value(model, path) for path in forget}
        try:
            model.train(first_train)
            seed_everything(subject.seed + 1)
            subject.call(model, (other or subject.batch(1)).clone())
        except SubjectError:
            return ()
        for path, value in before.items():
            put_value(model, path, value)
        model.train(then_train)
        seed_everything(subject.seed)
        again = copied(subject.call(model, (base or subject.batch()).clone()))
    if gap(again, wanted) is None:
        return ()
    return tuple(p for p, t in wanted.items() if p not in again or not trees.same(t, again[p]))


def overwritten(subject: Subject) -> dict[str, str]:
    """Evaluate the base batch and then another one, and look whether the first output, still held, changes.

    Returns:
        By the paths of the outputs that do: the attribute of the model whose memory they share; empty
        where none of the model's does.
    """
    with subject.pristine(train=False, seeded=True) as model, torch.no_grad():
        held = trees.tensors(subject.call(model, subject.batch().clone()))
        before = {path: tensor.detach().clone() for path, tensor in held.items()}
        try:
            subject.call(model, subject.batch(1).clone())
        except SubjectError:
            return {}
        return {
            path: _holder(model, tensor)
            for path, tensor in held.items()
            if not trees.same(tensor, before[path])
        }


def _holder(model: nn.Module, tensor: torch.Tensor) -> str:
    """Return the name of the attribute whose memory a tensor shares, or an empty string."""
    place = tensor.untyped_storage().data_ptr()
    for name, module in model.named_modules():
        own = {k: v for k, v in vars(module).items() if k not in ("_parameters", "_modules")}
        buffers = own.pop("_buffers", {})
        for path, value in {**own, **buffers}.items():
            for other in trees.tensors(value).values():
                if trees.address(other) and other.untyped_storage().data_ptr() == place:
                    return f"{name}.{path}" if name else path
    return ""


def outlived(
    subject: Subject,
    forget: Collection[str] = (),
    *,
    constants: bool = True,
    switched: bool = False,
) -> tuple[str, ...]:
    """Evaluate with other weights, load what an evaluated model saves, and evaluate again: no call of ``train`` or ``eval`` between.

    Args:
        subject: Whose model.
        forget: Paths of attributes that are put back before the second evaluation.
        constants: Whether what is the same in every model of this make is another value as well.
        switched: Whether the model is put into training mode and back after the load.

    Returns:
        Paths of the outputs that are not the saved model's, as :func:`remembered` says; empty where they
        differ without an evaluation before the load too, or without other weights.
    """
    wanted = forward_facts(subject).outputs
    with subject.pristine() as model, torch.no_grad():
        model.eval()
        _evaluate(subject, model)  # where it folds weights, both instances have folded them
        saved = {
            k: v.clone() if isinstance(v, torch.Tensor) else v
            for k, v in model.state_dict().items()
        }

    same: set[str] = set()

    def differ(*, changed: bool, used: bool) -> bool:
        with subject.pristine(steps=True) as model, torch.no_grad():
            model.eval()
            if changed:
                own = {id(t) for name, t in named_tensors(model).items() if name in same}
                perturb(t for t in saved_tensors(model) if id(t) not in own)
            before = {path: kept_value(model, path) for path in forget}
            batch = subject.batch().clone()  # one for both: an answer may be kept by its address
            if used:
                _evaluate(subject, model, batch)
            model.load_state_dict(saved)
            for path, value in before.items():
                put_value(model, path, value)
            if switched:
                model.train()
                model.eval()
            return gap(_evaluate(subject, model, batch), wanted) is not None

    try:
        same.update(() if constants else _constants(subject))
        found = differ(changed=True, used=True)
        if found and not forget:
            found = not differ(changed=True, used=False) and not differ(changed=False, used=True)
    except (SubjectError, RuntimeError):  # other values that the model, or a load that it, refuses
        return ()
    return tuple(wanted) if found else ()


def _constants(subject: Subject) -> set[str]:
    """Return the frozen parameters and the buffers that neither a training forward nor another seed makes different."""
    with subject.pristine(train=True, seeded=True) as model, torch.no_grad():
        before = {
            name: tensor.detach().clone()
            for name, tensor in named_tensors(model).items()
            if not tensor.requires_grad
        }
        subject.call(model, subject.batch().clone())
        others = [named_tensors(model)]
        if subject.contract.is_factory:
            with isolated():
                others.append(named_tensors(subject.build(subject.seed + 1)))
        return {
            name
            for name, tensor in before.items()
            if all(name in other and trees.same(tensor, other[name]) for other in others)
        }


def _evaluate(
    subject: Subject, model: nn.Module, batch: Batch | None = None
) -> dict[str, torch.Tensor]:
    """Run the base batch, or that very batch, in the mode that the model is in."""
    seed_everything(subject.seed)
    return copied(subject.call(model, subject.batch().clone() if batch is None else batch))


def kept_value(model: nn.Module, path: str) -> Any:
    """Return a copy of an attribute or buffer that later writes do not reach; of containers a shallow one."""
    return kept_values(model, (path,))[path]


def kept_values(model: nn.Module, paths: Iterable[str]) -> dict[str, Any]:
    """Return what :func:`kept_value` returns, of many attributes."""
    modules = dict(model.named_modules(remove_duplicate=False))
    outer: dict[str, Any] | None = None
    found = {}
    for path in paths:
        owner, _, key = path.rpartition(".")
        value: Any = _ABSENT
        if (module := modules.get(owner)) is not None:
            value = module._buffers.get(key, vars(module).get(key, _ABSENT))
        if value is _ABSENT:
            outer = outer_containers(model) if outer is None else outer
            if path in outer:
                found[path] = shallow(outer[path])
                continue
        if isinstance(value, torch.Tensor):
            value = value if refuses(value) else value.detach().clone()
        elif isinstance(value, list | dict | set | deque):
            with contextlib.suppress(Exception):  # a subclass of the user's may refuse
                value = copy.copy(value)
        found[path] = value
    return found


_ABSENT = object()


def put_value(model: nn.Module, path: str, value: Any) -> None:
    """Put back what :func:`kept_value` returned."""
    owner, _, key = path.rpartition(".")
    module = model.get_submodule(owner)
    if key not in {**vars(module), **module._buffers} and path in (
        outer := outer_containers(model)
    ):
        restore_container(outer[path], value)
    elif value is _ABSENT:
        vars(module).pop(key, None)
        module._buffers.pop(key, None)
    elif key in module._buffers:
        module._buffers[key] = value
    else:
        vars(module)[key] = value
