"""Checks of state, devices, numbers, initialisation, memory, and of one batch that is learnt."""

from __future__ import annotations

from .check import Check, check, family

CHECKS: tuple[Check, ...] = (
    *family(
        "state",
        check(
            "state-dict-roundtrip",
            "A state_dict that is saved and loaded strictly into another instance restores the "
            "outputs.",
            cost="2 F and 1 FB, shared in part; 1 build of a factory; 3 F more where training "
            "changes unsaved state, or an evaluation keeps something",
        ),
        check(
            "copy-and-pickle",
            "A deep copy and a pickled copy give the same outputs, and a deep copy does not "
            "depend on the original.",
            cost="1 F, 1 copy of the model, and 1 FB, shared; 2 to 4 F more where one of them "
            "fails",
        ),
        check(
            "tied-weights",
            "Tied weights remain shared after copying, conversion and loading.",
            cost="nothing where no weights are tied; else 1 copy of the model",
            axes="once",
        ),
        axes="device",
    ),
    *family(
        "structure",
        check(
            "registration",
            "Modules and parameters are registered, and each entry of a list of layers has "
            "its own weights.",
            cost="1 FB, shared",
            axes="device",
        ),
        check(
            "unregistered-tensors",
            "Tensors that the forward uses are parameters or buffers, so that they are "
            "moved, saved and trained.",
            cost="nothing where attributes hold no tensor; else 1 F, shared",
        ),
        check(
            "dead-modules",
            "Every module takes part in training, and every result of the forward is read.",
            cost="1 FB, shared; 2 F more where a module did not run or a result is not read, 5 of two samples where "
            "a line has results of which only the last is read, 1 where a part of a tensor is sliced off again",
        ),
        check(
            "weighted-means",
            "The weights of a softmax sum to one over the entries that they average, and a sum of weighted windows is "
            "divided by its weights.",
            cost="1 FB, shared; 3 F more where a function divides what a loop sums by what it counts",
        ),
        check(
            "axis-order",
            "A view keeps every dimension whose size it keeps: it is no transpose.",
            cost="1 FB, shared; 1 F more where sizes leave a doubt",
        ),
        axes="once",
    ),
    *family(
        "machines.devices",
        check(
            "device-portability",
            "The model runs on a GPU: no tensor stays on the CPU or is created there.",
            cost="1 F and the loss; 1 FB on the meta device, which computes nothing, in doubtful "
            "cases or where devices are declared",
        ),
        check(
            "dtype-conversion",
            "The model runs after conversion to another floating dtype, and no tensor keeps "
            "the old dtype.",
            cost="1 F in the other dtype; none for large models that declare no dtype",
        ),
        axes="once",
    ),
    *family(
        "numerics",
        check(
            "degenerate-inputs",
            ("Zero, constant, equal and shortest inputs give finite outputs and gradients."),
            cost="1 FB; 1 FB more where sizes are declared or the batch is small; another is "
            "shared",
        ),
        check(
            "low-precision",
            "In the declared low precision, outputs and gradients are finite and close to "
            "those in float64.",
            needs=("low-precision",),
            cost="1 F and 1 FB in low precision, 4 F in float64; 1 F more for each input of integers "
            "that the dtype skips",
            axes="low-precision",
        ),
        check(
            "layout-invariance",
            "Inputs with another memory layout give the same outputs.",
            cost="2 F, one of them shared; 1 F more for sequences, images and volumes",
        ),
        axes="device",
    ),
    *family(
        "machines.amp",
        check(
            "autocast",
            "Under autocast, errors of outputs and gradients are no larger than rounding "
            "in every layer explains.",
            promise="Autocasts",
            cost="1 FB and 1 F under autocast, 4 FB in float64 on the CPU, for each promised dtype",
        ),
        check(
            "grad-scaler",
            "An overflow skips the step and lowers the scaler's factor, and training continues.",
            needs=("model", "train_step"),
            cost="shared with step-protocol, and 4 FBS where the step scales its loss",
        ),
        axes="device",
    ),
    *family(
        "machines.determinism",
        check(
            "deterministic-algorithms",
            "Under torch.use_deterministic_algorithms a step runs and gives the same result "
            "each time.",
            promise="Deterministic",
            cost="3 FB",
            axes="device",
        ),
    ),
    *family(
        "initialisation",
        check(
            "initialisation",
            "Parameters are initialised, finite, and not the same for every unit.",
            cost="1 build of a factory, shared; 1 FB only where units or rows are equal, and 3 "
            "FBS where their gradients are",
        ),
        check(
            "signal-propagation",
            "Over the layers, neither the differences between samples nor the gradients vanish or explode.",
            cost="1 FB, shared",
        ),
        check(
            "dead-units",
            "Rectifiers are not always zero, and bounded activations are not saturated.",
            cost="1 FB, shared; 2 F more only where nearly all outputs are zero or at a bound",
        ),
        check(
            "nonlinearity",
            "Consecutive linear layers do not collapse into one: a nonlinearity separates them.",
            cost="1 FB, shared; 2 F where only linear layers are left",
        ),
        axes="device",
    ),
    *family(
        "machines.memory",
        check(
            "peak-memory",
            "Peak memory of a training step stays below its ceiling, in bytes, at the "
            "largest declared sizes.",
            needs=("model", "memory"),
            cost="2 FBS under the tracker; on fake tensors where sizes are declared",
        ),
        check(
            "memory-growth",
            "Peak memory of a step grows with each symbol by no higher power than promised.",
            needs=("model", "growth"),
            cost="6 x 2 FBS on fake tensors per symbol",
            axes="once",
        ),
        check(
            "flops",
            "The floating-point operations of a training step stay below their ceiling.",
            needs=("model", "flops"),
            cost="2 FBS under the tracker; on fake tensors where sizes are declared",
            axes="once",
        ),
    ),
    *family(
        "machines.leaks",
        check(
            "step-leak",
            "No training step leaves tensors, graphs or hooks behind.",
            cost="shared with weights-update; 8 FBS more only where something grows",
        ),
        check(
            "inference-memory",
            "A forward without gradients retains no graph, and no call leaves tensors behind.",
            cost="3 F, shared with eval-purity; 6 more only where something grows",
        ),
    ),
    *family(
        "machines.speed",
        check(
            "speed",
            "Forward, inference or a training step take at most the declared share of "
            "another model's time.",
            needs=("model", "speed"),
            cost="200 FBS or more of each model; at most 20 seconds for each declared ratio",
            axes="device",
            tries_skip=False,
        ),
    ),
    *family(
        "losses.descent",
        check(
            "descent",
            "A small step along the gradient changes the loss as the gradient predicts.",
            needs=("loss",),
            cost="1 FB, and 2 F in float64, of up to 3 samples; up to 5 F more, and 1 FB in float64, where they "
            "disagree; none for large models that do not declare float64",
            axes="once",
        ),
    ),
    *family(
        "overfitting",
        check(
            "overfit",
            "One batch can be memorised.",
            needs=("overfit",),
            cost="at most 40 FBS, everything included, or what Overfit(steps=) allows; most "
            "models need 3 to 15 FBS of three samples",
            axes="device",
            tries_skip=False,
        ),
    ),
)
