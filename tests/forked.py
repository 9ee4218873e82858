"""Processes of their own for tests, forked from one that has imported torch already.

A new interpreter takes two to three seconds until torch and the plugin are imported. The server of
:mod:`multiprocessing` does so once for each worker; what it forks knows nothing of the test's own process.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PRELOADED = ["hypothesis", "pytest", "tests.pages", "torch", "torch._dynamo"]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(_PRELOADED)


class Done(NamedTuple):
    """How a process has ended.

    Attributes:
        status: Its exit status; negative for the signal that ended it.
        out: What it wrote to its standard output.
        err: What it wrote to its standard error.
    """

    status: int
    out: str
    err: str


def run(
    function: Callable[..., int | None],
    *arguments: Any,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    timeout: float = 300.0,
) -> Done:
    """Call a function of a module in a process of its own, and wait for its end.

    Args:
        function: What to call; what it returns is the exit status, 0 for None.
        arguments: What it is called with; they are pickled.
        folder: Where it runs.
        environment: Its environment; the one of this process by default.
        timeout: Seconds after which it is killed.
    """
    files = [folder.parent / f"{folder.name}.{kind}" for kind in ("out", "err")]
    given = dict(os.environ if environment is None else environment)
    process = _CONTEXT.Process(
        target=_child, args=(function, arguments, folder, given, [str(file) for file in files])
    )
    process.start()
    process.join(timeout)
    late = process.is_alive()
    if late:
        process.kill()
        process.join()
    out, err = (file.read_text(encoding="utf-8", errors="replace") for file in files)
    assert not late, f"not ended within {timeout:g} s:\n{out}\n{err}"
    assert process.exitcode is not None
    return Done(process.exitcode, out, err)


def pytest_run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run ``python -m pytest`` in the test's folder, as ``pytester.runpytest_subprocess`` does."""
    start = time.perf_counter()
    done = run(_pytest, arguments, folder=pytester.path)
    for text, stream in ((done.out, sys.stdout), (done.err, sys.stderr)):
        stream.write(text)
    lines = done.out.splitlines(), done.err.splitlines()
    return pytest.RunResult(done.status, *lines, time.perf_counter() - start)


def _pytest(arguments: tuple[str, ...]) -> int:
    sys.path.insert(0, str(Path.cwd()))
    sys.argv[:] = ["pytest", *arguments]
    return int(pytest.main(list(arguments)))


def _child(
    function: Callable[..., int | None],
    arguments: tuple[Any, ...],
    folder: Path,
    environment: dict[str, str],
    files: list[str],
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for stream, file in zip((1, 2), files, strict=True):
        descriptor = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(descriptor, stream)
        os.close(descriptor)
    status = function(*arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(status or 0)
