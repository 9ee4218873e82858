"""Whose an exception is that was raised while the user's code ran: theirs, or that of what observed it."""

from __future__ import annotations

import functools
import linecache
import os
import re
import traceback
from collections import Counter
from typing import TYPE_CHECKING, Final

import torch

from . import sources
from .objects.trees import NestedTooDeepError
from .record.modes import UnobservableError
from .text.printable import message_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from .subject import Subject
    from .subject.errors import SubjectError

_HERE: Final = os.path.dirname(os.path.realpath(__file__)) + os.sep
_TORCH: Final = os.path.dirname(os.path.realpath(torch.__file__)) + os.sep
_HANDED_ON: Final = re.compile(
    r"(?<![.\w])original\(|\w\((?:\w+, )*\*args(?:, \*\*(?:kwargs|\(kwargs or \{\}\)))?\)"
)
"""How an observer's line calls what it observes: with the arguments that it got, or some of them read already."""
_RECURSION: Final = 50
"""Frames of one function from which on it is that which calls itself without end."""


def raised_by_observer(error: BaseException) -> bool:
    """Say whether a hook or mode of this package raised within a call of the user's, or of torch's.

    Args:
        error: What came out of the user's model, loss or step, with its traceback.
    """
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, RecursionError):  # which ends wherever the last frame happens to be
        whose = (f for f, _ in frames if is_own(f) or sources.rank(f.f_code.co_filename) == 2)
        code, count = next(iter(Counter(f.f_code for f in whose).most_common(1)), (None, 0))
        if count > _RECURSION:
            return any(f.f_code is code and is_own(f) for f, _ in frames)
    for place in range(len(frames) - 1, -1, -1):
        frame, line = frames[place]
        if is_own(frame):
            text = linecache.getline(frame.f_code.co_filename, line)
            return _HANDED_ON.search(text) is None and any(_is_called(f) for f, _ in frames[:place])
        if sources.rank(frame.f_code.co_filename):
            return False
    return False


def only_observed(error: SubjectError) -> bool:
    """Say whether torch's compiler refused what it compiles by itself because it was observed.

    Operators such as ``cond`` and ``flex_attention`` compile their functions also outside
    ``torch.compile``. The same call is made once more, with nothing that observes it.
    """
    if isinstance(error.error, UnobservableError):
        return True
    if not type(error.error).__module__.startswith("torch._dynamo") or error.rerun is None:
        return False
    try:
        torch.compiler.reset()  # what it has cached of observed runs would fail again
        error.rerun()
    except Exception:  # it is the user's, whatever observes it
        return False
    return True


def compiled_by_itself(error: SubjectError) -> str:
    """Return the reason for which a check cannot look at such a model."""
    said = message_of(error.error).strip().partition("\n")[0]
    return (
        "torch compiles an operator of this model by itself (such as cond or flex_attention), and what runs in it "
        f"cannot be observed: {type(error.error).__name__}: {said[:140]}"
    )


def unsupported_on(error: BaseException, device: str) -> str | None:
    """Return torch's own statement that it lacks an implementation for a device, or that an output is nested too deep.

    ``flex_attention`` runs forward on a CPU and has no backward there: a fact about torch, and none
        about the model.

    Args:
        error: What came out of the user's model, loss or step, with its traceback.
        device: The type of the device on which it ran, such as ``cpu``.
    """
    if isinstance(error, NestedTooDeepError):
        return f"{error}, which is not followed"
    if not isinstance(error, NotImplementedError):
        return None
    said = message_of(error).strip().partition("\n")[0]
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not frames or not is_torchs(frames[-1]):
        return None
    if re.search(rf"\bnot (?:yet )?support.*\b{re.escape(device)}\b", said, re.IGNORECASE) is None:
        return None
    return f"torch cannot run this model on {device}: {said[:140]}"


def unwritable_parameter(error: BaseException, subjects: Iterable[Subject]) -> str | None:
    """Say which parameter no step can write to, where that is what an error of a step of ours comes from.

    Args:
        error: What this package's own step raised.
        subjects: One of them took it.
    """
    if "inference tensor" not in message_of(error):
        return None
    models = [subject._model for subject in subjects if subject._model is not None]
    names = [n for model in models for n, p in model.named_parameters() if p.is_inference()]
    if not names:
        return None
    return f"{names[0]} was created under torch.inference_mode, so that no step can update it"


def is_own(frame: FrameType) -> bool:
    """Say whether a frame runs code of this package."""
    return _is_here(frame.f_code.co_filename)


@functools.lru_cache(maxsize=4096)
def _is_here(filename: str) -> bool:
    return os.path.realpath(filename).startswith(_HERE)


def _is_called(frame: FrameType) -> bool:
    """Say whether a frame belongs to what the package runs: the user's code, or torch."""
    name = frame.f_code.co_filename
    return not is_own(frame) and (sources.rank(name) > 0 or is_torchs(frame))


def is_torchs(frame: FrameType) -> bool:
    """Say whether a frame runs code of torch."""
    return os.path.realpath(frame.f_code.co_filename).startswith(_TORCH)
