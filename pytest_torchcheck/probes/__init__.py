"""Instruments that watch a run after a check has failed: they measure, and decide nothing."""
