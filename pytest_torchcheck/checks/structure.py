"""Everything that the forward uses is registered, once, and used."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import sources
from ..codes import state as explain
from ..explanation import listed
from ..findings import Culprit, Finding
from ..probes.holding.held_by_models import CONTAINERS, Holding, given_to_init, holdings
from ..probes.numbers.signals import SignalWatch
from ..record.hooks import hooked
from ..runs.hidden import hidden
from ..runs.liveness.backward_methods import uncalled_backwards
from ..runs.liveness.idle_choices import idle_choice
from ..runs.liveness.idle_rows import without_effect
from ..runs.liveness.replaced import replaced
from ..runs.liveness.sliced import unread_part
from ..runs.liveness.unread import only_last, unread_results
from ..runs.portability import portability
from ..runs.training.observation import observe
from ..runs.window_weights import uncounted_weights
from ..sources import edits
from ..state import seed_everything
from ..subject.errors import SubjectError
from ..verdicts import not_applicable, passed, suspicious, violated

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from ..batches import Batch
    from ..findings import Location
    from ..probes.numbers.signal_facts import Averaging
    from ..probes.numbers.views import Moved
    from ..probes.placement import Stray
    from ..subject import Subject

_FORGETTABLE = (
    nn.modules.dropout._DropoutNd, nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.LeakyReLU, nn.Softplus,
    nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AvgPoolNd,
)  # fmt: skip


def registration(subject: Subject) -> Iterator[Finding]:
    """Look for modules and parameters in plain containers, and for one instance that stands in a list many times."""
    subject.require_values()
    found = hidden(subject)
    by_attribute: dict[str, list[Holding]] = {}
    for holding in found.trained.values():
        by_attribute.setdefault(holding.attribute, []).append(holding)
    for attribute, group in by_attribute.items():
        yield explain.unregistered(attribute, group)
    for path, why in found.on_purpose.items():
        yield suspicious(
            "module-hidden-on-purpose",
            f"{path} gets gradients but is not registered; {why}",
            culprits=[
                Culprit("module", path, location=explain.attribute_line(subject.model, path))
            ],
            observed=f"{path} is in neither parameters() nor state_dict()",
            cause="it is held by a plain container",
            because=why,
            fix=f"register it, or call requires_grad_(False) on {path}",
        )
    for path, holding in found.stateful.items():
        yield suspicious(
            "module-mode-lost",
            f"{path} is not registered, so train() and eval() do not reach it",
            culprits=[Culprit("module", path, location=holding.location)],
            observed=f"{path} ran; it is not in modules()",
            cause=f"it is held through a {holding.via}, and contains dropout or batch normalisation",
            because="only registered modules get train() and eval()",
            fix=f"hold {holding.attribute} in an nn.ModuleList or an attribute of its own",
        )
    seen = observe(subject)
    foreign = any(one.in_output for one in seen.foreign)
    made = seen.late or seen.strangers or foreign
    others = list(explain.made_in_forward(subject)) if made else []
    judged = (explain.repeated(subject, *place) for place in _standing_twice(subject.model))
    others += filter(None, judged)
    yield from others
    if not (by_attribute or found.on_purpose or found.stateful or others):
        total = len(list(subject.model.modules()))
        yield passed(
            f"{total} modules are registered; attributes hold no other module that is trained"
        )


def _standing_twice(model: nn.Module) -> Iterator[tuple[str, nn.Module, list[str]]]:
    """Iterate over lists of layers in which one parametrised instance stands several times: name, list, its keys."""
    for name, container in model.named_modules():
        if not isinstance(container, CONTAINERS):
            continue
        groups: dict[tuple[int, ...], list[str]] = {}
        for key, module in container._modules.items():
            if module is not None and (ids := tuple(sorted({id(p) for p in module.parameters()}))):
                groups.setdefault(ids, []).append(key)
        for keys in groups.values():
            if len(keys) > 1:
                yield name, container, keys


def unregistered_tensors(subject: Subject) -> Iterator[Finding]:
    """Look for tensors in plain attributes that ``.to()`` leaves behind."""
    subject.require_values()
    held = [h for h in holdings(subject.model) if h.kind == "tensor"]
    if not held:
        yield passed("no attribute holds a tensor other than the parameters and buffers")
        return
    if subject.device.type != "cpu":
        there = f"the contract's checks run on {subject.device.type} itself, which tests this"
        yield not_applicable(there)
        return
    findings = [_used(subject, stray) for stray in _left_behind(subject, held)]
    yield from findings
    if not findings:
        names = [h.path for h in held]
        yield passed(
            f"{len(names)} tensors in plain attributes ({listed(names, 3)}) enter no operation",
            evidence={"tensors": list(names)},
        )


def _left_behind(subject: Subject, held: list[Holding]) -> Iterator[Stray]:
    """Iterate over the attributes that device-portability found on the CPU; its finding explains them."""
    paths = {h.path: h for h in held}
    if subject.contract.devices == ("cpu",):
        return
    for mixture in portability(subject).pretended.mixtures:
        stray = mixture.stray
        if stray is None or stray.name not in paths or stray.name in hidden(subject).trained:
            continue
        if explain.placed_by_hand(paths[stray.name]) is None:
            yield stray


def _used(subject: Subject, stray: Stray) -> Finding:
    word = stray.name.rpartition(".")[2]
    return (suspicious if given_to_init(subject.model, stray.name) else violated)(
        "tensor-unregistered",
        f"{stray.name} takes part in the forward but is neither parameter nor buffer",
        culprits=[Culprit("tensor", stray.name, location=stray.location)],
        observed=f"{stray.dtype} {list(stray.shape)}, used beside the model's own tensors",
        cause="it is held by a plain attribute, list, dict, closure or class",
        because="named_parameters() and named_buffers() do not contain it, and .to() leaves it behind",
        fix=f'write self.register_buffer("{word}", ...)',
        root="device-portability/cpu-tensor",
    )


def dead_modules(subject: Subject) -> Iterator[Finding]:
    """Find modules that never run, results that nothing reads, and outputs of layers that are used only in part.

    Where a line runs once for each position of an input and only its last result is read, the other positions
    must still influence the output. What a loop begins at zero it must add to, not replace. Where a line slices
    a tensor into parts that are as long as it together, none of it may be left out.
    A backward that a module defines is never called.
    """
    subject.require_values()
    lost = unread_results(subject)
    for one in lost[:3]:
        yield explain.unread_result(subject, one)
    if (idle_work := _idle_work(subject, lost=bool(lost))) is not None:
        yield idle_work
        return
    silent = [rows for rows in observe(subject).silent if without_effect(subject, rows)]
    if silent and not lost:
        yield explain.unread_rows(subject, silent[0])
    seen = observe(subject).signals
    idle = [
        (name, module)
        for name, module in subject.model.named_modules()
        if name and not any(True for _ in module.children()) and not seen.calls[name]
    ]
    if not seen.calls and not lost:
        yield not_applicable("no submodule's forward is called; the model is a single function")
        return
    found = []
    for name, module in idle:
        if not isinstance(module, _FORGETTABLE) or _is_choice(subject.model, name, seen.calls):
            continue
        if any(p.requires_grad for p in module.parameters()):
            continue  # its gradients are missing: gradients-exist says so
        place = sources.of_parameter(subject.model, name)
        if place is not None and sources.rank(place.file) == 2 and _acts(module):
            found.append((name, module, place))
    if found:
        awake = _called_later(subject)
        found = [item for item in found if item[0] not in awake]
    if not found and (lost or silent):
        return
    if not found:
        yield passed(f"{len(seen.calls)} modules ran; no layer is unused")
        return
    name, module, place = found[0]
    yield suspicious(
        "module-idle",
        f"{name} ({type(module).__name__}) is built but never called"
        + (f", and {len(found) - 1} more" if len(found) > 1 else ""),
        culprits=[Culprit("module", n, f"{type(m).__name__}, 0 calls", p) for n, m, p in found[:6]],
        observed=f"0 calls in one training forward, while {len(seen.calls)} modules ran",
        cause="the forward does not use it",
        because=f"a hook on {name} counted no call",
        fix=f"call {edits.submodule(subject.model, name)} in the forward, or delete line {place.line}",
    )


def _idle_work(subject: Subject, *, lost: bool) -> Finding | None:
    """Return what is computed or written for nothing, where no single result is lost: turns, choices, a backward."""
    if not lost and (sums := replaced(subject)) is not None:
        return explain.replaced_sum(subject, sums)
    if not lost and (ends := only_last(subject)) is not None:
        return explain.only_last(subject, ends)
    if (part := unread_part(subject)) is not None:
        return explain.unread_part(subject, part)
    for turns in observe(subject).signals.overwriting[:1]:
        return explain.overwriting(subject, turns)
    for choice in observe(subject).signals.idle_choices[:3]:
        if (idle := idle_choice(subject, choice)) is not None:
            return explain.idle_choice(subject, idle)
    if uncalled := uncalled_backwards(subject):
        return explain.uncalled_backward(subject, uncalled)
    return None


def _is_choice(model: nn.Module, name: str, calls: Counter[str]) -> bool:
    """Say whether a module stands in a list of which other entries ran: experts, optional blocks."""
    parts = name.split(".")
    for depth in range(1, len(parts)):
        parent = model.get_submodule(".".join(parts[:depth]))
        if isinstance(parent, nn.ModuleList | nn.ModuleDict):
            prefix = ".".join(parts[:depth]) + "."
            if any(called.startswith(prefix) for called in calls):
                return True
    return False


def _called_later(subject: Subject) -> set[str]:
    """Return the modules that run in either mode on two further batches, or in the user's own step."""
    called: set[str] = set()
    for index, train in ((1, True), (2, False)):
        with subject.pristine() as model, torch.no_grad(), _noting_calls(model, called):
            model.train(train)
            seed_everything(subject.seed + index)
            subject.call(model, subject.batch(index).clone())
    if subject.contract.train_step is not None:
        with (
            subject.pristine(steps=True, train=True, seeded=True) as model,
            contextlib.suppress(SubjectError),
        ):
            made = subject.make_optimizer(model)
            with _noting_calls(model, called):
                subject.train_step(model, made, subject.batch().clone())
    return called


@contextlib.contextmanager
def _noting_calls(model: nn.Module, called: set[str]) -> Iterator[None]:
    handles = [
        module.register_forward_pre_hook(lambda _module, _args, name=name: called.add(name))
        for name, module in model.named_modules()
        if not isinstance(module, torch.jit.ScriptModule)
    ]
    with hooked(handles):
        yield


def _acts(module: nn.Module) -> bool:
    """Say whether leaving the module out changes what the model computes: a dropout with p=0 does not count."""
    return not (isinstance(module, nn.modules.dropout._DropoutNd) and module.p == 0)


def weighted_means(subject: Subject) -> Iterator[Finding]:
    """Compare the dimension of each softmax with the one over which the product that takes its weights sums.

    Weights that are made to sum to one for each node of a graph, at one end of the edges, and are summed at the
    other, are suspicious: a node may average its neighbours, or spread what it has. Equal predictions of
    windows that are weighted, summed and divided by what was counted must come out as they are.
    """
    subject.require_values()
    signals = observe(subject).signals
    seen = signals.averaging
    if (windows := uncounted_weights(subject)) is not None:
        yield explain.uncounted(windows)
        return
    if signals.regrouped:
        yield explain.regrouped(signals.regrouped)
        return
    if not seen:
        yield not_applicable("no product takes the weights of a softmax as they are")
        return
    wrong = [one for one in seen if one.summed != one.normalised and _square(one)]
    if wrong:
        yield explain.softmax_axis(wrong)
        return
    yield passed(f"{len(seen)} products sum over the dimension over which their weights sum to one")


def _square(product: Averaging) -> bool:
    """Say whether both dimensions of the weights are of one size, so that shapes do not tell them apart."""
    return product.shape[product.summed] == product.shape[product.normalised]


def axis_order(subject: Subject) -> Iterator[Finding]:
    """Compare the dimensions of each view with those of what it is a view of, by size and by place.

    Where two of them could also be one that is halved and one that is doubled, a forward at other
    sizes tells, those of larger images among them, if the model takes them.
    """
    subject.require_values()
    seen = observe(subject).signals
    if not seen.views:
        yield not_applicable("the forward takes no view of two dimensions or more")
        return
    wrong = [one for one in seen.moved if one.certain]
    if wrong and (other := _resized(subject)) is not None:
        elsewhere, stop = _views_of(subject, other)
        wrong = [one for one in wrong if not _by_chance(one, elsewhere, stop)]
    elif not wrong and seen.moved:
        known = {(one.location, one.was, one.now) for one in seen.moved}
        wrong = [
            one
            for one in _at_other_sizes(subject)
            if one.certain and (one.location, one.was, one.now) in known
        ]
    if wrong:
        yield explain.axes_swapped(wrong)
        return
    yield passed(f"{seen.views} views keep each dimension whose size they keep")


def _at_other_sizes(subject: Subject) -> list[Moved]:
    """Return what the views of forwards do with every free size changed by one, and with larger images."""
    found: list[Moved] = []
    for other in (_resized(subject), _enlarged(subject, 5, 4), _enlarged(subject, 3, 2)):
        if other is not None and not found:
            found = [one for one in _views_of(subject, other)[0] if one.certain]
    return found


def _views_of(subject: Subject, batch: Batch) -> tuple[list[Moved], Location | bool]:
    """Return what the views of a forward do; and whether it ran, or the line where it stopped."""
    stop: Location | bool = True
    with (
        subject.pristine(train=True, seeded=True) as model,
        torch.no_grad(),
        SignalWatch(model, None) as watch,
    ):
        try:
            subject.call(model, batch.clone())
        except SubjectError as error:
            stop = sources.of_error(error.error) or False
    return watch.seen.moved, stop


def _by_chance(one: Moved, elsewhere: list[Moved], stop: Location | bool) -> bool:
    """Say whether two dimensions are alike at the drawn sizes alone: at others their view fits no more."""
    if any((m.location, m.was, m.now) == (one.location, one.was, one.now) for m in elsewhere):
        return False
    return stop is True or (
        one.location is not None
        and not isinstance(stop, bool)
        and (stop.file, stop.line) == (one.location.file, one.location.line)
    )


def _resized(subject: Subject) -> Batch | None:
    """Return a batch in which every free size is another one; None where there is none."""
    batch = subject.batch()
    sizes = {name: size - 1 if size > 2 else size + 1 for name, size in batch.sizes.items()}
    other = subject.at(**sizes)
    symbol = subject.source.batch_symbol
    if other is None and symbol is not None and batch.sizes.get(symbol, 0) > 2:
        other = subject.source.rows(batch, torch.arange(batch.sizes[symbol] - 1))
    return other


def _enlarged(subject: Subject, by: int, of: int) -> Batch | None:
    """Return the batch with images larger by a fraction, their pixels repeated; None where none divides so."""
    grown: list[str] = []

    def enlarge(path: str, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point() or leaf.dim() < 4:
            return leaf
        for dim in (-2, -1):
            if (size := leaf.shape[dim]) % of == 0:
                more = torch.arange(size * by // of, device=leaf.device) % size
                leaf = leaf.detach().index_select(dim, more)
                grown.append(path)
        return leaf

    batch = subject.batch().map(enlarge, targets=False)
    return batch if grown else None
