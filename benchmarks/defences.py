"""What does a training against an attacker cost, and is the swift form of it as good?

    python benchmarks/defences.py step      a step of PGD-7 training beside its eight forward and backward passes
    python benchmarks/defences.py swift     on a GPU: compiled bf16 training beside float32, robust accuracy and time

A step is all that `fit` does for a batch: taking it (the data lie on the device), the attack, the pass, the optimiser.
The passes are those alone, compiled in the same way: seven by the inputs of a frozen network in eval mode, one by the
weights in training mode. Their kernels are started one by one, where a step plays recorded ones: in batches too small
to keep the GPU busy meanwhile, a step costs less than its passes. What is compared is measured in the same run, in
turns.
"""

from __future__ import annotations

import statistics
import sys

import torch
import torch.nn.functional as F
from clock import now
from named import named
from torch import Tensor, nn

from assay.data.whole import Whole, whole
from assay.methods.train.adversary import Adversary
from assay.methods.train.fit import fit, laid_out, swiftly
from assay.methods.train.pgd_training import PgdTraining
from assay.methods.train.robust import RobustRecipe, accuracy, robustly_trained
from assay.nn.resnet import ResNet18
from assay.nn.small_cnn import SmallCNN

STEPS, ROUNDS = 7, 3


def passes(ask: object, model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    assert callable(ask)
    for x, y in batches:
        model.eval().requires_grad_(False)
        for _ in range(STEPS):
            at = x.detach().requires_grad_()
            torch.autograd.grad(F.cross_entropy(ask(at), y, reduction="sum"), at)
        model.train().requires_grad_(True)
        torch.autograd.backward(F.cross_entropy(ask(x), y))
        model.zero_grad()


def step() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    swift = device == "cuda"
    nets: list[tuple[str, nn.Module, tuple[int, int, int], int]] = [("SmallCNN", SmallCNN(), (1, 28, 28), 128)]
    if swift:
        nets = [("ResNet-18", ResNet18(), (3, 32, 32), batch) for batch in (1000, 250)]
    for name, model, shape, batch in nets:
        few = 25_000 // batch if swift else 4  # batches
        draw = torch.Generator().manual_seed(0)
        x, y = torch.rand(few * batch, *shape, generator=draw).to(device), torch.arange(few * batch) % 10
        y = y.to(device)
        data = Whole(x, y)
        model = model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        ask = swiftly(model) if swift else model
        training = PgdTraining(Adversary(model, 8 / 255, steps=STEPS, swift=swift))
        laid = laid_out(x) if swift else x  # so that no pass need reorder its inputs
        batches = list(zip(torch.split(laid, batch), torch.split(y, batch), strict=True))
        taken: dict[str, list[float]] = {"step": [], "passes": []}
        for turn in range(ROUNDS + 1):
            start = now(device)
            rng = torch.Generator(device).manual_seed(turn)
            fit(
                model, data, epochs=1, lr=1e-3, batch=batch, rng=rng, augment=training.augment, device=device,
                swift=swift,
            )  # fmt: skip
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            between = now(device)
            passes(ask, model, batches)
            if turn:  # the first is to warm up
                taken["step"].append((between - start) / few)
                taken["passes"].append((now(device) - between) / few)
        mid = {what: statistics.median(seconds) for what, seconds in taken.items()}
        print(
            f"{name} on {device}, batches of {batch}, PGD-{STEPS}{', bf16 and compiled' if swift else ''}: a step "
            f"{1000 * mid['step']:.1f} ms, its {STEPS + 1} passes {1000 * mid['passes']:.1f} ms, "
            f"{mid['step'] / mid['passes']:.3f} times",
            flush=True,
        )


def swift() -> None:
    if not torch.cuda.is_available():
        sys.exit("swift compares trainings on a GPU, and there is none here.")
    from assay.data.fashion import load_fashion
    from assay.methods.attack.ensemble import worst_case

    data = whole(load_fashion(), "cuda")
    recipe = RobustRecipe(epochs=8, lr=0.1, batch=250, steps=STEPS, shift=1, average=0.99)
    told: dict[bool, list[tuple[float, float, float]]] = {True: [], False: []}
    for seed in range(3):
        for fast in (True, False):
            torch.manual_seed(seed)
            start = now("cuda")
            model = robustly_trained(SmallCNN(), data["train"], recipe, seed=seed, swift=fast)
            seconds = now("cuda") - start
            test = data["test"]
            held = 1 - worst_case(model, test.x, test.y, radius=recipe.radius, steps=20).success.float().mean()
            told[fast].append((accuracy(model, test), float(held), seconds))
            print(f"seed {seed}, {'swift' if fast else 'float32'}: {told[fast][-1]}", flush=True)
    for fast, rows in told.items():
        clean, held, seconds = (statistics.mean(column) for column in zip(*rows, strict=True))
        print(f"{'swift' if fast else 'float32'}: clean {clean:.4f}, at 8/255 {held:.4f}, {seconds:.1f} s a training")


if __name__ == "__main__":
    part = named(__doc__, {"step": step, "swift": swift})
    torch.set_num_threads(2)
    part()
