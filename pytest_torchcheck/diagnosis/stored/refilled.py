"""A promise that holds by zeros in a weight, which training steps fill."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from ...findings import Culprit
from ...objects import trees
from ...text.wording import names_text
from ..loss.bounds import initialisation_line

if TYPE_CHECKING:
    from ...findings import Finding
    from ...runs.variants.trained import Trained
    from ...subject import Subject


def zeros_filled(subject: Subject, found: Finding, trained: Trained) -> Finding:
    """Explain a broken promise by the zeros that training filled.

    Args:
        subject: The model as built, which keeps the promise.
        found: What is broken after the steps.
        trained: The steps; with the zeros put back, the promise holds after them too.
    """
    named = {culprit.name for culprit in found.culprits}
    names = sorted(trained.counts, key=lambda name: name.rpartition(".")[0] not in named)
    counts = {name: f"{filled} of {zeros}" for name, (filled, zeros) in trained.counts.items()}
    first, steps = names[0], trained.steps
    mask = _mask_of(subject.model, first)
    cure = f"multiply {first} by {mask or 'its mask'} in each forward (weight * mask), not once at the start"
    if isinstance(subject.model.get_submodule(first.rpartition(".")[0]), nn.Embedding):
        cure = "give the embedding padding_idx, so that the row of zeros gets no gradient"
    return found.replace(
        summary=f"{found.summary} after {steps} training steps, which fill zeros of {first}",
        culprits=(
            *(
                Culprit("parameter", name, f"training filled {counts[name]} zeros", initialisation_line(subject, name))
                for name in names
            ),
            *((Culprit("buffer", mask, "is zero at the same places"),) if mask else ()),
            *found.culprits,
        ),
        observed=f"holds on the initial weights, not after {steps} training steps; "
        f"{counts[first]} zeros of {first} were filled by training; {found.observed}",
        cause=f"only zeros in {names_text(names)} keep the promise, and the forward does not keep them zero",
        because=f"with these zeros put back after the {steps} steps, and nothing else, the promise holds again",
        fix=cure,
        evidence={**found.evidence, "steps": steps, "filled": counts},
    )  # fmt: skip


def _mask_of(model: nn.Module, name: str) -> str:
    """Return the name of a tensor beside a parameter that has the same zeros; else an empty string."""
    owner, _, key = name.rpartition(".")
    module = model.get_submodule(owner)
    zero = getattr(module, key).detach() == 0
    beside = {**vars(module), **module._buffers}
    for other, value in beside.items():
        plain = isinstance(value, torch.Tensor) and trees.computable(value)
        if plain and value.shape == zero.shape and torch.equal(value == 0, zero):
            return f"{owner}.{other}" if owner else other
    return ""
