"""Wang & Quan 2021: what attention and edges add to a U-Net (GLUNet), and figures that cannot be of the same masks."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.claim import Claim, Evidence, Gate, Held, Published
from assay.claims._elsewhere import RULE, elsewhere
from assay.claims._student import of_seeds
from assay.data.whole import Whole
from assay.finding import Measure
from assay.methods.right.masks import boundary_f1, edges, f1_between

if TYPE_CHECKING:
    from assay.nn.glunet import GLUNet
    from assay.run import Run

SOURCE = "Wang & Quan, 'GLUNet: Global-Local Fusion U-Net for 2D Medical Image Segmentation', ICANN 2021"
ARMS: dict[str, tuple[bool, bool]] = {  # GAM, LEDM
    "backbone": (False, False),
    "LEDM": (False, True),
    "GAM": (True, False),
    "GAM and LEDM": (True, True),
}
SEEDS, TRAINED, TESTED = 5, 1500, 300
EPOCHS, BATCH, LR = 15, 64, 3e-3
WIDTH, LEVELS, LAYERS, GROWTH = 16, 4, 3, 8
TOLERANCE = 1  # pixels of an outline, where an image has 32 on a side
LEARNT = 0.7  # mean IoU of each network, below which nothing is concluded
ROUNDED = 0.5e-4  # what four digits leave open
PRINTED: dict[str, dict[str, tuple[float, ...]]] = {  # IoU, F1, SE, SP, ACC
    "Lung": {
        "U-Net": (0.9352, 0.9420, 0.9467, 0.9431, 0.9663),
        "R2UNet": (0.9421, 0.9574, 0.9669, 0.9583, 0.9740),
        "Attention UNet": (0.9480, 0.9578, 0.9698, 0.9610, 0.9756),
        "EU-Net": (0.9538, 0.9622, 0.9779, 0.9610, 0.9776),
        "SUD-GAN": (0.9632, 0.9656, 0.9853, 0.9674, 0.9801),
        "M-GAN": (0.9636, 0.9653, 0.9896, 0.9715, 0.9843),
        "U-Net++": (0.9684, 0.9723, 0.9841, 0.9737, 0.9874),
        "Dense R2UNet": (0.9707, 0.9715, 0.9920, 0.9721, 0.9882),
        "GLUNet": (0.9745, 0.9813, 0.9943, 0.9840, 0.9906),
    },
    "DSB2018": {
        "U-Net": (0.8731, 0.8682, 0.9479, 0.9263, 0.9314),
        "R2UNet": (0.8772, 0.8799, 0.9454, 0.9338, 0.9367),
        "Attention UNet": (0.8857, 0.8823, 0.9496, 0.9313, 0.9372),
        "EU-Net": (0.8903, 0.8920, 0.9643, 0.9625, 0.9624),
        "Sahasrabudhe": (0.8943, 0.9043, 0.9732, 0.9765, 0.9798),
        "U-Net++": (0.8991, 0.9125, 0.9712, 0.9769, 0.9830),
        "Dense R2UNet": (0.9024, 0.9218, 0.9784, 0.9788, 0.9821),
        "GLUNet": (0.9175, 0.9273, 0.9805, 0.9853, 0.9842),
    },
    "DRIVE": {
        "U-Net": (0.6942, 0.8174, 0.7822, 0.9808, 0.9555),
        "R2UNet": (0.7018, 0.8149, 0.7726, 0.9820, 0.9553),
        "Attention UNet": (0.7132, 0.8171, 0.7792, 0.9813, 0.9556),
        "EU-Net": (0.7184, 0.8198, 0.8296, 0.9822, 0.9560),
        "SUD-GAN": (0.7208, 0.8333, 0.8340, 0.9820, 0.9589),
        "M-GAN": (0.7372, 0.8324, 0.8346, 0.9836, 0.9706),
        "U-Net++": (0.7518, 0.8452, 0.8312, 0.9831, 0.9772),
        "Dense R2UNet": (0.7756, 0.8618, 0.8276, 0.9869, 0.9753),
        "GLUNet": (0.8040, 0.8686, 0.8302, 0.9930, 0.9783),
    },
}
Array = NDArray[np.float64]


@cache
def _data(device: str) -> dict[str, Whole]:
    from assay.data.vessels import load_vessels

    parts = load_vessels(train=TRAINED, test=TESTED)
    return {
        part: Whole((torch.from_numpy(each.x).float() / 255).to(device), torch.from_numpy(each.kind).to(device))
        for part, each in parts.items()
    }


class _WithEdges(nn.Module):
    """A GLUNet while it learns: where it has an edge map, that is one more channel of its answer."""

    def __init__(self, net: GLUNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        logits, edge = self.net.both(x)
        return logits if edge is None else torch.cat([logits, edge], 1)

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        from assay.methods.train.lovasz import lovasz_softmax, region_and_edge

        if self.net.ledm is None:
            return lovasz_softmax(out.softmax(1), target).mean()
        return region_and_edge(out[:, :-1], out[:, -1:], target, edges(target)).mean()


class _Seen(NamedTuple):
    """Means over the test images."""

    iou: float  # of all classes, as the task has it
    outline: float  # boundary F1 of blobs and vessels
    outline_2: float  # within two pixels
    accuracy: float  # of pixels


@cache
def _seen(arm: str, seed: int, device: str) -> _Seen:
    from assay.data.vessels import CLASSES
    from assay.methods.train.fit import fit
    from assay.nn.glunet import GLUNet
    from assay.tasks import Segmentation

    gam, ledm = ARMS[arm]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        net = GLUNet(
            1, len(CLASSES), width=WIDTH, levels=LEVELS, gam=gam, ledm=ledm, layers=LAYERS, growth=GROWTH
        )  # fmt: skip
    taught = _WithEdges(net)
    fit(
        taught, _data(device)["train"], epochs=EPOCHS, lr=LR, batch=BATCH, optimiser="adam", loss=taught.loss,
        rng=torch.Generator(device).manual_seed(seed), device=device,
    )  # fmt: skip
    net.eval()
    test, task = _data(device)["test"], Segmentation(CLASSES)
    with torch.no_grad():
        out = torch.cat([net(some) for some in torch.split(test.x, 100)])
    said = out.argmax(1)
    outlines = [
        np.mean([float(boundary_f1(said == c, test.y == c, tolerance=t).mean()) for c in range(1, len(CLASSES))])
        for t in (TOLERANCE, 2 * TOLERANCE)
    ]
    right = (said == test.y).double().mean()
    return _Seen(float(task.score(out, test.y).mean()), float(outlines[0]), float(outlines[1]), float(right))


def _all(run: Run) -> dict[str, list[_Seen]]:
    seen: dict[str, list[_Seen]] = {arm: [] for arm in ARMS}
    with run.progress("training small GLUNets", len(ARMS) * SEEDS) as tick:
        for arm in ARMS:
            for seed in range(run.seed, run.seed + SEEDS):
                seen[arm].append(_seen(arm, seed, run.device))
                tick(1)
    return seen


def _gain(name: str, ours: list[_Seen], others: list[_Seen], what: str) -> Measure:
    return of_seeds(name, [getattr(a, what) - getattr(b, what) for a, b in zip(ours, others, strict=True)])


def _gates(seen: dict[str, list[_Seen]]) -> tuple[Gate, ...]:
    """Print's IoU is that of lungs and nuclei: no number that vessels could be near."""
    return tuple(
        Gate(what=f"The mean IoU of {arm}", values=tuple(each.iou for each in some), printed=None, low=LEARNT)
        for arm, some in seen.items()
    )


def _signs(*gains: Measure) -> Held:
    if all((gain.low or 0) > 0 for gain in gains):
        return "holds"
    return "fails" if any((gain.high or 0) < 0 for gain in gains) else "cannot tell"


def _points(gain: Measure) -> str:
    return f"{100 * (gain.value or 0):+.2f} ({100 * (gain.low or 0):+.2f} to {100 * (gain.high or 0):+.2f})"


def parts_help(run: Run) -> Evidence:
    seen = _all(run)
    means = [of_seeds(f"mean IoU, {arm}", [each.iou for each in some], share=True) for arm, some in seen.items()]
    gains = {
        arm: _gain(f"IoU gained by {arm}", seen[arm], seen["backbone"], "iou") for arm in ARMS if arm != "backbone"
    }
    before = _gain("IoU of GAM less LEDM", seen["GAM"], seen["LEDM"], "iou")
    told = ", ".join(f"{_points(gain)} with {arm}" for arm, gain in gains.items())
    return elsewhere(
        _signs(*gains.values(), before),
        says=f"Points of mean IoU over a backbone of {100 * (means[0].value or 0):.2f} %: {told}; GAM is "
        f"{_points(before)} ahead of LEDM.",
        measures=(*means, *gains.values(), before),
        gates=_gates(seen),
        seeds=SEEDS,
    )


def outlines_gain_more(run: Run) -> Evidence:
    seen = _all(run)
    iou = _gain("IoU gained by LEDM", seen["LEDM"], seen["backbone"], "iou")
    outline = _gain("boundary F1 gained by LEDM", seen["LEDM"], seen["backbone"], "outline")
    more = of_seeds(
        "boundary F1 gained by LEDM less IoU gained",
        [(a.outline - b.outline) - (a.iou - b.iou) for a, b in zip(seen["LEDM"], seen["backbone"], strict=True)],
    )
    wide = _gain("boundary F1 within 2 pixels gained by LEDM", seen["LEDM"], seen["backbone"], "outline_2")
    plain = of_seeds("boundary F1, backbone", [each.outline for each in seen["backbone"]], share=True)
    return elsewhere(
        _signs(outline, more),
        says=f"LEDM adds {_points(outline)} points of boundary F1 to {100 * (plain.value or 0):.2f} % and "
        f"{_points(iou)} of mean IoU; within 2 pixels {_points(wide)}.",
        measures=(outline, iou, more, wide, plain),
        gates=_gates(seen),
        seeds=SEEDS,
    )


def impossible(run: Run) -> Evidence:
    """Arithmetic of what is printed: no network is asked."""
    rows = {f"{net} on {data}": each for data, nets in PRINTED.items() for net, each in nets.items()}
    below, pooled, means, strange = [], [], [], []
    for name, (iou, f1, se, sp, acc) in rows.items():
        low, high = f1_between(iou - ROUNDED)[0], f1_between(iou + ROUNDED)[1]
        if f1 + ROUNDED < low:
            below.append(name)
        if low <= f1 + ROUNDED and f1 - ROUNDED <= high:
            means.append(name)
        if f1_between(iou - ROUNDED, pooled=True)[0] - ROUNDED <= f1 <= high + ROUNDED:
            pooled.append(name)
        if not min(se, sp) - 2 * ROUNDED <= acc <= max(se, sp) + 2 * ROUNDED:
            strange.append(name)
    first = PRINTED["DSB2018"]["U-Net"][0]
    return Evidence(
        verdict="fails" if below else "holds",
        says=f"F1 is below IoU in {len(below)} of {len(rows)} rows ({', '.join(below) or 'none'}), which no masks of "
        "one class can have, pooled or averaged over images. F1 = 2 IoU / (1 + IoU), which pooled counts have exactly, "
        f"is met to the last digit in {len(pooled)} rows; {len(means)} could be means over images. Accuracy lies "
        f"outside what sensitivity and specificity leave pooled counts in {len(strange)}.",
        measures=(
            _exact("smallest F1 that an IoU of 0.8731 leaves", first, 1),
            _exact("F1 of pooled counts with an IoU of 0.8731", f1_between(first, pooled=True)[0], 1),
            _exact("rows with F1 below IoU", len(below), len(rows)),
            _exact("rows that pooled counts could have", len(pooled), len(rows)),
            _exact("rows that means over images could have", len(means), len(rows)),
            _exact("rows with an accuracy that pooled counts cannot have", len(strange), len(rows)),
        ),
    )


def _exact(name: str, value: float, n: int) -> Measure:
    return Measure(name=name, value=float(value), low=float(value), high=float(value), better="neither", n=n)


HERE = (
    f"{TRAINED} generated images of 32 x 32 with blobs and thin vessels, {TESTED} tested, {SEEDS} seeds; U-Nets of "
    f"{LEVELS} sizes and width {WIDTH} with dense blocks of {LAYERS} layers of {GROWTH} in every arm (print's backbone "
    f"has none, so that its gains are theirs too), {EPOCHS} epochs of Adam at {LR:g}, Lovász losses, lambda = 0.7; "
    f"nothing is concluded unless the mean IoU is {LEARNT:g} in every network; print has lungs and nuclei: {RULE}"
)
SHELVED = (
    Claim(
        name="gam-and-ledm-help",
        source=SOURCE,
        says="Attention on the skips (GAM) and the edge branch (LEDM) each raise the IoU, attention more, both most.",
        published=tuple(
            Published(f"mean IoU, {arm}", value, f"table 4, DSB2018, {row}")
            for arm, value, row in zip(
                ARMS,
                (0.8731, 0.8915, 0.9048, 0.9175),
                ("Backbone", "Backbone + LEDM", "Backbone + GAM", "Backbone + GAM + LEDM"),
                strict=True,
            )
        ),
        here=f"{HERE}; holds if all three gain and GAM more than LEDM",
        minutes=240,
        test=parts_help,
        seeds=SEEDS,
    ),
    Claim(
        name="edges-sharpen-outlines",
        source=SOURCE,
        says="The edge branch refines the outlines of objects (sec. 3.2).",
        published=(),
        here=f"{HERE}; boundary F1 within {TOLERANCE} pixel; holds if LEDM raises it, and more than the IoU",
        minutes=120,
        test=outlines_gain_more,
        seeds=SEEDS,
    ),
    Claim(
        name="f1-below-iou",
        source=SOURCE,
        says="On DSB2018 the U-Net has an IoU of 0.8731 and an F1 of 0.8682 (table 2), of one foreground.",
        published=(Published("F1 of the U-Net on DSB2018", 0.8682, "table 2, U-Net"),),
        here="arithmetic of tables 1 to 3: F1 = 2 IoU / (1 + IoU) of pooled counts, and from IoU to that of means over "
        f"images, each to {ROUNDED:g}; fails if a row lies below; a mean of the IoU over both classes would explain it",
        minutes=0.01,
        test=impossible,
    ),
)
