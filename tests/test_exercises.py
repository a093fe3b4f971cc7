"""Every exercise is graded justly: right answers earn all points, wrong ones lose some."""

import functools
import importlib.util
from pathlib import Path

import nbformat
import pytest

from autograder.course import Course, module_name
from autograder.forbidden import find_forbidden
from autograder.grade import grade, grade_question, run_check
from autograder.learner import LiveLearner
from autograder.notebooks import as_text
from autograder.release import make_release

ROOT = Path(__file__).parents[1]
COURSE = Course(ROOT)
STEMS = COURSE.stems()
QUESTIONS = {question.id: question for stem in STEMS for question in COURSE.questions(stem)}
MISTAKES = [mistake for stem in STEMS for mistake in COURSE.mistakes(stem)]
VARIANTS = {stem: importlib.import_module(f"tests.variants.{module_name(stem)}") for stem in STEMS}
SEEDS = range(3)

each_notebook = pytest.mark.parametrize("stem", STEMS)
each_question = pytest.mark.parametrize("name", QUESTIONS)


def failures(name, answer, seed):
    """Run all checks of a question: ``{check: (kind, message)}`` of those that do not hold."""
    question, learner = QUESTIONS[name], LiveLearner({name: answer})
    found = {check.name: run_check(question, check, learner, seed) for check in question.checks}
    return {check: result for check, result in found.items() if result[0] != "passed"}


def answers(kind):
    """List the answers of one kind (``RIGHT``, ``TRIVIAL``, ``NEW_WRONG``) of all notebooks."""
    return [
        pytest.param(name, answer, id=f"{name}: {how}")
        for stem in STEMS
        for name, found in getattr(VARIANTS[stem], kind).items()
        for how, answer in found.items()
    ]


def read(path):
    return nbformat.read(path, as_version=4)


def nbgrader(cell):
    return cell.metadata.get("nbgrader", {})


# --- right answers ---


@pytest.mark.parametrize(("name", "answer"), answers("RIGHT"))
def test_right_answers_earn_all_points_however_they_are_written(name, answer):
    for seed in range(8):
        assert failures(name, answer, seed) == {}


@each_question
def test_the_checks_hold_for_every_seed(name):
    answer = next(iter(found[name] for v in VARIANTS.values() if name in (found := v.RIGHT)))
    right = next(iter(answer.values()))
    for seed in range(60):
        assert failures(name, right, seed) == {}


@each_notebook
def test_every_question_has_many_right_answers_and_some_wrong_ones(stem):
    variants = VARIANTS[stem]
    for question in COURSE.questions(stem):
        callable_answer = callable(next(iter(variants.RIGHT[question.id].values())))
        assert len(variants.RIGHT[question.id]) >= (8 if callable_answer else 1)
        assert variants.TRIVIAL[question.id]
        assert len(variants.NEW_WRONG[question.id]) >= (2 if callable_answer else 1)
        assert [m for m in COURSE.mistakes(stem) if m.question == question.id]


# --- wrong answers ---


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.id)
def test_known_mistakes_lose_points_and_are_named(mistake):
    question = QUESTIONS[mistake.question]
    for seed in SEEDS:
        learner = LiveLearner({question.id: mistake.answer})
        result = grade_question(question, learner, seed, MISTAKES)
        assert result.points < question.max_points
        assert result.mistake == mistake.id
        assert mistake.tell in result.feedback
        assert all(check.message for check in result.checks if not check.passed)


@functools.cache
def matrix():
    """Return what `tools/mistakes.py` finds: which checks each mistake fails."""
    spec = importlib.util.spec_from_file_location("mistakes", ROOT / "tools" / "mistakes.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool, list(tool.matrix(COURSE))


@each_question
def test_every_check_is_failed_by_a_mistake_that_passes_another(name):
    _, rows = matrix()
    question, found = next((q, found) for _, q, found in rows if q.id == name)
    checks = set(range(1, len(question.checks) + 1))
    needed = [failing for _, failing in found if failing != checks or len(checks) == 1]
    assert set().union(*needed) == checks


def test_pages_of_known_mistakes_are_current():
    """To mend: ``python tools/mistakes.py --write``."""
    tool, rows = matrix()
    assert tool.uncaught(rows) == []
    kept = {path.name: path.read_text(encoding="utf-8") for path in tool.PAGES.glob("*.md")}
    assert kept == tool.as_pages(rows)


@pytest.mark.parametrize(("name", "answer"), answers("TRIVIAL"))
def test_answers_that_do_nothing_earn_nothing(name, answer):
    for seed in range(5):
        assert len(failures(name, answer, seed)) == len(QUESTIONS[name].checks)


@pytest.mark.parametrize(("name", "case"), answers("NEW_WRONG"))
def test_new_mistakes_lose_points_and_are_told_why(name, case):
    answer, words = case
    question = QUESTIONS[name]
    for seed in SEEDS:
        result = grade_question(question, LiveLearner({name: answer}), seed, MISTAKES)
        assert result.points < question.max_points
        assert words in next(check.message for check in result.checks if not check.passed)


@each_question
def test_the_answer_key_is_forbidden_and_a_helper_of_its_name_is_not(name):
    forbid = QUESTIONS[name].forbid
    helper = f"def attention(x):\n    return x\n\ndef {name}(x):\n    return attention(x)\n"
    assert find_forbidden([helper], name, forbid) is None
    if forbid:
        key = "from attention.in_numpy.single_head import softmax as attention\n"
        assert find_forbidden([key + helper.partition("\n\n")[2]], name, forbid)


@each_notebook
def test_mistakes_belong_to_a_question_and_speak(stem):
    mistakes = COURSE.mistakes(stem)
    for mistake in mistakes:
        assert mistake.question in {question.id for question in COURSE.questions(stem)}
        assert mistake.believed.endswith(".")
        assert mistake.tell.endswith((".", "?"))


def test_names_are_unique_in_the_course():
    assert len({mistake.id for mistake in MISTAKES}) == len(MISTAKES)
    assert len(QUESTIONS) == sum(len(COURSE.questions(stem)) for stem in STEMS)


@each_notebook
def test_sections_to_reread_are_headings_of_the_chapter(stem):
    chapter = read(ROOT / "book" / f"{stem}.ipynb")
    texts = "\n".join(cell.source for cell in chapter.cells if cell.cell_type == "markdown")
    headings = {line.lstrip("# ") for line in texts.splitlines() if line.startswith("##")}
    told = {thing.section for thing in [*COURSE.mistakes(stem), *COURSE.questions(stem)]}
    assert told <= headings


# --- the notebooks ---


@each_notebook
def test_solution_earns_full_marks_in_the_sandbox(stem, server):
    report = grade(COURSE.solutions / f"{stem}.ipynb", COURSE, server)
    assert report, str(report)
    assert report.points == report.max_points


@each_notebook
def test_unsolved_notebook_scores_nothing_without_an_error(stem, server):
    report = grade(COURSE.exercises / f"{stem}.ipynb", COURSE, server)
    assert report.points == 0
    assert {question.status for question in report.questions} == {"not_attempted"}


@each_notebook
def test_exercise_is_what_release_makes(stem):
    made = as_text(make_release(read(COURSE.solutions / f"{stem}.ipynb")))
    assert (COURSE.exercises / f"{stem}.ipynb").read_text(encoding="utf-8") == made


@each_notebook
def test_exercise_holds_no_solution_text(stem):
    exercise = (COURSE.exercises / f"{stem}.ipynb").read_text(encoding="utf-8")
    assert "SOLUTION" not in exercise
    given = {
        line.strip()
        for cell in read(COURSE.exercises / f"{stem}.ipynb").cells
        for line in cell.source.splitlines()
    }
    for cell in read(COURSE.solutions / f"{stem}.ipynb").cells:
        if "solution" in cell.metadata.get("tags", []):
            assert not given & {line.strip() for line in cell.source.splitlines() if line.strip()}
        elif nbgrader(cell).get("solution"):
            _, _, body = cell.source.partition("### BEGIN SOLUTION")
            body, _, _ = body.partition("### END SOLUTION")
            lines = {line.strip() for line in body.splitlines() if len(line.strip()) > 12}
            stub = "### BEGIN STUB" in cell.source  # it may share lines with the solution
            assert stub or not lines & given


@each_notebook
def test_solution_was_run_and_no_cell_failed(stem):
    notebook = read(COURSE.solutions / f"{stem}.ipynb")
    assert as_text(notebook) == (COURSE.solutions / f"{stem}.ipynb").read_text(encoding="utf-8")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [out for cell in code for out in cell.outputs if out.output_type == "error"]


@each_notebook
def test_notebook_promises_the_points_of_its_questions(stem):
    notebook = read(COURSE.solutions / f"{stem}.ipynb")
    points = {
        nbgrader(cell).grade_id.removeprefix("check_"): nbgrader(cell).points
        for cell in notebook.cells
        if nbgrader(cell).get("grade")
    }
    assert points == {question.id: question.max_points for question in COURSE.questions(stem)}
    intro = notebook.cells[0].source
    for name, worth in points.items():
        row = next(line for line in intro.splitlines() if f"`{name}`" in line)
        assert row.rstrip(" |").split("|")[-1].strip() == f"{worth:g}"


@each_notebook
def test_learners_can_edit_the_answers_and_nothing_else(stem):
    ids = {question.id for question in COURSE.questions(stem)}
    for cell in read(COURSE.solutions / f"{stem}.ipynb").cells:
        if "solution" in cell.metadata.get("tags", []):
            assert cell.cell_type == "markdown"
            continue
        assert nbgrader(cell).schema_version == 3
        assert nbgrader(cell).solution == (nbgrader(cell).grade_id in ids)
        assert nbgrader(cell).locked != nbgrader(cell).solution
