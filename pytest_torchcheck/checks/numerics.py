"""Numbers stay sound at the edge of the domain, in low precision and in other memory layouts."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import torch

from .. import sources
from ..batches import Batch, relayout
from ..batches.read import is_dense
from ..codes import numerics as explain
from ..codes.undecided import BLOCKED
from ..findings import Culprit, Finding
from ..objects import trees
from ..runs import numerics as measure
from ..runs.facts import forward_facts
from ..runs.outputs import expectations, reference
from ..runs.training.few import many_targets
from ..runs.variants.merged_integers import merged_integers
from ..subject.errors import SubjectError
from ..verdicts import inconclusive, not_applicable, passed, violated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..runs.numerics import Pattern, Trouble
    from ..runs.outputs import Outputs
    from ..subject import Subject

_LAYOUT = 1e-4  # relative difference in float32 beyond which float64 decides
_EXACT = 1e-9  # and in float64 (CHECKS R2)


def degenerate_inputs(subject: Subject) -> Iterator[Finding]:
    """Put degenerate samples into a batch, one per row; ``violated`` only within declared ranges and sizes."""
    subject.require_values()
    batch = subject.batch()
    chosen = measure.patterns(subject, batch)
    shortest = _shortest(subject)
    if not chosen and shortest is None:
        yield not_applicable(
            "there is no floating-point input and no declared size with an edge case to try"
        )
        return
    seen = subject.gradients() if any(p.requires_grad for p in subject.model.parameters()) else None
    if seen is not None and not (
        math.isfinite(seen.loss) and all(stat.finite for stat in seen.stats.values())
    ):
        yield inconclusive(
            "an ordinary batch already gives non-finite values; see gradients-finite",
            code=BLOCKED,
        )
        return
    findings: list[Finding] = []
    runs = _packed(subject, batch, chosen)
    for patterns, packed in runs:
        if _troubled(subject, packed, len(patterns)):
            found = _single_out(subject, batch, patterns)
            if found is not None:
                findings.append(found)
                break
    if shortest is not None and (trouble := _step(subject, shortest)):
        sizes = ", ".join(f"{name}={size}" for name, size in shortest.sizes.items())
        findings.append(
            explain.edge(
                subject,
                shortest,
                f"the smallest declared sizes ({sizes})",
                trouble,
                status="violated",
            )
        )
    yield from findings
    if findings:
        return
    names = [pattern.name for pattern in chosen] + (
        ["the smallest sizes"] if shortest is not None else []
    )
    yield passed(f"outputs and gradients are finite for samples that are {', '.join(names)}")


def _packed(
    subject: Subject, batch: Batch, chosen: list[Pattern]
) -> Iterator[tuple[list[Pattern], Batch]]:
    """Yield batches that hold the patterns, as many as there are samples at a time; at most two batches."""
    symbol = subject.source.batch_symbol
    size = batch.sizes.get(symbol, 0) if symbol is not None else 0
    if size < 2:
        for pattern in chosen[:2]:
            yield [pattern], measure.degenerate(subject, batch, [pattern], whole=True)
        return
    for start in range(0, min(len(chosen), 2 * size), size):
        part = chosen[start : start + size]
        yield part, measure.degenerate(subject, batch, part)


def _troubled(subject: Subject, packed: Batch, patterns: int) -> bool:
    """Say whether a step of the samples that hold patterns, and of one beside them for few targets, is not finite."""
    beside = 0 if many_targets(subject, packed) else 1
    few = subject.few(packed, max(2, patterns + beside), aligned=True)
    if few is not None:
        with contextlib.suppress(SubjectError):  # fewer samples are refused: all of them are run
            return bool(measure.step(subject, few))
    return bool(_step(subject, packed))


def _step(subject: Subject, batch: Batch) -> Trouble | None:
    """Look for NaN in one step; None where the batch is refused, which other checks judge."""
    try:
        found = measure.step(subject, batch)
    except SubjectError:
        return None
    return found or None


def _single_out(subject: Subject, batch: Batch, patterns: list[Pattern]) -> Finding | None:
    """Find the pattern that does it by itself."""
    for pattern in patterns:
        alone = measure.degenerate(subject, batch, [pattern])
        trouble = _step(subject, alone)
        if trouble:
            what = (
                f"a sample with {pattern.name}"
                if "equal to" in pattern.name
                else f"a sample that is {pattern.name}"
            )
            return explain.edge(
                subject,
                alone,
                what,
                trouble,
                status="violated" if pattern.declared else "suspicious",
            )
    return None


def _shortest(subject: Subject) -> Batch | None:
    """Return a batch with every declared size but the batch's at its smallest, or None where nothing changes."""
    source = subject.source
    now = subject.batch().sizes
    low = {
        name: max(span.low, 1)
        for name, span in source.symbols.items()
        if span.declared and not span.fixed and name != source.batch_symbol and name in now
    }
    if all(now[name] == size for name, size in low.items()):
        return None
    return subject.at(**low)


def low_precision(subject: Subject) -> Iterator[Finding]:
    """Run eval and a training step in the declared dtype; compare with float64 and the same weights.

    Integers that the dtype would round to one number must not give the same outputs where float64 tells them apart.
    """
    dtype = str(subject.dtype).removeprefix("torch.")
    try:
        outputs = reference(subject)
        trouble = measure.step(subject, subject.batch())
    except SubjectError as error:
        if measure.no_kernel(error.error):
            yield inconclusive(
                f"{subject.device} has no kernel for {dtype}: {error.error}", code="no-kernel"
            )
            return
        raise
    exact = measure.in_double(subject, lambda model, batch: measure.evaluate(subject, model, batch))
    bad = [
        path
        for path, tensor in outputs.items()
        if tensor.is_floating_point() and measure.breaks(tensor, exact.get(path) if exact else None)
    ]
    if bad:
        found = measure.watched(subject, subject.batch(), train=False)
        yield explain.overflow(subject, dtype, bad[0], found, train=False)
        return
    if trouble and not measure.in_double(
        subject, lambda model, batch: measure.step_in(subject, model, batch)
    ):
        found = measure.watched(subject, subject.batch())
        yield explain.overflow(subject, dtype, str(trouble), found, train=True)
        return
    if trouble:
        yield inconclusive(
            "the step is not finite in float64 either; see gradients-finite", code=BLOCKED
        )
        return
    if not outputs or exact is None:
        yield passed(
            f"outputs, loss and gradients are finite in {dtype}; the model does not run in "
            "float64, so precision was not compared"
        )
        return
    if (merged := merged_integers(subject)) is not None:
        yield explain.integers_merged(subject, merged)
        return
    yield _accuracy(subject, dtype, outputs, exact)


def _accuracy(subject: Subject, dtype: str, outputs: Outputs, exact: Outputs) -> Finding:
    """Compare the error with what rounding the weights and inputs alone does in float64."""
    errors = {
        path: trees.apart(
            outputs[path].nan_to_num(posinf=0, neginf=0), tensor.nan_to_num(posinf=0, neginf=0)
        )
        for path, tensor in exact.items()
        if path in outputs and outputs[path].shape == tensor.shape
    }
    if not errors:
        return passed(f"outputs, loss and gradients are finite in {dtype}")
    path = max(errors, key=lambda key: errors[key])
    worst = errors[path]
    evidence: dict[str, Any] = {"relative_error": errors}
    if worst < measure.LOST:
        return passed(
            f"finite in {dtype}; relative error at most {worst:.2g}, in {path}", evidence=evidence
        )
    noise = measure.in_double(
        subject, lambda model, batch: measure.rounded(subject, model, batch, exact)
    )
    if noise is None or worst < measure.SENSITIVE * noise:
        return passed(
            f"finite in {dtype}; relative error {worst:.2g} in {path}, no more than rounding "
            "the weights alone explains",
            evidence=evidence,
        )
    return explain.digits_lost(subject, dtype, path, worst=worst, noise=noise, evidence=evidence)


def layout_invariance(subject: Subject) -> Iterator[Finding]:
    """Run inputs with gaps, with two axes exchanged in memory, or channels-last; compare with contiguous memory."""
    subject.require_values()
    batch = subject.batch()
    leaves = [t for _, t in batch.input_leaves() if is_dense(t)]
    kinds = ["non_contiguous"] if any(t.dim() and t.numel() > 1 for t in leaves) else []
    kinds += ["transposed"] if any(t.dim() == 3 for t in leaves) else []
    kinds += ["channels_last"] if any(t.dim() in (4, 5) for t in leaves) else []
    if not kinds:
        yield not_applicable("no input has a layout to change")
        return
    if forward_facts(subject).consumed:
        yield inconclusive(
            "the output is random in eval mode, so that layouts cannot be compared",
            code="not-deterministic",
        )
        return
    known = expectations(subject)
    findings = []
    for kind in kinds:
        if known.batch is not batch and _alike_in(subject, kind, known.batch, known.some):
            continue
        other = _laid_out(batch, kind)
        try:
            outputs = _outputs(subject, other)
        except SubjectError as error:
            findings.append(explain.moved(subject, kind, error))
            continue
        gaps = _gaps(outputs, known.whole)
        path = max(gaps, key=lambda key: gaps[key], default="")
        if not path or gaps[path] <= _LAYOUT:
            continue
        if (finding := _confirm(subject, kind, batch, other, path, gaps[path])) is not None:
            findings.append(finding)
    yield from findings
    if not findings:
        words = " and ".join(kind.replace("_", "-") for kind in kinds)
        yield passed(f"{words} inputs give the same outputs as contiguous ones")


def _laid_out(batch: Batch, kind: str) -> Batch:
    return measure.transposed(batch) if kind == "transposed" else relayout(batch, kind)  # type: ignore[arg-type]


def _alike_in(subject: Subject, kind: str, few: Batch, expected: Outputs) -> bool:
    """Say whether a few samples give in another layout what they give in contiguous memory."""
    try:
        gaps = _gaps(_outputs(subject, _laid_out(few, kind)), expected)
    except SubjectError:
        return False
    return max(gaps.values(), default=math.inf) <= _LAYOUT


def _outputs(subject: Subject, batch: Batch) -> Outputs:
    return {path: trees.dense(t) for path, t in trees.tensors(subject.forward(batch)).items()}


def _gaps(outputs: Outputs, expected: Outputs) -> dict[str, float]:
    """Return the relative differences; infinite where the structure differs."""
    if outputs.keys() != expected.keys():
        return {next(iter(outputs.keys() ^ expected.keys())): math.inf}
    return {path: trees.apart(expected[path], t) for path, t in outputs.items()}


def _confirm(
    subject: Subject, kind: str, batch: Batch, other: Batch, path: str, gap: float
) -> Finding | None:
    """Let float64 decide, where the model runs in it: kernels differ by rounding, never by more."""
    if subject.device.type != "cpu" and forward_facts(subject).consumed:
        return inconclusive(
            "the model draws random numbers in eval mode, and a GPU gives them to elements in the "
            "order of their memory, so that layouts cannot be compared",
            code="not-deterministic",
        )
    again = _gaps(_outputs(subject, batch), reference(subject))
    if max(again.values(), default=0.0) > 0.0 and subject.kernel_exact:
        return inconclusive(
            "two equal runs in eval mode differ, so that layouts cannot be compared",
            code="not-deterministic",
        )
    exact = measure.in_double(
        subject,
        lambda model, _: [
            measure.evaluate(
                subject,
                model,
                which.to(dtype=torch.float64).clone() if which is batch else _wide(which),
            )
            for which in (batch, other)
        ],
    )
    if exact is not None:
        gaps = _gaps(exact[1], exact[0])
        if max(gaps.values(), default=0.0) <= _EXACT:
            return None
        path = max(gaps, key=lambda key: gaps[key])
        gap = gaps[path]
    words = kind.replace("_", "-")
    return violated(
        "layout-differs",
        f"{path} differs for {words} inputs of the same values",
        culprits=[Culprit("output", path, f"relative difference {gap:.3g}")],
        location=sources.search(
            type(subject.model), r"as_strided|data_ptr|\.storage\(|untyped_storage|\.stride\("
        )
        or sources.of_object(type(subject.model).forward),
        observed=f"relative difference {gap:.3g} in {path}"
        + (", in float64" if exact is not None else ""),
        cause="some code reads the memory of the input as if it were contiguous",
        because="equal values in contiguous memory give different outputs, by more than rounding "
        "explains",
        fix="call .contiguous() before code that uses strides or pointers",
    )


def _wide(batch: Batch) -> Batch:
    """Return a batch in float64 with its strides, zeros in the gaps: Batch.to would make them contiguous."""

    def change(_path: str, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            return leaf
        last = sum((n - 1) * s for n, s in zip(leaf.shape, leaf.stride(), strict=True))
        memory = torch.zeros(max(last + 1, 0), dtype=torch.float64, device=leaf.device)
        return memory.as_strided(leaf.shape, leaf.stride()).copy_(leaf.detach())

    return batch.map(change)
