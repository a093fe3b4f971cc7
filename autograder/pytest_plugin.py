"""Grade exercise notebooks with pytest: an item a check, a points table at the end.

For your own work. Learners' code runs in the sandbox's server, never in pytest, which imports
what lies around; to grade strangers' notebooks use ``python -m autograder grade``.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from .course import Course, CourseError
from .grade import Grading, unreadable
from .notebooks import Unreadable
from .report import next_step, table, wrapped
from .sandbox import Server

TO_DO = "to do"
SERVER = pytest.StashKey[Server]()
NOTEBOOKS = pytest.StashKey[list]()


def pytest_configure(config):
    config.stash[NOTEBOOKS] = []


def pytest_unconfigure(config):
    if SERVER in config.stash:
        config.stash[SERVER].close()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path, parent):
    collectors = yield
    if file_path.suffix != ".ipynb":
        return collectors
    course = _course_of(file_path, named=file_path in _named_files(parent.config))
    if course is None:
        return collectors
    # nbval would run the file as it lies on disk: give it the notebook with pristine cells
    others = [c for c in collectors if type(c).__name__ != "IPyNbFile"]
    merged = [merged_nbval(parent, file_path, course)] if len(others) < len(collectors) else []
    graded = GradedNotebook.from_parent(parent, path=file_path, course=course)
    return [*others, graded, *merged]


def _named_files(config):
    """Return the files that the command line names one by one."""
    start = config.invocation_params.dir
    return {Path(start, argument.split("::")[0]).resolve() for argument in config.args}


def _course_of(path, named):
    """Return the course if the file is one of its exercise notebooks, or a copy of one."""
    try:
        course = Course.find(path.parent)
        if course.recognizes(path, named):
            return course
    except CourseError:
        pass
    return None


class GradedNotebook(pytest.File):
    """An exercise notebook: collects one item a check."""

    def __init__(self, *, course, **kwargs):
        super().__init__(**kwargs)
        self.course = course

    def collect(self):
        stash = self.config.stash
        if SERVER not in stash:
            stash[SERVER] = Server(self.course.answer_key)
            try:
                stash[SERVER].start()  # it imports while pytest goes on collecting
            except RuntimeError as error:  # a platform that cannot fork
                raise self.CollectError(str(error)) from None
        try:
            self.grading = Grading(self.path, self.course, stash[SERVER])
        except Unreadable as error:
            self.grading = None
            yield UnreadableItem.from_parent(self, name="unreadable", reason=str(error))
            stash[NOTEBOOKS].append(unreadable(self.path.stem, self.path.name, 0, str(error)))
            return
        stash[NOTEBOOKS].append(self.grading)
        for question in self.grading.questions:
            for place, check in enumerate(question.checks):
                yield CheckItem.from_parent(
                    self,
                    name=f"{question.id}: {check.sentence}",
                    question=question,
                    place=place,
                )

    def teardown(self):
        if self.grading is not None:
            self.grading.learner.close()


class CheckItem(pytest.Item):
    """One check of one question."""

    def __init__(self, *, question, place, **kwargs):
        super().__init__(**kwargs)
        self.question = question
        self.place = place

    def runtest(self):
        result = self.parent.grading.result(self.question)
        check = result.checks[self.place]
        if not check.passed:
            told = result.status in ("not_attempted", "missing", "forbidden", "error")
            raise PointsMissing(
                result.feedback if told and check.message == "Not run." else check.message
            )

    def repr_failure(self, excinfo):
        if isinstance(excinfo.value, PointsMissing):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    def reportinfo(self):
        return self.path, None, f"{self.path.name}: {self.name}"


class UnreadableItem(pytest.Item):
    """Stands for a file that is no notebook."""

    def __init__(self, *, reason, **kwargs):
        super().__init__(**kwargs)
        self.reason = reason

    def runtest(self):
        raise PointsMissing(self.reason)

    def repr_failure(self, excinfo):
        return str(excinfo.value)

    def reportinfo(self):
        return self.path, None, self.path.name


class PointsMissing(Exception):
    """A check that does not hold. The message is for the learner."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, PointsMissing):
        report.points_missing = True
    return report


def pytest_report_teststatus(report, config):
    # A category of its own keeps fifty failures off the screen: the table says what is next.
    if getattr(report, "points_missing", False):
        return TO_DO, "x", "TO DO"
    return None


def pytest_terminal_summary(terminalreporter, config):
    notebooks = config.stash[NOTEBOOKS]
    if not notebooks or config.option.collectonly:
        return
    terminalreporter.section("points")
    hint = True
    for grading in notebooks:
        report = grading.report() if isinstance(grading, Grading) else grading
        if report.status != "graded":
            terminalreporter.line(f"{report.submission}: unreadable. {report.reason}", red=True)
            continue
        for line in table(report, detailed=config.option.verbose > 0):
            terminalreporter.line(line)
        if hint and (not report or len(notebooks) == 1):
            for line in wrapped(next_step(report, _asked_about(terminalreporter, grading))):
                terminalreporter.line(line)
            hint = bool(report)
        terminalreporter.line("")


def _asked_about(terminalreporter, grading):
    """Return the questions of which checks were run: all, or what ``-k`` chose."""
    run = [r for key in ("passed", TO_DO) for r in terminalreporter.stats.get(key, [])]
    ids = {r.nodeid for r in run if getattr(r, "when", "") == "call"}
    path = grading.path.name
    return {q.id for q in grading.questions if any(f"{path}::{q.id}: " in node for node in ids)}


def merged_nbval(parent, path, course):
    """Return nbval's collector for a learner's notebook with the pristine cells put back."""
    from nbval.plugin import IPyNbFile

    class MergedNotebook(IPyNbFile):
        def collect(self):
            try:
                merged = Grading(self.path, course, server=None).notebook
            except Unreadable:  # the graded item says why
                return []
            original, nbformat.read = nbformat.read, lambda *args, **kwargs: merged
            try:
                return list(super().collect())
            finally:
                nbformat.read = original

    return MergedNotebook.from_parent(parent, path=path)
