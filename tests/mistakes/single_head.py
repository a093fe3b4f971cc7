"""Wrong answers to exercise 2 that people really give, each with exactly one fault.

What surrounds the fault is right and shared: `_softmax`, `_scores`, `_fill`, `_finish`.
"""

import numpy as np

from autograder.mistakes import mistake

COMPARE = "Step 2: compare"
SCALE = "Step 3: scale"
WEIGHTS = "Step 4: turn scores into weights"
AVERAGE = "Step 5: average the values"
STABLE = "A softmax that does not overflow"
WHOLE = "The whole function"
GENERAL = "The general case: two sequences"
MASK = "Leaving some keys out"


def _softmax(x, axis=-1):
    """Softmax in which a row of -inf alone gives zeros."""
    peak = np.max(x, axis=axis, keepdims=True)
    e = np.exp(x - np.where(np.isneginf(peak), 0.0, peak))
    total = np.sum(e, axis=axis, keepdims=True)
    return e / np.where(total == 0, 1.0, total)


def _scores(Q, K):
    return Q @ np.swapaxes(K, -1, -2) / np.sqrt(K.shape[-1])


def _fill(scores, mask):
    return scores if mask is None else np.where(mask, scores, -np.inf)


def _finish(scores, V, mask=None):
    weights = _softmax(_fill(scores, mask))
    return weights @ V, weights


# --- softmax: which numbers belong together ---


@mistake(
    "softmax",
    believed="Softmax belongs to the array, so one maximum and one sum are enough.",
    tell="Add up your weights along `axis`, one row at a time. What does each row give?",
    section=WEIGHTS,
)
def softmax_axis_ignored(x, axis=-1):
    e = np.exp(x - np.max(x))
    return e / np.sum(e)


@mistake(
    "softmax",
    believed="Axis 0 holds the scores that compete.",
    tell="Add up your weights along axis 0 and along axis 1. Which sums should be 1?",
    section=WEIGHTS,
)
def softmax_over_first_axis(x, axis=-1):
    return _softmax(x, axis=0)


@mistake(
    "softmax",
    believed="The scores that compete always lie along the last axis.",
    tell="Call your function with two different values of `axis`. Does anything change?",
    section=WEIGHTS,
)
def softmax_over_last_axis_always(x, axis=-1):
    return _softmax(x, axis=-1)


@mistake(
    "softmax",
    believed="Scores are always a matrix, whose rows lie along axis 1.",
    tell="Which axis is the last one of a vector, and of an array with three axes?",
    section=WEIGHTS,
)
def softmax_over_second_axis_by_default(x, axis=1):
    return _softmax(x, axis=axis)


@mistake(
    "softmax",
    believed="A sum along an axis lines up with the array that it came from.",
    tell="Print the shape of your sum beside the shape of x. How does NumPy line the two up?",
    section=WEIGHTS,
)
def softmax_keepdims_missing_in_sum(x, axis=-1):
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis)


@mistake(
    "softmax",
    believed="A maximum along an axis lines up with the array that it came from.",
    tell="Print the shape of your maximum beside the shape of x. How does NumPy line the two up?",
    section=STABLE,
)
def softmax_keepdims_missing_in_max(x, axis=-1):
    e = np.exp(x - np.max(x, axis=axis))
    return e / np.sum(e, axis=axis, keepdims=True)


@mistake(
    "softmax",
    believed="The maximum may be taken along any axis, since it cancels in the end.",
    tell="What you subtract cancels only if it is the same for all scores that compete. Is it?",
    section=STABLE,
)
def softmax_max_along_other_axis(x, axis=-1):
    e = np.exp(x - np.max(x, axis=0, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


@mistake(
    "softmax",
    believed="Rows can be handled as one long list of rows, and the shape does not matter after.",
    tell="Compare the shape that you return with the shape that came in.",
    section=WEIGHTS,
)
def softmax_flattens_leading_axes(x, axis=-1):
    return _softmax(np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis]))


@mistake(
    "softmax",
    believed="Once the chosen axis has been moved to the end, the work there is the whole work.",
    tell="With axis=0, which axis of your result holds the weights that sum to 1?",
    section=WEIGHTS,
)
def softmax_axis_not_moved_back(x, axis=-1):
    return _softmax(np.moveaxis(x, axis, -1))


# --- softmax: the formula ---


@mistake(
    "softmax",
    believed="Normalizing means dividing by the sum of the inputs.",
    tell="Do your weights sum to 1? Compare what you divide with what you divide by.",
    section=WEIGHTS,
)
def softmax_denominator_without_exp(x, axis=-1):
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(x, axis=axis, keepdims=True)


@mistake(
    "softmax",
    believed="Dividing scores by their sum makes weights of them.",
    tell="What does your function return where some scores are negative?",
    section=WEIGHTS,
)
def softmax_without_exp(x, axis=-1):
    shifted = x - np.min(x, axis=axis, keepdims=True)
    return shifted / np.sum(shifted, axis=axis, keepdims=True)


@mistake(
    "softmax",
    believed="Softmax picks the largest score.",
    tell="How much weight does the second largest score get, and how much should it get?",
    section=WEIGHTS,
)
def softmax_picks_the_largest(x, axis=-1):
    best = (x == np.max(x, axis=axis, keepdims=True)).astype(float)
    return best / np.sum(best, axis=axis, keepdims=True)


@mistake(
    "softmax",
    believed="Each score can be squashed into a weight without the others.",
    tell="Raise one score and watch the weights of the others. Do they change?",
    section=WEIGHTS,
)
def softmax_squashes_each_score_alone(x, axis=-1):
    return 0.5 + 0.5 * np.tanh(np.asarray(x) / 2)


@mistake(
    "softmax",
    believed="The logarithm of the weights is as good as the weights.",
    tell="Can a weight be negative? Look at the signs of what you return.",
    section=WEIGHTS,
)
def softmax_returns_logarithms(x, axis=-1):
    shifted = x - np.max(x, axis=axis, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


@mistake(
    "softmax",
    believed="Any base will do, since the weights sum to 1 anyway.",
    tell="Two scores differ by 1. What is the ratio of their weights, and what should it be?",
    section=WEIGHTS,
)
def softmax_with_base_two(x, axis=-1):
    e = np.exp2(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


# --- softmax: floating point ---


@mistake(
    "softmax",
    believed="The formula is the algorithm; floating point does not matter.",
    tell="Evaluate np.exp(1000.0). Which step keeps the exponents small and the weights the same?",
    section=STABLE,
)
def softmax_no_max_subtraction(x, axis=-1):
    e = np.exp(x)
    return e / np.sum(e, axis=axis, keepdims=True)


@mistake(
    "softmax",
    believed="One maximum for the whole array makes every row safe.",
    tell="What happens to a row whose scores all lie far below the maximum that you subtract?",
    section=STABLE,
)
def softmax_global_max(x, axis=-1):
    e = np.exp(x - np.max(x))
    return e / np.sum(e, axis=axis, keepdims=True)


@mistake(
    "softmax",
    believed="Any typical score can be subtracted, for example the mean.",
    tell="How large can an exponent still be after your shift, if the scores lie far apart?",
    section=STABLE,
)
def softmax_subtracts_the_mean(x, axis=-1):
    e = np.exp(x - np.mean(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


@mistake(
    "softmax",
    believed="Subtracting the smallest score makes the numbers small.",
    tell="How large can an exponent still be after your shift, if the scores lie far apart?",
    section=STABLE,
)
def softmax_subtracts_the_minimum(x, axis=-1):
    e = np.exp(x - np.min(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


@mistake(
    "softmax",
    believed="Dividing by the largest score tames the exponents as subtracting it does.",
    tell="Softmax depends on the differences of the scores. Does your step keep them?",
    section=STABLE,
)
def softmax_divides_by_the_maximum(x, axis=-1):
    e = np.exp(x / np.max(np.abs(x), axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


@mistake(
    "softmax",
    believed="Scores that are too large for exp can be cut off.",
    tell="Two scores above your limit differ by 1. What happens to that difference?",
    section=STABLE,
)
def softmax_clips_the_scores(x, axis=-1):
    e = np.exp(np.clip(x, -700.0, 700.0))
    return e / np.sum(e, axis=axis, keepdims=True)


@mistake(
    "softmax",
    believed="The shift is needed only beyond 700, where exp overflows.",
    tell="From which score on does exp overflow in float32, and from which in float16?",
    section=STABLE,
)
def softmax_shifts_beyond_700_only(x, axis=-1):
    if np.max(np.abs(x)) > 700:
        x = x - np.max(x, axis=axis, keepdims=True)
    e = np.exp(x)
    return e / np.sum(e, axis=axis, keepdims=True)


@mistake(
    "softmax",
    believed="A NaN can be replaced by 0 and all is well.",
    tell="What do the weights of a row with large scores sum to in your result?",
    section=STABLE,
)
def softmax_replaces_nan_by_zero(x, axis=-1):
    e = np.exp(x)
    return np.nan_to_num(e / np.sum(e, axis=axis, keepdims=True))


@mistake(
    "softmax",
    believed="A small number in the denominator is all the protection that a division needs.",
    tell="With scores near -10,000, what is the sum of the exponentials?",
    section=STABLE,
)
def softmax_epsilon_instead_of_shift(x, axis=-1):
    e = np.exp(np.minimum(x, 300.0))
    return e / (np.sum(e, axis=axis, keepdims=True) + 1e-9)


@mistake(
    "softmax",
    believed="Results are tidier with three decimals.",
    tell="Do your weights still sum to 1 exactly? Round when printing, not when computing.",
    section=WEIGHTS,
)
def softmax_rounds_the_weights(x, axis=-1):
    return np.round(_softmax(x, axis=axis), 3)


@mistake(
    "softmax",
    believed="`zeros_like` gives a place for any result.",
    tell="Print the dtype of your result for the integers [1, 2, 3].",
    section=WEIGHTS,
)
def softmax_int_buffer(x, axis=-1):
    out = np.zeros_like(x)
    out[...] = _softmax(x, axis=axis)
    return out


@mistake(
    "softmax",
    believed="An in-place update inside a function is private to the function.",
    tell="Print x before and after the call.",
    section=WEIGHTS,
)
def softmax_mutates_input(x, axis=-1):
    x -= np.max(x, axis=axis, keepdims=True)
    np.exp(x, out=x)
    x /= np.sum(x, axis=axis, keepdims=True)
    return x


# --- attention: the scale ---


@mistake(
    "scaled_dot_product_attention",
    believed="The division by the root of d_k is a training trick that the result does not need.",
    tell="Compare your scores with the formula. Is a factor missing?",
    section=SCALE,
)
def sdpa_no_scale(Q, K, V, mask=None):
    return _finish(Q @ np.swapaxes(K, -1, -2), V, mask)


@mistake(
    "scaled_dot_product_attention",
    believed="'Scaled by the width' means divided by the width.",
    tell="How does the spread of a dot product grow with the number of its terms?",
    section=SCALE,
)
def sdpa_scale_dk_not_sqrt(Q, K, V, mask=None):
    return _finish(Q @ np.swapaxes(K, -1, -2) / K.shape[-1], V, mask)


@mistake(
    "scaled_dot_product_attention",
    believed="A variable called scale is something to divide by.",
    tell="Do your scores become smaller or larger by the scale? Try one pair of numbers.",
    section=SCALE,
)
def sdpa_scale_inverted(Q, K, V, mask=None):
    scale = K.shape[-1] ** -0.5
    return _finish(Q @ np.swapaxes(K, -1, -2) / scale, V, mask)


@mistake(
    "scaled_dot_product_attention",
    believed="Q, K and V have one width, so any of them gives the scale.",
    tell="Over which axis does the dot product of a query and a key sum? How long is it?",
    section=GENERAL,
)
def sdpa_scale_by_value_dim(Q, K, V, mask=None):
    return _finish(Q @ np.swapaxes(K, -1, -2) / np.sqrt(V.shape[-1]), V, mask)


@mistake(
    "scaled_dot_product_attention",
    believed="The scale is the root of the number of keys.",
    tell="Over which axis does the dot product of a query and a key sum? How long is it?",
    section=SCALE,
)
def sdpa_scale_by_number_of_keys(Q, K, V, mask=None):
    return _finish(Q @ np.swapaxes(K, -1, -2) / np.sqrt(K.shape[-2]), V, mask)


@mistake(
    "scaled_dot_product_attention",
    believed="The scale is the root of the number of queries.",
    tell="Over which axis does the dot product of a query and a key sum? How long is it?",
    section=SCALE,
)
def sdpa_scale_by_number_of_queries(Q, K, V, mask=None):
    return _finish(Q @ np.swapaxes(K, -1, -2) / np.sqrt(Q.shape[-2]), V, mask)


@mistake(
    "scaled_dot_product_attention",
    believed="The scale may come before or after the softmax.",
    tell="What does a row of your weights sum to?",
    section=SCALE,
)
def sdpa_scale_after_softmax(Q, K, V, mask=None):
    weights = _softmax(_fill(Q @ np.swapaxes(K, -1, -2), mask)) / np.sqrt(K.shape[-1])
    return weights @ V, weights


@mistake(
    "scaled_dot_product_attention",
    believed="Only the direction of a query and a key counts, so both have length 1.",
    tell="Double one query. Do its weights change in your result? Should they?",
    section=COMPARE,
)
def sdpa_cosine_scores(Q, K, V, mask=None):
    Q = Q / np.maximum(np.linalg.norm(Q, axis=-1, keepdims=True), 1e-12)
    K = K / np.maximum(np.linalg.norm(K, axis=-1, keepdims=True), 1e-12)
    return _finish(Q @ np.swapaxes(K, -1, -2), V, mask)


# --- attention: axes ---


@mistake(
    "scaled_dot_product_attention",
    believed="The scores are Q times K; the transpose is notation.",
    tell="Which axis of K meets the last axis of Q in your product?",
    section=COMPARE,
)
def sdpa_k_not_transposed(Q, K, V, mask=None):
    return _finish(Q @ K / np.sqrt(K.shape[-1]), V, mask)


@mistake(
    "scaled_dot_product_attention",
    believed="K is turned only where the product would raise an error otherwise.",
    tell="Take as many keys as their width. Which axis of K meets the last axis of Q then?",
    section=COMPARE,
)
def sdpa_transposes_only_on_error(Q, K, V, mask=None):
    if Q.shape[-1] != K.shape[-2]:
        K = np.swapaxes(K, -1, -2)
    return _finish(Q @ K / np.sqrt(Q.shape[-1]), V, mask)


@mistake(
    "scaled_dot_product_attention",
    believed="A square weight matrix can be used from either side.",
    tell="Which axis of the weights belongs to the keys? It has to meet the keys' axis of V.",
    section=AVERAGE,
)
def sdpa_weights_applied_transposed(Q, K, V, mask=None):
    _, weights = _finish(_scores(Q, K), V, mask)
    return np.swapaxes(weights, -1, -2) @ V, weights


@mistake(
    "scaled_dot_product_attention",
    believed="The queries compete for each key.",
    tell="For one query, add up its weights over all keys. What do you get?",
    section=WEIGHTS,
)
def sdpa_softmax_over_queries(Q, K, V, mask=None):
    weights = _softmax(_fill(_scores(Q, K), mask), axis=-2)
    return weights @ V, weights


@mistake(
    "scaled_dot_product_attention",
    believed="All weights of a score matrix sum to 1 together.",
    tell="For one query, add up its weights over all keys. What do you get?",
    section=WEIGHTS,
)
def sdpa_softmax_over_all_scores(Q, K, V, mask=None):
    weights = _softmax(_fill(_scores(Q, K), mask), axis=(-2, -1))
    return weights @ V, weights


@mistake(
    "scaled_dot_product_attention",
    believed="The keys lie along axis 1 of the scores.",
    tell="Which axis of the scores belongs to the keys when the inputs have a batch axis?",
    section=GENERAL,
)
def sdpa_softmax_over_axis_1(Q, K, V, mask=None):
    weights = _softmax(_fill(_scores(Q, K), mask), axis=1)
    return weights @ V, weights


@mistake(
    "scaled_dot_product_attention",
    believed="`.T` swaps the last two axes.",
    tell="Print the shape of K.T for a K with three axes.",
    section=GENERAL,
)
def sdpa_two_axes_only(Q, K, V, mask=None):
    return _finish(Q @ K.T / np.sqrt(K.shape[-1]), V, mask)


@mistake(
    "scaled_dot_product_attention",
    believed="There is always exactly one batch axis.",
    tell="Call your function with inputs of two axes and of four axes.",
    section=GENERAL,
)
def sdpa_three_axes_only(Q, K, V, mask=None):
    return _finish(Q @ K.transpose(0, 2, 1) / np.sqrt(K.shape[-1]), V, mask)


@mistake(
    "scaled_dot_product_attention",
    believed="`np.dot` multiplies the matrices of a batch pair by pair, as `@` does.",
    tell="Print the shape of your scores for inputs with three axes.",
    section=GENERAL,
)
def sdpa_np_dot(Q, K, V, mask=None):
    return _finish(np.dot(Q, np.swapaxes(K, -1, -2)) / np.sqrt(K.shape[-1]), V, mask)


@mistake(
    "scaled_dot_product_attention",
    believed="Axes of length 1 carry nothing and can go.",
    tell="Call your function with a batch of one. What is the shape of the output?",
    section=GENERAL,
)
def sdpa_squeezes_the_result(Q, K, V, mask=None):
    output, weights = _finish(_scores(Q, K), V, mask)
    return np.squeeze(output), np.squeeze(weights)


# --- attention: which array goes where ---


@mistake(
    "scaled_dot_product_attention",
    believed="The keys are what is averaged.",
    tell="What is the width of your output: that of the keys or that of the values?",
    section=AVERAGE,
)
def sdpa_averages_the_keys(Q, K, V, mask=None):
    _, weights = _finish(_scores(Q, K), V, mask)
    return weights @ K, weights


@mistake(
    "scaled_dot_product_attention",
    believed="The queries are compared with the values.",
    tell="Which two arrays make the scores? Their widths have to agree.",
    section=COMPARE,
)
def sdpa_keys_and_values_swapped(Q, K, V, mask=None):
    return _finish(_scores(Q, V), K, mask)


@mistake(
    "scaled_dot_product_attention",
    believed="The keys ask and the queries answer.",
    tell="How many rows must the output have: one for each query or one for each key?",
    section=COMPARE,
)
def sdpa_queries_and_keys_swapped(Q, K, V, mask=None):
    scores = np.swapaxes(_scores(Q, K), -1, -2)
    return _finish(scores, V, mask)


@mistake(
    "scaled_dot_product_attention",
    believed="The weights come first, since they are computed first.",
    tell="In which order does the question ask for the two results?",
    section=WHOLE,
)
def sdpa_results_in_wrong_order(Q, K, V, mask=None):
    output, weights = _finish(_scores(Q, K), V, mask)
    return weights, output


@mistake(
    "scaled_dot_product_attention",
    believed="The output is all that a caller needs.",
    tell="How many results does the question ask for?",
    section=WHOLE,
)
def sdpa_output_only(Q, K, V, mask=None):
    return _finish(_scores(Q, K), V, mask)[0]


@mistake(
    "scaled_dot_product_attention",
    believed="The scores are the weights.",
    tell="Add up one row of the weights that you return.",
    section=WHOLE,
)
def sdpa_returns_scores_as_weights(Q, K, V, mask=None):
    scores = _fill(_scores(Q, K), mask)
    return _finish(scores, V)[0], scores


@mistake(
    "scaled_dot_product_attention",
    believed="The softmax of the scores can be applied to the values without further ado: twice.",
    tell="How many times do the scores pass through the softmax on their way to the output?",
    section=WHOLE,
)
def sdpa_softmax_twice(Q, K, V, mask=None):
    _, weights = _finish(_scores(Q, K), V, mask)
    return _finish(weights, V, mask)


# --- attention: the mask ---


@mistake(
    "scaled_dot_product_attention",
    believed="True in a mask means 'masked'.",
    tell="Mask with one True. Does the weight go to that key?",
    section=MASK,
)
def mask_inverted(Q, K, V, mask=None):
    return _finish(_scores(Q, K), V, None if mask is None else ~np.asarray(mask))


@mistake(
    "scaled_dot_product_attention",
    believed="The function that fills masked scores changes its argument.",
    tell="Do the weights change at all when you pass a mask? Look at what becomes of the fill.",
    section=MASK,
)
def mask_fill_result_discarded(Q, K, V, mask=None):
    scores = _scores(Q, K)
    if mask is not None:
        np.where(mask, scores, -np.inf)
    return _finish(scores, V)


@mistake(
    "scaled_dot_product_attention",
    believed="mask[i, j] speaks about key i and query j.",
    tell="Take a mask that is not symmetric. Which of its axes belongs to the queries?",
    section=MASK,
)
def mask_query_key_transposed(Q, K, V, mask=None):
    scores = _scores(Q, K)
    if mask is not None:
        mask = np.swapaxes(np.broadcast_to(mask, scores.shape), -1, -2)
    return _finish(scores, V, mask)


@mistake(
    "scaled_dot_product_attention",
    believed="One sequence length describes the mask.",
    tell="Try a mask for 3 queries and 5 keys.",
    section=MASK,
)
def mask_reshaped_square(Q, K, V, mask=None):
    scores = _scores(Q, K)
    if mask is not None:
        *lead, L, _ = scores.shape
        mask = np.broadcast_to(mask, scores.shape).reshape(*lead, L, L)
    return _finish(scores, V, mask)


@mistake(
    "scaled_dot_product_attention",
    believed="A score of 0 means no attention.",
    tell="What is exp(0)? How much weight does a score of 0 get?",
    section=MASK,
)
def mask_multiplies_scores(Q, K, V, mask=None):
    scores = _scores(Q, K)
    return _finish(scores if mask is None else scores * mask, V)


@mistake(
    "scaled_dot_product_attention",
    believed="A score is 0 only where the mask made it 0.",
    tell="Can an allowed key have a score of exactly 0? What does your function do with it?",
    section=MASK,
)
def mask_takes_zero_scores_for_masked(Q, K, V, mask=None):
    scores = _scores(Q, K)
    return _finish(scores, V, None if mask is None else scores * mask != 0)


@mistake(
    "scaled_dot_product_attention",
    believed="A mask is added to the scores as it is.",
    tell="By how much does your mask change the score of a masked key?",
    section=MASK,
)
def mask_added_as_zeros_and_ones(Q, K, V, mask=None):
    scores = _scores(Q, K)
    return _finish(scores if mask is None else scores + mask, V)


@mistake(
    "scaled_dot_product_attention",
    believed="Masked weights can be set to 0 after the softmax, and the rest stays as it is.",
    tell="What does a row of your weights sum to when some keys are masked?",
    section=MASK,
)
def mask_after_softmax_without_renormalizing(Q, K, V, mask=None):
    _, weights = _finish(_scores(Q, K), V)
    if mask is not None:
        weights = weights * mask
    return weights @ V, weights


@mistake(
    "scaled_dot_product_attention",
    believed="Keys can be masked after the maximum is found, if the weights are made to sum to 1.",
    tell="A masked key has by far the largest score. What is left for the others before you mask?",
    section=MASK,
)
def mask_renormalized_after_softmax(Q, K, V, mask=None):
    _, weights = _finish(_scores(Q, K), V)
    if mask is not None:
        weights = weights * mask
        total = weights.sum(axis=-1, keepdims=True)
        weights = weights / np.where(total == 0, 1.0, total)
    return weights @ V, weights


@mistake(
    "scaled_dot_product_attention",
    believed="Masking with -inf works on whatever is called attention.",
    tell="At which step does -inf turn into a weight of 0? Print your weights.",
    section=MASK,
)
def mask_neginf_after_softmax(Q, K, V, mask=None):
    weights = _fill(_finish(_scores(Q, K), V)[1], mask)
    return weights @ V, weights


@mistake(
    "scaled_dot_product_attention",
    believed="Masked keys are left out by setting their values to 0.",
    tell="How much weight do masked keys still take from the others?",
    section=MASK,
)
def mask_zeroes_the_values(Q, K, V, mask=None):
    output, weights = _finish(_scores(Q, K), V)
    if mask is not None:
        output = (weights * mask) @ V
    return output, weights


@mistake(
    "scaled_dot_product_attention",
    believed="The mask belongs into the output; the weights are only for looking at.",
    tell="Multiply the weights that you return by V. Do you get your output?",
    section=MASK,
)
def mask_missing_in_returned_weights(Q, K, V, mask=None):
    output, _ = _finish(_scores(Q, K), V, mask)
    return output, _softmax(_scores(Q, K))


@mistake(
    "scaled_dot_product_attention",
    believed="The mask belongs into the weights that are returned; the output follows.",
    tell="Multiply the weights that you return by V. Do you get your output?",
    section=MASK,
)
def mask_missing_in_output(Q, K, V, mask=None):
    output, _ = _finish(_scores(Q, K), V)
    return output, _softmax(_fill(_scores(Q, K), mask))


@mistake(
    "scaled_dot_product_attention",
    believed="The mask always has the full shape of the scores.",
    tell="Compare the shapes of mask and scores when one mask serves a whole batch.",
    section=MASK,
)
def mask_indexed_without_broadcasting(Q, K, V, mask=None):
    scores = _scores(Q, K)
    if mask is not None:
        scores[~mask] = -np.inf
    return _finish(scores, V)


@mistake(
    "scaled_dot_product_attention",
    believed="The mask is the same for the whole batch.",
    tell="Give two samples of a batch different masks.",
    section=MASK,
)
def mask_of_first_sample_for_all(Q, K, V, mask=None):
    if mask is not None and mask.ndim > 2:
        mask = mask[:1]
    return _finish(_scores(Q, K), V, mask)


@mistake(
    "scaled_dot_product_attention",
    believed="The mask is the same for all queries.",
    tell="Give two queries different masks.",
    section=MASK,
)
def mask_of_first_query_for_all(Q, K, V, mask=None):
    return _finish(_scores(Q, K), V, None if mask is None else mask[..., :1, :])


@mistake(
    "scaled_dot_product_attention",
    believed="A mask that is there counts as true.",
    tell="What does `if mask:` ask of an array with several entries?",
    section=MASK,
)
def mask_tested_for_truth(Q, K, V, mask=None):
    return _finish(_scores(Q, K), V, mask if mask else None)


# --- attention: masks and floating point ---


@mistake(
    "scaled_dot_product_attention",
    believed="-10,000 is as good as minus infinity.",
    tell="What if every allowed score is lower than the number that you fill in?",
    section=MASK,
)
def mask_fill_not_low_enough(Q, K, V, mask=None):
    scores = _scores(Q, K)
    if mask is None:
        return _finish(scores, V)
    weights = _softmax(np.where(mask, scores, -1e4))
    weights = np.where(np.any(mask, axis=-1, keepdims=True), weights, 0.0)
    return weights @ V, weights


@mistake(
    "scaled_dot_product_attention",
    believed="-1,000,000,000 is as good as minus infinity.",
    tell="What if every allowed score is lower than the number that you fill in?",
    section=MASK,
)
def mask_fill_minus_1e9(Q, K, V, mask=None):
    scores = _scores(Q, K)
    if mask is None:
        return _finish(scores, V)
    weights = _softmax(np.where(mask, scores, -1e9))
    weights = np.where(np.any(mask, axis=-1, keepdims=True), weights, 0.0)
    return weights @ V, weights


@mistake(
    "scaled_dot_product_attention",
    believed="Subtracting a large number from masked scores removes them.",
    tell="What is left of a masked score that is larger than the number that you subtract?",
    section=MASK,
)
def mask_subtracts_a_large_number(Q, K, V, mask=None):
    scores = _scores(Q, K)
    if mask is None:
        return _finish(scores, V)
    weights = _softmax(scores - 1e9 * ~mask)
    weights = np.where(np.any(mask, axis=-1, keepdims=True), weights, 0.0)
    return weights @ V, weights


@mistake(
    "scaled_dot_product_attention",
    believed="A row in which every key is masked cannot occur.",
    tell="Mask every key of one query and print its row. What is -inf minus -inf?",
    section=MASK,
)
def mask_empty_row_is_nan(Q, K, V, mask=None):
    scores = _fill(_scores(Q, K), mask)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = e / e.sum(axis=-1, keepdims=True)
    return weights @ V, weights


@mistake(
    "scaled_dot_product_attention",
    believed="A very low finite number for masked scores settles every case.",
    tell="Mask every key of one query and print its row. Is there anything to attend to?",
    section=MASK,
)
def mask_empty_row_is_uniform(Q, K, V, mask=None):
    scores = _scores(Q, K)
    return _finish(scores if mask is None else np.where(mask, scores, -1e30), V)


@mistake(
    "scaled_dot_product_attention",
    believed="A query that may attend to nothing attends to everything.",
    tell="Mask every key of one query and print its row. Is there anything to attend to?",
    section=MASK,
)
def mask_empty_row_sees_all(Q, K, V, mask=None):
    if mask is not None:
        mask = mask | ~np.any(mask, axis=-1, keepdims=True)
    return _finish(_scores(Q, K), V, mask)


@mistake(
    "scaled_dot_product_attention",
    believed="Only the output of a query without keys has to be 0.",
    tell="Mask every key of one query and print its row of the weights.",
    section=MASK,
)
def mask_empty_row_keeps_its_weights(Q, K, V, mask=None):
    scores = _scores(Q, K)
    if mask is None:
        return _finish(scores, V)
    output, weights = _finish(np.where(mask, scores, -1e30), V)
    return np.where(np.any(mask, axis=-1, keepdims=True), output, 0.0), weights


@mistake(
    "scaled_dot_product_attention",
    believed="A key that some query may not see is left out for all.",
    tell="Over which axis do you ask whether anything is allowed?",
    section=MASK,
)
def mask_empty_row_along_wrong_axis(Q, K, V, mask=None):
    _, weights = _finish(_scores(Q, K), V, mask)
    if mask is not None:
        weights = np.where(np.all(mask, axis=-2, keepdims=True), weights, 0.0)
    return weights @ V, weights


@mistake(
    "scaled_dot_product_attention",
    believed="The formula of the softmax is the algorithm.",
    tell="Give your function scores near 10,000.",
    section=STABLE,
)
def sdpa_no_max_subtraction(Q, K, V, mask=None):
    e = np.exp(_fill(_scores(Q, K), mask))
    total = e.sum(axis=-1, keepdims=True)
    weights = e / np.where(total == 0, 1.0, total)
    return weights @ V, weights


@mistake(
    "scaled_dot_product_attention",
    believed="One maximum for all queries makes every row safe.",
    tell="What happens to a query whose scores all lie far below the maximum that you subtract?",
    section=STABLE,
)
def sdpa_global_max(Q, K, V, mask=None):
    scores = _fill(_scores(Q, K), mask)
    e = np.exp(scores - scores.max())
    total = e.sum(axis=-1, keepdims=True)
    weights = e / np.where(total == 0, 1.0, total)
    return weights @ V, weights


# --- attention: dtypes and arguments ---


@mistake(
    "scaled_dot_product_attention",
    believed="`zeros_like` gives a place for any result.",
    tell="Print the dtype of your output for integer inputs.",
    section=WHOLE,
)
def sdpa_int_buffer(Q, K, V, mask=None):
    output, weights = _finish(_scores(Q, K), V, mask)
    buffer = np.zeros(output.shape, dtype=V.dtype)
    buffer[...] = output
    return buffer, weights


@mistake(
    "scaled_dot_product_attention",
    believed="An array can be divided in place whatever it holds.",
    tell="Call your function with integers and read the error. What dtype do the scores have?",
    section=WHOLE,
)
def sdpa_divides_scores_in_place(Q, K, V, mask=None):
    scores = Q @ np.swapaxes(K, -1, -2)
    scores /= np.sqrt(K.shape[-1])
    return _finish(scores, V, mask)


@mistake(
    "scaled_dot_product_attention",
    believed="Scaling the queries in place changes nothing outside the function.",
    tell="Print Q before and after the call.",
    section=WHOLE,
)
def sdpa_scales_queries_in_place(Q, K, V, mask=None):
    if Q.dtype.kind != "f":
        Q = Q.astype(float)
    Q /= np.sqrt(K.shape[-1])
    return _finish(Q @ np.swapaxes(K, -1, -2), V, mask)


@mistake(
    "scaled_dot_product_attention",
    believed="Making the keys smaller in place changes nothing outside the function.",
    tell="Print K before and after the call.",
    section=WHOLE,
)
def sdpa_centers_keys_in_place(Q, K, V, mask=None):
    if K.dtype.kind != "f":
        K = K.astype(float)
    K -= K.mean(axis=-2, keepdims=True)  # shifts all scores of a query alike
    return _finish(_scores(Q, K), V, mask)


@mistake(
    "scaled_dot_product_attention",
    believed="The mask can be turned round in place.",
    tell="Print the mask before and after the call.",
    section=MASK,
)
def mask_inverted_in_place(Q, K, V, mask=None):
    scores = _scores(Q, K)
    if mask is not None:
        hidden = np.logical_not(mask, out=mask)
        scores = np.where(hidden, -np.inf, scores)
    return _finish(scores, V)


@mistake(
    "scaled_dot_product_attention",
    believed="Rows of the mask without an allowed key can be mended in place.",
    tell="Print a mask with an empty row before and after the call.",
    section=MASK,
)
def mask_empty_row_mended_in_place(Q, K, V, mask=None):
    if mask is None:
        return _finish(_scores(Q, K), V)
    empty = ~np.any(mask, axis=-1)
    mask[empty] = True
    weights = np.where(empty[..., None], 0.0, _finish(_scores(Q, K), V, mask)[1])
    return weights @ V, weights
