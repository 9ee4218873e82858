"""pytest-xdist: a GPU and a share of the cores per worker; a worker that lost its context is replaced."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

from .. import hardware
from . import device_notes, devices, isolation, markers, options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .options import Options

SLOT_ENV: Final = "TORCHCHECK_SLOT"
"""``k/n``: this is the k-th of n workers on its machine."""
_THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_KEEP: Final = "-"  # in place of a list of GPUs: the user has chosen this worker's


def settle() -> None:
    """Give this worker its GPU and its share of the cores, before any conftest can start CUDA.

    Only the environment is changed, so that a worker that needs no torch imports none. What the
    environment already says about threads is left alone.
    """
    slot = os.environ.pop(SLOT_ENV, None)
    if slot is None:
        return
    place, count = (int(part) for part in slot.split("/"))
    threads = str(max(1, hardware.cores() // count))
    for name in _THREADS:
        os.environ.setdefault(name, threads)
    listed = os.environ.get(isolation.ALL_ENV)
    if listed == _KEEP:
        del os.environ[isolation.ALL_ENV]
        return
    if listed is None:  # a remote worker knows its machine's GPUs better than the controller
        listed = ",".join(
            hardware.visible(os.environ.get("CUDA_VISIBLE_DEVICES"), hardware.present_gpus())
        )
        os.environ[isolation.ALL_ENV] = listed
    gpus = [name for name in listed.split(",") if name]
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[place % len(gpus)]
        sharing = sum(other % len(gpus) == place % len(gpus) for other in range(count))
        os.environ[devices.SHARE_ENV] = str(sharing)


def machine_of(spec: Any) -> str:
    """Return a name for the machine that a gateway of execnet runs on."""
    if spec.popen:
        return "here"
    for kind in ("ssh", "vagrant_ssh"):
        if getattr(spec, kind, None):
            return f"{kind}={getattr(spec, kind)}"
    if getattr(spec, "socket", None):
        return f"socket={spec.socket.rpartition(':')[0]}"
    return str(spec)


def share_out(specs: Sequence[Any], gpus: Sequence[str]) -> dict[str, str]:
    """Tell each worker its place among those of its machine, and the local ones their GPUs.

    Args:
        specs: The gateways' specs; their environment is extended, and a replacement uses the same spec.
        gpus: What this machine's workers may see.

    Returns:
        The GPU of each local worker by its name, where there are any.
    """
    machines: dict[str, list[Any]] = {}
    for spec in specs:
        machines.setdefault(machine_of(spec), []).append(spec)
    mapping: dict[str, str] = {}
    for machine, members in machines.items():
        for place, spec in enumerate(members):
            spec.env[SLOT_ENV] = f"{place}/{len(members)}"
            if "CUDA_VISIBLE_DEVICES" in spec.env:
                spec.env[isolation.ALL_ENV] = _KEEP
            elif machine == "here":
                spec.env[isolation.ALL_ENV] = ",".join(gpus)
                if gpus:
                    mapping[str(spec.id)] = gpus[place % len(gpus)]
    return mapping


class _Controller:
    """Starts workers with their share, and keeps the run whole when one of them loses its context."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.settings: Options = config.stash[options.KEY]
        self.lost: dict[Any, int] = {}  # node -> index of the item that it lost its context with

    def pytest_report_header(self) -> str | None:
        """Say how contracts are distributed where that costs the user something."""
        dist = self.config.getoption("dist", "no")
        if not self.settings.enabled or dist in ("no", "loadscope", "loadfile", "each"):
            return None
        inert = dist == "loadgroup" and pytest.version_tuple >= (9, 2)
        why = (
            "--dist loadgroup has no effect with this pytest"
            if inert
            else f"--dist {dist} prepares a contract on each worker"
        )
        return f"torchcheck: {why}; --dist loadscope keeps each contract on one"

    def pytest_xdist_setupnodes(self, specs: Sequence[Any]) -> None:
        """Share out GPUs and cores."""
        if not self.settings.shares:
            return
        gpus = hardware.visible(os.environ.get("CUDA_VISIBLE_DEVICES"), hardware.present_gpus())
        mapping = share_out(specs, gpus)
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if mapping and reporter is not None and self.config.get_verbosity() >= 0:
            shown = ", ".join(f"{worker} on {gpu}" for worker, gpu in mapping.items())
            reporter.write_line(f"torchcheck: {shown}")

    def pytest_configure_node(self, node: Any) -> None:
        """Let a worker that has just left be sent what it cannot read any more.

        Between its end and the moment that the controller hears of it, xdist may give it more to do
        (another worker leaves, and its items are shared out), and would end the whole run with an
        internal error. What it was given is shared out again when it is removed.
        """
        send = node.sendcommand

        def sendcommand(name: str, **fields: Any) -> None:
            with contextlib.suppress(OSError):
                send(name, **fields)

        node.sendcommand = sendcommand

    def pytest_testnodedown(self, node: Any) -> None:
        """Stop with a worker's usage error, as a run in one process does."""
        message = getattr(node, "workeroutput", {}).get(markers.USAGE_ERROR)
        if message is not None:
            raise pytest.UsageError(message)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note which worker is about to leave, and with which item."""
        note = getattr(report, device_notes.NOTE, None)
        node = getattr(report, "node", None)
        if note is not None and note["fatal"] and node is not None:
            self.lost[node] = report.item_index

    @pytest.hookimpl(hookwrapper=True)
    def pytest_xdist_make_scheduler(self) -> Any:
        """Let the scheduler take the item of a lost context as done, and give the others to the next worker.

        By itself it takes a worker that ends for crashed: it would report the item once more as failed
        (``load``, ``worksteal``) or run it again (``loadscope``), and count against
        ``--max-worker-restart``.
        """
        outcome = yield
        scheduler = outcome.get_result()
        if scheduler is None:
            return
        original = scheduler.remove_node

        def remove_node(node: Any) -> str | None:
            # not node._down: xdist's receiving thread sets it only after it has told of the end
            index = self.lost.pop(node, None)
            fatal = index is not None
            if fatal:
                node.shutdown()  # nothing more is sent to it
                scheduler.mark_test_complete(node, index)
            _forget_done(scheduler, node)
            unfinished: str | None = original(node)
            if not fatal:
                return unfinished
            if unfinished is not None:
                _give_back(scheduler, node, unfinished)
            session: Any = self.config.pluginmanager.get_plugin("dsession")
            if isinstance(getattr(session, "_failed_nodes_count", None), int):
                session._failed_nodes_count -= 1  # it was no crash
            return None

        scheduler.remove_node = remove_node
        if hasattr(scheduler, "_removed2pending"):
            _mend_each(scheduler)
        assign = getattr(scheduler, "_assign_work_unit", None)
        if assign is not None and hasattr(scheduler, "registered_collections"):
            # xdist 3.8 gives work to a replacement that has not collected yet where two are under way
            # at once, and fails with a KeyError; such a one is asked again when it has collected
            scheduler._assign_work_unit = lambda node: (
                assign(node) if node in scheduler.registered_collections else None
            )

    def pytest_sessionfinish(self) -> None:
        """Remove the locks of this run."""
        session = self.config.pluginmanager.get_plugin("dsession")
        manager = getattr(session, "nodemanager", None)
        if manager is not None:
            shutil.rmtree(hardware.lock_folder(manager.testrunuid), ignore_errors=True)


def _mend_each(scheduler: Any) -> None:
    """Let several workers of ``--dist each`` be replaced at once, and a replacement be replaced.

    xdist 3.8 fails with a KeyError where one replacement has collected and another has only
    started, and where a worker left nothing to take over; and it loses what is left where a
    replacement ends in its turn.
    """
    add, schedule = scheduler.add_node_collection, scheduler.schedule

    def add_node_collection(node: Any, collection: Sequence[str]) -> None:
        replaces = scheduler.collection_is_completed
        add(node, collection)
        if not replaces:
            return
        scheduler.node2collection[node] = list(collection)
        if not scheduler.node2pending[node]:
            scheduler._started.append(node)
            node.shutdown()

    def schedule_collected() -> None:
        early = [node for node in scheduler.node2pending if node not in scheduler.node2collection]
        pending = {node: scheduler.node2pending.pop(node) for node in early}
        schedule()
        scheduler.node2pending.update(pending)

    scheduler.add_node_collection = add_node_collection
    scheduler.schedule = schedule_collected


def _forget_done(scheduler: Any, node: Any) -> None:
    """Forget the scopes that a leaving worker has run to their end.

    xdist 3.8 puts all of its scopes back into the queue. A worker that is then given one with
    nothing left in it gets no item, never reports one done, and is never asked again: the run
    hangs.
    """
    work: dict[str, dict[str, bool]] = getattr(scheduler, "assigned_work", {}).get(node) or {}
    for scope in [scope for scope, unit in work.items() if all(unit.values())]:
        del work[scope]


def _give_back(scheduler: Any, node: Any, nodeid: str) -> None:
    """Schedule an item again that a lost worker had still to run."""
    if hasattr(scheduler, "workqueue"):  # the scopes of loadscope come back by themselves
        return
    if hasattr(scheduler, "_removed2pending"):  # --dist each: a replacement takes over what is left
        index = scheduler.node2collection[node].index(nodeid)
        scheduler._removed2pending.setdefault(node, []).insert(0, index)
        return
    scheduler.mark_test_pending(nodeid)


class _Worker:
    """Ends this worker once it has reported the item that lost its context."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        """Leave: nothing can be computed on the device in this process any more.

        The controller has all reports by now, since a channel of execnet is written at once; a shutdown
        in good order would hang or raise in whatever still holds the device.
        """
        watch = self.config.pluginmanager.get_plugin("torchcheck-devices")
        if watch is not None and watch.lost_by:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(70)  # EX_SOFTWARE


def register(config: pytest.Config) -> None:
    """Take part in a distributed run, on either side."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(_Worker(config), "torchcheck-worker")
    elif config.pluginmanager.hasplugin("xdist") and getattr(config.option, "tx", None):
        config.pluginmanager.register(_Controller(config), "torchcheck-controller")
