"""Every setting in one table: command line over environment over ini over default, decided once.

Every pytest run loads this module, so its values are named tuples: a dataclass takes 1.5 ms to define.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import pytest

from .parsing import (
    Require,
    parse_change,
    parse_check,
    parse_device,
    parse_loss,
    parse_number,
    parse_package,
    parse_reference,
    parse_require,
    parse_seconds,
    parse_share,
    parse_size,
    parse_steps,
    parse_target,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Kind = Literal["flag", "text", "list", "texts", "int", "float"]
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


class Setting(NamedTuple):
    """One row of the table.

    Attributes:
        name: Field of :class:`Options`; the ini key is ``torchcheck_<name>``.
        flag: Option on the command line, or None for a setting that belongs to the project.
        kind: How the command line and the ini file write it.
        parse: Turns the text into the value; raises ValueError with what is allowed.
        help: One sentence for ``--help`` and ``pytest --help``'s ini section.
        metavar: What stands for the value in the help.
        ini: Key in the ini file, or None for a setting of a single run.
        env: Environment variable of the same meaning.
    """

    name: str
    flag: str | None
    help: str
    kind: Kind = "text"
    parse: Callable[[str], Any] = str
    metavar: str | None = None
    ini: str | None = None
    env: str | None = None


SETTINGS: Final = (
    Setting(name="enabled", flag="--torchcheck", kind="flag", ini="torchcheck",
        help="turn every contract into test items, one per check, device and dtype",
    ),
    Setting(name="strict", flag="--torchcheck-strict", kind="flag", ini="torchcheck_strict",
        help="fail on findings that are suspicious or inconclusive",
    ),
    Setting(name="seed", flag="--torchcheck-seed", kind="int", parse=parse_number(0), metavar="N", ini="torchcheck_seed",
        help="decides every random choice; the same seed gives the same verdict (0)",
    ),
    Setting(name="examples", flag="--torchcheck-examples", kind="int", parse=parse_number(1), metavar="N", ini="torchcheck_examples",
        help="batches drawn per shape-sensitive check and per test marked batches",
    ),
    Setting(name="devices", flag="--torchcheck-devices", kind="list", parse=parse_device, metavar="NAMES",
        ini="torchcheck_devices", help="run on these devices only, such as cpu,cuda (those declared or present)",
    ),
    Setting(name="checks", flag="--torchcheck-checks", kind="list", parse=parse_check, metavar="NAMES",
        ini="torchcheck_checks", help="run these checks only, such as backward,overfit, or all but one: !overfit",
    ),
    Setting(name="packages", flag="--torchcheck-packages", kind="list", parse=parse_package, metavar="NAMES",
        ini="torchcheck_packages", help="installed packages that count as your own code: findings name their lines",
    ),
    Setting(name="artifacts", flag="--torchcheck-artifacts", parse=Path, metavar="DIR", ini="torchcheck_artifacts",
        help="save the batch and the report of every failure in this folder",
    ),
    Setting(name="replay", flag="--torchcheck-replay", parse=Path, metavar="FILE",
        help="run the checks on a batch that --torchcheck-artifacts has saved",
    ),
    Setting(name="json", flag="--torchcheck-json", parse=Path, metavar="FILE", ini="torchcheck_json",
        help="write every finding to this file as JSON",
    ),
    Setting(name="html", flag="--torchcheck-html", parse=Path, metavar="FILE", ini="torchcheck_html",
        help="write every finding to this file as a page",
    ),
    Setting(name="sarif", flag="--torchcheck-sarif", parse=Path, metavar="FILE", ini="torchcheck_sarif",
        help="write what fails, and where, to this file as SARIF 2.1.0 for code scanning",
    ),
    Setting(name="markdown", flag="--torchcheck-markdown", parse=Path, metavar="FILE", ini="torchcheck_markdown",
        help="write the run to this file as one line of Markdown; on GitHub the step's summary gets it anyway",
    ),
    Setting(name="require", flag="--torchcheck-require", parse=parse_require, metavar="cuda[:n]",
        ini="torchcheck_require", env="TORCHCHECK_REQUIRE",
        help="stop with an error unless so many GPUs work; a test skipped for lack of one is then an error",
    ),
    Setting(name="min_gpu_tests", flag="--torchcheck-min-gpu-tests", kind="int", parse=parse_number(0), metavar="N",
        ini="torchcheck_min_gpu_tests", help="fail unless so many tests have really computed on a GPU (0)",
    ),
    Setting(name="cuda_marker", flag=None, kind="flag", ini="torchcheck_cuda_marker",
        help="whether the markers cuda, xpu and mps are this plugin's; false leaves a project's own alone (true)",
    ),
    Setting(name="share", flag="--torchcheck-share", parse=parse_share, metavar="auto|on|off", ini="torchcheck_share",
        help="give each xdist worker a GPU and its share of the cores; auto: where torchcheck is used (auto)",
    ),
    Setting(name="leak", flag="--torchcheck-leak", parse=parse_size, metavar="SIZE", ini="torchcheck_leak",
        help="warn when a test leaves more GPU memory behind than this, such as 16MiB; an error under strict",
    ),
    Setting(name="isolated_timeout", flag="--torchcheck-isolated-timeout", kind="float", parse=parse_seconds, metavar="SECONDS",
        ini="torchcheck_isolated_timeout", help="deadline of a test that runs in a process of its own (600)",
    ),
    Setting(name="probe_timeout", flag="--torchcheck-probe-timeout", kind="float", parse=parse_seconds, metavar="SECONDS",
        ini="torchcheck_probe_timeout", help="deadline of the process that probes the GPUs (60)",
    ),
    Setting(name="baseline", flag="--torchcheck-baseline", parse=Path, metavar="FILE", ini="torchcheck_baseline",
        help="a file of known findings: they do not fail, new ones do, and those that are gone must be removed",
    ),
    Setting(name="write_baseline", flag="--torchcheck-write-baseline", kind="flag",
        help="write what this run finds to the file of --torchcheck-baseline; what did not run stays as it is",
    ),
    Setting(name="budget", flag="--torchcheck-budget", kind="float", parse=parse_steps, metavar="STEPS",
        ini="torchcheck_budget",
        help="plain training steps that the checks of one contract may take, cheapest first; declared checks always "
        "run, and what no longer fits is reported as not run",
    ),
    Setting(name="durations", flag="--torchcheck-durations", kind="int", parse=parse_number(0), metavar="N",
        ini="torchcheck_durations", help="list the N slowest checks, in seconds and in plain training steps (0)",
    ),
    Setting(name="cached", flag="--torchcheck-cached", kind="flag", ini="torchcheck_cached",
        help="skip checks that passed before, where no imported or read file, setting, version or environment "
        "variable has changed since; they are reported as unchanged",
    ),
    Setting(name="models", flag="--torchcheck-model", kind="texts", parse=parse_target, metavar="PACKAGE.MODULE:NAME",
        help="check this model without a test file: a name, or a call with literals such as "
        "\"timm:create_model('resnet18')\"; may be given several times",
    ),
    Setting(name="inputs", flag="--torchcheck-inputs", kind="texts", metavar="SPECS",
        help="the inputs of --torchcheck-model, such as 'B 3 64 64' or 'Tokens(\"B T\", vocab=100)', once for all "
        "models or once for each (inferred)",
    ),
    Setting(name="loss", flag="--torchcheck-loss", parse=parse_loss, metavar="NAME",
        help="the loss of --torchcheck-model: a function of torch.nn.functional such as cross_entropy, or output "
        "where the model returns its own (chosen from the output)",
    ),
    Setting(name="against", flag="--torchcheck-against", parse=parse_reference, metavar="REF",
        help="hold each contract's model beside what it was at this git reference: state dict, outputs, costs",
    ),
    Setting(name="record", flag="--torchcheck-record", parse=Path, metavar="DIR", ini="torchcheck_record",
        help="hold each contract's model beside its record in this folder; a record that is missing is written",
    ),
    Setting(name="write_record", flag="--torchcheck-write-record", kind="flag",
        help="write the records of --torchcheck-record from the models as they are",
    ),
    Setting(name="benchmark", flag="--torchcheck-benchmark", kind="flag",
        help="add benchmarks of each contract, run by pytest-benchmark: forward, inference, training-step",
    ),
    Setting(name="profile", flag="--torchcheck-profile", kind="flag",
        help="show by module and line where the time of each benchmark goes; the HTML report draws it",
    ),
    Setting(name="allow", flag="--torchcheck-allow", kind="list", parse=parse_change, metavar="CHANGES",
        help="what may have changed since --torchcheck-against: state, outputs, init, cost (none)",
    ),
)  # fmt: skip


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
