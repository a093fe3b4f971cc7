"""Which mistake is it? The one that does the same on every input; none, if none does."""

import numpy as np
import pytest

from autograder.checks import Question, expect_close
from autograder.diagnose import same
from autograder.grade import grade_question
from autograder.learner import LiveLearner
from autograder.mistakes import mistake

root = Question("root", section="Roots")


@root.check(points=1.0)
def roots_of_positive_numbers(learner, rng):
    x = rng.uniform(1, 9, size=(int(rng.integers(2, 7)), 2))
    expect_close(learner.call("root", x), np.sqrt(x), "root(x)")


@root.check(points=1.0)
def negative_numbers_give_zero(learner, rng):
    x = -rng.uniform(1, 9, size=3)
    expect_close(learner.call("root", x), np.zeros(3), "root(x)")


@root.probe
def zero(rng):
    yield (np.zeros(1),)


def told(believed):
    return mistake("root", believed=believed, tell=f"{believed} Is that so?", section="Roots")


@told("A root is a half.")
def root_halves(x):
    return np.where(x < 0, 0.0, x / 2)


@told("Negative numbers do not occur.")
def root_without_cut(x):
    with np.errstate(invalid="ignore"):
        return np.sqrt(x)


@told("Only a list of positive numbers comes.")
def root_raises(x):
    if (x < 0).any():
        raise ValueError("negative")
    return np.sqrt(x)


@told("A root is a half, and of 0 it is 1.")
def root_halves_but_of_zero(x):
    return np.where(x == 0, 1.0, np.where(x < 0, 0.0, x / 2))


MISTAKES = [root_halves, root_without_cut, root_raises, root_halves_but_of_zero]


def result(answer, mistakes=MISTAKES):
    return grade_question(root, LiveLearner({"root": answer}), 0, mistakes)


@pytest.mark.parametrize("known", MISTAKES, ids=lambda m: m.id)
def test_each_mistake_is_named(known):
    found = result(known.answer)
    assert found.mistake == known.id
    assert known.tell in found.feedback


def test_probes_tell_apart_what_the_checks_do_not():
    assert result(root_halves.answer).mistake == "root-halves"
    assert result(root_halves_but_of_zero.answer).mistake == "root-halves-but-of-zero"


def test_same_mistake_written_otherwise_is_named():
    assert result(lambda x: np.maximum(0.5 * x.astype(np.float32), 0)).mistake == "root-halves"


def test_right_answer_is_no_mistake():
    found = result(lambda x: np.sqrt(np.maximum(x, 0)))
    assert found.mistake is None
    assert found.feedback == ""


def test_two_mistakes_at_once_name_the_first():
    # it halves, and keeps negative numbers
    found = result(lambda x: x / 2, [root_without_cut, root_halves])
    assert found.mistake == "root-halves"
    assert found.points == 0


def test_no_name_where_two_explain_the_first_thing_alike():
    assert result(lambda x: x / 2).mistake is None


def test_unknown_mistake_is_not_given_a_name():
    found = result(lambda x: np.cbrt(np.maximum(x, 0)))
    assert found.mistake is None
    assert "Right already: negative numbers give zero." in found.feedback
    assert "Not yet: roots of positive numbers." in found.feedback
    assert 'Reread "Roots"' in found.feedback


def test_unknown_mistake_is_shown_on_the_smallest_example():
    found = result(lambda x: np.cbrt(np.maximum(x, 0)))
    assert "of 2 rows are wrong" in found.checks[0].message  # drawn with 2 to 6 rows


def test_exceptions_count_as_evidence_by_their_kind():
    def raises_too(x):
        for value in x.ravel():
            if value < 0:
                raise ValueError("another text")
        return np.sqrt(x)

    assert result(raises_too).mistake == "root-raises"

    def raises_something_else(x):
        if (x < 0).any():
            raise KeyError
        return np.sqrt(x)

    assert result(raises_something_else).mistake is None


def test_feedback_is_bounded_and_without_traceback():
    found = result(lambda x: 1 / 0)
    assert "ZeroDivisionError" in found.feedback
    assert "Traceback" not in found.feedback
    assert len(found.feedback) < 800


@pytest.mark.parametrize(
    ("first", "second", "alike"),
    [
        (np.float16([0.5, 0.25]), np.float16([0.5005, 0.25]), True),  # another order of summing
        (np.float16([0.5, 0.25]), np.float16([0.51, 0.25]), False),
        (np.float16([0.5, 0.25]), np.float32([0.5, 0.25]), False),
        (np.float32([0.5, 0.25]), np.float64([0.5, 0.25]), True),
        (np.float32([0.5, 0.25]), np.float32([0.5005, 0.25]), False),
    ],
)
def test_numbers_are_compared_as_their_dtype_allows(first, second, alike):
    assert same(first, second, {}) == alike
