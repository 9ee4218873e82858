"""Targets belong to their inputs: the shift of a language model, and the pulls at each position."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import torch

from ...codes import labels as explain
from ...objects import trees
from ...probes.loss.own import labels_of
from ...subject.errors import SubjectError
from ...verdicts import inconclusive, not_applicable, passed
from ..promised import find_input
from .masked import exchanged, hides_others, left_out
from .series import answer_seen, own_answer

_CLEAR: Final = 0.95  # share of the positions from which on labels count as a copy of the ids
_MANY: Final = 48  # tokens that are enough to tell so

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from ...batches import Batch
    from ...findings import Finding
    from ...subject import Subject

    Gradients = tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]


def output_gradients(
    subject: Subject, batch: Batch, dims: Container[int] = range(1, 99)
) -> Gradients | None:
    """Return the float outputs of a batch and the loss's gradient to each, or None where there is none.

    Of a loss that the model computes, a backward may end at the outputs of so many dimensions.
    """
    kinds = (True,) if isinstance(subject.contract.loss, str) else (False, True)
    made = (_gradients(subject, batch.clone(), own, dims) for own in kinds)
    return next(filter(None, made), None)


def _gradients(subject: Subject, batch: Batch, own: bool, dims: Container[int]) -> Gradients | None:
    """Return outputs and gradients; of a loss that the model computes, its graph is that of the forward."""
    with subject.pristine(train=True, seeded=True) as model:
        with torch.set_grad_enabled(own):
            output = subject.call(model, batch)
        with torch.enable_grad():
            leaves = trees.floats(output)
            if own:
                leaves = {
                    path: t for path, t in leaves.items() if t.requires_grad and t.dim() in dims
                }
            for tensor in [] if own else leaves.values():
                if tensor.is_inference() or not tensor.is_leaf:
                    return None
                tensor.requires_grad_(True)
            loss = subject.compute_loss(output, batch)
            if not leaves or not loss.requires_grad or loss.dim():
                return None
            with subject.phase("backward", batch):
                grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    # where the output holds the loss, the gradient to that number says nothing
    found = {p: g for p, g in zip(leaves, grads, strict=True) if g is not None and g.dim()}
    return ({path: leaves[path].detach() for path in found}, found) if found else None


def largest_by_target(grad: torch.Tensor, shape: torch.Size) -> list[torch.Tensor]:
    """Return the largest magnitude over the class dimension, for each without which the targets' shape is left.

    There may be several, as with as many classes as samples: dimension 1 comes first, then the last one.
    """
    values = trees.dense(grad).abs()
    order = sorted(range(values.dim()), key=lambda dim: (dim != 1, -dim))
    fitting = [d for d in order if values.shape[:d] + values.shape[d + 1 :] == shape]
    return [values.amax(d) for d in fitting] or ([values] if values.shape == shape else [])


def label_shift(subject: Subject) -> Iterator[Finding]:
    """Read off the loss's gradient which token each position is pulled to, and compare with the input.

    Without the promise ``Causal``, this is asked where labels are the tokens of an input at other
    positions, and only a pull beyond the next token is told: to repeat its tokens may be a model's task.
    Where each position is pulled to the next token, later tokens of that input must not change it. Where it
    is pulled to a later value of a series, that value must not. A model some of whose tokens are replaced by a mask
    must be trained on those: where all others count and none of these does, it learns to copy.
    """
    batch = subject.batch()
    promised = subject.promised("Causal")
    repeated = _repeated_in_labels(batch)
    ids = _causal_ids(batch, promised[0]) if promised else repeated[1] if repeated else None
    if ids is None:
        kind = "the causal input is not" if promised else "no input whose tokens are the labels is"
        yield own_answer(subject) or not_applicable(f"{kind} a batch of token ids")
        return
    name = next((path for path, leaf in batch.input_leaves() if leaf is ids), "ids")
    names = (repeated[0] if repeated else "targets", name)
    some, gradients, verdict = ids[:2], None, None
    if (few := _few(subject, batch, ids, repeated)) is not None:
        with contextlib.suppress(SubjectError):  # what runs with the whole batch alone
            gradients = _pulls(subject, few)
            verdict = _shift_of(subject, some, gradients, bool(promised), names)
    if verdict is None or not _settled(verdict, gradients, some):  # two samples mostly settle it
        some, gradients = ids, _pulls(subject, batch)
        verdict = _shift_of(subject, ids, gradients, bool(promised), names)
    if gradients and not promised and repeated is not None:
        if verdict.status == "passed":
            verdict = answer_seen(subject, ids, _trained_everywhere(gradients[1], some)) or verdict
        elif verdict.status == "not-applicable" and some is ids:
            verdict = _visible(subject, ids, gradients[1], names) or verdict
    if promised and verdict.status == "violated" and _shifts_itself(subject, ids):
        verdict = passed("outputs are trained on the token at their place, and do not read it")
    yield verdict


def _shifts_itself(subject: Subject, ids: torch.Tensor) -> bool:
    """Say whether no output reads the causal input's token at its own place: the model begins with another one."""
    place = ids.shape[1] // 2
    others = ids[ids != ids[0, place]]
    if not len(others):
        return False
    changed = ids.clone()
    changed[0, place] = others[0]
    other = subject.batch().map(lambda _, leaf: changed if leaf is ids else leaf)
    mine, theirs = (trees.floats(subject.forward(b)) for b in (subject.batch(), other))
    found = [(by_position(mine[p], ids), by_position(theirs[p], ids)) for p in mine.keys() & theirs]
    known = [(a, b) for a, b in found if a is not None and b is not None]
    moved = any(not torch.equal(a[0, place], b[0, place]) for a, b in known)
    return any(not torch.equal(a[0], b[0]) for a, b in known) and not moved


def _settled(verdict: Finding, gradients: Gradients | None, ids: torch.Tensor) -> bool:
    """Say whether some samples settle it: they are trained on the next token, or on others at every position."""
    if verdict.status == "passed":
        return True
    everywhere = gradients is not None and _trained_everywhere(gradients[1], ids)
    return verdict.status == "not-applicable" and bool(everywhere)


def _visible(
    subject: Subject, ids: torch.Tensor, gradients: dict[str, torch.Tensor], names: tuple[str, str]
) -> Finding | None:
    """Return what is wrong where the tokens that a masked model is given count, and those that are hidden do not."""
    found = {path: _pulled(trees.dense(grad), ids) for path, grad in gradients.items()}
    trained = {path: wanted for path, wanted in found.items() if wanted is not None}
    padding = _trailing(ids)
    tokens = [left_out(ids, wanted, padding) for wanted in trained.values()]
    token = tokens[0] if tokens else None
    if token is None or None in tokens:
        return None
    path, wanted = next(iter(trained.items()))
    changed = exchanged(ids, wanted[1])
    other = subject.batch().map(lambda _, leaf: changed if leaf is ids else leaf)
    made = [trees.floats(subject.forward(batch)).get(path) for batch in (subject.batch(), other)]
    placed = [None if t is None else by_position(trees.dense(t), ids) for t in made]
    if placed[0] is None or placed[1] is None:
        return None
    if not bool((placed[0] != placed[1]).any(-1)[changed != ids].all()):
        return None  # an output does not see the token at its own place
    left, counts = ~wanted[1] & ~padding, wanted[1] & ~padding
    hidden = (token, int((ids == token)[left].sum()))
    if because := hides_others(subject, ids, wanted[1], left, token):
        return explain.visible(subject, left, int(counts.sum()), hidden, names, because)
    return None  # to copy all but separators may be meant


def _few(
    subject: Subject, batch: Batch, ids: torch.Tensor, repeated: tuple[str, torch.Tensor] | None
) -> Batch | None:
    """Return two samples where these have many tokens and no position of the batch is left out of the labels."""
    if subject.contract.batch_dim != 0 or ids[:2].numel() < _MANY:
        return None
    if repeated is not None and bool((labels_of(batch)[repeated[0]] < 0).any()):
        return None
    return subject.few(batch, aligned=True)


def _pulls(subject: Subject, batch: Batch) -> Gradients | None:
    # the keys and values that a model keeps for its next token have four dimensions
    return output_gradients(subject, batch, (2, 3)) or output_gradients(subject, batch)


def _shift_of(
    subject: Subject,
    ids: torch.Tensor,
    gradients: Gradients | None,
    promised: bool,
    names: tuple[str, str],
) -> Finding:
    """Judge one batch, whose labels and token ids have these names."""
    if gradients is None:
        return inconclusive(
            "the gradient of the loss with respect to the outputs could not be computed"
        )
    found: dict[str, tuple[int, float, int]] = {}
    for path, grad in gradients[1].items():
        wanted = _pulled(trees.dense(grad), ids)
        if wanted is None:
            continue
        implied, counts = wanted
        shares = {shift: _agreement(implied, counts, ids, shift) for shift in (-1, 0, 1, 2, 3)}
        best = max(shares, key=lambda shift: (shares[shift], -abs(shift - 1)))
        repeats = best != 1 and shares[1] >= shares[best]
        found[path] = (1 if repeats else best, shares[best], int(counts.sum()))
        if repeats:
            return inconclusive("the text repeats, so the shift cannot be determined")
    return _shift_verdict(subject, found, promised, *names)


def _shift_verdict(
    subject: Subject,
    found: dict[str, tuple[int, float, int]],
    promised: bool,
    labels: str,
    ids: str,
) -> Finding:
    """Judge the outputs by the shift at which they are trained; one on the next token allows further ones."""
    if not found:
        return inconclusive("no output has a vector of logits for each token")
    clear = {path: one for path, one in found.items() if one[1] >= _CLEAR}
    if not clear:
        share = max(share for _, share, _ in found.values())
        return not_applicable(f"the targets are not a shifted copy of the ids (best {share:.0%})")
    path = next((path for path, (shift, _, _) in clear.items() if shift == 1), None)
    if path is not None:
        return passed(f"{clear[path][2]} positions of {path} are trained on the next token")
    path, (shift, share, _) = next(iter(clear.items()))
    if shift < 1 and not promised:
        return not_applicable(
            "the model is not declared causal, and is trained on tokens it is given"
        )
    return explain.shifted(subject, path, shift, share, labels, ids)


def _trained_everywhere(gradients: dict[str, torch.Tensor], ids: torch.Tensor) -> dict[str, int]:
    """Return the dimension of time of the outputs that the loss pulls to a token at each position but the last."""
    found: dict[str, int] = {}
    for path, grad in gradients.items():
        wanted = _pulled(trees.dense(grad), ids)
        if wanted is not None and bool(wanted[1][:, :-1].all()):
            found[path] = 1 if grad.shape[:2] == ids.shape else 2
    return found


def _causal_ids(batch: Batch, promise: Any) -> torch.Tensor | None:
    """Return the promised input where it is a batch of token ids."""
    found = find_input(batch, promise.input)
    fits = found is not None and not found[1].is_floating_point() and found[1].dim() == 2
    return found[1] if found is not None and fits and promise.dim == 1 else None


def _repeated_in_labels(batch: Batch) -> tuple[str, torch.Tensor] | None:
    """Return the path of labels that repeat an input's tokens, at the same or earlier positions, and that input."""
    labels = {path: t for path, t in labels_of(batch).items() if _is_ids(t)}
    for place, leaf in batch.input_leaves():
        if not isinstance(leaf, torch.Tensor) or not _is_ids(leaf) or place in labels:
            continue
        for path, given in labels.items():
            if given.shape == leaf.shape and any(
                _agreement(given, given >= 0, leaf, shift) >= _CLEAR for shift in range(3)
            ):
                return path, leaf
    return None


def _is_ids(tensor: torch.Tensor) -> bool:
    integers = not tensor.is_floating_point() and not tensor.is_complex()
    return integers and tensor.dim() == 2 and tensor.shape[1] > 3 and len(tensor.unique()) > 3


def _pulled(grad: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return for each position the token that the loss pulls it to, and where it pulls at all."""
    placed = by_position(grad, ids)
    return None if placed is None else (placed.argmin(-1), placed.amin(-1) < 0)


def by_position(values: torch.Tensor, ids: torch.Tensor) -> torch.Tensor | None:
    """Return values of classes for each token as ``[B, T, classes]``; None where they are others."""
    if values.dim() == 2 and values.shape[0] == ids.numel() and values.shape[1] > 2:
        values = values.view(*ids.shape, -1)
    if values.dim() != 3:
        return None
    if values.shape[:2] == ids.shape:
        return values
    turned = values.shape[0] == ids.shape[0] and values.shape[2] == ids.shape[1]
    return values.transpose(1, 2) if turned else None


def _agreement(implied: torch.Tensor, counts: torch.Tensor, ids: torch.Tensor, shift: int) -> float:
    length = ids.shape[1]
    here = slice(max(0, -shift), length - max(0, shift))
    there = slice(max(0, shift), length - max(0, -shift))
    # in rows that are padded one by one, no token stands where the label of the last one was
    pulled, token = implied[:, here], ids[:, there]
    counted = counts[:, here] & ~_trailing(ids)[:, there]
    if not bool(counted.any()):
        return 0.0
    return float((pulled == token)[counted].float().mean())


def _trailing(ids: torch.Tensor) -> torch.Tensor:
    """Return a bool mask of the padding at the ends of rows: the token that ends one row at least twice."""
    last = ids[:, -1:]
    run = (ids == last).flip(1).cumprod(1).flip(1).bool()
    padded = run.sum(1) > 1
    if not bool(padded.any()) or bool((last[padded] != last[padded][0]).any()):
        return torch.zeros_like(run)  # none, or tokens that happen to repeat
    return run & (last == last[padded][0])
