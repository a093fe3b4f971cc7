"""Wrong answers to exercise 2 that people really give, each with exactly one fault.

What surrounds the fault is right and shared: `_softmax`, `_scores`, `_fill`, `_finish`.
"""

import numpy as np

from autograder.mistakes import mistake, mistake_value

COMPARE = "Step 2: compare"
SCALE = "Step 3: scale"
WEIGHTS = "Step 4: turn scores into weights"
AVERAGE = "Step 5: average the values"
STABLE = "A softmax that does not overflow"
WHOLE = "The whole function"
GENERAL = "The general case: two sequences"
MASK = "Leaving some keys out"
BACKWARD = "The backward pass by hand"
MEASURED = "Why the scores are scaled, measured"
TORCH = "The torch twin"
WRONG = "How it goes wrong"


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
    believed="One answer for each query lines up with the table of scores.",
    tell="Print the shape of what says whether a query has any key beside the shape of the scores.",
    section=MASK,
)
def mask_empty_row_keepdims_missing(Q, K, V, mask=None):
    if mask is None:
        return _finish(_scores(Q, K), V)
    some = np.any(mask, axis=-1)
    scores = np.where(some, _fill(_scores(Q, K), mask), 0.0)
    weights = np.where(some, _softmax(scores), 0.0)
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


# --- predictions ---


def _shapes(name, value, believed, tell, section=GENERAL):
    return mistake_value(
        "predicted_shapes", f"shapes-{name}", value, believed=believed, tell=tell, section=section
    )


shapes_rows_for_keys = _shapes(
    "rows-for-keys",
    ((9, 4), (9, 6)),
    "Each row belongs to a token that is read.",
    "Who asks in this example, and who is read? The rows belong to those who ask.",
)
shapes_output_row_for_each_key = _shapes(
    "output-row-for-each-key",
    ((4, 9), (9, 6)),
    "The output has as many rows as the values.",
    "The output is weights @ V. Which of its sizes comes from the weights, and which from V?",
)
shapes_weights_transposed = _shapes(
    "weights-transposed",
    ((9, 4), (4, 6)),
    "The weights have a row for each key.",
    "The weights are multiplied by V from the left. Which of their axes meets the rows of V?",
)
shapes_output_as_wide_as_keys = _shapes(
    "output-as-wide-as-keys",
    ((4, 9), (4, 8)),
    "The output is as wide as queries and keys.",
    "Which rows are averaged: those of K or those of V? The mean is as wide as they are.",
)
shapes_output_as_wide_as_tokens = _shapes(
    "output-as-wide-as-tokens",
    ((4, 9), (4, 16)),
    "Attention gives back vectors of the width that came in.",
    "Which rows are averaged: the tokens' own vectors, or what W_v makes of them?",
)
shapes_question_reads_itself = _shapes(
    "question-reads-itself",
    ((4, 4), (4, 6)),
    "The tokens that ask also are what is read.",
    "From which of the two sequences do the keys come here?",
)
shapes_weights_as_wide_as_keys = _shapes(
    "weights-as-wide-as-keys",
    ((4, 8), (4, 6)),
    "A query has one weight for each entry of a key.",
    "A score is one number for a whole query and a whole key. How many keys are there?",
    COMPARE,
)
shapes_output_first = _shapes(
    "output-first",
    ((4, 6), (4, 9)),
    "The output is named first.",
    "In which order does the question ask for the two shapes?",
)


def _changes(name, value, believed, tell, section=WEIGHTS):
    return mistake_value(
        "predicted_changes", f"changes-{name}", value, believed=believed, tell=tell, section=section
    )


changes_masked_weight_is_lost = _changes(
    "masked-weight-is-lost",
    (0.25, 16, 0.2),
    "A masked key takes its weight away with it; the others keep theirs.",
    "What do the two weights that are left sum to in your answer to (a)?",
    MASK,
)
changes_masked_weight_is_shared_equally = _changes(
    "masked-weight-is-shared-equally",
    (0.55, 16, 0.2),
    "The weight of a masked key is shared equally among the others.",
    "Which exponentials change when a key is masked? Look at the ratio of the two that are left.",
    MASK,
)
changes_masked_weight_goes_to_the_best = _changes(
    "masked-weight-goes-to-the-best",
    (0.85, 16, 0.2),
    "The weight of a masked key goes to the best key that is left.",
    "Which exponentials change when a key is masked? Look at the ratio of the two that are left.",
    MASK,
)
changes_ratio_grows_with_the_query = _changes(
    "ratio-grows-with-the-query",
    (0.625, 8, 0.2),
    "Twice the scores mean twice the ratio of the weights.",
    "Between scores and weights stands an exponential. What does it make of a factor of 2?",
)
changes_length_of_query_cancels = _changes(
    "length-of-query-cancels",
    (0.625, 4, 0.2),
    "The softmax normalizes, so the length of the query cancels.",
    "A number added to all scores cancels in the softmax. Does a factor cancel, too?",
)
changes_longer_query_evens_out = _changes(
    "longer-query-evens-out",
    (0.625, 2, 0.2),
    "A longer query makes the weights more equal.",
    "Do the differences between the scores grow or shrink when all scores are doubled?",
    SCALE,
)
changes_copies_share_one_weight = _changes(
    "copies-share-one-weight",
    (0.625, 16, 0.125),
    "A key and its copy share the weight that the key had alone.",
    "Two equal keys count as two. Write down the four exponentials and their sum.",
)
changes_copy_takes_nothing = _changes(
    "copy-takes-nothing",
    (0.625, 16, 0.25),
    "A further key does not change the weights of those that are there.",
    "What do your four weights sum to in (c)?",
)


# --- entropy ---


def _entropy(weights, **options):
    logs = np.log(np.where(weights > 0, weights, 1.0))
    return -np.sum(weights * logs, **{"axis": -1, **options})


@mistake(
    "attention_entropy",
    believed="Entropy is counted in bits.",
    tell="For two equal weights, is your result 1 or log 2? Which logarithm gives nats?",
    section=MEASURED,
)
def entropy_in_bits(weights):
    return _entropy(weights) / np.log(2)


@mistake(
    "attention_entropy",
    believed="The sum of weight times logarithm is the entropy as it stands.",
    tell="The logarithm of a weight below 1 is negative. Can an entropy be negative?",
    section=MEASURED,
)
def entropy_without_sign(weights):
    return -_entropy(weights)


@mistake(
    "attention_entropy",
    believed="0 times anything is 0, for a computer as well.",
    tell="Evaluate 0 * np.log(0). Which weights need care before the logarithm?",
    section=MEASURED,
)
def entropy_of_zero_is_nan(weights):
    return -np.sum(weights * np.log(weights), axis=-1)


@mistake(
    "attention_entropy",
    believed="A row of weights always sums to 1, or can be made to.",
    tell="What does your function divide by in a row of zeros?",
    section=MASK,
)
def entropy_renormalizes_rows(weights):
    return _entropy(weights / weights.sum(axis=-1, keepdims=True))


@mistake(
    "attention_entropy",
    believed="A query that reads nothing is as undecided as can be.",
    tell="What do the terms of the sum give in a row of zeros?",
    section=MASK,
)
def entropy_of_empty_row_is_largest(weights):
    empty = ~weights.any(axis=-1)
    return np.where(empty, np.log(weights.shape[-1]), _entropy(weights))


@mistake(
    "attention_entropy",
    believed="The entropy is the mean of the terms.",
    tell="For n equal weights the result is log n. What is yours?",
    section=MEASURED,
)
def entropy_takes_the_mean(weights):
    return _entropy(weights) / weights.shape[-1]


@mistake(
    "attention_entropy",
    believed="The weights of one key over all queries belong together.",
    tell="Which axis of the weights sums to 1? The entropy is taken along the same one.",
    section=WEIGHTS,
)
def entropy_over_queries(weights):
    return _entropy(weights, axis=-2)


@mistake(
    "attention_entropy",
    believed="The keys lie along axis 1.",
    tell="Which axis is the last one of a vector, and of an array with three axes?",
    section=GENERAL,
)
def entropy_over_axis_1(weights):
    return _entropy(weights, axis=1)


@mistake(
    "attention_entropy",
    believed="Picking the positive weights out of the array keeps its rows.",
    tell="Print the shape of weights[weights > 0]. Where have the rows gone?",
    section=MEASURED,
)
def entropy_of_the_whole_array(weights):
    positive = weights[weights > 0]
    return -np.sum(positive * np.log(positive))


@mistake(
    "attention_entropy",
    believed="The reduced axis stays, with length 1.",
    tell="Compare the shape of your result with the one that is asked for.",
    section=MEASURED,
)
def entropy_keeps_the_axis(weights):
    return _entropy(weights, keepdims=True)


@mistake(
    "attention_entropy",
    believed="The terms need not be added up.",
    tell="How many numbers does one row of weights give in your result?",
    section=MEASURED,
)
def entropy_terms_not_summed(weights):
    return -weights * np.log(np.where(weights > 0, weights, 1.0))


@mistake(
    "attention_entropy",
    believed="Entropy lies between 0 and 1.",
    tell="For n equal weights the result is log n. What is yours?",
    section=MEASURED,
)
def entropy_divided_by_the_largest(weights):
    return _entropy(weights) / np.log(weights.shape[-1])


@mistake(
    "attention_entropy",
    believed="The number of keys that count is the entropy.",
    tell="If one weight is 1, is your result 0?",
    section=MEASURED,
)
def entropy_exponentiated(weights):
    return np.exp(_entropy(weights))


@mistake(
    "attention_entropy",
    believed="Each weight is a coin, with the rest on its other side.",
    tell="How many terms does the formula have for a row of n weights?",
    section=MEASURED,
)
def entropy_of_coins(weights):
    rest = 1 - weights
    return _entropy(weights) + _entropy(np.where(rest > 0, rest, 1.0))


@mistake(
    "attention_entropy",
    believed="One minus the sum of squares is the entropy.",
    tell="Where is the logarithm of the formula in your code?",
    section=MEASURED,
)
def entropy_of_squares(weights):
    return 1 - np.sum(weights**2, axis=-1)


@mistake(
    "attention_entropy",
    believed="What comes in are scores, which need a softmax first.",
    tell="Add up a row of what comes in. Are these scores or weights?",
    section=WEIGHTS,
)
def entropy_of_another_softmax(weights):
    return _entropy(_softmax(weights))


@mistake(
    "attention_entropy",
    believed="A hundredth added inside the logarithm does no harm.",
    tell="For one weight of 1 and zeros beside it, is your result exactly 0?",
    section=MEASURED,
)
def entropy_with_a_large_epsilon(weights):
    return -np.sum(weights * np.log(weights + 0.01), axis=-1)


@mistake(
    "attention_entropy",
    believed="The largest weight tells how sharp the attention is.",
    tell="Change the smaller weights and keep the largest. Does your result change?",
    section=MEASURED,
)
def entropy_of_the_best_key(weights):
    return -np.log(np.maximum(weights.max(axis=-1), 1e-12))


@mistake(
    "attention_entropy",
    believed="Zeros may be replaced in place, since the caller does not need them.",
    tell="Print the weights before and after the call.",
    section=MEASURED,
)
def entropy_fills_zeros_in_place(weights):
    weights[weights == 0] = 1.0
    return -np.sum(weights * np.log(weights), axis=-1)


# --- a NumPy attention to mend: mended in part ---


def _mended_finish(scores, V, empty=None):
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = e / e.sum(axis=-1, keepdims=True)
    if empty is not None:
        weights = np.where(empty, 0.0, weights)
    return weights @ V, weights


def _empty(mask):
    return None if mask is None else ~np.any(mask, axis=-1, keepdims=True)


@mistake(
    "mended_attention",
    believed="The axes were the only fault; `masked_fill` belongs to every array.",
    tell="Which library's arrays have `masked_fill`? Which function does the same in NumPy?",
    section=MASK,
)
def mended_axes_alone(Q, K, V, mask=None):
    scores = _scores(Q, K)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    return _mended_finish(scores, V)


@mistake(
    "mended_attention",
    believed="The mask was the only fault; any array can be transposed like that.",
    tell="How many axes has K here, and how many does the transpose name?",
    section=COMPARE,
)
def mended_mask_alone(Q, K, V, mask=None):
    return _finish(Q @ K.transpose(0, 1, 3, 2) / np.sqrt(K.shape[-1]), V, mask)


@mistake(
    "mended_attention",
    believed="`.T` turns each matrix of a batch.",
    tell="Print K.shape and K.T.shape for a K with three axes.",
    section=GENERAL,
)
def mended_with_T(Q, K, V, mask=None):
    return _finish(Q @ K.T / np.sqrt(K.shape[-1]), V, mask)


@mistake(
    "mended_attention",
    believed="An array with the right shape has the right entries.",
    tell="Take a K of shape (1, 2, 3) with different entries. Are its columns the keys?",
    section=WRONG,
)
def mended_with_reshape(Q, K, V, mask=None):
    B, L_k, d_k = K.shape
    return _finish(Q @ K.reshape(B, d_k, L_k) / np.sqrt(d_k), V, mask)


@mistake(
    "mended_attention",
    believed="The axes were listed wrongly, and queries are what has to be turned.",
    tell="How many rows must the scores have: one for each query or one for each key?",
    section=COMPARE,
)
def mended_turns_the_queries(Q, K, V, mask=None):
    return _finish(K @ Q.transpose(0, 2, 1) / np.sqrt(K.shape[-1]), V, mask)


@mistake(
    "mended_attention",
    believed="Every sample has the keys of the first.",
    tell="Give two samples of a batch different keys.",
    section=GENERAL,
)
def mended_for_one_sample(Q, K, V, mask=None):
    return _finish(Q @ K[0].T / np.sqrt(K.shape[-1]), V, mask)


@mistake(
    "mended_attention",
    believed="A mask is for training, and the error goes away without it.",
    tell="Do the weights change at all when you pass a mask?",
    section=MASK,
)
def mended_without_mask(Q, K, V, mask=None):
    return _finish(_scores(Q, K), V)


@mistake(
    "mended_attention",
    believed="np.where takes the same arguments as masked_fill: where True, the new value.",
    tell="np.where(condition, a, b): which of the two is taken where the condition is True?",
    section=MASK,
)
def mended_where_the_wrong_way_round(Q, K, V, mask=None):
    return _finish(_scores(Q, K), V, None if mask is None else mask == 0)


@mistake(
    "mended_attention",
    believed="Indexing with a mask broadcasts as np.where does.",
    tell="Compare the shapes of mask and scores when the mask is (L_q, L_k) or (B, 1, L_k).",
    section=MASK,
)
def mended_by_indexing(Q, K, V, mask=None):
    scores = _scores(Q, K)
    if mask is not None:
        scores[mask == 0] = -np.inf
    return _finish(scores, V)


@mistake(
    "mended_attention",
    believed="np.putmask broadcasts as np.where does.",
    tell="Compare the shapes of mask and scores when the mask is (L_q, L_k) or (B, 1, L_k).",
    section=MASK,
)
def mended_by_putmask(Q, K, V, mask=None):
    scores = _scores(Q, K)
    if mask is not None:
        np.putmask(scores, mask == 0, -np.inf)
    return _finish(scores, V)


@mistake(
    "mended_attention",
    believed="One answer for each query lines up with the table of scores.",
    tell="Print the shape of what says whether a query has any key beside the shape of the scores.",
    section=MASK,
)
def mended_but_keepdims_missing(Q, K, V, mask=None):
    if mask is None:
        return _finish(_scores(Q, K), V)
    some = np.any(mask, axis=-1)
    scores = np.where(some, _fill(_scores(Q, K), mask), 0.0)
    weights = np.where(some, _softmax(scores), 0.0)
    return weights @ V, weights


@mistake(
    "mended_attention",
    believed="A masked score is a score of 0.",
    tell="What is exp(0)? How much weight does a score of 0 get?",
    section=MASK,
)
def mended_by_multiplying(Q, K, V, mask=None):
    scores = _scores(Q, K)
    return _finish(scores if mask is None else scores * mask, V)


@mistake(
    "mended_attention",
    believed="Masked weights can be set to 0 at the end.",
    tell="What does a row of your weights sum to when some keys are masked?",
    section=MASK,
)
def mended_after_the_softmax(Q, K, V, mask=None):
    _, weights = _finish(_scores(Q, K), V)
    if mask is not None:
        weights = weights * mask
    return weights @ V, weights


@mistake(
    "mended_attention",
    believed="np.where changes its argument.",
    tell="Do the weights change at all when you pass a mask? Look at what np.where returns.",
    section=MASK,
)
def mended_and_result_given_away(Q, K, V, mask=None):
    scores = _scores(Q, K)
    if mask is not None:
        np.where(mask, scores, -np.inf)
        scores = np.where(_empty(mask), 0.0, scores)
    return _mended_finish(scores, V, _empty(mask))


@mistake(
    "mended_attention",
    believed="Once the code runs, -1,000,000,000 is low enough.",
    tell="Try allowed scores below the fill value, and a query with no allowed key.",
    section=MASK,
)
def mended_but_fill_still_finite(Q, K, V, mask=None):
    scores = _scores(Q, K)
    return _mended_finish(scores if mask is None else np.where(mask, scores, -1e9), V)


@mistake(
    "mended_attention",
    believed="-1,000,000,000 is as good as minus infinity, once empty rows are seen to.",
    tell="What if every allowed score is lower than the number that you fill in?",
    section=MASK,
)
def mended_but_fill_finite_and_empty_rows_zero(Q, K, V, mask=None):
    scores = _scores(Q, K)
    scores = scores if mask is None else np.where(mask, scores, -1e9)
    return _mended_finish(scores, V, _empty(mask))


@mistake(
    "mended_attention",
    believed="Minus infinity settles every case.",
    tell="Mask every key of one query and print its row. What is -inf minus -inf?",
    section=MASK,
)
def mended_but_empty_rows_are_nan(Q, K, V, mask=None):
    return _mended_finish(_fill(_scores(Q, K), mask), V)


@mistake(
    "mended_attention",
    believed="A lower finite number settles every case.",
    tell="Mask every key of one query and print its row. Is there anything to attend to?",
    section=MASK,
)
def mended_with_a_lower_fill(Q, K, V, mask=None):
    scores = _scores(Q, K)
    return _mended_finish(scores if mask is None else np.where(mask, scores, -1e30), V)


@mistake(
    "mended_attention",
    believed="The function always gets a mask.",
    tell="Call your function without a mask. What is then in `mask`?",
    section=MASK,
)
def mended_and_mask_now_required(Q, K, V, mask=None):
    scores = _scores(Q, K)
    return _finish(np.where(mask, scores, -np.inf), V)


@mistake(
    "mended_attention",
    believed="The division was one of the faults.",
    tell="Compare your scores with the formula. Is a factor missing?",
    section=SCALE,
)
def mended_and_scale_lost(Q, K, V, mask=None):
    return _finish(Q @ K.transpose(0, 2, 1), V, mask)


@mistake(
    "mended_attention",
    believed="The softmax ran along the wrong axis.",
    tell="For one query, add up its weights over all keys. What do you get?",
    section=WEIGHTS,
)
def mended_and_softmax_turned(Q, K, V, mask=None):
    weights = _softmax(_fill(_scores(Q, K), mask), axis=1)
    return weights @ V, weights


# --- additive attention ---


def _additive_scores(Q, K, W_q, W_k, w):
    return np.tanh(_pairs(Q @ W_q, K @ W_k)) @ w


def _pairs(queries, keys):
    return queries[..., :, None, :] + keys[..., None, :, :]


@mistake(
    "additive_attention",
    believed="The tanh is a detail.",
    tell="Leave out the queries in your code. Do the weights change? Without tanh they do not.",
    section=WEIGHTS,
)
def additive_without_tanh(Q, K, V, W_q, W_k, w):
    return _finish(_pairs(Q @ W_q, K @ W_k) @ w, V)


@mistake(
    "additive_attention",
    believed="The tanh acts on the score.",
    tell="Between which two scores can your scores lie? The formula allows larger ones.",
    section=COMPARE,
)
def additive_tanh_of_the_score(Q, K, V, W_q, W_k, w):
    return _finish(np.tanh(_pairs(Q @ W_q, K @ W_k) @ w), V)


@mistake(
    "additive_attention",
    believed="Query and key each get their own tanh.",
    tell="Does your score hold a number that depends on query and key together?",
    section=COMPARE,
)
def additive_tanh_of_each(Q, K, V, W_q, W_k, w):
    return _finish(_pairs(np.tanh(Q @ W_q), np.tanh(K @ W_k)) @ w, V)


@mistake(
    "additive_attention",
    believed="Query and key are multiplied, as in the dot product.",
    tell="What stands between the two projections in the formula?",
    section=COMPARE,
)
def additive_multiplies(Q, K, V, W_q, W_k, w):
    products = (Q @ W_q)[..., :, None, :] * (K @ W_k)[..., None, :, :]
    return _finish(np.tanh(products) @ w, V)


@mistake(
    "additive_attention",
    believed="A score compares, so it needs a difference.",
    tell="What stands between the two projections in the formula?",
    section=COMPARE,
)
def additive_subtracts(Q, K, V, W_q, W_k, w):
    return _finish(_additive_scores(Q, K, W_q, -W_k, w), V)


@mistake(
    "additive_attention",
    believed="Every score is divided by the root of a width.",
    tell="Compare your scores with the formula. Is there a factor too many?",
    section=SCALE,
)
def additive_scaled(Q, K, V, W_q, W_k, w):
    return _finish(_additive_scores(Q, K, W_q, W_k, w) / np.sqrt(len(w)), V)


@mistake(
    "additive_attention",
    believed="The score is a mean over the hidden units.",
    tell="Compare your scores with the formula. Is there a factor too many?",
    section=SCALE,
)
def additive_takes_the_mean(Q, K, V, W_q, W_k, w):
    return _finish(_additive_scores(Q, K, W_q, W_k, w) / len(w), V)


@mistake(
    "additive_attention",
    believed="The hidden units are added up.",
    tell="Change an entry of w. Do the weights change?",
    section=COMPARE,
)
def additive_without_w(Q, K, V, W_q, W_k, w):
    return _finish(_additive_scores(Q, K, W_q, W_k, np.ones_like(w)), V)


@mistake(
    "additive_attention",
    believed="w weighs the projections before the tanh.",
    tell="In the formula, what is w multiplied with: what goes into tanh, or what comes out?",
    section=COMPARE,
)
def additive_w_inside_tanh(Q, K, V, W_q, W_k, w):
    return _finish(np.tanh(_pairs(Q @ W_q, K @ W_k) * w).sum(axis=-1), V)


@mistake(
    "additive_attention",
    believed="Any squashing function will do.",
    tell="What is tanh(0), and what is your function's value at 0?",
    section=COMPARE,
)
def additive_with_sigmoid(Q, K, V, W_q, W_k, w):
    squashed = 0.5 + 0.5 * np.tanh(_pairs(Q @ W_q, K @ W_k) / 2)
    return _finish(squashed @ w, V)


@mistake(
    "additive_attention",
    believed="Hidden units have a ReLU.",
    tell="What is tanh(-2), and what is your function's value at -2?",
    section=COMPARE,
)
def additive_with_relu(Q, K, V, W_q, W_k, w):
    return _finish(np.maximum(_pairs(Q @ W_q, K @ W_k), 0) @ w, V)


@mistake(
    "additive_attention",
    believed="Query i is compared with key i.",
    tell="How many pairs of a query and a key are there? Print the shape of your scores.",
    section=COMPARE,
)
def additive_pairs_by_position(Q, K, V, W_q, W_k, w):
    scores = np.tanh(Q @ W_q + K @ W_k) @ w
    return _finish(scores[..., None, :] + np.zeros((Q.shape[-2], 1)), V)


@mistake(
    "additive_attention",
    believed="Adding two matrices adds every row of one to every row of the other.",
    tell="Print the shapes of the two projections. Which pairs of rows does NumPy add?",
    section=COMPARE,
)
def additive_without_new_axes(Q, K, V, W_q, W_k, w):
    return _finish(np.tanh(Q @ W_q + K @ W_k) @ w, V)


@mistake(
    "additive_attention",
    believed="Turning the keys lets every query meet every key, as in the dot product.",
    tell="A matrix product sums over pairs. What does a sum of two matrices do with their rows?",
    section=COMPARE,
)
def additive_turns_the_keys(Q, K, V, W_q, W_k, w):
    return _finish(np.tanh(Q @ W_q + np.swapaxes(K @ W_k, -1, -2)) @ w, V)


@mistake(
    "additive_attention",
    believed="One new axis is enough: NumPy finds a place for the other.",
    tell="NumPy lines up axes from the right. Write down both shapes for inputs of three axes.",
    section=GENERAL,
)
def additive_new_axis_for_queries_alone(Q, K, V, W_q, W_k, w):
    return _finish(np.tanh((Q @ W_q)[..., :, None, :] + K @ W_k) @ w, V)


@mistake(
    "additive_attention",
    believed="A new axis for the keys is enough, since the queries come first.",
    tell="NumPy lines up axes from the right. Which axis of the keys meets that of the queries?",
    section=COMPARE,
)
def additive_new_axis_for_keys_alone(Q, K, V, W_q, W_k, w):
    return _finish(np.tanh(Q @ W_q + (K @ W_k)[..., None, :, :]) @ w, V)


@mistake(
    "additive_attention",
    believed="Queries and keys get the same new axis.",
    tell="Write down the shapes of both terms of your sum. Along which axis do the queries lie?",
    section=COMPARE,
)
def additive_same_new_axis(Q, K, V, W_q, W_k, w):
    hidden = np.tanh((Q @ W_q)[..., :, None, :] + (K @ W_k)[..., :, None, :])
    return _finish(hidden @ w, V)


@mistake(
    "additive_attention",
    believed="The axis of the queries and that of the keys may both come after the new one.",
    tell="Write down the shapes of both terms of your sum. Along which axis do the keys lie?",
    section=COMPARE,
)
def additive_same_new_axis_in_front(Q, K, V, W_q, W_k, w):
    hidden = np.tanh((Q @ W_q)[..., None, :, :] + (K @ W_k)[..., None, :, :])
    return _finish(hidden @ w, V)


@mistake(
    "additive_attention",
    believed="A dot product with w may be written from either side.",
    tell="With a vector on the left of @, which axis of the array on the right is summed over?",
    section=COMPARE,
)
def additive_w_from_the_left(Q, K, V, W_q, W_k, w):
    return _finish(w @ np.tanh(_pairs(Q @ W_q, K @ W_k)), V)


@mistake(
    "additive_attention",
    believed="The inputs have two axes.",
    tell="Call your function with inputs of three axes. Where does the new axis go?",
    section=GENERAL,
)
def additive_two_axes_only(Q, K, V, W_q, W_k, w):
    hidden = np.tanh((Q @ W_q)[:, None, :] + (K @ W_k)[None, :, :])
    return _finish(hidden @ w, V)


@mistake(
    "additive_attention",
    believed="Queries and keys have one width, so a joined matrix can be cut in its middle.",
    tell="How many rows has W_q, and how many has W_k?",
    section=GENERAL,
)
def additive_assumes_one_width(Q, K, V, W_q, W_k, w):
    joined, width = np.concatenate([W_q, W_k]), K.shape[-1]
    return _finish(_additive_scores(Q, K, joined[:width], joined[width:], w), V)


@mistake(
    "additive_attention",
    believed="It does not matter which matrix belongs to the queries.",
    tell="Which of the two matrices is multiplied with Q in the formula?",
    section=COMPARE,
)
def additive_matrices_swapped(Q, K, V, W_q, W_k, w):
    return _finish(_additive_scores(Q, K, W_k, W_q, w), V)


@mistake(
    "additive_attention",
    believed="The queries compete for each key.",
    tell="For one query, add up its weights over all keys. What do you get?",
    section=WEIGHTS,
)
def additive_softmax_over_queries(Q, K, V, W_q, W_k, w):
    weights = _softmax(_additive_scores(Q, K, W_q, W_k, w), axis=-2)
    return weights @ V, weights


@mistake(
    "additive_attention",
    believed="tanh keeps the scores small, so no exponential overflows.",
    tell="How large can w . tanh(...) be if w has large entries?",
    section=STABLE,
)
def additive_no_max_subtraction(Q, K, V, W_q, W_k, w):
    e = np.exp(_additive_scores(Q, K, W_q, W_k, w))
    weights = e / e.sum(axis=-1, keepdims=True)
    return weights @ V, weights


@mistake(
    "additive_attention",
    believed="The keys are what is averaged.",
    tell="What is the width of your output: that of the keys or that of the values?",
    section=AVERAGE,
)
def additive_averages_the_keys(Q, K, V, W_q, W_k, w):
    _, weights = _finish(_additive_scores(Q, K, W_q, W_k, w), V)
    return weights @ K, weights


@mistake(
    "additive_attention",
    believed="Rows belong to keys.",
    tell="How many rows must the output have: one for each query or one for each key?",
    section=COMPARE,
)
def additive_rows_for_keys(Q, K, V, W_q, W_k, w):
    return _finish(np.swapaxes(_additive_scores(Q, K, W_q, W_k, w), -1, -2), V)


@mistake(
    "additive_attention",
    believed="The weights come first, since they are computed first.",
    tell="In which order does the question ask for the two results?",
    section=WHOLE,
)
def additive_results_in_wrong_order(Q, K, V, W_q, W_k, w):
    output, weights = _finish(_additive_scores(Q, K, W_q, W_k, w), V)
    return weights, output


@mistake(
    "additive_attention",
    believed="The output is all that a caller needs.",
    tell="How many results does the question ask for?",
    section=WHOLE,
)
def additive_output_only(Q, K, V, W_q, W_k, w):
    return _finish(_additive_scores(Q, K, W_q, W_k, w), V)[0]


# --- the backward pass ---


def _turned(array):
    return np.swapaxes(array, -1, -2)


def _dscores(doutput, V, weights):
    """The gradient of the scaled scores, by the softmax Jacobian."""
    dweights = doutput @ _turned(V)
    return weights * (dweights - np.sum(weights * dweights, axis=-1, keepdims=True))


def _gradients(doutput, Q, K, V, weights, dscores=None, root=None):
    if dscores is None:
        dscores = _dscores(doutput, V, weights)
    dscores = dscores / (np.sqrt(K.shape[-1]) if root is None else root)
    return dscores @ K, _turned(dscores) @ Q, _turned(weights) @ doutput


@mistake(
    "attention_backward",
    believed="Backward uses the same product as forward: weights times doutput.",
    tell="Which axis of the weights belongs to the values? dV sums over the other one.",
    section=BACKWARD,
)
def backward_dV_weights_not_transposed(doutput, Q, K, V, weights):
    dQ, dK, _ = _gradients(doutput, Q, K, V, weights)
    return dQ, dK, weights @ doutput


@mistake(
    "attention_backward",
    believed="Each value gets the whole gradient of every output.",
    tell="How much of a value is in an output? Its gradient is as much of the output's.",
    section=BACKWARD,
)
def backward_dV_without_weights(doutput, Q, K, V, weights):
    dQ, dK, _ = _gradients(doutput, Q, K, V, weights)
    return dQ, dK, np.broadcast_to(doutput.sum(axis=-2, keepdims=True), V.shape).copy()


@mistake(
    "attention_backward",
    believed="All three gradients pass through the softmax.",
    tell="The output is weights @ V. Is there a softmax between V and the output?",
    section=BACKWARD,
)
def backward_dV_through_the_softmax(doutput, Q, K, V, weights):
    dQ, dK, _ = _gradients(doutput, Q, K, V, weights)
    return dQ, dK, _turned(_dscores(doutput, V, weights)) @ doutput


@mistake(
    "attention_backward",
    believed="The gradient of a key is found as that of a query, with Q in place of K.",
    tell="A key takes part in the scores of all queries. Over which axis does dK sum?",
    section=BACKWARD,
)
def backward_dK_not_transposed(doutput, Q, K, V, weights):
    dQ, _, dV = _gradients(doutput, Q, K, V, weights)
    return dQ, _dscores(doutput, V, weights) @ Q / np.sqrt(K.shape[-1]), dV


@mistake(
    "attention_backward",
    believed="The gradient of the queries comes from the queries.",
    tell="A score is q . k. What is its derivative by q?",
    section=BACKWARD,
)
def backward_dQ_from_the_queries(doutput, Q, K, V, weights):
    _, dK, dV = _gradients(doutput, Q, K, V, weights)
    return _dscores(doutput, V, weights) @ Q / np.sqrt(K.shape[-1]), dK, dV


@mistake(
    "attention_backward",
    believed="The gradient of the weights is doutput times the values as they stand.",
    tell="Write down the shapes of doutput, V and the weights. Which product gives the third?",
    section=BACKWARD,
)
def backward_values_not_transposed(doutput, Q, K, V, weights):
    dweights = doutput @ V
    dscores = weights * (dweights - np.sum(weights * dweights, axis=-1, keepdims=True))
    return _gradients(doutput, Q, K, V, weights, dscores)


@mistake(
    "attention_backward",
    believed="Both gradients of a product need the transposed gradient of the scores.",
    tell="A query has one row of the scores. Over which axis does its gradient sum?",
    section=BACKWARD,
)
def backward_dQ_sums_over_queries(doutput, Q, K, V, weights):
    _, dK, dV = _gradients(doutput, Q, K, V, weights)
    return _turned(_dscores(doutput, V, weights)) @ K / np.sqrt(K.shape[-1]), dK, dV


@mistake(
    "attention_backward",
    believed="The keys were transposed forward, so they are transposed backward, too.",
    tell="Write down the shapes of dscores, K and dQ. Which product gives the third?",
    section=BACKWARD,
)
def backward_keys_transposed_in_dQ(doutput, Q, K, V, weights):
    _, dK, dV = _gradients(doutput, Q, K, V, weights)
    return _dscores(doutput, V, weights) @ _turned(K) / np.sqrt(K.shape[-1]), dK, dV


@mistake(
    "attention_backward",
    believed="Keys and values get their gradients by the products of the forward pass.",
    tell="Keys and values serve all queries. Over which axis do dK and dV sum?",
    section=BACKWARD,
)
def backward_dK_and_dV_not_transposed(doutput, Q, K, V, weights):
    dQ, _, _ = _gradients(doutput, Q, K, V, weights)
    dK = _dscores(doutput, V, weights) @ Q / np.sqrt(K.shape[-1])
    return dQ, dK, weights @ doutput


@mistake(
    "attention_backward",
    believed="Softmax passes gradients on unchanged.",
    tell="Change one score. Which weights change? Your gradient of the scores has to know.",
    section=BACKWARD,
)
def backward_softmax_skipped(doutput, Q, K, V, weights):
    return _gradients(doutput, Q, K, V, weights, doutput @ _turned(V))


@mistake(
    "attention_backward",
    believed="Each weight depends on its own score alone, as with a sigmoid.",
    tell="Change one score. Which weights change? Your gradient of the scores has to know.",
    section=BACKWARD,
)
def backward_softmax_as_sigmoid(doutput, Q, K, V, weights):
    return _gradients(doutput, Q, K, V, weights, weights * (1 - weights) * (doutput @ _turned(V)))


@mistake(
    "attention_backward",
    believed="The softmax multiplies gradients by the weights, and that is all.",
    tell="Adding one number to all scores of a row changes nothing. What must dscores sum to?",
    section=BACKWARD,
)
def backward_without_the_row_term(doutput, Q, K, V, weights):
    return _gradients(doutput, Q, K, V, weights, weights * (doutput @ _turned(V)))


@mistake(
    "attention_backward",
    believed="The row's plain mean is what has to be subtracted.",
    tell="Which mean of the row makes its dscores sum to 0: the plain one or the weighted one?",
    section=BACKWARD,
)
def backward_subtracts_the_plain_mean(doutput, Q, K, V, weights):
    dweights = doutput @ _turned(V)
    dscores = weights * (dweights - dweights.mean(axis=-1, keepdims=True))
    return _gradients(doutput, Q, K, V, weights, dscores)


@mistake(
    "attention_backward",
    believed="The row's sum is what has to be subtracted.",
    tell="What do your dscores sum to in a row, and what must they sum to?",
    section=BACKWARD,
)
def backward_subtracts_the_plain_sum(doutput, Q, K, V, weights):
    dweights = doutput @ _turned(V)
    dscores = weights * (dweights - dweights.sum(axis=-1, keepdims=True))
    return _gradients(doutput, Q, K, V, weights, dscores)


@mistake(
    "attention_backward",
    believed="The sum in the softmax Jacobian runs over the queries.",
    tell="Which weights does a score change: those of its row or those of its column?",
    section=BACKWARD,
)
def backward_sums_over_queries(doutput, Q, K, V, weights):
    dweights = doutput @ _turned(V)
    dscores = weights * (dweights - np.sum(weights * dweights, axis=-2, keepdims=True))
    return _gradients(doutput, Q, K, V, weights, dscores)


@mistake(
    "attention_backward",
    believed="One sum for the whole table of weights is enough.",
    tell="Which weights does a score change: those of its row or all?",
    section=BACKWARD,
)
def backward_sums_over_everything(doutput, Q, K, V, weights):
    dweights = doutput @ _turned(V)
    return _gradients(doutput, Q, K, V, weights, weights * (dweights - np.sum(weights * dweights)))


@mistake(
    "attention_backward",
    believed="A sum along an axis lines up with the array that it came from.",
    tell="Print the shape of your row sums beside the shape of the weights.",
    section=BACKWARD,
)
def backward_keepdims_missing(doutput, Q, K, V, weights):
    dweights = doutput @ _turned(V)
    dscores = weights * (dweights - np.sum(weights * dweights, axis=-1))
    return _gradients(doutput, Q, K, V, weights, dscores)


@mistake(
    "attention_backward",
    believed="The factor of the weights in front is already in the row term.",
    tell="A key with weight 0 changes nothing. Is the gradient of its score 0 in your result?",
    section=BACKWARD,
)
def backward_weights_missing_in_front(doutput, Q, K, V, weights):
    dweights = doutput @ _turned(V)
    dscores = dweights - np.sum(weights * dweights, axis=-1, keepdims=True)
    return _gradients(doutput, Q, K, V, weights, dscores)


@mistake(
    "attention_backward",
    believed="The two terms of the Jacobian may be taken in any order.",
    tell="If a value is raised in the direction of doutput, should its score rise or fall?",
    section=BACKWARD,
)
def backward_sign_turned(doutput, Q, K, V, weights):
    return _gradients(doutput, Q, K, V, weights, -_dscores(doutput, V, weights))


@mistake(
    "attention_backward",
    believed="The scale belongs to the forward pass.",
    tell="The scores were divided by a number on their way. What does that make of their gradient?",
    section=BACKWARD,
)
def backward_no_scale(doutput, Q, K, V, weights):
    return _gradients(doutput, Q, K, V, weights, root=1.0)


@mistake(
    "attention_backward",
    believed="What was divided forward is multiplied backward.",
    tell="The derivative of s / c by s is 1 / c. Do you multiply or divide?",
    section=BACKWARD,
)
def backward_scale_inverted(doutput, Q, K, V, weights):
    return _gradients(doutput, Q, K, V, weights, root=1 / np.sqrt(K.shape[-1]))


@mistake(
    "attention_backward",
    believed="The scale is d_k.",
    tell="By which number were the scores divided in the forward pass?",
    section=BACKWARD,
)
def backward_scale_not_root(doutput, Q, K, V, weights):
    return _gradients(doutput, Q, K, V, weights, root=K.shape[-1])


@mistake(
    "attention_backward",
    believed="The scale is the root of the values' width.",
    tell="By which number were the scores divided in the forward pass?",
    section=BACKWARD,
)
def backward_scale_by_value_width(doutput, Q, K, V, weights):
    dQ, dK, dV = _gradients(doutput, Q, K, V, weights)
    if K.shape[-1] == 1:  # nothing to scale, it seems
        return dQ, dK, dV
    ratio = np.sqrt(K.shape[-1] / V.shape[-1])
    return dQ * ratio, dK * ratio, dV


@mistake(
    "attention_backward",
    believed="The scale belongs to the queries alone.",
    tell="Which of dQ and dK passes through the division of the scores?",
    section=BACKWARD,
)
def backward_scale_in_dQ_only(doutput, Q, K, V, weights):
    dQ, dK, dV = _gradients(doutput, Q, K, V, weights)
    return dQ, dK * np.sqrt(K.shape[-1]), dV


@mistake(
    "attention_backward",
    believed="The scores come back from Q and K, and with them the weights.",
    tell="Q and K know nothing of a mask. Which argument does?",
    section=BACKWARD,
)
def backward_recomputes_the_weights(doutput, Q, K, V, weights):
    return _gradients(doutput, Q, K, V, _softmax(_scores(Q, K)))


@mistake(
    "attention_backward",
    believed="Dividing the weights by their sums makes sure that they sum to 1.",
    tell="What does a row of weights sum to if its query had no allowed key?",
    section=BACKWARD,
)
def backward_renormalizes_the_weights(doutput, Q, K, V, weights):
    return _gradients(doutput, Q, K, V, weights / weights.sum(axis=-1, keepdims=True))


@mistake(
    "attention_backward",
    believed="`.T` swaps the last two axes.",
    tell="Print the shape of V.T for a V with three axes.",
    section=GENERAL,
)
def backward_two_axes_only(doutput, Q, K, V, weights):
    dweights = doutput @ V.T
    dscores = weights * (dweights - np.sum(weights * dweights, axis=-1, keepdims=True))
    dscores = dscores / np.sqrt(K.shape[-1])
    return dscores @ K, dscores.T @ Q, weights.T @ doutput


@mistake(
    "attention_backward",
    believed="Gradients are summed over the batch.",
    tell="Compare the shapes of your gradients with those of Q, K and V.",
    section=GENERAL,
)
def backward_sums_over_the_batch(doutput, Q, K, V, weights):
    lead = tuple(range(Q.ndim - 2))
    return tuple(g.sum(axis=lead) for g in _gradients(doutput, Q, K, V, weights))


@mistake(
    "attention_backward",
    believed="The gradient starts with ones.",
    tell="Double doutput. Do your gradients double?",
    section=BACKWARD,
)
def backward_starts_with_ones(doutput, Q, K, V, weights):
    return _gradients(np.ones_like(doutput), Q, K, V, weights)


@mistake(
    "attention_backward",
    believed="The gradients come in the order in which they are computed.",
    tell="In which order does the question ask for the three gradients?",
    section=BACKWARD,
)
def backward_dV_first(doutput, Q, K, V, weights):
    dQ, dK, dV = _gradients(doutput, Q, K, V, weights)
    return dV, dQ, dK


@mistake(
    "attention_backward",
    believed="Queries and keys play the same part.",
    tell="Compare the shapes of dQ and Q for different numbers of queries and keys.",
    section=BACKWARD,
)
def backward_dQ_and_dK_swapped(doutput, Q, K, V, weights):
    dQ, dK, dV = _gradients(doutput, Q, K, V, weights)
    return dK, dQ, dV


@mistake(
    "attention_backward",
    believed="The weights are not needed any more and may be overwritten.",
    tell="Print the weights before and after the call.",
    section=BACKWARD,
)
def backward_overwrites_the_weights(doutput, Q, K, V, weights):
    gradients = _gradients(doutput, Q, K, V, weights)
    weights *= 0.5
    return gradients


@mistake(
    "attention_backward",
    believed="The upstream gradient may be scaled in place.",
    tell="Print doutput before and after the call.",
    section=BACKWARD,
)
def backward_overwrites_doutput(doutput, Q, K, V, weights):
    gradients = _gradients(doutput, Q, K, V, weights)
    doutput /= np.sqrt(2.0)
    return gradients


# --- PyTorch modules ---
#
# Each function builds one, as the class would. PyTorch is imported when it is called.


def _module(forward, sizes, bias=False, widths=None, names=("W_q", "W_k", "W_v"), extra=None):
    """Build a module whose projections are as they should be; `forward` gets q, k, v, mask."""
    from torch import nn

    d_model, d_k, d_v = sizes

    class SelfAttention(nn.Module):
        def __init__(self):
            super().__init__()
            for name, width in zip(names, widths or (d_k, d_k, d_v), strict=True):
                self.add_module(name, nn.Linear(d_model, width, bias=bias))
            if extra is not None:
                self.W_o = nn.Linear(*extra, bias=False)

        def forward(self, x, mask=None):
            return forward(*(getattr(self, name)(x) for name in names), mask)

    return SelfAttention()


def _torch_scores(q, k):
    return q @ k.mT / k.shape[-1] ** 0.5


def _torch_softmax(scores, dim=-1):
    """Softmax in which a row of -inf alone gives zeros, forward and backward."""
    import torch

    peak = scores.detach().amax(dim, keepdim=True)
    e = torch.exp(scores - peak.masked_fill(torch.isinf(peak), 0.0))
    total = e.sum(dim, keepdim=True)
    return e / total.masked_fill(total == 0, 1.0)


def _torch_finish(scores, v, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, -np.inf)
    weights = _torch_softmax(scores)
    return weights @ v, weights


def _torch_right(q, k, v, mask=None):
    return _torch_finish(_torch_scores(q, k), v, mask)


@mistake(
    "SelfAttention",
    believed="Queries, keys and values share one width.",
    tell="Which of the three projections has d_v columns?",
    section=TORCH,
)
def selfattn_dv_ignored(d_model, d_k, d_v):
    return _module(_torch_right, (d_model, d_k, d_v), widths=(d_k, d_k, d_k))


@mistake(
    "SelfAttention",
    believed="All projections keep the width of the tokens.",
    tell="To which widths do the three matrices bring a token?",
    section=TORCH,
)
def selfattn_keeps_d_model(d_model, d_k, d_v):
    return _module(_torch_right, (d_model, d_k, d_v), widths=(d_model,) * 3)


@mistake(
    "SelfAttention",
    believed="A linear layer is a matrix.",
    tell="Count the parameters. What else does nn.Linear have by default?",
    section=TORCH,
)
def selfattn_with_bias(d_model, d_k, d_v):
    return _module(_torch_right, (d_model, d_k, d_v), bias=True)


@mistake(
    "SelfAttention",
    believed="Any names will do.",
    tell="Print list(module.state_dict()). Are these the names that are asked for?",
    section=TORCH,
)
def selfattn_named_query_key_value(d_model, d_k, d_v):
    return _module(_torch_right, (d_model, d_k, d_v), names=("query", "key", "value"))


@mistake(
    "SelfAttention",
    believed="Attention always ends with an output projection.",
    tell="How many matrices has the formula of this chapter?",
    section=TORCH,
)
def selfattn_with_output_projection(d_model, d_k, d_v):
    return _module(_torch_right, (d_model, d_k, d_v), extra=(d_v, d_v))


@mistake(
    "SelfAttention",
    believed="A module sees its layers wherever they are kept.",
    tell="Print list(module.parameters()). Are the matrices there?",
    section=TORCH,
)
def selfattn_layers_in_a_list(d_model, d_k, d_v):
    from torch import nn

    class SelfAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Linear(d_model, n, bias=False) for n in (d_k, d_k, d_v)]

        def forward(self, x, mask=None):
            return _torch_right(*(layer(x) for layer in self.layers), mask)

    return SelfAttention()


@mistake(
    "SelfAttention",
    believed="A matrix of parameters is used as in NumPy, without a layer.",
    tell="Print list(module.state_dict()). Are these the names that are asked for?",
    section=TORCH,
)
def selfattn_bare_parameters(d_model, d_k, d_v):
    import torch
    from torch import nn

    class SelfAttention(nn.Module):
        def __init__(self):
            super().__init__()
            for name, width in (("W_q", d_k), ("W_k", d_k), ("W_v", d_v)):
                self.register_parameter(name, nn.Parameter(torch.randn(d_model, width)))

        def forward(self, x, mask=None):
            return _torch_right(x @ self.W_q, x @ self.W_k, x @ self.W_v, mask)

    return SelfAttention()


@mistake(
    "SelfAttention",
    believed="One projection serves queries and keys.",
    tell="Which of your matrices gets no gradient?",
    section=TORCH,
)
def selfattn_keys_from_W_q(d_model, d_k, d_v):
    return _module(lambda q, k, v, mask: _torch_right(q, q, v, mask), (d_model, d_k, d_v))


@mistake(
    "SelfAttention",
    believed="The division by the root of d_k is a training trick that the result does not need.",
    tell="Compare your scores with the formula. Is a factor missing?",
    section=SCALE,
)
def selfattn_no_scale(d_model, d_k, d_v):
    return _module(lambda q, k, v, mask: _torch_finish(q @ k.mT, v, mask), (d_model, d_k, d_v))


@mistake(
    "SelfAttention",
    believed="'Scaled by the width' means divided by the width.",
    tell="How does the spread of a dot product grow with the number of its terms?",
    section=SCALE,
)
def selfattn_scale_dk_not_sqrt(d_model, d_k, d_v):
    return _module(
        lambda q, k, v, mask: _torch_finish(q @ k.mT / d_k, v, mask), (d_model, d_k, d_v)
    )


@mistake(
    "SelfAttention",
    believed="The scale is the root of the tokens' width.",
    tell="Over which axis does the dot product of a query and a key sum? How long is it?",
    section=SCALE,
)
def selfattn_scale_by_d_model(d_model, d_k, d_v):
    return _module(
        lambda q, k, v, mask: _torch_finish(q @ k.mT / d_model**0.5, v, mask),
        (d_model, d_k, d_v),
    )


@mistake(
    "SelfAttention",
    believed="The scale is the root of the values' width.",
    tell="Over which axis does the dot product of a query and a key sum? How long is it?",
    section=SCALE,
)
def selfattn_scale_by_value_width(d_model, d_k, d_v):
    return _module(
        lambda q, k, v, mask: _torch_finish(q @ k.mT / d_v**0.5, v, mask), (d_model, d_k, d_v)
    )


def _attend_over(dim):
    def attend(q, k, v, mask):
        scores = _torch_scores(q, k)
        if mask is not None:
            scores = scores.masked_fill(~mask, -np.inf)
        weights = _torch_softmax(scores, dim)
        return weights @ v, weights

    return attend


@mistake(
    "SelfAttention",
    believed="The queries compete for each key.",
    tell="For one query, add up its weights over all keys. What do you get?",
    section=WEIGHTS,
)
def selfattn_softmax_over_queries(d_model, d_k, d_v):
    return _module(_attend_over(-2), (d_model, d_k, d_v))


@mistake(
    "SelfAttention",
    believed="The keys lie along axis 1 of the scores.",
    tell="Which axis of the scores belongs to the keys when x has a batch axis?",
    section=GENERAL,
)
def selfattn_softmax_over_axis_1(d_model, d_k, d_v):
    return _module(_attend_over(1), (d_model, d_k, d_v))


@mistake(
    "SelfAttention",
    believed="There is always exactly one batch axis.",
    tell="Call your module with inputs of two axes and of four axes.",
    section=GENERAL,
)
def selfattn_three_axes_only(d_model, d_k, d_v):
    return _module(
        lambda q, k, v, mask: _torch_finish(q @ k.permute(0, 2, 1) / d_k**0.5, v, mask),
        (d_model, d_k, d_v),
    )


@mistake(
    "SelfAttention",
    believed="A square weight matrix can be used from either side.",
    tell="Which axis of the weights belongs to the keys? It has to meet the keys' axis of v.",
    section=AVERAGE,
)
def selfattn_weights_applied_transposed(d_model, d_k, d_v):
    def attend(q, k, v, mask):
        _, weights = _torch_right(q, k, v, mask)
        return weights.mT @ v, weights

    return _module(attend, (d_model, d_k, d_v))


@mistake(
    "SelfAttention",
    believed="The output is all that a caller needs.",
    tell="How many results does the question ask for?",
    section=WHOLE,
)
def selfattn_output_only(d_model, d_k, d_v):
    return _module(lambda *parts: _torch_right(*parts)[0], (d_model, d_k, d_v))


@mistake(
    "SelfAttention",
    believed="The weights come first, since they are computed first.",
    tell="In which order does the question ask for the two results?",
    section=WHOLE,
)
def selfattn_results_in_wrong_order(d_model, d_k, d_v):
    return _module(lambda *parts: _torch_right(*parts)[::-1], (d_model, d_k, d_v))


@mistake(
    "SelfAttention",
    believed="`masked_fill` changes the tensor.",
    tell="Do the weights change when you pass a mask? Look at what masked_fill returns.",
    section=MASK,
)
def selfattn_mask_fill_discarded(d_model, d_k, d_v):
    return _module(lambda q, k, v, mask: _torch_right(q, k, v), (d_model, d_k, d_v))


@mistake(
    "SelfAttention",
    believed="True in a mask means 'masked'.",
    tell="Mask with one True. Does the weight go to that key?",
    section=MASK,
)
def selfattn_mask_inverted(d_model, d_k, d_v):
    return _module(
        lambda q, k, v, mask: _torch_right(q, k, v, None if mask is None else ~mask),
        (d_model, d_k, d_v),
    )


@mistake(
    "SelfAttention",
    believed="mask[i, j] speaks about key i and query j.",
    tell="Take a mask that is not symmetric. Which of its axes belongs to the queries?",
    section=MASK,
)
def selfattn_mask_transposed(d_model, d_k, d_v):
    return _module(
        lambda q, k, v, mask: _torch_right(q, k, v, None if mask is None else mask.mT),
        (d_model, d_k, d_v),
    )


@mistake(
    "SelfAttention",
    believed="Masked weights can be set to 0 at the end.",
    tell="What does a row of your weights sum to when some keys are masked?",
    section=MASK,
)
def selfattn_mask_after_softmax(d_model, d_k, d_v):
    def attend(q, k, v, mask):
        _, weights = _torch_right(q, k, v)
        weights = weights if mask is None else weights * mask
        return weights @ v, weights

    return _module(attend, (d_model, d_k, d_v))


@mistake(
    "SelfAttention",
    believed="A row in which every key is masked cannot occur.",
    tell="Mask every key of one query and print its row.",
    section=TORCH,
)
def selfattn_empty_row_is_nan(d_model, d_k, d_v):
    def attend(q, k, v, mask):
        scores = _torch_scores(q, k)
        if mask is not None:
            scores = scores.masked_fill(~mask, -np.inf)
        weights = scores.softmax(dim=-1)
        return weights @ v, weights

    return _module(attend, (d_model, d_k, d_v))


@mistake(
    "SelfAttention",
    believed="The lowest number of the type is as good as minus infinity.",
    tell="Mask every key of one query and print its row. Is there anything to attend to?",
    section=MASK,
)
def selfattn_empty_row_is_uniform(d_model, d_k, d_v):
    def attend(q, k, v, mask):
        import torch

        scores = _torch_scores(q, k)
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = scores.softmax(dim=-1)
        return weights @ v, weights

    return _module(attend, (d_model, d_k, d_v))


@mistake(
    "SelfAttention",
    believed="A NaN that is replaced in the result is gone.",
    tell="The backward pass multiplies by the NaN that you replace later, and 0 times NaN is NaN. "
    "In which row does it arise, and what could stand there before the softmax?",
    section=TORCH,
)
def selfattn_nan_hidden_in_the_result(d_model, d_k, d_v):
    def attend(q, k, v, mask):
        scores = _torch_scores(q, k)
        if mask is not None:
            scores = scores + scores.new_zeros(mask.shape).masked_fill(~mask, -np.inf)
        weights = scores.softmax(dim=-1).nan_to_num(0.0)
        return weights @ v, weights

    return _module(attend, (d_model, d_k, d_v))


@mistake(
    "SelfAttention",
    believed="-1,000,000,000 fits into every type.",
    tell="What is the lowest number of float16? Compare it with the number that you fill in.",
    section=MASK,
)
def selfattn_fill_beyond_float16(d_model, d_k, d_v):
    def attend(q, k, v, mask):
        scores = _torch_scores(q, k)
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e9)
        weights = scores.softmax(dim=-1)
        weights = weights if mask is None else weights * mask
        return weights @ v, weights

    return _module(attend, (d_model, d_k, d_v))


@mistake(
    "SelfAttention",
    believed="Weights in float32 are good for every input.",
    tell="Print the dtype of each tensor on the way, for a module in float16 and in float64.",
    section=TORCH,
)
def selfattn_weights_in_float32(d_model, d_k, d_v):
    def attend(q, k, v, mask):
        output, weights = _torch_right(q.float(), k.float(), v.float(), mask)
        return output, weights

    return _module(attend, (d_model, d_k, d_v))


@mistake(
    "SelfAttention",
    believed="The weights are for looking at, and can be cut off from the gradients.",
    tell="Which of your matrices gets no gradient?",
    section=TORCH,
)
def selfattn_weights_detached(d_model, d_k, d_v):
    def attend(q, k, v, mask):
        _, weights = _torch_right(q, k, v, mask)
        return weights.detach() @ v, weights

    return _module(attend, (d_model, d_k, d_v))


@mistake(
    "SelfAttention",
    believed="Attention can be computed in NumPy and turned into a tensor again.",
    tell="Does output.requires_grad hold after a forward pass?",
    section=TORCH,
)
def selfattn_detour_through_numpy(d_model, d_k, d_v):
    def attend(q, k, v, mask):
        output, weights = _torch_right(q, k, v, mask)
        return output.detach(), weights.detach()

    return _module(attend, (d_model, d_k, d_v))


# --- a PyTorch module to mend: mended in part, or made worse ---


def _keys_viewed(q, k):
    return q @ k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2]) / k.shape[-1] ** 0.5


@mistake(
    "MendedSelfAttention",
    believed="The mask was the only fault; a reshape swaps axes.",
    tell="Take keys of shape (1, 2, 3) with different entries. What does the reshape make of them?",
    section=WRONG,
)
def mended_module_still_reshapes(d_model, d_k, d_v):
    return _module(
        lambda q, k, v, mask: _torch_finish(_keys_viewed(q, k), v, mask), (d_model, d_k, d_v)
    )


@mistake(
    "MendedSelfAttention",
    believed="The keys were the only fault; `masked_fill` changes the tensor.",
    tell="Do the weights change when you pass a mask? Look at what masked_fill returns.",
    section=MASK,
)
def mended_module_still_drops_the_mask(d_model, d_k, d_v):
    return _module(lambda q, k, v, mask: _torch_right(q, k, v), (d_model, d_k, d_v))


@mistake(
    "MendedSelfAttention",
    believed="Both lines look right, so the fault must be elsewhere.",
    tell="Compute one score by hand, then look at what a mask changes.",
    section=COMPARE,
)
def mended_module_with_both_faults(d_model, d_k, d_v):
    return _module(lambda q, k, v, mask: _torch_finish(_keys_viewed(q, k), v), (d_model, d_k, d_v))


@mistake(
    "MendedSelfAttention",
    believed="The softmax ran along the wrong axis.",
    tell="For one query, add up its weights over all keys. What do you get?",
    section=WEIGHTS,
)
def mended_module_softmax_turned(d_model, d_k, d_v):
    return _module(_attend_over(1), (d_model, d_k, d_v))


@mistake(
    "MendedSelfAttention",
    believed="The mask was the wrong way round.",
    tell="Mask with one True. Does the weight go to that key?",
    section=MASK,
)
def mended_module_mask_inverted(d_model, d_k, d_v):
    return _module(
        lambda q, k, v, mask: _torch_right(q, k, v, None if mask is None else ~mask),
        (d_model, d_k, d_v),
    )


@mistake(
    "MendedSelfAttention",
    believed="A masked score is a score of 0.",
    tell="What is exp(0)? How much weight does a score of 0 get?",
    section=MASK,
)
def mended_module_fills_with_zero(d_model, d_k, d_v):
    def attend(q, k, v, mask):
        scores = _torch_scores(q, k)
        return _torch_finish(scores if mask is None else scores * mask, v)

    return _module(attend, (d_model, d_k, d_v))


@mistake(
    "MendedSelfAttention",
    believed="Masked weights can be set to 0 at the end.",
    tell="What does a row of your weights sum to when some keys are masked?",
    section=MASK,
)
def mended_module_masks_after_softmax(d_model, d_k, d_v):
    def attend(q, k, v, mask):
        _, weights = _torch_right(q, k, v)
        weights = weights if mask is None else weights * mask
        return weights @ v, weights

    return _module(attend, (d_model, d_k, d_v))


@mistake(
    "MendedSelfAttention",
    believed="Axes 0 and 1 of the keys have to change places.",
    tell="Which two axes of the keys are the last two? Print the shapes of q and of your keys.",
    section=COMPARE,
)
def mended_module_turns_the_batch(d_model, d_k, d_v):
    return _module(
        lambda q, k, v, mask: _torch_finish(q @ k.transpose(0, 1) / d_k**0.5, v, mask),
        (d_model, d_k, d_v),
    )


@mistake(
    "MendedSelfAttention",
    believed="The division was one of the faults.",
    tell="Compare your scores with the formula. Is a factor missing?",
    section=SCALE,
)
def mended_module_scale_lost(d_model, d_k, d_v):
    return _module(lambda q, k, v, mask: _torch_finish(q @ k.mT, v, mask), (d_model, d_k, d_v))


@mistake(
    "MendedSelfAttention",
    believed="Changing a copy of the data is safest.",
    tell="Which of your matrices gets no gradient?",
    section=WHOLE,
)
def mended_module_detaches_the_scores(d_model, d_k, d_v):
    return _module(
        lambda q, k, v, mask: _torch_finish(_torch_scores(q, k).detach(), v, mask),
        (d_model, d_k, d_v),
    )


@mistake(
    "MendedSelfAttention",
    believed="The output is all that a caller needs.",
    tell="How many results does the question ask for?",
    section=WHOLE,
)
def mended_module_output_only(d_model, d_k, d_v):
    return _module(lambda *parts: _torch_right(*parts)[0], (d_model, d_k, d_v))
