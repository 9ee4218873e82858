"""``python -m pytest_torchcheck``.

Contracts written for you, codes explained, what applies, what is installed.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final, NoReturn

from ..late import resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

DONE: Final = 0
FAILED: Final = 1
MISUSED: Final = 2
_EXIT: Final = "exit status: 0 done; 1 it cannot be done, see the message; 2 invalid usage"


class CommandError(Exception):
    """A command cannot do what it was asked; the message says why, and what would help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: Those of the command line by default.

    Returns:
        The exit status: 0 done, 1 not possible, 2 misuse.
    """
    parser = _parser()
    given, options = parser.parse_known_args(arguments)
    if options and not hasattr(given, "options"):
        parser.error(f"unrecognized arguments: {' '.join(options)}")
    given.options = options
    try:
        found: int = resolve(given.run)(given)
    except CommandError as error:
        sys.stderr.write(f"{given.program}: {error}\n")
        return FAILED
    except BrokenPipeError:  # such as: ... | head
        sys.stderr.close()
        return DONE
    return found


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say what is wrong and how the command is used."""
        self.print_usage(sys.stderr)
        self.exit(MISUSED, f"{self.prog}: {message}\n")


def _parser() -> argparse.ArgumentParser:
    program = "python -m pytest_torchcheck"
    parser = _Parser(prog=program, description=__doc__, epilog=_EXIT)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, help: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=help, description=f"{help}.", epilog=_EXIT)
        made.set_defaults(run=f"cli.{name}:run", program=f"{program} {name}")
        return made

    init = command("init", "write a contract file for a model from what it was observed to do")
    init.add_argument("model", metavar="PACKAGE.MODULE:NAME", help="or a call with literals")
    init.add_argument(
        "-o", "--output", metavar="FILE", default="tests/test_contracts.py",
        help="where to write; - for standard output (tests/test_contracts.py)",
    )  # fmt: skip
    init.add_argument("--force", action="store_true", help="overwrite a file that exists")
    init.add_argument("--inputs", metavar="SPECS", help="such as 'B 3 64 64' (inferred)")
    init.add_argument(
        "--loss",
        metavar="NAME",
        help="such as cross_entropy, or package.module:function (chosen by the output)",
    )
    init.add_argument(
        "--batch", metavar="PACKAGE.MODULE:NAME",
        help="real data, (inputs, targets), or a function (seed) of it, instead of specs",
    )  # fmt: skip
    init.add_argument(
        "--runs",
        metavar="N",
        type=int,
        default=3,
        help="seeds that every observation is made with (3)",
    )
    explain = command("explain", "print the page of a code or of a check")
    explain.add_argument("name", metavar="CODE", help="such as grad-none, or a check's name")
    checks = command(
        "checks", "list which checks apply to each contract of a file, and what would add more"
    )
    checks.add_argument("file", metavar="FILE", nargs="?", default="tests/test_contracts.py")
    checks.add_argument("-v", "--verbose", action="store_true", help="list every check")
    changed = command(
        "changed", "run the contracts that import a changed file, for a hook before a commit"
    )
    changed.add_argument(
        "files", metavar="FILE", nargs="*",
        help="as git or pre-commit names them (what differs from git's last commit)",
    )  # fmt: skip
    changed.set_defaults(options=())  # others, as --name=value, go to pytest
    command("doctor", "print versions, devices, plugins and settings, for a bug report")
    return parser
