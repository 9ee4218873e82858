"""State survives: checkpoints restore the model, copies are complete and independent, ties hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from .. import sources
from ..codes import state as explain
from ..explanation import counted, listed
from ..findings import Culprit, Finding
from ..loop.loads import idle_load
from ..objects import trees
from ..runs import copying, saving
from ..runs.facts import forward_facts
from ..runs.outputs import Outputs, expectations, gap, outputs_of, reference, unlike
from ..runs.remembering import outlived
from ..runs.saving import CheckpointError, perturb
from ..runs.training.observation import observe
from ..subject.errors import SubjectError
from ..subject.gradients import Gradients
from ..text.printable import message_of
from ..verdicts import inconclusive, not_applicable, passed, suspicious, violated
from . import copies, ties
from .initialisation import rebuilt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..subject import Subject


def state_dict_roundtrip(subject: Subject) -> Iterator[Finding]:
    """Save, load into an instance with other values, compare outputs in eval mode, bit by bit on the CPU.

    What the factory itself loads with ``strict=False`` must match a key.
    """
    subject.require_values()
    expected = reference(subject)
    if not expected:
        yield inconclusive("the model returns no tensor to compare")
        return
    trains = any(p.requires_grad for p in subject.model.parameters())
    try:
        state = subject.model.state_dict()
    except Exception as error:  # the user's own hook or override
        yield _unsaved(CheckpointError("make", error))
        return
    if not trains and not state:
        yield not_applicable("the model has no state")
        return
    other = rebuilt(subject)
    if other is not None:
        yield from _into_other(subject, other, expected)
    else:
        yield from _in_place(subject, expected)
    yield from _growing(subject)
    yield from _unsaved_by_training(subject)
    if (load := idle_load(subject.cache.get("loads", []))) is not None:
        yield explain.loads_nothing(load)
    kept = [n for n in forward_facts(subject).keeps if not subject.is_promised("MayChange", n)]
    if kept and forward_facts(subject).repeats and outlived(subject):
        yield explain.stale_after_load(subject)


def _unsaved_by_training(subject: Subject) -> Iterator[Finding]:
    """Report state outside of the state dict that a training forward changes and the evaluation reads."""
    try:
        changed = observe(subject).changed
    except SubjectError:
        return  # the loss or the backward raised, which other checks explain
    if changed and (finding := explain.lost_by_training(subject, list(changed))) is not None:
        yield finding


def _into_other(subject: Subject, other: nn.Module, expected: Outputs) -> Iterator[Finding]:
    """Load into an instance that the factory built with another seed."""
    wanted = expectations(subject)
    with subject.pristine() as model:
        ours = {
            trees.address(t) for t in saving.registered(model)
        }  # a table of constants may be one
        perturb(t for t in saving.saved_tensors(other) if trees.address(t) not in ours - {None})
        stopped = _load(model, other)
        yield from stopped
        if any(finding.status != "suspicious" for finding in stopped):
            return
        difference = unlike(subject, other, wanted)
        if difference is None:
            yield _held(subject, other, expected, "an instance built with another seed")
            return
        pairs = saving.lost_state(model, other)
        given = saving.copy_over(pairs)
        confirmed = bool(given) and gap(outputs_of(subject, other), expected) is None
        lost = given if confirmed else [lost for lost, *_ in pairs]
    yield _lost(subject, expected, lost, difference, confirmed=confirmed)


def _in_place(subject: Subject, expected: Outputs) -> Iterator[Finding]:
    """Save, change every value that training can change, load, compare: for a module that cannot be built anew."""
    if drawn := list(explain.drawn_anew(subject, expected)):
        yield from drawn
        return
    wanted = expectations(subject)
    with subject.pristine(steps=True) as model:
        hidden = saving.trainable_holdings(model)
        values = {path: tensor.detach().clone() for path, tensor, _ in hidden}

        def change() -> None:
            saved = saving.saved_tensors(model)
            known = {id(tensor) for tensor in saved}
            trained = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
            perturb([*saved, *trained, *(tensor for _, tensor, _ in hidden)])

        stopped = _load(model, model, change)
        yield from stopped
        if any(finding.status != "suspicious" for finding in stopped):
            return
        difference = unlike(subject, model, wanted)
        if difference is None:
            yield _held(
                subject, model, expected, "the instance itself, with every value changed in between"
            )
            return
        with torch.no_grad():
            for path, tensor, _ in hidden:
                tensor.data.copy_(values[path])
        confirmed = bool(hidden) and gap(outputs_of(subject, model), expected) is None
        lost = [saving.Lost.of(path, holding) for path, _, holding in hidden]
        loaded = {
            n: t.detach().clone() for n, t in (*model.named_parameters(), *model.named_buffers())
        }
    lost += [each for each, *_ in saving.unrestored(subject.model, loaded)]
    yield _lost(subject, expected, lost, difference, confirmed=confirmed)


def _lost(
    subject: Subject,
    expected: Outputs,
    lost: list[saving.Lost],
    difference: tuple[str, float],
    *,
    confirmed: bool,
) -> Finding:
    """Explain a difference after loading, unless two runs of one instance differ too."""
    if (noise := gap(_again(subject), expected)) is not None:
        return _not_deterministic(noise)
    return explain.explain_lost(subject, lost, difference, confirmed=confirmed)


def _load(
    model: nn.Module, other: nn.Module, between: Callable[[], None] = lambda: None
) -> list[Finding]:
    """Save one instance and load into the other; return what stands in the way."""
    try:
        saved, refused = saving.through_file(model.state_dict(), alias=other is not model)
    except CheckpointError as error:
        return [_unsaved(error)]
    between()
    try:
        other.load_state_dict(saved, strict=True)
    except Exception as error:  # load_state_dict and its hooks are the user's to override
        return [_not_loaded(model, error)]
    return [_refused(model, refused)] if refused else []


def _again(subject: Subject) -> Outputs:
    with subject.pristine() as model:
        return outputs_of(subject, model)


def _held(subject: Subject, other: nn.Module, expected: Outputs, where: str) -> Finding:
    """Report a pass, unless the outputs could not have shown a loss."""
    if not _depends(subject) and _is_blind(subject, other, expected):
        return inconclusive(
            "the outputs do not depend on the state, so a lost value cannot be observed"
        )
    return passed(f"saved, and loaded strictly into {where}: {len(expected)} outputs are equal")


def _depends(subject: Subject) -> bool:
    """Say whether another check has already seen a gradient, so that the outputs do depend on the state."""
    return any(
        isinstance(seen, Gradients) and any(stat.kind == "live" for stat in seen.stats.values())
        for seen in subject.cache.values()
    )


def _is_blind(subject: Subject, other: nn.Module, expected: Outputs) -> bool:
    perturb(saving.saved_tensors(other))
    try:
        return gap(outputs_of(subject, other), expected) is None
    except SubjectError:
        return False  # with other values the model raises: they do decide the output


def _growing(subject: Subject) -> Iterator[Finding]:
    """Report keys that a forward adds or reshapes: a checkpoint taken then does not fit a new instance."""
    grown = saving.grown_keys(subject)
    if not grown:
        return
    place = sources.of_parameter(subject.model, grown[0])
    refused = saving.refused_after_forward(subject)
    # a module that takes such a state from a checkpoint in its own way loses nothing
    made = violated if refused else suspicious
    yield made(
        "state-grows",
        f"the forward adds {listed(grown)} to state_dict(), or changes their shape",
        culprits=[
            Culprit("buffer", key, location=sources.of_parameter(subject.model, key))
            for key in grown
        ],
        location=place or sources.of_object(type(subject.model).forward),
        observed=f"{counted(len(grown), 'key is', 'keys are')} new or of another shape after one forward"
        + (f"; load_state_dict: {refused[:160]}" if refused else ""),
        cause="a buffer is registered, filled or resized in forward, and is persistent",
        because="a strict load into a newly built model raises after a forward, but not before it"
        if refused
        else "state_dict() differs between the newly built model and the model after one forward",
        fix="register it in __init__, or with persistent=False",
    )


def _not_deterministic(noise: tuple[str, float]) -> Finding:
    return inconclusive(
        f"two equal runs in eval mode differ in {noise[0]} by {noise[1]:.3g}, so outputs "
        "cannot be compared",
        code="not-deterministic",
    )


def _unsaved(error: CheckpointError) -> Finding:
    raised = error.error
    done, cause, by, fix = {
        "make": (
            "called",
            "its override or a hook of it raises",
            "the model",
            "let it return the state",
        ),
        "save": ("saved", _EXTRA, "torch.save", _PLAIN),
        "load": ("loaded", _EXTRA, "torch.load", _PLAIN),
    }[error.phase]
    return violated(
        "state-unpicklable",
        f"state_dict() cannot be {done}: {type(raised).__name__}",
        location=sources.of_error(raised),
        observed=message_of(raised).partition("\n")[0] or type(raised).__name__,
        cause=cause,
        because=f"{by} raised {type(raised).__name__}",
        fix=fix,
    )


_EXTRA = "the extra state of a module holds an object that cannot be pickled"
_PLAIN = "return tensors and plain values from get_extra_state"


def _refused(model: nn.Module, message: str) -> Finding:
    own = [m for m in model.modules() if type(m).get_extra_state is not nn.Module.get_extra_state]
    return suspicious(
        "state-unsafe",
        "the checkpoint needs weights_only=False to be loaded",
        observed=f"the extra state of the model holds {message}"
        if message.startswith("an object")
        else message,
        location=sources.of_object(type(own[0]).get_extra_state) if own else None,
        cause="state_dict() holds objects that are neither tensors nor plain values",
        because="torch.load(weights_only=True), the default, refused it",
        fix=_PLAIN,
    )


def _own_state_methods(model: nn.Module, keys: list[str]) -> list[str]:
    """Return a class that saves or loads in a way of its own, of the model or a key's owner, and the methods."""
    paths = {"", *(key.rpartition(".")[0] for key in keys)}
    for path, module in model.named_modules():
        if path not in paths:
            continue
        own = [
            name
            for name in ("state_dict", "load_state_dict", "_save_to_state_dict")
            if not getattr(type(module), name).__module__.startswith("torch.")
        ]
        if own:
            return [type(module).__name__, *own]
    return []


def _inference_tensors(model: nn.Module) -> list[str]:
    named = (*model.named_parameters(), *model.named_buffers())
    return [name for name, tensor in named if tensor.is_inference()]


def _not_loaded(model: nn.Module, error: Exception) -> Finding:
    keys = [part.strip().strip('".') for part in str(error).split('"')[1::2]]
    own = _own_state_methods(model, keys[1:] or keys)
    message = " ".join(str(error).split())
    if own:
        return inconclusive(
            f"{own[0]} overrides {listed(own[1:])}, and a strict load of the model's own "
            f"state raises: {message[:200]}",
            code="state-overridden",
        )
    if made := _inference_tensors(model):
        return violated(
            "state-strict",
            f"{type(model).__name__} cannot load any state_dict: {listed(made)} cannot be written to",
            culprits=[Culprit("tensor", name, "is an inference tensor") for name in made[:4]],
            location=sources.of_parameter(model, made[0]) or sources.of_own_class(model),
            observed=f"load_state_dict(strict=True) raised {type(error).__name__}",
            cause="it was created under torch.inference_mode: nothing outside of that mode may write to it",
            because=f"{made[0]}.is_inference() is True",
            fix="build the model outside of torch.inference_mode(); torch.no_grad() makes ordinary tensors",
        )
    unlike = any(said in message for said in ("size mismatch", "Missing key", "Unexpected key"))
    return violated(
        "state-strict",
        f"{type(model).__name__} cannot load its own state_dict strictly",
        culprits=[
            Culprit("buffer", key, location=sources.of_parameter(model, key))
            for key in keys[1:5] or keys[:1]
        ],
        location=sources.of_error(error),
        observed=message[:300],
        cause="two instances of the model have different keys or shapes"
        if unlike
        else "loading raises for the reason in its message",
        because=f"load_state_dict(strict=True) raised {type(error).__name__}",
        fix="register every parameter and buffer in __init__, with the same name and shape each time"
        if unlike
        else "let a load into a model as built succeed",
    )


def copy_and_pickle(subject: Subject) -> Iterator[Finding]:
    """Copy the model, change the original, run the copy; pickle it, run what comes back; look for it after its use.

    Where a forward in training keeps a tensor with its graph, the model is copied after a training
    step too, and where a module says itself what a copy gets, after some.
    """
    subject.require_values()
    expected = reference(subject)
    if not expected:
        yield inconclusive("the model returns no tensor to compare")
        return
    changed = copying.copied_soundly(subject)
    if changed is not None:
        yield passed(copying.PICKLED)
        yield passed(copying.COPIED.format(changed))
        yield from _after_use(subject)
        yield from copies.check_trained(subject)
        return
    found = list(copies.check_pickle(subject, expected))
    if found[0].status != "violated":  # copying goes the way of pickling
        found += copies.check_copy(subject, expected)
    if any(f.status in ("violated", "inconclusive") for f in found) and (
        noise := gap(_again(subject), expected)
    ):
        yield _not_deterministic(noise)
        return
    yield from found
    if all(finding.status != "violated" for finding in found):
        yield from copies.check_trained(subject)


def _after_use(subject: Subject) -> Iterator[Finding]:
    """Report a copy that outlives its use, and what a training step leaves so that the model cannot be copied."""
    alive = subject.cache.pop("copy-held", None)
    twin = alive() if alive is not None else None
    if twin is not None and (finding := explain.held_by_cache(twin)) is not None:
        yield finding
    if "observation" not in subject.cache and not forward_facts(subject).keeps:
        return  # no other check needs the step, and a forward keeps nothing
    try:
        kept = [piece.name for piece in observe(subject).changed if piece.graph]
    except SubjectError:
        return  # the loss or the backward raised, which other checks explain
    if kept and (finding := explain.copied_after_training(subject, kept)) is not None:
        yield finding


def tied_weights(subject: Subject) -> Iterator[Finding]:
    """Group names by storage before and after each operation that can untie them."""
    yield from ties.check_ties(subject)
