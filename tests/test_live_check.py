"""``check`` in a notebook: the same verdicts, in the kernel's own namespace."""

import numpy as np
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

import autograder


@pytest.fixture
def check(course, monkeypatch):
    """Return a function that runs ``check`` as a cell of a notebook with the given names would."""
    monkeypatch.chdir(course.root)

    def run(*arguments, **names):
        cell = {"check": autograder.check} | names
        exec(f"report = check(*{arguments!r})", cell)
        return cell["report"]

    return run


def test_right_answer(check, capsys):
    report = check("double", double=lambda x: 2 * x)
    assert report
    assert report.points == 1.5
    assert "All points" in capsys.readouterr().out


def test_wrong_answer_is_falsy_and_shown(check, capsys):
    report = check("double", double=lambda x: x**2)
    assert not report
    assert "expected" in capsys.readouterr().out


def test_cell_that_was_not_run(check, capsys):
    assert not check("double")
    assert "run its cell first" in capsys.readouterr().out


def test_all_questions(check):
    report = check(double=lambda x: 2 * x, half=lambda x: x / 2)
    assert report
    assert [q.id for q in report.questions] == ["double", "half"]


def test_unknown_question_names_the_known_ones(check):
    with pytest.raises(ValueError, match="double, half"):
        check("treble")


def test_argument_of_a_check_cannot_be_changed_by_the_answer(check):
    def double(x):
        x *= 2
        return x

    assert check("double", double=double)


def test_interrupt_reaches_the_notebook(check):
    def double(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check("double", double=double)


def test_warnings_and_prints_of_the_answer_stay_quiet(check, capsys):
    def double(x):
        print("noise")
        np.log(-1.0)
        return 2 * x

    assert check("double", double=double)
    assert "noise" not in capsys.readouterr().out


def test_unwritten_answer(check, capsys):
    def double(x):
        raise NotImplementedError

    report = check("double", double=double)
    assert report.questions[0].status == "not_attempted"


def test_ready_made_answers_are_refused_in_a_notebook_too(course):
    """What counts is what each name stands for now, not what has been tried before."""
    look = "found = check('double')\nprint('->', found.questions[0].status)"
    cells = [
        "from autograder import check",
        "%time\ndef helper(x):\n    return x.dot(2)\ndef double(x):\n    return helper(x)",
        look,
        "def helper(x):\n    return x + x",
        look,
        f"from math import prod as double\n{look}",
    ]
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, resources={"metadata": {"path": course.root}}).execute()
    printed = [o.text for cell in notebook.cells for o in cell.outputs if "text" in o]
    said = [text.split()[-1] for text in printed if text.startswith("->")]
    assert said == ["forbidden", "passed", "forbidden"]
