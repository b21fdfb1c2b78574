"""What do smaller networks cost to make, and what do they gain?

    python benchmarks/deployment.py surgery     edges and cut of a ResNet-50 at full width, half of its channels dropped
    python benchmarks/deployment.py half        a CIFAR-10 network of 90 % or more at half its FLOPs: points lost, and
                                                how much faster on the GPU and on two threads of the CPU; then, where
                                                that is not 1.5 times, the smaller network that is
    python benchmarks/deployment.py latency     gates that price measured seconds beside gates that price FLOPs
    python benchmarks/deployment.py paired      what a network forgot of 10,000 inputs, beside two bare passes

`half` and `latency` train on a GPU where there is one, in a minute or two; they read CIFAR-10 from ASSAY_DATA. Times
are wall clock, medians where several are taken, with the kernels that cuDNN finds fastest; those of networks that are
compared are taken in turns. Where an aim is missed it ends with 1.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from clock import at_least, at_most
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.compress.bill import Bill, bill, seconds
from assay.methods.compress.gates import Gates, gate_lr, may_vanish, thin
from assay.methods.compress.price import cost, flops
from assay.methods.compress.price import latency as measured
from assay.methods.compress.surgery import cut, edges, masked
from assay.nn.resnet import Bottleneck, ResNet, ResNet18

ROUNDS = 3
AIM = 5.0  # seconds


def surgery(given: argparse.Namespace) -> None:
    """The hypergraph and a random half of all channels gone, under 5 s on two cores; equal to the masked network."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    model, x = ResNet(1000, blocks=(3, 4, 6, 3), kind=Bottleneck).eval(), torch.rand(2, 3, 32, 32)
    taken: dict[str, list[float]] = {"edges": [], "cut": []}
    found, keep = edges(model, x), {}  # torch loads what it needs with the first
    small: nn.Module = model
    for _ in range(ROUNDS):
        start = time.perf_counter()
        found = edges(model, x)
        between = time.perf_counter()
        keep = {edge.name: torch.rand(edge.size).argsort() < edge.size // 2 for edge in found}
        small = cut(model, found, keep)
        taken["edges"].append(between - start)
        taken["cut"].append(time.perf_counter() - between)
    with torch.no_grad():
        said, wanted = small(x), masked(model, found, keep)(x)
    gap = float((said - wanted).abs().max() / wanted.abs().max())
    total = sum(map(statistics.median, taken.values()))
    print(
        f"ResNet-50, {cost('parameters', model, x):,} parameters, {len(found)} edges: read and proved in "
        f"{statistics.median(taken['edges']):.2f} s, cut in {statistics.median(taken['cut']):.2f} s; together "
        f"{total:.2f} s, the aim is {AIM:g} s: {'met' if total <= AIM else 'missed'}"
    )
    for kind in ("flops", "parameters"):
        print(f"{kind} left: {cost(kind, small, x) / cost(kind, model, x):.3f}")
    print(f"largest gap to the masked network, relative: {gap:.1e}")
    if gap > 1e-4 or total > AIM:
        sys.exit(1)


LEAST, LOST, FASTER = 0.90, 0.01, 1.5  # accuracy of the whole network, what may be lost of it, times as fast
SURELY = 1.05 * FASTER  # what gates are asked for, as the same network is not as fast twice
THREADS, CPU_BATCH, GPU_BATCH = 2, 32, 256
TIMED_BATCH = 2048  # on a GPU: fewer pass in the time it takes to start the kernels, however small the network is
WARM, TURNS = 3, 15
EQUAL, SOONER = 0.003, 0.9  # points of accuracy that are none, and the time that priced seconds may take


def trained(given: argparse.Namespace, device: str) -> nn.Module:
    """The network that is made smaller: from its weights, or the one that the studies share."""
    from assay.claims import _smaller as study

    if given.weights is None:
        return channels_last(copy.deepcopy(study.base(given.seed, device)))
    from safetensors.torch import load_file

    net = ResNet18()
    net.load_state_dict(load_file(given.weights))
    return channels_last(net.to(device).eval())


def channels_last(net: nn.Module) -> nn.Module:
    """As the trainings leave a network: only networks that lie alike in memory can be compared by their seconds."""
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def gated(
    whole: nn.Module,
    counted: Bill,
    price: Callable[[nn.Module], float],
    wanted: float,
    given: argparse.Namespace,
    device: str,
) -> nn.Module:
    """What gates leave of it at that price, trained on: an epoch as the study does, then as the whole network was."""
    from assay.claims import _smaller as study
    from assay.claims import passov2021_gator as gator
    from assay.methods.train.well_trained import CIFAR, well_trained

    net, x = copy.deepcopy(whole).requires_grad_(True), study.images(device)["test"].x[:2]
    found = edges(net, x)
    steps = max(1, given.gating * study.per_epoch(device) // 4)  # half of a round, at half of the rate on average
    gates = Gates(
        found, counted.to(device), alpha=given.alpha, lr=gate_lr(steps, given.alpha),
        multiple=given.multiple, may_vanish=may_vanish(net, found, x),
    )  # fmt: skip

    def train(gates: Gates) -> None:
        gator.gate(net, gates, device, epochs=given.gating, lr=given.lr, seed=given.seed)
        left = int(gates.counts().sum())
        settled = ", settled" if gates.settled else ""
        print(f"  alpha {gates.alpha:g}: {left:,} of {len(gates.open):,} channels are open{settled}", flush=True)

    def paid(keep: Mapping[str, Tensor]) -> float:
        return price(channels_last(cut(whole, found, keep)))

    keep = thin(gates, net, train, paid, wanted)
    print("  channels:", ", ".join(f"{name} {int(each.sum())}/{len(each)}" for name, each in keep.items()), flush=True)
    small = gator.tuned(cut(net, found, keep), device, epochs=1, lr=given.lr, seed=given.seed)
    recipe = replace(CIFAR, epochs=given.again, lr=CIFAR.lr / 4)
    return channels_last(well_trained(small, study.images(device)["train"], recipe, seed=given.seed, device=device))


def in_turns(
    nets: Mapping[str, nn.Module], x: Tensor, device: str, *, recorded: bool = False, turns: int = TURNS
) -> dict[str, float]:
    """Seconds of one answer each. `recorded`: in bf16, channels-last, played from a CUDA graph, as one would deploy."""
    asks: dict[str, Callable[[], object]] = {}
    for name, net in nets.items():
        there, seen = copy.deepcopy(net).eval().requires_grad_(False).to(device), x.to(device)
        if recorded:
            there, seen = channels_last(there.to(torch.bfloat16)), seen.to(torch.bfloat16)
            asks[name] = played(there, seen.contiguous(memory_format=torch.channels_last))
        else:
            asks[name] = partial(there, seen)
    taken: dict[str, list[float]] = {name: [] for name in nets}
    with torch.no_grad():
        for turn in range(WARM + turns):
            for name, ask in asks.items():
                start = time.perf_counter()
                ask()
                if device == "cuda":
                    torch.cuda.synchronize()
                if turn >= WARM:
                    taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in taken.items()}


@torch.no_grad()
def played(net: nn.Module, x: Tensor) -> Callable[[], object]:
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM):
            net(x)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        net(x)

    def play(held: tuple[nn.Module, Tensor] = (net, x)) -> None:  # what the graph reads must not go
        graph.replay()

    return play


def half(given: argparse.Namespace) -> None:
    """Half of the FLOPs and at most a point of accuracy less; 1.5 times as fast, or the smaller network that is.

    Half of the FLOPs is not half of the time. Where the first network is not fast enough in a place, that is said, and
    gates that price the seconds of the slowest place make a smaller one, whose FLOPs are told.
    """
    from assay.claims import _smaller as study

    torch.set_num_threads(THREADS)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = time.perf_counter()
    whole = trained(given, device)
    right = study.right(whole, device).mean()
    print(f"ResNet-18: {100 * right:.2f} % right, {time.perf_counter() - start:.0f} s", flush=True)
    test = study.images(device)["test"].x
    x, found = test[:1], edges(whole, test[:2])
    places = {"cpu": test[:CPU_BATCH].cpu()} | ({"cuda": test[:TIMED_BATCH]} if device == "cuda" else {})

    def share(small: nn.Module) -> float:
        return flops(small, x) / flops(whole, x)

    def slowest(small: nn.Module) -> float:
        """The seconds it takes, of the whole network's, in the place that gained least."""
        times = {}
        for place, batch in places.items():
            taken = in_turns({"whole": whole, "small": small}, batch, place, turns=5)
            times[place] = taken["small"] / taken["whole"]
        print(f"  FLOPs {share(small):.3f}", *(f"{place} {each:.3f}" for place, each in times.items()), flush=True)
        return max(times.values())

    def told(small: nn.Module) -> tuple[bool, dict[str, float]]:
        """Whether it is right and small as asked, and how many times as fast it is in each place."""
        after = study.right(small, device).mean()
        print(f"{100 * after:.2f} % right after, {time.perf_counter() - start:.0f} s", flush=True)
        if given.save is not None:
            from safetensors.torch import save_file

            save_file({name: part.cpu().contiguous() for name, part in small.state_dict().items()}, given.save)
        kept = [
            at_most("points of accuracy lost, as a share", float(right - after), LOST),
            at_most("FLOPs left", share(small), given.share),
        ]
        return all(kept), {place: faster(place, whole, small, batch) for place, batch in places.items()}

    held = at_least("accuracy before", float(right), LEAST)
    print(f"{given.share:g} of the FLOPs, which are priced:", flush=True)
    kept, gained = told(gated(whole, bill(whole, found, x, "flops"), share, given.share, given, device))
    held = held and kept
    if min(gained.values()) < FASTER:
        place = min(gained, key=lambda each: gained[each])
        print(f"That is not {FASTER:g} times as fast everywhere. Smaller, seconds on {place} priced:", flush=True)
        counted = seconds(whole, found, places[place], place)
        kept, gained = told(gated(whole, counted, slowest, 1 / SURELY, given, device))
        held = held and kept
    print(f"{time.perf_counter() - start:.0f} s in all")
    if not held or min(gained.values()) < FASTER:
        sys.exit(1)


def faster(place: str, whole: nn.Module, small: nn.Module, batch: Tensor) -> float:
    """How many times as fast it answers that batch, in float32; what else is timed is told, and has no aim."""
    gained = {}
    for size in (len(batch), *(each for each in (GPU_BATCH, CPU_BATCH) if place == "cuda")):
        for recorded in (False, True) if place == "cuda" else (False,):
            times = in_turns({"whole": whole, "small": small}, batch[:size], place, recorded=recorded)
            how = "bf16, channels-last, recorded" if recorded else "float32 as it is"
            line = f"{place}, batch of {size}, {how}: {1e3 * times['whole']:.3g} to {1e3 * times['small']:.3g} ms"
            gained[size, recorded] = times["whole"] / times["small"]
            if size == len(batch) and not recorded:
                at_least(f"{line}, times as fast", gained[size, recorded], FASTER)
            else:
                print(f"{line:72s} {gained[size, recorded]:8.3f} times as fast", flush=True)
    return gained[len(batch), False]


def latency(given: argparse.Namespace) -> None:
    """Gates that price seconds make a faster network than gates that price FLOPs, and one that is as accurate."""
    from assay.claims import _smaller as study

    torch.set_num_threads(THREADS)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    place = given.on or device
    start = time.perf_counter()
    whole = trained(given, device)
    test = study.images(device)["test"].x
    x, found, batch = test[:1], edges(whole, test[:2]), test[: CPU_BATCH if place == "cpu" else TIMED_BATCH]
    print(
        f"whole: {100 * study.right(whole, device).mean():.2f} % right, {time.perf_counter() - start:.0f} s", flush=True
    )
    wanted = given.share * flops(whole, x)
    by_flops = gated(
        whole, bill(whole, found, x, "flops"), lambda net: flops(net, x), wanted, given, device
    )  # fmt: skip
    aim = SOONER * measured(by_flops, batch, place)
    by_seconds = gated(
        whole, seconds(whole, found, batch, place), lambda net: measured(net, batch, place), aim, given, device
    )  # fmt: skip
    nets = {"whole": whole, "FLOPs priced": by_flops, "seconds priced": by_seconds}
    times = in_turns(nets, batch, place)
    right = {name: study.right(net, device) for name, net in nets.items()}
    for name, net in nets.items():
        print(
            f"{name:16s} {100 * right[name].mean():.2f} % right, {flops(net, x) / flops(whole, x):.3f} of FLOPs, "
            f"{1e3 * times[name]:.3g} ms for {len(batch)} on {place}, {times['whole'] / times[name]:.2f} times as fast"
        )
    lost = float((right["FLOPs priced"] - right["seconds priced"]).mean())
    sooner = times["FLOPs priced"] / times["seconds priced"]
    held = [
        at_least("seconds priced, times as fast as FLOPs priced", sooner, 1.0),
        at_most("points of accuracy behind FLOPs priced, as a share", lost, EQUAL),
    ]
    print(f"{time.perf_counter() - start:.0f} s in all")
    if not all(held):
        sys.exit(1)


def paired(given: argparse.Namespace) -> None:
    """The question what-did-it-forget of 10,000 images of 28 x 28, beside the passes that it cannot do without."""
    from assay.engine.local import ThisProcess
    from assay.nn.small_cnn import SmallCNN
    from assay.probe import put
    from assay.probes.deployed.what_did_it_forget import WhatDidItForget
    from assay.run import Budget, Run
    from assay.subject import Subject

    torch.manual_seed(given.seed)
    x, big = torch.rand(10_000, 1, 28, 28), SmallCNN().eval()
    small = copy.deepcopy(big)
    with torch.no_grad():
        for p in small.parameters():
            p.mul_(1 + 0.01 * torch.randn_like(p))
    subject = Subject.classifier(big, (x, torch.arange(len(x)) % 10)).cured(small, "shrunk")
    run = Run(engine=ThisProcess(), budget=Budget("all", samples=None, steps=1, restarts=1), seed=given.seed)

    @torch.no_grad()
    def bare() -> None:
        for part in torch.split(x, 128):  # as many as a probe shows a network at once
            big(part)
            small(part)

    def whole() -> None:
        answer = put(WhatDidItForget(), subject, run)
        if answer.finding is None or answer.finding.measure("churn").n != len(x):
            sys.exit(f"It was not asked about all inputs: {answer.why}")

    taken: dict[str, list[float]] = {"bare": [], "whole": []}
    for turn in range(4):  # the first is for warming up
        for name, work in (("bare", bare), ("whole", whole)):
            start = time.perf_counter()
            work()
            if turn:
                taken[name].append(time.perf_counter() - start)
    two, asked = (statistics.median(each) for each in taken.values())
    print(f"two bare passes {two:.2f} s, the whole question {asked:.2f} s")
    if not at_most("paired comparison of 10,000 inputs, times two bare passes", asked / two, 1.25):
        sys.exit(1)


def main(argv: list[str] | None = None) -> None:
    parts = {"surgery": surgery, "half": half, "latency": latency, "paired": paired}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=tuple(parts))
    parser.add_argument("--weights", type=Path, help="of a ResNet-18, .safetensors; else it is trained")
    parser.add_argument("--save", type=Path, help="of half: where the smaller network's weights go")
    parser.add_argument("--share", type=float, default=0.5, help="of the FLOPs that may be left: 0.5")
    parser.add_argument("--multiple", type=int, default=8, help="channels are kept in multiples of so many: 8")
    parser.add_argument("--alpha", type=float, default=1.0, help="what FLOPs weigh in the first round: 1")
    parser.add_argument("--gating", type=int, default=3, help="epochs of each round with gates: 3")
    parser.add_argument("--again", type=int, default=30, help="epochs of what is left: 30")
    parser.add_argument("--lr", type=float, default=0.05, help="of the rounds with gates: 0.05")
    parser.add_argument("--on", choices=("cpu", "cuda"), help="of latency: where seconds are measured; the GPU, if any")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    torch.backends.cudnn.benchmark = True  # or widths that nobody foresaw have slow kernels; of all that are compared
    try:
        parts[given.which](given)
    except AssayError as error:  # as of a price that cannot be met
        sys.exit(str(error))


if __name__ == "__main__":
    main()
