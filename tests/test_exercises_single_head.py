"""Exercise 2: what its questions share with the chapter, and what a wrong scale costs."""

from pathlib import Path

import nbformat
import numpy as np
import pytest

from .oracle import single_head as oracle
from .test_exercises import MISTAKES, failures

STEM = "02_single_head"
ROOT = Path(__file__).parents[1]


def test_a_wrong_scale_leaves_the_points_of_what_is_right():
    unscaled = next(m for m in MISTAKES if m.id == "sdpa-no-scale")
    failed = failures(unscaled.question, unscaled.answer, seed=0)
    assert "true_in_the_mask_means_may_attend" not in failed
    assert "a_query_without_allowed_key_gets_zeros" not in failed


# --- the notebook ---


@pytest.fixture(scope="module")
def notebook():
    return nbformat.read(ROOT / "solutions" / f"{STEM}.ipynb", as_version=4)


def printed_by(notebook, cell_id):
    """Parse the matrices that an example cell prints: ``[(title, array), …]``."""
    cell = next(cell for cell in notebook.cells if cell.id == cell_id)
    tokens, words, matrices = ["cats", "chase", "mice"], {"True": 1, "False": 0}, []
    for line in cell.outputs[0].text.splitlines():
        name, *entries = line.split() or [""]
        if name in tokens and entries != tokens[1:]:
            matrices[-1][1].append([float(words.get(entry, entry)) for entry in entries])
        elif not line.startswith(" ") and name:  # neither a row nor the names of the columns
            matrices.append((line.partition(":")[0], []))
    return [(title, np.array(rows)) for title, rows in matrices if rows]


def test_the_numbers_of_the_softmax_example_are_right(notebook):
    (_, scores), (_, weights) = printed_by(notebook, "softmax-example")
    assert np.abs(weights - oracle.softmax(scores)).max() < 0.00051


def test_the_numbers_of_the_attention_example_are_right(notebook):
    matrices = printed_by(notebook, "scaled-dot-product-attention-example")
    titles = [title for title, _ in matrices]
    assert titles == ["Q", "K", "V", "weights", "output", "mask", "weights", "output"]
    Q, K, V, weights, output, mask, masked_weights, masked_output = (m for _, m in matrices)
    for got, want in zip(
        [output, weights, masked_output, masked_weights],
        [
            *oracle.scaled_dot_product_attention(Q, K, V),
            *oracle.scaled_dot_product_attention(Q, K, V, mask == 1),
        ],
        strict=True,
    ):
        assert np.abs(got - want).max() < 0.00051


def test_the_example_is_that_of_the_chapter(notebook):
    chapter = nbformat.read(ROOT / "book" / f"{STEM}.ipynb", as_version=4)
    names = {"np": np, "show": lambda *args, **kwargs: None}
    for cell in chapter.cells:
        if cell.source.startswith(("tokens = [", "W_q = np.array", "Q = X @ W_q")):
            exec(cell.source, names)
    ours = dict(printed_by(notebook, "scaled-dot-product-attention-example"))
    for name in "QKV":
        assert np.array_equal(ours[name], names[name])
