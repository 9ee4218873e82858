"""Promises about parameters and buffers: which train, which may change, which are tied."""

from __future__ import annotations

from fnmatch import fnmatchcase

from ..lean import dataclass
from .base import Promise, PromiseError, globs_of, reason_of


@dataclass(frozen=True, slots=True, init=False)
class Names(Promise):
    """Qualified names chosen by globs."""

    globs: tuple[str, ...]
    reason: str

    def matches(self, name: str) -> bool:
        """Say whether a qualified name is meant."""
        return any(fnmatchcase(name, glob) for glob in self.globs)


@dataclass(frozen=True, slots=True, init=False)
class Frozen(Names):
    """These parameters and buffers stay as they are, statistics and weight decay included."""

    def __init__(self, *globs: str, reason: str) -> None:
        object.__setattr__(self, "globs", globs_of("Frozen", globs))
        object.__setattr__(self, "reason", reason_of("Frozen", reason))


@dataclass(frozen=True, slots=True, init=False)
class Trainable(Names):
    """These parameters must require gradients, get them and move."""

    def __init__(self, *globs: str, reason: str = "") -> None:
        object.__setattr__(self, "globs", globs_of("Trainable", globs))
        object.__setattr__(self, "reason", reason_of("Trainable", reason, required=False))


@dataclass(frozen=True, slots=True, init=False)
class MayLackGradient(Names):
    """These parameters may go without a gradient, for the reason given."""

    def __init__(self, *globs: str, reason: str) -> None:
        object.__setattr__(self, "globs", globs_of("MayLackGradient", globs))
        object.__setattr__(self, "reason", reason_of("MayLackGradient", reason))


@dataclass(frozen=True, slots=True, init=False)
class MayChange(Names):
    """These buffers may change in eval mode or a frozen part, for the reason given: caches, adapted statistics."""

    def __init__(self, *globs: str, reason: str) -> None:
        object.__setattr__(self, "globs", globs_of("MayChange", globs))
        object.__setattr__(self, "reason", reason_of("MayChange", reason))


@dataclass(frozen=True, slots=True)
class _Pair(Promise):
    a: str
    b: str

    def __post_init__(self) -> None:
        for name in (self.a, self.b):
            if not isinstance(name, str) or not name:
                raise PromiseError(
                    f"{type(self).__name__} takes two qualified names (str); got {name!r}"
                )
        if self.a == self.b:
            raise PromiseError(
                f"{type(self).__name__} needs two different names; got {self.a!r} twice"
            )


@dataclass(frozen=True, slots=True)
class Tied(_Pair):
    """Two names, one storage, after every operation that can untie them."""


@dataclass(frozen=True, slots=True)
class Replicated(_Pair):
    """Two parameters that stay equal after every training step."""
