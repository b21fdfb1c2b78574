"""What stands where a layer was is called and read as that layer was, and is a module of its own for the rest."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay.methods.train.fit import reset
from assay.nn.in_place import InPlace


class Told(nn.Conv2d):
    """A layer with a word of its own about how it is copied."""

    words = "of a stranger"

    def __deepcopy__(self, memo: dict[int, object]) -> Told:
        return Told(1, 2, 3)


def test_arguments_beside_the_input_and_what_is_read_are_the_layers() -> None:
    up, x = nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1), torch.rand(2, 3, 4, 4)
    stands = InPlace(nn.Tanh(), up, nn.ReLU(), layer=up)
    for size in (7, 8):
        assert_close(stands(x, output_size=(size, size)), up(x.tanh(), output_size=(size, size)).relu())
    assert_close(stands(input=x), stands(x))
    assert stands.weight is up.weight
    assert stands.stride == (2, 2)
    assert list(stands.state_dict()) == ["1.weight", "1.bias"]
    with pytest.raises(AttributeError, match="'ConvTranspose2d' object has no attribute 'nothing'"):
        stands.nothing  # noqa: B018


def test_it_is_copied_and_drawn_anew_as_a_module_of_its_own() -> None:
    told = Told(1, 2, 3)
    stands = InPlace(nn.Tanh(), told, layer=told)
    assert stands.words == "of a stranger"
    assert isinstance(copy.deepcopy(stands), InPlace)
    assert pickle.loads(pickle.dumps(stands)).kernel_size == (3, 3)
    conv = nn.Conv2d(1, 2, 3)
    rows = [nn.Sequential(nn.Tanh(), conv), InPlace(nn.Tanh(), conv, layer=conv)]
    plain, other = (reset(nn.Sequential(row), torch.Generator().manual_seed(0)) for row in rows)
    assert_close(dict(other.state_dict()), dict(plain.state_dict()))  # its weights were drawn once
