"""Checks of exercise 4: masks in NumPy, attention under them, and PyTorch's conventions.

A mask is compared entry by entry. Where a check is about one property, the input is such that
another fault does not show: numbers instead of booleans, say, cost one check and no more.
"""

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

from ..oracle import exercise_masking as oracle
from . import LIBRARY

PADDING = "Padding"
CAUSAL = "Causal"
BOTH = "Both at once"
CACHE = "Causal with a cache"
WINDOW = "Sliding window"
PACKED = "Packed sequences"
PREFIX = "Prefix"
WHOLE = "The whole function"
POOL = "The mean over real tokens"
OPPOSITE = "True means opposite things"
CONVERTERS = "Converters"

READY_MADE = (*LIBRARY, "jax", "scipy", "sklearn", "tensorflow", "torch")


# --- predictions ---

predicted_counts = Question("predicted_counts", section="The masks, one by one")


def _count_predicted(learner, place):
    return expect_numbers(learner.value("predicted_counts"), "abc")[place]


@predicted_counts.check(points=0.25)
def new_queries_see_what_is_cached_and_what_came_before_them(learner, rng):
    got = _count_predicted(learner, 0)
    expect(
        got == oracle.causal_mask_rect(2, 6).sum(),
        f"(a) There are not {got:g} pairs. At which of the 6 positions does the first new query "
        "stand? Count the keys up to there, then those of the second.",
    )


@predicted_counts.check(points=0.25)
def a_window_counts_the_token_itself(learner, rng):
    got = _count_predicted(learner, 1)
    expect(
        got == oracle.sliding_window_mask(6, 3).sum(),
        f"(b) There are not {got:g} pairs. How many keys does the last query see, itself "
        "included? And how many do the first two queries see?",
    )


@predicted_counts.check(points=0.5)
def packed_documents_do_not_see_each_other(learner, rng):
    got = _count_predicted(learner, 2)
    expect(
        got == oracle.packed_causal_mask([[0, 0, 0, 0, 1, 1, -1, -1]]).sum(),
        f"(c) There are not {got:g} pairs. Draw the 8 by 8 table: each document is a triangle of "
        "its own, and padding has none.",
    )


predicted_weights = Question("predicted_weights", section="Two conventions in one library")


def _weight_predicted(learner, place, right, message):
    got = expect_numbers(learner.value("predicted_weights"), "abc")[place]
    away = abs(got - right)
    near = 0.003 <= away < 0.006  # two decimals, rounded or cut off
    expect(not near, f"({'abc'[place]}) {got:g} is near: give three decimals.")
    expect(away < 0.003, message.format(f"{got:g}"))


def _weights_of(scores, mask=None):
    """Return the weights of one query of width 1, by real attention."""
    Q, K = np.ones((1, 1)), np.array(scores)[:, None]
    return oracle.masked_attention(Q, K, K, mask)[1][0]


_GIVEN = np.array([True, True, False])  # for cats, chase and mice, whose scores are all 0


@predicted_weights.check(points=0.25)
def one_interface_reads_true_as_may_attend(learner, rng):
    message = (
        "(a) The weight of cats is not {}. Does `F.scaled_dot_product_attention` keep the keys "
        "with True, or drop them? Those that stay share the weight."
    )
    _weight_predicted(learner, 0, _weights_of([0.0, 0.0, 0.0], _GIVEN)[0], message)


@predicted_weights.check(points=0.25)
def the_other_interface_reads_true_as_ignore(learner, rng):
    message = (
        "(b) The weight of mice is not {}. What does True stand for in the `key_padding_mask` "
        "of `nn.MultiheadAttention`?"
    )
    _weight_predicted(learner, 1, _weights_of([0.0, 0.0, 0.0], ~_GIVEN)[2], message)


@predicted_weights.check(points=0.5)
def numbers_are_added_to_the_scores(learner, rng):
    message = (
        "(c) The weight of mice is not {}. A mask of numbers is added to the scores. Write down "
        "the three sums and take their softmax."
    )
    _weight_predicted(learner, 2, _weights_of(0.0 + _GIVEN)[2], message)


# --- padding ---

padding_mask = Question("padding_mask", section=PADDING, forbid=READY_MADE)


@padding_mask.check(points=0.5)
def real_tokens_are_kept_and_padding_is_not(learner, rng):
    L, more = _sizes(rng, 2)
    for B in (more, L):
        lengths = rng.integers(1, L, size=B)
        lengths[:2] = rng.permutation(L - 1)[:2] + 1  # unequal
        got = learner.call("padding_mask", lengths, L)
        if np.size(got) == B * L:  # the axes have a check of their own
            got = np.reshape(got, (B, 1, 1, L))
        note = f"The lengths are {lengths.tolist()}, and max_len is {L}."
        _compare_mask(got, oracle.padding_mask(lengths, L), note)


@padding_mask.check(points=0.25)
def the_mask_has_an_axis_for_heads_and_one_for_queries(learner, rng):
    L, more = _sizes(rng, 2)
    for B in (more, L):
        lengths = 1 + rng.permutation(max(B, L))[:B] % (L - 1)
        got = learner.call("padding_mask", lengths, L)
        note = f"The lengths are {lengths.tolist()}, and max_len is {L}."
        _compare_mask(got, oracle.padding_mask(lengths, L), note, boolean=True)


@padding_mask.check(points=0.25)
def lengths_may_be_a_list_and_sequences_empty_or_full(learner, rng):
    L = int(rng.integers(4, 8))
    lengths = rng.permutation([0, L, L - 2]).tolist()
    got = learner.call("padding_mask", lengths, L)
    if np.size(got) == 3 * L:
        got = np.reshape(got, (3, 1, 1, L))
    note = f"The lengths are the list {lengths}, and max_len is {L}."
    _compare_mask(got, oracle.padding_mask(lengths, L), note)


@padding_mask.probe
def as_many_sequences_as_tokens(rng):
    yield (np.array([3, 1, 4, 2]), 4)
    yield (np.array([1, 2]), 5)
    yield ([2, 0, 3], 3)


# --- causal ---

causal_mask = Question("causal_mask", section=CAUSAL, forbid=READY_MADE)


@causal_mask.check(points=0.25)
def the_past_is_visible_and_the_future_is_not(learner, rng):
    L = int(rng.integers(4, 8))
    others = ~np.eye(L, dtype=bool)  # a token's own place has a check of its own
    note = f"L is {L}; here the diagonal does not count. Rows are queries, columns are keys."
    _compare_mask(learner.call("causal_mask", L), oracle.causal_mask(L), note, where=others)


@causal_mask.check(points=0.25)
def each_token_sees_itself_and_the_result_is_boolean(learner, rng):
    for L in (1, 2):
        got = learner.call("causal_mask", L)
        _compare_mask(got, oracle.causal_mask(L), f"L is {L}.", boolean=True)


@causal_mask.probe
def some_lengths(rng):
    yield (5,)
    yield (3,)


# --- causal with a cache ---

causal_mask_rect = Question("causal_mask_rect", section=CACHE, forbid=READY_MADE)


def _compare_rect(learner, L_q, L_k, **options):
    note = f"L_q is {L_q}, L_k is {L_k}: the first query stands at position {L_k - L_q}."
    got = learner.call("causal_mask_rect", L_q, L_k)
    _compare_mask(got, oracle.causal_mask_rect(L_q, L_k), note, **options)


@causal_mask_rect.check(points=0.5)
def the_queries_are_the_last_positions(learner, rng):
    L_q, more = int(rng.integers(3, 6)), int(rng.integers(2, 5))
    _compare_rect(learner, L_q, L_q + more)
    _compare_rect(learner, 1, L_q)
    _compare_rect(learner, 2, 2 + more)


@causal_mask_rect.check(points=0.5)
def without_a_cache_it_is_the_causal_mask(learner, rng):
    L = int(rng.integers(3, 7))
    _compare_rect(learner, L, L, boolean=True)


@causal_mask_rect.probe
def some_rectangles(rng):
    yield (2, 3)
    yield (3, 6)
    yield (2, 7)
    yield (1, 1)


# --- both ---

combine_masks = Question("combine_masks", section=BOTH, forbid=READY_MADE)


def _compare_combined(learner, keep, causal, note, **options):
    got = learner.call("combine_masks", keep, causal)
    _compare_mask(got, oracle.combine_masks(keep, causal), note, **options)


@combine_masks.check(points=0.5)
def a_key_has_to_be_real_and_not_in_the_future(learner, rng):
    L, more = _sizes(rng, 2)
    for B in (more, L):
        lengths = 1 + rng.permutation(max(B, L))[:B] % L
        keep = np.arange(L) < lengths[:, None]
        note = f"keep has shape {(B, L)}; the lengths are {lengths.tolist()}."
        _compare_combined(learner, keep, oracle.causal_mask(L), note)


@combine_masks.check(points=0.5)
def any_pattern_of_padding_and_any_second_mask_will_do(learner, rng):
    B, L = _sizes(rng, 2)
    missing = rng.permutation(L - 1)[:1] + 1
    keep = np.tile(np.arange(L) >= missing, (B, 1))
    causal = oracle.sliding_window_mask(L, 2)
    note = f"keep[0] is {keep[0].tolist()}; each query sees itself and one token before it."
    _compare_combined(learner, keep, causal, note, boolean=True)


@combine_masks.probe
def more_pairs_of_masks(rng):
    for B, L in ((4, 4), (1, 5), (3, 5)):
        keep = rng.random((B, L)) < 0.6
        keep[:, 0] = False
        yield (keep, oracle.causal_mask(L))
        yield (~keep, rng.random((L, L)) < 0.5)


# --- sliding window ---

sliding_window_mask = Question("sliding_window_mask", section=WINDOW, forbid=READY_MADE)


def _compare_window(learner, L, window, **options):
    note = f"L is {L}, the window is {window}."
    got = learner.call("sliding_window_mask", L, window)
    _compare_mask(got, oracle.sliding_window_mask(L, window), note, **options)


@sliding_window_mask.check(points=0.5)
def a_token_sees_itself_and_those_just_before_it(learner, rng):
    window = int(rng.integers(2, 5))
    _compare_window(learner, window + int(rng.integers(3, 6)), window)


@sliding_window_mask.check(points=0.25)
def a_window_of_one_is_the_token_itself(learner, rng):
    _compare_window(learner, int(rng.integers(3, 7)), 1, boolean=True)


@sliding_window_mask.check(points=0.25)
def a_wide_window_gives_the_causal_mask(learner, rng):
    L = int(rng.integers(3, 7))
    _compare_window(learner, L, L)
    _compare_window(learner, L, L + int(rng.integers(1, 4)))


@sliding_window_mask.probe
def some_windows(rng):
    yield (7, 2)
    yield (8, 3)
    yield (9, 4)
    yield (6, 5)


# --- pooling ---

masked_mean_pool = Question("masked_mean_pool", section=POOL, forbid=READY_MADE)


def _compare_pooled(learner, x, keep, note):
    got = learner.call("masked_mean_pool", x, keep)
    expect_close(got, oracle.masked_mean_pool(x, keep), "result", note=note)


def _right_padded(rng, B, L):
    """Draw sequences of unequal lengths, none of them empty and none full: (B, L)."""
    lengths = 1 + np.arange(B) % (L - 1)
    return np.arange(L) < rng.permutation(lengths)[:, None]


@masked_mean_pool.check(points=0.5)
def the_mean_runs_over_the_kept_tokens(learner, rng):
    L, D, more = _sizes(rng, 3)
    for B in (more, L):
        keep = _right_padded(rng, B, L)
        note = f"x has shape {(B, L, D)}; kept: {keep.sum(axis=1).tolist()} tokens."
        _compare_pooled(learner, rng.normal(loc=1.0, size=(B, L, D)), keep, note)


@masked_mean_pool.check(points=0.25)
def kept_tokens_may_stand_anywhere(learner, rng):
    B, L, D = _sizes(rng, 3)
    keep = ~_right_padded(rng, B, L)
    keep[0] = np.arange(L) % 2 == 1
    note = f"keep[0] is {keep[0].tolist()}, keep[1] is {keep[1].tolist()}."
    _compare_pooled(learner, rng.normal(loc=1.0, size=(B, L, D)), keep, note)


@masked_mean_pool.check(points=0.25)
def a_sequence_without_kept_token_gives_zeros(learner, rng):
    B, L, D = _sizes(rng, 3)
    keep = _right_padded(rng, B, L)
    empty = int(rng.integers(B))
    keep[empty] = False
    x = rng.normal(loc=1.0, size=(B, L, D))
    got = expect_array(learner.call("masked_mean_pool", x, keep), (B, D), "result")
    note = f"Sequence {empty} keeps no token."
    expect_close(got[empty], np.zeros(D), f"result[{empty}]", note=note)
    others = np.arange(B) != empty
    expect(
        np.isfinite(got[others]).all() and got[others].any(axis=1).all(),
        f"{note} The others do, and their means are neither 0 nor infinite.",
    )


@masked_mean_pool.check(points=0.25)
def what_stands_at_padding_does_not_count(learner, rng):
    B, L, D = _sizes(rng, 3)
    keep = _right_padded(rng, B, L)
    x = rng.normal(loc=1.0, size=(B, L, D))
    before = expect_array(learner.call("masked_mean_pool", x, keep), (B, D), "result")
    for value in (np.nan, np.inf, 1e30):
        filled = np.where(keep[..., None], x, value)
        got = learner.call("masked_mean_pool", filled, keep)
        note = f"Each entry at padding was replaced by {value:g}, which must change nothing."
        expect_close(got, before, "result", note=note)
    moved = np.where(keep[..., None], x + 1.0, x)
    got = expect_array(learner.call("masked_mean_pool", moved, keep), (B, D), "result")
    expect(
        (np.abs(got - before) > 0.1).all(),
        "1 was added to every entry of the kept tokens, and the result is the same as before.",
    )


@masked_mean_pool.check(points=0.25)
def pooling_leaves_its_arguments_unchanged(learner, rng):
    B, L, D = _sizes(rng, 3)
    x, keep = rng.normal(loc=1.0, size=(B, L, D)), _right_padded(rng, B, L)
    outcome = learner.run("masked_mean_pool", x, keep)
    expect_close(outcome["value"], oracle.masked_mean_pool(x, keep), "result")
    expect_unchanged(outcome["arguments"], [x, keep], ["x", "keep"])


@masked_mean_pool.probe
def equal_sizes_with_which_wrong_axes_run(rng):
    x = rng.normal(size=(4, 4, 4))
    yield (x, rng.random((4, 4)) < 0.6)
    yield (x[:1], np.array([[False, True, True, False]]))
    yield (x, np.zeros((4, 4), dtype=bool))
    yield (x, np.ones((4, 4), dtype=bool))


# --- attention under a mask ---

masked_attention = Question("masked_attention", section=WHOLE, forbid=READY_MADE)


@masked_attention.check(points=0.5)
def a_mask_of_true_lets_a_query_attend(learner, rng):
    L_q, L_k, d_v = _sizes(rng, 3)
    for rows, columns in ((L_q, L_k), (L_k, L_k)):
        Q, K, V = _inputs(rng, rows, columns, 1, d_v)
        mask = _mask(rng, rows, columns)
        note = f"mask[0] is {mask[0].tolist()}; there are {rows} queries and {columns} keys."
        _compare_attention(learner, Q, K, V, mask, note=note)


@masked_attention.check(points=0.5)
def causal_queries_are_the_last_positions(learner, rng):
    L_q, more, d_v = int(rng.integers(2, 5)), int(rng.integers(2, 5)), 3
    for rows, columns in ((L_q, L_q), (L_q, L_q + more), (1, L_q + more)):
        Q, K, V = _inputs(rng, rows, columns, 1, d_v)
        note = f"causal=True, {rows} queries, {columns} keys, no mask."
        _compare_attention(learner, Q, K, V, causal=True, note=note)


@masked_attention.check(points=0.5)
def causal_and_a_mask_act_together(learner, rng):
    B, L_q, more, d_v = _sizes(rng, 4)
    for L_k in (L_q, L_q + more):
        Q, K, V = _inputs(rng, L_q, L_k, 1, d_v, lead=(B,))
        mask = np.arange(L_k) < L_k - 1 - np.arange(B)[:, None, None] % 2  # (B, 1, L_k)
        note = f"causal=True, and mask[0, 0] is {mask[0, 0].tolist()}."
        _compare_attention(learner, Q, K, V, mask, causal=True, note=note)


@masked_attention.check(points=0.25)
def without_masks_it_is_attention_over_any_leading_axes(learner, rng):
    B, h, *sizes = _sizes(rng, 6)
    for lead, many in (((), "two"), ((B,), "three"), ((B, h), "four")):
        Q, K, V = _inputs(rng, *sizes, lead=lead)
        note = f"The inputs have {many} axes; Q has shape {Q.shape}. There is no mask."
        _compare_attention(learner, Q, K, V, note=note)
    Q, K, V = _inputs(rng, *sizes, lead=(B, h))
    mask = _mask(rng, B, 1, 1, sizes[1])
    note = f"The mask has shape {mask.shape}, the scores {(B, h, *sizes[:2])}."
    _compare_attention(learner, Q, K, V, mask, note=note)


@masked_attention.check(points=0.5)
def queries_without_allowed_key_get_zeros(learner, rng):
    B, L, d_v = _sizes(rng, 3)
    for dtype, rtol, atol in ((np.float64, 1e-4, 1e-6), (np.float16, 3e-2, 3e-3)):
        name = np.dtype(dtype).name
        Q, K, V = (a.astype(dtype) for a in _inputs(rng, L, L, 1, d_v, lead=(B,)))
        mask = np.tile(np.arange(L) > 0, (B, 1))[:, None, :]  # padding on the left
        note = f"{name}, causal=True, and key 0 is padding: query 0 may attend to nothing."
        options = {"note": note, "rtol": rtol, "atol": atol}
        _compare_attention(learner, Q, K, V, mask, causal=True, **options)
        mask = np.broadcast_to(_mask(rng, B, 1, L), (B, L, L)).copy()
        mask[0, 1] = False
        options["note"] = f"{name}, and mask[0, 1] is False throughout."
        _compare_attention(learner, Q, K, V, mask, **options)


@masked_attention.check(points=0.25)
def masked_keys_have_no_weight_whatever_the_scores(learner, rng):
    L_q, L_k, d_v = _sizes(rng, 3)
    allowed = _mask(rng, L_k)
    V, Q = rng.normal(size=(L_k, d_v)), rng.integers(1, 3, size=(L_q, 1)) * 1.0
    steps = rng.permutation(L_k) / 4
    cases = [
        (-20_000.0 - steps, 0.0, "Every allowed score is below -19,000, every masked score is 0."),
        (-(2.0**32) - 2.0**12 * steps, 0.0, "Every allowed score is below -4,000,000,000."),
        (steps, 2.0**16, "Every masked score is above 60,000, every allowed score below 10."),
    ]
    for open_scores, hidden, note in cases:
        K = np.where(allowed, open_scores, hidden)[:, None]
        _compare_attention(learner, Q, K, V, np.tile(allowed, (L_q, 1)), note=note, rtol=5e-3)


@masked_attention.check(points=0.25)
def a_mask_that_would_enlarge_the_scores_raises_valueerror(learner, rng):
    B, L, d_v = _sizes(rng, 3)
    Q, K, V = _inputs(rng, L, L, 2, d_v, lead=(B,))
    mask = oracle.padding_mask(1 + np.arange(B) % L, L)
    try:
        learner.call("masked_attention", Q, K, V, mask)
    except LearnerError as error:
        expect(
            error.details.get("type") == "ValueError",
            f"A mask of shape {mask.shape} with scores of shape {(B, L, L)} raises "
            f"{error.details.get('type')}; expected ValueError.",
        )
        _compare_attention(learner, Q, K, V, mask[:, 0], note=f"mask has shape {(B, 1, L)}.")
        return
    raise Failed(
        f"Q has shape {Q.shape} and the mask {mask.shape}: together they have shape "
        f"{(B, B, L, L)}, more than the scores {(B, L, L)}. Expected ValueError, but there was "
        "no error."
    )


@masked_attention.check(points=0.25)
def attention_leaves_its_arguments_unchanged(learner, rng):
    L, d_v = _sizes(rng, 2)
    arguments = [*_inputs(rng, L, L, 1, d_v), _mask(rng, L, L)]
    for causal in (False, True):
        outcome = learner.run("masked_attention", *arguments, causal=causal)
        expect_unchanged(outcome["arguments"], arguments, ["Q", "K", "V", "mask"])
    Q, K, V = arguments[:3]
    _compare_attention(learner, Q, K, V, note="There is no mask.")


@masked_attention.probe
def equal_sizes_and_masks_of_all_kinds(rng):
    n = 4
    Q, K, V = _inputs(rng, n, n, n, n, lead=(n,))
    yield (Q, K, V)
    yield (Q, K, V, _mask(rng, n, n))
    yield (Q, K, V, _mask(rng, n, n, n), True)
    yield (Q, K, V, _mask(rng, n, 1, n))
    yield (Q, K, V, None, True)
    yield (Q[:, :2], K, V, None, True)
    yield (*_inputs(rng, 3, 5, 2, 4), _mask(rng, 3, 5), True)
    high = np.array([[0.0], [2.0**16], [0.25]])
    yield (np.ones((1, 1)), high, rng.normal(size=(3, 2)), np.array([[True, False, True]]))


# --- packed sequences ---

packed_causal_mask = Question("packed_causal_mask", section=PACKED, forbid=READY_MADE)


def _compare_packed(learner, segments, note, **options):
    got = learner.call("packed_causal_mask", segments)
    _compare_mask(got, oracle.packed_causal_mask(segments), note, **options)


def _segments(rng, B, L, numbers, padding=0):
    """Cut each row into three documents, and leave some padding at its end: (B, L)."""
    segments = np.full((B, L), -1)
    for row in segments:
        first, second = np.sort(rng.permutation(L - padding - 1)[:2] + 1)
        row[:first], row[first:second], row[second : L - padding] = numbers
    return segments


@packed_causal_mask.check(points=0.5)
def a_token_sees_the_past_of_its_own_document(learner, rng):
    L = int(rng.integers(5, 9))
    for B in (2, L):
        segments = _segments(rng, B, L, (0, 1, 2))
        _compare_packed(learner, segments, f"segments[0] is {segments[0].tolist()}.")


@packed_causal_mask.check(points=0.5)
def padding_neither_sees_nor_is_seen(learner, rng):
    B, L = 3, int(rng.integers(6, 9))
    segments = _segments(rng, B, L, (0, 1, 2), padding=2)
    note = f"segments[0] is {segments[0].tolist()}; -1 marks padding."
    _compare_packed(learner, segments, note, boolean=True)


@packed_causal_mask.check(points=0.5)
def documents_may_have_any_numbers(learner, rng):
    B, L = 3, int(rng.integers(5, 8))
    segments = _segments(rng, B, L, (7, 0, 900))
    _compare_packed(learner, segments, f"segments[0] is {segments[0].tolist()}.")


@packed_causal_mask.probe
def more_rows_of_documents(rng):
    yield (_segments(rng, 6, 6, (0, 1, 2)),)
    yield (_segments(rng, 1, 6, (2, 1, 3), padding=1),)
    yield (np.array([[-1, -1, 5, 5, 6], [0, 0, 0, 1, -1]]),)


# --- prefix ---

prefix_lm_mask = Question("prefix_lm_mask", section=PREFIX, forbid=READY_MADE)


def _compare_prefix(learner, prefixes, L, **options):
    note = f"The prefixes have lengths {prefixes.tolist()}, and L is {L}."
    got = learner.call("prefix_lm_mask", prefixes, L)
    _compare_mask(got, oracle.prefix_lm_mask(prefixes, L), note, **options)


@prefix_lm_mask.check(points=0.5)
def the_prefix_is_seen_by_all_and_the_rest_is_causal(learner, rng):
    L = int(rng.integers(6, 9))
    for B in (3, L):
        prefixes = 2 + (rng.permutation(B) % (L - 4))
        _compare_prefix(learner, prefixes, L)


@prefix_lm_mask.check(points=0.5)
def a_prefix_may_be_empty_or_everything(learner, rng):
    L = int(rng.integers(4, 7))
    _compare_prefix(learner, rng.permutation([0, L, 0]), L, boolean=True)


@prefix_lm_mask.probe
def more_prefixes(rng):
    yield (np.array([1, 4, 2, 3, 5, 0]), 6)
    yield (np.array([3]), 5)


# --- converters ---

mask_for = Question("mask_for", section=CONVERTERS, forbid=(*LIBRARY, "jax", "tensorflow"))


def _convert(learner, interface, mask, num_heads=1):
    import torch

    return learner.call("mask_for", interface, torch.from_numpy(mask), num_heads=num_heads)


def _compare_converted(learner, interface, mask, num_heads=1, note=""):
    got = _convert(learner, interface, mask, num_heads)
    right = oracle.mask_for(interface, mask, num_heads)
    what = f'mask_for("{interface}", mask, num_heads={num_heads})'
    expect(hasattr(got, "detach"), f"{what} is no tensor.")
    if interface == "float":
        dtype = str(got.dtype).removeprefix("torch.")
        expect(dtype == "float32", f"{what} holds {dtype} values; expected float32.")
        expect_close(got, right, what, note=note)
    else:
        _compare_mask(got, right, note, what=what, boolean=True)


@mask_for.check(points=0.5)
def the_key_padding_mask_says_what_multihead_attention_ignores(learner, rng):
    L, more = _sizes(rng, 2)
    for B in (more, L):
        mask = oracle.padding_mask(1 + rng.permutation(B) % (L - 1), L)
        note = f"mask[0, 0, 0] is {mask[0, 0, 0].tolist()}, and True in it means: may attend."
        _compare_converted(learner, "key_padding_mask", mask, 2, note)
    for lengths, L_k in (([L - 1], L), ([1, 0, 1], 1)):  # axes of length 1 that have to stay
        mask = oracle.padding_mask(lengths, L_k)
        _compare_converted(learner, "key_padding_mask", mask, 2, f"mask has shape {mask.shape}.")


@mask_for.check(points=0.75)
def the_attn_mask_has_the_heads_of_a_sequence_together(learner, rng):
    many, *shape, n = _sizes(rng, 5)
    one_query = many, shape[0], 1, shape[2]
    for B, h, L_q, L_k in ((many, *shape), (2, 2, n, n), (1, *shape), one_query):
        mask = _mask(rng, B, 1, L_q, L_k)
        note = f"mask has shape {mask.shape}, and True in it means: may attend."
        _compare_converted(learner, "attn_mask", mask, h, note)


@mask_for.check(points=0.75)
def fused_attention_takes_booleans_or_numbers_to_add(learner, rng):
    B, L_q, L_k = _sizes(rng, 3)
    mask = _mask(rng, B, 1, L_q, L_k)
    note = f"mask[0, 0, 0] is {mask[0, 0, 0].tolist()}, and True in it means: may attend."
    _compare_converted(learner, "sdpa", mask, 2, note)
    _compare_converted(learner, "float", mask, 2, note)


@mask_for.probe
def each_interface(rng):
    import torch

    for interface in ("float", "sdpa", "attn_mask"):
        yield (interface, torch.from_numpy(_mask(rng, 2, 1, 3, 4)), 3)
        yield (interface, torch.from_numpy(_mask(rng, 1, 1, 3, 4)), 3)
    for lengths, L in (([1, 3, 2], 4), ([2], 3), ([1, 1], 1)):
        yield ("key_padding_mask", torch.from_numpy(oracle.padding_mask(lengths, L)), 2)


# --- a decoder's mask to mend ---

mended_decoder_mask = Question(
    "mended_decoder_mask",
    section=BOTH,
    forbid=(*READY_MADE, "combine_masks", "packed_causal_mask", "padding_mask"),
)


@mended_decoder_mask.check(points=0.75)
def no_position_sees_a_later_token(learner, rng):
    B, L = _sizes(rng, 2)
    tokens = rng.integers(1, 50, size=(B, L))
    got = learner.call("mended_decoder_mask", tokens, 0)
    note = f"There is no padding; the {L} tokens of a row are all real."
    _compare_mask(got, oracle.decoder_mask(tokens, 0), note)


@mended_decoder_mask.check(points=0.75)
def padding_is_hidden_on_whichever_side_it_stands(learner, rng):
    B, L = _sizes(rng, 2)
    pad_id = int(rng.integers(1, 6))
    tokens = rng.integers(6, 50, size=(B, L))
    for b, row in enumerate(tokens):
        many = 1 + b % 2
        row[: many if b % 2 == 0 else 0] = pad_id
        row[L - many if b % 2 == 1 else L :] = pad_id
    got = learner.call("mended_decoder_mask", tokens, pad_id)
    past = np.tril(np.ones((L, L), dtype=bool))  # the future has a check of its own
    note = (
        f"pad_id is {pad_id}; tokens[0] is {tokens[0].tolist()}, tokens[1] is "
        f"{tokens[1].tolist()}. (This check looks only at keys up to the query's place.)"
    )
    _compare_mask(got, oracle.decoder_mask(tokens, pad_id), note, where=past)


@mended_decoder_mask.probe
def rows_of_tokens(rng):
    tokens = rng.integers(1, 9, size=(4, 4))
    tokens[0, :2] = tokens[1, 3:] = tokens[2, 1] = 0
    yield (tokens, 0)
    yield (tokens[:1], 0)


# --- attention with a cache to mend ---

mended_cached_attention = Question(
    "mended_cached_attention",
    section=CACHE,
    forbid=(*READY_MADE, "masked_attention", "causal_mask_rect"),
)


def _compare_cached(learner, Q, K, V, **options):
    output, weights = expect_tuple(
        learner.call("mended_cached_attention", Q, K, V), ("output", "weights")
    )
    right_output, right_weights = oracle.masked_attention(Q, K, V, causal=True)
    expect_close(weights, right_weights, "weights", **options)
    expect_close(output, right_output, "output", **options)


@mended_cached_attention.check(points=0.75)
def new_queries_read_the_whole_cache(learner, rng):
    L_q, more, d_k, d_v = _sizes(rng, 4)
    for lead, rows in (((), L_q), ((2,), 1)):
        Q, K, V = _inputs(rng, rows, rows + more, d_k, d_v, lead=lead)
        note = f"There are {rows} new queries and {rows + more} keys."
        _compare_cached(learner, Q, K, V, note=note)


@mended_cached_attention.check(points=0.75)
def later_keys_get_nothing_however_low_the_allowed_scores(learner, rng):
    L, d_v = _sizes(rng, 2)
    Q, V = rng.integers(1, 3, size=(L, 1)) * 1.0, rng.normal(size=(L, d_v))
    for low, step, where in ((-20_000.0, 1.0, "below -19,000"), (-(2.0**32), 2.0**12, "-4e9")):
        # the later a key, the higher its score: what leaks, leaks from the future
        K = low + step * np.arange(L)[:, None] / 4
        note = f"There are {L} queries and {L} keys; every score is {where} or lower."
        _compare_cached(learner, Q, K, V, note=note, rtol=5e-3)


@mended_cached_attention.probe
def with_and_without_a_cache(rng):
    yield tuple(_inputs(rng, 4, 4, 4, 4))
    yield tuple(_inputs(rng, 2, 4, 3, 2))
    yield tuple(_inputs(rng, 1, 5, 3, 2, lead=(3,)))
    yield tuple(_inputs(rng, 2, 3, 3, 2, lead=(2, 2)))


# --- a module to mend ---

MendedSentenceEncoder = Question(
    "MendedSentenceEncoder", section=OPPOSITE, forbid=(*LIBRARY, "jax", "tensorflow")
)


def _new_encoder(learner, d_model, num_heads):
    module = learner.call("MendedSentenceEncoder", d_model, num_heads)
    expect(
        isinstance(module, Handle),
        f"MendedSentenceEncoder(d_model, num_heads) gives {type(module).__name__}; expected a "
        "module.",
    )
    return module


def _state(rng, d_model):
    """Draw the parameters of an ``nn.MultiheadAttention`` called ``attention``, in float64."""
    D = d_model
    shapes = {
        "attention.in_proj_weight": (3 * D, D),
        "attention.in_proj_bias": (3 * D,),
        "attention.out_proj.weight": (D, D),
        "attention.out_proj.bias": (D,),
    }
    return {name: rng.normal(scale=0.6, size=shape) for name, shape in shapes.items()}


def _compare_vectors(learner, x, keep, state, num_heads, note, factors=(1,)):
    """Compare the vectors of sentences with the right ones, times any one of ``factors``."""
    import torch

    module = _new_encoder(learner, x.shape[-1], num_heads)
    tensors = {name: torch.from_numpy(value).float() for name, value in state.items()}
    arguments = torch.from_numpy(x).float(), torch.from_numpy(keep)
    try:
        found = learner.step(module, *arguments, state=tensors)
    except LearnerError as error:
        expect(
            "state_dict" not in str(error),
            "The parameters of `attention`, an `nn.MultiheadAttention`, cannot be set. Has it "
            "another name or another kind now, or are there further parameters?",
        )
        raise
    right = oracle.sentence_vectors(x, keep, state, num_heads)
    got = expect_array(found["output"], right.shape, "result")
    options = {"rtol": 1e-3, "atol": 1e-4}
    if not any(np.allclose(got, factor * right, **options) for factor in factors):
        expect_close(got, right, "result", note=note, **options)


@MendedSentenceEncoder.check(points=0.5)
def its_attention_reads_real_tokens_alone(learner, rng):
    B, L, h, D = 3, 6, 2, 4
    keep = np.arange(L) < 4
    x = rng.normal(size=(B, L, D))
    away = rng.normal(scale=3.0, size=(B, D))
    mean = x[:, keep].mean(axis=1)
    x[:, 4], x[:, 5] = mean + away, mean - away  # the mean over all tokens is that of the kept
    state = _state(rng, D)
    state["attention.in_proj_weight"][:D] = 0.0  # all queries are the same
    note = f"keep[0] is {keep.tolist()}. All queries are the same, to look at the attention alone."
    factors = 1, keep.sum() / L, keep.sum()  # what a sum is divided by has a check of its own
    _compare_vectors(learner, x, np.tile(keep, (B, 1)), state, h, note, factors)


@MendedSentenceEncoder.check(points=0.5)
def its_mean_runs_over_real_tokens_alone(learner, rng):
    B, L, h, D = 3, 5, 2, 6
    keep = _right_padded(rng, B, L)
    state = _state(rng, D)
    state["attention.out_proj.weight"][:] = 0.0
    state["attention.out_proj.bias"][:] = 0.0
    note = f"keep[0] is {keep[0].tolist()}. The attention adds 0 here, to look at the mean alone."
    _compare_vectors(learner, rng.normal(size=(B, L, D)), keep, state, h, note)


@MendedSentenceEncoder.check(points=0.5)
def attention_and_mean_work_together(learner, rng):
    B, L, h, D = 4, 5, 3, 6
    keep = _right_padded(rng, B, L)
    keep[0] = np.arange(L) >= 2
    keep[1] = True
    note = f"keep[0] is {keep[0].tolist()}, and keep[1] is True throughout."
    _compare_vectors(learner, rng.normal(size=(B, L, D)), keep, _state(rng, D), h, note)


# --- inputs and comparisons ---


def _sizes(rng, count):
    """Draw different sizes, so that no axis can be taken for another."""
    return tuple(int(n) for n in 3 + rng.permutation(count))


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


def _compare_mask(got, want, note="", *, what="mask", boolean=False, where=True):
    """Compare a mask entry by entry, and say which row differs.

    Without ``boolean``, the numbers 0 and 1 count as well. Only entries in ``where`` count.
    """
    values = expect_array(got, want.shape, what)
    dtype = str(got.dtype).removeprefix("torch.")
    wrong = ((values != want) & where).any(axis=-1)
    if wrong.any():
        row = tuple(int(i) for i in np.argwhere(wrong)[0])
        shown = values[row].astype(bool) if np.isin(values[row], (0, 1)).all() else values[row]
        place = f"{what}[{', '.join(map(str, row))}]"
        raise Failed(
            f"{place} is {shown.tolist()}; expected {want[row].tolist()}. "
            f"({wrong.sum()} of {wrong.size} rows differ.) {note}".rstrip()
        )
    if boolean and dtype != "bool":
        raise Failed(
            f"{what} has the right entries, as {dtype} numbers; expected booleans, as `np.where`, "
            "`&` and `~` need them."
        )


def _compare_attention(learner, Q, K, V, mask=None, causal=False, **options):
    arguments = (Q, K, V) if mask is None else (Q, K, V, mask)
    keywords = {"causal": True} if causal else {}
    result = learner.call("masked_attention", *arguments, **keywords)
    output, weights = expect_tuple(result, ("output", "weights"))
    right_output, right_weights = oracle.masked_attention(Q, K, V, mask, causal)
    expect_close(weights, right_weights, "weights", **options)
    expect_close(output, right_output, "output", **options)
