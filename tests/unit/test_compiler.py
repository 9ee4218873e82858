"""Optimizers work without torch's compiler as they do with it, and are torch's own again afterwards."""

import subprocess
import sys

PROGRAM = """
import sys
import torch
from torch.optim import Optimizer
from pytest_torchcheck import compiler

KINDS = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop)  # the first inherits its step


def steps(kind, count=2):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(4))
    seen = []
    optimizer = kind([weight], lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: seen.append(1))
    for _ in range(count):
        optimizer.zero_grad()
        (weight**3).sum().backward()
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert len(seen) == count and torch.is_grad_enabled()
    return weight.detach(), optimizer


with compiler.unloaded():
    within = {kind: steps(kind)[0] for kind in KINDS}
    with compiler.unloaded():
        again = {kind: steps(kind)[0] for kind in KINDS}
    kept = steps(torch.optim.Adam)[1]
    assert "torch._dynamo" not in sys.modules
for kind in KINDS:
    assert kind.step.hooked and kind.step.__wrapped__.__code__.co_name == "_use_grad"
    assert torch.equal(within[kind], again[kind])
fresh = torch.optim.Adagrad.step  # nobody has made one yet: as torch defines it
assert not hasattr(fresh, "hooked") and fresh.__code__.co_name == "_use_grad"
assert not any("__dynamo_disable" in vars(f.__wrapped__) for f in vars(Optimizer).values() if hasattr(f, "__wrapped__"))

with compiler.unloaded():
    import torch._dynamo
    calls = []
    torch._dynamo.graph_break = lambda: calls.append(1)
    steps(torch.optim.Adam, count=1)
    assert calls  # torch's own function ran
outside = {kind: steps(kind)[0] for kind in KINDS}
assert all(torch.equal(within[kind], outside[kind]) for kind in KINDS)
kept.step()
print("same")
"""


def test_optimizers_do_without_the_compiler_what_they_do_with_it(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.stdout.strip() == "same", done.stderr
