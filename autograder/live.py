"""The check in the notebook: the same checks, run on the names of this kernel."""

from __future__ import annotations

import sys

from .course import Course
from .forbidden import latest_definitions
from .grade import grade_question, refuse_ready_made, ungraded
from .learner import LiveLearner
from .notebooks import code_cells, is_locked
from .report import Report, as_html

SEED = 0  # the same inputs at every call, so that a mended answer meets what it failed


def check(name=None):
    """Check answers that this notebook has defined.

    Parameters
    ----------
    name : str, optional
        The question: the name that the answer binds. All questions of the notebook where None.

    Returns
    -------
    Report
        Displayed as well. It is true when no points are missing.

    Raises
    ------
    ValueError
        If the course has no such question.
    """
    namespace = sys._getframe(1).f_globals  # the notebook's, also where a function calls
    course = Course.find()
    stem, questions = _find(course, name, namespace)
    learner, sources = LiveLearner(namespace), _sources(course.pristine(stem))
    results = []
    for question in questions:
        if question.id not in namespace:
            told = f"`{question.id}` is not defined: run its cell first."
            result = ungraded(question, "missing", told)
        else:
            result = refuse_ready_made(question, *sources)
            result = result or grade_question(question, learner, SEED, course.mistakes(stem))
        results.append(result)
    report = Report(stem, "this notebook", SEED, {"time": False}, results)
    _show(report)
    return Shown(report)


def _sources(pristine):
    """Return what this kernel has run, as it counts now, and the cells that were given.

    Outside of IPython nothing is known of what has run.
    """
    given = [source for _, source, cell in code_cells(pristine) if is_locked(cell)]
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if shell is None:
        return [], given
    known = {source.strip() for source in given}
    ran = [
        source for source in shell.history_manager.input_hist_parsed if source.strip() not in known
    ]
    return latest_definitions(ran), given


def _find(course, name, namespace):
    stems = course.stems()
    if name is None:
        stem = max(stems, key=lambda s: sum(q.id in namespace for q in course.questions(s)))
        return stem, course.questions(stem)
    for stem in stems:
        for question in course.questions(stem):
            if question.id == name:
                return stem, [question]
    known = ", ".join(q.id for stem in stems for q in course.questions(stem))
    raise ValueError(f"there is no question {name!r}; there are: {known}")


def _show(report):
    """Display a report: as HTML where a notebook can, else as text."""
    ipython = sys.modules.get("IPython")
    if ipython is None or ipython.get_ipython() is None:
        print(report)
        return
    from IPython.display import display

    display({"text/html": as_html(report), "text/plain": str(report)}, raw=True)


class Shown:
    """A report that is on the screen already: as the last line of a cell it shows nothing."""

    def __init__(self, report):
        self.report = report

    def __bool__(self):
        return bool(self.report)

    def __getattr__(self, name):
        return getattr(self.report, name)

    def __repr__(self):
        return str(self.report)

    def _ipython_display_(self):
        pass
