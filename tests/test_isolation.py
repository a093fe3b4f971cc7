"""Strangers' code: each attack gets exactly the grade it earned, and the others keep theirs."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from autograder import landlock, sandbox, wall
from autograder.__main__ import main
from autograder.batch import Task, grade_class, grade_task
from autograder.grade import grade
from autograder.sandbox import Server
from autograder.submissions import find_submissions

from .attacks import ATTACKS, RIGHT_DOUBLE, RIGHT_HALF, as_markdown

RIGHT = {"double": RIGHT_DOUBLE, "half": RIGHT_HALF}
WALLS = {"memory", "network", "processes", "scratch"}


@pytest.fixture(scope="session")
def strict():
    """A server with all walls; skipped where the platform has not got them."""
    if why := wall.why_not():
        pytest.skip(f"missing {why}")
    with Server(["answers_of_this_course"], isolated=True) as server:
        if missing := WALLS - server.layers():
            pytest.skip(f"missing walls: {sorted(missing)}")
        yield server


@pytest.fixture
def outside(tmp_path, course):
    """What lies outside: files that must not be seen, sockets that must not be reached."""
    other = tmp_path / "another submission.ipynb"
    other.write_text("{}")
    files = [
        *(course.root / "solutions").iterdir(),
        *(course.root / "tests" / "checks").glob("*.py"),
        other,
        Path(__file__),
        Path(wall.__file__),
        Path("/etc/passwd"),
        *(path for path in Path.home().iterdir() if path.is_file()),
    ]
    listening = []
    for family, address in [
        (socket.AF_INET, ("127.0.0.1", 0)),
        (socket.AF_UNIX, str(tmp_path / "socket")),
        (socket.AF_UNIX, f"\0abstract-{os.getpid()}-{tmp_path.name}"),
    ]:
        listener = socket.socket(family)
        listener.bind(address)
        listener.listen()
        listening.append(listener)
    addresses = [(int(s.family), s.getsockname()) for s in listening]
    addresses = [(f, a.decode() if isinstance(a, bytes) else a) for f, a in addresses]
    before = {path: path.stat() for path in files}
    yield {"secrets": [str(path) for path in files], "sockets": addresses}
    for listener in listening:
        listener.close()
    for path, stat in before.items():
        assert (path.stat().st_size, path.stat().st_mode) == (stat.st_size, stat.st_mode)


def fill(source, outside):
    for key, value in outside.items():
        source = source.replace("{" + key + "}", repr(value))
    return source


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack_gets_its_grade_and_the_others_theirs(
    attack, strict, course, hand_in, outside, monkeypatch
):
    if "import torch" in attack.source:
        pytest.importorskip("torch")
    monkeypatch.setattr(sandbox, "CELL_SECONDS", 2.0)
    course.questions("01_numbers")[1].seconds = 1.0 if attack.group == "time" else 30.0
    source = fill(attack.source, outside)
    paths = [
        hand_in("batch/a/01_numbers.ipynb", **RIGHT),
        hand_in("batch/b/01_numbers.ipynb", **RIGHT | {"half": source}),
        hand_in("batch/c/01_numbers.ipynb", **RIGHT),
    ]
    before, attacked, after = (
        grade_task(Task(p.parent.name, p.stem, p, 0), course, strict) for p in paths
    )
    assert before.points == after.points == 3.5
    double, half = attacked.questions
    assert (double.status, double.points) == ("passed", 1.5)
    if attack.status == "stopped":
        assert half.status in ("error", "crashed", "timeout", "memory")
    else:
        assert half.status == attack.status, half.feedback
    assert half.points == (2.0 if attack.status == "passed" else 0.0)
    assert all(attacked.isolation.values())


def test_controls_the_spies_can_see_where_there_is_no_wall(course, server, hand_in, outside):
    """The attacks that look around do find something when nothing keeps them from it."""
    spies = [a for a in ATTACKS if "{secrets}" in a.source or "{sockets}" in a.source]
    for attack in spies:
        if "over grader" in attack.name or "changes modes" in attack.name:
            continue  # these would do harm
        path = hand_in("b.ipynb", **RIGHT | {"half": fill(attack.source, outside)})
        assert grade(path, course, server).questions[1].status == "passed", attack.name


def test_without_bubblewrap_files_stay_closed(course, hand_in, outside, monkeypatch):
    """Landlock stands alone where nothing can be installed: what exists is seen, not opened."""
    if not landlock.version():
        pytest.skip("the kernel has no Landlock")
    kept_out = ("reads solutions", "reads /proc", "writes over grader")
    attacks = [attack for attack in ATTACKS if attack.name.startswith(kept_out)]
    assert len(attacks) == len(kept_out)
    monkeypatch.setattr(wall, "why_not", lambda: "a private root: bubblewrap is not installed")
    with Server(["answers_of_this_course"], isolated=True) as server:
        assert "landlock" in server.layers()
        assert "scratch" not in server.layers()
        for attack in attacks:
            path = hand_in("b.ipynb", **RIGHT | {"half": fill(attack.source, outside)})
            report = grade_task(Task("b", path.stem, path, 0), course, server)
            assert report.questions[1].status == attack.status, attack.name
            assert not report.isolation["files"]


def test_page_shows_every_attack():
    """To mend: ``python -m tests.attacks > book/isolation_table.md``."""
    page = Path(__file__).parents[1] / "book" / "isolation_table.md"
    assert page.read_text(encoding="utf-8") == as_markdown()


def test_nothing_is_left_running(strict, course, hand_in):
    mark = f"left-running-{os.getpid()}"
    source = (
        "import os, subprocess, time\ndef half(x):\n"
        f"    subprocess.Popen(['sh', '-c', 'sleep 99 # {mark}'], start_new_session=True)\n"
        "    time.sleep(0.3)\n    return x / 2"
    )
    path = hand_in(**RIGHT | {"half": source})
    seen = []

    def watch():
        while not stop.is_set():
            seen.extend(p for p in running(mark))
            time.sleep(0.002)

    stop = threading.Event()
    watcher = threading.Thread(target=watch)
    watcher.start()
    assert grade(path, course, strict)
    stop.set()
    watcher.join()
    assert seen  # it did run
    assert not list(running(mark))


def running(mark):
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark in path.read_text() and "pytest" not in path.read_text():
                yield path


def test_files_beside_the_notebook_are_not_imported(strict, course, hand_in):
    path = hand_in("student/01_numbers.ipynb", **RIGHT)
    for name in ("torch.py", "numpy.py", "conftest.py", "sitecustomize.py", "evil.pth"):
        (path.parent / name).write_text("raise SystemExit('imported')\n")
    assert grade(path, course, strict)


def test_link_to_somewhere_else_is_not_followed(strict, course, tmp_path):
    student = tmp_path / "submissions" / "eve"
    student.mkdir(parents=True)
    (student / "01_numbers.ipynb").symlink_to(course.solutions / "01_numbers.ipynb")
    submissions = find_submissions([tmp_path / "submissions"], course, tmp_path)
    (report,) = grade_class(submissions, course, strict).reports.values()
    assert report.status == "unreadable"
    assert "link" in report.reason


def test_pipe_is_not_waited_for(strict, course, tmp_path):
    pipe = tmp_path / "01_numbers.ipynb"
    os.mkfifo(pipe)
    assert grade(pipe, course, strict).status == "unreadable"


def test_batch_goes_on_when_the_server_is_killed(course, hand_in, tmp_path):
    """Killed while a submission runs: that one is graded anew, and each is graded once."""
    slow = "import time\ndef half(x):\n    time.sleep(0.7)\n    return x / 2"
    for student in "abc":
        hand_in(f"class/{student}/01_numbers.ipynb", **RIGHT | {"half": slow})
    submissions = find_submissions([tmp_path / "class"], course, tmp_path)
    seen = []
    with Server(isolated=not wall.why_not()) as server:
        server.start()
        server.layers()
        threading.Timer(1.0, os.kill, (server.process.pid, signal.SIGKILL)).start()
        results = grade_class(
            submissions, course, server, out=tmp_path / "out", progress=seen.append
        )
    assert [r.points for r in results.reports.values()] == [3.5, 3.5, 3.5]
    assert len(seen) == 3


def test_time_for_the_whole_notebook_is_limited(strict, course, hand_in, monkeypatch):
    monkeypatch.setattr(sandbox, "NOTEBOOK_SECONDS", 1.0)
    extra = ["import time\ntime.sleep(0.4)"] * 5
    start = time.monotonic()
    report = grade(hand_in(extra=extra, **RIGHT), course, strict)
    assert time.monotonic() - start < 10
    assert report.points == 0
    assert {question.status for question in report.questions} == {"timeout"}


def test_refuses_without_walls_when_told_so(course, hand_in, monkeypatch, capsys):
    monkeypatch.setattr(wall, "why_not", lambda: "a private root: bubblewrap is not installed")
    arguments = ["--course", str(course.root), "grade", str(hand_in(**RIGHT)), "--json", "-"]
    assert main([*arguments, "--require-isolation"]) == 2
    refused = capsys.readouterr()
    assert "no wall for" in refused.err
    assert "bubblewrap is not installed" in refused.err
    assert refused.out == ""
    assert main(arguments) == 0
    assert '"files": false' in capsys.readouterr().out


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user already")
def test_works_for_an_ordinary_user(strict, course, hand_in):
    """As an ordinary user, with no privilege, bubblewrap makes a user namespace of its own."""
    command = ["unshare", "--user", "--map-user=1000", "--map-group=1000", sys.executable]
    command += ["-m", "autograder", "--course", str(course.root), "grade", "--require-isolation"]
    command += ["--json", "-", str(hand_in(**RIGHT))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["points"] == 3.5
    assert all(report["isolation"].values())
