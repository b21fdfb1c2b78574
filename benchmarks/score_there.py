"""How well is accuracy foretold without labels?

    ASSAY_DATA=... python benchmarks/score_there.py fashion                  the bundled network, minutes on two cores
    ASSAY_DATA=... python benchmarks/score_there.py cifar --inputs 2000      trains a ResNet-18 first; made for a GPU
    ASSAY_DATA=... python benchmarks/score_there.py cifar --weights net.safetensors [--width 32]

Domains are test images after a corruption, 16 kinds at 5 severities, none of them home's images. Each family of
corruptions (noise, blur, weather, digital, geometry) is judged by what was fitted to the other four on home's images.
Beside the mean absolute error of each estimate and of the chosen one stand how often intervals hold the truth, once
with the classes as at home and once with them in other shares, and how often the alarm of label conflict fires, by
answers, by inputs and by either: with two pairs of classes swapped, with one pair, and with one class named as another,
where it should, and as it is and without one of the classes, where it should not.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.data.beyond import cifar10, fashion_mnist
from assay.data.corruptions import CORRUPTIONS, corrupt
from assay.data.fashion import fashion_weights, load_fashion
from assay.methods.shift.accuracy_estimates import (
    ATC,
    ATC_ENTROPY,
    DIFFERENCE,
    RULES,
    Answers,
    Estimate,
    Estimator,
    Home,
    other_shares,
    weighted_accuracy,
)
from assay.methods.shift.relabelled import least_sure, surely
from assay.nn.resnet import ResNet18
from assay.nn.small_cnn import SmallCNN
from assay.probes.steady.what_will_it_score_there import (
    PAIRED,
    SEVERITIES,
    WEIGHTED,
    conflict_between,
    relabelled_there,
)

CHOSEN = "chosen"
BATCH = 500
NAMES: dict[str, Sequence[int]] = {
    "as it is": range(10),
    "two pairs of classes swapped": [0, 1, 4, 3, 2, 5, 6, 9, 8, 7],
    "one pair swapped": [0, 9, 2, 3, 4, 5, 6, 7, 8, 1],
    "one class named as another": [0, 9, 2, 3, 4, 5, 6, 7, 8, 9],
}
MISSING = "without one class"
Seen = tuple[NDArray[np.float64], NDArray[np.bool_]]  # n k, n


class Bench(NamedTuple):
    model: nn.Module
    home: tuple[Tensor, Tensor]  # n c h w, n
    there: tuple[Tensor, Tensor]


def fashion(given: argparse.Namespace, device: str) -> Bench:
    """Home is the bundled sample of the test images, and domains are made of the others."""
    model = SmallCNN()
    model.load_state_dict(fashion_weights())
    test, whole = load_fashion()["test"], fashion_mnist()["test"]
    rng = np.random.default_rng(given.seed)
    ours = {image.tobytes() for image in np.asarray(test.x)}
    others = np.array([i for i, image in enumerate(np.asarray(whole.x)) if image.tobytes() not in ours])
    return Bench(
        model.to(device).eval(),
        test.take(np.sort(rng.permutation(len(test))[: given.inputs])),
        whole.take(np.sort(rng.permutation(others)[: given.inputs])),
    )


def cifar(given: argparse.Namespace, device: str) -> Bench:
    data = cifar10()
    model = ResNet18(width=given.width)
    if given.weights is not None:
        from safetensors.torch import load_file

        model.load_state_dict(load_file(given.weights))
        model = model.to(device)
    else:
        torch.manual_seed(given.seed)
        model = ResNet18(width=given.width).to(device)
        train(model, *data["train"].take(np.arange(given.train)), given.epochs, device)
    if given.save is not None:
        from safetensors.torch import save_file

        save_file({name: part.contiguous().cpu() for name, part in model.state_dict().items()}, given.save)
    order = np.random.default_rng(given.seed).permutation(len(data["test"]))
    home, there = np.sort(order[: given.inputs]), np.sort(order[given.inputs : 2 * given.inputs])
    return Bench(model.eval(), data["test"].take(home), data["test"].take(there))


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int, device: str) -> None:
    """SGD with a one-cycle rate, flips and shifts; in bf16 on a GPU."""
    x, y, batch = x.to(device), y.to(device), 250
    rate = 0.2
    optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=epochs * (len(x) // batch))
    rng = torch.Generator(device).manual_seed(0)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x), device=device, generator=rng)[: len(x) // batch * batch].split(batch):
            a = x[rows]
            a = torch.where(torch.rand(batch, 1, 1, 1, device=device, generator=rng) < 0.5, a.flip(-1), a)
            down, right = torch.randint(-3, 4, (2,), generator=torch.Generator().manual_seed(int(rows[0]))).tolist()
            a = torch.roll(a, (down, right), (2, 3))
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                loss = nn.functional.cross_entropy(model(a), y[rows])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
    model.eval()


def spoilt(x: Tensor, kind: str, severity: int, seed: int, device: str) -> list[Tensor]:
    """A batch at a time on the device; 0 is as it is."""
    rng = torch.Generator(device).manual_seed(seed)
    parts = [part.to(device) for part in x.split(BATCH)]
    return [corrupt(part, kind, severity, rng=rng) if severity else part for part in parts]


@torch.no_grad()
def answered(model: nn.Module, parts: list[Tensor], y: Tensor) -> Seen:
    logits = torch.cat([model(part).double().cpu() for part in parts])
    return logits.softmax(1).numpy(), (logits.argmax(1) == y).numpy()


def as_answers(chance: NDArray[np.float64]) -> Answers:
    return Answers.of(chance.max(1).clip(0, 1), chance.clip(0, 1))


def table(title: str, found: list[tuple[dict[str, Estimate], float]]) -> dict[str, float]:
    """Print mean absolute errors, coverage and width of every estimate; return the first."""
    print(f"{title}, {len(found)} domains")
    errors = {}
    for name in (*RULES, WEIGHTED, CHOSEN):
        rows = [(each[name], truth) for each, truth in found if name in each]
        errors[name] = float(np.mean([abs(e.value - truth) for e, truth in rows]))
        held = float(np.mean([e.low <= truth <= e.high for e, truth in rows]))
        wide = float(np.mean([e.high - e.low for e, _ in rows]))
        print(
            f"  {name:28s} error {100 * errors[name]:5.2f}, at most "
            f"{100 * max(abs(e.value - truth) for e, truth in rows):5.1f} points; intervals hold the truth on "
            f"{100 * held:3.0f} %, {100 * wide:4.1f} wide"
        )
        if name == CHOSEN:
            errors["held"] = held
    return errors


def limit(what: str, kept: bool) -> None:
    print(f"{what}: {'kept' if kept else 'MISSED'}")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=("fashion", "cifar"))
    parser.add_argument("--inputs", type=int, default=500, help="at home, and in each domain: 500")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weights", type=Path, help="of cifar: a ResNet-18's, .safetensors; else it is trained")
    parser.add_argument("--save", type=Path, help="of cifar: where the weights go")
    parser.add_argument("--width", type=int, default=32, help="of cifar: of the ResNet-18, 32")
    parser.add_argument("--epochs", type=int, default=12, help="of cifar: 12")
    parser.add_argument("--train", type=int, default=50_000, help="of cifar: how many images it is trained on, all")
    parser.add_argument(
        "--every", type=int, default=1, help="of the 5 severities of domains: each, or every 2nd or 4th"
    )
    given = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = time.perf_counter()
    makers: dict[str, Callable[[argparse.Namespace, str], Bench]] = {"fashion": fashion, "cifar": cifar}
    judge(makers[given.which](given, device), given, device, start)


def judge(bench: Bench, given: argparse.Namespace, device: str, start: float) -> None:
    (x, y), (x_there, y_there) = bench.home, bench.there
    rng = np.random.default_rng(given.seed)
    chance, right = answered(bench.model, spoilt(x, "", 0, 0, device), y)
    home, shifts = Home(as_answers(chance), right), []
    least = least_sure(chance)
    changed: dict[str, list[tuple[NDArray[np.int64], NDArray[np.int64]]]] = {}
    print(f"{given.which}: {100 * home.accuracy:.1f} % right at home, {time.perf_counter() - start:.0f} s", flush=True)
    for kind in CORRUPTIONS:
        for severity in SEVERITIES:
            chance, right = answered(bench.model, spoilt(x, kind, severity, severity, device), y)
            said = as_answers(chance)
            changed.setdefault(CORRUPTIONS[kind].family, []).append((surely(chance, least), y.numpy()))
            shifts.append(home.shift(kind, said, right))
            shifts.append(home.shift(kind, said, right, other_shares(y.numpy(), rng)))
    plain: list[tuple[dict[str, Any], float]] = []
    shares: list[tuple[dict[str, Any], float]] = []
    alarms: dict[str, list[tuple[bool, bool]]] = {name: [] for name in (*NAMES, MISSING)}
    few = torch.Generator()
    for family in sorted({each.family for each in CORRUPTIONS.values()}):
        fitted = Estimator(home, [shift for shift in shifts if CORRUPTIONS[shift.change].family != family])
        assert fitted.chosen is not None
        everyday = [each for other, found in changed.items() if other != family for each in found]
        for kind in (name for name, each in CORRUPTIONS.items() if each.family == family):
            for severity in range(1, 6, given.every):
                parts = spoilt(x_there, kind, severity, 100 + severity, device)
                chance, right = answered(bench.model, parts, y_there)
                weight = other_shares(y_there.numpy(), rng)
                drawn = rng.choice(len(weight), len(weight), p=weight / weight.sum())
                for into, rows in ((plain, np.arange(len(right))), (shares, drawn)):
                    said = as_answers(chance[rows])
                    made: dict[str, Any] = dict(fitted.estimate(said))
                    made[CHOSEN] = made[fitted.chosen]
                    weights = home.weights(said)
                    assert weights is not None
                    made[WEIGHTED] = weighted_accuracy(home.right, weights)
                    into.append((made, float(right[rows].mean())))
                if severity in (1, 3):
                    near, sure = torch.cat(parts).cpu(), surely(chance, least)
                    for name, fired in alarms.items():
                        kept = y_there != (len(plain) % 10 if name == MISSING else -1)  # each class is missing in turn
                        labels = torch.tensor(NAMES.get(name, range(10)))[y_there[kept]]
                        by_answers = relabelled_there(sure[kept.numpy()], labels.numpy(), 10, everyday)
                        by_inputs = conflict_between(
                            x[:PAIRED].double(),
                            y[:PAIRED],
                            near[kept][:PAIRED].double(),
                            labels[:PAIRED],
                            classes=10,
                            rng=few.manual_seed(0),
                        )
                        fired.append((by_answers is not None, by_inputs is not None))
        print(f"  {family}: by {fitted.chosen}, {time.perf_counter() - start:.0f} s", flush=True)
    errors = table("Classes as at home", plain)
    other = table("Classes in other shares", shares)
    best = min(errors[name] for name in (DIFFERENCE, ATC, ATC_ENTROPY))
    limit(
        f"the chosen errs by {100 * errors[CHOSEN]:.2f} points, the best of ATC and differences by {100 * best:.2f}",
        errors[CHOSEN] <= best,
    )
    limit(f"its intervals hold the truth on {100 * errors['held']:.0f} % of domains, limit 90", errors["held"] >= 0.9)
    print(f"with classes in other shares on {100 * other['held']:.0f} %")
    for name, fired in alarms.items():
        answers, inputs = (sum(each) for each in zip(*fired, strict=True))
        print(
            f"alarm of label conflict, {name}: {sum(map(any, fired))} of {len(fired)}, by answers {answers}, "
            f"by inputs {inputs}"
        )


if __name__ == "__main__":
    main()
