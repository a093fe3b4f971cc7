"""Fixtures: a little course, made anew for each test that asks for it, and a warm server."""

import os

import nbformat
import pytest
from nbformat.v4 import new_code_cell

from autograder.course import Course
from autograder.sandbox import Server

from .little_course import CHECKS, MISTAKES, PYPROJECT, solved_notebook


def pytest_configure():
    """Before PyTorch is imported: on small arrays more threads would only wait for each other."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def course(tmp_path):
    root = tmp_path / "course"
    for folder in ("solutions", "exercises", "tests/checks", "tests/mistakes"):
        (root / folder).mkdir(parents=True)
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "tests/checks/numbers.py").write_text(CHECKS)
    (root / "tests/mistakes/numbers.py").write_text(MISTAKES)
    nbformat.write(solved_notebook(), root / "solutions/01_numbers.ipynb")
    return Course(root)


@pytest.fixture(scope="session")
def server():
    """One warm server for all tests."""
    with Server(["answers_of_this_course"]) as running:
        running.start()
        yield running


@pytest.fixture
def hand_in(course, tmp_path):
    """Return a function that writes a notebook with the given sources of answer cells."""

    def write(name="01_numbers.ipynb", extra=(), **answers):
        notebook = solved_notebook()
        for cell in notebook.cells:
            answer = cell.metadata.get("nbgrader", {}).get("grade_id")
            if answer in answers:
                cell.source = answers[answer]
        notebook.cells[1:1] = [new_code_cell(source) for source in extra]
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, path)
        return path

    return write


def pytest_sessionfinish(session):
    """Where ``NO_SKIPS`` is set (in CI), a skipped test fails the run unless it needs a GPU."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or not os.environ.get("NO_SKIPS"):
        return
    skipped = [report for report in terminal.getreports("skipped") if "gpu" not in report.keywords]
    if skipped:
        terminal.line(f"{len(skipped)} skipped where no skip is allowed", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
