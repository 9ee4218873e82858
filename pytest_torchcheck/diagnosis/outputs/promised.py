"""Broken promises of behaviour, explained: where the future, padding by its length or its values, or an order gets in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ...explanation import by_forward, on_line
from ...findings import Culprit, Finding
from ...objects import trees
from ...probes.positions.hiding import find_query_mask
from ...state import seed_everything
from ...verdicts import suspicious, violated
from ..crashes.place import Place
from ..lines.lengthened import lengthening_line
from ..loss.bounds import initialisation_line
from . import mask_lines, places

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...batches import Batch
    from ...probes.positions.hiding import LaidMask
    from ...promises import Causal, PaddingInvariant
    from ...subject import Subject


_STILL = 1e-5


def future(
    subject: Subject,
    promise: Causal,
    path: str,
    position: int,
    batch: Batch,
    changed: Mapping[int, Batch],
    gap: float,
) -> Finding:
    """Explain an output that depends on later inputs."""
    length = batch.tensors()[path].shape[promise.dim]
    place = mask_lines.leaking_line(subject, batch, changed, length=length)

    def leaks(prepare: Callable[[], None]) -> bool:
        kept = []
        for one in (batch, changed[position + 1]):
            prepare()  # every run puts the model back
            output = trees.pick(subject.forward(one), promise.output)
            kept.append(output.narrow(promise.output_dim, 0, position + 1))
        return trees.apart(*kept) > _STILL

    place = mask_lines.switched_off(subject, place, leaks) or place
    name = by_forward(subject, path)
    return places.finding_at(
        place,
        subject,
        "future-leak",
        f"the output at position {position} depends on {name} after it",
        instead=Culprit("input", name, "the future leaks"),
        observed=f"{name} changed after position {position}: outputs up to it moved by {gap:.3g} (relative)",
        cause="an operation reads later positions",
        because="only later inputs differed between two eval forwards",
        fix="mask or shift so that position t depends on positions up to t only: pad a "
        "convolution on the left only, use is_causal=True, no pooling over time",
        evidence={"position": position, "gap": gap},
    )


def padding(
    subject: Subject,
    promise: PaddingInvariant,
    path: str,
    output: str,
    gap: float,
    extra: int,
    batch: Batch,
    extended: Batch,
    refilled: Batch | None,
    *,
    real: torch.Tensor | None = None,
    contents: bool = False,
    longest: Callable[[], Batch] | None = None,
) -> Finding:
    """Explain an output that depends on the amount of padding, or (``contents``) on what stands there.

    ``refilled`` has other values at the padded positions; None where only the padding id tells that they
    are padded. ``real`` says which positions of the batch are not; ``longest`` adds ``extra`` to ``extended``.
    """
    length, place = batch.tensors()[path].shape[promise.dim], None
    if refilled is not None:
        place = _leaking(subject, promise, extended, refilled, length, length + extra)
    if place is None and not contents:
        place = lengthening_line(
            subject,
            batch,
            extended,
            length=length,
            extra=extra,
            side=promise.side,
            real=real,
            longest=longest,
        )
    row = None if contents else _filled_row(subject, promise, [batch, extended], output, gap)
    if row is not None:
        place = _of_row(subject, promise, row, place)
    elif (laid := _query_mask(subject, promise, extended, length + extra)) is not None:
        place = _of_laid(laid, place)
    place = _with_mask(promise, place)
    name = by_forward(subject, path)
    return places.finding_at(
        place,
        subject,
        "padding-leak",
        f"the values at padded positions of {name} change {output}"
        if contents
        else f"{extra} more padded positions of {name} change {output}",
        instead=Culprit("input", name, "padding leaks"),
        observed=f"{output} of the real positions moved by {gap:.3g} (relative)",
        cause="an operation reads padded positions",
        because=f"the {extra} padded positions on the {promise.side} have other values"
        if contents
        else f"{extra} positions of {promise.pad} were appended on the {promise.side}",
        fix=_hide_from(place.op if place else ""),
        evidence={"gap": gap},
    )


def _leaking(
    subject: Subject,
    promise: PaddingInvariant,
    extended: Batch,
    refilled: Batch,
    length: int,
    whole: int,
) -> Place | None:
    """Return where other values at ``whole - length`` padded positions get into real ones."""
    return mask_lines.leaking_line(
        subject, extended, {length: refilled}, length=whole, side=promise.side, what="padded"
    )


def _with_mask(promise: PaddingInvariant, place: Place | None) -> Place | None:
    """Name the mask that the user declared, which does not hide the padding at a place."""
    if place is None or not isinstance(promise.mask, str):
        return place
    blind = Culprit("input", promise.mask, "does not hide the padding there")
    return replace(place, settings=(*place.settings, blind))


def _of_laid(laid: LaidMask, place: Place | None) -> Place:
    return Place(
        op=place.op if place else laid.op,
        location=laid.location,
        module=place.module if place else "",
        module_class=place.module_class if place else "",
        fact=f"the mask is {list(laid.shape)} where it is applied to the scores "
        f"{list(laid.scores)} of every query and key",
        cause="the mask hides padded queries, but every query still reads padded keys",
        fix="give the mask the size of the keys in its last "
        f"dimension{on_line(laid.location)}: mask[:, None, None, :]",
        settings=(Culprit("call", laid.op, "they are combined here", laid.met),),
    )


def _of_row(subject: Subject, promise: PaddingInvariant, row: str, place: Place | None) -> Place:
    return Place(
        op=place.op if place else "",
        location=initialisation_line(subject, row),
        module=row.rpartition(".")[0],
        module_class="Embedding",
        fact=f"row {promise.pad} of {row} is not zero, and with zeros in it the same padding changes "
        "no real position",
        cause="an initialisation overwrites the row of padding_idx, so that padding counts as a token",
        fix=f"set this row to zero after the initialisation: weight[{promise.pad}].zero_() under "
        "torch.no_grad()",
        settings=(Culprit("parameter", row, f"row {promise.pad} is not zero"),),
    )


def _filled_row(
    subject: Subject, promise: PaddingInvariant, batches: list[Batch], output: str, gap: float
) -> str | None:
    """Return the weight of an embedding whose padding row is not zero, where zeros in it end the leak."""
    row = int(promise.pad)
    with subject.pristine(steps=True) as model, torch.no_grad():
        filled = [
            (f"{name}.weight" if name else "weight", module)
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Embedding)
            and module.padding_idx == promise.pad
            and bool(module.weight[row].any())
        ]
        if not filled:
            return None
        for _, module in filled:
            module.weight[row].zero_()
        model.eval()
        made = []
        for batch in batches:
            seed_everything(subject.seed)
            made.append(trees.floats(subject.call(model, batch.clone())).get(output))
    short, long = made
    if short is None or long is None or short.shape != long.shape:
        return None  # an output for each position: what reads padded ones is named instead
    return filled[0][0] if trees.apart(long, short) < _ENDED * gap else None


_ENDED = 1e-3
"""Share of a leak that is rounding."""


def _hide_from(op: str) -> str:
    """Return how padded positions are kept from an operation."""
    name = op.rpartition(".")[2]
    return next(
        (edit for names, edit in _HIDING if any(each in name for each in names)),
        "mask the padded positions before this operation (attention mask, masked mean, lengths)",
    )


_HIDING = (
    (("conv", "avg_pool"), "set the padded positions to 0 before this operation"),
    (("max_pool",), "set the padded positions to the lowest number before this operation"),
    (
        ("instance_norm", "group_norm", "batch_norm", "layer_norm"),
        "take mean and variance over real positions only, or use nn.LayerNorm over the features",
    ),
    (
        ("lstm", "gru", "rnn_"),
        "give it real positions only: nn.utils.rnn.pack_padded_sequence(..., enforce_sorted=False)",
    ),
)


def _query_mask(
    subject: Subject, promise: PaddingInvariant, batch: Batch, length: int
) -> LaidMask | None:
    """Return the padding mask that lies along the queries of an attention, where there is one."""
    copy = batch.clone()
    named = [key for key in (promise.mask,) if key is not None]
    arguments = [copy.kwargs.get(key) if isinstance(key, str) else copy.args[key] for key in named]
    masks = [value for value in arguments if isinstance(value, torch.Tensor)]

    def run() -> Any:
        subject.model.eval()
        seed_everything(subject.seed)
        return subject.call(subject.model, copy)

    with subject.pristine() as model:
        return find_query_mask(run, model, masks, length)


def permutation(
    subject: Subject,
    promise: Any,
    path: str,
    gap: float,
    batch: Batch,
    variant: Batch,
    axes: Mapping[str, int],
    order: torch.Tensor | None = None,
) -> Finding:
    """Explain an output that depends on the order of a set, whose entries stand along ``axes`` of the inputs.

    With ``order`` they are the edges of a graph: the one of ``batch`` at each place of ``variant``. Some
    models read their order by design, but none combines values of different edges because of it.
    """
    edges = order is not None
    known = (
        "edge_index lists edges in any order" if edges else f"{type(promise).__name__} was promised"
    )
    dims = ", ".join(f"{name} along dimension {dim}" for name, dim in axes.items())
    place = places.place_dependence(subject, batch, variant, axes, order)
    wrong = not edges or (place is not None and bool(place.cause))
    return places.finding_at(
        place,
        subject,
        "order-dependent",
        f"{path} depends on the order of {'the edges' if edges else dims}",
        made=violated if wrong else suspicious,
        instead=Culprit("output", path, "depends on order"),
        observed=f"permuting {dims} moved {path} by {gap:.3g} (relative)",
        cause="an operation treats the entries according to their position",
        because=f"the entries were the same, in another order; {known}",
        fix="reorder or extend edge_index and the features of its edges in the same way before this line"
        if edges
        else "use an operation that is symmetric in the entries on this line (sum, mean, max, "
        "attention without positions)",
        evidence={"gap": gap},
    )
