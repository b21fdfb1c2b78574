"""What a probability is worth."""

from assay.methods.uncertainty.calibration import (
    Brier,
    CalibrationError,
    Reliability,
    ReliabilityCurve,
    bin_weights,
    brier,
    calibration_error,
    ece,
    nll,
    reliability,
    reliability_curve,
    sharpness,
)

__all__ = [
    "Brier",
    "CalibrationError",
    "Reliability",
    "ReliabilityCurve",
    "bin_weights",
    "brier",
    "calibration_error",
    "ece",
    "nll",
    "reliability",
    "reliability_curve",
    "sharpness",
]
