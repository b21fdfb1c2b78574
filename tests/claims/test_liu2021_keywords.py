from __future__ import annotations

import numpy as np
import pytest

from assay.claims import known_truth
from assay.claims import liu2021_keywords as study
from assay.run import Run


@pytest.mark.parametrize(("ours", "words"), [(0.9, "it holds"), (0.2, "it fails"), (0.5, "nothing can be told either")])
def test_both_criteria_must_be_ahead_of_every_other_explanation(
    ours: float, words: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    wobble = 0.05 * np.sin(np.arange(20.0))
    scores = {**dict.fromkeys(study.OURS, ours + wobble), "gradient": 0.5 - wobble, "random": 0.3 + wobble}
    bench = known_truth.Bench(scores, {}, {}, 0.95)
    monkeypatch.setattr(known_truth, "_topics", lambda seed: bench)
    evidence = study.topical(run)
    assert evidence.verdict == "cannot tell"  # the texts are not print's
    assert evidence.says.endswith(f"which are not print's, {words}.")
    assert len(evidence.measures) == 4 + 4  # integrated gradients and the others were not asked
