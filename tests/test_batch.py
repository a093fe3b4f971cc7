"""A whole class: graded in parallel, resumed, written whole, and readable on every platform."""

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from autograder import outputs, pages
from autograder.batch import choose_seed, grade_class, grade_elsewhere
from autograder.sandbox import Server
from autograder.submissions import find_submissions

from .attacks import RIGHT_DOUBLE, RIGHT_HALF

RIGHT = {"double": RIGHT_DOUBLE, "half": RIGHT_HALF}
SQUARES = {"double": "def double(x):\n    return x**2", "half": RIGHT_HALF}


@pytest.fixture
def a_class(course, hand_in, tmp_path):
    """A class of four: right, wrong, unreadable, and nothing handed in."""
    hand_in("class/ann/01_numbers.ipynb", **RIGHT)
    hand_in("class/bob/01_numbers.ipynb", **SQUARES)
    hand_in("class/eve/01_numbers.ipynb").write_text("{")
    (tmp_path / "class" / "zoe").mkdir()
    return find_submissions([tmp_path / "class"], course, tmp_path / "scratch")


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def results(a_class, course, server):
    return grade_class(a_class, course, server)


# --- grading ---


@pytest.mark.parametrize("jobs", [1, 2])
def test_everybody_gets_what_they_earned(a_class, course, server, jobs):
    found = grade_class(a_class, course, server, jobs=jobs)
    assert {name: r.points for (name, _), r in found.reports.items()} == {
        "ann": 3.5,
        "bob": 2.0,
        "eve": 0,
    }


def test_several_judges_find_the_same_as_one(a_class, course, server):
    one, two = (grade_class(a_class, course, server, seed=5, jobs=jobs) for jobs in (1, 2))
    assert {k: r.as_json() for k, r in one.reports.items()} == {
        k: r.as_json() for k, r in two.reports.items()
    }


def test_what_is_graded_is_not_graded_again(a_class, course, server, tmp_path, hand_in):
    out = tmp_path / "out"
    grade_class(a_class, course, server, out=out)
    before = {path: path.read_bytes() for path in out.rglob("*.json")}
    again = grade_class(a_class, course, server, out=out)
    assert again.reused == 3
    assert {path: path.read_bytes() for path in out.rglob("*.json")} == before
    hand_in("class/bob/01_numbers.ipynb", **RIGHT)  # handed in anew
    mended = grade_class(a_class, course, server, out=out)
    assert mended.reused == 2
    assert mended.reports["bob", "01_numbers"].points == 3.5


def test_changed_checks_or_seed_grade_again(a_class, course, server, tmp_path):
    out = tmp_path / "out"
    grade_class(a_class, course, server, out=out)
    assert grade_class(a_class, course, server, out=out, seed=1).reused == 0
    checks = course.checks / "numbers.py"
    checks.write_text(checks.read_text() + "\n# changed\n")
    assert grade_class(a_class, course, server, out=out, seed=1).reused == 0


def test_damaged_report_is_graded_again(a_class, course, server, tmp_path):
    out = tmp_path / "out"
    grade_class(a_class, course, server, out=out)
    (out / "ann" / "01_numbers.json").write_text('{"digest": 3}')
    assert grade_class(a_class, course, server, out=out).reused == 2


def test_seed_is_kept_with_the_results(tmp_path):
    first = choose_seed(tmp_path, None)
    assert choose_seed(tmp_path, None) == first
    assert choose_seed(tmp_path, 7) == 7
    assert choose_seed(tmp_path, None) == 7


def test_judge_that_is_killed_costs_nothing(course, server, hand_in, tmp_path):
    slow = "import time\ndef half(x):\n    time.sleep(0.4)\n    return x / 2"
    for number in range(6):
        hand_in(f"class/s{number}/01_numbers.ipynb", **RIGHT | {"half": slow})
    submissions = find_submissions([tmp_path / "class"], course, tmp_path)
    killed = []

    def kill_a_judge(report):
        if not killed:
            children = subprocess.run(
                ["pgrep", "-P", str(os.getpid()), "-f", "pytest"], capture_output=True, text=True
            ).stdout.split()
            os.kill(int(children[-1]), signal.SIGKILL)
            killed.append(children[-1])

    with Server(["answers_of_this_course"]) as own:
        found = grade_class(submissions, course, own, jobs=2, progress=kill_a_judge)
    assert killed
    assert [r.points for r in found.reports.values()] == [3.5] * 6


def test_killed_in_the_middle_it_goes_on(course, hand_in, tmp_path):
    slow = "import time\ndef half(x):\n    time.sleep(0.5)\n    return x / 2"
    for number in range(6):
        hand_in(f"class/s{number}/01_numbers.ipynb", **RIGHT | {"half": slow})
    out = tmp_path / "out"
    command = [sys.executable, "-m", "autograder", "--course", str(course.root)]
    command += ["grade", str(tmp_path / "class"), "--out", str(out)]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list(out.rglob("01_numbers.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    first.kill()
    first.wait()
    done = {path: path.stat().st_mtime_ns for path in out.rglob("01_numbers.json")}
    assert 2 <= len(done) < 6
    assert all(json.loads(path.read_text())["points"] == 3.5 for path in done)
    second = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert second.returncode == 0, second.stderr
    assert all(path.stat().st_mtime_ns == then for path, then in done.items())
    assert f"{len(done)} of them unchanged" in second.stdout
    assert len(rows((out / "gradebook.csv").read_text())) == 6


def test_pure_function_for_other_machines(course, hand_in):
    content = hand_in(**RIGHT).read_bytes()
    report = grade_elsewhere(str(course.root), "ann", "01_numbers", content, 3)
    assert report["points"] == 3.5
    assert report["submission"] == "ann"
    assert report["seed"] == 3


# --- what comes out ---


def test_gradebook(results, course):
    ann, bob, eve, zoe = rows(outputs.gradebook(results, course))
    assert (ann["submission"], ann["status"], ann["points"]) == ("ann", "graded", "3.5")
    assert (bob["double"], bob["double status"], bob["half"]) == ("0", "failed", "2")
    assert eve["status"] == "incomplete"
    assert "not JSON" in eve["notes"]
    assert (zoe["status"], zoe["points"]) == ("missing", "0")
    assert {row["max_points"] for row in (ann, bob, eve, zoe)} == {"3.5"}


def test_imports_of_platforms(results, course):
    points, ann, *_ = rows(outputs.canvas(results, course))
    assert points["01_numbers"] == "3.5"
    assert (ann["SIS Login ID"], ann["01_numbers"]) == ("ann", "3.5")
    ann, *_ = rows(outputs.moodle(results, course))
    assert (ann["username"], ann["grade"]) == ("ann", "3.5")


def test_names_cannot_be_formulas(results, course):
    results.submissions[0].name = '=HYPERLINK("http://evil")'
    assert "\n'=HYPERLINK" not in outputs.gradebook(results, course)  # quoted, as it has quotes
    assert rows(outputs.gradebook(results, course))[0]["submission"].startswith("'=")


def test_junit(results):
    suites = ElementTree.fromstring(outputs.junit(results))
    found = {s.get("name"): (s.get("tests"), s.get("failures")) for s in suites}
    assert found["ann/01_numbers"] == ("3", "0")
    assert found["bob/01_numbers"] == ("3", "2")
    assert suites.find("testsuite[@name='eve/01_numbers']/testcase/error") is not None


def test_gradescope(results):
    data = json.loads(outputs.gradescope(results.reports["bob", "01_numbers"]))
    assert data["score"] == sum(test["score"] for test in data["tests"]) == 2.0
    assert data["tests"][0]["status"] == "failed"
    assert "Try it with 3." in data["tests"][0]["output"]
    assert json.loads(outputs.gradescope(results.reports["eve", "01_numbers"]))["score"] == 0


def test_feedback_page_escapes_everything(course, server, hand_in, tmp_path):
    nasty = "def half(x):\n    raise ValueError('<script>alert(1)</script>\\x1b[31m')"
    hand_in("class/<img src=x>/01_numbers.ipynb", **RIGHT | {"half": nasty})
    submissions = find_submissions([tmp_path / "class"], course, tmp_path)
    results = grade_class(submissions, course, server)
    for text in (
        pages.feedback(next(iter(results.reports.values()))),
        pages.class_report(results, course),
    ):
        assert "<script" not in text
        assert "<img" not in text
    assert "&lt;script&gt;" in pages.feedback(next(iter(results.reports.values())))


def test_class_report_names_the_commonest_mistake(results, course):
    text = pages.class_report(results, course)
    assert "Twice is squared." in text
    assert 'aria-label="Histogram' in text
    assert "4 submissions, 3 with a notebook" in text


def test_exit_status_and_files(a_class, course, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "autograder", "--course", str(course.root), "grade"]
    result = subprocess.run(
        [*command, str(tmp_path / "class"), "--out", str(out), "--jobs", "2"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 1, result.stderr  # one is unreadable, one is missing
    assert "zoe: no notebook was handed in" in result.stdout
    made = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert {"gradebook.csv", "class.html", "junit.xml", "canvas.csv", "moodle.csv"} < made
    assert {"ann/01_numbers.json", "ann/01_numbers.html", "eve/01_numbers.html"} < made
    assert not [name for name in made if name.endswith(".part")]
    wrong = subprocess.run(
        [*command, str(tmp_path / "nowhere"), "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert wrong.returncode == 2
    assert "no file or folder" in wrong.stderr


def test_gradescope_zip_grades_as_gradescope_runs_it(hand_in, tmp_path):
    """The zip of this course, unpacked and run where Gradescope would."""
    pytest.importorskip("torch")  # for the solutions of chapter 2
    root = Path(__file__).parents[1]
    archive = tmp_path / "autograder.zip"
    command = [sys.executable, "-m", "autograder", "--course", str(root)]
    command += ["gradescope", "02_single_head", "--out", str(archive)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    home = tmp_path / "autograder"
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(home / "source")
    requirements = (home / "source" / "requirements.txt").read_text().splitlines()
    assert {line.split("==")[0] for line in requirements} >= {"numpy", "torch", "-e ."}
    (home / "submission").mkdir()
    environment = os.environ | {"AUTOGRADER_HOME": str(home), "PYTHON": sys.executable}
    script = ["bash", str(home / "source" / "run_autograder")]
    results = home / "results" / "results.json"

    subprocess.run(script, env=environment, check=True, capture_output=True, timeout=100)
    assert json.loads(results.read_text())["score"] == 0

    handed_in = home / "submission" / "my answers.ipynb"
    shutil.copy(root / "solutions" / "02_single_head.ipynb", handed_in)
    subprocess.run(script, env=environment, check=True, capture_output=True, timeout=100)
    found = json.loads(results.read_text())
    assert found["score"] == sum(test["max_score"] for test in found["tests"]) > 0
    assert all(test["status"] == "passed" for test in found["tests"])
