"""torch's compiler is left unloaded where nothing is compiled: loading it takes as long as ``import torch``.

Methods of :class:`torch.optim.Optimizer` import ``torch._dynamo`` when they are called: some to
keep the compiler out of them, ``step`` to break its graph. While ``torch._dynamo`` is not imported
nothing can be compiled, so that here they do the rest of their work alone. From the moment that
anything imports it, torch's own functions run.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from .lean import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_COMPILER = "torch._dynamo"
_KEPT = "__dynamo_disable"  # where torch._compile keeps what it calls in a function's place


@contextlib.contextmanager
def unloaded() -> Iterator[None]:
    """Let optimizers work without loading the compiler; everything is put back on the way out."""
    if _COMPILER in sys.modules or _blocks:
        yield
        return
    kept_out = [each for each in vars(Optimizer).values() if _comes_from(each, "torch._compile")]
    for each in kept_out:
        each.__wrapped__.__dict__.setdefault(_KEPT, _Plain(each))
    steps = [step for kind in _kinds(Optimizer) if (step := _Step.of(kind)) is not None]
    _blocks.append(steps)
    try:
        yield
    finally:
        _blocks.clear()
        placed = {id(step.placed): step for step in steps}
        plain = {id(step.plain): step for step in steps if step.plain is step.placed}
        for kind in _kinds(Optimizer):
            _put_back(kind, placed, plain)
        for each in kept_out:
            _forget(each)


_blocks: list[list[_Step]] = []  # the one that is open: another one inside it has nothing to do


def _comes_from(thing: Any, module: str) -> bool:
    """Say whether a thing is a function that a decorator of a module of torch's returned."""
    home = getattr(thing, "__globals__", {}).get("__name__")
    return hasattr(thing, "__wrapped__") and home == module


def _forget(wrapper: Any) -> None:
    kept = wrapper.__wrapped__.__dict__
    if isinstance(kept.get(_KEPT), _Plain):
        del kept[_KEPT]


class _Plain:
    """Calls a method as it is until the compiler is loaded, and as torch does from then on."""

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _COMPILER not in sys.modules:
            return self._wrapper.__wrapped__(*args, **kwargs)
        _forget(self._wrapper)
        return self._wrapper(*args, **kwargs)


def _kinds(kind: type) -> Iterator[type]:
    """Iterate over torch's own classes of optimizers."""
    subclasses: list[type] = kind.__subclasses__()
    for each in subclasses:
        if each.__module__.startswith("torch.optim"):
            yield each
            yield from _kinds(each)


@dataclass(frozen=True, slots=True)
class _Step:
    """The ``step`` of a class, as torch has it and as it stands there for the time being."""

    original: Any
    plain: Any
    placed: Any

    @classmethod
    def of(cls, kind: type) -> _Step | None:
        """Put the plain step in the place of a class's own; None where it is not as torch makes it."""
        original: Any = vars(kind).get("step")
        hooked = getattr(original, "hooked", False)
        inner = original.__wrapped__ if hooked else original
        if not _comes_from(inner, "torch.optim.optimizer") or inner.__code__.co_name != "_use_grad":
            return None
        plain = _without_compiler(inner)
        step = cls(original, plain, _hooked(plain) if hooked else plain)
        kind.step = step.placed  # type: ignore[attr-defined]
        return step


def _put_back(kind: type, placed: Mapping[int, _Step], plain: Mapping[int, _Step]) -> None:
    """Put back what a class had; with torch's hooks where an optimizer has set them up meanwhile."""
    now: Any = vars(kind).get("step")
    if (step := placed.get(id(now))) is not None:
        kind.step = step.original  # type: ignore[attr-defined]
    elif getattr(now, "hooked", False) and (
        (step := plain.get(id(getattr(now, "__wrapped__", None)))) is not None
    ):
        kind.step = _hooked(step.original)  # type: ignore[attr-defined]


def _hooked(step: Any) -> Any:
    made: Any = Optimizer.profile_hook_step(step)
    made.hooked = True
    return made


@functools.cache  # of torch's own functions, some dozen
def _without_compiler(wrapper: Any) -> Any:
    """Return what torch's decorator of ``step`` does, without the breaks of a graph that nobody records."""

    @functools.wraps(wrapper.__wrapped__)
    def step(*args: Any, **kwargs: Any) -> Any:
        if _COMPILER in sys.modules:
            return wrapper(*args, **kwargs)
        before = torch.is_grad_enabled()
        try:
            torch.set_grad_enabled(args[0].defaults["differentiable"])
            return wrapper.__wrapped__(*args, **kwargs)
        finally:
            torch.set_grad_enabled(before)

    return step


def has_compiled() -> bool:
    """Say whether anything of this process is compiled: what opted out of it counts as not."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    backends: dict[Any, Any] = {} if frames is None else frames.cached_backends
    return any(backend is not None for backend in backends.values())
