"""Complex buffers that ``model.to(torch.float64)`` makes real: torch discards their imaginary part with a warning."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...explanation import counted, listed, on_line
from ...findings import Culprit
from ...objects import trees
from ...state import seed_everything
from ...verdicts import violated

if TYPE_CHECKING:
    from torch import nn

    from ...findings import Finding
    from ...subject import Subject

_ALIKE = 1e-3  # relative; outputs in another dtype differ by rounding, those of half a table by their size


def complex_cast(subject: Subject, dtype: torch.dtype) -> Finding | None:
    """Compare a copy converted by ``.to(dtype)`` with one whose complex tensors stay complex.

    Complex parameters are no matter of this: they lose their half as well, but a model of complex
    weights can hardly do without.

    Args:
        subject: Whose model; only copies are converted.
        dtype: A real floating dtype that the contract declares.

    Returns:
        None where no buffer is complex, the model cannot be copied, or the outputs agree.
    """
    names = [
        name
        for name, buffer in subject.model.named_buffers()
        if buffer.is_complex() and bool(buffer.imag.any())
    ]
    if not names:
        return None
    kept, cast = subject.copy_model(), subject.copy_model()
    if kept is None or cast is None:
        return None
    subject.convert(kept, dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Casting complex values to real")
        cast.to(dtype)
    if any(cast.get_buffer(name).is_complex() for name in names):
        return None  # the class converts in a way of its own
    wanted = _outputs(subject, kept, dtype)
    try:
        found = _outputs(subject, cast, dtype)
        gaps = [
            trees.worst(wanted[path], found[path]) / max(trees.scale(wanted[path]), 1e-30)
            for path in wanted
        ]
    except (RuntimeError, KeyError, TypeError) as error:
        gaps, said = [float("inf")], f"the forward then raises {type(error).__name__}"
    else:
        said = f"the output changes by {max(gaps, default=0.0):.3g} (relative)"
    if all(gap <= _ALIKE for gap in gaps):
        return None
    return _made_real(subject, names, dtype, said, cast)


def _made_real(
    subject: Subject, names: list[str], dtype: torch.dtype, said: str, cast: nn.Module
) -> Finding | None:
    """Report complex buffers whose imaginary part a conversion loses."""
    place = sources.of_parameter(subject.model, names[0])
    word = str(dtype).removeprefix("torch.")
    line = on_line(place)
    return violated(
        "complex-cast",
        f"model.to(torch.{word}) makes {listed(names, 3)} real: the imaginary part is lost",
        culprits=tuple(
            Culprit(
                "buffer",
                name,
                str(subject.model.get_buffer(name).dtype).removeprefix("torch."),
                sources.of_parameter(subject.model, name),
            )
            for name in names[:4]
        ),
        location=place,
        observed=f"{counted(len(names), 'complex buffer')}; after .to(torch.{word}) {said}",
        cause=".to(dtype) converts complex buffers to the real dtype too; .double() and .half() "
        "leave them unchanged",
        because=f"{names[0]} is {cast.get_buffer(names[0]).dtype} after .to(torch.{word}), and "
        "its imaginary part was not zero",
        fix=f"register torch.view_as_real of it{line}, and use torch.view_as_complex in forward",
    )


def _outputs(subject: Subject, model: nn.Module, dtype: torch.dtype) -> dict[str, Any]:
    model.eval()
    seed_everything(subject.seed)
    with torch.no_grad():
        return trees.floats(subject.contract.invoke(model, subject.batch().to(dtype=dtype).clone()))
