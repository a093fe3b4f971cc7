"""Wrong answers to exercise 3 that people really give, each with exactly one fault.

What surrounds the fault is right and shared: the helpers below for NumPy, and `_layer_class` for
PyTorch, which is imported where it is used.
"""

import functools
import math

import numpy as np

from autograder.mistakes import mistake, mistake_value

PROBLEM = "The layer, step by step"
LAYOUT = "What reshape does, what transpose does"
MISSING = "One transpose missing"
SPLIT = "Splitting and merging"
WHOLE = "The whole function"
LOOP = "All heads at once, or one after another"
STEP_2 = "Step 2: attend, each head on its own"
STEP_3 = "Step 3: side by side, then mixed"
COSTS = "What it costs"
PARITY = "Parity with PyTorch"
IN_TORCH = "The same layer in PyTorch"
SILENT = "Two mistakes that raise no error"


def _softmax(x, axis=-1):
    """Softmax in which a row of -inf alone gives zeros."""
    peak = np.max(x, axis=axis, keepdims=True)
    e = np.exp(x - np.where(np.isneginf(peak), 0.0, peak))
    total = np.sum(e, axis=axis, keepdims=True)
    return e / np.where(total == 0, 1.0, total)


def _softmax_without_empty_rows(x):
    """Softmax as written by somebody to whom a row of -inf alone does not occur."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _split(x, num_heads):
    B, L, D = x.shape
    return x.reshape(B, L, num_heads, D // num_heads).transpose(0, 2, 1, 3)


def _merge(x):
    B, h, L, d = x.shape
    return x.transpose(0, 2, 1, 3).reshape(B, L, h * d)


def _split_by_reshape(x, num_heads):
    B, L, D = x.shape
    return x.reshape(B, num_heads, L, D // num_heads)


def _merge_by_reshape(x):
    B, h, L, d = x.shape
    return x.reshape(B, L, h * d)


def _split_interleaved(x, num_heads):
    B, L, D = x.shape
    return x.reshape(B, L, D // num_heads, num_heads).transpose(0, 3, 1, 2)


def _merge_interleaved(x):
    B, h, L, d = x.shape
    return x.transpose(0, 2, 3, 1).reshape(B, L, d * h)


def _heads(X, W_q, W_k, W_v, num_heads, split=_split):
    return [split(X @ W, num_heads) for W in (W_q, W_k, W_v)]


def _scores(q, k):
    return q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])


def _for_heads(mask):
    return mask[:, None] if mask.ndim == 3 else mask


def _hide(scores, mask):
    return scores if mask is None else np.where(_for_heads(mask), scores, -np.inf)


def _finish(scores, v, W_o, mask=None, merge=_merge):
    weights = _softmax(_hide(scores, mask))
    return merge(weights @ v) @ W_o, weights


def _attention(X, W_q, W_k, W_v, W_o, num_heads, mask=None, split=_split, merge=_merge):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads, split)
    return _finish(_scores(q, k), v, W_o, mask, merge)


# --- predicted_vectors ---


def _vectors(id, value, believed, tell, section=LAYOUT):
    return mistake_value(
        "predicted_vectors", id, value, believed=believed, tell=tell, section=section
    )


vectors_interleaved = _vectors(
    "vectors-interleaved",
    ((11, 14), (10, 11)),
    "Features are dealt out to the heads in turn, like cards.",
    "Which comes first in `reshape(..., h, d)`, the head or the place within the head?",
)
vectors_reshape_splits = _vectors(
    "vectors-reshape-splits",
    ((12, 13), (12, 13)),
    "Reshaping to the right shape puts every number in the right place.",
    "Number the cells of both shapes in the order in which they lie in memory. Which two meet?",
)
vectors_split_is_reshape = _vectors(
    "vectors-split-is-reshape",
    ((10, 11), (10, 11)),
    "Splitting into heads is nothing but a reshape.",
    "Your head 1 begins with the first feature of token 1. Which head should get that one?",
)
vectors_counted_from_one = _vectors(
    "vectors-counted-from-one",
    ((0, 1), (0, 1)),
    "Head 1 is the first head.",
    "Heads and tokens are counted from 0 here. Which head comes after head 0?",
)
vectors_exchanged = _vectors(
    "vectors-exchanged",
    ((10, 11), (12, 13)),
    "A head reads on in the next token, and reshape keeps tokens apart.",
    "Which of the two functions knows where one token ends and the next begins?",
)


# --- split_heads ---


@mistake(
    "split_heads",
    believed="An array of the right shape is the right array.",
    tell="Print head 1 of token 0 for `np.arange(12).reshape(1, 3, 4)`. Whose numbers are these?",
    section=LAYOUT,
)
def split_by_reshape_alone(x, num_heads):
    return _split_by_reshape(x, num_heads)


@mistake(
    "split_heads",
    believed="Features go to the heads in turn.",
    tell="Which columns does each of your heads take? They should lie side by side.",
    section=SPLIT,
)
def split_interleaved(x, num_heads):
    return _split_interleaved(x, num_heads)


@mistake(
    "split_heads",
    believed="Giving the features two axes is all that is needed.",
    tell="Where does the axis of the heads stand in your result, and where should it stand?",
    section=SPLIT,
)
def split_without_moving_the_axis(x, num_heads):
    B, L, D = x.shape
    return x.reshape(B, L, num_heads, D // num_heads)


@mistake(
    "split_heads",
    believed="The heads' axis can be exchanged with the last one.",
    tell="Name the four axes of your result one by one. Which two have changed places?",
    section=SPLIT,
)
def split_turns_the_head_over(x, num_heads):
    return np.swapaxes(_split(x, num_heads), -1, -2)


@mistake(
    "split_heads",
    believed="The axis of the heads comes first.",
    tell="Compare axis 0 of your result with axis 0 of x. Which one counts the sequences?",
    section=SPLIT,
)
def split_puts_heads_first(x, num_heads):
    return np.stack(np.split(x, num_heads, axis=-1))


@mistake(
    "split_heads",
    believed="num_heads is the width of a head.",
    tell="Take 2 heads of width 3. How many heads does your result have?",
    section=SPLIT,
)
def split_into_heads_of_width_num_heads(x, num_heads):
    B, L, D = x.shape
    return x.reshape(B, L, D // num_heads, num_heads).transpose(0, 2, 1, 3)


@mistake(
    "split_heads",
    believed="Heads are more sequences, so they belong to the batch axis.",
    tell="How many axes does your result have, and how many are asked for?",
    section=SPLIT,
)
def split_folds_heads_into_the_batch(x, num_heads):
    heads = _split(x, num_heads)
    return heads.reshape(-1, *heads.shape[2:])


@mistake(
    "split_heads",
    believed="Each head takes a share of the tokens.",
    tell="Which axis is shared out among the heads, that of the tokens or that of the features?",
    section=PROBLEM,
)
def split_shares_out_the_tokens(x, num_heads):
    B, L, D = x.shape
    return x.reshape(B, num_heads, L // num_heads, D)


@mistake(
    "split_heads",
    believed="A list of heads is as good as an axis of heads.",
    tell="What type does your result have? One array is asked for.",
    section=SPLIT,
)
def split_returns_a_list(x, num_heads):
    return np.split(x, num_heads, axis=-1)


@mistake(
    "split_heads",
    believed="Every head gets a copy of the whole token.",
    tell="How wide is a head in your result? All heads together are as wide as x.",
    section=PROBLEM,
)
def split_copies_the_token_to_all_heads(x, num_heads):
    return np.repeat(x[:, None], num_heads, axis=1)


@mistake(
    "split_heads",
    believed="Transposing turns the axes round in the one way that is needed.",
    tell="`.T` turns all axes round. Print the shape of your result beside that of x.",
    section=LAYOUT,
)
def split_transposes_all_axes(x, num_heads):
    B, L, D = x.shape
    return x.reshape(B, L, num_heads, D // num_heads).T


@mistake(
    "split_heads",
    believed="With one head there is nothing to do.",
    tell="How many axes should the result have, for any number of heads?",
    section=SPLIT,
)
def split_returns_x_for_one_head(x, num_heads):
    return x if num_heads == 1 else _split(x, num_heads)


@mistake(
    "split_heads",
    believed="Changing the shape of an array in place changes nothing outside the function.",
    tell="Print the shape of x before and after the call.",
    section=LAYOUT,
)
def split_reshapes_in_place(x, num_heads):
    B, L, D = x.shape
    x.resize((B, L, num_heads, D // num_heads), refcheck=False)
    return x.transpose(0, 2, 1, 3)


# --- merge_heads ---


@mistake(
    "merge_heads",
    believed="An array of the right shape is the right array.",
    tell="Which axes lie side by side when you reshape? They should be head and feature.",
    section=LAYOUT,
)
def merge_by_reshape_alone(x):
    return _merge_by_reshape(x)


@mistake(
    "merge_heads",
    believed="The features of all heads are put together one feature at a time.",
    tell="Does head 0 fill the first columns of your result, or is it scattered over all of them?",
    section=SPLIT,
)
def merge_interleaved(x):
    return _merge_interleaved(x)


@mistake(
    "merge_heads",
    believed="Putting heads together means adding them up.",
    tell="How wide is your result? The heads are put side by side.",
    section=SPLIT,
)
def merge_adds_the_heads(x):
    return x.sum(axis=1)


@mistake(
    "merge_heads",
    believed="Heads vote, so their mean is what counts.",
    tell="How wide is your result? The heads are put side by side.",
    section=SPLIT,
)
def merge_averages_the_heads(x):
    return x.mean(axis=1)


@mistake(
    "merge_heads",
    believed="Moving the axis back is the whole way back.",
    tell="How many axes does your result have, and how many did the tokens have at first?",
    section=SPLIT,
)
def merge_leaves_four_axes(x):
    return x.transpose(0, 2, 1, 3)


@mistake(
    "merge_heads",
    believed="Heads are put one after the other along the axis of the tokens.",
    tell="How many tokens does your result have? Their number should not change.",
    section=SPLIT,
)
def merge_appends_along_the_tokens(x):
    B, h, L, d = x.shape
    return x.reshape(B, h * L, d)


@mistake(
    "merge_heads",
    believed="The last head comes first.",
    tell="Which head fills the first columns of your result?",
    section=SPLIT,
)
def merge_in_reversed_order(x):
    return _merge(x[:, ::-1])


@mistake(
    "merge_heads",
    believed="The two axes to exchange are the last two.",
    tell="After your transpose, which axes stand where? Heads should stand beside features.",
    section=LAYOUT,
)
def merge_exchanges_the_last_two_axes(x):
    B, h, L, d = x.shape
    return np.swapaxes(x, -1, -2).reshape(B, L, h * d)


@mistake(
    "merge_heads",
    believed="All heads hold the same token, so the first will do.",
    tell="What becomes of heads 1, 2, ... in your result?",
    section=PROBLEM,
)
def merge_keeps_the_first_head(x):
    return np.tile(x[:, 0], x.shape[1])


@mistake(
    "merge_heads",
    believed="The array that came in is free to be reused.",
    tell="Print x before and after the call.",
    section=LAYOUT,
)
def merge_writes_into_its_argument(x):
    B, h, L, d = x.shape
    merged = _merge(x)
    x.resize((B, L, h * d), refcheck=False)
    x[...] = merged
    return x


# --- predicted_factors ---


def _factors(id, value, believed, tell):
    return mistake_value(
        "predicted_factors", id, value, believed=believed, tell=tell, section=COSTS
    )


factors_parameters_grow = _factors(
    "factors-parameters-grow",
    (2, 2, 1),
    "Every head brings its own matrices of full size.",
    "How many columns of W_q belong to one head when there are more heads?",
)
factors_weights_stay = _factors(
    "factors-weights-stay",
    (1, 1, 1),
    "Doubling the heads halves everything that belongs to one head.",
    "The features are shared out among the heads. Are the tokens shared out as well?",
)
factors_work_grows = _factors(
    "factors-work-grows",
    (1, 2, 2),
    "Twice as many dot products are twice as much work.",
    "How many multiplications does one dot product of a query and a key take now?",
)
factors_everything_grows = _factors(
    "factors-everything-grows",
    (2, 2, 2),
    "A layer with twice as many heads is two layers.",
    "d_model stays as it is. What becomes of the width of one head?",
)
factors_weights_grow_twice = _factors(
    "factors-weights-grow-twice",
    (1, 4, 1),
    "The weights of all heads attend to each other, so their number is squared.",
    "The weights of one head have shape (L, L). How many such matrices are there?",
)
factors_per_head = _factors(
    "factors-per-head",
    (0.5, 1, 0.5),
    "The question is about a single head.",
    "You have counted for one head. The question asks about the whole layer.",
)


# --- multi_head_attention: heads ---


@mistake(
    "multi_head_attention",
    believed="The number of heads is a matter of storage, not of the result.",
    tell="What is the shape of your weights? Each head has its own.",
    section=PROBLEM,
)
def mha_num_heads_ignored(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    return _attention(X, W_q, W_k, W_v, W_o, 1, mask)


@mistake(
    "multi_head_attention",
    believed="One reshape splits the heads, and one reshape merges them.",
    tell="Change the last token only. Which queries of which head change in your result?",
    section=MISSING,
)
def mha_splits_and_merges_by_reshape(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    return _attention(X, W_q, W_k, W_v, W_o, num_heads, mask, _split_by_reshape, _merge_by_reshape)


@mistake(
    "multi_head_attention",
    believed="Splitting is a reshape; the transpose is needed on the way back only.",
    tell="Print the queries of head 1. Do they hold features of every token?",
    section=LAYOUT,
)
def mha_splits_by_reshape(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    return _attention(X, W_q, W_k, W_v, W_o, num_heads, mask, _split_by_reshape)


@mistake(
    "multi_head_attention",
    believed="After the heads are done, a reshape puts them together.",
    tell="Your weights are right. Follow one token from the context to the merged array.",
    section=LAYOUT,
)
def mha_merges_by_reshape(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    return _attention(X, W_q, W_k, W_v, W_o, num_heads, mask, merge=_merge_by_reshape)


@mistake(
    "multi_head_attention",
    believed="Features go to the heads in turn.",
    tell="Which columns of W_q belong to head 0 in your code? They should lie side by side.",
    section=SPLIT,
)
def mha_interleaves_the_heads(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    return _attention(
        X, W_q, W_k, W_v, W_o, num_heads, mask, _split_interleaved, _merge_interleaved
    )


@mistake(
    "multi_head_attention",
    believed="The order of the features does not matter once the heads are done.",
    tell="Your weights are right. In which columns of the merged array does head 0 stand?",
    section=SPLIT,
)
def mha_merges_interleaved(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    return _attention(X, W_q, W_k, W_v, W_o, num_heads, mask, merge=_merge_interleaved)


@mistake(
    "multi_head_attention",
    believed="Two axes of the split array are already in the right place.",
    tell="Which axis does your product of queries and keys run over, tokens or heads?",
    section=MISSING,
)
def mha_heads_attend_to_heads(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    B, L, D = X.shape
    parts = (X @ W_q, X @ W_k, X @ W_v)
    q, k, v = (part.reshape(B, L, num_heads, D // num_heads) for part in parts)
    weights = _softmax(_hide(_scores(q, k), mask))  # (B, L, h, h)
    return (weights @ v).reshape(B, L, D) @ W_o, weights


@mistake(
    "multi_head_attention",
    believed="A head sees its own slice of the token, before the projections as well.",
    tell="Change one feature of X. Do the weights of every head change, as they should?",
    section=PROBLEM,
)
def mha_splits_before_projecting(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    d = X.shape[-1] // num_heads
    block = np.kron(np.eye(num_heads), np.ones((d, d)))
    return _attention(X, W_q * block, W_k * block, W_v * block, W_o, num_heads, mask)


@mistake(
    "multi_head_attention",
    believed="Heads share their values; only queries and keys differ.",
    tell="Which columns of X W_v does head 1 average in your code?",
    section=PROBLEM,
)
def mha_all_heads_use_the_first_values(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    return _finish(_scores(q, k), np.repeat(v[:, :1], num_heads, axis=1), W_o, mask)


@mistake(
    "multi_head_attention",
    believed="The weights of a layer are the mean over its heads.",
    tell="What is the shape of your weights? Each head has its own, before any averaging.",
    section=PARITY,
)
def mha_returns_averaged_weights(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    output, weights = _attention(X, W_q, W_k, W_v, W_o, num_heads, mask)
    return output, weights.mean(axis=1)


@mistake(
    "multi_head_attention",
    believed="The heads agree on one set of weights before the values are averaged.",
    tell="Does each head average its values with its own weights?",
    section=PROBLEM,
)
def mha_averages_the_weights_of_the_heads(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    weights = _softmax(_hide(_scores(q, k), mask))
    weights = np.broadcast_to(weights.mean(axis=1, keepdims=True), weights.shape).copy()
    return _merge(weights @ v) @ W_o, weights


@mistake(
    "multi_head_attention",
    believed="Heads are folded into the batch, and unfold in whatever order is at hand.",
    tell="In the folded axis, what comes first: all heads of sequence 0, or head 0 of every one?",
    section=LAYOUT,
)
def mha_unfolds_in_wrong_order(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    B, L, D = X.shape
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    weights = _softmax(_hide(_scores(q, k), mask))
    context = (weights @ v).reshape(num_heads, B, L, D // num_heads)
    weights = weights.reshape(num_heads, B, L, L)
    return _merge(np.swapaxes(context, 0, 1)) @ W_o, np.swapaxes(weights, 0, 1)


@mistake(
    "multi_head_attention",
    believed="The last head stands for the result of the loop.",
    tell="Write down what your loop keeps of head 0 once it has reached the last head.",
    section=LOOP,
)
def mha_loop_keeps_the_last_head(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    weights = _softmax(_hide(_scores(q, k), mask))
    context = np.repeat((weights @ v)[:, -1:], num_heads, axis=1)
    return _merge(context) @ W_o, weights


@mistake(
    "multi_head_attention",
    believed="Stacking the heads of a loop puts their axis where it belongs.",
    tell="Your loop stacks one array for each head. On which axis do the heads stand then?",
    section=LOOP,
)
def mha_loop_stacks_heads_in_front(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    output, weights = _attention(X, W_q, W_k, W_v, W_o, num_heads, mask)
    return output, np.swapaxes(weights, 0, 1)


# --- multi_head_attention: the scale ---


@mistake(
    "multi_head_attention",
    believed="d_k in the formula is the width of the model.",
    tell="How many terms has a dot product of one head's query and key?",
    section=WHOLE,
)
def mha_scale_d_model(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    return _finish(q @ np.swapaxes(k, -1, -2) / np.sqrt(X.shape[-1]), v, W_o, mask)


@mistake(
    "multi_head_attention",
    believed="The scale comes from the number of heads.",
    tell="How many terms has a dot product of one head's query and key?",
    section=WHOLE,
)
def mha_scale_num_heads(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    return _finish(q @ np.swapaxes(k, -1, -2) / np.sqrt(num_heads), v, W_o, mask)


@mistake(
    "multi_head_attention",
    believed="The scale comes from the number of keys.",
    tell="How many terms has a dot product of one head's query and key?",
    section=WHOLE,
)
def mha_scale_number_of_keys(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    return _finish(q @ np.swapaxes(k, -1, -2) / np.sqrt(X.shape[-2]), v, W_o, mask)


@mistake(
    "multi_head_attention",
    believed="Heads are narrow, so their scores need no scale.",
    tell="Compare the scores of one head with the formula. Is a factor missing?",
    section=WHOLE,
)
def mha_no_scale(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    return _finish(q @ np.swapaxes(k, -1, -2), v, W_o, mask)


@mistake(
    "multi_head_attention",
    believed="A variable called scale is something to divide by.",
    tell="Do your scores become smaller or larger by the scale? Try one pair of numbers.",
    section=WHOLE,
)
def mha_scale_inverted(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    return _finish(q @ np.swapaxes(k, -1, -2) * np.sqrt(q.shape[-1]), v, W_o, mask)


@mistake(
    "multi_head_attention",
    believed="'Scaled by the width' means divided by the width.",
    tell="How does the spread of a dot product grow with the number of its terms?",
    section=WHOLE,
)
def mha_scale_not_the_root(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    return _finish(q @ np.swapaxes(k, -1, -2) / q.shape[-1], v, W_o, mask)


@mistake(
    "multi_head_attention",
    believed="The scores are scaled and so are the weights.",
    tell="What does a row of your weights sum to?",
    section=WHOLE,
)
def mha_scales_the_weights(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    weights = _softmax(_hide(_scores(q, k), mask)) / num_heads
    return _merge(weights @ v) @ W_o, weights


# --- multi_head_attention: projections and axes ---


@mistake(
    "multi_head_attention",
    believed="Once the heads stand side by side, the shape is right and all is done.",
    tell="Where is W_o used in your code?",
    section=WHOLE,
)
def mha_no_output_projection(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    return _attention(X, W_q, W_k, W_v, np.eye(len(W_o)), num_heads, mask)


@mistake(
    "multi_head_attention",
    believed="W_o is stored as PyTorch stores it.",
    tell="All four matrices are used as `x @ W` here. Is there a transpose too much?",
    section=WHOLE,
)
def mha_output_projection_transposed(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    return _attention(X, W_q, W_k, W_v, W_o.T, num_heads, mask)


@mistake(
    "multi_head_attention",
    believed="Weights are stored as PyTorch stores them, so they are transposed first.",
    tell="All four matrices are used as `x @ W` here. Is there a transpose too much?",
    section=PARITY,
)
def mha_all_projections_transposed(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    return _attention(X, W_q.T, W_k.T, W_v.T, W_o.T, num_heads, mask)


@mistake(
    "multi_head_attention",
    believed="W_o belongs to each head, before they are put together.",
    tell="Which heads does a column of W_o read in your code? It should read all of them.",
    section=WHOLE,
)
def mha_projects_each_head_by_its_own_block(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    d = X.shape[-1] // num_heads
    block = np.kron(np.eye(num_heads), np.ones((d, d)))
    return _attention(X, W_q, W_k, W_v, W_o * block, num_heads, mask)


@mistake(
    "multi_head_attention",
    believed="The values are the tokens themselves.",
    tell="Where is W_v used in your code?",
    section=PROBLEM,
)
def mha_values_not_projected(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    return _attention(X, W_q, W_k, np.eye(len(W_v)), W_o, num_heads, mask)


@mistake(
    "multi_head_attention",
    believed="Queries and keys are the same thing in self-attention.",
    tell="Where is W_k used in your code?",
    section=PROBLEM,
)
def mha_keys_are_the_queries(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    return _attention(X, W_q, W_q, W_v, W_o, num_heads, mask)


@mistake(
    "multi_head_attention",
    believed="Every layer adds its input to its output.",
    tell="Does the formula add X to the result? That is the work of another layer.",
    section=WHOLE,
)
def mha_adds_the_input(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    output, weights = _attention(X, W_q, W_k, W_v, W_o, num_heads, mask)
    return X + output, weights


@mistake(
    "multi_head_attention",
    believed="The queries compete for each key.",
    tell="For one query of one head, add up its weights over all keys. What do you get?",
    section=WHOLE,
)
def mha_softmax_over_queries(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    weights = _softmax(_hide(_scores(q, k), mask), axis=-2)
    return _merge(weights @ v) @ W_o, weights


@mistake(
    "multi_head_attention",
    believed="The heads compete with each other.",
    tell="For one query of one head, add up its weights over all keys. What do you get?",
    section=WHOLE,
)
def mha_softmax_over_heads(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    weights = _softmax(_hide(_scores(q, k), mask), axis=1)
    return _merge(weights @ v) @ W_o, weights


@mistake(
    "multi_head_attention",
    believed="Square weights can be used from either side.",
    tell="Which axis of the weights belongs to the keys? It has to meet the keys' axis of V.",
    section=WHOLE,
)
def mha_weights_applied_transposed(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    weights = _softmax(_hide(_scores(q, k), mask))
    return _merge(np.swapaxes(weights, -1, -2) @ v) @ W_o, weights


@mistake(
    "multi_head_attention",
    believed="Weights come first, since they are computed first.",
    tell="In which order are the two results to be returned?",
    section=WHOLE,
)
def mha_results_exchanged(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    return _attention(X, W_q, W_k, W_v, W_o, num_heads, mask)[::-1]


@mistake(
    "multi_head_attention",
    believed="The weights to return are the scores.",
    tell="What does a row of the weights that you return sum to?",
    section=WHOLE,
)
def mha_returns_scores(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    output, _ = _finish(_scores(q, k), v, W_o, mask)
    return output, _hide(_scores(q, k), mask)


# --- multi_head_attention: masks ---


@mistake(
    "multi_head_attention",
    believed="A (B, L, L) mask broadcasts over the heads by itself.",
    tell="Write the shapes of mask and scores below each other, right ends together. What meets B?",
    section=SILENT,
)
def mha_mask_missing_head_axis(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    scores = _scores(q, k)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = _softmax(scores)
    return _merge(weights @ v) @ W_o, weights


@mistake(
    "multi_head_attention",
    believed="A (B, L, L) mask broadcasts by itself, and every query has an allowed key.",
    tell="Which axis of the scores does the first axis of a (B, L, L) mask meet, when both are "
    "lined up from the right?",
    section=SILENT,
)
def mha_mask_missing_head_axis_and_empty_row_nan(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    scores = _scores(q, k)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = _softmax_without_empty_rows(scores)
    return _merge(weights @ v) @ W_o, weights


@mistake(
    "multi_head_attention",
    believed="Repeating the mask once a head gives every head its mask, in any order.",
    tell="Number the entries of the folded axis by sequence and head. Which mask does each get?",
    section=SILENT,
)
def mha_mask_tiled_in_wrong_order(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    B, L, _ = X.shape
    if mask is not None and mask.ndim == 2:
        mask = np.broadcast_to(mask, (B, L, L))
    if mask is not None and (mask.ndim == 3 or mask.shape[1] == 1):
        one = np.broadcast_to(mask.reshape(B, -1, L), (B, L, L))
        mask = np.tile(one, (num_heads, 1, 1)).reshape(B, num_heads, L, L)
    return _attention(X, W_q, W_k, W_v, W_o, num_heads, mask)


@mistake(
    "multi_head_attention",
    believed="A mask with as many matrices as there are heads has one for each head.",
    tell="With three axes the first one always counts sequences. What if B equals num_heads?",
    section=SILENT,
)
def mha_mask_guessed_from_its_length(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    if mask is not None and mask.ndim == 3 and len(mask) == num_heads:
        mask = mask[None]
    return _attention(X, W_q, W_k, W_v, W_o, num_heads, mask)


@mistake(
    "multi_head_attention",
    believed="All sequences of a batch have the same mask.",
    tell="Which mask does sequence 1 get in your code?",
    section=SILENT,
)
def mha_mask_of_the_first_sequence_for_all(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    if mask is not None and mask.ndim > 2:
        mask = mask[:1]
    return _attention(X, W_q, W_k, W_v, W_o, num_heads, mask)


@mistake(
    "multi_head_attention",
    believed="All heads have the same mask, so the first one tells everything.",
    tell="A mask of shape (B, h, L, L) is different in each head. Is it in your code?",
    section=WHOLE,
)
def mha_mask_of_the_first_head_for_all(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    if mask is not None and mask.ndim == 4:
        mask = mask[:, :1]
    return _attention(X, W_q, W_k, W_v, W_o, num_heads, mask)


@mistake(
    "multi_head_attention",
    believed="Every mask lacks the axis of the heads.",
    tell="How many axes has a mask of shape (B, 1, 1, L) in your code, before it meets the scores?",
    section=WHOLE,
)
def mha_mask_always_gets_a_head_axis(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    scores = _scores(q, k)
    if mask is not None:
        mask = mask[:, None] if mask.ndim > 2 else mask
        scores = np.where(mask, scores, -np.inf)
    weights = _softmax(scores)
    return _merge(weights @ v) @ W_o, weights


@mistake(
    "multi_head_attention",
    believed="Every mask has an axis for the sequences, and none for the heads.",
    tell="What does your code make of a mask of shape (L, L)? Compare its shape with the scores.",
    section=SILENT,
)
def mha_every_mask_gets_a_head_axis(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    scores = _scores(q, k)
    if mask is not None:
        scores = np.where(mask[:, None], scores, -np.inf)
    weights = _softmax(scores)
    return _merge(weights @ v) @ W_o, weights


@mistake(
    "multi_head_attention",
    believed="One head obeys the mask and the others look at everything.",
    tell="Print the weights of head 1 under a mask. Which of them should be 0?",
    section=WHOLE,
)
def mha_mask_in_the_first_head_only(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    B, L, _ = X.shape
    if mask is not None:
        mask = np.broadcast_to(_for_heads(mask), (B, num_heads, L, L)).copy()
        mask[:, 1:] = True
    return _attention(X, W_q, W_k, W_v, W_o, num_heads, mask)


@mistake(
    "multi_head_attention",
    believed="True in a mask means: leave this key out.",
    tell="mask[0] says which keys query 0 may attend to. Which weights are 0 in your row 0?",
    section=WHOLE,
)
def mha_mask_inverted(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    return _attention(X, W_q, W_k, W_v, W_o, num_heads, None if mask is None else ~mask)


@mistake(
    "multi_head_attention",
    believed="Rows of the mask are keys.",
    tell="Row i of the mask belongs to query i. What does row i of your scores belong to?",
    section=WHOLE,
)
def mha_mask_transposed(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    mask = None if mask is None else np.swapaxes(mask, -1, -2)
    return _attention(X, W_q, W_k, W_v, W_o, num_heads, mask)


@mistake(
    "multi_head_attention",
    believed="`np.where` changes the scores that it is given.",
    tell="What becomes of the array that your masking step makes?",
    section=WHOLE,
)
def mha_mask_result_discarded(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    return _attention(X, W_q, W_k, W_v, W_o, num_heads)


@mistake(
    "multi_head_attention",
    believed="Weights of masked keys can be set to 0 after the softmax.",
    tell="What does a row of your weights sum to under a mask?",
    section=WHOLE,
)
def mha_mask_after_softmax(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    weights = _softmax(_scores(q, k))
    if mask is not None:
        weights = weights * _for_heads(mask)
    return _merge(weights @ v) @ W_o, weights


@mistake(
    "multi_head_attention",
    believed="A masked score of 0 is out of the game.",
    tell="What weight does a score of 0 get, next to scores below 0?",
    section=WHOLE,
)
def mha_mask_multiplies_the_scores(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    scores = _scores(q, k)
    if mask is not None:
        scores = scores * _for_heads(mask)
    return _finish(scores, v, W_o)


@mistake(
    "multi_head_attention",
    believed="A score of -10,000 is as good as minus infinity.",
    tell="What if every allowed score is lower than the number that you fill in?",
    section=WHOLE,
)
def mha_fill_not_low_enough(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    scores = _scores(q, k)
    if mask is not None:
        full = np.broadcast_to(_for_heads(mask), scores.shape)
        some = full.any(axis=-1, keepdims=True)
        scores = np.where(full, scores, np.where(some, -1e4, -np.inf))
    return _finish(scores, v, W_o)


@mistake(
    "multi_head_attention",
    believed="A finite fill is safe, since the softmax never sees infinities.",
    tell="Give one query no allowed key at all. Which weights does it get in your result?",
    section=WHOLE,
)
def mha_empty_row_uniform(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    scores = _scores(q, k)
    if mask is not None:
        scores = np.where(_for_heads(mask), scores, -1e30)
    return _finish(scores, v, W_o)


@mistake(
    "multi_head_attention",
    believed="Every query has at least one allowed key.",
    tell="Print the exponentials of such a row, and their sum. If they are NaN: what did you "
    "subtract? If they are 0: what do you divide by?",
    section=WHOLE,
)
def mha_empty_row_nan(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    weights = _softmax_without_empty_rows(_hide(_scores(q, k), mask))
    return _merge(weights @ v) @ W_o, weights


@mistake(
    "multi_head_attention",
    believed="Exponentials of scores are never too large for the computer.",
    tell="Evaluate np.exp(8000.0). Which step of a softmax keeps the exponents small?",
    section=WHOLE,
)
def mha_softmax_overflows(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    e = np.exp(_hide(_scores(q, k), mask))
    total = e.sum(axis=-1, keepdims=True)
    weights = e / np.where(total == 0, 1.0, total)
    return _merge(weights @ v) @ W_o, weights


@mistake(
    "multi_head_attention",
    believed="Exponentials are never too large, and their sum is never 0.",
    tell="Print the exponentials of a row without a key, and their sum. What do you divide by? And "
    "what is np.exp(8000.0)?",
    section=WHOLE,
)
def mha_softmax_overflows_and_empty_row_nan(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    e = np.exp(_hide(_scores(q, k), mask))
    weights = e / e.sum(axis=-1, keepdims=True)
    return _merge(weights @ v) @ W_o, weights


@mistake(
    "multi_head_attention",
    believed="One maximum for all heads makes every row safe.",
    tell="What happens to a head whose scores all lie far below the maximum that you subtract?",
    section=WHOLE,
)
def mha_softmax_global_max(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    scores = _hide(_scores(q, k), mask)
    e = np.exp(scores - scores.max())
    total = e.sum(axis=-1, keepdims=True)
    weights = e / np.where(total == 0, 1.0, total)
    return _merge(weights @ v) @ W_o, weights


@mistake(
    "multi_head_attention",
    believed="Scaling the matrix of the queries in place saves a step and harms nobody.",
    tell="Print W_q before and after the call.",
    section=WHOLE,
)
def mha_scales_W_q_in_place(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    W_q /= np.sqrt(X.shape[-1] // num_heads)
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    return _finish(q @ np.swapaxes(k, -1, -2), v, W_o, mask)


@mistake(
    "multi_head_attention",
    believed="Empty rows of the mask can be mended in place.",
    tell="Print a mask with an empty row before and after the call.",
    section=WHOLE,
)
def mha_mends_the_mask_in_place(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    if mask is None:
        return _attention(X, W_q, W_k, W_v, W_o, num_heads)
    empty = ~mask.any(axis=-1, keepdims=True)
    mask |= empty
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    weights = _softmax(_hide(_scores(q, k), mask))
    weights = np.where(_for_heads(empty), 0.0, weights)
    return _merge(weights @ v) @ W_o, weights


# --- mended_multi_head: some faults are still there ---


def _half_mended(split=_split, merge=_merge, scale="width", head_axis=True):
    """Make the published layer with some of its faults."""

    def layer(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
        q, k, v = _heads(X, W_q, W_k, W_v, num_heads, split)
        root = {"width": q.shape[-1], "heads": num_heads, "model": X.shape[-1], "none": 1}
        scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(root[scale])
        if mask is not None:
            mask = mask[:, None] if head_axis == "always" else mask
            mask = _for_heads(mask) if head_axis is True else mask
            scores = np.where(mask, scores, -np.inf)
        return _finish(scores, v, W_o, None, merge)

    return layer


def _mended(id, believed, tell, section, **faults):
    return mistake_value(
        "mended_multi_head",
        id,
        _half_mended(**faults),
        believed=believed,
        tell=tell,
        section=section,
    )


mended_split_and_merge_by_reshape = _mended(
    "mended-heads-split-and-merge-by-reshape",
    "An array of the right shape is the right array.",
    "Print the queries of head 1 for coded tokens. Do they hold features of every token?",
    MISSING,
    split=_split_by_reshape,
    merge=_merge_by_reshape,
)
mended_split_by_reshape = _mended(
    "mended-heads-split-by-reshape",
    "The transpose is needed on the way back only.",
    "Merging is right, splitting is not yet. Which axis does it cut?",
    MISSING,
    split=_split_by_reshape,
)
mended_merge_by_reshape = _mended(
    "mended-heads-merge-by-reshape",
    "The transpose is needed on the way there only.",
    "Splitting is right, merging is not yet. Which axes does the last reshape join?",
    MISSING,
    merge=_merge_by_reshape,
)
mended_interleaved = _mended(
    "mended-heads-interleaved",
    "Features go to the heads in turn.",
    "Which columns of W_q belong to head 0? They should lie side by side.",
    SPLIT,
    split=_split_interleaved,
    merge=_merge_interleaved,
)
mended_scale_num_heads = _mended(
    "mended-heads-scale-num-heads",
    "The scale comes from the number of heads.",
    "Run it with one head. Which number does it divide the scores by, and which should it be?",
    WHOLE,
    scale="heads",
)
mended_scale_d_model = _mended(
    "mended-heads-scale-d-model",
    "The scale comes from the width of the model.",
    "How many terms has a dot product of one head's query and key?",
    WHOLE,
    scale="model",
)
mended_scale_removed = _mended(
    "mended-heads-scale-removed",
    "A wrong scale is mended by leaving it out.",
    "Compare the scores of one head with the formula. Is a factor missing?",
    WHOLE,
    scale="none",
)
mended_mask_without_head_axis = _mended(
    "mended-heads-mask-without-head-axis",
    "A (B, L, L) mask broadcasts over the heads by itself.",
    "Write the shapes of mask and scores below each other, right ends together. What meets B?",
    SILENT,
    head_axis=False,
)
mended_mask_always_gets_a_head_axis = _mended(
    "mended-heads-mask-always-gets-a-head-axis",
    "Every mask has an axis for the sequences.",
    "What does your code make of a mask of shape (L, L)? Compare its shape with the scores.",
    SILENT,
    head_axis="always",
)
mended_reshape_and_scale = _mended(
    "mended-heads-reshape-and-scale",
    "The mask was the fault.",
    "The mask is right. Now run it with one head, and then with one allowed key for each query.",
    MISSING,
    split=_split_by_reshape,
    merge=_merge_by_reshape,
    scale="heads",
)
mended_scale_and_mask = _mended(
    "mended-heads-scale-and-mask",
    "The reshape was the fault.",
    "Splitting and merging are right. Now run it with one head, and with a mask for each sequence.",
    WHOLE,
    scale="heads",
    head_axis=False,
)
mended_reshape_and_mask = _mended(
    "mended-heads-reshape-and-mask",
    "The scale was the fault.",
    "The scale is right. Now give each query one allowed key, and follow its token.",
    MISSING,
    split=_split_by_reshape,
    merge=_merge_by_reshape,
    head_axis=False,
)
mended_split_and_scale = _mended(
    "mended-heads-split-and-scale",
    "One fault was enough.",
    "Run it with one head, then give each query one allowed key and follow its token.",
    MISSING,
    split=_split_by_reshape,
    scale="heads",
)
mended_split_and_mask = _mended(
    "mended-heads-split-and-mask",
    "The way back was the fault.",
    "Merging is right, splitting is not yet. Then look at masks with three axes.",
    MISSING,
    split=_split_by_reshape,
    head_axis=False,
)
mended_merge_and_scale = _mended(
    "mended-heads-merge-and-scale",
    "The way there was the fault.",
    "Splitting is right, merging is not yet. Then look at the scale with one head.",
    MISSING,
    merge=_merge_by_reshape,
    scale="heads",
)
mended_merge_and_mask = _mended(
    "mended-heads-merge-and-mask",
    "The way there and the scale were the faults.",
    "Splitting is right, merging is not yet. Then look at masks with three axes.",
    MISSING,
    merge=_merge_by_reshape,
    head_axis=False,
)
mended_split_scale_and_mask = _mended(
    "mended-heads-split-scale-and-mask",
    "The way back was the only fault.",
    "Merging is right, splitting is not yet. Two more faults are left: run it with one head first.",
    WHOLE,
    split=_split_by_reshape,
    scale="heads",
    head_axis=False,
)
mended_merge_scale_and_mask = _mended(
    "mended-heads-merge-scale-and-mask",
    "The way there was the only fault.",
    "Splitting is right, merging is not yet. Two more faults are left: run it with one head first.",
    WHOLE,
    merge=_merge_by_reshape,
    scale="heads",
    head_axis=False,
)


# --- unpack_in_proj ---


@mistake(
    "unpack_in_proj",
    believed="PyTorch stores a matrix as it is used.",
    tell="nn.Linear computes x @ weight.T. Which form do you return?",
    section=PARITY,
)
def unpack_not_transposed(in_proj_weight, out_proj_weight):
    return (*np.split(in_proj_weight, 3), out_proj_weight)


@mistake(
    "unpack_in_proj",
    believed="The output projection is a plain matrix; only the packed one is turned.",
    tell="out_proj is an nn.Linear as well. How does it use its weight?",
    section=PARITY,
)
def unpack_out_proj_not_transposed(in_proj_weight, out_proj_weight):
    return (*(W.T for W in np.split(in_proj_weight, 3)), out_proj_weight)


@mistake(
    "unpack_in_proj",
    believed="Only the output projection is an nn.Linear.",
    tell="in_proj_weight has shape (3 D, D). Which axis is that of the input?",
    section=PARITY,
)
def unpack_in_proj_not_transposed(in_proj_weight, out_proj_weight):
    return (*np.split(in_proj_weight, 3), out_proj_weight.T)


@mistake(
    "unpack_in_proj",
    believed="Keys are packed first.",
    tell="In which order does nn.MultiheadAttention take query, key and value?",
    section=PARITY,
)
def unpack_keys_first(in_proj_weight, out_proj_weight):
    k, q, v = (W.T for W in np.split(in_proj_weight, 3))
    return q, k, v, out_proj_weight.T


@mistake(
    "unpack_in_proj",
    believed="Values are packed before keys.",
    tell="In which order does nn.MultiheadAttention take query, key and value?",
    section=PARITY,
)
def unpack_values_before_keys(in_proj_weight, out_proj_weight):
    q, v, k = (W.T for W in np.split(in_proj_weight, 3))
    return q, k, v, out_proj_weight.T


@mistake(
    "unpack_in_proj",
    believed="The three matrices are packed row by row in turn.",
    tell="Which rows of in_proj_weight make up W_q? They lie side by side.",
    section=PARITY,
)
def unpack_interleaved_rows(in_proj_weight, out_proj_weight):
    return (*(in_proj_weight[part::3].T for part in range(3)), out_proj_weight.T)


@mistake(
    "unpack_in_proj",
    believed="The three matrices are packed row by row in turn, and are used as they are stored.",
    tell="Which rows of in_proj_weight make up W_q? They follow each other. And is it x @ weight?",
    section=PARITY,
)
def unpack_interleaved_rows_not_transposed(in_proj_weight, out_proj_weight):
    return (*(in_proj_weight[part::3] for part in range(3)), out_proj_weight.T)


def _unpacked_in_order(id, order, believed):
    """Make the mistake that takes the packed matrices for others than they are."""

    def unpack(in_proj_weight, out_proj_weight):
        parts = np.split(in_proj_weight, 3)
        return (*(parts[part].T for part in order), out_proj_weight.T)

    return mistake_value(
        "unpack_in_proj",
        id,
        unpack,
        believed=believed,
        tell="The matrices are whole, but which is which? Read the table of the question again.",
        section=PARITY,
    )


unpack_values_first = _unpacked_in_order(
    "unpack-values-first", (1, 2, 0), "Values are packed first, then queries and keys."
)
unpack_queries_last = _unpacked_in_order(
    "unpack-queries-last", (2, 0, 1), "Queries are packed last, after keys and values."
)
unpack_in_reversed_order = _unpacked_in_order(
    "unpack-in-reversed-order", (2, 1, 0), "Values are packed first, and queries last."
)


@mistake(
    "unpack_in_proj",
    believed="The output projection comes first, as it is passed on its own.",
    tell="In which order are the four results to be returned?",
    section=PARITY,
)
def unpack_returns_W_o_first(in_proj_weight, out_proj_weight):
    return (out_proj_weight.T, *(W.T for W in np.split(in_proj_weight, 3)))


@mistake(
    "unpack_in_proj",
    believed="The transposed matrix is cut by a reshape.",
    tell="After transposing, along which axis do the three matrices stand?",
    section=LAYOUT,
)
def unpack_reshapes_after_transposing(in_proj_weight, out_proj_weight):
    D = in_proj_weight.shape[1]
    return (*in_proj_weight.T.reshape(3, D, D), out_proj_weight.T)


@mistake(
    "unpack_in_proj",
    believed="The three matrices stand one after the other along the last axis.",
    tell="What is the shape of each of your matrices? Each should be square.",
    section=PARITY,
)
def unpack_cuts_columns(in_proj_weight, out_proj_weight):
    return (*np.array_split(in_proj_weight, 3, axis=1), out_proj_weight.T)


@mistake(
    "unpack_in_proj",
    believed="W_o is one of the matrices in the packed one.",
    tell="How many matrices are packed in in_proj_weight, and where is the fourth?",
    section=PARITY,
)
def unpack_out_proj_from_the_packed(in_proj_weight, out_proj_weight):
    parts = [W.T for W in np.split(in_proj_weight, 3)]
    return (*parts, parts[2])


@mistake(
    "unpack_in_proj",
    believed="The scale of the scores is part of the queries' matrix.",
    tell="Compare the numbers of W_q with those in in_proj_weight. Why do they differ?",
    section=PARITY,
)
def unpack_scales_the_queries(in_proj_weight, out_proj_weight):
    q, k, v = (W.T for W in np.split(in_proj_weight, 3))
    return q / math.sqrt(len(q)), k, v, out_proj_weight.T


@mistake(
    "unpack_in_proj",
    believed="Weights that have been unpacked may be overwritten.",
    tell="Print in_proj_weight before and after the call.",
    section=PARITY,
)
def unpack_transposes_in_place(in_proj_weight, out_proj_weight):
    D = in_proj_weight.shape[1]
    blocks = in_proj_weight.reshape(3, D, D)
    blocks[...] = blocks.transpose(0, 2, 1).copy()
    return (*blocks, out_proj_weight.T)


# --- MultiHeadAttention ---


@functools.cache
def _layer_class():
    """Make the right layer in PyTorch, in steps that a mistake can replace."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self, d_model, num_heads, bias=True):
            super().__init__()
            self.h, self.d = num_heads, d_model // num_heads
            self.W_q, self.W_k, self.W_v, self.W_o = (
                nn.Linear(d_model, d_model, bias=bias) for _ in range(4)
            )

        def forward(self, x, mask=None):
            q, k, v = self.parts(x)
            weights = self.weights(self.scores(q, k), self.full(mask))
            return self.project(self.merge(weights @ v)), weights

        def parts(self, x):
            return [self.split(W(x)) for W in (self.W_q, self.W_k, self.W_v)]

        def split(self, t):
            return t.unflatten(-1, (self.h, self.d)).transpose(-3, -2)

        def merge(self, t):
            return t.transpose(-3, -2).flatten(-2)

        def scores(self, q, k):
            return q @ k.transpose(-2, -1) / math.sqrt(self.d)

        def full(self, mask):
            return mask[:, None] if mask is not None and mask.dim() == 3 else mask

        def weights(self, scores, mask):
            if mask is None:
                return torch.softmax(scores, dim=-1)
            some = mask.any(dim=-1, keepdim=True)
            scores = scores.masked_fill(~mask & some, float("-inf"))
            return torch.softmax(scores, dim=-1).masked_fill(~some, 0.0)

        def project(self, context):
            return self.W_o(context)

    return Layer


def _straight_split(self, t):
    return t.reshape(len(t), self.h, t.shape[1], self.d)


def _straight_merge(self, t):
    return t.reshape(len(t), t.shape[2], self.h * self.d)


def _viewing_merge(self, t):
    return t.transpose(-3, -2).view(len(t), t.shape[2], self.h * self.d)


def _unprojected(self, context):
    self.W_o(context)
    return context


def _context_as_it_is(self, t):
    return t


def _transposing_merge(self, t):
    return t.transpose(-3, -2)


def _turning_merge(self, t):
    return t.transpose(-1, -2).reshape(len(t), t.shape[2], self.h * self.d)


def _mask_as_it_came(self, mask):
    return mask


def _mask_with_one_more_axis(self, mask):
    return None if mask is None else mask.unsqueeze(1)


@mistake(
    "MultiHeadAttention",
    believed="Calling the last layer is enough; what is returned is 'the output'.",
    tell="Look at the gradient of W_o after a backward pass. What do you return?",
    section=IN_TORCH,
)
def mha_projected_result_not_returned(d_model, num_heads):
    class Layer(_layer_class()):
        project = _unprojected

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="A head works on its slice of the token, with a small projection that all share.",
    tell="What are the shapes of your weights? Each projection reads the whole token.",
    section=PROBLEM,
)
def mha_split_before_project(d_model, num_heads):
    from torch import nn

    class Layer(_layer_class()):
        def __init__(self, d_model, num_heads):
            super().__init__(d_model, num_heads)
            self.W_q, self.W_k, self.W_v = (nn.Linear(self.d, self.d) for _ in range(3))

        def parts(self, x):
            slices = self.split(x)
            return [W(slices) for W in (self.W_q, self.W_k, self.W_v)]

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="`view` works on any tensor with the right number of elements.",
    tell="After a transpose the numbers no longer lie in order. What does `view` need?",
    section=LAYOUT,
)
def mha_view_on_noncontiguous(d_model, num_heads):
    class Layer(_layer_class()):
        merge = _viewing_merge

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="One reshape splits the heads, and one reshape merges them.",
    tell="Change the last token only. Which queries of which head change in your result?",
    section=MISSING,
)
def mha_layer_splits_and_merges_by_reshape(d_model, num_heads):
    class Layer(_layer_class()):
        split = _straight_split
        merge = _straight_merge

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="`reshape` instead of `view` makes the error about strides go away, transpose or not.",
    tell="Your weights are right. Follow one token from the context to the merged tensor.",
    section=LAYOUT,
)
def mha_layer_merges_by_reshape(d_model, num_heads):
    class Layer(_layer_class()):
        merge = _straight_merge

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="d_k in the formula is the width of the model.",
    tell="How many terms has a dot product of one head's query and key?",
    section=WHOLE,
)
def mha_layer_scale_d_model(d_model, num_heads):
    class Layer(_layer_class()):
        def scores(self, q, k):
            return q @ k.transpose(-2, -1) / math.sqrt(self.h * self.d)

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="The scale comes from the number of heads.",
    tell="How many terms has a dot product of one head's query and key?",
    section=WHOLE,
)
def mha_layer_scale_num_heads(d_model, num_heads):
    class Layer(_layer_class()):
        def scores(self, q, k):
            return q @ k.transpose(-2, -1) / math.sqrt(self.h)

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="Heads are narrow, so their scores need no scale.",
    tell="Compare the scores of one head with the formula. Is a factor missing?",
    section=WHOLE,
)
def mha_layer_no_scale(d_model, num_heads):
    class Layer(_layer_class()):
        def scores(self, q, k):
            return q @ k.transpose(-2, -1)

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="The softmax runs over dimension 1, as in most examples.",
    tell="Name the four axes of your scores. Along which one do the weights of a query lie?",
    section=WHOLE,
)
def mha_layer_softmax_over_heads(d_model, num_heads):
    class Layer(_layer_class()):
        def weights(self, scores, mask):
            import torch

            if mask is not None:
                scores = scores.masked_fill(~mask, float("-inf"))
            return torch.softmax(scores, dim=1)

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="A (B, L, L) mask broadcasts over the heads by itself.",
    tell="Write the shapes of mask and scores below each other, right ends together. What meets B?",
    section=SILENT,
)
def mha_layer_mask_missing_head_axis(d_model, num_heads):
    class Layer(_layer_class()):
        full = _mask_as_it_came

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="True in a mask means: leave this key out, as in nn.MultiheadAttention.",
    tell="Which keys have weight 0 in your result, those with True or those with False?",
    section=PARITY,
)
def mha_layer_mask_inverted(d_model, num_heads):
    class Layer(_layer_class()):
        def full(self, mask):
            return None if mask is None else ~super().full(mask)

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="`masked_fill` changes the tensor that it is called on.",
    tell="What becomes of the tensor that your masking step makes?",
    section=WHOLE,
)
def mha_layer_mask_result_discarded(d_model, num_heads):
    class Layer(_layer_class()):
        def full(self, mask):
            return None

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="Every query has at least one allowed key.",
    tell="Give one query no allowed key at all, and print its weights.",
    section=WHOLE,
)
def mha_layer_empty_row_nan(d_model, num_heads):
    class Layer(_layer_class()):
        def weights(self, scores, mask):
            import torch

            if mask is not None:
                scores = scores.masked_fill(~mask, float("-inf"))
            return torch.softmax(scores, dim=-1)

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="A large negative number is as good as minus infinity.",
    tell="Give one query no allowed key at all. Which weights does it get?",
    section=WHOLE,
)
def mha_layer_empty_row_uniform(d_model, num_heads):
    class Layer(_layer_class()):
        def weights(self, scores, mask):
            import torch

            if mask is not None:
                scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
            return torch.softmax(scores, dim=-1)

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="Weights of 0 in the end mend whatever the softmax gave before.",
    tell="Zeroing the weights afterwards does not mend the gradient of softmax. What does softmax "
    "get in a row without a key?",
    section=IN_TORCH,
)
def mha_layer_empty_row_nan_gradient(d_model, num_heads):
    class Layer(_layer_class()):
        def weights(self, scores, mask):
            import torch

            if mask is not None:
                lowered = torch.zeros_like(scores).masked_fill(~mask, float("-inf"))
                scores = scores + lowered
            return torch.softmax(scores, dim=-1).nan_to_num()

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="Every mask has an axis for the sequences, and none for the heads.",
    tell="What does your code make of a mask of shape (L, L)? Compare its shape with the scores.",
    section=SILENT,
)
def mha_layer_mask_always_gets_a_head_axis(d_model, num_heads):
    class Layer(_layer_class()):
        full = _mask_with_one_more_axis

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="No mask has an axis for the heads yet.",
    tell="How many axes has a mask of shape (B, 1, 1, L) in your code, before it meets the scores?",
    section=WHOLE,
)
def mha_layer_mask_gets_a_second_head_axis(d_model, num_heads):
    class Layer(_layer_class()):
        def full(self, mask):
            return None if mask is None else mask.unsqueeze(-3)

        def merge(self, t):  # counts its axes from the front, as most do: five axes are an error
            return t.transpose(1, 2).reshape(len(t), t.shape[2], self.h * self.d)

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="A score of -10,000 is as good as minus infinity.",
    tell="What if every allowed score is lower than the number that you fill in?",
    section=WHOLE,
)
def mha_layer_fill_not_low_enough(d_model, num_heads):
    class Layer(_layer_class()):
        def weights(self, scores, mask):
            import torch

            if mask is None:
                return torch.softmax(scores, dim=-1)
            scores = scores.masked_fill(~mask, -1e4)
            some = mask.any(dim=-1, keepdim=True)
            return torch.softmax(scores, dim=-1).masked_fill(~some, 0.0)

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="Weights of masked keys can be set to 0 after the softmax.",
    tell="What does a row of your weights sum to under a mask?",
    section=WHOLE,
)
def mha_layer_mask_after_softmax(d_model, num_heads):
    class Layer(_layer_class()):
        def weights(self, scores, mask):
            import torch

            weights = torch.softmax(scores, dim=-1)
            return weights if mask is None else weights.masked_fill(~mask, 0.0)

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="The queries compete for each key.",
    tell="For one query of one head, add up its weights over all keys. What do you get?",
    section=WHOLE,
)
def mha_layer_softmax_over_queries(d_model, num_heads):
    class Layer(_layer_class()):
        def weights(self, scores, mask):
            turned = None if mask is None else mask.expand_as(scores).transpose(-2, -1)
            return super().weights(scores.transpose(-2, -1), turned).transpose(-2, -1)

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="The number of heads is a matter of storage, not of the result.",
    tell="What is the shape of your weights? Each head has its own.",
    section=PROBLEM,
)
def mha_layer_num_heads_ignored(d_model, num_heads):
    return _layer_class()(d_model, 1)


@mistake(
    "MultiHeadAttention",
    believed="Features go to the heads in turn.",
    tell="Which rows of W_q.weight belong to head 0? They should lie side by side.",
    section=SPLIT,
)
def mha_layer_interleaves_the_heads(d_model, num_heads):
    class Layer(_layer_class()):
        def split(self, t):
            return t.unflatten(-1, (self.d, self.h)).permute(0, 3, 1, 2)

        def merge(self, t):
            return t.permute(0, 2, 3, 1).flatten(-2)

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="Queries and keys are the same thing in self-attention.",
    tell="Where is W_k used in your code?",
    section=PROBLEM,
)
def mha_layer_keys_are_the_queries(d_model, num_heads):
    class Layer(_layer_class()):
        def parts(self, x):
            q, _, v = super().parts(x)
            return q, q, v

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="Every layer adds its input to its output.",
    tell="Does the formula add x to the result? That is the work of another layer.",
    section=WHOLE,
)
def mha_layer_adds_the_input(d_model, num_heads):
    class Layer(_layer_class()):
        def forward(self, x, mask=None):
            output, weights = super().forward(x, mask)
            return x + output, weights

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="A fill of -1e9 fits every floating-point type.",
    tell="What is the largest number in float16? Call .half() on your layer and give it a mask.",
    section=IN_TORCH,
)
def mha_layer_fill_too_large_for_half(d_model, num_heads):
    class Layer(_layer_class()):
        def weights(self, scores, mask):
            import torch

            if mask is not None:
                some = mask.any(dim=-1, keepdim=True)
                scores = scores.masked_fill(~mask, -1e9)
                return torch.softmax(scores, dim=-1).masked_fill(~some, 0.0)
            return torch.softmax(scores, dim=-1)

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="Attention is computed in float32, whatever the layer's type.",
    tell="Call .double() on your layer. Which dtype do the weights have then?",
    section=IN_TORCH,
)
def mha_layer_weights_always_float32(d_model, num_heads):
    class Layer(_layer_class()):
        def weights(self, scores, mask):
            return super().weights(scores.float(), mask)

        def forward(self, x, mask=None):
            q, k, v = self.parts(x)
            weights = self.weights(self.scores(q, k), self.full(mask))
            context = (weights @ v.float()).to(x.dtype)
            return self.project(self.merge(context)), weights

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="Projections in attention never have a bias.",
    tell="Print the names of your layer's parameters. Which are missing?",
    section=IN_TORCH,
)
def mha_layer_without_bias(d_model, num_heads):
    return _layer_class()(d_model, num_heads, bias=False)


@mistake(
    "MultiHeadAttention",
    believed="The output projection needs no bias.",
    tell="Print the names of your layer's parameters. Which one is missing?",
    section=IN_TORCH,
)
def mha_layer_output_without_bias(d_model, num_heads):
    from torch import nn

    layer = _layer_class()(d_model, num_heads)
    layer.W_o = nn.Linear(d_model, d_model, bias=False)
    return layer


@mistake(
    "MultiHeadAttention",
    believed="Queries and keys can share a projection.",
    tell="Print the names of your layer's parameters. Which are missing?",
    section=PROBLEM,
)
def mha_layer_keys_share_the_queries_projection(d_model, num_heads):
    class Layer(_layer_class()):
        def __init__(self, d_model, num_heads):
            super().__init__(d_model, num_heads)
            del self.W_k

        def parts(self, x):
            q, v = self.split(self.W_q(x)), self.split(self.W_v(x))
            return q, q, v

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="A list keeps the layers of each head.",
    tell="Print the names of your layer's parameters. What does PyTorch see of a plain list?",
    section=IN_TORCH,
)
def mha_layer_projections_in_a_list(d_model, num_heads):
    class Layer(_layer_class()):
        def __init__(self, d_model, num_heads):
            super().__init__(d_model, num_heads)
            self.layers = [self.W_q, self.W_k, self.W_v]
            del self.W_q, self.W_k, self.W_v

        def parts(self, x):
            return [self.split(W(x)) for W in self.layers]

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="The layer also needs a scale that is learned.",
    tell="Print the names of your layer's parameters. Which one is not asked for?",
    section=IN_TORCH,
)
def mha_layer_learned_scale(d_model, num_heads):
    import torch

    class Layer(_layer_class()):
        def __init__(self, d_model, num_heads):
            super().__init__(d_model, num_heads)
            self.scale = torch.nn.Parameter(torch.tensor(1 / math.sqrt(self.d)))

        def scores(self, q, k):
            return q @ k.transpose(-2, -1) * self.scale

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="Weights are for looking at, so no gradient needs to pass them.",
    tell="Print the gradients of W_q and W_k after a backward pass.",
    section="The backward pass",
)
def mha_layer_weights_detached(d_model, num_heads):
    class Layer(_layer_class()):
        def weights(self, scores, mask):
            return super().weights(scores, mask).detach()

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="The projections can be wrapped in tensors and stay trainable.",
    tell="Print the gradients of all parameters after a backward pass. Which are None?",
    section="The backward pass",
)
def mha_layer_projections_without_gradient(d_model, num_heads):
    class Layer(_layer_class()):
        def parts(self, x):
            from torch.nn import functional as F

            return [
                self.split(F.linear(x, W.weight.data, W.bias.data))
                for W in (self.W_q, self.W_k, self.W_v)
            ]

    return Layer(d_model, num_heads)


@mistake(
    "MultiHeadAttention",
    believed="The weights to return are those of nn.MultiheadAttention: averaged over the heads.",
    tell="What is the shape of your weights? Each head has its own.",
    section=PARITY,
)
def mha_layer_returns_averaged_weights(d_model, num_heads):
    class Layer(_layer_class()):
        def forward(self, x, mask=None):
            output, weights = super().forward(x, mask)
            return output, weights.mean(dim=1)

    return Layer(d_model, num_heads)


# --- MendedMultiHeadAttention: some faults are still there ---


def _layer_with(**faults):
    """Make a constructor of layers in which some steps are replaced."""

    def build(d_model, num_heads):
        return type("Layer", (_layer_class(),), faults)(d_model, num_heads)

    return build


def _mended_layer(id, believed, tell, section, **faults):
    return mistake_value(
        "MendedMultiHeadAttention",
        id,
        _layer_with(**faults),
        believed=believed,
        tell=tell,
        section=section,
    )


mended_layer_unprojected = _mended_layer(
    "mended-layer-unprojected",
    "Calling the last layer is enough.",
    "Splitting, masking and merging are right. Which tensor does `forward` return?",
    IN_TORCH,
    project=_unprojected,
)
mended_layer_merges_by_reshape = _mended_layer(
    "mended-layer-merges-by-reshape",
    "`reshape` is a `view` that never fails, so the transpose is not needed.",
    "The weights are right. Which axes does the last reshape join?",
    LAYOUT,
    merge=_straight_merge,
)
mended_layer_mask_missing_head_axis = _mended_layer(
    "mended-layer-mask-missing-head-axis",
    "A (B, L, L) mask broadcasts over the heads by itself.",
    "Give it a batch of as many sequences as there are heads. Whose mask does sequence 0 get?",
    SILENT,
    full=_mask_as_it_came,
)
mended_layer_mask_always_gets_a_head_axis = _mended_layer(
    "mended-layer-mask-always-gets-a-head-axis",
    "Every mask has an axis for the sequences.",
    "What does your code make of a mask of shape (L, L)? Compare its shape with the scores.",
    SILENT,
    full=_mask_with_one_more_axis,
)
mended_layer_leaves_four_axes = _mended_layer(
    "mended-layer-leaves-four-axes",
    "Moving the axis back is the whole way back.",
    "Which shape has the context when `W_o` gets it? A token is to have d_model numbers again.",
    SPLIT,
    merge=_transposing_merge,
)
mended_layer_does_not_merge = _mended_layer(
    "mended-layer-does-not-merge",
    "`W_o` puts the heads together.",
    "Which shape has the context when `W_o` gets it? A token is to have d_model numbers again.",
    SPLIT,
    merge=_context_as_it_is,
)
mended_layer_turns_the_last_axes = _mended_layer(
    "mended-layer-turns-the-last-axes",
    "The two axes to exchange are the last two.",
    "After your transpose, which axes stand where? Heads should stand beside features.",
    SPLIT,
    merge=_turning_merge,
)
mended_layer_views_again = _mended_layer(
    "mended-layer-views-again",
    "With the transpose back, the `view` of old is right again.",
    "After a transpose the numbers no longer lie in order. What does `view` need?",
    LAYOUT,
    merge=_viewing_merge,
)
mended_layer_only_the_merge = _mended_layer(
    "mended-layer-only-the-merge",
    "The transpose was the only fault.",
    "Merging is right. Look at what `forward` returns, and at masks with three axes.",
    IN_TORCH,
    project=_unprojected,
    full=_mask_as_it_came,
)
mended_layer_only_the_mask = _mended_layer(
    "mended-layer-only-the-mask",
    "The mask was the only fault.",
    "The mask is right. Look at what `forward` returns, and at how the heads are joined.",
    IN_TORCH,
    project=_unprojected,
    merge=_straight_merge,
)
mended_layer_only_the_projection = _mended_layer(
    "mended-layer-only-the-projection",
    "The output projection was the only fault.",
    "The projection is right. Look at how the heads are joined, and at masks with three axes.",
    LAYOUT,
    merge=_straight_merge,
    full=_mask_as_it_came,
)
mended_layer_splits_by_reshape_too = _mended_layer(
    "mended-layer-splits-by-reshape-too",
    "Splitting and merging must be each other's reverse, so both become a reshape.",
    "Going there and back is not enough: what does head 1 hold in between?",
    MISSING,
    split=_straight_split,
    merge=_straight_merge,
)


# --- grouped_query_attention ---


def _grouped(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None, share=None, hide=_hide):
    """Attention in which `share` gives every head its keys and values."""
    if share is None:

        def share(t):
            return np.repeat(t, num_heads // num_kv_heads, axis=1)

    q = _split(X @ W_q, num_heads)
    k, v = (share(_split(X @ W, num_kv_heads)) for W in (W_k, W_v))
    weights = _softmax(hide(_scores(q, k), mask))
    return _merge(weights @ v) @ W_o, weights


@mistake(
    "grouped_query_attention",
    believed="Heads take the shared keys in turn.",
    tell="With 4 heads and 2 heads of keys, which keys does head 1 use in your code?",
    section=WHOLE,
)
def gqa_heads_take_turns(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    def share(t):
        return np.tile(t, (1, num_heads // num_kv_heads, 1, 1))

    return _grouped(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask, share)


@mistake(
    "grouped_query_attention",
    believed="Grouped heads are multi-head attention with other matrices.",
    tell="How wide is X W_k, and how wide is one head? How many heads of keys does that give?",
    section=WHOLE,
)
def gqa_splits_keys_into_all_heads(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    return _attention(X, W_q, W_k, W_v, W_o, num_heads, mask)


@mistake(
    "grouped_query_attention",
    believed="All heads share the first keys and values.",
    tell="Which heads use the second part of W_k in your code?",
    section=WHOLE,
)
def gqa_all_share_the_first(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    def share(t):
        return np.repeat(t[:, :1], num_heads, axis=1)

    return _grouped(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask, share)


@mistake(
    "grouped_query_attention",
    believed="Sharing means that all heads use the mean of the keys and values.",
    tell="Which heads of keys does head 0 use in your code, and how many should it be?",
    section=WHOLE,
)
def gqa_averages_the_shared(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    def share(t):
        return np.repeat(t.mean(axis=1, keepdims=True), num_heads, axis=1)

    return _grouped(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask, share)


@mistake(
    "grouped_query_attention",
    believed="num_kv_heads is the number of heads in a group.",
    tell="With 6 heads and 2 heads of keys, how many heads share the same keys?",
    section=WHOLE,
)
def gqa_group_of_num_kv_heads(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    def share(t):
        return t[:, np.arange(num_heads) // num_kv_heads % num_kv_heads]

    return _grouped(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask, share)


@mistake(
    "grouped_query_attention",
    believed="Broadcasting shares keys and values among the heads by itself.",
    tell="Write the shapes of Q and K below each other. Does h line up with g, if neither is 1?",
    section=WHOLE,
)
def gqa_leaves_sharing_to_broadcasting(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    return _grouped(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask, lambda t: t)


@mistake(
    "grouped_query_attention",
    believed="Only the keys are shared in groups; the values of all heads come in turn.",
    tell="Follow head 1 through your code: do its keys and its values come from the same place?",
    section=WHOLE,
)
def gqa_values_take_turns(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    q = _split(X @ W_q, num_heads)
    k = np.repeat(_split(X @ W_k, num_kv_heads), num_heads // num_kv_heads, axis=1)
    v = np.tile(_split(X @ W_v, num_kv_heads), (1, num_heads // num_kv_heads, 1, 1))
    return _finish(_scores(q, k), v, W_o, mask)


@mistake(
    "grouped_query_attention",
    believed="The width of a head is that of the queries divided by the heads of keys.",
    tell="How wide is one head of queries? And how wide is one head of keys?",
    section=WHOLE,
)
def gqa_scale_by_the_group(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    group = num_heads // num_kv_heads
    return _grouped(X, W_q / np.sqrt(group), W_k, W_v, W_o, num_heads, num_kv_heads, mask)


@mistake(
    "grouped_query_attention",
    believed="Heads are put together by adding up each group.",
    tell="How many heads stand side by side before W_o? All of them do.",
    section=WHOLE,
)
def gqa_adds_up_each_group(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    group = num_heads // num_kv_heads
    q = _split(X @ W_q, num_heads)
    k, v = (np.repeat(_split(X @ W, num_kv_heads), group, axis=1) for W in (W_k, W_v))
    weights = _softmax(_hide(_scores(q, k), mask))
    B, _, L, d = q.shape
    sums = (weights @ v).reshape(B, num_kv_heads, group, L, d).sum(axis=2)
    return _merge(np.repeat(sums, group, axis=1)) @ W_o, weights


@mistake(
    "grouped_query_attention",
    believed="Grouped queries share their weights as well.",
    tell="What differs between two heads of one group: their queries, or nothing?",
    section=WHOLE,
)
def gqa_queries_of_a_group_averaged(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    group = num_heads // num_kv_heads
    q = _split(X @ W_q, num_heads)
    B, _, L, d = q.shape
    q = np.repeat(q.reshape(B, num_kv_heads, group, L, d).mean(axis=2), group, axis=1)
    k, v = (np.repeat(_split(X @ W, num_kv_heads), group, axis=1) for W in (W_k, W_v))
    return _finish(_scores(q, k), v, W_o, mask)


@mistake(
    "grouped_query_attention",
    believed="A (B, L, L) mask broadcasts over the heads by itself.",
    tell="Write the shapes of mask and scores below each other, right ends together. What meets B?",
    section=SILENT,
)
def gqa_mask_missing_head_axis(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    def hide(scores, mask):
        return scores if mask is None else np.where(mask, scores, -np.inf)

    return _grouped(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask, hide=hide)


@mistake(
    "grouped_query_attention",
    believed="Every mask has an axis for the sequences.",
    tell="What does your code make of a mask of shape (L, L)? Compare its shape with the scores.",
    section=SILENT,
)
def gqa_mask_always_gets_a_head_axis(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    def hide(scores, mask):
        return scores if mask is None else np.where(mask[:, None], scores, -np.inf)

    return _grouped(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask, hide=hide)


@mistake(
    "grouped_query_attention",
    believed="Keys that are shared cannot be masked.",
    tell="Print the weights under a mask. Which of them should be 0?",
    section=WHOLE,
)
def gqa_mask_ignored(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    return _grouped(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads)


@mistake(
    "grouped_query_attention",
    believed="Groups are merged by one reshape.",
    tell="Your weights are right. Which axes does your last reshape join?",
    section=LAYOUT,
)
def gqa_merges_by_reshape(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    q = _split(X @ W_q, num_heads)
    group = num_heads // num_kv_heads
    k, v = (np.repeat(_split(X @ W, num_kv_heads), group, axis=1) for W in (W_k, W_v))
    return _finish(_scores(q, k), v, W_o, mask, _merge_by_reshape)


# --- grouped_query_costs ---


@mistake(
    "grouped_query_costs",
    believed="Sharing keys makes all four matrices smaller.",
    tell="Every head still has its own queries. What are the shapes of W_q and W_o?",
    section=COSTS,
)
def costs_all_matrices_shrink(L, d_model, num_heads, num_kv_heads):
    kept = num_kv_heads * (d_model // num_heads)
    return 4 * d_model * kept, 2 * L * kept


@mistake(
    "grouped_query_costs",
    believed="A layer consists of W_q, W_k and W_v.",
    tell="How many matrices has the layer? One comes after the heads.",
    section=COSTS,
)
def costs_without_W_o(L, d_model, num_heads, num_kv_heads):
    kept = num_kv_heads * (d_model // num_heads)
    return d_model * d_model + 2 * d_model * kept, 2 * L * kept


@mistake(
    "grouped_query_costs",
    believed="Sharing saves memory for what is kept, not parameters.",
    tell="How many columns has W_k when there are fewer heads of keys?",
    section=COSTS,
)
def costs_matrices_of_full_size(L, d_model, num_heads, num_kv_heads):
    return 4 * d_model * d_model, 2 * L * num_kv_heads * (d_model // num_heads)


@mistake(
    "grouped_query_costs",
    believed="Every projection has a bias.",
    tell="Count the entries of the four matrices alone. What have you counted besides?",
    section=COSTS,
)
def costs_with_biases(L, d_model, num_heads, num_kv_heads):
    kept = num_kv_heads * (d_model // num_heads)
    return 2 * d_model * (d_model + kept) + 2 * (d_model + kept), 2 * L * kept


@mistake(
    "grouped_query_costs",
    believed="Keys are kept, and values are computed again.",
    tell="Which two arrays does a new query need of the tokens before it?",
    section=STEP_2,
)
def costs_keys_alone_are_kept(L, d_model, num_heads, num_kv_heads):
    kept = num_kv_heads * (d_model // num_heads)
    return 2 * d_model * (d_model + kept), L * kept


@mistake(
    "grouped_query_costs",
    believed="Every head keeps a copy of what it shares.",
    tell="What is the shape of X W_k? Keep that, not what is repeated for the heads.",
    section=STEP_2,
)
def costs_kept_for_every_head(L, d_model, num_heads, num_kv_heads):
    kept = num_kv_heads * (d_model // num_heads)
    return 2 * d_model * (d_model + kept), 2 * L * d_model


@mistake(
    "grouped_query_costs",
    believed="Queries are kept as well.",
    tell="Does a later token ever look at the query of an earlier one?",
    section=STEP_2,
)
def costs_queries_are_kept_too(L, d_model, num_heads, num_kv_heads):
    kept = num_kv_heads * (d_model // num_heads)
    return 2 * d_model * (d_model + kept), L * (2 * kept + d_model)


@mistake(
    "grouped_query_costs",
    believed="One number is kept for each head and token.",
    tell="How wide is the key of one head? All of its entries are kept.",
    section=STEP_2,
)
def costs_width_of_a_head_forgotten(L, d_model, num_heads, num_kv_heads):
    kept = num_kv_heads * (d_model // num_heads)
    return 2 * d_model * (d_model + kept), 2 * L * num_kv_heads


@mistake(
    "grouped_query_costs",
    believed="The width of a head is the width of the model divided by the heads of keys.",
    tell="Fewer heads of keys do not make them wider. How wide is one head?",
    section=COSTS,
)
def costs_heads_of_keys_get_wider(L, d_model, num_heads, num_kv_heads):
    return 4 * d_model * d_model, 2 * L * d_model


# --- attention_with_head_mask ---


def _contexts(X, W_q, W_k, W_v, num_heads, mask=None):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    return _softmax(_hide(_scores(q, k), mask)) @ v  # (B, h, L, d)


@mistake(
    "attention_with_head_mask",
    believed="True means: switch this head off.",
    tell="With all entries True, what should your function give?",
    section=STEP_3,
)
def head_mask_inverted(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    contexts = _contexts(X, W_q, W_k, W_v, num_heads) * ~head_mask[:, None, None]
    return _merge(contexts) @ W_o


@mistake(
    "attention_with_head_mask",
    believed="The heads that stay make up for those that are gone, as in dropout.",
    tell="Compare one head's share of the output before and after another is switched off.",
    section=STEP_3,
)
def head_mask_rescales(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    contexts = _contexts(X, W_q, W_k, W_v, num_heads) * head_mask[:, None, None]
    return _merge(contexts) @ W_o * num_heads / max(1, head_mask.sum())


@mistake(
    "attention_with_head_mask",
    believed="A mask repeated end to end lines up with the merged features.",
    tell="Print your mask beside the merged features. Which entries belong to head 0?",
    section=SPLIT,
)
def head_mask_tiled(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    merged = _merge(_contexts(X, W_q, W_k, W_v, num_heads))
    return merged * np.tile(head_mask, merged.shape[-1] // num_heads) @ W_o


@mistake(
    "attention_with_head_mask",
    believed="A head is switched off by setting its scores to 0.",
    tell="What does the softmax make of scores that are all 0?",
    section=STEP_3,
)
def head_mask_on_the_scores(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    return _finish(_scores(q, k) * head_mask[:, None, None], v, W_o)[0]


@mistake(
    "attention_with_head_mask",
    believed="A head is switched off by masking all of its keys.",
    tell="What does your softmax make of a row of minus infinities?",
    section=STEP_3,
)
def head_mask_gives_nan(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    q, k, v = _heads(X, W_q, W_k, W_v, num_heads)
    scores = np.where(head_mask[:, None, None], _scores(q, k), -np.inf)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return _merge(e / e.sum(axis=-1, keepdims=True) @ v) @ W_o


@mistake(
    "attention_with_head_mask",
    believed="The number of True entries says how many heads stay: the first ones.",
    tell="Switch off head 0 alone. Which head is missing in your result?",
    section=STEP_3,
)
def head_mask_counts_heads(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    stay = np.arange(num_heads) < head_mask.sum()
    contexts = _contexts(X, W_q, W_k, W_v, num_heads) * stay[:, None, None]
    return _merge(contexts) @ W_o


@mistake(
    "attention_with_head_mask",
    believed="Head i of the mask is column block i of W_o.",
    tell="How do the features of head 0 enter the product with W_o: by its rows or its columns?",
    section=STEP_3,
)
def head_mask_on_columns_of_W_o(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    columns = np.repeat(head_mask, len(W_o) // num_heads)
    return _merge(_contexts(X, W_q, W_k, W_v, num_heads)) @ (W_o * columns)


@mistake(
    "attention_with_head_mask",
    believed="A head that is off keeps its mean, which is safer than nothing.",
    tell="What should a head that is switched off add to the output?",
    section=STEP_3,
)
def head_mask_keeps_the_mean(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    contexts = _contexts(X, W_q, W_k, W_v, num_heads)
    mean = contexts.mean(axis=-2, keepdims=True)
    return _merge(np.where(head_mask[:, None, None], contexts, mean)) @ W_o


@mistake(
    "attention_with_head_mask",
    believed="Rows of W_o that are not needed can be set to 0 in place.",
    tell="Print W_o before and after the call.",
    section=STEP_3,
)
def head_mask_clears_W_o_in_place(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    W_o[~np.repeat(head_mask, len(W_o) // num_heads)] = 0.0
    return _merge(_contexts(X, W_q, W_k, W_v, num_heads)) @ W_o


@mistake(
    "attention_with_head_mask",
    believed="The mask of the heads is ready to be multiplied with the weights.",
    tell="Which axis of the weights meets your mask when NumPy lines them up?",
    section=STEP_3,
)
def head_mask_without_axes(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    contexts = _contexts(X, W_q, W_k, W_v, num_heads)
    return _merge(contexts * head_mask) @ W_o


@mistake(
    "attention_with_head_mask",
    believed="A layer without heads is left as it is.",
    tell="What should the output be if every head is switched off?",
    section=STEP_3,
)
def head_mask_ignored_where_empty(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    if not head_mask.any():
        head_mask = ~head_mask
    contexts = _contexts(X, W_q, W_k, W_v, num_heads) * head_mask[:, None, None]
    return _merge(contexts) @ W_o


@mistake(
    "attention_with_head_mask",
    believed="A head that is off can be left out, and the rest of the layer stays as it is.",
    tell="Fewer heads are merged in your code. How wide is that, and how many rows has W_o?",
    section=STEP_3,
)
def head_mask_leaves_heads_out(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    return _merge(_contexts(X, W_q, W_k, W_v, num_heads)[:, head_mask]) @ W_o
