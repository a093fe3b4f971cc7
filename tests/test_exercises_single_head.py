"""Exercise 2: its oracles proven, what it shares with the chapter, and what some mistakes cost."""

from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch

from autograder.grade import grade, grade_question
from autograder.learner import LiveLearner
from autograder.notebooks import as_text, grade_id
from autograder.release import make_release

from .oracle import exercise_single_head as more
from .oracle import single_head as oracle
from .test_exercises import COURSE, MISTAKES, QUESTIONS, failures

STEM = "02_single_head"
ROOT = Path(__file__).parents[1]


# --- what a mistake costs ---


def failed_by(mistake_id):
    mistake = next(m for m in MISTAKES if m.id == mistake_id)
    return set(failures(mistake.question, mistake.answer, seed=0))


def test_a_wrong_scale_leaves_the_points_of_what_is_right():
    failed = failed_by("sdpa-no-scale")
    assert failed
    assert "true_in_the_mask_means_may_attend" not in failed
    assert "a_query_without_allowed_key_gets_zeros" not in failed
    assert failed_by("backward-no-scale") == {"the_scale_enters_the_gradients"}
    assert failed_by("selfattn-no-scale") == {"module_gives_the_right_output_and_weights"}


def test_a_bias_costs_the_check_of_the_parameters_alone():
    assert failed_by("selfattn-with-bias") == {
        "three_projections_without_bias_are_all_its_parameters"
    }


def test_half_of_the_mending_earns_points():
    assert failed_by("mended-but-fill-finite-and-empty-rows-zero") == {
        "its_masked_keys_get_nothing_however_low_the_allowed_scores"
    }
    assert failed_by("mended-module-still-drops-the-mask") == {
        "mended_module_keeps_masked_keys_out"
    }


# --- what raises an error is named too ---


def named(question_id, answer):
    question = QUESTIONS[question_id]
    learner = LiveLearner({question_id: answer})
    return grade_question(question, learner, 0, MISTAKES).mistake


@pytest.mark.parametrize("fill", [-np.inf, -1e9])
@pytest.mark.parametrize("empty_rows_too", [False, True])
def test_indexing_with_a_mask_is_named_whatever_comes_after(fill, empty_rows_too):
    def mended_attention(Q, K, V, mask=None):
        scores = Q @ np.swapaxes(K, 1, 2) / np.sqrt(K.shape[-1])
        if mask is not None:
            scores[~mask] = fill
        if mask is not None and empty_rows_too:
            scores = np.where(mask.any(axis=-1, keepdims=True), scores, 0.0)
        weights = oracle.softmax(scores)
        return weights @ V, weights

    assert named("mended_attention", mended_attention) == "mended-by-indexing"


@pytest.mark.parametrize(
    ("queries_index", "keys_index", "mistake_id"),
    [
        (..., ..., "additive-without-new-axes"),
        ((..., None, slice(None)), ..., "additive-new-axis-for-queries-alone"),
        (..., (..., None, slice(None), slice(None)), "additive-new-axis-for-keys-alone"),
        ((..., None, slice(None)), (..., None, slice(None)), "additive-same-new-axis"),
    ],
)
def test_a_missing_axis_is_named(queries_index, keys_index, mistake_id):
    def additive_attention(Q, K, V, W_q, W_k, w):
        hidden = np.tanh((Q @ W_q)[queries_index] + (K @ W_k)[keys_index])
        weights = oracle.softmax(np.sum(hidden * w, axis=-1))
        return weights @ V, weights

    assert named("additive_attention", additive_attention) == mistake_id


# --- the oracles ---


def test_entropy_oracle_agrees_with_pytorch():
    rng = np.random.default_rng(0)
    weights = oracle.softmax(rng.normal(size=(2, 3, 5)))
    weights[0, 1] = [0.0, 0.0, 1.0, 0.0, 0.0]
    categorical = torch.distributions.Categorical(probs=torch.from_numpy(weights))
    assert np.allclose(more.attention_entropy(weights), categorical.entropy(), atol=1e-12)
    assert more.attention_entropy(np.zeros(4)) == 0


def test_additive_oracle_agrees_with_pytorch():
    rng = np.random.default_rng(1)
    shapes = (2, 3, 4), (2, 5, 6), (2, 5, 7), (4, 8), (6, 8), (8,)
    arrays = [rng.normal(size=shape) for shape in shapes]
    Q, K, V, W_q, W_k, w = map(torch.from_numpy, arrays)
    hidden = torch.tanh((Q @ W_q).unsqueeze(-2) + (K @ W_k).unsqueeze(-3))
    weights = torch.softmax(hidden @ w, dim=-1)
    got_output, got_weights = more.additive_attention(*arrays)
    assert np.allclose(got_weights, weights, atol=1e-12)
    assert np.allclose(got_output, weights @ V, atol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
def test_self_attention_oracle_agrees_with_pytorch(masked):
    rng = np.random.default_rng(2)
    arrays = [rng.normal(size=shape) for shape in ((2, 4, 3), (3, 5), (3, 5), (3, 6))]
    doutput, mask = rng.normal(size=(2, 4, 6)), None
    if masked:
        mask = rng.random((2, 4, 4)) < 0.6
        mask[1, 2] = False
    leaves = [torch.from_numpy(array).requires_grad_() for array in arrays]
    x, *matrices = leaves
    given = None if mask is None else torch.from_numpy(mask)
    output = torch.nn.functional.scaled_dot_product_attention(
        *(x @ W for W in matrices), attn_mask=given
    )
    gradients = torch.autograd.grad(output, leaves, torch.from_numpy(doutput))
    assert np.allclose(more.self_attention(*arrays, mask)[0], output.detach(), atol=1e-12)
    found = more.self_attention_backward(doutput, *arrays, mask)
    for ours, theirs in zip(found, gradients, strict=True):
        assert np.allclose(ours, theirs, atol=1e-12)


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


def test_the_numbers_of_the_entropy_example_are_right(notebook):
    (_, weights), (_, entropy) = printed_by(notebook, "attention-entropy-example")
    # the weights are rounded to three digits, and so is the entropy
    assert np.abs(entropy[:, 0] - more.attention_entropy(weights)).max() < 0.003


def test_the_numbers_of_the_backward_example_are_right(notebook):
    matrices = printed_by(notebook, "attention-backward-example")
    assert [title for title, _ in matrices] == ["doutput", "dQ", "dK", "dV"]
    (_, doutput), *gradients = matrices
    example = dict(printed_by(notebook, "scaled-dot-product-attention-example")[:3])
    Q, K, V = (example[name] for name in "QKV")
    _, weights = oracle.scaled_dot_product_attention(Q, K, V)
    right = oracle.attention_backward(doutput, Q, K, V, weights)
    for (_, printed), wanted in zip(gradients, right, strict=True):
        assert np.abs(printed - wanted).max() < 0.00051


def test_the_code_to_mend_is_wrong_in_the_way_that_is_told(notebook):
    names = {"np": np, "torch": torch, "nn": torch.nn}
    for cell in make_release(notebook).cells:
        if grade_id(cell) in ("mended_attention", "MendedSelfAttention"):
            exec(cell.source, names)
    rng = np.random.default_rng(3)
    with pytest.raises(ValueError, match="axes"):
        names["mended_attention"](*rng.normal(size=(3, 2, 3, 4)))
    module = names["MendedSelfAttention"](4, 3, 2)
    x = torch.from_numpy(rng.normal(size=(2, 5, 4))).float()
    hidden = torch.arange(5) == 1
    before, weights = module(x, ~hidden)
    x[:, hidden] += 1.0
    after, _ = module(x, ~hidden)
    assert weights.shape == (2, 5, 5)
    assert torch.allclose(weights.sum(dim=-1), torch.ones(2, 5))
    assert not torch.allclose(before[:, ~hidden], after[:, ~hidden])


@pytest.fixture
def grade_with(server, tmp_path):
    """Return a function that grades the solutions with other sources of some answers."""

    def grade_answers(**sources):
        handed_in = nbformat.read(ROOT / "solutions" / f"{STEM}.ipynb", as_version=4)
        for cell in handed_in.cells:
            cell.source = sources.get(grade_id(cell), cell.source)
        path = tmp_path / f"{STEM}.ipynb"
        path.write_text(as_text(handed_in), encoding="utf-8")
        return {question.id: question for question in grade(path, COURSE, server).questions}

    return grade_answers


def test_code_to_mend_cannot_be_replaced_by_an_earlier_answer(grade_with):
    found = grade_with(
        mended_attention="mended_attention = scaled_dot_product_attention",
        MendedSelfAttention="class MendedSelfAttention(SelfAttention):\n    pass",
    )
    statuses = {name: question.status for name, question in found.items()}
    assert statuses.pop("mended_attention") == "forbidden"
    assert statuses.pop("MendedSelfAttention") == "forbidden"
    assert set(statuses.values()) == {"passed"}


def test_a_variable_may_be_called_attention(grade_with):
    source = "def softmax(x, axis=-1):\n    attention = np.exp(x - x.max(axis, keepdims=True))\n"
    source += "    return attention / attention.sum(axis, keepdims=True)"
    assert grade_with(softmax=source)["softmax"].status == "passed"


def test_mistakes_are_named_in_the_sandbox_too(grade_with, notebook):
    module = next(c.source for c in notebook.cells if grade_id(c) == "SelfAttention")
    biased = module.replace(", bias=False", "")
    unscaled = module.replace(" / k.shape[-1] ** 0.5", "")
    predicted = "predicted_shapes = [(9, 4), (9, 6)]"
    found = grade_with(predicted_shapes=predicted, SelfAttention=biased)
    assert found["predicted_shapes"].mistake == "shapes-rows-for-keys"
    assert found["SelfAttention"].mistake == "selfattn-with-bias"
    assert grade_with(SelfAttention=unscaled)["SelfAttention"].mistake == "selfattn-no-scale"


def test_the_example_is_that_of_the_chapter(notebook):
    chapter = nbformat.read(ROOT / "book" / f"{STEM}.ipynb", as_version=4)
    names = {"np": np, "show": lambda *args, **kwargs: None}
    for cell in chapter.cells:
        if cell.source.startswith(("tokens = [", "W_q = np.array", "Q = X @ W_q")):
            exec(cell.source, names)
    ours = dict(printed_by(notebook, "scaled-dot-product-attention-example"))
    for name in "QKV":
        assert np.array_equal(ours[name], names[name])
