"""What is measured of a user's training step; :mod:`pytest_torchcheck.checks.steps.loop` judges it.

``recorder`` runs the step and writes a :class:`~.trace.Trace` of events with their lines; ``protocol``,
``rates`` and ``modes`` read it; ``closures`` puts back what the step's own functions keep.
"""
