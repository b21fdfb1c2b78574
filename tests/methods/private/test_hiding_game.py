"""Masks, the agent, the attacker that adapts, the GAN's discriminator and Laplace noise."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.private.adaptive_attack import Lesson, Memory, hits, play, reported, retrained, thorough
from assay.methods.private.gan import discriminator, train_gan
from assay.methods.private.laplace import picture_sensitivity, recording_sensitivity, voted, with_noise
from assay.methods.private.mask_agent import MaskAgent, Training, best, correctness, reward, value
from assay.methods.private.masks import deactivations, manipulated, with_zeros
from assay.methods.train.fit import anew
from assay.nn.masked import Autoencoder, FixedMask, Masked, MaskNet, StackClassifier

SHAPE, WIDTHS, SMALL = (3, 16, 16), (2, 3, 4, 5), (3, 3, 3, 3)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def coder() -> Autoencoder:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = Autoencoder((3, 20, 17), WIDTHS, SMALL).eval()
        for weight in made.parameters():
            nn.init.uniform_(weight, 0, 0.3)  # so that no ReLU is dead
    return made.requires_grad_(False)


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.rand(6, 3, 20, 17, generator=seeded())


def test_prints_sizes_and_the_tables() -> None:
    with torch.device("meta"):
        assert Autoencoder((3, 64, 64)).bottleneck == (256, 4, 4)
        assert Autoencoder((3, 64, 64)).features == 4096
        table = Autoencoder((3, 64, 64), as_published=True)
        assert table.bottleneck == (256, 8, 8)
        assert table(torch.empty(1, 3, 64, 64)).shape == (1, 3, 64, 64)
        assert [m.kernel_size[0] for m in table.decoder if isinstance(m, nn.ConvTranspose2d)] == [5, 5, 7]


def test_a_mask_of_ones_is_the_plain_autoencoder_and_one_of_zeros_a_constant_image(
    coder: Autoencoder, images: Tensor
) -> None:
    code = coder.encode(images)
    plain = coder(images)
    assert plain.shape == images.shape
    assert_close(manipulated(coder.decode, code, torch.ones(coder.features)), plain, rtol=0, atol=0)
    assert_close(FixedMask(coder, torch.ones(coder.features))(images), plain, rtol=0, atol=0)
    blank = manipulated(coder.decode, code, torch.zeros_like(code))
    assert_close(blank, blank[:1].expand_as(blank))
    assert float((plain - plain[:1]).abs().max()) > 1e-2


def test_a_network_that_has_learned_nothing_switches_nothing_off(coder: Autoencoder, images: Tensor) -> None:
    masked = Masked(coder, MaskNet((3, 20, 17), coder.features, WIDTHS, SMALL))
    assert bool((masked.mask(images) == 1).all())
    assert_close(masked(images), coder(images), rtol=0, atol=0)


@given(count=st.integers(1, 40), features=st.integers(1, 30), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_first_masks_switch_off_one_or_some_and_random_ones_as_many_as_told(
    count: int, features: int, seed: int
) -> None:
    masks = deactivations(features, count, seeded(seed), most=10)
    zeros = (masks == 0).sum(1)
    assert masks.shape == (count, features)
    assert bool(((zeros >= 1) & (zeros <= min(10, features))).all())
    again = with_zeros(zeros, features, seeded(seed + 1))
    assert torch.equal((again == 0).sum(1), zeros)
    assert bool(torch.isin(again, torch.tensor([0.0, 1.0])).all())


def test_every_single_deactivation_is_reached() -> None:
    masks = deactivations(8, 400, seeded(), singles=1.0)
    assert torch.equal((masks == 0).sum(0) > 0, torch.ones(8, dtype=torch.bool))
    assert bool(((masks == 0).sum(1) == 1).all())


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=9))
def test_a_reward_is_keep_less_hide_and_within_one(pairs: list[tuple[float, float]]) -> None:
    keep, hide = torch.tensor(pairs, dtype=torch.float64).T
    got = reward(keep, hide)
    assert_close(got, torch.tensor([k - h for k, h in pairs], dtype=torch.float64), rtol=0, atol=0)
    assert bool((got.abs() <= 1).all())


def test_correctness_is_the_chance_of_the_right_class_or_whether_it_is_said() -> None:
    logits, truth = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
    assert_close(correctness(logits, truth), torch.tensor([1 / (1 + 2.718281828**-2), 1 / (1 + 2.718281828)]))
    assert correctness(logits, truth, hard=True).tolist() == [1.0, 0.0]


def test_entangled_labels_leave_nothing_to_gain_whatever_the_mask(coder: Autoencoder, images: Tensor) -> None:
    reader = StackClassifier((3, 20, 17), 3, WIDTHS, SMALL, hidden=4).eval()
    same = torch.arange(6) % 3
    masks = deactivations(coder.features, 6, seeded())
    said = reader(manipulated(coder.decode, coder.encode(images), masks))
    assert_close(reward(correctness(said, same), correctness(said, same)), torch.zeros(6), rtol=0, atol=0)


def test_the_best_action_is_prints_rule() -> None:
    out = torch.randn(5, 1 + 6, generator=seeded())
    sets = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 6)  # all 64 actions
    every = torch.stack([value(out, off.expand(5, 6)) for off in sets])  # 64 5
    assert_close(best(out), every.max(0).values)
    assert_close(sets[every.argmax(0)], (out[:, 1:] >= 0.5).float())


F, HARM = 12, 4


def toy() -> tuple[Tensor, Tensor, Tensor]:
    """Features of which the first four tell what is to be hidden and the last four what is to be kept."""
    codes = torch.ones(20, F)
    gain = torch.zeros(F)
    gain[:HARM], gain[-HARM:] = 0.2, -0.2  # what switching each off adds to the reward
    return torch.zeros(20, 1), codes, gain


class Constant(nn.Module):
    """The same numbers for all images: enough where the best mask is the same for all."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Parameter(torch.cat([torch.zeros(1), torch.full((F,), 0.499)]))

    def forward(self, x: Tensor) -> Tensor:
        return self.out.expand(len(x), -1)


def test_the_agent_finds_the_features_and_random_masks_with_as_many_zeros_are_worse() -> None:
    images, codes, gain = toy()
    agent = MaskAgent(
        Constant(), images, codes, lambda z, rows: (1 - z) @ gain, seeded(),
        Training(runs=60, batch=32, lr=0.02, explore=0.3), starts=200,
    )  # fmt: skip
    agent.learn()
    off = agent.chooser(images[:1])[0, 1:] >= 0.5
    assert bool(off[:HARM].all())
    assert not bool(off[-HARM:].any())
    assert_close(agent.chooser(images[:1])[0, 1:][gain != 0] - 0.5, gain[gain != 0], atol=0.05, rtol=0)
    learned = float(off.float() @ gain)
    zeros = off.sum().expand(2000)
    random = ((1 - with_zeros(zeros, F, seeded(1))) @ gain).mean()
    assert abs(float(random)) < 0.1  # by symmetry the mean is 0
    assert learned > 0.7


def test_a_changed_attacker_changes_what_the_memory_earned() -> None:
    images, codes, gain = toy()
    agent = MaskAgent(Constant(), images, codes, lambda z, rows: (1 - z) @ gain, seeded(), Training(runs=1), starts=50)
    before = agent.rewards.clone()
    agent.against(lambda z, rows: -((1 - z) @ gain))
    assert_close(agent.rewards, -before)


def test_the_memory_lets_the_oldest_go_and_holds_tries_that_flip_some() -> None:
    images, codes, gain = toy()
    for explore, flipped in ((1e-9, False), (1.0, True)):
        plan = Training(runs=1, batch=6, explore=explore, remembers=6)
        agent = MaskAgent(Constant(), images, codes, lambda z, rows: (1 - z) @ gain, seeded(), plan, starts=10)
        assert bool(agent.off.any())
        agent.learn()
        assert len(agent.off) == len(agent.rows) == len(agent.rewards) == 6
        assert bool(agent.off.any()) == flipped  # the network of before switches nothing off


def test_as_printed_each_feature_that_is_off_learns_the_whole_reward_in_0_to_1() -> None:
    images, codes, _ = toy()
    agent = MaskAgent(
        Constant(), images, codes, lambda z, rows: torch.full((len(z),), 0.6), seeded(),
        Training(runs=40, batch=32, lr=0.05), starts=100, as_published=True,
    )  # fmt: skip
    agent.learn()
    assert_close(agent.chooser.out.detach()[1:], torch.full((F,), 0.8), atol=0.02, rtol=0)  # type: ignore[union-attr,index,operator]


def test_without_a_next_state_the_discount_moves_the_value_alone() -> None:
    images, codes, gain = toy()
    worths = []
    for discount in (0.0, 0.5):
        agent = MaskAgent(
            Constant(), images, codes, lambda z, rows: (1 - z) @ gain, seeded(),
            Training(runs=80, batch=32, lr=0.02, explore=0.3, discount=discount), starts=200,
        )  # fmt: skip
        agent.learn()
        worths.append(agent.chooser(images[:1])[0].detach())
    assert_close(worths[0][1:], worths[1][1:], atol=0.08, rtol=0)
    assert float(worths[1][0] - worths[0][0]) > 0.3


class Reader(nn.Module):
    """Two classes off two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.line(x)
        return out


def two_labels(seed: int, n: int = 200) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The first number tells what is kept, the second what is hidden."""
    draw = seeded(seed)
    y, a = (torch.randint(2, (n,), generator=draw) for _ in range(2))
    x = torch.stack([2.0 * y - 1, 2.0 * a - 1], 1) + 0.1 * torch.randn(n, 2, generator=draw)
    return x, (y, a)


LESSON = Lesson(steps=60, batch=32, lr=0.05, most=1)


def test_a_sign_flip_looks_private_until_the_attackers_retrain_and_a_zero_stays_private() -> None:
    x, labels = two_labels(0)
    new, truth = two_labels(1)
    flip, erase = torch.tensor([1.0, -1.0]), torch.tensor([1.0, 0.0])
    ways = [flip, erase]
    met: list[nn.Module] = []

    def improve(keep: nn.Module, hide: nn.Module):  # type: ignore[no-untyped-def]
        met.append(hide)
        by = ways.pop(0)
        return lambda z: z * by

    make = lambda rng: anew(Reader(), rng)  # noqa: E731
    played = play((make, make), x, labels, new, truth, 2, improve, LESSON, seeded())
    rates = [[float(h.float().mean()) for h in each] for each in played.rounds]
    assert min(rates[0]) > 0.95
    assert rates[1][1] < 0.05  # apparent: an attacker who has not adapted says the other one
    assert rates[1][0] > 0.95
    assert abs(rates[2][3] - 0.5) < 0.15  # what is gone cannot be learned again
    assert rates[2][2] > 0.95
    assert met[0] is not met[1]
    assert len(played.memory.seen) == 3


def test_retraining_after_a_lossless_manipulation_undoes_it() -> None:
    x, labels = two_labels(0)
    new, truth = two_labels(1)
    make = lambda rng: anew(Reader(), rng)  # noqa: E731
    lesson = Lesson(steps=60, batch=32, lr=0.05, newest=1.0, most=1)
    played = play(
        (make, make), x, labels, new, truth, 1, lambda k, h: lambda z: z * torch.tensor([1.0, -1.0]), lesson, seeded()
    )
    assert float(played.rounds[1].hide_before.float().mean()) < 0.05
    assert float(played.rounds[1].hide_after.float().mean()) > 0.95


def test_the_attackers_memory_holds_no_test_image() -> None:
    x, labels = two_labels(0)
    new, truth = two_labels(1, n=70)
    new = new + 1000.0  # nothing like a training image
    make = lambda rng: anew(Reader(), rng)  # noqa: E731
    played = play(
        (make, make), x, labels, new, truth, 1, lambda k, h: lambda z: z + 1, Lesson(steps=2, most=1), seeded()
    )
    assert all(len(form) == len(x) and float(form.abs().max()) < 100 for form in played.memory.seen)
    with pytest.raises(AssayError, match="only manipulations of those"):
        played.memory.see(new)


def test_an_attacker_starts_from_new_weights_each_time() -> None:
    x, labels = two_labels(0)
    starts: list[Tensor] = []

    def make(rng: torch.Generator) -> nn.Module:
        net = anew(Reader(), rng)
        starts.append(next(net.parameters()).detach().clone())
        return net

    rng, memory = seeded(), Memory(x, labels)
    first = retrained(make, memory, 1, Lesson(steps=3), rng)
    second = retrained(make, memory, 1, Lesson(steps=3), rng)
    assert first is not second
    assert not torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[1], next(first.parameters()))  # nor from where the last one ended


def test_the_discriminator_is_one_where_all_is_kept_and_nothing_told() -> None:
    keep, hide = torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0.0, 1.0, 1.0, 0.0])
    assert discriminator(keep, hide).tolist() == [1.0, 0.0, 0.5, 0.5]


def test_the_generator_learns_to_shrink_what_is_to_be_hidden() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.by

    x, labels = two_labels(0)
    make = lambda seed: anew(Reader(), seeded(seed))  # noqa: E731
    keep, hide = (retrained(lambda g, s=s: make(s), Memory(x, labels), s, LESSON, seeded()) for s in (0, 1))
    learnt = [net.line.weight.detach().clone() for net in (keep, hide)]  # type: ignore[union-attr,operator]
    made = train_gan(Scale(), keep, hide, x, labels, steps=60, rng=seeded(), lr=0.02)
    assert not any(torch.equal(net.line.weight, old) for net, old in zip((keep, hide), learnt, strict=True))  # type: ignore[union-attr,arg-type]
    by = made.by.detach()  # type: ignore[union-attr]
    assert float(by[0]) > 0.9  # type: ignore[index]
    assert float(by[1]) < 0.5  # type: ignore[index]


def test_noise_of_infinite_eps_changes_nothing_and_of_none_all() -> None:
    x, (_, a) = two_labels(0, n=400)
    assert torch.equal(with_noise(x, 3.0, float("inf"), seeded()), x)
    rng = seeded()
    ask = lambda z: torch.stack([-z[:, 1], z[:, 1]], 1)  # noqa: E731
    assert float((voted(ask, lambda: with_noise(x, 1.0, 1e6, rng), 5) == a).float().mean()) > 0.95
    blind = float((voted(ask, lambda: with_noise(x, 1.0, 1e-6, rng), 5) == a).float().mean())
    assert abs(blind - 0.5) < 0.1
    with pytest.raises(AssayError, match="no scale of noise"):
        with_noise(x, 1.0, 0.0, seeded())


def test_the_noise_is_laplaces() -> None:
    noise = with_noise(torch.zeros(200_000), 3.0, 1.5, seeded())
    assert float(noise.abs().mean()) == pytest.approx(2.0, rel=0.02)  # of scale b, E|x| = b and E x^2 = 2 b^2
    assert float(noise.square().mean()) == pytest.approx(8.0, rel=0.04)
    assert abs(float(noise.mean())) < 0.03


def test_sensitivities_are_means_over_pairs() -> None:
    paths, pictures = torch.rand(4, 5, 2, generator=seeded()), torch.rand(4, 3, 2, 2, generator=seeded(1))
    far, wide = [], []
    for i in range(4):
        for j in range(i):
            far.append(float((paths[i] - paths[j]).abs().sum()))
            wide.append(float((pictures[i] - pictures[j]).abs().sum(0).max()))
    assert recording_sensitivity(paths) == pytest.approx(sum(far) / 6, rel=1e-5)
    assert picture_sensitivity(pictures) == pytest.approx(sum(wide) / 6, rel=1e-5)


def test_votes_go_to_what_most_copies_say() -> None:
    said = iter([[0, 1, 2], [0, 2, 2], [1, 2, 0]])
    got = voted(lambda z: nn.functional.one_hot(z, 3).float(), lambda: torch.tensor(next(said)), 3)
    assert got.tolist() == [0, 2, 2]


def test_what_is_reported_is_read_by_an_attacker_of_the_newest_alone_who_learns_while_it_helps() -> None:
    x, labels = two_labels(0)
    new, truth = two_labels(1)
    lesson, make = Lesson(steps=4, batch=16, lr=0.05), lambda rng: anew(Reader(), rng)
    flip = torch.tensor([1.0, -1.0])
    memory = Memory(x, labels)  # full of what says the contrary
    for _ in range(7):
        memory.see(x)
    memory.see(x * flip)
    old = retrained(make, memory, 1, lesson, seeded())
    keep, kept, read = reported(
        (make, make), [x * flip], labels, old, lambda net, which: hits(net, new * flip, truth[which]), lesson, seeded()
    )
    assert float(hits(old, new * flip, truth[1]).float().mean()) < 0.8
    assert float(read.float().mean()) > 0.95
    assert torch.equal(kept, hits(keep, new * flip, truth[0]))
    best = retrained(make, Memory(x * flip, labels), 1, LESSON, seeded())
    misled = [x]
    held = reported((make, make), misled, labels, best, lambda n, w: hits(n, new * flip, truth[w]), lesson, seeded())
    assert float(held[2].float().mean()) > 0.95  # of two attackers the better one


def test_a_lesson_is_repeated_until_what_is_kept_back_is_read_no_better() -> None:
    x, labels = two_labels(0)
    made: list[int] = []

    class Counted(Reader):
        def train(self, mode: bool = True) -> nn.Module:
            if mode:
                made.append(1)
            return super().train(mode)

    def lessons(images: Tensor, most: int) -> int:
        made.clear()
        thorough(lambda rng: anew(Counted(), rng), Memory(images, labels), 1, Lesson(6, 16, 0.01, most=most), seeded())
        return len(made)

    assert lessons(x, 4) == 4 * lessons(x, 1)  # it goes on falling
    assert lessons(torch.zeros_like(x), 50) < 25 * lessons(x, 1)  # there is nothing to learn
    with pytest.raises(AssayError, match="one of 5 images back"):
        thorough(lambda rng: anew(Reader(), rng), Memory(x[:3], (labels[0][:3], labels[1][:3])), 1, LESSON, seeded())
