r"""The Jacobian of the logits with respect to the input, and what many of them have in common.

With J_i = J(x_i) (c x d) the Jacobian at input i, and J̄ (n c x d) all of them stacked, a change delta moves the logits
of all inputs together by about J̄ delta:

    sup_{||delta||_2 = 1} ||J̄ delta||_2  =  ||J̄||_2  =  lambda_max( sum_i J_i^T J_i )^(1/2)
        <=  ||J̄||_F  =  ( sum_i ||J_i||_F^2 )^(1/2)  <=  sum_i ||J_i||_F                        (eq. 9: the last)
    sim(i, j)    =  <J_i, J_j> / (||J_i||_F ||J_j||_F)                                          (eq. 10)
    right(i, j)  =  tr(J_i^T J_i J_j^T J_j) / (||J_i^T J_i||_F ||J_j^T J_j||_F)
    ||J||_F^2    =  c E_v ||v^T J||^2,  v uniform on the unit sphere of R^c

Sources: Co, Martinez Rego and Lupu, "Jacobian Regularization for Mitigating Universal Adversarial Perturbations", ICANN
2021, sec. 3; the estimate, Hoffman, Roberts and Yaida 2019, arXiv:1908.02729; the shared direction, Khrulkov and
Oseledets, CVPR 2018 (there for any pair of norms).

Departs from print:
- The paper expands ||J̄||_F^2 as sum_ij <J_i, J_j>, which is ||sum_i J_i||_F^2. Stacking has no cross terms: it is
  sum_i ||J_i||_F^2. `stacked_frobenius(..., as_published=True)` gives the printed one. The bound (9) holds all
  the same, but knows nothing of alignment; `stacked_spectral` does.
- sim looks at output directions too: two inputs that share every input direction and answer with different classes
  have sim 0 and yet fall to the same change. `right_similarity` looks at input directions only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from assay.errors import AssayError
from assay.methods.attack.attacked import Model, checked

GRAM_FEATURES = 2048  # up to here sum_i J_i^T J_i is held and solved exactly: 32 MB in float64


class Spectral(NamedTuple):
    """How far one change of l2 length 1 moves the logits of all inputs together, to first order, and which change."""

    norm: float
    direction: Tensor  # *d, l2 length 1; its sign is arbitrary


def jacobian(model: Model, x: Tensor) -> Tensor:
    """d logits / d input, one backward pass per class through one graph: n *d -> n c *d.

    The answer takes c times the memory of `x`: give it a batch. Batched backward passes (`jacrev` under `vmap`,
    `is_grads_batched`) were not faster on the networks tried, and not every model survives them.
    """
    with torch.enable_grad():
        at = x.detach().requires_grad_()
        z = checked(model(at), at)
        rows = [pull_back(z, at, one) for one in torch.eye(z.shape[1], dtype=z.dtype, device=z.device)]
    return torch.stack(rows, 1)


def pull_back(z: Tensor, x: Tensor, v: Tensor, *, differentiable: bool = False) -> Tensor:
    """v_i^T J_i for each input, from logits and the input that they came from: n c, n *d, c or n c -> n *d.

    `differentiable` lets the answer be differentiated in turn. The graph is kept.
    """
    try:
        return torch.autograd.grad(z, x, v.expand_as(z), retain_graph=True, create_graph=differentiable)[0]
    except RuntimeError as error:
        if "does not require grad" in str(error) or "not have been used" in str(error):
            raise AssayError(
                "The logits carry no gradient to the input, so they have no Jacobian; give a differentiable model."
            ) from error
        raise


def frobenius_estimate(z: Tensor, x: Tensor, *, projections: int = 1, rng: torch.Generator) -> Tensor:
    """An unbiased estimate of ||J(x_i)||_F^2 for each input, which can be differentiated: n c, n *d -> n.

    `z` are logits computed from `x`, which requires a gradient. The variance falls as 1 / projections. Where the inputs
    of a batch act on each other's logits (batch normalisation in training mode) it is an estimate of
    sum_j ||d z_j / d x_i||_F^2.
    """
    if projections < 1:
        raise AssayError(f"frobenius_estimate needs projections >= 1, got {projections}; 1 is what the paper uses.")
    total = x.new_zeros(len(x))
    for _ in range(projections):
        v = torch.randn(z.shape, generator=rng, device=rng.device, dtype=z.dtype).to(z.device)
        v = v / torch.linalg.vector_norm(v, dim=1, keepdim=True)
        total = total + pull_back(z, x, v, differentiable=True).flatten(1).square().sum(1)
    return total * (z.shape[1] / projections)


def stacked_frobenius(j: Tensor, *, as_published: bool = False) -> float:
    """||J̄||_F of the stacked Jacobians; as published ||sum_i J_i||_F, which is another number: n c *d -> scalar."""
    parts = j.double()
    return float(torch.linalg.vector_norm(parts.sum(0) if as_published else parts))


def published_bound(j: Tensor) -> float:
    """sum_i ||J_i||_F, the right side of eq. 9: n c *d -> scalar."""
    return float(torch.linalg.vector_norm(j.double().flatten(1), dim=1).sum())


def stacked_spectral(
    model: Model, x: Tensor, *, batch: int = 128, rounds: int = 200, rng: torch.Generator | None = None
) -> Spectral:
    """||J̄||_2 over all inputs and the direction that attains it, without ever holding J̄: n *d -> Spectral.

    Inputs of few features: the exact eigenvector of sum_i J_i^T J_i. Of many: power iteration on it, one product with
    each J_i and its transpose at a time, from a random start (`rng=None`: a generator seeded with 0); its
    direction attains at least the norm that it returns, which is thus never above the true one.
    """
    if len(x) == 0 or batch < 1 or rounds < 1:
        raise AssayError(f"stacked_spectral got {len(x)} inputs, batch={batch}, rounds={rounds}; each is at least 1.")
    if x[0].numel() <= GRAM_FEATURES:
        stacks = (jacobian(model, part).double().flatten(0, 1).flatten(1) for part in torch.split(x, batch))
        gram = sum_of(stack.T @ stack for stack in stacks)  # d d
        values, vectors = torch.linalg.eigh(gram)
        return Spectral(float(values[-1].clamp_min(0).sqrt()), vectors[:, -1].to(x.dtype).reshape(x.shape[1:]))
    rng = rng or torch.Generator().manual_seed(0)
    way = torch.randn(x.shape[1:], generator=rng, device=rng.device, dtype=x.dtype).to(x.device)
    way, size = way / torch.linalg.vector_norm(way), 0.0
    for _ in range(rounds):
        moved = [back_and_forth(model, b, way) for b in torch.split(x, batch)]
        before, size = size, float(sum_of(s for s, _ in moved)) ** 0.5  # ||J̄ way||, for this very way
        pulled = sum_of(p for _, p in moved)
        length = torch.linalg.vector_norm(pulled)
        if size - before <= 1e-6 * size or float(length) == 0:
            break
        way = pulled / length
    return Spectral(size, way)


def back_and_forth(model: Model, x: Tensor, way: Tensor) -> tuple[Tensor, Tensor]:
    """sum_i ||J_i way||^2 and sum_i J_i^T J_i way by three passes of gradient: n *d, *d -> scalar, *d."""
    with torch.enable_grad():
        at = x.detach().requires_grad_()
        z = checked(model(at), at)
        u = torch.zeros_like(z, requires_grad=True)
        # J^T u is linear in u, so that its derivative along `way` is J way: a forward product from two backward ones
        moved = torch.autograd.grad(pull_back(z, at, u, differentiable=True), u, way.expand_as(at))[0]
        return moved.double().square().sum(), pull_back(z, at, moved.detach()).sum(0)


def sum_of(parts: Iterator[Tensor]) -> Tensor:
    total = next(parts)
    for part in parts:
        total = total + part
    return total


def similarity(a: Tensor, b: Tensor) -> Tensor:
    """The paper's cosine of each Jacobian of `a` with each of `b`, in [-1, 1]: n c *d, m c *d -> n m.

    A Jacobian of zeros is similar to none: 0.
    """
    return (unit(a.flatten(1)) @ unit(b.flatten(1)).T).clamp(-1, 1)


def right_similarity(a: Tensor, b: Tensor, *, batch: int = 64) -> Tensor:
    """How far Jacobians of `a` and of `b` react to the same input directions, in [0, 1]: n c *d, m c *d -> n m.

    The cosine of J_i^T J_i and J_j^T J_j, from the small products J_i J_j^T: tr(A^T A B^T B) = ||A B^T||_F^2.
    """
    flat_a, flat_b = unit(a.flatten(1)).reshape(*a.shape[:2], -1), unit(b.flatten(1)).reshape(*b.shape[:2], -1)
    rows = [
        torch.einsum("icd,jkd->ijck", part, flat_b).square().sum((2, 3)) for part in torch.split(flat_a, batch)
    ]  # batch m each
    size_a, size_b = (torch.linalg.vector_norm(f @ f.mT, dim=(1, 2)) for f in (flat_a, flat_b))  # n, m
    tiny = torch.finfo(a.dtype).tiny
    cosine: Tensor = torch.cat(rows) / size_a[:, None].clamp_min(tiny) / size_b.clamp_min(tiny)
    return cosine.clamp(0, 1)


def unit(rows: Tensor) -> Tensor:
    """Rows at l2 length 1, rows of zeros as they are: n f -> n f."""
    length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / length.clamp_min(torch.finfo(rows.dtype).tiny)
