"""What a grade is: points, status and words for every state a notebook can be in."""

import copy

import nbformat
import numpy as np
import pytest

from autograder import sandbox
from autograder.checks import Question, expect
from autograder.grade import grade, grade_question
from autograder.learner import LiveLearner
from autograder.notebooks import read
from autograder.release import make_release

RIGHT = {"double": "def double(x):\n    return x + x", "half": "def half(x):\n    return 0.5 * x"}


@pytest.fixture
def graded(course, server, hand_in):
    """Return a function that grades answers and returns ``{question: result}`` and the report."""

    def run(seed=0, **cells):
        report = grade(hand_in(**cells), course, server, seed)
        return {q.id: q for q in report.questions}, report

    return run


def test_right_answers_earn_full_marks(graded):
    results, report = graded(**RIGHT)
    assert report
    assert report.points == report.max_points == 3.5
    assert {q.status for q in results.values()} == {"passed"}


def test_untouched_notebook_scores_nothing(course, server, tmp_path):
    path = tmp_path / "01_numbers.ipynb"
    nbformat.write(make_release(read(course.solutions / "01_numbers.ipynb")), path)
    report = grade(path, course, server)
    assert report.points == 0
    assert [q.status for q in report.questions] == ["not_attempted", "not_attempted"]
    assert not report


def test_partial_answer(graded):
    results, _ = graded(double="def double(x):\n    return np.clip(2 * x, -100, 100)")
    result = results["double"]
    assert (result.points, result.status) == (1.0, "partial")
    assert [c.passed for c in result.checks] == [True, False]
    assert "Two items are infinite." in result.feedback
    assert "Twice" in result.feedback  # the section to reread


def test_wrong_answer_shows_one_row(graded):
    results, _ = graded(half="def half(x):\n    return x / 3")
    assert results["half"].status == "failed"
    assert "half(x) differs: got [" in results["half"].feedback


def test_exception_shows_the_learners_line(graded):
    results, _ = graded(half="def half(x):\n    y = x.halve()\n    return y")
    assert results["half"].status == "error"
    assert "AttributeError" in results["half"].feedback
    assert "in your line 2:  y = x.halve()" in results["half"].feedback
    assert results["double"].status == "passed"


@pytest.mark.parametrize(
    "source",
    [
        "def half(x):\n    while True:\n        pass",
        "import time\ndef half(x):\n    time.sleep(1e6)",
        "def half(x):\n    try:\n        while 1: pass\n    except BaseException: return half(x)",
    ],
)
def test_hang_costs_that_question_alone(graded, course, source):
    course.questions("01_numbers")[1].seconds = 0.3
    results, _ = graded(half=source)
    assert results["half"].status == "timeout"
    assert "0.3 seconds" in results["half"].feedback
    assert results["double"].status == "passed"


def test_hang_in_a_first_question_leaves_the_second(graded):
    results, _ = graded(double="def double(x):\n    while True: pass")
    assert results["double"].status == "timeout"
    assert results["half"].status == "passed"


def test_crash_costs_that_question_alone(graded):
    results, _ = graded(double="import os\ndef double(x):\n    os._exit(0)")
    assert results["double"].status == "crashed"
    assert "exit status 0" in results["double"].feedback
    assert results["half"].status == "passed"


def test_system_exit_is_an_error(graded):
    results, _ = graded(double="def double(x):\n    raise SystemExit(0)")
    assert results["double"].status == "error"
    assert "SystemExit" in results["double"].feedback


def test_deleted_answer_is_missing(graded):
    results, _ = graded(double="")
    assert results["double"].status == "missing"
    assert results["half"].status == "passed"


def test_syntax_error_is_shown(graded):
    results, _ = graded(double="def double(x)\n    return 2 * x")
    assert results["double"].status == "error"
    assert "SyntaxError" in results["double"].feedback
    assert "line 1" in results["double"].feedback


def test_error_after_the_definition_does_no_harm(graded):
    results, _ = graded(double="def double(x):\n    return 2 * x\n\nprint(undefined)")
    assert results["double"].status == "passed"


def test_cell_that_hangs_when_it_runs(graded, monkeypatch):
    monkeypatch.setattr(sandbox, "CELL_SECONDS", 0.3)
    results, _ = graded(double="while True: pass")
    assert {name: q.status for name, q in results.items()} == {
        "double": "timeout",
        "half": "passed",
    }


def test_helpers_in_other_cells_count(graded):
    _, report = graded(
        extra=["def plus(a, b):\n    return a + b"],
        double=("def double(x):\n    return plus(x, x)"),
    )
    assert report


def test_error_in_one_cell_does_not_stop_the_next(graded):
    _, report = graded(extra=["1 / 0", "%matplotlib inline", "!ls /", "await_me = 1"], **RIGHT)
    assert report


def test_cell_magic_on_an_answer(graded):
    _, report = graded(double="%%time\n" + RIGHT["double"])
    assert report


def test_notebook_that_awaits(graded):
    _, report = graded(
        extra=["import asyncio\nawait asyncio.sleep(0)\nfactor = 2"],
        double=("def double(x):\n    return factor * x"),
    )
    assert report


@pytest.mark.parametrize(
    "source",
    [
        "import math\ndef double(x):\n    return math.prod([2, x])",
        "from math import prod as p\ndef double(x):\n    return p([2, x])",
        "import math as m\ndef f(x):\n    return m.prod([2, x])\ndef double(x):\n    return f(x)",
        "def double(x):\n    from math import prod\n    return prod([2, x])",
        "import math\ndouble = lambda x: getattr(math, 'prod')([2, x])",
        "def double(x):\n    return x.dot(2)",
    ],
)
def test_ready_made_answer_is_forbidden(graded, source):
    results, _ = graded(double=source)
    assert results["double"].status == "forbidden"
    assert results["double"].points == 0
    assert results["half"].status == "passed"


def test_forbidden_name_under_an_alias_of_a_locked_cell(graded, course):
    course.questions("01_numbers")[0].forbid += ("numpy.add",)  # `np` comes from the set-up cell
    results, _ = graded(double="def double(x):\n    return np.add(x, x)")
    assert results["double"].status == "forbidden"
    assert "numpy.add" in results["double"].feedback


def test_forbidden_name_elsewhere_is_fine(graded):
    _, report = graded(extra=["import math\nproof = math.prod([1, 2])"], **RIGHT)
    assert report


@pytest.mark.parametrize("name", ["attention", "tests", "answers_of_this_course"])
def test_answer_key_cannot_be_imported(graded, name):
    results, _ = graded(double=f"def double(x):\n    import {name}\n    return 2 * x")
    assert results["double"].status == "error"
    assert "ModuleNotFoundError" in results["double"].feedback


def test_check_is_a_stub_while_graded(graded):
    _, report = graded(extra=["from autograder import check\nassert check('half')"], **RIGHT)
    assert report


def test_same_seed_same_report(course, server, hand_in):
    path = hand_in(double="def double(x):\n    return x**2", half="def half(x):\n    return x")
    first, second, other = (grade(path, course, server, seed).as_json() for seed in (7, 7, 8))
    assert first == second
    assert first != other


def test_what_a_result_may_be(graded):
    """Results that are no plain array are judged, and never break the judge."""
    for value, said in [
        ("None", "is None"),
        ("[1, 2]", "list of 2 items"),
        ("'text'", "of type str"),
        ("(i for i in x)", "of type generator"),
        ("np.array([object()])", "of type ndarray"),
        ("{1: 2}", "of type dict"),
        ("x[:1]", "has shape (1,); expected (4,)"),
    ]:
        results, _ = graded(half=f"import numpy as np\ndef half(x):\n    return {value}")
        assert results["half"].status == "failed", value
        assert said in results["half"].feedback


def test_result_that_changes_after_it_was_handed_over(graded):
    source = (
        "import threading, time\n"
        "def half(x):\n"
        "    y = x / 2\n"
        "    threading.Timer(0.05, lambda: y.fill(0)).start()\n"
        "    return y"
    )
    results, _ = graded(half=source)
    assert results["half"].status == "passed"


def test_subclass_that_claims_to_be_equal(graded):
    source = (
        "import numpy as np\n"
        "class Yes(np.ndarray):\n"
        "    def __eq__(self, other): return True\n"
        "    def __array__(self, *a, **k): return np.zeros(4)\n"
        "def half(x):\n    return np.zeros(4).view(Yes)"
    )
    results, _ = graded(half=source)
    assert results["half"].points == 0


def test_report_has_the_agreed_shape(graded):
    _, report = graded(seed=5, half="def half(x):\n    return x")
    data = report.as_dict()
    assert list(data)[:2] == ["schema", "status"]
    assert data["schema"] == 1
    assert data["status"] == "graded"
    assert data["seed"] == 5
    assert data["notebook"] == "01_numbers"
    assert data["isolation"]["time"] is True
    assert data["points"] == 1.5
    assert data["max_points"] == 3.5
    half = data["questions"][1]
    assert {"id", "points", "max_points", "status", "mistake", "feedback", "checks"} == set(half)
    assert half["checks"][0]["name"] == "values_are_halved"
    assert half["checks"][0]["passed"] is False


def test_tensors_come_back(course, server):
    torch = pytest.importorskip("torch")
    from autograder.sandbox import SandboxedLearner

    source = "import torch\ndef twice(x):\n    return (2 * x, x.bfloat16())"
    learner = SandboxedLearner(server, [("a", source)])
    doubled, low = learner.call("twice", torch.tensor([1.5, 2.5], requires_grad=True))
    learner.close()
    assert low.dtype == torch.bfloat16
    assert np.array_equal(doubled.detach().numpy(), [3.0, 5.0])


def test_modules_stay_and_are_used_through_a_handle(server):
    torch = pytest.importorskip("torch")
    from autograder.sandbox import SandboxedLearner

    source = (
        "import torch\n"
        "class Twice(torch.nn.Module):\n"
        "    def __init__(self, d):\n"
        "        super().__init__()\n"
        "        self.w = torch.nn.Parameter(torch.full((d,), 2.0))\n"
        "    def forward(self, x):\n"
        "        return self.w * x"
    )
    learner = SandboxedLearner(server, [("a", source)])
    module = learner.call("Twice", 3)
    result = learner.method(module, "forward", torch.arange(3.0))
    weight = learner.attribute(module, "w")
    state = {"w": torch.tensor([1.0, 2.0, 3.0])}
    step = learner.step(module, torch.arange(3.0), upstream=[torch.full((3,), 2.0)], state=state)
    names = list(learner.method(module, "state_dict"))
    learner.close()
    assert names == ["w"]
    assert torch.equal(step["output"], torch.tensor([0.0, 2.0, 6.0]))
    assert torch.equal(step["gradients"]["w"], torch.tensor([0.0, 2.0, 4.0]))
    assert torch.equal(step["input_gradients"][0], torch.tensor([2.0, 4.0, 6.0]))
    assert module.type == "Twice"
    assert torch.equal(result, torch.tensor([0.0, 2.0, 4.0]))
    assert torch.equal(weight, torch.full((3,), 2.0))
    assert result.requires_grad


def test_answer_that_calls_an_unwritten_one_says_so(graded):
    results, _ = graded(
        double="def double(x):\n    raise NotImplementedError",
        half="def half(x):\n    return double(x) / 4",
    )
    assert results["double"].status == "not_attempted"
    assert results["half"].status == "error"
    assert "calls `double`, which is still to be written" in results["half"].feedback


def test_answer_that_uses_a_wrong_one_is_told_so(graded, course):
    course.questions("01_numbers")[1].seconds = 0.5
    results, _ = graded(
        double="def double(x):\n    return x + 1",
        half="def helper(x):\n    return double(x)\ndef half(x):\n    return helper(x) / 4",
    )
    assert results["half"].feedback.startswith("This answer uses `double`, which is not right yet")
    results, _ = graded(
        double="def double(x):\n    while True: pass",
        half="def half(x):\n    return double(x) / 4",
    )
    assert results["half"].status == "timeout"
    assert results["half"].feedback.startswith("This answer uses `double`, which is not right yet")
    for innocent in (
        "def half(x):\n    return double(x) / 3",  # `double` is right
        "def half(x, double=2):\n    return x / double / 3",
        "def half(x):\n    double = 6\n    return x / double",
    ):
        wrong = {} if "double(x)" in innocent else {"double": "def double(x):\n    return x"}
        results, _ = graded(half=innocent, **wrong)
        assert results["half"].status == "failed"
        assert "This answer uses" not in results["half"].feedback


def changed(path, change):
    """Change a notebook that was handed in, as its author might."""
    notebook = read(path)
    change(notebook)
    nbformat.write(notebook, path)
    return path


def edit_points(notebook):
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("points"):
            cell.metadata.nbgrader.points = 1000
            cell.source = "assert True"


def strip_metadata(notebook):
    notebook.metadata.clear()
    for cell in notebook.cells:
        cell.metadata.clear()


def rename_ids(notebook):
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader"):
            cell.metadata.nbgrader.grade_id += "-2"


def double_an_answer(notebook):
    notebook.cells.append(copy.deepcopy(notebook.cells[1]))
    notebook.cells[-1].id = "again"


def delete_checks_and_set_up(notebook):
    notebook.cells = [
        cell for cell in notebook.cells if not cell.metadata.get("nbgrader", {}).get("locked")
    ]


def nest_deeply(notebook):
    nested = []
    for _ in range(300):
        nested = [nested]
    notebook.metadata["deep"] = nested


@pytest.mark.parametrize(
    "change",
    [
        edit_points,
        strip_metadata,
        rename_ids,
        double_an_answer,
        delete_checks_and_set_up,
        nest_deeply,
    ],
)
@pytest.mark.parametrize("wrong", [False, True])
def test_changed_notebook_gets_what_its_answers_earn(course, server, hand_in, change, wrong):
    answers = RIGHT | ({"half": "def half(x):\n    return x"} if wrong else {})
    report = grade(changed(hand_in(**answers), change), course, server)
    assert report.points == (1.5 if wrong else 3.5)
    assert report.max_points == 3.5


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ndef half(x):\n    return torch.ops.aten.div(torch.tensor(x), 2).numpy()",
        "import torch as t\nhalf = lambda x: getattr(t.ops, 'aten').div(t.tensor(x), 2).numpy()",
        "from torch import ops as o\ndef half(x):\n    return o.aten.div(x, 2)",
    ],
)
def test_ready_made_answer_of_torch_ops_is_forbidden(graded, course, source):
    course.questions("01_numbers")[1].forbid = ("torch",)
    results, _ = graded(half=source)
    assert results["half"].status == "forbidden"


def test_what_no_check_foresaw_costs_its_points_and_nothing_else():
    question = Question("f", section="F")

    @question.check(points=1.0)
    def total_is_right(learner, rng):
        expect(learner.call("f", 1)["total"] == 1, "The total is wrong.")

    @question.check(points=1.0)
    def anything_will_do(learner, rng):
        learner.call("f", 1)

    result = grade_question(question, LiveLearner({"f": lambda x: None}), 0)
    assert result.points == 1.0
    assert "cannot be checked (TypeError" in result.checks[0].message
