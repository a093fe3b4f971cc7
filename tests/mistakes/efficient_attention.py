"""Wrong answers to exercise 7 that people really give, each with exactly one fault.

What surrounds the fault is right and shared: the helpers below. Where a helper has options, each
of them is one fault, and a mistake sets one.
"""

import functools

import numpy as np

from autograder.mistakes import mistake, mistake_value

MEASURED = "The problem, measured"
ONE_PASS = "A softmax that needs one pass"
TWO_CHUNKS = "Two chunks"
ANY_NUMBER = "Any number of chunks"
NOTHING_YET = "Rows that have seen no key yet"
CHUNKED = "Chunked attention"
MEMORY = "Memory and time"
BACKWARD = "Its backward pass, by recomputation"
QUERY_CHUNKS = "Query chunks and causality"
WINDOW = "A sliding window"
BLOCKS = "Block-sparse patterns"
TOPK = "Top-k"
LINEAR = "Linear attention"
RECURRENCE = "A recurrence again"
CACHE = "The key-value cache"
GROUPED = "Grouped-query heads"


def _t(x):
    return np.swapaxes(x, -1, -2)


def _root(x):
    return np.sqrt(x.shape[-1])


def _softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _softmax_or_zeros(scores):
    peak = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isneginf(peak), 0.0, peak))
    total = powers.sum(axis=-1, keepdims=True)
    return powers / np.where(total == 0, 1.0, total)


def _hide(scores, mask):
    return scores if mask is None else np.where(mask, scores, -np.inf)


def _dense(Q, K, V, mask=None):
    return _softmax_or_zeros(_hide(Q @ _t(K) / _root(Q), mask)) @ V


def _two_matrices(Q, K, V, mask=None):
    """Do the same with two matrices at a time: between what is usual in float32 and in float64."""
    s = Q @ _t(K)
    s /= _root(Q)
    if mask is not None:
        np.copyto(s, -np.inf, where=~mask)
    top = s.max(axis=-1, keepdims=True)
    s -= np.where(np.isneginf(top), 0.0, top)
    powers = np.exp(s)
    total = powers.sum(axis=-1, keepdims=True)
    return powers @ V / np.where(total == 0, 1.0, total)


# --- predicted_score_memory ---


def _scores(id, value, believed, tell):
    return mistake_value(
        "predicted_score_memory", id, value, believed=believed, tell=tell, section=MEASURED
    )


scores_in_float32 = _scores(
    "scores-in-float32",
    (256, 1024, 16),
    "A number takes 4 bytes.",
    "How many bytes does one number of float16 take?",
)
scores_half_of_it = _scores(
    "scores-half-of-it",
    (64, 256, 4),
    "Half of it is enough: one sequence, or one byte a number.",
    "How many sequences are there, and how many bytes does a number take? One of them is missing.",
)
scores_of_one_head = _scores(
    "scores-of-one-head",
    (16, 64, 1),
    "All heads share one matrix of scores.",
    "Does each head compare queries and keys of its own?",
)
scores_and_weights = _scores(
    "scores-and-weights",
    (256, 1024, 8),
    "The weights take as much again, so the scores count twice.",
    "Asked for are the scores alone. How many numbers are these, in (a)?",
)
scores_grow_linearly = _scores(
    "scores-grow-linearly",
    (128, 256, 8),
    "Twice as many tokens take twice the memory.",
    "How many queries are there for twice the length, and how many keys has each?",
)
scores_of_a_square_chunk = _scores(
    "scores-of-a-square-chunk",
    (128, 512, 0.5),
    "A chunk of keys is compared with a chunk of queries.",
    "Which axis was cut into chunks: that of the keys, of the queries, or both?",
)
scores_of_all_chunks = _scores(
    "scores-of-all-chunks",
    (128, 512, 128),
    "The chunks together are as large as the whole, so nothing is saved.",
    "Do the scores of an earlier chunk have to stay?",
)


# --- chunked_attention ---


def _chunked(
    Q,
    K,
    V,
    chunk_size,
    mask=None,
    *,
    root=None,
    first=-np.inf,
    hidden=-np.inf,
    reach=0,
    correct_total=True,
    correct_weighted=True,
    correction=None,
    keep_finite=False,
    safe=True,
    guard=True,
    cut=None,
    empty_rows=None,
    beyond=0,
    hide_nan=False,
):
    L_k = K.shape[-2]
    q = Q / (_root(Q) if root is None else root)
    if mask is not None and cut is None:
        mask = np.broadcast_to(mask, (*Q.shape[:-1], L_k))
    top = np.full((*Q.shape[:-1], 1), first)
    total, weighted = np.zeros(top.shape), np.zeros((*Q.shape[:-1], V.shape[-1]))
    for start in range(0, L_k - reach * (chunk_size - 1) + beyond, chunk_size):
        part = slice(start, start + chunk_size)
        s = q @ _t(K[..., part, :])
        if mask is not None:
            s = np.where(mask[..., part] if cut is None else cut(mask, part), s, hidden)
        new = np.maximum(top, s.max(axis=-1, keepdims=True))
        finite = np.where(np.isneginf(new), 0.0, new) if safe else new
        factor = np.exp(top - finite) if correction is None else correction(top, finite)
        p = np.exp(s - finite)
        total = (factor if correct_total else 1) * total + p.sum(axis=-1, keepdims=True)
        weighted = (factor if correct_weighted else 1) * weighted + p @ V[..., part, :]
        top = finite if keep_finite else new
    output = weighted / (np.where(total == 0, 1.0, total) if guard else total)
    if hide_nan:
        return np.nan_to_num(output)
    if empty_rows is None or mask is None:
        return output
    return np.where(np.any(mask, axis=-1, keepdims=True), output, empty_rows)


def _wrong_chunks(id, believed, tell, section=CHUNKED, **options):
    answer = functools.partial(_chunked, **options)
    return mistake_value(
        "chunked_attention", id, answer, believed=believed, tell=tell, section=section
    )


online_softmax_finite_sentinel = _wrong_chunks(
    "online-softmax-finite-sentinel",
    "The running maximum may start at a finite number that is very negative.",
    "What does your running maximum become if all scores are near -60000?",
    NOTHING_YET,
    first=-5e4,
)
online_softmax_max_starts_at_zero = _wrong_chunks(
    "online-softmax-max-starts-at-zero",
    "The running maximum may start at 0, as a sum does.",
    "What does your running maximum become if all scores are near -10000?",
    NOTHING_YET,
    first=0.0,
)
online_softmax_max_stuck_at_zero = _wrong_chunks(
    "online-softmax-max-stuck-at-zero",
    "What replaces a maximum of minus infinity may be stored as the running maximum.",
    "A row sees nothing in its first chunk, then scores near -2000. What is its maximum then?",
    NOTHING_YET,
    keep_finite=True,
)
online_softmax_nan_on_masked_chunk = _wrong_chunks(
    "online-softmax-nan-on-masked-chunk",
    "Once a key has been seen the result is right, so the rows without one need no care.",
    "What is -inf - (-inf), and does a later chunk repair a sum in which it stands?",
    NOTHING_YET,
    safe=False,
)
online_softmax_sum_not_rescaled = _wrong_chunks(
    "online-softmax-sum-not-rescaled",
    "Only the output has to follow the maximum.",
    "The old summands of the denominator were taken with the old maximum. Are they brought along?",
    TWO_CHUNKS,
    correct_total=False,
)
online_softmax_output_not_rescaled = _wrong_chunks(
    "online-softmax-output-not-rescaled",
    "Only the sum of the exponentials has to follow the maximum.",
    "With which maximum were the exponentials taken that weight the values so far?",
    TWO_CHUNKS,
    correct_weighted=False,
)
online_softmax_nothing_rescaled = _wrong_chunks(
    "online-softmax-nothing-rescaled",
    "The maximum is only there against overflow, so a change of it does no harm.",
    "Two summands were taken with different maxima. May they be added as they are?",
    TWO_CHUNKS,
    correct_total=False,
    correct_weighted=False,
)
online_softmax_factor_upside_down = _wrong_chunks(
    "online-softmax-factor-upside-down",
    "The correction is exp(new - old).",
    "What is exp(new - old) in the first chunk, where the old maximum is minus infinity?",
    TWO_CHUNKS,
    correction=lambda top, new: np.exp(new - top),
)
online_softmax_old_sums_grow = _wrong_chunks(
    "online-softmax-old-sums-grow",
    "With a larger maximum the old sums become larger.",
    "If the maximum grows, do the old exponentials have to shrink or to grow?",
    TWO_CHUNKS,
    correction=lambda top, new: np.where(np.isneginf(top), 0.0, np.exp(new - top)),
)
online_softmax_factor_without_exp = _wrong_chunks(
    "online-softmax-factor-without-exp",
    "The correction is the quotient of the two maxima.",
    "exp(s - new) = exp(s - old) times what?",
    TWO_CHUNKS,
    correction=lambda top, new: np.where(np.isneginf(top), 0.0, top / new),
)
chunked_mask_fill_finite = _wrong_chunks(
    "chunked-mask-fill-finite",
    "A hidden key gets a score of -1e9, which is as good as minus infinity.",
    "What does a softmax make of a row in which all scores are -1e9?",
    NOTHING_YET,
    hidden=-1e9,
)
chunked_mask_fill_out_of_reach = _wrong_chunks(
    "chunked-mask-fill-out-of-reach",
    "A hidden key gets a score so low that no real score can be lower.",
    "What does a softmax make of a row in which all scores are the same large negative number?",
    NOTHING_YET,
    hidden=-1e30,
)
chunked_mask_fill_of_a_billion = _wrong_chunks(
    "chunked-mask-fill-of-a-billion",
    "A hidden key gets a score of -1e9; the rows without a key are set to 0 at the end.",
    "Is your fill lower than every allowed score?",
    NOTHING_YET,
    hidden=-1e9,
    empty_rows=0.0,
)
chunked_mask_fill_of_ten_thousand = _wrong_chunks(
    "chunked-mask-fill-of-ten-thousand",
    "A hidden key gets a score of -1e4; the rows without a key are set to 0 at the end.",
    "Is your fill lower than every allowed score?",
    NOTHING_YET,
    hidden=-1e4,
    empty_rows=0.0,
)
online_softmax_start_of_a_billion = _wrong_chunks(
    "online-softmax-start-of-a-billion",
    "The running maximum may start at -1e9, which no score reaches.",
    "Is the start of your running maximum lower than every score? Which number would be?",
    NOTHING_YET,
    first=-1e9,
)
online_softmax_start_and_fill_finite = _wrong_chunks(
    "online-softmax-start-and-fill-finite",
    "With -1e9 as the start and as the score of a hidden key no NaN can arise.",
    "A query that may see no key: what are its exponentials if start and scores are both -1e9?",
    NOTHING_YET,
    first=-1e9,
    hidden=-1e9,
)
chunked_nan_hidden = _wrong_chunks(
    "chunked-nan-hidden",
    "A NaN at the end means that the query saw no key, so it may become 0.",
    "The output is 0 although the query sees keys later. Is there a NaN in your sums that you "
    "turned into 0? What is -inf - (-inf)?",
    NOTHING_YET,
    safe=False,
    guard=False,
    hide_nan=True,
)
chunked_mask_fill_not_low_enough = _wrong_chunks(
    "chunked-mask-fill-not-low-enough",
    "A hidden key gets a score of -10, which no real score reaches.",
    "How large is the weight of a hidden key, exactly?",
    hidden=-10.0,
)
chunked_mask_fill_zero = _wrong_chunks(
    "chunked-mask-fill-zero",
    "A hidden key gets a score of 0.",
    "What is exp(0)?",
    hidden=0.0,
)
chunked_empty_row_nan = _wrong_chunks(
    "chunked-empty-row-nan",
    "Every query sees a key.",
    "What does the last division give for a query that may see no key?",
    NOTHING_YET,
    guard=False,
)
chunked_remainder_lost = _wrong_chunks(
    "chunked-remainder-lost",
    "The chunks end with the last whole one.",
    "For 11 keys and chunks of 4: which keys does your loop visit?",
    reach=1,
)
chunked_no_scale = _wrong_chunks(
    "chunked-no-scale",
    "The scores are the products of queries and keys.",
    "By what are scores divided in scaled dot-product attention?",
    root=1.0,
)
chunked_mask_of_first_chunk = _wrong_chunks(
    "chunked-mask-of-first-chunk",
    "The mask of a chunk is the first part of the mask.",
    "Which columns of the mask belong to the second chunk?",
    cut=lambda mask, part: mask[..., : part.stop - part.start],
)
chunked_mask_rows_cut = _wrong_chunks(
    "chunked-mask-rows-cut",
    "The first axis of the mask runs along the keys.",
    "Which axis of the mask are the keys?",
    cut=lambda mask, part: mask[part],
)
chunked_mask_never_cut = _wrong_chunks(
    "chunked-mask-never-cut",
    "NumPy lines the mask up with the scores of a chunk.",
    "How many columns have the scores of a chunk, and how many has your mask?",
    cut=lambda mask, part: mask,
)
chunked_mask_inverted = _wrong_chunks(
    "chunked-mask-inverted",
    "True in a mask means: hide.",
    "In this course True means: may attend. Which keys does your code keep?",
    cut=lambda mask, part: ~np.broadcast_to(mask, (*mask.shape[:-1], mask.shape[-1]))[..., part],
)
chunked_mask_must_have_full_shape = _wrong_chunks(
    "chunked-mask-must-have-full-shape",
    "Every mask has a column for each key.",
    "A mask of shape (L_q, 1) has one column. What does your slice leave of it in later chunks?",
    cut=lambda mask, part: mask[..., part],
)


@mistake(
    "chunked_attention",
    believed="A key that is hidden gets weight 0 if its exponential is set to 0 at the end.",
    tell="Does your running maximum look at hidden keys? What if a hidden score is far larger?",
    section=NOTHING_YET,
)
def chunked_mask_added_as_number(Q, K, V, chunk_size, mask=None):
    if mask is None:
        return _chunked(Q, K, V, chunk_size)
    mask = np.broadcast_to(mask, (*Q.shape[:-1], K.shape[-2]))
    top = np.full((*Q.shape[:-1], 1), -np.inf)
    total, weighted = np.zeros(top.shape), np.zeros((*Q.shape[:-1], V.shape[-1]))
    for start in range(0, K.shape[-2], chunk_size):
        part = slice(start, start + chunk_size)
        s = Q @ _t(K[..., part, :]) / _root(Q) + mask[..., part]
        new = np.maximum(top, s.max(axis=-1, keepdims=True))
        p = np.exp(s - new)
        total = np.exp(top - new) * total + p.sum(axis=-1, keepdims=True)
        weighted = np.exp(top - new) * weighted + p @ V[..., part, :]
        top = new
    return weighted / total


def _parts(K, V, chunk_size, mask=None):
    for start in range(0, K.shape[-2], chunk_size):
        part = slice(start, start + chunk_size)
        yield K[..., part, :], V[..., part, :], None if mask is None else mask[..., part]


def _full(mask, Q, K):
    return None if mask is None else np.broadcast_to(mask, (*Q.shape[:-1], K.shape[-2]))


@mistake(
    "chunked_attention",
    believed="The softmax of the whole is the mean of the softmaxes of the chunks.",
    tell="A chunk with small scores should count less than one with large scores. Does it?",
    section=ONE_PASS,
)
def chunked_mean_of_chunks(Q, K, V, chunk_size, mask=None):
    parts = list(_parts(K, V, chunk_size, _full(mask, Q, K)))
    return sum(_dense(Q, *part) for part in parts) / len(parts)


@mistake(
    "chunked_attention",
    believed="The outputs of the chunks add up to the output.",
    tell="What do the weights of one query add up to, over all chunks?",
    section=ONE_PASS,
)
def chunked_sum_of_chunks(Q, K, V, chunk_size, mask=None):
    return sum(_dense(Q, *part) for part in _parts(K, V, chunk_size, _full(mask, Q, K)))


@mistake(
    "chunked_attention",
    believed="Each chunk is normalized as it comes, and the last one replaces the others.",
    tell="Change a value of the first chunk. Does your output change?",
    section=ONE_PASS,
)
def chunked_last_chunk_only(Q, K, V, chunk_size, mask=None):
    *_, last = _parts(K, V, chunk_size, _full(mask, Q, K))
    return _dense(Q, *last)


@mistake(
    "chunked_attention",
    believed="Sums of exponentials can be added as they are, without a maximum.",
    tell="What is exp(10000) in float64?",
    section=ONE_PASS,
)
def chunked_no_maximum(Q, K, V, chunk_size, mask=None):
    total, weighted = 0.0, 0.0
    for k, v, allowed in _parts(K, V, chunk_size, _full(mask, Q, K)):
        p = np.exp(_hide(Q @ _t(k) / _root(Q), allowed))
        total, weighted = total + p.sum(axis=-1, keepdims=True), weighted + p @ v
    return weighted / np.where(total == 0, 1.0, total)


@mistake(
    "chunked_attention",
    believed="One maximum of all scores protects all rows.",
    tell="What becomes of a row whose scores all lie 2000 below those of another row?",
    section=ANY_NUMBER,
)
def chunked_one_maximum_for_all_rows(Q, K, V, chunk_size, mask=None):
    largest = -np.inf
    for k, _, allowed in _parts(K, V, chunk_size, _full(mask, Q, K)):
        largest = max(largest, _hide(Q @ _t(k) / _root(Q), allowed).max())
    total, weighted = 0.0, 0.0
    for k, v, allowed in _parts(K, V, chunk_size, _full(mask, Q, K)):
        p = np.exp(_hide(Q @ _t(k) / _root(Q), allowed) - largest)
        total, weighted = total + p.sum(axis=-1, keepdims=True), weighted + p @ v
    return weighted / np.where(total == 0, 1.0, total)


@mistake(
    "chunked_attention",
    believed="The maximum of the latest chunk may serve as the reference of all sums.",
    tell="What does your correction become when a chunk has much smaller scores than the last?",
    section=ANY_NUMBER,
)
def chunked_maximum_of_the_chunk(Q, K, V, chunk_size, mask=None):
    top = np.full((*Q.shape[:-1], 1), -np.inf)
    total, weighted = np.zeros(top.shape), np.zeros((*Q.shape[:-1], V.shape[-1]))
    for k, v, allowed in _parts(K, V, chunk_size, _full(mask, Q, K)):
        s = _hide(Q @ _t(k) / _root(Q), allowed)
        new = s.max(axis=-1, keepdims=True)
        finite = np.where(np.isneginf(new), 0.0, new)
        factor, p = np.exp(top - finite), np.exp(s - finite)
        total = factor * total + p.sum(axis=-1, keepdims=True)
        weighted = factor * weighted + p @ v
        top = new
    return weighted / np.where(total == 0, 1.0, total)


@mistake(
    "chunked_attention",
    believed="It is chunked if the softmax is taken as usual and the values are added in chunks.",
    tell="Which of your arrays has both the queries and all keys as axes?",
    section=MEMORY,
)
def chunked_dense_inside(Q, K, V, chunk_size, mask=None):
    return _two_matrices(Q, K, V, mask)


@mistake(
    "chunked_attention",
    believed="A mask of booleans is small, so all of it may be made, or turned round, at once.",
    tell="The mask that was passed has one row. How large is what you compute from all of it, "
    "or what you make where none was passed?",
    section=MEMORY,
)
def chunked_mask_in_full(Q, K, V, chunk_size, mask=None):
    whole = (*Q.shape[:-1], K.shape[-2])
    hidden = np.zeros(whole, dtype=bool) if mask is None else ~np.broadcast_to(mask, whole)
    return _chunked(Q, K, V, chunk_size, hidden, cut=lambda mask, part: ~mask[..., part])


@mistake(
    "chunked_attention",
    believed="A mask turned into numbers is as small as the mask.",
    tell="The mask that was passed has one row. How large is the array that you make of it?",
    section=MEMORY,
)
def chunked_mask_as_a_full_bias(Q, K, V, chunk_size, mask=None):
    if mask is None:
        return _chunked(Q, K, V, chunk_size)
    bias = np.where(np.broadcast_to(mask, (*Q.shape[:-1], K.shape[-2])), 0.0, -np.inf)
    return _chunked(Q, K, V, chunk_size, bias == 0)


@mistake(
    "chunked_attention",
    believed="K.T is the transpose of a matrix, whatever comes before it.",
    tell="What is the shape of K.T for K of shape (B, L, d)?",
    section=CHUNKED,
)
def chunked_all_axes_reversed(Q, K, V, chunk_size, mask=None):
    Q[..., :1, :] @ K.T  # an error where there are leading axes
    return _chunked(Q, K, V, chunk_size, mask)


@mistake(
    "chunked_attention",
    believed="The output is as wide as the queries.",
    tell="How wide are the values, and how wide is your output?",
    section=CHUNKED,
)
def chunked_output_like_queries(Q, K, V, chunk_size, mask=None):
    output = np.zeros(Q.shape)
    output += _chunked(Q, K, V, chunk_size, mask)
    return output


@mistake(
    "chunked_attention",
    believed="An argument may serve as scratch space.",
    tell="Print Q before and after the call. Does `/=` make a new array?",
    section=CHUNKED,
)
def chunked_scales_in_place(Q, K, V, chunk_size, mask=None):
    Q /= _root(Q)
    return _chunked(Q, K, V, chunk_size, mask, root=1.0)


# --- mended_chunked_attention ---


def _wrong_mending(id, believed, tell, section=ANY_NUMBER, **options):
    answer = functools.partial(_chunked, **{"guard": False, "safe": False, **options})
    return mistake_value(
        "mended_chunked_attention", id, answer, believed=believed, tell=tell, section=section
    )


mended_chunks_sum_still_not_rescaled = _wrong_mending(
    "mended-chunks-sum-still-not-rescaled",
    "The only fault is in the range.",
    "If all values are equal, so must be the output. Is it, where the scores grow?",
    correct_total=False,
)
mended_chunks_remainder_still_lost = _wrong_mending(
    "mended-chunks-remainder-still-lost",
    "The only fault is in the sum.",
    "Write down where each chunk begins, for 5 keys and chunks of 3.",
    reach=1,
)
mended_chunks_nothing_rescaled = _wrong_mending(
    "mended-chunks-nothing-rescaled",
    "Both sums must be treated alike, so neither is multiplied.",
    "Old and new exponentials were taken with different maxima. Which of them must change?",
    correct_total=False,
    correct_weighted=False,
)
mended_chunks_factor_upside_down = _wrong_mending(
    "mended-chunks-factor-upside-down",
    "The factor of the old sum is exp(new - old).",
    "What is exp(new - old) in the first chunk, where the old maximum is minus infinity?",
    correction=lambda top, new: np.exp(new - top),
)
mended_chunks_max_starts_at_zero = _wrong_mending(
    "mended-chunks-max-starts-at-zero",
    "A start of 0 avoids minus infinity.",
    "What happens to scores that are all near -2000?",
    NOTHING_YET,
    first=0.0,
)


mended_chunks_empty_chunk = _wrong_mending(
    "mended-chunks-empty-chunk",
    "The range has to end after the last key, so one is added.",
    "If the chunk size divides the number of keys: which values has `begin`?",
    beyond=1,
)


@mistake(
    "mended_chunked_attention",
    believed="Without a maximum there is nothing to rescale.",
    tell="What is exp(2000) in float64?",
    section=ONE_PASS,
)
def mended_chunks_no_maximum(Q, K, V, chunk_size):
    return chunked_no_maximum.answer(Q, K, V, chunk_size)


@mistake(
    "mended_chunked_attention",
    believed="The old sum and the new summands both move to the new maximum by the factor.",
    tell="Which summands were taken with the old maximum, and which already with the new one?",
    section=TWO_CHUNKS,
)
def mended_chunks_new_summands_rescaled_too(Q, K, V, chunk_size):
    top = np.full((*Q.shape[:-1], 1), -np.inf)
    total, weighted = 0.0, 0.0
    for k, v, _ in _parts(K, V, chunk_size):
        s = Q @ _t(k) / _root(Q)
        new = np.maximum(top, s.max(axis=-1, keepdims=True))
        p, factor = np.exp(s - new), np.exp(top - new)
        total = factor * (total + p.sum(axis=-1, keepdims=True))
        weighted = weighted * factor + p @ v
        top = new
    return weighted / total


# --- chunked_attention_backward ---


def _backward(
    doutput,
    Q,
    K,
    V,
    output,
    logsumexp,
    chunk_size,
    *,
    D="output",
    scale_q=1.0,
    scale_k=1.0,
    overwrite=False,
    weights=None,
    reach=0,
    to_values=None,
    sign=1.0,
):
    root = _root(Q)
    dQ, dK, dV = np.zeros(Q.shape), np.zeros(K.shape), np.zeros(V.shape)
    for start in range(0, K.shape[-2] - reach * (chunk_size - 1), chunk_size):
        part = slice(start, start + chunk_size)
        k, v = K[..., part, :], V[..., part, :]
        s = Q @ _t(k) / root
        a = np.exp(s - logsumexp[..., None]) if weights is None else weights(s, logsumexp)
        da = doutput @ _t(v)
        if D == "output":
            d = (doutput * output).sum(axis=-1, keepdims=True)
        elif D == "chunk":
            d = (a * da).sum(axis=-1, keepdims=True)
        elif D == "unweighted":
            d = da.mean(axis=-1, keepdims=True)
        else:
            d = 0.0
        ds = a * (da - sign * d)
        dV[..., part, :] = _t(a) @ doutput if to_values is None else to_values(a, da, ds, doutput)
        dK[..., part, :] = (
            _t(ds) @ Q / root * scale_k(root) if callable(scale_k) else (_t(ds) @ Q / root)
        )
        more = ds @ k / root * (scale_q(root) if callable(scale_q) else 1)
        dQ = more if overwrite else dQ + more
    return dQ, dK, dV


def _wrong_backward(id, believed, tell, section=BACKWARD, **options):
    answer = functools.partial(_backward, **options)
    return mistake_value(
        "chunked_attention_backward", id, answer, believed=believed, tell=tell, section=section
    )


backward_sum_of_the_chunk = _wrong_backward(
    "backward-sum-of-the-chunk",
    "The sum in the softmax's backward pass runs over the chunk at hand.",
    "Over which keys does D sum? Your chunk holds some of them.",
    D="chunk",
)
backward_sum_left_out = _wrong_backward(
    "backward-sum-left-out",
    "The weights are constants of the scores' gradient.",
    "If one score of a row grows, what happens to the other weights of the row?",
    D="none",
)
backward_sum_not_weighted = _wrong_backward(
    "backward-sum-not-weighted",
    "What is subtracted is the plain mean of the gradients of the weights.",
    "D is a sum over the keys of what, weighted by what?",
    D="unweighted",
)
backward_sum_added = _wrong_backward(
    "backward-sum-added",
    "D is added to the gradient of the weights.",
    "If all gradients of the weights of a row are equal, what must the row's dS be?",
    sign=-1.0,
)
backward_queries_not_scaled = _wrong_backward(
    "backward-queries-not-scaled",
    "The scale belongs to the keys.",
    "s = q . k / sqrt(d_k). What is its derivative with respect to q?",
    scale_q=lambda root: root,
)
backward_keys_not_scaled = _wrong_backward(
    "backward-keys-not-scaled",
    "The scale belongs to the queries.",
    "s = q . k / sqrt(d_k). What is its derivative with respect to k?",
    scale_k=lambda root: root,
)
backward_keys_scaled_twice = _wrong_backward(
    "backward-keys-scaled-twice",
    "The scaled queries are multiplied, and the result is scaled.",
    "How often does 1 / sqrt(d_k) stand in the derivative of a score with respect to k?",
    scale_k=lambda root: 1 / root,
)
backward_queries_overwritten = _wrong_backward(
    "backward-queries-overwritten",
    "Each chunk gives the gradient of the queries.",
    "A query looks at all chunks. Whose part is left in dQ after your loop?",
    overwrite=True,
)
backward_softmax_of_the_chunk = _wrong_backward(
    "backward-softmax-of-the-chunk",
    "The weights of a chunk are the softmax of its scores.",
    "What do your recomputed weights of a row add up to, over all chunks?",
    weights=lambda s, logs: _softmax(s),
)
backward_powers_divided = _wrong_backward(
    "backward-powers-divided",
    "exp(s) / exp(logsumexp) is the same as the exponential of the difference.",
    "What is exp(2000) in float64, and what is inf / inf?",
    weights=lambda s, logs: np.exp(s) / np.exp(logs)[..., None],
)
backward_not_normalized = _wrong_backward(
    "backward-not-normalized",
    "The weights are the exponentials of the scores less their maximum.",
    "What does logsumexp hold, and where does your function use it?",
    weights=lambda s, logs: np.exp(s - s.max(axis=-1, keepdims=True)),
)
backward_remainder_lost = _wrong_backward(
    "backward-remainder-lost",
    "The chunks end with the last whole one.",
    "For 11 keys and chunks of 4: which rows of dK and dV does your loop fill?",
    reach=1,
)
backward_values_from_scores = _wrong_backward(
    "backward-values-from-scores",
    "The gradient of the values goes through the gradient of the scores.",
    "The output is A V. Which matrix multiplies the gradient of the output?",
    to_values=lambda a, da, ds, doutput: _t(ds) @ doutput,
)


@mistake(
    "chunked_attention_backward",
    believed="The weights may be recomputed all at once.",
    tell="Which of your arrays has both the queries and all keys as axes?",
    section=MEMORY,
)
def backward_dense_inside(doutput, Q, K, V, output, logsumexp, chunk_size):
    weights = Q @ _t(K)
    weights /= _root(Q)
    weights -= logsumexp[..., None]
    np.exp(weights, out=weights)
    dscores = doutput @ _t(V)
    dscores -= (doutput * output).sum(axis=-1, keepdims=True)
    dscores *= weights
    dscores /= _root(Q)
    return dscores @ K, _t(dscores) @ Q, _t(weights) @ doutput


@mistake(
    "chunked_attention_backward",
    believed="`.T` turns the last two axes.",
    tell="What is the shape of A.T for A of shape (B, L_q, L_k)?",
    section=BACKWARD,
)
def backward_all_axes_reversed(doutput, Q, K, V, output, logsumexp, chunk_size):
    Q[..., :1, :] @ K.T  # an error where there are leading axes
    return _backward(doutput, Q, K, V, output, logsumexp, chunk_size)


@mistake(
    "chunked_attention_backward",
    believed="An argument may serve as scratch space.",
    tell="Print doutput before and after the call. Does `*=` make a new array?",
    section=BACKWARD,
)
def backward_in_place(doutput, Q, K, V, output, logsumexp, chunk_size):
    gradients = _backward(doutput, Q, K, V, output, logsumexp, chunk_size)
    doutput *= output
    return gradients


# --- causal_attention_by_query_chunks ---


def _by_queries(
    Q,
    K,
    V,
    chunk_size,
    *,
    root=None,
    offset=0,
    local=False,
    masked=True,
    reach=0,
    whole=False,
    stop_early=False,
):
    L = Q.shape[-2]
    output = np.zeros((*Q.shape[:-1], V.shape[-1]))
    for start in range(0, L - (chunk_size if stop_early else reach * (chunk_size - 1)), chunk_size):
        stop = min(start + chunk_size, L)
        seen = L if whole else stop
        s = Q[..., start:stop, :] @ _t(K[..., :seen, :]) / (_root(Q) if root is None else root)
        i = np.arange(stop - start)[:, None] + (0 if local else start)
        s = np.where((np.arange(seen) <= i + offset) | (not masked), s, -np.inf)
        output[..., start:stop, :] = _softmax(s) @ V[..., :seen, :]
    return output


def _wrong_queries(id, believed, tell, section=QUERY_CHUNKS, **options):
    answer = functools.partial(_by_queries, **options)
    return mistake_value(
        "causal_attention_by_query_chunks",
        id,
        answer,
        believed=believed,
        tell=tell,
        section=section,
    )


query_chunk_local_causal = _wrong_queries(
    "query-chunk-local-causal",
    "A causal mask of the chunk's own shape is the causal mask of the sequence.",
    "Row 0 of the second chunk is token `start`. How many keys does your mask let it see?",
    local=True,
)
query_chunk_strict = _wrong_queries(
    "query-chunk-strict",
    "A token sees the tokens before it.",
    "Does a token see itself? What is left for token 0 otherwise?",
    offset=-1,
)
query_chunk_sees_the_next = _wrong_queries(
    "query-chunk-sees-the-next",
    "The keys of token i end at i + 1.",
    "Change token 1. Does the output of token 0 change?",
    offset=1,
)
query_chunk_without_mask = _wrong_queries(
    "query-chunk-without-mask",
    "Cutting the keys at the end of the chunk makes it causal.",
    "May the first query of a chunk see the last key of this chunk?",
    masked=False,
)
query_chunk_no_scale = _wrong_queries(
    "query-chunk-no-scale",
    "The scores are the products of queries and keys.",
    "By what are scores divided in scaled dot-product attention?",
    root=1.0,
)
query_chunk_remainder_lost = _wrong_queries(
    "query-chunk-remainder-lost",
    "The chunks end with the last whole one.",
    "For 7 tokens and chunks of 3: which rows of the output does your loop fill?",
    reach=1,
)
query_chunk_last_chunk_lost = _wrong_queries(
    "query-chunk-last-chunk-lost",
    "The last chunk begins one chunk before the end, so the range stops there.",
    "With one chunk that holds all tokens, how often does your loop run?",
    stop_early=True,
)
query_chunk_reads_all_keys = _wrong_queries(
    "query-chunk-reads-all-keys",
    "A mask is enough; which keys are multiplied does not matter.",
    "How many keys does your first chunk multiply, and how many can it see? What is 0 * NaN?",
    whole=True,
)


@mistake(
    "causal_attention_by_query_chunks",
    believed="A chunk of queries attends to the same chunk of keys.",
    tell="Does the first token of your second chunk see token 0?",
    section=QUERY_CHUNKS,
)
def query_chunk_block_diagonal(Q, K, V, chunk_size):
    parts = [
        _by_queries(*(x[..., start : start + chunk_size, :] for x in (Q, K, V)), chunk_size)
        for start in range(0, Q.shape[-2], chunk_size)
    ]
    return np.concatenate(parts, axis=-2)


@mistake(
    "causal_attention_by_query_chunks",
    believed="The scores of all pairs, or at least a mask of all pairs, may be made at once.",
    tell="How large is the largest array that your function makes?",
    section=MEMORY,
)
def query_chunk_dense_inside(Q, K, V, chunk_size):
    return _two_matrices(Q, K, V, np.tri(Q.shape[-2], dtype=bool))


def _by_queries_with(causal, Q, K, V, chunk_size):
    output = np.empty((*Q.shape[:-1], V.shape[-1]))
    for start in range(0, Q.shape[-2], chunk_size):
        stop = min(start + chunk_size, Q.shape[-2])
        scores = Q[..., start:stop, :] @ _t(K[..., :stop, :]) / _root(Q)
        allowed = causal[start:stop, :stop] != 0
        output[..., start:stop, :] = _softmax(_hide(scores, allowed)) @ V[..., :stop, :]
    return output


@mistake(
    "causal_attention_by_query_chunks",
    believed="A mask of booleans is small, so the one of all pairs may be made once.",
    tell="How many entries has your causal mask? Which of them does one chunk need?",
    section=QUERY_CHUNKS,
)
def query_chunk_whole_boolean_mask(Q, K, V, chunk_size):
    causal = np.tril(np.ones((Q.shape[-2], Q.shape[-2]), dtype=bool))
    return _by_queries_with(causal, Q, K, V, chunk_size)


@mistake(
    "causal_attention_by_query_chunks",
    believed="Only the scores of all pairs are large; a triangle of ones is no score.",
    tell="How many entries has your triangle of ones? Which of them does one chunk need?",
    section=QUERY_CHUNKS,
)
def query_chunk_whole_triangle_of_numbers(Q, K, V, chunk_size):
    return _by_queries_with(np.tril(np.ones((Q.shape[-2],) * 2)), Q, K, V, chunk_size)


@mistake(
    "causal_attention_by_query_chunks",
    believed="The rows of the mask of all pairs are what a chunk needs, with all of its columns.",
    tell="How many columns of the mask, and how many keys, does your first chunk really need?",
    section=QUERY_CHUNKS,
)
def query_chunk_rows_of_the_whole_mask(Q, K, V, chunk_size):
    causal, output = np.tril(np.ones((Q.shape[-2], Q.shape[-2]), dtype=bool)), []
    for start in range(0, Q.shape[-2], chunk_size):
        part = slice(start, start + chunk_size)
        scores = Q[..., part, :] @ _t(K) / _root(Q)
        output.append(_softmax(_hide(scores, causal[part])) @ V)
    return np.concatenate(output, axis=-2)


@mistake(
    "causal_attention_by_query_chunks",
    believed="The sequence is the first axis.",
    tell="For Q of shape (B, L, d): which axis does your loop cut?",
    section=QUERY_CHUNKS,
)
def query_chunk_over_the_first_axis(Q, K, V, chunk_size):
    if Q.ndim == 2:
        return _by_queries(Q, K, V, chunk_size)
    output = np.empty((*Q.shape[:-1], V.shape[-1]))
    for start in range(0, len(Q), chunk_size):
        part = slice(start, start + chunk_size)
        output[part] = _dense(Q[part], K[part], V[part])
    return output


@mistake(
    "causal_attention_by_query_chunks",
    believed="An argument may serve as scratch space.",
    tell="Print Q before and after the call. Does `/=` make a new array?",
    section=QUERY_CHUNKS,
)
def query_chunk_in_place(Q, K, V, chunk_size):
    Q /= _root(Q)
    return _by_queries(Q, K, V, chunk_size, root=1.0)


# --- predicted_chunks ---


def _pairs(id, value, believed, tell):
    return mistake_value(
        "predicted_chunks", id, value, believed=believed, tell=tell, section=QUERY_CHUNKS
    )


pairs_half_of_all = _pairs(
    "pairs-half-of-all",
    (72, 12, 36),
    "A causal mask hides half of all pairs, so half of them are skipped.",
    "Are the boxes on the diagonal skipped?",
)
pairs_with_the_diagonal = _pairs(
    "pairs-with-the-diagonal",
    (78, 12, 42),
    "What is skipped is the triangle with its diagonal.",
    "You have counted the pairs that are computed. Or do tokens of a chunk not see each other?",
)
pairs_below_the_diagonal_need_a_mask = _pairs(
    "pairs-below-the-diagonal-need-a-mask",
    (66, 78, 30),
    "Every pair that is computed needs a mask.",
    "A chunk of queries and a chunk of keys that lies wholly before it: what would a mask hide?",
)
pairs_none_need_a_mask = _pairs(
    "pairs-none-need-a-mask",
    (66, 0, 30),
    "Once the later chunks are skipped it is causal.",
    "Query 0 of a chunk and the last key of the same chunk: is this allowed?",
)
pairs_of_tokens = _pairs(
    "pairs-of-tokens",
    (719400, 1200, 30),
    "The pairs are those of tokens.",
    "How many chunks of 100 are there in 1200 tokens?",
)
pairs_halved_for_longer_chunks = _pairs(
    "pairs-halved-for-longer-chunks",
    (66, 12, 33),
    "Key chunks twice as long: half as many are skipped.",
    "Count the first rows by hand: how many of the 6 key chunks does each query chunk skip?",
)
pairs_only_even_query_chunks = _pairs(
    "pairs-only-even-query-chunks",
    (66, 12, 15),
    "Chunks of 200 make a triangle of 6 by 6 boxes.",
    "The queries are still cut into chunks of 100. How many rows of boxes are there?",
)


# --- mended_window_attention ---


def _windowed(Q, K, V, window, chunk_size, *, local_i=False, local_j=False, shift=0, causal=True):
    L = Q.shape[-2]
    output = np.zeros((*Q.shape[:-1], V.shape[-1]))
    for start in range(0, L, chunk_size):
        stop = min(start + chunk_size, L)
        first = max(0, start - window)
        i = np.arange(start, stop)[:, None] - (start if local_i else 0)
        j = np.arange(first, stop) - (first if local_j else 0)
        allowed = (j > i - window - shift) & ((j <= i) | (not causal))
        s = Q[..., start:stop, :] @ _t(K[..., first:stop, :]) / _root(Q)
        output[..., start:stop, :] = _softmax(_hide(s, allowed)) @ V[..., first:stop, :]
    return output


def _wrong_window(id, believed, tell, section=WINDOW, **options):
    answer = functools.partial(_windowed, **options)
    return mistake_value(
        "mended_window_attention", id, answer, believed=believed, tell=tell, section=section
    )


mended_window_positions_still_local = _wrong_window(
    "mended-window-positions-still-local",
    "The only fault is the number of tokens in the window.",
    "In the second chunk: which token is row 0, and which is column 0?",
    local_i=True,
    local_j=True,
)
mended_window_still_one_too_many = _wrong_window(
    "mended-window-still-one-too-many",
    "The only fault is in the positions.",
    "With a window of 1, how many tokens does your mask leave in each row?",
    shift=1,
)
mended_window_one_too_few = _wrong_window(
    "mended-window-one-too-few",
    "The token itself does not count as one of the window.",
    "With a window of 1, which key is left for each token?",
    shift=-1,
)
mended_window_only_keys_in_the_sequence = _wrong_window(
    "mended-window-only-keys-in-the-sequence",
    "Only the keys have to count from the beginning of the sequence.",
    "Both i and j are compared. Are they counted from the same place?",
    local_i=True,
)
mended_window_only_queries_in_the_sequence = _wrong_window(
    "mended-window-only-queries-in-the-sequence",
    "Only the queries have to count from the beginning of the sequence.",
    "Column 0 is token `oldest`. What is j there?",
    local_j=True,
)
mended_window_not_causal = _wrong_window(
    "mended-window-not-causal",
    "The window is a band, so it needs only one bound.",
    "Change the last token of a chunk. Does the output of the first one change?",
    causal=False,
)


@mistake(
    "mended_window_attention",
    believed="The window ends with the chunk before; own positions settle the rest.",
    tell="With a long window, does the first token of your second chunk see token 0?",
    section=WINDOW,
)
def mended_window_only_its_own_chunk(Q, K, V, window, chunk_size):
    parts = [
        _windowed(*(x[..., start : start + chunk_size, :] for x in (Q, K, V)), window, chunk_size)
        for start in range(0, Q.shape[-2], chunk_size)
    ]
    return np.concatenate(parts, axis=-2)


@mistake(
    "mended_window_attention",
    believed="Without the lower bound the cut of the keys is the window.",
    tell="With one chunk that holds everything and a window of 3: how many tokens see token 0?",
    section=WINDOW,
)
def mended_window_no_lower_bound(Q, K, V, window, chunk_size):
    return _windowed(Q, K, V, window, chunk_size, shift=10**6)


# --- local_global_mask ---


def _pattern(L, block, *, near=(0, 1), first=True, causal=True, number=None):
    position = np.arange(L)
    number = position // block if number is None else number(position, block)
    apart = number[:, None] - number
    mask = np.isin(apart, near)
    if first:
        mask = mask | (number == 0)
    return mask & (position[:, None] >= position) if causal else mask


def _wrong_blocks(id, believed, tell, section=BLOCKS, **options):
    answer = functools.partial(_pattern, **options)
    return mistake_value(
        "local_global_mask", id, answer, believed=believed, tell=tell, section=section
    )


blocks_not_causal = _wrong_blocks(
    "blocks-not-causal",
    "A block is seen as a whole, so the block pattern is the mask.",
    "May the first token of a block see the last one of the same block?",
    causal=False,
)
blocks_only_their_own = _wrong_blocks(
    "blocks-only-their-own",
    "Near means in the same block.",
    "Does a token see the block before its own?",
    near=(0,),
)
blocks_not_their_own = _wrong_blocks(
    "blocks-not-their-own",
    "A block sees the block before it.",
    "Does a token see itself?",
    near=(1,),
)
blocks_two_before = _wrong_blocks(
    "blocks-two-before",
    "Near means up to two blocks away.",
    "How many blocks before its own does a token see, the first block left aside?",
    near=(0, 1, 2),
)
blocks_without_the_first = _wrong_blocks(
    "blocks-without-the-first",
    "The first block is seen by its neighbor only.",
    "Does the last token see token 0?",
    first=False,
)
blocks_number_rounded = _wrong_blocks(
    "blocks-number-rounded",
    "The number of a block is the position divided by its length, rounded.",
    "For blocks of 4: which number do you give to token 3, and which to token 4?",
    number=lambda position, block: np.round(position / block).astype(int),
)
blocks_number_by_remainder = _wrong_blocks(
    "blocks-number-by-remainder",
    "`%` gives the number of a block.",
    "For blocks of 4: which number do you give to token 4, and which to token 3?",
    number=lambda position, block: position % block,
)
blocks_count_from_the_end = _wrong_blocks(
    "blocks-count-from-the-end",
    "If the length is no multiple of the block, the first block is the shorter one.",
    "For L = 13 and blocks of 4: which tokens are in your first block?",
    number=lambda position, block: (position + -len(position) % block) // block,
)


@mistake(
    "local_global_mask",
    believed="The first block sees everything, and the others see the first token.",
    tell="How many tokens of the first block does a late token see in your mask?",
    section=BLOCKS,
)
def blocks_first_token_only(L, block):
    mask = _pattern(L, block, first=False)
    mask[:, :1] = True
    return mask


@mistake(
    "local_global_mask",
    believed="The block before is a sliding window of one block.",
    tell="Does the last token of a block see the first token of the block before?",
    section=BLOCKS,
)
def blocks_as_a_window(L, block):
    position = np.arange(L)
    apart = position[:, None] - position
    own = position[:, None] // block == position // block
    return (apart >= 0) & ((apart <= block) | own | (position < block))


@mistake(
    "local_global_mask",
    believed="A mask of ones and zeros is as good as a boolean one.",
    tell="Which dtype has your result? `np.where` and `~` treat numbers in another way.",
    section=BLOCKS,
)
def blocks_as_numbers(L, block):
    return _pattern(L, block).astype(float)


@mistake(
    "local_global_mask",
    believed="The mask is built from whole blocks, so the length is a multiple of the block.",
    tell="How many blocks are there for L = 13 and blocks of 4, and how large is your mask?",
    section=BLOCKS,
)
def blocks_of_whole_blocks_only(L, block):
    return _pattern(L // block * block, block)


@mistake(
    "local_global_mask",
    believed="The rows of the mask are the keys.",
    tell="mask[i, j]: which of the two is the query?",
    section=BLOCKS,
)
def blocks_transposed(L, block):
    return _pattern(L, block).T


# --- topk_attention ---


def _causal_scores(Q, K, causal):
    scores = Q @ _t(K) / _root(Q)
    return _hide(scores, np.tri(*scores.shape[-2:], dtype=bool)) if causal else scores


def _kept(scores, k):
    k = min(k, scores.shape[-1])
    return scores >= np.sort(scores, axis=-1)[..., -k, None]


def _topk(Q, K, V, k, causal=True):
    scores = _causal_scores(Q, K, causal)
    return _softmax(_hide(scores, _kept(scores, k))) @ V


@mistake(
    "topk_attention",
    believed="The k best are chosen among all keys; hiding the future comes after.",
    tell="Which keys does token 0 choose in your function, and which of them may it see?",
    section=TOPK,
)
def topk_before_the_causal_mask(Q, K, V, k, causal=True):
    scores = Q @ _t(K) / _root(Q)
    scores = _hide(scores, _kept(scores, k))
    return _softmax(_hide(scores, np.tri(*scores.shape[-2:], dtype=bool) | (not causal))) @ V


@mistake(
    "topk_attention",
    believed="Each key keeps the k queries that like it best.",
    tell="Along which axis do you sort? How many keys are left for each query?",
    section=TOPK,
)
def topk_over_the_queries(Q, K, V, k, causal=True):
    scores = _causal_scores(Q, K, causal)
    return _softmax(_hide(scores, _t(_kept(_t(scores), k)))) @ V


@mistake(
    "topk_attention",
    believed="What is larger than the k-th score are the k best.",
    tell="Is the k-th score itself larger than the k-th score?",
    section=TOPK,
)
def topk_strictly_above_the_bound(Q, K, V, k, causal=True):
    scores = _causal_scores(Q, K, causal)
    bound = np.sort(scores, axis=-1)[..., -min(k, scores.shape[-1]), None]
    return _softmax(_hide(scores, scores > bound)) @ V


@mistake(
    "topk_attention",
    believed="Index k from the end is the k-th largest.",
    tell="With k = 1, how many keys does your function keep?",
    section=TOPK,
)
def topk_one_too_many(Q, K, V, k, causal=True):
    return _topk(Q, K, V, k + 1, causal)


@mistake(
    "topk_attention",
    believed="Sorted order begins with the best.",
    tell="With k = 1: is it the largest score of a row that you keep?",
    section=TOPK,
)
def topk_smallest(Q, K, V, k, causal=True):
    scores = _causal_scores(Q, K, causal)
    smallest = np.sort(scores if not causal else np.where(np.isinf(scores), np.inf, scores))
    bound = smallest[..., min(k, scores.shape[-1]) - 1, None]
    return _softmax(_hide(scores, scores <= bound)) @ V


@mistake(
    "topk_attention",
    believed="The best keys are those with the largest scores in size.",
    tell="Is a score of -5 better or worse than one of 1?",
    section=TOPK,
)
def topk_by_size(Q, K, V, k, causal=True):
    scores = _causal_scores(Q, K, causal)
    size = np.where(np.isinf(scores), -np.inf, np.abs(scores))
    return _softmax(_hide(scores, _kept(size, k))) @ V


@mistake(
    "topk_attention",
    believed="The weights of the other keys are set to 0 after the softmax.",
    tell="What do the weights that are left add up to?",
    section=TOPK,
)
def topk_not_normalized_again(Q, K, V, k, causal=True):
    scores = _causal_scores(Q, K, causal)
    return (_softmax(scores) * _kept(scores, k)) @ V


@mistake(
    "topk_attention",
    believed="A score of 0 takes a key out of the softmax.",
    tell="What is exp(0)? Which score gives weight 0?",
    section=TOPK,
)
def topk_others_get_score_zero(Q, K, V, k, causal=True):
    scores = _causal_scores(Q, K, causal)
    rest = np.where(_kept(scores, k), scores, 0.0)
    return _softmax(_hide(rest, ~np.isneginf(scores))) @ V


@mistake(
    "topk_attention",
    believed="There are always at least k keys.",
    tell="What does your function do with k = 9 and 5 keys?",
    section=TOPK,
)
def topk_more_than_there_are(Q, K, V, k, causal=True):
    scores = _causal_scores(Q, K, causal)
    bound = np.partition(scores, -k, axis=-1)[..., -k, None]
    return _softmax(_hide(scores, scores >= bound)) @ V


@mistake(
    "topk_attention",
    believed="The k-th entry from the end of a sorted row is always there.",
    tell="How many keys are there, and how large is k?",
    section=TOPK,
)
def topk_index_beyond_the_keys(Q, K, V, k, causal=True):
    scores = _causal_scores(Q, K, causal)
    return _softmax(_hide(scores, scores >= np.sort(scores)[..., -k, None])) @ V


@mistake(
    "topk_attention",
    believed="The future is hidden only where it is asked for.",
    tell="What is the default of `causal`? Change the last token and look at the first.",
    section=TOPK,
)
def topk_never_causal(Q, K, V, k, causal=True):
    return _topk(Q, K, V, k, False)


@mistake(
    "topk_attention",
    believed="Top-k attention is causal.",
    tell="With causal=False, does query 0 see the last key?",
    section=TOPK,
)
def topk_always_causal(Q, K, V, k, causal=True):
    return _topk(Q, K, V, k, True)


@mistake(
    "topk_attention",
    believed="Multiplying the scores by a triangle hides the future.",
    tell="What is the score of a hidden key in your function? Is it worse than a score of -1?",
    section=TOPK,
)
def topk_hidden_keys_score_zero(Q, K, V, k, causal=True):
    scores = Q @ _t(K) / _root(Q)
    scores = scores * np.tri(*scores.shape[-2:]) if causal else scores
    return _softmax(_hide(scores, _kept(scores, k))) @ V


@mistake(
    "topk_attention",
    believed="The k best keys of the last query will do for all.",
    tell="Do two queries with different scores keep different keys?",
    section=TOPK,
)
def topk_same_keys_for_all(Q, K, V, k, causal=True):
    scores = _causal_scores(Q, K, causal)
    return _softmax(_hide(scores, _kept(scores, k)[..., -1:, :])) @ V


@mistake(
    "topk_attention",
    believed="Index arrays pick a row's keys in each sequence by itself.",
    tell="For a batch of 2: how many keys does one query keep? Do the sequences share theirs?",
    section=TOPK,
)
def topk_keys_shared_by_the_batch(Q, K, V, k, causal=True):
    scores = _causal_scores(Q, K, causal)
    kept = _kept(scores, k).any(axis=tuple(range(scores.ndim - 2)))
    return _softmax(_hide(scores, kept)) @ V


@mistake(
    "topk_attention",
    believed="The chosen keys count alike.",
    tell="Of two keys that are kept, which one gets more weight?",
    section=TOPK,
)
def topk_equal_weights(Q, K, V, k, causal=True):
    scores = _causal_scores(Q, K, causal)
    kept = _kept(scores, k) & ~np.isneginf(scores)
    return kept / kept.sum(axis=-1, keepdims=True) @ V


@mistake(
    "topk_attention",
    believed="The scores are the products of queries and keys.",
    tell="By what are scores divided in scaled dot-product attention?",
    section=TOPK,
)
def topk_no_scale(Q, K, V, k, causal=True):
    return _topk(Q * _root(Q), K, V, k, causal)


@mistake(
    "topk_attention",
    believed="K.T is the transpose of a matrix, whatever comes before it.",
    tell="What is the shape of K.T for K of shape (B, L, d)?",
    section=TOPK,
)
def topk_all_axes_reversed(Q, K, V, k, causal=True):
    Q @ K.T
    return _topk(Q, K, V, k, causal)


@mistake(
    "topk_attention",
    believed="An argument may serve as scratch space.",
    tell="Print Q before and after the call. Does `/=` make a new array?",
    section=TOPK,
)
def topk_in_place(Q, K, V, k, causal=True):
    Q /= _root(Q)
    return _topk(Q * _root(Q), K, V, k, causal)


# --- linear_attention ---


def _phi(x):
    return np.where(x > 0, x + 1.0, np.exp(np.minimum(x, 0.0)))


def _linear(
    Q,
    K,
    V,
    causal=False,
    *,
    phi=_phi,
    phi_k=None,
    past=lambda sums, places: sums,
    axis=-3,
    normalize="sum",
):
    q, k = phi(Q), (phi if phi_k is None else phi_k)(K)
    if not causal:
        numerator = q @ (_t(k) @ V)
        total = k.sum(axis=-2, keepdims=True)
    else:
        numerator = np.einsum(
            "...lk,...lkv->...lv", q, past(_running(k[..., :, None] * V[..., None, :], axis), 3)
        )
        total = past(_running(k, -2), 2)
    if normalize == "none" or (normalize == "causal" and not causal):
        return numerator
    if normalize == "length":
        count = np.arange(1, Q.shape[-2] + 1)[:, None] if causal else K.shape[-2]
        return numerator / count
    if normalize == "whole":
        total = k.sum(axis=-2, keepdims=True)
    if normalize == "scaled":
        numerator /= _root(Q)
    if normalize == "eps":
        return numerator / ((q * total).sum(axis=-1, keepdims=True) + 1)
    return numerator / (q * total).sum(axis=-1, keepdims=True)


def _running(x, axis):
    return np.cumsum(x, axis=axis)


def _without_the_present(sums, places):
    """Move running sums on by a token; the tokens are the axis so many places from the end."""
    sums = np.roll(sums, 1, axis=-places)
    sums[(..., 0, *[slice(None)] * (places - 1))] = 0
    return sums


def _wrong_linear(id, believed, tell, section=LINEAR, **options):
    answer = functools.partial(_linear, **options)
    return mistake_value(
        "linear_attention", id, answer, believed=believed, tell=tell, section=section
    )


linear_attention_relu = _wrong_linear(
    "linear-attention-relu",
    "Any function that is not negative will do, relu for instance.",
    "Which weights get a query whose features are all negative, if phi is 0 there?",
    phi=lambda x: np.maximum(x, 0.0),
)
linear_attention_elu_without_one = _wrong_linear(
    "linear-attention-elu-without-one",
    "The feature map is elu.",
    "Which values has your phi for negative x? Weights must not be negative.",
    phi=lambda x: np.where(x > 0, x, np.exp(np.minimum(x, 0.0)) - 1),
)
linear_attention_relu_plus_one = _wrong_linear(
    "linear-attention-relu-plus-one",
    "For negative x, phi is 1.",
    "Is your phi below 1 for a feature of -2?",
    phi=lambda x: np.maximum(x, 0.0) + 1,
)
linear_attention_exp = _wrong_linear(
    "linear-attention-exp",
    "The feature map is the exponential.",
    "What is phi(2)? Look at the upper line of its definition.",
    phi=np.exp,
)
linear_attention_identity = _wrong_linear(
    "linear-attention-identity",
    "Linear means that the products of queries and keys are the weights.",
    "Where does your function use phi?",
    phi=lambda x: x,
)
linear_attention_map_on_queries_only = _wrong_linear(
    "linear-attention-map-on-queries-only",
    "The feature map belongs to the queries.",
    "phi stands twice in the weight of a key. Where does your function apply it?",
    phi_k=lambda x: x,
)
linear_attention_exp_overflows = _wrong_linear(
    "linear-attention-exp-overflows",
    "Multiplying the branch that is not taken by 0 takes it out.",
    "What is 0 * exp(900)?",
    phi=lambda x: (x > 0) * (x + 1.0) + (x <= 0) * np.exp(x),
)
linear_attention_scaled = _wrong_linear(
    "linear-attention-scaled",
    "Queries and keys share a division by the root of d_k here too.",
    "Does the root of d_k stand in the formula of linear attention?",
    phi_k=None,
    phi=lambda x: _phi(x / _root(x) ** 0.5),
)
linear_attention_no_normalizer = _wrong_linear(
    "linear-attention-no-normalizer",
    "The brackets are moved, and that is all.",
    "If all values are equal, what is your output?",
    normalize="none",
)
linear_attention_normalizer_only_causal = _wrong_linear(
    "linear-attention-normalizer-only-causal",
    "Over all keys the sums are the same for every query, so only the causal form is normalized.",
    "With causal=False: is the denominator of two different queries the same?",
    normalize="causal",
)
linear_attention_divided_by_length = _wrong_linear(
    "linear-attention-divided-by-length",
    "The sum over the keys is normalized by their number.",
    "What do the weights of a query add up to?",
    normalize="length",
)
linear_attention_one_added = _wrong_linear(
    "linear-attention-one-added",
    "A small number in the denominator protects from a division by 0.",
    "How large is what you add, beside a denominator of a few units?",
    normalize="eps",
)
linear_attention_whole_normalizer = _wrong_linear(
    "linear-attention-whole-normalizer",
    "The normalizer is the same with and without causality.",
    "Over which keys does the denominator of token 0 run?",
    RECURRENCE,
    normalize="whole",
)
linear_attention_causal_off_by_one = _wrong_linear(
    "linear-attention-causal-off-by-one",
    "The state holds the tokens before the present one.",
    "What does token 0 see?",
    RECURRENCE,
    past=_without_the_present,
)
linear_attention_state_of_the_past = _wrong_linear(
    "linear-attention-state-of-the-past",
    "The state is read before the present token is written; the normalizer is another matter.",
    "The denominator of token 0 holds token 0. And its numerator?",
    RECURRENCE,
    past=lambda sums, places: _without_the_present(sums, 3) if places == 3 else sums,
)
linear_attention_state_summed_over_features = _wrong_linear(
    "linear-attention-state-summed-over-features",
    "The tokens are the last axis but one, in the products as in K.",
    "k[..., :, None] * V[..., None, :] has one axis more than K. Which are its last three?",
    RECURRENCE,
    axis=-2,
)
linear_attention_queries_scaled = _wrong_linear(
    "linear-attention-queries-scaled",
    "The queries are divided by the root of d_k, as always.",
    "Does the root of d_k stand in the formula of linear attention?",
    phi_k=_phi,
    phi=lambda x: _phi(x / _root(x)),
)
linear_attention_output_scaled = _wrong_linear(
    "linear-attention-output-scaled",
    "The sum over the keys is divided by the root of d_k.",
    "If all values are equal, what is your output? Which number stands beside the denominator?",
    normalize="scaled",
)


def _features_divided(q, k, V):
    """Divide the state by the total, feature by feature, before the query uses it."""
    state = _running(k[..., :, None] * V[..., None, :], -3) / _running(k, -2)[..., None]
    return np.einsum("...lk,...lkv->...lv", q, state)


@mistake(
    "linear_attention",
    believed="Dividing the summed values by the summed keys, feature by feature, normalizes.",
    tell="If all values are 1, is your output 1? The denominator is one number a query.",
    section=RECURRENCE,
)
def linear_attention_featurewise_normaliser(Q, K, V, causal=False):
    if not causal:
        return _linear(Q, K, V)
    return _features_divided(_phi(Q), _phi(K), V)


@mistake(
    "linear_attention",
    believed="The running sum over axis 1 is the sum over time, whatever the layout.",
    tell="Axis 1 of an array of shape (B, h, L, d): which is it? And of one of shape (L, d)?",
    section=RECURRENCE,
)
def linear_attention_cumsum_over_heads(Q, K, V, causal=False):
    if not causal:
        return _linear(Q, K, V)
    q, k = _phi(Q), _phi(K)
    state = _running(k[..., :, None] * V[..., None, :], -3)
    numerator = np.einsum("...lk,...lkv->...lv", q, state)
    return numerator / (q * _running(k, 1)).sum(axis=-1, keepdims=True)


@mistake(
    "linear_attention",
    believed="The running sum over the last axis is the sum over time.",
    tell="The last axis of K: is it the tokens, or the features of a token?",
    section=RECURRENCE,
)
def linear_attention_cumsum_over_features(Q, K, V, causal=False):
    if not causal:
        return _linear(Q, K, V)
    q, k = _phi(Q), _phi(K)
    state = _running(k[..., :, None] * V[..., None, :], -3)
    numerator = np.einsum("...lk,...lkv->...lv", q, state)
    return numerator / (q * _running(k, -1)).sum(axis=-1, keepdims=True)


@mistake(
    "linear_attention",
    believed="The running sum over axis 0 is the sum over time.",
    tell="Axis 0 of an array of shape (B, L, d): which is it?",
    section=RECURRENCE,
)
def linear_attention_cumsum_over_the_batch(Q, K, V, causal=False):
    if not causal:
        return _linear(Q, K, V)
    q, k = _phi(Q), _phi(K)
    state = _running(k[..., :, None] * V[..., None, :], 0)
    numerator = np.einsum("...lk,...lkv->...lv", q, state)
    return numerator / (q * _running(k, 0)).sum(axis=-1, keepdims=True)


@mistake(
    "linear_attention",
    believed="Linear attention is causal only in decoding; the sums always run over all keys.",
    tell="With causal=True: change the last token and look at the first.",
    section=RECURRENCE,
)
def linear_attention_never_causal(Q, K, V, causal=False):
    return _linear(Q, K, V)


@mistake(
    "linear_attention",
    believed="The running sum is normalized by the sum of its own size so far.",
    tell="Is phi(q) part of your denominator?",
    section=LINEAR,
)
def linear_attention_query_not_in_normalizer(Q, K, V, causal=False):
    q, k = _phi(Q), _phi(K)
    if not causal:
        return q @ (_t(k) @ V) / k.sum(axis=(-2, -1), keepdims=True)
    numerator = np.einsum("...lk,...lkv->...lv", q, _running(k[..., :, None] * V[..., None, :], -3))
    return numerator / _running(k, -2).sum(axis=-1, keepdims=True)


@mistake(
    "linear_attention",
    believed="With another weight the rest stays: scores first, then a sum over the keys.",
    tell="Which product do your brackets take first, and how large is it?",
    section=MEMORY,
)
def linear_attention_all_pairs(Q, K, V, causal=False):
    weights = _phi(Q) @ _t(_phi(K))
    if causal:
        weights = weights * np.tri(Q.shape[-2])
    return weights @ V / weights.sum(axis=-1, keepdims=True)


@mistake(
    "linear_attention",
    believed="The brackets can be moved over all keys only; the causal form needs a triangle.",
    tell="With causal=True: which of your arrays has an entry for each pair of tokens?",
    section=MEMORY,
)
def linear_attention_all_pairs_if_causal(Q, K, V, causal=False):
    return linear_attention_all_pairs.answer(Q, K, V, True) if causal else _linear(Q, K, V)


@mistake(
    "linear_attention",
    believed="The weights of linear attention go through a softmax as well.",
    tell="Does an exponential of phi(q) . phi(k) stand in the formula?",
    section="Where it is not softmax",
)
def linear_attention_softmax_of_features(Q, K, V, causal=False):
    scores = _phi(Q) @ _t(_phi(K))
    return _softmax(_hide(scores, np.tri(*scores.shape[-2:], dtype=bool) | (not causal))) @ V


@mistake(
    "linear_attention",
    believed="The transpose of a matrix is `.T`, whatever comes before it.",
    tell="What is the shape of phi(K).T for K of shape (B, L, d)?",
    section=LINEAR,
)
def linear_attention_all_axes_reversed(Q, K, V, causal=False):
    K.T @ V
    return _linear(Q, K, V, causal)


@mistake(
    "linear_attention",
    believed="An argument may serve as scratch space.",
    tell="Print K before and after the call. Did you write the features into it?",
    section=LINEAR,
)
def linear_attention_in_place(Q, K, V, causal=False):
    output = _linear(Q, K, V, causal)
    K[...] = _phi(K)
    return output


# --- mended_linear_attention ---


def _mended_linear(Q, K, V, *, state_axis=-3, total_axis=-2, total=None, normalize=True):
    q, k = _phi(Q), _phi(K)
    state = _running(k[..., :, None] * V[..., None, :], state_axis)
    total = _running(k, total_axis) if total is None else total(k)
    numerator = np.einsum("...lk,...lkv->...lv", q, state)
    return numerator / (q * total).sum(axis=-1, keepdims=True) if normalize else numerator


def _wrong_mended_linear(id, believed, tell, section=RECURRENCE, **options):
    answer = functools.partial(_mended_linear, **options)
    return mistake_value(
        "mended_linear_attention", id, answer, believed=believed, tell=tell, section=section
    )


mended_linear_whole_normalizer = _wrong_mended_linear(
    "mended-linear-whole-normalizer",
    "The only fault is the axis.",
    "What is the output of token 0, and what should it be?",
    total=lambda k: k.sum(axis=-2, keepdims=True),
)
mended_linear_axis_still_fixed = _wrong_mended_linear(
    "mended-linear-axis-still-fixed",
    "The only fault is the normalizer.",
    "Which axis are the tokens in an array of shape (B, h, L, d_k, d_v)?",
    state_axis=1,
)
mended_linear_axis_of_the_features = _wrong_mended_linear(
    "mended-linear-axis-of-the-features",
    "The axis of the tokens is the last but one in both arrays.",
    "The products have one axis more than k. Which are their last three axes?",
    state_axis=-2,
)
mended_linear_both_axes_fixed = _wrong_mended_linear(
    "mended-linear-both-axes-fixed",
    "Both sums run over axis 1.",
    "Axis 1 of an array of shape (L, d): which is it?",
    state_axis=1,
    total_axis=1,
)
mended_linear_not_normalized = _wrong_mended_linear(
    "mended-linear-not-normalized",
    "Without the denominator there is nothing wrong in it.",
    "If all values are equal, what is your output?",
    normalize=False,
)
mended_linear_strict_normalizer = _wrong_mended_linear(
    "mended-linear-strict-normalizer",
    "The denominator holds what came before the token.",
    "The numerator of token 0 holds token 0. And its denominator?",
    total=lambda k: _running(k, -2) - k + 1e-9,
)


@mistake(
    "mended_linear_attention",
    believed="Each feature has a denominator of its own.",
    tell="If all values are 1, is your output 1? The denominator is one number a query.",
    section=RECURRENCE,
)
def mended_linear_featurewise(Q, K, V):
    return _features_divided(_phi(Q), _phi(K), V)


# --- cached_attention ---


def _positions(n, m, window=None):
    query, key = np.arange(m - n, m)[:, None], np.arange(m)
    return (key <= query) & (key > query - (m + 1 if window is None else window))


def _cached(
    Q,
    K,
    V,
    cache=None,
    window=None,
    *,
    mask=_positions,
    join=lambda old, new: np.concatenate([old, new], axis=-2),
    keep=lambda x, window: x if window is None else x[..., -window:, :],
    root=None,
):
    if cache is not None:
        K, V = join(cache[0], K), join(cache[1], V)
    s = Q @ _t(K) / (_root(Q) if root is None else root)
    output = _softmax(_hide(s, mask(Q.shape[-2], K.shape[-2], window))) @ V
    return output, (keep(K, window), keep(V, window))


def _wrong_cache(id, believed, tell, section=CACHE, **options):
    answer = functools.partial(_cached, **options)
    return mistake_value(
        "cached_attention", id, answer, believed=believed, tell=tell, section=section
    )


cache_causal_top_left = _wrong_cache(
    "cache-causal-top-left",
    "A triangle of the shape (new tokens, all tokens) is the causal mask.",
    "One new token and 5 in the cache: how many of the 6 keys does your mask leave?",
    mask=lambda n, m, window: (
        _positions(n, n, window)
        if n == m
        else np.tri(n, m, dtype=bool) & (np.arange(m) > np.arange(n)[:, None] - (window or m))
    ),
)
cache_without_a_causal_mask = _wrong_cache(
    "cache-without-a-causal-mask",
    "What is in the cache is the past, so no mask is needed.",
    "Of 3 new tokens in one call: does the first see the third?",
    mask=lambda n, m, window: np.arange(m) > np.arange(m - n, m)[:, None] - (window or m + 1),
)
cache_strict = _wrong_cache(
    "cache-strict",
    "A new token sees what came before it.",
    "Does a token see itself? What does the very first one see?",
    mask=lambda n, m, window: _positions(n, m, window) & ~np.eye(n, m, m - n, dtype=bool),
)
cache_new_tokens_see_the_cache_only = _wrong_cache(
    "cache-new-tokens-see-the-cache-only",
    "New tokens of one call see the cache and themselves.",
    "Of 3 new tokens in one call: does the third see the second?",
    mask=lambda n, m, window: (
        _positions(n, m, window) & ((np.arange(m) < m - n) | np.eye(n, m, m - n, dtype=bool))
    ),
)
cache_window_one_too_many = _wrong_cache(
    "cache-window-one-too-many",
    "The window is what a token sees beside itself.",
    "With a window of 1, how many keys does a token see in your function?",
    WINDOW,
    mask=lambda n, m, window: _positions(n, m, None if window is None else window + 1),
    keep=lambda x, window: x if window is None else x[..., -window:, :],
)
cache_window_one_too_few = _wrong_cache(
    "cache-window-one-too-few",
    "A token does not count as one of its window.",
    "With a window of 3, how many keys does a token see in your function?",
    WINDOW,
    mask=lambda n, m, window: _positions(n, m, None if window is None else max(window - 1, 1)),
)
cache_window_ignored = _wrong_cache(
    "cache-window-ignored",
    "The window is there to save memory; what a token sees stays the same.",
    "Where does your function use the window? How many keys are there after 100 tokens?",
    WINDOW,
    mask=lambda n, m, window: _positions(n, m),
    keep=lambda x, window: x,
)
cache_window_in_the_cache_only = _wrong_cache(
    "cache-window-in-the-cache-only",
    "Cutting the cache is enough for a window.",
    "5 tokens come in one call, and the window is 3. How many keys does the last of them see?",
    WINDOW,
    mask=lambda n, m, window: _positions(n, m),
)
cache_never_cut = _wrong_cache(
    "cache-never-cut",
    "Hiding old tokens is enough; they may stay in the cache.",
    "How many rows has your cache after 9 tokens with a window of 3?",
    keep=lambda x, window: x,
)
cache_cut_from_minus_zero = _wrong_cache(
    "cache-cut-from-minus-zero",
    "The last window - 1 rows are those from -(window - 1) on.",
    "For a window of 1: what is x[..., -0:, :]?",
    keep=lambda x, window: x if window is None else x[..., -(window - 1) :, :],
)
cache_keeps_the_oldest = _wrong_cache(
    "cache-keeps-the-oldest",
    "The first `window` rows are the window.",
    "Which tokens are the latest: those at the beginning of the cache, or at its end?",
    keep=lambda x, window: x if window is None else x[..., :window, :],
)
cache_new_tokens_in_front = _wrong_cache(
    "cache-new-tokens-in-front",
    "The order in the cache does not matter, since attention is a sum.",
    "Which of your columns are the new tokens, and which does your mask take for them?",
    join=lambda old, new: np.concatenate([new, old], axis=-2),
)
cache_not_extended = _wrong_cache(
    "cache-not-extended",
    "A call returns the new keys and values as the cache.",
    "After three calls with one token each: how many rows has your cache?",
    keep=lambda x, window: x[..., -1:, :],
)
cache_joined_along_the_batch = _wrong_cache(
    "cache-joined-along-the-batch",
    "Arrays are joined along their first axis.",
    "For K of shape (B, n, d): along which axis does your cache grow?",
    join=lambda old, new: np.concatenate([old, new], axis=0),
)
cache_no_scale = _wrong_cache(
    "cache-no-scale",
    "The scores are the products of queries and keys.",
    "By what are scores divided in scaled dot-product attention?",
    root=1.0,
)


@mistake(
    "cached_attention",
    believed="New tokens attend to the cache; then they are added to it.",
    tell="Are the new tokens part of the cache before your scores are computed?",
    section=CACHE,
)
def cache_extended_after_attending(Q, K, V, cache=None, window=None):
    if cache is None:
        return _cached(Q, K, V, None, window)
    n, m = Q.shape[-2], cache[0].shape[-2]
    allowed = np.arange(m) > np.arange(m, m + n)[:, None] - (
        m + n + 1 if window is None else window
    )
    output = _dense(Q, *cache, allowed)
    return output, _cached(Q, K, V, cache, window)[1]


@mistake(
    "cached_attention",
    believed="The cache is cut to the window first; then the new tokens attend to what is left.",
    tell="5 tokens come at once, and the window is 3. Which keys are left for the first of them?",
    section=WINDOW,
)
def cache_cut_before_attending(Q, K, V, cache=None, window=None):
    if cache is not None:
        K = np.concatenate([cache[0], K], axis=-2)
        V = np.concatenate([cache[1], V], axis=-2)
    if window is not None:
        K, V = K[..., -window:, :], V[..., -window:, :]
    n, m = Q.shape[-2], K.shape[-2]
    output = _softmax(_hide(Q @ _t(K) / _root(Q), np.tri(n, m, m - n, dtype=bool))) @ V
    return output, (K, V)


@mistake(
    "cached_attention",
    believed="The cache that was passed is the cache that is returned.",
    tell="Does the second call know the token of the first one?",
    section=CACHE,
)
def cache_returned_as_it_came(Q, K, V, cache=None, window=None):
    output, new = _cached(Q, K, V, cache, window)
    return output, new if cache is None else cache


@mistake(
    "cached_attention",
    believed="The cache is written in place: nobody needs the old one.",
    tell="Continue one text in two ways from the same cache. Is it still what it was?",
    section=CACHE,
)
def cache_overwritten(Q, K, V, cache=None, window=None):
    result = _cached(Q, K, V, cache, window)
    if cache is not None:
        for array in cache:
            array[...] = np.roll(array, -1, axis=-2)
    return result


@mistake(
    "cached_attention",
    believed="With a window the cache is a buffer of fixed size that may be written over.",
    tell="A cache that is full: is the array that was passed still what it was after the call?",
    section=CACHE,
)
def cache_overwritten_when_full(Q, K, V, cache=None, window=None):
    output, new = _cached(Q, K, V, cache, window)
    if cache is not None and window is not None and cache[0].shape == new[0].shape:
        for old, latest in zip(cache, new, strict=True):
            old[...] = latest
    return output, new


@mistake(
    "cached_attention",
    believed="The cache holds values and keys, in this order.",
    tell="Which of your two arrays is as wide as the values?",
    section=CACHE,
)
def cache_values_first(Q, K, V, cache=None, window=None):
    output, (k, v) = _cached(Q, K, V, None if cache is None else cache[::-1], window)
    return output, (v, k)


# --- predicted_cache_memory ---


def _caches(id, value, believed, tell):
    return mistake_value(
        "predicted_cache_memory", id, value, believed=believed, tell=tell, section=GROUPED
    )


cache_bytes_keys_only = _caches(
    "cache-bytes-keys-only",
    (384, 96, 24),
    "The cache holds one vector for each token and head.",
    "What does a new token need of an old one, beside its keys?",
)
cache_bytes_with_queries = _caches(
    "cache-bytes-with-queries",
    (1152, 672, 168),
    "Queries are kept as well.",
    "Does a new token ever look at the query of an old one?",
)
cache_bytes_queries_unless_grouped = _caches(
    "cache-bytes-queries-unless-grouped",
    (1152, 192, 48),
    "Each head keeps queries, keys and values, unless heads are grouped.",
    "Does a new token ever look at the query of an old one, in (a)?",
)
cache_bytes_in_float32 = _caches(
    "cache-bytes-in-float32",
    (1536, 384, 96),
    "A number takes 4 bytes.",
    "How many bytes does one number of float16 take?",
)
cache_bytes_one_layer = _caches(
    "cache-bytes-one-layer",
    (32, 8, 2),
    "The layers share a cache.",
    "Does every layer have keys and values of its own?",
)
cache_bytes_one_text = _caches(
    "cache-bytes-one-text",
    (192, 48, 12),
    "The texts of a batch share a cache.",
    "How many texts are written at once?",
)
cache_bytes_groups_divide_by_queries = _caches(
    "cache-bytes-groups-save-nothing",
    (768, 768, 192),
    "Grouped-query heads save computation, not memory.",
    "How many heads have keys and values in (b)?",
)
cache_bytes_groups_of_sixteen = _caches(
    "cache-bytes-one-shared-head",
    (768, 48, 12),
    "All query heads share one head of keys and values.",
    "Into how many groups are the 16 query heads put?",
)
cache_bytes_window_changes_nothing = _caches(
    "cache-bytes-window-changes-nothing",
    (768, 192, 192),
    "A window hides tokens, or replaces the grouped heads.",
    "In (c) there are grouped heads and a window. Which factor does each bring?",
)
