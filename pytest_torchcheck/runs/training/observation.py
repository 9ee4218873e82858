"""One training step of the subject, watched once for all checks that need to know what took part in it."""

from __future__ import annotations

import contextlib
import itertools
import math
import zlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...data.contents import raw_bytes
from ...functions.discovery import RecordedCall, recording
from ...lean import dataclass
from ...objects import trees
from ...objects.kinds import shape_of
from ...probes.gradient.recompute_divergence import watch_checkpointing
from ...probes.holding.held_by_models import Holding, graph_leaves, holdings, owned
from ...probes.numbers.signals import SignalWatch
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.gradients import clear_gradients
from ...subject.optimizers import optimizers_of
from ...subject.remembered import remembered
from ..liveness.idle_rows import silent_rows
from ..losses.consumption import LossSight
from ..pieces import Piece, differing, pieces

if TYPE_CHECKING:
    from ...batches import Batch
    from ...findings import Location
    from ...probes.numbers.signal_facts import Signals
    from ...subject import Subject
    from ..liveness.idle_rows import IdleRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Evidence of one forward, loss and backward in training mode.

    Attributes:
        signals: What the modules gave and got.
        held: Tensors and modules that attributes hold and no registration knows, before the step.
        changed: What the forward changed outside of the state dict, as it was afterwards.
        late: Parameters that the forward registered.
        strangers: Modules that ran without being registered or held: class, line, and whether they
            were made for this forward only.
        foreign: Parameters that get a gradient, and are neither registered, held nor of such a module.
        live: Paths of held tensors (a hidden module's parameters among them) that got a gradient.
        called: Paths of hidden modules whose forward ran.
        applied: Calls of the user's autograd Functions and operators.
        regions: How many regions ran under activation checkpointing.
        silent: Blocks of a layer's rows to which no gradient came.
    """

    signals: Signals
    held: tuple[Holding, ...]
    changed: tuple[Piece, ...]
    late: tuple[str, ...]
    strangers: tuple[Stranger, ...]
    foreign: tuple[Foreign, ...]
    live: frozenset[str]
    called: frozenset[str]
    applied: tuple[RecordedCall, ...]
    regions: int
    silent: tuple[IdleRows, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    """A module with weights that ran and is neither registered nor held by an attribute.

    Attributes:
        kind: Its class.
        location: The line that called it.
        made: The line that made it, where that is known.
        fleeting: Whether it was gone after the step: made in the forward, with new weights each time.
    """

    kind: str
    location: Location | None
    made: Location | None
    fleeting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """A parameter that a forward or a loss reads, and the model does not have.

    Attributes:
        shape: Its shape.
        name: Its name in the loss, where that is a module which registers it; else empty.
        in_output: Whether an output of the model is computed from it.
        held: Whether an optimizer of the contract holds it.
    """

    shape: tuple[int, ...]
    name: str
    in_output: bool
    held: bool


@remembered("observation")
def observe(subject: Subject) -> Observation:
    """Run the step; cached.

    Raises:
        SubjectError: The model, the loss or the backward raised.
    """
    batch = subject.batch().clone()
    with subject.pristine() as model:
        seen = Watched(subject, model)
        clear_gradients(model)
        model.train()
        seed_everything(subject.seed)
        with torch.enable_grad():
            seen.passes(model, batch)
        return seen.observation()


class Watched:
    """Watches one forward, loss and backward; made before them, from the pristine state.

    Args:
        subject: Whose step.
        model: Its model.
        losses: See the loss as well, for
            :func:`~pytest_torchcheck.runs.losses.consumption.evidence`; a step only, with a
            backward.
    """

    def __init__(self, subject: Subject, model: nn.Module, *, losses: bool = False) -> None:
        self._subject, self._model, self._losses = subject, model, losses
        self._held = tuple(holdings(model))
        self._before = pieces(model, self._held)
        self._modules = {id(module) for module in model.modules()}
        self._known = {name for name, _ in model.named_parameters()}
        self._gradients = [
            (path, tensor)
            for held in self._held
            for path, tensor in held.tensors()
            if tensor.requires_grad
        ]
        self._made: Observation | None = None

    def _changed(self, model: nn.Module) -> tuple[Piece, ...]:
        """Return what the forward changed of the modules that were there before it."""
        return tuple(
            piece
            for piece in differing(self._before, pieces(model))
            if id(piece.owner) in self._modules
        )

    def passes(self, model: nn.Module, batch: Batch) -> tuple[Any, torch.Tensor | None]:
        """Run forward, loss and backward of a model in training mode, as far as there is a gradient.

        Returns:
            Output and loss; None for a loss that no backward could run from.

        Raises:
            SubjectError: The model, the loss or the backward raised.
        """
        subject, held = self._subject, self._held
        for _, tensor in self._gradients:
            if tensor.is_leaf:
                tensor.grad = None
        called, handles = _watch_calls(held)
        symbol = subject.source.batch_symbol
        size = batch.sizes.get(symbol) if symbol is not None else None
        watch = SignalWatch(model, size, subject.contract.batch_dim)
        sight = LossSight(subject, model, batch) if self._losses else None
        loss: torch.Tensor | None = None
        try:
            with recording() as applied, watch_checkpointing() as checkpointing:
                with contextlib.nullcontext() if sight is None else sight.watch:
                    with watch:
                        output = subject.call(model, batch)
                    changed = self._changed(model)
                    late = tuple(n for n, _ in model.named_parameters() if n not in self._known)
                    if _differentiable(output):
                        if sight is not None:
                            sight.between(output)
                        loss = subject.compute_loss(output, batch)
                if loss is not None and loss.requires_grad:
                    if sight is not None:
                        consumed, outputs = sight.wanted(output)
                        for tensor in (*consumed, *outputs.values()):
                            tensor.retain_grad()
                    with subject.phase("backward", batch):
                        (loss if loss.dim() == 0 else loss.sum()).backward()
        finally:
            for handle in handles:
                handle.remove()
        live = {
            path for path, tensor in self._gradients if tensor.is_leaf and tensor.grad is not None
        }
        live |= {h.path for h in held if h.kind == "tensor" and _reaches(h.value, model)}
        self._made = Observation(
            signals=watch.seen,
            held=held,
            changed=changed,
            late=late,
            strangers=_strangers(watch, held, model),
            foreign=_foreign(subject, model, watch, (output, loss)),
            live=frozenset(live),
            called=frozenset(called),
            applied=tuple(applied),
            regions=checkpointing.regions,
            silent=() if loss is None else silent_rows(model),
        )
        if sight is not None and loss is not None:
            sight.keep(output, loss)
        return output, loss if loss is not None and loss.requires_grad else None

    def observation(self) -> Observation:
        """Return what was seen of the passes."""
        assert self._made is not None
        return self._made

    def keep(self) -> None:
        """Keep for :func:`observe` what was seen of passes that are the same as its own."""
        self._subject.cache.setdefault("observation", self.observation())


def _watch_calls(held: tuple[Holding, ...]) -> tuple[set[str], list[Any]]:
    """Note which of the held modules are called; return the notes and the handles of the hooks."""
    hidden = {id(h.value): h.path for h in held if h.kind == "module"}
    called: set[str] = set()
    handles = [
        h.value.register_forward_pre_hook(lambda module, _: called.add(hidden[id(module)]))
        for h in held
        if h.kind == "module"
    ]
    return called, handles


def _differentiable(output: object) -> bool:
    return any(tensor.requires_grad for tensor in trees.tensors(output).values())


def _strangers(
    watch: SignalWatch, held: tuple[Holding, ...], model: nn.Module
) -> tuple[Stranger, ...]:
    """Say which unregistered modules with weights ran, and which of them are gone already."""
    known = {id(part) for h in held if h.kind == "module" for part in h.value.modules()}
    known |= {id(part) for part in model.modules()}  # those too that the forward registered
    weights = {id(p) for p in model.parameters()} | {id(t) for h in held for _, t in h.tensors()}
    found = []
    for seen in watch.strangers:
        module = seen.module()
        if id(module) in known or all(id(p()) in weights for p in seen.parameters):
            continue
        trained = module is None or any(p.grad is not None for p in module.parameters())
        if trained:
            found.append(
                Stranger(
                    kind=seen.kind, location=seen.location, made=seen.made, fleeting=module is None
                )
            )
    return tuple(found)


def _foreign(
    subject: Subject,
    model: nn.Module,
    watch: SignalWatch,
    made: tuple[Any, torch.Tensor | None],
) -> tuple[Foreign, ...]:
    """Return the parameters that the graph of a loss leads to, and that nobody is known to have."""
    output, loss = made
    known = {id(ref()) for seen in watch.strangers for ref in seen.parameters}
    known |= {id(parameter) for parameter in model.parameters()}
    leaves = graph_leaves(loss) if loss is not None else []
    others = [t for t in leaves if isinstance(t, nn.Parameter) and id(t) not in known]
    if others:  # what attributes hold is walked through only then
        held = owned(model)
        others = [t for t in others if id(t) not in held]
    if not others:
        return ()
    in_output = {id(t) for o in trees.tensors(output).values() for t in graph_leaves(o)}
    criterion = subject.contract.loss
    own = criterion.named_parameters() if isinstance(criterion, nn.Module) else ()
    names = {id(p): name for name, p in own}
    optimized: set[int] = set()
    with contextlib.suppress(SubjectError):  # weights-update tells what it raises
        made_by_user = optimizers_of(subject.make_optimizer(model))
        optimized = {id(p) for o in made_by_user for g in o.param_groups for p in g["params"]}
    return tuple(
        Foreign(
            shape=tuple(t.shape), name=names.get(id(t), ""), in_output=id(t) in in_output,
            held=id(t) in optimized,
        )
        for t in others
    )  # fmt: skip


def _reaches(tensor: torch.Tensor, model: torch.nn.Module) -> bool:
    """Say whether a tensor that was computed from leaves has sent a gradient to one that is not registered."""
    if tensor.grad_fn is None:
        return False
    registered = {id(p) for p in model.parameters()}
    return any(
        leaf.grad is not None and id(leaf) not in registered for leaf in graph_leaves(tensor)
    )


def checksums(model: nn.Module) -> dict[str, int]:
    """Return a checksum of the bits of every parameter and buffer."""
    return digests(dict((*model.named_parameters(), *model.named_buffers())))


def digests(tensors: dict[str, torch.Tensor]) -> dict[str, int]:
    """Return a checksum of the bits of every strided tensor on the CPU."""
    return {
        name: zlib.crc32(raw_bytes(tensor), hash((tensor.dtype, shape_of(tensor))) & 0xFFFFFFFF)
        for name, tensor in tensors.items()
        if tensor.device.type == "cpu" and tensor.layout == torch.strided
    }


def number_of(value: Any) -> float:
    """Return a loss as a number, NaN where it is none."""
    if isinstance(value, torch.Tensor):
        return float(value.detach().float().mean()) if value.numel() else math.nan
    if isinstance(value, int | float):
        return float(value)
    return math.nan


def largest_of(tensor: torch.Tensor) -> float:
    """Return the largest magnitude in a tensor; 0 for an empty one."""
    if not tensor.numel():
        return 0.0
    if tensor.is_complex():
        return float(tensor.abs().max())
    low, high = torch.aminmax(tensor)  # NaN wins both
    return max(abs(float(low)), abs(float(high)))


_CHUNK = 2**20
"""Elements that are compared at a time: the difference of two large tensors is as large as they are."""


def change_of(after: torch.Tensor, before: torch.Tensor) -> float:
    """Return ``max|after - before|`` of two tensors of one shape; NaN where an element is."""
    small = after.numel() <= _CHUNK
    if small or not (after.is_contiguous() and before.is_contiguous()):
        return largest_of(after - before)
    pairs = zip(after.view(-1).split(_CHUNK), before.view(-1).split(_CHUNK), strict=True)
    return max((largest_of(now - then) for now, then in pairs), key=lambda n: (math.isnan(n), n))


def first_drop(counts: list[tuple[int, ...]]) -> int | None:
    """Return the first step after which a count is lower than after the step before it; None where none is.

    Args:
        counts: After each step, beginning with nothing before the first: what each optimizer holds.
    """
    pairs = enumerate(itertools.pairwise(counts))
    return next((n for n, (a, b) in pairs if any(map(int.__gt__, a, b))), None)
