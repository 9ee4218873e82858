"""Settings: where they may stand, which one counts, and what is refused."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from pytest_torchcheck.plugin import marker_help, markers, options, settings
from pytest_torchcheck.plugin.options import Options
from pytest_torchcheck.plugin.settings import SETTINGS, Require


def built(pytester: pytest.Pytester, *arguments: str) -> Options:
    config = pytester.parseconfigure(*arguments)
    return config.stash[options.KEY]


def test_every_setting_is_a_field_and_every_field_a_setting() -> None:
    assert {setting.name for setting in SETTINGS} == set(Options._fields) - {"sources"}
    for setting in SETTINGS:
        assert setting.flag or setting.ini
        assert setting.help


def test_defaults(pytester: pytest.Pytester) -> None:
    found = built(pytester)
    assert found == Options(sources=found.sources)
    assert set(found.sources.values()) == {"default"}
    assert not found.used
    assert not found.shares
    assert options.header(found) == "seed 0 (default)"


VALUES = {
    "enabled": ("true", None, True),
    "strict": ("true", None, True),
    "seed": ("7", "8", 8),
    "examples": ("3", "4", 4),
    "devices": ("cpu", "cpu,cuda:1", ("cpu", "cuda:1")),
    "checks": ("backward", "!overfit", ("!overfit",)),
    "packages": ("mylib", "mylib,other", ("mylib", "other")),
    "artifacts": ("a", "b", Path("b")),
    "json": ("a.json", "b.json", Path("b.json")),
    "html": ("a.html", "b.html", Path("b.html")),
    "sarif": ("a.sarif", "b.sarif", Path("b.sarif")),
    "markdown": ("a.markdown", "b.markdown", Path("b.markdown")),
    "baseline": ("known.txt", "other.txt", Path("other.txt")),
    "budget": ("10", "20.5", 20.5),
    "cached": ("true", None, True),
    "record": ("a", "b", Path("b")),
    "durations": ("3", "4", 4),
    "require": ("cuda", "cuda:2", Require("cuda", 2)),
    "min_gpu_tests": ("1", "2", 2),
    "share": ("on", "off", "off"),
    "leak": ("1MiB", "2MiB", 2 * 2**20),
    "isolated_timeout": ("10", "20.5", 20.5),
    "probe_timeout": ("10", "20.5", 20.5),
}


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.flag and s.ini], ids=lambda s: s.name)
def test_the_command_line_counts_more_than_the_ini_file(
    pytester: pytest.Pytester, setting: settings.Setting
) -> None:
    in_file, given, expected = VALUES[setting.name]
    if setting.name == "baseline":  # has to be there
        for name in (in_file, given):
            Path(name).touch()
    pytester.makeini(f"[pytest]\n{setting.ini} = {in_file}\n")
    needed = ("--torchcheck",) if setting.name == "record" else ()
    found = built(pytester, *needed)
    assert getattr(found, setting.name) not in (None, getattr(Options(), setting.name))
    assert found.sources[setting.name] == f"ini {setting.ini}"
    assert found.used
    flag = f"{setting.flag}={given}" if given else setting.flag.replace("--", "--no-", 1)
    found = built(pytester, *needed, flag)
    value = expected if given else False
    assert getattr(found, setting.name) == (
        pytester.path / value if isinstance(value, Path) else value
    )
    assert found.sources[setting.name] == flag.partition("=")[0]


def test_a_path_in_the_ini_file_is_meant_from_there(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]\ntorchcheck_json = out/found.json\n")
    inner = pytester.mkdir("inner")
    monkeypatch.chdir(inner)
    assert built(pytester).json == pytester.path / "out/found.json"
    assert built(pytester, "--torchcheck-json=x.json").json == inner / "x.json"


def test_the_environment_counts_more_than_the_ini_file(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]\ntorchcheck_require = cuda:2\n")
    monkeypatch.setenv("TORCHCHECK_REQUIRE", "cuda:3")
    found = built(pytester)
    assert (found.require, found.sources["require"]) == (
        Require("cuda", 3),
        "environment TORCHCHECK_REQUIRE",
    )
    assert built(pytester, "--torchcheck-require=mps").require == Require("mps", 1)
    assert built(pytester, "--torchcheck-require=").require is None  # turns it off for one run


def test_native_toml_takes_numbers_and_lists(pytester: pytest.Pytester) -> None:
    if pytest.version_tuple < (9,):
        pytest.skip("this pytest has no native TOML settings")
    pytester.makepyprojecttoml(
        """
        [tool.pytest]
        strict = true
        torchcheck = true
        torchcheck_seed = 7
        torchcheck_isolated_timeout = 2.5
        torchcheck_checks = ["backward", "!overfit"]
        torchcheck_cuda_marker = false
        """
    )
    found = built(pytester)
    assert (found.enabled, found.seed, found.isolated_timeout) == (True, 7, 2.5)
    assert found.checks == ("backward", "!overfit")
    assert found.cuda_marker is False


WRONG = {
    "--torchcheck-seed=-1": "'-1' is not allowed; choose a whole number of at least 0",
    "--torchcheck-seed=x": "'x' is not allowed",
    "--torchcheck-examples=0": "at least 1",
    "--torchcheck-devices=gpu": "'gpu' is not a device; choose from cpu, cuda, cuda:0, xpu, mps and meta",
    "--torchcheck-devices=,": "give at least one name",
    "--torchcheck-checks=Over Fit": "'Over Fit' is not the name of a check",
    "--torchcheck-packages=my-lib": "'my-lib' is not an importable package",
    "--torchcheck-require=cpu": "choose from cuda, cuda:2, xpu and mps",
    "--torchcheck-require=cuda:0": "choose from cuda, cuda:2",
    "--torchcheck-min-gpu-tests=many": "whole number of at least 0",
    "--torchcheck-share=yes": "choose from auto, on and off",
    "--torchcheck-leak=16 potatoes": "the size must look like",
    "--torchcheck-isolated-timeout=0": "choose a number of seconds above 0",
    "--torchcheck-probe-timeout=inf": "choose a number of seconds above 0",
    "--torchcheck-replay=nothing.pt": "no such file",
}


@pytest.mark.parametrize("argument", WRONG)
def test_a_wrong_value_is_a_usage_error(pytester: pytest.Pytester, argument: str) -> None:
    pytester.makepyfile("def test(): pass")
    result = pytester.runpytest_inprocess(argument)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {argument.partition('=')[0]}*"])
    assert WRONG[argument] in result.stderr.str()


def test_a_wrong_value_in_the_ini_file_names_the_key(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntorchcheck_share = maybe\n")
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: ini torchcheck_share: 'maybe' is not allowed; choose from auto, on and off*"]
    )


def test_the_header_says_where_values_come_from(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntorchcheck_strict = true\n")
    pytester.makepyfile("def test(): pass")
    result = pytester.runpytest_inprocess(
        "--torchcheck", "--torchcheck-devices=cpu", "--torchcheck-leak=1KiB"
    )
    result.stdout.fnmatch_lines(
        [
            (
                "torchcheck: contracts, strict true (ini torchcheck_strict), seed 0 (default), "
                "devices cpu (--torchcheck-devices), leak 1024 (--torchcheck-leak)"
            )
        ]
    )
    quiet = pytester.runpytest_inprocess("-c", str(pytester.makefile(".ini", other="[pytest]")))
    quiet.stdout.no_fnmatch_line("torchcheck:*")


def test_markers_are_shown_with_their_real_signatures(pytester: pytest.Pytester) -> None:
    for line in marker_help.MARKERS:
        name = line.partition("(")[0]
        signature = inspect.signature(markers._signature(name))
        bare = [
            parameter.replace(annotation=inspect.Parameter.empty)
            for parameter in signature.parameters.values()
        ]
        shown = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
        assert line.startswith(f"{name}{shown}: ")
    result = pytester.runpytest_inprocess("--markers")
    for line in marker_help.MARKERS:
        assert f"@pytest.mark.{line}" in result.stdout.str()


def test_a_projects_own_cuda_marker_can_be_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntorchcheck_cuda_marker = false\nmarkers = cuda: ours\n")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.cuda("anything", goes=True)
        def test():
            pass
        """
    )
    result = pytester.runpytest_inprocess("--strict-markers")
    result.assert_outcomes(passed=1)
    assert "as cuda, for Intel" not in pytester.runpytest_inprocess("--markers").stdout.str()
