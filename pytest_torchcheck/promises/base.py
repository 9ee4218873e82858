"""What every promise is, and how its arguments are judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ..text.calls import Declaring

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..findings import Finding
    from ..subject import Subject


class PromiseError(ValueError):
    """A promise was declared with arguments that make no sense."""


class Promise(metaclass=Declaring):
    """Base of all promises; subclass it to add one of your own."""

    __slots__ = ()
    _refuses: ClassVar[type[Exception]] = PromiseError

    def verify(self, subject: Subject) -> Iterable[Finding]:
        """Check a promise of your own; the built-in ones are checked by the catalogue.

        Args:
            subject: The model under test, with its batches and steps.
        """
        raise TypeError(
            f"{type(self).__name__} does not define verify(subject); define it and yield "
            "findings from pytest_torchcheck.verdicts"
        )


def globs_of(owner: str, globs: tuple[Any, ...]) -> tuple[str, ...]:
    """Return globs of qualified names, or refuse what is none."""
    if not globs:
        raise PromiseError(
            f'{owner}() needs at least one glob of qualified names, such as {owner}("encoder.*")'
        )
    for glob in globs:
        if not isinstance(glob, str) or not glob:
            raise PromiseError(
                f'{owner} takes globs of qualified names (str), such as "encoder.*"; got {glob!r}'
            )
    return globs


def reason_of(owner: str, reason: Any, *, required: bool = True) -> str:
    """Return a reason, or refuse an empty one."""
    if not isinstance(reason, str) or (required and not reason.strip()):
        raise PromiseError(f"{owner}(reason=) must say why, as a non-empty str; got {reason!r}")
    return reason


def dim_of(owner: str, name: str, value: Any) -> int:
    """Return a dimension, or refuse what is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise PromiseError(f"{owner}({name}=) must be a dimension (int); got {value!r}")
    return value


def input_of(owner: str, name: str, value: Any) -> int | str:
    """Return an input's position or name, or refuse what is neither."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise PromiseError(
            f"{owner}({name}=) must be an input's position (int) or name (str); got {value!r}"
        )
    return value


def path_of(owner: str, name: str, value: Any) -> None:
    """Refuse what is no step of the path to an output."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise PromiseError(
            f"{owner}({name}=) must be an output's position (int), name (str) or a tuple of these; "
            f"got {value!r}"
        )


def function_of(owner: str, name: str, value: Any, signature: str) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise PromiseError(f"{owner}({name}=) must be callable as {signature}; got {value!r}")
