"""The chapters show what their code gives: fresh outputs, current quotes, figures in words."""

import base64
import os
import re
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "chapters.py"
CHAPTERS = sorted((ROOT / "book").glob("*.ipynb"))
MOST_SECONDS = 60
MOST_KB_A_FIGURE = 60

each_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)


def check(*paths):
    command = [sys.executable, str(TOOL), "--check", *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def refresh(path):
    command = [sys.executable, str(TOOL), str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def run_nbval(path):
    """Run a notebook under nbval in a process of its own, away from this project's settings."""
    command = [sys.executable, "-m", "pytest", "--nbval", path.name]
    command += ["-q", "-p", "no:cacheprovider", "-p", "no:autograder", "-c", os.devnull]
    command += ["--rootdir", str(path.parent)]
    return subprocess.run(
        command, cwd=path.parent, capture_output=True, text=True, timeout=4 * MOST_SECONDS
    )


@cache
def nbval_of_chapter(path):
    start = time.perf_counter()
    run = run_nbval(path)
    return run, time.perf_counter() - start


def tidy_copy(path, folder, change):
    """Write a copy that `change` altered, in the normal form, so that only the change is wrong."""
    nb = nbformat.read(path, as_version=4)
    change(nb)
    copy = folder / path.name
    data = path.parent / "data"  # what the chapter reads lies beside it
    if data.is_dir():
        (folder / "data").symlink_to(data)
    copy.write_text(
        nbformat.writes(nb, indent=1, sort_keys=True, ensure_ascii=False).rstrip("\n") + "\n",
        encoding="utf-8",
    )
    return copy


def code_cells(nb):
    return [cell for cell in nb.cells if cell.cell_type == "code"]


def test_there_are_chapters():
    assert CHAPTERS


def test_every_chapter_passes_the_check():
    run = check()
    assert run.returncode == 0, run.stdout + run.stderr


@each_chapter
def test_chapter_reproduces(path):
    run, _ = nbval_of_chapter(path)
    assert run.returncode == 0, run.stdout[-4000:]
    # One item a code cell: none was skipped or left out.
    cells = len(code_cells(nbformat.read(path, as_version=4)))
    assert f"{cells} passed" in run.stdout


@each_chapter
def test_chapter_runs_in_a_minute(path):
    _, seconds = nbval_of_chapter(path)
    assert seconds <= MOST_SECONDS


@each_chapter
def test_a_changed_number_fails(path, tmp_path):
    changed = []

    def change(nb):
        for position, cell in reversed(list(enumerate(nb.cells))):
            if cell.cell_type != "code" or "nbval-ignore-output" in cell.metadata.get("tags", []):
                continue
            for output in cell.outputs:
                if output.output_type == "stream" and re.search(r"\d", output.text):
                    last = re.compile(r"\d(?=\D*$)")
                    output.text = last.sub(lambda m: str((int(m[0]) + 1) % 10), output.text)
                    changed.append(position)
                    return

    copy = tidy_copy(path, tmp_path, change)
    assert len(changed) == 1, "the chapter prints no number"
    run = run_nbval(copy)
    assert run.returncode == 1, run.stdout[-4000:]
    assert "1 failed" in run.stdout, run.stdout[-4000:]


@each_chapter
def test_figures_are_small_and_have_alt_text(path):
    for cell in code_cells(nbformat.read(path, as_version=4)):
        for output in cell.outputs:
            png = output.get("data", {}).get("image/png")
            if png is None:
                continue
            alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
            assert len(alt) > 40, f"no alt text that says what to see: {cell.source[:60]}"
            assert len(base64.b64decode(png)) <= 1000 * MOST_KB_A_FIGURE


# --- what the check refuses ------------------------------------------------------------------


def chapter_with_a_quote():
    for path in CHAPTERS:
        nb = nbformat.read(path, as_version=4)
        if any("quote" in cell.metadata for cell in nb.cells):
            return path
    raise AssertionError("no chapter quotes the library")


def first(nb, wanted):
    return next(cell for cell in code_cells(nb) if wanted(cell))


def stale_quote(nb):
    first(nb, lambda cell: "quote" in cell.metadata).source += "\n# an old line"


def unknown_name(nb):
    cell = first(nb, lambda cell: "quote" in cell.metadata)
    cell.metadata["quote"] = "attention.in_numpy.single_head.hardmax"


def unknown_module(nb):
    first(nb, lambda cell: "quote" in cell.metadata).metadata["quote"] = "attention.nowhere.softmax"


def no_count(nb):
    code_cells(nb)[1].execution_count = None


def counts_out_of_order(nb):
    code_cells(nb)[1].execution_count = 40


def error_output(nb):
    code_cells(nb)[1].outputs.append(
        nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=[])
    )


def stderr_output(nb):
    code_cells(nb)[1].outputs.append(
        nbformat.v4.new_output("stream", name="stderr", text="a warning\n")
    )


def figure_without_words(nb):
    del first(nb, lambda cell: "mystnb" in cell.metadata).metadata["mystnb"]


def editor_state(nb):
    code_cells(nb)[0].metadata["scrolled"] = True


def other_kernel(nb):
    nb.metadata.kernelspec.display_name = "my kernel"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (stale_quote, "which has changed since"),
        (unknown_name, "defines no 'hardmax'"),
        (unknown_module, "there is no module 'attention.nowhere'"),
        (no_count, "has no execution count"),
        (counts_out_of_order, "has execution count 40, in a fresh run it is 2"),
        (error_output, "ends in an error: ValueError: no"),
        (stderr_output, "writes to stderr: a warning"),
        (figure_without_words, "shows a figure without alt text"),
        (editor_state, "not in its normal form"),
        (other_kernel, "not in its normal form"),
    ],
)
def test_check_refuses(change, message, tmp_path):
    copy = tidy_copy(chapter_with_a_quote(), tmp_path, change)
    run = check(copy)
    assert run.returncode == 1
    complaints = [line for line in run.stdout.splitlines() if line.startswith(str(copy))]
    assert len(complaints) == 1, run.stdout
    assert message in complaints[0]


def test_an_unchanged_copy_passes_the_check(tmp_path):
    copy = tidy_copy(chapter_with_a_quote(), tmp_path, lambda nb: None)
    run = check(copy)
    assert run.returncode == 0, run.stdout


# --- the tool at work ------------------------------------------------------------------------


def test_the_tool_renews_quotes_and_outputs_and_then_leaves_the_file_alone(tmp_path):
    nb = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_markdown_cell("# A page"),
            nbformat.v4.new_code_cell("import math\n\nimport numpy as np"),
            nbformat.v4.new_code_cell(
                "stale",
                metadata={
                    "quote": [
                        "attention.in_numpy.single_head.as_floating",
                        "attention.in_numpy.single_head.softmax",
                    ],
                    "scrolled": True,
                },
            ),
            nbformat.v4.new_code_cell("print(softmax([1, 1, 1, 1]))"),
        ]
    )
    path = tmp_path / "page.ipynb"
    nbformat.write(nb, path)
    runs = [refresh(path), refresh(path)]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    assert "updated" in runs[0].stdout
    assert "unchanged" in runs[1].stdout
    made = nbformat.read(path, as_version=4)
    assert made.cells[2].source.startswith("def as_floating(")
    assert '"""' in made.cells[2].source
    assert "\n\n\ndef softmax(" in made.cells[2].source
    assert set(made.cells[2].metadata) == {"quote"}
    assert made.cells[3].outputs[0].text == "[0.25 0.25 0.25 0.25]\n"
    assert [cell.execution_count for cell in code_cells(made)] == [1, 2, 3]


def test_a_failing_cell_is_reported_and_the_file_left_as_it_was(tmp_path):
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    path = tmp_path / "page.ipynb"
    nbformat.write(nb, path)
    before = path.read_bytes()
    run = refresh(path)
    assert run.returncode == 1
    assert "ZeroDivisionError" in run.stderr
    assert path.read_bytes() == before
