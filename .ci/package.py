"""Build sdist and wheel, and use the wheel as a user would: in a new environment, without the sources.

``python .ci/package.py DIST`` builds into that folder. Needs ``build`` and ``twine``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ("pytest_torchcheck/py.typed", "pytest_torchcheck/cli/pages.json")


def run(*command: str, cwd: Path = ROOT) -> None:
    """Run a command as a user would, without this folder on the path."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "PYTEST_ADDOPTS")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    subprocess.run(command, cwd=cwd, env=environment, check=True)


def main() -> int:
    """Build, look, install, run."""
    folder = Path(sys.argv[1]).resolve()
    for old in (*folder.glob("*.whl"), *folder.glob("*.tar.gz")):
        old.unlink()
    run(sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist))
    names = zipfile.ZipFile(wheel).namelist()
    missing = [name for name in DATA if name not in names]
    foreign = [name for name in names if not name.startswith("pytest_torchcheck")]
    if missing or foreign:
        raise SystemExit(f"{wheel.name}: lacks {missing}, and holds {foreign} too")
    with tempfile.TemporaryDirectory() as place:
        away = Path(place)
        venv.create(away / "venv", with_pip=True)
        python = str(away / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python")
        run(python, "-m", "pip", "install", "--quiet", str(wheel), cwd=away)
        run(python, "-m", "pytest", "--torchcheck-model", "torch.nn:Linear(4,2)", "-q", cwd=away)
        run(python, "-m", "pytest_torchcheck", "explain", "grad-none", cwd=away)
    return 0


if __name__ == "__main__":
    sys.exit(main())
