"""The vit-pytorch package, at sizes that a CPU runs in moments."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels
from tests.models.population import Population, unused_is_true

if TYPE_CHECKING:
    from collections.abc import Callable

# the package imports torchvision for models that are not used here; torchvision has no build for torch's CPU wheel
for missing in ("torchvision", "torchvision.transforms", "torchvision.models", "torchvision.utils"):
    if importlib.util.find_spec(missing.partition(".")[0]) is None or missing in sys.modules:
        stub = sys.modules.setdefault(missing, mock.MagicMock(name=missing))
        stub.__spec__ = importlib.machinery.ModuleSpec(missing, None)
pytest.importorskip("vit_pytorch")

POPULATION = Population("vit-pytorch")
pytestmark = pytest.mark.filterwarnings("ignore")  # what public packages warn of is theirs
SMALL: dict[str, Any] = {
    "image_size": 64,
    "patch_size": 8,
    "num_classes": 4,
    "dim": 32,
    "depth": 2,
    "heads": 2,
    "mlp_dim": 48,
}


def make(module: str, cls: str, **arguments: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import importlib

        return getattr(importlib.import_module(f"vit_pytorch.{module}"), cls)(**arguments)

    return build


VITS: dict[str, Callable[[], nn.Module]] = {
    "vit": make("vit", "ViT", **SMALL, dropout=0.1),
    "simple_vit": make("simple_vit", "SimpleViT", **SMALL),
    "deepvit": make("deepvit", "DeepViT", **SMALL),
    "cait": make("cait", "CaiT", **{**SMALL, "cls_depth": 1}, layer_dropout=0.1),
    "t2t": make("t2t", "T2TViT", image_size=64, num_classes=4, dim=32, depth=2, heads=2, mlp_dim=48),
    "cct": make("cct", "CCT", img_size=64, embedding_dim=32, n_conv_layers=1, num_layers=2, num_heads=2, mlp_ratio=2, num_classes=4, kernel_size=3, stride=2, padding=1, pooling_kernel_size=3, pooling_stride=2, pooling_padding=1),
    "cross_vit": make("cross_vit", "CrossViT", image_size=64, num_classes=4, sm_dim=16, lg_dim=32, sm_patch_size=8, lg_patch_size=16, sm_enc_depth=1, lg_enc_depth=1, sm_enc_heads=2, lg_enc_heads=2, sm_enc_mlp_dim=32, lg_enc_mlp_dim=32, cross_attn_depth=1, cross_attn_heads=2, depth=1),
    "pit": make("pit", "PiT", image_size=64, patch_size=8, dim=16, num_classes=4, depth=(1, 1), heads=2, mlp_dim=32),
    "levit": make("levit", "LeViT", image_size=64, num_classes=4, stages=2, dim=(32, 48), depth=1, heads=(2, 2), mlp_mult=2),
    "cvt": make("cvt", "CvT", num_classes=4, s1_emb_dim=16, s1_depth=1, s2_emb_dim=16, s2_heads=2, s2_depth=1, s3_emb_dim=32, s3_heads=2, s3_depth=1),
    "regionvit": make("regionvit", "RegionViT", dim=(16, 16, 16, 16), depth=(1, 1, 1, 1), window_size=2, num_classes=4, tokenize_local_3_conv=False),
    "scalable_vit": make("scalable_vit", "ScalableViT", num_classes=4, dim=16, heads=(2, 2), depth=(1, 1), ssa_dim_key=(8, 8), reduction_factor=(2, 1), window_size=(4, None)),
    "mobile_vit": make("mobile_vit", "MobileViT", image_size=(64, 64), dims=[16, 16, 16], channels=[8, 8, 16, 16, 16, 16, 16, 16, 16, 16, 32], num_classes=4),
    "nest": make("nest", "NesT", image_size=64, patch_size=4, dim=16, heads=2, num_hierarchies=2, block_repeats=(1, 1), num_classes=4),
    "vit_for_small_dataset": make("vit_for_small_dataset", "ViT", **SMALL),
    "parallel_vit": make("parallel_vit", "ViT", **SMALL, num_parallel_branches=2),
    "look_vit": make("vit_with_patch_dropout", "ViT", **SMALL, patch_dropout=0.25),
    "xcit": make("xcit", "XCiT", **{**SMALL, "cls_depth": 1}),
    "rvt": make("rvt", "RvT", **SMALL),
    "crossformer": make("crossformer", "CrossFormer", num_classes=4, dim=(32, 32, 32, 32), depth=(1, 1, 1, 1), global_window_size=(2, 2, 1, 1), local_window_size=1),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _counts() -> Any:
    yield
    print(f"\n{POPULATION}")


@pytest.mark.parametrize("name", VITS)
def test_no_false_alarm(name: str) -> None:
    torch.manual_seed(0)
    try:
        VITS[name]()
    except (ImportError, AttributeError, TypeError) as error:
        pytest.skip(f"this version of vit-pytorch builds it otherwise: {error}")
    contract = Contract(
        model=VITS[name],
        inputs="B 3 64 64",
        sizes={"B": (2, 3)},
        targets=Labels("B", classes=4),
        loss=F.cross_entropy,
    )
    wrong = POPULATION.hold(name, contract, truth=unused_is_true(contract))
    assert not wrong, "\n\n".join(str(f) for f in wrong)
