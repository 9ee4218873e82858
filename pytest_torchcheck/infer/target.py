"""A model by its name: ``package.module:name``, or a call with literals.

Nothing else is evaluated.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import sys
from dataclasses import field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ..lean import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FORM: Final = "package.module:name, or a call with literals such as timm:create_model('resnet18')"


LOSSES: Final = (
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
    "binary_cross_entropy_with_logits", "binary_cross_entropy", "output",
)  # fmt: skip
"""Losses that may be named: functions of ``torch.nn.functional``, or the model's own loss."""


class TargetError(ValueError):
    """A model cannot be named or built so; the message says what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a text names.

    Attributes:
        text: As it was given.
        module: The module to import.
        path: Attributes to follow from there, such as ``("AutoModel", "from_pretrained")``.
        called: Whether it is a call.
        args, kwargs: Its arguments.
    """

    text: str
    module: str
    path: tuple[str, ...]
    called: bool = False
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def package(self) -> str:
        """The top-level package."""
        return self.module.partition(".")[0]

    @property
    def name(self) -> str:
        """The text as a contract's name: without brackets and ``::``."""
        tidy = self.text.strip().replace("[", "(").replace("]", ")")
        return " ".join(tidy.replace("::", ":").split())

    @property
    def short(self) -> str:
        """The last attribute, as an identifier."""
        return self.path[-1]


def parse_target(text: str) -> Target:
    """Read ``package.module:name`` or ``package.module:name(literals)``; imports nothing.

    Raises:
        TargetError: It is of another form, or an argument is not a literal.
    """
    module, colon, rest = text.strip().partition(":")
    if not colon or not all(part.isidentifier() for part in module.split(".")):
        near = ""
        if not colon and "(" not in text and text.count("."):
            near = f"; did you mean {':'.join(text.strip().rsplit('.', 1))}?"
        raise TargetError(f"{text!r} does not name a model; write {FORM}{near}")
    try:
        node = ast.parse(rest.strip(), mode="eval").body
    except SyntaxError:
        raise TargetError(f"{rest.strip()!r} of {text!r} is not Python; write {FORM}") from None
    if isinstance(node, ast.Call):
        args = tuple(_literal(argument, text) for argument in node.args)
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise TargetError(f"{text!r}: ** is not allowed; write the keywords one by one")
            kwargs[keyword.arg] = _literal(keyword.value, text)
        path = _path(node.func, text)
        return Target(text=text, module=module, path=path, called=True, args=args, kwargs=kwargs)
    return Target(text=text, module=module, path=_path(node, text))


def see_loss(text: str) -> None:
    """Refuse what names no loss: one of :data:`LOSSES`, or ``package.module:function``.

    Raises:
        TargetError: It is neither; nothing is imported to see that.
    """
    if text in LOSSES:
        return
    if ":" not in text or parse_target(text).called:
        raise TargetError(
            f"{text!r} names no loss; choose from {', '.join(LOSSES)}, or write "
            "package.module:function for your own, which is called as loss(output, targets)"
        )


def _literal(node: ast.expr, text: str) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise TargetError(
            f"{text!r}: the argument {ast.unparse(node)!r} is not a literal; allowed are numbers, "
            "strings, booleans, None, and tuples, lists and dicts of them. For anything else "
            "write a "
            "function that returns the model, and name that function"
        ) from None


def _path(node: ast.expr, text: str) -> tuple[str, ...]:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        return (*_path(node.value, text), node.attr)
    raise TargetError(f"{text!r}: {ast.unparse(node)!r} is not a name; write {FORM}")


def load(target: Target, *, folder: str | None = None) -> Any:
    """Import what a target names.

    Args:
        target: The target.
        folder: Where to look for modules as well, as ``python -m`` looks into the current folder.

    Returns:
        The module, if the target names an ``nn.Module`` that is built already; else a factory
        without arguments.

    Raises:
        TargetError: It cannot be imported, does not exist, lacks an argument, or builds no module.
    """
    found = attribute(target, folder)
    from torch import nn

    if isinstance(found, nn.Module):
        if target.called:
            raise TargetError(
                f"{target.text!r} calls a module that is built already, which would run it; "
                f"write {target.module}:{'.'.join(target.path)}"
            )
        return found
    if not callable(found):
        raise TargetError(
            f"{target.text!r} is {_kind(found)}; allowed are an nn.Module, a class of one, and a "
            "function that returns one"
        )
    if _is_configured(found) and not target.args and "config" not in target.kwargs:
        return functools.partial(of_config, found, dict(target.kwargs))
    _see_that_it_binds(target, found)
    return functools.partial(found, *target.args, **target.kwargs) if target.called else found


def attribute(target: Target, folder: str | None = None) -> Any:
    """Import what a target names, as it is.

    Raises:
        TargetError: It cannot be imported, or does not exist.
    """
    if folder is not None and folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = import_module(target.module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{target.module}.".startswith(f"{error.name}."):
            raise TargetError(
                f"{target.text!r}: importing {target.module} failed: {error}"
            ) from error
        raise TargetError(
            f"{target.text!r}: no module named {error.name!r}; it must be installed, or lie in the "
            "current folder"
        ) from None
    except Exception as error:  # a module may raise anything
        told = f"{type(error).__name__}: {error}"
        raise TargetError(f"{target.text!r}: importing {target.module} failed: {told}") from error
    done = target.module
    for name in target.path:
        try:
            found = getattr(found, name)
        except AttributeError:
            near = difflib.get_close_matches(name, dir(found), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TargetError(f"{target.text!r}: {done} has no {name!r}{hint}") from None
        done = f"{done}.{name}"
    return found


def _kind(found: Any) -> str:
    from ..contracts import Contract  # spares importing torch

    if isinstance(found, Contract):
        return "a Contract already: collect its file with pytest --torchcheck instead"
    return f"of type {type(found).__name__}"


def _is_configured(found: Any) -> bool:
    """Say whether a class names the configuration that builds it, as those of Transformers do."""
    if not isinstance(found, type) or not isinstance(getattr(found, "config_class", None), type):
        return False
    taken = list(inspect.signature(found).parameters)
    return taken[:1] == ["config"]


def of_config(cls: Callable[..., Any], fields: Mapping[str, Any]) -> Any:
    """Build a model from its configuration's fields."""
    return cls(cls.config_class(**fields))  # type: ignore[attr-defined]


def _see_that_it_binds(target: Target, found: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        signature.bind(*target.args, **target.kwargs)
    except TypeError as error:
        lacking = [
            name
            for name, parameter in signature.parameters.items()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        shown = ", ".join(f"{name}=..." for name in lacking)
        name = f"{target.module}:{'.'.join(target.path)}"
        raise TargetError(
            f"{target.text!r}: {error}; write {name}({shown}) with literals, or a function without "
            "arguments that returns the model"
        ) from None


def arguments_of(target: Target, found: Any) -> dict[str, Any]:
    """Return what a model was built with: the call's arguments by name, defaults included."""
    if isinstance(found, functools.partial):
        found = found.func
    if found is of_config:
        return dict(target.kwargs)
    try:
        bound = inspect.signature(found).bind(*target.args, **target.kwargs)
    except (TypeError, ValueError):
        return dict(target.kwargs)
    bound.apply_defaults()
    given = dict(bound.arguments)
    for name, parameter in inspect.signature(found).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            given.update(given.pop(name, {}))
    return given
