"""Memory as a property of an answer: measured alike everywhere, and part of a diagnosis."""

import numpy as np
import pytest

from autograder.checks import Question, expect, expect_close
from autograder.grade import grade_question
from autograder.learner import LearnerError, LiveLearner
from autograder.mistakes import mistake
from autograder.sandbox import SandboxedLearner, Server

MIB = 2**20
N = 1024  # an N × N array of float64 takes 8 MiB

SOURCE = """
import numpy as np

def all_at_once(x):
    return np.abs(x[:, None] - x).sum(axis=1)

def row_by_row(x):
    return np.array([np.abs(value - x).sum() for value in x])

def first(x):
    return x[:1].copy()

def fails(x):
    return np.ones(len(x) ** 2) / undefined
"""

distances = Question("distances", section="Distances")


@distances.check(points=1.0)
def each_sum_is_right(learner, rng):
    x = rng.normal(size=5)
    want = [sum(abs(a - b) for b in x) for a in x]
    expect_close(learner.call("distances", x), want, "distances(x)")


@distances.check(points=1.0)
def no_square_is_built(learner, rng):
    _, peak = learner.measure("distances", rng.normal(size=N))
    expect(peak < MIB, f"It took {peak / MIB:.1f} MiB; 1 MiB is enough.")


def told(believed):
    return mistake("distances", believed=believed, tell="How large is it?", section="Distances")


@told("A square does no harm.")
def square(x):
    return np.abs(x[:, None] - x).sum(axis=-1)


@told("A cube does no harm.")
def cube(x):
    apart = np.abs(x[:, None] - x)
    return np.stack([apart] * 16).max(axis=0).sum(axis=-1)


def answers():
    namespace = {}
    exec(SOURCE, namespace)
    return namespace


@pytest.fixture(params=["live", "sandboxed"])
def learner(request):
    if request.param == "live":
        yield LiveLearner(answers())
        return
    with Server(isolated=True) as server:
        learner = SandboxedLearner(server, [("answers", SOURCE)])
        yield learner
        learner.close()


def test_result_and_peak(learner):
    x = np.random.default_rng(0).normal(size=N)
    wide, wide_peak = learner.measure("all_at_once", x)
    narrow, narrow_peak = learner.measure("row_by_row", x)
    np.testing.assert_allclose(wide, narrow)
    assert 8 * MIB <= wide_peak < 17 * MIB  # the differences, and their absolute values
    assert 8 * N <= narrow_peak < MIB / 4


def test_peak_does_not_count_the_arguments(learner):
    _, peak = learner.measure("first", np.zeros(4 * MIB))
    assert peak < MIB / 4


def test_an_error_is_an_error_and_the_next_call_is_counted(learner):
    with pytest.raises(LearnerError, match="undefined"):
        learner.measure("fails", np.zeros(N))
    _, peak = learner.measure("row_by_row", np.zeros(N))
    assert peak < MIB / 4


@pytest.mark.parametrize("value", [None, 7, {"result": 1}, {"result": 1, "peak_bytes": "0"}])
def test_what_is_no_measurement_counts_as_none(value, monkeypatch):
    learner = LiveLearner(answers())
    monkeypatch.setattr(learner, "_ask", lambda *request: {"value": value})
    with pytest.raises(LearnerError, match="no measurement"):
        learner.measure("row_by_row", np.zeros(3))
    result = grade_question(distances, learner, 0, [square])
    assert result.points == 0
    assert result.mistake is None


def one_more_temporary(x):
    apart = x[:, None] - x
    return (np.abs(apart) + 0.0).sum(axis=1)


@pytest.mark.parametrize(
    ("answer", "named"), [(one_more_temporary, "square"), (cube.answer, "cube")]
)
def test_memory_tells_mistakes_apart(answer, named):
    learner = LiveLearner({"distances": answer})
    result = grade_question(distances, learner, 0, [square, cube])
    assert result.mistake == named
    assert result.points == 1.0
