"""The log-determinants that modules return, beside those of the maps that they are seen to be.

A density follows a map by the change of variables: log p(x) = log p(f(x)) + log |det df/dx|, and one that is drawn as
x = f(z) has log q(x) = log q(z) - log |det df/dz|. A likelihood is to rise, and a divergence from a density to fall,
so that the loss falls with the log-determinant either way.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import nn

from ...lean import dataclass
from ...objects import trees
from ...record.hooks import hooked
from ...record.methods import methods_seen, own_methods
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
_STEP: Final = 0.01
_UNLIKE: Final = 0.1  # relative: what kinks between two values of one map explain
_SMALL: Final = 0.02  # a smaller log-determinant tells nothing

Kind = Literal["equal", "opposite", "partial", "other", "small"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """What a module returned as its log-determinant, and what that of its map is, for one sample.

    Attributes:
        name: The module's.
        method: What of it was called.
        told: What it added.
        is_: The log-determinant of its map.
        kind: How the two compare; ``partial`` is what the last of several parts gave.
        times: The whole number that ``told`` lacks as a factor, or 0.
        slope: The slope of the loss to what it returned; 0 where the loss does not read it.
        inner: Whether its class names a log-determinant, and nothing within it returns one.
        handed: Whether a forward computed it, or another of these calls takes what it is mapped to: a method may help
            to compute the log-determinant of another map.
    """

    name: str
    method: str
    told: float
    is_: float
    kind: Kind
    times: int
    slope: float
    inner: bool
    handed: bool

    def holds(self, other: Volume) -> bool:
        """Say whether this is right, and a call of the same module or of one that holds the other's."""
        right = self.kind in ("equal", "opposite", "small")
        return right and (not self.name or f"{other.name}.".startswith(f"{self.name}."))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    name: str
    method: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    made: Tensor
    logs: Tensor

    def again(self, *args: Any, **kwargs: Any) -> Any:
        """Call the same method; ``forward`` by the module, with its hooks."""
        forward = self.method == "forward"
        return (self.module if forward else getattr(self.module, self.method))(*args, **kwargs)


def names_it(cls: type[nn.Module]) -> bool:
    """Say whether the code of a class of modules names a log-determinant."""
    codes = (method.__code__ for method in own_methods(cls).values())
    return any(NAMED.search(name) for code in codes for name in (*code.co_varnames, *code.co_names))


@remembered("volumes")
def volumes(subject: Subject) -> list[Volume]:
    """Compare what modules return in eval mode, with weights that are moved a little after a training forward.

    Cost: 1 F, 1 FB, and 4 F of each such map with a backward for each element of a sample; twice where it differs.

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
        names = {module: name for name, module in model.named_modules()}
        see = partial(_keep, calls, names)
        handles = [
            module.register_forward_hook(partial(_keep_forward, see), with_kwargs=True)
            for module in names
        ]
        theirs = [m for m in names if not type(m).__module__.startswith("torch.nn.")]
        try:
            with torch.enable_grad(), hooked(handles), methods_seen(theirs, see):
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
        second = [
            one if one is None or _agree(*one) else _alone(call)
            for call, one in zip(calls, first, strict=True)
        ]
        seen = list(_compared(calls, first, second))
    # parts of what is right are other maps than they seem to be
    return [
        one
        for place, one in enumerate(seen)
        if one.kind not in ("other", "partial") or not any(w.holds(one) for w in seen[place + 1 :])
    ]


def _move(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(_JITTER * noise.to(parameter))


def _keep(
    calls: list[_Call],
    names: dict[nn.Module, str],
    module: nn.Module,
    method: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
) -> None:
    """Keep a call which maps each sample to one of its size and gives numbers beside it."""
    found = _parts(args, result)
    if found is None or len(calls) >= _MOST:
        return
    _, made, logs = found
    if logs.requires_grad and not logs.is_leaf:
        logs.retain_grad()
    calls.append(
        _Call(
            name=names[module],
            method=method,
            module=module,
            args=args,
            kwargs=kwargs,
            made=made,
            logs=logs,
        )
    )


def _keep_forward(see: Any, module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
    see(module, "forward", args, kwargs, result)


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
    known: dict[tuple[str, str], float] = {}
    for call, one, two in zip(calls, first, second, strict=True):  # parts end before their whole
        key = (call.name, call.method)
        if key in known or one is None or two is None:
            continue
        (told, is_), (other, other_is) = one, two
        within = [k for k in known if f"{k[0]}.".startswith(f"{call.name}.") or not call.name]
        known[key] = told
        slope = call.logs.grad
        yield Volume(
            name=call.name, method=call.method, told=told, is_=is_,
            kind=_kind(told, is_, other - other_is, [known[n] for n in within]),
            times=_times(told, is_, other, other_is),
            slope=0.0 if slope is None else float(slope.flatten()[0]),
            inner=not within and names_it(type(call.module)),
            handed=call.method == "forward" or any(c.args[0] is call.made for c in calls),
        )  # fmt: skip


def _agree(told: float, is_: float) -> bool:
    """Say whether two log-determinants are one, but for the sign."""
    return min(abs(told - is_), abs(told + is_)) < _NEAR * max(1.0, abs(is_))


def _kind(told: float, is_: float, off: float, parts: list[float]) -> Kind:
    near = _NEAR * max(1.0, abs(is_))
    if _agree(told, is_) and abs(is_) < _SMALL:
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


@torch.no_grad()
def _values(call: _Call, given: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return what a call maps a batch to, and the numbers beside it, under a seed."""
    seed_everything(seed)
    found = _parts((given,), call.again(given, *call.args[1:], **call.kwargs))
    return (given, given) if found is None else (found[1].detach(), found[2].detach())


def _alone(call: _Call) -> tuple[float, float] | None:
    """Do what :func:`_apart` does; None for a module that raises by itself, or with other weights."""
    try:
        return _apart(call)
    except Exception:  # the user's code: that it runs within the model is all that is known
        return None


def _apart(call: _Call) -> tuple[float, float] | None:
    """Call a module by itself; return what it adds for the first sample, and the log-determinant of its map there.

    None for a map that draws random numbers, mixes samples, or changes nothing, for a logarithm that is estimated by
    random numbers, and for a map that does not follow its gradient.
    """
    given = call.args[0].detach().clone().requires_grad_()
    with torch.enable_grad():
        seed_everything(0)
        result = call.again(given, *call.args[1:], **call.kwargs)
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
    given = given.detach()
    again = _values(call, given, 1)
    if not all(map(trees.same, again, (made.detach(), logs.detach()))):
        return None
    # a map that is found by iterations without a graph has another Jacobian than that of its graph
    way = _STEP * torch.randn(given[:1].shape, generator=torch.Generator().manual_seed(0)).to(given)
    ahead, behind = (
        _values(call, torch.cat([given[:1] + by, given[1:]]), 0)[0] for by in (way, -way)
    )
    seen = (ahead - behind)[0].flatten().double() / 2
    if float(torch.dist(own @ way.flatten().double(), seen)) > _UNLIKE * float(seen.norm()):
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
