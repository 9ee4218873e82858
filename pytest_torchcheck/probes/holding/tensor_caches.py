"""Functions under ``functools.lru_cache`` that are called with tensors made anew: they never hit, and keep everything.

A tensor is hashed by its identity. One that every step makes anew is a new key, though its values
are the old ones.
"""

from __future__ import annotations

import functools
import gc
import itertools
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ... import sources
from ...lean import dataclass
from ...measure.plain_step import plain_step
from ...objects import heap
from ...record.lines import traced
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.gradients import clear_gradients

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from ...batches import Batch
    from ...findings import Location
    from ...subject import Subject

_ROUNDS = 3
_Cached = type(functools.lru_cache(lambda: None))


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorCache:
    """A cached function whose entries grow with every step, by keys that no later call can have.

    Attributes:
        name: What the user calls it.
        kept: How many entries it holds after the last step.
        per_step: How many more with each.
        bounded: Its ``maxsize``, or None where nothing ever leaves it.
        made: The line that makes it: its decorator, where it has one.
        called: The line that calls it with a tensor.
    """

    name: str
    kept: int
    per_step: int
    bounded: int | None
    made: Location | None
    called: Location | None


def tensor_cache(subject: Subject, *, training: bool) -> TensorCache | None:
    """Run some steps, or calls, and return the cached function of the user's that keeps more with each and never hits.

    Every entry that they add must hold a tensor that is none of the batch, nor a view of one: an
        input may come again.
    """
    heap.thaw()
    cached: list[Any] = [o for o in gc.get_objects() if type(o) is _Cached and _is_users(o)]
    if not cached:
        return None
    calls = _Calls({one.__wrapped__.__code__ for one in cached})
    infos: dict[int, list[Any]] = {id(one): [one.cache_info()] for one in cached}
    known: dict[int, set[int]] = {id(one): _keys(one).keys() | set() for one in cached}
    anew = {id(one): True for one in cached}
    with subject.pristine(steps=training) as model:
        clear_gradients(model)
        model.train(training)
        seed_everything(subject.seed)
        try:
            made = subject.make_optimizer(model) if training else None
            for _ in range(_ROUNDS):
                batch = subject.batch().clone()
                with traced(calls.enter):
                    _run(subject, model, made, batch)
                given = {t.untyped_storage()._cdata for t in batch.tensors().values() if _dense(t)}
                for one in cached:
                    keys = _keys(one)
                    fresh = [key for number, key in keys.items() if number not in known[id(one)]]
                    anew[id(one)] &= bool(fresh) and all(_is_anew(key, given) for key in fresh)
                    known[id(one)] |= keys.keys()
                    infos[id(one)].append(one.cache_info())
        except SubjectError:
            return None
    for one in cached:
        sizes = [info.currsize for info in infos[id(one)]]
        steps = {after - before for before, after in itertools.pairwise(sizes)}
        hits = infos[id(one)][-1].hits - infos[id(one)][0].hits
        if anew[id(one)] and len(steps) == 1 and min(steps) > 0 and not hits:
            return TensorCache(
                name=_name(one),
                kept=sizes[-1],
                per_step=min(steps),
                bounded=infos[id(one)][-1].maxsize,
                made=_made(one),
                called=calls.found.get(one.__wrapped__.__code__),
            )
    return None


def _run(subject: Subject, model: Any, made: Any, batch: Batch) -> None:
    if made is None:
        import torch

        with torch.no_grad():
            subject.call(model, batch)
    elif subject.contract.train_step is None and subject.contract.loss is None:
        plain_step(subject, model, made, batch)
    else:
        subject.train_step(model, made, batch)


def _is_users(cached: Any) -> bool:
    code = getattr(getattr(cached, "__wrapped__", None), "__code__", None)
    return code is not None and sources.rank(code.co_filename) == 2


def _keys(cached: Any) -> dict[int, Any]:
    """Return the keys of a cache, by identity; they live as long as their entries do."""
    size = cached.cache_info().currsize
    own = getattr(cached, "__dict__", None)
    for thing in gc.get_referents(cached):
        if type(thing) is dict and thing is not own and len(thing) == size:
            return {id(key): key for key in thing}
    return {}


def _is_anew(key: Any, given: set[int]) -> bool:
    parts = key if isinstance(key, tuple | list) else (key,)
    return any(
        isinstance(part, Tensor) and _dense(part) and part.untyped_storage()._cdata not in given
        for part in parts
    )


def _dense(tensor: Tensor) -> bool:
    try:
        return tensor.untyped_storage() is not None
    except Exception:  # sparse, or of a subclass of the user's that refuses torch's functions
        return False


def _name(cached: Any) -> str:
    function = cached.__wrapped__
    names = (str(name) for name, value in function.__globals__.items() if value is cached)
    return next(names, str(function.__qualname__).rpartition("<locals>.")[2])


def _made(cached: Any) -> Location | None:
    """Return the decorator's line, or the one that gives the cached function its name."""
    code: CodeType = cached.__wrapped__.__code__
    above = sources.of_line(code.co_filename, code.co_firstlineno)
    if above.text.startswith("@"):
        return above
    found = sources.file_matches(code.co_filename, rf"\b{_name(cached)}\s*=[^=].*\b(lru_cache|cache)\b")  # fmt: skip
    return found[0] if len(found) == 1 else above


class _Calls:
    """Notes, while it is entered, the line that calls each of some functions with a tensor."""

    def __init__(self, codes: set[CodeType]) -> None:
        self._codes = codes
        self.found: dict[CodeType, Location] = {}

    def enter(self, frame: FrameType, event: str, _: Any) -> None:
        code, back = frame.f_code, frame.f_back
        if event != "call" or code not in self._codes or code in self.found or back is None:
            return
        if any(isinstance(frame.f_locals.get(n), Tensor) for n in code.co_varnames):
            line = sources.of_frame(back)
            if line is not None:
                self.found[code] = line
