"""Convolutions, pools and normalisations that were given other channels, or maps that are too small; inputs of a wrong rank."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ....explanation import Explanation, describe, numbers, on_line, times
from ...crashes.layers import (
    dimension_lost,
    dropped,
    edit,
    input_fact,
    input_of,
    named_source,
    or_declared,
    size_values,
    where_decided,
)
from ...crashes.table import entry

if TYPE_CHECKING:
    import re

    from ....findings import Location
    from ...crashes.scene import Scene


_CONVOLUTIONS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


def _layout(given: torch.Tensor, want: int, spatial: int) -> tuple[str, str, str]:
    """Return cause, measured fact and fix of a channel mismatch that is a matter of layout, or blanks."""
    if given.dim() == spatial + 2 and given.shape[-1] == want and given.shape[1] != want:
        order = (0, spatial + 1, *range(1, spatial + 1))
        edit = ".transpose(1, 2)" if spatial == 1 else f".permute{order}"
        return (
            "the channels come last; a convolution expects them in dimension 1",
            f"the last dimension of the input has the {want} that it expects",
            edit,
        )
    if given.dim() == spatial + 1 and want == 1:
        return (
            "the channel dimension is missing, so the batch is read as channels",
            f"the input has {given.dim()} dimensions, and {spatial + 2} are needed with batch and channels",
            ".unsqueeze(1)",
        )
    if given.dim() == spatial + 1 and given.shape[-1] == want:
        return (
            "the channels come last, and the batch dimension is missing",
            f"the last dimension of the input has the {want} that it expects",
            f".permute({spatial}, {', '.join(map(str, range(spatial)))}).unsqueeze(0)",
        )
    return "", "", ""


def _taken_for_channels(
    scene: Scene, given: torch.Tensor, spatial: int
) -> tuple[str, str, str, Location | None]:
    """Return cause, fact, fix and line where a lost dimension makes the batch stand for the channels, or blanks."""
    batch = scene.batch_size()
    if given.dim() != spatial + 1 or batch is None or given.shape[0] != batch:
        return "", "", "", None
    lost = dimension_lost(input_fact(scene))
    place = lost.location if lost is not None else None
    because = f"the input has {given.dim()} dimensions, the first of the batch's size {batch}; {spatial + 2} are needed"
    if lost is None or place is None:
        change = f"call {scene.at} with a channel dimension in its input (.unsqueeze(1))"
        return (
            "the channel dimension is missing, so the batch is read as channels",
            because,
            change,
            None,
        )
    word = "an index" if lost.name == "__getitem__" else lost.name
    before, after = lost.inputs[0].shape, lost.outputs[0].shape
    axis = next((i for i, size in enumerate(after) if size != before[i]), len(after))
    return (
        f"{word} on line {place.line} drops a dimension, so the batch is read as channels",
        because,
        f"keep dimension {axis}, which has {before[axis]}, on line {place.line}",
        place,
    )


@entry(r"expected input\[([\d, ]+)\] to have (\d+) channels, but got (\d+) channels")
def channels(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A convolution whose input has another number of channels."""
    want, got = int(match[2]), int(match[3])
    module, given = scene.module, input_of(scene)
    name = scene.at
    shape = list(given.shape) if given is not None else list(numbers(match[1]))
    spatial = len(numbers(match[1])) - 2
    call = scene.location
    call_line = on_line(call)
    common: dict[str, Any] = {
        "code": "channels",
        "summary": f"{name} expects {want} channels, got {got} (input {shape})",
        "observed": f"{name} takes {want} channels; its input is {describe(given) if given is not None else shape}",
    }
    if given is not None:
        cause, because, change = _layout(given, want, spatial)
        if cause:
            return scene.explain(
                **common,
                cause=cause,
                because=because,
                fix=f"call {name} with {change} of its input{call_line}",
            )
        cause, because, change, place = _taken_for_channels(scene, given, spatial)
        if cause:
            return scene.explain(
                **common,
                cause=cause,
                because=because,
                fix=change,
                location=place,
            )
    source = _input_source(scene, given)
    if not isinstance(module, _CONVOLUTIONS):
        return scene.explain(
            **common,
            cause=f"the convolution's weight was created for {want} channels",
            fix=f"give the weight {got} input channels, or the input {want}{call_line}",
        )
    place, origin = where_decided(scene, module.in_channels)
    of = f"the model's input {source}" if source else "its input"
    groups = f" with groups={module.groups}" if module.groups != 1 else ""
    because = f"the weight of {name} is {list(module.weight.shape)}{groups}"
    return scene.explain(
        **common,
        cause=f"{name} was built for {want} channels, and {of} has {got}",
        because=f"{because}; {scene.said}",
        fix=edit(scene, origin, place, got, f"build {name} with in_channels={got}")
        + or_declared(scene, want, got),
        culprits=scene.culprit(detail=f"takes {want} channels, got {got}")
        + scene.call_culprit()
        + size_values(scene, beside=place),
        location=place,
    )


def _input_source(scene: Scene, given: torch.Tensor | None) -> str:
    """Return the name of the model's input that the layer is given, or one of its shape; empty where there is none."""
    source = named_source(input_fact(scene))
    if source or given is None:
        return source
    return next((key for key, value in scene.inputs.items() if value.shape == given.shape), "")


@entry(r"Expected (\d)D \(unbatched\) or (\d)D \(batched\) input to (\w+), but got input of size: \[([\d, ]*)\]",
       r"Expected (\d)D or (\d)D \(batch mode\) tensor .*for (input), but got: ?\[?([\d, ]*)\]?",
       r"expected (\d)D (?:or (\d)D )?input \(got (\d)D input\)()",
       r"(?:RNN|LSTM|GRU): Expected input to be (\d)D or (\d)D, got (\d)D instead()")  # fmt: skip
def rank(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A layer whose input has too few or too many dimensions."""
    given = input_of(scene)
    name = scene.at
    shape = tuple(given.shape) if given is not None else numbers(match[4])
    if not shape:
        return None
    wanted = sorted({int(group) for group in (match[1], match[2]) if group})
    call = scene.location
    call_line = on_line(call)
    words = " or ".join(f"{size}" for size in wanted)
    missing = max(wanted) - len(shape)
    batch = scene.batch_size()
    if missing == 1 and batch is not None and shape[0] == batch:
        cause = "the channel dimension is missing"
        change = f"call {name} with .unsqueeze(1) of its input{call_line}"
    elif missing == 1:
        cause = "the batch dimension is missing"
        change = f"call {name} with .unsqueeze(0) of its input{call_line}"
    elif missing >= 1:
        cause = (
            f"the input of {name} has lost {missing} dimension{'s' if missing > 1 else ''}, as "
            "after flatten or mean"
        )
        change = f"call {name} before the dimensions are removed{call_line}"
    else:
        cause = (
            f"the input of {name} has {-missing or len(shape) - max(wanted)} dimension(s) too many"
        )
        change = f"flatten or squeeze the input of {name}{call_line}"
    culprits = scene.blame()
    lost = dropped(scene, input_fact(scene)) if missing >= 1 else None
    if lost is not None:
        cause += f": {lost.words}"
        culprits += (lost.culprit,)
        change = lost.fix if lost.batch else change
        call = lost.culprit.location if lost.batch else call
    return scene.explain(
        code="input-rank",
        summary=f"{name} expects {words} dimensions, got {len(shape)}: {list(shape)}",
        observed=f"input {describe(given) if given is not None else list(shape)}"
        + (f"; batch of {batch}" if batch is not None else ""),
        cause=cause,
        because=f"the input has {len(shape)} dimensions where {words} are allowed; {scene.said}",
        fix=change,
        culprits=culprits,
        location=call,
    )


@entry(r"Kernel size: \(([\d x]+)\)\. Kernel size can't be greater than actual input size",
       r"Given input size: \(([\dx]+)\)\. Calculated output size: \(([\dx-]+)\)\. Output size is too small",
       r"Padding size should be less than the corresponding input dimension")  # fmt: skip
def too_small(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """Feature maps that have shrunk below the kernel."""
    given, name, _call = input_of(scene), scene.at, scene.location
    shape = list(given.shape) if given is not None else list(numbers(scene.message))[:3]
    kernel = getattr(scene.module, "kernel_size", None)
    kernel_words = (
        times(kernel)
        if isinstance(kernel, tuple)
        else str(kernel)
        if kernel is not None
        else "its padding"
    )
    model_input = scene.input_words()
    return scene.explain(
        code="kernel-larger-than-input",
        summary=f"{name} needs maps of at least {kernel_words}, got {times(shape[2:] or shape)}",
        observed=f"input {shape}, kernel {kernel_words}"
        + (f"; the model's input is {model_input}" if model_input else ""),
        cause="the maps are smaller than the kernel: the input is too small for this many "
        "strides and pools",
        fix=f"raise the smallest size of the input in the contract, or remove a stride or pool before {name}",
        culprits=scene.blame(f"input {shape}"),
    )


@entry(r"Expected more than 1 value per channel when training, got input size (.*)",
       r"Expected more than 1 spatial element when training, got input size (.*)")  # fmt: skip
def one_value(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """Batch or instance statistics of a single value."""
    shape = numbers(match[1])
    name = scene.at
    instance = "spatial" in match[0]
    what = "one spatial element" if instance else "one value per channel"
    because = f"the input is {list(shape)}"
    if instance:
        fix = (
            f"normalise before the maps shrink to {times(shape[2:])}, or use a LayerNorm for {name}"
        )
    elif math.prod(shape[2:]) == 1 and len(shape) > 2:
        because += f": maps of {times(shape[2:])} and a batch of {shape[0]}"
        fix = f"use batches of at least 2 (drop_last=True), or a GroupNorm for {name}"
    else:
        because += f": a batch of {shape[0]}"
        fix = f"use batches of at least 2 (drop_last=True in the DataLoader), or a LayerNorm for {name}"
    return scene.explain(
        code="norm-one-value",
        summary=f"{name} cannot normalise {what} in training mode (input {list(shape)})",
        observed=f"input {list(shape)}, training mode",
        cause=f"the statistics of {name} are computed over {what}, which has zero deviation",
        because=f"{because}; {scene.said}",
        fix=fix,
        culprits=scene.blame(f"input {list(shape)}"),
    )


@entry(r"normalized_shape=\[([\d, ]+)\], expected input with shape .*got input of size ?\[([\d, ]+)\]",
       r"running_mean should contain (\d+) elements not (\d+)",
       r"Expected weight to be a vector of size equal to the number of channels in input, but got weight of shape \[(\d+)\] and input of shape \[([\d, ]+)\]",
       r"weight should contain (\d+) elements not (\d+)")  # fmt: skip
def norm_size(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A normalisation that was built for another number of features."""
    given, name = input_of(scene), scene.at
    contain = "should contain" in match[0]
    want = numbers(match[2]) if contain else numbers(match[1])
    shape = tuple(given.shape) if given is not None else numbers(match[2])
    over_last = "normalized_shape" in match[0]
    got = shape[-len(want) :] if over_last else numbers(match[1]) if contain else shape[1:2]
    call = scene.location
    call_line = on_line(call)
    dimension = len(shape) - 1 if over_last else 1
    elsewhere = [i for i, size in enumerate(shape) if (size,) == want and i not in (0, dimension)]
    summary = f"{name} normalises {times(want)} features, got {times(got)} (input {list(shape)})"
    observed = (
        f"{name} was built for {times(want)}; its input is "
        f"{describe(given) if given is not None else list(shape)}"
    )
    if elsewhere and len(want) == 1:
        return scene.explain(
            code="norm-shape",
            summary=summary,
            observed=observed,
            cause=f"the dimensions of the input are swapped: {name} works on "
            + ("the last one" if over_last else "dimension 1"),
            because=f"dimension {elsewhere[0]} of the input has the {want[0]} that it expects",
            fix=f"call {name} with .transpose({elsewhere[0]}, {dimension}) of its input{call_line}, and the same "
            "of its result where later layers take the old order",
            culprits=scene.blame(f"built for {times(want)}"),
        )
    layer = any(
        hasattr(scene.module, key) for key in ("normalized_shape", "num_features", "num_channels")
    )
    # a function that is given the size is called in the forward of a module of the user's own
    place, origin = (
        where_decided(scene, want[0] if len(want) == 1 else None) if layer else (None, None)
    )
    wanted = got[0] if len(got) == 1 else 0
    fix = (
        edit(scene, origin, place, wanted, f"build {name} for {wanted} features")
        if wanted
        else f"build {name} with normalized_shape={list(got)}"
    )
    if not layer:
        fix = f"normalise over {times(got)} features{call_line}"
    return scene.explain(
        code="norm-shape",
        summary=summary,
        observed=observed,
        cause=f"{name} was built for {times(want)} features, and its input has {times(got)}",
        fix=fix,
        culprits=scene.blame(f"built for {times(want)}")
        + scene.call_culprit()
        + size_values(scene, beside=place),
        location=place,
    )


@entry(r"num_channels \((\d+)\) must be divisible by num_groups \((\d+)\)",
       r"number of channels in input to be divisible by num_groups, but got input of shape \[\d+, (\d+)[\d, ]*\] and num_groups ?= ?(\d+)",
       r"(?:in_channels|out_channels) must be divisible by groups()()",
       r"embed_dim must be divisible by num_heads()()")  # fmt: skip
def divisible(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """Channels that cannot be split evenly."""
    total, parts = match[1], match[2]
    if not total:
        whole = next(
            (
                scene.argument(n)
                for n in ("embed_dim", "in_channels")
                if scene.argument(n) is not None
            ),
            None,
        )
        share = next(
            (scene.argument(n) for n in ("num_heads", "groups") if scene.argument(n) is not None),
            None,
        )
        total, parts = str(whole), str(share)
    unit = "heads" if "num_heads" in match[0] else "groups"
    if not (total.isdigit() and parts.isdigit() and int(parts)):
        return None
    fitting = [n for n in range(1, int(total) + 1) if int(total) % n == 0]
    near = min(fitting, key=lambda n: abs(n - int(parts)))
    name = type(scene.module).__name__ if scene.module is not None else scene.at
    call = scene.location
    return scene.explain(
        code="not-divisible",
        summary=f"{name}: {total} channels cannot be split into {parts} {unit}",
        observed=f"{total} / {parts} leaves a remainder of {int(total) % int(parts)}",
        cause=f"the number of channels is not a multiple of the number of {unit}",
        fix=f"use {near} {unit}" + on_line(call),
        culprits=scene.blame() if scene.phase != "build" else scene.call_culprit(),
    )
