"""Every setting in one table: command line over environment over ini over default, decided once.

Every pytest run loads this module, so its values are named tuples: a dataclass takes 1.5 ms to define.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import pytest

from .settings import SETTINGS, Kind, Setting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .settings import Require

Share = Literal["auto", "on", "off"]

ACCELERATORS: Final = ("cuda", "xpu", "mps")


class Options(NamedTuple):
    """What the run was asked to do; the fields are the rows of :data:`SETTINGS`.

    Attributes:
        enabled: Whether contracts become test items.
        strict: Whether ``suspicious`` and ``inconclusive`` fail.
        seed: Decides every random choice.
        examples: Batches drawn per check and per ``batches`` test; None leaves both to their defaults.
        devices: The only devices to run on; empty for those declared or present.
        checks: Selected checks; a leading ``!`` leaves one out.
        packages: Installed packages that count as the user's own code.
        artifacts: Folder for the batches and reports of failures.
        replay: A saved batch to run instead of drawn ones.
        json: File for the findings as JSON.
        html: File for the findings as a page.
        sarif: File for the findings as SARIF, for code scanning.
        markdown: File that gets one line of Markdown, for a pull request.
        require: Devices without which the run is an error.
        min_gpu_tests: Fewest items that must really have run on an accelerator.
        cuda_marker: Whether the markers ``cuda``, ``xpu`` and ``mps`` are this plugin's.
        share: Whether xdist workers get a GPU each and a share of the cores.
        leak: Bytes of device memory that an item may leave behind; None does not look.
        isolated_timeout: Seconds for an item that runs in a process of its own.
        probe_timeout: Seconds for the process that probes the devices.
        baseline: File of the known findings, which do not fail.
        write_baseline: Whether to write what this run finds to that file.
        models: Models to hold to inferred contracts, such as ``package.module:name``.
        inputs: Specs of their inputs, for each of them or for all.
        loss: Name of their loss.
        budget: Plain training steps that the checks of one contract may take together; None sets no
            limit.
        durations: How many of the slowest checks are listed at the end.
        against: Git reference beside which every model is held.
        allow: What may have changed since.
        cached: Whether verdicts that held are reused while nothing changes.
        record: Folder of the records beside which every model is held.
        write_record: Whether to write them.
        benchmark: Whether contracts offer benchmarks to pytest-benchmark.
        profile: Whether benchmarks show where their time goes.
        sources: Where each value came from, by field.
    """

    enabled: bool = False
    strict: bool = False
    seed: int = 0
    examples: int | None = None
    devices: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    artifacts: Path | None = None
    replay: Path | None = None
    json: Path | None = None
    html: Path | None = None
    sarif: Path | None = None
    markdown: Path | None = None
    require: Require | None = None
    min_gpu_tests: int = 0
    cuda_marker: bool = True
    share: Share = "auto"
    leak: int | None = None
    isolated_timeout: float = 600.0
    probe_timeout: float = 60.0
    baseline: Path | None = None
    write_baseline: bool = False
    models: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    loss: str | None = None
    budget: float | None = None
    durations: int = 0
    against: str | None = None
    allow: tuple[str, ...] = ()
    cached: bool = False
    record: Path | None = None
    write_record: bool = False
    benchmark: bool = False
    profile: bool = False
    sources: Mapping[str, str] = MappingProxyType({})

    @property
    def used(self) -> bool:
        """Whether the project or the command line sets anything of this plugin."""
        return any(source != "default" for source in self.sources.values())

    @property
    def shares(self) -> bool:
        """Whether xdist workers are given their GPU and their share of the cores."""
        return self.share == "on" or (self.share == "auto" and self.used)


_NUMBERS: Final = pytest.version_tuple >= (8, 4)  # pytest before it knows no ini types for numbers
_INI_TYPES: Final[dict[Kind, Any]] = {
    "flag": "bool",
    "text": "string",
    "list": "args",
    "texts": "linelist",
    "int": "int" if _NUMBERS else "string",
    "float": "float" if _NUMBERS else "string",
}

KEY: Final = pytest.StashKey[Options]()


def add(parser: pytest.Parser) -> None:
    """Declare the settings on the command line and in the ini file.

    Defaults on the command line are None, so that a value in the ini file counts.
    """
    group = parser.getgroup("torchcheck", "contracts for PyTorch models (torchcheck)")
    for setting in SETTINGS:
        dest = f"torchcheck_{setting.name}"
        if setting.flag is not None:
            if setting.kind == "flag":
                group.addoption(
                    setting.flag, dest=dest, action="store_const", const=True, help=setting.help
                )
                opposite = setting.flag.replace("--", "--no-", 1)
                group.addoption(
                    opposite,
                    dest=dest,
                    action="store_const",
                    const=False,
                    help=f"the opposite of {setting.flag}",
                )
            else:
                action = "append" if setting.kind == "texts" else "store"
                group.addoption(
                    setting.flag,
                    dest=dest,
                    metavar=setting.metavar,
                    help=setting.help,
                    action=action,
                )
        if setting.ini is not None:
            # the default None tells an unset key from one that repeats the default
            parser.addini(setting.ini, setting.help, type=_INI_TYPES[setting.kind], default=None)


def build(config: pytest.Config) -> Options:
    """Return the settings of this run.

    Raises:
        pytest.UsageError: A value that is not allowed; the message names where it came from.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for setting in SETTINGS:
        raw, source = _raw(config, setting)
        sources[setting.name] = source
        if source == "default":
            continue
        try:
            value = _value(setting, raw)
        except ValueError as error:
            shown = ",".join(raw) if isinstance(raw, list | tuple) else raw
            raise pytest.UsageError(f"{source}: {shown!r} is not allowed; {error}") from None
        if isinstance(value, Path):
            # a path in the ini file is meant from that file, as pytest's own are
            base = (
                config.inipath.parent if source.startswith("ini") and config.inipath else Path.cwd()
            )
            value = base / value.expanduser()
        values[setting.name] = value
    if values.get("replay") is not None and not values["replay"].is_file():
        raise pytest.UsageError(f"--torchcheck-replay: no such file: {values['replay']}")
    if values.get("replay") is not None:
        values["enabled"] = True
    if not values.get("models") and (lone := [n for n in ("inputs", "loss") if n in values]):
        raise pytest.UsageError(
            f"--torchcheck-{lone[0]} belongs to a model; give --torchcheck-model as well"
        )
    for name, needed in (("allow", "against"), ("write_record", "record")):
        if values.get(name) and needed not in values:
            raise pytest.UsageError(
                f"--torchcheck-{name.replace('_', '-')}: give --torchcheck-{needed} as well"
            )
    return Options(**values, sources=sources)


def asked_early(config: pytest.Config, name: str) -> bool:
    """Say whether a flag is given before the conftests are loaded, which may only declare further options."""
    given = getattr(config.known_args_namespace, f"torchcheck_{name}", None)
    return bool(config.getini(f"torchcheck_{name}") if given is None else given)


def _raw(config: pytest.Config, setting: Setting) -> tuple[Any, str]:
    """Return the value as written, and where it is written."""
    given = (
        config.getoption(f"torchcheck_{setting.name}", None) if setting.flag is not None else None
    )
    if given is not None:
        flag = setting.flag or ""
        return given, flag if given is not False else flag.replace("--", "--no-", 1)
    if setting.env is not None and (given := os.environ.get(setting.env)):
        return given, f"environment {setting.env}"
    if setting.ini is not None and (given := config.getini(setting.ini)) not in (None, ""):
        return given, f"ini {setting.ini}"
    return None, "default"


def _value(setting: Setting, raw: Any) -> Any:
    if setting.kind == "flag":
        return bool(raw)
    if setting.kind == "list":
        texts = raw if isinstance(raw, list | tuple) else [raw]
        names = [name.strip() for text in texts for name in str(text).split(",")]
        if not any(names):
            raise ValueError("give at least one name")
        return tuple(setting.parse(name) for name in names if name)
    if setting.kind == "texts":
        return tuple(setting.parse(text) for text in raw)
    return setting.parse(str(raw))


def header(options: Options) -> str:
    """Return the settings of this run that are not the defaults, each with where it came from."""
    parts = []
    for setting in SETTINGS:
        source = options.sources.get(setting.name, "default")
        value = getattr(options, setting.name)
        if setting.name == "enabled" or (source == "default" and setting.name != "seed"):
            continue
        if isinstance(value, bool):
            value = str(value).lower()
        elif setting.kind in ("list", "texts"):
            value = ",".join(value)
        parts.append(f"{setting.name.replace('_', '-')} {value} ({source})")
    return ", ".join(parts)
