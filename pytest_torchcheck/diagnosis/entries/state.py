"""Optimizers and schedulers, lazy parameters, copies."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...explanation import Explanation, describe, listed, on_line
from ...findings import Culprit
from ..crashes.table import entry
from ..lines.layer_sizes import building_line
from ..stored.graph_holders import holders
from ..training.parameter_groups import groups_overlap, spent_iterator

if TYPE_CHECKING:
    from ..crashes.scene import Scene


@entry(
    r"(?<!\w)(\w+) does not support sparse gradients",
    r"add\(sparse, dense\) is not supported()",
    r"(SparseAdam) does not support dense gradients",
)
def sparse_gradients(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """An optimizer and gradients of different layouts."""
    optimizer = match[1] or "the optimizer"
    place = scene.location
    dense = optimizer == "SparseAdam"
    found = [
        name
        for name, module in (scene.model.named_modules() if scene.model is not None else ())
        if getattr(module, "sparse", False)
    ]
    made = building_line(scene.model, found[0]) if found else None
    names = listed(found) or "an embedding"
    if dense:
        cause = "SparseAdam takes the parameters of sparse embeddings only"
        fix = f"give only those to SparseAdam, and the others to Adam{scene.on_line}"
    elif not match[1]:
        cause = "weight decay or momentum mixes a sparse gradient with a dense tensor"
        fix = f"set weight_decay=0{scene.on_line}, or sparse=False{on_line(made)}"
    else:
        cause = f"{names} is built with sparse=True, and {optimizer} needs dense gradients"
        fix = f"drop sparse=True{on_line(made)}, or use SparseAdam or SGD for {names}"
    return scene.explain(
        code="sparse-gradient",
        summary=(
            f"{optimizer} cannot step on the {'dense' if dense else 'sparse'} gradient of "
            f"{names}.weight"
        ),
        observed=f"built with sparse=True: {names}" if found else scene.first_line,
        cause=cause,
        fix=fix,
        culprits=(
            *(
                Culprit("module", name, "sparse=True", building_line(scene.model, name))
                for name in found[:3]
            ),
            Culprit("optimizer", optimizer, location=place),
        ),
        location=made,
    )


@entry(
    r"optimizer got an empty parameter list",
    r"can't optimize a non-leaf Tensor",
    r"some parameters appear in more than one parameter group()",
    r"optimizer contains a parameter group with duplicate parameters",
)
def optimizer_parameters(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """Parameters that an optimizer cannot take."""
    place = scene.location
    said = match[0]
    observed = scene.values()
    made: tuple[Culprit, ...] = ()
    if "empty" in said:
        registered = len(list(scene.model.parameters())) if scene.model is not None else 0
        cause = (
            "the model has no registered parameter (layers in a plain list?)"
            if registered == 0 and scene.model is not None
            else "the list or generator of parameters is empty, or was already exhausted"
        )
        summary = "the optimizer received no parameters"
        fix = f"pass model.parameters() again{on_line(place)}"
        observed = (
            f"the model has {registered} registered parameters, and the optimizer received none"
        )
        spent = spent_iterator(scene)
        if spent is not None:
            cause, fix, made = spent.cause, spent.fix, spent.culprits
            place = spent.made
        if registered == 0 and scene.model is not None:
            fix = "keep layers in nn.ModuleList or as attributes"
    elif "non-leaf" in said:
        summary = "the optimizer received a computed tensor, not a parameter"
        cause = "the result of an operation (.to(), .cuda(), a product) is not a leaf tensor"
        fix = f"create the nn.Parameter from the result, after moving it{on_line(place)}"
    elif (overlap := groups_overlap(scene)) is not None:
        return overlap
    else:
        summary = "a parameter is in the optimizer twice"
        cause = "two groups share a parameter, as with tied weights"
        fix = f"remove it from one of the groups{on_line(place)}"
    return scene.explain(
        code="optimizer-parameters",
        summary=summary,
        observed=observed,
        cause=cause,
        fix=fix,
        culprits=(*made, Culprit("optimizer", "optimizer", location=scene.location)),
        location=place,
    )


@entry(r"step\(\) missing 1 required positional argument: 'closure'")
def closure(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """An optimizer whose step needs a closure."""
    place = scene.location
    name = scene.first_line.split(".step", 1)[0]
    return scene.explain(
        code="closure-missing",
        summary=f"{name}.step needs a closure that computes the loss",
        observed=f"{name}.step() was called with no argument",
        cause=f"{name} evaluates the loss several times per step",
        fix=(
            "pass a closure that clears the gradients, runs forward, loss and backward, and "
            "returns the loss"
        ),
        culprits=(Culprit("optimizer", name, location=place),),
    )


@entry(r"Attempted to use an uninitialized parameter in (.*?)\. This error", r"Can't access the shape of an uninitialized parameter()",
       r"(?:Modules|The module).* with uninitialized parameters can't be used with `?(\w*)")  # fmt: skip
def lazy(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A lazy parameter that is used before the first forward."""
    place = scene.location
    names = [
        name
        for name, parameter in (scene.model.named_parameters() if scene.model is not None else ())
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter)
    ]
    made = sources.of_parameter(scene.model, names[0]) if names else None
    use = re.search(r"method '(\w+)'", match[1] or "")
    return scene.explain(
        code="lazy-parameter",
        summary=(
            f"{listed(names, 3) or 'a lazy parameter'} is used before the first forward gives "
            "it a shape"
        ),
        observed=f"uninitialised: {listed(names) or 'a parameter'}"
        + (f"; used by {use[1]}" if use else ""),
        cause=(
            "a lazy module initialises its parameters in the first forward; until then they "
            "have no shape and no values"
        ),
        because=scene.quote(),
        fix=(
            f"call the model once with a batch before the call{scene.on_line}, or pass the size "
            f"and use the non-lazy module{on_line(made)}"
        ),
        culprits=tuple(
            Culprit("parameter", name, location=sources.of_parameter(scene.model, name))
            for name in names[:3]
        )
        or scene.blame(),
        location=place or made,
    )


@entry(r"(?<!\w)(\w+) cannot be hashed: parameters\(\), to\(\) and train\(\) raise")
def unhashable(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A module whose class defines ``__eq__`` and no ``__hash__``: no set can hold it."""
    kind = getattr(scene.error, "kind", None)
    if kind is None:
        return None
    place = sources.search(kind, r"def __eq__|\b__hash__\b") or sources.of_object(kind)
    return scene.explain(
        code="module-unhashable",
        summary=f"{match[0]}",
        culprits=(Culprit("module", kind.__name__, "cannot be in a set", place),),
        location=place,
        observed=f"hash() of a {kind.__name__} raises TypeError; the model itself is built",
        cause="a class that defines __eq__ loses the __hash__ of its base class",
        because="torch collects modules in a set wherever it walks through them",
        fix=f"add __hash__ = nn.Module.__hash__ to {kind.__name__}",
    )


@entry(
    r"Only Tensors created explicitly by the user \(graph leaves\) support the deepcopy protocol"
)
def deepcopy(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A copy of something that holds a tensor with a graph."""
    place = scene.location
    found = holders(scene.model, [])
    if found:
        first = found[0]
        cause = (
            f"{first.root} is a computed tensor with its graph (grad_fn={first.grad_fn}), kept "
            f"on the module{on_line(first.location)}"
        )
        fix = (
            f"keep {first.root.rpartition('.')[2]} detached{on_line(first.location)}, or compute "
            "it where it is used"
        )
        culprits = tuple(
            Culprit("tensor", h.root, f"grad_fn={h.grad_fn}", h.location) for h in found[:3]
        )
        where = first.location or place
    else:
        cause = (
            "the module holds a computed tensor: kept by forward, or the weight of an "
            "old-style weight_norm"
        )
        fix = "keep it detached, or use torch.nn.utils.parametrizations.weight_norm"
        culprits, where = scene.blame(), place
    return scene.explain(
        code="deepcopy-nonleaf",
        summary=(
            f"{found[0].root if found else scene.at} cannot be copied: it holds a tensor with "
            "a graph"
        ),
        observed=listed([f"{h.root} grad_fn={h.grad_fn}" for h in found]) or _computed(scene),
        cause=cause,
        because=scene.quote(),
        fix=fix,
        culprits=culprits,
        location=where,
    )


def _computed(scene: Scene) -> str:
    """Describe the tensor that refused to be copied."""
    for frame, _ in reversed(scene.frames):
        value = frame.f_locals.get("self")
        if isinstance(value, torch.Tensor):
            return f"{describe(value)} with grad_fn={type(value.grad_fn).__name__}"
    return scene.values()


@entry(r"you can only change requires_grad flags of leaf variables")
def flag(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """requires_grad set on a computed tensor."""
    return scene.explain(
        code="requires-grad-nonleaf",
        summary=f"{scene.at} sets requires_grad on a computed tensor",
        observed=scene.values(),
        cause="only leaves (parameters and inputs) have a flag of their own",
        because=scene.quote(),
        fix=f"detach the tensor instead{scene.on_line}, or freeze the parameters that it comes from",
    )


_FILE = os.path.join("torch", "optim", "lr_scheduler.py")


@entry(
    r"zip\(\) argument \d+ is (?:shorter|longer) than",
    r"The number of param groups in the `optimizer`",
    r"^'(?:initial_lr|max_lr|min_lr)'$",
    r"list index out of range",
)
def groups_added(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A scheduler that was made before a parameter group was added to its optimizer."""
    scheduler = _scheduler(scene)
    groups = len(getattr(getattr(scheduler, "optimizer", None), "param_groups", ()))
    known = _known(scheduler)
    if scheduler is None or not known or groups <= known:
        return None
    name = type(scheduler).__name__
    added = scene.calls("add_param_group")
    made = scene.calls(name)
    place = added[0] if len(added) == 1 else None
    line = f" (line {place.line})" if place is not None else ""
    return scene.explain(
        code="scheduler-groups",
        summary=(f"{name}.step fails: its optimizer has {groups} parameter groups, and it was "
            f"created for {known}"),
        observed=f"{groups} param_groups, {known} base rates of the scheduler",
        cause=(f"add_param_group{line} ran after the scheduler was created, which has one base "
            "rate for each group at that time"),
        because=f"its step raised {type(scene.error).__name__}: {scene.first_line}",
        fix="give the optimizer every group before the scheduler is created (frozen ones have "
            f"no gradient), or create the scheduler again after add_param_group{line}",
        culprits=(
            *(Culprit("call", "add_param_group", "adds a group", p) for p in added[:3]),
            *(Culprit("scheduler", name, f"created for {known}", p) for p in made[:1]),
            *((Culprit("call", f"{name}.step", "fails", scene.location),) if scene.location else ()),
        ),
        location=place,
    )  # fmt: skip


def _scheduler(scene: Scene) -> Any:
    """Return the scheduler whose own code raised."""
    for frame, _ in reversed(scene.frames):
        if frame.f_code.co_filename.endswith(_FILE) and "self" in frame.f_locals:
            return frame.f_locals["self"]
    return None


def _known(scheduler: Any) -> int:
    """Return for how many groups a scheduler was made."""
    given = getattr(scheduler, "base_lrs", None)
    return len(given if isinstance(given, list) else getattr(scheduler, "min_lrs", ()))
