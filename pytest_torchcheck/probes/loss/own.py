"""The loss that a model computes for itself, as a function of its labels and of what it is given beside them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from ...objects import trees
from ...record.hooks import hooked
from ...state import seed_everything
from ...subject.errors import SubjectError
from ..recorded.watch import reaches_leaves
from .arguments import targets_of
from .pulls import SAMPLES, moved_by, others_of, pulls_of
from .slopes import LossOfOutput

if TYPE_CHECKING:
    from ...batches import Batch
    from ...subject import Subject
    from .pulls import Pulls
    from .slopes import Slopes

_LABELS: Final = frozenset({"labels", "label", "target", "targets", "y"})
"""Parameters of a model that take what its output is compared with."""
_EMBEDDED: Final = "embedding"


def labels_of(batch: Batch, model: nn.Module | None = None) -> dict[str, torch.Tensor]:
    """Return the targets of a batch and those of its inputs that are labels by their names, by path.

    Args:
        batch: The batch.
        model: Whose forward names the inputs that are given by their places.
    """
    places = [] if model is None else _names_of(model)
    given = {id(value): name for name, value in zip(places, batch.args, strict=False)}
    named = {
        path: leaf
        for path, leaf in batch.input_leaves()
        if isinstance(leaf, torch.Tensor)
        and (path.rpartition(".")[2] in _LABELS or given.get(id(leaf)) in _LABELS)
    }
    return named | targets_of(batch)


def _names_of(model: nn.Module) -> list[str]:
    try:
        return list(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        return []


class OwnLoss(LossOfOutput):
    """Calls a model that computes its own loss, in eval mode; its slopes are those by what the loss is made of.

    They are those by the one output, with an entry for each sample, through which the loss reaches every
    weight: its logits, whose slopes need no backward through the model. Where there is none, they are those by the
    float inputs, and where no input is floating, by what the first embedding makes of an input. No part
    of the model is random then but what it draws itself.

    Args:
        subject: Whose model; its contract declares ``loss="output"``.
        batch: The batch, labels included.
        axis: Where the samples stand in every tensor of the batch.
        noise: ``(sample, scale)``: the normal numbers that are added to one sample of what the
            slopes are by, in units of its deviation; None for nothing.
        seed: Added to the subject's.
    """

    def __init__(
        self,
        subject: Subject,
        batch: Batch,
        axis: int,
        noise: tuple[int, float] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(subject, None, batch)
        self._axis, self._noise, self._more = axis, noise, seed
        symbol = subject.source.batch_symbol
        self._size = None if symbol is None else batch.sizes.get(symbol)

    def targets(self) -> dict[str, torch.Tensor]:
        """Return the tensors of the labels, by their paths in the batch."""
        return labels_of(self.batch, self._subject.model)

    def with_targets(self, old: torch.Tensor, new: torch.Tensor) -> Batch:
        """Return the batch with one tensor of labels exchanged for another."""
        return self.batch.map(lambda _, leaf: new if leaf is old else leaf)

    def of(self, batch: Batch) -> OwnLoss:
        """Return the loss for another batch."""
        return OwnLoss(self._subject, batch, self._axis)

    def reseeded(self) -> OwnLoss:
        """Return the loss under another seed."""
        return OwnLoss(self._subject, self.batch, self._axis, seed=1)

    def pulls(self, base: Slopes, target: torch.Tensor, size: int) -> Pulls:
        """Change the label of one sample at a time; of three samples two at a time, where that settles it.

        Each pair moves the slopes of its own samples and no other. The first sample is in both pairs: what its
        label moves besides is seen in one of them.
        """
        apart = size == 3 and all(self._moves(base, target, pair) for pair in ((0, 1), (0, 2)))
        if apart:
            return dict(enumerate(torch.eye(size)))
        return pulls_of(self, base, target, self._axis, self._axis, size)

    def _moves(self, base: Slopes, target: torch.Tensor, pair: tuple[int, ...]) -> bool:
        """Say whether other labels of these samples move their slopes, and those of no other of three samples."""
        changed: torch.Tensor | None = target
        for sample in pair:
            if changed is not None:
                changed = next(others_of(changed, self._axis, sample), None)
        try:
            now = None if changed is None else self.slopes(self.with_targets(target, changed))
        except SubjectError:
            return False
        if now is None or not now.finite:
            return False
        moved = moved_by(base, now, pair, self._axis, 3)
        return all((float(m) > 0) == (n in pair) for n, m in enumerate(moved))

    def is_separate(self, base: Slopes, size: int) -> bool:
        """Say whether samples that are changed, but for their labels, leave the slopes of the others as they were.

        Args:
            base: The slopes of the batch.
            size: How many samples it has.
        """
        for sample in range(min(size, SAMPLES)):
            for scale in (1.0, 30.0):
                case = OwnLoss(self._subject, self.batch, self._axis, (sample, scale))
                now = case.slopes()
                if now is None or not now.finite:
                    return False
                moved = moved_by(base, now, sample, self._axis, size)
                if any(float(m) > 0 for n, m in enumerate(moved) if n != sample):
                    return False
        return True

    def heeds(self, base: Slopes, sample: int, axis: int, read: list[int]) -> bool:
        """Say whether a sample whose label the loss reads has it read in this one's place too.

        It has where what is left out is chosen by its values: the hardest samples, a mask.
        """
        size = next(iter(base.by_output.values())).shape[axis]
        for other in read[:2]:
            order = torch.arange(size)
            order[sample], order[other] = other, sample
            swapped = self.of(self._subject.source.rows(self.batch, order))
            try:
                first = swapped.slopes()
                for labels in swapped.targets().values():
                    for changed in others_of(labels, axis, sample):
                        now = swapped.slopes(swapped.with_targets(labels, changed))
                        if first is None or now is None or now.value != first.value:
                            return True
            except SubjectError:
                return True
        return not read

    def _run(self, batch: Batch | None) -> tuple[torch.Tensor, dict[str, torch.Tensor], Batch]:
        """Call the model; return its loss with the leaves that the slopes are by, by path, and what it was given.

        Raises:
            SubjectError: The model raised, or it returned no loss.
        """
        given = (self.batch if batch is None else batch).clone()
        labels = {id(t) for t in labels_of(given, self._subject.model).values()}
        leaves: dict[str, torch.Tensor] = {}
        for path, leaf in given.input_leaves():
            if (
                isinstance(leaf, torch.Tensor)
                and leaf.is_floating_point()
                and id(leaf) not in labels
            ):
                leaves[path] = self._noisy(trees.dense(leaf).detach()).requires_grad_(True)
        with torch.enable_grad():  # copies of the leaves: a model may write to what it is given
            made = {path: leaf.clone() for path, leaf in leaves.items()}
        given = given.map(lambda path, leaf: made.get(path, leaf), targets=False)
        tokens = [
            leaf
            for _, leaf in given.input_leaves()
            if isinstance(leaf, torch.Tensor)
            and not leaf.is_floating_point()
            and id(leaf) not in labels
        ]

        def embedded(_module: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> Any:
            if leaves or not any(
                args[0].shape == t.shape and bool((args[0] == t).all()) for t in tokens
            ):
                return None
            leaves[_EMBEDDED] = self._noisy(output.detach()).requires_grad_(True)
            return leaves[_EMBEDDED].clone()

        with self._subject.pristine() as model:
            handles = [
                module.register_forward_hook(embedded)
                for module in model.modules()
                if isinstance(module, nn.Embedding)
            ]
            with hooked(handles):
                model.eval()
                adapted = self._subject.contract.adapted
                # an adapter gives the loss in training mode only; the layers remain in eval mode
                model.training = adapted is not None and adapted.call is not None
                seed_everything(self._subject.seed + self._more)
                with torch.enable_grad():
                    output = self._subject.call(model, given)
                    loss = self._subject.compute_loss(output, given)
                    return loss, self._scored(output, loss) or leaves, given

    def _scored(self, output: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the output through which alone a loss reaches leaves, by its path; empty where there is none."""
        for path, tensor in trees.floats(output).items():
            samples = tensor.shape[self._axis] if tensor.dim() > self._axis else 0
            if samples != self._size or tensor.grad_fn is None or tensor.grad_fn is loss.grad_fn:
                continue
            if not reaches_leaves(loss, {tensor.grad_fn}):
                return {path: tensor}
        return {}

    def _noisy(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._noise is None:
            return tensor.clone()
        sample, scale = self._noise
        made, generator = tensor.clone(), torch.Generator().manual_seed(sample)
        row = made.select(self._axis, sample)
        spread = float(tensor.std()) if tensor.numel() > 1 else 1.0
        noise = torch.randn(row.shape, generator=generator).to(row.device, row.dtype)
        row.add_(scale * (spread or 1.0) * noise)
        return made
