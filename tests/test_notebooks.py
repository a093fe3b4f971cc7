"""Reading and merging what people hand in."""

import copy

import nbformat
import pytest
from nbformat.v4 import new_code_cell

from autograder.notebooks import Unreadable, as_text, code_cells, merge, read, to_python
from autograder.release import make_release

from .little_course import solved_notebook


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"{", "not JSON"),
        (b"\xff\xfe{\x00}", "UTF-8"),
        (b"[]", "not a notebook"),
        (b"3", "not a notebook"),
        (b'{"cells": 3, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}', "not a notebook"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_unreadable_files_say_why(tmp_path, content, reason):
    path = tmp_path / "a.ipynb"
    path.write_bytes(content)
    with pytest.raises(Unreadable, match=reason):
        read(path)


def test_missing_file_says_why(tmp_path):
    with pytest.raises(Unreadable, match="no such file"):
        read(tmp_path / "a.ipynb")


def test_huge_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "a.ipynb"
    with open(path, "wb") as file:
        file.truncate(500_000_000)  # a sparse file: it takes no room
    with pytest.raises(Unreadable, match=r"500,000,000 bytes; at most 50,000,000"):
        read(path)


def test_older_format_is_read(tmp_path):
    path = tmp_path / "a.ipynb"
    old = nbformat.v3.new_notebook(
        worksheets=[nbformat.v3.new_worksheet(cells=[nbformat.v3.new_code_cell("x = 1")])]
    )
    path.write_text(nbformat.v3.writes_json(old))
    assert read(path).cells[0].source == "x = 1"


def test_merge_puts_locked_cells_back():
    pristine = make_release(solved_notebook())
    theirs = copy.deepcopy(pristine)
    theirs.cells[1].source = "def double(x): return 2 * x"
    theirs.cells[2].source = "assert True"  # a check cell rewritten
    del theirs.cells[0]  # the set-up deleted
    theirs.cells.append(copy.deepcopy(pristine.cells[4]))  # a check cell twice
    theirs.cells.append(new_code_cell("extra = 1"))
    sources = [cell.source for cell in merge(theirs, pristine).cells]
    assert sources == [
        "import numpy as np\n\nfrom autograder import check",
        "def double(x): return 2 * x",
        'assert check("double")',
        "def half(x):\n    raise NotImplementedError",
        'assert check("half")',
        "extra = 1",
    ]


def test_cells_of_one_id_get_different_names():
    notebook = solved_notebook()
    notebook.cells.append(copy.deepcopy(notebook.cells[1]))
    names = [name for name, _, _ in code_cells(notebook)]
    assert len(names) == len(set(names)) == 6


def test_magics_keep_line_numbers():
    assert to_python("%%time\nx = 1\ny = 2").split("\n")[2] == "y = 2"
    assert to_python("x = 100 % 7") == "x = 100 % 7"
    assert "run_line_magic" in to_python("%matplotlib inline\nx = 1")


def test_text_of_a_notebook_does_not_depend_on_its_history():
    notebook = solved_notebook()
    first = as_text(copy.deepcopy(notebook))
    for cell in notebook.cells:
        cell.metadata["execution"] = {"iopub.execute_input": "2026-01-01"}
    notebook.metadata["language_info"] = {"name": "python", "version": "3.13.1"}
    assert as_text(notebook) == first
