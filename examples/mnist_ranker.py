"""A siamese ranker of MNIST's digits at the published size: which of two is higher?

ASSAY_DATA=... python tools/train_ranker.py --data mnist --device cuda --out mnist-ranker.safetensors
ASSAY_DATA=... assay audit examples/mnist_ranker.py:build
ASSAY_DATA=... assay explain examples/mnist_ranker.py:build --pair 12 40 --target 1
"""

from __future__ import annotations

import os
from pathlib import Path

from safetensors.torch import load_file

from assay import Subject
from assay.data.beyond import mnist
from assay.data.pairs import Pairs
from assay.errors import AssayError
from assay.nn.siamese import ARCHITECTURES


def build() -> Subject:
    weights = Path(os.environ.get("MNIST_RANKER", "mnist-ranker.safetensors"))
    if not weights.is_file():
        raise AssayError(f"There is no {weights}; train it as the top of {Path(__file__).name} says.")
    model = ARCHITECTURES["grey"](10)
    model.load_state_dict(load_file(weights))
    pairs = {
        part: Pairs.ranked(digits, digits.labels, 2000, seed=k) for k, (part, digits) in enumerate(mnist().items())
    }
    return Subject.ranker(model.eval(), pairs, low=0, high=9, name="mnist-ranker")
