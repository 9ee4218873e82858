"""How a signal goes through the layers of a model: what fades, what is dead or saturated, what is affine; as a table too."""

from __future__ import annotations

import contextlib
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..objects import trees
from ..probes.numbers.activations import watch_activations
from ..probes.numbers.signals import SignalWatch
from ..state import seed_everything
from ..subject.errors import SubjectError
from .facts import outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..batches import Batch
    from ..probes.numbers.signal_facts import Rectified, Signals, Tap
    from ..subject import Subject
    from ..subject.gradients import GradStat


DEPTH = 5
"""Layers with weights below which a fading signal has another reason."""


DEAD = 0.99


SATURATED = 0.8
"""Share of a squashing function's outputs at its bounds; N(0, 12) at its input gives as much."""


FEW = 64


_TOLERANCE = 1e-4


def trunk(taps: Sequence[Tap]) -> list[Tap]:
    """Return the outputs of layers with weight matrices, in order: where a signal could change its size."""
    return [tap for tap in taps if tap.weighted]


def measured(taps: Sequence[Tap]) -> dict[str, Any]:
    """Return a row for each layer as evidence: what it gave, and the gradient that came back to it."""
    rows = [
        {"module": t.name, "kind": t.kind, "shape": list(t.shape), "low": short(t.low), "high": short(t.high),
         "rms": short(t.rms), "spread": short(t.spread), "gradient": short(t.gradient)}
        for t in taps[:64]
    ]  # fmt: skip
    return {"layers": rows} if rows else {}


def short(value: float | None) -> float | None:
    """Return three digits of a number."""
    return None if value is None else float(f"{value:.3g}")


def place_of(found: Rectified) -> tuple[str, str]:
    """Return what tells one rectifier from another: module and line."""
    place = found.location
    return found.module, f"{place.file}:{place.line}" if place else found.op


def signals_of(subject: Subject, index: int) -> Signals:
    """Run another batch forward in training mode and return what its activations did."""
    with subject.pristine(train=True) as model:
        seed_everything(subject.seed + index)
        with SignalWatch(model, None) as watch, torch.no_grad():
            subject.call(model, subject.batch(index).clone())
    return watch.seen


def is_affine(subject: Subject) -> bool:
    """Say whether outputs in eval mode are an affine function of the floating inputs: f((x+y)/2) = (f(x)+f(y))/2.

    Two samples tell of nearly every model that it is not.
    """
    first, second = subject.batch(0), subject.batch(1)
    inputs = dict(first.input_leaves())
    tensors = {p: t for p, t in first.tensors().items() if p in inputs and trees.computable(t)}
    floats = [path for path, tensor in tensors.items() if tensor.is_floating_point()]
    others = second.tensors()
    if all(trees.same(first.tensors()[path], others[path]) for path in floats):
        return False
    few, fewer = subject.few(first), subject.few(second)
    with contextlib.suppress(SubjectError):  # a model that refuses two samples is asked with all
        if few is not None and fewer is not None:
            bent, moved = _bends(subject, few, fewer, floats)
            if bent or not moved:
                return False
    bent, moved = _bends(subject, first, second, floats)
    return moved and not bent


def _bends(subject: Subject, first: Batch, second: Batch, floats: list[str]) -> tuple[bool, bool]:
    """Say whether an output half-way between two batches is not half-way between theirs, and whether theirs differ.

    Args:
        subject: The model.
        first, second: The batches.
        floats: Which inputs to mix.
    """
    others = second.tensors()

    def towards(share: float) -> Any:
        def change(path: str, leaf: Any) -> Any:
            if path not in floats:
                return leaf
            return leaf * (1 - share) + others[path] * share

        return first.map(change, targets=False)

    middle = trees.floats(subject.forward(towards(0.5)))
    a = outputs(subject, first)
    moves_all = len(floats) == len(list(first.input_leaves()))
    b = outputs(subject, second if moves_all else towards(1.0))
    moved = False
    for path, tensor in middle.items():
        ends = [trees.dense(end[path]).double() for end in (a, b)]
        if ends[0].shape != ends[1].shape:  # of parts of other lengths
            return True, True
        expected = (ends[0] + ends[1]) / 2
        size = max(trees.scale(a[path]), trees.scale(b[path]), 1e-30)
        if trees.worst(trees.dense(tensor).double(), expected) > _TOLERANCE * size:
            return True, True
        moved = moved or trees.worst(a[path], b[path]) > 100 * _TOLERANCE * size
    return False, moved


def collapsing(model: nn.Module, chains: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the pairs of directly composed Linear layers of which the first narrows nothing."""
    found = []
    modules = dict(model.named_modules())  # hidden ones have no name here
    for first, second in dict.fromkeys(chains):
        a, b = modules.get(first), modules.get(second)
        if not isinstance(a, nn.Linear) or not isinstance(b, nn.Linear):
            continue  # depthwise and pointwise convolutions, and lateral ones of pyramids, follow each other by design
        if not (a.weight.requires_grad and b.weight.requires_grad):
            continue
        if a.out_features >= min(a.in_features, b.out_features):  # narrower: a low-rank product
            found.append((first, second))
    return found


FADED, BURST = 1e-6, 1e5
"""Ratio of the spread, and of the gradient, at both ends beyond which training cannot start."""


FADING, BURSTING = 1e-4, 1e4
"""Ratio from which on it is said; nets of 8 plain layers, residual nets and transformers as built stay within."""


GROWING = 10.0
"""Growth of the gradient from a layer to the one before it, of their kind; of 416 public models none has 1.2."""


_REVERSAL = 0.25  # of the whole change in logarithms


def chain_of(taps: Sequence[Tap]) -> tuple[list[Tap], list[Tap]]:
    """Return the layers that tell the samples apart, and those at the end behind which the fading signal is exactly 0.

    The last layer is in neither, since a head may start at any scale. A layer of zero spread is
    left out as one that is zero-initialised, unless the spread has fallen beyond :data:`FADED`
    before the first of all further layers without.
    """
    told = [place for place, tap in enumerate(taps) if tap.spread]
    chain = [taps[place] for place in told]
    gone = [tap for tap in taps[told[-1] + 1 :] if tap.spread == 0.0] if told else []
    if len(gone) > 1 and (chain[-1].spread or 0.0) < FADED * (chain[0].spread or 0.0):
        return chain, gone[:-1]
    return chain[:-1], []


def growing(taps: Sequence[Tap]) -> list[Tap]:
    """Return three layers or more over which the gradient grows tenfold from each to the one before it; else none.

    They are of one class and give one shape, each computes from the output of the one before it, and nothing is
    normalised in between. The last layer is left out, since a head may start at any scale.
    """
    found: list[Tap] = []
    for before, after in pairwise(taps[:-1]):
        alike = (before.kind, before.shape) == (after.kind, after.shape)
        fed = after.source == before.name and after.name != before.name
        grows = (before.gradient or 0.0) >= GROWING * (after.gradient or math.inf)
        if alike and fed and grows:
            found = [*(found or [before]), after]
        elif len(found) > 2:
            break
        else:
            found = []
    return found if len(found) > 2 else []


def gradient_trend(chain: Sequence[Tap], forward: float) -> float:
    """Return the trend of the gradient from the last layer back to the first; 1 where too few layers tell.

    Two tell enough where it is exactly 0 at the first layer: it has vanished on its way. Where it
    is 0 at nearly all of them, a zero-initialised head may be the reason, unless the signal has
    vanished too.

    Args:
        chain: The layers, in order.
        forward: The trend of the spread between samples over them.
    """
    graded = [tap.gradient for tap in chain if tap.gradient]
    gone = chain[0].gradient == 0.0
    if len(graded) >= (2 if gone else DEPTH - 1):
        return trend(graded[::-1])
    return 0.0 if gone and forward < FADED else 1.0


def noise_from(chain: Sequence[Tap]) -> int | None:
    """Return the first layer behind which the samples differ by no more than rounding, or None."""
    noise = 16 * torch.finfo(torch.float32).eps
    return next(
        (place for place, tap in enumerate(chain) if (tap.spread or 0.0) < noise * tap.rms), None
    )


def trend(values: Sequence[float | None], noise: int | None = None) -> float:
    """Return the ratio of the last value to the first, or what the median step makes of it where that is nearer to 1.

    One layer with a scale of its own (a gate, a small head) moves the ends and not the median step.
    From the place ``noise`` on the values are rounding, and their steps say nothing.
    """
    logs = [math.log(value) for value in values if value]
    told = logs if noise is None or noise < 2 else logs[: noise + 1]
    whole = told[-1] - logs[0]
    steps = sorted(b - a for a, b in pairwise(told))
    steady = steps[len(steps) // 2] * (len(logs) - 1)
    if whole * steady <= 0 or _reversal(told, whole) > _REVERSAL * abs(whole):
        return 1.0
    return math.exp(max(-600.0, min(600.0, min(whole, steady, key=abs))))


def _reversal(logs: Sequence[float], whole: float) -> float:
    """Return the largest movement against the trend: layers inside normalised branches go up and down."""
    sign, top, largest = (1.0 if whole > 0 else -1.0), -math.inf, 0.0
    for value in logs:
        top = max(top, sign * value)
        largest = max(largest, top - sign * value)
    return largest


MOST = 500
"""Rows of a table that a report keeps."""


def parameter_rows(subject: Subject, stats: Mapping[str, GradStat]) -> list[dict[str, Any]]:
    """Return a row for every parameter: shape, dtype, device, elements and the norm of its gradient.

    Args:
        subject: The model.
        stats: Its gradients, by name; a parameter that is not among them requires none.

    Returns:
        Plain rows, the last of which counts them all.
    """
    rows: list[dict[str, Any]] = []
    trainable = total = 0
    for name, parameter in subject.named_parameters().items():
        size, stat = parameter.numel(), stats.get(name)
        total += size
        trainable += size if stat is not None else 0
        rows.append(
            {
                "parameter": name,
                "shape": list(parameter.shape),
                "dtype": str(parameter.dtype).removeprefix("torch."),
                "device": str(parameter.device),
                "elements": size,
                "gradient norm": "frozen"
                if stat is None
                else "none"
                if stat.kind == "none"
                else stat.norm,
            }
        )
    counted = {
        "parameter": f"{len(rows)} in all",
        "elements": total,
        "gradient norm": f"{trainable} elements are trainable",
    }
    return [*rows[:MOST], counted]


def layer_rows(subject: Subject, run: Callable[[], object]) -> list[dict[str, Any]]:
    """Run once more and return a row for every output of every module, in the order in which they returned.

    Args:
        subject: The model, inside :meth:`~pytest_torchcheck.subject.Subject.pristine`.
        run: Forward, loss and backward.
    """
    try:
        seen = watch_activations(run, subject.model)
    except (SubjectError, RuntimeError):
        return []  # a table is no verdict: what raises here is told by the check itself
    return [
        {
            "module": row.module or "the model",
            "kind": row.module_class,
            "shape": list(row.shape),
            "dtype": row.dtype,
            "low": row.low,
            "high": row.high,
            "mean": row.mean,
            "std": row.std,
            "gradient": row.gradient_rms,
            "not finite": row.nonfinite,
            "histogram": list(row.histogram),
        }
        for row in seen[:MOST]
    ]
