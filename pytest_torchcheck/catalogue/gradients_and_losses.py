"""Checks of gradients, steps, functions and losses."""

from __future__ import annotations

from .check import Check, check, family

CHECKS: tuple[Check, ...] = (
    *family(
        "autograd",
        check(
            "backward",
            "Backward of the loss succeeds, also after an optimizer step.",
            cost="1 FBS, and 2 FBS of two or three samples; with a train_step 3 FBS and 1 FB; shared with other checks",
            leads=True,
        ),
        check(
            "gradients-exist",
            "Every trainable parameter receives a gradient that is sometimes nonzero.",
            cost="1 FB; up to 6 more only where a gradient is missing or zero",
        ),
        check(
            "gradients-finite",
            "The loss, the gradients and the outputs of ordinary batches are finite, and no whole number wraps around.",
            cost="2 FB, shared with gradients-exist; 1 F, shared",
        ),
        check(
            "inputs-unchanged",
            "The forward changes neither its inputs nor the containers that hold them, and no block of the model "
            "the input that its caller goes on to read.",
            cost="2 F and 1 FB, shared; 1 F for each of up to three activations in place of a block's input",
        ),
    ),
    *family(
        "losses.sampling",
        check(
            "sampling-paths",
            "Normal samples that the loss depends on are reparameterised, and what chooses among "
            "codes is trained by the targets.",
            needs=("loss",),
            cost="shared by the loss checks; 1 F more where torch.normal receives tensors that "
            "require gradients; 1 F of a few samples where a loss compares several outputs; 1 F where the "
            "model draws normal numbers",
            axes="once",
        ),
    ),
    *family(
        "steps.coverage",
        check(
            "optimizer-coverage",
            "The optimizer holds every trainable parameter exactly once.",
            needs=("model", "optimizer"),
            cost="shared with weights-update",
            axes="once",
        ),
    ),
    *family(
        "steps.updates",
        check(
            "weights-update",
            "Every trainable parameter changes in a training step.",
            cost="3 FBS, shared with other checks; 9 more only where a later step changes nothing; 2 S for "
            "an optimizer of your own, 2 FBS for a step that assigns gradients",
        ),
        check(
            "frozen-stays",
            "Frozen parameters and statistics keep their values through training steps.",
            promise="Frozen",
            cost="shared with weights-update; 2 FBS more where a class overrides train()",
        ),
        check(
            "repeatable-steps",
            "Consecutive steps work and add up: what they learn is what is evaluated and saved.",
            cost="shared with weights-update; 2 F more, 2 FBS if a train_step writes to weights, 13 if something counts calls",
        ),
    ),
    *family(
        "functions",
        check(
            "gradcheck",
            "The backward of every custom autograd Function is the derivative of its forward.",
            cost="1 FB to find them; then about 0.1 s for each, on small float64 inputs",
        ),
        check(
            "double-backward",
            "The second derivatives of every custom autograd Function are correct.",
            promise="TwiceDifferentiable",
            cost="as gradcheck, with the gradient itself as the function",
        ),
        check(
            "custom-ops",
            "Every operator registered with torch.library agrees with its schema, fake "
            "kernel and autograd formula.",
            cost="opcheck on up to 3 recorded calls, about 10 F each",
        ),
        check(
            "function-coverage",
            "Every custom Function and operator that the model uses is checked.",
            cost="none: reads what gradcheck and custom-ops found",
            axes="once",
        ),
        check(
            "gradcheck-module",
            "The gradients of the whole model are its derivatives with respect to parameters "
            "and inputs.",
            promise="Differentiable",
            cost="1 FB and 2 F for every 16 parameters, in float64",
            needs=("model",),
        ),
        needs=("model-or-functions",),
        axes="device",
    ),
    *family(
        "losses.consumption",
        check(
            "loss-sound",
            "The loss is a scalar tensor that is connected to the model's graph.",
            cost="1 F + a backward through the loss only, shared by the loss checks",
            axes="device",
        ),
        check(
            "loss-shapes",
            "Output and targets enter the loss with the shapes that it expects.",
            cost="shared by the loss checks",
        ),
        check(
            "loss-input",
            "The loss receives logits where it expects logits, and probabilities where it "
            "expects probabilities.",
            cost="shared by the loss checks",
        ),
        check(
            "step-losses",
            "The training step reads its inputs and targets, each sample with its own; losses within it get outputs "
            "and targets of one shape, in the form they expect.",
            needs=("model", "train_step"),
            cost="12 FBS, 1 more for each of several inputs and for an odd batch; up to 130 more only where a sample "
            "has no influence, and 11 where the batch holds the ends of episodes beside rewards",
        ),
        check(
            "loss-at-start",
            "Before training, cross entropy is close to that of a uniform guess.",
            needs=("loss", "targets"),
            cost="shared by the loss checks",
        ),
        needs=("loss",),
        axes="once",
    ),
    *family(
        "losses.sign",
        check(
            "loss-sign",
            "The loss falls when the output moves closer to the target.",
            cost="shared by the loss checks",
        ),
        needs=("loss",),
        axes="once",
    ),
    *family(
        "losses.ranges",
        check(
            "label-range",
            "Class labels lie within the model's classes, and other targets within what torch's loss "
            "is defined for.",
            cost="shared by the loss checks",
        ),
        about="declaration",
        needs=("loss", "targets"),
        axes="once",
    ),
    *family(
        "losses.ignored",
        check(
            "ignored-targets",
            "Ignored targets have no influence on the loss.",
            needs=("loss", "ignore-index"),
            cost="1 F + a backward through the loss only",
        ),
        about="declaration",
        axes="once",
    ),
    *family(
        "losses.padded",
        check(
            "excluded-targets",
            "Padded values of a target that a mask or lengths beside it exclude have no influence on the loss.",
            needs=("loss", "targets"),
            cost="nothing where no target holds padded values; else 1 F, shared, 4 calls of the loss, and "
            "12 backward passes through it where padding is read",
        ),
        axes="once",
    ),
    *family(
        "losses.labels",
        check(
            "label-shift",
            "A causal language model is trained on the next token, not on the current one "
            "or the one after next, a masked one on the tokens that are hidden from it, and a model that predicts a "
            "series does not read the value that it predicts.",
            needs=("loss",),
            cost="1 F + a backward through the loss only, where labels are tokens of an input; "
            "2 F more where the next ones are learnt and no promise is made; 7 F where targets are later values of "
            "an input",
        ),
        about="declaration",
        axes="once",
    ),
    *family(
        "losses.padding",
        check(
            "padding-loss",
            "Padded positions do not contribute to the loss.",
            needs=("loss", "targets", "padding"),
            cost="1 F + a backward through the loss only, where rows are padded",
        ),
        about="declaration",
        axes="once",
    ),
    *family(
        "losses.pairing",
        check(
            "target-alignment",
            "Each target affects the output of its own sample and position.",
            needs=("loss", "targets"),
            cost="1 F + five backward passes through the loss only; 2 F more where most of an output is one number",
        ),
        check(
            "in-batch-pairs",
            "A loss that ranks the samples of a batch against each other matches each "
            "pair, in any order.",
            needs=("loss",),
            cost="1 F, shared; the loss up to 14 times; 4 to 13 F more where the loss may rank samples",
        ),
        axes="once",
    ),
    *family(
        "losses.bounds",
        check(
            "loss-bounded",
            "The loss does not fall without end while an output grows.",
            needs=("loss", "targets"),
            cost="1 F, shared; up to 20 calls of the loss for each output",
            axes="once",
        ),
        check(
            "log-determinants",
            "A log-determinant is that of the map beside which it is returned, and the loss falls with it.",
            needs=("loss",),
            cost="nothing where no module names one; else 2 FB and 4 F of each map with a backward for each element "
            "of a sample",
            axes="once",
        ),
    ),
    *family(
        "losses.edges",
        check(
            "edge-targets",
            "The loss and its gradient are finite for single samples, for constant targets, and for outputs "
            "that are sure of their targets.",
            needs=("loss", "targets"),
            cost="1 F; up to 23 backward passes through the loss only",
        ),
        axes="once",
    ),
    *family(
        "losses.targets",
        check(
            "target-ownership",
            "The target of each sample affects the loss of that sample's output only.",
            needs=("loss",),
            cost="1 F; up to 32 backward passes through the loss only, or 8 FB of three samples through a model that computes it",
        ),
        axes="once",
    ),
    *family(
        "losses.weights",
        check(
            "loss-weights",
            "The terms of a loss keep their weights in a larger batch, and its elements theirs under a mask.",
            needs=("loss",),
            cost="1 F, shared; 6 backward passes through the loss only, up to 3 more for each mask",
            axes="once",
        ),
    ),
    *family(
        "losses.arguments",
        check(
            "loss-arguments",
            "The loss does not modify its arguments: a second call gives the same value.",
            needs=("loss",),
            cost="shared by the loss checks; 3 F more where the loss writes to its arguments",
        ),
    ),
)
