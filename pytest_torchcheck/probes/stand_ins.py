"""A value for an argument that nobody gave: it goes through any code, so that one sees what that code would read."""

from __future__ import annotations

import contextlib
import dis
import inspect
import sys
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from .. import sources
from ..record.hooks import hooked
from ..record.modes import Functions
from .recorded.watch import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import FrameType

    from ..findings import Location

_MOST_CALLS: Final = 20_000
"""After so many calls of torch a run with a stand-in ends: a loop that waits for a value never would."""


class _Sizes(tuple[int, ...]):
    """As many ones as whoever reads them asks for."""

    __slots__ = ()

    def __iter__(self) -> Iterator[int]:
        """Give as many ones as the caller unpacks, else one."""
        return iter([1] * _asked(sys._getframe(1)))

    def __getitem__(self, at: Any) -> Any:
        """Give a one for any place."""
        return (1,) if isinstance(at, slice) else 1


def _asked(frame: FrameType) -> int:
    """Return how many values a frame is about to unpack; 1 where it does something else."""
    for step in dis.get_instructions(frame.f_code):
        if step.offset == frame.f_lasti and step.opname == "UNPACK_SEQUENCE":
            return step.arg or 1
    return 1


class StandIn(torch.Tensor):
    """A tensor of which nothing is known: what is computed from it is another one, and it is true in a condition."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run nothing; sizes are ones, and what says how a tensor is made is as of any."""
        name = getattr(getattr(func, "__self__", None), "__name__", "")
        return _FACTS.get(name) if name in _FACTS else stand_in()

    def __bool__(self) -> bool:
        """Be true, so that branches are taken."""
        return True

    def __iter__(self) -> Iterator[StandIn]:
        """Give as many values as the caller unpacks, else one."""
        return iter([stand_in() for _ in range(_asked(sys._getframe(1)))])

    def __len__(self) -> int:
        """Hold one value."""
        return 1

    def __index__(self) -> int:
        """Stand for one."""
        return 1

    def __int__(self) -> int:
        """Stand for one."""
        return 1

    def __float__(self) -> float:
        """Stand for one."""
        return 1.0

    def __contains__(self, _: object) -> bool:
        """Hold anything."""
        return True

    def __getattr__(self, name: str) -> StandIn:
        """Give what no tensor has: a field of an output, a method of a cache."""
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in()

    def __call__(self, *_: Any, **__: Any) -> StandIn:
        """Give another one, whatever the method is."""
        return stand_in()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        """Say what it is."""
        return "<a value that was not given>"


def stand_in() -> StandIn:
    """Return a tensor of which nothing is known."""
    with torch._C.DisableTorchFunction():
        return torch.ones((), dtype=torch.int64).as_subclass(StandIn)


_FACTS: Final[dict[str, Any]] = {
    "shape": _Sizes((1,)), "dtype": torch.float32, "device": torch.device("cpu"),
    "layout": torch.strided, "requires_grad": False, "is_cuda": False,
}  # fmt: skip


class _EndlessError(RuntimeError):
    """A run with a stand-in comes to no end."""


def left_out(kind: type[nn.Module], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
    """Return the arguments of a class's forward that a call leaves at a default of None or False."""
    try:
        signature = inspect.signature(kind.forward)
        given = signature.bind_partial(None, *args, **kwargs).arguments
    except (TypeError, ValueError):
        return []
    return [
        name
        for name, parameter in signature.parameters.items()
        if (parameter.default is None or parameter.default is False)
        and given.get(name, parameter.default) is parameter.default
    ]


def read_with(
    run: Callable[[], object],
    model: nn.Module,
    hosts: Iterable[nn.Module],
    given: Mapping[str, Any],
    names: set[str],
) -> dict[str, Location | None]:
    """Return which parameters a run reads, with the line, where modules are given further arguments.

    Args:
        run: One forward of ``model``; what it raises ends it.
        model: Whose parameters.
        hosts: The modules that get the arguments, at each of their calls.
        given: They, by name.
        names: Qualified names of the parameters that are looked for.
    """
    parameters = dict(model.named_parameters())
    wanted = {id(parameters[name]): name for name in names if name in parameters}
    found: dict[str, Location | None] = {}
    calls = 0

    def give(module: nn.Module, args: Any, kwargs: Any) -> Any:
        bound = inspect.signature(module.forward).bind_partial(*args, **kwargs)
        bound.arguments.update(given)
        return bound.args, bound.kwargs

    def look(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > _MOST_CALLS:
            raise _EndlessError
        result = func(*args, **kwargs)
        if any(True for _ in tensors_in(result)):  # else it asks for a dtype or a size, no value
            for tensor in tensors_in([args, kwargs]):
                if (name := wanted.get(id(tensor))) is not None:
                    found.setdefault(name, sources.of_frame(sys._getframe(1), until=here))
        return result

    def enter(layer: nn.Module, _: Any) -> None:
        for parameter in layer.parameters(recurse=False):
            if (name := wanted.get(id(parameter))) is not None:
                found.setdefault(name, sources.of_frame(sys._getframe(1), until=here))

    here = sys._getframe()
    handles: list[Any] = [m.register_forward_pre_hook(give, with_kwargs=True) for m in hosts]
    # torch's own layers read their parameters, also where what they are given makes that fail
    handles += [
        module.register_forward_pre_hook(enter)
        for module in model.modules()
        if type(module).__module__.startswith("torch.")
    ]
    # what code makes of a value that it does not expect says nothing
    with hooked(handles), contextlib.suppress(Exception), Functions(look):
        run()
    return found
