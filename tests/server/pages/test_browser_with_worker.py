"""The workbench in a real browser with a real worker: from a click to the command line and back.

Paths of a novice who trains a translator on sample data, and of a participant of a tuning study.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from visitor import nothing_serious

WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 800}


@pytest.fixture
def worker(book):
    """`assay worker` on this book, as a process."""
    words = [sys.executable, "-m", "assay", "worker", "--home", str(book.home), "--keep-free", "0"]
    with subprocess.Popen(
        words, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True
    ) as hands:
        yield hands
        hands.send_signal(signal.SIGTERM)
        _, said = hands.communicate(timeout=60)
    assert said.count("\n") == 1, said  # that it waits for jobs, and nothing else


def test_a_novice_trains_on_sample_data_and_downloads_every_prediction(serve, tab, book, worker):
    at = serve()
    page = tab(at, viewport=PHONE)
    page.goto(f"{at}/new/translate")
    page.get_by_label("Project name").fill("<b>first</b> stain")
    page.get_by_label("Epochs").first.fill("1")
    page.get_by_label("Ensemble size").first.fill("2")
    page.get_by_text("More settings").click()
    page.get_by_label("Channels at full size").first.fill("2")
    page.get_by_label("Sizes of the network").first.fill("2")
    page.get_by_label("Learning rate").first.fill("1.0e-3")
    nothing_serious(page)
    page.get_by_role("button", name="Start").click()
    page.get_by_role("heading", name="<b>first</b> stain").wait_for()
    page.get_by_text("Download all").wait_for()  # no test touches the job: the worker runs it
    (job,) = book.jobs()
    assert (job.state, job.attempt, job.progress) == ("SUCCESS", 1, 1.0), job.reason
    page.get_by_role("link", name="Open the report").click()
    report = page.frame_locator("iframe")
    report.get_by_role("heading", name="<b>first</b> stain").wait_for()
    slider = report.locator("input[type=range]").first
    before = report.locator("body").inner_text()
    slider.evaluate("e => { e.value = e.max; e.dispatchEvent(new Event('input', {bubbles: true})) }")
    assert report.locator("body").inner_text() != before  # the threshold moves what it says
    page.goto(f"{at}/jobs")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    with zipfile.ZipFile(io.BytesIO(download.value.path().read_bytes())) as all_of_it:
        (inner,) = [name for name in all_of_it.namelist() if name.endswith("run/results.zip")]
        results = zipfile.ZipFile(io.BytesIO(all_of_it.read(inner)))
    means = [name for name in results.namelist() if re.fullmatch(r"mean/.*\.npy", name)]
    assert len(means) == 24  # as many as there are test images
    mean, spread = (np.load(io.BytesIO(results.read(f"{part}/field_0000.npy"))) for part in ("mean", "spread"))
    assert mean.shape[1:] == spread.shape
    assert spread.max() > 0
    told = json.loads(results.read("settings.json"))
    assert (told["epochs"], told["members"], told["learning_rate"]) == (1, 2, 0.001)
    nothing_serious(page)


def test_a_participant_goes_from_sign_up_to_the_end_of_a_study(serve, tab, book, worker):
    from assay.jobs.study import new_study
    from assay.store.studies import Study
    from assay.subjects.digits_mlp import build

    job = book.submit("", "study", "Ours", {"who": "people", "random": 0})
    book.cancel(job.id)  # what it would make is made here, with fewer seeds
    study = new_study(job.folder / "run", Study(minutes=30.0, seeds=(1, 2), most_epochs=1000), build())
    at = serve()
    page = tab(at, viewport=WIDE)
    page.goto(f"{at}/studies/{job.id}")
    nothing_serious(page)
    page.get_by_label("Months of experience").fill("7")
    page.get_by_label("Your background").fill("<i>botany</i>")
    page.get_by_role("button", name="Begin").click()
    page.get_by_role("heading", name="The next try").wait_for()
    assert page.get_by_label("momentum", exact=True).is_enabled()
    choose(page, epochs="1000", batch="64")
    assert page.get_by_label("momentum", exact=True).is_disabled()  # adam does not read it
    nothing_serious(page)
    page.get_by_role("button", name="Train with these").click()
    page.get_by_role("img", name=re.compile("Training loss by batch")).wait_for()  # live
    page.get_by_role("button", name="Cancel this try").click()
    page.get_by_role("cell", name="cancelled").wait_for()
    choose(page, epochs="2", batch="64")
    page.get_by_label("Why this value of epochs").select_option("1")
    page.get_by_role("button", name="Train with these").click()
    page.get_by_role("radio", name="Try 2 is my final one").wait_for()
    words = page.locator("main").inner_text()
    assert "of the test inputs" not in words
    (who,) = study.people()
    assert f"{100 * who.tries[1].accuracy:.1f} %" in words
    page.get_by_role("radio", name="Try 2 is my final one").check()
    page.get_by_role("button", name="Name it as my final one").click()
    page.get_by_role("heading", name="The end").wait_for()
    (who,) = study.people()
    assert (who.months, [t.state for t in who.tries], who.final) == (7, ["cancelled", "done"], 2)
    assert who.tries[1].reasons == {"epochs": 1}
    assert f"{100 * sum(who.test) / 2:.1f} % of the test inputs rightly" in page.locator("main").inner_text()
    assert page.get_by_role("heading", name="The next try").count() == 0
    nothing_serious(page)
    assert [job.state for job in book.jobs() if job.kind == "tuning"] == ["SUCCESS"] * 3


def choose(page, *, epochs, batch):
    page.get_by_label("epochs", exact=True).fill(epochs)
    page.get_by_label("batch-size", exact=True).fill(batch)
    page.get_by_label("loss", exact=True).select_option("cross-entropy")
    page.get_by_label("optimiser", exact=True).select_option("adam")
