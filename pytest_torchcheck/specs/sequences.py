"""Domains of sequences: token ids, masks, lengths, positions and labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..lean import dataclass
from .domains import Context, Domain, Unit, uniforms, varied, whole, whole_numbers
from .shapes import SpecError

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True, slots=True)
class ClassLabels(Domain):
    """Class labels in ``[0, classes)``; about one in eight is ``ignore_index`` where that is given, never all.

    Attributes:
        classes: Number of classes.
        ignore_index: A further value, which the loss ignores.
    """

    classes: int
    ignore_index: int | None = None

    def __post_init__(self) -> None:
        whole("classes", self.classes)
        if self.classes < 1:
            raise SpecError(f"classes = {self.classes}: there is at least one class")
        whole("ignore_index", self.ignore_index, none=True)

    def fill(self, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
        """See `Domain`."""
        labels = varied(whole_numbers(shape, 0, self.classes, context, dtype), 0, self.classes)
        if self.ignore_index is not None and labels.numel() > 1:
            ignored = uniforms(shape, torch.float32, context) < 0.125
            ignored.view(-1)[0] = False
            labels[ignored] = self.ignore_index
        return labels

    @property
    def ends(self) -> tuple[float, float]:
        """See `Domain`."""
        return 0, self.classes - 1


@dataclass(frozen=True, slots=True)
class TokenIds(Domain):
    """Token ids in ``[0, vocab)``, never special ones; rows end (or begin) in ``pad`` where that is given.

    Attributes:
        vocab: Number of ids.
        pad: The id of padding, or None for rows that are full.
        special: Ids that text does not contain, such as those of BOS and EOS.
        side: Where the padding stands, ``right`` or ``left``.
        lengths: The input that holds the rows' lengths; they are drawn where there is none.
    """

    vocab: int
    pad: int | None = None
    special: tuple[int, ...] = ()
    side: str = "right"
    lengths: str | None = None

    def __post_init__(self) -> None:
        if self.side not in ("left", "right"):
            raise SpecError(f"side = {self.side!r}: padding is on the 'left' or the 'right'")
        whole("vocab", self.vocab)
        if self.vocab < 1:
            raise SpecError(f"vocab = {self.vocab}: there is at least one id")
        whole("pad", self.pad, none=True)
        for token in self.special:
            whole("special", token)
        if self.pad is not None and not 0 <= self.pad < self.vocab:
            raise SpecError(f"pad = {self.pad}: not an id below vocab = {self.vocab}")
        if self.lengths is not None and self.pad is None:
            raise SpecError("lengths needs pad: the id that fills the rest of a row")
        if len(self._banned()) >= self.vocab:
            raise SpecError(f"no ordinary token is left in a vocabulary of {self.vocab}")

    def _banned(self) -> list[int]:
        banned = {*self.special} | ({self.pad} if self.pad is not None else set())
        return sorted(token for token in banned if 0 <= token < self.vocab)

    @property
    def unit(self) -> Unit:
        """See `Domain`."""
        if self.lengths is not None:
            return "element"
        return "element" if self.pad is None else "row"  # padding stays at the end of its row

    def allows_cut(self, *, row: bool, changed: Collection[str]) -> bool:
        """See `Domain`."""
        return self.pad is None or not row

    def fill(self, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
        """See `Domain`."""
        banned = self._banned()
        ids = whole_numbers(shape, 0, self.vocab - len(banned), context, dtype)
        for token in banned:  # skip the banned ids, the smallest first
            ids += ids >= token
        return self._padded(ids, shape, context)

    def simplest(self, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
        """See `Domain`."""
        first = next(token for token in range(self.vocab) if token not in self._banned())
        ids = torch.full(shape, first, dtype=dtype, device="cpu")
        return self._padded(ids, shape, context) if self.lengths is not None else ids

    @property
    def ends(self) -> tuple[float, float] | None:
        """See `Domain`."""
        if self.pad is not None:
            return None  # padding stays where it is
        ordinary = [token for token in range(self.vocab) if token not in self._banned()]
        return ordinary[0], ordinary[-1]

    def _padded(self, ids: Tensor, shape: tuple[int, ...], context: Context) -> Tensor:
        if self.pad is None or not shape or not ids.numel():
            return ids
        if self.lengths is not None:
            lengths = context.sibling(self.lengths)
        else:
            lengths = Lengths(shape[-1]).fill(shape[:-1], torch.int64, context)
        return ids.masked_fill_(~length_mask(lengths, shape[-1], side=self.side), self.pad)


@dataclass(frozen=True, slots=True)
class Masks(Domain):
    """Booleans with at least one true per row.

    Attributes:
        kind: ``random``; ``right`` or ``left`` for the mask of padding on that side.
        lengths: The input that holds the rows' lengths.
        of: The input of token ids that this is the mask of, with ``pad``.
        pad: The id of padding in ``of``.
    """

    kind: str = "random"
    lengths: str | None = None
    of: str | None = None
    pad: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("random", "left", "right"):
            raise SpecError(f"kind = {self.kind!r}: a mask is 'random', 'left' or 'right'")
        if self.of is not None and self.lengths is not None:
            raise SpecError("a mask follows from lengths or from token ids (of), not from both")

    @property
    def unit(self) -> Unit:
        """See `Domain`."""
        if self.lengths is not None or self.of is not None:
            return "whole"  # it follows from another tensor
        return "element" if self.kind == "random" else "row"

    def allows_cut(self, *, row: bool, changed: Collection[str]) -> bool:
        """See `Domain`."""
        return self.unit != "whole" and not row  # the true of a row may be cut off

    def fill(self, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
        """See `Domain`."""
        if self.of is not None:
            ids: Tensor = context.sibling(self.of)
            return (ids != self.pad).to(dtype)
        if not shape or not shape[-1]:
            return torch.ones(shape, dtype=dtype, device="cpu")
        if self.lengths is not None or self.kind != "random":
            lengths = (
                context.sibling(self.lengths)
                if self.lengths is not None
                else Lengths(shape[-1]).fill(shape[:-1], torch.int64, context)
            )
            return length_mask(
                lengths, shape[-1], side="left" if self.kind == "left" else "right"
            ).to(dtype)
        mask = uniforms(shape, torch.float32, context) < 0.7
        if mask.numel():
            mask.scatter_(-1, whole_numbers((*shape[:-1], 1), 0, shape[-1], context), value=True)
        return mask.to(dtype)

    def simplest(self, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
        """See `Domain`."""
        if self.unit == "whole":
            return self.fill(shape, dtype, context)
        return torch.ones(shape, dtype=dtype, device="cpu")


@dataclass(frozen=True, slots=True)
class Lengths(Domain):
    """Lengths of rows in ``1..longest``; the first row is the longest, so that nothing can be trimmed.

    Attributes:
        longest: The symbol (or number) of the longest row.
        shortest: The smallest length.
    """

    longest: str | int
    shortest: int = 1

    def allows_cut(self, *, row: bool, changed: Collection[str]) -> bool:
        """See `Domain`."""
        return self.longest not in changed  # a shorter axis allows shorter rows

    def fill(self, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
        """See `Domain`."""
        longest = context.size(self.longest)
        lengths = whole_numbers(shape, min(self.shortest, longest), longest + 1, context, dtype)
        if lengths.numel():
            lengths.view(-1)[0] = longest
        return lengths

    def simplest(self, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
        """See `Domain`."""
        return torch.full(shape, context.size(self.longest), dtype=dtype, device="cpu")


@dataclass(frozen=True, slots=True)
class Monotone(Domain):
    """Positions or times along the last axis, never falling.

    Attributes:
        strict: Whether they always grow.
    """

    strict: bool = True

    @property
    def unit(self) -> Unit:
        """See `Domain`."""
        return "row"

    def fill(self, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
        """See `Domain`."""
        if not shape:
            return torch.zeros(shape, dtype=dtype, device="cpu")
        if dtype.is_floating_point:
            steps = uniforms(shape, torch.float64, context)
            steps += 1e-3 if self.strict else 0.0
        else:
            steps = whole_numbers(shape, int(self.strict), 4, context)
        return (steps.cumsum(-1) - steps[..., :1]).to(dtype)

    def simplest(self, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
        """See `Domain`."""
        if not shape:
            return torch.zeros(shape, dtype=dtype, device="cpu")
        return torch.arange(shape[-1], device="cpu").to(dtype).expand(shape).clone()


def length_mask(lengths: Tensor, longest: int, *, side: str = "right") -> Tensor:
    """True where a row of this length has content: shape ``(*lengths.shape, longest)``."""
    positions = torch.arange(longest, device=lengths.device)
    if side == "left":
        positions = positions.flip(0)
    return positions < lengths.unsqueeze(-1)
