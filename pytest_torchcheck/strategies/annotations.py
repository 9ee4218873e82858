"""Annotations wherever ``st.from_type`` looks; how one is read stands in `pytest_torchcheck.specs.annotations`."""

from __future__ import annotations

import inspect
from typing import Any

from ..batches.source import BatchSource
from ..specs.annotations import (
    Signature,
    spec_from_annotation,
    specs_from_signature,
)
from ..specs.shapes import SpecError

__all__ = ["Signature", "register", "spec_from_annotation", "specs_from_signature"]


def register(*annotations: Any, **options: Any) -> None:
    """Teach ``st.from_type`` jaxtyping's annotations.

    Args:
        annotations: Register these, through Hypothesis's public interface. Without any, every
            annotation is understood, through the table in which Hypothesis keeps its resolvers for
            other libraries.
        **options: Of `tensors`, such as ``sizes={"b": (1, 4)}``. Where every annotation is
            understood, each takes the sizes of its own symbols.

    Raises:
        SpecError: This version of Hypothesis has no such table, or an annotation is not jaxtyping's.
    """
    from hypothesis import strategies as st
    from hypothesis.strategies._internal import types

    from .drawing import tensors  # spares importing Hypothesis

    for annotation in annotations:
        spec = spec_from_annotation(annotation)
        if spec is None:
            raise SpecError(
                f"register: {annotation!r} gives no shape; write for instance Float[Tensor, 'b c h w']"
            )
        st.register_type_strategy(annotation, tensors(spec, **options))
    if annotations:
        return
    resolvers = getattr(types, "_global_extra_lookup", None)
    if resolvers is None:
        raise SpecError(
            "register: this version of Hypothesis has no table of resolvers; name the annotations, as in "
            "register(Float[Tensor, 'b c h w'])"
        )

    def resolve(thing: Any) -> Any:
        spec = spec_from_annotation(thing) if inspect.isclass(thing) else None
        if spec is None:
            return None
        known = BatchSource((spec,)).symbols
        sizes = {name: size for name, size in (options.get("sizes") or {}).items() if name in known}
        return tensors(spec, **{**options, "sizes": sizes})

    resolvers["jaxtyping"] = resolve
