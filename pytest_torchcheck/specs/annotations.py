"""Specs from annotations: ``Float[Tensor, "b c h w"]`` of jaxtyping, or ``Annotated[Tensor, Tokens("B T", vocab=100)]``.

jaxtyping is never imported here: its annotations are known by what they carry (``dim_str`` and
``dtypes``), so that it stays optional.
"""

from __future__ import annotations

import inspect
import types
import typing
from typing import Any

import torch

from ..lean import dataclass
from .shapes import SpecError
from .tensors import Mask, TensorSpec
from .walk import as_spec_tree

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PREFERRED = (torch.float32, torch.int64, torch.complex64, torch.bool)
"""Of the dtypes that an annotation allows, the one that is drawn: an annotation says what is accepted, not what is promised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What the annotations of a function say.

    Attributes:
        inputs: Specs of annotated parameters by name.
        output: Spec, or tuple of specs, of what it returns; None if that is not annotated.
    """

    inputs: Mapping[str, TensorSpec]
    output: Any = None


def spec_from_annotation(
    annotation: Any, field: str = "annotation", *, promised: bool = False
) -> TensorSpec | None:
    """The spec of one annotation, or None if it says nothing of a tensor's shape.

    Args:
        annotation: Such as ``Float[Tensor, "b c h w"]``, also within ``Optional``; or ``Annotated``
            with a spec, which takes the shape of what it annotates where it has none:
            ``Annotated[Int[Tensor, "b t"], Tokens(vocab=100)]``.
        field: What to call it in an error.
        promised: Whether it is of an output, which may be of any allowed dtype, rather than of what
            is drawn.

    Raises:
        SpecError: Its shape is not of the language; the message points to the character.
    """
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        inner, *notes = typing.get_args(annotation)
        shaped = spec_from_annotation(inner, field, promised=promised)
        noted = next((note for note in notes if isinstance(note, TensorSpec)), None)
        if noted is None or shaped is None or noted.shape is not None:
            return noted or shaped
        restore, (kind, attributes) = noted.__reduce__()
        made: TensorSpec = restore(kind, {**attributes, "shape": shaped.shape})
        return made
    if origin is typing.Union or origin is types.UnionType:
        parts = typing.get_args(annotation)
        found = [
            spec
            for part in parts
            if (spec := spec_from_annotation(part, field, promised=promised)) is not None
        ]
        return found[0] if len(found) == 1 else None
    text = getattr(annotation, "dim_str", None)
    if not isinstance(text, str):
        return None
    try:
        shape = as_spec_tree(text, field)
    except SpecError as error:
        raise SpecError(f"{error}\nit is in the annotation of {field}") from None
    return TensorSpec(shape.shape.text, dtype=_dtype(_dtypes(annotation), promised=promised))


def _dtypes(annotation: Any) -> list[torch.dtype]:
    """Return the dtypes that an annotation allows; none where it allows every one."""
    names = getattr(annotation, "dtypes", ())
    try:
        found = [getattr(torch, name, None) for name in names if isinstance(name, str)]
    except TypeError:  # Shaped allows every dtype
        return []
    return [dtype for dtype in found if isinstance(dtype, torch.dtype)]


def _dtype(allowed: list[torch.dtype], *, promised: bool) -> torch.dtype | str | None:
    """Return what is drawn of the allowed dtypes; or, of an output, all that it may be."""
    if len(allowed) > 1 and promised:
        if all(dtype.is_floating_point for dtype in allowed):
            return "floating"
        if all(dtype.is_complex for dtype in allowed):
            return "complex"
        whole = all(not (d.is_floating_point or d.is_complex or d == torch.bool) for d in allowed)
        return "integer" if whole else None
    return next((dtype for dtype in (*_PREFERRED, *allowed) if dtype in allowed), None)


def specs_from_signature(forward: Callable[..., Any]) -> Signature:
    """Take specs from the annotations of a function or of a module's ``forward``.

    Args:
        forward: A function, method, module, or class of modules.

    Raises:
        SpecError: Nothing in it is annotated with a shape, or a shape is wrong.
    """
    if isinstance(forward, torch.nn.Module) or inspect.isclass(forward):
        forward = getattr(forward, "forward", forward)
    name = getattr(forward, "__qualname__", repr(forward))
    try:
        hints = typing.get_type_hints(forward, include_extras=True)
    except (NameError, TypeError) as error:
        raise SpecError(f"{name}: its annotations cannot be read: {error}") from None
    output = hints.pop("return", None)
    inputs = {
        parameter: spec
        for parameter, hint in hints.items()
        if (spec := spec_from_annotation(hint, f"{name}({parameter})")) is not None
    }
    if not inputs:
        raise SpecError(
            f"{name}: no parameter gives its shape; allowed: jaxtyping's annotations such as Float[Tensor, 'b c h w'], "
            "or Annotated[Tensor, Floats('b c h w')]"
        )
    return Signature(inputs=inputs, output=_output(output, name))


def _output(hint: Any, name: str) -> Any:
    if typing.get_origin(hint) is tuple:
        specs = tuple(
            spec_from_annotation(part, f"{name} -> [{i}]", promised=True)
            for i, part in enumerate(typing.get_args(hint))
        )
        return specs if all(spec is not None for spec in specs) else None
    if hint is None:
        return None
    return spec_from_annotation(hint, f"{name} -> return", promised=True)


def specs_of_forward(forward: Callable[..., Any]) -> tuple[Any, Any]:
    """Take what a contract needs from the annotations of a class's ``forward``: specs to call it with, and its output's.

    Arguments that have a default are left at it. Masks get at least one true in each row.

    Args:
        forward: The function, with ``self``.

    Returns:
        The inputs, a tuple, or a dict where an argument is keyword-only; and the output's spec or None.

    Raises:
        SpecError: An argument without a default says no shape, or is a whole number that says no range.
    """
    signature = specs_from_signature(forward)
    name = getattr(forward, "__qualname__", repr(forward))
    _, *parameters = inspect.signature(forward).parameters.values()
    specs: dict[str, TensorSpec] = {}
    for parameter in parameters:
        if parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            continue
        spec = signature.inputs.get(parameter.name)
        if spec is None or spec.shape is None:
            raise SpecError(
                f"{name}({parameter.name}): its annotation gives no shape; write for instance Float[Tensor, 'B 4'] or "
                f"Annotated[Tensor, Floats('B 4')], a default, or inputs= in the contract"
            )
        if spec.values is None and spec.dtype == torch.bool:
            spec = Mask(spec.shape.text)
        elif spec.values is None and not (spec.dtype.is_floating_point or spec.dtype.is_complex):
            raise SpecError(
                f"{name}({parameter.name}): its annotation does not say which whole numbers; write "
                f"Annotated[..., Ints(high=10)], or Tokens(vocab=100), or inputs= in the contract"
            )
        specs[parameter.name] = spec
    if not specs:
        raise SpecError(f"{name}: every argument has a default; name those to pass in inputs=")
    by_keyword = any(
        parameter.kind is parameter.KEYWORD_ONLY and parameter.name in specs
        for parameter in parameters
    )
    return specs if by_keyword else tuple(specs.values()), signature.output
