"""Damaged notebooks: every one ends in a report, none in a traceback."""

import copy
import json
import random

import nbformat
import pytest

from autograder.grade import grade
from autograder.notebooks import as_text

from .attacks import RIGHT_DOUBLE, RIGHT_HALF
from .little_course import solved_notebook

MUTANTS = 2000
STATUSES = {"passed", "partial", "failed", "error", "timeout", "memory", "crashed"}
STATUSES |= {"not_attempted", "missing", "forbidden"}
ODD_VALUES = [None, True, 0, -1, 1e300, "", "x", "\x00\x1b[31m", "<b>", [], {}, [[]], {"": {}}]


def filled_in():
    notebook = solved_notebook()
    notebook.cells[1].source, notebook.cells[4].source = RIGHT_DOUBLE, RIGHT_HALF
    return notebook


def places(tree):
    """Yield each ``(container, key)`` of a JSON tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in list(items):
        yield tree, key
        if isinstance(value, dict | list):
            yield from places(value)


def damage_tree(text, draw):
    """Replace, delete or double some parts of a notebook."""
    tree = json.loads(text)
    for _ in range(draw.randint(1, 4)):
        found = list(places(tree))
        if not found:
            break
        container, key = draw.choice(found)
        how = draw.randrange(4)
        if how == 0:
            container[key] = copy.deepcopy(draw.choice(ODD_VALUES))
        elif how == 1:
            del container[key]
        elif how == 2 and isinstance(container, list):
            container.insert(key, copy.deepcopy(container[key]))
        elif isinstance(container[key], str):
            letters = list(container[key])
            draw.shuffle(letters)
            container[key] = "".join(letters)
        else:
            container[key] = copy.deepcopy(draw.choice(found)[0])
    return json.dumps(tree).encode()


def damage_bytes(text, draw):
    """Change, delete or repeat bytes of the file, or cut it off."""
    data = bytearray(text.encode())
    for _ in range(draw.randint(1, 6)):
        start = draw.randrange(len(data) + 1)
        stop = min(len(data), start + draw.randint(1, 40))
        data[start:stop] = draw.choice(
            [b"", bytes([draw.randrange(256)]), data[start:stop] * 2, data[:20]]
        )
    return bytes(data[: draw.choice([len(data), draw.randrange(len(data) + 1)])])


@pytest.mark.parametrize("damage", [damage_tree, damage_bytes])
def test_every_damaged_notebook_ends_in_a_report(damage, course, server, tmp_path, monkeypatch):
    monkeypatch.setattr("autograder.sandbox.CELL_SECONDS", 1.0)
    text = as_text(filled_in())
    path = tmp_path / "01_numbers.ipynb"
    kinds = {}
    for seed in range(MUTANTS // 2):
        path.write_bytes(damage(text, random.Random(seed)))
        report = grade(path, course, server)
        assert report.status in ("graded", "unreadable")
        assert report.status == "graded" or report.reason
        assert {question.status for question in report.questions} <= STATUSES
        json.loads(report.as_json())
        kinds[report.status] = kinds.get(report.status, 0) + 1
    assert set(kinds) == {"graded", "unreadable"}, kinds  # both kinds of damage were done


def test_undamaged_notebook_earns_full_marks(course, server, tmp_path):
    path = tmp_path / "01_numbers.ipynb"
    nbformat.write(filled_in(), path)
    assert grade(path, course, server)
