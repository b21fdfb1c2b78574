"""Train the weights of the reference subject `places-retrieval`.

    python tools/train_places.py      a minute and a half of one core; writes the weights, prints what they reach

The encoder is taught to see by naming the places of a third city, before grain: it stands for the ImageNet of print.
Then it learns to find places from geo-tags, and is adapted to images before checks that have none. Queries are looked
at once, at the end. The shipped weights were made with one thread and torch 2.13.
"""

from __future__ import annotations

import torch
from lesson import BUNDLED
from safetensors.torch import save_file
from torch import Tensor

from assay.data.textured_places import Places
from assay.methods.shift.places import describe, fit_places
from assay.methods.train.fit import fit
from assay.nn.vlad import PlaceNet
from assay.subjects.places_retrieval import lessons, load_places


def images(data: Places) -> Tensor:  # -> n 1 32 32
    return torch.as_tensor(data.x)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)  # the initial weights
    data, model = {**lessons(), **load_places()}, PlaceNet()
    fit(
        model.classifier(len(data["seen"].classes or ())), data["seen"], epochs=12, lr=4e-3, batch=64,
        optimiser="adam", rng=torch.Generator().manual_seed(0),
    )  # fmt: skip
    train, rng = images(data["train"]), torch.Generator().manual_seed(0)
    with torch.no_grad():
        model.vlad.start(model.features(train[:200]), rng)
    fit_places(
        model, train, torch.from_numpy(data["train"].geo), images(data["target"]), steps=400, tuples=4, lr=2e-3,
        drawn=100, refresh=200, rng=rng,
    )  # fmt: skip
    save_file(model.state_dict(), BUNDLED / "places_retrieval.safetensors")
    gallery, labels = describe(model, images(data["gallery"])), torch.from_numpy(data["gallery"].labels)
    for name in ("test", "checks"):
        order = torch.cdist(describe(model, images(data[name])), gallery).argsort(1)
        right = labels[order] == torch.from_numpy(data[name].labels)[:, None]
        told = ", ".join(f"{k}: {float(right[:, :k].any(1).double().mean()):.4f}" for k in (1, 5, 10, 20))
        print(f"recall on {name} at {told}")


if __name__ == "__main__":
    main()
