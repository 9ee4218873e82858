"""Padding has no part in the loss: where a promise tells of it, and where real rows end in runs of one id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from ... import promises
from ...codes import labels as explain
from ...objects import trees
from ...probes.positions.padding import padding_of
from ...record.hooks import hooked
from ...specs import Labels, Mask
from ...specs.domains import Integers
from ...verdicts import inconclusive, not_applicable, passed
from ..promised import find_input
from .labels import by_position, largest_by_target, output_gradients
from .targets import base_slopes, loss_of_output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...batches import Batch
    from ...findings import Finding
    from ...probes.loss.slopes import LossOfOutput
    from ...probes.positions.padding import Padded
    from ...subject import Subject

_LONG: Final = 3
"""Positions of the longest run, and rows with one, from which on an id that nothing declares looks like padding."""
_AGAINST: Final = 0.9
"""Of the pull on all other classes, that on the class which a target names: a softmax balances the two."""


def padding_loss(subject: Subject) -> Iterator[Finding]:
    """Look at the loss's gradient at the outputs of padded positions.

    Without the promise ``PaddingInvariant``, rows of the user's own batch show what pads them: they end or begin in
    runs of one id, of different lengths, and it stands nowhere else. The loss must not compare the scores at these
    positions with that id, except once, where it may say that the text ends.
    """
    promised = subject.promised("PaddingInvariant")
    if not promised:
        yield _undeclared(subject)
        return
    promise = promised[0]
    assert isinstance(promise, promises.PaddingInvariant)
    batch = subject.batch()
    padded = _padded_positions(batch, promise)
    if padded is None or not bool(padded.any()) or bool(padded.all()):
        yield inconclusive("the batch holds no padded positions beside real ones")
        return
    marked, unmarked = _marked_padding(subject, batch, padded)
    gradients = output_gradients(subject, marked)
    if gradients is None:
        yield inconclusive(
            "the gradient of the loss with respect to the outputs could not be computed"
        )
        return
    for path, grad in gradients[1].items():
        ways = [v for v in largest_by_target(grad, padded.shape) if bool((v[~padded] > 0).any())]
        if not ways:
            continue
        values = min(ways, key=lambda way: float(way[padded].max()))
        if bool((values[padded] > 0).any()):
            if unmarked:
                yield inconclusive(
                    f"{unmarked} is drawn without regard to the padding; declare it as "
                    "Labels(..., ignore_index=...), or give a batch",
                    code="no-domain",
                )
                return
            yield explain.padding(
                subject, path, float((values[padded] > 0).float().mean()), int(padded.sum())
            )
            return
        yield passed(f"{int(padded.sum())} padded positions give {path} no gradient")
        return
    yield not_applicable("no output has a value for each position")


def _marked_padding(
    subject: Subject, batch: Batch, padded: torch.Tensor
) -> tuple[Batch, str | None]:
    """Return the batch with drawn targets marked as ignored at padding, and the first that cannot be.

    Targets of the user's own batch stay as they are. What is drawn for a position knows nothing of
    the padding of another tensor: the declared ``ignore_index``, or ``pad`` of tokens, marks it.
    """
    changed, unmarked = {}, []
    for path, target in batch.tensors().items() if batch.origin == "drawn" else ():
        spec = subject.source.specs.get(path)
        if target.shape != padded.shape or not (
            isinstance(spec, Labels) or path.partition(".")[0].startswith("targets")
        ):
            continue
        mark = getattr(spec, "ignore_index", None)
        mark = getattr(spec, "pad", None) if mark is None else mark
        if mark is not None:
            changed[path] = target.masked_fill(padded.to(target.device), mark)
        elif not isinstance(spec, Mask):
            unmarked.append(path)
    if changed:
        return batch.map(lambda path, leaf: changed.get(path, leaf)), None
    return batch, next(iter(unmarked), None)


def _padded_positions(batch: Batch, promise: Any) -> torch.Tensor | None:
    if promise.mask is not None:
        found = find_input(batch, promise.mask)
        return None if found is None else ~found[1].bool()
    found = find_input(batch, promise.ids)
    return None if found is None else found[1] == promise.pad


def _undeclared(subject: Subject) -> Finding:
    """Judge a batch whose padding is not declared."""
    batch = subject.batch()
    found = padding_of(batch.tensors()) if batch.origin == "real" else []
    if not found:
        return not_applicable("no input or target has rows that end in runs of an id of their own")
    made = loss_of_output(subject)
    loss = None if isinstance(made, str) else made
    slopes = _slopes(subject, loss)
    if slopes is None:
        return inconclusive(
            "the gradient of the loss with respect to the outputs could not be computed"
        )
    asked = 0
    for padded in found:
        for path, slope in slopes.items():
            counts = compared_with(slope, padded)
            if counts is None:
                continue
            if not bool(counts.any()):
                asked += len(counts)
                continue
            why = _declared(subject, padded)
            if why or (max(padded.runs) >= _LONG and sum(n > 0 for n in padded.runs) >= _LONG):
                return explain.pads_trained(subject, loss, padded, path, counts, why)
    if asked:
        return passed(
            f"the loss compares no score at {asked} padded positions with the id that pads them"
        )
    return not_applicable("no output has a score of each id at each position")


def _slopes(subject: Subject, loss: LossOfOutput | None) -> dict[str, torch.Tensor] | None:
    """Return the loss's gradient by each output."""
    if loss is not None:
        base = base_slopes(subject, loss)
        return base.by_output if base is not None and base.finite else None
    gradients = output_gradients(subject, subject.batch())
    return None if gradients is None else gradients[1]


def compared_with(slope: torch.Tensor, padded: Padded) -> torch.Tensor | None:
    """Return at which of the inner padded positions the loss compares the scores with the id that pads them.

    Of scores that are compared with one class, that of this class is pulled against all others. A penalty on all
    scores, or a comparison with other probabilities, does not pull so.

    Returns:
        bool, ``[positions]``; None where the output has no score of the id at each position, or none is pulled.
    """
    slope, ids, inner = trees.dense(slope), padded.ids, padded.inner
    placed = by_position(slope, ids)
    if placed is None and ids.shape[1] > 2:  # scores of the next ids only
        ids, inner = ids[:, 1:], inner[:, 1:]
        placed = by_position(slope, ids)
    if placed is None or not 0 <= padded.pad < placed.shape[2] or placed.shape[2] < 3:
        return None
    pulls, inner = placed.abs(), inner.to(placed.device)
    inner = inner & (pulls.amax(2) > 0).any(0)  # where the loss reads no row, it could not fail
    if not bool(pulls[~inner].any()) or not bool(inner.any()):
        return None
    pulls = pulls[inner].double()
    own = pulls[:, padded.pad]
    return (own > 0) & (own >= _AGAINST * (pulls.sum(1) - own)) & (pulls.argmax(1) == padded.pad)


def _declared(subject: Subject, padded: Padded) -> str:
    """Return what says that an id is padding: a declared range without it, or an embedding; else nothing."""
    for path, tensor in subject.batch().tensors().items():
        spec = subject.source.specs.get(path)
        if spec is None or tensor.shape != padded.ids.shape or not torch.equal(tensor, padded.ids):
            continue
        if getattr(spec, "pad", None) == padded.pad:
            return f"{path} is declared with pad={padded.pad}"
        if (
            isinstance(spec.values, Integers)
            and not spec.values.low <= padded.pad < spec.values.high
        ):
            return f"{path} is declared to hold {spec.values.low} to {spec.values.high - 1}"
    return _embedding(subject, padded)


def _embedding(subject: Subject, padded: Padded) -> str:
    """Name the embedding that is given these ids and has the id as its ``padding_idx``; empty where none is."""
    fed: list[str] = []

    def listen(name: str) -> Any:
        def hook(_: Any, args: Any) -> None:
            for given in trees.tensors(args).values():
                ids = padded.ids[:, : given.shape[1]] if given.dim() == 2 else padded.ids[:0]
                if given.shape == ids.shape and torch.equal(given, ids):
                    fed.append(name)

        return hook

    with subject.pristine(train=False, seeded=True) as model:
        embeddings = {
            n: m for n, m in model.named_modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)
        }
        handles = [
            module.register_forward_pre_hook(listen(name))
            for name, module in embeddings.items()
            if module.padding_idx == padded.pad
        ]
        if handles:
            with hooked(handles), torch.no_grad():
                subject.call(model, subject.batch().clone())
    return f"{fed[0]} has padding_idx={padded.pad}" if fed else ""
