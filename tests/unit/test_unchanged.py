"""What verdicts rest on: files by contents, folders by their modules, variables that a file names."""

from __future__ import annotations

import contextlib
import importlib
import os

import pytest

from pytest_torchcheck.storage.unchanged import (
    Basis,
    CacheError,
    Opened,
    Verdicts,
    digest_of,
    read_files,
    settings_digest,
    variables_of,
)


def basis_of(*paths):
    files = {str(path): digest_of(str(path)) for path in paths}
    return Basis(settings="s", files=files, variables=variables_of(files))


def test_a_basis_says_what_changed(tmp_path, monkeypatch):
    model, folder = tmp_path / "model.py", f"{tmp_path}{os.sep}"
    model.write_text("import os\nsize = os.environ['SIZE_OF_IT']\n")
    monkeypatch.setenv("SIZE_OF_IT", "3")
    basis = basis_of(model, folder)
    now = {str(model): digest_of(str(model))}
    assert basis.change("s", now) == ""
    assert basis.change("t", now) == "a setting, a version or the machine"
    assert basis.change("s", {"/elsewhere.py": "x"}) == "/elsewhere.py"
    monkeypatch.setenv("SIZE_OF_IT", "4")
    assert basis.change("s", now) == "the environment variable SIZE_OF_IT"
    monkeypatch.setenv("SIZE_OF_IT", "3")
    (tmp_path / "notes.txt").write_text("not a module")
    assert basis.change("s", now) == ""
    (tmp_path / "fast.py").write_text("")
    assert basis.change("s", now) == folder


def test_libraries_read_variables_that_no_file_names(monkeypatch):
    monkeypatch.delenv("TORCH_SOMETHING", raising=False)
    before = variables_of([])
    monkeypatch.setenv("TORCH_SOMETHING", "1")
    monkeypatch.setenv("NOBODY_READS_IT", "1")
    assert set(variables_of([])) - set(before) == {"TORCH_SOMETHING"}


def test_what_was_read_counts_and_what_was_written_does_not(tmp_path):
    read, written, cache = tmp_path / "data.txt", tmp_path / "out.txt", tmp_path / "cache"
    read.write_text("1")
    cache.mkdir()
    (cache / "own").write_text("")
    opened = Opened()
    opened.start()
    try:
        read.read_text()
        written.write_text("2")
        written.read_text()
        (cache / "own").read_text()
        os.close(os.open(read, os.O_RDONLY))
    finally:
        opened.stop()
    (tmp_path / "later.txt").write_text("")
    (tmp_path / "later.txt").read_text()
    found = read_files(opened, lambda path: False, str(cache))
    assert {path for path in found if path.startswith(str(tmp_path))} == {str(read)}


def looked(root, look):
    opened, before = Opened(), (os.stat, os.lstat)
    opened.start()
    try:
        look(root)
    finally:
        opened.stop()
    assert (os.stat, os.lstat) == before
    found = opened.asked(str(root), str(root / "cache"), lambda path: False)
    return {question.replace(str(root), "ROOT") for question in found}


@pytest.mark.parametrize(
    ("look", "asked"),
    [
        (lambda root: (root / "off").exists(), "whether there is ROOT/off"),
        (lambda root: os.path.isfile(root / "off"), "whether there is ROOT/off"),
        (lambda root: (root / "kept").is_dir(), "whether there is ROOT/kept"),
        (lambda root: list(root.glob("*.off")), "the names in ROOT"),
        (lambda root: list((root / "kept").iterdir()), "the names in ROOT/kept"),
        (lambda root: os.listdir(root), "the names in ROOT"),
        (lambda root: list(os.walk(root)), "the names in ROOT/kept"),
        (lambda root: missing(root), "whether there is ROOT/x"),
    ],
    ids=["exists", "isfile", "is_dir", "glob", "iterdir", "listdir", "walk", "open"],
)  # fmt: skip
def test_what_is_asked_of_paths_is_part_of_a_basis(tmp_path, look, asked):
    (tmp_path / "kept").mkdir()
    assert asked in looked(tmp_path, look)


def missing(root):
    with contextlib.suppress(OSError):
        (root / "x").read_text()


def test_what_tools_and_imports_ask_is_not(tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir()
    (tmp_path / "module_to_find.py").write_text("VALUE = 1")
    monkeypatch.syspath_prepend(str(tmp_path))

    def look(root):
        importlib.import_module("module_to_find")
        digest_of(f"{root}{os.sep}")
        (root / "cache" / "own").exists()
        (root.parent / "elsewhere").exists()
        (root / "written").write_text("")
        (root / "written").exists()

    assert looked(tmp_path, look) <= {"whether there is ROOT"}


def test_an_answer_changes_with_what_is_asked_of(tmp_path):
    there, names = f"whether there is {tmp_path / 'off'}", f"the names in {tmp_path}"
    basis = Basis(
        settings="s", files={q: digest_of(q) for q in (there, names)}, variables=variables_of({})
    )
    (tmp_path / ".hidden").touch()
    (tmp_path / "__pycache__").mkdir()
    assert basis.change("s", {}) == ""
    (tmp_path / "off").touch()
    assert basis.change("s", {}) == there
    (tmp_path / "off").unlink()
    assert basis.change("s", {}) == ""
    (tmp_path / "on").touch()
    assert basis.change("s", {}) == names


def test_verdicts_come_back_as_they_were_kept(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("")
    kept, basis = Verdicts({}, {}), basis_of(path)
    kept.update(basis, {"t.py::net": ["backward", "seeding"], "t.py::old": ["backward"]}, "today")
    kept.drop("t.py::old")
    kept.drop("t.py::net", ["seeding"])
    again = Verdicts.parse(kept.text())
    assert again.cases.keys() == {"t.py::net"}
    assert again.cases["t.py::net"].keys() == {"backward"}
    assert again.bases[basis.key] == basis
    with pytest.raises(CacheError, match="checksums"):
        Verdicts.parse(kept.text().replace('"settings": "s"', '"settings": "t"'))


def test_each_setting_counts():
    assert settings_digest({"seed": 1}, {}) == settings_digest({"seed": 1}, {})
    assert settings_digest({"seed": 1}, {}) != settings_digest({"seed": 2}, {})
    assert settings_digest({"seed": 1}, {}) != settings_digest({"seed": 1}, {"torch": "3"})
