"""``--torchcheck-benchmark``: items of pytest-benchmark for each contract, with its statistics, storage and comparison."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import pytest

from ...findings import Finding
from ...late import resolve
from ...render.evidence import blocks
from ...verdicts import passed
from .. import markers, options
from ..collection.items import FOUND, ITEMS, ContractNode
from ..collection.records import read_record

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...measure.where import Where
    from ...subject import Subject

KINDS: Final = ("forward", "inference", "training-step")


def items(node: ContractNode) -> list[pytest.Item]:
    """Return a benchmark of each kind of a contract that has a model and batches."""
    contract = node.contract
    if contract.model is None or contract.source is None:
        return []
    return [_item(node, kind) for kind in KINDS]


def _item(node: ContractNode, kind: str) -> pytest.Item:
    made: pytest.Item = pytest.Function.from_parent(
        node, name=f"benchmark[{kind}]", callobj=_function(node, kind)
    )
    made.add_marker(pytest.mark.benchmark(group=f"{node.name} {kind}"))
    return made


def _function(node: ContractNode, kind: str) -> Callable[..., None]:
    def measure(benchmark: Any, request: pytest.FixtureRequest) -> None:
        places = node.settings.devices or node.contract.devices or ("cpu",)
        device = next((d for d in places if d != "meta"), "cpu")
        dtype = next(iter(node.contract.dtypes or ()), None)
        subject = resolve("subject:Subject")(
            node.contract, device=device, dtype=dtype, seed=node.seed
        )
        timed = resolve("measure.throughput:benchmarked")
        with contextlib.closing(subject), timed(benchmark, subject, kind) as once:
            if node.settings.profile:
                spent = resolve("measure.where:where")(once, subject.model, subject.device)
                request.node.stash[FOUND] = (_where(kind, spent, subject),)

    return measure


def _where(kind: str, spent: Where, subject: Subject) -> Finding:
    """Return where the time of a benchmark goes, as what a check would have found."""
    told = f"the kernels of one repeat take {spent.seconds * 1e6:,.0f} us on {spent.device}"
    found = passed(told, evidence={"time by line": spent.rows(), "flame": spent.flame()})
    return found.replace(check=f"benchmark[{kind}]", device=str(subject.device))


class _Profiles:
    """Shows where the time of benchmarks goes, at the end of the run."""

    def __init__(self) -> None:
        self.found: list[tuple[str, Finding]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a benchmark found."""
        record = read_record(report)
        for one in record["findings"] if record is not None and not record["case"] else ():
            if "flame" in one["evidence"]:
                self.found.append((report.nodeid, Finding.from_dict(one)))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Show a table for each."""
        for nodeid, finding in self.found:
            terminalreporter.section(f"time of {nodeid}")
            terminalreporter.write_line(finding.summary)
            for block in blocks(finding):
                for line in block.lines(terminalreporter._tw.fullwidth):
                    terminalreporter.write_line(line)


def register(config: pytest.Config) -> None:
    """Add the benchmarks, where they are asked for."""
    settings = config.stash[options.KEY]
    if not settings.benchmark:
        if settings.profile:
            markers.usage_error(config, "--torchcheck-profile: give --torchcheck-benchmark as well")
        return
    if not settings.enabled:
        markers.usage_error(config, "--torchcheck-benchmark: give --torchcheck as well")
    if not config.pluginmanager.hasplugin("benchmark"):
        told = "install pytest-benchmark, such as with pip install 'pytest-torchcheck[benchmark]'"
        markers.usage_error(config, f"--torchcheck-benchmark: {told}")
    config.stash.setdefault(ITEMS, []).append(items)
    if settings.profile:
        config.pluginmanager.register(_Profiles(), "torchcheck-profiles")
