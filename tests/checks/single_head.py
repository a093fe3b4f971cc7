"""Checks of exercise 2: attention with one head, forward and backward, in NumPy and PyTorch.

The scores of the hard cases are small integers times powers of two, or quarters, so that
an answer that computes in float32 sees the same scores. Where a check is not about the scale,
d_k = 1: a wrong scale then costs its own checks and no others.
"""

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

from ..oracle import exercise_single_head as more
from ..oracle import single_head as oracle
from . import LIBRARY

READY_MADE = (*LIBRARY, "jax", "scipy.special", "sklearn", "tensorflow", "torch")


# --- predictions ---

predicted_shapes = Question("predicted_shapes", section="The general case: two sequences")


def _shapes_predicted(learner):
    """Return the two shapes that were predicted, and the right ones, from real arrays."""
    question, text = np.zeros((4, 16)), np.zeros((9, 16))
    W_q, W_k, W_v = np.zeros((16, 8)), np.zeros((16, 8)), np.zeros((16, 6))
    output, weights = oracle.scaled_dot_product_attention(question @ W_q, text @ W_k, text @ W_v)
    got = expect_tuple(learner.value("predicted_shapes"), ("shape of weights", "shape of output"))
    one = all(isinstance(n, int) for n in got)
    expect(
        not one, f"{got} is one shape; expected two, that of the weights and that of the output."
    )
    for shape in got:
        fine = isinstance(shape, list | tuple) and all(isinstance(n, int) for n in shape)
        expect(fine, f"Write each shape as a tuple of integers, like (3, 5); got {shape!r}.")
    return [tuple(shape) for shape in got], weights.shape, output.shape


@predicted_shapes.check(points=0.5)
def there_is_one_weight_for_each_query_and_key(learner, rng):
    (got, _), right, _ = _shapes_predicted(learner)
    expect(
        got == right,
        f"{got} is not the shape of the weights. Each token of the question has a row, with one "
        "entry for each thing that it may read.",
    )


@predicted_shapes.check(points=0.5)
def there_is_one_output_for_each_query(learner, rng):
    (_, got), _, right = _shapes_predicted(learner)
    expect(
        got == right,
        f"{got} is not the shape of the output. Who asks, and what is averaged? The first says "
        "how many rows there are, the second how wide they are.",
    )


predicted_changes = Question("predicted_changes", section="Step 4: turn scores into weights")


def _change_predicted(learner, place):
    return expect_numbers(learner.value("predicted_changes"), "abc")[place]


def _weights_of(scores, mask=None):
    """Return the weights of one query of width 1, by real attention."""
    Q, K = np.ones((1, 1)), np.array(scores)[:, None]
    return oracle.scaled_dot_product_attention(Q, K, K, mask)[1][0]


_SCORES = tuple(np.log([0.25, 0.15, 0.6]))  # of cats, chase and mice


@predicted_changes.check(points=0.25)
def a_masked_key_leaves_its_weight_to_the_others(learner, rng):
    got = _change_predicted(learner, 0)
    right = _weights_of(_SCORES, np.array([True, True, False]))[0]
    expect(
        abs(got - right) < 0.002,
        f"(a) The weight of cats is not {got:g}. The mask acts before the softmax: what do the "
        "two weights that are left sum to, and what is the ratio between them? The chapter's "
        '"Leaving some keys out" has a row like this.',
    )


@predicted_changes.check(points=0.5)
def a_longer_query_sharpens_the_weights(learner, rng):
    got = _change_predicted(learner, 1)
    doubled = _weights_of([2 * score for score in _SCORES])
    expect(
        abs(got - doubled[2] / doubled[1]) < 0.02,
        f"(b) The ratio is not {got:g}. The ratio of two weights is exp of the difference of "
        "their scores. What does a doubled query do to that difference?",
    )


@predicted_changes.check(points=0.25)
def a_copied_key_competes_with_all_others(learner, rng):
    got = _change_predicted(learner, 2)
    right = _weights_of([*_SCORES, _SCORES[0]])[0]
    expect(
        abs(got - right) < 0.002,
        f"(c) The weight of the first cats is not {got:g}. Its exponential stays as it was. By "
        "how much does the sum of all exponentials grow?",
    )


# --- softmax ---

softmax = Question("softmax", section="A softmax that does not overflow", forbid=READY_MADE)


@softmax.check(points=0.25)
def one_vector_gives_the_right_weights(learner, rng):
    x = rng.normal(scale=2.0, size=rng.integers(4, 8))
    expect_close(learner.call("softmax", x), oracle.softmax(x), "softmax(x)")


@softmax.check(points=0.25)
def each_row_is_normalized_by_itself(learner, rng):
    n, m = _sizes(rng, 2)
    cases = [
        ((n, m), ""),
        ((n, n), "x is square: here an operation along the wrong axis raises no error."),
        ((2, n, m), "x has three axes; the softmax runs along the last one."),
    ]
    for shape, note in cases:
        x = rng.normal(scale=2.0, size=shape)
        expect_close(learner.call("softmax", x), oracle.softmax(x), "softmax(x)", note=note)


@softmax.check(points=0.25)
def any_axis_can_be_chosen(learner, rng):
    shape = _sizes(rng, 3)
    x = rng.normal(scale=2.0, size=shape)
    for axis in (0, 1, -2, 2):
        got = learner.call("softmax", x, axis=axis)
        note = f"x has shape {shape}; the weights must sum to 1 along axis {axis}."
        expect_close(got, oracle.softmax(x, axis=axis), f"softmax(x, axis={axis})", note=note)


@softmax.check(points=0.25)
def large_scores_stay_finite(learner, rng):
    n, m = _sizes(rng, 2)
    near = _steps(rng, n, m)
    wide = near + 10_000.0
    wide[:, ::2] -= 20_000.0
    cases = [
        (near + 10_000.0, "All scores are near 10,000."),
        (near - 10_000.0, "All scores are near -10,000."),
        (wide, "Each row holds scores near 10,000 and scores near -10,000."),
    ]
    for x, note in cases:
        got = learner.call("softmax", x)
        expect_close(got, oracle.softmax(x), "softmax(x)", rtol=2e-3, note=note)


@softmax.check(points=0.25)
def rows_far_apart_do_not_disturb_each_other(learner, rng):
    levels = rng.permutation([-4000.0, 0.0, 3000.0])
    x = levels[:, None] + _steps(rng, 3, 5)
    note = f"The rows lie near {', '.join(f'{level:,.0f}' for level in levels)}."
    expect_close(learner.call("softmax", x), oracle.softmax(x), "softmax(x)", rtol=2e-3, note=note)


@softmax.check(points=0.25)
def the_argument_is_left_unchanged(learner, rng):
    x = rng.normal(scale=2.0, size=_sizes(rng, 2))
    outcome = learner.run("softmax", x)
    expect_close(outcome["value"], oracle.softmax(x), "softmax(x)")
    expect_unchanged(outcome["arguments"], [x], ["x"])


@softmax.check(points=0.25)
def integer_scores_work_too(learner, rng):
    x = (4 * _steps(rng, *_sizes(rng, 2))).astype(int) - 2
    note = "x is an array of integers; the weights are not."
    expect_close(learner.call("softmax", x), oracle.softmax(x), "softmax(x)", note=note)


@softmax.check(points=0.25)
def float16_and_float32_scores_stay_finite(learner, rng):
    # float16 has three digits: one that works in it is right as well
    cases = [(np.float32, 100.0, 2e-3, 1e-6), (np.float16, 14.0, 2e-2, 2e-3)]
    for dtype, level, rtol, atol in cases:
        x = (level + _steps(rng, *_sizes(rng, 2))).astype(dtype)
        name = np.dtype(dtype).name
        note = f"x is a {name} array of scores near {level:g}, and exp({level:g}) is beyond {name}."
        got = learner.call("softmax", x)
        expect_close(got, oracle.softmax(x), "softmax(x)", rtol=rtol, atol=atol, note=note)


@softmax.probe
def square_matrices_and_one_low_score(rng):
    yield (rng.normal(size=(4, 4)),)
    yield (np.append(rng.normal(size=7), -900.0),)


# --- entropy ---

attention_entropy = Question(
    "attention_entropy", section="Why the scores are scaled, measured", forbid=READY_MADE
)


def _rows(rng, *shape):
    """Draw positive weights that sum to 1 along the last axis."""
    return oracle.softmax(rng.normal(scale=1.5, size=shape))


def _compare_entropy(learner, weights, note=""):
    got = learner.call("attention_entropy", weights)
    expect_close(got, more.attention_entropy(weights), "attention_entropy(weights)", note=note)


@attention_entropy.check(points=0.5)
def each_row_of_weights_gives_its_entropy(learner, rng):
    n, m = _sizes(rng, 2)
    _compare_entropy(learner, _rows(rng, n, m), f"weights has shape {(n, m)}: {n} rows.")


@attention_entropy.check(points=0.25)
def entropy_takes_any_number_of_leading_axes(learner, rng):
    B, h, n, m = _sizes(rng, 4)
    for shape in ((m,), (B, n, m), (B, h, n, m)):
        note = f"weights has shape {shape}; the entropy is taken along the last axis."
        _compare_entropy(learner, _rows(rng, *shape), note)


@attention_entropy.check(points=0.25)
def a_weight_of_zero_adds_nothing(learner, rng):
    n, m = _sizes(rng, 2)
    weights = _rows(rng, n, m) * _mask(rng, n, m)
    weights /= weights.sum(axis=-1, keepdims=True)
    row = int(rng.integers(n))
    weights[row] = np.arange(m) == rng.integers(m)
    note = f"Some weights are 0. In row {row} one weight is 1, and its entropy is 0."
    _compare_entropy(learner, weights, note)


@attention_entropy.check(points=0.25)
def an_empty_row_has_entropy_zero(learner, rng):
    n, m = _sizes(rng, 2)
    weights = _rows(rng, n, m)
    row = int(rng.integers(n))
    weights[row] = 0.0
    _compare_entropy(learner, weights, f"All weights of row {row} are 0.")


@attention_entropy.check(points=0.25)
def the_weights_are_left_unchanged(learner, rng):
    weights = np.vstack([_rows(rng, 2, 4), [0.0, 1.0, 0.0, 0.0]])
    outcome = learner.run("attention_entropy", weights)
    what = "attention_entropy(weights)"
    got, right = expect_array(outcome["value"], (3,), what)[:2], more.attention_entropy(weights)[:2]
    with np.errstate(all="ignore"):  # another logarithm costs other checks, so up to a factor
        got = got * (right[0] / got[0])
    expect_close(got, right, f"{what}[:2], brought to scale,")
    expect_unchanged(outcome["arguments"], [weights], ["weights"])


# --- scaled dot-product attention ---

scaled_dot_product_attention = Question(
    "scaled_dot_product_attention", section="The whole function", forbid=READY_MADE
)


@scaled_dot_product_attention.check(points=0.5)
def weights_are_the_softmax_of_the_scaled_scores(learner, rng):
    L_q, L_k, d_k, d_v = _sizes(rng, 4)
    cases = [
        ((L_q, L_k, d_k, d_v), f"There are {L_q} queries and {L_k} keys of width {d_k}."),
        (
            (L_q, d_k, d_k, d_v),
            f"There are {d_k} keys of width {d_k}: the wrong product of Q and K runs too.",
        ),
    ]
    for sizes, note in cases:
        Q, K, V = _inputs(rng, *sizes)
        _, weights = _call(learner, Q, K, V)
        expect_close(weights, oracle.scaled_dot_product_attention(Q, K, V)[1], "weights", note=note)


@scaled_dot_product_attention.check(points=0.5)
def output_is_the_weighted_average_of_the_values(learner, rng):
    L_q, L_k, d_v = _sizes(rng, 3)
    cases = [
        ((L_q, L_k, 1, d_v), f"There are {L_q} queries, {L_k} keys, and values of width {d_v}."),
        ((L_k, L_k, 1, d_v), f"There are {L_k} queries and {L_k} keys: the weights are square."),
    ]
    for sizes, note in cases:
        Q, K, V = _inputs(rng, *sizes)
        output, _ = _call(learner, Q, K, V)
        expect_close(output, oracle.scaled_dot_product_attention(Q, K, V)[0], "output", note=note)


@scaled_dot_product_attention.check(points=0.5)
def leading_axes_are_separate_problems(learner, rng):
    B, h, *sizes = _sizes(rng, 6)
    _compare(learner, *_inputs(rng, *sizes, lead=(B,)), note="The inputs have three axes.")
    _compare(learner, *_inputs(rng, *sizes, lead=(B, h)), note="The inputs have four axes.")
    sizes[0] = 1
    note = f"Q has shape (1, 1, {sizes[2]}): a batch of one with a single query."
    _compare(learner, *_inputs(rng, *sizes, lead=(1,)), note=note)


@scaled_dot_product_attention.check(points=0.5)
def true_in_the_mask_means_may_attend(learner, rng):
    L_q, L_k, d_v = _sizes(rng, 3)
    for rows, columns in ((L_q, L_k), (L_k, L_k)):
        Q, K, V = _inputs(rng, rows, columns, 1, d_v)
        mask = _mask(rng, rows, columns)
        note = f"Query 0 may attend to keys {_list(mask[0])} alone: mask[0] is {mask[0].tolist()}."
        _compare(learner, Q, K, V, mask, note=note)


@scaled_dot_product_attention.check(points=0.25)
def the_mask_broadcasts_to_the_scores(learner, rng):
    B, h, L_q, L_k, d_k, d_v = _sizes(rng, 6)
    for lead, shape in (
        ((B,), (L_q, L_k)),
        ((B,), (B, 1, L_k)),
        ((B,), (B, L_q, L_k)),
        ((B, h), (B, 1, L_q, L_k)),
    ):
        Q, K, V = _inputs(rng, L_q, L_k, d_k, d_v, lead=lead)
        note = f"The mask has shape {shape}, the scores {(*lead, L_q, L_k)}."
        _compare(learner, Q, K, V, _mask(rng, *shape), note=note)


@scaled_dot_product_attention.check(points=0.5)
def a_query_without_allowed_key_gets_zeros(learner, rng):
    B, L_q, L_k, d_v = _sizes(rng, 4)
    for lead, shape in (((), (L_q, L_k)), ((B,), (B, 1, L_k))):
        Q, K, V = _inputs(rng, L_q, L_k, 1, d_v, lead=lead)
        mask = _mask(rng, *shape)
        empty = int(rng.integers(shape[0]))
        mask[empty] = False
        who = f"Query {empty}" if not lead else f"In sample {empty}, every query"
        note = f"{who} has no allowed key: its weights and its output are 0."
        _compare(learner, Q, K, V, mask, note=note)


@scaled_dot_product_attention.check(points=0.25)
def masked_keys_get_nothing_however_low_the_allowed_scores(learner, rng):
    L_q, L_k, d_v = _sizes(rng, 3)
    allowed = _mask(rng, L_k)
    hidden = _list(~allowed)
    mask = np.tile(allowed, (L_q, 1))
    V = rng.normal(size=(L_k, d_v))
    Q = rng.integers(1, 3, size=(L_q, 1))
    cases = [
        (-20_000.0 - _steps(rng, 1, L_k), "below -19,000"),
        (-(2.0**32) - 2.0**12 * _steps(rng, 1, L_k), "below -4,000,000,000"),
    ]
    for low, where in cases:
        K = np.where(allowed, low, 0.0).T
        note = f"Every allowed score is {where}. Masked, with a score of 0: key {hidden}."
        _compare(learner, 1.0 * Q, K, V, mask, note=note, rtol=5e-3)


@scaled_dot_product_attention.check(points=0.25)
def masked_keys_get_nothing_however_high_their_own_scores(learner, rng):
    L_q, L_k, d_v = _sizes(rng, 3)
    small = _steps(rng, 1, L_k).T
    hidden = small[:, 0] > 0.25  # the two keys that stay have 0 and 1/4: a score may be exactly 0
    mask = np.tile(~hidden, (L_q, 1))
    V = rng.normal(size=(L_k, d_v))
    Q = rng.integers(1, 5, size=(L_q, 1)) / 2
    for high, where in ((2.0**14, "above 8,000"), (2.0**32, "above 2,000,000,000")):
        K = small + high * hidden[:, None]
        note = f"Every masked score is {where}, every allowed score lies between 0 and 1."
        _compare(learner, Q, K, V, mask, note=note)


@scaled_dot_product_attention.check(points=0.25)
def large_scores_give_finite_weights(learner, rng):
    L_q, L_k, d_v = _sizes(rng, 3)
    V = rng.normal(size=(L_k, d_v))
    Q = rng.permutation(np.arange(L_q) - 1.0)[:, None]  # -1, 0, 1, ...
    for dtype, level in ((np.float64, 10_000.0), (np.float32, 256.0)):
        K = level + _steps(rng, 1, L_k).T
        note = f"The {np.dtype(dtype).name} scores of the queries lie near {_levels(Q, level)}."
        arrays = (array.astype(dtype) for array in (Q, K, V))
        _compare(learner, *arrays, note=note, rtol=5e-3, atol=1e-5)


@scaled_dot_product_attention.check(points=0.25)
def the_arguments_are_left_unchanged(learner, rng):
    names = ["Q", "K", "V", "mask"]
    arguments = [*_inputs(rng, *_sizes(rng, 4)), None]
    L_q, L_k = arguments[0].shape[0], arguments[1].shape[0]
    arguments[3] = _mask(rng, L_q, L_k)
    outcome = learner.run("scaled_dot_product_attention", *arguments)
    _compare_result(outcome["value"], *arguments)
    expect_unchanged(outcome["arguments"], arguments, names)
    arguments[3][0] = False  # a mask that some answers mend in place
    outcome = learner.run("scaled_dot_product_attention", *arguments)
    expect_unchanged(outcome["arguments"], arguments, names)


@scaled_dot_product_attention.check(points=0.25)
def integer_inputs_work_too(learner, rng):
    L_q, L_k, d_v = _sizes(rng, 3)
    Q = rng.choice([-2, -1, 1, 2], size=(L_q, 1))
    K = rng.permutation(L_k)[:, None] - 2
    V = rng.integers(-9, 10, size=(L_k, d_v))
    _compare(learner, Q, K, V, note="Q, K and V are arrays of integers; the results are not.")


@scaled_dot_product_attention.probe
def equal_sizes_with_which_most_wrong_products_run(rng):
    n = 4
    yield tuple(_inputs(rng, n, n, n, n))
    yield (*_inputs(rng, n, n, n, n), _mask(rng, n, n))
    yield (*_inputs(rng, n, n, n, n), _mask_with_empty_row(rng, n))
    yield tuple(_inputs(rng, n, n, n, n, lead=(n,)))
    yield (*_inputs(rng, 1, 1, 2, 2), np.ones((1, 1), dtype=bool))


# --- a NumPy attention to mend ---

mended_attention = Question(
    "mended_attention",
    section="Leaving some keys out",
    forbid=(*READY_MADE, "scaled_dot_product_attention"),
)


def _compare_mended(learner, Q, K, V, mask=None, **options):
    arguments = (Q, K, V) if mask is None else (Q, K, V, mask)
    _compare_result(learner.call("mended_attention", *arguments), Q, K, V, mask, **options)


@mended_attention.check(points=0.5)
def it_attends_over_batches_with_three_axes(learner, rng):
    B, L_q, L_k, d_k, d_v = _sizes(rng, 5)
    note = f"Q has shape {(B, L_q, d_k)}, K {(B, L_k, d_k)}, V {(B, L_k, d_v)}; there is no mask."
    _compare_mended(learner, *_inputs(rng, L_q, L_k, d_k, d_v, lead=(B,)), note=note)


@mended_attention.check(points=0.5)
def its_mask_leaves_keys_out(learner, rng):
    B, L_q, L_k, d_v = _sizes(rng, 4)
    for shape in ((L_q, L_k), (B, 1, L_k), (B, L_q, L_k)):
        Q, K, V = _inputs(rng, L_q, L_k, 1, d_v, lead=(B,))
        note = f"The mask has shape {shape}, the scores {(B, L_q, L_k)}."
        _compare_mended(learner, Q, K, V, _mask(rng, *shape), note=note)


@mended_attention.check(points=0.5)
def its_masked_keys_get_nothing_however_low_the_allowed_scores(learner, rng):
    B, L_q, L_k, d_v = _sizes(rng, 4)
    V = rng.normal(size=(B, L_k, d_v))
    Q = rng.integers(1, 3, size=(B, L_q, 1)) * 1.0
    allowed = _mask(rng, B, L_k)
    low = -(2.0**32) - 2.0**12 * _steps(rng, B, L_k)
    K = np.where(allowed, low, 0.0)[..., None]
    note = "Every allowed score is below -4,000,000,000, every masked score is 0."
    _compare_mended(learner, Q, K, V, allowed[:, None, :], note=note, rtol=5e-3)


@mended_attention.check(points=0.5)
def its_queries_without_allowed_key_get_zeros(learner, rng):
    B, L_q, L_k, d_v = _sizes(rng, 4)
    Q, K, V = _inputs(rng, L_q, L_k, 1, d_v, lead=(B,))
    mask = _mask(rng, L_q, L_k)
    empty = int(rng.integers(L_q))
    mask[empty] = False
    note = f"Query {empty} has no allowed key: its weights and its output are 0."
    _compare_mended(learner, Q, K, V, mask, note=note)


@mended_attention.probe
def equal_sizes_with_which_wrong_mends_run(rng):
    n = 4
    yield tuple(_inputs(rng, n, n, n, n, lead=(n,)))
    # a batch of another size: who indexes with this mask gets an error, whatever comes after
    yield (*_inputs(rng, n, n, n, n, lead=(n + 1,)), _mask_with_empty_row(rng, n))
    yield (*_inputs(rng, n, n, n, n, lead=(n,)), _mask(rng, n, n, n))
    yield (*_inputs(rng, 3, 5, 2, 4, lead=(1,)), _mask(rng, 3, 5))


# --- additive attention ---

additive_attention = Question("additive_attention", section="Step 2: compare", forbid=READY_MADE)


def _additive_inputs(rng, L_q, L_k, d_q, d_k, d_v, d_a, lead=()):
    Q, K = rng.normal(size=(*lead, L_q, d_q)), rng.normal(size=(*lead, L_k, d_k))
    W_q, W_k = rng.normal(size=(d_q, d_a)), rng.normal(size=(d_k, d_a))
    V = rng.normal(scale=1.5, size=(*lead, L_k, d_v))
    return [Q, K, V, W_q, W_k, rng.normal(scale=1.5, size=d_a)]


def _call_additive(learner, arguments):
    return expect_tuple(learner.call("additive_attention", *arguments), ("output", "weights"))


def _compare_additive(learner, arguments, note, **options):
    output, weights = _call_additive(learner, arguments)
    right_output, right_weights = more.additive_attention(*arguments)
    expect_close(weights, right_weights, "weights", note=note, **options)
    expect_close(output, right_output, "output", note=note, **options)


@additive_attention.check(points=0.5)
def weights_are_the_softmax_of_the_additive_scores(learner, rng):
    L_q, L_k, width, d_v, d_a = _sizes(rng, 5)
    for queries in (L_q, L_k):
        arguments = _additive_inputs(rng, queries, L_k, width, width, d_v, d_a)
        note = f"There are {queries} queries and {L_k} keys."
        _, weights = _call_additive(learner, arguments)
        expect_close(weights, more.additive_attention(*arguments)[1], "weights", note=note)


@additive_attention.check(points=0.5)
def additive_output_is_the_weighted_average_of_the_values(learner, rng):
    L_q, L_k, width, d_v = _sizes(rng, 4)
    arguments = _additive_inputs(rng, L_q, L_k, width, width, d_v, 1)
    note = f"There are {L_k} keys, and values of width {d_v}. W_q and W_k have one column."
    output, _ = _call_additive(learner, arguments)
    expect_close(output, more.additive_attention(*arguments)[0], "output", note=note)


@additive_attention.check(points=0.25)
def queries_and_keys_may_have_different_widths(learner, rng):
    L_q, L_k, d_q, d_k, d_v, d_a = _sizes(rng, 6)
    arguments = _additive_inputs(rng, L_q, L_k, d_q, d_k, d_v, d_a)
    _compare_additive(learner, arguments, f"Queries have width {d_q}, keys have width {d_k}.")


@additive_attention.check(points=0.5)
def additive_attention_takes_any_number_of_leading_axes(learner, rng):
    L_q, L_k, width, d_v, d_a = _sizes(rng, 5)
    for lead, many in (((2,), "three"), ((2, 3), "four")):
        arguments = _additive_inputs(rng, L_q, L_k, width, width, d_v, d_a, lead=lead)
        _compare_additive(learner, arguments, f"Q, K and V have {many} axes.")


@additive_attention.check(points=0.25)
def large_additive_scores_give_finite_weights(learner, rng):
    L_q, L_k, width, d_v = _sizes(rng, 4)
    arguments = _additive_inputs(rng, L_q, L_k, width, width, d_v, 2)
    arguments[5] = np.array([2000.0, 1.0])
    arguments[3][:, 0], arguments[4][:, 0] = 0.0, 0.0
    arguments[0][:, 0] = arguments[1][:, 0] = 1.0
    arguments[3][0, 0] = arguments[4][0, 0] = 2.0  # tanh(4) times 2000 in every score
    _compare_additive(learner, arguments, "Every score is near 2,000.", rtol=5e-3, atol=2e-3)


@additive_attention.probe
def equal_sizes_of_additive_attention(rng):
    n = 4
    yield tuple(_additive_inputs(rng, n, n, n, n, n, n))
    yield tuple(_additive_inputs(rng, n, n, n, n, n, n, lead=(n,)))


# --- the backward pass ---

attention_backward = Question(
    "attention_backward", section="The backward pass by hand", forbid=READY_MADE
)
GRADIENTS = ("dQ", "dK", "dV")


def _backward_inputs(rng, L_q, L_k, d_k, d_v, lead=(), mask=None):
    """Draw a gradient of the output, Q, K, V, and the weights that belong to them."""
    Q, K, V = _inputs(rng, L_q, L_k, d_k, d_v, lead=lead)
    output, weights = oracle.scaled_dot_product_attention(Q, K, V, mask)
    return [rng.normal(size=output.shape), Q, K, V, weights]


def _compare_backward(learner, arguments, note, only=GRADIENTS):
    got = expect_tuple(learner.call("attention_backward", *arguments), GRADIENTS)
    right = oracle.attention_backward(*arguments)
    for name, gradient, wanted in zip(GRADIENTS, got, right, strict=True):
        if name in only:
            expect_close(gradient, wanted, name, atol=1e-5, note=note)


def _compare_gradient(learner, rng, name):
    L_q, L_k, d_v = _sizes(rng, 3)
    for queries in (L_q, L_k):
        note = f"There are {queries} queries and {L_k} keys of width 1, and values of width {d_v}."
        arguments = _backward_inputs(rng, queries, L_k, 1, d_v)
        _compare_backward(learner, arguments, note, only=(name,))


@attention_backward.check(points=0.5)
def gradient_of_the_values_is_right(learner, rng):
    _compare_gradient(learner, rng, "dV")


@attention_backward.check(points=0.5)
def gradient_of_queries_of_width_1_is_right(learner, rng):
    _compare_gradient(learner, rng, "dQ")


@attention_backward.check(points=0.5)
def gradient_of_keys_of_width_1_is_right(learner, rng):
    _compare_gradient(learner, rng, "dK")


@attention_backward.check(points=0.5)
def the_scale_enters_the_gradients(learner, rng):
    L_q, L_k, d_k, d_v = _sizes(rng, 4)
    note = f"Queries and keys have width {d_k}."
    _compare_backward(learner, _backward_inputs(rng, L_q, L_k, d_k, d_v), note)


@attention_backward.check(points=0.25)
def gradients_of_leading_axes_are_separate(learner, rng):
    L_q, L_k, d_v = _sizes(rng, 3)
    for lead, many in (((2,), "three"), ((2, 3), "four")):
        arguments = _backward_inputs(rng, L_q, L_k, 1, d_v, lead=lead)
        _compare_backward(learner, arguments, f"The arrays have {many} axes.")


@attention_backward.check(points=0.5)
def masked_keys_and_empty_rows_get_gradient_zero(learner, rng):
    L_q, L_k, d_v = _sizes(rng, 3)
    mask = _mask(rng, L_q, L_k)
    empty = int(rng.integers(L_q))
    mask[empty] = False
    arguments = _backward_inputs(rng, L_q, L_k, 1, d_v, mask=mask)
    note = f"The weights come from a mask: some are 0, and all those of query {empty} are."
    _compare_backward(learner, arguments, note)


@attention_backward.check(points=0.25)
def the_arrays_of_the_backward_pass_are_left_unchanged(learner, rng):
    L_q, L_k, d_v = _sizes(rng, 3)
    arguments = _backward_inputs(rng, L_q, L_k, 1, d_v)
    outcome = learner.run("attention_backward", *arguments)
    dQ, _, dV = expect_tuple(outcome["value"], GRADIENTS)
    right = oracle.attention_backward(*arguments)
    expect_close(dQ, right[0], "dQ")
    expect_close(dV, right[2], "dV")
    names = ["doutput", "Q", "K", "V", "weights"]
    expect_unchanged(outcome["arguments"], arguments, names)


@attention_backward.probe
def equal_sizes_of_the_backward_pass(rng):
    n = 4
    yield tuple(_backward_inputs(rng, n, n, n, n))
    yield tuple(_backward_inputs(rng, n, n, n, n, lead=(n,)))
    yield tuple(_backward_inputs(rng, n, n, n, n, lead=(n, n)))


# --- PyTorch: what the two modules share ---

READY_MADE_IN_TORCH = (
    *(name for name in READY_MADE if name != "torch"),
    ".MultiheadAttention",
    ".multi_head_attention_forward",
    ".scaled_dot_product_attention",
    ".TransformerEncoderLayer",
    "torch.nn.attention",
    "torch.ops",
)
PROJECTIONS = ("W_q", "W_k", "W_v")


def _new_module(learner, name, *sizes):
    module = learner.call(name, *sizes)
    called = f"{name}({', '.join(map(str, sizes))})"
    expect(
        isinstance(module, Handle),
        f"{called} gave a value of type {type(module).__name__}; expected an nn.Module.",
    )
    return module


def _matrices(rng, d_model, d_k, d_v):
    """Draw W_q, W_k and W_v as they are used in x @ W."""
    return [rng.normal(size=(d_model, width)) / 2 for width in (d_k, d_k, d_v)]


def _load(learner, module, matrices, biases=True):
    """Set a module's weights, and its biases (if it has any) to 0; return what did not fit."""
    import torch

    state = {}
    for name, W in zip(PROJECTIONS, matrices, strict=True):
        state[f"{name}.weight"] = torch.from_numpy(W.T.copy())
        if biases:
            state[f"{name}.bias"] = torch.zeros(W.shape[1], dtype=torch.float64)
    try:
        return learner.method(module, "load_state_dict", state, strict=False)
    except LearnerError as error:
        pattern = r"mismatch for (\w+\.weight).*?model is torch.Size\(\[(.*?)\]\)"
        found = re.search(pattern, str(error), re.DOTALL)
        if found is None or found[1] not in state:
            raise
        wanted = tuple(state[found[1]].shape)
        sizes = "d_model, d_k, d_v = " + ", ".join(
            str(n) for n in (matrices[0].shape[0], matrices[1].shape[1], matrices[2].shape[1])
        )
        raise Failed(
            f"{found[1]} has shape ({found[2]}); expected {wanted}. Here {sizes}."
        ) from None


def _run_module(learner, module, x, mask=None, upstream=None, dtype="float32"):
    """Run a module on arrays; return (output, weights) and the gradients by name."""
    import torch

    arguments = [torch.from_numpy(x).to(getattr(torch, dtype))]
    if mask is not None:
        arguments.append(torch.from_numpy(mask))
    if upstream is not None:
        upstream = [torch.from_numpy(upstream).to(getattr(torch, dtype)), None]
    found = learner.step(module, *arguments, upstream=upstream)
    result = expect_tuple(found["output"], ("output", "weights"))
    return result, {"x": found["input_gradients"][0], **found["gradients"]}


def _compare_module(learner, module, x, matrices, mask=None, note="", **options):
    (output, weights), _ = _run_module(learner, module, x, mask, **options)
    _compare_self_attention((output, weights), x, matrices, mask, note=note)


def _compare_self_attention(result, x, matrices, mask=None, **options):
    right_output, right_weights = more.self_attention(x, *matrices, mask)
    expect_close(result[1], right_weights, "weights", **{"rtol": 1e-3, "atol": 1e-5, **options})
    expect_close(result[0], right_output, "output", **{"rtol": 1e-3, "atol": 1e-5, **options})


def _compare_gradients(gradients, doutput, x, matrices, mask=None, note=""):
    names = ["x", *(f"{name}.weight" for name in PROJECTIONS)]
    dx, *dW = more.self_attention_backward(doutput, x, *matrices, mask)
    for name, wanted in zip(names, [dx, *(W.T for W in dW)], strict=True):
        gradient = gradients.get(name)
        expect(
            gradient is not None,
            f"After the backward pass {name} has no gradient: nothing that depends on it "
            "reaches the output.",
        )
        what = f"the gradient of {name}"
        expect_close(gradient, wanted, what, rtol=1e-3, atol=1e-4, note=note)


SelfAttention = Question("SelfAttention", section="The torch twin", forbid=READY_MADE_IN_TORCH)


@SelfAttention.check(points=0.25)
def three_projections_without_bias_are_all_its_parameters(learner, rng):
    sizes = _sizes(rng, 3)
    module = _new_module(learner, "SelfAttention", *sizes)
    extra, missing = _load(learner, module, _matrices(rng, *sizes), biases=False)
    expect(
        not missing,
        f"There is no parameter {_names(missing)}. Expected are W_q.weight, W_k.weight and "
        f"W_v.weight, as three nn.Linear give them; found instead: {_names(extra) or 'none'}.",
    )
    expect(
        not extra, f"Besides the three weights the module has {_names(extra)}, which is too much."
    )


@SelfAttention.check(points=0.5)
def module_gives_the_right_output_and_weights(learner, rng):
    L, d_model, d_k, d_v = _sizes(rng, 4)
    for lead in ((), (2,), (2, 3)):
        module = _new_module(learner, "SelfAttention", d_model, d_k, d_v)
        matrices = _matrices(rng, d_model, d_k, d_v)
        _load(learner, module, matrices)
        x = rng.normal(size=(*lead, L, d_model))
        note = f"x has shape {x.shape}, d_k is {d_k}, d_v is {d_v}; the weights are set to known "
        _compare_module(learner, module, x, matrices, note=note + "values.")


@SelfAttention.check(points=0.25)
def module_keeps_masked_keys_out(learner, rng):
    B, L, d_model = _sizes(rng, 3)
    module = _new_module(learner, "SelfAttention", d_model, 1, 1)
    matrices = _matrices(rng, d_model, 1, 1)
    _load(learner, module, matrices)
    x = rng.normal(size=(B, L, d_model))
    for shape in ((L, L), (B, 1, L), (B, L, L)):
        note = f"The mask has shape {shape}, the scores {(B, L, L)}."
        _compare_module(learner, module, x, matrices, _mask(rng, *shape), note=note)


@SelfAttention.check(points=0.25)
def module_gives_zeros_and_finite_gradients_where_no_key_is_allowed(learner, rng):
    L, d_model = _sizes(rng, 2)
    module = _new_module(learner, "SelfAttention", d_model, 1, 1)
    matrices = _matrices(rng, d_model, 1, 1)
    _load(learner, module, matrices)
    x, doutput = rng.normal(size=(2, L, d_model)), rng.normal(size=(2, L, 1))
    mask = _mask(rng, L, L)
    empty = int(rng.integers(L))
    mask[empty] = False
    note = f"Query {empty} has no allowed key."
    result, gradients = _run_module(learner, module, x, mask, doutput)
    _compare_self_attention(result, x, matrices, mask, note=note)
    _compare_gradients(gradients, doutput, x, matrices, mask, note=note)


@SelfAttention.check(points=0.5)
def gradients_reach_every_projection(learner, rng):
    L, d_model = _sizes(rng, 2)
    module = _new_module(learner, "SelfAttention", d_model, 1, 1)
    matrices = _matrices(rng, d_model, 1, 1)
    _load(learner, module, matrices)
    x, doutput = rng.normal(size=(2, L, d_model)), rng.normal(size=(2, L, 1))
    _, gradients = _run_module(learner, module, x, upstream=doutput)
    _compare_gradients(gradients, doutput, x, matrices)


@SelfAttention.check(points=0.25)
def module_works_in_double_and_half_precision(learner, rng):
    import torch

    L, d_model = _sizes(rng, 2)
    for method, dtype, close in (
        ("half", "float16", {"rtol": 2e-2, "atol": 5e-3}),
        ("double", "float64", {"rtol": 1e-6, "atol": 1e-8}),
    ):
        module = _new_module(learner, "SelfAttention", d_model, 1, 1)
        learner.method(module, method)
        matrices = [W.astype(np.float16).astype(float) for W in _matrices(rng, d_model, 1, 1)]
        _load(learner, module, matrices)
        x = rng.normal(size=(2, L, d_model)).astype(np.float16).astype(float)
        for mask in (None, _mask(rng, L, L)):
            with_mask = "without a mask" if mask is None else "with a mask"
            note = f"After module.{method}(), with x in {dtype}, {with_mask}."
            result, _ = _run_module(learner, module, x, mask, dtype=dtype)
            for name, tensor in zip(("output", "weights"), result, strict=True):
                got = getattr(tensor, "dtype", None)
                fine = got is getattr(torch, dtype)
                expect(fine, f"{name} comes in {str(got).removeprefix('torch.')}. {note}")
            _compare_self_attention(result, x, matrices, mask, note=note, **close)


# --- a PyTorch module to mend ---

MendedSelfAttention = Question(
    "MendedSelfAttention",
    section="How it goes wrong",
    forbid=(*READY_MADE_IN_TORCH, "SelfAttention"),
)


def _mended_module(learner, rng, d_model, d_k, d_v):
    module = _new_module(learner, "MendedSelfAttention", d_model, d_k, d_v)
    matrices = _matrices(rng, d_model, d_k, d_v)
    _load(learner, module, matrices)
    return module, matrices


@MendedSelfAttention.check(points=0.5)
def mended_module_gives_the_right_output_and_weights(learner, rng):
    B, L, d_model, d_k, d_v = _sizes(rng, 5)
    module, matrices = _mended_module(learner, rng, d_model, d_k, d_v)
    x = rng.normal(size=(B, L, d_model))
    note = f"x has shape {x.shape}, d_k is {d_k}, d_v is {d_v}; there is no mask."
    _compare_module(learner, module, x, matrices, note=note)


@MendedSelfAttention.check(points=0.5)
def mended_module_keeps_masked_keys_out(learner, rng):
    B, L, d_model, d_v = _sizes(rng, 4)
    module, matrices = _mended_module(learner, rng, d_model, 1, d_v)
    x = rng.normal(size=(B, L, d_model))
    for shape in ((L, L), (B, 1, L), (B, L, L)):
        note = f"The mask has shape {shape}, the scores {(B, L, L)}."
        _compare_module(learner, module, x, matrices, _mask(rng, *shape), note=note)


@MendedSelfAttention.check(points=0.5)
def gradients_reach_every_projection_of_the_mended_module(learner, rng):
    L, d_model, d_v = _sizes(rng, 3)
    module, matrices = _mended_module(learner, rng, d_model, 1, d_v)
    x, doutput = rng.normal(size=(2, L, d_model)), rng.normal(size=(2, L, d_v))
    _, gradients = _run_module(learner, module, x, upstream=doutput)
    _compare_gradients(gradients, doutput, x, matrices, note="There is no mask.")


def _names(names):
    return ", ".join(names)


# --- inputs and comparisons ---


def _sizes(rng, count):
    """Draw different sizes, so that no axis can be taken for another."""
    return tuple(int(n) for n in 3 + rng.permutation(count))


def _steps(rng, n, m):
    """Draw rows of different multiples of 1/4 from 0 up: no row is constant, all are exact."""
    return rng.permuted(np.tile(np.arange(m), (n, 1)), axis=1) / 4


def _inputs(rng, L_q, L_k, d_k, d_v, lead=()):
    shapes = (L_q, d_k), (L_k, d_k), (L_k, d_v)
    return [rng.normal(scale=1.5, size=(*lead, *shape)) for shape in shapes]


def _mask(rng, *shape):
    """Draw a mask in which each row allows at least two keys, and not all."""
    mask = rng.random(shape) < 0.5
    L_k = shape[-1]
    for row in mask.reshape(-1, L_k):
        first, second, third = rng.permutation(L_k)[:3]
        row[first] = row[second] = True
        row[third] = False
    return mask


def _mask_with_empty_row(rng, n):
    mask = _mask(rng, n, n)
    mask[rng.integers(n)] = False
    return mask


def _list(row):
    return ", ".join(str(j) for j in np.flatnonzero(row))


def _levels(Q, level):
    return ", ".join(f"{q * level:,.0f}" for q in Q[:, 0])


def _call(learner, *arguments):
    result = learner.call("scaled_dot_product_attention", *arguments)
    return expect_tuple(result, ("output", "weights"))


def _compare(learner, Q, K, V, mask=None, **options):
    arguments = (Q, K, V) if mask is None else (Q, K, V, mask)
    result = learner.call("scaled_dot_product_attention", *arguments)
    _compare_result(result, Q, K, V, mask, **options)


def _compare_result(result, Q, K, V, mask=None, **options):
    output, weights = expect_tuple(result, ("output", "weights"))
    right_output, right_weights = oracle.scaled_dot_product_attention(Q, K, V, mask)
    expect_close(weights, right_weights, "weights", **options)
    expect_close(output, right_output, "output", **options)
