r"""Layer-wise activation clusters: an outlier is an input on whose class the layers of a network cannot agree.

Fit, at each chosen layer L: activations of the training inputs as rows (maps flattened), columns standardised, PCA to
50 dimensions, a projection to 2, k-means with the k of the best silhouette. For every cluster K the class fractions

    cfrac_K(c) = |{x in K : y = c}| / |K|

Predict: with K_L(x) the cluster of x at layer L,

    cset_L(x) = { c : cfrac_{K_L(x)}(c) > t },     x is an outlier iff the intersection of the cset_L(x) over L is empty

The continuous score is  s(x) = max_c min_L cfrac_{K_L(x)}(c).  A class is in all cset_L iff its least fraction exceeds
t, so the published rule at threshold t is exactly s(x) <= t, and one pass gives it for every t. With C classes equally
mixed in a cluster every fraction is 1/C: at an early layer t must stay below 1/C, or inputs are flagged for nothing.

Source: Lehmann & Ebner, "Layer-Wise Activation Cluster Analysis of CNNs to Detect Out-of-Distribution Samples", ICANN
    2021, sec. 3, eq. 1-4, and sec. 4.1 for the projection; t is 0.01, 0.05 or 0.1 there, 0.05 the best.
Departs from print:
- print projects to 2-D with UMAP (`projection="umap"`, needs umap-learn). "pca" (also in print, sec. 4.2) and "lda",
  linear discriminants of the labels on the 50 dimensions, need nothing more and are linear, so that training inputs
  are assigned exactly as they were in fitting; UMAP moves them a little.
- "tsne" (print compares its silhouettes, table 1) has no map for new inputs: one takes the place of its nearest
  training input in the 50 dimensions, which is an addition. So is what `clustering="dbscan"` does with new inputs
  (print has its silhouettes only): they belong to the cluster of the nearest core point within eps, and to none
  beyond, where every fraction is 0. Its eps is the quantile of the distances to the `CORE`-th neighbour that gives the
  best silhouette, in which points of no cluster count 0.
- standard deviations and PCA come from at most `ROWS` training inputs, because maps of all of them need not fit into
  memory; the rest uses all. k is chosen on at most `SAMPLE` points, from 2 to 20: print says neither.
- the score s is an addition.
k-means has no outside: an input far from every cluster gets the fractions of the nearest, and can pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.errors import AssayError, MissingExtra, ShapeError
from assay.methods.uncertainty.activations import BATCH, shown

Projection = Literal["pca", "lda", "umap", "tsne"]
Clustering = Literal["kmeans", "dbscan"]
Points = NDArray[np.float64]

ROWS = 2048  # inputs from which standard deviations and PCA are computed
WIDTH = 50  # dimensions that PCA keeps
RANK = 1e-10  # of the first component's variance, below which a component is rounding
SAMPLE = 5000  # points on which silhouettes are computed
CLUSTERS = range(2, 21)  # the k that are tried
CORE = 5  # neighbours within eps that make a point a core of DBSCAN
REACHES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)  # quantiles that are tried for eps
TABLE = 2**22  # distances in one table


@dataclass(frozen=True)
class Layer:
    """The clusters of one layer; of the training set UMAP and t-SNE keep 50 numbers an input, DBSCAN two."""

    name: str
    weight: Tensor  # f d: standardisation and PCA in one
    bias: Tensor  # d
    plane: Any  # d 2, or what has a `transform` from d dimensions to 2
    centres: Tensor  # m 2: those of k-means, or the core points of DBSCAN
    fractions: Tensor  # k c, cfrac; where there is an outside, a last row of zeros
    silhouette: float  # of the chosen k, or eps
    member: Tensor | None = None  # m, the cluster of each centre, where there are more centres than clusters
    reach: float = float("inf")  # beyond which an input belongs to no cluster

    def cluster(self, activations: Tensor) -> Tensor:  # n *f -> n
        """The cluster of the nearest centre of each input; the last row of `fractions` for one out of reach."""
        flat = activations.flatten(1)
        if flat.shape[1] != len(self.weight):
            raise ShapeError(
                f"Layer {self.name!r} gave {flat.shape[1]} numbers an input, {len(self.weight)} in fitting."
            )
        if not bool(flat.isfinite().all()):
            raise AssayError(f"Layer {self.name!r} gave NaN or inf; leave out the inputs that cause it.")
        wide = flat.to(self.weight) @ self.weight + self.bias
        if isinstance(self.plane, Tensor):
            return self.at(wide @ self.plane)
        with _as_many_threads():
            return self.at(torch.as_tensor(self.plane.transform(wide.cpu().numpy())))

    def at(self, points: Tensor) -> Tensor:  # n 2 -> n
        """The cluster at each point of the plane."""
        centre, away = nearest(points, self.centres)
        cluster = centre if self.member is None else self.member[centre]
        return torch.where(away <= self.reach, cluster, len(self.fractions) - 1)


@dataclass(frozen=True)
class Placed:
    """Points that t-SNE has placed; a new one takes the place of its nearest neighbour."""

    wide: Points  # n d
    places: Points  # n 2

    def transform(self, wide: NDArray[Any]) -> Points:  # m d -> m 2
        from scipy.spatial.distance import cdist

        rows = max(1, TABLE // len(self.wide))
        parts = [cdist(wide[i : i + rows], self.wide).argmin(1) for i in range(0, len(wide), rows)]
        return np.asarray(self.places[np.concatenate(parts)], dtype=np.float64)


@dataclass(frozen=True)
class ActivationClusters:
    """A fitted detector."""

    model: nn.Module
    layers: tuple[Layer, ...]
    batch: int

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        layers: Sequence[str],
        rng: np.random.Generator,
        projection: Projection = "lda",
        clustering: Clustering = "kmeans",
        batch: int = BATCH,
    ) -> ActivationClusters:  # n *d, n
        """Cluster the training inputs `x` of classes `y` at the modules called `layers`."""
        if clustering not in get_args(Clustering):
            raise AssayError(f"There is no clustering {clustering!r}; choose one of {', '.join(get_args(Clustering))}.")
        if projection not in get_args(Projection):
            raise AssayError(f"There is no projection {projection!r}; choose one of {', '.join(get_args(Projection))}.")
        if not layers:
            raise AssayError("ActivationClusters got no layers; name at least one module, such as the last.")
        if y.shape != x.shape[:1] or y.is_floating_point() or len(y) <= CLUSTERS[-1] or int(y.min()) < 0:
            raise AssayError(
                f"ActivationClusters got inputs of shape {tuple(x.shape)} and {y.dtype} labels of shape "
                f"{tuple(y.shape)}; give a class index each, numbered from 0, and more than {CLUSTERS[-1]} inputs."
            )
        if bool((y == y[0]).all()):
            raise AssayError(f"All {len(y)} training inputs are of class {int(y[0])}; give those of several classes.")
        some = x if len(x) <= ROWS else x[torch.as_tensor(rng.permutation(len(x))[:ROWS]).to(x.device)]
        shots = [shown(model, part, layers)[1] for part in torch.split(some, batch)]
        # a layer at a time, and what is done is let go
        maps = {n: _principal(n, torch.cat([s.pop(n).flatten(1) for s in shots]), rng) for n in dict.fromkeys(layers)}
        wide: dict[str, list[Tensor]] = {name: [] for name in maps}  # n d, in pieces
        for part in torch.split(x, batch):
            for name, rows in shown(model, part, layers)[1].items():
                wide[name].append(rows.flatten(1) @ maps[name][0] + maps[name][1])
        fitted = [_fit_layer(n, *maps[n], torch.cat(wide[n]), y, rng, projection, clustering) for n in maps]
        return cls(model, tuple(fitted), batch)

    def fractions(self, x: Tensor) -> Tensor:  # n *d -> l n c
        """cfrac of the cluster in which each input falls, at each layer."""
        return torch.cat([self._fractions(part) for part in torch.split(x, self.batch)], 1)

    def score(self, x: Tensor) -> Tensor:  # n *d -> n, in [0, 1], high = familiar
        """s(x), the largest fraction that a class has at every layer."""
        return torch.cat([self._fractions(part).amin(0).amax(1) for part in torch.split(x, self.batch)])

    def class_sets(self, x: Tensor, t: float) -> Tensor:  # n *d -> l n c of bool
        """cset_L(x) at threshold t."""
        return self.fractions(x) > t

    def detect(self, x: Tensor, t: float = 0.05) -> Tensor:  # n *d -> n of bool
        """The published rule: True where no class is in the sets of all layers."""
        return ~self.class_sets(x, t).all(0).any(1)

    def _fractions(self, x: Tensor) -> Tensor:  # n *d -> l n c, in one forward pass
        inner = shown(self.model, x, [layer.name for layer in self.layers])[1]
        return torch.stack([layer.fractions[layer.cluster(inner[layer.name])] for layer in self.layers])


def silhouettes(points: Points, labelings: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:  # n 2, m of n -> m
    """The mean silhouette of each labelling, (b - a) / max(a, b) over the points (Rousseeuw 1987).

    a is the mean distance to the others of the same cluster, b the least mean distance to another cluster; a point
    alone in its cluster counts 0. One table of distances serves all labellings.
    """
    from scipy.spatial.distance import cdist

    hot = [np.eye(int(labels.max()) + 1)[labels] for labels in labelings]  # m of n k
    edges = np.cumsum([h.shape[1] for h in hot])[:-1]
    rows = max(1, TABLE // len(points))
    stacked = np.concatenate(hot, 1)
    sums = np.concatenate([cdist(points[i : i + rows], points) @ stacked for i in range(0, len(points), rows)])
    marks = []
    for h, total in zip(hot, np.split(sums, edges, 1), strict=True):  # n k, n k
        size = h.sum(0)
        own = (h * size).sum(1)  # n, size of the own cluster
        a = (h * total).sum(1) / np.maximum(own - 1, 1)
        b = np.where(h > 0, np.inf, total / size).min(1)
        marks.append(np.where(own > 1, (b - a) / np.maximum(np.maximum(a, b), np.finfo(np.float64).tiny), 0).mean())
    return np.array(marks)


def nearest(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:  # n 2, m 2 -> n, n
    """Which centre is nearest to each point, and how far."""
    parts = []
    for some in torch.split(points.to(centres), max(1, TABLE // len(centres))):
        parts.append((some[:, None] - centres).square().sum(2).min(1))
    return torch.cat([p.indices for p in parts]), torch.cat([p.values for p in parts]).sqrt()


def _principal(name: str, rows: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:  # n f -> f d, d
    """The affine map from activations to their first principal components, columns standardised before.

    Overwrites `rows`.
    """
    from sklearn.decomposition import PCA  # slow to import

    if not bool(rows.isfinite().all()):
        raise AssayError(f"Layer {name!r} gave NaN or inf on training inputs; leave out the inputs that cause it.")
    mean, spread = rows.mean(0), rows.std(0, correction=0)
    spread[spread == 0] = 1
    pca = PCA(min(WIDTH, *rows.shape), copy=False, iterated_power=3, random_state=int(rng.integers(2**31)))
    pca.fit(rows.sub_(mean).div_(spread).cpu().numpy())  # rows may be a gigabyte: nothing is copied
    alive = pca.explained_variance_ >= RANK * pca.explained_variance_[0]  # dead units leave axes without any spread
    axes = torch.as_tensor(pca.components_[alive]).to(rows).T / spread[:, None]
    return axes, -mean @ axes


def _fit_layer(
    name: str,
    weight: Tensor,
    bias: Tensor,
    wide: Tensor,
    y: Tensor,
    rng: np.random.Generator,
    projection: Projection,
    clustering: Clustering,
) -> Layer:  # f d, d, n d, n
    plane, points = _project(wide, y, rng, projection)
    found = _kmeans if clustering == "kmeans" else _dbscan
    centres, member, reach, silhouette = found(points.cpu().numpy(), rng)
    nowhere = points.new_zeros(0, 0)
    bare = Layer(name, weight, bias, plane, centres.to(points), nowhere, silhouette, member.to(points.device), reach)
    clusters = int(member.max()) + 1
    outside = not np.isinf(reach)
    at = replace(bare, fractions=points.new_zeros(clusters + outside, 0)).at(points)
    counts = points.new_zeros(clusters + outside, int(y.max()) + 1)
    counts.index_put_((at, y.to(points.device)), points.new_ones(()), accumulate=True)
    if outside:
        counts[-1] = 0  # training inputs of no cluster say nothing about new ones
    return replace(bare, fractions=counts / counts.sum(1, keepdim=True).clamp_min(1))


def _project(wide: Tensor, y: Tensor, rng: np.random.Generator, projection: Projection) -> tuple[Any, Tensor]:
    """The way to the plane, and the training inputs there: n d, n -> plane, n 2."""
    if projection == "umap":
        plane = _umap(int(rng.integers(2**31)))
        with _as_many_threads():
            return plane, torch.as_tensor(plane.fit_transform(wide.cpu().numpy())).double()
    if projection == "tsne":
        from sklearn.manifold import TSNE  # slow to import

        rows = wide.double().cpu().numpy()
        tsne = TSNE(perplexity=min(30.0, (len(rows) - 1) / 3), init="pca", random_state=int(rng.integers(2**31)))
        places = np.asarray(tsne.fit_transform(rows), dtype=np.float64)
        return Placed(rows, places), torch.as_tensor(places)
    linear = _discriminants(wide, y) if projection == "lda" else torch.eye(wide.shape[1], 2).to(wide)
    return linear, (wide @ linear).double()


def _kmeans(places: Points, rng: np.random.Generator) -> tuple[Tensor, Tensor, float, float]:  # n 2 -> k 2, k
    """Centres, their clusters, no end to them, and the silhouette of the k that has the best."""
    from sklearn.cluster import KMeans  # slow to import

    some = places[rng.permutation(len(places))[:SAMPLE]]
    tried = [KMeans(k, n_init=4, random_state=int(rng.integers(2**31))).fit(some) for k in CLUSTERS]
    marks = silhouettes(some, [t.labels_ for t in tried])
    best = int(np.argmax(marks))
    final = KMeans(CLUSTERS[best], init=tried[best].cluster_centers_, n_init=1).fit(places)
    used = np.unique(final.labels_)
    return torch.as_tensor(final.cluster_centers_[used]), torch.arange(len(used)), float("inf"), float(marks[best])


def _dbscan(places: Points, rng: np.random.Generator) -> tuple[Tensor, Tensor, float, float]:  # n 2 -> m 2, m
    """Core points, their clusters, eps, and its silhouette."""
    from sklearn.cluster import DBSCAN  # slow to import
    from sklearn.neighbors import NearestNeighbors

    some = places[rng.permutation(len(places))[:SAMPLE]]
    away = NearestNeighbors(n_neighbors=CORE).fit(some).kneighbors(some)[0][:, -1]
    best: tuple[float, float, Any] | None = None
    for eps in np.unique(np.quantile(away, REACHES)):
        if not eps > 0:
            continue
        fitted = DBSCAN(eps=float(eps), min_samples=CORE).fit(some)
        labels = fitted.labels_
        loose = labels < 0
        if labels.max() < 1:
            continue
        # each point of no cluster is a cluster by itself, and counts 0
        alone = np.where(loose, labels.max() + np.cumsum(loose), labels)
        mark = float(silhouettes(some, [alone])[0])
        if best is None or mark > best[0]:
            best = (mark, float(eps), fitted)
    if best is None:
        raise AssayError("DBSCAN finds no two clusters at any distance tried; take clustering='kmeans'.")
    mark, eps, fitted = best
    cores = fitted.core_sample_indices_
    return torch.as_tensor(some[cores]), torch.as_tensor(fitted.labels_[cores]), eps, mark


def _discriminants(wide: Tensor, y: Tensor) -> Tensor:  # n d, n -> d 2 (d 1 with two classes)
    """The two directions that part the class means best, relative to the spread within the classes."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis  # slow to import

    lda = LinearDiscriminantAnalysis().fit(wide.double().cpu().numpy(), y.cpu().numpy())
    return torch.as_tensor(lda.scalings_[:, :2].copy()).to(wide)


@contextmanager
def _as_many_threads() -> Iterator[None]:
    """Numba, which UMAP runs on, gives all of this process, torch too, a thread per core when it first starts.

    Where there was one, small tensors then take ten times as long: threads wait for each other by spinning.
    """
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _umap(seed: int) -> Any:
    try:
        umap = import_module("umap")  # slow to import
    except ImportError as missing:
        raise MissingExtra(
            "projection='umap' needs umap-learn: pip install 'assay[clusters]'; projection='lda' needs nothing more."
        ) from missing
    return umap.UMAP(n_components=2, n_neighbors=15, random_state=seed, n_jobs=1)
