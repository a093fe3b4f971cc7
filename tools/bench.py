"""How fast is the grader? Compare it with nbgrader and otter-grader on this machine.

    python tools/bench.py               measure all, write book/data/bench.json and the table
    python tools/bench.py --quick       measure with few submissions, write nothing
    python tools/bench.py --table       make the table in book/instructors.md from the data
    python tools/bench.py --profile     say where the time of a submission goes

One assignment with three questions of chapter 2 and the same answers, right and wrong, in three
formats; each grader compares the same values on the same kind of random inputs. The others live
in environments of their own in ~/.cache/attention-bench, or where ATTENTION_BENCH says.
"""

import argparse
import contextlib
import csv
import datetime
import functools
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import nbformat
import numpy as np
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_raw_cell

from autograder import batch, grade, sandbox
from autograder.course import Course
from autograder.sandbox import Server
from autograder.submissions import find_submissions

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("ATTENTION_BENCH", "~/.cache/attention-bench")).expanduser()
DATA = ROOT / "book" / "data" / "bench.json"
PAGE = ROOT / "book" / "instructors.md"
BEGIN, END = "<!-- made by tools/bench.py -->", "<!-- end of what tools/bench.py made -->"
STEM = "02_bench"
PEERS = {
    "nbgrader": ["nbgrader==0.9.5", "ipykernel", "numpy"],
    "otter": ["otter-grader==7.0.0", "ipykernel", "numpy"],
}
MANY = (30, 100, 300, 1000)

# --- the assignment ---

QUESTIONS = ("softmax", "attention_entropy", "scaled_dot_product_attention")

REFERENCE = """
import numpy as np


def want_softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return [e / e.sum(axis=-1, keepdims=True)]


def want_attention_entropy(weights):
    return [-(weights * np.log(np.where(weights > 0, weights, 1.0))).sum(axis=-1)]


def want_scaled_dot_product_attention(Q, K, V, mask=None):
    scores = Q @ K.swapaxes(-1, -2) / np.sqrt(K.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = want_softmax(scores)[0]
    return [weights @ V, weights]


def inputs_softmax(rng):
    return [(rng.normal(size=(3, 5)),), (rng.normal(size=(2, 4, 4)),), (1e4 + rng.normal(size=5),)]


def inputs_attention_entropy(rng):
    one_hot = np.eye(4)[rng.permutation(4)]
    sizes = ((3, 5), (2, 4, 4))
    return [(want_softmax(rng.normal(size=size))[0],) for size in sizes] + [(one_hot,)]


def inputs_scaled_dot_product_attention(rng):
    Q, K, V = (rng.normal(size=size) for size in ((4, 3), (6, 3), (6, 2)))
    batch = [rng.normal(size=(2, 4, 4)) for _ in range(3)]
    return [(Q, K, V), (*batch,), (*batch, np.tri(4, dtype=bool))]
"""

OUR_CHECKS = (
    "from autograder.checks import Question, expect_close\n"
    + REFERENCE
    + "".join(
        f'''

{name} = Question("{name}", section="Steps")


@{name}.check(points=1.0)
def {name}_gives_the_right_values(learner, rng):
    for args in inputs_{name}(rng):
        got = learner.call("{name}", *args)
        want = want_{name}(*args)
        for one, other in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
            expect_close(one, other, "{name}")
'''
        for name in QUESTIONS
    )
)

OUR_MISTAKES = f"""
import importlib.util

from autograder.mistakes import mistakes_of

path = {str(ROOT / "tests" / "mistakes" / "single_head.py")!r}
spec = importlib.util.spec_from_file_location("bank", path)
bank = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bank)
globals().update({{m.id: m for m in mistakes_of(bank) if m.question in {QUESTIONS}}})
"""

OUR_PYPROJECT = """
[tool.autograder]
solutions = "solutions"
exercises = "exercises"
checks = "tests/checks"
mistakes = "tests/mistakes"
answer_key = ["attention"]
"""


def their_test(name, seed=0):
    """The code of a hidden test: what the check of our format does."""
    return f"""\
for args in inputs_{name}(np.random.default_rng({seed})):
    got, want = {name}(*args), want_{name}(*args)
    for one, other in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
        assert np.allclose(one, other, rtol=1e-4, atol=1e-6)
"""


ANSWERS = {
    "softmax": [
        """def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)""",
        """def softmax(x, axis=-1):
    e = np.exp(x)
    return e / e.sum(axis=axis, keepdims=True)""",
        """def softmax(x, axis=-1):
    peak = np.max(x, axis=axis, keepdims=True)
    return np.exp(x - peak - np.log(np.exp(x - peak).sum(axis=axis, keepdims=True)))""",
        """def softmax(x, axis=-1):
    e = np.exp(x - np.max(x))
    return e / np.sum(e)""",
    ],
    "attention_entropy": [
        """def attention_entropy(weights):
    logs = np.log(np.where(weights > 0, weights, 1.0))
    return -(weights * logs).sum(axis=-1)""",
        """def attention_entropy(weights):
    return -(weights * np.log(weights)).sum(axis=-1)""",
        """def attention_entropy(weights):
    logs = np.zeros_like(weights)
    np.log(weights, out=logs, where=weights > 0)
    return -np.einsum("...k,...k->...", weights, logs)""",
        """def attention_entropy(weights):
    return -(weights * np.log2(np.where(weights > 0, weights, 1.0))).sum(axis=-1)""",
    ],
    "scaled_dot_product_attention": [
        """def scaled_dot_product_attention(Q, K, V, mask=None):
    scores = Q @ np.swapaxes(K, -1, -2) / np.sqrt(K.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = e / e.sum(axis=-1, keepdims=True)
    return weights @ V, weights""",
        """def scaled_dot_product_attention(Q, K, V, mask=None):
    scores = Q @ np.swapaxes(K, -1, -2)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = e / e.sum(axis=-1, keepdims=True)
    return weights @ V, weights""",
        """def scaled_dot_product_attention(Q, K, V, mask=None):
    scores = np.einsum("...qd,...kd->...qk", Q, K) / K.shape[-1] ** 0.5
    scores = scores if mask is None else np.where(mask, scores, -1e30)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = e / e.sum(axis=-1, keepdims=True)
    return np.einsum("...qk,...kv->...qv", weights, V), weights""",
        """def scaled_dot_product_attention(Q, K, V, mask=None):
    scores = Q @ K.T / np.sqrt(K.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = e / e.sum(axis=-1, keepdims=True)
    return weights @ V, weights""",
    ],
}
RIGHT = {name: answers[0] for name, answers in ANSWERS.items()}


def answers_of(student):
    """Choose a student's answers: about half of them right."""
    steps = (1, 3, 5)
    return {
        name: answers[student // step % len(answers)]
        for step, (name, answers) in zip(steps, ANSWERS.items(), strict=True)
    }


def name_of(student):
    return f"s{student:04d}"


def nbgrader_cell(source, name, *, grade=False, locked=False, solution=False, points=None):
    metadata = {"schema_version": 3, "grade_id": name, "task": False}
    metadata |= {"grade": grade, "locked": locked, "solution": solution}
    if points is not None:
        metadata["points"] = points
    return new_code_cell(source, metadata={"nbgrader": metadata})


def notebook(answers, check):
    """Make a notebook with nbgrader's metadata, which our format shares."""
    cells = [nbgrader_cell("import numpy as np", "setup", locked=True)]
    for name, source in answers.items():
        cells.append(new_markdown_cell(f"Write `{name}`."))
        cells.append(nbgrader_cell(source, name, solution=True))
        options = {"grade": True, "locked": True, "points": 1}
        cells.append(nbgrader_cell(check(name), f"check_{name}", **options))
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return new_notebook(cells=cells, metadata=metadata)


def write(found, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(found, path)


def marked(source):
    """Put nbgrader's solution markers, which our format shares, around a function's body."""
    head, _, body = source.partition("\n")
    return f"{head}\n    ### BEGIN SOLUTION\n{body}\n    ### END SOLUTION"


def solution(check):
    found = notebook({name: marked(source) for name, source in RIGHT.items()}, check)
    found.metadata["autograder"] = {"notebook": STEM}
    return found


# --- measuring ---


def measured(commands, folder):
    """Run commands side by side; return their seconds, processor seconds and memory.

    Memory is summed over all processes, and a page that several share counts once. It is what
    95 % of the looks at it found at most: while a process forks, its pages may be seen twice.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    log = (folder / "bench.log").open("ab")
    running = [
        subprocess.Popen(c, cwd=folder, stdout=log, stderr=log, env=with_programs(c))
        for c in commands
    ]
    memory, cpu, done = [0], [0.0], threading.Event()

    def watch():
        while not done.wait(0.1):
            found = [processes_of(process.pid) for process in running]
            memory.append(sum(proportional_memory(pid) for tree in found for pid in tree))
            cpu.append(sum(processor_seconds(pid) for tree in found for pid in tree))

    watcher = threading.Thread(target=watch)
    watcher.start()
    codes = [process.wait() for process in running]
    wall = time.perf_counter() - start
    done.set()
    watcher.join()
    log.close()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if any(code not in (0, 1) for code in codes):
        raise SystemExit(f"{commands[0]} failed; see {folder / 'bench.log'}")
    waited_for = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # What nobody waited for (a server behind its wall) was seen while it ran.
    return {"wall": wall, "cpu": max(waited_for, *cpu), "memory": float(np.percentile(memory, 95))}


def processes_of(pid):
    """List a process and its descendants."""
    found = [pid]
    with contextlib.suppress(OSError, ValueError):
        for task in os.listdir(f"/proc/{pid}/task"):
            children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
            found += [pid for child in children for pid in processes_of(int(child))]
    return found


def proportional_memory(pid):
    """Return the memory of a process in bytes, with its part of what it shares."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def processor_seconds(pid):
    """Return the processor seconds of a process and of the children that it has waited for."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, after_name[11:15])) / os.sysconf("SC_CLK_TCK")


def with_programs(command):
    """Return the environment in which a program finds those that are installed beside it."""
    return os.environ | {"PATH": f"{Path(command[0]).parent}:{os.environ['PATH']}"}


def environment(name):
    """Make the environment of a peer, once. Returns its folder of programs."""
    folder = CACHE / name
    if not (folder / "installed").exists():
        print(f"installing {name} into {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *PEERS[name]], check=True)
        (folder / "installed").touch()
    return folder / "bin"


def fresh(name):
    folder = CACHE / "work" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def prepare(command, folder):
    """Run a command that is not measured."""
    options = {"cwd": folder, "env": with_programs(command)}
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


# --- the graders ---


def our_course(folder, students, mistakes=True):
    """Write a course of three questions, and a class; return how to grade it."""
    course = folder / "course"
    for name in ("solutions", "exercises", "tests/checks", "tests/mistakes"):
        (course / name).mkdir(parents=True)
    (course / "pyproject.toml").write_text(OUR_PYPROJECT)
    (course / "tests/checks/bench.py").write_text(OUR_CHECKS)
    if mistakes:
        (course / "tests/mistakes/bench.py").write_text(OUR_MISTAKES)
    write(solution(our_check), course / f"solutions/{STEM}.ipynb")
    for student in range(students):
        found = notebook(answers_of(student), our_check)
        found.metadata["autograder"] = {"notebook": STEM}
        write(found, folder / "class" / name_of(student) / f"{STEM}.ipynb")
    program = [sys.executable, "-m", "autograder", "--course", str(course), "grade", "class"]
    return [*program, "--out", "grades", "--seed", "0"]


def our_check(name):
    return f'assert check("{name}")'


WITHOUT_WALLS = """
import sys
from autograder import __main__ as program
walled = program.Server
program.Server = lambda answer_key, isolated: walled(answer_key, isolated=False)
sys.exit(program.main(sys.argv[1:]))
"""


def ours(students, jobs=1, *, isolated=True, mistakes=True):
    folder = fresh("ours")
    command = our_course(folder, students, mistakes)
    if not isolated:
        command[1:3] = ["-c", WITHOUT_WALLS]
    found = measured([[*command, "--jobs", str(jobs)]], folder)
    points = {}
    for report in (folder / "grades").rglob(f"{STEM}.json"):
        points[report.parent.name] = json.loads(report.read_text())["points"]
    return found, points


def nbgrader(students, jobs=1):
    programs = environment("nbgrader")
    folder = fresh("nbgrader")
    config = f"c = get_config()\nc.CourseDirectory.root = {str(folder)!r}\n"
    (folder / "nbgrader_config.py").write_text(
        config + "c.ClearSolutions.code_stub = {'python': 'raise NotImplementedError'}\n"
    )

    def check(name):
        hidden = REFERENCE + "\n" + their_test(name)
        return f"### BEGIN HIDDEN TESTS\n{hidden}### END HIDDEN TESTS"

    write(solution(check), folder / "source/bench" / f"{STEM}.ipynb")
    run = [str(programs / "nbgrader")]
    prepare([*run, "generate_assignment", "bench"], folder)
    for student in range(students):
        found = notebook(answers_of(student), lambda name: "")
        released = nbformat.read(folder / "release/bench" / f"{STEM}.ipynb", 4)
        for cell, answered in zip(released.cells, found.cells, strict=True):
            if answered.metadata.get("nbgrader", {}).get("solution"):
                cell.source = answered.source
        write(released, folder / "submitted" / name_of(student) / "bench" / f"{STEM}.ipynb")
    commands = [[*run, "autograde", "bench"]]
    if jobs == 2:
        commands = [
            [*run, "autograde", "bench", f"--student=s???[{c}]"] for c in ("02468", "13579")
        ]
    measure = measured(commands, folder)
    prepare([*run, "export"], folder)
    with open(folder / "grades.csv") as file:
        points = {row["student_id"]: float(row["score"] or 0) for row in csv.DictReader(file)}
    return measure, points


OTTER_LOOP = """
import json, sys
from otter.api import grade_submission
points = {}
for path in sys.argv[1:]:
    results = grade_submission(path, ag_path="autograder.zip", quiet=True)
    points[path[:-6]] = results.total
json.dump(points, open("points.json", "w"))
"""

OTTER_COMMAND = """
import json, os, subprocess, sys
points = {}
for path in sys.argv[1:]:
    os.mkdir(path[:-6])
    command = ["otter", "run", "-a", "autograder.zip", "-o", path[:-6], "--no-logo", path]
    subprocess.run(command, check=True)
    results = json.load(open(path[:-6] + "/results.json"))
    points[path[:-6]] = sum(test.get("score", 0) for test in results["tests"])
json.dump(points, open("points.json", "w"))
"""


def otter(students, command=False):
    programs = environment("otter")
    folder = fresh("otter")
    cells = [
        new_raw_cell("# ASSIGNMENT CONFIG\nname: bench\nexport_cell: false\ninit_cell: false"),
        new_code_cell("import numpy as np"),
    ]
    for name, source in RIGHT.items():
        head, _, body = source.partition("\n")
        test = REFERENCE + "\n" + their_test(name)
        cells += [
            new_raw_cell(f"# BEGIN QUESTION\nname: {name}\npoints: 1"),
            new_markdown_cell(f"Write `{name}`."),
            new_raw_cell("# BEGIN SOLUTION"),
            new_code_cell(f"{head}\n    # BEGIN SOLUTION\n{body}\n    # END SOLUTION"),
            new_raw_cell("# END SOLUTION"),
            new_raw_cell("# BEGIN TESTS"),
            new_code_cell(f"# HIDDEN\n{test}"),
            new_raw_cell("# END TESTS"),
            new_raw_cell("# END QUESTION"),
        ]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    write(new_notebook(cells=cells, metadata=metadata), folder / "bench.ipynb")
    assign = [str(programs / "otter"), "assign", "bench.ipynb", "made", "--no-pdfs"]
    prepare([*assign, "--no-run-tests"], folder)
    next(folder.glob("made/autograder/*.zip")).rename(folder / "autograder.zip")
    released = nbformat.read(folder / "made/student/bench.ipynb", 4)
    for student in range(students):
        answers = answers_of(student)
        for cell in released.cells:
            name = next((n for n in answers if cell.source.startswith(f"def {n}(")), None)
            if name:
                cell.source = answers[name]
        write(released, folder / f"{name_of(student)}.ipynb")
    files = [f"{name_of(student)}.ipynb" for student in range(students)]
    program = [str(programs / "python"), "-c", OTTER_COMMAND if command else OTTER_LOOP]
    measure = measured([[*program, *files]], folder)
    return measure, json.loads((folder / "points.json").read_text())


# --- where the time goes ---


def after_import(students, jobs, during=contextlib.nullcontext):
    """Grade in this process with a server that has imported; return the seconds."""
    folder = fresh("inside")
    our_course(folder, students)
    course = Course(folder / "course")
    submissions = find_submissions([folder / "class"], course, folder)
    with Server(course.answer_key, isolated=True) as server:
        server.layers()  # waits for the import
        batch.load_what_judges_need(course)
        with during():
            start = time.perf_counter()
            batch.grade_class(submissions, course, server, out=folder / "grades", jobs=jobs)
            return time.perf_counter() - start


def floor(times=30, isolated=True):
    """Return the seconds that it takes to fork a child and to end it, with no work between."""
    with Server(isolated=isolated) as server:
        server.fork(0).end()  # waits for the import
        seconds = []
        for _ in range(times):
            start = time.perf_counter()
            child = server.fork(0)
            child.layers()  # until its walls stand
            child.end()
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds)


PARTS = (
    (sandbox.Server, "fork", "fork the child"),
    (sandbox.Child, "layers", "wait for its walls"),
    (sandbox.SandboxedLearner, "load", "run the cells"),
    (sandbox.Child, "end", "end the child"),
    (grade, "run_check", "run the checks"),
    (grade, "diagnose", "find the mistake"),
    (grade, "show_smallest_failure", "find a small example"),
    (batch, "write_whole", "write the report"),
    (batch, "grade_task", "read, merge, look for what is forbidden"),
)


def parts(students=30):
    """Return the seconds that each part of grading takes for one submission, one at a time."""
    seconds, inside = {}, []

    def timed(home, name, part):
        original = getattr(home, name)

        @functools.wraps(original)
        def wrapper(*args, **kwargs):
            start = time.perf_counter()
            inside.append(0.0)  # what parts inside this one take
            try:
                return original(*args, **kwargs)
            finally:
                took = time.perf_counter() - start
                seconds[part] = seconds.get(part, 0.0) + took - inside.pop()
                if inside:
                    inside[-1] += took

        return mock.patch.object(home, name, wrapper)

    @contextlib.contextmanager
    def timers():
        with contextlib.ExitStack() as stack:
            for home, name, part in PARTS:
                stack.enter_context(timed(home, name, part))
            yield

    total = after_import(students, 1, timers)
    found = {part: took / students for part, took in seconds.items()}
    return found | {"the rest": total / students - sum(found.values())}


# --- what is shown ---


def measure(students, many):
    """Measure everything. Returns what is kept in `DATA`."""
    runs, points = {}, {}

    def run(name, grader, *args, **kwargs):
        runs[name], points[name] = grader(students, *args, **kwargs)
        each = runs[name]["wall"] / students
        print(f"{name}: {each:.3f} s a submission", file=sys.stderr, flush=True)

    run("this grader", ours)
    run("this grader, --jobs 2", ours, 2)
    run("this grader, without walls", ours, isolated=False)
    run("this grader, without walls, --jobs 2", ours, 2, isolated=False)
    run("this grader, without diagnosis", ours, mistakes=False)
    run("nbgrader", nbgrader)
    run("nbgrader, two processes", nbgrader, 2)
    run("otter-grader, from Python, in one process", otter)
    run("otter-grader, `otter run` for each", otter, command=True)
    first = points["this grader"]
    for name, found in points.items():
        if found != first:
            different = sorted(s for s in first if found.get(s) != first[s])
            raise SystemExit(f"{name} gives other points to {different}: the work is not the same")
    sizes = {}
    for size in many:
        sizes[size] = ours(size, 2)[0]
        print(f"{size}: {sizes[size]}", file=sys.stderr, flush=True)
    slope, start = np.polyfit([*sizes], [found["wall"] for found in sizes.values()], 1)
    return {
        "date": datetime.date.today().isoformat(),
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load": os.getloadavg()[1],
        },
        "versions": {name: packages[0].partition("==")[2] for name, packages in PEERS.items()},
        "submissions": students,
        "points": sum(first.values()),
        "graders": runs,
        "after_import": {f"--jobs {jobs}": after_import(students, jobs) for jobs in (1, 2)},
        "floor": {"walls": floor(), "without walls": floor(isolated=False)},
        "parts": parts(students),
        "sizes": {str(size): found for size, found in sizes.items()},
        "line": {"start": start, "each": slope},
    }


def processor():
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def table(data):
    """Return the Markdown that says how fast it is."""
    n, machine = data["submissions"], data["machine"]
    ours = data["graders"]["this grader"]
    lines = [
        f"Measured on {data['date']} on {machine['cores']} cores ({machine['processor']}), Python "
        f"{machine['python']}, load {machine['load']:.1f}, with nbgrader "
        f"{data['versions']['nbgrader']} and otter-grader {data['versions']['otter']}. One "
        f"assignment with three questions of chapter 2, {n} submissions. All graders give each "
        "submission the same points. Times are those of the whole command, start and import "
        "included, divided by the submissions. Memory is that of all processes together.",
        "",
        "| grader | seconds | times ours | processor seconds | memory |",
        "|---|---|---|---|---|",
    ]
    for name, run in data["graders"].items():
        lines.append(
            f"| {name} | {run['wall'] / n:.3f} | {run['wall'] / ours['wall']:.1f} "
            f"| {run['cpu'] / n:.3f} | {run['memory'] / 2**20:.0f} MiB |"
        )
    after, low = data["after_import"], data["floor"]
    lines += [
        "",
        f"Once NumPy and PyTorch are imported, {n} submissions take {after['--jobs 1']:.2f} s, and "
        f"{after['--jobs 2']:.2f} s with `--jobs 2`. To fork a process, build its walls and end "
        f"it takes {1000 * low['walls']:.0f} ms ({1000 * low['without walls']:.0f} ms without "
        "walls). No submission can take less. With one job, a submission spends:",
        "",
        "| part | milliseconds |",
        "|---|---|",
    ]
    longest_first = sorted(data["parts"].items(), key=lambda item: -item[1])
    lines += [f"| {part} | {1000 * seconds:.1f} |" for part, seconds in longest_first]
    lines += [
        "",
        "A larger class, `--jobs 2`:",
        "",
        "| submissions | seconds in all | seconds each | memory |",
        "|---|---|---|---|",
    ]
    for size, run in data["sizes"].items():
        each = run["wall"] / int(size)
        memory = f"{run['memory'] / 2**20:.0f} MiB"
        lines.append(f"| {size} | {run['wall']:.1f} | {each:.3f} | {memory} |")
    lines += [
        "",
        f"A line through these: {data['line']['start']:.1f} s to start, then "
        f"{1000 * data['line']['each']:.0f} ms a submission.",
    ]
    return "\n".join(lines) + "\n"


def write_table(data):
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{PAGE} has no place for the table: {BEGIN} … {END}")
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(data)}\n{END}{after}", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--quick", action="store_true", help="few submissions, write nothing")
    group.add_argument("--table", action="store_true", help="make the table from the data")
    group.add_argument("--profile", action="store_true", help="where the time of one goes")
    arguments = parser.parse_args()
    if arguments.table:
        write_table(json.loads(DATA.read_text()))
    elif arguments.profile:
        for part, seconds in sorted(parts().items(), key=lambda item: -item[1]):
            print(f"{1000 * seconds:6.1f} ms  {part}")
        print(f"{1000 * floor():6.1f} ms  to fork a child and end it, the floor")
    elif arguments.quick:
        print(table(measure(4, (4, 8))))
    else:
        data = measure(30, MANY)
        DATA.write_text(json.dumps(data, indent=1) + "\n")
        write_table(data)
        print(table(data))


if __name__ == "__main__":
    main()
