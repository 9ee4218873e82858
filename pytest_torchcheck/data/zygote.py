"""One process for a whole session that has imported torch and forks spawned workers off, as forkserver does.

A spawned worker spends its first seconds importing torch and, with the module that declares a
contract, this package, which have nothing to do with the dataset. The zygote imports both once, in
the background while other checks run, and never anything of the user's: a worker that is forked off
it is as fresh as a new interpreter, and still imports the main module and unpickles the dataset
itself. Only on Linux; elsewhere, and where the zygote is lost, every worker is an interpreter of
its own.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..storage.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

SUPPORTED: Final = sys.platform == "linux"
_LOOK_S: Final = 0.002
_BOOTSTRAP: Final = "import sys; sys.path[:] = sys.argv[1:]; from pytest_torchcheck.data import zygote; zygote.serve()"


class Zygote:
    """The parent's side. Its process ends with its stdin: when it is closed, or its parent is gone."""

    def __init__(self, path: Sequence[str], environment: dict[str, str]) -> None:
        self.owner = os.getpid()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _BOOTSTRAP, *path],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )

    @property
    def usable(self) -> bool:
        """Say whether it runs, and is this process's own."""
        return self.owner == os.getpid() and self.process.poll() is None

    def run(
        self, folder: Path, path: Sequence[str], environment: dict[str, str], limit_s: float
    ) -> int | None:
        """Have a worker serve the request in a folder, and wait for it.

        Args:
            folder: With the request; the worker's output goes to ``stderr`` in it.
            path: The worker's ``sys.path``.
            environment: The worker's environment.
            limit_s: After so many seconds it is killed.

        Returns:
            Its exit code, negative for a signal; None where the zygote itself was lost.
        """
        request = {
            "folder": str(folder), "path": list(path), "environment": environment, "cwd": os.getcwd(),
        }  # fmt: skip
        pid: int | None = None
        ended = folder / "ended"
        stop = time.monotonic() + limit_s
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            while not ended.exists():
                if not self.usable:
                    return None
                if time.monotonic() > stop:
                    break
                time.sleep(_LOOK_S)
        except OSError:  # its end of the pipe is closed
            return None
        finally:
            with contextlib.suppress(OSError, ValueError):
                pid = int((folder / "started").read_text())
            if pid is not None and not ended.exists():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        return int(ended.read_text()) if ended.exists() else -signal.SIGKILL

    def close(self) -> None:
        """End the process."""
        if self.owner != os.getpid():
            return
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        try:
            self.process.wait(1.0)
        except subprocess.TimeoutExpired:  # it waits for a worker, or still imports
            self.process.kill()
            self.process.wait()


_current: list[Zygote] = []


def started(path: Sequence[str], environment: dict[str, str]) -> Zygote | None:
    """Return the session's zygote, started if there is none; None where the platform has none."""
    if not SUPPORTED:
        return None
    if not _current or not _current[-1].usable:
        if not _current:
            atexit.register(close)
        close()  # what is left of one that was lost
        _current.append(Zygote(path, environment))
    return _current[-1]


def close() -> None:
    """End the session's zygote, if there is one."""
    while _current:
        _current.pop().close()


def serve() -> None:
    """Import what every worker needs, and fork one off for every line of stdin; ends with it."""
    import torch.utils.data  # noqa: F401  # for the workers

    from .. import Contract  # noqa: F401  # as modules that declare one do
    from . import served  # needed in the zygote alone

    gc.freeze()  # a worker's collections would copy every page of what was imported here
    for line in sys.stdin.buffer:
        request = json.loads(line)
        folder = Path(request["folder"])
        pid = os.fork()
        if pid == 0:
            _become(request, folder)
            served.main(str(folder))
        with contextlib.suppress(OSError):  # a request that was given up has no folder any more
            write_whole(folder / "started", str(pid))
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            write_whole(folder / "ended", str(os.waitstatus_to_exitcode(status)))


def _become(request: dict[str, Any], folder: Path) -> None:
    """Make of a copy of the zygote what a new interpreter would be."""
    import random

    output = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.path[:] = request["path"]
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
