"""What stays behind when a model is moved: a run that pretends a GPU, and one on ``meta`` where that leaves a doubt."""

from __future__ import annotations

import contextlib
import linecache
import re
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from .. import sources
from ..codes.errors import explain_error
from ..lean import dataclass
from ..objects import trees
from ..probes.holding.held_by_models import Holding, holdings
from ..probes.placement import Placement, Pretend, stray_attribute
from ..state import seed_everything
from ..subject.building import wrapped_tensor
from ..subject.errors import SubjectError
from ..subject.losses import probe_loss
from ..subject.remembered import remembered
from ..text.printable import message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..batches import Batch
    from ..explanation import Explanation
    from ..findings import Location
    from ..subject import Subject

MetaKind = Literal["not-run", "ran", "mixed", "no-data", "unsupported", "crash"]


_MIXED = re.compile(
    r"same device|two devices|expected device|to be on the same|same device type|"
    r"indices should be either on cpu|expected to be in the same device"
)


_NO_DATA = re.compile(
    r"meta tensor|no data|data-dependent|data-independent|convert meta|Meta tensors|without output_size"
)


_UNSUPPORTED = re.compile(
    r"'?Meta'? backend|not implemented for 'Meta'|no fake impl|data pointer|invalid python storage"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaRun:
    """Forward and backward with every parameter and input on ``meta``.

    Attributes:
        kind: ``not-run`` where it was not needed; ``ran``; ``mixed`` devices; ``no-data`` where the
            code reads values; ``unsupported`` where an operation has no meta kernel; ``crash`` for
            any other error.
        message: First line of the error.
        location: The user's line of the error.
        explanation: The error, explained; None where it ran.
    """

    kind: MetaKind
    message: str = ""
    location: Location | None = None
    explanation: Explanation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Portability:
    """Evidence of both runs.

    Attributes:
        pretended: What the pretended run saw, also where it broke off.
        in_loss: What the declared loss did after it.
        broke: What stopped the pretended run, or None.
        meta: The run on meta, where there was one.
        held: Tensors that attributes hold and ``.to()`` leaves behind: path to what holds them.
    """

    pretended: Placement
    in_loss: Placement
    broke: SubjectError | None
    meta: MetaRun
    held: dict[str, Holding]


@remembered("portability")
def portability(subject: Subject) -> Portability:
    """Run the model under the pretence of a GPU; on ``meta`` too where that leaves a doubt, or is declared. Cached.

    The first use of ``meta`` in a process takes seconds (torch imports its symbolic shapes then),
    so it is the second witness and not the first.

    Raises:
        SubjectError: The model does not run at all.
    """
    left, followed = _left_behind(subject)
    few = subject.few(subject.batch(), aligned=True)
    pretended, in_loss, broke = _pretend(subject, left, followed, few)
    if few is not None and (broke is not None or _seen(pretended) or _seen(in_loss)):
        pretended, in_loss, broke = _pretend(
            subject, left, followed
        )  # told with the batch's own sizes
    if broke is not None:
        subject.forward(train=True)  # if this raises too, it is no matter of devices
    doubt = broke is not None or any(
        m.stray is not None and m.stray.kind == "unknown" and numpy_line(m.location) is None
        for m in pretended.mixtures
    )
    declared = any(device.partition(":")[0] != "cpu" for device in subject.contract.devices or ())
    meta = _on_meta(subject) if doubt or declared else MetaRun(kind="not-run")
    return Portability(
        pretended=pretended,
        in_loss=in_loss,
        broke=broke,
        meta=meta,
        held={path: holding for path, _, holding in left},
    )


Left = list[tuple[str, torch.Tensor, Holding]]


def _left_behind(subject: Subject) -> tuple[Left, list[torch.Tensor]]:
    """Return the tensors that attributes hold and that ``model.to("meta")`` leaves on the CPU, and those it moves."""
    found = holdings(subject.model)
    if not found or wrapped_tensor(subject.model) is not None:  # whose move nothing puts back
        return [], []
    with subject.pristine() as model:
        try:
            model.to("meta")
        except Exception:  # packed or custom parameters may refuse; then nothing has moved
            return _left(found), []
        now = {id(tensor) for holding in holdings(model) for _, tensor in holding.tensors()}
    left = [(path, tensor, holding) for path, tensor, holding in _left(found) if id(tensor) in now]
    followed = [tensor for _, tensor, _ in _left(found) if id(tensor) not in now]
    return left, followed


def _on_meta(subject: Subject) -> MetaRun:
    if (wrapping := wrapped_tensor(subject.model)) is not None:
        return MetaRun(kind="unsupported", message=f"{wrapping} is not moved there and back")
    with subject.pristine() as model:
        try:
            model.to("meta")
        except Exception as error:  # packed or custom parameters may refuse
            return _meta_error(error, "forward", model, None, None)
        batch = subject.batch().to(device="meta").clone()
        model.train()
        seed_everything(subject.seed)

        def run() -> Any:
            with torch.enable_grad():
                output = subject.contract.invoke(model, batch)
                loss = probe_loss(output)
            if loss.requires_grad:
                loss.backward()

        try:
            run()
        except SubjectError:
            return MetaRun(kind="ran")  # no output is differentiable: the forward ran
        except Exception as error:  # the user's code may raise anything
            return _meta_error(error, "forward", model, batch, run)
    return MetaRun(kind="ran")


def _orders(batch: Batch) -> Iterator[torch.Tensor]:
    """Yield the indices of packed sequences, which go where their data goes; their sizes stay on the CPU."""
    for _, leaf in batch.leaves(packed=False):
        if isinstance(leaf, nn.utils.rnn.PackedSequence):
            yield from (t for t in (leaf.sorted_indices, leaf.unsorted_indices) if t is not None)


def _left(found: list[Holding]) -> Left:
    return [
        (path, tensor, holding)
        for holding in found
        for path, tensor in holding.tensors()
        if tensor.device.type == "cpu"
    ]


def _meta_error(
    error: Exception,
    phase: Literal["forward"],
    model: nn.Module,
    batch: Batch | None,
    run: Callable[[], Any] | None,
) -> MetaRun:
    message = message_of(error).splitlines()[0] if message_of(error) else type(error).__name__
    kind: MetaKind = "crash"
    if _MIXED.search(message):
        kind = "mixed"
    elif _UNSUPPORTED.search(message):
        kind = "unsupported"
    elif _NO_DATA.search(message):
        kind = "no-data"
    explanation = None
    if kind == "mixed" and run is not None:
        explanation = explain_error(
            error, phase=phase, model=model, batch=batch, rerun=run, device="meta"
        )
    return MetaRun(
        kind=kind, message=message, location=sources.of_error(error), explanation=explanation
    )


def _pretend(
    subject: Subject, left: Left, followed: list[torch.Tensor], few: Batch | None = None
) -> tuple[Placement, Placement, SubjectError | None]:
    batch = (few or subject.batch()).clone()
    later = Placement()
    strays = [
        (tensor, stray_attribute(path, tensor, holding.location)) for path, tensor, holding in left
    ]
    with subject.pristine(train=True, seeded=True) as model:
        loss = subject.contract.loss
        own = loss.state_dict(keep_vars=True).values() if isinstance(loss, nn.Module) else ()
        given = [*batch.tensors().values(), *_orders(batch)]
        watch = Pretend(model, [*given, *followed, *own], strays)
        try:
            with watch, torch.enable_grad():
                output = subject.call(model, batch)
                later = _in_loss(subject, watch, output, batch, strict=few is not None)
                if _has_custom_functions(output):
                    with torch._C.DisableTorchFunction():  # our own loss is no part of the run
                        projected = probe_loss(output)
                    with subject.phase("backward", batch):
                        projected.backward()
        except SubjectError as error:
            return watch.found, later, error
    return watch.found, later, None


def _seen(found: Placement) -> bool:
    return bool(found.mixtures or found.syncs)


def _in_loss(
    subject: Subject, watch: Pretend, output: Any, batch: Batch, *, strict: bool
) -> Placement:
    """Run the declared loss under the pretence too, and return what was seen in it.

    Raises:
        SubjectError: The loss raised, and ``strict`` asks for that.
    """
    if not callable(subject.contract.loss):
        return Placement()
    before = len(watch.found.mixtures), len(watch.found.syncs)
    ops = watch.found.ops
    # another check tells of a loss that raises
    with contextlib.suppress(*([] if strict else [SubjectError])):
        subject.compute_loss(output, batch)
    watch.found.ops = ops
    seen = watch.found.split_off(*before)
    # tensors from outside, such as class weights, the user moves where they move the model
    seen.mixtures = [m for m in seen.mixtures if m.stray is None or m.stray.kind in _MADE]
    return seen


_MADE = ("factory", "literal", "fixed")


def _has_custom_functions(output: Any) -> bool:
    """Say whether the graph of an output holds the node of a custom autograd Function."""
    stack = [t.grad_fn for t in trees.tensors(output).values() if t.grad_fn is not None]
    seen = set(stack)
    while stack:
        node = stack.pop()
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return True
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return False


def numpy_line(place: Location | None) -> Location | None:
    """Return a line above an operation, in its function, that makes a tensor past torch's own functions."""
    if place is None:
        return None
    for line in range(place.line, max(place.line - 60, 0), -1):
        text = linecache.getline(place.file, line)
        if re.search(
            r"from_numpy\(|torch\.(Float|Long|Double|Int|Bool)?Tensor\(|from_dlpack\(", text
        ):
            moved = re.search(r"\.to\(|\.cuda\(|device", text)
            return None if moved else sources.of_line(place.file, line, place.function)
        if re.match(r"\s*(async\s+)?def ", text):
            return None
    return None
