"""No check may reject a correct model, nor fail in itself."""

from __future__ import annotations

import pytest
import torch

from tests.soundness import by_hand, losses, met_in_packages
from tests.soundness.models import SOUND

COLLECTIONS = (by_hand, losses, met_in_packages)  # importing them enters their models into SOUND


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # torch's own layer
@pytest.mark.parametrize("name", SOUND)
def test_a_correct_model_passes_every_check(name: str) -> None:
    torch.manual_seed(0)
    report = SOUND[name]().check()
    wrong = [f for f in report.findings if f.status == "violated" or f.code == "internal-error"]
    assert not wrong, "\n\n".join(str(f) for f in wrong)
    assert sum(f.status == "passed" for f in report.findings) >= 5
