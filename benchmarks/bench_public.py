"""What all default checks, ``overfit`` among them, cost on public models whose step takes more than 20 ms.

``python benchmarks/bench_public.py`` holds each model of the list whose library is installed to its default checks, in
a process of its own, and prints a row for each and the median in plain training steps, by check too. Parts of names
as arguments choose among them. Imports of this package are not counted: a contract of a small model comes first.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import logging
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from bench_overfit import regions
from timing import median
from torch import nn

LONGEST_S = 240
LEAST_S = 0.02
TEXT: dict[str, Any] = {
    "vocab_size": 2000, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 512, "max_position_embeddings": 128, "pad_token_id": 0, "num_labels": 5,
}  # fmt: skip
IMAGE: dict[str, Any] = {
    "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512,
    "image_size": 64, "patch_size": 8, "num_labels": 5,
}  # fmt: skip
VIT: dict[str, Any] = {
    "image_size": 64, "patch_size": 8, "num_classes": 5, "dim": 128, "depth": 4, "heads": 4,
    "mlp_dim": 256,
}  # fmt: skip
UNET: dict[str, Any] = {
    "block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8, "sample_size": 32,
}  # fmt: skip
PLANE: dict[str, Any] = {"spatial_dims": 2, "in_channels": 1, "out_channels": 3}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "transformers:BertForSequenceClassification": ("classes", TEXT),
    "transformers:RobertaForTokenClassification": ("tokens", TEXT),
    "transformers:DistilBertForSequenceClassification": (
        "classes", {"vocab_size": 2000, "dim": 128, "n_layers": 4, "n_heads": 4, "hidden_dim": 512,
                    "num_labels": 5},
    ),
    "transformers:AlbertForSequenceClassification": ("classes", {**TEXT, "embedding_size": 64}),
    "transformers:ElectraForSequenceClassification": ("classes", {**TEXT, "embedding_size": 64}),
    "transformers:DebertaV2ForSequenceClassification": ("classes", TEXT),
    "transformers:MPNetForSequenceClassification": ("classes", TEXT),
    "transformers:GPT2LMHeadModel": (
        "causal", {"vocab_size": 2000, "n_positions": 64, "n_embd": 128, "n_layer": 4, "n_head": 4},
    ),
    "transformers:LlamaForCausalLM": ("causal", TEXT),
    "transformers:OPTForCausalLM": (
        "causal", {**TEXT, "ffn_dim": 512, "word_embed_proj_dim": 128},
    ),
    "transformers:Qwen2ForCausalLM": ("causal", {**TEXT, "num_key_value_heads": 2}),
    "transformers:GPTNeoXForCausalLM": ("causal", TEXT),
    "transformers:T5ForConditionalGeneration": (
        "causal", {"vocab_size": 2000, "d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2,
                   "num_heads": 4, "decoder_start_token_id": 0},
    ),
    "transformers:ViTForImageClassification": ("images", IMAGE),
    "transformers:DeiTForImageClassification": ("images", IMAGE),
    "transformers:ConvNextForImageClassification": (
        "images", {"hidden_sizes": [32, 64, 128, 256], "depths": [2, 2, 4, 2], "num_labels": 5},
    ),
    "transformers:ResNetForImageClassification": (
        "images", {"embedding_size": 32, "hidden_sizes": [64, 128, 192, 256], "depths": [2, 2, 3, 2],
                   "num_labels": 5},
    ),
    "transformers:MobileNetV2ForImageClassification": (
        "images", {"depth_multiplier": 0.35, "num_labels": 5},
    ),
    "transformers:SwinForImageClassification": (
        "images", {"image_size": 64, "patch_size": 4, "embed_dim": 32, "depths": [2, 2],
                   "num_heads": [2, 4], "window_size": 4, "num_labels": 5},
    ),
    "transformers:SegformerForSemanticSegmentation": (
        "masks", {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1],
                  "num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": 32, "num_labels": 5},
    ),
    "vit_pytorch.vit:ViT": ("pictures", VIT),
    "vit_pytorch.simple_vit:SimpleViT": ("pictures", VIT),
    "vit_pytorch.deepvit:DeepViT": ("pictures", VIT),
    "vit_pytorch.cait:CaiT": ("pictures", {**VIT, "cls_depth": 2}),
    "vit_pytorch.xcit:XCiT": ("pictures", {**VIT, "cls_depth": 2}),
    "vit_pytorch.nest:NesT": (
        "pictures", {"image_size": 64, "patch_size": 4, "dim": 48, "heads": 3, "num_classes": 5,
                     "num_hierarchies": 2, "block_repeats": (2, 2)},
    ),
    "monai.networks.nets:UNet": (
        "planes", {**PLANE, "channels": (16, 32, 64), "strides": (2, 2), "num_res_units": 2},
    ),
    "monai.networks.nets:SegResNet": ("planes", {**PLANE, "init_filters": 8}),
    "monai.networks.nets:AttentionUnet": (
        "planes", {**PLANE, "channels": (16, 32, 64), "strides": (2, 2)},
    ),
    "monai.networks.nets:DynUNet": (
        "planes", {**PLANE, "kernel_size": [3, 3, 3], "strides": [1, 2, 2],
                   "upsample_kernel_size": [2, 2], "filters": [16, 32, 64]},
    ),
    "monai.networks.nets:DenseNet121": ("scans", {**PLANE, "out_channels": 5}),
    "monai.networks.nets:EfficientNetBN": (
        "scans", {"model_name": "efficientnet-b0", "spatial_dims": 2, "in_channels": 1,
                  "num_classes": 5, "pretrained": False},
    ),
    "diffusers:UNet2DModel": (
        "noise", {**UNET, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
                  "up_block_types": ("AttnUpBlock2D", "UpBlock2D"), "attention_head_dim": 8},
    ),
    "diffusers:AutoencoderKL": (
        "picture", {**UNET, "latent_channels": 4, "down_block_types": ("DownEncoderBlock2D",) * 2,
                    "up_block_types": ("UpDecoderBlock2D",) * 2},
    ),
    "segmentation_models_pytorch:Unet": (
        "planes", {"encoder_name": "resnet18", "encoder_weights": None, "in_channels": 1, "classes": 3},
    ),
    "torchvision.models:resnet18": ("pictures", {"num_classes": 5}),
    "timm.models:efficientnet_b0": ("pictures", {"num_classes": 5}),
}  # fmt: skip
"""By class: what it is given and trained to give, and its configuration."""


def batch_of(task: str) -> tuple[Any, Any]:
    """Return inputs and targets; targets None where the model returns its own loss."""
    ids, image = torch.randint(3, 2000, (8, 48)), torch.randn(8, 3, 64, 64)
    labels, areas = torch.randint(0, 5, (8,)), regions(4, 64, 3)
    plane = areas[:, None] - 1.0 + 0.5 * torch.randn(4, 1, 64, 64)
    picture = regions(12, 32, 5).view(4, 3, 32, 32) / 2.0 - 1.0
    noise, times = torch.randn(4, 3, 32, 32), torch.tensor([1, 20, 300, 7])
    return {
        "classes": ({"input_ids": ids, "labels": labels}, None),
        "tokens": ({"input_ids": ids, "labels": torch.randint(0, 5, (8, 48))}, None),
        "causal": ({"input_ids": ids, "labels": ids.clone()}, None),
        "images": ({"pixel_values": image, "labels": labels}, None),
        "masks": ({"pixel_values": image, "labels": regions(8, 64, 5)}, None),
        "pictures": ((image,), labels),
        "scans": ((plane,), labels[:4]),
        "planes": ((plane,), areas),
        "noise": ((picture + noise, times), noise),
        "picture": ((picture,), picture.clone()),
    }[task]


def loss_of(task: str) -> Any:
    """Return what a user would declare as the loss."""
    if batch_of(task)[1] is None:
        return "output"
    if task in ("noise", "picture"):
        return lambda output, target: F.mse_loss(output.sample, target)
    return F.cross_entropy


def factory(name: str) -> Any:
    """Return a function that makes the model."""
    module, _, cls = name.partition(":")
    made, options = getattr(importlib.import_module(module), cls), MODELS[name][1]
    if module != "transformers":
        return lambda: made(**options)
    config = made.config_class(**options)
    return lambda: made(config)


def hold(name: str) -> None:
    """Check one model and print the outcome as JSON."""
    from pytest_torchcheck import Contract
    from pytest_torchcheck.runner import Runner, cases

    if name.startswith("vit_pytorch") and importlib.util.find_spec("torchvision") is None:
        for word in ("torchvision", "torchvision.transforms", "torchvision.models"):
            stub = sys.modules[word] = mock.MagicMock(name=word)  # imported, and not used here
            stub.__spec__ = importlib.machinery.ModuleSpec(word, None)
    task = MODELS[name][0]
    torch.manual_seed(0)
    make, (inputs, targets), loss = factory(name), batch_of(task), loss_of(task)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        output = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
        value = output.loss if loss == "output" else loss(output, targets)
        value.backward()
        optimizer.step()

    plain = median(step, 7)
    batch = (torch.randn(4, 4),), torch.randint(0, 3, (4,))
    Contract(
        model=lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)),
        batch=batch, loss=F.cross_entropy,
        optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3),
    ).check()  # fmt: skip
    contract = Contract(
        model=make, batch=(inputs, targets), loss=loss,
        optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3),
    )  # fmt: skip
    runner, by_check, cost = Runner(contract), {}, 0.0
    for case in cases(contract):
        _ = case.check.function  # imported before the time counts, as by the runner's own clock
        start = time.process_time()
        runner.run(case)
        spent = time.process_time() - start
        by_check[case.check.name], cost = spent / plain, cost + spent
    report = runner.report()
    runner.close()
    red = [f"{f.check}[{f.code}]" for f in report.findings if f.status in ("violated", "error")]
    print("RESULT" + json.dumps({"step": plain, "cost": cost, "red": red, "checks": by_check}))


def main() -> None:
    """Print a row for each model, and the median."""
    words = sys.argv[1:]
    if words[:1] == ["--one"]:
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        torch.set_num_threads(1)
        hold(words[1])
        return
    ratios = []
    by_check: dict[str, list[float]] = {}
    for name in MODELS:
        if words and not any(word in name for word in words):
            continue
        try:
            done = subprocess.run(
                [sys.executable, __file__, "--one", name], capture_output=True, text=True,
                timeout=LONGEST_S, check=False, env=os.environ | {
                    "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            print(f"{name}: more than {LONGEST_S} s", flush=True)
            ratios.append(float("inf"))
            continue
        found = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
        if not found:
            print(f"{name}: not run: {(done.stderr.splitlines() or ['?'])[-1]:.100}", flush=True)
            continue
        row = json.loads(found[0].removeprefix("RESULT"))
        steps = row["cost"] / row["step"]
        ratios += [steps] if row["step"] > LEAST_S else []
        for check, cost in row["checks"].items() if row["step"] > LEAST_S else ():
            by_check.setdefault(check, []).append(cost)
        print(
            f"{steps:6.1f} steps of {row['step'] * 1e3:5.0f} ms  {row['cost']:5.1f} s  {name}  "
            f"{' '.join(row['red'])}",
            flush=True,
        )
    if ratios:
        print(
            f"{len(ratios)} models with a step above {LEAST_S * 1e3:.0f} ms: median "
            f"{statistics.median(ratios):.1f} plain steps, most {max(ratios):.1f}"
        )
        print("by check, where the mean is above 0.1 steps: median, mean, most")
        for check, costs in sorted(by_check.items(), key=lambda item: -statistics.mean(item[1])):
            if (mean := statistics.mean(costs)) > 0.1:
                print(f"{statistics.median(costs):8.2f} {mean:6.2f} {max(costs):6.2f}  {check}")


if __name__ == "__main__":
    main()
