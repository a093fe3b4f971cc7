"""Checks of exercise 7: attention that fits in memory.

One property a check. Where memory is asked for, the bound stands in the question, and lies between
what right answers need and what one (L, L) matrix takes, even of booleans.
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

from ..oracle import exercise_efficient_attention as oracle
from . import LIBRARY

MEASURED = "The problem, measured"
ANY_NUMBER = "Any number of chunks"
CHUNKED = "Chunked attention"
BACKWARD = "Its backward pass, by recomputation"
QUERY_CHUNKS = "Query chunks and causality"
WINDOW = "A sliding window"
BLOCKS = "Block-sparse patterns"
TOPK = "Top-k"
LINEAR = "Linear attention"
RECURRENCE = "A recurrence again"
CACHE = "The key-value cache"
GROUPED = "Grouped-query heads"

READY_MADE = (*LIBRARY, "jax", "scipy", "sklearn", "tensorflow", "torch")
MEMORY = (*READY_MADE, "tracemalloc", "_tracemalloc")  # for questions that measure memory

LONG = 768  # tokens where memory is measured: a matrix of booleans takes 0.56 MiB
QKV = ["Q", "K", "V"]


# --- predictions ---


def _compare_number(learner, name, place, right, what, hint, slips=None):
    """Compare one part; ``slips`` holds numbers that have a hint of their own."""
    got = expect_numbers(learner.value(name), "abc")[place]
    hint = (slips or {}).get(got, hint)
    if "MiB" in what and np.isclose(got, right[place] * 2**20 / 10**6, rtol=5e-3):
        hint = "Did you divide by 10^6? A MiB has 2^20 bytes."
    said = f"({'abc'[place]}) {got:g} is not {what}. {hint}"
    expect(np.isclose(got, right[place], rtol=1e-9), said)


predicted_score_memory = Question("predicted_score_memory", section=MEASURED, forbid=READY_MADE)


@predicted_score_memory.check(points=0.25)
def the_memory_of_all_scores_is_right(learner, rng):
    hint = "How many scores has one head of one sequence, how many such heads are there in all?"
    what = "the MiB of all scores"
    right = oracle.score_mebibytes()
    _compare_number(learner, "predicted_score_memory", 0, right, what, hint)


@predicted_score_memory.check(points=0.25)
def the_memory_for_twice_the_length_is_right(learner, rng):
    hint = "If there are twice as many queries and twice as many keys, how many pairs are there?"
    what = "the MiB for twice as many tokens"
    right = oracle.score_mebibytes()
    _compare_number(learner, "predicted_score_memory", 1, right, what, hint)


@predicted_score_memory.check(points=0.25)
def the_memory_of_one_chunk_is_right(learner, rng):
    hint = "One chunk has 128 keys. How many queries look at it?"
    what = "the MiB of the scores of one chunk"
    right = oracle.score_mebibytes()
    _compare_number(learner, "predicted_score_memory", 2, right, what, hint)


# --- chunked attention ---

chunked_attention = Question("chunked_attention", section=CHUNKED, forbid=MEMORY)


def _qkv(rng, *lead, queries=None, keys=None, scale=1.0):
    """Draw Q, K, V with sizes that all differ, and V with a mean that is not 0."""
    d_k, d_v = 4 + rng.permutation(2)
    queries = int(rng.integers(6, 8)) if queries is None else queries
    keys = queries + 3 if keys is None else keys
    q = rng.normal(size=(*lead, queries, d_k)) * scale
    k = rng.normal(size=(*lead, keys, d_k)) * 1.5
    return [q, k, rng.normal(size=(*lead, keys, d_v)) + 0.5]


def _call_in_chunks(learner, name, arguments, start):
    """Call an answer that goes over chunks of keys; say it if one of these is empty."""
    try:
        return learner.call(name, *arguments)
    except LearnerError as error:
        if "zero-size array" not in str(error):
            raise
        sizes = f"There are {arguments[1].shape[-2]} keys, chunk_size is {arguments[3]}."
        raise Failed(f"{sizes} One of your chunks has no keys. Which values has {start}?") from None


def _compare_chunked(learner, arguments, chunk_size, mask=None, note="", **options):
    passed = [*arguments, chunk_size, *(() if mask is None else (mask,))]
    got = _call_in_chunks(learner, "chunked_attention", passed, "the start of a chunk")
    right = oracle.attention(*arguments, mask)
    shapes = f"Q has shape {arguments[0].shape}, K {arguments[1].shape}, chunk_size is {chunk_size}"
    shapes += "." if mask is None else f", mask has shape {mask.shape}."
    expect_close(got, right, "The output", note=f"{shapes} {note}".strip(), **options)


@chunked_attention.check(points=0.5)
def the_output_is_that_of_the_whole_softmax(learner, rng):
    for chunks in (1, 3, 4):
        arguments = _qkv(rng, keys=4 * chunks)
        _compare_chunked(learner, arguments, 4)


@chunked_attention.check(points=0.5)
def every_chunk_size_gives_the_same(learner, rng):
    for keys, chunk_size in ((11, 4), (7, 5), (5, 16), (6, 1)):
        _compare_chunked(learner, _qkv(rng, keys=keys), chunk_size)


def _with_scores(rng, levels):
    """Draw Q, K, V with 4 features such that the score of key j is about ``levels[j]``."""
    n = len(levels)
    q, k = rng.normal(size=(3, 4)), rng.normal(size=(n, 4))
    q[:, 0] = 2.0  # the root of d_k
    k[:, 0] = levels
    return [q, k, rng.normal(size=(n, 5)) + 0.5]


def _near(rng, base, keys):
    """Draw Q, K, V with scores near a number; far out they are equal, for the sake of float32."""
    if abs(base) < 1e6:
        return _with_scores(rng, base + rng.normal(size=keys))
    q, k, v = _with_scores(rng, np.full(keys, base))
    q[:, 1:] = 0
    return [q, k, v]


@chunked_attention.check(points=0.5)
def scores_of_any_size_give_finite_weights(learner, rng):
    for base in (1e4, 0.0, -1e4, -6e4, -1e12):
        arguments = _near(rng, base, 8)
        note = f"All scores are near {base:g}."
        _compare_chunked(learner, arguments, 4, note=note, rtol=0.03, atol=0.03)
    levels = np.array([-1e4, -9e3, 10, 12, 1e4, 1e4 - 1, 3e3, 1e4 + 1])
    for way, ordered in (("grow from -10000 to", levels), ("fall from", levels[::-1])):
        note = f"The scores {way} 10000."
        arguments = _with_scores(rng, ordered)
        _compare_chunked(learner, arguments, 2, note=note, rtol=0.03, atol=0.03)
    arguments = _with_scores(rng, 1e4 + rng.normal(size=8))
    arguments[0][:, 0] = 2.0, -2.0, 0.002
    note = "The scores of query 0 are near 10000, those of query 1 near -10000."
    _compare_chunked(learner, arguments, 4, note=note, rtol=0.03, atol=0.03)


def _random_mask(rng, shape, always=0):
    mask = rng.random(shape) < 0.5
    mask[..., always] = True
    mask[..., -1] = False
    return mask


@chunked_attention.check(points=0.5)
def hidden_keys_get_no_weight(learner, rng):
    arguments = _qkv(rng, keys=12)
    for chunk_size in (12, 3):
        mask = _random_mask(rng, (len(arguments[0]), 12))
        mask[:, [0, 3, 6, 9]] = True  # each chunk has a key for everybody
        note = "Each query may see a key of each chunk."
        _compare_chunked(learner, arguments, chunk_size, mask, note)
    for base in (-6e4, -1e12):
        arguments = _near(rng, base, 12)
        note = f"All allowed scores are near {base:g}."
        for mask in (_random_mask(rng, (3, 12)), oracle.visible(3, 12)):
            _compare_chunked(learner, arguments, 4, mask, note, rtol=0.03, atol=0.03)


@chunked_attention.check(points=0.5)
def leading_axes_and_masks_that_broadcast_will_do(learner, rng):
    for lead in ((2,), (2, 3)):
        arguments = _qkv(rng, *lead, keys=8)
        _compare_chunked(learner, arguments, 4)
        L_q = arguments[0].shape[-2]
        for shape in ((8,), (1, 8), (2, *(1 for _ in lead[1:]), 1, 8), (*lead, L_q, 8)):
            mask = _random_mask(rng, shape)
            mask[..., 4] = True
            _compare_chunked(learner, arguments, 4, mask)
        column = np.arange(L_q)[:, None] < L_q - 1  # (L_q, 1)
        got = learner.call("chunked_attention", *arguments, 4, column)
        right = oracle.attention(*arguments, column)
        got = expect_array(got, right.shape, "The output")[..., :-1, :]
        note = f"mask has shape {column.shape} and hides all keys from the last query only."
        expect_close(got, right[..., :-1, :], "output[..., :-1, :]", note=note)


@chunked_attention.check(points=0.5)
def a_query_may_see_no_key_of_the_first_chunks(learner, rng):
    for base, error in ((0.0, 5e-3), (-2e3, 5e-3), (-6e4, 0.03)):
        arguments = _with_scores(rng, base + rng.normal(size=12))
        mask = np.ones((3, 12), dtype=bool)
        mask[0, :3], mask[1, :7] = False, False
        note = "Query 0 sees no key of the first chunk, query 1 none of the first two"
        note += "." if base == 0 else f"; all scores are near {base:g}."
        _compare_chunked(learner, arguments, 3, mask, note, rtol=error, atol=error)


@chunked_attention.check(points=0.25)
def a_query_without_any_key_gives_zeros(learner, rng):
    arguments = _qkv(rng, keys=8)
    L_q = len(arguments[0])
    mask = np.ones((L_q, 8), dtype=bool)
    mask[1] = False
    note = "Query 1 may see no key: its output is 0."
    _compare_chunked(learner, arguments, 4, mask, note)


def _allowed(numbers):
    """Return the bytes of so many float64 numbers, and 8 KiB for what is small."""
    return 8 * numbers + 2**13


def _expect_memory(peak, numbers, note=""):
    mib = [n / 2**20 for n in (peak, _allowed(numbers), 8 * LONG**2, LONG**2)]
    expect(
        peak <= _allowed(numbers),
        f"For L = {LONG} your function holds {mib[0]:.2f} MiB at its peak; allowed are "
        f"{mib[1]:.2f} MiB. One (L, L) matrix takes {mib[2]:.2f} MiB, of booleans "
        f"{mib[3]:.2f} MiB. {note}".strip(),
    )


def _long_problem(rng):
    return [rng.normal(size=(LONG, d)) for d in (1, 1, 2)]


def _dense(q, k, v, mask=True):
    """Return the output, the weights and the log-sum-exp of all pairs at once."""
    scores = np.where(mask, q @ k.T / np.sqrt(q.shape[-1]), -np.inf)
    powers = np.exp(scores)  # of long problems: their scores are small
    total = powers.sum(axis=-1, keepdims=True)
    return powers / total @ v, powers / total, np.log(total[:, 0])


CHUNK = 8  # where memory is measured
CHUNKED_NUMBERS = 8 * LONG * (CHUNK + 1 + 2)


@chunked_attention.check(points=0.5)
def memory_grows_with_the_length_and_not_with_its_square(learner, rng):
    arguments = _long_problem(rng)
    mask = np.ones((1, LONG), dtype=bool)
    mask[0, 5:9] = False
    for more in ((), (mask,)):
        got, peak = learner.measure("chunked_attention", *arguments, CHUNK, *more)
        note = f"chunk_size is {CHUNK}, "
        note += f"mask has shape {mask.shape}." if more else "there is no mask."
        expect_close(got, _dense(*arguments, *more)[0], "The output", note=note)
        _expect_memory(peak, CHUNKED_NUMBERS, note)


@chunked_attention.check(points=0.25)
def the_arrays_that_are_passed_stay_as_they_are(learner, rng):
    arguments = _qkv(rng, keys=8)
    mask = _random_mask(rng, (len(arguments[0]), 8))
    arguments = [*arguments, 4, mask]
    outcome = learner.run("chunked_attention", *arguments)
    expect_array(outcome["value"], (len(mask), arguments[2].shape[-1]), "The output")
    expect(np.abs(outcome["value"]).max() > 0, "The output is 0 everywhere.")
    expect_unchanged(outcome["arguments"], arguments, [*QKV, "chunk_size", "mask"])


@chunked_attention.probe
def chunks_and_masks(rng):
    yield (*_qkv(rng, keys=7), 3)
    yield (*_with_scores(rng, [900.0, 5, 1, 7, 2, 1500, 3, 1]), 3)
    arguments = _qkv(rng, 2, keys=8)
    for mask in (_random_mask(rng, (len(arguments[0][0]), 8)), _random_mask(rng, (2, 1, 8), 7)):
        mask[..., 0, :] = mask.ndim == 3
        yield (*arguments, 3, mask)


# --- debug: the running sum ---

mended_chunked_attention = Question(
    "mended_chunked_attention", section=ANY_NUMBER, forbid=(*READY_MADE, "chunked_attention")
)


def _compare_mended(learner, arguments, chunk_size, note, **options):
    got = _call_in_chunks(learner, "mended_chunked_attention", [*arguments, chunk_size], "`begin`")
    note = f"There are {len(arguments[1])} keys, chunk_size is {chunk_size}. {note}"
    right = oracle.attention(*arguments)
    expect_close(got, right, "The output", note=note, **options)


@mended_chunked_attention.check(points=0.5)
def chunks_of_growing_scores_are_joined(learner, rng):
    arguments = _with_scores(rng, [0.0, 0.3, 0.7, 1.2, 1.6, 2.2])
    _compare_mended(learner, arguments, 2, "The scores grow from chunk to chunk.")


@mended_chunked_attention.check(points=0.5)
def the_last_chunk_counts_too(learner, rng):
    for n, chunk_size in ((5, 3), (3, 7)):
        arguments = _with_scores(rng, 9.0 - np.arange(n) / 2)
        arguments[0][:, 1:] = 0
        _compare_mended(learner, arguments, chunk_size, "The first key has the largest score.")


@mended_chunked_attention.check(points=0.5)
def large_scores_stay_finite_in_the_mended_code(learner, rng):
    for levels in ([2000.0, 1999, 1998, 1997], [-2000.0, -2001, -2002, -2003]):
        arguments = _with_scores(rng, levels)
        arguments[0][:, 1:] = 0
        note = f"The scores are near {levels[0]:g}."
        _compare_mended(learner, arguments, 2, note, rtol=1e-3, atol=1e-3)


@mended_chunked_attention.probe
def growing_scores(rng):
    yield (*_qkv(rng, 2, keys=7), 3)
    yield (*_qkv(rng, keys=9), 3)


# --- the backward pass ---

chunked_attention_backward = Question("chunked_attention_backward", section=BACKWARD, forbid=MEMORY)
GRADIENTS = ("dQ", "dK", "dV")
SAVED = ["doutput", *QKV, "output", "logsumexp", "chunk_size"]


def _backward_problem(rng, qkv, chunk_size):
    output = oracle.attention(*qkv)
    doutput = rng.normal(size=output.shape) + 0.5
    return [doutput, *qkv, output, oracle.logsumexp(*qkv[:2]), chunk_size]


def _compare_backward(learner, arguments, only=GRADIENTS, note="", **options):
    got = expect_tuple(learner.call("chunked_attention_backward", *arguments), GRADIENTS)
    right = oracle.attention_backward(*arguments[:4])
    sizes = f"Q has shape {arguments[1].shape}, K {arguments[2].shape}, chunk_size is "
    note = f"{sizes}{arguments[-1]}. {note}".strip()
    options = {"rtol": 1e-3, "atol": 1e-5, **options}
    for name, array, wanted in zip(GRADIENTS, got, right, strict=True):
        if name in only:
            expect_close(array, wanted, name, note=note, **options)


@chunked_attention_backward.check(points=0.5)
def the_gradient_of_the_values_is_right(learner, rng):
    _compare_backward(learner, _backward_problem(rng, _qkv(rng, keys=12), 4), ("dV",))


@chunked_attention_backward.check(points=0.5)
def the_gradient_of_the_keys_is_right(learner, rng):
    note = "D is a sum over all keys, and each score is divided by the root of d_k."
    _compare_backward(learner, _backward_problem(rng, _qkv(rng, keys=12), 4), ("dK",), note)


@chunked_attention_backward.check(points=0.5)
def the_gradient_of_the_queries_is_right(learner, rng):
    note = "Each query looks at the keys of all chunks."
    _compare_backward(learner, _backward_problem(rng, _qkv(rng, keys=12), 4), ("dQ",), note)


@chunked_attention_backward.check(points=0.25)
def every_chunk_size_gives_the_same_gradients(learner, rng):
    for keys, chunk_size in ((11, 4), (5, 16)):
        arguments = _backward_problem(rng, _qkv(rng, keys=keys), chunk_size)
        _compare_backward(learner, arguments)


@chunked_attention_backward.check(points=0.25)
def large_scores_have_finite_gradients(learner, rng):
    q, k, v = _with_scores(rng, 2000.0 + rng.normal(size=8))
    q[:, 0] *= 30  # as large as the keys: else rounding is as large as a gradient of float32
    k[:, 0] /= 30
    arguments = _backward_problem(rng, [q, k, v], 4)
    options = {"rtol": 0.03, "atol": 0.03}
    _compare_backward(learner, arguments, note="The scores are near 2000.", **options)


@chunked_attention_backward.check(points=0.25)
def leading_axes_will_do_and_no_array_is_changed(learner, rng):
    for lead in ((2,), (2, 3)):
        arguments = _backward_problem(rng, _qkv(rng, *lead, keys=8), 4)
        _compare_backward(learner, arguments)
    outcome = learner.run("chunked_attention_backward", *arguments)
    expect_unchanged(outcome["arguments"], arguments, SAVED)


@chunked_attention_backward.check(points=0.5)
def memory_of_the_backward_pass_stays_small(learner, rng):
    q, k, v = _long_problem(rng)
    output, weights, logs = _dense(q, k, v)
    doutput = rng.normal(size=output.shape) + 0.5
    arguments = [doutput, q, k, v, output, logs, CHUNK]
    got, peak = learner.measure("chunked_attention_backward", *arguments)
    mean = (doutput * output).sum(axis=-1, keepdims=True)
    dscores = weights * (doutput @ v.T - mean) / np.sqrt(q.shape[-1])
    right = dscores @ k, dscores.T @ q, weights.T @ doutput
    for name, array, wanted in zip(GRADIENTS, expect_tuple(got, GRADIENTS), right, strict=True):
        expect_close(array, wanted, name, rtol=1e-3, atol=1e-4)
    _expect_memory(peak, CHUNKED_NUMBERS, f"chunk_size is {CHUNK}.")


@chunked_attention_backward.probe
def chunks_of_the_backward_pass(rng):
    yield tuple(_backward_problem(rng, _qkv(rng, keys=7), 3))
    yield tuple(_backward_problem(rng, _qkv(rng, 2, queries=7, keys=7), 3))


# --- query chunks ---

causal_attention_by_query_chunks = Question(
    "causal_attention_by_query_chunks", section=QUERY_CHUNKS, forbid=MEMORY
)


def _causal(rng, *lead, tokens):
    return _qkv(rng, *lead, queries=tokens, keys=tokens)


def _compare_causal(learner, arguments, chunk_size, note=""):
    got = learner.call("causal_attention_by_query_chunks", *arguments, chunk_size)
    right = oracle.attention(*arguments, oracle.visible(arguments[0].shape[-2]))
    note = f"Q has shape {arguments[0].shape}, chunk_size is {chunk_size}. {note}".strip()
    expect_close(got, right, "The output", note=note)


@causal_attention_by_query_chunks.check(points=0.25)
def one_chunk_is_causal(learner, rng):
    _compare_causal(learner, _causal(rng, tokens=7), 7)


@causal_attention_by_query_chunks.check(points=0.5)
def later_chunks_see_all_that_came_before(learner, rng):
    for tokens, chunk_size in ((8, 4), (9, 3), (5, 1)):
        _compare_causal(learner, _causal(rng, tokens=tokens), chunk_size)


@causal_attention_by_query_chunks.check(points=0.5)
def the_last_query_chunk_may_be_shorter(learner, rng):
    for tokens, chunk_size in ((7, 3), (5, 8)):
        _compare_causal(learner, _causal(rng, tokens=tokens), chunk_size)


@causal_attention_by_query_chunks.check(points=0.25)
def keys_after_the_chunk_are_not_touched(learner, rng):
    arguments = _causal(rng, tokens=6)
    right = oracle.attention(*arguments, oracle.visible(6))
    for array in arguments[1:]:
        array[3:] = np.nan
    got = learner.call("causal_attention_by_query_chunks", *arguments, 3)
    got = expect_array(got, right.shape, "The output")[:3]
    note = "All keys and values after the first chunk are NaN; these are the rows of that chunk."
    expect_close(got, right[:3], "output[:3]", note=note)


@causal_attention_by_query_chunks.check(points=0.25)
def leading_axes_of_the_query_chunks_will_do(learner, rng):
    for lead in ((4,), (2, 3)):
        arguments = [*_causal(rng, *lead, tokens=6), 3]
        _compare_causal(learner, arguments[:3], 3)
    outcome = learner.run("causal_attention_by_query_chunks", *arguments)
    expect_unchanged(outcome["arguments"], arguments, [*QKV, "chunk_size"])


@causal_attention_by_query_chunks.check(points=0.25)
def memory_is_that_of_one_query_chunk(learner, rng):
    arguments = _long_problem(rng)
    got, peak = learner.measure("causal_attention_by_query_chunks", *arguments, CHUNK)
    expect_close(got, _dense(*arguments, np.tri(LONG, dtype=bool))[0], "The output")
    _expect_memory(peak, CHUNKED_NUMBERS, f"chunk_size is {CHUNK}.")


@causal_attention_by_query_chunks.probe
def query_chunks(rng):
    yield (*_causal(rng, tokens=7), 3)
    yield (*_causal(rng, 2, tokens=6), 3)


# --- predict: what is skipped ---

predicted_chunks = Question("predicted_chunks", section=QUERY_CHUNKS, forbid=READY_MADE)


@predicted_chunks.check(points=0.25)
def the_number_of_skipped_chunks_is_right(learner, rng):
    hint = "How many chunks of keys lie wholly after query chunk 1, after 2, and so on?"
    what, right = "the number of pairs that are skipped", oracle.chunk_pairs()
    slips = {
        right[0] + right[1]: "You have counted the boxes on the diagonal too. Are they skipped?",
        (right[0] * 2 + right[1]) / 2: "Half of all pairs: are those on the diagonal half skipped?",
    }
    _compare_number(learner, "predicted_chunks", 0, right, what, hint, slips)


@predicted_chunks.check(points=0.25)
def the_number_of_chunks_with_a_mask_is_right(learner, rng):
    hint = "In a pair that needs a mask some keys are visible and some are not. Where is that so?"
    what, right = "the number of pairs that need a mask", oracle.chunk_pairs()
    _compare_number(learner, "predicted_chunks", 1, right, what, hint)


@predicted_chunks.check(points=0.25)
def the_number_for_longer_key_chunks_is_right(learner, rng):
    hint = "Two query chunks now lie beside one key chunk. When does each of them skip it?"
    what, right = "the number of pairs that are skipped", oracle.chunk_pairs()
    slips = {
        right[2] + right[1]: "You have counted the pairs that need a mask too. Are they skipped?",
        right[2] + right[1] / 2: "Half of all pairs: is a box that some query sees half skipped?",
    }
    _compare_number(learner, "predicted_chunks", 2, right, what, hint, slips)


# --- debug: a window in chunks ---

mended_window_attention = Question(
    "mended_window_attention",
    section=WINDOW,
    forbid=(*READY_MADE, "causal_attention_by_query_chunks"),
)


def _compare_window(learner, arguments, window, chunk_size, note=""):
    got = learner.call("mended_window_attention", *arguments, window, chunk_size)
    tokens = arguments[0].shape[-2]
    right = oracle.attention(*arguments, oracle.visible(tokens, window=window))
    note = f"Q has shape {arguments[0].shape}, window is {window}, chunk_size {chunk_size}. {note}"
    expect_close(got, right, "The output", note=note.strip())


@mended_window_attention.check(points=0.5)
def a_token_sees_as_many_as_the_window_says(learner, rng):
    for window in (3, 1):
        note = "The only chunk holds all tokens."
        _compare_window(learner, _causal(rng, tokens=7), window, 7, note)


@mended_window_attention.check(points=0.5)
def later_chunks_see_the_chunks_before(learner, rng):
    for tokens, chunk_size in ((8, 4), (7, 3)):
        note = "The window is longer than the sequence, so this is causal attention."
        _compare_window(learner, _causal(rng, tokens=tokens), 12, chunk_size, note)


@mended_window_attention.check(points=0.25)
def the_window_moves_on_with_the_chunks(learner, rng):
    for lead, window, chunk_size in (((), 2, 4), ((), 5, 3), ((2, 3), 3, 2)):
        _compare_window(learner, _causal(rng, *lead, tokens=9), window, chunk_size)


@mended_window_attention.probe
def windows_and_chunks(rng):
    yield (*_causal(rng, tokens=9), 3, 2)
    yield (*_causal(rng, tokens=9), 2, 4)


# --- a block-sparse mask ---

local_global_mask = Question("local_global_mask", section=BLOCKS, forbid=READY_MADE)


def _compare_blocks(learner, L, block, region, note):
    got = learner.call("local_global_mask", L, block)
    got = expect_array(got, (L, L), "The mask")
    right = oracle.local_global_mask(L, block)
    expect(np.isin(got, (0, 1)).all(), "The mask has entries other than True and False.")
    wrong = np.argwhere((got != right) & region)
    if len(wrong):
        i, j = wrong[0]
        said = "may" if right[i, j] else "may not"
        raise Failed(
            f"mask[{i}, {j}] is {bool(got[i, j])}: token {i} {said} see token {j} "
            f"(L is {L}, block {block}). {note}"
        )


def _blocks(L, block):
    place = np.arange(L) // block
    return place[:, None], place


@local_global_mask.check(points=0.25)
def within_its_block_a_token_sees_the_past(learner, rng):
    block = int(rng.integers(3, 6))
    i, j = _blocks(5 * block, block)
    _compare_blocks(learner, 5 * block, block, i == j, "They are in the same block.")


@local_global_mask.check(points=0.25)
def a_token_sees_the_whole_block_before(learner, rng):
    block = int(rng.integers(3, 6))
    i, j = _blocks(5 * block, block)
    note = "They are in neighboring blocks, neither of them the first."
    _compare_blocks(learner, 5 * block, block, (abs(i - j) == 1) & (j > 0), note)


@local_global_mask.check(points=0.25)
def everybody_sees_the_first_block(learner, rng):
    block = int(rng.integers(3, 6))
    i, j = _blocks(5 * block, block)
    note = "The second is in the first block."
    _compare_blocks(learner, 5 * block, block, (j == 0) & (i > 0), note)


@local_global_mask.check(points=0.25)
def all_other_blocks_are_hidden_and_the_result_is_boolean(learner, rng):
    block = int(rng.integers(3, 6))
    i, j = _blocks(5 * block, block)
    region = ((i - j > 1) & (j > 0)) | (j > i)
    _compare_blocks(learner, 5 * block, block, region, "They are far apart, or one is later.")
    got = learner.call("local_global_mask", 4 * block, block)
    kind = getattr(got, "dtype", type(got).__name__)
    expect(str(kind) == "bool", f"The mask is of type {kind}; expected is bool.")
    expect(got.any(), "The mask hides everything.")


@local_global_mask.check(points=0.25)
def the_last_block_may_be_shorter(learner, rng):
    for L, block in ((13, 4), (3, 5)):
        i, j = _blocks(L, block)
        _compare_blocks(learner, L, block, i == j, "They are in the same block.")
        note = "They are two blocks apart or more, and neither is in the first block."
        _compare_blocks(learner, L, block, (i - j > 1) & (j > 0), note)


@local_global_mask.probe
def masks_of_blocks(rng):
    yield (11, 2)
    yield (12, 3)


# --- top-k ---

topk_attention = Question("topk_attention", section=TOPK, forbid=READY_MADE)


def _compare_topk(learner, arguments, k, causal, note=""):
    more = () if causal else (False,)
    got = learner.call("topk_attention", *arguments, k, *more)
    mask = oracle.visible(arguments[0].shape[-2]) if causal else None
    right = oracle.attention(*arguments, mask, k=k)
    note = f"Q has shape {arguments[0].shape}, k is {k}, causal is {causal}. {note}".strip()
    expect_close(got, right, "The output", note=note)


@topk_attention.check(points=0.5)
def each_query_keeps_its_k_best_keys(learner, rng):
    for k in (1, 3):
        _compare_topk(learner, _qkv(rng), k, False)
        _compare_topk(learner, _causal(rng, tokens=7), k, False)


@topk_attention.check(points=0.5)
def causal_queries_choose_among_what_they_see(learner, rng):
    for k in (1, 2):
        arguments = _causal(rng, tokens=8)
        # later keys score higher, so that whoever looks at hidden keys takes those
        arguments[0][:, 0] = 1.0
        arguments[1][:, 0] = np.arange(8)
        _compare_topk(learner, arguments, k, True)


@topk_attention.check(points=0.25)
def where_there_are_fewer_than_k_keys_all_count(learner, rng):
    _compare_topk(learner, _causal(rng, tokens=5), 5, True, "Early tokens see fewer keys than k.")
    _compare_topk(learner, _causal(rng, tokens=5), 9, True, "There are fewer keys than k.")
    _compare_topk(learner, _qkv(rng, queries=5, keys=4), 9, False, "There are fewer keys than k.")


@topk_attention.check(points=0.25)
def leading_axes_of_top_k_will_do_and_nothing_is_changed(learner, rng):
    for lead in ((2,), (2, 3)):
        arguments = [*_qkv(rng, *lead), 3, False]
        _compare_topk(learner, arguments[:3], 3, False, "Each sequence has its own best keys.")
    outcome = learner.run("topk_attention", *arguments)
    expect_unchanged(outcome["arguments"], arguments, [*QKV, "k", "causal"])


@topk_attention.probe
def some_of_the_keys(rng):
    yield (*_causal(rng, tokens=7), 3)
    yield (*_qkv(rng, 2), 2, False)


# --- linear attention ---

linear_attention = Question("linear_attention", section=LINEAR, forbid=MEMORY)


def _compare_linear(learner, arguments, causal, note="", name="linear_attention"):
    more = (True,) if causal and name == "linear_attention" else ()
    got = learner.call(name, *arguments, *more)
    right = oracle.linear_attention(*arguments, causal)
    note = f"Q has shape {arguments[0].shape}, causal is {causal}. {note}".strip()
    expect_close(got, right, "The output", note=note)


def _positive(arguments):
    q, k, v = arguments
    return [np.abs(q) + 0.1, np.abs(k) + 0.1, v]


@linear_attention.check(points=0.5)
def the_output_is_a_weighted_average(learner, rng):
    arguments = _positive(_qkv(rng))
    note = "All entries of Q and K are positive, so phi(x) is x + 1."
    _compare_linear(learner, arguments, False, note)


@linear_attention.check(points=0.25)
def the_feature_map_is_positive_everywhere(learner, rng):
    q, k, v = _positive(_qkv(rng))
    note = "All entries of Q and K are negative, so phi(x) is exp(x)."
    _compare_linear(learner, [-q, -k, v], False, note)
    q[:, 0], k[:, 0] = 900.0, 900.0
    _compare_linear(learner, [q, k, v], False, "One feature is 900.")


@linear_attention.check(points=0.5)
def the_causal_form_sums_over_the_past(learner, rng):
    _compare_linear(learner, _positive(_causal(rng, tokens=7)), True)


@linear_attention.check(points=0.25)
def leading_axes_of_linear_attention_will_do(learner, rng):
    for lead, causal in (((2,), False), ((2, 3), True), ((2,), True)):
        arguments = [*_positive(_causal(rng, *lead, tokens=5)), causal]
        _compare_linear(learner, arguments[:3], causal)
    outcome = learner.run("linear_attention", *arguments)
    expect_unchanged(outcome["arguments"], arguments, [*QKV, "causal"])


LINEAR_NUMBERS = 8 * LONG * (1 + 1) * (2 + 1)


@linear_attention.check(points=0.5)
def there_is_no_matrix_of_all_pairs(learner, rng):
    arguments = _positive(_long_problem(rng))
    for causal in (False, True):
        got, peak = learner.measure("linear_attention", *arguments, causal)
        got = expect_array(got, arguments[2].shape, "The output")
        expect_close(got[-1], _last_of_linear(*arguments), "The last row")
        _expect_memory(peak, LINEAR_NUMBERS, f"causal is {causal}.")


def _last_of_linear(q, k, v):
    return oracle.linear_attention(q[-1:], k, v)[0]


@linear_attention.probe
def both_forms(rng):
    yield tuple(_qkv(rng))
    yield (*_causal(rng, tokens=6), True)
    yield (*_causal(rng, 2, 2, tokens=6), True)


# --- debug: the causal form ---

mended_linear_attention = Question(
    "mended_linear_attention", section=RECURRENCE, forbid=(*READY_MADE, "linear_attention")
)


@mended_linear_attention.check(points=0.5)
def the_running_sum_runs_over_the_tokens(learner, rng):
    for lead in ((), (2, 3)):
        arguments = _causal(rng, *lead, tokens=5)
        got = learner.call("mended_linear_attention", *arguments)
        right = oracle.linear_attention(*arguments)
        got = expect_array(got, right.shape, "The output")[..., -1:, :]
        note = f"Q has shape {arguments[0].shape}. This is the last token, which sees all others."
        expect_close(got, right[..., -1:, :], "output[..., -1:, :]", note=note)


@mended_linear_attention.check(points=0.5)
def each_token_is_normalized_by_what_it_sees(learner, rng):
    _compare_linear(learner, _causal(rng, 3, tokens=5), True, name="mended_linear_attention")


@mended_linear_attention.check(points=0.25)
def equal_values_give_this_value(learner, rng):
    q, k, v = _causal(rng, 2, tokens=5)
    v = np.broadcast_to(v[..., :1, :], v.shape).copy()
    note = "All values of a sequence are equal, so that their average is too."
    _compare_linear(learner, [q, k, v], True, note, name="mended_linear_attention")


@mended_linear_attention.probe
def causal_forms(rng):
    yield tuple(_causal(rng, tokens=6))
    yield tuple(_causal(rng, 3, 4, tokens=5))


# --- the cache ---

cached_attention = Question("cached_attention", section=CACHE, forbid=READY_MADE)


def _pieces(arguments, sizes):
    start = 0
    for size in sizes:
        yield [array[..., start : start + size, :] for array in arguments]
        start += size


def _decode(learner, arguments, sizes, window=None):
    """Pass so many tokens a call; return the outputs and the caches after each call."""
    outputs, caches, cache = [], [], None
    for piece in _pieces(arguments, sizes):
        more = () if window is None else (window,)
        got = learner.call("cached_attention", *piece, cache, *more)
        output, cache = expect_tuple(got, ("output", "cache"))
        outputs.append(output)
        caches.append(cache)
    return outputs, caches


def _compare_cached(learner, arguments, sizes, window=None, which=slice(None), note=""):
    outputs, caches = _decode(learner, arguments, sizes, window)
    tokens = arguments[0].shape[-2]
    right = oracle.attention(*arguments, oracle.visible(tokens, window=window))
    places = np.cumsum([0, *sizes])
    for call in range(len(sizes))[which]:
        start, stop = places[call : call + 2]
        said = f"{sizes[call]} new token{'s' if sizes[call] > 1 else ''} after {start} others"
        said += f", window is {window}. {note}"
        wanted = right[..., start:stop, :]
        expect_close(outputs[call], wanted, "The output", note=said.strip())
    return caches


def _two_arrays(cache):
    pair = expect_tuple(cache, ("K", "V"))
    fine = all(isinstance(array, np.ndarray) for array in pair)
    found = ", ".join(type(array).__name__ for array in pair)
    expect(fine, f"The cache holds ({found}); expected are two arrays (K, V).")
    return pair


@cached_attention.check(points=0.25)
def the_first_call_is_causal_attention(learner, rng):
    for tokens in (1, 5):
        _compare_cached(learner, _causal(rng, tokens=tokens), (tokens,))


@cached_attention.check(points=0.5)
def one_token_at_a_time_gives_what_the_full_pass_gives(learner, rng):
    _compare_cached(learner, _causal(rng, tokens=6), (1,) * 6)


@cached_attention.check(points=0.5)
def several_new_tokens_see_the_cache_and_each_other(learner, rng):
    _compare_cached(learner, _causal(rng, tokens=8), (3, 2, 3), which=slice(1, None))


@cached_attention.check(points=0.5)
def the_window_hides_what_is_too_old(learner, rng):
    for window, sizes in ((3, (1,) * 7), (1, (1,) * 4), (3, (5, 2, 1))):
        _compare_cached(learner, _causal(rng, tokens=sum(sizes)), sizes, window)


@cached_attention.check(points=0.25)
def the_cache_holds_the_window_and_no_more(learner, rng):
    arguments = _causal(rng, tokens=9)
    sizes = (1, 1, 1, 4, 1, 1)
    for window in (3, 1):
        _, caches = _decode(learner, arguments, sizes, window)
        for seen, cache in zip(np.cumsum(sizes), caches, strict=True):
            for name, array, whole in zip("KV", _two_arrays(cache), arguments[1:], strict=True):
                count = array.shape[-2] if array.ndim > 1 else 0
                said = f"After {seen} tokens with a window of {window} the cache holds {count} "
                said += f"rows of {name}."
                expect(min(seen, window - 1) <= count <= window, said)
                note = f"{said} The latest count."
                expect_close(array, whole[seen - count : seen], f"{name} of the cache", note=note)


@cached_attention.check(points=0.25)
def leading_axes_will_do_and_the_cache_that_is_passed_stays(learner, rng):
    for lead in ((2,), (2, 3)):
        _compare_cached(learner, _causal(rng, *lead, tokens=4), (1, 1, 1, 1))
    for more in ((), (3,)):  # without a window, and with one that is full
        first, second = _pieces(_causal(rng, 2, tokens=5), (4, 1))
        got = learner.call("cached_attention", *first, None, *more)
        cache = _two_arrays(expect_tuple(got, ("output", "cache"))[1])
        outcome = learner.run("cached_attention", *second, cache, *more)
        expect_tuple(outcome["value"], ("output", "cache"))
        *arrays, after = outcome["arguments"][:4]
        names = [*QKV, "cache[0]", "cache[1]"]
        expect_unchanged([*arrays, *_two_arrays(after)], [*second, *cache], names)


@cached_attention.probe
def first_calls(rng):
    cache = _causal(rng, tokens=4)[1:]
    for tokens, window in ((1, None), (3, None), (3, 2), (1, 2)):
        q = rng.normal(size=(tokens, cache[0].shape[-1]))
        k = rng.normal(size=q.shape)
        v = rng.normal(size=(tokens, cache[1].shape[-1]))
        yield (q, k, v, tuple(cache), window)


# --- predict: the memory of a cache ---

predicted_cache_memory = Question("predicted_cache_memory", section=GROUPED, forbid=READY_MADE)


@predicted_cache_memory.check(points=0.25)
def the_memory_of_the_whole_cache_is_right(learner, rng):
    hint = "What is kept of each token, in each layer and head?"
    what, right = "the MiB of the cache", oracle.cache_mebibytes()
    _compare_number(learner, "predicted_cache_memory", 0, right, what, hint)


def _compare_with_the_part_before(learner, place, what, hint):
    """Judge a part by itself or by the part before, so that one slip is counted once."""
    got = expect_numbers(learner.value("predicted_cache_memory"), "abc")
    right = oracle.cache_mebibytes()
    before, after = got[place - 1 : place + 1]
    share = before > 0 and np.isclose(after / before, right[place] / right[place - 1], rtol=0.01)
    if not share:
        _compare_number(learner, "predicted_cache_memory", place, right, what, hint)


@predicted_cache_memory.check(points=0.25)
def the_memory_with_fewer_key_heads_is_right(learner, rng):
    hint = "How many heads have keys and values of their own now?"
    _compare_with_the_part_before(learner, 1, "the MiB with 4 heads of keys and values", hint)


@predicted_cache_memory.check(points=0.25)
def the_memory_with_a_window_is_right(learner, rng):
    hint = "How many tokens are kept now?"
    _compare_with_the_part_before(learner, 2, "the MiB with a window too", hint)
