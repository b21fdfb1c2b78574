r"""WF-Net: persons are told apart also in images that are drawn, with the look of one and the build of another.

With f_i, s_i the codes of image i, k another image of its person, j one of another, x^i_j = G(f_i, s_j),

    L  =  5 (L1 + L2) + L_f + L_s + L_id^s + 0.5 L_id^c + L_adv + lambda L_cons + L_trip
    L1 = |x_i - G(f_i, s_i)|,          L2 = |x_i - G(f_k, s_i)|                                   means of entries
    L_f = |f_i - E_f(x^i_j)|,          L_s = |s_j - E_s(x^i_j)|
    L_id^s, L_id^c = cross entropy of person i, for x_i and for x^i_j
    L_cons = | q(x^i_j) - p(x^i_j) |_2           q, p: probabilities of the teacher and of the student, each with noise
    L_trip = [ d(E_f(x^i_j), f_i) - d(E_f(x^i_j), f_j) + m ]_+,     m = 0.2
    teacher:  theta'_t = a theta'_{t-1} + (1 - a) theta_t,     a = 0.999
    lambda = 0 while it warms up, as L_trip is; then it rises by 0.0005 a step to 2

Parameters of the teacher are averaged; its buffers, the running means of normalisations, are copied from the student.

Source: Su et al., ICANN 2021, sec. 3. Departs from print: L_trip has a hinge, without which it has no lowest value
    (`as_published` leaves it out); the generator climbs log D(x^i_j) where print has it descend log(1 - D), which is
    flat as long as D is sure (Goodfellow et al. 2014, sec. 3); Adam for all networks, where E_f has SGD in print.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.train.balanced import balanced
from assay.nn.two_codes import TwoCodes

DRAWN, CODES, PERSONS, ACROSS, REAL = 5.0, 1.0, 1.0, 0.5, 1.0  # weights of the losses
MARGIN, MEMORY = 0.2, 0.999
WARM_UP, RISE, MOST = 30_000, 0.0005, 2.0
NOISE = 0.05  # the standard deviation of what teacher and student see beside the image


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, a: float = MEMORY) -> None:
    """One step of the average: a of the old, 1 - a of the student. Buffers are copied."""
    if not 0 <= a <= 1:
        raise AssayError(f"A teacher that keeps a share {a:g} of itself; give a number from 0 to 1, such as 0.999.")
    for mine, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
        mine.lerp_(theirs.detach(), 1 - a)
    for kept, seen in zip(teacher.buffers(), student.buffers(), strict=True):
        kept.copy_(seen)


def ramp(step: int, warm_up: int = WARM_UP, rise: float = RISE, most: float = MOST) -> float:
    """lambda of the step: 0 up to the end of the warm-up."""
    return min(most, rise * max(0, step - warm_up))


def separation_loss(
    drawn: Tensor, look: Tensor, build: Tensor, margin: float = MARGIN, *, as_published: bool = False
) -> Tensor:  # n d, n d, n d -> n
    """L_trip: the code of a drawn image, of the image that gave the look, and of the one that gave the build."""
    near, far = (torch.linalg.vector_norm(drawn - code, dim=1) for code in (look, build))
    loss: Tensor = near - far + margin
    return loss if as_published else loss.relu()


def consistency_loss(teacher: Tensor, student: Tensor) -> Tensor:  # n k, n k, logits -> scalar
    """L_cons: how far apart the two say the probabilities are, not squared."""
    apart: Tensor = torch.linalg.vector_norm(teacher.softmax(1) - student.softmax(1), dim=1)
    return apart.mean()


def teach(
    nets: TwoCodes,
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    lr: float,
    rng: torch.Generator,
    generates: bool = True,
    consistent: bool = True,
    separate: bool = True,
    crossed: bool = True,
    each: int = 2,
    a: float = MEMORY,
    warm_up: int = WARM_UP,
    rise: float = RISE,
) -> dict[str, float]:  # n c h w in [0, 1], n -> the losses of the last step, unweighed
    """Train all networks on images of persons y, 0 to k - 1, `each` (even) of every person in a batch.

    `generates=False` is the baseline, L_id^s alone; `consistent` and `separate` are L_cons and L_trip, `crossed` is L2.
    The nets lie where x does, and are left in evaluation mode.
    """
    if each % 2 or each < 2:
        raise AssayError(f"each={each}; an image is drawn with the look of another of its person: give an even number.")
    order = balanced(torch.zeros_like(y), y, each=each)
    mine = [p for name, p in nets.named_parameters() if p.requires_grad and not name.startswith("critic.")]
    optimiser = torch.optim.Adam(mine, lr=lr)
    critic = torch.optim.Adam(nets.critic.parameters(), lr=lr, betas=(0.5, 0.999))
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    nets.train()
    found: dict[str, Tensor] = {}
    done = 0
    while done < steps:
        for index in order(rng)[: steps - done]:
            at = index.to(x.device)
            real, person = x[at], y[at]
            if generates:
                drawn, found = _losses(nets, real, person, each, rng, crossed=crossed)
                counts = {"L1": DRAWN, "L2": DRAWN, "L_f": CODES, "L_s": CODES, "L_id^c": ACROSS, "L_adv": REAL}
                counts |= {"L_id^s": PERSONS, "L_cons": ramp(done, warm_up, rise) if consistent else 0.0}
                counts |= {"L_trip": 1.0 if separate and done >= warm_up else 0.0}
            else:
                found = {"L_id^s": F.cross_entropy(nets.look.persons(nets.look(real)), person)}
                counts, drawn = {"L_id^s": PERSONS}, None
            optimiser.zero_grad()
            torch.autograd.backward(torch.stack([counts[name] * loss for name, loss in found.items()]).sum())
            optimiser.step()
            falling.step()
            if drawn is not None:
                critic.zero_grad()
                told = F.softplus(-nets.critic(real)).mean() + F.softplus(nets.critic(drawn.detach())).mean()
                torch.autograd.backward(told)
                critic.step()
            follow(nets.teacher, nets.look, a)
            done += 1
    nets.eval()
    return {name: float(loss.detach()) for name, loss in found.items()}


def _losses(
    nets: TwoCodes, x: Tensor, y: Tensor, each: int, rng: torch.Generator, *, crossed: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """Images drawn of two persons, and every loss but the critic's. Batches stand person by person."""
    f, s = nets.look(x), nets.build(x)
    other = torch.arange(len(x), device=x.device) ^ 1  # k: pairs are neighbours
    away = torch.arange(len(x), device=x.device).roll(each)  # j: of the person before
    drawn = nets.draw(f, s[away])
    again = nets.look(drawn)
    noisy = [drawn + NOISE * torch.randn(drawn.shape, generator=rng).to(x.device) for _ in range(2)]
    with torch.no_grad():
        told = nets.teacher.persons(nets.teacher(noisy[0]))
    found = {
        "L1": (x - nets.draw(f, s)).abs().mean(),
        "L_f": (f - again).abs().mean(),
        "L_s": (s[away] - nets.build(drawn)).abs().mean(),
        "L_id^s": F.cross_entropy(nets.look.persons(f), y),
        "L_id^c": F.cross_entropy(nets.look.persons(again), y),
        "L_adv": F.softplus(-nets.critic(drawn)).mean(),
        "L_cons": consistency_loss(told, nets.look.persons(nets.look(noisy[1]))),
        "L_trip": separation_loss(again, f, f[away]).mean(),
    }
    if crossed:
        found["L2"] = (x - nets.draw(f[other], s)).abs().mean()
    return drawn, found
