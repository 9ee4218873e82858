"""Parts of a model that decide an output by choosing among codes, and that the output's targets do not train."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

from ...lean import dataclass
from ...objects import trees
from ...objects.kinds import here
from ...probes.loss.arguments import targets_of, with_target
from ...state import seed_everything
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.autograd.graph import Node

    from ...batches import Batch
    from ...subject import Subject

FLAT = ("Round", "Sign", "Floor", "Ceil", "Trunc", "Heaviside")
"""Starts of the names of autograd nodes whose derivative is zero everywhere."""
_SMALL, _WIDE = 1e-5, 3.0
_ROUNDED = 1e-10
"""Relative difference that rounding explains in float64; the small move changes what follows it smoothly by more."""
_SUMS = {"AddBackward0": 1.0, "SubBackward0": -1.0}
_MOST_SUMS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An output that follows some parameters in jumps only, and sends them no gradient.

    Attributes:
        output: Its path.
        parameters: Names of the parameters, which other terms of the loss train.
        cancels: Whether a sum on the way has a term that is taken off it again, as in ``z + (a - z)``.
    """

    output: str
    parameters: tuple[str, ...]
    cancels: bool = False


def blind_choice(subject: Subject) -> Choice | None:
    """Return the output whose targets do not train what decides it; None where there is none.

    Asked of losses of several outputs, since what nothing trains is found by its missing gradient. Cost:
    one forward of a few samples; where no gradient of an output comes to the inputs, three more, and two
    backwards.
    """
    batch = subject.few(subject.batch(), aligned=True) or subject.batch()
    if not callable(subject.contract.loss) or not targets_of(batch):
        return None
    if "trajectory" in subject.cache:
        with contextlib.suppress(SubjectError):  # a step that raises has shown no outputs
            if sum(needs for *_, needs in subject.gradients().outputs) < 2:
                return None
    try:
        for output, names, cancels in _cut_off(subject, batch):
            # what cancels is gone up to rounding only
            given = batch.to(dtype=torch.float64) if cancels else batch
            apart = _ROUNDED if cancels else 0.0
            blind = _blind(subject, given, names, apart)
            if blind and _jumps(subject, given, output, set(blind), apart):
                return Choice(output=output, parameters=blind, cancels=cancels)
    except SubjectError:
        return None
    return None


def _cut_off(subject: Subject, batch: Batch) -> Iterator[tuple[str, list[str], bool]]:
    """Iterate over outputs with a graph that leads to no input.

    Yields:
        The path, the trainable parameters beyond the graph, and whether contributions cancel in it.
    """
    batch = batch.clone()
    given = [
        leaf.requires_grad_(True)
        for _, leaf in batch.input_leaves()
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]
    if not given:
        return
    found: list[tuple[str, list[str], bool]] = []
    with subject.pristine(train=True, seeded=True) as model, torch.enable_grad():
        made = trees.floats(subject.call(model, batch))
        trained = {p: t for p, t in made.items() if t.requires_grad}
        reached = {path: _leaves(t) for path, t in trained.items()} if len(trained) > 1 else {}
        anywhere = set().union(*(leaves for leaves, _ in reached.values()))
        own = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
        for path, (leaves, cancels) in reached.items():
            beyond = [name for key, name in own.items() if key in anywhere - leaves]
            if beyond and leaves & own.keys() and not any(id(leaf) in leaves for leaf in given):
                found.append((path, beyond, cancels))
    yield from found


def _leaves(tensor: torch.Tensor) -> tuple[set[int], bool]:
    """Return the ids of the leaves to which a gradient comes that is not zero by definition; whether some cancels."""
    leaves: set[int] = set()
    stack: list[Node] = [tensor.grad_fn] if tensor.grad_fn is not None else []
    seen, cancels = set(stack), False
    while stack:
        node = stack.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            leaves.add(id(leaf))
        if node.name().startswith(FLAT):
            continue
        terms = terms_of(node)
        following = {after for (after, _), factor in terms.items() if factor} - seen
        cancels = cancels or not all(terms.values())
        seen |= following
        stack += following
    return leaves, cancels


def terms_of(node: Node) -> dict[tuple[Node, int], float]:
    """Return what a node passes its gradient on to; of sums each term, by its factor: 0 for ``z`` in ``z + (a - z)``."""
    if node.name() not in _SUMS:
        return {(after, place): 1.0 for after, place in node.next_functions if after is not None}
    terms: dict[tuple[Node, int], float] = defaultdict(float)
    stack, sums = [(node, 0, 1.0)], 0
    while stack:
        one, place, factor = stack.pop()
        sign = _SUMS.get(one.name())
        if sign is None or sums == _MOST_SUMS:
            terms[one, place] += factor
            continue
        sums += 1
        factors = (factor, factor * sign * float(getattr(one, "_saved_alpha", 1.0)))
        following = zip(one.next_functions, factors, strict=True)
        stack += [
            (after, place, factor) for (after, place), factor in following if after is not None
        ]
    return terms


def _jumps(
    subject: Subject, batch: Batch, output: str, names: set[str], apart: float = 0.0
) -> bool:
    """Say whether an output stays bit-equal where parameters move a little, and changes where they move far.

    What was detached on purpose changes with the least of moves.
    """
    known = _moved(subject, batch, output, names, 0.0, apart)
    far, near = (_moved(subject, batch, output, names, by, apart) for by in (_WIDE, _SMALL))
    return trees.apart(far, known) > apart >= trees.apart(near, known)


def _wide(subject: Subject, apart: float) -> contextlib.AbstractContextManager[Any]:
    """Return a block in which the model is in float64 where rounding is to be told from more."""
    return subject.in_double() if apart else contextlib.nullcontext()


def _moved(
    subject: Subject, batch: Batch, output: str, names: set[str], by: float, apart: float
) -> torch.Tensor:
    with subject.pristine(steps=True) as model, _wide(subject, apart), torch.no_grad():
        model.train()
        generator = torch.Generator().manual_seed(subject.seed)
        for name, parameter in model.named_parameters():
            if name in names and by:
                part = here(parameter)
                noise = torch.randn(part.shape, generator=generator).to(part)
                part.add_(by * (float(part.abs().mean()) or 0.1) * noise)
        seed_everything(subject.seed)
        made = trees.tensors(subject.call(model, batch.clone()))
        return made[output].detach().clone()


def _blind(subject: Subject, batch: Batch, names: list[str], apart: float = 0.0) -> tuple[str, ...]:
    """Return the parameters whose gradients are the same for other targets; none where all are."""
    before = _gradients(subject, batch, apart)
    blind = {name for name in before if bool(before[name].any())}
    known = len(blind)
    for target in targets_of(batch).values():
        after = _gradients(subject, with_target(batch, target, _other(target)), apart)
        blind = {n for n in blind if n in after and trees.apart(after[n], before[n]) <= apart}
    return tuple(name for name in names if name in blind) if len(blind) < known else ()


def _other(target: torch.Tensor) -> torch.Tensor:
    if target.is_floating_point():
        return target.flip(0) * 0.5 + 0.1 if target.dim() else target * 0.5
    return target.flip(0) if target.dim() else target


def _gradients(subject: Subject, batch: Batch, apart: float) -> dict[str, torch.Tensor]:
    with _wide(subject, apart), subject.backward(batch):
        return {
            name: trees.dense(p.grad).clone()
            for name, p in subject.model.named_parameters()
            if p.grad is not None
        }
