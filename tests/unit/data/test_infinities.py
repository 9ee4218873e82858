"""Infinities that arithmetic makes of every sample are a defect; masks of -inf are none."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from pytest_torchcheck import Contract


class Spectra(Dataset[tuple[torch.Tensor, int]]):
    """Log spectra of clips that begin in silence."""

    def __init__(self, *, floor: float) -> None:
        self.clips = torch.rand(12, 8, generator=torch.Generator().manual_seed(0)) + 0.1
        self.clips[:, :2] = 0.0
        self.floor = floor

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.scaled(self.clips[index] + self.floor), index % 3

    def scaled(self, clip: torch.Tensor) -> torch.Tensor:
        return 10 * torch.log10(clip)  # of zero


class Masked(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Sequences with an additive mask, written or as the logarithm of zeros and ones."""

    def __init__(self, *, by_log: bool) -> None:
        self.by_log = by_log
        self.ids = torch.arange(96.0).reshape(12, 8)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        valid = torch.arange(8) < 5 + index % 3
        mask = (
            valid.float().log() if self.by_log else torch.zeros(8).masked_fill(~valid, -torch.inf)
        )
        return self.ids[index], mask


def test_a_logarithm_of_zero_is_named() -> None:
    report = Contract(dataset=Spectra(floor=0.0)).check("samples-valid")
    (finding,) = [found for found in report.findings if found.code == "sample-inf"]
    assert finding.status == "violated"
    assert finding.location is not None
    assert finding.location.text.endswith("# of zero")
    assert "torch.log10: log10 of 0 in 2 of 8 elements" in (finding.because or "")
    assert Contract(dataset=Spectra(floor=1e-6)).check("samples-valid").ok


def test_masks_are_meant() -> None:
    for by_log in (False, True):
        report = Contract(dataset=Masked(by_log=by_log)).check("samples-valid")
        assert report.ok


class Patients(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Measurements with gaps."""

    def __init__(self) -> None:
        self.rows = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
        self.rows[::3, 1] = torch.nan

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.rows[index], self.rows[index, :1]


class Imputed(nn.Module):
    """Replaces what is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        missing = torch.isnan(x)
        return self.layer(torch.cat([x.masked_fill(missing, 0.0), missing.to(x.dtype)], dim=1))


@pytest.mark.parametrize("gaps", [True, False])
def test_missing_values_are_meant_where_the_batch_of_the_contract_has_them(gaps: bool) -> None:
    data = Patients()
    x = data.rows if gaps else data.rows.nan_to_num()
    contract = Contract(model=Imputed, batch=((x,), None), dataset=data)
    report = contract.check("samples-valid")
    assert report.ok is gaps
    assert [f.code for f in report.findings if f.status == "violated"] == (
        [] if gaps else ["sample-nan"]
    )
