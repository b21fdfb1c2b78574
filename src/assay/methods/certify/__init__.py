"""Certificates: bounds on what a network can do, proved for every input of a region."""

from assay.methods.certify.lipschitz import lipschitz

__all__ = ["lipschitz"]
