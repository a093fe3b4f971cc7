"""Grading on a cluster: as here, whoever dies; nothing lost, nothing twice."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from types import SimpleNamespace

import nbformat
import pytest

from autograder import cluster
from autograder.batch import digest_of_course, grade_class
from autograder.course import Course
from autograder.submissions import find_submissions

from .attacks import RIGHT_DOUBLE, RIGHT_HALF
from .little_course import CHECKS, MISTAKES, PYPROJECT, solved_notebook

distributed = pytest.importorskip("distributed", reason="the extra `cluster` is not installed")

RIGHT = {"double": RIGHT_DOUBLE, "half": RIGHT_HALF}
SLOW = RIGHT | {"half": "import time\ndef half(x):\n    time.sleep(0.4)\n    return x / 2"}


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """The little course, one for all tests here: a worker keeps the courses that it has met."""
    root = tmp_path_factory.mktemp("course")
    for folder in ("solutions", "exercises", "tests/checks", "tests/mistakes"):
        (root / folder).mkdir(parents=True)
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "tests/checks/numbers.py").write_text(CHECKS)
    (root / "tests/mistakes/numbers.py").write_text(MISTAKES)
    nbformat.write(solved_notebook(), root / "solutions/01_numbers.ipynb")
    return Course(root)


@contextlib.contextmanager
def started(folder, program, *options):
    """Run a program of Dask's as somebody would on a machine of their own."""
    command = [sys.executable, "-m", f"distributed.cli.{program}", *options, "--no-dashboard"]
    environment = os.environ | {
        "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1",
        "DASK_TEMPORARY_DIRECTORY": str(folder),
    }
    with (folder / "log.txt").open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def scheduler(folder):
    file = folder / "scheduler.json"
    options = ("--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))
    with started(folder, "dask_scheduler", *options):
        deadline = time.monotonic() + 60
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert file.exists(), (folder / "log.txt").read_text()
        yield str(file), distributed.Client(scheduler_file=str(file), set_as_default=False)


def worker(folder, file, name, threads=1):
    options = ("--scheduler-file", file, "--name", name, "--nthreads", str(threads), "--no-nanny")
    return started(folder, "dask_worker", *options)


@pytest.fixture(scope="module")
def dask(tmp_path_factory):
    """A cluster of two workers, of which one has two threads."""
    folder = tmp_path_factory.mktemp("dask")
    with (
        scheduler(folder) as (file, client),
        client,
        worker(folder, file, "one"),
        worker(folder, file, "two", threads=2),
    ):
        client.wait_for_workers(2, timeout=60)
        address = client.scheduler.address
        yield SimpleNamespace(folder=folder, file=file, client=client, address=address)


@pytest.fixture
def grade_on(dask, course):
    """Return a function that grades submissions on the cluster."""

    def run(submissions, **options):
        elsewhere = partial(cluster.graded_on, dask.address, course)
        return grade_class(submissions, course, None, elsewhere=elsewhere, **options)

    return run


def test_a_cluster_finds_what_this_machine_finds(grade_on, course, server, hand_in, tmp_path):
    hand_in("class/ann/01_numbers.ipynb", **RIGHT)
    hand_in("class/bob/01_numbers.ipynb", **RIGHT | {"double": "def double(x):\n    return x**2"})
    hand_in("class/eve/01_numbers.ipynb").write_text("{")
    link = tmp_path / "class" / "lee" / "01_numbers.ipynb"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "class" / "ann" / "01_numbers.ipynb")
    submissions = find_submissions([tmp_path / "class"], course, tmp_path)
    here = grade_class(submissions, course, server, seed=5)
    there = grade_on(submissions, seed=5)
    points = {name: report.points for (name, _), report in there.reports.items()}
    assert points == {"ann": 3.5, "bob": 2.0, "eve": 0, "lee": 0}
    for key, report in there.reports.items():
        other = here.reports[key].as_dict()  # by a server without walls
        assert report.as_dict() | {"isolation": None} == other | {"isolation": None}


def test_worker_killed_at_work_costs_nothing(grade_on, dask, course, hand_in, tmp_path):
    for number in range(9):
        hand_in(f"class/s{number}/01_numbers.ipynb", **SLOW)
    submissions = find_submissions([tmp_path / "class"], course, tmp_path)
    out, seen, at_work = tmp_path / "out", [], []
    with worker(dask.folder, dask.file, "victim") as victim:
        dask.client.wait_for_workers(3, timeout=60)

        def kill_the_victim(report):
            seen.append(report.submission)
            workers = dask.client.scheduler_info(n_workers=-1)["workers"]
            address = next((a for a, w in workers.items() if w["name"] == "victim"), None)
            if not at_work and address and (busy_with := dask.client.processing()[address]):
                at_work.extend(busy_with)
                os.kill(victim.pid, signal.SIGKILL)

        found = grade_on(submissions, out=out, progress=kill_the_victim)
        assert at_work
        assert victim.wait(timeout=10) == -signal.SIGKILL
    assert sorted(seen) == [f"s{number}" for number in range(9)]
    assert [report.points for report in found.reports.values()] == [3.5] * 9
    assert len(list(out.rglob("01_numbers.json"))) == 9


def test_what_was_graded_is_not_graded_again(grade_on, course, hand_in, tmp_path):
    for number in range(5):
        hand_in(f"class/s{number}/01_numbers.ipynb", **RIGHT)
    submissions = find_submissions([tmp_path / "class"], course, tmp_path)
    out, seen = tmp_path / "out", []

    def interrupt(report):
        seen.append(report.submission)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grade_on(submissions, out=out, progress=interrupt)
    again = grade_on(submissions, out=out)
    assert again.reused == 2
    assert [report.points for report in again.reports.values()] == [3.5] * 5


def test_worker_with_another_version_of_the_course_is_refused(dask, course, hand_in, tmp_path):
    mine = Course(shutil.copytree(course.root, tmp_path / "mine"))
    submissions = find_submissions([hand_in(**RIGHT)], mine, tmp_path)

    def grade_often():
        for seed in range(6):
            elsewhere = partial(cluster.graded_on, dask.address, mine)
            grade_class(submissions, mine, None, seed=seed, elsewhere=elsewhere)

    grade_often()  # now a worker has loaded the course
    checks = mine.checks / "numbers.py"
    checks.write_text(CHECKS + "\n# changed\n")
    with pytest.raises(cluster.ClusterError, match="another version"):
        grade_often()


def test_worker_without_a_wall_is_refused_where_all_are_required(course, monkeypatch):
    digest = digest_of_course(course)
    open_server = SimpleNamespace(layers=lambda: {"memory", "network", "processes"})
    monkeypatch.setattr(cluster, "course_here", lambda root: (course, open_server, digest))
    monkeypatch.setattr(cluster, "grade_elsewhere", lambda *arguments: "graded")
    notebook = ("ann", "01_numbers", b"", 0)
    assert cluster.grade_there((str(course.root), digest, False), notebook) == "graded"
    with pytest.raises(cluster.Unfit, match="no wall for files"):
        cluster.grade_there((str(course.root), digest, True), notebook)


def test_without_distributed_it_says_what_to_install(course, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(cluster.ClusterError, match="pip install"):
        list(cluster.graded_on("tcp://127.0.0.1:9", course, []))


def test_missing_walls_are_named():
    def report(status, **isolation):
        return SimpleNamespace(status=status, isolation={"time": True, **isolation})

    reports = [report("graded", files=False), report("graded", network=True)]
    reports.append(report("unreadable", network=False))  # nothing of it ran
    assert cluster.missing_walls(reports) == ["files"]


def test_cluster_that_is_not_there_is_an_error(course, monkeypatch, tmp_path):
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 1)
    with pytest.raises(cluster.ClusterError, match=r"no Dask scheduler answers at tcp://127\.0"):
        list(cluster.graded_on("tcp://127.0.0.1:9", course, []))
    with (
        scheduler(tmp_path) as (_, client),
        client,
        pytest.raises(cluster.ClusterError, match="has no worker"),
    ):
        list(cluster.graded_on(client.scheduler.address, course, []))


def test_the_command(dask, course, hand_in, tmp_path):
    for name in ("ann", "bob"):
        hand_in(f"class/{name}/01_numbers.ipynb", **RIGHT)
    command = [sys.executable, "-m", "autograder", "--course", str(course.root), "grade"]
    command += [str(tmp_path / "class"), "--out", str(tmp_path / "out"), "--cluster", dask.address]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "2 notebooks graded" in result.stdout
    assert (tmp_path / "out" / "bob" / "01_numbers.html").exists()
    if shutil.which("bwrap"):
        assert '"files": true' in (tmp_path / "out" / "bob" / "01_numbers.json").read_text()


def test_notebook_that_kills_every_worker_is_named(
    grade_on, course, hand_in, tmp_path, monkeypatch
):
    """The last test here: it ends the workers."""

    def die(place, notebook):
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(cluster, "grade_there", die)
    hand_in("class/ann/01_numbers.ipynb", **RIGHT)
    submissions = find_submissions([tmp_path / "class"], course, tmp_path)
    with pytest.raises(cluster.ClusterError, match="every worker died that graded ann/01_numbers"):
        grade_on(submissions)
