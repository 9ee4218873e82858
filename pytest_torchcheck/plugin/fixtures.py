"""What tests ask for: the fixture ``torchcheck``, instances per device, and the marker ``batches``."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from ..late import resolve
from . import markers, options
from .options import ACCELERATORS, Options
from .parts import activate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from ..batches import Batch
    from ..contracts import Contract
    from ..declared.limits import Kind

_CASE: Final = "_torchcheck_case"  # hidden argument of instances per device and dtype
_ARGUMENT: Final = "batch"
Case = tuple[str, str | None]
"""Device and floating dtype of an instance; None leaves the dtype to the test."""


class Torchcheck:
    """What a test asks about its run, and the assertions with the run's device, dtype and seed.

    The object is made once per session and looks at the test that is running, so that it may stand
    beside ``@given``, which refuses fixtures made anew for each test.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._options: Options = config.stash[options.KEY]
        self._item: pytest.Item | None = None
        self._drawn = ""

    def _enter(self, item: pytest.Item) -> None:
        """Note the running test; what it says of itself is looked up when it is asked for."""
        self._item, self._drawn = item, ""

    def _note(self, batch: Batch, seed: int) -> Batch:
        """Note the last batch that the test drew, by numbers alone, for the case that it fails."""
        sizes = ", ".join(f"{name}={size}" for name, size in batch.sizes.items())
        self._drawn = f"the last batch: seed {seed}" + (f", sizes {sizes}" if sizes else "")
        return batch

    @property
    def _own(self) -> markers.ItemSettings:
        return markers.ItemSettings() if self._item is None else markers.item_settings(self._item)

    @property
    def _case(self) -> Case | None:
        callspec = getattr(self._item, "callspec", None)
        return None if callspec is None else callspec.params.get(_CASE)

    @property
    def device(self) -> torch.device:
        """Device of this test: its instance's, else the accelerator it is marked for, else the CPU."""
        import torch

        return torch.device(self._device)

    @property
    def _device(self) -> str:
        if self._case is not None:
            return self._case[0]
        need = None if self._item is None else markers.device_need(self._item)
        if need is not None:
            return need.kind
        allowed = self._options.devices
        return allowed[0] if allowed else "cpu"

    @property
    def dtype(self) -> torch.dtype:
        """Floating dtype of this test: its instance's, else float32."""
        import torch

        found: torch.dtype = getattr(torch, self._dtype or "float32")
        return found

    @property
    def _dtype(self) -> str | None:
        return None if self._case is None else self._case[1]

    @property
    def seed(self) -> int:
        """Seed of this test: its marker's, else the run's."""
        return self._options.seed if self._own.seed is None else self._own.seed

    @property
    def examples(self) -> int | None:
        """Number of batches: the marker's, else the run's; None leaves it to what draws them."""
        return self._options.examples if self._own.examples is None else self._own.examples

    def batch(
        self,
        *,
        targets: Any = None,
        sizes: Mapping[str, Any] | None = None,
        seed: int | None = None,
        **specs: Any,
    ) -> Batch:
        """Draw one batch, on this test's device and in its dtype.

        Args:
            targets: Specs of the targets, where they are not among the inputs.
            sizes: Range of each symbol.
            seed: Decides sizes and values; this test's seed by default.
            specs: Specs by name, as in ``@pytest.mark.batches``.
        """
        from ..batches import BatchSource  # spares importing torch

        source = BatchSource(specs or None, targets=targets, sizes=sizes)
        chosen = self.seed if seed is None else seed
        return self._note(self.place(source.base(chosen)), chosen)

    def place(self, batch: Batch) -> Batch:
        """Return a batch on this test's device, and in its dtype where the test has instances per dtype."""
        import torch

        return batch.to(
            device=self.device, dtype=None if self._dtype is None else getattr(torch, self._dtype)
        )

    def benchmark(self, benchmark: Any, contract: Contract, kind: Kind = "forward") -> None:
        """Time a contract with pytest-benchmark, as ``--torchcheck-benchmark`` does, on this test's device.

        Args:
            benchmark: The fixture of pytest-benchmark; its marker and options decide rounds and groups.
            contract: With a model and batches.
            kind: ``forward``, ``inference`` or ``training-step``.

        Raises:
            ValueError: There is no such kind, or the contract has no model with batches.
        """
        timed, subject = resolve("measure.throughput:benchmarked"), resolve("subject:Subject")
        if contract.model is None or contract.source is None:
            raise ValueError(f"{contract!r} has no model with batches to time")
        made = subject(contract, device=self._device, dtype=self._dtype, seed=self.seed)
        with (
            contextlib.closing(made),
            timed(benchmark, made, resolve("declared.limits:kind_of")(kind)),
        ):
            pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("assert_"):
            from .. import assertions  # spares importing torch

            function = getattr(assertions, name, None)
            if callable(function):
                return self._bound(function)
        raise AttributeError(
            f"torchcheck has no {name!r}; it has device, dtype, seed, examples, batch(), place() and every "
            "assert_* of pytest_torchcheck"
        )

    def _bound(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Give an assertion what the run decides, where it takes it and the test does not say it."""
        known = inspect.signature(function).parameters

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            __tracebackhide__ = True
            decided = {"device": self._device, "seed": self.seed, "examples": self.examples}
            if (
                self._dtype is not None
            ):  # an instance per dtype; otherwise the model's own dtype counts
                decided["dtypes"] = (self._dtype,)
            open_ended = any(one.kind is one.VAR_KEYWORD for one in known.values())
            for name, value in decided.items():
                if value is not None and (name in known or (open_ended and name == "dtypes")):
                    keywords.setdefault(name, value)
            return function(*arguments, **keywords)

        return call

    def __repr__(self) -> str:
        return f"<torchcheck {self._device}, seed {self.seed}>"


_SESSION: Final = pytest.StashKey[Torchcheck]()


def drawn_by(item: pytest.Item) -> str:
    """Return seed and sizes of the last batch that the running test drew, or an empty text."""
    session = item.config.stash.get(_SESSION, None)
    return session._drawn if session is not None and session._item is item else ""


@pytest.fixture(scope="session")
def torchcheck(pytestconfig: pytest.Config) -> Torchcheck:
    """This test's device, dtype and seed, ``batch(...)``, and every ``assert_*`` of pytest_torchcheck."""
    return pytestconfig.stash[_SESSION]


@pytest.fixture
def _torchcheck_case(request: pytest.FixtureRequest) -> Case:
    """Device and dtype of an instance of a test marked ``torchcheck``."""
    case: Case = request.param
    return case


class _Fixtures:
    """Knows which test is running, and prepares tests while they are collected."""

    def __init__(self, config: pytest.Config) -> None:
        self.settings = config.stash[options.KEY]
        self.session = config.stash[_SESSION]
        self.watching = False
        self._marked: dict[Any, dict[str, pytest.Mark | None]] = {}

    def _inherited(self, node: Any, name: str) -> pytest.Mark | None:
        """Return a mark of a collector or its parents, looked up once for all of its tests."""
        known = self._marked.setdefault(node, {})
        if name not in known:
            known[name] = node.get_closest_marker(name)
        return known[name]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Note the running test; start watching once a test has imported torch."""
        self.session._enter(item)
        if not self.watching and "torch" in sys.modules:
            self.watching = True
            activate(item.config)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make an instance per device and dtype of a test marked ``torchcheck``; absent devices stay as skips."""
        definition = metafunc.definition
        own_mark = next((one for one in definition.own_markers if one.name == "torchcheck"), None)
        mark = own_mark or self._inherited(definition.parent, "torchcheck")
        if mark is None:
            return
        try:
            own = markers.bind(mark)
        except markers.MarkerError:  # told with the test's name once all tests are collected
            return
        if not own.devices and not own.dtypes:
            return
        devices = self.settings.devices or own.devices or ("cpu",)
        instances = [
            pytest.param(
                (device, dtype),
                id=device if dtype is None else f"{device}-{dtype}",
                marks=self._marks(device),
            )
            for device in devices
            for dtype in own.dtypes or (None,)
        ]
        metafunc.fixturenames.append(_CASE)
        metafunc.parametrize(_CASE, instances, indirect=True)

    def _marks(self, device: str) -> list[pytest.MarkDecorator]:
        kind = device.partition(":")[0]
        marked = kind in ACCELERATORS and self.settings.cuda_marker
        return [getattr(pytest.mark, kind)] if marked else []

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(
        self, collector: pytest.Module | pytest.Class, name: str, obj: object
    ) -> list[pytest.Item | pytest.Collector] | None:
        """Turn a test marked ``batches`` into a property, before pytest looks for its fixtures."""
        if not isinstance(obj, types.FunctionType):
            return None
        mark = next((m for m in markers.own_marks(obj) if m.name == "batches"), None)
        inherited = mark is None
        mark = mark or self._inherited(collector, "batches")
        if mark is None or hasattr(obj, "_torchcheck_property"):
            return None
        if not collector.istestfunction(obj, name):
            return None
        code = obj.__code__
        place = f"{code.co_filename}:{code.co_firstlineno}: {name}"
        if getattr(obj, "is_hypothesis_test", False):
            raise collector.CollectError(
                f"{place}: @pytest.mark.batches and @given both generate the arguments of the test; use one of them"
            )
        if _ARGUMENT not in inspect.signature(obj).parameters:
            if inherited:  # the mark stands on a class or module, for those tests that take a batch
                return None
            raise collector.CollectError(
                f"{place}: @pytest.mark.batches: the test takes no argument `batch`"
            )
        try:
            wanted = markers.bind(mark)
            made = as_property(obj, wanted, self.session, collector)
        except (TypeError, ValueError) as error:
            raise collector.CollectError(f"{place}: {error}") from None
        setattr(collector.obj, name, made)
        # pytest takes the argument names from what this hook is given, so it is asked again with
        # the new test
        again = collector.ihook.pytest_pycollect_makeitem(collector=collector, name=name, obj=made)
        return cast("list[pytest.Item | pytest.Collector] | None", again)


def as_property(
    function: types.FunctionType,
    wanted: markers.BatchSpecs,
    session: Torchcheck,
    collector: pytest.Collector,
) -> Callable[..., None]:
    """Return a Hypothesis test that draws the argument ``batch``.

    Raises:
        ValueError: The specs make no sense.
    """
    import hypothesis
    import hypothesis.strategies as strategies_of_hypothesis

    from .. import strategies  # spares importing torch

    anywhere = strategies.batches(**wanted.specs, sizes=wanted.sizes or None)

    @strategies_of_hypothesis.composite
    def placed(draw: Callable[[Any], Batch]) -> Batch:
        # a new object, so that a failure shows the batch, not how it was drawn
        return session._note(session.place(draw(anywhere)), seed)

    own = markers.item_settings(collector)
    mark = next((m for m in markers.own_marks(function) if m.name == "torchcheck"), None)
    if mark is not None:
        own = markers.bind(mark)
    prior = getattr(function, "_hypothesis_internal_use_settings", None)
    changes: dict[str, Any] = (
        {} if prior is not None else {"deadline": None}
    )  # a first CUDA call takes seconds
    examples = own.examples if own.examples is not None else session._options.examples
    if examples is not None:
        changes["max_examples"] = examples
    parent: Any = prior or hypothesis.settings.default
    health = set(parent.suppress_health_check) | {hypothesis.HealthCheck.differing_executors}
    settings = hypothesis.settings(parent, suppress_health_check=health, **changes)
    seed = own.seed if own.seed is not None else session._options.seed
    made: Any = hypothesis.given(**{_ARGUMENT: placed()})(function)
    made = settings(hypothesis.seed(seed)(made)) if prior is None else hypothesis.seed(seed)(made)
    if prior is not None:
        made._hypothesis_internal_use_settings = settings
    made._torchcheck_property = True
    result: Callable[..., None] = made
    return result


def register(config: pytest.Config) -> None:
    """Offer the fixtures."""
    config.stash[_SESSION] = Torchcheck(config)
    config.pluginmanager.register(sys.modules[__name__], "torchcheck-fixtures")
    config.pluginmanager.register(_Fixtures(config), "torchcheck-items")
