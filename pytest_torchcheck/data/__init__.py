"""What is measured of a dataset and its loader; :mod:`pytest_torchcheck.checks.datasets.samples` judges it.

Every module here takes plain arguments (a dataset, a :class:`~.plan.LoaderPlan`) and returns frozen
evidence. ``contents`` walks and puts back what a dataset holds, ``reading`` reads and describes
samples, ``tracing`` finds the user's line, and the rest measure one promise each.
"""
