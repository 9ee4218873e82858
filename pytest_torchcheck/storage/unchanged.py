"""What verdicts were reached with, kept so that a later run can tell whether anything of it has changed.

Everything that could matter and can be seen counts: the files that were imported or read, those that were asked
about and the folders that were listed, the settings, the versions of all that is installed, the machine, and the
environment variables that one of the files names.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Final

from ..lean import dataclass
from .looked_at import LISTINGS, Stats, answer, asked_by_program, questions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

FORMAT: Final = 2
_WHOLE: Final = (
    64 * 2**20
)  # bytes up to which contents are compared; of larger files size and time are
_TEXT: Final = 2**20  # bytes up to which a file is searched for names of environment variables
_READ_BY_LIBRARIES: Final = re.compile(
    r"(TORCH|PYTORCH|CUDA|CUBLAS|CUDNN|NCCL|OMP|MKL|KMP|OPENBLAS|ATEN|HF|PYTHON)_\w+|PYTHONPATH"
)
_SYSTEM: Final = tuple(f"{os.sep}{name}{os.sep}" for name in ("proc", "sys", "dev"))


class CacheError(ValueError):
    """What is kept cannot be read; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What verdicts rest on; plain data.

    Attributes:
        settings: Digest of the settings, the versions and the machine.
        files: By path of a file or folder: digest of its contents, or of the names of its modules; by a
            question on one (`looked_at.questions`): the answer.
        variables: Environment variables that libraries read or a file names, with their values.
    """

    settings: str
    files: Mapping[str, str]
    variables: Mapping[str, str]

    @property
    def key(self) -> str:
        """A digest of the whole."""
        text = json.dumps([self.settings, dict(self.files), dict(self.variables)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Return plain types."""
        return {
            "settings": self.settings, "files": dict(self.files), "variables": dict(self.variables),
        }  # fmt: skip

    def change(self, settings: str, imported: Mapping[str, str]) -> str:
        """Say what is not as it was; empty where nothing is.

        Args:
            settings: Digest of the settings now.
            imported: Files that are imported now, before any check has run, with their digests.
        """
        if settings != self.settings:
            return "a setting, a version or the machine"
        if new := sorted(imported.keys() - self.files.keys()):
            return new[0]
        for path, digest in self.files.items():
            if (imported[path] if path in imported else digest_of(path)) != digest:
                return path
        if (now := variables_of(self.files)) != dict(self.variables):
            differing = set(now.items()) ^ set(self.variables.items())
            return f"the environment variable {sorted(name for name, _ in differing)[0]}"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A verdict that held: the key of its basis, and when it was reached, as text."""

    basis: str
    since: str


@dataclass(slots=True)
class Verdicts:
    """The verdicts that are kept: by contract and case, and what they rest on by key."""

    bases: dict[str, Basis]
    cases: dict[str, dict[str, Kept]]

    @classmethod
    def parse(cls, text: str) -> Verdicts:
        """Read what :meth:`text` wrote.

        Raises:
            CacheError: It is something else.
        """
        try:
            found = json.loads(text)
            if found["format"] != FORMAT:
                raise CacheError(f"its format is {found['format']!r}; this version writes {FORMAT}")
            bases = {key: Basis(**value) for key, value in found["bases"].items()}
            cases = {
                node: {
                    case: Kept(basis=basis, since=since) for case, (basis, since) in kept.items()
                }
                for node, kept in found["cases"].items()
            }
        except CacheError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CacheError(f"it is no such file ({type(error).__name__})") from error
        rests = {kept.basis for each in cases.values() for kept in each.values()}
        if any(key != basis.key for key, basis in bases.items()) or not rests <= bases.keys():
            raise CacheError("its contents do not fit their checksums")
        return cls(bases, cases)

    def text(self) -> str:
        """Return what a file holds; what nothing rests on is left out."""
        used = {kept.basis for cases in self.cases.values() for kept in cases.values()}
        return json.dumps(
            {
                "format": FORMAT,
                "bases": {key: b.to_dict() for key, b in self.bases.items() if key in used},
                "cases": {
                    node: {case: [kept.basis, kept.since] for case, kept in cases.items()}
                    for node, cases in self.cases.items()
                    if cases
                },
            },
            indent=1,
        )

    def update(self, basis: Basis, green: Mapping[str, Iterable[str]], since: str) -> None:
        """Keep cases that held just now."""
        self.bases[basis.key] = basis
        for node, cases in green.items():
            self.cases.setdefault(node, {}).update(
                {case: Kept(basis=basis.key, since=since) for case in cases}
            )

    def drop(self, node: str, cases: Iterable[str] | None = None) -> None:
        """Forget a contract, or some of its cases."""
        if cases is None:
            self.cases.pop(node, None)
            return
        for case in cases:
            self.cases.get(node, {}).pop(case, None)


def digest_of(path: str) -> str:
    """Return a digest of a file's contents, or of the names of a folder's modules; empty where there is none.

    A question on a path gives its answer.
    """
    if (answered := answer(path)) is not None:
        return answered
    try:
        if path.endswith(os.sep):
            names = sorted(n for n in os.listdir(path) if n.endswith((".py", ".so", ".pyd")))
            return hashlib.sha256("\n".join(names).encode()).hexdigest()
        about = os.stat(path)
        if about.st_size > _WHOLE:
            return f"{about.st_size} bytes, {about.st_mtime_ns}"
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def modified(path: str) -> int:
    """Return when a file was last written, in nanoseconds; 0 for a folder, which says nothing of its files."""
    try:
        return 0 if path.endswith(os.sep) else os.stat(path).st_mtime_ns
    except OSError:
        return 0


def imported_files(is_installed: Callable[[str], bool]) -> set[str]:
    """Return the files of all imported modules that are not installed, with the folders that they lie in.

    Args:
        is_installed: Says whether a path belongs to an installed package or the standard library.
    """
    found = set()
    folders: dict[
        str, str
    ] = {}  # most modules are installed, and hundreds of them lie in one folder
    for own, module in list(sys.modules.items()):
        name = getattr(module, "__file__", None)
        if own == "__main__" or not isinstance(name, str):
            continue
        folder, file = os.path.split(name)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        installed = is_installed(os.path.join(folders[folder], file)) and not os.path.islink(name)
        if installed or not os.path.isfile(name):
            continue
        path = os.path.realpath(name)
        if not is_installed(path):
            found |= {path, os.path.dirname(path) + os.sep}
    return found


def read_files(opened: Opened, is_installed: Callable[[str], bool], but: str) -> set[str]:
    """Return the files that were read and not written by this process, and are there still.

    Args:
        opened: What was opened.
        is_installed: See :func:`imported_files`.
        but: A folder whose files do not count, such as pytest's cache.
    """
    own = os.path.realpath(but) + os.sep
    found = set()
    for name in opened.read - opened.written:
        path = os.path.realpath(name)
        bytecode = ".pyc" in os.path.basename(
            path
        )  # also under the name that it is written as first
        if bytecode or path.startswith((own, *_SYSTEM)) or path in opened.written:
            continue
        if os.path.isfile(path) and not is_installed(path):
            found.add(path)
    return found


def variables_of(files: Iterable[str]) -> dict[str, str]:
    """Return the environment variables that libraries read or that a file names, with digests of their values."""
    chosen = {name for name in os.environ if _READ_BY_LIBRARIES.fullmatch(name)}
    left = {name: name.encode(errors="replace") for name in os.environ.keys() - chosen}
    for path in files:
        try:
            if path.endswith(os.sep) or os.path.getsize(path) > _TEXT:
                continue
            with open(path, "rb") as file:
                text = file.read()
        except OSError:  # gone, which its digest tells
            continue
        named = [name for name, written in left.items() if written in text]
        for name in named:
            del left[name]
        chosen.update(named)
    return {
        name: hashlib.sha256(os.environ[name].encode(errors="replace")).hexdigest()[:16]
        for name in sorted(chosen)
        if not name.startswith("PYTEST_")  # pytest's own, of which one changes with each test
    }


def settings_digest(settings: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """Return a digest of a run's settings, all installed versions and the machine.

    Args:
        settings: What decides verdicts, as values whose text is the same for equal ones.
        environment: Versions and the device, as :func:`~pytest_torchcheck.runner.surroundings.environment`
            returns them.
    """
    installed = sorted(
        name
        for folder in dict.fromkeys(sys.path)
        if os.path.isdir(folder)
        for name in os.listdir(folder)
        if name.endswith((".dist-info", ".egg-info"))  # name and version of a distribution
    )
    parts = [
        sorted((name, repr(value)) for name, value in settings.items()),
        sorted(environment.items()),
        installed,
        [platform.machine(), platform.node(), sys.executable, tempfile.gettempdir()],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


_open: list[Opened] = []  # those that record now: an audit hook cannot be taken away again
_hooked: list[bool] = []


class Opened:
    """Records the paths that are opened, from :meth:`start` to :meth:`stop`.

    Attributes:
        read: Absolute paths that were opened for reading.
        written: Absolute paths that were opened for writing too.
        stated: Absolute paths of which the program asked whether, or as what, they exist.
        listed: Absolute paths of folders that it listed.
    """

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.written: set[str] = set()
        self.stated: set[str] = set()
        self.listed: set[str] = set()

    def start(self) -> None:
        """Record from now on."""
        if not _hooked:
            _hooked.append(True)
            sys.addaudithook(_audit)
        if not _open:
            _stats.start()
        _open.append(self)

    def stop(self) -> None:
        """Record no more."""
        if self in _open:
            _open.remove(self)
            if not _open:
                _stats.stop()

    def asked(self, root: str, but: str, is_installed: Callable[[str], bool]) -> set[str]:
        """Return what was asked about paths below a folder; of files that were to be read and are not there, too.

        Args:
            root: The folder.
            but: A folder below it that does not count, such as pytest's cache.
            is_installed: See :func:`imported_files`.
        """
        own = os.path.realpath(but) + os.sep
        absent = {path for path in self.read - self.written if not os.path.exists(path)}

        def leave(path: str) -> bool:
            made = path in self.written or f"{os.sep}__pycache__" in path
            return made or f"{path}{os.sep}".startswith(own) or is_installed(path)

        return questions(self.stated | absent, self.listed, root, leave)

    def _look(self, path: Any, seen: set[str]) -> None:
        if isinstance(path, str | bytes | os.PathLike):
            seen.add(os.path.abspath(os.fsdecode(path)))

    def _see(self, path: Any, mode: Any, flags: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return  # a descriptor
        name = os.path.abspath(os.fsdecode(path))
        writes = (
            any(letter in mode for letter in "wax+")
            if isinstance(mode, str)
            else bool((flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        )
        (self.written if writes else self.read).add(name)


def _stated(path: Any) -> None:
    for one in _open:
        one._look(path, one.stated)


_stats: Final = Stats(_stated)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _open:
        for one in _open:
            one._see(*arguments[:3])
    elif event in LISTINGS and _open and asked_by_program(1):
        for one in _open:
            one._look("." if arguments[0] is None else arguments[0], one.listed)
