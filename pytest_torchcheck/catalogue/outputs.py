"""Checks of outputs: samples, positions, promises and references."""

from __future__ import annotations

from .check import Check, check, family

CHECKS: tuple[Check, ...] = (
    *family(
        "influence",
        check(
            "input-influence",
            "Every input has an influence on the output.",
            cost="1 F of two samples, and 1 F for each input; up to 4 FB with a random projection "
            "and 1 F for each input only in doubt",
        ),
        check(
            "checkpointing",
            "Activation checkpointing changes neither outputs nor gradients, buffers included.",
            cost="1 FB, shared; 2 more where torch.utils.checkpoint is in use",
        ),
        check(
            "output-stability",
            "The output has the same dtypes and numbers of dimensions in train and in eval mode.",
            cost="2 F, shared",
            axes="once",
        ),
    ),
    *family(
        "batching",
        check(
            "batch-independence",
            "A sample's output does not depend on other samples or on its position in the batch.",
            cost="3 F of four samples and 1 F of two in eval mode; 2 more in float64 only where bits "
            "differ; as many again where weights start at zero; 3 F of graphs that an index tells apart",
        ),
    ),
    *family(
        "sizes",
        check(
            "batch-sizes",
            "Other sizes of the declared symbols work, and a batch of one gives the same "
            "output as in a larger batch.",
            cost="1 F for each of the drawn sizes, up to 16 F of the smallest batch over the ranges of "
            "other sizes, 1 F for the batch of one, and up to 4 F of three samples; 2 more in float64 only "
            "where bits differ between larger batches; a declared step once",
        ),
    ),
    *family(
        "behaviour",
        check(
            "eval-determinism",
            "In eval mode the same input gives the same output, regardless of the random state.",
            cost="3 F, shared with eval-purity; 1 more only where one of them differs; 3 where "
            "weights start at zero",
        ),
        check(
            "eval-purity",
            "A forward in eval mode changes no parameter or buffer, and a second one gives the "
            "same output.",
            cost="3 F, shared with inference-memory; 2 more only where one of them differs, and 4 "
            "where a call retains tensors",
        ),
        check(
            "mode-flags",
            "eval() and train() reach every module, and freezing is done on parameters.",
            cost="none",
            axes="once",
        ),
        check(
            "seeding",
            "The same seed gives the same model, batch and training forward; another seed "
            "gives different random numbers.",
            cost="3 F in train mode, one of them shared; 2 where no random numbers are used, 1 more where they are; 1 build"
            " of a factory, 2 calls of a batch function",
        ),
        check(
            "output-spec",
            "The output has the declared shape, dtype and range, and is finite.",
            needs=("model", "output"),
            cost="1 F for each of the drawn sizes",
        ),
    ),
    *family(
        "hygiene",
        check(
            "rng-hygiene",
            "Neither forward nor eval() changes a global setting; evaluation and constructors do not reseed.",
            cost="2 F, shared, and 1 F of two samples; 1 more where evaluation draws; 2 builds where a constructor "
            "names a function that seeds",
            axes="once",
        ),
    ),
    *family(
        "causal",
        check(
            "causality",
            "The output at position t does not depend on the input after t.",
            promise="Causal",
            cost="1 F for each of up to 3 positions; 3 F of one sample of the largest declared sizes; where a "
            "weight is zero in part, 3 S and as much again",
        ),
        check(
            "past-influence",
            "Every position can influence the outputs of later positions.",
            promise="Causal",
            cost="none: compares what causality ran; up to 4 F more in doubt",
        ),
        check(
            "cached-steps",
            "Step by step with its cache, a causal model gives what it gives in one call.",
            promise="Causal",
            cost="none where the forward takes no cache, 1 F shared with mode-agreement where a class of the "
            "model asks for its mode; else 7 short F, and 1 F in float64",
        ),
    ),
    *family(
        "agreement",
        check(
            "mode-agreement",
            "Train and eval mode compute the same but for dropout, noise and statistics of the "
            "batch, and running statistics settle there; a sample's output follows its own input in both.",
            cost="none where no class of the model asks for its mode; else 1 F, 5 with statistics, 2 F of a few "
            "samples with torch's running statistics, and 2 F of six samples where the modes differ or draw",
            axes="once",
        ),
        check(
            "dropped-values",
            "What training drops is drawn in each forward, and what it keeps is scaled so that its mean stays.",
            cost="none where the training forward draws nothing; else 1 F of a few samples where a class of "
            "the model asks "
            "for its mode, 128 calls of each kind of its modules that drop values, and 3 F where a forward "
            "leaves tensors in attributes",
            axes="once",
        ),
    ),
    *family(
        "promised",
        check(
            "padding-invariance",
            "Neither the values nor the number of padded positions affect the output elsewhere.",
            promise="PaddingInvariant",
            cost="3 F in float64; 3 F of one sample of the largest declared sizes",
        ),
        check(
            "permutation-invariance",
            "Permuting the declared inputs, or the edges of a graph, leaves the output unchanged.",
            needs=("model", "set"),
            cost="3 F in float64; 2 F of one sample of the largest declared sizes; of edges 2 F in float64, "
            "10 more in doubt",
        ),
        check(
            "permutation-equivariance",
            "Permuting the declared inputs permutes the output in the same way.",
            promise="PermutationEquivariant",
            cost="3 F in float64; 2 F of one sample of the largest declared sizes",
        ),
    ),
    *family(
        "own_promises",
        check(
            "own-promises",
            "The project's own promises hold.",
            needs=("model", "own-promises"),
            cost="as much as the promises' verify()",
        ),
    ),
    *family(
        "reference",
        check(
            "reference-match",
            "With the same weights, the model gives the same output as its declared reference.",
            promise="Matches",
            cost="1 build of the reference, and 2 F in float64",
            axes="device",
        ),
        check(
            "old-checkpoints",
            "A checkpoint of a released version loads strictly, and gives what it gave then.",
            promise="Loads",
            cost="2 F, one of them in float64, for each checkpoint",
            axes="device",
        ),
        about="declaration",
    ),
)
