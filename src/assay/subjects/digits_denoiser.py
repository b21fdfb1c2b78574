"""An image for an image: digits with noise on them, and the digits without."""

from __future__ import annotations

from torch import Tensor, nn

from assay.data.digits import noisy_digits, weights
from assay.subject import Recipe, Subject
from assay.tasks import ImageToImage

TOLERANCE = 0.2  # an error as large as most of the noise


class Denoiser(nn.Module):
    """Three convolutions say what to take away: n 1 8 8 -> n 1 8 8.

    Source: after Zhang et al. 2017, doi:10.1109/TIP.2017.2662206, with three layers and no normalisation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.noise = nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(32, 32, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(32, 1, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        clean: Tensor = x - self.noise(x)
        return clean


def task() -> ImageToImage:
    return ImageToImage((1, 8, 8), TOLERANCE)


def build() -> Subject:
    """The network with its weights and the images that it was trained and is tested on."""
    model = Denoiser()
    model.load_state_dict(weights("digits_denoiser"))
    return Subject.of(
        model.eval(),
        noisy_digits(),
        task(),
        name="digits-denoiser",
        about="Three convolutions that take noise off digits of 8 x 8, trained on 1,300 of them; closeness 0.3429 on "
        "the 497 test images, where an error of 0.2 is worth nothing.",
    )


SHELVED = Recipe(
    says="An image for an image: noise taken off scikit-learn's digits",
    source="Zhang et al. 2017, doi:10.1109/TIP.2017.2662206, with three layers",
    build=build,
)
