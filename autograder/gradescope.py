"""An autograder zip for Gradescope: upload it once for each notebook of the course.

The zip holds the course's checks and solutions, two scripts that Gradescope runs, and nothing
that students see. Its form is described at
https://gradescope-autograders.readthedocs.io/en/latest/specs/
"""

from __future__ import annotations

import zipfile

SETUP = """\
#!/usr/bin/env bash
# Gradescope runs this once, when the image is built.
set -euo pipefail
apt-get update
apt-get install -y python3 python3-venv bubblewrap
python3 -m venv /autograder/venv
/autograder/venv/bin/python -m pip install -r /autograder/source/requirements.txt
"""

RUN = """\
#!/usr/bin/env bash
# Gradescope runs this for each submission.
set -euo pipefail
home="${{AUTOGRADER_HOME:-/autograder}}"
python="${{PYTHON:-$home/venv/bin/python}}"
cd "$home/source"
work="$(mktemp -d)"
mkdir -p "$home/results"
results="$home/results/results.json"
if ! ls "$home"/submission/*.ipynb >/dev/null 2>&1; then
  echo '{{"score": 0, "output": "No notebook (.ipynb) was handed in."}}' > "$results"
  exit 0
fi
mkdir -p "$work/class/student"
newest="$(ls -t "$home"/submission/*.ipynb | head -n 1)"
cp "$newest" "$work/class/student/{stem}.ipynb"
"$python" -m autograder grade "$work/class" --out "$work/grades" || true
cp "$work/grades/student/{stem}.gradescope.json" "$results"
"""


def make_zip(course, stem, target):
    """Write the zip.

    Parameters
    ----------
    course : Course
    stem : str
        The notebook that students hand in.
    target : pathlib.Path

    Raises
    ------
    ValueError
        If the course has no such notebook.
    """
    if stem not in course.stems():
        raise ValueError(f"there is no notebook {stem!r}; there are: {', '.join(course.stems())}")
    files = {"setup.sh": SETUP, "run_autograder": RUN.format(stem=stem)}
    packages = [course.root / name for name in ("autograder", *course.answer_key)]
    sources = [course.root / name for name in ("pyproject.toml", "README.md", "LICENSE")]
    for folder in (course.checks.parent, *packages):
        sources += [f for f in sorted(folder.rglob("*.py")) if not f.name.startswith("test_")]
    sources += sorted(course.solutions.glob("*.ipynb"))
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o755 << 16
            opened.writestr(entry, text)
        opened.writestr("requirements.txt", requirements(course))
        for source in sources:
            if source.exists():
                opened.write(source, source.relative_to(course.root))


def requirements(course):
    """Return the course's pinned requirements for grading alone."""
    wanted = ("nbformat", "numpy", "rich", "torch", "-e")
    pinned = course.root / "requirements.txt"
    lines = pinned.read_text(encoding="utf-8").splitlines() if pinned.exists() else []
    return "\n".join(line for line in lines if line.startswith(wanted)) + "\n"
