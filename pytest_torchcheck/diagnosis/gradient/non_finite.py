"""Where NaN and infinite gradients come from."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from ... import sources
from ...explanation import counted, on_line, parameter
from ...findings import Culprit, Finding
from ...objects import trees
from ...probes.numbers.domains import readable_values
from ...probes.numbers.finiteness import find_nonfinite
from ...probes.numbers.replacing import find_replacing
from ...record.hooks import hooked
from ...runs.again import forward_and_loss
from ...runs.layers import layer_rows
from ...runs.numerics import eval_forward
from ...runs.variants.largest import sizes_of
from ...state import seed_everything
from ...text.wording import names_text
from ...verdicts import violated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import nn

    from ...batches import Batch
    from ...findings import Location
    from ...probes.numbers.domains import NonFinite
    from ...probes.numbers.replacing import Replacing
    from ...probes.numbers.wrapping import Merged, Wrapped
    from ...subject import Subject


def non_finite(
    subject: Subject, *, outputs: list[str], grads: list[str], loss: float | None
) -> Iterator[Finding]:
    """Explain NaN and infinity in outputs, loss or gradients by the first operation that makes them."""
    run: Callable[[], Any] = (
        forward_and_loss(subject, backward=True)
        if loss is not None
        else eval_forward(subject, outputs)
    )
    with subject.pristine():
        at = find_nonfinite(run, subject.model)
    with subject.pristine():
        layers = layer_rows(subject, run)
    forward = loss is None or not math.isfinite(loss)
    what = "the loss" if loss is not None and not math.isfinite(loss) else ""
    if not what:
        what = f"the gradient of {names_text(grads)}" if grads else f"{names_text(outputs)}"
    if loss is None and at is None and (unseen := _within(subject, run)) is not None:
        yield unseen(outputs)
        return
    culprits = [parameter(subject, name, "non-finite gradient") for name in grads[:8]]
    if at is not None and at.module:
        culprits.insert(0, Culprit("module", at.module, str(at.op or ""), at.location))
    culprits = [*writers(at), *culprits]
    observed = (
        f"loss {loss:.4g}; {counted(len(grads), 'gradient')} not finite"
        if loss is not None
        else f"{names_text(outputs)}: NaN or inf, in eval mode under torch.no_grad()"
    )
    cause, fix = remedy(at, forward=forward)
    location = None if at is None else at.location
    because = evidence_of(at)
    if forward and (put := _replacing(subject, run)) is not None:
        culprits.insert(0, Culprit("call", put.op, f"replaces what {put.test} finds", put.location))
        made = on_line(location) if location != put.location else ""
        cause += f"{made}; what line {put.location.line} puts in its place is not finite either"
        because += f"; {put.op} replaces {counted(put.replaced, 'element')} that {put.test} finds, and {put.left} "
        because += f"of them {'is' if put.left == 1 else 'are'} not finite after it"
        fix = f"compute what line {put.location.line} puts there from finite values alone"
        location = put.location
    yield violated(
        "non-finite-forward" if forward else "non-finite-gradient",
        f"{what} is NaN or inf {'in eval mode ' if loss is None else ''}on an ordinary batch",
        culprits=culprits,
        location=location,
        observed=observed,
        cause=cause,
        because=because,
        fix=fix,
        evidence={"parameters": list(grads), "outputs": list(outputs), "layers": layers},
    )


def _replacing(subject: Subject, run: Callable[[], Any]) -> Replacing | None:
    with subject.pristine():
        return find_replacing(run, subject.model)


def _within(subject: Subject, run: Callable[[], Any]) -> Callable[[list[str]], Finding] | None:
    """Explain NaN of a kernel that runs only unwatched by the first module that makes it; None where none does.

    The fused path of transformer layers is such a kernel: it is taken in eval mode without
    gradients, and not while the calls of torch are watched.
    """
    names = {id(module): name for name, module in subject.model.named_modules()}
    first: list[tuple[nn.Module, Location | None, tuple[int, int]]] = []
    calls: list[dict[str, Any]] = []

    def entered(_module: nn.Module, _args: Any) -> None:
        # global hooks are not given the keyword arguments; the frame that calls them has them
        given = sys._getframe(1).f_locals.get("kwargs")
        calls.append(given if isinstance(given, dict) else {})

    def left(module: nn.Module, args: Any, result: Any) -> None:
        given = calls.pop() if calls else {}
        taken = trees.floats((args, given)).values()
        if not first and _has_nan(trees.floats(result).values()) and not _has_nan(taken):
            first.append((module, sources.of_frame(sys._getframe(1)), _masked_rows(given)))

    handles = [register_module_forward_pre_hook(entered), register_module_forward_hook(left)]
    with hooked(handles), subject.pristine():
        run()
    if not first:
        return None
    module, place, (masked, rows) = first[0]
    fused = _fused(subject, run)
    kind, name = type(module).__name__, names.get(id(module), "")
    because = f"what {name or kind} is given holds no NaN, and what it returns does"
    if fused:
        because += ", unless torch.backends.mha.set_fastpath_enabled(False) is called before"
    if masked:
        because = f"in {masked} of {rows} rows of its attention every key is masked; {because}"

    def explained(outputs: list[str]) -> Finding:
        return violated(
            "non-finite-forward",
            f"{names_text(outputs)} is NaN in eval mode on an ordinary batch",
            culprits=[Culprit("module", name or kind, "returns NaN", place)],
            observed=f"{names_text(outputs)}: NaN, in eval mode under torch.no_grad()",
            cause=f"{kind} {'takes its fused path there, which ' if fused else ''}gives NaN"
            + (" for a row whose keys are all masked" if masked else ""),
            because=because,
            fix="leave one key of every row unmasked (True in src_key_padding_mask or attn_mask "
            "means that a key is left out)"
            if masked
            else f"compare what {kind} is given with what it expects, above all its masks",
            evidence={"parameters": [], "outputs": list(outputs), "layers": []},
        )

    return explained


def _has_nan(tensors: Iterable[torch.Tensor]) -> bool:
    return any(bool(trees.dense(t).isnan().any()) for t in tensors if readable_values(t))


def _masked_rows(given: dict[str, Any]) -> tuple[int, int]:
    """Return how many rows of an attention have every key masked, by the masks that a call is given, and of how many."""
    masks = {
        name: mask.isneginf() if mask.is_floating_point() else mask
        for name, mask in given.items()
        if "mask" in name and isinstance(mask, torch.Tensor) and mask.dim() == 2
    }
    keys = next((m[:, None, :] for name, m in masks.items() if "key_padding" in name), None)
    pairs = next((m for name, m in masks.items() if "key_padding" not in name), None)
    both = [m for m in (keys, pairs) if m is not None and m.dtype == torch.bool]
    if not both or len({m.shape[-1] for m in both}) > 1:
        return 0, 0
    whole = (both[0] if len(both) == 1 else both[0] | both[1]).all(-1)
    return int(whole.sum()), whole.numel()


def _fused(subject: Subject, run: Callable[[], Any]) -> bool:
    """Say whether the run gives no NaN where attention may not take its fused path."""
    on = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with subject.pristine():
            return not _has_nan(run())
    finally:
        torch.backends.mha.set_fastpath_enabled(on)


_REMEDIES: dict[str, tuple[str, str, str]] = {
    "sqrt": ("the square root of a negative number", "the derivative of a square root at 0 is infinite",
             "add eps inside the square root"),
    "rsqrt": ("the inverse square root of 0 or less", "the derivative of an inverse square root at 0 is infinite",
              "add eps inside the square root"),
    "log": ("the logarithm of 0 or less", "the derivative of a logarithm at 0 is infinite",
            "clamp the argument from below (clamp(min=eps)), or use log1p or log_softmax"),
    "div": ("a division by zero", "the derivative of a division by zero is infinite", "add eps to the denominator"),
    "reciprocal": ("a division by zero", "the derivative of 1/x at 0 is infinite", "add eps to the denominator"),
    "norm": ("a norm that overflows", "the derivative of a norm at 0 does not exist", "take sqrt(sum of squares + eps)"),
    "std": ("a deviation of a single value", "the derivative of a deviation of equal values is infinite",
            "take (var + eps).sqrt()"),
    "pow": ("a power outside its domain", "the derivative of this power at 0 is infinite", "add eps to the base"),
    "acos": ("acos outside of -1..1", "the derivative of acos at -1 and 1 is infinite", "clamp the argument to -1 + eps..1 - eps"),
    "exp": ("exp overflows", "exp overflows", "subtract the largest value first, or use log_softmax or logsumexp"),
}  # fmt: skip
"""What makes an operation infinite in the forward and in the backward, and the fix."""


def remedy(at: NonFinite | None, *, forward: bool) -> tuple[str, str]:
    """Return the cause by its name, and the edit, for the operation at which numbers stop being finite."""
    line = f" on line {at.location.line}" if at is not None and at.location is not None else ""
    bare = at.op.name.rpartition(".")[2].strip("_") if at is not None else ""
    written = next((w.location for w in writers(at)), None)
    if at is not None and "all -inf" in at.fact:
        return (
            "every entry of a row is masked with -inf, so its softmax is 0/0",
            (
                f"leave one entry of every row unmasked{on_line(written)}, or set fully masked "
                f"rows to 0 with torch.where{line}"
            ),
        )
    if at is not None and (constant := at if at.origin == "constant" else at.written) is not None and constant.kind == "inf":  # fmt: skip
        return _mended_infinity(at, constant, forward=forward)
    if (
        at is not None
        and at.fact.startswith("a tensor that the run was given")
        and "NaN" in at.fact
    ):
        return (
            f"what the run is given holds NaN{' already' if forward else ', and the gradient there is NaN too'}",
            f"mend the data, or replace NaN before {at.op.name} reads it: torch.where, torch.nan_to_num",
        )
    if at is not None and at.hidden is not None and not forward:
        dropping = at.hidden.name
        where = on_line(at.hidden.location) if at.hidden.location != at.location else ""
        cause = (
            f"{at.op.name} is computed for elements whose result {dropping}{where} drops; their "
            "gradient of 0 times a derivative that is not finite is NaN"
        )
        fix = (
            f"give {at.op.name} a safe argument at these elements{line} (torch.where on its "
            "input), then drop the result"
        )
        return cause, fix
    negative = at is not None and "negative number" in at.fact
    forward |= negative  # what was measured is outside of the domain, not at its edge
    known = next((words for key, words in _REMEDIES.items() if _is(bare, key)), None)
    if known is not None and negative:
        return known[0], f"clamp the argument from below (clamp(min=eps)){line}"
    if known is not None:
        return known[0 if forward else 1], known[2] + line
    what = at.op.name if at is not None else "an operation"
    if at is not None and at.fact == "mean over 0 elements":
        return (
            f"{what} is given no elements, and 0/0 is NaN",
            f"divide a sum by a count of at least 1{line}: x.sum() / max(x.numel(), 1)",
        )
    if at is not None and at.fact.startswith("0 * inf"):
        return (
            f"{what} multiplies zeros by infinity",
            f"write the infinity with masked_fill or torch.where, which do not multiply{line}",
        )
    return (
        f"{what} gives a value that is not finite"
        if forward
        else f"the derivative of {what} is not finite at this input",
        f"keep the argument of {what} away from the values where it is infinite{line}",
    )


def _is(name: str, key: str) -> bool:
    """Say whether an operation is the one that a remedy is for, in any of its spellings."""
    others = (f"{key}2", f"{key}10", f"true_{key}", f"__true{key}__")
    return name in (key, f"vector_{key}", f"linalg_{key}", *others)


def _mended_infinity(at: NonFinite, source: NonFinite, *, forward: bool) -> tuple[str, str]:
    """Return cause and edit for an infinity that was written on purpose, or given, and is then computed with."""
    sign, limit = ("inf", "max") if source.upward else ("-inf", "min")
    here = on_line(at.location)
    finite = f"a large finite number such as torch.finfo(dtype).{limit}"
    if source is at:
        return (
            f"{at.op.name} writes {sign} on purpose, and it reaches the result",
            f"fill {finite}{here}, or exclude these entries from later operations",
        )
    part = at.op.name if forward else f"the backward of {at.op.name}"
    if source.origin == "constant":
        where = f"{source.op.name} writes {sign} on purpose{on_line(source.location)}"
        fix = f"fill {finite}{on_line(source.location)}"
    else:
        where, fix = f"{sign} is passed in", f"pass {finite}"
    return (
        f"{where}, and {part} makes NaN of it",
        f"{fix}, or keep the masked entries out of {at.op.name}{here}",
    )


def writers(at: NonFinite | None) -> list[Culprit]:
    """Return the operation that wrote the infinity of which another line made a NaN."""
    source = at.written if at is not None else None
    if at is None or source is None or source.location in (None, at.location):
        return []
    detail = "writes inf" if source.upward else "writes -inf"
    if source.origin == "given":
        detail = source.fact
    return [Culprit("call", source.op.name, detail, source.location)]


def evidence_of(at: NonFinite | None) -> str:
    """Return what was measured where numbers stop being finite, and where the infinity came from."""
    if at is None:
        return "no single operation could be identified"
    source = at.written
    if source is None or source.origin == "computed" or "all -inf" in at.fact:
        return at.fact
    return (
        f"{at.fact}; {source.fact}{on_line(source.location) if source.origin == 'constant' else ''}"
    )


def wrapped(found: Wrapped) -> Finding:
    """Explain whole numbers that do not fit into their dtype."""
    line = on_line(found.location)
    if found.reader:
        return violated(
            "integer-wraps",
            f"{found.op}{line} changes indices: {found.meant} becomes {found.got:g} in {found.dtype}",
            culprits=[
                Culprit("call", found.op, f"changes indices in {found.dtype}", found.location)
            ],
            location=found.location,
            observed=f"{found.count} of {found.size} whole numbers are other numbers after it; {found.reader} reads them",
            cause=f"{found.dtype} does not hold every whole number that they may be",
            because=f"the numbers before and after {found.op} differ, and {found.reader} takes those after it as indices",
            fix=f"keep indices in int64{line}",
        )
    return violated(
        "integer-wraps",
        f"{found.op}{line} wraps around in {found.dtype}: {found.meant} becomes {found.got}",
        culprits=[Culprit("call", found.op, f"wraps around in {found.dtype}", found.location)],
        location=found.location,
        observed=f"{found.count} of {found.size} results differ from those of the same operation in int64",
        cause=f"the operands are {found.dtype}, and so is the result, which does not fit into it",
        because="the same call with its operands in int64 gives other numbers",
        fix=f"convert the operands{line} to float32 or int32 first",
    )


def merged(found: Merged, size: int) -> Finding:
    """Explain a run of whole numbers of which half precision makes one number of several."""
    line, most, dtype = on_line(found.location), found.most, found.dtype
    now = found.left < found.size
    return violated(
        "positions-merge",
        f"{found.op}{line} takes a run of whole numbers to {dtype}, in which neighbours beyond {most} are equal",
        culprits=[Culprit("call", found.op, f"takes a run of numbers to {dtype}", found.location)],
        location=found.location,
        observed=f"of {found.size} numbers {found.left} are different ones in {dtype}"
        if now
        else f"{found.size} numbers here, and up to {size} of them are declared; {dtype} tells them apart up to {most}",
        cause=f"{dtype} has no {most + 1}: it rounds it to {most}, so that later positions share their values",
        because=f"each number of the run is one more than the one before it, and in {dtype} some of them are equal"
        if now
        else f"torch.tensor({most + 1}.0).to(torch.{dtype}) is {most}",
        fix=f"count{line} in float32 or int64, and convert what is computed of the positions, not the positions",
    )


def at_size(subject: Subject, batch: Batch, outputs: list[str]) -> Finding:
    """Explain outputs that are NaN or infinite at larger sizes alone, by the first operation that makes them."""
    sizes = sizes_of(batch)

    def run() -> Any:
        subject.model.eval()
        seed_everything(subject.seed)
        with torch.no_grad():
            return subject.call(subject.model, batch.clone())

    with subject.pristine():
        at = find_nonfinite(run, subject.model)
    cause, fix = remedy(at, forward=True)
    return violated(
        "non-finite-forward",
        f"{names_text(outputs)} {'is' if len(outputs) == 1 else 'are'} NaN or inf at {sizes}",
        culprits=writers(at),
        location=None if at is None else at.location,
        observed=f"at the sizes of the base batch {'they are' if len(outputs) > 1 else 'it is'} finite",
        cause=cause,
        because=evidence_of(at),
        fix=fix,
        evidence={"sizes": dict(batch.sizes), "outputs": list(outputs)},
    )
