"""Gradients that are zero for every batch and seed: by structure, not by chance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ...objects import trees
from ...runs.looks import (
    REDRAWS,
    STRUCTURAL,
    double_norms,
    norms_of,
)
from ...runs.variants.woken import jittered
from ...runs.widened import Widened
from ...state import isolated, seed_everything
from ...subject.errors import SubjectError
from ...subject.gradients import clear_gradients

if TYPE_CHECKING:
    from ...subject import Subject


_STARTS = (1, 2, 3, 4, 5, 6)  # other initialisations


_NOISE = 1e-4  # of float32's share of the norm: what is noise is 1e8 times smaller in float64


_REACHED = 1e-9  # above this share of the model's largest norm in its own dtype, far above it, a gradient is one


def structural_zeros(subject: Subject, live: set[str]) -> list[str]:
    """Name the parameters whose gradient is rounding noise of an exact zero, by the float64 oracle.

    Biases are left out: a bias before a normalisation, or of the keys of an attention, has no influence
    in a correct model (CHECKS E12). A whole weight matrix without influence is a mistake.
    """
    first = subject.gradients()
    largest = max((s.norm for s in first.stats.values() if math.isfinite(s.norm)), default=0.0)
    parameters = subject.named_parameters()
    doubtful = [
        name
        for name in live
        if first.stats[name].finite
        and first.stats[name].norm < 1e-5 * largest
        and not _is_bias(name, parameters[name])
        and not subject.is_promised("MayLackGradient", name)
    ]
    if not doubtful:
        return []
    confirmed = set(doubtful) - _reached_in_double(subject, doubtful, largest)
    if not confirmed:
        return []
    for index, seed in ((0, 0), *REDRAWS[:2]):
        norms = double_norms(subject, index, seed)
        if norms is None:
            return []
        top = max(norms.values(), default=0.0)
        narrow = subject.gradients(index, seed=seed).stats
        widest = max((s.norm for s in narrow.values() if math.isfinite(s.norm)), default=0.0)
        confirmed = {
            n
            for n in confirmed
            if norms.get(n, 0.0) < STRUCTURAL * top
            # noise shrinks with the dtype's rounding; a gradient that is merely small does not
            and norms.get(n, 0.0) * widest <= _NOISE * narrow[n].norm * top
        }
        if not confirmed:
            break
    if confirmed and subject.contract.is_factory:
        # a rectifier that is on one side for every sample may cancel what another start lets through
        for seed in _STARTS:
            with isolated():
                model = subject.convert(subject.build(subject.seed + seed), torch.float64)
                norms = norms_of(subject, model, 0, 0) or {}
            top = max(norms.values(), default=0.0)
            confirmed = {n for n in confirmed if norms.get(n, 0.0) < STRUCTURAL * top}
            if not confirmed:
                break
    if confirmed:
        # where a scale begins at one, a mean of what is normalised may cancel until it moves
        with jittered(subject, seed=subject.seed, frozen=False) as model, torch.enable_grad():
            clear_gradients(model)
            norms = norms_of(subject, model, 0, 0) or {}
        top = max(norms.values(), default=0.0)
        confirmed = {n for n in confirmed if norms.get(n, 0.0) < STRUCTURAL * top or not norms}
    return [name for name in doubtful if name in confirmed]


def _is_bias(name: str, parameter: torch.Tensor) -> bool:
    """Say whether a parameter is a vector, which may be shaped to be added to maps; a row of a matrix is none."""
    wide = sum(size > 1 for size in parameter.shape)
    return parameter.dim() < 2 or (wide < 2 and (parameter.dim() > 2 or name.endswith("bias")))


def _reached_in_double(subject: Subject, names: list[str], largest: float) -> set[str]:
    """Name those of some parameters that two samples give a gradient in float64, which is then no structural zero.

    Only their gradients are computed: a cheap look that spares most models the whole step in float64.
    """
    whole, symbol = subject.batch(), subject.source.batch_symbol
    first = batch = whole
    if symbol is not None and (size := batch.sizes.get(symbol, 0)) > 2:
        batch = subject.source.rows(whole, torch.arange(2))
        first = subject.source.rows(whole, torch.arange(size - 2, size))
    with subject.in_double() as model:
        batch = batch.to(dtype=torch.float64).clone()
        model.train()
        seed_everything(subject.seed)
        parameters = dict(model.named_parameters())
        try:
            # weights that the first batch initialises, so that its mean is 0 and its scale 1, give
            # what follows a gradient from the second batch on
            with torch.no_grad():
                subject.call(model, first.to(dtype=torch.float64).clone())
            with torch.enable_grad(), Widened():
                loss = subject.compute_loss(subject.call(model, batch), batch)
            with subject.phase("backward", batch):
                gradients = torch.autograd.grad(
                    loss, [parameters[name] for name in names], allow_unused=True
                )
        except SubjectError:
            return set()
        return {
            name
            for name, gradient in zip(names, gradients, strict=True)
            if gradient is not None
            and float(torch.linalg.vector_norm(trees.dense(gradient))) > _REACHED * largest
        }
