"""Devices and dtypes of a model that is moved."""

from __future__ import annotations

from .explainer import Maybe, One
from .rule import rule

complex_cast = Maybe("diagnosis.outputs.numerics:complex_cast", "complex-cast")


explain = One(
    "diagnosis.outputs.placement:explain",
    (
        "cpu-factory cpu-literal cpu-tensor device-fixed module-hidden module-placed-by-hand "
        "numpy-on-device tensor-placed-by-hand"
    ),
)
meta_finding = One("diagnosis.outputs.placement:meta_finding", "meta-mixed", doubtful=True)

ENTAILS = (
    rule(
        "device-portability/*",
        "dtype-conversion/*",
        "line",
        "a tensor made without device= and dtype= keeps both defaults",
    ),
)
"""What follows from findings of this family."""
