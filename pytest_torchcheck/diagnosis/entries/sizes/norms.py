"""Normalisations of one value or of another size, and channels that cannot be split."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ....explanation import Explanation, describe, numbers, on_line, times
from ...crashes.layers import edit, input_of, size_values, where_decided
from ...crashes.table import entry

if TYPE_CHECKING:
    import re

    from ...crashes.scene import Scene


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
            fix=f"call {name} with .transpose({elsewhere[0]}, {dimension}) of its input{call_line}",
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
