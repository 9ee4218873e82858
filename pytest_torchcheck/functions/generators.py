"""Random generators: those of the process and those that a callable can reach, set back before every run."""

from __future__ import annotations

import inspect
import random
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..data.generators import generator_state, set_generator_state
from ..state import seed_process

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """A random generator of the callable's own, and the state in which it was found."""

    generator: Any
    state: Any

    def rewind(self, seed: int = 0) -> None:
        """Set it back to the state in which it was found, or to another seed's."""
        generator = self.generator
        set_generator_state(generator, self.state)
        if not seed:
            return
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)
        elif isinstance(generator, random.Random):
            generator.seed(seed)
        else:
            bits = generator.bit_generator
            bits.state = type(bits)(seed).state


def seed_generators(seed: int) -> None:
    """Seed torch, Python and numpy (where it is loaded)."""
    # torch.manual_seed formats the stack for every backend that is not initialised: 2 ms a call
    seed_process(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def generators_of(fn: Any, function: Any, values: Sequence[Any]) -> Iterator[Generator]:
    """Find the generators that a callable can reach: arguments, globals, closures, class attributes."""
    kinds: tuple[type, ...] = (torch.Generator, random.Random)
    if (numpy := sys.modules.get("numpy")) is not None:
        kinds = (*kinds, numpy.random.Generator)
    reachable: list[Any] = list(values)
    owners = [fn]
    if function is not None:
        reachable += vars(function).values()
        owners = [
            getattr(function, name) for name in ("forward", "setup_context", "backward", "vjp")
        ]
    for owner in owners:
        plain = inspect.unwrap(getattr(owner, "__func__", owner))
        code = getattr(plain, "__code__", None)
        if code is not None:
            reachable += [plain.__globals__[n] for n in code.co_names if n in plain.__globals__]
            reachable += [cell.cell_contents for cell in plain.__closure__ or () if _filled(cell)]
    seen: set[int] = set()
    for thing in reachable:
        if isinstance(thing, kinds) and id(thing) not in seen:
            seen.add(id(thing))
            yield Generator(generator=thing, state=generator_state(thing))


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # an empty cell
        return False
