"""The log-determinants that modules return, beside those of the maps that they are seen to be.

A density follows a map by the change of variables: log p(x) = log p(f(x)) + log |det df/dx|, and one that is drawn as
x = f(z) has log q(x) = log q(z) - log |det df/dz|. A likelihood is to rise, and a divergence from a density to fall,
so that the loss falls with the log-determinant either way.
"""

from __future__ import annotations

import inspect
import itertools
import re
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import nn

from ...lean import dataclass
from ...objects import trees
from ...record.hooks import hooked
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.gradients import clear_gradients
from ...subject.remembered import remembered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from ...subject import Subject

NAMED: Final = re.compile(r"log_?(?:abs_?)?det|ldj|log_?jac", re.IGNORECASE)
"""What programs call it: log_det, logabsdet, sldj."""
_LARGEST: Final = 192  # elements of a sample: each takes a backward
_MOST: Final = 12  # modules that are looked at
_JITTER: Final = 0.1
_NEAR: Final = 1e-3
_SMALL: Final = 0.02  # a smaller log-determinant tells nothing

Kind = Literal["equal", "opposite", "partial", "other", "small"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """What a module returned as its log-determinant, and what that of its map is, for one sample.

    Attributes:
        name: The module's.
        told: What it added.
        is_: The log-determinant of its map.
        kind: How the two compare; ``partial`` is what the last of several parts gave.
        times: The whole number that ``told`` lacks as a factor, or 0.
        slope: The slope of the loss to what it returned; 0 where the loss does not read it.
        inner: Whether its class names a log-determinant, and no module within it returns one.
    """

    name: str
    told: float
    is_: float
    kind: Kind
    times: int
    slope: float
    inner: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    logs: Tensor


def names_it(cls: type[nn.Module]) -> bool:
    """Say whether the code of a class of modules names a log-determinant."""
    own = itertools.takewhile(lambda kind: kind is not nn.Module, cls.__mro__)
    codes = (one.__code__ for kind in own for one in vars(kind).values() if inspect.isfunction(one))
    return any(NAMED.search(name) for code in codes for name in (*code.co_varnames, *code.co_names))


@remembered("volumes")
def volumes(subject: Subject) -> list[Volume]:
    """Compare what modules return in eval mode, with weights that are moved a little after a training forward.

    Cost: 1 F, 1 FB, and two backwards for each element of a sample for each such module.

    Raises:
        SubjectError: The model raised, with the weights that it has.
    """
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        batch = subject.batch()
        with torch.no_grad():
            subject.call(model, batch.clone())  # weights that the first batch decides
        _move(model, subject.seed)
        model.eval()
        clear_gradients(model)
        calls: list[_Call] = []
        handles = [
            module.register_forward_hook(_keeper(calls, name), with_kwargs=True)
            for name, module in model.named_modules()
        ]
        try:
            with torch.enable_grad(), hooked(handles):
                seed_everything(subject.seed)
                output = subject.call(model, batch.clone())
                loss = subject.compute_loss(output, batch)
            if loss.requires_grad and loss.dim() == 0:
                with subject.phase("backward", batch):
                    loss.backward()
        except SubjectError:
            return []  # these weights are ours: what raises at them is no mistake of the model's
        first = [_alone(call) for call in calls]
        _move(model, subject.seed + 1)
        return list(_compared(calls, first, [_alone(call) for call in calls]))


def _move(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(_JITTER * noise.to(parameter))


def _keeper(calls: list[_Call], name: str) -> Any:
    """Return a hook that keeps a call which maps each sample to one of its size and gives numbers beside it."""

    def hook(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        found = _parts(args, result)
        if found is not None and len(calls) < _MOST:
            logs = found[2]
            if logs.requires_grad and not logs.is_leaf:
                logs.retain_grad()
            calls.append(_Call(name=name, module=module, args=args, kwargs=kwargs, logs=logs))

    return hook


def _parts(args: Any, result: Any) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return what a call maps, to what, and the numbers that it gives beside it: one for each sample, or for all."""
    given = args[0] if args else None
    if not isinstance(given, torch.Tensor) or not isinstance(result, tuple | list):
        return None
    made, *others = result if len(result) > 1 else (None,)
    plain = isinstance(made, torch.Tensor) and given.dim() > 1 and made.dim() > 1
    if not plain or not (given.is_floating_point() and made.is_floating_point()):
        return None
    if len(made) != len(given) or made.numel() != given.numel() or len(given) < 2:
        return None
    fits = (t for t in others if isinstance(t, torch.Tensor) and t.is_floating_point())
    logs = next((t for t in fits if t.numel() in (1, len(given))), None)
    if logs is None or not 1 < given.numel() // len(given) <= _LARGEST:
        return None
    return given, made, logs


def _compared(
    calls: list[_Call],
    first: list[tuple[float, float] | None],
    second: list[tuple[float, float] | None],
) -> Iterator[Volume]:
    """Yield what was seen of each module, with the weights at first and with others."""
    known: dict[str, float] = {}
    for call, one, two in zip(calls, first, second, strict=True):  # parts end before their whole
        if call.name in known or one is None or two is None:
            continue
        (told, is_), (other, other_is) = one, two
        within = [n for n in known if not call.name or n.startswith(f"{call.name}.")]
        known[call.name] = told
        slope = call.logs.grad
        yield Volume(
            name=call.name, told=told, is_=is_,
            kind=_kind(told, is_, other - other_is, [known[n] for n in within]),
            times=_times(told, is_, other, other_is),
            slope=0.0 if slope is None else float(slope.flatten()[0]),
            inner=not within and names_it(type(call.module)),
        )  # fmt: skip


def _kind(told: float, is_: float, off: float, parts: list[float]) -> Kind:
    near = _NEAR * max(1.0, abs(is_))
    if min(abs(told - is_), abs(told + is_)) < near and abs(is_) < _SMALL:
        return "small"
    if abs(told - is_) < near:
        return "equal"
    if abs(told + is_) < near:
        return "opposite"
    if len(parts) > 1 and abs(told - parts[-1]) < near and abs(sum(parts) - is_) < near:
        return "partial"
    # a constant that the weights do not change stands for what happens elsewhere
    return "small" if abs((told - is_) - off) < near else "other"


def _times(told: float, is_: float, other: float, other_is: float) -> int:
    """Return the whole number by which what is told has to be multiplied, whatever the weights are, or 0."""
    if abs(told) < _SMALL or abs(other) < _SMALL:
        return 0
    times = round(is_ / told)
    pairs = ((told, is_), (other, other_is))
    exact = all(abs(times * one - two) < _NEAR * abs(two) for one, two in pairs)
    return times if times > 1 and exact else 0


def _alone(call: _Call) -> tuple[float, float] | None:
    """Do what :func:`_apart` does; None for a module that raises by itself, or with other weights."""
    try:
        return _apart(call)
    except Exception:  # the user's code: that it runs within the model is all that is known
        return None


def _apart(call: _Call) -> tuple[float, float] | None:
    """Call a module by itself; return what it adds for the first sample, and the log-determinant of its map there.

    None for a map that draws random numbers, mixes samples, or changes nothing.
    """
    given = call.args[0].detach().clone().requires_grad_()
    with torch.enable_grad():
        seed_everything(0)
        result = call.module(given, *call.args[1:], **call.kwargs)
        found = _parts((given,), result)
        if found is None:
            return None
        _, made, logs = found
        if trees.same(made.detach(), given.detach().reshape(made.shape)):
            return None
        rows = []
        for entry in made[0].flatten():
            (row,) = torch.autograd.grad(entry, given, retain_graph=True, allow_unused=True)
            if row is None:
                return None
            rows.append(row)
    whole = torch.stack(rows)
    own = whole[:, 0].reshape(len(rows), -1).double()
    if float(whole.abs().sum()) - float(whole[:, 0].abs().sum()) > _NEAR:
        return None
    with torch.no_grad():
        seed_everything(1)
        again = call.module(given, *call.args[1:], **call.kwargs)[0]
    if not trees.same(again, made.detach()):
        return None
    before = next(
        (
            t
            for t in (*call.args[1:], *call.kwargs.values())
            if isinstance(t, torch.Tensor) and t.shape == logs.shape and t.is_floating_point()
        ),
        None,
    )
    told = float(logs.detach().flatten()[0])
    told -= 0.0 if before is None else float(before.detach().flatten()[0])
    is_ = float(torch.linalg.slogdet(own).logabsdet)
    return (told, is_) if abs(is_) < 1e6 else None
