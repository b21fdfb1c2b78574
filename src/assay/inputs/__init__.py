"""Input kinds: what a model is shown, one file a kind.

A kind is a frozen dataclass that knows its bounds, its everyday changes at five severities, what an attacker may change
and in which norms, which parts an explanation may speak of, and how one input is shown.
"""

from __future__ import annotations

from assay.data.column import Column
from assay.inputs.change import SEVERITIES, Change
from assay.inputs.cloud import Cloud
from assay.inputs.features import Features
from assay.inputs.image import Image
from assay.inputs.kind import Bounded, Kind
from assay.inputs.observation import Observation
from assay.inputs.pair import Both, Pair, pair_of
from assay.inputs.reach import BothReach, Reach, WordReach
from assay.inputs.row import Row
from assay.inputs.sensor import Channel
from assay.inputs.series import Series
from assay.inputs.shares import InShares, in_shares
from assay.inputs.text import Text, Tokenizer
from assay.inputs.video import Video

__all__ = [
    "SEVERITIES",
    "Both",
    "BothReach",
    "Bounded",
    "Change",
    "Channel",
    "Cloud",
    "Column",
    "Features",
    "Image",
    "InShares",
    "Kind",
    "Observation",
    "Pair",
    "Reach",
    "Row",
    "Series",
    "Text",
    "Tokenizer",
    "Video",
    "WordReach",
    "in_shares",
    "pair_of",
]
