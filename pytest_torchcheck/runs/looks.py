"""Further looks at gradients that are missing or zero: other batches, seeds, instances, siblings, and float64."""

from __future__ import annotations

import contextlib
import math
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..objects import trees
from ..probes.gradient.provenance import find_cut, find_zero_gradients
from ..probes.loss.arguments import targets_of
from ..probes.recorded.watch import Watch, name_of, tensors_in
from ..state import isolated, seed_everything
from ..subject.errors import SubjectError
from ..subject.gradients import clear_gradients, gradient_stats
from .again import forward_and_loss
from .widened import Widened

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from ..subject import Subject

REDRAWS = ((1, 1), (2, 2), (0, 3))  # (batch, seed) of the further looks at a dead gradient


_ROUTES = 10  # further batches for parameters that a router may have passed by


STRUCTURAL = 1e-12  # CHECKS R9: below this share of the model's norm, in float64, a gradient is zero by structure


_SHIFTS = ("cancels", "normalised")


@contextlib.contextmanager
def unhooked(model: nn.Module) -> Iterator[list[str]]:
    """Lay the gradient hooks of parameters aside; give the names of the parameters that have some."""
    held = [(n, h, dict(h)) for n, p in model.named_parameters() if (h := p._backward_hooks)]
    for _, hooks, _ in held:
        hooks.clear()
    try:
        yield [name for name, _, _ in held]
    finally:
        for _, hooks, kept in held:
            hooks.update(kept)


def hidden_by_hooks(subject: Subject) -> dict[str, bool]:
    """Return the parameters of which hooks make a gradient finite that is not, and whether none of its entries is.

    Cost: FB where a parameter has a hook.
    """
    if not any(p._backward_hooks for p in subject.model.parameters()):
        return {}
    with subject.pristine(train=True, seeded=True) as model, unhooked(model) as names:
        clear_gradients(model)
        subject.passes(model, subject.batch().clone())
        found = {n: model.get_parameter(n).grad for n in names}
        finite = {n: torch.isfinite(trees.dense(g)) for n, g in found.items() if g is not None}
    return {n: not bool(entries.any()) for n, entries in finite.items() if not bool(entries.all())}


def routed(subject: Subject, dead: set[str]) -> set[str]:
    """Name the parameters without a gradient whose siblings are reached by some batches and not by others.

    Siblings differ in a number of their name only, such as the experts of a mixture. Where the same
    siblings are live in every batch, nothing is routed, and a missing gradient is a mistake.
    """
    families: dict[str, set[str]] = {}
    for name in subject.gradients().stats:
        families.setdefault(re.sub(r"\d+", "*", name), set()).add(name)
    found: set[str] = set()
    for siblings in families.values():
        suspects = siblings & dead
        if not suspects or suspects == siblings:
            continue
        looks = []
        for index in range(_ROUTES):
            stats = subject.gradients(index + 3, seed=index + 3).stats
            looks.append(frozenset(name for name in siblings if stats[name].kind == "live"))
            suspects -= looks[-1]  # another batch reaches them after all
            if looks[-1] != looks[0]:
                suspects = set()  # some batches reach others: what is missing is routed
            if not suspects:
                break
        found |= siblings & dead - suspects
    return found


def _live_in_another_instance(subject: Subject, dead: set[str]) -> set[str]:
    """Name the parameters that get a gradient in a model built from another seed: dead by chance, not by mistake."""
    if not dead or not subject.contract.is_factory:
        return set()
    found: set[str] = set()
    for seed in (1, 2):
        with isolated():
            model = subject.build(subject.seed + seed).train()
            batch = subject.batch().clone()
            seed_everything(subject.seed)
            loss = subject.compute_loss(subject.call(model, batch), batch)
            with subject.phase("backward", batch):
                loss.backward()
            stats = gradient_stats(model)
        found |= {name for name in dead if name in stats and stats[name].kind == "live"}
        if found == dead:
            break
    return found


def _live_without_holes(subject: Subject, names: set[str]) -> set[str]:
    """Name the parameters that get a gradient once every NaN in the targets, a value not measured, is filled in.

    The values are other ones of the same target, in order.
    """
    batch = subject.batch()
    holed = {
        p: t for p, t in targets_of(batch).items() if t.is_floating_point() and t.isnan().any()
    }
    if not names or not holed:
        return set()

    def filled(path: str, leaf: Any) -> Any:
        target = holed.get(path)
        known = None if target is None else target[~target.isnan()]
        if target is None or known is None or not known.numel():
            return leaf
        others = known.repeat(-(-target.numel() // known.numel()))[: target.numel()]
        return torch.where(target.isnan(), others.view(target.shape), target)

    with subject.pristine(train=True, seeded=True) as model, torch.enable_grad():
        clear_gradients(model)
        given = batch.map(filled).clone()
        loss = subject.compute_loss(subject.call(model, given), given)
        with subject.phase("backward", given):
            loss.backward()
        stats = gradient_stats(model)
    return {name for name in names if name in stats and stats[name].kind == "live"}


def _chosen_otherwise(subject: Subject, names: set[str]) -> tuple[set[str], bool]:
    """Name the parameters of experts and branches that these data, or these arguments, did not choose.

    Returns:
        The names, and whether other data could choose others: a forward that reads no value of a
        tensor calls the same modules for any batch.
    """
    nested = {name for name in names if name.count(".") > 1}
    batch = subject.batch().clone()
    arguments = [leaf for _, leaf in batch.input_leaves() if not isinstance(leaf, torch.Tensor)]
    with subject.pristine(train=True, seeded=True) as model, torch.no_grad():
        with ChoiceWatch(model) as watch:
            subject.call(model, batch)
        chosen = left_out_by_choice(watch, model, nested, arguments)
    return chosen, bool(watch.deciding) or not watch.callers


def unreached(subject: Subject, names: set[str]) -> set[str]:
    """Name the parameters whose missing gradient is a matter of chance: routed elsewhere, or dead in this instance.

    What was found of a name is remembered.
    """
    known: dict[str, bool] = subject.cache.setdefault("unreached", {})
    if new := names - known.keys():
        elsewhere, decides = _chosen_otherwise(subject, new)
        elsewhere |= _live_in_another_instance(subject, new - elsewhere)
        stats = subject.gradients().stats
        elsewhere |= _live_without_holes(subject, new - elsewhere)
        left = {name for name in new if decides or stats[name].kind != "none"}
        elsewhere |= routed(subject, left - elsewhere)
        known.update({name: name in elsewhere for name in new})
    return {name for name in names if known[name]}


def shared_shifts(subject: Subject, names: Collection[str]) -> set[str]:
    """Name the biases whose gradient cancels: a shift of all scores, which comparisons of scores ignore.

    A ranking loss takes differences, a softmax or a normalisation drops what all entries share; such a
    bias has no influence in a correct model (CHECKS E12). A weight without influence is a mistake.
    """
    parameters = subject.named_parameters()
    biases = [
        name for name in names if parameters[name].dim() < 2 and "bias" in name.rpartition(".")[2]
    ]
    if not biases:
        return set()
    with subject.pristine():
        found = find_zero_gradients(forward_and_loss(subject), subject.model, biases)
    return {name for name in biases if name in found and found[name].kind in _SHIFTS}


HIDDEN = {
    "single-position": "an attention has only one position to attend to in this batch; use a larger "
    "input",
    "partly-overwritten": "what is computed from it is overwritten where the loss uses it, at places "
    "that the data decide",
}
"""Why a gradient may be zero in these data alone, by the kind of zero."""


def hidden_by_data(subject: Subject, names: Collection[str]) -> dict[str, str]:
    """Return the parameters whose gradient these data make zero, with the reason of :data:`HIDDEN`."""
    if not names:
        return {}
    with subject.pristine():
        found = find_zero_gradients(forward_and_loss(subject), subject.model, list(names))
    return {n: found[n].kind for n in names if n in found and found[n].kind in HIDDEN}


def differentiated(subject: Subject, names: Collection[str]) -> set[str]:
    """Name the parameters that reach the loss through a derivative only, and that this derivative does not depend on."""
    parameters = subject.named_parameters()
    examined = {name: parameters[name] for name in names}
    if not examined:
        return set()
    with subject.pristine():
        cuts = find_cut(forward_and_loss(subject), subject.model, examined)
    return {name for name, cut in cuts.items() if cut.kind == "differentiated"}


def rounding_noise(subject: Subject, names: Collection[str]) -> set[str]:
    """Name the parameters whose gradient is small beside the largest, and next to nothing in float64: rounding of a zero."""
    first = subject.gradients()
    largest = max((s.norm for s in first.stats.values() if math.isfinite(s.norm)), default=0.0)
    small = {name for name in names if 0.0 < first.stats[name].norm < 1e-5 * largest}
    norms = double_norms(subject, 0, 0) if small else None
    if norms is None:
        return set()
    top = max(norms.values(), default=0.0)
    return {name for name in small if norms.get(name, top) < STRUCTURAL * top}


def double_norms(subject: Subject, index: int, seed: int) -> dict[str, float] | None:
    """Gradient norms in float64, or None where the model does not run in it."""
    with subject.in_double() as model:
        clear_gradients(model)
        return norms_of(subject, model, index, seed)


def norms_of(
    subject: Subject, model: torch.nn.Module, index: int, seed: int
) -> dict[str, float] | None:
    """Gradient norms of a model in float64, or None where it does not run in it."""
    batch = subject.batch(index).to(dtype=torch.float64).clone()
    model.train()
    seed_everything(subject.seed + seed)
    try:
        with Widened():
            loss = subject.compute_loss(subject.call(model, batch), batch)
        with subject.phase("backward", batch):
            loss.backward()
    except SubjectError:
        return None
    return {name: stat.norm for name, stat in gradient_stats(model).items()}


_READS = frozenset(
    f"Tensor.{name}"
    for name in (
        "__bool__", "__int__", "__index__", "__float__", "__contains__", "item", "tolist", "numpy",
        "nonzero", "masked_select", "unique",
    )
) | {"torch.nonzero", "torch.masked_select", "torch.unique"}  # fmt: skip
"""Operations by which Python, or the shape of a result, follows from a tensor's values."""


class ChoiceWatch(Watch):
    """Notes in which module's forward values decide, and which modules that forward calls.

    Attributes:
        deciding: Names of the modules in whose own forward a tensor's values are read.
        callers: By name of a called module: the modules whose forwards call it.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.deciding: set[str] = set()
        self.callers: dict[str, set[str]] = {}

    def before(self, func: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Note a call whose result depends on values in more than numbers."""
        name = name_of(func)
        by_mask = name == "Tensor.__getitem__" and any(
            t.dtype == torch.bool for t in tensors_in(args[1:])
        )
        where = name in ("torch.where", "Tensor.where") and len(args) == 1 and not kwargs
        if (name in _READS or by_mask or where) and self.scopes:
            self.deciding.add(self.scopes[-1].name)

    def module_entered(self, module: nn.Module, args: Any) -> None:
        """Note who called a module; with no samples at all it is as if nobody had."""
        given = list(tensors_in(args))
        if len(self.scopes) > 1 and (not given or any(t.numel() for t in given)):
            self.callers.setdefault(self.scopes[-1].name, set()).add(self.scopes[-2].name)


def left_out_by_choice(
    watch: ChoiceWatch,
    module: nn.Module,
    names: Collection[str],
    arguments: Iterable[object] = (),
) -> set[str]:
    """Name the parameters of modules that did not run although a sibling in the same container did, by choice.

    A choice is seen where the forward that calls the sibling reads values of a tensor (a router, a
    mask), or where an argument that is no tensor equals the key of the sibling that ran.

    Args:
        watch: What it saw of one forward of ``module``.
        module: The model.
        names: Qualified names of parameters.
        arguments: What the model was given beside tensors.
    """
    given = {str(value) for value in arguments if isinstance(value, (str, int))}
    found: set[str] = set()
    for name in names:
        parts = name.split(".")
        for depth in range(1, len(parts)):
            own, held = ".".join(parts[:depth]), ".".join(parts[: depth - 1])
            if not isinstance(module.get_submodule(held), (nn.ModuleList, nn.ModuleDict)):
                continue
            if _ran(own, watch.callers):
                continue
            others = [
                f"{held}.{key}" if held else key
                for key, _ in module.get_submodule(held).named_children()
                if key != parts[depth - 1]
            ]
            ran = [other for other in others if _ran(other, watch.callers)]
            chosen = any(_callers(other, watch.callers) & watch.deciding for other in ran)
            if chosen or any(other.rpartition(".")[2] in given for other in ran):
                found.add(name)
    return found


def _ran(name: str, callers: dict[str, set[str]]) -> bool:
    return any(called == name or called.startswith(f"{name}.") for called in callers)


def _callers(name: str, callers: dict[str, set[str]]) -> set[str]:
    """Return the modules outside of a module that call it or a part of it."""
    return {
        caller
        for called, found in callers.items()
        if called == name or called.startswith(f"{name}.")
        for caller in found
        if caller != name and not caller.startswith(f"{name}.")
    }
