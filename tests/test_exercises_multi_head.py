"""Exercise 3: its oracle against PyTorch, its examples, and what a single fault costs."""

import math
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from torch import nn

from autograder.checks import rng_for
from autograder.grade import grade_question
from autograder.learner import LiveLearner

from .checks import multi_head as checks
from .oracle import exercise_multi_head as oracle
from .test_exercises import MISTAKES, QUESTIONS, failures
from .variants import multi_head as variants

STEM = "03_multi_head"
ROOT = Path(__file__).parents[1]


# --- the oracle ---


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def draw(rng, B=3, L=5, num_heads=2, d=3):
    """Draw X and, as one array each, four matrices and four biases."""
    D = num_heads * d
    return rng.normal(size=(B, L, D)), rng.normal(size=(4, D, D)), rng.normal(size=(4, D))


def torch_layer(matrices, biases, num_heads):
    """Make PyTorch's own layer with the given weights, in float64."""
    layer = nn.MultiheadAttention(
        matrices.shape[1], num_heads, batch_first=True, dtype=torch.float64
    )
    W_q, W_k, W_v, W_o = (torch.tensor(W.T) for W in matrices)
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.cat([W_q, W_k, W_v]))
        layer.in_proj_bias.copy_(torch.tensor(biases[:3].ravel()))
        layer.out_proj.weight.copy_(W_o)
        layer.out_proj.bias.copy_(torch.tensor(biases[3]))
    return layer


def by_torch(layer, X, mask):
    """Run PyTorch's layer; a mask with three axes holds one matrix for each sequence."""
    ignored = None
    if mask is not None:
        full = np.broadcast_to(mask, (len(X), *mask.shape[-2:]))
        ignored = torch.tensor(~np.repeat(full, layer.num_heads, axis=0))
    x = torch.tensor(X, requires_grad=True)
    output, weights = layer(x, x, x, attn_mask=ignored, average_attn_weights=False)
    return x, output, weights


@pytest.mark.parametrize("shape", [None, (5, 5), (3, 5, 5)])
@pytest.mark.parametrize(("num_heads", "d"), [(2, 3), (3, 2), (1, 4)])
def test_layer_and_gradients_agree_with_pytorch(rng, shape, num_heads, d):
    X, matrices, biases = draw(rng, num_heads=num_heads, d=d)
    mask = None if shape is None else (rng.random(shape) < 0.5) | np.eye(5, dtype=bool)
    layer = torch_layer(matrices, biases, num_heads)
    x, output, weights = by_torch(layer, X, mask)
    named = dict(zip(("b_q", "b_k", "b_v", "b_o"), biases, strict=True))
    got = oracle.multi_head_attention(X, *matrices, num_heads, mask, **named)
    assert np.allclose(got[0], output.detach())
    assert np.allclose(got[1], weights.detach())

    doutput = rng.normal(size=X.shape)
    (output * torch.tensor(doutput)).sum().backward()
    found = oracle.multi_head_gradients(doutput, X, matrices, biases, num_heads, mask)
    packed = [
        np.concatenate([found[f"W_{n}.{part}"] for n in "qkv"]) for part in ("weight", "bias")
    ]
    assert np.allclose(packed[0], layer.in_proj_weight.grad)
    assert np.allclose(packed[1], layer.in_proj_bias.grad)
    assert np.allclose(found["W_o.weight"], layer.out_proj.weight.grad)
    assert np.allclose(found["W_o.bias"], layer.out_proj.bias.grad)
    assert np.allclose(found["x"], x.grad)


def test_empty_rows_give_zeros_and_finite_gradients(rng):
    X, matrices, biases = draw(rng)
    mask = np.eye(5, dtype=bool)
    mask[2] = False
    output, weights = oracle.multi_head_attention(X, *matrices, 2, mask, b_o=biases[3])
    assert not weights[:, :, 2].any()
    assert np.allclose(output[:, 2], biases[3])
    found = oracle.multi_head_gradients(rng.normal(size=X.shape), X, matrices, biases, 2, mask)
    assert all(np.isfinite(gradient).all() for gradient in found.values())


@pytest.mark.parametrize("num_kv_heads", [1, 2, 3, 6])
def test_grouped_queries_agree_with_pytorch(rng, num_kv_heads):
    X, matrices, _ = draw(rng, num_heads=6, d=2)
    W_q, W_k, W_v, W_o = matrices
    W_k, W_v = W_k[:, : 2 * num_kv_heads], W_v[:, : 2 * num_kv_heads]
    q, k, v = (torch.tensor(X @ W).unflatten(-1, (-1, 2)).transpose(1, 2) for W in (W_q, W_k, W_v))
    context = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    right = context.transpose(1, 2).flatten(-2).numpy() @ W_o
    output, weights = oracle.grouped_query_attention(X, W_q, W_k, W_v, W_o, 6, num_kv_heads)
    assert np.allclose(output, right)
    assert np.allclose(weights.sum(axis=-1), 1)
    parameters, kept = oracle.grouped_query_costs(5, 12, 6, num_kv_heads)
    assert parameters == sum(W.size for W in (W_q, W_k, W_v, W_o))
    assert kept * len(X) == k.numel() + v.numel()


def test_splitting_and_merging_agree_with_pytorch(rng):
    x = rng.normal(size=(3, 5, 8))
    heads = torch.tensor(x).unflatten(-1, (4, 2)).transpose(1, 2)
    assert np.array_equal(oracle.split_heads(x, 4), heads)
    assert np.array_equal(oracle.merge_heads(heads.numpy()), x)


def test_unpacked_weights_do_what_the_packed_ones_do(rng):
    packed, out, x = rng.normal(size=(12, 4)), rng.normal(size=(4, 4)), rng.normal(size=(3, 4))
    parts = [x @ W for W in oracle.unpack_in_proj(packed, out)]
    linear = nn.functional.linear
    assert np.allclose(np.hstack(parts[:3]), linear(torch.tensor(x), torch.tensor(packed)))
    assert np.allclose(parts[3], linear(torch.tensor(x), torch.tensor(out)))


def test_heads_that_are_off_are_zero_rows_of_the_output_projection(rng):
    X, matrices, _ = draw(rng, num_heads=3, d=2)
    *projections, W_o = matrices
    for head_mask in ([True, False, True], [False, False, False], [True, True, True]):
        rows = np.repeat(head_mask, 2)[:, None]
        right, _ = oracle.multi_head_attention(X, *projections, W_o * rows, 3)
        got = oracle.attention_with_head_mask(X, *matrices, 3, np.array(head_mask))
        assert np.allclose(got, right)


# --- the inputs of the checks ---


def test_sizes_tell_the_axes_apart():
    for seed in range(50):
        sizes = checks._sizes(np.random.default_rng(seed))
        assert len(set(sizes)) == 4


@pytest.mark.parametrize("shape", [(5, 5), (3, 5, 5), (3, 1, 1, 5), (2, 4, 7, 7)])
def test_masks_allow_each_query_one_key_and_tell_sequences_apart(shape):
    for seed in range(50):
        mask = checks._one_key(np.random.default_rng(seed), *shape)
        assert mask.shape == shape
        assert (mask.sum(axis=-1) == 1).all()
        if len(shape) == 2:
            assert not np.array_equal(mask, mask.T)
        else:
            assert not np.array_equal(mask[0], mask[1])


def test_large_scores_are_large():
    question = checks.multi_head_attention
    rng = rng_for(0, question, question.checks[0])
    X, W_q, W_k, _, _ = checks._large_scores(rng, 2, 5, 8192.0)
    heads = [oracle.split_heads(X @ W, 2) for W in (W_q, W_k)]
    scores = heads[0] @ heads[1].swapaxes(-1, -2)
    assert (np.abs(scores) > 8000).all()
    assert (scores > 0).any()
    assert (scores < 0).any()


# --- what a single fault costs ---


def failed_by(name):
    mistake = next(m for m in MISTAKES if m.id == name)
    return set(failures(mistake.question, mistake.answer, seed=0))


def test_a_wrong_scale_leaves_the_points_of_masks():
    failed = failed_by("mha-no-scale")
    assert "each_head_has_its_own_weights" in failed
    assert not {name for name in failed if "mask" in name or "no_allowed" in name}


@pytest.mark.parametrize("name", ["mha-mask-missing-head-axis", "mha-mask-guessed-from-its-length"])
def test_masks_for_each_sequence_cost_their_own_check(name):
    found = failed_by(name) - {"a_query_with_no_allowed_key_gets_zeros"}
    found -= {"the_arrays_and_the_mask_are_left_unchanged"}
    assert found == {"a_mask_with_three_axes_has_one_matrix_for_each_sequence"}


def test_the_layers_to_mend_are_known_when_handed_in_with_a_trace_of_work():
    """The code of the release, which runs, fails every check or all but one."""
    release = nbformat.read(ROOT / "exercises" / f"{STEM}.ipynb", as_version=4)
    names = {"np": np, "torch": torch, "nn": nn, "math": math}
    for name in ("mended_multi_head", "MendedMultiHeadAttention"):
        cell = next(c for c in release.cells if c.metadata.nbgrader.grade_id == name)
        exec(cell.source, names)
        question = next(
            q for q in (checks.mended_multi_head, checks.MendedMultiHeadAttention) if q.id == name
        )
        assert len(failures(name, names[name], seed=0)) == len(question.checks)


@pytest.mark.parametrize("name", ["split-by-reshape-alone", "merge-by-reshape-alone"])
def test_a_missing_transpose_costs_most_of_the_points(name):
    mistake = next(m for m in MISTAKES if m.id == name)
    question = QUESTIONS[mistake.question]
    result = grade_question(question, LiveLearner({question.id: mistake.answer}), 0, MISTAKES)
    assert result.points < 0.5 * question.max_points


@pytest.mark.parametrize("name", ["mended_multi_head", "MendedMultiHeadAttention"])
def test_an_axis_that_every_mask_gets_costs_its_own_check(name):
    kind = "layer" if name == "MendedMultiHeadAttention" else "heads"
    failed = failed_by(f"mended-{kind}-mask-always-gets-a-head-axis")
    assert len(failed) == 1
    assert failed.pop().startswith("one_mask_")


# --- what is said ---


def messages(name, answers, seed=0):
    """Grade a question in a namespace of answers; return the messages of what does not hold."""
    result = grade_question(QUESTIONS[name], LiveLearner(answers), seed, MISTAKES)
    return result.mistake, [check.message for check in result.checks if not check.passed]


def calling(split, merge):
    """Bind answers to questions 2 and 3, and to question 5 one that calls them, and is right."""
    names = {"split_heads": split, "merge_heads": merge, "attend": variants.attend}
    names["for_heads"] = variants.for_heads
    exec(
        "def multi_head_attention(X, W_q, W_k, W_v, W_o, num_heads, mask=None):\n"
        "    q, k, v = (split_heads(X @ W, num_heads) for W in (W_q, W_k, W_v))\n"
        "    context, weights = attend(q, k, v, for_heads(mask))\n"
        "    return merge_heads(context) @ W_o, weights\n",
        names,
    )
    return names


def split_that_stops(x, num_heads):
    return x.reshape(len(x), num_heads, *x.shape[1:])


@pytest.mark.parametrize(
    ("split", "merge", "said"),
    [
        (variants.split_in_reversed_order, variants.merge, "`split_heads` (question 2) is not"),
        (variants.split, variants.merge_with_sorted_features, "`merge_heads` (question 3) is not"),
        (split_that_stops, variants.merge, "`split_heads` (question 2) stops with an error"),
    ],
)
def test_an_earlier_answer_that_is_wrong_is_named_first(split, merge, said):
    _, found = messages("multi_head_attention", calling(split, merge))
    assert found
    assert all(message.startswith(said) for message in found)


def test_attention_that_is_wrong_is_named_where_it_is_called_again():
    names = {
        "np": np,
        "split_heads": variants.split,
        "merge_heads": variants.merge,
        "multi_head_attention": variants.mha_heads_swapped_in_output,
    }
    exec(
        "def attention_with_head_mask(X, W_q, W_k, W_v, W_o, num_heads, head_mask):\n"
        "    rows = np.repeat(head_mask, len(W_o) // num_heads)[:, None]\n"
        "    return multi_head_attention(X, W_q, W_k, W_v, W_o * rows, num_heads)[0]\n",
        names,
    )
    _, found = messages("attention_with_head_mask", names)
    assert found
    assert all(m.startswith("`multi_head_attention` (question 5) is not") for m in found)


def test_earlier_answers_that_are_not_called_are_not_named_and_hide_no_mistake():
    mistake = next(m for m in MISTAKES if m.id == "mha-no-scale")
    calls = "def multi_head_attention(*arguments):\n    split_heads\n    return wrong(*arguments)\n"
    for split in (variants.split, variants.split_in_reversed_order):
        for is_called in (False, True):
            names = {"split_heads": split, "wrong": mistake.answer}
            exec(calls if is_called else calls.replace("split_heads", "None"), names)
            name, found = messages(mistake.question, names)
            assert name == mistake.id
            assert found
            is_named = is_called and split is not variants.split
            assert all(("question 2" in message) == is_named for message in found)


@pytest.mark.parametrize(
    "name", ["mha-mask-missing-head-axis", "mha-layer-mask-always-gets-a-head-axis"]
)
def test_an_error_under_a_mask_names_its_shape(name):
    mistake = next(m for m in MISTAKES if m.id == name)
    found = failures(mistake.question, mistake.answer, seed=0)
    errors = [message for kind, message in found.values() if kind == "error"]
    assert errors
    assert all("The mask has shape (" in message for message in errors)


def test_a_gradient_of_nan_is_told_as_such():
    mistake = next(m for m in MISTAKES if m.id == "mha-layer-empty-row-nan-gradient")
    found = failures(mistake.question, mistake.answer, seed=0)
    assert list(found) == ["gradients_stay_finite_where_a_query_has_no_allowed_key"]
    ((_, message),) = found.values()
    assert "is not finite; expected finite numbers. Query" in message
    assert message.endswith("has no allowed key.")


# --- the notebook ---


def test_the_numbers_of_the_example_are_right():
    notebook = nbformat.read(ROOT / "solutions" / f"{STEM}.ipynb", as_version=4)
    cell = next(c for c in notebook.cells if c.id == "multi-head-attention-example")
    shown = []
    names = {
        "show": lambda title, matrix, *rest: shown.append((title.split(":")[0].strip(), matrix))
    }
    exec(cell.source, names | {"print": lambda *args: None})
    given = {title: np.array(matrix) for title, matrix in shown[:5]}
    X, *matrices = (given[name] for name in ("X", "W_q", "W_k", "W_v", "W_o"))
    for results, mask in ((shown[5:8], None), (shown[9:12], np.array(shown[8][1]))):
        output, weights = oracle.multi_head_attention(X[None], *matrices, 2, mask)
        assert [title for title, _ in results] == [
            "weights of head 0",
            "weights of head 1",
            "output",
        ]
        for (_, got), want in zip(results, [*weights[0], output[0]], strict=True):
            assert np.abs(np.array(got) - want).max() < 0.00051
