"""The table of settings: how the command line, the environment and the ini file write each, and what it means.

Every pytest run loads this module, so its rows are named tuples: a dataclass takes 1.5 ms to define.
Each parser returns the value, or raises ValueError with what is allowed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from ..change import CHANGES
from ..infer import target
from ..text.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable


class Require(NamedTuple):
    """Devices without which the run is an error.

    Attributes:
        device: Type of the accelerator, such as ``cuda``.
        number: How many of them.
    """

    device: str
    number: int = 1

    def __str__(self) -> str:
        return f"{self.device}:{self.number}"


def parse_number(low: int) -> Callable[[str], int]:
    """Return a parser of whole numbers of at least ``low``."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low:
            raise ValueError(f"choose a whole number of at least {low}")
        return value

    return parse


def parse_seconds(text: str) -> float:
    """Return a number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError("choose a number of seconds above 0")
    return value


def parse_steps(text: str) -> float:
    """Return a number of training steps."""
    try:
        return parse_seconds(text)
    except ValueError:
        raise ValueError("choose a number of plain training steps above 0") from None


def parse_size(text: str) -> int:
    """Return a number of bytes."""
    return parse_bytes(text, what="the size")


def parse_share(text: str) -> str:
    """Return how xdist workers share the GPUs."""
    if text not in ("auto", "on", "off"):
        raise ValueError("choose from auto, on and off")
    return text


def parse_device(text: str) -> str:
    """Return a device's name, or raise ValueError with what is allowed."""
    if re.fullmatch(r"(cpu|meta|cuda|xpu|mps)(:\d+)?", text) is None:
        raise ValueError(
            f"{text!r} is not a device; choose from cpu, cuda, cuda:0, xpu, mps and meta"
        )
    return text


def parse_check(text: str) -> str:
    """Return the name of a check, with or without a leading ``!``."""
    if re.fullmatch(r"!?[a-z0-9]+(-[a-z0-9]+)*", text) is None:
        raise ValueError(
            f"{text!r} is not the name of a check; write names such as overfit and !overfit"
        )
    return text


def parse_reference(text: str) -> str:
    """Return the name of a git reference; git says later whether there is one."""
    if not text.strip() or text.startswith("-"):
        raise ValueError("give a branch, a tag or a hash, such as origin/main")
    return text.strip()


def parse_change(text: str) -> str:
    """Return what may change."""
    if text not in CHANGES:
        raise ValueError(f"choose from {', '.join(CHANGES)}")
    return text


def parse_package(text: str) -> str:
    """Return the name of a top-level package."""
    if not text.isidentifier():
        raise ValueError(
            f"{text!r} is not an importable package; write top-level names such as mylib"
        )
    return text


def parse_target(text: str) -> str:
    """Return what names a model; it is not imported yet."""
    target.parse_target(text)
    return text


def parse_loss(text: str) -> str:
    """Return the name of a loss; it is not imported yet."""
    target.see_loss(text)
    return text


def parse_require(text: str) -> Require | None:
    """Return what ``cuda[:n]`` requires, or None for an empty text.

    Raises:
        ValueError: Anything else.
    """
    if not text:
        return None
    match = re.fullmatch(r"(cuda|xpu|mps)(?::([1-9]\d*))?", text)
    if match is None:
        raise ValueError("choose from cuda, cuda:2, xpu and mps, with at least 1 device")
    return Require(device=match[1], number=int(match[2] or 1))


Kind = Literal["flag", "text", "list", "texts", "int", "float"]


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
        help="write every finding to this file as an HTML page",
    ),
    Setting(name="sarif", flag="--torchcheck-sarif", parse=Path, metavar="FILE", ini="torchcheck_sarif",
        help="write what fails, and where, to this file as SARIF 2.1.0 for code scanning",
    ),
    Setting(name="markdown", flag="--torchcheck-markdown", parse=Path, metavar="FILE", ini="torchcheck_markdown",
        help="write the run to this file as one line of Markdown; on GitHub the step's summary gets it anyway",
    ),
    Setting(name="require", flag="--torchcheck-require", parse=parse_require, metavar="cuda[:n]",
        ini="torchcheck_require", env="TORCHCHECK_REQUIRE",
        help="stop with an error unless this many GPUs work; a test that is skipped for lack of one is then an error",
    ),
    Setting(name="min_gpu_tests", flag="--torchcheck-min-gpu-tests", kind="int", parse=parse_number(0), metavar="N",
        ini="torchcheck_min_gpu_tests", help="fail unless at least this many tests computed on a GPU (0)",
    ),
    Setting(name="cuda_marker", flag=None, kind="flag", ini="torchcheck_cuda_marker",
        help="register the markers cuda, xpu and mps; false leaves a project's own markers alone (true)",
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
        help="a file of known findings: they do not fail, new ones do, and those no longer found must be removed",
    ),
    Setting(name="write_baseline", flag="--torchcheck-write-baseline", kind="flag",
        help="write the findings of this run to the file of --torchcheck-baseline; entries of what did not run stay",
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
        help="the loss of --torchcheck-model: a function of torch.nn.functional such as cross_entropy, "
        "package.module:function for your own, or output where the model returns its own (chosen from the output)",
    ),
    Setting(name="against", flag="--torchcheck-against", parse=parse_reference, metavar="REF",
        help="compare each contract's model with what it was at this git reference: state dict, outputs, costs",
    ),
    Setting(name="record", flag="--torchcheck-record", parse=Path, metavar="DIR", ini="torchcheck_record",
        help="compare each contract's model with its record in this folder; a missing record is written",
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
