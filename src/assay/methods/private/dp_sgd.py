r"""Training that no one input weighs much in: SGD with clipped gradients and noise, and what it promises.

Each step takes every input with the chance q = batch / n (Poisson sampling), and with g_i the gradient of input i

    g = ( sum_i g_i min(1, C / |g_i|) + N(0, (sigma C)^2) ) / batch

Whatever is made of the weights afterwards, whether one input was in the training changes the chance of any event by a
factor of at most exp(epsilon), but for a chance delta. epsilon grows with the steps and with q, and falls with sigma:

    rdp   by Renyi divergences, an upper bound
    prv   by the distribution of the privacy loss itself, nearly exact, and smaller

At q = 1 the exact answer is that of one Gaussian mechanism with sigma / sqrt(steps) (`gaussian_delta`).

Gradients are clipped one input at a time, so that nothing may mix inputs: batch normalisations become group
normalisations (`without_batch_norm`). The gradients, the clipping, the noise and the accountants are those of opacus.

The promise is about noise that nobody knows. It and the batches are drawn from what the machine holds random, not from
a seed that is told: two trainings by one seed that differ in one input would have the same noise, and their difference
would show that input bare. The generators are torch's, begun at 63 random bits: none that cryptography would trust.

Source: Abadi et al., CCS 2016, arXiv:1607.00133 (DP-SGD); Mironov, CSF 2017, arXiv:1702.07476 (rdp); Gopi, Lee &
    Wutschitz, NeurIPS 2021, arXiv:2106.02848 (prv); Balle & Wang, ICML 2018, arXiv:1805.06530 (Gaussian, exact);
    Yousefpour et al. 2021, arXiv:2109.12298 (opacus).
"""

from __future__ import annotations

import copy
import math
import secrets
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from assay.errors import AssayError
from assay.methods.train.fit import Diverged, Optimiser, Rows

Accountant = Literal["rdp", "prv"]
GROUPS = 8  # of a normalisation, where they divide its channels and leave at least two in each
AT_ONCE = 2**28  # values of single gradients that are held: a gigabyte


def without_batch_norm(model: nn.Module) -> tuple[nn.Module, int]:
    """A copy with group normalisations in the place of batch normalisations, and how many there were."""
    made, count = copy.deepcopy(model), 0
    for name, module in list(made.named_modules()):
        if isinstance(module, _BatchNorm):
            channels = module.num_features
            groups = math.gcd(GROUPS, channels)
            while groups > 1 and channels // groups < 2:
                groups //= 2
            made = _put(made, name, nn.GroupNorm(groups, channels, module.eps, module.affine))
            count += 1
    return made.to(next((p.device for p in model.parameters()), torch.device("cpu"))), count


def _put(model: nn.Module, name: str, module: nn.Module) -> nn.Module:
    if not name:
        return module
    model.set_submodule(name, module)
    return model


def refuse_mixing(model: nn.Module) -> None:
    """Refuse, in one line, what no gradient of a single input can be had of."""
    found = _opacus().validators.ModuleValidator.validate(copy.deepcopy(model).train(), strict=False)
    if found:
        raise AssayError(f"It cannot be trained privately: {str(found[0]).splitlines()[0]}")


@lru_cache(maxsize=256)  # each takes a tenth of a second, and the noise is looked for more than once
def epsilon_of(noise: float, rate: float, steps: int, delta: float, accountant: Accountant = "rdp") -> float:
    """What `steps` with this noise multiplier cost, each taking every input with the chance `rate`."""
    if noise == 0:
        return math.inf
    counter = _opacus().accountants.create_accountant(accountant)
    counter.history = [(noise, rate, steps)]
    with warnings.catch_warnings():  # at the ends of its grid of orders, and of log 0 at q = 1
        warnings.simplefilter("ignore")
        return float(counter.get_epsilon(delta=delta))


def noise_for(epsilon: float, rate: float, steps: int, delta: float) -> float:
    """The least noise multiplier, to a hundredth of epsilon, whose cost by the upper bound is at most this."""
    most = 0.05  # less is no noise, and its cost takes seconds to count
    least = math.nan
    while (spent := epsilon_of(most, rate, steps, delta)) > epsilon:
        least, most = most, 2 * most
        if most > 1e6:
            raise AssayError(
                f"No noise keeps epsilon={epsilon:g} at delta={delta:g} over {steps:,} steps; allow a larger "
                "epsilon, or take fewer steps."
            )
    for _ in range(0 if math.isnan(least) else 50):  # three or four serve
        if spent >= 0.99 * epsilon:
            break
        more = epsilon_of(least, rate, steps, delta)
        # On scales of logarithms the cost is nearly straight; the line aims at the middle of what is allowed.
        middle = least * (most / least) ** (math.log(more / (0.995 * epsilon)) / math.log(more / spent))
        at = epsilon_of(middle, rate, steps, delta)
        if at > epsilon:
            least = middle
        else:
            most, spent = middle, at
    return most


def gaussian_delta(epsilon: float, noise: float) -> float:
    """The exact delta of one Gaussian mechanism: Phi(1/2s - e s) - exp(e) Phi(-1/2s - e s), s the noise multiplier."""
    from scipy.stats import norm

    return float(norm.cdf(0.5 / noise - epsilon * noise) - math.exp(epsilon) * norm.cdf(-0.5 / noise - epsilon * noise))


def dp_fit(
    model: nn.Module,
    data: Rows,
    *,
    steps: int,
    lr: float,
    batch: int,
    noise: float,
    clip: float,
    rng: torch.Generator | None = None,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    optimiser: Optimiser = "sgd",
    device: torch.device | str = "cpu",
    after_step: Callable[[float], None] = lambda loss: None,
) -> nn.Module:
    """Train `model` in place for so many steps, and leave it in eval mode; `after_step` is told the mean loss.

    Batches differ in size, `batch` on average; one may be empty, and then there is noise alone. Whoever gives `rng`
    knows the noise, and nothing is promised: it is there for tests.
    """
    tools = _opacus()
    n = len(data)
    if batch > n:
        raise AssayError(f"A batch of {batch} is more than the {n} training inputs; give at most as many.")
    device = torch.device(device)
    model.to(device).train()
    weights = [p for p in model.parameters() if p.requires_grad]
    plain: torch.optim.Optimizer = (
        torch.optim.SGD(weights, lr, momentum=momentum, weight_decay=weight_decay)
        if optimiser == "sgd"
        else (torch.optim.Adam if optimiser == "adam" else torch.optim.AdamW)(
            weights, lr, betas=(momentum, 0.999), weight_decay=weight_decay
        )
    )
    draws = torch.Generator().manual_seed(_secret(rng))
    noises = torch.Generator(device).manual_seed(_secret(rng))
    whole = tools.GradSampleModule(model, loss_reduction="sum")
    optim = tools.optimizers.DPOptimizer(
        plain, noise_multiplier=noise, max_grad_norm=clip, expected_batch_size=batch, generator=noises
    )
    most = max(1, AT_ONCE // sum(p.numel() for p in weights))
    cuda = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=cuda), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Full backward hook is firing")  # inputs need no gradient
            torch.default_generator.manual_seed(_secret(rng))  # dropout reads the global generator
            for step in range(steps):
                chosen = torch.nonzero(torch.rand(n, generator=draws) < batch / n)[:, 0]
                parts = chosen.split(most) if len(chosen) else (chosen,)  # type: ignore[no-untyped-call]
                optim.zero_grad(set_to_none=True)
                total = 0.0
                for i, part in enumerate(parts):
                    total += _gradients(whole, weights, data, part, device)
                    optim.signal_skip_step(do_skip=i + 1 < len(parts))
                    optim.step()
                    if i + 1 < len(parts):
                        optim.zero_grad(set_to_none=True)
                mean = total / max(1, len(chosen))
                if not math.isfinite(mean):
                    raise Diverged(
                        f"Training loss became {mean} in step {step + 1} of {steps}; try lr={lr / 10:g}.", model, 0
                    )
                after_step(mean)
    finally:
        whole.to_standard_module()
        for p in weights:
            p.grad = None
            for left in ("grad_sample", "summed_grad", "_forward_counter"):
                if hasattr(p, left):
                    delattr(p, left)
    return model.eval()


def _gradients(whole: Any, weights: list[nn.Parameter], data: Rows, part: Tensor, device: torch.device) -> float:
    """Leave each input's own gradient on the weights; returns the sum of the losses."""
    if len(part) == 0:
        for p in weights:
            p.grad_sample = p.new_zeros((0, *p.shape))  # type: ignore[attr-defined]
        return 0.0
    raw_x, raw_y = data.take(part.numpy())
    loss = F.cross_entropy(
        whole(torch.as_tensor(raw_x, device=device)), torch.as_tensor(raw_y, device=device), reduction="sum"
    )
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def _secret(rng: torch.Generator | None) -> int:
    if rng is None:
        return secrets.randbits(63)
    return int(torch.randint(2**62, (), generator=rng, device=rng.device))


def _opacus() -> Any:
    try:
        import opacus
        import opacus.accountants
        import opacus.optimizers
        import opacus.validators
    except ImportError as e:
        raise AssayError("Private training needs opacus: pip install 'assay[private]'.") from e
    return opacus
