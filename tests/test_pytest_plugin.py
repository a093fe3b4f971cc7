"""What a learner sees in the terminal: items, table, next step, exit status."""

import json
import shutil
import subprocess
import sys

import nbformat
import pytest

from autograder.notebooks import read
from autograder.release import release

RIGHT = {"double": "def double(x):\n    return x + x", "half": "def half(x):\n    return 0.5 * x"}


@pytest.fixture
def run(tmp_path):
    """Return a function that runs pytest in a process of its own, in any folder."""

    def start(*arguments, cwd=tmp_path):
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *map(str, arguments)],
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=100,
        )

    return start


@pytest.fixture
def exercise(course):
    """Return the path of the untouched exercise."""
    release(course)
    return course.exercises / "01_numbers.ipynb"


def fill_in(path, **answers):
    notebook = read(path)
    for cell in notebook.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        cell.source = answers.get(name, cell.source)
    nbformat.write(notebook, path)


def test_untouched_notebook_says_what_is_next(run, course, exercise):
    result = run("exercises/", cwd=course.root)
    assert result.returncode == 1
    assert "3 to do" in result.stdout
    assert "double" in result.stdout
    assert "0/1.5" in result.stdout
    assert "not attempted" in result.stdout
    assert "Next: double" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr
    assert "FAILURES" not in result.stdout
    ours = result.stdout[result.stdout.index("= points =") :].splitlines()[1:]
    assert max(map(len, ours)) <= 80


def test_solutions_earn_full_marks(run, course):
    result = run("solutions/", cwd=course.root)
    assert result.returncode == 0
    assert "3 passed" in result.stdout
    assert "All points" in result.stdout


def test_items_read_as_sentences(run, course, exercise):
    result = run("exercises/", "--collect-only", "-q", cwd=course.root)
    assert "01_numbers.ipynb::double: infinities stay" in result.stdout


def test_first_failure_is_shown_and_not_all(run, course, exercise):
    fill_in(exercise, double="def double(x):\n    return x**2", half="def half(x):\n    return x")
    result = run("exercises/", cwd=course.root)
    assert result.returncode == 1
    assert result.stdout.count("got [") == 1
    assert "Next: double (integers are doubled)" in result.stdout


def test_next_is_about_what_was_asked_for(run, course, exercise):
    fill_in(exercise, half="def half(x):\n    return x")
    result = run("exercises/", "-k", "half", cwd=course.root)
    assert "Next: half" in result.stdout
    assert "Next: double" not in result.stdout


def test_verbose_shows_every_check(run, course, exercise):
    fill_in(exercise, double="def double(x):\n    return 2 * x")
    result = run("exercises/", "-v", cwd=course.root)
    assert "✓ integers are doubled" in result.stdout
    assert "✗ values are halved" in result.stdout


@pytest.mark.parametrize("keep_metadata", [True, False])
def test_copied_and_renamed_notebook_from_another_folder(
    run, course, exercise, tmp_path, keep_metadata, monkeypatch
):
    fill_in(exercise, **RIGHT)
    copy = tmp_path / "elsewhere" / "my homework.ipynb"
    copy.parent.mkdir()
    shutil.copy(exercise, copy)
    if not keep_metadata:
        notebook = read(copy)
        notebook.metadata = nbformat.NotebookNode()
        for cell in notebook.cells:
            cell.metadata = nbformat.NotebookNode()
        nbformat.write(notebook, copy)
    monkeypatch.setenv("AUTOGRADER_COURSE", str(course.root))
    result = run(copy, cwd=tmp_path)
    assert result.returncode == 0, result.stdout
    assert "3 passed" in result.stdout


def test_broken_file_is_unreadable(run, course):
    path = course.exercises / "01_numbers.ipynb"
    path.write_text("{ this is no notebook")
    result = run("exercises/", cwd=course.root)
    assert result.returncode == 1
    assert "unreadable" in result.stdout
    assert "not JSON" in result.stdout
    assert "Traceback" not in result.stdout


def test_platform_that_cannot_fork_says_what_to_do(run, course, exercise):
    (course.root / "conftest.py").write_text("import os\ndel os.fork\n")
    result = run("exercises/", cwd=course.root)
    assert result.returncode != 0
    assert "needs a system that can fork" in result.stdout
    assert "WSL" in result.stdout
    assert "Traceback" not in result.stdout


def test_files_beside_the_notebook_are_not_imported(run, course, exercise):
    fill_in(exercise, **RIGHT)
    for name in ("numpy.py", "torch.py", "sitecustomize.py", "answers.py"):
        (exercise.parent / name).write_text("raise SystemExit('imported')")
    result = run("exercises/01_numbers.ipynb", cwd=course.root)
    assert result.returncode == 0, result.stdout


def test_nbval_runs_the_notebook_with_pristine_check_cells(run, course, exercise):
    pytest.importorskip("nbval")
    fill_in(exercise, **RIGHT | {"half": "def half(x):\n    return x", "check_half": "pass"})
    result = run("exercises/", "--nbval-lax", cwd=course.root)
    assert result.returncode == 1
    assert "AssertionError" in result.stdout  # the learner had emptied that cell
    assert "01_numbers.ipynb::Cell 4" in result.stdout
    fill_in(exercise, half=RIGHT["half"])
    result = run("exercises/", "--nbval-lax", cwd=course.root)
    assert result.returncode == 0, result.stdout
    assert "8 passed" in result.stdout  # three checks and five cells


def test_other_notebooks_are_left_alone(run, course, tmp_path):
    chapter = course.root / "book" / "01_numbers.ipynb"
    chapter.parent.mkdir()
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell("def double(x):\n    return 2 * x")]
    nbformat.write(notebook, chapter)
    result = run("book/", "--nbval-lax", cwd=course.root)
    assert result.returncode == 0
    assert "1 passed" in result.stdout
    assert "double:" not in result.stdout


def test_grade_prints_json(course, exercise):
    fill_in(exercise, **RIGHT)
    command = [sys.executable, "-m", "autograder", "grade", exercise, "--json", "-", "--seed", "3"]
    result = subprocess.run(command, cwd=course.root, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["points"] == 3.5


def test_grade_without_a_place_for_reports(course, exercise):
    command = [sys.executable, "-m", "autograder", "grade", exercise]
    result = subprocess.run(command, cwd=course.root, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "--out DIR" in result.stderr
