"""The workbench in a real browser: the paths of a novice, of an auditor, and of somebody who means no good."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from visitor import leave_run, nothing_serious

WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 800}


def test_a_novice_takes_a_sample_and_downloads_the_result(serve, tab, book):
    at = serve()
    page = tab(at, viewport=PHONE, color_scheme="dark")
    page.goto(at)
    page.get_by_text("Classification of 2").wait_for()  # what was understood, without a click
    nothing_serious(page)
    page.get_by_role("button", name="fashion-cnn").click()
    page.get_by_text("next in the queue").wait_for()
    (job,) = book.jobs()
    assert page.url == f"{at}/jobs/{job.id}"
    book.begin(job.id, "hands")
    leave_run(job, ended=False)
    (job.folder / "log.txt").write_text("opening fashion-cnn\naccuracy: pass (0.2 s)\n")
    page.get_by_text("1 of 2 questions answered").wait_for()  # by itself
    page.get_by_text("accuracy: pass (0.2 s)").wait_for()
    page.get_by_text("It is <b>right</b>.").wait_for()
    leave_run(job, hostile="")
    book.finish(job.id, 1, "SUCCESS")
    page.get_by_text("1 fails, 1 passes").wait_for()
    nothing_serious(page)
    page.get_by_role("link", name="Open the report").click()
    page.frame_locator("iframe").get_by_role("heading", name="The report").wait_for()
    page.goto(f"{at}/jobs")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == f"assay-audit-{job.id[:8]}.zip"
    with zipfile.ZipFile(io.BytesIO(download.value.path().read_bytes())) as zipped:
        assert any(name.endswith("report.html") for name in zipped.namelist())


def test_an_auditor_sends_a_model_and_rows_and_reads_the_report(serve, tab, book, tmp_path):
    from assay.server import kinds
    from assay.server.children import Children

    model, rows = tmp_path / "net.onnx", tmp_path / "rows.csv"
    small_model(model)
    rng = np.random.default_rng(0)
    told = [f"{a:.3f},{b:.3f},{int(a > b)}" for a, b in rng.random((200, 2))]
    rows.write_text("\n".join(["a,b,label", *told]))
    at = serve(children=Children(book.home))  # the real command line
    page = tab(at, viewport=WIDE)
    page.goto(f"{at}/new/audit?probe=accuracy&inputs=100")
    nothing_serious(page)
    page.get_by_label("A model of your own").set_input_files(model)
    page.get_by_role("button", name="Take net.onnx away").wait_for()
    page.get_by_label("Of a table: the column that it predicts").fill("label")
    page.get_by_label("Data to test it on").set_input_files(rows)
    page.get_by_role("button", name="Take rows.csv away").wait_for()
    page.locator("#understood").get_by_text(re.compile("classification of 2", re.I)).wait_for()
    page.get_by_role("button", name="Start").click()
    page.get_by_text("next in the queue").wait_for()
    (job,) = book.jobs()
    assert job.title == "net.onnx"
    book.begin(job.id, "hands")
    words = kinds.load("audit").argv(job.settings, job.folder)
    ended = subprocess.run([sys.executable, "-m", "assay", *words], env=os.environ, capture_output=True, timeout=300)
    assert ended.returncode in (0, 1, 3), ended.stderr
    book.finish(job.id, 1, "SUCCESS")
    page.get_by_text("passes").first.wait_for()
    page.get_by_role("link", name="Open the report").click()
    report = page.frame_locator("iframe")
    report.get_by_role("heading", name="net", exact=False).first.wait_for()
    report.locator("input").first.fill("right")  # its own script runs, and no other
    report.get_by_text("1 of 1 hold this word").wait_for()


def test_a_form_from_elsewhere_and_anothers_job(serve, browser, book):
    from assay.server import accounts

    book.create(accounts.tables)
    accounts.Accounts(book.engine).add("bob", "correct horse", "user")
    at = serve(accounts=True)
    job = book.submit("ada", "audit", "private matters", {"subject": "fashion-cnn"})
    page = browser.new_context().new_page()
    page.set_default_timeout(90_000)
    page.route(
        "https://elsewhere.example/*",
        lambda route: route.fulfill(
            content_type="text/html",
            body=f'<form method="post" action="{at}/jobs"><input name="kind" value="audit"><button>win</button></form>',
        ),
    )
    page.goto(f"{at}/sign-in")
    page.keyboard.press("Tab")
    page.get_by_label("Name").focus()
    page.keyboard.type("bob")
    page.keyboard.press("Tab")
    page.keyboard.type("correct horse")
    page.keyboard.press("Enter")  # no mouse
    page.get_by_role("heading", name="Can this model be trusted?").wait_for()
    assert page.goto(f"{at}/jobs/{job.id}").status == 404
    page.goto("https://elsewhere.example/")
    with page.expect_response(f"{at}/jobs") as answer:
        page.get_by_role("button", name="win").click()
    assert answer.value.status in (401, 403)
    assert len(book.jobs()) == 1
    page.context.close()


def small_model(path):
    """Two numbers in, two scores out: the first class where the first number is the smaller."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    weights = numpy_helper.from_array(np.array([[-9.0, 9.0], [9.0, -9.0]], np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 2])],
        [weights],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
