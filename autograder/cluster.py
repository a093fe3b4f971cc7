"""Grade on several machines: send notebooks to the workers of a Dask cluster.

Needs the package `distributed` (the extra ``cluster``), here and on every worker. A worker must
have the course at the same path, with the same content, and its requirements installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from concurrent import futures

from .batch import course_here, digest_of_course, grade_elsewhere
from .grade import describe_isolation, unreadable
from .notebooks import MAX_BYTES, Unreadable, read
from .report import Report

CONNECT_SECONDS = 20  # to find the scheduler, and then to find a worker
AHEAD = 4  # notebooks sent for each thread of a worker: memory does not grow with a class


_one_at_a_time = threading.Lock()  # a worker may have several threads


class ClusterError(Exception):
    """A cluster that cannot do the work. The message says what to do."""


class Unfit(Exception):
    """A worker that must not grade. Raised there; the message says why."""


def graded_on(address, course, tasks, *, require_isolation=False):
    """Grade tasks on a cluster.

    Where a worker dies, its notebooks go to the others. Grading is a pure function: one that is
    graded a second time gives the same report, and counts once.

    Parameters
    ----------
    address : str
        Of the scheduler: ``"tcp://10.0.0.7:8786"``.
    course : Course
    tasks : sequence of Task
    require_isolation : bool
        Whether to refuse a worker on which a wall is missing.

    Yields
    ------
    tuple of (Task, Report)
        As they are known.

    Raises
    ------
    ClusterError
        If `distributed` is not installed, no cluster answers, or a worker cannot do the work.
        What was yielded before holds.
    """
    try:
        import distributed
        from distributed.scheduler import KilledWorker
    except ImportError:
        raise ClusterError(
            '--cluster needs the package distributed: pip install -e ".[cluster]"'
        ) from None
    place = (str(course.root), digest_of_course(course), require_isolation)
    upcoming, waiting, given_up = iter(tasks), {}, []
    try:
        with _client(distributed, address) as client:
            while True:
                room = AHEAD * sum(client.nthreads().values())
                for task in upcoming:
                    if reason := _why_not_sent(task.path):
                        yield task, unreadable(task.stem, task.submission, task.seed, reason)
                        continue
                    notebook = (task.submission, task.stem, task.path.read_bytes(), task.seed)
                    key = f"grade-{task.digest}-{require_isolation}"
                    waiting[client.submit(grade_there, place, notebook, key=key)] = task
                    if len(waiting) >= room:
                        break
                if not waiting:
                    break
                for future in distributed.wait([*waiting], return_when="FIRST_COMPLETED").done:
                    task = waiting.pop(future)
                    try:
                        yield task, Report.from_dict(future.result())
                    except KilledWorker:  # several, one after the other: it is the notebook
                        given_up.append(f"{task.submission}/{task.stem}")
    except Unfit as error:
        raise ClusterError(str(error)) from None
    except (OSError, asyncio.CancelledError, futures.CancelledError) as error:
        raise ClusterError(
            f"the cluster at {address} is gone ({type(error).__name__}: {error}). "
            "The same command goes on from here"
        ) from error
    if given_up:
        raise ClusterError(
            f"every worker died that graded {', '.join(given_up)}; all others are graded. "
            "Run the same command without --cluster to see why"
        )


def grade_there(place, notebook):
    """Grade one notebook. This is what a worker runs.

    Parameters
    ----------
    place : tuple of (str, str, bool)
        Where the course lies, the hash of its content, and whether every wall must stand.
    notebook : tuple of (str, str, bytes, int)
        See `batch.grade_elsewhere`.

    Returns
    -------
    dict
        See `Report.as_dict`.

    Raises
    ------
    Unfit
    """
    root, digest, require_isolation = place
    here = f"the worker on {socket.gethostname()}"
    with _one_at_a_time:
        _, server, own_digest = course_here(root)
        if own_digest != digest:
            raise Unfit(
                f"{here} has another version of {root}: copy it there, then restart the worker"
            )
        if require_isolation:
            isolation = describe_isolation(server.layers())
            if open_to := [name for name, closed in isolation.items() if not closed]:
                raise Unfit(f"{here} has no wall for {', '.join(open_to)}")
        return grade_elsewhere(root, *notebook)


def missing_walls(reports):
    """List from what some notebook that was graded could not be kept, by name."""
    isolations = [report.isolation for report in reports if report.status == "graded"]
    return sorted({name for found in isolations for name, closed in found.items() if not closed})


@contextlib.contextmanager
def _client(distributed, address):
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        raise ClusterError(f"no Dask scheduler answers at {address} ({error})") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError:
            raise ClusterError(f"the cluster at {address} has no worker") from None
        yield client


def _why_not_sent(path):
    """Say what keeps a file from being sent, or return the empty string."""
    if path.is_symlink():
        return "it is a link to another file: hand in the notebook itself"
    if path.is_file() and path.stat().st_size <= MAX_BYTES:
        return ""
    try:
        read(path)
    except Unreadable as error:
        return str(error)
    return ""
