from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Literal, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import Tensor, nn

from assay.methods.attack import swift as file
from assay.methods.attack.attacked import Slope
from assay.methods.attack.ensemble import worst_case
from assay.methods.attack.loss import Goal
from assay.methods.attack.minimal_norm import minimal_norm
from assay.methods.attack.pgd import pgd
from assay.methods.attack.recorded import Recorded
from assay.methods.attack.swift import Aside, NotAlike, Search, Swift, Through, Twin, cuts, searching
from assay.nn.fused import ConvRelu
from assay.nn.read_as import BeforeSquash
from assay.nn.tally import counted


class Images(NamedTuple):
    model: nn.Module
    x: Tensor  # n 1 8 8
    y: Tensor  # n


class Squashed(nn.Module):
    def __init__(self, model: nn.Module, squash: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.squash = model, squash

    def forward(self, x: Tensor) -> Tensor:
        return self.squash(self.model(x))


@pytest.fixture(scope="module")
def images() -> Images:
    """A small convolutional net with batch normalisation, trained on digits."""
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(y)
    rng = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 12, 3, 2, 1),
            nn.BatchNorm2d(12), nn.ReLU(), nn.Flatten(), nn.Linear(48, 10),
        )  # fmt: skip
    adam = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(10):
        for rows in torch.randperm(1200, generator=rng).split(100):
            adam.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            adam.step()
    return Images(model.eval().requires_grad_(False), x[1200:1360], y[1200:1360])


def slope(model: Callable[[Tensor], Tensor], x: Tensor, v: Tensor) -> Tensor:
    at = x.clone(memory_format=torch.preserve_format).requires_grad_()
    (g,) = torch.autograd.grad(model(at), at, v)
    return g


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return nn.functional.cosine_similarity(a.flatten(1), b.flatten(1))


def in_bf16(model: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def ask(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    return ask


@settings(max_examples=15, deadline=None)
@given(n=st.integers(1, 30), last=st.booleans(), seed=st.integers(0, 99))
def test_parts_that_wait_for_each_other_get_each_its_own_gradient(n: int, last: bool, seed: int) -> None:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Conv2d(3, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3))
    net.eval().requires_grad_(False)
    x, v = torch.rand(n, 2, 6, 6), torch.randn(n, 3)
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    search = Search(net, torch.rand(9, 2, 6, 6), sizes=(4, 8))
    got = slope(in_bf16(Swift(net, search)), x, v)
    alone = torch.cat([slope(search.ask, x[i : i + 1], v[i : i + 1]) for i in range(n)])
    torch.testing.assert_close(got, alone, rtol=0.05, atol=0.01 * float(alone.abs().max()))
    assert float(cosine(got, slope(net, x, v)).min()) > 0.9
    assert got.stride() == x.stride()
    assert search(x).dtype == got.dtype == torch.float32


def test_passes_on_their_way_do_not_mix(images: Images) -> None:
    """Two passes before either comes back, and one that comes back twice: one recording has room for one."""
    search = Search(images.model, images.x, sizes=(16,))
    a, b = images.x[:16].clone().requires_grad_(), images.x[16:28].clone().requires_grad_()
    v = torch.randn(16, 10, generator=torch.Generator().manual_seed(0))
    first, second = search(a), search(b)
    (of_a,) = torch.autograd.grad(first, a, v, retain_graph=True)
    (of_b,) = torch.autograd.grad(second, b, v[:12])
    (again,) = torch.autograd.grad(first, a, v)
    torch.testing.assert_close(of_a, slope(search.ask, images.x[:16], v))
    torch.testing.assert_close(of_b, slope(search.ask, images.x[16:28], v[:12]))
    torch.testing.assert_close(again, of_a)
    assert len(search._slots) == 1


def test_a_pass_is_played_once_each_way(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    search, played = Search(images.model, images.x, sizes=(8, 16)), list[str]()
    swift, v = in_bf16(Swift(images.model, search)), torch.ones(24, 10)
    slope(swift, images.x[:24], v)
    for slot in search._slots.values():
        monkeypatch.setattr(slot, "there", lambda f=slot.there: (played.append("there"), f())[1])
        monkeypatch.setattr(slot, "back", lambda f=slot.back: (played.append("back"), f())[1])
    slope(swift, images.x[:24], v)
    assert played == ["there", "there", "back", "back"]


def test_answers_are_the_models_own_to_the_bit_and_so_is_z_unless_bf16_will_do(images: Images) -> None:
    x, swift = images.x[:19], Swift(images.model, Search(images.model, images.x, sizes=(4, 8)))
    parts = [images.model(x[:8]), images.model(x[8:16]), images.model(torch.cat([x[16:], x[16:17]]))[:3]]
    assert torch.equal(swift(x), torch.cat(parts))
    at = x.clone().requires_grad_()
    assert torch.equal(swift(at), torch.cat(parts))
    torch.testing.assert_close(swift(at).detach(), images.model(x))
    assert not torch.equal(in_bf16(swift)(at), torch.cat(parts))
    v = torch.randn(19, 10)
    torch.testing.assert_close(slope(swift, x, v), slope(in_bf16(swift), x, v))


def test_the_copy_is_folded_fused_held_in_bf16_and_knows_nothing_of_the_model(images: Images) -> None:
    search = Search(images.model, images.x)
    assert not any(isinstance(part, nn.BatchNorm2d) for part in search.twin.modules())
    assert {t.dtype for t in search.twin.state_dict().values()} == {torch.bfloat16}
    assert not any(p.requires_grad for p in search.twin.parameters())
    convolutions = [part for part in search.twin.modules() if isinstance(part, ConvRelu)]
    assert len(convolutions) == 2
    assert all(part.weight.is_contiguous(memory_format=torch.channels_last) for part in convolutions)
    assert {p.dtype for p in images.model.parameters()} == {torch.float32}
    v = torch.ones(160, 10)
    assert float(cosine(slope(search, images.x, v), slope(images.model, images.x, v)).median()) > 0.99


def fails(model: nn.Module) -> nn.Module:
    raise RuntimeError("no such kernel")


@pytest.mark.parametrize("instead", [fails, nn.Identity, lambda model: nn.Sequential(model, nn.Softmax(1))])
def test_where_fusing_goes_wrong_the_copy_does_without(
    images: Images, instead: Callable[[nn.Module], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "fused", instead)
    search, v = Search(images.model, images.x), torch.ones(160, 10)
    assert not search.off
    assert isinstance(search.twin, nn.Sequential)
    assert float(cosine(slope(search, images.x, v), slope(images.model, images.x, v)).median()) > 0.99


def robust(model: nn.Module, images: Images, through: nn.Module | None = None) -> float:
    found = worst_case(
        through or model, images.x, images.y, radius=0.06, steps=10, targets=1, queries=20,
        precision="bf16" if through else "float32",
    )  # fmt: skip
    assert torch.equal(model(found.x).argmax(1) != images.y, found.success)
    return 1 - float(found.success.double().mean())


HEADS = {
    "logits": lambda model: model,
    "softmax": lambda model: Squashed(model, lambda z: (10 * z).softmax(1)),
    "saturated": lambda model: Squashed(model, lambda z: (100 * z).softmax(1)),
    "functional": lambda model: Squashed(model, lambda z: nn.functional.softmax(10 * z, dim=-1)),
    "sigmoid": lambda model: Squashed(model, lambda z: (10 * z - 20).sigmoid()),
}


@pytest.mark.parametrize("head", HEADS)
def test_a_model_is_broken_as_often_through_swift_however_it_ends(images: Images, head: str) -> None:
    model = HEADS[head](images.model).eval()
    plain = robust(model, images)
    assert 0.2 < plain < 0.9  # so that a search which sees no gradient would show
    assert abs(robust(model, images, Swift(model, Search(model, images.x, sizes=(64, 256)))) - plain) <= 2 / 160


def test_without_the_squash_on_top_a_saturated_softmax_would_hold(images: Images) -> None:
    """What the head costs a search that does not know of it: the test above can fail."""
    model = HEADS["saturated"](images.model).eval()
    blind = pgd(in_bf16(lambda x: model(x) + 0), images.x, images.y, radius=0.06, steps=20)
    assert 1 - float(blind.success.double().mean()) > robust(model, images) + 0.1


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_an_attack_finds_the_head_and_reads_the_logits(images: Images, precision: str) -> None:
    model = HEADS["softmax"](images.model).eval()
    swift = Swift(model, Search(model, images.x, sizes=(64,)))
    for look in (False, True):
        found = Slope(swift, Goal(images.y[:70]), precision=precision)  # type: ignore[arg-type]
        if look:
            found.look(images.x[:70])
        seen = found.at(images.x[:70])
        assert found.head == "squashed"
        wanted = Slope(images.model, Goal(images.y[:70])).at(images.x[:70])
        assert float(cosine(seen.gradient, wanted.gradient).median()) > 0.98
        assert torch.equal(found.look(images.x[:70])[1], Slope(model, Goal(images.y[:70])).look(images.x[:70])[1])
    with torch.no_grad(), BeforeSquash() as seen_by:
        out = swift(images.x[:70])
    assert seen_by.input_of(out) is not None


def test_the_smallest_change_is_that_of_the_float32_model(images: Images) -> None:
    """The boundary of bf16 is another one; here only the way there is in bf16."""
    x, y = images.x[:100], images.y[:100]
    swift = Swift(images.model, Search(images.model, images.x, sizes=(128,)))
    ours, plain = (minimal_norm(m, x, y, norm="linf", steps=40) for m in (swift, images.model))
    assert torch.equal(images.model(ours.x).argmax(1) != y, ours.success)
    assert int(ours.success.sum()) == int(plain.success.sum())
    assert abs(float(ours.distance.median() / plain.distance.median()) - 1) < 0.02


def test_inputs_that_only_bf16_calls_wrong_are_attacked(images: Images) -> None:
    """Just before the boundary float32 is right and bf16 guesses: who took its word would leave these alone."""
    y = images.model(images.x).argmax(1)
    found = minimal_norm(images.model, images.x, y, norm="linf", steps=30)
    x = torch.lerp(images.x, found.x, 0.999)
    search = Search(images.model, images.x, sizes=(64, 256))
    doubted = (images.model(x).argmax(1) == y) & (search(x).argmax(1) != y)
    assert int(doubted.sum()) >= 5
    ours = worst_case(Swift(images.model, search), x, y, radius=0.05, steps=5, targets=1, precision="bf16")
    assert bool((ours.by[doubted] > 0).all())
    assert torch.equal(images.model(ours.x).argmax(1) != y, ours.success)


class Noisy(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x + 0.01 * torch.randn_like(x))  # type: ignore[no-any-return]


class Coarse(nn.Module):
    """It reads what eight bits do not hold."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.fine = model, nn.Linear(1, 1)
        nn.init.constant_(self.fine.weight, 1.0)
        nn.init.constant_(self.fine.bias, 1000.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(self.fine(x[..., None])[..., 0] - 1000)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "around",
    [
        Noisy,
        Coarse,
        lambda model: Squashed(model, lambda z: z.exp() / z.exp().sum(1, keepdim=True)),
        lambda model: Squashed(model, lambda z: {"logits": z}),
    ],
    ids=["random", "coarse", "probabilities", "no tensor"],
)
def test_what_does_not_stand_for_its_model_is_refused(images: Images, around: Callable[[nn.Module], nn.Module]) -> None:
    with pytest.raises(NotAlike):
        Search(around(images.model).eval().requires_grad_(False), images.x)


@pytest.mark.parametrize(("error", "left"), [(torch.OutOfMemoryError("none left"), (8,)), (RuntimeError("no"), ())])
def test_a_failure_on_the_way_leaves_the_plain_model(
    images: Images, monkeypatch: pytest.MonkeyPatch, error: Exception, left: tuple[int, ...]
) -> None:
    x, v, whole = images.x[:20], torch.ones(20, 10), Recorded.__init__
    search = Search(images.model, images.x, sizes=(8, 32))
    swift = in_bf16(Swift(images.model, search))

    def fails(self: Recorded, ask: object, x: Tensor, size: int, *rest: object) -> None:
        if size > 8:
            raise error
        whole(self, ask, x, size, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Recorded, "__init__", fails)
    torch.testing.assert_close(slope(swift, x, v), slope(images.model, x, v))
    assert search.sizes == left
    assert search.off is (not left)
    assert float(cosine(slope(swift, x, v), slope(images.model, x, v)).median()) > 0.98
    assert torch.equal(slope(swift, x, v), slope(images.model, x, v)) == search.off
    assert float(pgd(swift, x, images.y[:20], radius=0.2, steps=5, precision="bf16").success.double().mean()) > 0.5


def test_on_a_cpu_a_folded_copy_in_float32_is_searched_and_the_model_answers(images: Images) -> None:
    through = searching(images.model, images.x)
    assert isinstance(through.model, Aside)
    assert (through.model.model, through.precision, through.boundary) == (images.model, "bf16", "bf16")
    net = through.model.twin.net
    assert not any(isinstance(part, nn.BatchNorm2d) for part in net.modules())
    kernels = [p for p in net.parameters() if p.ndim == 4]
    assert all(p.is_contiguous(memory_format=torch.channels_last) and p.dtype == torch.float32 for p in kernels)
    x, v = images.x[:20], torch.ones(20, 10)
    found = slope(in_bf16(through.model), x, v)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, slope(images.model, x, v), rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        [part for part in net.modules() if isinstance(part, nn.Linear)][-1].bias.add_(1)
        for ask in (through.model, in_bf16(through.model)):
            torch.testing.assert_close(ask(x), images.model(x))
    at = x.clone().requires_grad_()
    torch.testing.assert_close(through.model(at), images.model(x))
    torch.testing.assert_close(in_bf16(through.model)(at), images.model(x) + 1, rtol=1e-3, atol=1e-4)
    file.let_go()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_twin_finds_the_smallest_changes_of_the_model(images: Images, norm: Literal["linf", "l2"]) -> None:
    x, y = images.x[:60], images.y[:60]
    twin, own = (
        minimal_norm(by.model, x, y, norm=norm, steps=15, precision=by.boundary)
        for by in (searching(images.model, x), Through(images.model, "float32"))
    )
    assert twin.success.all()
    assert (images.model(twin.x).argmax(1) != y).all()
    assert float((twin.distance - own.distance).abs().median()) < 1e-4


def test_of_the_twin_nothing_is_believed(images: Images) -> None:
    """One that says of every changed image that it is broken breaks none that the model gets right."""
    x, y = images.x[:40], images.y[:40]
    through = searching(images.model, x)
    assert isinstance(through.model, Aside)
    through.model.twin.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).requires_grad_(False)
    found = worst_case(through.model, x, y, radius=0.02, steps=5, queries=0, precision="bf16")
    torch.testing.assert_close(found.success, images.model(found.x).argmax(1) != y)
    file.let_go()


def test_a_model_that_views_its_activations_has_its_twin_in_rows() -> None:
    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.norm = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
            self.last = nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.norm(self.two(self.one(x))).view(len(x), -1))

    x = torch.rand(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    model = Viewed().eval()
    through = searching(model, x)
    assert isinstance(through.model, Aside)
    assert [p.shape for p in through.model.twin.net.parameters() if p.ndim == 4 and not p.is_contiguous()] == []
    torch.testing.assert_close(in_bf16(through.model)(x.requires_grad_()), model(x), rtol=1e-3, atol=1e-5)


def test_a_twin_that_fails_on_the_way_leaves_the_plain_model(images: Images) -> None:
    through = searching(copy.deepcopy(images.model), images.x)
    assert isinstance(through.model, Aside)
    through.model.twin.net = nn.Linear(7, 7)
    x = images.x[:9].clone().requires_grad_()
    torch.testing.assert_close(in_bf16(through.model)(x), images.model(x))
    assert through.model.twin.off
    assert searching(through.model.model, images.x).model is through.model.model


def test_passes_of_the_twin_are_counted_as_the_models(images: Images) -> None:
    through = searching(images.model, images.x)
    with counted(images.model) as tally:
        slope(in_bf16(through.model), images.x[:20], torch.ones(20, 10))
        through.model(images.x[:7])
    assert (tally.slopes, tally.answers) == (20, 7)


@pytest.mark.parametrize("kind", ["random", "few", "draws", "training", "shallow", "table"])
def test_what_a_twin_cannot_stand_for_is_searched_itself(images: Images, kind: str) -> None:
    model: nn.Module = copy.deepcopy(images.model)
    x, draws = images.x[:20], 1
    match kind:
        case "random":
            model = Noisy(model).eval()
        case "few":
            x = x[:3]
        case "draws":
            draws = 4
        case "training":
            model.train()
        case "shallow":
            model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
        case "table":
            model, x = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).eval(), x.flatten(1)
    assert searching(model, x, draws=draws) == (model, "float32")


def test_on_a_gpu_what_is_deep_and_still_is_searched_swiftly(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "_on_gpu", lambda x: True)
    made = []
    monkeypatch.setattr(file, "Search", lambda model, x: (made.append(model), Search(model, x))[1])
    x = images.x[:32]
    layers = nn.Sequential(*copy.deepcopy(images.model)).eval()
    through = searching(layers, x)
    assert isinstance(through.model, Swift)
    assert (through.precision, through.model.model) == ("bf16", layers)
    again = searching(layers, x)
    assert isinstance(again.model, Swift)
    assert again.model.search is through.model.search
    before = layers[-1].bias.clone()
    layers[-1].bias.data += 1
    assert searching(layers, x).model.search is not through.model.search  # type: ignore[union-attr]
    layers[-1].bias.data.copy_(before)
    plain = [
        searching(layers, x, draws=8),
        searching(layers, x[:1]),
        searching(Noisy(layers).eval(), x),
        searching(nn.Sequential(*layers).train(), x),
        searching(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), x),
        searching(lambda x: layers(x), x),
    ]
    layers.eval()
    assert [p for p in plain if isinstance(p.model, Swift) or p.precision != "float32"] == []
    handle = layers[0].register_forward_hook(lambda module, x, out: None)
    assert searching(layers, x).model is layers
    handle.remove()
    assert made.count(layers) == 2
    file.let_go()
    assert len(file._KEPT) == 0


def swapped(model: nn.Module) -> None:
    """Two classes change their places: all sums of all weights stay."""
    last = [part for part in model.modules() if isinstance(part, nn.Linear)][-1]
    with torch.no_grad():
        for p in (last.weight, last.bias):
            p[[0, 1]] = p[[1, 0]]


def hotter(model: nn.Module) -> None:
    model.temperature = 7.0


@pytest.mark.parametrize("change", [swapped, hotter])
def test_a_model_that_was_changed_has_another_copy(images: Images, change: Callable[[nn.Module], None]) -> None:
    class Warm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.temperature = copy.deepcopy(images.model), 1.0

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x) / self.temperature

    model, x = Warm().eval(), images.x[:20]
    before = searching(model, x).model
    assert isinstance(before, Aside)
    again = searching(model, x).model
    assert isinstance(again, Aside)
    assert again.twin is before.twin
    change(model)
    after = searching(model, x).model
    assert isinstance(after, Aside)
    torch.testing.assert_close(in_bf16(after)(x.clone().requires_grad_()), model(x), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(model(x), before.twin.net(x), rtol=1e-3, atol=1e-3)


def test_a_model_that_counts_its_calls_is_searched_itself_and_copied_once(
    images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.calls = copy.deepcopy(images.model), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.net(x)

    made: list[nn.Module] = []

    class Noted(Twin):
        def __init__(self, model: nn.Module, x: Tensor) -> None:
            made.append(model)
            super().__init__(model, x)

    monkeypatch.setattr(file, "Twin", Noted)
    model, x = Counts().eval(), images.x[:20]
    for _ in range(3):
        assert searching(model, x) == (model, "float32")
        model(x)
    assert made == [model]


def test_a_copy_goes_with_its_model(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "_on_gpu", lambda x: True)
    file.let_go()
    model = copy.deepcopy(images.model)
    slope(searching(model, images.x).model, images.x[:20], torch.ones(20, 10))
    assert len(file._KEPT) == 1
    del model
    gc.collect()
    assert len(file._KEPT) == 0


def test_passes_of_the_copy_are_counted_as_the_models(images: Images) -> None:
    swift = Swift(nn.Sequential(images.model), Search(images.model, images.x, sizes=(8,)))
    with counted(images.model) as tally:
        slope(in_bf16(swift), images.x[:12], torch.ones(12, 10))
    assert (tally.answers, tally.slopes) == (0, 12)
    with counted(images.model) as tally:
        swift(images.x[:11])  # padded to 16
    assert (tally.answers, tally.slopes) == (11, 0)


@given(st.integers(0, 20_000), st.sets(st.integers(1, 5000), min_size=1, max_size=4))
@settings(deadline=None, max_examples=50)
def test_cuts_take_every_input_once(n: int, sizes: set[int]) -> None:
    least = tuple(sorted(max(64, size) for size in sizes))
    found = list(cuts(n, least))
    assert [start for start, _, _ in found] == [sum(k for _, k, _ in found[:i]) for i in range(len(found))]
    assert sum(k for _, k, _ in found) == n
    assert all(0 < k <= size and size in least for _, k, size in found)
