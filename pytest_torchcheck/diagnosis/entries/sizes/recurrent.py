"""Recurrent and attention layers: features, hidden states, and masks, of which torch's layers speak in a different way on each path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ....explanation import Explanation, describe, numbers
from ....findings import Culprit
from ....lean import dataclass
from ....sources import edits
from ...crashes.layers import edit, input_of, or_declared, size_values, sized_by, where_decided
from ...crashes.table import entry
from ...lines.layer_sizes import building_line

if TYPE_CHECKING:
    import re

    from ....findings import Location
    from ...crashes.history import Fact
    from ...crashes.scene import Scene


_LAYERS = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    batch: int | None
    queries: int
    keys: int


@entry(
    r"For mask_type == \d mask shape should be \(",
    r"Expected key_padded_mask\.shape\[[01]\] to be \d+, but got \d+",
    r"attn_mask is torch\.Size\(\[[\d, ]+\]\), but should be \([\d, ]+\)",
    r"Mask size should match input size",
    r"shape '\[[-\d, ]+\]' is invalid for input of size \d+",
    r"The size of tensor a \(\d+\) must match the size of tensor b \(\d+\) at non-singleton dimension \d+",
    r"The expanded size of the tensor \(\d+\) must match the existing size \(\d+\) at non-singleton dimension \d+",
)
def attention_mask(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A mask for another number of positions than the attention has queries or keys."""
    found = _product(scene) or _layer(scene)
    if found is None:
        return None
    what, masks, sizes, shown = found
    wrong = next((w for name, m in masks.items() if (w := _misfit(name, m, sizes))), None)
    if wrong is None:
        return None
    name, dim, got, want, words = wrong
    mask, call = masks[name], scene.location
    maker, source = sized_by(_fact_of(scene, mask), got)
    made_at = maker.location if maker is not None else None
    cause = f"{name} was created for {got} {words}, not for {want}"
    fix = f"create the mask from the number of {words} that the layer receives"
    culprits = scene.blame(f"{name} {list(mask.shape)}")
    if source:
        held = isinstance(scene.model, nn.Module) and source in dict(scene.model.named_buffers())
        cause += f": it is {source}, {'a buffer of' if held else 'as passed to'} the model"
        culprits = (*culprits, Culprit("tensor" if held else "input", source, f"size {got}"))
    elif maker is not None and made_at is not None:
        places = [p for p in (made_at, *maker.callers) if p != call]
        cause += f": that size comes from {maker.name} on line {made_at.line}"
        cause += "".join(f", called on line {p.line}" for p in maker.callers[-1:])
        fix += f" (line {places[-1].line})" if places else ""
        culprits += tuple(Culprit("call", maker.name, f"creates {name}", place) for place in places)
    return scene.explain(
        code="mask-shape",
        summary=f"{what} received a {name} for {got} {words}, but there are {want}",
        observed=f"{name} {list(mask.shape)}, {shown}; dimension {dim} of the mask is {got}",
        cause=cause,
        fix=fix,
        culprits=(*culprits, *scene.meeting(culprits[-1].location)),
    )


def _fact_of(scene: Scene, mask: torch.Tensor) -> Fact | None:
    """Return what a replay knows of the mask: the last operand of its shape, as the others stand before it."""
    again = scene.replay()
    facts = again.failing.op.inputs if again is not None and again.failing is not None else ()
    return next((f for f in reversed(facts) if f.shape == tuple(mask.shape)), None)


_Found = tuple[str, dict[str, torch.Tensor], _Sizes, str]


def _product(scene: Scene) -> _Found | None:
    """Read a call of ``F.scaled_dot_product_attention`` that raised."""
    again = scene.replay()
    call = again.failing if again is not None else None
    if call is None or call.op.name != "scaled_dot_product_attention":
        return None
    given: dict[str, Any] = dict(zip(("query", "key", "value", "attn_mask"), call.args, strict=False))  # fmt: skip
    given |= call.kwargs
    query, key, mask = (given.get(name) for name in ("query", "key", "attn_mask"))
    if not (
        isinstance(query, torch.Tensor)
        and isinstance(key, torch.Tensor)
        and isinstance(mask, torch.Tensor)
        and min(query.dim(), key.dim(), mask.dim()) >= 2
    ):
        return None
    sizes = _Sizes(
        batch=query.shape[0] if query.dim() > 2 else None,
        queries=query.shape[-2],
        keys=key.shape[-2],
    )
    shown = f"query {describe(query)}, key {describe(key)}"
    return f"scaled_dot_product_attention in {scene.at}", {"attn_mask": mask}, sizes, shown


def _layer(scene: Scene) -> _Found | None:
    """Read the call of one of torch's attention layers in which it was raised."""
    layer = scene.module
    if not isinstance(layer, _LAYERS):
        return None
    given = scene.arguments(layer)
    masks = {k: v for k, v in given.items() if "mask" in k and isinstance(v, torch.Tensor)}
    query = given.get("query", given.get("src"))
    key = given.get("key", query)
    if not isinstance(query, torch.Tensor) or not isinstance(key, torch.Tensor) or query.dim() < 2:
        return None
    inner = getattr(layer, "layers", [layer])[0]
    inner = getattr(inner, "self_attn", inner)
    first = bool(getattr(inner, "batch_first", False))
    if isinstance(layer, nn.MultiheadAttention) and scene.called("multi_head_attention_forward"):
        if not first and key.dim() == 3 and _looks_batch_first(scene, key):
            return None  # the dimensions are exchanged: told of recurrent layers and of these alike
        first = False  # the layer has turned them around
    if query.dim() == 2:
        sizes = _Sizes(batch=None, queries=query.shape[0], keys=key.shape[0])
    else:
        batch, time = (0, 1) if first else (1, 0)
        sizes = _Sizes(batch=key.shape[batch], queries=query.shape[time], keys=key.shape[time])
    return scene.at, masks, sizes, f"query {describe(query)}, key {describe(key)}"


def _looks_batch_first(scene: Scene, key: torch.Tensor) -> bool:
    batch = scene.batch_size()
    return batch is not None and key.shape[0] == batch != key.shape[1]


def _misfit(name: str, mask: torch.Tensor, sizes: _Sizes) -> tuple[str, int, int, int, str] | None:
    """Return the dimension of a mask that does not fit, its size, the one needed, and of what."""
    shape = tuple(mask.shape)
    if "padding" in name:
        wanted = [(sizes.batch, "samples"), (sizes.keys, "keys")][-len(shape) or 2 :]
    else:
        wanted = [(sizes.queries, "queries"), (sizes.keys, "keys")]
    for dim, (need, words) in zip(range(-len(wanted), 0), wanted, strict=True):
        if -dim > len(shape) or need is None:
            continue
        got = shape[dim]
        if got != need and not (got == 1 and "padding" not in name):
            return name, len(shape) + dim, got, need, words
    return None


@entry(r"input\.size\(-1\) must be equal to input_size\. Expected (\d+), got (\d+)",
       r"was expecting embedding dimension of (\d+), but got (\d+)",
       r"input has inconsistent input_size: got (?P<got>\d+),? expected (?P<want>\d+)")  # fmt: skip
def recurrent_size(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A recurrent or attention layer built for another number of features."""
    named = match.groupdict()
    want = int(named.get("want") or match[1])
    got = int(named.get("got") or match[2])
    given, name = input_of(scene), scene.at
    place, origin = where_decided(scene, want)
    return scene.explain(
        code="feature-size",
        summary=f"{name} expects {want} features, got {got}",
        observed=f"input {describe(given)}; {name} takes {want}"
        if given is not None
        else f"{name} takes {want}, got {got}",
        cause=f"{name} was built for {want} features, and its input has {got}",
        fix=edit(scene, origin, place, got, f"build {name} for {got} features")
        + or_declared(scene, want, got),
        culprits=scene.blame(f"takes {want} features, got {got}")
        + scene.call_culprit()
        + size_values(scene, beside=place),
        location=place,
    )


@entry(r"Expected hidden(?:\[\d\])? size \(([\d, ]+)\), got \[([\d, ]+)\]",
       r"Expected key_padded_mask\.shape\[[01]\] to be (\d+), but got (\d+)",
       r"attn_mask is torch\.Size\(\[([\d, ]+)\]\), but should be \(([\d, ]+)\)")  # fmt: skip
def recurrent_batch(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A hidden state or mask whose batch or length does not fit, often a matter of batch_first."""
    mask = "mask" in match[0]
    want, got = numbers(match[1]), numbers(match[2])
    if "should be" in match[0]:
        want, got = got, want
    given, name, call = input_of(scene), scene.at, scene.location
    first = bool(getattr(scene.module, "batch_first", False))
    what = "mask" if mask else "hidden state"
    observed = f"{what} {list(got)}, expected {list(want)}; {name}(batch_first={first})"
    observed += f"; input {describe(given)}" if given is not None else ""
    batch = scene.batch_size()
    swapped = (
        not first
        and given is not None
        and given.dim() == 3
        and batch is not None
        and given.shape[0] == batch
        and given.shape[1] != batch
        and (mask or got[-2:-1] == (batch,))
    )
    if swapped:
        cause = f"{name} reads dimension 0 as time: it was built without batch_first=True"
        because = f"dimension 0 of its input has {batch}, the batch size; {scene.said}"
        fix = f"build {name} with batch_first=True"
        place = building_line(scene.model, scene.path_of(scene.module)) or call
    else:
        cause = f"the {what} was created for another batch size or length"
        because = scene.said
        made = None if mask else _made(scene, got)
        fix = f"create the {what} " + (
            f"for {list(want)}" + (f", used on line {call.line}" if call else "")
            if made is None
            else f"{_as_wanted(scene, made, want, got)} on line {made.line}"
        )
        place = made or call
    return scene.explain(
        code="mask-shape" if mask else "hidden-size",
        summary=f"{name} expects a {what} of {list(want)}, got {list(got)}",
        observed=observed,
        cause=cause,
        because=because,
        fix=fix,
        culprits=scene.blame() + scene.call_culprit(),
        location=place,
    )


def _made(scene: Scene, shape: tuple[int, ...]) -> Location | None:
    """Return the line that made the last tensor of a shape, or None."""
    again = scene.replay()
    ops = () if again is None else reversed(again.ops)
    return next(
        (op.location for op in ops if any(fact.shape == shape for fact in op.outputs)), None
    )


def _as_wanted(scene: Scene, made: Location, want: tuple[int, ...], got: tuple[int, ...]) -> str:
    """Say which sizes a hidden state needs in place of those that it has, the batch's by that of the input."""
    words, batch = [], 0 if getattr(scene.module, "batch_first", False) else 1
    for dim, (need, has) in enumerate(zip(want, got, strict=False)):
        if need != has and dim == 1:
            same = edits.like_tensor(made, f"shape[{batch}]")
            value = scene.inputs.get(same.partition(".")[0])
            fits = value is not None and value.shape[batch : batch + 1] == (need,)
            words.append(
                f"with the batch size{f', {same},' if fits else ' of the input'} instead of {has}"
            )
        elif need != has:
            words.append(f"with {need} instead of {has} in dimension {dim}")
    return ", ".join(words) if words and len(want) == len(got) else f"of {len(want)} dimensions"
