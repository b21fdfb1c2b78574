"""Are two digits the same: the distance of their embeddings, learnt by a contrastive loss on scikit-learn's digits."""

from __future__ import annotations

from assay.nn.siamese import Distance, Siamese, small_encoder
from assay.subject import Recipe, Subject

SIZE = 8  # of the embedding


def network() -> Siamese:
    """The small encoder and the Euclidean distance; there is no decoder."""
    return Siamese(small_encoder(SIZE), Distance())


def build() -> Subject:
    """The network with its weights, and 2,000 pairs each of the digits that it was trained and is tested on."""
    from assay.data.digits import load_digits, weights
    from assay.data.pairs import Pairs

    state, model = weights("digits_similarity"), network()
    threshold = float(state.pop("threshold"))
    model.load_state_dict(state)
    return Subject.similarity(
        model.eval(),
        {
            part: Pairs.alike(digits, digits.labels, 2000, seed=seed)
            for seed, (part, digits) in enumerate(load_digits().items())
        },
        threshold=threshold,
        name="digits-similarity",
        about="A distance of embeddings trained on 1,300 digits of 8 x 8 by pytorch-metric-learning's contrastive "
        "loss; right on 0.9600 of 2,000 pairs of the 497 test images, half of them the same digit.",
    )


SHELVED = Recipe(
    says="A distance between scikit-learn's digits, learnt by a contrastive loss: are two the same?",
    source="Hadsell et al. 2006, doi:10.1109/CVPR.2006.100",
    build=build,
)
