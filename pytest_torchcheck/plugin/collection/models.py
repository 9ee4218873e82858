"""Models that are named on the command line.

An inferred contract for each, collected like any other.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

import pytest

from ... import sources
from ...infer.target import TargetError, arguments_of, load, parse_target
from ...late import Late
from .. import markers, options
from .items import ContractNode

if TYPE_CHECKING:
    from collections.abc import Generator

    from ...contracts import Contract
    from ...infer.inference import Inferred
    from ...runner import Case
    from ..options import Options

_named_loss = Late("infer.outcome:named_loss")
_with_batch = Late("storage.artifacts:with_batch")

_ALONE: Final = "torchcheck_alone"
"""Option that tells workers of xdist, which are always given paths, to collect models only."""


class ModelNode(ContractNode):
    """The contract of a model that was named on the command line."""

    arguments: str = ""

    def selecting(self, case: Case) -> str:
        """Return the command that selects one case."""
        return f"pytest {self.arguments} --torchcheck-checks={case.check.name}"


class NamedModel(pytest.Collector):
    """A model by its name; building its contract may fail, which is an error of its collection."""

    def __init__(self, *, text: str, inputs: str | None, loss: str | None, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.text, self.inputs, self.loss = text, inputs, loss

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        """Return the contract's node; what was inferred is kept, to be shown."""
        contract, inferred = self._contract()
        self.config.stash[_DECLARED].append(
            {"name": self.name, "lines": inferred.lines(), "because": inferred.because}
        )
        replayed = None
        if self.config.stash[options.KEY].replay is not None:
            replayed = _replayed(self.config)
            if replayed is None or contract.name != replayed.contract:
                return []
            contract = _with_batch(contract, replayed.batch)
        node = ModelNode.from_parent(
            self, name=self.name, nodeid=self.nodeid, contract=contract, replayed=replayed
        )
        node.arguments = self._arguments()
        return [node]

    def _contract(self) -> tuple[Contract, Inferred]:
        from ...declared.limits import DeclarationError  # spares importing torch
        from ...infer.code import parse_specs  # spares importing torch
        from ...infer.inference import Uninferable, infer  # spares importing torch
        from ...specs import SpecError  # spares importing torch

        target = parse_target(self.text)
        folder = str(self.config.invocation_params.dir)
        try:
            specs = None if self.inputs is None else parse_specs(self.inputs)
            model = load(target, folder=folder)
            arguments = arguments_of(target, model)
            inferred = infer(
                model, arguments=arguments, inputs=specs, loss=_named_loss(self.loss, folder)
            )
            return inferred.contract(name=target.name), inferred
        except (TargetError, SpecError, Uninferable, DeclarationError) as error:
            raise self.CollectError(f"{self.text}: {error}") from None

    def _arguments(self) -> str:
        given = [("--torchcheck-model", self.text)]
        given += [("--torchcheck-inputs", self.inputs)] if self.inputs is not None else []
        given += [("--torchcheck-loss", self.loss)] if self.loss is not None else []
        return " ".join(f"{name} {shlex.quote(value)}" for name, value in given)


_DECLARED: Final = pytest.StashKey[list[dict[str, Any]]]()


def _replayed(config: pytest.Config) -> Any:
    """Return the saved failure, read once by what collects contracts."""
    contracts: Any = config.pluginmanager.get_plugin("torchcheck-contracts")
    return contracts._replayed(config)


class _Models:
    """Adds the named models to what the session collects, and shows what was declared for them."""

    def __init__(self, settings: Options, *, alone: bool) -> None:
        self.settings = settings
        self.alone = alone
        self.shown: list[dict[str, Any]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Add the models to the session's nodes; where no path was given, collect them alone."""
        report = yield
        if isinstance(collector, pytest.Session) and report.passed:
            report.result = [*([] if self.alone else report.result), *self._nodes(collector)]
        return report

    def _nodes(self, session: pytest.Session) -> list[pytest.Collector]:
        texts, inputs = self.settings.models, self.settings.inputs
        given: list[str | None] = list(inputs) if len(inputs) == len(texts) else []
        given = given or [inputs[0] if inputs else None] * len(texts)
        made: list[pytest.Collector] = []
        for text, specs in zip(texts, given, strict=True):
            name = parse_target(text).name
            node = NamedModel.from_parent(
                session, name=name, nodeid=f"torchcheck::{name}", text=text, inputs=specs,
                loss=self.settings.loss,
            )  # fmt: skip
            made.append(node)
        return made

    def pytest_report_collectionfinish(self, config: pytest.Config) -> list[str]:
        """Show the declarations of this process."""
        found = config.stash[_DECLARED]
        self.shown += found
        return [line for one in found for line in _shown(one)]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send the declarations of a worker of xdist to the process that the user looks at."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["torchcheck_declared"] = session.config.stash[_DECLARED]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the declarations of a worker: every one has made the same."""
        found = getattr(node, "workeroutput", {}).get("torchcheck_declared", [])
        self.shown += [one for one in found if one not in self.shown]

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        """Show the declarations that workers made."""
        for one in self.shown:
            if one not in config.stash[_DECLARED]:
                for line in _shown(one):
                    terminalreporter.write_line(line)


def _shown(one: dict[str, Any]) -> list[str]:
    start = f"torchcheck: {one['name']} is checked as declared by"
    if not one["lines"]:
        return [f"{start} {one['because']}"]
    return [f"{start} (from {one['because']}):", *(f"    {line}" for line in one["lines"])]


def register(config: pytest.Config) -> None:
    """Collect the models that were named; without a path nothing else is collected."""
    settings = config.stash[options.KEY]
    if not settings.models:
        return
    if len(settings.inputs) > 1 and len(settings.inputs) != len(settings.models):
        markers.usage_error(
            config,
            f"--torchcheck-inputs: {len(settings.inputs)} were given for {len(settings.models)} "
            "models; give one for all of them, or one for each in the same order",
        )
    alone = getattr(config.option, _ALONE, None)
    if alone is None:
        alone = config.args_source is not pytest.Config.ArgsSource.ARGS
        setattr(config.option, _ALONE, alone)
    config.stash[_DECLARED] = []
    _count_as_own(config, settings)
    config.pluginmanager.register(_Models(settings, alone=alone), "torchcheck-models")


def _count_as_own(config: pytest.Config, settings: Options) -> None:
    """Let findings name the lines of the packages that the models come from, torch's own apart."""
    packages = {parse_target(text).package for text in settings.models} - {"torch"}
    sources.count_as_own({*settings.packages, *packages})
    config.add_cleanup(lambda: sources.count_as_own(()))
