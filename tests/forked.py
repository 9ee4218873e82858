"""Processes of their own for tests, forked from one that has imported torch already.

A new interpreter takes two to three seconds until torch and the plugin are imported. The server of
:mod:`multiprocessing` does so once for each worker; what it forks knows nothing of the test's own process.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PRELOADED = ["hypothesis", "pytest", "tests.imported", "tests.pages", "torch", "torch._dynamo"]
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
    done = run(pytest_main, arguments, folder=pytester.path)
    for text, stream in ((done.out, sys.stdout), (done.err, sys.stderr)):
        stream.write(text)
    lines = done.out.splitlines(), done.err.splitlines()
    return pytest.RunResult(done.status, *lines, time.perf_counter() - start)


def pytest_main(arguments: tuple[str, ...]) -> int:
    """Run pytest in this process, which was forked for it; workers of xdist are forked from it in turn."""
    if count := re.search(r"(?:^|\s)-n\s?([1-9])", " ".join(arguments)):
        _fork_workers(int(count[1]))
    sys.path.insert(0, str(Path.cwd()))
    sys.argv[:] = ["pytest", *arguments]
    return int(pytest.main(list(arguments)))


def _fork_workers(count: int) -> None:
    from execnet import gateway_base, gateway_io  # those who need no workers may have no xdist

    waiting = [_Worker() for _ in range(count)]
    started = gateway_io.Popen2IOMaster.__init__

    def start(io: Any, args: Any, execmodel: Any) -> None:
        if not waiting:  # one that takes the place of another
            return started(io, args, execmodel)
        io.popen = waiting.pop()
        pipes = io.popen.stdin, io.popen.stdout
        return gateway_base.Popen2IO.__init__(io, *pipes, execmodel=execmodel)

    gateway_io.Popen2IOMaster.__init__ = start  # type: ignore[method-assign]


class _Worker:
    """A fork that waits for what execnet tells a new interpreter on its input; stands for a ``Popen``."""

    def __init__(self) -> None:
        (reads, to), (back, writes) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.dup2(reads, 0)
            os.dup2(writes, 1)
            os.closerange(3, 256)
            try:
                sys.stdin = open(0, closefd=False)  # noqa: SIM115
                exec(eval(sys.stdin.readline()))  # what execnet's own command line does
            finally:
                os._exit(0)
        os.close(reads)
        os.close(writes)
        self.stdin, self.stdout = os.fdopen(to, "wb"), os.fdopen(back, "rb")

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _child(
    function: Callable[..., int | None],
    arguments: tuple[Any, ...],
    folder: Path,
    environment: dict[str, str],
    files: list[str],
) -> None:
    gc.freeze()  # what was imported before the fork stays: nobody collects it
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
