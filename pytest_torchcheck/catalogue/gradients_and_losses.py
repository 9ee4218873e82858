"""Checks of gradients, steps, functions and losses."""

from __future__ import annotations

from .check import Check, check, family

CHECKS: tuple[Check, ...] = (
    *family(
        "autograd",
        check(
            "backward",
            "Backward of the loss succeeds, and again after a step.",
            cost="3 FBS, and 1 FB beside a train_step, shared with other checks",
            leads=True,
        ),
        check(
            "gradients-exist",
            "Every trainable parameter gets a gradient that is not always zero.",
            cost="1 FB; up to 6 more only where a gradient is missing or zero",
        ),
        check(
            "gradients-finite",
            "Loss and gradients of ordinary batches are finite.",
            cost="2 FB, shared with gradients-exist",
        ),
        check(
            "inputs-unchanged",
            "The forward changes neither its inputs nor the containers that hold them.",
            cost="2 F, shared",
        ),
        check(
            "sampling-paths",
            (
                "Normal draws that the loss depends on are reparameterised, so that their "
                "parameters learn from them."
            ),
            needs=("loss",),
            cost="shared by the loss checks; 1 F more where torch.normal is given live tensors",
            axes="once",
        ),
    ),
    *family(
        "steps.updates",
        check(
            "optimizer-coverage",
            "The optimizer holds every trainable parameter, each once.",
            needs=("model", "optimizer"),
            cost="shared with weights-update",
            axes="once",
        ),
        check(
            "weights-update",
            "Every trainable parameter moves in a training step.",
            cost="3 FBS, shared with other checks; 9 more only where a later step writes nothing",
        ),
        check(
            "frozen-stays",
            "What is frozen keeps its values and its statistics through training steps.",
            promise="Frozen",
            cost="shared with weights-update; 2 FBS more where a class overrides train()",
        ),
        check(
            "repeatable-steps",
            "Consecutive steps work: no graph is carried from one to the next.",
            cost="shared with weights-update",
        ),
    ),
    *family(
        "functions",
        check(
            "gradcheck",
            "Every custom autograd Function's backward is the derivative of its forward.",
            needs=("model-or-functions",),
            cost="1 FB to find them; then each one alone on small float64 inputs, about 0.1 s",
            axes="device",
        ),
        check(
            "double-backward",
            "Second derivatives of every custom Function are right.",
            needs=("model-or-functions",),
            promise="TwiceDifferentiable",
            cost="as gradcheck, with the gradient itself as the function",
            axes="device",
        ),
        check(
            "custom-ops",
            (
                "Every operator registered with torch.library does what its schema, fake kernel and"
                " autograd formula say."
            ),
            needs=("model-or-functions",),
            cost="opcheck on up to 3 recorded calls, about 10 F each",
            axes="device",
        ),
        check(
            "function-coverage",
            "Every custom Function and operator that the model uses is checked.",
            needs=("model-or-functions",),
            cost="none: reads what gradcheck and custom-ops found",
            axes="once",
        ),
        check(
            "gradcheck-module",
            "The whole model's gradients are its derivatives, of parameters and inputs.",
            promise="Differentiable",
            cost="1 FB and 2 F for every 16 parameters, in float64",
            axes="device",
        ),
    ),
    *family(
        "losses.consumption",
        check(
            "loss-sound",
            "The loss is a scalar, connected to the model and not made anew.",
            needs=("loss",),
            cost="1 F + a backward through the loss only, shared by the loss checks",
            axes="device",
        ),
        check(
            "loss-shapes",
            "Output and targets meet with the shapes that were meant.",
            needs=("loss",),
            cost="shared by the loss checks",
            axes="once",
        ),
        check(
            "loss-input",
            (
                "The loss gets logits where it expects logits, and probabilities where it expects "
                "those."
            ),
            needs=("loss",),
            cost="shared by the loss checks",
            axes="once",
        ),
        check(
            "step-losses",
            (
                "The training step reads its targets; losses within it get outputs and targets of "
                "one shape, in the form they expect."
            ),
            needs=("model", "train_step"),
            cost="3 FBS",
            axes="once",
        ),
        check(
            "loss-sign",
            "The loss falls when the output gets nearer to the target.",
            needs=("loss",),
            cost="shared by the loss checks",
            axes="once",
        ),
        check(
            "loss-at-start",
            "Before training, cross entropy is near that of a uniform guess, not far above it.",
            needs=("loss", "targets"),
            cost="shared by the loss checks",
            axes="once",
        ),
    ),
    *family(
        "losses.labels",
        check(
            "label-range",
            (
                "Class labels lie within the classes that the model knows, and targets of a binary "
                "cross entropy within 0 and 1."
            ),
            needs=("loss", "targets"),
            cost="shared by the loss checks",
            axes="once",
        ),
        check(
            "ignored-targets",
            "Targets that are to be ignored have no influence on the loss.",
            needs=("loss", "ignore-index"),
            cost="1 F + a backward through the loss only",
            axes="once",
        ),
        check(
            "label-shift",
            (
                "A causal language model learns the next token, neither the present one nor the one"
                " after."
            ),
            needs=("loss", "targets"),
            promise="Causal",
            cost="1 F + a backward through the loss only",
            axes="once",
        ),
        check(
            "padding-loss",
            "Padded positions add nothing to the loss.",
            needs=("loss", "targets"),
            promise="PaddingInvariant",
            cost="1 F + a backward through the loss only",
            axes="once",
        ),
        about="declaration",
    ),
    *family(
        "losses.pairing",
        check(
            "target-alignment",
            "Each target pulls at the output of its own sample and position.",
            needs=("loss", "targets"),
            cost="1 F + five backward passes through the loss only",
            axes="once",
        ),
        check(
            "in-batch-pairs",
            (
                "A loss that ranks the samples of a batch against each other finds each one's "
                "partner, in any order."
            ),
            needs=("loss",),
            cost="1 F, shared; 4 to 13 more where the loss may be of this kind",
            axes="once",
        ),
    ),
    *family(
        "losses.targets",
        check(
            "edge-targets",
            (
                "The loss and its gradient are finite for each sample alone, and for targets of one"
                " value."
            ),
            needs=("loss", "targets"),
            cost="1 F; up to 21 backward passes through the loss only",
            axes="once",
        ),
        check(
            "target-ownership",
            "The target of each sample decides the loss of that sample's output, and of no other.",
            needs=("loss", "targets"),
            cost="1 F; up to 32 backward passes through the loss only",
            axes="once",
        ),
    ),
    *family(
        "losses.arguments",
        check(
            "loss-arguments",
            "The loss leaves its output and targets so that a second call gives the same loss.",
            needs=("loss",),
            cost="shared by the loss checks; 3 F more where the loss writes to what it is given",
        ),
    ),
)
