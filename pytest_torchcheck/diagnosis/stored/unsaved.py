"""State that ``state_dict()`` does not hold: what training changes in it, what a new instance draws anew."""

from __future__ import annotations

import ast
import copy
import inspect
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ... import sources
from ...explanation import listed, on_line
from ...findings import Culprit, Finding
from ...objects.weak import by_class
from ...runs.outputs import gap, outputs_of
from ...runs.pieces import Piece, per_sample, pieces, plain
from ...runs.saving import cloned
from ...sources.syntax import writes
from ...state import saved_state, seed_everything
from ...subject.errors import SubjectError
from ...verdicts import suspicious, violated
from .restarted import After, Parted, after

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Location
    from ...runs.outputs import Outputs
    from ...subject import Subject

_RANDOM = re.compile(
    r"\btorch\.(rand|randn|randint|randperm|normal|bernoulli|multinomial)\b|\.(normal_|uniform_|random_|bernoulli_)\("
    r"|\b(np|numpy)\.random\b|\brandom\.(random|randint|shuffle|sample|choice|uniform|gauss)\b|\binit\.(kaiming|xavier|orthogonal|normal|uniform|trunc)"
)
_SEEDED = re.compile(r"manual_seed|generator\s*=|\bseed\b|RandomState|default_rng\(\s*\w")
_FORMS = frozenset({"shape", "size", "numel", "dim", "ndim", "dtype", "device"})
_FORM = re.compile(r"^len$|_like$|\.new_(zeros|ones|empty|full)$")


def lost_by_training(subject: Subject, changed: list[Piece]) -> Finding | None:
    """Restore a model that has run in training from its checkpoint, and compare it with itself.

    Both are evaluated, and run in training mode then. What has one entry per sample is reset first:
    a stateful model starts its sequences anew.

    Raises:
        SubjectError: The model raised.
    """
    kept = _of_no_sample(subject, changed)
    if not kept:
        return None
    names = {piece.name for piece in kept}
    trained, saved, values = _train(subject, names)
    restored = _restored(subject, saved, {})
    parted = trained.against(restored)
    if parted is None:
        return None
    if trained.against(_train(subject, names)[0]) is not None:
        return None  # two equal runs differ already
    guilty = [
        piece
        for piece in kept
        if piece.name in values
        and trained.against(_restored(subject, saved, {piece.name: values[piece.name]})) is None
    ]
    confirmed = bool(guilty) or trained.against(_restored(subject, saved, values)) is None
    if not confirmed and names <= set(values):
        return None  # what decides is none of them
    return _unsaved(guilty or kept, parted, alone=bool(guilty), confirmed=confirmed)


def _of_no_sample(subject: Subject, changed: list[Piece]) -> list[Piece]:
    """Return the pieces that do not have one entry per sample.

    A width may equal the batch's size by chance: a tensor that keeps its shape with a sample less
    has no entry of it.

    Raises:
        SubjectError: The model raised.
    """
    symbol = subject.source.batch_symbol
    size = subject.batch().sizes.get(symbol) if symbol is not None else None
    doubtful = [piece for piece in changed if per_sample(piece, size)]
    kept = [piece for piece in changed if piece not in doubtful]
    if not doubtful or size is None or size < 3:
        return kept
    with subject.pristine(train=True, seeded=True) as model, torch.no_grad():
        try:
            subject.call(
                model, subject.source.rows(subject.batch().clone(), torch.arange(size - 1))
            )
        except SubjectError:  # what it holds fits one size of batch only
            return kept
        now = pieces(model)
    return kept + [
        piece
        for piece in doubtful
        if (other := now.get(piece.name)) is not None
        and isinstance(other.value, torch.Tensor)
        and isinstance(piece.value, torch.Tensor)
        and other.value.shape == piece.value.shape
    ]


def _unsaved(guilty: list[Piece], parted: Parted, *, alone: bool, confirmed: bool) -> Finding:
    """Explain what training changes, what decides later runs, and what no checkpoint holds."""
    first, names = guilty[0], listed([piece.name for piece in guilty])
    place = first.location
    line = on_line(place)
    # another rate of noise after a restart may be meant; learnt values that are overwritten cannot
    # be
    made = suspicious if parted.mode == "training" and not parted.overwritten else violated
    decides = (
        f"overwrites {listed(list(parted.overwritten))} after a restart"
        if parted.overwritten
        else f"determines the {parted.mode}"
    )
    carried = f"with {first.name if alone else names} carried over too, "
    because = carried + (
        "the next training forward does not change them so"
        if parted.overwritten
        else "the outputs are equal"
    )
    if not confirmed:
        because = "the restored model has equal parameters and buffers, but gives different outputs"
    return made(
        "state-unsaved",
        f"{names} changes in training and {decides}, but state_dict() does not hold it",
        culprits=[
            Culprit(
                "buffer" if p.kind in ("buffer", "left-out") else "tensor",
                p.name,
                location=p.location,
            )
            for p in guilty
        ],
        location=place,
        observed=f"after one training forward and a restart from its checkpoint, {parted.path} differs by "
        f"{parted.distance:.3g}" + (" in training mode" if parted.mode == "training" else ""),
        cause=f"{first.name} is "
        + {
            "buffer": "a buffer with persistent=False",
            "left-out": "a buffer that an overridden state_dict() omits",
            "tensor": "a plain tensor, not a buffer",
            "attribute": "a plain attribute, not a buffer",
        }[first.kind],
        because=because,
        fix={
            "buffer": f"drop persistent=False{line}",
            "left-out": f"begin with super().state_dict(*args, **kwargs){line}, which includes buffers",
        }.get(
            first.kind,
            f'write self.register_buffer("{first.key}", ...){line}, and change it in place',
        ),
        evidence={"difference": parted.distance, "changed": sorted(p.name for p in guilty)},
    )


def _train(
    subject: Subject, names: set[str]
) -> tuple[After, dict[str, Any], dict[str, tuple[nn.Module, str, Any]]]:
    """Run one training forward, then what :func:`_after` does.

    Returns:
        What came of it, the state dict before it, and the values of direct attributes and of
        buffers by name.
    """
    with subject.pristine(steps=True) as model:
        before = {id(m): dict(vars(m)) for m in model.modules()}
        model.train()
        seed_everything(subject.seed)
        with torch.no_grad():
            subject.call(model, subject.batch().clone())
        saved = {
            key: value.detach().clone() if isinstance(value, torch.Tensor) else value
            for key, value in model.state_dict().items()
        }
        values: dict[str, tuple[nn.Module, str, Any]] = {}
        for prefix, module in model.named_modules():
            old = before.get(id(module))
            if old is None:  # the forward made it, all of its attributes with it
                continue
            for key, value in [*vars(module).items(), *module._buffers.items()]:
                name = f"{prefix}.{key}" if prefix else key
                if name in names:
                    values[name] = (module, key, _copy(value))
                elif key in _REGISTRIES or key in module._buffers:
                    continue
                elif key not in old:
                    del vars(module)[key]
                elif old[key] is not value:
                    vars(module)[key] = old[key]
        return after(subject, model), saved, values


_REGISTRIES = {"_parameters", "_buffers", "_modules", "training"}


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return copy.deepcopy(value) if plain(value) is not None else value


def _restored(
    subject: Subject, saved: dict[str, Any], carried: dict[str, tuple[nn.Module, str, Any]]
) -> After:
    """Load a state dict into the pristine model, carry some values over, and do what :func:`_after` does."""
    with subject.pristine(steps=True) as model:
        model.load_state_dict(saved, strict=False)
        for module, key, value in carried.values():
            held = module._buffers.get(key)
            if held is not None and isinstance(value, torch.Tensor) and held.shape == value.shape:
                held.data.copy_(value)
            elif key in module._buffers:
                module._buffers[key] = value
            else:
                vars(module)[key] = value
        return after(subject, model)


def drawn_anew(subject: Subject, expected: Outputs) -> Iterator[Finding]:
    """Report what a module given as an instance drew at random when it was built, and does not save.

    The source says that it is drawn; a run with other values, after a load, says that the outputs depend on it.
    """
    for piece in pieces(subject.model).values():
        line = draws_at_random(piece.owner, piece.key)
        if line is None:
            continue
        with subject.pristine() as model:
            # a saved tensor may be a view of the piece
            saved = {key: cloned(value) for key, value in saved_state(model).items()}
            if not _exchange(piece):
                continue
            model.load_state_dict(saved, strict=False)  # which may compute it again
            difference = gap(outputs_of(subject, model), expected)
        if difference is None:
            continue
        yield violated(
            "state-lost",
            f"a checkpoint loses {piece.name}: it is drawn at random and not saved",
            culprits=[
                Culprit(
                    "buffer" if piece.kind == "buffer" else "tensor",
                    piece.name,
                    location=piece.location,
                )
            ],
            location=piece.location or line,
            observed=(
                f"with its values exchanged, {difference[0]} differs by {difference[1]:.3g}; "
                "state_dict() does not hold it"
            ),
            cause=f"{piece.name} is "
            + {
                "buffer": "a buffer with persistent=False",
                "tensor": "a plain tensor, neither parameter nor buffer",
                "attribute": "a plain attribute",
            }[piece.kind],
            because=f"line {line.line} draws it: {line.text}; a new instance draws other values",
            fix=f'write self.register_buffer("{piece.key}", ...)'
            if piece.kind != "buffer"
            else f'register_buffer("{piece.key}", ..., persistent=True)',
        )


def _exchange(piece: Piece) -> bool:
    """Give a piece other values of the same kind: the same ones in another order."""
    value = vars(piece.owner).get(piece.key, piece.owner._buffers.get(piece.key))
    if isinstance(value, torch.Tensor):
        if value.numel() < 2 or value.dim() == 0:
            if value.is_floating_point():
                value.data.mul_(1.5)
                return True
            return False
        value.data.copy_(value.data.flatten().roll(1).view(value.shape).clone())
        return True
    if isinstance(value, list) and len(value) > 1:
        vars(piece.owner)[piece.key] = [*value[1:], value[0]]
        return True
    if isinstance(value, float):
        vars(piece.owner)[piece.key] = value * 1.5
        return True
    return False


def draws_at_random(owner: nn.Module, key: str) -> Location | None:
    """Return the line of a constructor that draws an attribute's value, or None.

    Seeded draws give every instance the same values; they do not count.
    """
    for cls in type(owner).__mro__:
        known = _constructor(cls)
        if known is None:
            continue
        tree, filename = known
        made = list(_making(tree, key))
        for node in made:
            if _RANDOM.search(ast.unparse(node)):
                return sources.of_line(filename, node.lineno, f"{cls.__qualname__}.__init__")
        if made:
            return None  # the most derived constructor that makes it has the last word
    return None


@by_class
def _constructor(cls: type) -> tuple[ast.Module, str] | None:
    """Return the syntax tree and file of the ``__init__`` of a user's class that draws without a seed."""
    init = vars(cls).get("__init__")
    if not inspect.isfunction(init) or not sources.rank(init.__code__.co_filename):
        return None
    found = sources.parsed(init)
    return None if found is None or _SEEDED.search(inspect.getsource(init)) else found


def _making(tree: ast.AST, key: str) -> Iterator[ast.stmt]:
    """Iterate over the statements that make an attribute: the assignment, and those of the names whose values it reads."""
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    made = [node for node in statements if _makes(node, key)]
    while made:
        yield from made
        wanted = {name for node in made for name in _values_read(node)}
        statements = [node for node in statements if node not in made]
        made = [
            node
            for node in statements
            if any(isinstance(t, ast.Name) and t.id in wanted for t, _ in writes(node))
        ]


def _makes(node: ast.stmt, key: str) -> bool:
    if isinstance(node, ast.Assign):
        return any(isinstance(t, ast.Attribute) and t.attr == key for t in node.targets)
    call = node.value if isinstance(node, ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "register_buffer"
        and bool(call.args)
        and getattr(call.args[0], "value", None) == key
    )


def _values_read(node: ast.AST) -> Iterator[str]:
    """Yield the names whose values a statement reads, not those of which it takes the form alone."""
    if isinstance(node, ast.Attribute) and node.attr in _FORMS:
        return
    if isinstance(node, ast.Call) and _FORM.search(ast.unparse(node.func)):
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from _values_read(child)
