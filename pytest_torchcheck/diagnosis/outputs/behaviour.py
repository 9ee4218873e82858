"""Mixed samples, randomness, impurity and wrong sizes, explained."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...explanation import counted, on_line
from ...findings import Culprit, Finding
from ...objects import trees
from ...objects.modes import takes_mode
from ...probes.randomness import generators
from ...runs.outputs import undetermined
from ...state import seed_everything
from ...text.wording import have, names_text
from ...verdicts import suspicious, violated
from . import eval_lines, places
from .samples import forward_line
from .sizing import sizing_line

if TYPE_CHECKING:
    from ...batches import Batch
    from ...probes.shared_noise import SharedNoise
    from ...subject import Subject
    from ..crashes.place import Place


def impure(subject: Subject, changed: list[str], *, once: bool = False) -> Finding:
    """Explain buffers or parameters that an eval forward changes; ``once``: only the first forward does."""
    place = eval_lines.writing_line(subject, changed[0])
    observed = _by_observers(subject, changed)
    made = suspicious if once or observed else violated
    return made(
        "eval-writes",
        f"a forward in eval mode changes {names_text(changed)}",
        culprits=[
            Culprit("buffer", n, "changed in eval mode", place.location if place else None)
            for n in changed
        ]
        + [*(place.settings if place else ())],
        location=place.location if place else sources.of_parameter(subject.model, changed[0]),
        observed=f"{counted(len(changed), 'saved tensor')} {have(changed, 'differs')} after one forward in eval mode",
        cause=(
            "the first forward initialises them, in either mode"
            if once
            else "statistics or a cache are updated in either mode"
        )
        + (f" ({place.ran})" if place and place.ran else ""),
        because=(place.fact if place else "the values before and after are not bit-equal")
        + ("; a second forward, of another batch, changes none of them" if once else ""),
        fix="initialise them when the model is built, or declare promises.MayChange(..., reason=...)"
        if once
        else "apply torch.ao.quantization.disable_observer to the model before evaluation"
        if observed
        else "update only while self.training, or declare promises.MayChange(..., reason=...)",
        evidence={"buffers": list(changed)},
    )


def _by_observers(subject: Subject, names: list[str]) -> bool:
    """Say whether all of some buffers are of torch's observers, which observe until they are told not to."""
    owners = (subject.model.get_submodule(name.rpartition(".")[0]) for name in names)
    return all(type(owner).__module__.startswith("torch.ao.quantization.") for owner in owners)


def not_repeatable(subject: Subject, moved: list[str]) -> Finding:
    """Explain an eval forward whose second call gives another output."""
    place = places.first_difference(
        subject,
        eval_lines.eval_run(subject, subject.batch()),
        eval_lines.eval_run(subject, subject.batch()),
    )
    kept = eval_lines.keeping_lines(subject)[:3]
    kept += eval_lines.reading_lines(kept)
    resets = next(filter(None, (eval_lines.resetting(subject, one) for one in kept)), None)
    judge = violated if resets is None else suspicious
    elsewhere = not kept and undetermined(subject)
    return judge(
        "eval-not-repeatable",
        f"a second eval forward on the same input gives a different {names_text(moved)}",
        culprits=[*kept, *(place.culprits() if place else ())]
        or [Culprit("output", moved[0], "differs")],
        location=kept[0].location if kept else place.location if place else forward_line(subject),
        observed="same input, same seed, state not reset between the two calls",
        cause="something outside of the model decides the output: the time, the operating system, or state "
        "kept elsewhere"
        if elsewhere
        else "the model keeps state from one call to the next"
        + ("" if resets is None else f", which its callers may reset ({resets})"),
        because=(
            place.fact
            if place and place.fact
            else "the outputs of the first and the second call are not bit-equal"
        )
        + (", also with all that the model holds put back" if elsewhere else ""),
        fix="compute it from the inputs, the weights and torch's generator, which a seed repeats"
        if elsewhere
        else "reset the state at the start of forward, or pass it in and out explicitly",
    )


def train_overridden(subject: Subject, names: tuple[str, ...]) -> Finding:
    """Explain a class that uses the name ``train`` for something else, so that ``eval()`` does not work."""
    cls = type(subject.model.get_submodule(names[0]))
    name = "eval" if takes_mode(cls.train) else "train"
    method, train = getattr(cls, name), name == "train"
    place = sources.of_object(method)
    return suspicious(
        "train-overridden",
        f"{cls.__name__}.{name} {'does not take a mode' if train else 'needs arguments'}, "
        "so eval() and train() do not work",
        culprits=[Culprit("module", n or "the model itself", location=place) for n in names],
        observed=f"the signature is {name}{inspect.signature(method)}",
        cause="Module.eval() calls self.train(False), which this class uses for something else"
        if train
        else "this class uses eval for something else, and Module.eval() takes nothing",
        because="torch.nn.Module.train takes one argument, mode: bool = True; the checks set the "
        "mode themselves"
        if train
        else "torch.nn.Module.eval takes no argument; the checks set the mode themselves",
        fix="rename the method, for instance to fit"
        if train
        else "rename the method, for instance to evaluate",
    )


_NAMES_A_DRAW = re.compile(r"rand|\bnp\b|numpy|shuffle|choice|uniform|normal|gauss|sample")
"""Names in a line that draw random numbers themselves; a line without them may call a library that
does."""


def unseeded(subject: Subject, moved: list[str]) -> Finding:
    """Explain a training forward that torch's seed does not repeat."""
    place = eval_lines.drawing_line(subject, train=True, global_only=True)
    if place is not None:
        source = "np.random" if "numpy" in place.fact else "random"
        by_library = place.location is not None and (
            sources.rank(place.location.file) < 2 or not _NAMES_A_DRAW.search(place.location.text)
        )
        make = suspicious if by_library else violated
        return make(
            "numpy-random" if source == "np.random" else "python-random",
            f"the training forward draws from {source}, which torch.manual_seed does not seed",
            culprits=[
                Culprit("call", source, place.op, place.location),
                *([Culprit("module", place.module, "draws from it")] if place.module else []),
            ],
            observed=f"{names_text(moved)} {have(moved, 'differs')} between two forwards with the "
            "same torch seed",
            cause=f"{source} has its own global state",
            because=place.fact.replace("this line draws", "a function called on this line draws")
            if by_library
            else place.fact,
            fix=f"seed {source} too if runs must be repeatable, or pass a seed to the call"
            if by_library
            else "draw with torch (torch.randint, torch.rand) on this line",
        )
    if (shared := _global_generator(subject)) is not None:
        return _draws_elsewhere(subject, moved, shared)
    observed = (
        f"{names_text(moved)} {have(moved, 'differs')} between two forwards with the same seed"
    )
    anew = _seeded_anew(subject)
    if anew is not None:
        place, (cause, because, fix) = eval_lines.seeding_line(subject), anew
    else:
        place = places.first_difference(
            subject,
            eval_lines.eval_run(subject, subject.batch(), train=True),
            eval_lines.eval_run(subject, subject.batch(), train=True),
        )
        cause, fix = _unsettled("" if place is None else place.op)
        because = "same input, same seed, same weights: a different output"
        because = place.fact if place and place.fact else because
    return violated(
        "seed-ignored",
        "the training forward does not repeat with the same seed",
        culprits=place.culprits() if place else [Culprit("output", moved[0], "differs")],
        location=place.location if place else forward_line(subject),
        observed=observed,
        cause=cause,
        because=because,
        fix=fix,
    )


_DRAWS = re.compile(r"rand|normal|bernoulli|multinomial|uniform|dropout|exponential|poisson")


def _unsettled(op: str) -> tuple[str, str]:
    """Say why the first operation that differs between two equal forwards does so, and what to do, by what it is."""
    kind = op.rpartition(".")[2]
    if "empty" in kind:
        return f"{op} gives memory that nothing has written to", f"use torch.zeros in place of {op}"
    if _DRAWS.search(kind):
        return (
            f"{op} draws from a generator that torch.manual_seed does not seed",
            "seed every generator from torch.initial_seed()",
        )
    reader = op or "the forward"
    cause = f"{reader} reads a value that differs from one forward to the next, and is no state of the model: "
    cause += "what a forward keeps in a global, a class or a closure, or time or hash order"
    return (
        cause,
        "keep what one forward leaves for the next in a buffer of the model, and compute the rest from the inputs",
    )


def _draws_elsewhere(subject: Subject, moved: list[str], shared: str) -> Finding:
    """Explain draws from a global generator that is not torch's, in code outside of the user's files."""
    return suspicious(
        "numpy-random" if shared == "numpy" else "python-random",
        f"the training forward draws from {shared}'s global generator, which torch.manual_seed does not seed",
        culprits=[Culprit("call", f"{shared}.random" if shared == "numpy" else shared)],
        location=forward_line(subject),
        observed=f"{names_text(moved)} {have(moved, 'differs')} between two forwards with the "
        "same torch seed",
        cause=f"code outside your files draws from {shared}, which has its own global state",
        because=f"the state of {shared}'s global generator differs before and after one forward",
        fix=f"seed {shared} too if runs must be repeatable",
    )


def _seeded_anew(subject: Subject) -> tuple[str, str, str] | None:
    """Say why a training forward gives torch's generator a seed that no earlier seed decides; None if it does not.

    Returns:
        Cause, proof and fix.
    """
    left = []
    for _ in range(2):
        with subject.pristine(train=True, seeded=True) as model:
            subject.call(model, subject.batch().clone())
            left.append(torch.initial_seed())
    if left[0] == left[1]:
        return None
    return (
        "the forward seeds torch's generator itself, with another number each time",
        (
            f"torch.initial_seed() is {left[0]} after one forward and {left[1]} after the next; "
            f"both began with {subject.seed}"
        ),
        (
            "draw without a seed of its own; to draw the same again in a recomputation, keep "
            "torch.get_rng_state() and set it there"
        ),
    )


def _global_generator(subject: Subject) -> str | None:
    """Return which global generator a training forward draws from, beside torch's: ``numpy`` or ``random``."""
    with subject.pristine():
        run = eval_lines.eval_run(subject, subject.batch(), train=True)
        read = {name: state for name, state in generators().items() if name in ("numpy", "random")}
        seed_everything(subject.seed)
        run()  # it seeds first: what it leaves behind is compared with what seeding alone leaves
        after = {name: state() for name, state in read.items()}
        seed_everything(subject.seed)
        return next((name for name, state in read.items() if state() != after[name]), None)


def reseeded(subject: Subject) -> Finding | None:
    """Explain a forward that seeds torch itself, so that every step draws the same numbers; None if it does not."""
    found = eval_lines.seeding_line(subject)
    if found is None:
        return None
    make = (
        suspicious
        if found.location is not None and sources.rank(found.location.file) < 2
        else violated
    )
    return make(
        "reseeds",
        "the forward seeds torch itself: every step draws the same random numbers",
        culprits=[Culprit("call", found.op or "torch.manual_seed", "in forward", found.location)],
        observed="two seeds give the same training forward, although random numbers are drawn",
        cause="a seed is set inside the forward",
        because="the generator's state is set by this line",
        fix="drop the seeding, or use a separate torch.Generator",
    )


def shared_noise(subject: Subject, found: SharedNoise) -> Finding:
    """Explain noise or a dropout mask that is drawn once for all samples of a batch."""
    place = found.draw.location or found.op.location
    what = "noise" if found.kind == "added" else "dropout mask"
    culprits = [Culprit("call", found.draw.name, f"draws {list(found.noise)}", place)]
    if found.draw.module:
        detail = f"{found.draw.module_class} draws it"
        culprits.append(Culprit("module", found.draw.module, detail, place))
    if found.op.location not in (None, place):
        culprits.append(Culprit("call", found.op.name, "is given it", found.op.location))
    return violated(
        "noise-shared",
        f"all samples of a batch get the same {what}: {found.draw} draws it once",
        culprits=culprits,
        location=place,
        observed=f"a random tensor {list(found.noise)} meets values {list(found.values)}, samples included",
        cause="the random tensor has no dimension for the samples, so each of its numbers counts for all of them",
        because=f"in a batch of a size that no other dimension has, no dimension of it has that size; {found.op.name} "
        f"broadcasts it{on_line(found.op.location)}",
        fix="draw a tensor with the batch's size in the dimension of the samples, as torch.randn_like(x) does",
    )


def output_mismatch(
    subject: Subject, batch: Batch, output: Any, wrong: tuple[str, str, str]
) -> Finding:
    """Explain an output that does not fit its spec: its path, what is declared, and what came out."""
    path, declared, got = wrong
    made = trees.tensors(output).get(path)
    place = _regrouped(subject, batch, made) or sizing_line(subject, batch, path, made)
    where = place.location if place is not None else None
    where = where or forward_line(subject)
    return violated(
        "output-shape",
        f"{path} is {got}; the contract declares {declared}",
        culprits=[
            Culprit("output", path, str(got), where),
            *(place.culprits() if place is not None else ()),
        ],
        observed=f"{batch.describe()} gives {path} {got}",
        cause="the output does not have the declared shape at these sizes",
        because=f"sizes {dict(batch.sizes)} make the declared shape {declared}"
        + (f", and {place.fact}" if place is not None else ""),
        fix="change the forward, or the declared output",
        evidence={"sizes": dict(batch.sizes)},
    )


def _regrouped(subject: Subject, batch: Batch, output: Any) -> Place | None:
    """Return the operation that changes the number of samples, where the output has another one than the batch."""
    size = batch.sizes.get(subject.source.batch_symbol or "")
    if size is None or subject.contract.batch_dim != 0 or not isinstance(output, torch.Tensor):
        return None
    if not output.dim() or output.shape[0] == size:
        return None
    return eval_lines.regrouping_line(subject, batch, size, output.shape[0])


def out_of_range(subject: Subject, batch: Batch, path: str, low: float, high: float) -> Finding:
    """Explain an output with values beyond its declared range, given the least and the largest of them."""
    allowed, where = subject.contract.output_range, forward_line(subject)
    assert allowed is not None
    return violated(
        "output-range",
        f"{path} ranges from {low:.4g} to {high:.4g}; the contract declares "
        f"{allowed[0]:g} to {allowed[1]:g}",
        culprits=[Culprit("output", path, f"{low:.4g}..{high:.4g}", where)],
        observed=f"{batch.describe()} gives {path} in [{low:.4g}, {high:.4g}]",
        cause="the last operation does not bound the output",
        because="an ordinary batch exceeds the declared range",
        fix="bound the output (sigmoid, tanh, clamp), or widen output_range",
    )
