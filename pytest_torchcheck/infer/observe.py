"""What a model was seen to do: promises that held in every run, and what a step costs."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any, Final

import torch

from ..contracts import Contract
from ..lean import dataclass
from ..objects import trees
from ..promises import (
    Causal,
    Deterministic,
    PaddingInvariant,
    PermutationEquivariant,
    PermutationInvariant,
    Promise,
    Tied,
)
from ..specs import Mask, Tokens
from ..state import isolated
from ..text.units import format_bytes, format_flops
from .code import code_of
from .outcome import steps_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import nn

    from ..batches import BatchSource
    from ..findings import Finding
    from ..specs import TensorSpec

CHECKS: Final[Mapping[type[Promise], str]] = {
    Causal: "causality",
    PaddingInvariant: "padding-invariance",
    PermutationInvariant: "permutation-invariance",
    PermutationEquivariant: "permutation-equivariance",
    Tied: "tied-weights",
    Deterministic: "deterministic-algorithms",
}
"""The promises that are tried, and the check that decides each."""
HEADROOM: Final = 1.25
_STEEP: Final = 3
_VAST: Final = {"memory": 1 << 60, "flops": 10**18}
_STANDING: Final = ("eval-determinism", "state-dict-roundtrip")
"""Checks that every contract has, of which it is said how they came out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One field of a contract, as a value and as code.

    Attributes:
        field: Its name.
        value: Its value.
        code: The code of the value.
        comment: What was measured, in how many runs.
    """

    field: str
    value: Any
    code: str
    comment: str


def promises(
    contract: Contract, model: nn.Module, *, output: str | None, runs: int
) -> Iterator[Observed]:
    """Yield the promises that held in every run; one that could not fail in a run is left out.

    Args:
        contract: The contract without promises.
        model: The model, built: its ties are read off it.
        output: Shape of the output where it is one tensor: what keeps the order of an axis has
            that axis.
        runs: How many seeds are tried.
    """
    for promise, code in (
        *_ties(model),
        *_of_axes(contract, model, output),
        (Deterministic(), "Deterministic()"),
    ):
        name = CHECKS[type(promise)]
        tried = again(contract, promises=[promise])
        found = [_decided(tried, name, seed) for seed in range(runs)]
        if all(found):
            comment = f"{name} held in {times(runs)}: {_short(found[0])}"
            yield Observed(field="promises", value=promise, code=code, comment=comment)


def again(contract: Contract, **fields: Any) -> Contract:
    """Return the same contract with further fields."""
    return Contract(
        **{
            "model": contract.model, "inputs": contract.inputs, "targets": contract.targets,
            "sizes": contract.sizes, "batch": contract.batch, "loss": contract.loss,
            "batch_dim": contract.batch_dim, "name": contract.name, **fields,
        }
    )  # fmt: skip


def _decided(contract: Contract, check: str, seed: int) -> Finding | None:
    """Return the finding of a check that passed; None where it did not, or could not fail."""
    found = contract.check([check], seed=seed, devices="cpu").findings
    held = [finding for finding in found if finding.check == check]
    return held[0] if held and all(finding.status == "passed" for finding in held) else None


def times(runs: int) -> str:
    """Return a number of runs in words."""
    return f"{runs} run{'s' * (runs != 1)}"


def _short(finding: Finding | None) -> str:
    text = " ".join(finding.summary.split()) if finding is not None else ""
    return text if len(text) <= 110 else f"{text[:107]}..."


def _ties(model: nn.Module) -> Iterator[tuple[Promise, str]]:
    """Yield a promise for each pair of names that share one parameter."""
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        other = first.setdefault(id(parameter), name)
        if other != name:
            yield Tied(other, name), f'Tied("{other}", "{name}")'


def _of_axes(
    contract: Contract, model: nn.Module, output: str | None
) -> Iterator[tuple[Promise, str]]:
    """Yield what may hold along the axes of the inputs that are no batch."""
    source = contract.source
    if source is None:
        return
    base = source.base(0)
    inputs = dict(base.input_leaves())
    for symbol in source.symbols:
        if symbol == source.batch_symbol or not symbol.isidentifier():
            continue
        axes = {path: dim for path, dim in source.axes(symbol).items() if path in inputs}
        if not axes:
            continue
        names = {_key(path, base.arg_names(), base.kwargs): dim for path, dim in axes.items()}
        if None in names:
            continue
        kinds = dict(zip(names, map(source.specs.get, axes), strict=True))
        if output is None:  # several outputs, or none with a shape that is known
            found = _following(contract, source, model, symbol)
            if found is not None:
                yield from _causal(names, kinds, *found)
        else:
            shape = output.split()
            place = shape.index(symbol) if symbol in shape else None
            if place is not None:
                yield from _causal(names, kinds, None, place)
            yield _permuted(names, place)
        ids = next((n for n, spec in kinds.items() if isinstance(spec, Tokens)), None)
        mask = next((n for n, spec in kinds.items() if isinstance(spec, Mask)), None)
        if ids is not None and mask is not None:
            code = f"PaddingInvariant(ids={code_of(ids)}, mask={code_of(mask)})"
            yield PaddingInvariant(ids=ids, mask=mask), code


def _following(
    contract: Contract, source: BatchSource, model: nn.Module, symbol: str
) -> tuple[tuple[int | str, ...], int] | None:
    """Return the first floating output whose size follows a symbol, as its path, and along which axis."""
    size = source.base(0).sizes[symbol]
    if size - 1 < source.symbols[symbol].low:
        return None
    with isolated(), torch.no_grad():
        model = copy.deepcopy(model).eval()
        batches = (source.base(0), source.at(0, **{symbol: size - 1}))
        seen = [trees.floats(contract.invoke(model, one)) for one in batches if one is not None]
    for path, leaf in seen[0].items():
        other = seen[-1].get(path, leaf)
        shapes = zip(leaf.shape, other.shape, strict=False)
        for place, pair in enumerate(shapes):
            if pair == (size, size - 1):
                return steps_of(path), place
    return None


def _key(path: str, positional: tuple[str, ...], keywords: Mapping[str, Any]) -> int | str | None:
    """Return an input's position or keyword; None for what lies inside another."""
    if path in keywords:
        return path
    return positional.index(path) if path in positional else None


def _causal(
    names: Mapping[Any, int],
    kinds: Mapping[Any, TensorSpec | None],
    output: tuple[int | str, ...] | None,
    place: int,
) -> Iterator[tuple[Promise, str]]:
    """Yield the promise of causality for each input that is no mask."""
    which = output[0] if output is not None and len(output) == 1 else output
    for name, dim in names.items():
        if isinstance(kinds[name], Mask):
            continue
        promise = Causal(dim=dim, input=name, output=which, output_dim=place)
        given = {"dim": dim, "input": name, "output": which, "output_dim": place}
        usual = {"dim": 1, "input": 0, "output": None, "output_dim": 1}
        said = [f"{field}={code_of(v)}" for field, v in given.items() if v != usual[field]]
        yield promise, f"Causal({', '.join(said)})"


def _permuted(names: Mapping[Any, int], place: int | None) -> tuple[Promise, str]:
    """Return the promise that the order of entries does not matter, or that the output follows it."""
    (first, dim), *others = names.items()
    axes = f"dim={dim}" if first == 0 else f"dim={dim}, input={code_of(first)}"
    if others:
        axes = f"inputs={code_of(dict(names))}"
    if place is None:
        return PermutationInvariant(inputs=dict(names)), f"PermutationInvariant({axes})"
    axes += f", output_dim={place}" if place != dim else ""
    promise = PermutationEquivariant(inputs=dict(names), output_dim=place)
    return promise, f"PermutationEquivariant({axes})"


def ceilings(contract: Contract, *, runs: int) -> Iterator[Observed]:
    """Yield ceilings of memory and work with headroom, and the measured powers of their growth."""
    found = [
        _decided(again(contract, memory=_VAST["memory"]), "peak-memory", s) for s in range(runs)
    ]
    whole, kept = (_top(found, key) for key in ("peak_bytes", "activation_bytes"))
    if whole:
        limits = {"total": _bytes(whole), **({"activations": _bytes(kept)} if kept else {})}
        code = ", ".join(f'"{name}": "{limit}"' for name, limit in limits.items())
        measured = f"{format_bytes(whole)} in all and {format_bytes(kept)} of activations"
        yield Observed(
            field="memory", value=limits, code=f"{{{code}}}", comment=_headroom(measured, runs)
        )
    found = [_decided(again(contract, flops=_VAST["flops"]), "flops", s) for s in range(runs)]
    if work := _top(found, "flops"):
        value = _flops(work)
        yield Observed(
            field="flops",
            value=value,
            code=f"{value:_}",
            comment=_headroom(format_flops(work), runs),
        )
    powers = _powers(contract)
    if powers:
        code = "{" + ", ".join(f'"{name}": {power:g}' for name, (power, _) in powers.items()) + "}"
        laws = "; ".join(law for _, law in powers.values())
        allowed = {name: power for name, (power, _) in powers.items()}
        yield Observed(field="growth", value=allowed, code=code, comment=f"memory follows {laws}")


def _top(found: list[Finding | None], key: str) -> float:
    """Return the largest measurement of several runs; 0 where one of them has none."""
    values = [float(str(one.evidence[key])) for one in found if one and key in one.evidence]
    return max(values, default=0.0) if len(values) == len(found) else 0.0


def _headroom(measured: str, runs: int) -> str:
    return f"{measured} measured in {times(runs)}, with {HEADROOM - 1:.0%} headroom"


def _bytes(top: float) -> str:
    step = 1024 if top < 1 << 20 else 1 << 20
    return f"{math.ceil(top * HEADROOM / step)} {'KiB' if step == 1024 else 'MiB'}"


def _flops(top: float) -> int:
    digits = max(0, int(math.log10(top)) - 2)
    step: int = 10**digits
    return math.ceil(top * HEADROOM / step) * step


def _powers(contract: Contract) -> dict[str, tuple[float, str]]:
    source = contract.source
    found: dict[str, tuple[float, str]] = {}
    for name, span in (source.symbols if source is not None else {}).items():
        if not name.isidentifier() or len(span) < 3:
            continue
        held = _decided(again(contract, growth={name: 9}), "memory-growth", 0)
        if held is None or not held.evidence.get("exact"):
            continue
        power = float(held.evidence["power"])  # type: ignore[arg-type]
        if power > _STEEP:  # a law of few points that are not those of one
            continue
        found[name] = (max(1.0, math.ceil(2 * power) / 2), str(held.evidence["law"]))
    return found


def output(contract: Contract, shape: str, *, runs: int) -> Iterator[Observed]:
    """Yield the shape of the output, where it was the same relation of the sizes in every run."""
    tried = again(contract, output=shape)
    if all(_decided(tried, "output-spec", seed) for seed in range(runs)):
        comment = f"output-spec held in {times(runs)}"
        yield Observed(field="output", value=shape, code=f'"{shape}"', comment=comment)


def standing(contract: Contract, *, runs: int) -> Iterator[str]:
    """Yield a line for each check that every contract has and that held in every run."""
    for name in _STANDING:
        if all(_decided(contract, name, seed) for seed in range(runs)):
            yield f"{name} held in {times(runs)}"


def broken(
    contract: Contract, *, runs: int, tell: Callable[[str], None]
) -> dict[str, tuple[str, int]]:
    """Run every check and return those that fail: first summary, and in how many runs."""
    found: dict[str, tuple[str, int]] = {}
    for seed in range(runs):
        tell(f"run {seed + 1} of {runs}: every check with seed {seed}")
        report = contract.check(seed=seed, devices="cpu")
        failing = {finding.check: finding for finding in report.with_status("violated")}
        for name, finding in failing.items():
            summary, times = found.get(name, (" ".join(finding.summary.split()), 0))
            found[name] = (summary, times + 1)
    return found
