"""A course of one notebook and two questions, to test the grader on."""

from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

CHECKS = """
import numpy as np

from autograder.checks import Question, expect_close

double = Question("double", section="Twice", forbid=("math.prod", ".dot"), seconds=1.0)


@double.check(points=1.0)
def integers_are_doubled(learner, rng):
    x = rng.integers(-5, 6, size=(2, 3))
    expect_close(learner.call("double", x), 2 * x, "double(x)")


@double.check(points=0.5)
def infinities_stay(learner, rng):
    x = np.array([np.inf, -np.inf, rng.normal()])
    expect_close(learner.call("double", x), 2 * x, "double(x)", note="Two items are infinite.")


half = Question("half", section="Halves")


@half.check(points=2.0)
def values_are_halved(learner, rng):
    x = rng.normal(size=4)
    expect_close(learner.call("half", x), x / 2, "half(x)")
"""

MISTAKES = """
from autograder.mistakes import mistake


@mistake("double", believed="Twice is squared.", tell="Try it with 3.", section="Twice")
def double_squares(x):
    return x**2
"""

PYPROJECT = """
[tool.autograder]
solutions = "solutions"
exercises = "exercises"
checks = "tests/checks"
mistakes = "tests/mistakes"
answer_key = ["answers_of_this_course"]
"""


def cell_metadata(name, *, grade=False, locked=False, solution=False, points=None):
    found = {"schema_version": 3, "grade_id": name, "grade": grade, "locked": locked}
    found |= {"solution": solution, "task": False}
    if points is not None:
        found["points"] = points
    return {"nbgrader": found}


def answer_cell(name, source):
    return new_code_cell(source, id=name, metadata=cell_metadata(name, solution=True))


def check_cell(name, points):
    return new_code_cell(
        f'assert check("{name}")',
        metadata=cell_metadata(f"check_{name}", grade=True, locked=True, points=points),
    )


def solved_notebook():
    """Return the solution notebook of the little course."""
    solution = "def {0}(x):\n    ### BEGIN SOLUTION\n    return {1}\n    ### END SOLUTION"
    notebook = new_notebook(
        cells=[
            new_code_cell(
                "import numpy as np\n\nfrom autograder import check",
                metadata=cell_metadata("setup", locked=True),
            ),
            answer_cell("double", solution.format("double", "2 * x")),
            check_cell("double", 1.5),
            new_markdown_cell("Why two?", metadata={"tags": ["solution"]}),
            answer_cell("half", solution.format("half", "x / 2")),
            check_cell("half", 2.0),
        ]
    )
    notebook.metadata["autograder"] = {"notebook": "01_numbers"}
    return notebook
