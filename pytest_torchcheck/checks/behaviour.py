"""Samples keep to themselves, eval mode is deterministic and pure, and other sizes work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..codes import behaviour as explain
from ..objects import trees
from ..objects.held import set_random_state
from ..objects.modes import own_trains
from ..probes.shared_noise import shared_noise
from ..runs.facts import copied, forward_facts, outputs
from ..runs.outputs import undetermined
from ..runs.remembering import moved_by_modes, overwritten, remembered, trained_otherwise
from ..runs.repeats import differing_generators, moved_by_asking, moved_by_building
from ..runs.training.observation import digests
from ..runs.variants.woken import also_woken
from ..specs.compare import beyond, mismatch
from ..state import has_drawn, random_states, saved_state, seed_everything, seed_torch
from ..subject.errors import SubjectError
from ..verdicts import inconclusive, not_applicable, passed, suspicious
from .batching import ROUNDING, UNDETERMINED
from .sizes import examples

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from ..findings import Finding
    from ..runs.training.observation import Observation
    from ..runs.training.steps import Trajectory
    from ..subject import Subject


def eval_determinism(subject: Subject) -> Iterator[Finding]:
    """Run twice in eval mode with different seeds."""
    yield from also_woken(subject, _determinism)


def _determinism(subject: Subject) -> Iterator[Finding]:
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
    moved = [p for p in first if p not in second or not trees.same(first[p], second[p])]
    if subject.kernel_exact:
        moved = _beyond_rounding(subject, moved, first, second)
    elif moved:
        again = outputs(subject, subject.batch().clone())  # a clone is run anew
        floor = {path: trees.worst(first[path], again[path]) for path in moved}
        moved = [p for p in moved if trees.worst(first[p], second[p]) > 4 * floor[p]]
    if moved and not forward_facts(subject).consumed and undetermined(subject):
        yield inconclusive(UNDETERMINED)
    elif moved:
        worst = max(trees.worst(first[p], second[p]) for p in moved if p in second)
        yield explain.random_in_eval(subject, moved, worst)
    else:
        yield passed(f"{len(first)} output tensors are bit-equal over two seeds")


def eval_purity(subject: Subject) -> Iterator[Finding]:
    """Run twice in eval mode with nothing put back in between, another batch first where a call keeps something.

    In training mode, a forward then gives the same before and after the evaluation of another batch too.
    An output that the caller still holds keeps its values. eval() and train() leave the parameters as they are.
    """
    if turned := moved_by_modes(subject):
        yield explain.turned(subject, turned)
        return
    seen = forward_facts(subject)
    if not seen.repeats:
        yield _impure(subject)
        return
    kept = [name for name in seen.keeps if not subject.is_promised("MayChange", name)]
    if kept and (moved := remembered(subject)):
        yield explain.remembers(subject, list(moved), kept)
        return
    lost = overwritten(subject) if seen.shared else {}
    if not all(name and subject.is_promised("MayChange", name) for name in lost.values()):
        yield explain.overwrites(subject, lost)
        return
    if kept and subject.has_modes and (moved := trained_otherwise(subject)):
        yield explain.trains_otherwise(subject, list(moved))
        return
    yield passed(
        f"{seen.compared} parameters and buffers are bit-equal after an eval forward, and the "
        "output repeats"
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
        saved = saved_state(model)  # a cache that is not saved may grow: the output decides
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
        moved = _beyond_rounding(subject, moved, first, second)
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
            f"an eval forward writes to {', '.join(unpromised[:3])}, but no output depends on "
            "it: a counter or a cache"
        )
    return passed(
        f"{len(before)} parameters and buffers are bit-equal after an eval forward, and the "
        "output repeats"
    )


def _written_once(subject: Subject, names: list[str]) -> bool:
    """Say whether only the first forward writes: one of another batch after it leaves the values as they are."""
    with subject.pristine(steps=False) as model, torch.no_grad():
        model.eval()
        kept = None
        for index in (0, 1):
            seed_everything(subject.seed)
            subject.call(model, subject.batch(index).clone())
            saved = saved_state(model)
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
    with subject.pristine(train=False) as model:
        # the flag of a container that nobody calls decides nothing
        training = {n: m for n, m in model.named_modules() if m.training and not _is_list(m)}
        model.train()
        still = [name for name, module in model.named_modules() if not module.training]
        count = sum(1 for _ in model.modules())
    kept = [name for name, module in training.items() if _has_mode(module, training.values())]
    if kept:
        yield explain.stuck_mode(subject, kept)
        return
    if training:
        yield suspicious(
            "mode-stuck",
            f"eval() leaves {len(training)} modules in training mode",
            observed=", ".join(list(training)[:5]),
            cause="an overridden train() skips them",
            because="module.training is True after model.eval()",
            fix="call super().train(mode) and return self",
        )
        return
    for train in (True, False):
        if flipped := forward_facts(subject, train=train).flipped:
            yield explain.flips_mode(subject, flipped, train=train)
            return
    if idle:
        return
    if own := own_trains(subject.model):
        yield explain.train_overridden(subject, own)
        return
    note = f"; {len(still)} stay in eval mode after train()" if still else ""
    yield passed(f"eval() reaches {count} of {count} modules{note}")


def _is_list(module: nn.Module) -> bool:
    """Say whether a module is a list or a dict of modules, which has no forward of its own."""
    return isinstance(module, (nn.ModuleList, nn.ModuleDict))


def _has_mode(module: nn.Module, among: Collection[nn.Module]) -> bool:
    """Say whether a module is, or holds, one among the given ones that does something else in training."""
    kinds = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)
    own = {id(part) for part in among}
    return any(isinstance(part, kinds) and id(part) in own for part in module.modules())


def seeding(subject: Subject) -> Iterator[Finding]:
    """Seed torch alone, and leave the generators of numpy and random where they are.

    Where numbers are drawn, each sample is to get its own noise: a random tensor without a dimension for the
    samples must not be added to values of all of them, nor hide or scale them as dropout does.
    A factory that builds, or a batch function that gives, other values under one seed is
    suspicious: what fails with them cannot be repeated.
    """
    if subject.device.type == "cpu":
        if moved := moved_by_building(subject):
            yield explain.unrepeated_build(subject, moved)
        if moved := moved_by_asking(subject):
            yield explain.unrepeated_batch(subject, moved)
    seen = forward_facts(subject, train=True)
    steps: Trajectory | None = subject.cache.get("trajectory")
    first, again, consumed = seen.outputs, seen.outputs, seen.consumed
    # the step that ran anyway was seeded alike: equal bits say that nothing but torch's seed
    # decides
    if steps is None or seen.others_moved or steps.first_output != digests(first):
        again, moved_too = _seeded(subject, 0)
        consumed = consumed or moved_too
    if not first:
        yield inconclusive("the output holds no tensor")
        return
    moved = _differ(first, again)
    moved = _beyond_rounding(subject, moved, first, again)
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
    watched: Observation | None = subject.cache.get("observation")
    # a dropout of values with a gradient draws for each of them
    draws = consumed and (watched is None or bool(watched.signals.drawn))
    if draws and (noise := shared_noise(subject)) is not None:
        yield explain.shared_noise(subject, noise)
        return
    what = (
        "random numbers come only from torch's generator"
        if consumed
        else "no random numbers are used"
    )
    yield passed(f"the training forward repeats under torch.manual_seed; {what}")


def _differ(one: Mapping[str, torch.Tensor], two: Mapping[str, torch.Tensor]) -> list[str]:
    return [path for path in one if path not in two or not trees.same(one[path], two[path])]


_LAST_BITS = 64  # of the eps: how far the results of equal work may be apart on the CPU


def _beyond_rounding(
    subject: Subject,
    moved: list[str],
    first: Mapping[str, torch.Tensor],
    second: Mapping[str, torch.Tensor],
) -> list[str]:
    """Return the outputs whose difference is more than rounding.

    On the CPU, equal work gives equal bits but for the last ones: how a kernel sums may depend on where
    in memory its operands lie.
    """

    def noise(path: str) -> float:
        part = second.get(path)
        if part is None or part.dtype != first[path].dtype or not part.is_floating_point():
            return -1.0
        share = _LAST_BITS * torch.finfo(part.dtype).eps if subject.kernel_exact else ROUNDING
        return share * max(trees.scale(first[path]), 1e-30)

    return [
        path
        for path in moved
        if (floor := noise(path)) < 0 or trees.worst(first[path], second[path]) > floor
    ]


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
        before = random_states()
        made = copied(subject.call(model, batch))
        return made, has_drawn(before)


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
        if (wrong := mismatch(subject.contract.output, output, batch.sizes)) is not None:
            yield explain.output_mismatch(subject, batch, output, wrong)
            return
        if (outside := beyond(subject.contract.output_range, output)) is not None:
            yield explain.out_of_range(subject, batch, *outside)
            return
        checked += 1
    yield passed(f"the output fits its spec over {checked} batches")
