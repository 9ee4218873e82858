"""Recomputations in a backward, and those that give other numbers than the forward."""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch.utils.checkpoint as home
from torch import Tensor, nn
from torch.utils.checkpoint import set_checkpoint_early_stop

from ... import sources
from ...lean import dataclass
from ..recorded.divergence import Divergence
from ..recorded.operations import fingerprint, gradients_kept
from ..recorded.watch import Op, Watch, describe, name_of, readable, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from ...findings import Location


@dataclass(slots=True)
class Checkpointing:
    """How often checkpointed regions were entered."""

    regions: int = 0


@contextlib.contextmanager
def watch_checkpointing(
    *, disable: bool = False, preserve: bool = False
) -> Iterator[Checkpointing]:
    """Count the regions that run under ``torch.utils.checkpoint``; run them plainly if ``disable``.

    Both variants are seen, however the function was imported: what they call is looked up in torch's
    own module at each call.

    Args:
        disable: Keep the activations instead of recomputing them.
        preserve: Restore the random state in each recomputation, whatever the call says of it.
    """
    seen = Checkpointing()
    name = _non_reentrant()
    generator: Any = getattr(home, name)
    apply: Any = home.CheckpointFunction.apply

    def non_reentrant(*args: Any, **kwargs: Any) -> Generator[None, None, None]:
        seen.regions += 1
        if disable:
            yield
            return
        given = inspect.signature(generator).bind(*args, **kwargs)
        if preserve:
            given.arguments[_PRESERVE] = True
        yield from generator(*given.args, **given.kwargs)

    def reentrant(function: Any, kept: Any, *args: Any) -> Any:
        seen.regions += 1
        return function(*args) if disable else apply(function, kept or preserve, *args)

    with (
        mock.patch.object(home, name, non_reentrant),
        mock.patch.object(home.CheckpointFunction, "apply", reentrant),
    ):
        yield seen


_PRESERVE = "preserve_rng_state"


@functools.cache
def _non_reentrant() -> str:
    """Return the name of the generator inside which torch runs a region of the variant without reentrant autograd.

    Its name and the order of its arguments differ between versions of torch; that it is the one generator
    which is given whether to preserve the random state does not.
    """
    (found,) = (
        name
        for name, value in vars(home).items()
        if inspect.isgeneratorfunction(value) and _PRESERVE in inspect.signature(value).parameters
    )
    return found


class _Recomputation(Watch):
    """Compares what is recomputed in the backward with what the forward gave at the same line."""

    def __init__(self, module: nn.Module | None) -> None:
        super().__init__(module)
        self._forward: dict[tuple[object, ...], list[tuple[Op, list[int], Tensor]]] = {}
        self._regions: dict[tuple[object, ...], Location | None] = {}
        self.found: Divergence | None = None
        self.backward_ran = False

    def backward_called(self, root: Tensor) -> None:
        """Note that the run does its own backward."""
        self.backward_ran = True

    def after(
        self,
        func: Callable[..., object],
        args: object,
        kwargs: object,
        result: object,
        token: object,
    ) -> None:
        """Keep what the forward gave; compare what the backward gives again."""
        made = [t for t in tensors_in(result) if readable(t)]
        if not made or self.found is not None:
            return
        op = self.op(name_of(func))
        place = op.location
        # a module of torch's own has no line of the user's around it in the backward
        keys = ((op.name, op.module, place and (place.file, place.line)), (op.name, op.module))
        prints = [fingerprint(t) for t in made]
        if not op.backward:
            seen = (op, prints, made[0].detach().clone())
            for key in keys:
                self._regions.setdefault(key, self._region())
                self._forward.setdefault(key, []).append(seen)
            return
        key = next((key for key in keys if key in self._forward), keys[0])
        candidates = self._forward.get(key, [])
        if not candidates:
            return
        if any(known == prints for _, known, _ in candidates):
            return
        then = next((t for _, _, t in candidates if t.shape == made[0].shape), None)
        now = made[0].detach()
        fact = f"{op.name} gave {describe(now)} in the forward and other values when recomputed"
        share = 1.0
        if then is not None:
            mask = (then != now) & ~((then != then) & (now != now))
            share = float(mask.double().mean())
            fact += f": {int(mask.sum())} of {mask.numel()} elements differ"
        self.found = Divergence(
            kind="recomputed",
            op=op,
            location=op.location or candidates[0][0].location,
            module=op.module,
            fact=fact,
            share=share,
            region=self._regions.get(key),
        )

    def _region(self) -> Location | None:
        """Return the user's line that entered the checkpointed region which runs now."""
        within = [f for f in self.frames() if f.f_code.co_filename == home.__file__]
        return sources.of_frame(within[-1].f_back) if within else None


def find_recompute_divergence(
    run: Callable[[], object], module: nn.Module | None = None
) -> Divergence | None:
    """Find the first recomputed operation of a checkpointed backward that gives other values.

    Args:
        run: Forward and backward (a returned tensor with a graph is run backward if it was not).
        module: Names modules.

    Returns:
        The operation (a dropout whose generator is not restored, a layer that updates its
        statistics), or None where nothing was recomputed or all agrees.
    """
    watch = _Recomputation(module)
    parameters: Sequence[Tensor] = list(module.parameters()) if module is not None else []
    # stopping early would hide the last operation of a block, which raises instead of returning
    with gradients_kept(parameters), set_checkpoint_early_stop(False), watch:
        result = run()
        live = [t for t in tensors_in(result) if t.requires_grad]
        if live and not watch.backward_ran:
            torch.autograd.backward(live, [torch.ones_like(t) for t in live])
    return watch.found
