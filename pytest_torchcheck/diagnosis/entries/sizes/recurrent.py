"""Recurrent and attention layers: features, hidden states, masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....explanation import Explanation, describe, numbers
from ...crashes.layers import edit, input_of, or_declared, size_values, where_decided
from ...crashes.table import entry
from ...lines.layer_sizes import building_line

if TYPE_CHECKING:
    import re

    from ...crashes.scene import Scene


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
    )
    if swapped:
        cause = f"{name} reads dimension 0 as time: it was built without batch_first=True"
        because = f"dimension 0 of its input has {batch}, the batch size; {scene.said}"
        fix = f"build {name} with batch_first=True"
        place = building_line(scene.model, scene.path_of(scene.module)) or call
    else:
        cause = f"the {what} was created for another batch size or length"
        because = scene.said
        fix = f"create the {what} for {list(want)}" + (
            f", used on line {call.line}" if call else ""
        )
        place = call
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
