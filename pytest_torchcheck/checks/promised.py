"""Declared behaviour: padding, permutations, and promises of a project's own."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from .. import promises
from ..codes import behaviour as explain
from ..codes.undecided import BLOCKED
from ..objects import trees
from ..runs.variants.largest import also_at_largest, entries_apart
from ..runs.variants.orders import edge_axes, edge_orders, farthest, turned, with_inputs
from ..runs.variants.padding import (
    exchanged,
    follows,
    lengths_of,
    own_part,
    padded,
    real_entries,
    real_positions,
    refill,
)
from ..runs.variants.woken import also_woken
from ..state import seed_everything
from ..subject.errors import SubjectError
from ..verdicts import inconclusive, not_applicable, passed
from .batching import EXACT, ROUNDING, beyond_rounding, draws_in_eval
from .steps.kept_promises import held_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ..batches import Batch
    from ..findings import Finding
    from ..subject import Subject

    Runs = Callable[[Subject, list[Batch]], tuple[list[Any], float]]


def find_input(batch: Batch, which: int | str) -> tuple[str, torch.Tensor] | None:
    """Return path and tensor of an input by position or name."""
    leaves = [(path, leaf) for path, leaf in batch.input_leaves() if isinstance(leaf, torch.Tensor)]
    if isinstance(which, str):
        if isinstance(value := batch.kwargs.get(which), torch.Tensor):
            return next(((path, leaf) for path, leaf in leaves if leaf is value), None)
        return next(
            ((path, leaf) for path, leaf in leaves if path.rpartition(".")[2] == which), None
        )
    if which < len(batch.args) and isinstance(batch.args[which], torch.Tensor):
        return next(((path, leaf) for path, leaf in leaves if leaf is batch.args[which]), None)
    return leaves[which] if which < len(leaves) else None


def run_wide(subject: Subject, batches: list[Batch]) -> tuple[list[Any], float]:
    """Run batches in eval mode in float64 where the model can, with the bound that goes with the dtype.

    Returns:
        The outputs, and the largest relative difference that rounding explains.
    """
    try:
        with subject.in_double() as model, torch.no_grad():
            model.eval()
            outputs = []
            for batch in batches:
                seed_everything(subject.seed)
                outputs.append(subject.call(model, batch.to(dtype=torch.float64).clone()))
            return outputs, EXACT
    except SubjectError:
        return [subject.forward(batch) for batch in batches], ROUNDING


def run_narrow(subject: Subject, batches: list[Batch]) -> tuple[list[Any], float]:
    """Run batches in the model's own dtype, where float64 is asked only if they differ; see :func:`run_wide`."""
    return [subject.forward(batch) for batch in batches], ROUNDING


def _long(check: Callable[..., Finding], *declared: Any) -> Callable[[Subject], Finding]:
    """Return a check that runs in float64 only where the model's own dtype finds something."""

    def asked(subject: Subject) -> Finding:
        found = check(subject, *declared, run=run_narrow)
        return check(subject, *declared) if found.status == "violated" else found

    return asked


def perturbed(tensor: torch.Tensor, fresh: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    """Return the tensor with other finite values of its own kind where ``where`` is true."""
    fresh = fresh.to(tensor.dtype)
    if torch.equal(fresh[where], tensor[where]):
        fresh = tensor.flip(0) if tensor.dim() else tensor
    return torch.where(where, fresh, tensor)


def padding_invariance(subject: Subject) -> Iterator[Finding]:
    """Append padding, and other values where a mask or lengths say so; compare the outputs of real positions."""
    for promise in subject.promised("PaddingInvariant"):
        assert isinstance(promise, promises.PaddingInvariant)
        found = held_to(subject, _padding, promise)
        yield from also_at_largest(subject, found, _long(_padding, promise), room=_EXTRA)


_EXTRA = 3


def _padding(
    subject: Subject,
    promise: promises.PaddingInvariant,
    batch: Batch | None = None,
    extra: int = _EXTRA,
    run: Runs = run_wide,
) -> Finding:
    given, batch = batch, batch or subject.batch()
    found = find_input(batch, promise.ids)
    mask = None if promise.mask is None else find_input(batch, promise.mask)
    if found is None or (promise.mask is not None and mask is None):
        return inconclusive(
            f"the batch has no tensor input {promise.ids!r} or {promise.mask!r}", code="no-input"
        )
    (path, ids), dim = found, promise.dim
    if ids.dim() <= dim:
        return inconclusive(f"{path} {list(ids.shape)} has no dimension {dim}", code="no-input")
    lengthened = functools.partial(_lengthened, subject, path, mask, promise, extra)
    extended = with_inputs(batch, longer := lengthened(batch))
    refilled = with_inputs(extended, {path: refill(longer[path], ids, dim, extra, promise.side)})
    told = (mask is not None and mask[0] in longer) or bool(lengths_of(subject, path, dim))
    varied = told and not trees.same(refilled.tensors()[path], longer[path])
    try:
        outputs, bound = run(subject, [batch, extended, *([refilled] if varied else [])])
    except SubjectError as error:
        return inconclusive(
            f"a batch with {extra} more padded positions does not run ({type(error.error).__name__}: {error.error})",
            code="longer-fails",
        )
    first, compared = trees.floats(outputs[0]), 0
    unseen: list[str] = []
    for number, output in enumerate(outputs[1:]):
        second = trees.floats(output)
        for name, tensor in first.items():
            other = second.get(name)
            cut = None if other is None else own_part(tensor, other, extra, promise.side)
            if cut is None:
                continue
            real = real_entries(tensor, ids, mask, promise)
            keep, then = (tensor, cut) if real is None else (tensor[real], cut[real])
            compared += keep.numel() if number == 0 else 0
            unseen += [name] if bool((keep.isnan() & then.isnan()).any()) else []
            gap = trees.apart(then, keep)
            if beyond_rounding(subject, batch, gap, bound):
                if draws_in_eval(subject):
                    return _random("a longer batch draws")
                if number and (held := _by_value(subject, promise, refilled, path, output, first)):
                    return held
                whole = _whole(subject, promise, batch, path, mask) if given is None else None
                if whole and (plain := _padding(subject, promise, whole)).status == "violated":
                    return plain
                return explain.padding(
                    subject, promise, path, name, gap, extra, batch, extended, refilled if told else None,
                    real=real_positions(ids, mask[1] if mask else None, promise), contents=number == 1,
                    longest=lambda: with_inputs(extended, lengthened(extended)),
                )  # fmt: skip
    if unseen:
        return inconclusive(f"{unseen[0]} is NaN in both batches: {_BLIND}", code=BLOCKED)
    more = "padded positions, and their values," if varied else f"positions of {promise.pad}"
    return _compared(f"{extra} more {more}", compared, bound)


def _by_value(
    subject: Subject, promise: promises.PaddingInvariant, refilled: Batch, path: str, output: Any,
    first: Mapping[str, torch.Tensor],
) -> Finding | None:  # fmt: skip
    """Return a pass where outputs depend on added positions only in whether they hold the pad value.

    Args:
        refilled: The longer batch, with contents at its added positions.
        path: Of the padded input.
        output: What the model gives for it.
        first: What it gives for the shorter batch, whose outputs are compared.
    """
    tensor, extra = refilled.tensors()[path], _EXTRA
    others = exchanged(tensor, promise.dim, extra, promise.pad, promise.side)
    if trees.same(others, tensor):
        return None
    (again,), bound = run_wide(subject, [with_inputs(refilled, {path: others})])
    one, two = trees.floats(output), trees.floats(again)
    for name, short in first.items():
        if name in one and (mine := own_part(short, one[name], extra, promise.side)) is not None:
            then = own_part(short, two[name], extra, promise.side) if name in two else None
            if then is None or trees.apart(then, mine) > bound:
                return None
    return passed(
        f"{extra} more padded positions change no output, and what stands there none beyond "
        f"that it is not the pad value, {promise.pad}"
    )


def _compared(what: str, count: int, bound: float) -> Finding:
    if not count:
        return inconclusive("no output could be compared between the shorter and the longer batch")
    return passed(f"{what} change {count} output values by less than {bound:g} relatively")


_BLIND = "it cannot be seen what changes it"


def _random(why: str) -> Finding:
    return inconclusive(f"the output is random in eval mode: {why} other random numbers")


def _lengthened(
    subject: Subject,
    path: str,
    mask: tuple[str, torch.Tensor] | None,
    promise: promises.PaddingInvariant,
    extra: int,
    batch: Batch,
) -> dict[str, torch.Tensor]:
    """Pad every input that follows the sequence, and return the longer tensors by path."""
    longer: dict[str, torch.Tensor] = {}
    dim, inputs = promise.dim, batch.tensors()
    length = inputs[path].shape[dim]
    for name, tensor in inputs.items():
        if (
            name not in dict(batch.input_leaves())
            or tensor.dim() <= dim
            or tensor.shape[dim] != length
        ):
            continue
        if not follows(subject, path, name, dim) and name not in (path, mask[0] if mask else ""):
            continue
        fill = promise.pad if name == path else 0
        longer[name] = padded(tensor, dim, extra, fill, promise.side)
    return longer


def _whole(
    subject: Subject,
    promise: promises.PaddingInvariant,
    batch: Batch,
    path: str,
    mask: tuple[str, torch.Tensor] | None,
) -> Batch | None:
    """Return the batch with every position real, so that all padding is what is appended; None where it is so already.

    In a batch with padding of its own, what a sample has there may change: which operation lets
    padding through is seen best where there is none.
    """
    inputs = batch.tensors()
    ids, length = inputs[path], inputs[path].shape[promise.dim]
    changed = {}
    if mask is not None:
        changed[mask[0]] = torch.ones_like(mask[1])
    elif not ids.is_floating_point() and (real := ids[ids != promise.pad]).numel():
        places = torch.arange(ids.numel(), device=ids.device).view(ids.shape) % real.numel()
        changed[path] = torch.where(ids == promise.pad, real[places], ids)
    for name in lengths_of(subject, path, promise.dim):
        changed[name] = torch.full_like(inputs[name], length)
    whole = with_inputs(batch, changed)
    return None if all(trees.same(inputs[name], t) for name, t in changed.items()) else whole


def permutation_invariance(subject: Subject) -> Iterator[Finding]:
    """Permute the inputs twice and compare outputs in float64.

    Without a promise, permute the columns of ``edge_index`` together with the other inputs that have its
    dimension of edges: in orders that keep those of one node in theirs, pairs and halves together, or all
    sorted by node. Every one of them must change an output.
    """
    declared = subject.promised("PermutationInvariant")
    if not declared:
        yield from also_woken(subject, _edge_order)
    for promise in declared:
        assert isinstance(promise, promises.PermutationInvariant)
        found = held_to(subject, _permute, promise, None)
        yield from also_at_largest(subject, found, _long(_permute_apart, promise, None))


def permutation_equivariance(subject: Subject) -> Iterator[Finding]:
    """Permute the inputs twice and compare the permuted outputs in float64."""
    for promise in subject.promised("PermutationEquivariant"):
        assert isinstance(promise, promises.PermutationEquivariant)
        output_dim = (
            promise.output_dim
            if promise.output_dim is not None
            else next(iter(promise.dims.values()))
        )
        found = held_to(subject, _permute, promise, output_dim)
        yield from also_at_largest(subject, found, _long(_permute_apart, promise, output_dim))


def _permuted(
    batch: Batch, dims: Mapping[int | str, int]
) -> tuple[dict[str, tuple[torch.Tensor, int]], int] | Finding:
    """Return the inputs to permute with their dimensions, and how many entries they have; else why there are none."""
    chosen: dict[str, tuple[torch.Tensor, int]] = {}
    sizes = set()
    for which, dim in dims.items():
        found = find_input(batch, which)
        if found is None or found[1].dim() <= dim:
            return inconclusive(
                f"the batch has no tensor input {which!r} with dimension {dim}", code="no-input"
            )
        chosen[found[0]] = (found[1], dim)
        sizes.add(found[1].shape[dim])
    if len(sizes) != 1 or max(sizes) < 2:
        return inconclusive(
            f"the permuted dimensions have sizes {sorted(sizes)}; they must be equal and above one"
        )
    return chosen, sizes.pop()


def _permute(
    subject: Subject,
    promise: Any,
    output_dim: int | None,
    run: Runs = run_wide,
    *,
    apart: bool = False,
) -> Finding:
    """Compare the outputs; ``apart``: make equal entries differ a little, which a set longer than the real one has."""
    batch = subject.batch()
    if not isinstance(permuted := _permuted(batch, promise.dims), tuple):
        return permuted
    chosen, size = permuted
    generator = torch.Generator().manual_seed(subject.seed)
    if apart:
        chosen = {p: (entries_apart(t, d, generator), d) for p, (t, d) in chosen.items()}
        batch = with_inputs(batch, {path: t for path, (t, _) in chosen.items()})
    orders = [torch.arange(size).roll(1), torch.randperm(size, generator=generator)]
    orders = orders if run is run_wide else orders[1:]
    axes = {path: dim for path, (_, dim) in chosen.items()}
    variants = [turned(subject, batch, axes, order) for order in orders]
    changed = any(not trees.same(variants[0].tensors()[path], t) for path, (t, _) in chosen.items())
    if not changed:
        return inconclusive(
            "the inputs are equal along that dimension, so permuting changes nothing"
        )
    outputs, bound = run(subject, [batch, *variants])
    base = trees.floats(outputs[0])
    if not base:
        return inconclusive("the output holds no floating tensor")
    if output_dim is not None:
        base = {
            p: t for p, t in base.items() if t.dim() > output_dim and t.shape[output_dim] == size
        }
        if not base:
            return inconclusive(f"no output has {size} entries along dimension {output_dim}")
    for order, variant, output in zip(orders, variants, outputs[1:], strict=True):
        other = trees.floats(output)
        for path, tensor in base.items():
            wanted = tensor
            if output_dim is not None:
                wanted = tensor.index_select(output_dim, order.to(tensor.device))
            gap = trees.apart(other[path], wanted) if path in other else float("inf")
            if beyond_rounding(subject, batch, gap, bound):
                if draws_in_eval(subject):
                    return _random("another order gives entries")
                return explain.permutation(subject, promise, path, gap, batch, variant, axes)
    return passed(f"outputs agree over {len(orders)} permutations of {size} entries")


_permute_apart = functools.partial(_permute, apart=True)


def _edge_order(subject: Subject) -> Iterator[Finding]:
    """Compare the outputs of the same edges in other orders, where no input says that their order counts."""
    axes = edge_axes(subject)
    if not axes:
        yield not_applicable("the order of the edges may count: other inputs refer to it")
        return
    seen: list[tuple[str, float, Batch, Batch, torch.Tensor]] = []
    try:
        for batch, variant, order in edge_orders(subject, axes):
            outputs, bound = run_wide(subject, [batch, variant])
            path, gap = farthest(subject, outputs, order, bound)
            if bound != EXACT or not beyond_rounding(subject, batch, gap, bound):
                yield passed(f"outputs are the same with {len(order)} edges in another order")
                return
            seen.append((path, gap, batch, variant, order))
    except SubjectError as error:
        yield inconclusive(f"edges in another order do not run ({type(error.error).__name__})")
        return
    if draws_in_eval(subject):
        yield _random("another order gives edges")
        return
    path, gap, batch, variant, order = seen[1]  # a sort by node undoes the first order
    yield explain.permutation(subject, None, path, gap, batch, variant, axes, order)
