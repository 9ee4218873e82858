"""Keep account of what every gradient holds: which backward passes, applied or not, scaled or not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(slots=True)
class Account:
    """What one parameter's gradient holds.

    Attributes:
        name: Of the parameter.
        tensor: The parameter.
        sources: Places of the backward passes in it.
        applied: Those that an optimizer has applied, by the optimizer's key.
        cleared: Place of the last zero_grad that threw away something not applied.
        scale: Factor of a GradScaler that it is still multiplied by.
        version: Of the parameter at the latest backward pass; another one since then where
            something has written to it.
    """

    name: str
    tensor: torch.Tensor
    sources: list[int] = field(default_factory=list)
    applied: dict[int, set[int]] = field(default_factory=dict)
    cleared: int | None = None
    scale: float = 1.0
    version: int | None = None

    @property
    def is_empty(self) -> bool:
        """Say whether the gradient is None or all zeros."""
        grad = self.tensor.grad
        if grad is None:
            return True
        values = grad.coalesce().values() if grad.layout == torch.sparse_coo else grad
        return grad.device.type != "meta" and not bool(torch.count_nonzero(values))

    def signature(self) -> tuple[int, int] | None:
        """Return what changes whenever the gradient is written to."""
        grad = self.tensor.grad
        return None if grad is None else (id(grad), grad._version)

    def pending(self) -> set[int]:
        """Return the backward passes that no optimizer has applied."""
        done = set().union(*self.applied.values()) if self.applied else set()
        return set(self.sources) - done

    def forget(self) -> None:
        """Note that the gradient was cleared."""
        self.sources = []
        self.applied = {}
        self.scale = 1.0


class Ledger:
    """The accounts of all parameters of a model and its optimizers."""

    def __init__(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.accounts: dict[int, Account] = {}
        for name, parameter in named:
            self.add(name, parameter)

    def add(self, name: str, parameter: torch.Tensor) -> None:
        """Open an account for a parameter, if it has none."""
        self.accounts.setdefault(id(parameter), Account(name=name, tensor=parameter))

    def of(self, parameters: Iterable[torch.Tensor]) -> list[Account]:
        """Return the accounts of some parameters; those without one get one by their shape."""
        found = []
        for parameter in parameters:
            if id(parameter) not in self.accounts:
                self.add(f"parameter{list(parameter.shape)}", parameter)
            found.append(self.accounts[id(parameter)])
        return found

    def settle(self) -> None:
        """Forget what was cleared by hand since the last event (``p.grad = None``)."""
        for account in self.accounts.values():
            if account.sources and account.is_empty:
                account.forget()

    def clear(self, place: int, before: dict[int, set[int]]) -> None:
        """Note which accounts a zero_grad has emptied, and what it threw away.

        Args:
            place: Of the event.
            before: What was pending, by parameter.
        """
        for key, account in self.accounts.items():
            if account.sources and account.is_empty:
                account.cleared = place if before.get(key) else account.cleared
                account.forget()

    def norm(self, parameters: Iterable[torch.Tensor] | None = None) -> float:
        """Return the total norm of gradients, of all parameters by default."""
        chosen = [a.tensor for a in self.accounts.values()] if parameters is None else parameters
        total = 0.0
        for parameter in chosen:
            if parameter.grad is not None and parameter.grad.device.type != "meta":
                grad = parameter.grad
                values = grad.coalesce().values() if grad.layout == torch.sparse_coo else grad
                total += (
                    float(torch.linalg.vector_norm(values.detach().flatten(), dtype=torch.float64))
                    ** 2
                )
        return math.sqrt(total)
