"""Two versions of a model side by side: what each submodule was given, and what it gave."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ...lean import dataclass
from ...objects import trees

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn

_MOST = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCall:
    """One call of a submodule, with copies of its tensors.

    Attributes:
        module: Qualified name, ``""`` for the model itself.
        number: Which call of this module, from 0.
        kind: Its class.
        given: The tensors it was called with.
        gave: The tensors it returned.
    """

    module: str
    number: int
    kind: str
    given: tuple[Tensor, ...]
    gave: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A call that both versions make.

    Attributes:
        ours, theirs: The call in either version.
        given: Largest relative difference of what it was given; infinite where shapes differ.
        gave: Of what it gave.
    """

    ours: ModuleCall
    theirs: ModuleCall
    given: float
    gave: float


def module_calls(run: Callable[[], object], model: nn.Module) -> tuple[ModuleCall, ...]:
    """Run a forward and return the calls of every module, in the order in which they returned."""
    found: list[ModuleCall] = []
    counts: dict[str, int] = {}
    entered: list[tuple[Tensor, ...]] = []

    def copies(value: Any) -> tuple[Tensor, ...]:
        return tuple(t.detach().clone() for t in trees.tensors(value).values())

    @contextlib.contextmanager
    def listening() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name, module in model.named_modules():

                def before(_: nn.Module, args: Any, kwargs: Any) -> None:
                    entered.append(copies((args, kwargs)))

                def after(m: nn.Module, args: Any, kwargs: Any, out: Any, name: str = name) -> None:
                    given = entered.pop()
                    number = counts.get(name, 0)
                    counts[name] = number + 1
                    if len(found) < _MOST:
                        found.append(
                            ModuleCall(
                                module=name, number=number, kind=type(m).__name__, given=given, gave=copies(out)
                            )
                        )  # fmt: skip

                stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(after, with_kwargs=True).remove)
            yield

    with listening():
        run()
    return tuple(found)


def paired(ours: tuple[ModuleCall, ...], theirs: tuple[ModuleCall, ...]) -> tuple[Pair, ...]:
    """Pair the calls of modules that have one name in both versions, in the order of the first."""
    known = {(call.module, call.number): call for call in theirs}
    return tuple(
        Pair(ours=call, theirs=other, given=apart(call.given, other.given), gave=apart(call.gave, other.gave))
        for call in ours
        if (other := known.get((call.module, call.number))) is not None
    )  # fmt: skip


def first_parting(pairs: tuple[Pair, ...], allowed: float) -> Pair | None:
    """Return the first call that is given the same and gives something else; it holds no other such call."""
    return next((pair for pair in pairs if pair.gave > allowed and pair.given <= allowed), None)


def apart(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> float:
    """Return the largest relative difference of two lists of tensors; infinite where they are unlike."""
    if len(ours) != len(theirs):
        return float("inf")
    return max((trees.apart(a, b) for a, b in zip(ours, theirs, strict=True)), default=0.0)
