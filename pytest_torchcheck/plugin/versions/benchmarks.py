"""``--torchcheck-benchmark``: items of pytest-benchmark for each contract, with its statistics, storage and comparison."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import pytest

from ...late import resolve
from .. import markers, options
from ..collection.items import ITEMS, ContractNode

if TYPE_CHECKING:
    from collections.abc import Callable

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
    def measure(benchmark: Any) -> None:
        places = node.settings.devices or node.contract.devices or ("cpu",)
        device = next((d for d in places if d != "meta"), "cpu")
        dtype = next(iter(node.contract.dtypes or ()), None)
        subject = resolve("subject:Subject")(
            node.contract, device=device, dtype=dtype, seed=node.seed
        )
        with contextlib.closing(subject):
            known = resolve("measure.throughput:facts")(subject, kind)
            benchmark.extra_info.update(known)
            with resolve("measure.repeated:repeated")(subject, kind) as once:
                benchmark(once)
        if benchmark.stats is not None:
            mean = benchmark.stats.stats.mean
            benchmark.extra_info.update(resolve("measure.throughput:per_second")(known, mean))

    return measure


def register(config: pytest.Config) -> None:
    """Add the benchmarks, where they are asked for."""
    settings = config.stash[options.KEY]
    if not settings.benchmark:
        return
    if not settings.enabled:
        markers.usage_error(config, "--torchcheck-benchmark: give --torchcheck as well")
    if not config.pluginmanager.hasplugin("benchmark"):
        told = "install pytest-benchmark, such as with pip install 'pytest-torchcheck[benchmark]'"
        markers.usage_error(config, f"--torchcheck-benchmark: {told}")
    config.stash.setdefault(ITEMS, []).append(items)
