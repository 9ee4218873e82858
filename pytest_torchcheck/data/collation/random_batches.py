"""Are batches random where items are not: by a collate function, or a dataset that augments a whole batch?"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from ...state import isolated, seed_process
from ..describing import describe_sample
from ..simulation import ITEMS
from ..snapshot import put_back
from ..validity import spread
from ..wording import called

if TYPE_CHECKING:
    from ..plan import Part

_DRAWS = 16  # an augmentation of the whole batch may be applied to one batch of a few


def made_by(part: Part) -> str:
    """Return what makes batches of a part's items and may augment them; empty where torch's own functions do."""
    plan = part.plan
    if plan.loader is not None and type(plan.loader).__iter__ is not DataLoader.__iter__:
        return type(plan.loader).__name__
    if not plan.makes_batches:
        return ""
    if plan.collate_fn is not None:
        return called(plan.collate_fn)
    return "__getitems__" if _takes_several(part) else ""


def draws(part: Part, seed: int) -> bool | None:
    """Say whether batches of the same items differ by the seed; None where no batch can be made, or compared.

    A loader of a class of its own, which may change batches after they were made, is not run.

    Args:
        part: A dataset and how it is read.
        seed: Of the first batch.
    """
    if part.plan.loader is not None and made_by(part) == type(part.plan.loader).__name__:
        return None
    indices = list(spread(part.length, ITEMS))
    if part.plan.declared and part.plan.batch_size is not None:
        indices = indices[: part.plan.batch_size]
    first: str | None = None
    with put_back(part.dataset, tuple(indices)), isolated():
        try:
            collate = copy.deepcopy(part.plan.collate)  # it may hold a generator
        except Exception:  # what cannot be copied draws from its own generator as it is
            collate = part.plan.collate
        for draw in range(_DRAWS):
            try:
                seed_process(seed + draw)
                batch = collate(copy.deepcopy(_read(part, indices)))
            except Exception:  # samples-valid and worker-delivery explain it
                return None
            digest = describe_sample(0, batch).digest
            if digest is None:
                return None
            first = digest if first is None else first
            if digest != first:
                return True
    return False


def _takes_several(part: Part) -> bool:
    whole = (part.dataset, part.own)  # a Subset takes several, whatever it is a part of
    return all(callable(getattr(one, "__getitems__", None)) for one in whole)


def _read(part: Part, indices: list[int]) -> Any:
    """Read samples as torch's loaders do: at once, where the dataset can."""
    if _takes_several(part):
        return part.dataset.__getitems__(indices)
    return [part.dataset[index] for index in indices]
