"""Train the weights of the reference subject `topics-text`.

    python tools/train_topics.py                  train on the 3,000 training texts, write the weights

Words and convolution are trained together. Then the table of embeddings is divided by its largest entry and the
convolution multiplied by it, which changes no answer and puts every input between -1 and 1. The test texts are looked
at once, at the end, to print the accuracy. The shipped weights were made with one thread.
"""

from __future__ import annotations

import torch
from lesson import BUNDLED, accuracy
from safetensors.torch import save_file

from assay.data.topics import load_topics
from assay.methods.train.fit import fit
from assay.subjects.topics_text import TopicsText, embedded_topics


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)  # the initial weights
    model = TopicsText()
    fit(
        model.text, load_topics()["train"], epochs=6, lr=0.01, batch=64, optimiser="adam", weight_decay=1e-4,
        rng=torch.Generator().manual_seed(0),
    )  # fmt: skip
    with torch.no_grad():
        largest = model.text.table.weight.abs().max()
        model.text.table.weight /= largest
        model.text.features.weight *= largest
    save_file(model.state_dict(), BUNDLED / "topics_text.safetensors")
    print(
        f"accuracy on 500 texts that were not trained on: {accuracy(model.eval(), embedded_topics(model)['test']):.4f}"
    )


if __name__ == "__main__":
    main()
