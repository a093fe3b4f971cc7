"""Exercise 4: its oracles proven against PyTorch, its examples, and what some mistakes cost."""

import ast
import copy
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from attention.in_numpy import masking as library
from autograder.grade import grade
from autograder.notebooks import as_text, grade_id
from autograder.release import make_release

from .oracle import exercise_masking as oracle
from .test_exercises import COURSE, MISTAKES, failures

STEM = "04_masking"
ROOT = Path(__file__).parents[1]


# --- what a mistake costs ---


def failed_by(mistake_id):
    mistake = next(m for m in MISTAKES if m.id == mistake_id)
    return set(failures(mistake.question, mistake.answer, seed=0))


@pytest.mark.parametrize(
    ("mistake", "checks"),
    [
        ("padding-mask-two-dim", {"the_mask_has_an_axis_for_heads_and_one_for_queries"}),
        ("padding-mask-of-numbers", {"the_mask_has_an_axis_for_heads_and_one_for_queries"}),
        ("causal-mask-strict", {"each_token_sees_itself_and_the_result_is_boolean"}),
        ("causal-top-left-with-cache", {"the_queries_are_the_last_positions"}),
        ("pooling-nan-where-nothing-is-kept", {"a_sequence_without_kept_token_gives_zeros"}),
        ("pooling-multiplies-by-zero", {"what_stands_at_padding_does_not_count"}),
        (
            "masked-attention-fill-minus-1e9",
            {"masked_keys_have_no_weight_whatever_the_scores"},
        ),
        (
            "masked-attention-lets-the-mask-enlarge",
            {"a_mask_that_would_enlarge_the_scores_raises_valueerror"},
        ),
        ("masked-attention-nan-rows", {"queries_without_allowed_key_get_zeros"}),
        (
            "converters-squeeze-the-batch",
            {"the_key_padding_mask_says_what_multihead_attention_ignores"},
        ),
        (
            "converters-squeeze-for-attn-mask",
            {"the_attn_mask_has_the_heads_of_a_sequence_together"},
        ),
        ("masked-attention-causal-beats-mask", None),
    ],
)
def test_one_fault_costs_the_points_of_its_property_alone(mistake, checks):
    failed = failed_by(mistake)
    if checks is None:
        assert "causal_and_a_mask_act_together" in failed
        assert "causal_queries_are_the_last_positions" not in failed
    else:
        assert failed == checks


@pytest.mark.parametrize(
    ("mistake", "check"),
    [
        ("decoder-still-counts-lengths", "padding_is_hidden_on_whichever_side_it_stands"),
        ("decoder-still-looks-one-ahead", "no_position_sees_a_later_token"),
        ("cached-still-top-left", "new_queries_read_the_whole_cache"),
        (
            "cached-still-fills-minus-1e4",
            "later_keys_get_nothing_however_low_the_allowed_scores",
        ),
    ],
)
def test_half_of_the_mending_earns_half_of_the_points(mistake, check):
    assert failed_by(mistake) == {check}


def test_each_half_of_the_mended_module_earns_points():
    mean = failed_by("encoder-still-ignores-real-tokens")
    mask = failed_by("encoder-still-averages-padding")
    assert mean == {"its_attention_reads_real_tokens_alone", "attention_and_mean_work_together"}
    assert mask == {"its_mean_runs_over_real_tokens_alone", "attention_and_mean_work_together"}
    for denominator in ("encoder-divides-by-the-length", "encoder-sums"):
        assert failed_by(denominator) == mask


# --- the library ---


@pytest.mark.parametrize(
    "name",
    [
        "padding_mask",
        "causal_mask",
        "causal_mask_rect",
        "combine_masks",
        "sliding_window_mask",
        "masked_mean_pool",
        "masked_attention",
        "prefix_lm_mask",
    ],
)
def test_the_function_of_the_chapter_earns_all_points(name):
    for seed in range(3):
        assert failures(name, getattr(library, name), seed) == {}


# --- the oracles ---


def sizes_and_mask(seed, B, L_q, L_k):
    rng = np.random.default_rng(seed)
    mask = rng.random((B, 1, L_q, L_k)) < 0.5
    mask[..., 0] = True
    return rng, mask


def test_causal_oracle_agrees_with_pytorch_for_squares():
    rng = np.random.default_rng(0)
    Q, K, V = (rng.normal(size=(2, 5, d)) for d in (3, 3, 4))
    theirs = F.scaled_dot_product_attention(*map(torch.from_numpy, (Q, K, V)), is_causal=True)
    output, _ = oracle.masked_attention(Q, K, V, causal=True)
    assert np.allclose(output, theirs, atol=1e-12)


def test_cached_queries_give_the_last_rows_of_the_whole():
    rng = np.random.default_rng(1)
    Q, K, V = (rng.normal(size=(6, d)) for d in (3, 3, 4))
    theirs = F.scaled_dot_product_attention(*map(torch.from_numpy, (Q, K, V)), is_causal=True)
    output, weights = oracle.masked_attention(Q[4:], K, V, causal=True)
    assert np.allclose(output, theirs[4:], atol=1e-12)
    assert (weights[0, 5:] == 0).all()
    assert (weights > 0).sum() == oracle.causal_mask_rect(2, 6).sum()


def test_a_packed_row_gives_what_each_document_gives_alone():
    rng = np.random.default_rng(2)
    segments = np.array([[3, 3, 3, 0, 0, -1]])
    Q, K, V = (rng.normal(size=(1, 6, d)) for d in (2, 2, 3))
    mask = oracle.packed_causal_mask(segments)[:, 0]
    output, _ = oracle.masked_attention(Q, K, V, mask)
    for part in (slice(0, 3), slice(3, 5)):
        alone = F.scaled_dot_product_attention(
            *(torch.from_numpy(a[:, part]) for a in (Q, K, V)), is_causal=True
        )
        assert np.allclose(output[:, part], alone, atol=1e-12)
    assert (output[:, 5] == 0).all()


def test_a_prefix_mask_lies_between_causal_and_open():
    masks = oracle.prefix_lm_mask([0, 2, 5], 5)[:, 0]
    assert np.array_equal(masks[0], oracle.causal_mask(5))
    assert masks[2].all()
    assert np.array_equal(masks[1][2:], oracle.causal_mask(5)[2:])
    assert np.array_equal(masks[1][:2], [[True, True, False, False, False]] * 2)


def test_padding_to_any_length_changes_no_real_output():
    rng = np.random.default_rng(3)
    Q, K, V = (rng.normal(size=(1, 3, d)) for d in (2, 2, 3))
    alone, _ = oracle.masked_attention(Q, K, V)
    for more in (1, 4):
        padded = [np.pad(a, ((0, 0), (0, more), (0, 0)), constant_values=7.0) for a in (Q, K, V)]
        output, _ = oracle.masked_attention(*padded, oracle.padding_mask([3], 3 + more)[:, 0])
        assert np.allclose(output[:, :3], alone, atol=1e-12)


def test_pooling_oracle_agrees_with_pytorch():
    rng = np.random.default_rng(4)
    x, keep = rng.normal(size=(3, 5, 2)), rng.random((3, 5)) < 0.5
    keep[0, 1], keep[1] = True, False
    hidden = torch.from_numpy(np.where(keep[..., None], x, np.nan))
    theirs = torch.nan_to_num(hidden.nanmean(dim=1))
    assert np.allclose(oracle.masked_mean_pool(x, keep), theirs, atol=1e-12)


@pytest.mark.parametrize("interface", ["sdpa", "float"])
def test_converted_masks_mean_the_same_to_fused_attention(interface):
    rng, mask = sizes_and_mask(5, 2, 4, 5)
    Q, K, V = (rng.normal(size=(2, 3, L, d)) for L, d in ((4, 6), (5, 6), (5, 7)))
    given = torch.from_numpy(oracle.mask_for(interface, mask))
    theirs = F.scaled_dot_product_attention(*map(torch.from_numpy, (Q, K, V)), attn_mask=given)
    assert np.allclose(oracle.masked_attention(Q, K, V, mask)[0], theirs, atol=1e-12)


@pytest.mark.parametrize("argument", ["attn_mask", "key_padding_mask"])
def test_converted_masks_mean_the_same_to_the_module(argument):
    rng, mask = sizes_and_mask(6, 2, 4, 4)
    if argument == "key_padding_mask":
        mask = oracle.padding_mask([3, 2], 4)
    layer = torch.nn.MultiheadAttention(6, 3, batch_first=True, dtype=torch.float64)
    x = torch.from_numpy(rng.normal(size=(2, 4, 6)))
    given = torch.from_numpy(oracle.mask_for(argument, mask, 3))
    _, weights = layer(x, x, x, average_attn_weights=False, **{argument: given})
    joined = F.linear(x, layer.in_proj_weight, layer.in_proj_bias).detach().numpy()
    q, k, v = (part.reshape(2, 4, 3, 2).swapaxes(1, 2) for part in np.split(joined, 3, axis=-1))
    ours = oracle.masked_attention(q, k, v, mask)[1]
    assert np.allclose(ours, weights.detach(), atol=1e-12)
    assert (ours[np.broadcast_to(~mask, ours.shape)] == 0).all()


def test_sentence_oracle_agrees_with_pytorch():
    rng = np.random.default_rng(7)
    layer = torch.nn.MultiheadAttention(6, 2, batch_first=True, dtype=torch.float64)
    x, keep = rng.normal(size=(3, 4, 6)), np.arange(4) < np.array([[2], [4], [1]])
    given = torch.from_numpy(x)
    attended, _ = layer(given, given, given, key_padding_mask=torch.from_numpy(~keep))
    state = {f"attention.{name}": p.detach().numpy() for name, p in layer.named_parameters()}
    found = oracle.sentence_vectors(x, keep, state, 2)
    for b in range(3):
        theirs = (given + attended)[b][torch.from_numpy(keep[b])].mean(dim=0)
        assert np.allclose(found[b], theirs.detach(), atol=1e-12)


def test_the_predicted_weights_are_what_pytorch_gives():
    scores, given = torch.zeros(3), torch.tensor([[True, True, False]])
    Q, K, V = torch.ones(1, 1), scores[:, None], torch.eye(3)
    attend = F.scaled_dot_product_attention
    layer = torch.nn.MultiheadAttention(2, 1, batch_first=True)
    with torch.no_grad():
        layer.in_proj_weight.zero_()
    _, ignored = layer(*torch.ones(3, 1, 3, 2), key_padding_mask=given)
    added = attend(Q, K, V, given.float())
    found = attend(Q, K, V, given)[0, 0].item(), ignored[0, 0, 2].item(), added[0, 2].item()
    assert failures("predicted_weights", found, seed=0) == {}


# --- the notebook ---


@pytest.fixture(scope="module")
def notebook():
    return nbformat.read(ROOT / "solutions" / f"{STEM}.ipynb", as_version=4)


def drawn(notebook, name):
    """Parse the masks that an example cell draws: ``[(title, mask), …]``."""
    cell = next(c for c in notebook.cells if grade_id(c) == f"{name}_example")
    found = []
    for line in cell.outputs[0].text.splitlines():
        if line.startswith("    "):
            found[-1][1].append([mark == "x" for mark in line.split()])
        else:
            found.append((line, []))
    return [(title, np.array(rows)) for title, rows in found]


def test_the_masks_that_are_drawn_are_right(notebook):
    _, (_, rows) = drawn(notebook, "padding_mask")
    assert np.array_equal(rows, oracle.padding_mask([2, 4, 1], 5)[:, 0, 0])
    (_, two), (_, one) = drawn(notebook, "causal_mask_rect")
    assert np.array_equal(two, oracle.causal_mask_rect(2, 4))
    assert np.array_equal(one, oracle.causal_mask_rect(1, 3))
    (_, causal), *combined = drawn(notebook, "combine_masks")
    assert np.array_equal(causal, oracle.causal_mask(4))
    for title, mask in combined:
        keep = [[mark == "x" for mark in title.split()[2]]]
        assert np.array_equal(mask, oracle.combine_masks(keep, causal)[0, 0])
    ((_, window),) = drawn(notebook, "sliding_window_mask")
    assert np.array_equal(window, oracle.sliding_window_mask(5, 2))
    ((_, packed),) = drawn(notebook, "packed_causal_mask")
    assert np.array_equal(packed, oracle.packed_causal_mask([[4, 4, 0, 0, -1]])[0, 0])
    ((_, prefix),) = drawn(notebook, "prefix_lm_mask")
    assert np.array_equal(prefix, oracle.prefix_lm_mask([3], 5)[0, 0])


def test_the_numbers_of_the_attention_example_are_right(notebook):
    cell = next(c for c in notebook.cells if grade_id(c) == "masked_attention_example")
    found = {}
    for line in cell.outputs[0].text.splitlines():
        name, values = line.split(maxsplit=1)
        found[name] = np.array(ast.literal_eval(values))
    arrays = [found[name] for name in ("Q", "K", "V", "mask")]
    output, weights = oracle.masked_attention(*arrays, causal=True)
    assert np.abs(found["weights"] - weights).max() < 0.00051
    assert np.abs(found["output"] - output).max() < 0.00051


def test_the_numbers_of_the_pooling_example_are_right(notebook):
    cell = next(c for c in notebook.cells if grade_id(c) == "masked_mean_pool_example")
    *given, result = cell.outputs[0].text.splitlines()
    tokens = [np.fromstring(part.strip(" ]"), sep=" ") for part in given[0].split("[")[1:]]
    keep = [word == "True" for word in given[1].split()[1:]]
    pooled = oracle.masked_mean_pool(np.array([tokens]), [keep])[0]
    assert np.allclose(np.fromstring(result.split("[")[1].rstrip("]"), sep=" "), pooled)


def broken(notebook):
    names = {"np": np, "torch": torch, "nn": torch.nn}
    for cell in make_release(notebook).cells:
        if (grade_id(cell) or "").lower().startswith("mended") and cell.cell_type == "code":
            exec(cell.source, names)
    return names


def test_the_code_to_mend_is_wrong_in_the_way_that_is_told(notebook):
    names = broken(notebook)
    leaky = names["mended_decoder_mask"](np.array([[5, 6, 7]]), 0)
    assert leaky.dtype == bool
    assert leaky[0, 0, 0, 1]  # the next token can be copied
    Q, K, V = np.random.default_rng(8).normal(size=(3, 5, 4))
    whole, _ = names["mended_cached_attention"](Q, K, V)
    assert np.allclose(whole, oracle.masked_attention(Q, K, V, causal=True)[0])
    attend = names["mended_cached_attention"]
    steps = [attend(Q[i : i + 1], K[: i + 1], V[: i + 1])[0] for i in range(5)]
    assert np.allclose(steps[0], whole[:1])
    assert not any(np.allclose(step, row) for step, row in zip(steps[1:], whole[1:], strict=True))
    torch.manual_seed(0)
    module, x = names["MendedSentenceEncoder"](4, 2), torch.randn(1, 6, 4)
    keep = torch.arange(6)[None] < 3
    short, long = (module(x[:, :L], keep[:, :L]) for L in (4, 6))
    assert not torch.allclose(short, long)
    assert module(x[:, :3], keep[:, :3]).isnan().all()


def test_code_to_mend_fails_its_checks(notebook):
    names = broken(notebook)
    for name in ("mended_decoder_mask", "mended_cached_attention", "MendedSentenceEncoder"):
        questions = {q.id: q for q in COURSE.questions(STEM)}
        assert len(failures(name, names[name], seed=0)) == len(questions[name].checks)


def test_code_to_mend_cannot_be_replaced_by_an_earlier_answer(notebook, server, tmp_path):
    replaced = {
        "mended_decoder_mask": "def mended_decoder_mask(tokens, pad_id):\n"
        "    return combine_masks(tokens != pad_id, causal_mask(tokens.shape[1]))",
        "mended_cached_attention": "def mended_cached_attention(Q, K, V):\n"
        "    return masked_attention(Q, K, V, causal=True)",
    }
    changed = copy.deepcopy(notebook)
    for cell in changed.cells:
        cell.source = replaced.get(grade_id(cell), cell.source)
    path = tmp_path / f"{STEM}.ipynb"
    path.write_text(as_text(changed), encoding="utf-8")
    statuses = {q.id: q.status for q in grade(path, COURSE, server).questions}
    assert {name for name, status in statuses.items() if status == "forbidden"} == set(replaced)
    assert {status for name, status in statuses.items() if name not in replaced} == {"passed"}
