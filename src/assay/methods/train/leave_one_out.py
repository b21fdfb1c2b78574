"""Leave one domain out: train on the others, and judge where nothing was trained, tuned or looked at.

Source: the protocol of Ghifary et al., ICCV 2015, arXiv:1508.07680, and of Wang, Loog and van Gemert, ICPR 2020,
    arXiv:2010.07591, sec. IV.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from assay.errors import AssayError

Domain = TypeVar("Domain")
Trained = TypeVar("Trained")
Score = TypeVar("Score")


def others(domains: Mapping[str, Domain], held_out: str) -> dict[str, Domain]:
    """The domains without this one."""
    if held_out not in domains:
        raise AssayError(f"There is no domain {held_out!r} to hold out; there are {', '.join(domains) or 'none'}.")
    if len(domains) < 2:
        raise AssayError(f"{held_out!r} is the only domain, and nothing is left to train on; give another one.")
    return {name: domain for name, domain in domains.items() if name != held_out}


def leave_one_out(
    domains: Mapping[str, Domain],
    train: Callable[[Mapping[str, Domain]], Trained],
    score: Callable[[Trained, Domain], Score],
) -> dict[str, Score]:
    """For each domain the score there of what was trained on the others; `train` is handed nothing of it."""
    return {name: score(train(others(domains, name)), held_out) for name, held_out in domains.items()}
