"""What a probability is worth."""

from assay.methods.uncertainty.calibration import (
    CalibrationError,
    Reliability,
    bin_weights,
    calibration_error,
    ece,
    reliability,
)
from assay.methods.uncertainty.density import ReliabilityCurve, reliability_curve
from assay.methods.uncertainty.proper_scores import Brier, brier, nll, sharpness
from assay.methods.uncertainty.selective import RiskCoverage, risk_coverage

__all__ = [
    "Brier",
    "CalibrationError",
    "Reliability",
    "ReliabilityCurve",
    "RiskCoverage",
    "bin_weights",
    "brier",
    "calibration_error",
    "ece",
    "nll",
    "reliability",
    "reliability_curve",
    "risk_coverage",
    "sharpness",
]
