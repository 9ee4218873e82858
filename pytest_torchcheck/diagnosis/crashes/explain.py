"""Explain an exception of the user's code: what is at fault, on which line, why, and what to change."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, islice
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from ... import deadline
from ...explanation import PHASE_WORDS, Explanation, clipped, listed
from ...state.modules import ModuleState
from ...text.printable import UNREADABLE
from .layers import from_input, input_of, with_squeeze
from .scene import Scene
from .table import entries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...explanation import Phase

__all__ = ["Explanation", "explain_error"]

SEARCHED = 10_000
"""Characters of a message that patterns search: torch's own words come first, the rest is data, such as printed tensors."""


def explain_error(
    error: BaseException,
    *,
    phase: Phase,
    model: Any = None,
    batch: Any = None,
    rerun: Callable[..., object] | None = None,
    device: str = "cpu",
) -> Explanation:
    """Explain an exception that the user's code raised.

    What can be told from the message, the traceback and the live objects in its frames is told without
    running anything. Where that is not enough, ``rerun`` is called: at most three times.

    Args:
        error: What was raised, with its traceback.
        phase: Where in a training step: ``build``, ``batch``, ``data``, ``forward``, ``loss``,
            ``backward`` or ``step``.
        model: The model, for the names of its modules, parameters and buffers.
        batch: What it was called with: an object with ``args``, ``kwargs`` and ``targets``.
        rerun: Does again what failed. If it takes an argument named ``device``, it is called with
            ``device="cpu"`` where the device cannot be used any more (after a device-side assert).
        device: Where it ran.

    Returns:
        The explanation; ``code`` is ``crash`` for an error that the table does not know, or whose
        explanation takes longer than :mod:`pytest_torchcheck.deadline` allows.
    """
    # what was tried on the CPU first has a model of its own there
    model, device = getattr(rerun, "model", None) or model, getattr(rerun, "device", device)
    scene = Scene(error, phase=phase, model=model, batch=batch, rerun=rerun, device=device)
    budget = deadline.Budget()
    nested = deadline.running()
    try:
        with budget.spent():
            return _explained(scene)
    except deadline.TooLongError:
        if nested:
            raise
        return _out_of_time(scene, budget.seconds)


def _explained(first: Scene) -> Explanation:
    """Ask the table about an error, then about those that it was raised from."""
    current: BaseException | None = first.error
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        scene = first if current is first.error else first.of(current)
        if (found := explain_scene(scene)) is not None:
            return with_squeeze(scene, with_other_inputs(scene, found))
        # the user's code may have wrapped torch's error in one of its own
        current = current.__cause__ or (
            None if current.__suppress_context__ else current.__context__
        )
    return with_squeeze(first, _unknown(first))


def explain_scene(scene: Scene) -> Explanation | None:
    """Ask the table; None where no entry knows the error."""
    names = {cls.__name__ for cls in type(scene.error).__mro__}
    searched = scene.message[:SEARCHED]
    for entry in entries():
        deadline.keep()
        if entry.types and not names.intersection(entry.types):
            continue
        if entry.phases and scene.phase not in entry.phases:
            continue
        if (match := entry.pattern.search(searched)) is None:
            continue
        if (found := entry.explain(scene, match)) is not None:
            return found
    return None


def _out_of_time(scene: Scene, seconds: float) -> Explanation:
    """Say what is certain of an error where explaining it took too long; nothing is run."""
    name, message = type(scene.error).__name__, scene.first_line or "(no message)"
    return scene.explain(
        code="crash",
        summary=f"{PHASE_WORDS[scene.phase]} raises {name}: {clipped(message, 140)}",
        observed=f"explaining it took more than {seconds:g} s and was stopped",
        because=f"the message is {message!r}",
        fix="see the traceback in the report",
    )


def _line_values(scene: Scene) -> str:
    found = scene.values()
    return f"; {found}" if found and found != scene.first_line else ""


def _unknown(scene: Scene) -> Explanation:
    """Say what is certain of an error that the table does not know."""
    name = type(scene.error).__name__
    where = PHASE_WORDS[scene.phase]
    running = [scene.name_of(module) for module in scene.running]
    path = " > ".join(dict.fromkeys(running))
    message = scene.first_line or "(no message)"
    at = f" in {running[-1]}" if running else ""
    op = scene.failing_op
    called = ""
    if op is not None and op.inputs:
        called = f"; {op.name} was given " + ", ".join(
            f"{fact.name + ' ' if fact.name else ''}{fact.dtype} {list(fact.shape)}"
            for fact in op.inputs[:4]
        )
    place = scene.location
    refuses = place is not None and place.text.startswith(("raise ", "assert "))
    called_by = op.name if op is not None else "the call"
    told = scene.first_line and not scene.message.startswith(UNREADABLE)
    if place and refuses:
        cause = f"your own code rejects its input: line {place.line} raises {name}"
        fix = f"{'pass what the message asks for, or ' if told else ''}correct the condition before line {place.line}"
    elif place:
        reason = "; its message gives the reason" if told else ""
        cause = f"{called_by} on line {place.line} raises {name}{reason}"
        fix = f"change what the call on line {place.line} is given" + (
            ", as its message says" if told else ""
        )
    else:
        cause, fix = f"{name} was raised outside your own code", "see the traceback in the report"
    return scene.explain(
        code="crash",
        summary=f"{where} raises {name}{at}: {clipped(message, 140)}",
        observed=(f"running: {path}" if path else f"phase: {scene.phase}")
        + (called or _line_values(scene)),
        cause=cause,
        because=f"the message is {scene.first_line!r}"
        if told
        else f"it has no message {scene.first_line}".rstrip(),
        fix=fix,
    )


_SIZES = frozenset({"matmul-shapes", "broadcast-shapes", "norm-shape", "cat-sizes", "view-size"})
_SWAPPED = frozenset({"dtype-pair", "index-dtype", "channels", *_SIZES})
_MOST = 24
"""Other inputs that are tried at most."""
_COMMON = (28, 32, 16, 64, 8, 24, 12, 48, 96, 128, 224, 256)
_UNEQUAL = re.compile(r"size (?:of tensor a )?\(?(\d+)\)? (?:but got size|must match.*\() ?(\d+)")


def with_other_inputs(scene: Scene, found: Explanation) -> Explanation:
    """Ask which of two is meant, the model or its inputs, where it runs with other ones.

    Args:
        scene: The error.
        found: What is said of it; its fix changes the model.
    """
    if scene.phase != "forward" or found.code not in _SWAPPED or " declare " in found.fix:
        return found
    if not isinstance(scene.model, nn.Module) or scene.batch is None or not found.fix:
        return found
    if (unequal := _unequal(scene)) is not None:
        return replace(found, cause=unequal, fix="give every input the same number of samples")
    if found.fix.startswith("call ") and found.code in _SIZES:
        return found  # dimensions in another order are seen to fit
    tried = islice(_others(scene, found.code), _MOST)
    words = next((words for words, change in tried if _runs(scene, change)), None)
    if words is None:
        return found
    both = scene.failing_op.inputs[:2] if scene.failing_op is not None else ()
    computed = len(both) == 2 and all(from_input(scene, fact) for fact in both)
    if computed and " differ by one;" in found.because and " size " in words:
        # one more entry, such as a class token, would be one more at every size
        found = replace(
            found,
            cause="the two sizes agree for other inputs: on one side a stride, a pooling or a division rounds, "
            "or a size is fixed",
            fix=f"cut the longer one to the size of the other, or interpolate to it{scene.on_line}",
        )
    return replace(
        found, fix=f"{found.fix}; or, if the model is right, {words} (tried: the forward runs)"
    )


def _unequal(scene: Scene) -> str | None:
    """Say that two inputs hold unlike numbers of samples, where those are the sizes that do not fit."""
    sizes = _UNEQUAL.search(scene.first_line)
    first = {name: value.shape[0] for name, value in scene.inputs.items() if value.dim()}
    a, b = (
        (next((n for n, v in first.items() if v == int(s)), "") for s in sizes.groups())
        if sizes
        else ("", "")
    )
    if not a or not b or a == b or first[a] == first[b]:
        return None
    return f"{a} holds {first[a]} samples, and {b} holds {first[b]}"


Change = Callable[[torch.Tensor], torch.Tensor]


def _others(scene: Scene, code: str) -> Iterator[tuple[str, Change]]:
    """Yield other inputs in words, with what makes them, the likeliest first."""
    named = [(n, v) for n, v in scene.inputs.items() if not v.is_nested and v.dim() > 1]
    for (one, a), (two, b) in combinations(named, 2):
        if a.dtype != b.dtype or a.shape != b.shape:
            yield (
                f"give {one} and {two} in the other order",
                lambda leaf, a=a, b=b: b if leaf is a else a if leaf is b else leaf,  # type: ignore[misc]
            )
    for name, value in named:
        if code == "channels" and value.dim() > 2:
            yield (
                f"give {name} with its channels in dimension 1, as .movedim(-1, 1) does",
                lambda leaf, value=value: value.movedim(-1, 1) if leaf is value else leaf,  # type: ignore[misc]
            )
    if code in _SIZES:
        yield from _resized(scene, named)


def _resized(scene: Scene, named: list[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, Change]]:
    known: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    for _, value in named:
        whole = [(2, 3)] if value.dim() == 4 else []
        for dims in [*whole, *((d,) for d in range(1, value.dim()) if value.dim() != 4)]:
            old = tuple(value.shape[d] for d in dims)
            if (dims, old) in known:
                continue
            known.add((dims, old))
            alike = [n for n, v in named if _has(v, dims, old)]
            where = f"dimension{'s' * (len(dims) > 1)} {' and '.join(map(str, dims))}"
            had = "x".join(map(str, dict.fromkeys(old)))
            for new in _sizes(scene, old):
                yield (
                    f"give {listed(alike, 3)} size {new} instead of {had} in {where}",
                    lambda leaf, dims=dims, old=old, new=new: _cut(leaf, dims, old, new),  # type: ignore[misc]
                )


def _sizes(scene: Scene, old: tuple[int, ...]) -> list[int]:
    module, given = scene.module, input_of(scene)
    around = list(dict.fromkeys(old))
    if isinstance(module, nn.Linear) and given is not None and given.dim():
        share = module.in_features / given.shape[-1]
        around.insert(0, round(old[0] * (math.sqrt(share) if len(old) > 1 else share)))
    named = [int(number) for number in re.findall(r"\b\d{1,4}\b", scene.first_line)]
    near = [middle + step for middle in around for step in (0, -1, 1, -2, 2, -3, 3, -4, 4)]
    made = dict.fromkeys([*near[:9], *named, *near, *_COMMON])
    return [size for size in made if 1 < size <= 1024 and (size,) * len(old) != old][: _MOST // 2]


def _has(value: torch.Tensor, dims: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    return value.dim() > max(dims) and tuple(value.shape[dim] for dim in dims) == sizes


def _cut(leaf: torch.Tensor, dims: tuple[int, ...], old: tuple[int, ...], new: int) -> torch.Tensor:
    """Return an input with another size in some dimensions, cut or repeated."""
    if not _has(leaf, dims, old):
        return leaf
    for dim, size in zip(dims, old, strict=True):
        leaf = leaf.index_select(dim, torch.arange(new, device=leaf.device) % size)
    return leaf


def _runs(scene: Scene, change: Change) -> bool:
    """Say whether the model runs with other inputs; it is put back."""
    deadline.keep()
    model: Any = scene.model

    def made(leaf: Any) -> Any:
        return change(leaf).detach().clone() if isinstance(leaf, torch.Tensor) else leaf

    args, kwargs = tree_map(made, (tuple(scene.batch.args), dict(scene.batch.kwargs)))
    kept = ModuleState(model)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model(*args, **kwargs)
    except Exception:
        return False
    finally:
        kept.restore(parameters=False)
    return True
