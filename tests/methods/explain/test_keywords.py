from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from assay.data.topics import CLASSES, WORDS, encode, is_stop_word, load_topics, make_texts
from assay.errors import AssayError, ShapeError
from assay.methods.explain import groups as grouping
from assay.methods.explain.faithfulness import robustness_curve
from assay.methods.explain.greedy import Criterion
from assay.methods.explain.subset_robustness import Search, masked_minimal, nearest_rivals, subset_robustness
from assay.methods.explain.words import Change, keywords, nearest_words, unbounded
from assay.methods.train.fit import fit
from assay.nn.text_classifier import TextClassifier


@cache
def topic_net() -> TextClassifier:
    """As its docstring says to train it, on fewer texts."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = TextClassifier(len(WORDS), len(CLASSES), longest=12)
    data = load_topics(train=1500, test=200)
    rng = torch.Generator().manual_seed(0)
    fit(model, data["train"], epochs=6, lr=0.01, batch=64, optimiser="adam", rng=rng)
    model.eval().requires_grad_(False)
    x, y = data["test"].take(np.arange(200))
    assert (model(x).argmax(1) == y).float().mean() > 0.95
    return model


def text(sentence: str) -> tuple[Tensor, Tensor]:
    """A sentence as an embedding, L m, and which places hold a word."""
    tokens = torch.from_numpy(encode(sentence))[None]
    return topic_net().embed(tokens)[0], tokens[0] != 0


def test_where_rows_are_averaged_words_cannot_be_told_apart() -> None:
    """g(S) = L margin / (||w|| sqrt|S|): all words tie, although leaving one out does tell them apart."""
    rng = torch.Generator().manual_seed(0)
    w, embedded = torch.randn(5, generator=rng), torch.randn(6, 5, generator=rng)

    def classify(e: Tensor) -> Tensor:
        z = e.mean(1) @ w + 2
        return torch.stack([z, torch.zeros_like(z)], 1)

    sets = torch.arange(1, 64)[:, None] & 2 ** torch.arange(6) != 0
    groups = grouping.words(torch.ones(6), 5)
    found = subset_robustness(classify, embedded[None], sets, groups=groups, search=unbounded(embedded))[0]
    margin = float(classify(embedded[None])[0, 0])
    exact = 6 * margin / (torch.linalg.vector_norm(w) * sets.sum(1).sqrt())
    assert_close(found, exact.double(), rtol=5e-3, atol=0)
    scores = keywords(classify, embedded, size=1, change="embedding", criterion="s-r-bar").explained.scores
    assert float(scores.std() / scores.abs().mean()) < 0.01
    left_out = torch.stack(
        [classify(torch.where(torch.arange(6)[:, None] == i, 0, embedded)[None])[0, 0] for i in range(6)]
    )
    assert float(left_out.std()) > 0.1


@pytest.mark.parametrize("criterion", ["s-r-bar", "s-r"])
@pytest.mark.parametrize("change", ["fade", "embedding"])
def test_the_keyword_that_alone_decides_is_picked_first_and_padding_never(criterion: Criterion, change: Change) -> None:
    """The class is the largest score of any row: row 3 has it by far."""
    rng = torch.Generator().manual_seed(1)
    direction = torch.randn(4, generator=rng)
    embedded = 0.1 * torch.randn(8, 4, generator=rng)
    embedded[3] = direction
    embedded[6:] = 0
    shown = torch.arange(8) < 6

    def classify(e: Tensor) -> Tensor:
        score = (e @ direction).masked_fill(~shown, -torch.inf).amax(1)
        return torch.stack([score, 0.5 * direction.square().sum() + 0 * score], 1)

    found = keywords(classify, embedded, shown=shown, size=3, criterion=criterion, change=change)
    assert found.words[0] == 3
    assert set(found.words.tolist()) <= set(range(6))
    assert len(keywords(classify, embedded, shown=shown, size=20, criterion=criterion, change=change).words) == 6
    assert (found.explained.map[6:] == 0).all()


def test_rows_outside_the_set_stay_bit_for_bit() -> None:
    model, (embedded, shown) = topic_net(), text("the coach said that the striker was at the airport")
    rows = torch.tensor([False, True, False, False, False, True, False, False, False, False, False, False])
    search = unbounded(embedded)
    groups = grouping.words(torch.ones(12), embedded.shape[1])

    def classify(e: Tensor) -> Tensor:
        return model.classify(e, shown)

    y, rivals = nearest_rivals(classify, embedded[None], rows[None, None], groups, search=search)
    free = rows[None, :, None].expand(1, *embedded.shape)
    found = masked_minimal(classify, embedded[None], y, free, rivals[:, 0], search=search)
    assert bool(found.success)
    assert torch.equal(found.x[0, ~rows], embedded[~rows])
    assert found.x.abs().max() < 0.9 * search.bounds[1]  # no bound was met
    assert int(classify(found.x).argmax()) != int(y)


def test_equal_words_have_scores_of_their_own() -> None:
    model, (embedded, shown) = topic_net(), text("goal the goal of the bank")
    found = keywords(lambda e: model.classify(e, shown), embedded, shown=shown, size=6, samples=64)
    assert sorted(found.words.tolist()) == list(range(6))
    assert found.explained.scores.shape == (6,)
    assert found.explained.asked == 64  # 2^6


def test_keywords_are_topic_words_and_the_curve_is_better_than_the_gradients_and_chance() -> None:
    """Stop words are rare among the top words of Greedy-AS; areas: Greedy-AS over gradient over random on S_r-bar."""
    model = topic_net()
    texts = make_texts(4, np.random.default_rng(5))
    tokens = torch.from_numpy(texts.tokens)
    embedded = model.embed(tokens)
    rng = torch.Generator().manual_seed(0)
    areas = dict.fromkeys(("greedy", "gradient", "random"), 0.0)
    stops = dict.fromkeys(("greedy", "random"), 0)
    for e, t in zip(embedded, tokens, strict=True):
        shown = t != 0
        length = int(shown.sum())
        e = e[:length]
        found = keywords(model.classify, e, size=5, samples=128, change="embedding", criterion="s-r-bar", seeds=1)
        at = e[None].clone().requires_grad_()
        z = model.classify(at)
        (slope,) = torch.autograd.grad(z.amax(), at)
        ranks = {
            "greedy": found.explained.weight[None],
            "gradient": torch.linalg.vector_norm(slope, dim=2),
            "random": torch.rand(1, length, generator=rng),
        }
        groups = grouping.words(torch.ones(length), e.shape[1])
        for name, scores in ranks.items():
            curve = robustness_curve(
                model.classify, e[None], scores, criterion="s-r-bar", groups=groups,
                shares=[k / length for k in range(1, 6)], search=unbounded(e, Search(steps=10)),
            )  # fmt: skip
            areas[name] += float(curve.area())
        stop = is_stop_word(t.numpy())
        stops["greedy"] += int(stop[found.words[:2]].sum())
        stops["random"] += int(stop[ranks["random"][0].argsort(descending=True)[:2]].sum())
    assert areas["greedy"] > areas["gradient"] > areas["random"], areas
    assert stops["greedy"] < 0.75 * stops["random"], stops


def test_words_that_fade_are_the_words_of_the_topic() -> None:
    """The truth is known: as many words as the topic has in a text, and how many of them are its own."""
    model = topic_net()
    texts = make_texts(5, np.random.default_rng(8))
    hits, chance = [], []
    for tokens, key, label in zip(texts.tokens, texts.key, texts.label, strict=True):
        length, size = int((tokens != 0).sum()), int(key.sum())
        embedded = model.embed(torch.from_numpy(tokens)[None])[0, :length]
        if int(model.classify(embedded[None]).argmax()) != label:
            continue  # of another class the topic words are no truth
        found = keywords(model.classify, embedded, size=size, samples=40, search=Search(steps=5, halvings=1, rivals=1))
        hits.append(key[found.words.numpy()].mean())
        chance.append(size / length)
        assert 0 <= found.explained.capped_share <= 1
        assert found.explained.stable is not None
        assert found.explained.stable > 0.3
    assert np.mean(hits) > 0.75 > np.mean(chance) + 0.2


def test_the_picks_of_all_subsets_are_the_same_for_every_seed() -> None:
    model, (embedded, shown) = topic_net(), text("goal the goal of the bank")
    found = keywords(lambda e: model.classify(e, shown), embedded, shown=shown, size=2, samples=64)
    assert found.explained.stable == 1.0
    assert found.explained.asked == 64
    assert "share 100 % (Jaccard)" in found.explained.doubts()
    one = keywords(lambda e: model.classify(e, shown), embedded, shown=shown, size=2, samples=20, seeds=1)
    assert one.explained.stable is None
    assert "one seed" in one.explained.doubts()


def test_a_change_is_read_as_words_of_the_table() -> None:
    model, (embedded, shown) = topic_net(), text("the striker scored and the team had a trophy")
    chosen = torch.tensor([1, 5])

    def classify(e: Tensor) -> Tensor:
        return model.classify(e, shown)

    rows = nearest_words(classify, embedded, chosen, model.table.weight)
    assert rows.shape == (2,)
    same = nearest_words(
        lambda e: torch.stack([e.sum((1, 2)) * 0 + 5, e.sum((1, 2)) * 0], 1), embedded, chosen, model.table.weight
    )
    assert [WORDS[int(k)] for k in same] == ["striker", "team"]  # no change was found


def test_words_of_the_errors() -> None:
    model, (embedded, shown) = topic_net(), text("the goal")
    with pytest.raises(ShapeError, match=r"shape \(words, width\), got \(1, 12, 16\)"):
        keywords(model.classify, embedded[None])
    with pytest.raises(AssayError, match="every place is padding"):
        keywords(model.classify, embedded, shown=torch.zeros(12))
    with pytest.raises(ShapeError, match=r"`shown` has shape \(3,\)"):
        keywords(model.classify, embedded, shown=torch.ones(3))
    with pytest.raises(AssayError, match="zeros only has no scale"):
        keywords(model.classify, torch.zeros(4, 16), change="embedding")
    with pytest.raises(AssayError, match="Words change by fade or embedding, got 'mask'"):
        keywords(model.classify, embedded, change="mask")  # type: ignore[arg-type]
    with pytest.raises(AssayError, match="needs seeds >= 1, got 0"):
        keywords(model.classify, embedded, seeds=0)
    with pytest.raises(AssayError, match="There is no class 6; the model has 6"):
        keywords(lambda e: model.classify(e, shown), embedded, shown=shown, target=6)
