"""Checks of exercise 2: softmax and scaled dot-product attention.

The scores of the hard cases are small integers times powers of two, or quarters, so that
an answer that computes in float32 sees the same scores. Where a check is not about the scale,
d_k = 1: a wrong scale then costs its own checks and no others.
"""

import numpy as np

from autograder.checks import Question, expect_close, expect_tuple, expect_unchanged

from ..oracle import single_head as oracle

READY_MADE = ("attention", "jax", "scipy.special", "sklearn", "tensorflow", "torch")

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
def square_matrices(rng):
    yield (rng.normal(size=(4, 4)),)


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
    yield tuple(_inputs(rng, n, n, n, n, lead=(n,)))
    yield (*_inputs(rng, 1, 1, 2, 2), np.ones((1, 1), dtype=bool))


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
