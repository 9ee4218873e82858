"""Samples keep to themselves, eval mode is deterministic and pure, and other sizes work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..codes import behaviour as explain
from ..late import Late
from ..objects import trees
from ..objects.held import set_random_state
from ..objects.modes import own_trains
from ..runs.facts import copied, forward_facts, outputs
from ..runs.remembering import remembered
from ..runs.repeats import differing_generators, moved_by_asking, moved_by_building
from ..runs.rows import Rows, floating_from, output_rows
from ..runs.time_first import other_batch_dim
from ..runs.training.steps import digests
from ..state import seed_everything, seed_torch
from ..subject import Subject, SubjectError
from ..verdicts import inconclusive, not_applicable, passed, suspicious

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..batches import Batch
    from ..findings import Finding
    from ..runs.training.steps import Trajectory

examples = Late("strategies.sequence:examples")
"""Draws batches of other sizes; a run that draws none does not import Hypothesis."""

EXACT = 1e-9
"""Largest relative difference in float64 that reordering of sums explains (CHECKS R2)."""
ROUNDING = 3e-4
"""The same in float32, for models that do not run in float64."""
_ROUNDED = 1e-5
"""What other kernels for other sizes make of float32: 1.4e-6 was measured (CHECKS E2), more in deep models."""
_QUANTIZED = ("quantized", "ao.nn")


def is_quantized(model: nn.Module) -> bool:
    """Say whether a module is quantized: its scales follow the whole batch by design."""
    return any(any(word in type(m).__module__ for word in _QUANTIZED) for m in model.modules())


def is_stochastic(subject: Subject) -> bool:
    """Say whether the contract declares randomness in eval mode."""
    return bool(subject.contract.promised("Stochastic"))


def batch_independence(subject: Subject) -> Iterator[Finding]:
    """Replace the neighbours of the first sample, and change the order of the samples."""
    subject.batch()  # where it cannot be made, that is what is told
    if subject.contract.batch_dim is None or subject.source.batch_symbol is None:
        yield not_applicable("the inputs have no batch dimension")
        return
    if is_quantized(subject.model):
        yield not_applicable("the activations of quantized modules share one scale over the batch")
        return
    batch = subject.batch()
    symbol = subject.source.batch_symbol
    size = batch.sizes.get(symbol, 0)
    if size < 2:
        yield inconclusive("the batch holds one sample, which has no neighbours")
        return
    rows = output_rows(subject)
    if rows is None or not rows.dims:
        asks = "; dimension 1 behaves as the batch does: is batch_dim=1?"
        yield inconclusive(
            "no output could be split into samples" + (asks if other_batch_dim(subject) else "")
        )
        return
    keep = torch.arange(size) == 0
    try:
        mixed = _replace(subject, batch, subject.batch(1), keep)
        outputs(subject, mixed)
    except SubjectError:  # sizes or an order among the samples that the model relies on
        mixed = _replace(subject, batch, floating_from(batch, subject.batch(1)), keep)
    if not _differs(subject, batch, mixed):
        yield inconclusive("the neighbours' inputs could not be changed: all samples are equal")
        return
    leaks = _compare(
        subject,
        batch,
        mixed,
        rows,
        torch.zeros(1, dtype=torch.int64),
        torch.zeros(1, dtype=torch.int64),
    )
    if leaks is not None:
        dim = other_batch_dim(subject)
        yield (
            explain.mixed(subject, batch, mixed, rows, leaks)
            if dim is None
            else (explain.other_dim(subject, dim, leaks))
        )
        return
    if forward_facts(subject).consumed:
        yield passed(
            f"the first of {size} samples is unchanged by other neighbours; the output is random in eval mode"
        )
        return
    order = torch.arange(size).roll(1)
    turned = subject.source.rows(batch, order)
    try:
        leaks = _compare(subject, batch, turned, rows, order, torch.arange(size))
    except SubjectError as error:
        yield passed(
            f"the first of {size} samples is unchanged by other neighbours; in another order the forward "
            f"raises {type(error.error).__name__}, as one does that needs samples sorted by length"
        )
        return
    if leaks is not None and _draws_in_eval(subject):
        yield passed(
            f"the first of {size} samples is unchanged by other neighbours; the output is random in eval mode, "
            "so that another order gives samples other numbers"
        )
        return
    if leaks is not None:
        dim = other_batch_dim(subject)
        yield (
            explain.placed(subject, batch, turned, rows, order, leaks)
            if dim is None
            else (explain.other_dim(subject, dim, leaks))
        )
        return
    yield passed(
        f"{len(rows.dims)} outputs: the first of {size} samples is unchanged by other neighbours, "
        "and samples keep their outputs in another order"
    )


def _draws_in_eval(subject: Subject) -> bool:
    """Say whether the output in eval mode follows the seed, whichever generator draws: torch's, one made in forward."""
    first, other = outputs(subject), outputs(subject, seed=1)
    return any(path not in other or not trees.same(t, other[path]) for path, t in first.items())


def _replace(subject: Subject, batch: Batch, other: Batch, keep: torch.Tensor) -> Batch:
    """Return the batch with the samples not in ``keep`` taken from another one."""
    axes = subject.source.axes(subject.source.batch_symbol or "")
    others = other.tensors()

    def change(path: str, leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor) or path not in axes:
            return leaf
        fresh = others[path]
        shape = [1] * leaf.dim()
        shape[axes[path]] = len(keep)
        mask = keep.view(shape).to(leaf.device)
        return torch.where(mask, leaf.detach(), fresh.detach().to(leaf.device))

    return batch.map(change)


def _differs(subject: Subject, a: Batch, b: Batch) -> bool:
    theirs = dict(b.input_leaves())
    return any(
        isinstance(leaf, torch.Tensor) and not trees.same(leaf, theirs[path])
        for path, leaf in a.input_leaves()
    )


def _compare(
    subject: Subject,
    a: Batch,
    b: Batch,
    rows: Rows,
    of_a: torch.Tensor,
    of_b: torch.Tensor,
    small: Batch | None = None,
) -> dict[str, float] | None:
    """Compare samples ``of_a`` of one run with samples ``of_b`` of another: None where they agree.

    Bits first; where those differ, float64 decides, and rounding in the subject's own dtype where the
    model does not run in float64.

    Args:
        small: Fewer samples of ``a``, ``of_a`` among them, which float64 runs instead where the
            difference
            is as small as rounding makes it.
    """
    mine = outputs(subject, a)
    gaps = _gaps(mine, outputs(subject, b), rows, of_a, of_b)
    if all(gap == 0.0 for gap in gaps.values()):
        return None
    narrow = all(t.dtype != torch.float64 for t in mine.values())
    if small is not None and narrow and all(gap <= _ROUNDED for gap in gaps.values()):
        a = small  # at the full size rounding explains it; float64 has to confirm the principle
    bound = ROUNDING
    try:
        wide_a, wide_b = a.to(dtype=torch.float64), b.to(dtype=torch.float64)
        with subject.in_double() as model, torch.no_grad():
            model.eval()
            seed_everything(subject.seed)
            first = trees.tensors(subject.call(model, wide_a.clone()))
            seed_everything(subject.seed)
            second = trees.tensors(subject.call(model, wide_b.clone()))
        gaps, bound = _gaps(first, second, rows, of_a, of_b), EXACT
    except SubjectError:
        pass  # hard-wired float32: judged by rounding in the model's own dtype
    wrong = {path: gap for path, gap in gaps.items() if beyond_rounding(subject, a, gap, bound)}
    return wrong or None


def beyond_rounding(subject: Subject, batch: Batch, gap: float, bound: float) -> bool:
    """Say whether a relative difference is more than rounding makes.

    A forward that casts to float32 in between (a softmax, a norm) rounds to that in float64 as
    well; it is looked at
    only where that decides.

    Args:
        subject: The model.
        batch: A batch that it runs.
        gap: The difference.
        bound: What rounding explains in the dtype in which it was measured.
    """
    if gap <= bound:
        return False
    if bound != EXACT or not gap <= ROUNDING:
        return True
    if "computes-narrow" not in subject.cache:
        subject.cache["computes-narrow"] = explain.computes_narrow(subject, batch)
    return not subject.cache["computes-narrow"]


def _gaps(
    first: dict[str, torch.Tensor],
    second: dict[str, torch.Tensor],
    rows: Rows,
    of_a: torch.Tensor,
    of_b: torch.Tensor,
) -> dict[str, float]:
    gaps = {}
    for path, dim in rows.dims.items():
        if path not in second:
            gaps[path] = float("inf")
            continue
        x = trees.dense(first[path]).index_select(dim, of_a.to(first[path].device))
        y = trees.dense(second[path]).index_select(dim, of_b.to(second[path].device))
        gaps[path] = 0.0 if trees.same(x, y) else trees.worst(x, y) / max(trees.scale(x), 1e-30)
    return gaps


def batch_sizes(subject: Subject) -> Iterator[Finding]:
    """Run the declared sizes, edges first, in eval mode, and a batch of one sample."""
    tried = 0
    crash = None
    if subject.source.declared_sizes:
        for drawn in examples(subject.source, subject.examples, subject.seed):
            batch = subject.place(drawn)
            tried += 1
            try:
                subject.forward(batch)
            except SubjectError as error:
                crash = (batch, error)
                break
        if crash is not None:
            yield explain.size_crash(subject, *crash)
            return
    batch = subject.batch()
    symbol = subject.source.batch_symbol
    rows = output_rows(subject)
    if symbol is None or rows is None or not rows.dims or is_quantized(subject.model):
        if tried:
            yield passed(f"{tried} batches of other sizes ran")
        elif (fixed := _fixed_size(subject, batch, symbol)) is not None:
            yield fixed
        else:
            yield inconclusive("neither sizes are declared nor can samples be taken from the batch")
        return
    single = subject.source.rows(batch, torch.zeros(1, dtype=torch.int64))
    full = outputs(subject)
    try:
        alone = outputs(subject, single)
    except SubjectError as error:
        yield explain.size_crash(subject, single, error)
        return
    for path, dim in rows.dims.items():
        wanted = list(full[path].shape)
        wanted[dim] = 1
        if path not in alone or list(alone[path].shape) != wanted:
            got = list(alone[path].shape) if path in alone else None
            yield explain.single_shape(subject, single, path, wanted, got)
            return
    first = torch.zeros(1, dtype=torch.int64)
    pair = subject.source.rows(batch, torch.arange(2)) if batch.sizes[symbol] > 2 else None
    gaps = (
        None
        if is_stochastic(subject)
        else _compare(subject, batch, single, rows, first, first, small=pair)
    )
    if gaps is not None and forward_facts(subject).consumed:
        gaps = None  # the random numbers of a batch of one are others; eval-determinism judges that
    if gaps is not None:
        yield explain.size_dependent(subject, batch, single, rows, gaps)
        return
    yield passed(
        f"{tried} batches of other sizes ran; the first sample gives the same alone and in the batch"
    )


def _fixed_size(subject: Subject, batch: Batch, symbol: str | None) -> Finding | None:
    """Say that the model runs at the size of the real batch alone, where one sample less shows it."""
    size = batch.sizes.get(symbol or "", 0)
    if symbol is None or size < 2:
        return None
    shorter = subject.source.rows(batch, torch.arange(size - 1))
    try:
        outputs(subject, shorter)
    except SubjectError as error:
        return explain.fixed_size(
            subject, shorter, size, error, groups=_runs_twice(subject, batch, size)
        )
    return None


def _runs_twice(subject: Subject, batch: Batch, size: int) -> bool:
    """Say whether the model takes the samples of a batch twice, as one that reads them in groups does."""
    try:
        outputs(subject, subject.source.rows(batch, torch.arange(2 * size) % size))
    except SubjectError:
        return False
    return True


def eval_determinism(subject: Subject) -> Iterator[Finding]:
    """Run twice in eval mode with different seeds."""
    for promise in subject.contract.promised("Stochastic"):
        yield not_applicable(f"the contract promises {promise}")
        return
    seen = forward_facts(subject)
    if seen.steady and seen.outputs:
        yield passed(f"{len(seen.outputs)} output tensors are bit-equal over two seeds")
        return
    first, second = seen.outputs, outputs(subject, seed=1)
    if not first:
        yield inconclusive("the output holds no tensor")
        return
    moved = [
        path for path in first if path not in second or not trees.same(first[path], second[path])
    ]
    if moved and not subject.kernel_exact:
        again = outputs(subject, subject.batch().clone())  # a clone is run anew
        floor = {path: trees.worst(first[path], again[path]) for path in moved}
        moved = [p for p in moved if trees.worst(first[p], second[p]) > 4 * floor[p]]
    if moved:
        gap = max(trees.worst(first[p], second[p]) for p in moved if p in second)
        yield explain.random_in_eval(subject, moved, gap)
        return
    yield passed(f"{len(first)} output tensors are bit-equal over two seeds")


def eval_purity(subject: Subject) -> Iterator[Finding]:
    """Run twice in eval mode without putting anything back in between, with another batch first where a call keeps something."""
    seen = forward_facts(subject)
    if not seen.repeats:
        yield _impure(subject)
        return
    kept = [name for name in seen.keeps if not subject.is_promised("MayChange", name)]
    if kept and (moved := remembered(subject)):
        yield explain.remembers(subject, list(moved))
        return
    yield passed(
        f"{seen.compared} parameters and buffers are bit-equal after an eval forward, the output repeats"
    )


def _impure(subject: Subject) -> Finding:
    """Say what an eval forward changes, and whether anything depends on it."""
    with subject.pristine(steps=False) as model, torch.no_grad():
        model.eval()
        before = {
            name: t.detach().clone()
            for name, t in (*model.named_buffers(), *model.named_parameters())
            if t.device.type != "meta" and t.layout == torch.strided
        }
        seed_everything(subject.seed)
        first = trees.tensors(subject.call(model, subject.batch().clone()))
        first = {path: trees.dense(t).clone() for path, t in first.items()}
        after = dict((*model.named_buffers(), *model.named_parameters()))
        saved = set(
            model.state_dict(keep_vars=True)
        )  # a cache that is not saved may grow: the output decides
        changed = [
            n
            for n, t in before.items()
            if n in after and n in saved and not trees.same(t, after[n])
        ]
        seed_everything(subject.seed)
        second = trees.tensors(subject.call(model, subject.batch().clone()))
        moved = [
            path
            for path in first
            if path not in second or not trees.same(first[path], second[path])
        ]
        if moved and not subject.kernel_exact:
            moved = [
                p
                for p in moved
                if trees.worst(first[p], second[p]) > ROUNDING * max(trees.scale(first[p]), 1e-30)
            ]
    unpromised = [name for name in changed if not subject.is_promised("MayChange", name)]
    # of another shape than saved, it cannot be loaded into a new instance, whoever reads it
    resized = set(unpromised) & set(forward_facts(subject).grown)
    if unpromised and (moved or resized or _writes_are_read(subject)):
        once = not resized and _written_once(subject, unpromised)
        return explain.impure(subject, changed, once=once)
    if moved:
        return explain.not_repeatable(subject, moved)
    if unpromised:
        return passed(
            f"an eval forward writes to {', '.join(unpromised[:3])}, and no output depends on what it writes: "
            "a counter or a cache"
        )
    return passed(
        f"{len(before)} parameters and buffers are bit-equal after an eval forward, the output repeats"
    )


def _written_once(subject: Subject, names: list[str]) -> bool:
    """Say whether only the first forward writes: one of another batch after it leaves the values as they are."""
    with subject.pristine(steps=False) as model, torch.no_grad():
        model.eval()
        kept = None
        for index in (0, 1):
            seed_everything(subject.seed)
            subject.call(model, subject.batch(index).clone())
            saved = model.state_dict(keep_vars=True)
            now = {name: saved[name].detach().clone() for name in names}
            if kept is not None and any(not trees.same(kept[name], now[name]) for name in names):
                return False
            kept = now
    return True


def _writes_are_read(subject: Subject) -> bool:
    """Say whether an eval forward of another batch changes what the model gives for the base batch, in either mode.

    The other batch is of twice the scale, so that a running maximum moves too.
    """

    def doubled(_path: str, leaf: Any) -> Any:
        wide = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.detach() * 2 if wide else leaf

    other = subject.batch(1).map(doubled, targets=False)
    for train in (False, True):
        wanted = outputs(subject, train=train)
        with subject.pristine(steps=False) as model, torch.no_grad():
            model.eval()
            try:
                subject.call(model, other.clone())
            except SubjectError:
                return True  # what a second batch does cannot be seen: the write counts
            model.train(train)
            seed_everything(subject.seed)
            again = copied(subject.call(model, subject.batch().clone()))
        if any(path not in again or not trees.same(t, again[path]) for path, t in wanted.items()):
            return True
    return False


def mode_flags(subject: Subject) -> Iterator[Finding]:
    """Call eval() and train() and look at every module's flag, and for ``requires_grad`` set on a module."""
    suspects = [m for m in subject.model.modules() if "requires_grad" in vars(m)]
    idle = list(explain.flags(subject)) if suspects else []
    yield from idle
    if not subject.has_modes:
        yield not_applicable("an exported program has one mode: its train() and eval() raise")
        return
    with subject.pristine() as model:
        model.eval()
        training = [name for name, module in model.named_modules() if module.training]
        model.train()
        still = [name for name, module in model.named_modules() if not module.training]
        count = sum(1 for _ in model.modules())
    kept = [name for name in training if _has_mode(model, name)]
    if kept:
        yield explain.stuck_mode(subject, kept)
        return
    if training:
        yield suspicious(
            "mode-stuck",
            f"eval() leaves {len(training)} modules in training mode",
            observed=", ".join(training[:5]),
            cause="an overridden train() does not reach them",
            because="module.training is True after model.eval()",
            fix="call super().train(mode) and return self",
        )
        return
    if idle:
        return
    if own := own_trains(subject.model):
        yield explain.train_overridden(subject, own)
        return
    note = f"; {len(still)} stay in eval mode after train(), on purpose or not" if still else ""
    yield passed(f"eval() reaches {count} of {count} modules{note}")


def _has_mode(model: nn.Module, name: str) -> bool:
    module = model.get_submodule(name)
    kinds = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)
    return any(isinstance(m, kinds) for m in module.modules())


def seeding(subject: Subject) -> Iterator[Finding]:
    """Seed torch alone, and leave the generators of numpy and random where they are.

    A factory that builds, or a batch function that gives, other values under one seed is
        suspicious: what fails with
    them cannot be repeated.
    """
    if subject.device.type == "cpu":
        if moved := moved_by_building(subject):
            yield explain.unrepeated_build(subject, moved)
        if moved := moved_by_asking(subject):
            yield explain.unrepeated_batch(subject, moved)
    seen = forward_facts(subject, train=True)
    steps: Trajectory | None = subject.cache.get("trajectory")
    first, again, consumed = seen.outputs, seen.outputs, seen.consumed
    # the step that ran anyway was seeded alike: equal bits say that nothing but torch's seed decides
    if steps is None or seen.others_moved or steps.first_output != digests(first):
        again, moved_too = _seeded(subject, 0)
        consumed = consumed or moved_too
    if not first:
        yield inconclusive("the output holds no tensor")
        return
    moved = _differ(first, again)
    if moved and not subject.kernel_exact:
        moved = [
            p
            for p in moved
            if trees.worst(first[p], again[p]) > ROUNDING * max(trees.scale(first[p]), 1e-30)
        ]
    if moved:
        yield explain.unseeded(subject, moved)
        return
    if (own := differing_generators(subject)) and _differ(first, _seeded(subject, 0, own)[0]):
        yield explain.unseeded_generators(subject, list(own))
        return
    reseeds = steps is None or steps.reseeds is not False
    other = _seeded(subject, 1)[0] if consumed and reseeds else {}
    if other and all(path in other and trees.same(first[path], other[path]) for path in first):
        finding = explain.reseeded(subject)
        if finding is not None:
            yield finding
            return
    what = (
        "random numbers come from torch's generator alone"
        if consumed
        else "no random numbers are used"
    )
    yield passed(f"the training forward repeats under torch.manual_seed; {what}")


def _differ(one: Mapping[str, torch.Tensor], two: Mapping[str, torch.Tensor]) -> list[str]:
    return [path for path in one if path not in two or not trees.same(one[path], two[path])]


def _seeded(
    subject: Subject, number: int, own: Mapping[str, tuple[Any, Any]] | None = None
) -> tuple[dict[str, torch.Tensor], bool]:
    """Return the outputs in train mode when torch alone is seeded, and whether its random state moved.

    Args:
        subject: The subject.
        number: Added to the seed.
        own: Generators of the model's own, and the states that they start from.
    """
    import random
    import sys

    batch = subject.batch().clone()
    numpy = sys.modules.get("numpy")
    with subject.pristine() as model, torch.no_grad():
        model.train()
        random.seed(subject.seed + 1000 + number)
        if numpy is not None:
            numpy.random.seed((subject.seed + 1000 + number) % 2**32)
        seed_torch(subject.seed + number)
        for generator, state in (own or {}).values():
            set_random_state(generator, state)
        before = torch.get_rng_state()
        made = copied(subject.call(model, batch))
        return made, not torch.equal(before, torch.get_rng_state())


def output_spec(subject: Subject) -> Iterator[Finding]:
    """Compare the outputs of the base batch and of drawn sizes with the declared spec."""
    batches = [subject.batch()]
    if subject.source.declared_sizes:
        batches += [
            subject.place(b)
            for b in examples(subject.source, min(subject.examples, 4), subject.seed)
        ]
    checked = 0
    for batch in batches:
        try:
            output = subject.forward(batch)
        except SubjectError:
            if checked == 0:
                raise
            continue  # batch-sizes reports sizes that do not run
        finding = explain.output_mismatch(subject, batch, output)
        if finding is not None:
            yield finding
            return
        checked += 1
    yield passed(f"the output fits its spec over {checked} batches")


def rng_hygiene(subject: Subject) -> Iterator[Finding]:
    """Look at default dtype, grad mode, threads and determinism flags after a forward, and for anomaly mode left on.

    Anomaly mode that the model's file or its factory turns on is suspicious: it was for debugging,
    and every
    backward is slower with it.
    """
    if torch.is_anomaly_enabled() or (subject.model and subject.cache.get("anomaly-after-build")):
        yield explain.anomaly_left_on(subject, by_build=not torch.is_anomaly_enabled())
        return
    for train in (False, True):
        before, after = forward_facts(subject, train=train).settings
        changed = [name for name in before if before[name] != after[name]]
        if changed:
            yield explain.global_state(subject, changed, before, after)
            return
    yield passed(f"{len(before)} global settings are the same after a forward in either mode")
