"""The loss is a connected scalar, falls when the fit gets better, and gets what it expects."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch

from ...codes import loss as explain
from ...codes import updates
from ...codes.state import unread_result
from ...codes.undecided import BLOCKED
from ...late import Late
from ...probes.loss.arguments import targets_of
from ...probes.loss.consumption import LINEAR, Broadcast, LogOf
from ...probes.loss.directions import shuffled, turned
from ...probes.loss.slopes import Stretched, lost_entries
from ...runs.liveness.unread import lost_in_loss
from ...runs.losses.consumption import Consumed, LossEvidence, evidence
from ...runs.losses.in_steps import (
    idle_term,
    lost_loss,
    step_evidence,
)
from ...runs.losses.noise import unseen_noise
from ...runs.losses.shapes import PAIRED, mutual
from ...runs.losses.step_reads import step_reads
from ...runs.training.enduring import blind_direction
from ...runs.training.episodes import across_ends
from ...specs import Labels
from ...subject.errors import SubjectError
from ...verdicts import inconclusive, not_applicable, passed, suspicious
from .arguments import against_itself
from .derivatives import of_derivatives
from .targets import base_slopes, loss_of_output
from .unread import idle_fields, unread_by_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Finding
    from ...probes.loss.slopes import Lost
    from ...subject import Subject

untaught_term = Late("runs.losses.flat:untaught_term")
"""It records runs; few losses are sums."""
met_samples = Late("runs.losses.met_samples:met_samples")
"""It is asked where numbers of all samples meet in a product."""

_SURE = 250.0
"""A difference of logits at which the smaller probability is 0 in float32, and its logarithm is
-250."""
_TERMS = 16
"""Terms that are looked at one by one; a loss of more is a sum over layers or positions."""
_OF_ITS_KIND: Final = "no input of another kind (probabilities, logits, logarithms, rates) was seen"
_LOGITS = ("F.cross_entropy", "F.log_softmax", "torch.log_softmax", "Tensor.log_softmax")


def loss_sound(subject: Subject) -> Iterator[Finding]:
    """Look at the loss tensor itself, and for entries of an output that it leaves out behind a NaN.

    The gradient of a term of it may be zero where a bound holds it, but must not cancel out, whether the term is the
    same number at other weights or follows them; and no result that the loss computes may be dropped.
    """
    trains = any(p.requires_grad for p in subject.model.parameters())
    seen = evidence(subject)
    if seen.shape != () and seen.shape != (1,):
        yield explain.not_scalar(subject, seen.shape)
    elif seen.leaf:
        yield explain.recreated(subject)
    elif (trains and not seen.connected) or seen.dtype.startswith(("int", "bool")):
        yield explain.disconnected(subject)
    elif trains and seen.dead:
        yield explain.dead_term(subject, seen.dead[0])
    elif seen.focal:
        yield explain.focal_mean(seen.focal[0])
    elif trains and 1 < seen.terms <= _TERMS and (term := untaught_term(subject)) is not None:
        yield explain.untaught_term(term)
    elif seen.loses and (dropped := lost_in_loss(subject)):
        yield unread_result(subject, dropped[0], loss=True)
    elif seen.undefined and (lost := _lost_entries(subject)) is not None:
        yield explain.hidden_nan(seen.undefined[0], lost)
    else:
        yield passed(f"the loss is a connected {seen.dtype} scalar, {seen.value:.4g}")


def _lost_entries(subject: Subject) -> Lost | None:
    """Return the entries of an output that a NaN, put away within the loss, leaves without a gradient."""
    loss = loss_of_output(subject)
    base = None if isinstance(loss, str) else base_slopes(subject, loss)
    if isinstance(loss, str) or base is None or not base.finite:
        return None
    try:
        return lost_entries(loss, base)
    except SubjectError:
        return None  # the loss refuses other outputs


def loss_shapes(subject: Subject) -> Iterator[Finding]:
    """Look for outputs and targets that are stretched against each other by broadcasting.

    Within the model it is the calls of torch's losses that are looked at: of a loss that the model computes itself,
    and of a term that it adds to the declared one; and products of two numbers for each sample, such as weights and
    losses, that have one for each pair of samples and are only averaged.
    """
    seen = evidence(subject)
    found = list(_stretches(subject, seen, set()))
    if not found and seen.crosses and (met := met_samples(subject)) is not None:
        found.append(explain.met_samples(subject, met))
    yield from found[:1]
    if found:
        return
    if not subject.contract.declares("targets") and not any(
        used.function in PAIRED for used in seen.consumed
    ):
        yield not_applicable(
            "there are no targets, and no loss of torch's that compares two tensors is called"
        )
        return
    batch = subject.batch()
    symbol = subject.source.leading_symbol
    if symbol is not None and batch.sizes.get(symbol, 2) < 2:
        yield inconclusive("the batch holds one sample, so broadcasting could not be observed")
    else:
        yield passed("no output is broadcast against its target")


def _stretches(subject: Subject, seen: LossEvidence, known: set[str]) -> Iterator[Finding]:
    """Yield the pairs of shapes that are stretched, those that are stretched against each other first."""
    pairs = [pair for pair in seen.broadcasts if _shapes(pair) not in known]
    for pair in filter(mutual, pairs):
        yield explain.broadcast(subject, pair, seen)
    for pair in pairs:
        several = math.prod(pair.target) > 1 and math.prod(pair.output) > 1
        if not mutual(pair) and pair.op.name.startswith("F.") and several:
            yield explain.stretched(subject, pair, seen, several=pair.several)


def _shapes(pair: Broadcast) -> str:
    return f"{pair.op.name} {pair.output} {pair.target}"


def loss_input(subject: Subject) -> Iterator[Finding]:
    """Compare what each loss function was given with what it expects.

    Weights of a cross entropy written out by hand must be probabilities of the classes that its
    logarithms are of; a one-hot target that probabilities are multiplied with must be one-hot over
    their classes. Four habits are suspicious: columns of a square matrix that are shifted or divided by
    sums of its rows, as after a reduction without ``keepdim`` (a violation if by their maxima);
    a logarithm of what a softmax or a sigmoid gave (tried with an input as a sure model gives it);
    a regression on labels that are declared
    as classes; and a cross entropy of targets that are not class probabilities (several ones in a row, negative ones,
    or one number per sample). No loss may compare a value with itself, whatever the outputs are. Where
    a prediction is compared with normal random numbers alone, as in a diffusion model, other numbers
    must change the prediction too.
    """
    seen = evidence(subject)
    found = list(_inputs(subject, seen, set()))
    found += [explain.noise_target(*one) for one in unseen_noise(subject, seen.noise)]
    if not found and (call := against_itself(subject, seen)) is not None:
        found = [explain.against_itself(call)]
    yield from found
    if found:
        return
    if not seen.consumed:
        yield not_applicable("the loss calls none of torch's classification or regression losses")
        return
    names = ", ".join(dict.fromkeys(used.function for used in seen.consumed))
    yield passed(f"{names}: {_OF_ITS_KIND}")


def _inputs(subject: Subject, seen: LossEvidence, known: set[str]) -> Iterator[Finding]:
    """Yield what is wrong with what the loss functions were given; ``known`` are codes that were reported before."""
    unstable = next((log for log in seen.logs if not _holds_when_sure(subject, log)), None)
    if unstable is not None:
        yield explain.unstable_log(subject, unstable)
    if seen.crossed and "distribution-axes" not in known:
        yield explain.crossed_axes(seen.crossed[0])
    if seen.cosines and "cosine-axis" not in known:
        yield explain.cosine_axis(seen.cosines[0])
    labels = subject.contract.targets
    if isinstance(labels, Labels) and isinstance(labels.classes, int) and labels.classes > 2:
        compared = next((u for u in seen.consumed if u.whole), None)
        if compared is not None and _shape_of(subject.batch().targets) == compared.shape:
            yield explain.labels_as_numbers(subject, labels.classes, compared)
    for used in seen.consumed:
        if used.unlike and (used.unlike != "batch" or used.shape == _samples_of(subject)):
            yield explain.no_class_probabilities(subject, used)
            break
    swapped = next((used for used in seen.consumed if used.swapped), None)
    if swapped is not None:
        yield explain.arguments_swapped(subject, swapped)
        return
    done = set(known)
    for used in seen.consumed:
        code = _misused(used)
        if code and code not in done:
            done.add(code)
            yield explain.wrong_input(subject, code, used)


_DECIDED: Final = 0.5
"""A row of one 1 holds no fewer zeros: it is a class that was chosen, and no result of a softmax."""


def _misused(used: Consumed) -> str:
    """Return the code of what is wrong with the input of one loss function, or an empty string."""
    made_by = used.producer.kind if used.producer is not None else ""
    if used.function in _LOGITS:
        if used.distribution and (
            used.zeros < _DECIDED or made_by in ("softmax", "gumbel_softmax")
        ):
            return "double-softmax"
        if made_by in ("relu", "relu_") and not used.negative and used.zeros > 0.05:
            return "relu-logits"
        if made_by == "sigmoid" and used.unit:
            return "sigmoid-logits"
    if used.function == "F.binary_cross_entropy_with_logits" and (
        used.unit and made_by in ("sigmoid", "softmax")
    ):
        return "double-sigmoid"
    if used.function in ("F.nll_loss", "F.nll_loss_nd", "F.ctc_loss") and (
        not used.log_distribution
        and (used.distribution or made_by in (*LINEAR, "relu", "softmax", "sigmoid"))
    ):
        return "nll-without-log"
    if used.function == "F.kl_div" and used.distribution:
        return "kl-without-log"
    return used.misfit


def step_losses(subject: Subject) -> Iterator[Finding]:
    """Watch one training step: what torch's loss functions get, and what outputs and targets broadcast to.

    Derivatives that are added to a loss without their graph count too, terms whose gradients no
    optimizer applies, losses that are replaced before anything reads them, penalties on the norm
    of a derivative that is not each sample's, second derivatives by single inputs that hold mixed ones, and a step
    whose result is the same for any targets, for any inputs, any values of some samples, or of all of a second batch.
    Other inputs of a sample must move the outputs on which its targets pull. Where the batch holds flags of the ends
    of episodes beside rewards, no reward may reach what is computed of the episode before it.
    """
    seen = step_evidence(subject)
    if seen is None:
        yield inconclusive("the training step raises; weights-update explains it", code=BLOCKED)
        return
    codes: set[str] = set()
    shapes: set[str] = set()
    dead = True
    if callable(subject.contract.loss):
        # what loss-input and loss-shapes say of the declared loss is not said twice
        declared = evidence(subject)
        codes = {_misused(used) for used in declared.consumed}
        codes |= {finding.code for finding in _inputs(subject, declared, codes)}
        shapes = {_shapes(pair) for pair in declared.broadcasts}
        dead = not declared.dead
    found = [
        *(explain.dead_term(subject, one) for one in seen.dead[:1] if dead),
        *_stretches(subject, seen, shapes),
        *(one for one in _inputs(subject, seen, codes) if one.code not in codes),
    ]
    others = _of_others(subject, seen)
    idle, unread = _unread(subject, others)
    found += unread
    found += of_derivatives(subject, seen)
    if (crossing := across_ends(subject)) is not None:
        found.append(explain.across_end(crossing))
    if subject.contract.loss is None or not evidence(subject).noise:
        found += [explain.noise_target(*n) for n in unseen_noise(subject, seen.noise, step=True)]
    found += [explain.hidden_nan(one, None) for one in seen.undefined[:1]]
    found += [explain.idle_term(subject, one) for one in [idle_term(subject)] if one is not None]
    found += [explain.lost_loss(lost) for lost in [lost_loss(subject)] if lost is not None]
    found += [explain.over_samples(one) for one in seen.directions if one.way == "over-samples"][:1]
    if (away := turned(seen.directions)) is not None:
        found.append(explain.turned(subject, away))
    found += others
    yield from found
    if found:
        return
    if idle and (unused := idle_fields(subject, idle)) is not None:
        yield unused
        return
    names = ", ".join(dict.fromkeys(used.function for used in seen.consumed))
    if names:
        yield passed(f"{names}: shapes agree, and {_OF_ITS_KIND}")
    elif targets_of(subject.batch()):
        yield passed("the training step reads its targets, and broadcasts no output with one")
    else:
        yield not_applicable(
            "the training step has no targets, and calls no loss function of torch's"
        )


def _unread(subject: Subject, others: list[Finding]) -> tuple[list[str], list[Finding]]:
    """Return the targets that a step never reads, and what is wrong with what it reads."""
    idle, unread = unread_by_step(subject)
    if unread is not None:
        return idle, [unread]
    if (left := step_reads(subject)) is not None and not (left.pairs and others):
        return idle, [explain.skipped(subject, left)]
    return idle, [updates.blind_direction(subject)] if blind_direction(subject) else []


def _of_others(subject: Subject, seen: LossEvidence) -> list[Finding]:
    """Say that a step compares samples with the targets of others, or multiplies what belongs to them."""
    if seen.fed and (mixed := shuffled(seen.directions)) is not None:
        return [explain.shuffled(mixed)]
    if seen.regrouped is not None:
        return [explain.regrouped(seen.regrouped)]
    met = met_samples(subject, step=True) if seen.crosses and not seen.broadcasts else None
    return [] if met is None else [explain.met_samples(subject, met)]


def _samples_of(subject: Subject) -> tuple[int, ...] | None:
    """Return the shape of one number per sample."""
    symbol = subject.source.leading_symbol
    size = None if symbol is None else subject.batch().sizes.get(symbol)
    return None if size is None else (size,)


def _shape_of(targets: Any) -> tuple[int, ...] | None:
    return tuple(targets.shape) if isinstance(targets, torch.Tensor) else None


def _holds_when_sure(subject: Subject, log: LogOf) -> bool:
    """Say whether the loss stays finite when what a softmax or sigmoid is given spreads as far as a sure model's."""
    batch = subject.batch().clone()
    in_step = subject.contract.loss is None
    with (
        subject.pristine(steps=in_step, train=True, seeded=True) as model,
        torch.set_grad_enabled(in_step),
    ):
        try:
            if in_step:
                optimizer = subject.make_optimizer(model)
                with Stretched(log.number, _SURE):
                    loss = subject.train_step(model, optimizer, batch)
            else:
                with Stretched(log.number, _SURE):
                    loss = subject.compute_loss(subject.call(model, batch), batch)
        except SubjectError:
            return True
        if not isinstance(loss, torch.Tensor | float):
            return True
        return bool(torch.isfinite(torch.as_tensor(loss)).all())


def loss_at_start(subject: Subject) -> Iterator[Finding]:
    """Compare the first cross entropy with ln(classes), one-sidedly (CHECKS E19)."""
    seen = evidence(subject)
    used = next(
        (u for u in seen.consumed if u.function == "F.cross_entropy" and not math.isnan(u.entropy)),
        None,
    )
    if used is None:
        yield not_applicable("the loss calls no F.cross_entropy with class indices")
        return
    uniform = math.log(used.classes)
    if used.entropy <= uniform + 2.0 or used.spread <= 2.5:
        yield passed(
            f"cross entropy {used.entropy:.3f}; a uniform guess over {used.classes} classes has {uniform:.3f}"
        )
        return
    gain = _gain(subject, used.weight)
    if gain is not None and gain > 2.0:
        yield explain.hot_start(subject, used, uniform, gain)
    else:
        yield suspicious(
            "loss-at-start",
            f"the first cross entropy is {used.entropy:.2f}, far above the {uniform:.2f} of a uniform guess",
            observed=f"logits have a standard deviation of {used.spread:.2f} over {used.classes} classes",
            cause="the model is confidently wrong before it has seen any data",
            because="a fresh head usually gives logits with a deviation below 1",
            fix="scale the head down at initialisation, unless a margin or temperature intends "
            "this",
            location=used.place,
        )


def _gain(subject: Subject, name: str | None) -> float | None:
    """Return by how much a weight scales an input of unit variance: its RMS times sqrt(fan in)."""
    if name is None:
        return None
    weight = subject.named_parameters().get(name)
    if weight is None or weight.dim() < 2:
        return None
    fan_in = math.prod(weight.shape[1:])
    return float(weight.detach().float().square().mean().sqrt()) * math.sqrt(fan_in)
