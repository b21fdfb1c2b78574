"""Attacks: pure functions that take a model, inputs and labels (or an Aim) and return what they found."""

from assay.methods.attack.aim import Aim
from assay.methods.attack.apgd import apgd
from assay.methods.attack.attacked import Attacked
from assay.methods.attack.ball import Ball, distance
from assay.methods.attack.carlini_wagner import carlini_wagner
from assay.methods.attack.fgsm import fgsm
from assay.methods.attack.minimal_norm import minimal_norm
from assay.methods.attack.pgd import pgd

__all__ = ["Aim", "Attacked", "Ball", "apgd", "carlini_wagner", "distance", "fgsm", "minimal_norm", "pgd"]
