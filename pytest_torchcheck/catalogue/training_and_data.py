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
            cost="4 FBS, shared; 6 more where one step applies two losses of which one goes through what the other trains, 64 where it keeps weights without a copy",
        ),
        check(
            "graph-kept",
            "A step can follow another: no graph is carried over from one to the next.",
            cost="shared with step-protocol",
        ),
        check(
            "scheduler-order",
            "Every scheduler steps after its optimizer, and rates reach every group and do not "
            "fall to nothing in a few steps.",
            cost="shared with step-protocol",
        ),
        check(
            "schedule",
            "Every step uses the learning rate declared for it.",
            needs=("model", "optimizer"),
            promise="Schedule",
            cost="16 FBS",
        ),
        check(
            "gradient-clipping",
            "The total norm of the gradients is at most the promised one whenever the optimizer"
            " steps.",
            promise="ClipsGradients",
            cost="8 FBS",
        ),
        check(
            "evaluation-leaves-trace",
            "Evaluation within a step leaves no trace in modes, gradients, statistics, "
            "weights or random numbers.",
            cost="shared with step-protocol",
        ),
        needs=("model", "step-or-trainer"),
        axes="once",
    ),
    *family(
        "steps.trainer",
        check(
            "trainer-runs",
            "A trainer's own loop runs its steps in the configured precision, and losses "
            "and weights stay finite.",
            cost="shared with step-protocol",
        ),
        check(
            "trainer-accumulation",
            "The gradient that a trainer accumulates over its batches equals the gradient "
            "of them as one batch.",
            cost="2 (n + 1) FB",
        ),
        check(
            "trainer-labels",
            "A trainer's loss depends on the correct labels of its batches, and on no "
            "label of padding.",
            cost="4 F + B",
        ),
        needs=("model", "trainer"),
        axes="once",
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
        ),
        check(
            "resume",
            "A run resumed from the states of model, optimizer, schedulers and scaler "
            "equals the uninterrupted run bit for bit.",
            function="resumed",
            needs=("model", "optimizer"),
            cost="2 FBS of two or three samples, 3 of all for a step of your own; 16 more at most, where its result differs",
        ),
        check(
            "replicated",
            "Replicated parameters stay equal after every step.",
            needs=("model",),
            promise="Replicated",
            cost="4 FBS",
        ),
        check(
            "non-finite-guard",
            "A gradient that is NaN never reaches the weights.",
            needs=("model", "step-or-trainer"),
            promise="SkipsNonFinite",
            cost="1 FBS",
        ),
        axes="once",
    ),
    *family(
        "steps.averages",
        check(
            "averages-follow",
            "A moving average of the trained weights moves towards them in training steps.",
            cost="shared with weights-update; 3 FBS if the model holds such an average, 1 for a module under two names "
            "and for norms whose weights alone move",
        ),
        check(
            "moving-average",
            "The moving average includes the trained weights after every step.",
            needs=("model",),
            promise="MovingAverage",
            cost="1 FBS",
        ),
        axes="once",
    ),
    *family(
        "datasets.samples",
        check(
            "samples-valid",
            "Samples can be read, are finite, and agree in structure, shape and dtype, so "
            "that they can be batched.",
            cost="256 reads of each dataset, shared; 6 more of one that holds bytes",
        ),
        check(
            "samples-unchanged",
            "Reading a sample changes nothing: a second read with the same seed gives the "
            "same sample.",
            cost="96 reads of each dataset, 16 and a batch where there is a collate_fn",
        ),
        check(
            "dataset-labels",
            ("Labels have the dtype and range that the loss needs, vary, and match their samples."),
            cost="shared with samples-valid; 8 reads more where no stored column holds the labels, 19 "
            "where targets are maps and samples random",
        ),
        check(
            "split-hygiene",
            "No sample occurs in two splits.",
            cost="one hash per sample, or one read where nothing is stored; the reads of samples-valid, shared",
        ),
        about="declaration",
        needs=("dataset",),
        axes="once",
    ),
    *family(
        "datasets.loading",
        check(
            "dataset-pickling",
            "Dataset, collate function and worker_init_fn can be pickled for a spawned worker.",
            cost="one pickling without the arrays' data",
        ),
        check(
            "collate-pairing",
            "A collate function keeps every label with its sample, and every field of it, marks "
            "padding as padding, and offsets indices so that none refers to another sample.",
            cost="64 reads of each dataset, and for each field about 8 batches of 4 samples",
        ),
        check(
            "worker-delivery",
            ("A spawned worker delivers two batches of the right samples within a deadline."),
            cost="one process, 1-3 s, only where the loader declares workers",
            starts="data.delivery:expect_loader",
        ),
        check(
            "worker-sharding",
            "The workers of an iterable dataset split its samples between them, so that none "
            "is read twice.",
            cost="64 reads in each of two simulated workers",
        ),
        check(
            "random-augmentation",
            "Random items differ between workers and between epochs, and repeat with the same "
            "seed.",
            promise="RandomAugmentation",
            cost="80 reads in simulated workers",
        ),
        check(
            "loader-order",
            "The order of samples repeats with the same seed, shuffling differs in every "
            "epoch, and the sampler covers the number of samples that the dataset has.",
            cost="the indices of three epochs; the reads of samples-valid, shared, where a loader for training is told "
            "to read in order",
        ),
        check(
            "last-batch",
            "The last, partial batch is neither dropped in evaluation nor too small to train on.",
            cost="the indices of an epoch, and one forward where a model is declared",
        ),
        about="declaration",
        needs=("dataset",),
        axes="once",
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
            devices=("cuda",),
        ),
        check(
            "side-stream",
            "The same step gives the same result on a stream other than the default one.",
            cost="3 FB",
            devices=("cuda",),
        ),
        axes="device",
    ),
    *family(
        "machines.capture",
        check(
            "graph-capture",
            "The forward, captured as a CUDA graph, gives the same output for new inputs as in "
            "eager mode.",
            promise="CapturesGraph",
            cost="6 F",
            devices=("cuda",),
        ),
        axes="device",
    ),
    *family(
        "parallel.replicas",
        check(
            "ddp-equivalence",
            "The averaged gradients of data-parallel ranks equal those of a single process.",
            cost=(
                "spawning the ranks (4-10 s, once for all checks of ranks) and about 12 FB in each"
            ),
        ),
        check(
            "rank-consistency",
            "Every rank starts with the same model and draws different random numbers.",
            cost="shared with ddp-equivalence",
        ),
        check(
            "distributed-steps",
            "The training step leaves the same model on every rank, and gives the same result "
            "as in one process.",
            needs=("model", "train_step", "ranks"),
            cost="shared with ddp-equivalence, and 3 FBS in each rank",
        ),
        needs=("model", "ranks"),
        axes="once",
    ),
    *family(
        "parallel.data",
        check(
            "rank-data",
            "Ranks split the samples of each epoch evenly, in a different order each time.",
            promise="SharesData",
            cost="shared with ddp-equivalence, and the promised loop",
        ),
        check(
            "rank-checkpoint",
            "A checkpoint that ranks save with the wrapped model can be loaded in one process.",
            promise="Checkpoints",
            cost="shared with ddp-equivalence, and saving and loading once",
        ),
        about="declaration",
        needs=("model", "ranks"),
        axes="once",
    ),
    *family(
        "parallel.sharding",
        check(
            "fsdp-equivalence",
            "Sharded by FSDP2, the model computes, steps, saves and loads as it does in "
            "one process.",
            promise="FullyShards",
            cost="shared with ddp-equivalence, and about 6 FB in each rank",
        ),
        check(
            "synchronised-statistics",
            "Synchronised batch normalisation over ranks equals batch normalisation over "
            "the whole batch.",
            cost="shared with ddp-equivalence, and 2 FB where the model has such modules",
        ),
        about="declaration",
        needs=("model", "ranks"),
        axes="once",
    ),
)
