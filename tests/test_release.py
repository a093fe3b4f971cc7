"""Exercises are made from solutions, and nobody's answers are lost on the way."""

import nbformat
import pytest
from nbformat.v4 import new_output

from autograder.__main__ import main
from autograder.notebooks import read
from autograder.release import BEGIN, END, ReleaseError, make_release, release, strip_solution

from .little_course import answer_cell, solved_notebook


def test_exercise_holds_no_solution(course):
    release(course)
    text = (course.exercises / "01_numbers.ipynb").read_text()
    assert "2 * x" not in text
    assert "SOLUTION" not in text
    assert "Why two?" not in text  # a cell tagged "solution"
    assert "raise NotImplementedError" in text


def test_locked_cells_can_be_neither_edited_nor_deleted():
    exercise = make_release(solved_notebook())
    locked = [c for c in exercise.cells if c.metadata.nbgrader.locked]
    assert len(locked) == 3
    assert all(c.metadata.editable is False and c.metadata.deletable is False for c in locked)


def test_examples_keep_their_outputs_and_counts():
    notebook = solved_notebook()
    for count, cell in enumerate((c for c in notebook.cells if c.cell_type == "code"), 1):
        cell.execution_count = count
        cell.outputs = [new_output("stream", name="stdout", text="42")]
    kept = [c for c in make_release(notebook).cells if c.get("outputs")]
    assert [cell.metadata.nbgrader.grade_id for cell in kept] == ["setup"]
    assert kept[0].execution_count == 1


def test_release_is_repeatable(course):
    assert release(course) == {"01_numbers": "written"}
    assert release(course) == {"01_numbers": "unchanged"}


def test_answers_are_not_overwritten(course, capsys):
    release(course)
    path = course.exercises / "01_numbers.ipynb"
    notebook = read(path)
    notebook.cells[1].source = "def double(x):\n    return x + x"
    nbformat.write(notebook, path)
    assert main(["--course", str(course.root), "release"]) == 1
    assert "--force" in capsys.readouterr().out
    assert "x + x" in path.read_text()
    assert main(["--course", str(course.root), "release", "--force"]) == 0
    assert "x + x" not in path.read_text()


def test_indentation_and_text_around_a_solution_stay():
    source = f'def f(x):\n    """Doc."""\n    {BEGIN}\n    y = 1\n    {END}\n    # after'
    assert strip_solution(source, "f") == (
        'def f(x):\n    """Doc."""\n    raise NotImplementedError\n    # after'
    )


def test_stub_of_its_own():
    source = (
        f"{BEGIN}\ndef f(x):\n    return x\n{END}\n"
        "### BEGIN STUB\n# def f(x):\n#     return -x  # is this right?\n#\n### END STUB"
    )
    assert strip_solution(source, "f") == "def f(x):\n    return -x  # is this right?\n"


@pytest.mark.parametrize(
    "source",
    [
        f"{BEGIN}\n### BEGIN STUB\n### END STUB\n{END}",
        f"{BEGIN}\n1",
        f"1\n{END}",
        f"{BEGIN}\n{BEGIN}\n{END}",
        "def f(x):\n    return x",
    ],
)
def test_markers_that_do_not_pair_up(source):
    with pytest.raises(ReleaseError):
        strip_solution(source, "f")


def test_markers_outside_an_answer_cell():
    notebook = solved_notebook()
    notebook.cells[1] = answer_cell("double", f"{BEGIN}\n1\n{END}")
    notebook.cells[1].metadata.nbgrader.solution = False
    with pytest.raises(ReleaseError, match="outside an answer cell"):
        make_release(notebook)
