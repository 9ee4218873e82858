"""Numbers that the user's functions keep between calls, such as a count of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ... import sources
from ...loop.closures import functions_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...subject import Subject

_MOST: Final = 8
"""Entries of a list or dict that may hold counts."""


def numbers_of(subject: Subject) -> dict[str, float]:
    """Return the numbers that the user's functions keep between calls: closures, attributes, globals."""
    contract = subject.contract
    forwards = [
        type(module).forward
        for module in subject.model.modules()
        if sources.is_own_class(type(module))
    ]
    found: dict[str, float] = {}
    loss = contract.loss if callable(contract.loss) else None
    for function in functions_of(contract.train_step, contract.optimizer, loss, *forwards):
        held = dict(vars(function))
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                held[name] = cell.cell_contents
            except ValueError:
                continue  # not assigned yet
        names = function.__code__.co_names
        held |= {n: function.__globals__[n] for n in names if n in function.__globals__}
        for name, value in _entries(held):
            found[f"{function.__qualname__}.{name}"] = value
    return found


def _entries(held: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in held.items():
        if isinstance(value, int | float):
            yield name, value
        elif isinstance(value, list | dict) and len(value) <= _MOST:
            inside = value.items() if isinstance(value, dict) else enumerate(value)
            for key, one in inside:
                if isinstance(one, int | float):
                    yield f"{name}[{key!r}]", one
