"""How fast are the attacks, and how strong?

    python benchmarks/attacks.py steps                 cost of a step over its limit, on this machine's CPU
    python benchmarks/attacks.py ensemble              the ensemble beside AutoAttack: robust accuracy, passes, seconds
    python benchmarks/attacks.py gpu                   image-steps per second on a GPU, and time to the answer
    python benchmarks/attacks.py strength              adversarially trained nets on CIFAR-10, beside AutoAttack
    python benchmarks/attacks.py robust FILE           the same of the network that tools/train_robust.py wrote

The limit of a step is one forward and one backward pass with respect to the input. Peers are run if they are
importable (torchattacks, foolbox, autoattack) and left out otherwise. Run it on a quiet machine; everything that is
compared is measured in the same run, as the median of five, in `steps` of fifteen pairs. `gpu` and `robust` end with 1
where an aim is missed.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from clock import at_least
from named import named
from torch import Tensor, nn

from assay.methods.attack.apgd import apgd
from assay.methods.attack.carlini_wagner import carlini_wagner
from assay.methods.attack.ensemble import worst_case
from assay.methods.attack.minimal_norm import minimal_norm
from assay.methods.attack.pgd import pgd
from assay.methods.attack.swift import SIZES, Search, Swift, Through, searching
from assay.nn.softrmax import SoftRmax
from assay.nn.tally import counted

RUNS, PAIRS = 5, 15
STEPS = 20
FAST, SOONER, NEAR = 170_000, 7.0, 0.85
"""On an H200: image-steps a second of a ResNet-18 without early exit; how many times sooner the answer is there than
from the best plain float32 loop, where 70 % break; of a small network, the share of its ceiling."""
TIME, PASSES, GAP = 0.2, 0.12, 0.001  # of AutoAttack's, at most, and how much more may hold


def have(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def median_seconds(work: Callable[[], Any], device: str = "cpu", runs: int = RUNS) -> float:
    taken = []
    for _ in range(runs):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


class Softmaxed(nn.Module):
    """A softmax inside the model, where people put one by mistake: the same decisions."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = (10 * self.model(x)).softmax(1)
        return out


def bundled() -> tuple[nn.Module, Tensor, Tensor]:
    from assay.data.fashion import fashion_weights, load_fashion
    from assay.nn.small_cnn import SmallCNN

    model = SmallCNN()
    model.load_state_dict(fashion_weights())
    x, y = load_fashion()["test"].take(np.arange(2000))
    return model.eval().requires_grad_(False), x, y


def steps() -> None:
    """Per-step cost at equal steps without early exit, over the limit: of the model itself, and as audits search."""
    model, x, y = bundled()
    x, y = x[:64], y[:64]
    k, through = 20, searching(model, x)

    def limit() -> None:
        for _ in range(k):
            at = x.detach().requires_grad_()
            torch.autograd.grad(nn.functional.cross_entropy(model(at), y, reduction="sum"), at)

    def carlini() -> None:
        carlini_wagner(model, x, y, c=1.0, steps=k)

    def climbing(by: Through, how: str = "") -> dict[str, Callable[[], Any]]:
        ask, climb = by.model, dict[str, Any](steps=k, leave=False, precision=by.precision)
        near = dict[str, Any](steps=k, precision=by.boundary)
        return {
            f"assay pgd linf{how}": lambda: pgd(ask, x, y, radius=8 / 255, **climb),
            f"assay pgd l2{how}": lambda: pgd(ask, x, y, norm="l2", radius=0.5, **climb),
            f"assay apgd ce{how}": lambda: apgd(ask, x, y, radius=8 / 255, **climb),
            f"assay apgd dlr{how}": lambda: apgd(ask, x, y, radius=8 / 255, loss="dlr", **climb),
            f"assay minimal-norm linf{how}": lambda: minimal_norm(ask, x, y, norm="linf", **near),
            f"assay minimal-norm l2{how}": lambda: minimal_norm(ask, x, y, norm="l2", **near),
        }

    rows = {
        **climbing(through, ", as audits do"), **climbing(Through(model, "float32")), "assay carlini-wagner": carlini
    }  # fmt: skip
    if have("torchattacks"):
        import torchattacks

        theirs = torchattacks.PGD(model, eps=8 / 255, alpha=2 / 255, steps=k)
        rows["torchattacks pgd"] = lambda: theirs(x, y)
    if have("foolbox"):
        import foolbox

        wrapped = foolbox.PyTorchModel(model, bounds=(0, 1))
        attack = foolbox.attacks.LinfPGD(steps=k)
        rows["foolbox pgd"] = lambda: attack(wrapped, x, y, epsilons=[8 / 255])
    limit()
    base = median_seconds(limit)
    print(f"{k} steps on 64 bundled images, {torch.get_num_threads()} threads; limit {base:.3f} s")
    for name, work in rows.items():
        work()
        # The limit in turn with each, so that a change of the machine's mood falls on both.
        taken = [(median_seconds(work, runs=1), median_seconds(limit, runs=1)) for _ in range(PAIRS)]
        ours, again = map(statistics.median, zip(*taken, strict=True))
        print(f"{name:42s} {ours / again:5.2f} times the limit")


def beside_autoattack(model: nn.Module, x: Tensor, y: Tensor, radius: float, device: str, batch: int) -> bool:
    """Both on the same inputs, ours as audits run it; whether time, passes and what holds are within the aims."""
    model, x, y = model.to(device).eval(), x.to(device), y.to(device)

    def held(at: Tensor) -> float:
        with torch.no_grad():
            return float(torch.cat([model(part).argmax(1) for part in at.split(batch)]).eq(y).double().mean())

    def watched(attack: Callable[[], Tensor]) -> tuple[float, float, float]:
        with counted(model) as tally:
            start = time.perf_counter()
            at = attack()
            if device == "cuda":
                torch.cuda.synchronize()
            taken = time.perf_counter() - start
        return held(at), (tally.slopes + tally.answers / 2) / len(x), taken

    def ours() -> Tensor:
        asked, precision = searching(model, x)
        rng = torch.Generator(device).manual_seed(0)
        return worst_case(asked, x, y, radius=radius, batch=batch, precision=precision, rng=rng).x

    def theirs() -> Tensor:
        from autoattack import AutoAttack

        attack = AutoAttack(model, norm="Linf", eps=radius, version="standard", device=device, verbose=False)
        broken: Tensor = attack.run_standard_evaluation(x, y, bs=batch)
        return broken

    print(f"radius {radius * 255:.0f}/255, {len(x)} images, clean {held(x):.4f}")
    left, passes, taken = watched(ours)
    print(f"  assay ensemble  robust {left:.4f}  {passes:7.1f} passes per image  {taken:7.1f} s", flush=True)
    if not have("autoattack"):
        return True
    over, there, spent = watched(theirs)
    print(f"  autoattack      robust {over:.4f}  {there:7.1f} passes per image  {spent:7.1f} s")
    print(f"  gap {100 * (left - over):+.2f} points; {passes / there:.3f} of the passes, {taken / spent:.3f} of "
          f"the time", flush=True)  # fmt: skip
    return taken <= TIME * spent and passes <= PASSES * there and left - over <= GAP + 1e-9


def ensemble() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, x, y = bundled()
    for radius in (8 / 255, 2 / 255):
        beside_autoattack(model.to(device), x[:256], y[:256], radius, device, 64 if device == "cpu" else 256)


def cifar(part: str, n: int | None = None) -> tuple[Tensor, Tensor]:
    from assay.data.beyond import cifar10

    data = cifar10()[part]
    return data.take(np.arange(len(data) if n is None else n))


def trained(model: nn.Module, x: Tensor, y: Tensor, *, epochs: int, radius: float, lr: float = 0.1) -> nn.Module:
    """Standard (radius 0) or adversarial training, on the GPU in bf16, with flips and shifts."""
    x, y = x.cuda(), y.cuda()
    model = model.cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    batch = 512
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, lr, epochs * (len(x) // batch))
    rng = torch.Generator("cuda").manual_seed(0)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), device="cuda", generator=rng)[: len(x) // batch * batch].split(batch):
            a, b = x[rows], y[rows]
            a = torch.where(torch.rand(batch, 1, 1, 1, device="cuda", generator=rng) < 0.5, a.flip(-1), a)
            shift = torch.randint(-3, 4, (2,), generator=torch.Generator().manual_seed(int(rows[0])))
            a = torch.roll(a, (int(shift[0]), int(shift[1])), (2, 3))
            if radius:
                model.eval().requires_grad_(False)
                a = pgd(model, a, b, radius=radius, steps=7, step=radius / 3, leave=False, precision="bf16", rng=rng).x
                model.train().requires_grad_(True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(a), b)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
    return model.eval().requires_grad_(False)


def strength() -> None:
    from assay.nn.resnet import ResNet18

    x, y = cifar("train")
    test_x, test_y = cifar("test", 1000)
    torch.manual_seed(0)
    start = time.perf_counter()
    plain = trained(ResNet18(width=32), x, y, epochs=12, radius=8 / 255)
    torch.manual_seed(0)
    softened = trained(nn.Sequential(ResNet18(width=32), SoftRmax()), x, y, epochs=12, radius=8 / 255)
    print(f"two networks, adversarially trained in {time.perf_counter() - start:.0f} s")
    heads = {"logits": plain, "softmax of 10 times the logits": Softmaxed(plain), "softRmax": softened}
    for name, model in heads.items():
        print(name)
        beside_autoattack(model, test_x, test_y, 8 / 255, "cuda", 1000)


def robust() -> None:
    """The network of tools/train_robust.py, asked about 1,000 test images."""
    from safetensors.torch import load_file

    from assay.nn.resnet import ResNet18

    if len(sys.argv) != 3:
        sys.exit("Give the weights that tools/train_robust.py wrote: robust FILE.safetensors.")
    model = ResNet18()
    model.load_state_dict(load_file(sys.argv[2]))
    model = model.to(memory_format=torch.channels_last).eval().requires_grad_(False)  # type: ignore[call-overload]
    if not beside_autoattack(model, *cifar("test", 1000), 8 / 255, "cuda", 1000):
        sys.exit(1)


def gpu() -> None:
    """PGD-20 on a CIFAR ResNet-18 and on a small CNN: image-steps per second, ours beside plain loops."""
    from assay.nn.resnet import ResNet18

    x, y = cifar("train")
    test_x, test_y = cifar("test", 9216)
    torch.manual_seed(0)
    model = trained(ResNet18(), x, y, epochs=3, radius=0.0)
    test_x, test_y = test_x.cuda(), test_y.cuda()
    small = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(4096, 10)
    )
    small = trained(small, x, y, epochs=2, radius=0.0, lr=0.02)
    large, tiny = (_speed(*each, test_x, test_y) for each in (("ResNet-18", model), ("3-layer CNN", small)))
    met = [
        at_least("ResNet-18, image-steps/s without early exit", large.rate, FAST),
        at_least("ResNet-18, times sooner than the best plain float32 loop", large.sooner, SOONER),
        at_least("3-layer CNN, share of the ceiling", tiny.rate / tiny.ceiling, NEAR),
    ]
    if not all(met):
        sys.exit(1)


class Speed(NamedTuple):
    """Image-steps per second of the search without early exit at 8/255, of its pass alone, and what exit gains."""

    rate: float
    ceiling: float
    sooner: float


def _speed(name: str, model: nn.Module, x: Tensor, y: Tensor) -> Speed:
    batch = 1024
    x = x.contiguous(memory_format=torch.channels_last)  # as the recorded pass has it, so that nothing is reordered
    rng = torch.Generator("cuda").manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    swift = Swift(model, Search(model, x, sizes=(*SIZES[:-1], len(x))))

    def loop(cast: bool, parameters: bool, a: Tensor, b: Tensor, r: float) -> Tensor:
        """The plain PGD loop of today's libraries."""
        model.requires_grad_(parameters)
        low, high = (a - r).clamp(0, 1), (a + r).clamp(0, 1)
        at = torch.clamp(a + torch.empty_like(a).uniform_(-r, r), 0, 1)
        for _ in range(STEPS):
            at = at.detach().requires_grad_()
            with torch.autocast("cuda", torch.bfloat16, enabled=cast):
                loss = nn.functional.cross_entropy(model(at), b)
            wanted = [at, *model.parameters()] if parameters else [at]
            gradient = torch.autograd.grad(loss, wanted)[0]
            at = torch.clamp(at.detach() + r / 4 * gradient.sign(), low, high)
        model.requires_grad_(False)
        return at.detach()

    def held(broken: Tensor) -> float:
        with torch.no_grad():
            return float(torch.cat([model(p).argmax(1) for p in broken.split(batch)]).eq(y).float().mean())

    def batched(attack: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], Tensor]:
        return lambda: torch.cat([attack(a, b) for a, b in zip(x.split(batch), y.split(batch), strict=True)])

    def ours(r: float, leave: bool) -> Tensor:
        return pgd(swift, x, y, radius=r, steps=STEPS, step=r / 4, leave=leave, precision="bf16", rng=rng).x

    def climbed(r: float) -> Tensor:
        return apgd(swift, x, y, radius=r, steps=STEPS, precision="bf16", rng=rng).x

    def alone() -> None:
        for _ in range(STEPS):
            a = x.detach().requires_grad_()
            with torch.autocast("cuda", torch.bfloat16):
                z = swift(a)
            torch.autograd.grad(nn.functional.cross_entropy(z, y, reduction="sum"), a)

    start = time.perf_counter()
    alone()
    torch.cuda.synchronize()
    ready = time.perf_counter() - start
    ceiling = len(x) * STEPS / median_seconds(alone, "cuda")
    print(
        f"{name}, {len(x)} images, recorded in {ready:.1f} s; forward and backward alone: {ceiling:,.0f} image-steps/s"
        f"{', but it failed and is plain' if swift.search.off else ''}",
        flush=True,
    )
    radius, below, above = 1 / 255, 0.0, 16 / 255
    for _ in range(7):  # the radius at which 70 % of the inputs are broken
        below, above = (below, radius) if held(ours(radius, True)) < 0.3 else (radius, above)
        radius = (below + above) / 2
    taken: dict[str, float] = {}
    rate = 0.0
    for r in (8 / 255, radius):
        print(f" radius {255 * r:.2f}/255, PGD-{STEPS}")
        ways: dict[str, Callable[[], Tensor]] = {
            "plain, TF32, parameter gradients": batched(lambda a, b, r=r: loop(False, True, a, b, r)),
            "plain, TF32, input gradients": batched(lambda a, b, r=r: loop(False, False, a, b, r)),
            "plain, bf16, input gradients": batched(lambda a, b, r=r: loop(True, False, a, b, r)),
        }
        ways["assay"] = partial(ours, r, False)
        ways["assay, early exit"] = partial(ours, r, True)
        ways["assay, early exit, apgd"] = partial(climbed, r)
        for way, attack in ways.items():
            accuracy = held(attack())
            taken[way] = median_seconds(attack, "cuda", 3)
            pace = len(x) * STEPS / taken[way]
            print(f"  {way:36s} {pace:11,.0f} image-steps/s  {taken[way]:6.3f} s  robust {accuracy:.4f}", flush=True)
        rate = rate or len(x) * STEPS / taken["assay"]
    plain = min(seconds for way, seconds in taken.items() if "TF32" in way)
    return Speed(rate, ceiling, plain / min(seconds for way, seconds in taken.items() if "early exit" in way))


if __name__ == "__main__":
    parts = {"steps": steps, "ensemble": ensemble, "gpu": gpu, "strength": strength, "robust": robust}
    part = named(__doc__, parts, alone=sys.argv[1:2] != ["robust"])
    sys.path.insert(0, str(Path.cwd()))
    part()
