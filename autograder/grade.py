"""Grade one notebook."""

from __future__ import annotations

from functools import cached_property

from .checks import Failed, rng_for
from .diagnose import diagnose, smallest_failure
from .forbidden import find_forbidden, names_reached
from .learner import LearnerError, explain
from .notebooks import (
    Unreadable,
    bound_names,
    code_cells,
    grade_id,
    is_answer,
    is_locked,
    merge,
    read,
    same_code,
)
from .report import CheckResult, QuestionResult, Report
from .sandbox import SandboxedLearner, ServerGone

GONE = ("timeout", "crashed")  # the process is gone; the next check would end the same way


class Grading:
    """One notebook being graded, a question at a time.

    Parameters
    ----------
    path : pathlib.Path
        The notebook handed in.
    course : Course
    server : Server
    seed : int
        Draws the hidden inputs. The same seed gives the same report.
    submission : str, optional
        What to call it in the report; the file's stem by default.

    Raises
    ------
    Unreadable
        If the file is not a notebook, or not one of this course.
    """

    def __init__(self, path, course, server, seed=0, submission=None):
        self.path = path
        self.course = course
        self.seed = seed
        self.submission = submission or path.stem
        notebook = read(path)
        self.stem = course.identify(notebook, path)
        if self.stem is None:
            known = ", ".join(course.stems())
            raise Unreadable(f"it answers no question of this course ({known})")
        self.questions = course.questions(self.stem)
        self.pristine = course.pristine(self.stem)
        self.notebook = merge(notebook, self.pristine)
        self.cells = code_cells(self.notebook)
        self.server = server
        self.results = {}

    @cached_property
    def learner(self):
        """The learner whose code runs in the sandbox."""
        sources = [(name, source) for name, source, _ in self.cells]
        return SandboxedLearner(self.server, sources, seed=self.seed)

    def result(self, question):
        """Grade one question, once.

        Parameters
        ----------
        question : Question

        Returns
        -------
        QuestionResult
        """
        if question.id not in self.results:
            found = self._before_running(question)
            found = found or grade_question(
                question, self.learner, self.seed, self.course.mistakes(self.stem)
            )
            if found.checks and found.status not in ("passed", "not_attempted"):
                found.feedback = self._inherited(question) + found.feedback
            self.results[question.id] = found
        return self.results[question.id]

    def _inherited(self, question):
        """Name the earlier answers that an answer uses and that are not right themselves."""
        sources = [source for _, source, cell in self.cells if not is_locked(cell)]
        used = set(names_reached(sources, question.id))
        earlier = self.questions[: self.questions.index(question)]
        open_ones = [q.id for q in earlier if q.id in used and self.result(q).status != "passed"]
        if not open_ones:
            return ""
        names = " and ".join(f"`{name}`" for name in open_ones)
        be = "are" if len(open_ones) > 1 else "is"
        return f"This answer uses {names}, which {be} not right yet: mend that first.\n"

    def report(self):
        """Grade the questions that are not graded yet and return the whole report."""
        try:
            results = [self.result(question) for question in self.questions]
        finally:
            self.learner.close()
        isolation = describe_isolation(self.learner.layers)
        return Report(self.stem, self.submission, self.seed, isolation, results)

    @cached_property
    def stubs(self):
        """The answer cells as they were handed out, by the name that each binds."""
        return {grade_id(cell): cell.source for cell in self.pristine.cells if is_answer(cell)}

    def _before_running(self, question):
        """Return the result that can be told without running a check, or None."""
        learners = [(name, source) for name, source, cell in self.cells if not is_locked(cell)]
        binding = [source for _, source in learners if question.id in bound_names(source)]
        stub = self.stubs.get(question.id)
        if stub is not None and binding and all(same_code(source, stub) for source in binding):
            return not_attempted(question)
        sources = [source for _, source in learners]
        given = [source for _, source, cell in self.cells if is_locked(cell)]
        if found := refuse_ready_made(question, sources, given):
            return found
        try:
            self.learner.value(question.id)
        except LearnerError as error:
            if error.kind != "missing":
                return None  # the name is there; a value that cannot be read is for the checks
            own = [name for name, source in learners if question.id in bound_names(source)]
            for name in [question.id, *own]:
                if name in self.learner.errors:
                    details = self.learner.errors[name]
                    status = details["kind"] if details["kind"] in (*GONE, "memory") else "error"
                    return ungraded(
                        question, status, f"The cell of `{question.id}` stops: {explain(details)}"
                    )
            return ungraded(
                question,
                "missing",
                f"No cell defines `{question.id}`. Was its cell deleted or renamed?",
            )
        return None


def refuse_ready_made(question, sources, given):
    """Return the result of an answer that uses what the question forbids, else None.

    Parameters
    ----------
    question : Question
    sources, given
        See `forbidden.find_forbidden`.

    Returns
    -------
    QuestionResult or None
    """
    used = find_forbidden(sources, question.id, question.forbid, given)
    told = f"The answer uses {used}. Write it without: that is the exercise."
    return ungraded(question, "forbidden", told) if used else None


def grade_question(question, learner, seed, mistakes=()):
    """Run the checks of a question and find out what went wrong.

    Parameters
    ----------
    question : Question
    learner : Learner
    seed : int
    mistakes : sequence of Mistake
        Known mistakes, of this question and others.

    Returns
    -------
    QuestionResult
    """
    learner.seconds = question.seconds
    results, kinds, records = [], [], {}
    for check in question.checks:
        if kinds and kinds[-1] in GONE:
            results.append(CheckResult(check.name, False, "Not run after the trouble above."))
            continue
        learner.record.clear()
        kind, message = run_check(question, check, learner, seed)
        results.append(CheckResult(check.name, kind == "passed", message))
        kinds.append(kind)
        records[check.name] = list(learner.record)
    if all(kind == "not_attempted" for kind in kinds):
        return not_attempted(question)
    points = sum(
        check.points for check, r in zip(question.checks, results, strict=True) if r.passed
    )
    status = status_of(kinds)
    failing = [r.name for r in results if not r.passed and r.name in records]
    found = None
    if failing and status not in GONE:
        own = [mistake for mistake in mistakes if mistake.question == question.id]
        found = diagnose(question, learner, records, failing, own, seed)
        if found is None:
            show_smallest_failure(question, learner, results, kinds, seed)
    return QuestionResult(
        question.id,
        points,
        question.max_points,
        status,
        found and found.id,
        feedback(question, results, found),
        results,
    )


def show_smallest_failure(question, learner, results, kinds, seed):
    """Let the first property that does not hold speak of the smallest example found."""
    place = next((i for i, kind in enumerate(kinds) if kind != "passed"), None)
    if place is not None and kinds[place] == "failed":
        learner.record.clear()
        check = question.checks[place]
        run_check(question, check, learner, seed)
        results[place].message = smallest_failure(
            question, check, learner, results[place].message, seed
        )


def feedback(question, results, mistake):
    """Say what is right already, what is not, and what to look at.

    Parameters
    ----------
    question : Question
    results : sequence of CheckResult
    mistake : Mistake or None

    Returns
    -------
    str
        Empty where all is right.
    """
    failing = next((result for result in results if not result.passed), None)
    if failing is None:
        return ""
    lines = []
    right = [result.name.replace("_", " ") for result in results if result.passed]
    if right:
        more = f" (and {len(right) - 1} more)" if len(right) > 1 else ""
        lines.append(f"Right already: {right[0]}{more}.")
    lines.append(f"Not yet: {failing.name.replace('_', ' ')}.")
    lines.append(failing.message)
    if mistake is not None:
        lines.append(f"Look at this: {mistake.tell}")
    section = mistake.section if mistake is not None else question.section
    lines.append(f'Reread "{section}" in the chapter.')
    return "\n".join(lines)


def run_check(question, check, learner, seed):
    """Run one check.

    Returns
    -------
    tuple of (str, str)
        ``"passed"``, ``"failed"`` or the kind of a `LearnerError`; and a message.
    """
    try:
        check.function(learner, rng_for(seed, question, check))
    except Failed as failure:
        return "failed", str(failure)
    except LearnerError as error:
        unwritten = error.details.get("function")
        if error.kind == "not_attempted" and unwritten and unwritten != question.id:
            return "error", f"The answer calls `{unwritten}`, which is still to be written."
        return error.kind, str(error)
    except ServerGone:
        raise  # no fault of the answer
    except Exception as error:  # an answer gave what no check foresaw
        return "error", (
            f"What the answer gave cannot be checked ({type(error).__name__}: {str(error)[:200]}). "
            "Is it of the type and the shape that the question asks for?"
        )
    return "passed", ""


def status_of(kinds):
    """Sum up what the checks of a question gave into one status."""
    if set(kinds) == {"passed"}:
        return "passed"
    for kind in ("timeout", "crashed", "memory"):
        if kind in kinds:
            return kind
    if "passed" in kinds:
        return "partial"
    return "failed" if "failed" in kinds else "error"


def not_attempted(question):
    return ungraded(
        question, "not_attempted", f"`{question.id}` is still to be written: open its cell."
    )


def ungraded(question, status, message):
    """Return the result of an answer whose checks were not run."""
    checks = [CheckResult(check.name, False, "Not run.") for check in question.checks]
    return QuestionResult(question.id, 0.0, question.max_points, status, None, message, checks)


def grade(path, course, server, seed=0, submission=None):
    """Grade a notebook, whatever state it is in.

    Parameters
    ----------
    path : pathlib.Path
    course : Course
    server : Server
    seed : int
    submission : str, optional

    Returns
    -------
    Report
    """
    for last in (False, True):
        try:
            return Grading(path, course, server, seed, submission).report()
        except Unreadable as error:
            name = next((stem for stem in course.stems() if stem in path.name), path.stem)
            return unreadable(name, submission or path.stem, seed, str(error), server.layers())
        except ServerGone:  # killed: nothing of this grading counts
            if last:
                raise
            server.restart()
    raise AssertionError("unreachable")


def unreadable(stem, submission, seed, reason, layers=()):
    """Return the report of a file that is no notebook of the course."""
    return Report(stem, submission, seed, describe_isolation(layers), [], "unreadable", reason)


def describe_isolation(layers):
    """Say from what a submission was kept.

    Parameters
    ----------
    layers : set of str
        See `Server.layers`.

    Returns
    -------
    dict of str to bool
    """
    return {
        "time": True,
        "memory": "memory" in layers,
        "files": "scratch" in layers,  # only inside the outer wall
        "network": "network" in layers,
        "processes": "processes" in layers,
    }
