"""Checks of the training loop, of datasets and loaders, of accelerators and of several processes."""

from __future__ import annotations

from .check import Check, check, family

CHECKS: tuple[Check, ...] = (
    *family(
        "steps.loop",
        check(
            "step-protocol",
            "A training step clears, computes, clips and applies gradients once each, in "
            "this order.",
            needs=("model", "step-or-trainer"),
            cost="4 FBS, shared; 6 more where one step applies two losses of which one goes through what the other trains",
            axes="once",
        ),
        check(
            "graph-kept",
            "A step can follow another: no graph is carried over from one to the next.",
            needs=("model", "step-or-trainer"),
            cost="shared with step-protocol",
            axes="once",
        ),
        check(
            "scheduler-order",
            "Every scheduler steps after its optimizer, and rates reach every group and do not "
            "fall to nothing in a few steps.",
            needs=("model", "step-or-trainer"),
            cost="shared with step-protocol",
            axes="once",
        ),
        check(
            "schedule",
            "Every step uses the learning rate declared for it.",
            needs=("model", "optimizer"),
            promise="Schedule",
            cost="16 FBS",
            axes="once",
        ),
        check(
            "gradient-clipping",
            "The total norm of the gradients is at most the promised one whenever the optimizer"
            " steps.",
            needs=("model", "step-or-trainer"),
            promise="ClipsGradients",
            cost="8 FBS",
            axes="once",
        ),
        check(
            "evaluation-leaves-trace",
            "Evaluation within a step leaves no trace in modes, gradients, statistics, "
            "weights or random numbers.",
            needs=("model", "step-or-trainer"),
            cost="shared with step-protocol",
            axes="once",
        ),
    ),
    *family(
        "steps.trainer",
        check(
            "trainer-runs",
            "A trainer's own loop runs its steps in the configured precision, and losses "
            "and weights stay finite.",
            needs=("model", "trainer"),
            cost="shared with step-protocol",
            axes="once",
        ),
        check(
            "trainer-accumulation",
            "The gradient that a trainer accumulates over its batches equals the gradient "
            "of them as one batch.",
            needs=("model", "trainer"),
            cost="2 (n + 1) FB",
            axes="once",
        ),
        check(
            "trainer-labels",
            "A trainer's loss depends on the correct labels of its batches, and on no "
            "label of padding.",
            needs=("model", "trainer"),
            cost="4 F + B",
            axes="once",
        ),
    ),
    *family(
        "steps.ways",
        check(
            "accumulation",
            "Accumulated micro-batches give the full batch's gradient, also with unequal counts"
            " of targets.",
            function="accumulated",
            needs=("loss", "targets", "step-or-accumulates"),
            cost="2 (n + 1) FB in float64, where the step accumulates",
            axes="once",
        ),
        check(
            "resume",
            "A run resumed from the states of model, optimizer, schedulers and scaler "
            "equals the uninterrupted run bit for bit.",
            function="resumed",
            needs=("model", "optimizer"),
            cost="2 FBS of two or three samples, 3 of all for a step of your own; 16 more at most, where its result differs",
            axes="once",
        ),
        check(
            "replicated",
            "Replicated parameters stay equal after every step.",
            needs=("model",),
            promise="Replicated",
            cost="4 FBS",
            axes="once",
        ),
        check(
            "non-finite-guard",
            "A gradient that is NaN never reaches the weights.",
            needs=("model", "step-or-trainer"),
            promise="SkipsNonFinite",
            cost="1 FBS",
            axes="once",
        ),
    ),
    *family(
        "steps.averages",
        check(
            "averages-follow",
            "A moving average of the trained weights moves towards them in training steps.",
            cost="3 FBS where the model holds such an average, 1 FBS for a module under two names, else nothing",
            axes="once",
        ),
        check(
            "moving-average",
            "The moving average includes the trained weights after every step.",
            needs=("model",),
            promise="MovingAverage",
            cost="1 FBS",
            axes="once",
        ),
    ),
    *family(
        "datasets.samples",
        check(
            "samples-valid",
            "Samples can be read, are finite, and agree in structure, shape and dtype, so "
            "that they can be batched.",
            needs=("dataset",),
            cost="256 reads of each dataset, shared; 2 more of one that holds bytes",
            axes="once",
        ),
        check(
            "samples-unchanged",
            "Reading a sample changes nothing: a second read with the same seed gives the "
            "same sample.",
            needs=("dataset",),
            cost="96 reads of each dataset, 16 and a batch where there is a collate_fn",
            axes="once",
        ),
        check(
            "dataset-labels",
            ("Labels have the dtype and range that the loss needs, vary, and match their samples."),
            needs=("dataset",),
            cost="shared with samples-valid",
            axes="once",
        ),
        check(
            "split-hygiene",
            "No sample occurs in two splits.",
            needs=("dataset",),
            cost="one hash per sample, or one read where nothing is stored",
            axes="once",
        ),
        about="declaration",
    ),
    *family(
        "datasets.loading",
        check(
            "dataset-pickling",
            "Dataset, collate function and worker_init_fn can be pickled for a spawned worker.",
            needs=("dataset",),
            cost="one pickling without the arrays' data",
            axes="once",
        ),
        check(
            "collate-pairing",
            "A collate function keeps every label with its sample, and every field of it, marks "
            "padding as padding, and offsets indices so that none refers to another sample.",
            needs=("dataset",),
            cost="64 reads of each dataset",
            axes="once",
        ),
        check(
            "worker-delivery",
            ("A spawned worker delivers two batches of the right samples within a deadline."),
            needs=("dataset",),
            cost="one process, 1-3 s, only where the loader declares workers",
            axes="once",
            starts="data.delivery:expect_loader",
        ),
        check(
            "worker-sharding",
            "The workers of an iterable dataset split its samples between them, so that none "
            "is read twice.",
            needs=("dataset",),
            cost="64 reads in each of two simulated workers",
            axes="once",
        ),
        check(
            "random-augmentation",
            "Random items differ between workers and between epochs, and repeat with the same "
            "seed.",
            needs=("dataset",),
            promise="RandomAugmentation",
            cost="80 reads in simulated workers",
            axes="once",
        ),
        check(
            "loader-order",
            "The order of samples repeats with the same seed, shuffling differs in every "
            "epoch, and the sampler covers the number of samples that the dataset has.",
            needs=("dataset",),
            cost="the indices of three epochs",
            axes="once",
        ),
        check(
            "last-batch",
            "The last, partial batch is neither dropped in evaluation nor too small to train on.",
            needs=("dataset",),
            cost="the indices of an epoch, and one forward where a model is declared",
            axes="once",
        ),
        about="declaration",
    ),
    *family(
        "machines.cuda",
        check(
            "device-parity",
            "Outputs, gradients and buffers on the device match those on the CPU, up to rounding.",
            cost="1 FB on the device and 4 FB on the CPU, three of them in float64",
            axes="device-dtype",
            devices=("cuda", "xpu", "mps"),
        ),
        check(
            "host-syncs",
            "Forward and backward do not wait for the device.",
            cost="2 FB; 1 FBS more where a train step is declared",
            axes="device",
            devices=("cuda",),
        ),
        check(
            "side-stream",
            "The same step gives the same result on a stream other than the default one.",
            cost="3 FB",
            axes="device",
            devices=("cuda",),
        ),
        check(
            "graph-capture",
            "The forward, captured as a CUDA graph, gives the same output for new inputs as in "
            "eager mode.",
            promise="CapturesGraph",
            cost="6 F",
            axes="device",
            devices=("cuda",),
        ),
    ),
    *family(
        "parallel.replicas",
        check(
            "ddp-equivalence",
            "The averaged gradients of data-parallel ranks equal those of a single process.",
            needs=("model", "ranks"),
            cost=(
                "spawning the ranks (4-10 s, once for all checks of ranks) and about 12 FB in each"
            ),
            axes="once",
        ),
        check(
            "rank-consistency",
            "Every rank starts with the same model and draws different random numbers.",
            needs=("model", "ranks"),
            cost="shared with ddp-equivalence",
            axes="once",
        ),
        check(
            "distributed-steps",
            "The training step leaves the same model on every rank, and gives the same result "
            "as in one process.",
            needs=("model", "train_step", "ranks"),
            cost="shared with ddp-equivalence, and 3 FBS in each rank",
            axes="once",
        ),
    ),
    *family(
        "parallel.data",
        check(
            "rank-data",
            "Ranks split the samples of each epoch evenly, in a different order each time.",
            needs=("model", "ranks"),
            promise="SharesData",
            cost="shared with ddp-equivalence, and the promised loop",
            axes="once",
        ),
        check(
            "rank-checkpoint",
            "A checkpoint that ranks save with the wrapped model can be loaded in one process.",
            needs=("model", "ranks"),
            promise="Checkpoints",
            cost="shared with ddp-equivalence, and saving and loading once",
            axes="once",
        ),
        about="declaration",
    ),
    *family(
        "parallel.sharding",
        check(
            "fsdp-equivalence",
            "Sharded by FSDP2, the model computes, steps, saves and loads as it does in "
            "one process.",
            needs=("model", "ranks"),
            promise="FullyShards",
            cost="shared with ddp-equivalence, and about 6 FB in each rank",
            axes="once",
        ),
        check(
            "synchronised-statistics",
            "Synchronised batch normalisation over ranks equals batch normalisation over "
            "the whole batch.",
            needs=("model", "ranks"),
            cost="shared with ddp-equivalence, and 2 FB where the model has such modules",
            axes="once",
        ),
        about="declaration",
    ),
)
