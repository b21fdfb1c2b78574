from __future__ import annotations

import importlib.util
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.probe import put
from assay.probes.explained.does_the_map_need_the_model import DoesTheMapNeedTheModel
from assay.probes.explained.was_it_tampered_with import WasItTamperedWith
from assay.subjects import Source, doors, open_subject

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*")


@pytest.fixture(scope="module")
def scripted(forms, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("jit") / "net.pt"
    torch.jit.save(torch.jit.script(forms.model), path)
    return path


def opened(forms, path: Path, **words):
    return open_subject(Source(str(path), str(forms.npz), **words))


@pytest.mark.parametrize("suffix", ["pt", "jit", "pth", "ts"])
def test_a_program_is_told_by_what_is_inside(forms, scripted, tmp_path, suffix):
    path = tmp_path / f"net.{suffix}"
    path.write_bytes(scripted.read_bytes())
    subject = opened(forms, path)
    assert_close(subject.predict(forms.x), forms.model(forms.x).detach())
    assert subject.about == f"net.{suffix}, a TorchScript program."
    assert subject.differentiable


def test_gradients_are_those_of_finite_differences(forms, scripted):
    model = doors.open_file(scripted, Source(str(scripted))).model.double()
    x = forms.x[:2].double().requires_grad_()
    assert torch.autograd.gradcheck(model, x, eps=1e-5, atol=1e-4)


def test_what_takes_layers_apart_is_not_asked_and_the_rest_is(forms, scripted, run):
    subject = opened(forms, scripted)
    answer = put(DoesTheMapNeedTheModel(), subject, run)
    assert (answer.status, "TorchScript cannot be taken apart" in answer.why) == ("does not apply", True)
    answer = put(WasItTamperedWith(), subject, run)
    assert answer.status == "asked", answer.why


def test_the_fingerprint_is_of_the_file(forms, scripted, tmp_path):
    assert opened(forms, scripted).fingerprint() == opened(forms, scripted).fingerprint()
    other = torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)))
    torch.jit.save(other, tmp_path / "net.pt")
    assert opened(forms, scripted).fingerprint() != opened(forms, tmp_path / "net.pt").fingerprint()


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(1)

    def forward(self, x: Tensor, rate: int, shift: float, loud: bool = False) -> tuple[Tensor, Tensor]:
        y = x[:, 0, 0, :3] * rate + shift + self.last
        self.last = self.last + 1.0
        return (2 * y if loud else y), x

    @torch.jit.export
    def reset_states(self):
        self.last = torch.zeros(1)


def test_other_arguments_are_fed_and_a_state_is_forgotten(forms, tmp_path):
    path = tmp_path / "scaled.jit"
    torch.jit.save(torch.jit.script(Scaled()), path)
    subject = opened(forms, path, feed=("rate=3", "shift=0.5"), output="0")
    for _ in range(2):
        assert_close(subject.predict(forms.x), forms.x[:, 0, 0, :3] * 3 + 0.5)
    assert "keeps a state between calls" in subject.notes[0]
    loud = opened(forms, path, feed=("rate=3", "shift=0.5", "loud=1"), output="0")
    assert_close(loud.predict(forms.x), forms.x[:, 0, 0, :3] * 6 + 1)
    assert loud.fingerprint() != subject.fingerprint()
    for feed, says in (
        (("rate=1",), r"scaled.jit takes shift \(float\) beside its data; say what they are: --feed shift=NUMBER"),
        (("rate=1", "speed=2"), "has no argument 'speed' to feed beside its data; it has: rate, shift, loud"),
        (("rate=fast",), "--feed 'rate=fast' is not NAME=INT"),
    ):
        with pytest.raises(AssayError, match=says):
            opened(forms, path, feed=feed, output="0")
    with pytest.raises(AssayError, match=r"scaled.jit has the outputs 0 \(1 x 3\), 1 \(1 x 1 x 8 x 8\); choose one"):
        opened(forms, path, feed=("rate=1", "shift=0"))


class Writes(nn.Module):
    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = target

    def forward(self, x: Tensor) -> Tensor:
        torch.save(x, self.target)
        return x


class Reads(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.from_file("secret", size=1)


@pytest.mark.parametrize(("kind", "word"), [(Writes, "save"), (Reads, "from_file")])
def test_a_program_that_reaches_files_is_refused(forms, tmp_path, kind, word):
    made = kind(str(tmp_path / "written")) if kind is Writes else kind()
    torch.jit.save(torch.jit.script(made), tmp_path / "net.pt")
    with pytest.raises(AssayError, match=rf"net.pt' names '{word}', by which a program reaches files or machines"):
        opened(forms, tmp_path / "net.pt")
    assert not (tmp_path / "written").exists()


def test_halves_and_bombs_are_one_line(forms, scripted, tmp_path):
    whole = scripted.read_bytes()
    (tmp_path / "cut.jit").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(AssayError, match=r"cut.jit' is a pickle|cannot be loaded"):  # without its list, no archive
        opened(forms, tmp_path / "cut.jit")
    damaged = bytearray(whole)
    at = whole.index(b"code/__torch__")
    damaged[at + 60 : at + 120] = b"x" * 60
    (tmp_path / "damaged.jit").write_bytes(damaged)
    with pytest.raises(AssayError, match=r"damaged.jit' cannot be loaded as TorchScript \(") as caught:
        opened(forms, tmp_path / "damaged.jit")
    assert "\n" not in str(caught.value)
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("net/code/__torch__.py", bytes(70 * 2**20))
    (tmp_path / "bomb.pt").write_bytes(bomb.getvalue())
    with pytest.raises(AssayError, match=r"bomb.pt' unpacks to 73,400,320 bytes, .* more than it has"):
        opened(forms, tmp_path / "bomb.pt")


def test_silero_hears(tmp_path):
    spec = importlib.util.find_spec("silero_vad")
    if spec is None or spec.origin is None:
        pytest.skip("silero-vad is not here")
    path = Path(spec.origin).parent / "data" / "silero_vad.jit"
    x = np.random.default_rng(0).normal(size=(4, 512)).astype(np.float32).clip(-1, 1)
    np.savez(tmp_path / "sound.npz", x=x, y=np.arange(4) % 2)
    with pytest.raises(AssayError, match=r"takes sr \(int\) beside its data; say what they are: --feed sr=NUMBER"):
        open_subject(Source(str(path), str(tmp_path / "sound.npz")))
    subject = open_subject(Source(str(path), str(tmp_path / "sound.npz"), bounds=(-1, 1), feed=("sr=16000",)))
    assert subject.predict(torch.from_numpy(x)).shape == (4, 2)
    assert_close(subject.predict(torch.from_numpy(x)), subject.predict(torch.from_numpy(x)))
