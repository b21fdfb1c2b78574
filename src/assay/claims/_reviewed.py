"""What a later reading of the records found: verdicts that their evidence does not bear, numbers that are not alike.

It stands here and not in the studies, whose every change makes their records stale: a trained network is not trained
again for a word. A doubt is about one record, by the moment it was made at, and goes once the study is mended and run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Doubt(NamedTuple):
    """Why the verdict of one record may not be concluded from what it measured."""

    when: str
    why: str


_ONE_METRIC = (
    "one set of training images and one metric were drawn, no gate asks for print's baseline, and the error of the "
    "Euclidean distance without an attack is {} % where print has {}"
)

DOUBTS: Mapping[str, Doubt] = {
    "wang2020/certified-error-mnist": Doubt("2026-11-17T16:12:51+00:00", _ONE_METRIC.format("5.0", "3.3")),
    "wang2019-votes/eleven-mnist": Doubt("2026-11-17T09:25:56+00:00", _ONE_METRIC.format("6.9", "3.8")),
    "fuhl2021/combination-differs": Doubt(
        "2026-11-17T07:06:19+00:00",
        "print does not say which optimiser it trained with, and under Adam the statement is true",
    ),
    "wang2022-cifar10/own-loss": Doubt(
        "2026-11-19T08:05:05+00:00",
        "it fails by a share of our own, a half, and a gain is left under the worst of the attacks",
    ),
    "wang2019-smoothing/smoothing-mnist": Doubt(
        "2026-11-19T22:36:56+00:00",
        "1-NN has the lower error at three radii, by far, and the higher at four; which of these the statement is of, "
        "print does not say, nor which network it smooths",
    ),
    "giulivi2020/frozen-is-constant": Doubt(
        "2026-11-19T08:11:05+00:00", "print compares with no constant: that part of the statement is ours"
    ),
    "giulivi2020/weight-cascade": Doubt(
        "2026-11-19T08:01:02+00:00",
        "print sees no significant correlation from the first layer on, and that of 0.110 found here is one; that it "
        "lies below edges and another seed is a comparison of our own",
    ),
    "giulivi2020/label-randomisation": Doubt(
        "2026-11-19T08:06:32+00:00",
        "the correlation found here is one, above print's 0.127, and what is asked of it, to lie below the better of "
        "edges and brightness, is ours",
    ),
    "giulivi2020/joint-costs-little": Doubt(
        "2026-11-17T09:46:21+00:00",
        "print expects single tasks to suffer and does not say that it is little: what little is, is ours",
    ),
    "giulivi2020/mirror-decoder": Doubt(
        "2026-11-19T08:04:18+00:00",
        "print judges by eye and gives no weight k: the line of 100 % and k = 1 are ours, the number falls as k grows, "
        "and none was searched",
    ),
    "qiu2021-fading/choice-does-not-matter": Doubt(
        "2026-11-17T19:21:19+00:00",
        "print compares the last filters with random ones, not with those of the largest weights, and that 0.5 points "
        "are none is ours",
    ),
    "qiu2021-fading/kept-filters-come-nearer": Doubt(
        "2026-11-17T19:21:16+00:00",
        "print draws one late layer of a deeper network; here it is the mean over all layers, and the number that "
        "decides has no interval",
    ),
}

UNLIKE: Mapping[str, tuple[str, ...]] = {
    "giulivi2020/joint-costs-little": ("",),
    "giulivi2020/one-step-agrees": ("",),
    "lehmann2021/detection": ("outliers",),
    "liu2021-ensembles/closest-to-naive": ("accuracy, corrupted", "NLL, corrupted", "ECE, corrupted"),
    "liu2021-ensembles/keeps-the-gain-corrupted": ("",),
    "passov2021-gator/memory-stays": ("FLOPs removed, memory", "memory removed, memory"),
    "passov2021-gator/own-price-best": ("FLOPs removed, memory", "memory removed, memory", "accuracy, memory"),
    "viering2019-explanations/constant-maps": ("",),
    "viering2019-explanations/input-dependent-maps": ("",),
    "zhang2021-fair-moel/three-objectives-adult": ("hypervolume",),
    "zhang2021-fair-moel/three-objectives-compas": ("hypervolume",),
}
"""How the names of those published numbers begin whose data, networks or scale are not those here."""
