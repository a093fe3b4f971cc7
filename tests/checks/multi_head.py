"""Checks of exercise 3: attention with many heads, in NumPy and PyTorch.

The number of heads and their width differ nearly everywhere, since most mistakes hide where the
two are equal. Checks of masks allow each query one key: its weight is 1 whatever the scores are,
so that a wrong scale costs its own checks and no others.
"""

import contextlib
import dataclasses
import functools
import re

import numpy as np

from autograder.checks import (
    Failed,
    Question,
    expect,
    expect_array,
    expect_close,
    expect_numbers,
    expect_tuple,
    expect_unchanged,
)
from autograder.learner import LearnerError
from autograder.wire import Handle

from ..oracle import exercise_multi_head as oracle
from . import LIBRARY

LAYOUT = "What reshape does, what transpose does"
SPLIT = "Splitting and merging"
STEP_3 = "Step 3: side by side, then mixed"
WHOLE = "The whole function"
COSTS = "What it costs"
PARITY = "Parity with PyTorch"
IN_TORCH = "The same layer in PyTorch"

LAYER_ARGUMENTS = ("X", "W_q", "W_k", "W_v", "W_o")

READY_MADE = (*LIBRARY, "jax", "scipy", "sklearn", "tensorflow", "torch")
READY_MADE_IN_TORCH = (
    *(name for name in READY_MADE if name != "torch"),
    ".MultiheadAttention",
    ".multi_head_attention_forward",
    ".scaled_dot_product_attention",
    ".TransformerEncoderLayer",
    "torch.nn.attention",
    "torch.ops",
)


# --- predict: where the numbers go ---

predicted_vectors = Question("predicted_vectors", section=LAYOUT)


def _vector_predicted(learner, place):
    both = learner.value("predicted_vectors")
    fine = isinstance(both, list | tuple) and len(both) == 2
    expect(fine, f"Write two pairs, like ((5, 6), (7, 8)): (a), then (b). Got {both!r}.")
    got = both[place]
    fine = isinstance(got, list | tuple) and len(got) == 2
    fine = fine and all(isinstance(n, int | float) and not isinstance(n, bool) for n in got)
    expect(fine, f"Write each vector as a pair of numbers, like (5, 6); got {got!r}.")
    return tuple(got)


def _coded_tokens():
    """Two tokens with six features: token t, feature c holds 10 t + c."""
    return np.add.outer(10 * np.arange(2), np.arange(6))[None]  # (1, 2, 6)


@predicted_vectors.check(points=0.5)
def a_head_gets_features_of_its_own_token(learner, rng):
    got = _vector_predicted(learner, 0)
    right = tuple(oracle.split_heads(_coded_tokens(), 3)[0, 1, 1])
    expect(
        got == right,
        f"(a) {got} is not what head 1 gets of token 1. A head takes some of the features of "
        "each token. Which numbers are features of token 1, and which of these are for head 1?",
    )


@predicted_vectors.check(points=0.5)
def reshape_alone_deals_the_numbers_out_in_order(learner, rng):
    got = _vector_predicted(learner, 1)
    right = tuple(_coded_tokens().reshape(1, 3, 2, 2)[0, 1, 1])
    expect(
        got == right,
        f"(b) {got} is not what stands there. `reshape` moves no number: write all twelve in one "
        "line, then cut the line into 3 heads of 2 rows of 2 numbers.",
    )


# --- split_heads ---

split_heads = Question("split_heads", section=SPLIT, forbid=READY_MADE)


def _compare_split(learner, x, num_heads, note):
    got = learner.call("split_heads", x, num_heads)
    expect_close(got, oracle.split_heads(x, num_heads), "split_heads(x, num_heads)", note=note)


@split_heads.check(points=0.25)
def each_head_takes_features_that_stand_side_by_side(learner, rng):
    B, L, h, d = _sizes(rng)
    x = rng.normal(size=(B, L, h * d))
    _compare_split(learner, x, 1, f"x has shape {x.shape}, num_heads is 1.")
    x = rng.normal(size=(B, 1, h * d))
    note = f"x has shape {x.shape}: one token, whose {h * d} features go to {h} heads."
    _compare_split(learner, x, h, note)


@split_heads.check(points=1.0)
def each_token_keeps_its_place_in_every_head(learner, rng):
    B, L, h, d = _sizes(rng)
    for sizes in ((B, L, h, d), (1, h, h, d)):
        x = rng.normal(size=(sizes[0], sizes[1], h * d))
        note = f"x has shape {x.shape}, num_heads is {h}, and each head is {d} wide."
        _compare_split(learner, x, h, note)


@split_heads.check(points=0.25)
def the_array_to_split_is_left_unchanged(learner, rng):
    B, _, h, d = _sizes(rng)
    x = rng.normal(size=(B, 1, h * d))
    outcome = learner.run("split_heads", x, h)
    expect_close(outcome["value"], oracle.split_heads(x, h), "split_heads(x, num_heads)")
    expect_unchanged(outcome["arguments"], [x, h], ["x", "num_heads"])


# --- merge_heads ---

merge_heads = Question("merge_heads", section=SPLIT, forbid=READY_MADE)


def _compare_merge(learner, x, note):
    expect_close(learner.call("merge_heads", x), oracle.merge_heads(x), "merge_heads(x)", note=note)


@merge_heads.check(points=0.25)
def the_heads_stand_side_by_side(learner, rng):
    B, L, h, d = _sizes(rng)
    x = rng.normal(size=(B, 1, L, d))
    _compare_merge(learner, x, f"x has shape {x.shape}: there is one head.")
    x = rng.normal(size=(B, h, 1, d))
    _compare_merge(learner, x, f"x has shape {x.shape}: one token in {h} heads, each {d} wide.")


@merge_heads.check(points=0.75)
def each_token_gets_its_own_parts_back(learner, rng):
    B, L, h, d = _sizes(rng)
    for shape in ((B, h, L, d), (1, h, h, d)):
        x = rng.normal(size=shape)
        note = f"x has shape {shape}: {shape[1]} heads, {shape[2]} tokens, each head {d} wide."
        _compare_merge(learner, x, note)


@merge_heads.check(points=0.25)
def the_array_to_merge_is_left_unchanged(learner, rng):
    B, _, h, d = _sizes(rng)
    x = rng.normal(size=(B, h, 1, d))
    outcome = learner.run("merge_heads", x)
    expect_close(outcome["value"], oracle.merge_heads(x), "merge_heads(x)")
    expect_unchanged(outcome["arguments"], [x], ["x"])


# --- predict: what more heads cost ---

predicted_factors = Question("predicted_factors", section=COSTS)


def _factor_predicted(learner, place):
    return expect_numbers(learner.value("predicted_factors"), "abc")[place]


def _counts(num_heads, L=5, d_model=8):
    """Count parameters, attention weights and multiplications of the scores on real arrays."""
    W = np.eye(d_model)
    X = np.sin(np.arange(1.0, L * d_model + 1)).reshape(1, L, d_model)
    _, weights = oracle.multi_head_attention(X, W, W, W, W, num_heads)
    heads = oracle.split_heads(X @ W, num_heads)
    multiplications = sum(head.size * len(head) for head in heads[0])  # L queries meet L keys
    return 4 * W.size, weights.size, multiplications


def _factor(place):
    return _counts(4)[place] / _counts(2)[place]


@predicted_factors.check(points=0.25)
def more_heads_change_the_parameters_by_this_factor(learner, rng):
    got = _factor_predicted(learner, 0)
    expect(
        abs(got - _factor(0)) < 1e-6,
        f"(a) The number of parameters does not change by a factor of {got:g}. What are the "
        "shapes of W_q, W_k, W_v and W_o? Does `num_heads` stand in one of them?",
    )


@predicted_factors.check(points=0.5)
def more_heads_change_the_attention_weights_by_this_factor(learner, rng):
    got = _factor_predicted(learner, 1)
    expect(
        abs(got - _factor(1)) < 1e-6,
        f"(b) The number of attention weights does not change by a factor of {got:g}. What is "
        "the shape of the weights of one head, and how many heads have such a matrix?",
    )


@predicted_factors.check(points=0.25)
def more_heads_change_the_multiplications_by_this_factor(learner, rng):
    got = _factor_predicted(learner, 2)
    expect(
        abs(got - _factor(2)) < 1e-6,
        f"(c) The number of multiplications does not change by a factor of {got:g}. There are "
        "more dot products now. How long is each of them?",
    )


# --- multi_head_attention ---

multi_head_attention = Question("multi_head_attention", section=WHOLE, forbid=READY_MADE)


@multi_head_attention.check(points=0.5)
def one_head_is_attention_between_projections(learner, rng):
    B, L, h, d = _sizes(rng)
    _compare(learner, *_layer(rng, B, L, h * d), 1, note="There is one head, and no mask.")


@multi_head_attention.check(points=0.5)
def each_head_has_its_own_weights(learner, rng):
    B, L, h, d = _sizes(rng)
    for heads, width in ((h, d), (d, h)):
        arguments = _layer(rng, B, L, h * d)
        result = learner.call("multi_head_attention", *arguments, heads)
        _, weights = expect_tuple(result, ("output", "weights"))
        right = oracle.multi_head_attention(*arguments, heads)[1]
        expect_close(weights, right, "weights", note=_heads(heads, width))


@multi_head_attention.check(points=0.5)
def the_output_joins_all_heads_through_W_o(learner, rng):
    B, L, h, d = _sizes(rng)
    for heads, width in ((h, d), (d, h)):
        arguments = _layer(rng, B, L, h * d)
        result = learner.call("multi_head_attention", *arguments, heads)
        output, _ = expect_tuple(result, ("output", "weights"))
        right = oracle.multi_head_attention(*arguments, heads)[0]
        expect_close(output, right, "output", note=_heads(heads, width))


@multi_head_attention.check(points=0.5)
def one_mask_for_all_sequences_keeps_keys_out(learner, rng):
    B, L, h, d = _sizes(rng)
    mask = _one_key(rng, L, L)
    note = f"The mask has shape {(L, L)}; query 0 may attend to key {mask[0].argmax()} alone."
    _compare(learner, *_layer(rng, B, L, h * d), h, mask, note=note)


@multi_head_attention.check(points=0.5)
def a_mask_with_three_axes_has_one_matrix_for_each_sequence(learner, rng):
    B, L, h, d = _sizes(rng)
    for sequences in (h, B):
        mask = _one_key(rng, sequences, L, L)
        note = (
            f"The mask has shape {mask.shape}: mask[b] is for sequence b, in each of its "
            f"{h} heads. Each query may attend to one key."
        )
        _compare(learner, *_layer(rng, sequences, L, h * d), h, mask, note=note)


@multi_head_attention.check(points=0.25)
def a_mask_with_four_axes_broadcasts_to_the_weights(learner, rng):
    B, L, h, d = _sizes(rng)
    for shape in ((B, 1, L, L), (B, 1, 1, L), (B, h, L, L)):
        mask = _one_key(rng, *shape)
        note = f"The mask has shape {shape}, the weights {(B, h, L, L)}; one key for each query."
        _compare(learner, *_layer(rng, B, L, h * d), h, mask, note=note)


@multi_head_attention.check(points=0.25)
def a_query_with_no_allowed_key_gets_zeros(learner, rng):
    B, L, h, d = _sizes(rng)
    for shape in ((L, L), (B, L, L)):
        mask = _one_key(rng, *shape)
        mask[..., int(rng.integers(L)), :] = False
        empty = int(np.flatnonzero(~mask.reshape(-1, L).any(axis=-1))[0])
        note = f"Query {empty} has no allowed key: its weights and its output are 0."
        _compare(learner, *_layer(rng, B, L, h * d), h, mask, note=note)


@multi_head_attention.check(points=0.25)
def large_scores_give_finite_results(learner, rng):
    B, L, _, _ = _sizes(rng)
    arguments = _large_scores(rng, B, L, 2.0**13)
    note = "The scores of head 0 lie near 8,000 or -8,000; those of head 1 have the other sign."
    _compare(learner, *arguments, 2, note=note, rtol=5e-3, atol=1e-5)


@multi_head_attention.check(points=0.25)
def masked_keys_get_nothing_however_low_the_allowed_scores_are(learner, rng):
    B, L, _, _ = _sizes(rng)
    arguments = _large_scores(rng, B, L, 2.0**17)
    mask = _mask(rng, L, L)
    note = "In each head the scores of some queries lie near -100,000, for allowed keys too."
    _compare(learner, *arguments, 2, mask, note=note, rtol=5e-3, atol=1e-5)


@multi_head_attention.check(points=0.25)
def the_arrays_and_the_mask_are_left_unchanged(learner, rng):
    B, L, h, d = _sizes(rng)
    mask = _one_key(rng, B, L, L)
    mask[0, 0] = False  # an empty row, which some answers mend in place
    arguments = [*_layer(rng, B, L, h * d), h, mask]
    with _shape_named(mask, h):
        outcome = learner.run("multi_head_attention", *arguments)
    output, weights = expect_tuple(outcome["value"], ("output", "weights"))
    for name, got, right in zip(
        ("output", "weights"),
        (output, weights),
        oracle.multi_head_attention(*arguments),
        strict=True,
    ):
        expect_close(expect_array(got, right.shape, name)[1:], right[1:], f"{name}[1:]")
    names = [*LAYER_ARGUMENTS, "num_heads", "mask"]
    expect_unchanged(outcome["arguments"], arguments, names)


@multi_head_attention.probe
def equal_sizes_in_which_most_wrong_axes_run(rng):
    yield (*_layer(rng, 2, 2, 4), 2)
    yield (*_layer(rng, 3, 3, 9), 3, _mask(rng, 3, 3, 3))
    yield (*_layer(rng, 2, 4, 8), 2, _mask(rng, 4, 4))


# --- a NumPy layer to mend ---

mended_multi_head = Question(
    "mended_multi_head",
    section=WHOLE,
    forbid=(*READY_MADE, multi_head_attention.id),
)


def _compare_mended(learner, arguments, mask=None, only=("weights", "output"), note=""):
    _compare(learner, *arguments, mask, only=only, note=note, name="mended_multi_head")


@mended_multi_head.check(points=0.5)
def its_scores_have_the_right_scale(learner, rng):
    B, L, h, d = _sizes(rng)
    note = f"There is one head of width {h * d}, and no mask: only the scale matters here."
    _compare_mended(learner, [*_layer(rng, B, L, h * d), 1], only=("weights",), note=note)


@mended_multi_head.check(points=0.25)
def its_heads_read_the_features_of_each_token(learner, rng):
    _, L, h, d = _sizes(rng)
    mask = _one_key(rng, 1, L, L)  # right for any number of heads, with their axis or without
    who = mask[0, 0].argmax()
    note = f"There are {h} heads; in each, query 0 may attend to token {who} alone."
    _compare_mended(learner, [*_layer(rng, 1, L, h * d), h], mask, note=note)


@mended_multi_head.check(points=0.25)
def one_mask_serves_all_its_sequences(learner, rng):
    B, L, h, d = _sizes(rng)
    mask = _one_key(rng, L, L)
    note = f"The mask has shape {mask.shape}: the same for all {B} sequences and all {h} heads."
    _compare_mended(learner, [*_layer(rng, B, L, h * d), h], mask, note=note)


@mended_multi_head.check(points=0.5)
def its_mask_with_three_axes_has_one_matrix_for_each_sequence(learner, rng):
    B, L, h, d = _sizes(rng)
    for sequences in (h, B):
        mask = _one_key(rng, sequences, L, L)
        note = f"The mask has shape {mask.shape}: mask[b] is for sequence b, in each of {h} heads."
        arguments = [*_layer(rng, sequences, L, h * d), h]
        _compare_mended(learner, arguments, mask, only=("weights",), note=note)


@mended_multi_head.check(points=0.5)
def its_weights_and_output_are_right(learner, rng):
    B, L, h, d = _sizes(rng)
    note = f"{_heads(h, d)} There is no mask."
    _compare_mended(learner, [*_layer(rng, B, L, h * d), h], note=note)


@mended_multi_head.probe
def equal_sizes_in_which_wrong_mends_run(rng):
    yield (*_layer(rng, 2, 2, 4), 2)
    yield (*_layer(rng, 3, 3, 9), 3, _mask(rng, 3, 3, 3))


# --- unpack_in_proj ---

unpack_in_proj = Question("unpack_in_proj", section=PARITY, forbid=READY_MADE)
MATRICES = ("W_q", "W_k", "W_v", "W_o")


def _unpacked(learner, arguments):
    return expect_tuple(learner.call("unpack_in_proj", *arguments), MATRICES)


@unpack_in_proj.check(points=0.25)
def queries_come_first_then_keys_then_values(learner, rng):
    D = int(rng.integers(3, 7))
    blocks = [block + block.T for block in rng.normal(size=(3, D, D))]
    arguments = np.concatenate(blocks), rng.normal(size=(D, D))
    for name, got, want in zip(MATRICES, _unpacked(learner, arguments)[:3], blocks, strict=False):
        note = "Each matrix in in_proj_weight is symmetric here: only their order matters."
        expect_close(got, want, name, note=note)


@unpack_in_proj.check(points=0.5)
def each_projection_is_for_x_times_W(learner, rng):
    D = int(rng.integers(3, 7))
    arguments = rng.normal(size=(3 * D, D)), rng.normal(size=(D, D))
    right = oracle.unpack_in_proj(*arguments)
    for name, got, want in zip(MATRICES[:3], _unpacked(learner, arguments), right, strict=False):
        note = f"PyTorch computes x @ W.T with its W; you want x @ {name}."
        expect_close(got, want, name, note=note)


@unpack_in_proj.check(points=0.5)
def the_output_projection_is_for_x_times_W_too(learner, rng):
    D = int(rng.integers(3, 7))
    arguments = rng.normal(size=(3 * D, D)), rng.normal(size=(D, D))
    got = _unpacked(learner, arguments)[3]
    note = "PyTorch computes x @ W.T with its W; you want x @ W_o."
    expect_close(got, oracle.unpack_in_proj(*arguments)[3], "W_o", note=note)


@unpack_in_proj.check(points=0.25)
def the_packed_weights_are_left_unchanged(learner, rng):
    D = int(rng.integers(3, 7))
    out = rng.normal(size=(D, D))
    arguments = rng.normal(size=(3 * D, D)), out + out.T
    outcome = learner.run("unpack_in_proj", *arguments)
    got = expect_tuple(outcome["value"], MATRICES)[3]
    expect_close(got, out + out.T, "W_o", note="out_proj_weight is symmetric here.")
    expect_unchanged(outcome["arguments"], arguments, ["in_proj_weight", "out_proj_weight"])


# --- the PyTorch layer ---

MultiHeadAttention = Question("MultiHeadAttention", section=IN_TORCH, forbid=READY_MADE_IN_TORCH)


@MultiHeadAttention.check(points=0.5)
def four_projections_with_bias_are_all_its_parameters(learner, rng):
    _, _, h, d = _sizes(rng)
    module = _new_module(learner, "MultiHeadAttention", h * d, h)
    extra, missing = _load(learner, module, *_parameters(rng, h * d), missing_too=True)
    expect(
        not missing,
        f"There is no parameter {', '.join(missing)}. Expected are the weight and the bias of "
        "four nn.Linear called W_q, W_k, W_v and W_o.",
    )
    expect(not extra, f"Besides the four projections the module has {', '.join(extra)}.")


@MultiHeadAttention.check(points=0.5)
def the_layer_gives_the_right_output_and_weights(learner, rng):
    B, L, h, d = _sizes(rng)
    for heads, width in ((h, d), (d, h), (1, h * d)):
        module, parameters = _module(learner, rng, "MultiHeadAttention", h * d, heads)
        x = rng.normal(size=(B, L, h * d))
        note = f"{_heads(heads, width)} The biases are 0."
        _compare_module(learner, module, x, parameters, heads, note=note)


@MultiHeadAttention.check(points=0.25)
def the_layer_adds_its_biases(learner, rng):
    B, L, h, d = _sizes(rng)
    module, parameters = _module(learner, rng, "MultiHeadAttention", h * d, h, biases=True)
    mask = _one_key(rng, L, L)
    note = "Each query may attend to one key, and the biases are not 0."
    _compare_module(learner, module, rng.normal(size=(B, L, h * d)), parameters, h, mask, note=note)


@MultiHeadAttention.check(points=0.5)
def the_layer_keeps_masked_keys_out(learner, rng):
    B, L, h, d = _sizes(rng)
    module, parameters = _module(learner, rng, "MultiHeadAttention", h * d, h)
    for shape in ((L, L), (h, L, L), (B, L, L), (B, 1, 1, L)):
        sequences = shape[0] if len(shape) > 2 else B
        x, mask = rng.normal(size=(sequences, L, h * d)), _one_key(rng, *shape)
        note = f"The mask has shape {shape}, the weights {(sequences, h, L, L)}; one key a query."
        _compare_module(learner, module, x, parameters, h, mask, note=note)


@MultiHeadAttention.check(points=0.25)
def the_layer_masks_keys_however_low_the_allowed_scores_are(learner, rng):
    B, L, _, _ = _sizes(rng)
    x, *matrices = _large_scores(rng, B, L, 2.0**17)
    parameters = np.array(matrices), np.zeros((4, 2))
    module = _new_module(learner, "MultiHeadAttention", 2, 2)
    _load(learner, module, *parameters)
    note = "In each head the scores of some queries lie near -100,000, for allowed keys too."
    result, _ = _run_module(learner, module, x, mask := _mask(rng, L, L))
    _compare_layer(result, x, parameters, 2, mask, rtol=5e-3, note=note)


def _layer_with_an_empty_query(learner, rng):
    """Run a layer, forward and backward, under a mask that leaves one query without a key."""
    B, L, h, d = _sizes(rng)
    module, parameters = _module(learner, rng, "MultiHeadAttention", h * d, h, out_bias=True)
    x, doutput = rng.normal(size=(2, B, L, h * d))
    mask = _one_key(rng, L, L)
    empty = int(rng.integers(L))
    mask[empty] = False
    result, gradients = _run_module(learner, module, x, mask, doutput)
    return result, gradients, doutput, (x, parameters, h, mask), f"Query {empty} has no allowed key"


@MultiHeadAttention.check(points=0.25)
def a_query_with_no_allowed_key_gets_weights_of_zero(learner, rng):
    result, _, _, inputs, note = _layer_with_an_empty_query(learner, rng)
    note += ": its weights are 0, and its output is the bias of W_o."
    _compare_layer(result, *inputs, note=note)


@MultiHeadAttention.check(points=0.25)
def gradients_stay_finite_where_a_query_has_no_allowed_key(learner, rng):
    _, gradients, doutput, inputs, note = _layer_with_an_empty_query(learner, rng)
    _compare_gradients(gradients, doutput, *inputs, note=f"{note}.")


@MultiHeadAttention.check(points=0.25)
def gradients_reach_all_four_projections(learner, rng):
    B, L, h, d = _sizes(rng)
    module, parameters = _module(learner, rng, "MultiHeadAttention", h * d, h)
    x, doutput = rng.normal(size=(2, B, L, h * d))
    _, gradients = _run_module(learner, module, x, upstream=doutput)
    _compare_gradients(gradients, doutput, x, parameters, h)


@MultiHeadAttention.check(points=0.25)
def the_layer_works_in_double_and_half_precision(learner, rng):
    import torch

    B, L, h, d = _sizes(rng)
    for method, dtype, close in (
        ("half", "float16", {"rtol": 2e-2, "atol": 2e-2}),
        ("double", "float64", {"rtol": 1e-6, "atol": 1e-8}),
    ):
        module = _new_module(learner, "MultiHeadAttention", h * d, h)
        learner.method(module, method)
        matrices, biases = _parameters(rng, h * d)
        parameters = [W.astype(np.float16).astype(float) for W in matrices], 0 * biases
        _load(learner, module, *parameters)
        x = rng.normal(size=(B, L, h * d)).astype(np.float16).astype(float)
        for mask in (None, _one_key(rng, L, L)):
            note = f"After module.{method}(), with x in {dtype}"
            note += ", without a mask." if mask is None else ", with a mask."
            result, _ = _run_module(learner, module, x, mask, dtype=dtype)
            for name, tensor in zip(("output", "weights"), result, strict=True):
                got = getattr(tensor, "dtype", None)
                fine = got is getattr(torch, dtype)
                expect(fine, f"{name} comes in {str(got).removeprefix('torch.')}. {note}")
            _compare_layer(result, x, parameters, h, mask, note=note, **close)


# --- a PyTorch layer to mend ---

MendedMultiHeadAttention = Question(
    "MendedMultiHeadAttention",
    section=SPLIT,
    forbid=(*READY_MADE_IN_TORCH, MultiHeadAttention.id),
)


def _mended(learner, rng, d_model, num_heads):
    return _module(learner, rng, "MendedMultiHeadAttention", d_model, num_heads)


@MendedMultiHeadAttention.check(points=0.5)
def one_head_comes_out_projected(learner, rng):
    B, L, h, d = _sizes(rng)
    module, parameters = _mended(learner, rng, h * d, 1)
    note = "There is one head, and no mask."
    _compare_module(learner, module, rng.normal(size=(B, L, h * d)), parameters, 1, note=note)


@MendedMultiHeadAttention.check(points=0.5)
def its_output_joins_the_heads_of_each_token(learner, rng):
    B, L, h, d = _sizes(rng)
    for heads, width in ((h, d), (d, h)):
        module, parameters = _mended(learner, rng, h * d, heads)
        x, note = rng.normal(size=(B, L, h * d)), f"{_heads(heads, width)} There is no mask."
        _compare_module(learner, module, x, parameters, heads, note=note)


@MendedMultiHeadAttention.check(points=0.5)
def its_sequences_keep_their_own_masks(learner, rng):
    B, L, h, d = _sizes(rng)
    module, parameters = _mended(learner, rng, h * d, h)
    for sequences in (h, B):
        x, mask = rng.normal(size=(sequences, L, h * d)), _one_key(rng, sequences, L, L)
        note = f"The mask has shape {mask.shape}, and there are {h} heads; one key a query."
        (_, weights), _ = _run_module(learner, module, x, mask)
        right = _right(x, parameters, h, mask)[1]
        expect_close(weights, right, "weights", rtol=1e-3, atol=1e-5, note=note)


@MendedMultiHeadAttention.check(points=0.25)
def one_mask_for_all_sequences_keeps_keys_out_here_too(learner, rng):
    B, L, h, d = _sizes(rng)
    for heads in (1, h):
        module, parameters = _mended(learner, rng, h * d, heads)
        x, mask = rng.normal(size=(B, L, h * d)), _one_key(rng, L, L)
        note = f"The mask has shape {mask.shape}, the weights {(B, heads, L, L)}; one key a query."
        result, _ = _run_module(learner, module, x, mask)
        right_output, right_weights = _right(x, parameters, heads, mask)
        expect_close(result[1], right_weights, "weights", rtol=1e-3, atol=1e-5, note=note)
        if heads == 1:  # with more, the output would tell of the merging as well
            expect_close(result[0], right_output, "output", rtol=1e-3, atol=1e-5, note=note)


@MendedMultiHeadAttention.check(points=0.25)
def gradients_reach_all_four_of_its_projections(learner, rng):
    B, L, h, d = _sizes(rng)
    module, parameters = _mended(learner, rng, h * d, 1)
    x, doutput = rng.normal(size=(2, B, L, h * d))
    _, gradients = _run_module(learner, module, x, upstream=doutput)
    _compare_gradients(gradients, doutput, x, parameters, 1, note="There is one head, and no mask.")


# --- grouped-query attention ---

grouped_query_attention = Question("grouped_query_attention", section=WHOLE, forbid=READY_MADE)


def _grouped_layer(rng, B, L, d, num_heads, num_kv_heads):
    X, W_q, W_k, W_v, W_o = _layer(rng, B, L, num_heads * d)
    kept = num_kv_heads * d
    return X, W_q, W_k[:, :kept].copy(), W_v[:, :kept].copy(), W_o


def _compare_grouped(learner, rng, num_heads, num_kv_heads, mask=None, d=2, B=3, L=5):
    arguments = (*_grouped_layer(rng, B, L, d, num_heads, num_kv_heads), num_heads, num_kv_heads)
    arguments += () if mask is None else (mask,)
    with _shape_named(mask, num_heads):
        result = learner.call("grouped_query_attention", *arguments)
    output, weights = expect_tuple(result, ("output", "weights"))
    right_output, right_weights = oracle.grouped_query_attention(*arguments)
    note = f"There are {num_heads} heads of width {d}, and {num_kv_heads} heads of keys and values."
    if mask is not None:
        note += f" The mask has shape {mask.shape}."
    expect_close(weights, right_weights, "weights", note=note)
    expect_close(output, right_output, "output", note=note)


@grouped_query_attention.check(points=0.5)
def with_as_many_key_heads_it_is_multi_head_attention(learner, rng):
    _compare_grouped(learner, rng, 4, 4, d=3)
    _compare_grouped(learner, rng, 2, 2, d=3)


@grouped_query_attention.check(points=0.5)
def with_one_key_head_all_queries_share_it(learner, rng):
    _compare_grouped(learner, rng, int(rng.choice([3, 4])), 1)


@grouped_query_attention.check(points=1.0)
def heads_that_follow_each_other_form_a_group(learner, rng):
    for num_heads, num_kv_heads, d in ((4, 2, 3), (6, 2, 1), (6, 3, 4)):
        _compare_grouped(learner, rng, num_heads, num_kv_heads, d=d)


@grouped_query_attention.check(points=0.5)
def masks_act_on_all_heads(learner, rng):
    L = 5
    for shape, g in (((L, L), 1), ((4, L, L), 1), ((4, L, L), 4), ((2, L, L), 1)):
        mask = _one_key(rng, *shape)
        _compare_grouped(learner, rng, 4, g, mask, B=shape[0] if len(shape) == 3 else 3)


@grouped_query_attention.probe
def groups_of_one_width(rng):
    yield (*_grouped_layer(rng, 2, 4, 2, 4, 2), 4, 2)
    yield (*_grouped_layer(rng, 4, 4, 2, 4, 2), 4, 2, _mask(rng, 4, 4, 4))


# --- what it saves ---

grouped_query_costs = Question("grouped_query_costs", section=COSTS, forbid=READY_MADE)


def _cost(learner, rng, place):
    for num_heads, num_kv_heads in ((6, 6), (6, 1), (8, 2), (6, 3)):
        L, d = int(rng.integers(5, 30)), int(rng.integers(2, 6))
        if d == num_heads // num_kv_heads:
            d += 5
        arguments = (L, num_heads * d, num_heads, num_kv_heads)
        got = expect_tuple(learner.call("grouped_query_costs", *arguments), ("parameters", "kept"))
        right = oracle.grouped_query_costs(*arguments)
        what = ("The number of parameters", "The count of numbers that are kept")[place]
        number = expect_array(got[place], (), what)
        expect(
            abs(number - right[place]) < 0.5,
            f"{what} is {number:g}; expected {right[place]}. Here L, d_model, num_heads, "
            f"num_kv_heads = {', '.join(map(str, arguments))}.",
        )


@grouped_query_costs.check(points=0.25)
def all_four_projections_are_counted(learner, rng):
    _cost(learner, rng, 0)


@grouped_query_costs.check(points=0.25)
def the_keys_and_values_that_are_kept_are_counted(learner, rng):
    _cost(learner, rng, 1)


# --- heads switched off ---

attention_with_head_mask = Question("attention_with_head_mask", section=STEP_3, forbid=READY_MADE)


def _compare_head_mask(learner, arguments, head_mask, note=""):
    got = learner.call("attention_with_head_mask", *arguments, head_mask)
    right = oracle.attention_with_head_mask(*arguments, head_mask)
    expect_close(got, right, "output", note=f"head_mask is {head_mask.tolist()}. {note}".strip())


@attention_with_head_mask.check(points=0.5)
def a_head_that_is_off_adds_nothing_and_changes_no_other(learner, rng):
    B, L, h, d = _sizes(rng)
    for heads, width in ((h, d), (d, h)):
        arguments = (*_layer(rng, B, L, h * d), heads)
        one = rng.permutation(np.arange(heads) == 0)
        for head_mask in (one, ~one):
            _compare_head_mask(learner, arguments, head_mask, _heads(heads, width))


@attention_with_head_mask.check(points=0.25)
def all_heads_may_be_on_or_off(learner, rng):
    B, L, h, d = _sizes(rng)
    arguments = (*_layer(rng, B, L, h * d), h)
    for head_mask in (np.ones(h, dtype=bool), np.zeros(h, dtype=bool)):
        _compare_head_mask(learner, arguments, head_mask)


@attention_with_head_mask.check(points=0.25)
def the_matrices_are_left_unchanged(learner, rng):
    B, L, h, d = _sizes(rng)
    arguments = [*_layer(rng, B, L, h * d), h, np.arange(h) == rng.integers(h)]
    outcome = learner.run("attention_with_head_mask", *arguments)
    expect_array(outcome["value"], arguments[0].shape, "output")
    expect_unchanged(outcome["arguments"], arguments, [*LAYER_ARGUMENTS, "num_heads", "head_mask"])
    _compare_head_mask(learner, arguments[:-1], np.ones(h, dtype=bool))


# --- inputs ---


def _sizes(rng):
    """Draw B, L, h and d: all different, so that no axis can be taken for another."""
    B, h, d = (int(n) for n in 2 + rng.permutation(3))
    return B, int(rng.choice([5, 7])), h, d


def _layer(rng, B, L, d_model):
    """Draw X and the four matrices of a layer."""
    X = rng.normal(size=(B, L, d_model))
    return (X, *(rng.normal(size=(4, d_model, d_model)) * 1.5 / np.sqrt(d_model)))


def _one_key(rng, *shape):
    """Draw a mask in which each query may attend to one key; nearby matrices all differ."""
    *lead, rows, L = shape
    keys = rng.integers(L, size=rows)
    while rows == L and (keys[keys] == np.arange(L)).all():  # symmetric
        keys = rng.integers(L, size=rows)
    keys = (keys + np.arange(np.prod(lead, dtype=int))[:, None]) % L
    return (keys[..., None] == np.arange(L)).reshape(shape)


def _mask(rng, *shape):
    """Draw a mask in which each row allows at least one key, and not all."""
    mask = rng.random(shape) < 0.5
    for row in mask.reshape(-1, shape[-1]):
        allowed, hidden = rng.permutation(len(row))[:2]
        row[allowed], row[hidden] = True, False
    return mask


def _steps(rng, n, m):
    """Draw rows of different multiples of 1/4 from 0 up: no row is constant, all are exact."""
    return rng.permuted(np.tile(np.arange(m), (n, 1)), axis=1) / 4


def _large_scores(rng, B, L, level):
    """Build a layer with two heads of width 1 whose scores are near ``level`` or ``-level``.

    Feature 0 makes queries and values, feature 1 makes keys; head 1 turns the keys' sign.
    """
    X = np.stack([rng.permuted(np.resize([1.0, -1.0], (B, L)), axis=1), level + _steps(rng, B, L)])
    W_q, W_k = np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([[0.0, 0.0], [1.0, -1.0]])
    W_v = np.array([rng.normal(size=2) + 2.0, [0.0, 0.0]])
    return np.moveaxis(X, 0, -1), W_q, W_k, W_v, rng.normal(size=(2, 2))


def _heads(num_heads, width):
    many = f"{num_heads} heads" if num_heads > 1 else "1 head"
    return f"d_model is {num_heads * width}: {many} of width {width}."


# --- what an error is told with ---


@contextlib.contextmanager
def _shape_named(mask, num_heads=None):
    """Add the shape of the mask to an error of the learner's code."""
    try:
        yield
    except LearnerError as error:
        if mask is None or error.kind != "error":
            raise
        heads = "" if num_heads is None else f", and there are {num_heads} heads"
        raise _reworded(error, f"{error}\nThe mask has shape {mask.shape}{heads}.") from None


def _reworded(error, message):
    other = LearnerError(error.details)
    other.args = (message,)
    return other


def _tell_of_earlier_answers(question, *earlier):
    """Let the checks of a question say first that an answer which it calls is not right."""

    def told(function):
        @functools.wraps(function)
        def check(learner, rng):
            try:
                function(learner, rng)
            except Failed as failure:
                raise Failed(_to_mend_first(question, earlier, learner) + str(failure)) from None
            except LearnerError as error:
                if error.kind != "error":
                    raise
                first = _to_mend_first(question, earlier, learner)
                raise _reworded(error, first + str(error)) from None

        return check

    question.checks = [
        dataclasses.replace(check, function=told(check.function)) for check in question.checks
    ]


def _to_mend_first(question, earlier, learner):
    """Say which earlier answer is to be mended first, if the answer calls one that is wrong."""
    asked = len(learner.record)
    try:
        called = _names_in(learner, learner.value(question.id))
        for name in filter(called.__contains__, earlier):
            number, arguments, right = EARLIER[name]()
            try:
                got = learner.call(name, *arguments)
                for one, want in zip(_several(got), _several(right), strict=True):
                    expect_close(one, want, name)
            except LearnerError as error:
                if error.kind in ("missing", "not_attempted"):
                    continue
                return f"`{name}` (question {number}) stops with an error: mend it first.\n"
            except (Failed, ValueError):  # other values, or another number of them
                return f"`{name}` (question {number}) is not right yet: mend it first.\n"
    except (LearnerError, TypeError):  # no plain function, so its names cannot be told
        pass
    finally:
        del learner.record[asked:]  # a diagnosis looks at the answer to this question alone
    return ""


def _names_in(learner, function):
    """Collect the names that a function uses, in the functions and generators inside it too."""
    codes, names = [learner.attribute(function, "__code__")], set()
    for _ in range(50):  # an object of the learner's own that passes for code may have no end
        if not codes:
            break
        code = codes.pop()
        names.update(learner.attribute(code, "co_names"))
        inside = learner.attribute(code, "co_consts")
        codes += [one for one in inside if isinstance(one, Handle) and one.type == "code"]
    return names


def _several(results):
    return results if isinstance(results, list | tuple) else [results]


TOKENS = np.sin(np.arange(1.0, 31)).reshape(1, 5, 6)  # no two numbers equal, none in order


def _try_split():
    return 2, (TOKENS, 3), oracle.split_heads(TOKENS, 3)


def _try_merge():
    heads = TOKENS.reshape(1, 3, 5, 2)
    return 3, (heads,), oracle.merge_heads(heads)


def _try_attention():
    rng = np.random.default_rng(7)
    arguments = (*_layer(rng, 3, 5, 8), 2)  # without a mask, which is not what every caller uses
    return 5, arguments, oracle.multi_head_attention(*arguments)


EARLIER = {
    "split_heads": _try_split,
    "merge_heads": _try_merge,
    "multi_head_attention": _try_attention,
}

_tell_of_earlier_answers(multi_head_attention, "split_heads", "merge_heads")
_tell_of_earlier_answers(grouped_query_attention, *EARLIER)
_tell_of_earlier_answers(attention_with_head_mask, *EARLIER)


# --- comparisons ---


def _compare(
    learner,
    X,
    W_q,
    W_k,
    W_v,
    W_o,
    num_heads,
    mask=None,
    only=("weights", "output"),
    name="multi_head_attention",
    **options,
):
    arguments = (X, W_q, W_k, W_v, W_o, num_heads) + (() if mask is None else (mask,))
    with _shape_named(mask, num_heads):
        result = learner.call(name, *arguments)
    output, weights = expect_tuple(result, ("output", "weights"))
    right_output, right_weights = oracle.multi_head_attention(*arguments)
    if "weights" in only:
        expect_close(weights, right_weights, "weights", **options)
    if "output" in only:
        expect_close(output, right_output, "output", **options)


# --- PyTorch modules ---


def _new_module(learner, name, d_model, num_heads):
    module = learner.call(name, d_model, num_heads)
    expect(
        isinstance(module, Handle),
        f"{name}({d_model}, {num_heads}) gave a value of type {type(module).__name__}; expected an "
        "nn.Module.",
    )
    return module


def _parameters(rng, d_model):
    """Draw the matrices of ``x @ W`` and the biases of the four projections."""
    return (
        rng.normal(size=(4, d_model, d_model)) * 1.5 / np.sqrt(d_model),
        rng.normal(size=(4, d_model)),
    )


def _module(learner, rng, name, d_model, num_heads, biases=False, out_bias=False):
    """Make a module and set its parameters; biases are 0 unless asked for."""
    module = _new_module(learner, name, d_model, num_heads)
    matrices, bias = _parameters(rng, d_model)
    if not biases:
        bias[: 3 if out_bias else 4] = 0
    _load(learner, module, matrices, bias)
    return module, (matrices, bias)


def _load(learner, module, matrices, biases, missing_too=False):
    """Set a module's parameters; return ``(too much, missing)``: the names that did not fit."""
    import torch

    state = {}
    for name, W, b in zip(MATRICES, matrices, biases, strict=True):
        state[f"{name}.weight"] = torch.from_numpy(W.T.copy())
        state[f"{name}.bias"] = torch.from_numpy(b.copy())
    try:
        extra, missing = learner.method(module, "load_state_dict", state, strict=False)
    except LearnerError as error:
        pattern = r"mismatch for (\w+\.\w+).*?model is torch.Size\(\[(.*?)\]\)"
        found = re.search(pattern, str(error), re.DOTALL)
        if found is None or found[1] not in state:
            raise
        wanted = tuple(state[found[1]].shape)
        raise Failed(
            f"{found[1]} has shape ({found[2]}); expected {wanted}. Each projection takes the "
            "whole token and makes the parts of all heads at once."
        ) from None
    without = [name for name in missing if missing_too or name.endswith("weight")]
    if without and not missing_too:
        raise Failed(f"There is no parameter {', '.join(without)}, so it cannot be set.")
    return extra, without


def _run_module(learner, module, x, mask=None, upstream=None, dtype="float32"):
    """Run a module on arrays; return (output, weights) and the gradients by name."""
    import torch

    arguments = [torch.from_numpy(x).to(getattr(torch, dtype))]
    if mask is not None:
        arguments.append(torch.from_numpy(mask))
    if upstream is not None:
        upstream = [torch.from_numpy(upstream).to(getattr(torch, dtype)), None]
    with _shape_named(mask):
        found = learner.step(module, *arguments, upstream=upstream)
    result = expect_tuple(found["output"], ("output", "weights"))
    return result, {"x": found["input_gradients"][0], **found["gradients"]}


def _right(x, parameters, num_heads, mask=None):
    matrices, (b_q, b_k, b_v, b_o) = parameters
    return oracle.multi_head_attention(
        x, *matrices, num_heads, mask, b_q=b_q, b_k=b_k, b_v=b_v, b_o=b_o
    )


def _compare_module(learner, module, x, parameters, num_heads, mask=None, note=""):
    result, _ = _run_module(learner, module, x, mask)
    _compare_layer(result, x, parameters, num_heads, mask, note=note)


def _compare_layer(result, x, parameters, num_heads, mask=None, **options):
    right_output, right_weights = _right(x, parameters, num_heads, mask)
    expect_close(result[1], right_weights, "weights", **{"rtol": 1e-3, "atol": 1e-5, **options})
    expect_close(result[0], right_output, "output", **{"rtol": 1e-3, "atol": 1e-5, **options})


def _compare_gradients(gradients, doutput, x, parameters, num_heads, mask=None, note=""):
    right = oracle.multi_head_gradients(doutput, x, *parameters, num_heads, mask)
    for name in ("x", *(f"{name}.weight" for name in MATRICES)):
        gradient = gradients.get(name)
        expect(
            gradient is not None,
            f"After the backward pass {name} has no gradient: nothing that depends on it "
            "reaches the output.",
        )
        what = f"the gradient of {name}"
        gradient = expect_array(gradient, right[name].shape, what)
        expect(
            np.isfinite(gradient).all(),
            f"The gradient of {name} is not finite; expected finite numbers. {note}".strip(),
        )
        expect_close(gradient, right[name], what, rtol=1e-3, atol=1e-4, note=note)
