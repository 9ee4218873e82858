"""Savings promised are savings made: two ways of doing the same, their results first, then their peaks."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from .. import sources
from ..contracts import Contract
from ..findings import ContractViolation, Culprit, Finding
from ..lean import dataclass
from ..objects import trees
from ..probes.memory.allocations import PHASES, STOPS
from ..probes.memory.fake import Unmeasurable
from ..probes.memory.profile import CATEGORIES, MemoryProfile
from ..probes.memory.replay import build_profile
from ..probes.memory.tracker import MemoryTracker
from ..state import isolated, seed_everything
from ..text.units import format_bytes, parse_share
from ..verdicts import violated
from .memory import attempt
from .steps import subject_for, track

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..batches import Batch
    from .plain_step import StepKind

What = Literal[
    "total", "forward", "loss", "backward", "optimizer",
    "parameters", "buffers", "inputs", "gradients", "optimizer_state", "activations", "temporaries",
]  # fmt: skip
_CHECK = "savings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What one way of doing something saves over another.

    Attributes:
        before_bytes, after_bytes: What each holds at most.
        share: What part is saved; negative where more is held.
        difference: The largest difference of the results, relative to their scale.
        before, after: The whole profiles.
    """

    before_bytes: int
    after_bytes: int
    share: float
    difference: float
    before: MemoryProfile = field(repr=False)
    after: MemoryProfile = field(repr=False)


def assert_saves(
    before: Contract | Callable[[], Any],
    after: Contract | Callable[[], Any],
    *,
    at_least: float | str,
    what: What = "total",
    tolerance: float | None = None,
    at: Mapping[str, int] | None = None,
    step: StepKind = "training",
    seed: int = 0,
) -> Saving:
    """Assert that one way of doing something holds less memory than another, and gives the same.

    The results are compared first: a saving that changes the result is none. Of two contracts the same
    weights, batch and seed are used, and loss (or output) and gradients are compared; of two functions,
    called from the same seed, what they return.

    Args:
        before: A contract, or a function that does it once and returns its result.
        after: The same, in the way that is to save memory.
        at_least: The share to save: ``"30%"`` or ``0.3``.
        what: Of which phase or category, ``"total"`` for the peak of all.
        tolerance: How far results may be apart, relative to their largest value: 1e-5 by default, 0.05
            where either is in half precision.
        at: Sizes of symbols, for contracts. A contract's peak is taken on fake tensors where it can be.
        step: Of contracts: ``"training"`` or ``"inference"``.
        seed: Decides batch and random choices.

    Returns:
        The saving, when it holds.

    Raises:
        ContractViolation: The results differ (``savings-differ``), nothing was compared
            (``savings-vacuous``), or too little is saved (``savings-missing``).
        TypeError: One is a contract and the other is not.
    """
    __tracebackhide__ = True
    wanted = parse_share(at_least)
    if what not in ("total", *PHASES, *CATEGORIES):
        raise ValueError(
            f"what must be one of total, {', '.join((*PHASES, *CATEGORIES))}; got {what!r}"
        )
    if isinstance(before, Contract) != isinstance(after, Contract):
        raise TypeError("before and after must both be contracts, or both be functions")
    names, difference, first, second = _measured(before, after, step, seed, tolerance, at)
    a, b = first.of(what), second.of(what)
    saving = Saving(
        before_bytes=a,
        after_bytes=b,
        share=1 - b / a if a else 0.0,
        difference=difference,
        before=first,
        after=second,
    )
    if saving.share < wanted:
        raise ContractViolation([_missing(saving, wanted, what, names)]) from None
    return saving


def _measured(
    before: Contract | Callable[[], Any],
    after: Contract | Callable[[], Any],
    step: StepKind,
    seed: int,
    tolerance: float | None,
    at: Mapping[str, int] | None,
) -> tuple[tuple[str, str], float, MemoryProfile, MemoryProfile]:
    """Compare the results of both ways, and measure both."""
    if isinstance(before, Contract) and isinstance(after, Contract):
        names = (before.name, after.name)
        difference = _compare(_results(before, after, step, seed), tolerance, names)
        first, second = (_profile(contract, at, step, seed) for contract in (before, after))
    else:
        assert not isinstance(before, Contract)
        assert not isinstance(after, Contract)
        names = (_name(before, "before"), _name(after, "after"))
        one, watched = _run(before, seed)
        two, also = _run(after, seed)
        difference = _compare((one, two), tolerance, names)
        first, second = build_profile(watched), build_profile(also)
    return names, difference, first, second


def _name(thing: Any, default: str) -> str:
    name = getattr(thing, "__name__", default)
    return default if name == "<lambda>" else str(name)


def _profile(
    contract: Contract, at: Mapping[str, int] | None, step: StepKind, seed: int
) -> MemoryProfile:
    subject = subject_for(contract, seed=seed)
    try:
        return attempt(lambda: track(subject, at=at, fake=True, step=step)).profile
    except Unmeasurable:
        return attempt(lambda: track(subject, at=at, fake=False, step=step)).profile
    finally:
        subject.close()


def _run(function: Callable[[], Any], seed: int) -> tuple[dict[str, Tensor], MemoryTracker]:
    """Run a function twice, since optimizers and caches are filled the first time; the second is measured."""

    def bounded() -> Any:
        return function()

    STOPS.add(bounded.__code__)
    with isolated():
        seed_everything(seed)
        bounded()
        seed_everything(seed)
        tracker = MemoryTracker()
        with tracker:
            result = bounded()
    found = {path: tensor.detach() for path, tensor in trees.tensors(result, "result").items()}
    return found, tracker


def _results(
    before: Contract, after: Contract, step: StepKind, seed: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Run both contracts for real on the first one's batch and weights; return outputs and gradients."""
    one = subject_for(before, seed=seed)
    two = subject_for(after, seed=seed)
    try:
        found = []
        weights = {name: tensor.detach().clone() for name, tensor in one.model.state_dict().items()}
        for subject in (one, two):
            with subject.pristine(steps=True) as model:
                if subject is two:
                    _load(model, weights)
                batch = _same_values(one.batch(), subject.batch()).clone()
                model.train(step == "training")
                for parameter in model.parameters():
                    parameter.grad = None
                seed_everything(seed)
                if step == "inference":
                    with torch.no_grad():
                        output = subject.call(model, batch)
                    found.append({k: t.detach().clone() for k, t in trees.tensors(output).items()})
                    continue
                output = subject.call(model, batch)
                loss = subject.compute_loss(output, batch)
                with subject.phase("backward", batch):
                    loss.sum().backward()
                made = {"loss": loss.detach().clone()}
                for name, parameter in model.named_parameters():
                    if parameter.grad is not None:
                        made[f"gradient of {name}"] = parameter.grad.detach().clone()
                found.append(made)
        return found[0], found[1]
    finally:
        two.close()
        one.close()


def _same_values(batch: Batch, wanted: Batch) -> Batch:
    """Return a batch with the values of one and the dtypes of the other, where both have the same form."""
    forms = wanted.tensors()

    def cast(path: str, leaf: Any) -> Any:
        form = forms.get(path)
        return leaf if form is None or not isinstance(leaf, Tensor) else leaf.to(form.dtype)

    return batch.map(cast)


def _load(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    own = model.state_dict()
    if set(own) == set(weights) and all(own[k].shape == weights[k].shape for k in own):
        model.load_state_dict(weights)


def _compare(
    results: tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
    tolerance: float | None,
    names: tuple[str, str],
) -> float:
    __tracebackhide__ = True
    one, two = results
    shared = [path for path in one if path in two]
    if not shared or all(one[path].numel() == 0 for path in shared):
        raise ContractViolation(
            [
                _finding(
                    "savings-vacuous",
                    f"{names[1]} and {names[0]} return nothing that could be compared",
                    observed=f"{names[0]}: {', '.join(one) or 'no tensor'}; {names[1]}: "
                    f"{', '.join(two) or 'no tensor'}",
                    cause="a saving must not change the result, and no result is known here",
                    because="no tensor is at the same path in both results",
                    fix="return the output, the loss or the gradients from both functions",
                )
            ]
        ) from None
    missing = [path for path in (*one, *two) if (path in one) != (path in two)]
    worst, where = -1.0, ""
    for path in shared:
        relative = trees.apart(two[path], one[path])
        if relative > worst:
            worst, where = relative, path
    half = any(
        t.dtype in (torch.float16, torch.bfloat16) for found in results for t in found.values()
    )
    allowed = tolerance if tolerance is not None else 0.05 if half else 1e-5
    if worst > allowed or missing:
        raise ContractViolation(
            [
                _finding(
                    "savings-differ",
                    f"{names[1]} gives a different result from {names[0]}: {where if worst > allowed else missing[0]}",
                    observed=f"{where} differs by {worst:.3g} of its scale; allowed are {allowed:.3g}"
                    if worst > allowed
                    else f"only one of them has {', '.join(missing[:3])}",
                    cause="the memory is saved by computing something else",
                    because=f"both ran from the same weights, batch and seed; {len(shared)} results were compared",
                    fix="make the results agree first, or give tolerance= if the difference is intended",
                )
            ]
        ) from None
    return max(worst, 0.0)


def _missing(saving: Saving, wanted: float, what: str, names: tuple[str, str]) -> Finding:
    kept = saving.after.line_rows(5)
    largest = saving.after.largest[0] if saving.after.largest else None
    word = "peak" if what == "total" else what.replace("_", " ")
    return _finding(
        "savings-missing",
        f"{names[1]} saves {saving.share:.1%} of the {word} of {names[0]}, not {wanted:.0%}",
        location=largest.location if largest is not None else None,
        observed=f"{word}: {format_bytes(saving.before_bytes)} before, {format_bytes(saving.after_bytes)} after",
        cause="what should have been freed or never created is still held"
        if saving.share < wanted / 4
        else "less is saved than promised",
        because="the results are equal, and "
        + (
            (
                f"the largest tensor at the peak is {largest.describe()} "
                f"({format_bytes(largest.bytes)}, {largest.category})"
            )
            if largest is not None
            else "no tensor is live"
        ),
        fix="save memory where most is held (see the lines), or promise what was measured",
        evidence={
            "before_bytes": saving.before_bytes,
            "after_bytes": saving.after_bytes,
            "share": saving.share,
            "lines": kept,
            "categories": [
                {"category": name, "before": saving.before.of(name), "after": saving.after.of(name)}
                for name in CATEGORIES
                if saving.before.of(name) or saving.after.of(name)
            ],
        },
        culprits=()
        if largest is None
        else (Culprit("tensor", largest.describe(), location=largest.location),),
    )


def _finding(code: str, summary: str, **fields: Any) -> Finding:
    fields.setdefault("location", sources.of_frame())
    return violated(code, summary, **fields).replace(check=_CHECK)
