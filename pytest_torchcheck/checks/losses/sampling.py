"""What a model draws for its loss: with gradients, and with the spread that the loss reckons with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...codes import gradients as explain
from ...probes.gradient.provenance import find_stops
from ...probes.recorded.watch import Watch, name_of, tensors_in
from ...runs.again import forward_and_loss
from ...runs.liveness.choices import blind_choice
from ...runs.losses.consumption import evidence
from ...runs.losses.spreads import spread_mistaken
from ...verdicts import not_applicable, passed

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from ...findings import Finding
    from ...subject import Subject


def sampling_paths(subject: Subject) -> Iterator[Finding]:
    """Look for draws from live means or deviations that trainable operations read, and for choices that no target trains.

    A draw that only meets its own log-probability (a policy gradient) is no mistake, nor is a
    discrete one. A choice is a part of the model that an output follows in jumps: the gradients of its
    parameters are the same whatever the targets are. A deviation that scales normal noise must be what the loss
    takes for the deviation.
    """
    choice = blind_choice(subject)
    if choice is not None:
        yield explain.blind_choice(subject, choice)
        return
    if (spread := spread_mistaken(subject)) is not None:
        yield explain.spread_mistaken(subject, spread)
        return
    if evidence(subject).samples == 0:
        yield not_applicable(
            "the forward draws from no normal distribution whose parameters require gradients"
        )
        return
    with subject.pristine() as model:
        stops = find_stops(forward_and_loss(subject), model)
    drawn = [
        stop
        for stop in stops
        if stop.kind == "sampling" and stop.op is not None and "normal" in stop.op.name
    ]
    if not drawn or not _feeds_parameters(subject):
        yield passed(f"the results of {len(drawn)} draws enter no differentiable operation")
        return
    for stop in drawn:
        yield explain.not_reparameterised(subject, stop)


def _feeds_parameters(subject: Subject) -> bool:
    """Say whether what is drawn goes on into operations with trainable parameters."""
    fed: list[bool] = []
    drawn: dict[int, torch.Tensor] = {}
    parameters = {id(p) for p in subject.model.parameters() if p.requires_grad}

    class Follow(Watch):
        def after(
            self, func: object, args: object, kwargs: object, result: object, token: object
        ) -> None:
            inputs = list(tensors_in((args, kwargs)))
            made = list(tensors_in(result))
            if name_of(func).endswith("normal") and any(t.requires_grad for t in inputs):  # type: ignore[arg-type]
                drawn.update((id(t), t) for t in made)
            elif any(id(t) in drawn for t in inputs):
                if any(id(t) in parameters for t in inputs):
                    fed.append(True)
                drawn.update((id(t), t) for t in made)

    with subject.pristine(train=True, seeded=True) as model, Follow(model):
        subject.call(model, subject.batch().clone())
    return bool(fed)
