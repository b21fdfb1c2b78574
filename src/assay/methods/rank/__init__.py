"""What makes a model that compares two inputs change its mind: one walk, with everything else as its settings."""

from assay.methods.rank.penalties import Penalties
from assay.methods.rank.walk import one_step, to_tie, walk

__all__ = ["Penalties", "one_step", "to_tie", "walk"]
