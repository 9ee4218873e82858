"""``init``: a contract file that passes, with what was observed and measured in its comments."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from torch import nn

from ..declared.limits import DeclarationError
from ..infer import observe
from ..infer.code import TOP, code_of, parse_specs, specs_used
from ..infer.inference import Inferred, Uninferable, infer, with_batch
from ..infer.outcome import named_loss
from ..infer.target import (
    TargetError,
    arguments_of,
    attribute,
    load,
    of_config,
    parse_target,
)
from ..specs import SpecError
from ..text.printable import message_of
from . import DONE, CommandError

if TYPE_CHECKING:
    import argparse

    from ..contracts import Contract
    from ..infer.observe import Observed
    from ..infer.target import Target

WIDTH: Final = 100


def run(given: argparse.Namespace) -> int:
    """Write the file."""
    path = Path(given.output)
    if given.output != "-" and path.exists() and not given.force:
        raise CommandError(f"{path} exists; give another file with -o, or --force to overwrite it")
    if given.runs < 1:
        raise CommandError(f"--runs must be at least 1; got {given.runs}")
    try:
        text = _written(given)
    except (TargetError, SpecError, Uninferable, DeclarationError) as error:
        told = message_of(error).replace(
            "--torchcheck-inputs", "--inputs"
        )  # as this command calls it
        raise CommandError(told) from None
    if given.output == "-":
        sys.stdout.write(text)
        return DONE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from None
    sys.stdout.write(f"wrote {path}; run it with: python -m pytest --torchcheck {path}\n")
    return DONE


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _written(given: argparse.Namespace) -> str:
    """Observe the model and return the file's text."""
    target = parse_target(given.model)
    specs = None if given.inputs is None else parse_specs(given.inputs)
    model = load(target, folder=str(Path.cwd()))
    loss = named_loss(given.loss, str(Path.cwd()))
    data: Target | None = None if given.batch is None else parse_target(given.batch)
    _tell(f"working out what {target.name} takes")
    if data is not None:
        inferred = with_batch(model, attribute(data, str(Path.cwd())), loss=loss)
    else:
        arguments = arguments_of(target, model)
        inferred = infer(model, arguments=arguments, inputs=specs, loss=loss)
    contract = inferred.contract(name=target.name)
    observed = _observed(contract, inferred, given.runs)
    whole = observe.again(contract, **_fields(observed))
    failing = observe.broken(whole, runs=given.runs, tell=_tell)
    if "backward" in failing:
        raise CommandError(f"its training step fails: {failing['backward'][0]}; fix that first")
    standing = list(observe.standing(contract, runs=given.runs))
    return _File(target, inferred, observed, failing, standing, given.runs, data).text()


def _observed(contract: Contract, inferred: Inferred, runs: int) -> list[Observed]:
    _tell(f"observing promises in {observe.times(runs)}")
    model: Any = contract.model
    built = model() if contract.is_factory else model
    found = list(observe.promises(contract, built, output=inferred.output, runs=runs))
    _tell(f"measuring memory and work in {observe.times(runs)}")
    found += observe.ceilings(contract, runs=runs)
    if inferred.output is not None:
        found += observe.output(contract, inferred.output, runs=runs)
    return found


def _fields(observed: list[Observed]) -> dict[str, Any]:
    fields: dict[str, Any] = {o.field: o.value for o in observed if o.field != "promises"}
    made = [o.value for o in observed if o.field == "promises"]
    return {**fields, "promises": made} if made else fields


class _File:
    """The text of a contract file."""

    def __init__(
        self,
        target: Target,
        inferred: Inferred,
        observed: list[Observed],
        failing: dict[str, tuple[str, int]],
        standing: list[str],
        runs: int,
        data: Target | None,
    ) -> None:
        self.target, self.inferred, self.observed = target, inferred, observed
        self.failing, self.standing, self.runs = failing, standing, runs
        self.data = data

    def text(self) -> str:
        """Return the whole file."""
        head = (
            f'"""What {self.target.short} promises: observed by python -m pytest_torchcheck init, '
            'and yours to edit.\n\nRun it with: pytest --torchcheck\n"""\n\n'
        )
        return head + self._imports() + "\n\n" + self._declaration()

    def _imports(self) -> str:
        used = specs_used(self.inferred.inputs, self.inferred.targets)
        found: dict[str, set[str]] = {}
        top = {name for name in used if name in TOP}
        found["pytest_torchcheck"] = top | {"Contract" if self._is_module() else "contract"}
        if used - top:
            found["pytest_torchcheck.specs"] = used - top
        promised = {o.code.partition("(")[0] for o in self.observed if o.field == "promises"}
        if promised:
            found["pytest_torchcheck.promises"] = promised
        for named in (self.target, self.data):
            if named is not None:
                found.setdefault(named.module, set()).add(named.path[0])
        lines = ["from __future__ import annotations\n"]
        loss = self.inferred.loss
        if loss is not None and loss.module:
            found.setdefault(loss.module, set()).add(loss.code.partition(".")[0])
        elif loss is not None and "F." in loss.code:
            lines.append("import torch.nn.functional as F")
        lines += [f"from {name} import {', '.join(sorted(found[name]))}" for name in sorted(found)]
        return "\n".join(lines) + "\n"

    def _is_module(self) -> bool:
        return isinstance(self.inferred.model, nn.Module)

    def _declaration(self) -> str:
        body = "".join(f"    {line}\n" for line in self._lines())
        name = self._name()
        if self._is_module():
            return f"{name} = Contract(\n    model={'.'.join(self.target.path)},\n{body})\n"
        return f"@contract(\n{body})\ndef {name}():\n    return {self._call()}\n"

    def _lines(self) -> list[str]:
        lines = [f"# inputs: from {self.inferred.because}"]
        if self.data is not None:
            lines.append(f"batch={'.'.join(self.data.path)},")
        lines += self.inferred.lines()
        for one in self.observed:
            if one.field != "promises":
                lines += [*_comment(one.comment), f"{one.field}={one.code},"]
        made = [one for one in self.observed if one.field == "promises"]
        if made:
            lines.append("promises=[")
            for one in made:
                lines += [*(f"    {text}" for text in _comment(one.comment)), f"    {one.code},"]
            lines.append("],")
        for text in self.standing:
            lines += _comment(f"{text}; it is a check of every contract")
        if self.failing:
            lines.append("# found while this file was written: fix each, then remove its line")
            lines.append("skip={")
            for name, (summary, times) in self.failing.items():
                reason = f"found in {times} of {self.runs} runs: {summary}"
                lines.append(f"    {code_of(name)}: {code_of(_cut(reason))},")
            lines.append("},")
        return lines

    def _name(self) -> str:
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self.target.short).lower().strip("_")
        loss = self.inferred.loss
        own = () if loss is None or not loss.module else loss.code.split(".")[:1]
        taken = {self.target.path[0], *own, *(() if self.data is None else self.data.path[:1])}
        return f"{words}_contract" if words in taken else words

    def _call(self) -> str:
        path = ".".join(self.target.path)
        named = [f"{name}={value!r}" for name, value in self.target.kwargs.items()]
        given = [*map(repr, self.target.args), *named]
        arguments = ", ".join(given)
        if len(arguments) > WIDTH - 40:
            arguments = "".join(f"\n        {argument}," for argument in given) + "\n    "
        if getattr(self.inferred.model, "func", None) is of_config:
            return f"{path}({path}.config_class({arguments}))"
        return f"{path}({arguments})"


def _comment(text: str) -> list[str]:
    """Return a comment in lines that fit."""
    lines, line = [], "#"
    for word in text.split():
        if len(line) + len(word) > WIDTH - 10:
            lines.append(line)
            line = "#"
        line += f" {word}"
    return [*lines, line]


def _cut(text: str) -> str:
    return text if len(text) <= 160 else f"{text[:157]}..."
