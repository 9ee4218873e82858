"""The marker ``leak_free``: an ordinary test's body is repeated, and its live tensors must not grow."""

from __future__ import annotations

import contextlib
import inspect
import re
import unittest
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from ..codes.memory import leaks
from . import markers
from .collection.verdict import Explained
from .parts import TorchcheckWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ..probes.holding.leaks import Leak

_WANTED: Final = pytest.StashKey[markers.LeakFree]()


def prepare(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """Note what each marked test asks for; return what is wrong with marked tests that cannot be repeated."""
    mistakes = []
    for item in items:
        mark = item.get_closest_marker("leak_free")
        if mark is None:
            continue
        reason = _refused(item)
        if reason:
            mistakes.append(
                f"{markers.where(item)}: {item.nodeid}: @pytest.mark.leak_free: {reason}"
            )
        else:
            item.stash[_WANTED] = markers.bind(mark)
    if not config.pluginmanager.hasplugin("torchcheck-leaks"):
        config.pluginmanager.register(_Repeats(), "torchcheck-leaks")
    return mistakes


def _refused(item: pytest.Item) -> str:
    """Return why the body of a test cannot be repeated, or an empty text."""
    function = getattr(item, "obj", None)
    if not isinstance(item, pytest.Function):
        return f"only the body of a test function can be repeated, not a {type(item).__name__}"
    if isinstance(item.cls, type) and issubclass(item.cls, unittest.TestCase):
        return (
            "a unittest.TestCase runs its tests by itself, with setUp and tearDown around them; "
            "mark a plain function or a method of a plain class"
        )
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "a coroutine cannot be repeated here; call asyncio.run(...) in a plain test"
    if getattr(function, "is_hypothesis_test", False):
        return (
            "a property runs over many examples, of which Hypothesis keeps some; "
            "mark a plain test of one batch, such as torchcheck.batch(...)"
        )
    return ""


class _Repeats:
    """Repeats the body of marked tests; registered once there is one."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        """Let pytest, or whichever plugin calls the test, call the repetitions instead."""
        wanted = pyfuncitem.stash.get(_WANTED, None)
        if wanted is None:
            return (yield)
        original = pyfuncitem.obj
        pyfuncitem.obj = _repeating(pyfuncitem, original, wanted)
        try:
            return (yield)
        finally:
            pyfuncitem.obj = original


def _repeating(
    item: pytest.Function, function: Callable[..., object], wanted: markers.LeakFree
) -> Callable[..., None]:
    from torch import nn

    from ..probes.holding.leaks import find_leak  # spares importing torch
    from ..probes.holding.live_bytes import LiveBytes  # spares importing torch
    from ..state import isolated  # spares importing torch

    def repeating(**arguments: Any) -> None:
        __tracebackhide__ = True
        done = 0

        def body() -> None:
            __tracebackhide__ = True
            nonlocal done
            try:
                with isolated(), contextlib.ExitStack() as patches:
                    function(**_fresh(arguments, patches))
            except Exception as error:  # the test's own, which pytest is to show
                if done:
                    error.add_note(
                        f"leak_free: repetition {done + 1} of this body, with the same fixtures, raised "
                        "this; the first did not"
                    )
                raise
            done += 1

        counter = LiveBytes()
        with counter:
            body()
        made = counter.made
        del counter
        if not made:
            item.warn(TorchcheckWarning("leak_free: the test creates no tensor; nothing to check"))
            return
        models = [value for value in arguments.values() if isinstance(value, nn.Module)]
        leak = find_leak(
            body,
            models[0] if models else None,
            steps=wanted.repeats,
            warmup=wanted.warmup - 1,
            ignore_bytes=wanted.allow,
            code=(function,),
        )
        if leak is not None:
            raise Explained([_explain(leak, item)])

    return repeating


def _fresh(arguments: dict[str, Any], patches: contextlib.ExitStack) -> dict[str, Any]:
    """Give each repetition a ``monkeypatch`` of its own: one for all of them would keep what each has replaced."""
    return {
        name: patches.enter_context(pytest.MonkeyPatch.context())
        if type(value) is pytest.MonkeyPatch
        else value
        for name, value in arguments.items()
    }


def _explain(leak: Leak, item: pytest.Function) -> Any:
    named = _by_fixture(leak, item)
    return leaks(named, kind="repetition").replace(
        check="leak_free",
        contract=item.name,
        reproduce=f'pytest "{markers.relative_nodeid(item.config, item.nodeid)}"',
    )


def _by_fixture(leak: Leak, item: pytest.Function) -> Leak:
    """Name a fixture as one, and leave out what pytest itself holds it, or the test's instance, by."""
    for place, link in enumerate(leak.chain):
        if re.fullmatch(r"dict of \d+, under '_instance'", link):
            return replace(leak, chain=leak.chain[:place])
        match = re.fullmatch(r"dict of \d+, under '(\w+)'", link)
        if match and match[1] in item.funcargs:
            fixture = f"fixture {match[1]}"
            held = leak.holder if leak.holder in leak.chain[:place] else fixture
            return replace(leak, holder=held, chain=(*leak.chain[:place], fixture))
    return leak
