"""What a probability is worth."""

from assay.methods.uncertainty.calibration import CalibrationError, Reliability, calibration_error, reliability

__all__ = ["CalibrationError", "Reliability", "calibration_error", "reliability"]
