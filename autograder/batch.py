"""Grade a whole class: in parallel, going on where it stopped, every file whole or not at all."""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib
import json
import multiprocessing
import secrets
import tempfile
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from .course import Course, module_name
from .files import write_whole
from .grade import grade, unreadable
from .report import Report
from .sandbox import Server

FAILED_POOLS = 3  # so often a pool of graders may break before the rest is given up


@dataclass
class Task:
    """One notebook of one submission."""

    submission: str
    stem: str
    path: Path
    seed: int
    digest: str = ""


@dataclass
class Results:
    """What came of a class, in the order of its submissions.

    Attributes
    ----------
    submissions : list of Submission
    reports : dict of (str, str) to Report
        By submission and notebook.
    reused : int
        How many reports were there already.
    """

    submissions: list
    reports: dict[tuple[str, str], Report] = field(default_factory=dict)
    reused: int = 0

    @cached_property
    def stems(self):
        """The notebooks that anybody handed in."""
        return sorted({stem for submission in self.submissions for stem in submission.notebooks})

    def of(self, submission):
        """List the reports of a submission: one for each notebook of the class, or None."""
        return [self.reports.get((submission.name, stem)) for stem in self.stems]


def grade_class(
    submissions, course, server, *, out=None, seed=0, jobs=1, progress=None, elsewhere=None
):
    """Grade what a class handed in.

    A report that lies in ``out`` already counts if notebook, checks and seed are the same.

    Parameters
    ----------
    submissions : list of Submission
    course : Course
    server : Server
    out : pathlib.Path, optional
        Where ``<submission>/<stem>.json`` is written as soon as it is known.
    seed : int
    jobs : int
        Number of processes that judge.
    progress : callable, optional
        Called with each report as it is known.
    elsewhere : callable, optional
        Takes a list of `Task` and yields ``(task, report)`` as they are known, in place of
        ``jobs`` processes here.

    Returns
    -------
    Results
    """
    results = Results(submissions)
    course_digest = digest_of_course(course)
    todo = []
    for submission in submissions:
        for stem, path in submission.notebooks.items():
            task = Task(submission.name, stem, path, seed)
            task.digest = digest(task, course_digest)
            report = _known(out, task)
            if report is None:
                todo.append(task)
            else:
                results.reports[task.submission, stem] = report
                results.reused += 1
                if progress:
                    progress(report)
    for task, report in elsewhere(todo) if elsewhere else _graded(todo, course, server, jobs):
        results.reports[task.submission, task.stem] = report
        if out is not None:
            data = report.as_dict() | {"digest": task.digest}
            text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
            write_whole(out / task.submission / f"{task.stem}.json", text)
        if progress:
            progress(report)
    return results


def choose_seed(out, seed):
    """Return the seed to use: the one given, else the one of the run that ``out`` holds, else new.

    It is kept in ``out/run.json``, so that the same command goes on where it was stopped.
    """
    kept = out / "run.json" if out is not None else None
    if seed is None and kept is not None and kept.exists():
        seed = json.loads(kept.read_text(encoding="utf-8"))["seed"]
    if seed is None:
        seed = secrets.randbelow(2**31)
    if kept is not None:
        write_whole(kept, json.dumps({"seed": seed}) + "\n")
    return seed


def digest_of_course(course):
    """Hash all that a grade depends on beside the notebook: checks, solutions, this package."""
    folders = [course.checks.parent, Path(__file__).parent]
    files = [
        f for folder in folders for f in folder.rglob("*.py") if not f.name.startswith("test_")
    ]
    files += [p for folder in (course.solutions, course.exercises) for p in folder.glob("*.ipynb")]
    hashed = hashlib.sha256()
    for file in sorted(files):
        hashed.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return hashed.hexdigest()


def digest(task, course_digest):
    """Hash a task: the notebook, the seed and the course."""
    try:
        content = task.path.read_bytes() if task.path.is_file() else b""
    except OSError:
        content = b""
    parts = [content, str(task.seed).encode(), course_digest.encode(), task.submission.encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _known(out, task):
    """Return the report of an earlier run, or None where there is none that still holds."""
    if out is None:
        return None
    try:
        data = json.loads((out / task.submission / f"{task.stem}.json").read_text("utf-8"))
        return Report.from_dict(data) if data["digest"] == task.digest else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def grade_task(task, course, server):
    """Grade one task.

    Returns
    -------
    Report
    """
    if task.path.is_symlink():
        reason = "it is a link to another file: hand in the notebook itself"
        return unreadable(task.stem, task.submission, task.seed, reason, server.layers())
    return grade(task.path, course, server, task.seed, task.submission)


# --- several judges ---


def _graded(tasks, course, server, jobs):
    """Yield ``(task, report)`` as they are known."""
    if jobs == 1 or len(tasks) < 2:
        for task in tasks:
            yield task, grade_task(task, course, server)
        return
    load_what_judges_need(course)
    left = {id(task): task for task in tasks}
    for _ in range(FAILED_POOLS):
        try:
            for task, report in _graded_in_pool(list(left.values()), course, server, jobs):
                del left[id(task)]
                yield task, report
            return
        except BrokenProcessPool:  # a judge was killed: the others' work is done, go on with it
            server.restart()
    raise RuntimeError(f"judges were killed {FAILED_POOLS} times; run the same command again")


def load_what_judges_need(course):
    """Import checks, and PyTorch if they use it, before judges are forked. Run none of it."""
    sources = [course.checks / f"{module_name(stem)}.py" for stem in course.stems()]
    for stem in course.stems():
        course.questions(stem), course.mistakes(stem), course.pristine(stem)
    if any("import torch" in source.read_text(encoding="utf-8") for source in sources):
        importlib.import_module("torch")


_judge = {}  # in a judge's process: its course and its server


def _graded_in_pool(tasks, course, server, jobs):
    context = multiprocessing.get_context("fork")
    servers = [server.clone() for _ in range(jobs)]
    number = context.Value("i", 0)
    pool = ProcessPoolExecutor(jobs, context, _become_judge, (course, servers, number))
    try:
        waiting = {}
        upcoming = iter(tasks)
        while True:
            for task in upcoming:
                waiting[pool.submit(_judge_one, task)] = task
                if len(waiting) >= 4 * jobs:  # few at a time: memory does not grow with a class
                    break
            if not waiting:
                return
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                yield waiting.pop(future), Report.from_dict(future.result())
    finally:
        pool.shutdown(cancel_futures=True)
        for clone in servers:
            clone.close()


def _become_judge(course, servers, number):
    with number.get_lock():
        mine = servers[number.value % len(servers)]
        number.value += 1
    _judge.update(course=course, server=mine)


def _judge_one(task):
    return grade_task(task, _judge["course"], _judge["server"]).as_dict()


# --- other machines ---


@functools.cache
def course_here(root):
    """Return a course, a walled server for it, and the hash of its content, kept by this process.

    Parameters
    ----------
    root : str

    Returns
    -------
    tuple of (Course, Server, str)
    """
    course = Course(root)
    server = Server(course.answer_key, isolated=True)
    atexit.register(server.close)
    return course, server, digest_of_course(course)


def grade_elsewhere(root, name, stem, content, seed):
    """Grade a notebook's bytes: a pure function, for machines that share no folder.

    Parameters
    ----------
    root : str
        Where the course lies on this machine.
    name, stem : str
        Of the submission and of its notebook.
    content : bytes
    seed : int

    Returns
    -------
    dict
        See `Report.as_dict`.
    """
    course, server, _ = course_here(root)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{stem}.ipynb"
        path.write_bytes(content)
        return grade_task(Task(name, stem, path, seed), course, server).as_dict()
