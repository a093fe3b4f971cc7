"""Wrong answers to exercise 4 that people really give, each with exactly one fault.

What surrounds the fault is right and shared: `_padding`, `_rect`, `_softmax`, `_attend`.
"""

import numpy as np

from autograder.mistakes import mistake, mistake_value

CONTRACT = "The contract"
PADDING = "Padding"
CAUSAL = "Causal"
BOTH = "Both at once"
CACHE = "Causal with a cache"
WINDOW = "Sliding window"
PACKED = "Packed sequences"
PREFIX = "Prefix"
BEFORE = "Before the softmax, not after"
ZEROING = "Zeroing the weights"
FILL = "A fill value that is not low enough"
EMPTY = "The empty row"
WHOLE = "The whole function"
POOL = "The mean over real tokens"
OPPOSITE = "True means opposite things"
ADDED = "Numbers that are added"
CONVERTERS = "Converters"
ALIGNED = "Aligned to the first key, or to the last"


def _padding(lengths, max_len):
    """Keep the first tokens of each sequence: (B, L)."""
    return np.arange(max_len) < np.asarray(lengths)[:, None]


def _causal(L):
    return np.tri(L, dtype=bool)


def _rect(L_q, L_k):
    return np.tri(L_q, L_k, L_k - L_q, dtype=bool)


def _softmax(scores):
    """Softmax over the last axis, in which a row of -inf alone gives zeros."""
    peak = np.max(scores, axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isneginf(peak), 0.0, peak))
    total = np.sum(e, axis=-1, keepdims=True)
    return e / np.where(total == 0, 1.0, total)


def _scores(Q, K):
    Q, K = np.asarray(Q, dtype=float), np.asarray(K, dtype=float)
    return Q @ np.swapaxes(K, -1, -2) / np.sqrt(K.shape[-1])


def _allowed(shape, mask, causal):
    allowed = np.broadcast_to(True if mask is None else mask, shape)
    return allowed & _rect(*shape[-2:]) if causal else allowed


def _average(scores, allowed, V):
    weights = _softmax(np.where(allowed, scores, -np.inf))
    return weights @ V, weights


def _attend(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    return _average(scores, _allowed(scores.shape, mask, causal), V)


# --- predicted counts ---


def _counts(id, value, *, believed, tell, section):
    return mistake_value(
        "predicted_counts", id, value, believed=believed, tell=tell, section=section
    )


counts_aligned_to_first_key = _counts(
    "counts-aligned-to-first-key",
    (3, 15, 13),
    believed="The first query sees the first key, whatever is cached.",
    tell="(a) 3 would be right if the new tokens stood first.",
    section=CACHE,
)
counts_whole_rectangle = _counts(
    "counts-whole-rectangle",
    (12, 15, 13),
    believed="New queries see all keys, since all keys are in the past or new.",
    tell="(a) Does the first of the two new queries see the key of the second?",
    section=CACHE,
)
counts_of_all_positions = _counts(
    "counts-of-all-positions",
    (21, 15, 13),
    believed="With a cache the queries of the earlier tokens are computed again.",
    tell="(a) How many rows does the mask have when only the new tokens ask?",
    section=CACHE,
)
counts_strict_with_cache = _counts(
    "counts-strict-with-cache",
    (9, 15, 13),
    believed="A new token sees the cache and not itself.",
    tell="(a) May a token see itself in a causal mask?",
    section=CAUSAL,
)
counts_window_beside_itself = _counts(
    "counts-window-beside-itself",
    (11, 18, 13),
    believed="A window of 3 shows three tokens and the token itself.",
    tell="(b) Does the token itself count as one of the 3?",
    section=WINDOW,
)
counts_window_two_sided = _counts(
    "counts-window-two-sided",
    (11, 16, 13),
    believed="A window reaches to both sides of the token.",
    tell="(b) The window is causal. On which side of the token does it lie?",
    section=WINDOW,
)
counts_window_is_a_triangle = _counts(
    "counts-window-is-a-triangle",
    (11, 21, 13),
    believed="The window only matters for longer sequences.",
    tell="(b) How many keys does the last of the 6 queries see with a window of 3?",
    section=WINDOW,
)
counts_padding_is_a_document = _counts(
    "counts-padding-is-a-document",
    (11, 15, 16),
    believed="Padding is a document like the others.",
    tell="(c) Two of the 8 places are padding. May anything read them, or they anything?",
    section=PACKED,
)
counts_packed_two_sided = _counts(
    "counts-packed-two-sided",
    (11, 15, 20),
    believed="Inside a document all tokens see each other.",
    tell="(c) The mask is causal as well. Is each document a square or a triangle?",
    section=PACKED,
)
counts_packed_as_one = _counts(
    "counts-packed-as-one",
    (11, 15, 21),
    believed="Packed documents are one sequence.",
    tell="(c) May the second document read the first? They only share a row to save space.",
    section=PACKED,
)
counts_packed_with_padding_as_one = _counts(
    "counts-packed-with-padding-as-one",
    (11, 15, 36),
    believed="A row of 8 places is a causal mask of 8.",
    tell="(c) May the second document read the first, and what may padding read?",
    section=PACKED,
)


# --- predicted weights ---


def _weights(id, value, *, believed, tell, section):
    return mistake_value(
        "predicted_weights", id, value, believed=believed, tell=tell, section=section
    )


weights_true_always_attends = _weights(
    "weights-true-always-attends",
    (0.5, 0, 0.155),
    believed="True means 'may attend' everywhere in PyTorch.",
    tell="(b) What is the name of the argument? A key padding mask marks which keys?",
    section=OPPOSITE,
)
weights_true_always_ignores = _weights(
    "weights-true-always-ignores",
    (0, 1, 0.155),
    believed="True means 'ignore' everywhere in PyTorch.",
    tell="(a) Which keys take part in `F.scaled_dot_product_attention`: those with True?",
    section=OPPOSITE,
)
weights_conventions_exchanged = _weights(
    "weights-conventions-exchanged",
    (0, 0, 0.155),
    believed="The fused function ignores what is True, the module attends to it.",
    tell="(a, b) One reads True as attend, the other as ignore. Do you have them right?",
    section=OPPOSITE,
)
weights_numbers_switch_keys_off = _weights(
    "weights-numbers-switch-keys-off",
    (0.5, 1, 0),
    believed="A mask of ones and zeros acts as one of True and False.",
    tell="(c) A number is added to the score. What is 0 plus a score of 0?",
    section=ADDED,
)
weights_numbers_switch_keys_on = _weights(
    "weights-numbers-switch-keys-on",
    (0.5, 1, 1),
    believed="A 1 in a mask of numbers hides the key.",
    tell="(c) Adding 1 to a score: does the key get more weight, or less, or none?",
    section=ADDED,
)
weights_numbers_are_factors = _weights(
    "weights-numbers-are-factors",
    (0.5, 1, 1 / 3),
    believed="The scores are multiplied by a mask of numbers.",
    tell="(c) Are the scores multiplied by the numbers, or are the numbers added?",
    section=ADDED,
)
weights_numbers_are_shares = _weights(
    "weights-numbers-are-shares",
    (0.5, 1, 0.2),
    believed="Adding 1 to a score doubles the weight.",
    tell="(c) By which factor does exp grow when its argument grows by 1?",
    section=ADDED,
)
weights_third_for_all = _weights(
    "weights-third-for-all",
    (1 / 3, 1, 0.155),
    believed="A masked weight is set to 0 and the others stay as they were.",
    tell="(a) Two keys are left. What do their weights sum to?",
    section=ZEROING,
)
weights_half_ignored = _weights(
    "weights-half-ignored",
    (0.5, 1 / 3, 0.155),
    believed="The module sets ignored weights to 0 and leaves the others as they were.",
    tell="(b) One key is left. What do the weights sum to?",
    section=ZEROING,
)


# --- padding ---


@mistake(
    "padding_mask",
    believed="A padding mask marks the padding.",
    tell="Where is your mask True: at real tokens or at padding? Here True means 'may attend'.",
    section=CONTRACT,
)
def padding_mask_inverted(lengths, max_len):
    return ~_padding(lengths, max_len)[:, None, None, :]


@mistake(
    "padding_mask",
    believed="A (B, L) mask lines up with scores of any shape by itself.",
    tell="NumPy lines up shapes from the right. Which axis of the scores meets your first one?",
    section=PADDING,
)
def padding_mask_two_dim(lengths, max_len):
    return _padding(lengths, max_len)


@mistake(
    "padding_mask",
    believed="One extra axis is enough.",
    tell="Scores have four axes: (B, h, L_q, L_k). Which of them does your mask lack?",
    section=PADDING,
)
def padding_mask_three_dim(lengths, max_len):
    return _padding(lengths, max_len)[:, None, :]


@mistake(
    "padding_mask",
    believed="The mask belongs to the queries.",
    tell="What is hidden at padding: keys or queries? Which axis of the scores is that?",
    section=PADDING,
)
def padding_mask_on_query_axis(lengths, max_len):
    return _padding(lengths, max_len)[:, None, :, None]


@mistake(
    "padding_mask",
    believed="The batch is where the heads are.",
    tell="In which order do the axes (B, h, L_q, L_k) stand? Where is B in your mask?",
    section=PADDING,
)
def padding_mask_batch_axis_second(lengths, max_len):
    return _padding(lengths, max_len)[None, :, None, :]


@mistake(
    "padding_mask",
    believed="Token number `length` still belongs to the sequence.",
    tell="A sequence of 2 tokens: at how many places is your mask True?",
    section=PADDING,
)
def padding_mask_one_too_many(lengths, max_len):
    return (np.arange(max_len) <= np.asarray(lengths)[:, None])[:, None, None, :]


@mistake(
    "padding_mask",
    believed="Positions are counted from 1.",
    tell="A sequence of 2 tokens: at how many places is your mask True?",
    section=PADDING,
)
def padding_mask_one_too_few(lengths, max_len):
    return (np.arange(max_len) < np.asarray(lengths)[:, None] - 1)[:, None, None, :]


@mistake(
    "padding_mask",
    believed="Padding stands in front.",
    tell="Where do the real tokens stand: at the beginning of the row or at its end?",
    section=PADDING,
)
def padding_mask_on_the_left(lengths, max_len):
    return _padding(lengths, max_len)[:, None, None, ::-1]


@mistake(
    "padding_mask",
    believed="The longest sequence of the batch decides on the width.",
    tell="How wide is your mask if every sequence is shorter than max_len?",
    section=PADDING,
)
def padding_mask_as_wide_as_the_longest(lengths, max_len):
    return _padding(lengths, int(np.max(lengths)))[:, None, None, :]


@mistake(
    "padding_mask",
    believed="A slice of the last `max_len - length` places is empty when there are none.",
    tell="What does `row[-0:]` select? Try a sequence that fills the row.",
    section=PADDING,
)
def padding_mask_negative_slice(lengths, max_len):
    mask = np.ones((len(lengths), 1, 1, max_len), dtype=bool)
    for b, length in enumerate(lengths):
        mask[b, 0, 0, -(max_len - length) :] = False
    return mask


@mistake(
    "padding_mask",
    believed="A sequence has at least one token.",
    tell="What does your mask show for a sequence of length 0?",
    section=EMPTY,
)
def padding_mask_first_token_always_kept(lengths, max_len):
    mask = _padding(lengths, max_len)
    mask[:, 0] = True
    return mask[:, None, None, :]


@mistake(
    "padding_mask",
    believed="Lengths are always an array.",
    tell="Call your function with a list of lengths.",
    section=PADDING,
)
def padding_mask_needs_an_array(lengths, max_len):
    return (np.arange(max_len) < lengths[:, None])[:, None, None, :]


@mistake(
    "padding_mask",
    believed="Ones and zeros are as good as True and False.",
    tell="What does `~mask` give for your numbers? And `mask & other`?",
    section=CONTRACT,
)
def padding_mask_of_numbers(lengths, max_len):
    return _padding(lengths, max_len)[:, None, None, :].astype(float)


@mistake(
    "padding_mask",
    believed="A mask holds what is added to the scores.",
    tell="Your mask holds numbers to add. Which two values does a Boolean mask hold?",
    section=ADDED,
)
def padding_mask_additive(lengths, max_len):
    return np.where(_padding(lengths, max_len), 0.0, -np.inf)[:, None, None, :]


@mistake(
    "padding_mask",
    believed="The mask is needed in full size.",
    tell="Which of your axes could have length 1 and still line up with the scores?",
    section=PADDING,
)
def padding_mask_square(lengths, max_len):
    keep = _padding(lengths, max_len)
    return np.repeat(keep[:, None, None, :], max_len, axis=2)


# --- causal ---


@mistake(
    "causal_mask",
    believed="A token must not see itself.",
    tell="Which keys may the first token see? Look at row 0.",
    section=CAUSAL,
)
def causal_mask_strict(L):
    return np.tri(L, k=-1, dtype=bool)


@mistake(
    "causal_mask",
    believed="The upper triangle is the past.",
    tell="Row i belongs to query i. Which keys does row 0 allow?",
    section=CAUSAL,
)
def causal_mask_turned(L):
    return _causal(L).T


@mistake(
    "causal_mask",
    believed="A causal mask marks what is forbidden.",
    tell="Is your mask True where a query may attend, or where it must not?",
    section=CONTRACT,
)
def causal_mask_marks_the_future(L):
    return ~_causal(L)


@mistake(
    "causal_mask",
    believed="`k=1` starts the triangle at the diagonal.",
    tell="Which keys may the first token see? Look at row 0.",
    section=CAUSAL,
)
def causal_mask_one_ahead(L):
    return np.tri(L, k=1, dtype=bool)


@mistake(
    "causal_mask",
    believed="Causal means: the token itself and the one before.",
    tell="How far back may the last token look?",
    section=CAUSAL,
)
def causal_mask_one_step_back(L):
    return _causal(L) & ~np.tri(L, k=-2, dtype=bool)


@mistake(
    "causal_mask",
    believed="Causal means that all see the present of all.",
    tell="May a query see a token that comes after it?",
    section=CAUSAL,
)
def causal_mask_all_but_itself(L):
    return ~np.eye(L, dtype=bool)


@mistake(
    "causal_mask",
    believed="Ones and zeros are as good as True and False.",
    tell="What does `~mask` give for your numbers? And `mask & other`?",
    section=CONTRACT,
)
def causal_mask_of_numbers(L):
    return np.tril(np.ones((L, L)))


@mistake(
    "causal_mask",
    believed="A mask holds what is added to the scores.",
    tell="Your mask holds numbers to add. Which two values does a Boolean mask hold?",
    section=ADDED,
)
def causal_mask_additive(L):
    return np.where(_causal(L), 0.0, -np.inf)


@mistake(
    "causal_mask",
    believed="A mask has axes for batch and heads from the start.",
    tell="Which shape does the question ask for?",
    section=CAUSAL,
)
def causal_mask_four_axes(L):
    return _causal(L)[None, None]


# --- causal with a cache ---


@mistake(
    "causal_mask_rect",
    believed="The lower triangle of a rectangle is the causal mask.",
    tell="One new query and 5 keys: how many of them does your mask show it?",
    section=ALIGNED,
)
def causal_top_left_with_cache(L_q, L_k):
    return np.tri(L_q, L_k, dtype=bool)


@mistake(
    "causal_mask_rect",
    believed="A new token sees the cache and not itself.",
    tell="May a token see itself? Look at the last entry of the last row.",
    section=CAUSAL,
)
def causal_rect_strict(L_q, L_k):
    return np.tri(L_q, L_k, L_k - L_q - 1, dtype=bool)


@mistake(
    "causal_mask_rect",
    believed="The first query stands one position further on.",
    tell="At which position does the first query stand? Count from 0.",
    section=CACHE,
)
def causal_rect_one_ahead(L_q, L_k):
    return np.tri(L_q, L_k, L_k - L_q + 1, dtype=bool)


@mistake(
    "causal_mask_rect",
    believed="The diagonal moves down by the number of cached keys.",
    tell="Into which direction does your diagonal move? With a cache, a query sees more keys.",
    section=CACHE,
)
def causal_rect_moved_down(L_q, L_k):
    return np.tri(L_q, L_k, L_q - L_k, dtype=bool)


@mistake(
    "causal_mask_rect",
    believed="There is always something in the cache.",
    tell="What does your mask show if L_q and L_k are equal?",
    section=CACHE,
)
def causal_rect_always_with_a_cache(L_q, L_k):
    return np.tri(L_q, L_k, max(L_k - L_q, 1), dtype=bool)


@mistake(
    "causal_mask_rect",
    believed="The new tokens are all there at once, so they see each other.",
    tell="Does the first new query see the key of the last one? Which of them comes later?",
    section=CACHE,
)
def causal_rect_new_tokens_see_each_other(L_q, L_k):
    new = np.arange(L_k) >= L_k - L_q
    return _rect(L_q, L_k) | (new & (L_q < L_k))


@mistake(
    "causal_mask_rect",
    believed="Each new query sees the cache and itself.",
    tell="Does the last new query see the keys of the new ones before it?",
    section=CACHE,
)
def causal_rect_new_tokens_apart(L_q, L_k):
    cached = np.arange(L_k) < L_k - L_q
    own = np.eye(L_q, L_k, L_k - L_q, dtype=bool)
    return _rect(L_q, L_k) & (cached | own) if L_q < L_k else _causal(L_k)


@mistake(
    "causal_mask_rect",
    believed="The rows are the keys.",
    tell="What is the shape of your mask for 2 queries and 5 keys?",
    section=CACHE,
)
def causal_rect_turned(L_q, L_k):
    return _rect(L_q, L_k).T


@mistake(
    "causal_mask_rect",
    believed="A causal mask is square.",
    tell="How many rows does the mask need if only the new tokens ask?",
    section=CACHE,
)
def causal_rect_square(L_q, L_k):
    return _causal(L_k)


@mistake(
    "causal_mask_rect",
    believed="A causal mask marks what is forbidden.",
    tell="Is your mask True where a query may attend, or where it must not?",
    section=CONTRACT,
)
def causal_rect_marks_the_future(L_q, L_k):
    return ~_rect(L_q, L_k)


@mistake(
    "causal_mask_rect",
    believed="Ones and zeros are as good as True and False.",
    tell="What does `~mask` give for your numbers? And `mask & other`?",
    section=CONTRACT,
)
def causal_rect_of_numbers(L_q, L_k):
    return np.tri(L_q, L_k, L_k - L_q)


# --- both ---


def _combine(keep, causal):
    return keep[:, None, None, :] & causal


@mistake(
    "combine_masks",
    believed="A position is allowed if one of the masks allows it.",
    tell="A later token that is real: may a query see it? Look at your operation.",
    section=BOTH,
)
def masks_combined_with_or(keep, causal):
    return keep[:, None, None, :] | causal


@mistake(
    "combine_masks",
    believed="The padding mask belongs to the queries.",
    tell="What is hidden at padding: keys or queries? Which axis of the scores is that?",
    section=PADDING,
)
def combined_on_query_axis(keep, causal):
    return keep[:, None, :, None] & causal


@mistake(
    "combine_masks",
    believed="Padding is hidden from both sides.",
    tell="A padding query in a right-padded row: which keys does the question let it see?",
    section=BOTH,
)
def combined_on_both_axes(keep, causal):
    return _combine(keep, causal) & keep[:, None, :, None]


@mistake(
    "combine_masks",
    believed="NumPy lines the two masks up by itself.",
    tell="Print the shapes of both masks. Which axes does NumPy line up?",
    section=BOTH,
)
def combined_without_axes(keep, causal):
    return (keep & causal)[None, None]


@mistake(
    "combine_masks",
    believed="One extra axis is enough.",
    tell="The result has four axes, with one for the heads. Which of them do you lack?",
    section=BOTH,
)
def combined_without_head_axis(keep, causal):
    return keep[:, None, :] & causal


@mistake(
    "combine_masks",
    believed="The head axis comes first.",
    tell="In which order do the axes (B, h, L_q, L_k) stand?",
    section=BOTH,
)
def combined_with_batch_second(keep, causal):
    return (keep[:, None, :] & causal)[None]


@mistake(
    "combine_masks",
    believed="The second mask shows row by row what a key may see.",
    tell="In causal[i, j], which index is the query?",
    section=CAUSAL,
)
def combined_with_causal_turned(keep, causal):
    return _combine(keep, causal.T)


@mistake(
    "combine_masks",
    believed="keep is True at padding.",
    tell="keep is True at real tokens. Does your result hide the padding or the rest?",
    section=CONTRACT,
)
def combined_with_keep_inverted(keep, causal):
    return _combine(~keep, causal)


@mistake(
    "combine_masks",
    believed="causal is True where it is forbidden to look.",
    tell="causal is True where a query may attend. Does your result show the past?",
    section=CONTRACT,
)
def combined_with_causal_inverted(keep, causal):
    return _combine(keep, ~causal)


@mistake(
    "combine_masks",
    believed="The second mask is always the causal one, so it can be built anew.",
    tell="Does your result change when you pass another second mask?",
    section=BOTH,
)
def combined_builds_its_own_causal(keep, causal):
    return _combine(keep, _causal(len(causal)))


@mistake(
    "combine_masks",
    believed="Padding needs no mask if the mask is causal.",
    tell="Padding on the left: which keys do the real queries see?",
    section=BOTH,
)
def combined_forgets_padding(keep, causal):
    return np.repeat(causal[None, None], len(keep), axis=0)


@mistake(
    "combine_masks",
    believed="A real token count says where the padding is: behind.",
    tell="Padding on the left: which keys do the real queries see?",
    section=PADDING,
)
def combined_padding_always_right(keep, causal):
    return _combine(_padding(keep.sum(axis=1), keep.shape[1]), causal)


@mistake(
    "combine_masks",
    believed="A real token count says where the padding is: in front.",
    tell="Padding on the right: which keys do your queries see?",
    section=PADDING,
)
def combined_padding_always_left(keep, causal):
    return _combine(_padding(keep.sum(axis=1), keep.shape[1])[:, ::-1], causal)


@mistake(
    "combine_masks",
    believed="No row may be empty, so a token always sees itself.",
    tell="A padding token on the left: does the question let it see itself?",
    section=EMPTY,
)
def combined_diagonal_always_open(keep, causal):
    return _combine(keep, causal) | np.eye(len(causal), dtype=bool)


@mistake(
    "combine_masks",
    believed="A row with nothing allowed has to be opened for all keys.",
    tell="A padding query on the left has no key to see. What does the contract say of it?",
    section=EMPTY,
)
def combined_opens_empty_rows(keep, causal):
    mask = _combine(keep, causal)
    return mask | ~mask.any(axis=-1, keepdims=True)


@mistake(
    "combine_masks",
    believed="Padding is the same in all sequences of a batch.",
    tell="Do the masks of two sequences of unequal length differ in your result?",
    section=BOTH,
)
def combined_for_the_longest(keep, causal):
    return _combine(np.broadcast_to(keep.any(axis=0), keep.shape), causal)


@mistake(
    "combine_masks",
    believed="Multiplying the masks as numbers is the same as `&`.",
    tell="Of which type is your result? Try `~` on it.",
    section=CONTRACT,
)
def combined_of_numbers(keep, causal):
    return keep[:, None, None, :] * causal.astype(int)


# --- sliding window ---


def _window(L, window, lowest=0):
    i = np.arange(L)
    distance = i[:, None] - i
    return (distance >= lowest) & (distance < window)


@mistake(
    "sliding_window_mask",
    believed="The window holds as many tokens before the token itself.",
    tell="How many keys does the last query see with a window of 1?",
    section=WINDOW,
)
def window_beside_itself(L, window):
    return _window(L, window + 1)


@mistake(
    "sliding_window_mask",
    believed="The window lies before the token, which is not part of it.",
    tell="Does a token see itself in your mask?",
    section=WINDOW,
)
def window_without_itself(L, window):
    return _window(L, window, lowest=1)


@mistake(
    "sliding_window_mask",
    believed="The window lies before the token and ends just short of it.",
    tell="Does a token see itself in your mask? Which keys does row 0 allow?",
    section=WINDOW,
)
def window_shifted_back(L, window):
    return _window(L, window + 1, lowest=1)


@mistake(
    "sliding_window_mask",
    believed="A window reaches to both sides.",
    tell="May a query see a token that comes after it?",
    section=WINDOW,
)
def window_two_sided(L, window):
    return _window(L, window, lowest=1 - window)


@mistake(
    "sliding_window_mask",
    believed="A window is centered at its token.",
    tell="May a query see a token that comes after it?",
    section=WINDOW,
)
def window_centered(L, window):
    return _window(L, window - window // 2, lowest=-(window // 2))


@mistake(
    "sliding_window_mask",
    believed="A window looks forward.",
    tell="Row i belongs to query i. On which side of the diagonal is your window?",
    section=WINDOW,
)
def window_into_the_future(L, window):
    return _window(L, window).T


@mistake(
    "sliding_window_mask",
    believed="A negative start of a slice begins at 0.",
    tell="What does `row[-2:1]` select? Look at the first rows of your mask.",
    section=WINDOW,
)
def window_slice_wraps(L, window):
    mask = np.zeros((L, L), dtype=bool)
    for i in range(L):
        mask[i, i - window + 1 : i + 1] = True
    return mask


@mistake(
    "sliding_window_mask",
    believed="The sequence is cut into blocks of the window's length.",
    tell="Does the first token of your second block see the token before it?",
    section=WINDOW,
)
def window_in_blocks(L, window):
    block = np.arange(L) // window
    return _causal(L) & (block[:, None] == block)


@mistake(
    "sliding_window_mask",
    believed="The window only limits the future.",
    tell="How far back does the last query look in your mask?",
    section=WINDOW,
)
def window_ignored(L, window):
    return _causal(L)


@mistake(
    "sliding_window_mask",
    believed="The window hides the nearest tokens, not the far ones.",
    tell="Which tokens does a window show: those nearby or those far away?",
    section=WINDOW,
)
def window_hides_what_is_near(L, window):
    return _causal(L) & ~_window(L, window)


@mistake(
    "sliding_window_mask",
    believed="The mask marks what lies outside.",
    tell="Is your mask True where a query may attend, or where it must not?",
    section=CONTRACT,
)
def window_mask_inverted(L, window):
    return ~_window(L, window)


@mistake(
    "sliding_window_mask",
    believed="A window of 1 would be useless, so 2 is the least.",
    tell="Which keys does your mask show with a window of 1?",
    section=WINDOW,
)
def window_of_two_at_least(L, window):
    return _window(L, max(window, 2))


@mistake(
    "sliding_window_mask",
    believed="Positions wrap around at the beginning.",
    tell="Which keys does the first query see? None comes before it.",
    section=WINDOW,
)
def window_around_the_corner(L, window):
    i = np.arange(L)
    return (i[:, None] - i) % L < window


@mistake(
    "sliding_window_mask",
    believed="Ones and zeros are as good as True and False.",
    tell="What does `~mask` give for your numbers? And `mask & other`?",
    section=CONTRACT,
)
def window_of_numbers(L, window):
    return _window(L, window).astype(float)


# --- pooling ---


def _pool(x, keep):
    total = np.where(keep[..., None], x, 0.0).sum(axis=1)
    return total / np.maximum(keep.sum(axis=1), 1)[:, None]


@mistake(
    "masked_mean_pool",
    believed="After a masked encoder the padding positions hold nothing.",
    tell="Change the numbers at padding. Does your mean change?",
    section=POOL,
)
def pooling_includes_padding(x, keep):
    return x.mean(axis=1)


@mistake(
    "masked_mean_pool",
    believed="With zeros at padding the ordinary mean is right.",
    tell="By what do you divide: by the length of the row, or by the number of kept tokens?",
    section=POOL,
)
def pooling_divides_by_the_length(x, keep):
    return np.where(keep[..., None], x, 0.0).mean(axis=1)


@mistake(
    "masked_mean_pool",
    believed="The sum of the kept tokens is their mean.",
    tell="Two equal tokens are kept. Is your result equal to them?",
    section=POOL,
)
def pooling_without_division(x, keep):
    return np.where(keep[..., None], x, 0.0).sum(axis=1)


@mistake(
    "masked_mean_pool",
    believed="The padding is what is to be averaged.",
    tell="keep is True at the tokens that count. Which tokens does your mean use?",
    section=CONTRACT,
)
def pooling_inverted(x, keep):
    return _pool(x, ~keep)


@mistake(
    "masked_mean_pool",
    believed="One count serves the whole batch.",
    tell="Do you divide each sequence by its own number of kept tokens?",
    section=POOL,
)
def pooling_one_count_for_all(x, keep):
    total = np.where(keep[..., None], x, 0.0).sum(axis=1)
    return total / max(keep.sum() / len(keep), 1)


@mistake(
    "masked_mean_pool",
    believed="The longest sequence says by how much to divide.",
    tell="Do you divide each sequence by its own number of kept tokens?",
    section=POOL,
)
def pooling_divides_by_the_longest(x, keep):
    total = np.where(keep[..., None], x, 0.0).sum(axis=1)
    return total / max(keep.sum(axis=1).max(), 1)


@mistake(
    "masked_mean_pool",
    believed="Padding stands behind, so the first tokens are the kept ones.",
    tell="Which tokens does your mean use if the padding stands on the left?",
    section=POOL,
)
def pooling_takes_the_first_tokens(x, keep):
    return _pool(x, _padding(keep.sum(axis=1), keep.shape[1]))


@mistake(
    "masked_mean_pool",
    believed="The last kept token ends the sequence, and all before it count.",
    tell="Is a token between two kept ones always kept?",
    section=POOL,
)
def pooling_up_to_the_last_kept(x, keep):
    behind = np.cumsum(keep[:, ::-1], axis=1)[:, ::-1] > 0
    return _pool(x, behind)


@mistake(
    "masked_mean_pool",
    believed="There is always a token to average.",
    tell="What is 0 divided by 0? Which sequence has nothing to average?",
    section=POOL,
)
def pooling_nan_where_nothing_is_kept(x, keep):
    with np.errstate(invalid="ignore"):
        total = np.where(keep[..., None], x, 0.0).sum(axis=1)
        return total / keep.sum(axis=1)[:, None]


@mistake(
    "masked_mean_pool",
    believed="Where nothing is kept, everything counts.",
    tell="What does the question ask for where no token is kept?",
    section=POOL,
)
def pooling_falls_back_to_all(x, keep):
    return _pool(x, keep | ~keep.any(axis=1, keepdims=True))


@mistake(
    "masked_mean_pool",
    believed="Adding 1 to the count makes the division safe and costs little.",
    tell="One token is kept. Is your result equal to it?",
    section=POOL,
)
def pooling_adds_one_to_the_count(x, keep):
    total = np.where(keep[..., None], x, 0.0).sum(axis=1)
    return total / (keep.sum(axis=1)[:, None] + 1)


@mistake(
    "masked_mean_pool",
    believed="Multiplying by 0 removes any number.",
    tell="What is 0 times NaN, and 0 times infinity?",
    section=POOL,
)
def pooling_multiplies_by_zero(x, keep):
    with np.errstate(invalid="ignore"):
        total = (x * keep[..., None]).sum(axis=1)
    return total / np.maximum(keep.sum(axis=1), 1)[:, None]


@mistake(
    "masked_mean_pool",
    believed="NaN is the only number that multiplying by 0 does not remove.",
    tell="What is 0 times infinity?",
    section=POOL,
)
def pooling_removes_nan_alone(x, keep):
    with np.errstate(invalid="ignore"):
        total = (np.where(np.isnan(x), 0.0, x) * keep[..., None]).sum(axis=1)
    return total / np.maximum(keep.sum(axis=1), 1)[:, None]


@mistake(
    "masked_mean_pool",
    believed="A change inside the function stays inside.",
    tell="Print x before and after the call.",
    section=POOL,
)
def pooling_overwrites_padding(x, keep):
    x[~keep] = 0.0
    return x.sum(axis=1) / np.maximum(keep.sum(axis=1), 1)[:, None]


@mistake(
    "masked_mean_pool",
    believed="`x[keep]` keeps the sequences apart.",
    tell="What is the shape of `x[keep]`? How many sequences does your result have?",
    section=POOL,
)
def pooling_mixes_the_batch(x, keep):
    return x[keep].mean(axis=0)


@mistake(
    "masked_mean_pool",
    believed="Axis 0 holds the tokens.",
    tell="x has shape (B, L, D). Which axis holds the tokens?",
    section=POOL,
)
def pooling_over_the_batch(x, keep):
    total = np.where(keep[..., None], x, 0.0).sum(axis=0)
    return total / np.maximum(keep.sum(axis=0), 1)[:, None]


@mistake(
    "masked_mean_pool",
    believed="The axis that was summed can stay.",
    tell="What is the shape of your result, and which does the question ask for?",
    section=POOL,
)
def pooling_keeps_the_axis(x, keep):
    return _pool(x, keep)[:, None, :]


@mistake(
    "masked_mean_pool",
    believed="The largest entry speaks for the sequence.",
    tell="The question asks for the mean. What does your function take?",
    section=POOL,
)
def pooling_takes_the_maximum(x, keep):
    return np.where(keep[..., None], x, -np.inf).max(axis=1)


@mistake(
    "masked_mean_pool",
    believed="The last real token speaks for the sequence.",
    tell="The question asks for the mean of all kept tokens. How many does yours use?",
    section=POOL,
)
def pooling_takes_the_last_kept_token(x, keep):
    last = keep.shape[1] - 1 - np.argmax(keep[:, ::-1], axis=1)
    return x[np.arange(len(x)), last] * keep.any(axis=1)[:, None]


@mistake(
    "masked_mean_pool",
    believed="The first token speaks for the sequence.",
    tell="The question asks for the mean of all kept tokens. How many does yours use?",
    section=POOL,
)
def pooling_takes_the_first_token(x, keep):
    return x[:, 0]


# --- attention under a mask: which keys ---


@mistake(
    "masked_attention",
    believed="True in a mask means 'masked'.",
    tell="Mask with one True. Does the weight go to that key?",
    section=CONTRACT,
)
def masked_attention_inverted(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    allowed = ~np.broadcast_to(False if mask is None else mask, scores.shape)
    return _average(scores, allowed & _allowed(scores.shape, None, causal), V)


@mistake(
    "masked_attention",
    believed="A mask is for training and can be left aside.",
    tell="Does your output change at all when you pass a mask?",
    section=WHOLE,
)
def masked_attention_ignores_the_mask(Q, K, V, mask=None, causal=False):
    if mask is not None:
        np.broadcast_to(mask, _scores(Q, K).shape)
    return _attend(Q, K, V, None, causal)


@mistake(
    "masked_attention",
    believed="The caller puts the causal mask into `mask`.",
    tell="Does your output change at all with causal=True?",
    section=WHOLE,
)
def masked_attention_ignores_causal(Q, K, V, mask=None, causal=False):
    return _attend(Q, K, V, mask)


@mistake(
    "masked_attention",
    believed="Attention is causal by nature.",
    tell="Does your function hide the future also where causal is False?",
    section=WHOLE,
)
def masked_attention_always_causal(Q, K, V, mask=None, causal=False):
    return _attend(Q, K, V, mask, causal=True)


@mistake(
    "masked_attention",
    believed="The lower triangle of a rectangle is the causal mask.",
    tell="One new query and 5 keys: how many of them does your mask show it?",
    section=ALIGNED,
)
def masked_attention_causal_top_left(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    allowed = _allowed(scores.shape, mask, causal=False)
    if causal:
        allowed = allowed & np.tri(*scores.shape[-2:], dtype=bool)
    return _average(scores, allowed, V)


@mistake(
    "masked_attention",
    believed="A token must not see itself.",
    tell="Which keys may the first query see with causal=True?",
    section=CAUSAL,
)
def masked_attention_causal_strict(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    allowed = _allowed(scores.shape, mask, causal=False)
    if causal:
        L_q, L_k = scores.shape[-2:]
        allowed = allowed & np.tri(L_q, L_k, L_k - L_q - 1, dtype=bool)
    return _average(scores, allowed, V)


@mistake(
    "masked_attention",
    believed="A causal mask is square.",
    tell="What is the shape of your causal mask for 2 queries and 5 keys?",
    section=CACHE,
)
def masked_attention_causal_square(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    allowed = _allowed(scores.shape, mask, causal=False)
    if causal:
        allowed = allowed & _causal(scores.shape[-1])
    return _average(scores, allowed, V)


@mistake(
    "masked_attention",
    believed="The upper triangle is the past.",
    tell="Which keys may the first query see with causal=True?",
    section=CAUSAL,
)
def masked_attention_causal_turned(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    allowed = _allowed(scores.shape, mask, causal=False)
    if causal:
        allowed = allowed & np.tri(*scores.shape[-2:][::-1], dtype=bool).T
    return _average(scores, allowed, V)


@mistake(
    "masked_attention",
    believed="A key is allowed if the mask or the past allows it.",
    tell="A later token that is real: does a causal query see it in your function?",
    section=BOTH,
)
def masked_attention_or(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    allowed = _allowed(scores.shape, mask, causal=False)
    if causal:
        past = _rect(*scores.shape[-2:])
        allowed = past if mask is None else allowed | past
    return _average(scores, np.broadcast_to(allowed, scores.shape), V)


@mistake(
    "masked_attention",
    believed="Either there is a mask or attention is causal, not both.",
    tell="Call your function with a mask and causal=True. Which of them has an effect?",
    section=BOTH,
)
def masked_attention_mask_beats_causal(Q, K, V, mask=None, causal=False):
    return _attend(Q, K, V, mask, causal and mask is None)


@mistake(
    "masked_attention",
    believed="causal=True replaces the mask.",
    tell="Call your function with a mask and causal=True. Which of them has an effect?",
    section=BOTH,
)
def masked_attention_causal_beats_mask(Q, K, V, mask=None, causal=False):
    if causal and mask is not None:
        np.broadcast_to(mask, _scores(Q, K).shape)
    return _attend(Q, K, V, None if causal else mask, causal)


@mistake(
    "masked_attention",
    believed="mask[i, j] speaks about key i and query j.",
    tell="Take a mask that is not symmetric. Which of its axes belongs to the queries?",
    section=CONTRACT,
)
def masked_attention_mask_turned(Q, K, V, mask=None, causal=False):
    shape = _scores(Q, K).shape
    if mask is not None:
        mask = np.swapaxes(np.broadcast_to(mask, shape), -1, -2)
    return _attend(Q, K, V, mask, causal)


@mistake(
    "masked_attention",
    believed="One sequence length describes the mask.",
    tell="Try a mask for 3 queries and 5 keys.",
    section=CONTRACT,
)
def masked_attention_mask_reshaped_square(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    if mask is not None:
        *lead, L, _ = scores.shape
        mask = np.broadcast_to(mask, scores.shape).reshape(*lead, L, L)
    return _attend(Q, K, V, mask, causal)


@mistake(
    "masked_attention",
    believed="The function that fills masked scores changes its argument.",
    tell="Do your weights change at all with a mask or causal=True? What becomes of the fill?",
    section=WHOLE,
)
def masked_attention_fill_discarded(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    np.where(_allowed(scores.shape, mask, causal), scores, -np.inf)
    return _average(scores, True, V)


# --- attention under a mask: how it is filled ---


@mistake(
    "masked_attention",
    believed="A score of 0 means no attention.",
    tell="What is exp(0)? How much weight does a score of 0 get?",
    section=BEFORE,
)
def masked_attention_multiplies_scores(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    weights = _softmax(scores * _allowed(scores.shape, mask, causal))
    return weights @ V, weights


@mistake(
    "masked_attention",
    believed="Masked weights can be set to 0 after the softmax.",
    tell="What does a row of your weights sum to when some keys are masked?",
    section=ZEROING,
)
def masked_attention_zeroes_weights(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    weights = _softmax(scores) * _allowed(scores.shape, mask, causal)
    return weights @ V, weights


@mistake(
    "masked_attention",
    believed="Zeroed weights have to sum to 1 again, and then all is well.",
    tell="Masked scores of 0, allowed scores near -20,000: which weights are left to rescale?",
    section=ZEROING,
)
def masked_attention_zeroes_and_rescales(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    weights = _softmax(scores) * _allowed(scores.shape, mask, causal)
    total = weights.sum(axis=-1, keepdims=True)
    weights = weights / np.where(total == 0, 1.0, total)
    return weights @ V, weights


@mistake(
    "masked_attention",
    believed="Minus infinity works on whatever is called attention.",
    tell="To which array do you write minus infinity: before or after the softmax?",
    section=BEFORE,
)
def masked_attention_fills_after_softmax(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    weights = np.where(_allowed(scores.shape, mask, causal), _softmax(scores), -np.inf)
    with np.errstate(invalid="ignore"):
        return weights @ V, weights


@mistake(
    "masked_attention",
    believed="Masked values do no harm if they are set to 0.",
    tell="Look at your weights: do masked keys still have some?",
    section=BEFORE,
)
def masked_attention_output_only(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    output, _ = _average(scores, _allowed(scores.shape, mask, causal), V)
    return output, _softmax(scores)


def _filled(scores, allowed, V, fill):
    """Fill masked scores with a finite number; empty rows are right all the same."""
    weights = _softmax(np.where(allowed, scores, fill))
    weights = weights * allowed.any(axis=-1, keepdims=True)
    return weights @ V, weights


@mistake(
    "masked_attention",
    believed="-10,000 is as good as minus infinity.",
    tell="Your fill value is finite. What if all allowed scores are lower still?",
    section=FILL,
)
def masked_attention_fill_minus_1e4(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    return _filled(scores, _allowed(scores.shape, mask, causal), V, -1e4)


@mistake(
    "masked_attention",
    believed="-1e9 is as good as minus infinity.",
    tell="Your fill value is finite. What if all allowed scores are lower still?",
    section=FILL,
)
def masked_attention_fill_minus_1e9(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    return _filled(scores, _allowed(scores.shape, mask, causal), V, -1e9)


@mistake(
    "masked_attention",
    believed="-1e9 is as good as minus infinity, and every row has a key.",
    tell="Which weights does a query get that may attend to nothing?",
    section=EMPTY,
)
def masked_attention_fill_and_uniform_rows(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    weights = _softmax(np.where(_allowed(scores.shape, mask, causal), scores, -1e9))
    return weights @ V, weights


@mistake(
    "masked_attention",
    believed="-10,000 is as good as minus infinity, and every row has a key.",
    tell="Which weights does a query get that may attend to nothing?",
    section=EMPTY,
)
def masked_attention_fill_1e4_and_uniform_rows(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    weights = _softmax(np.where(_allowed(scores.shape, mask, causal), scores, -1e4))
    return weights @ V, weights


@mistake(
    "masked_attention",
    believed="The lowest number of the type hides a key, whatever the others are.",
    tell="All scores of an empty row are the lowest number. What does the softmax make of that?",
    section=EMPTY,
)
def masked_attention_lowest_number_and_uniform_rows(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    lowest = np.finfo(scores.dtype).min
    weights = _softmax(np.where(_allowed(scores.shape, mask, causal), scores, lowest))
    return weights @ V, weights


@mistake(
    "masked_attention",
    believed="Subtracting 10,000 hides a key.",
    tell="What if a masked score lies more than 10,000 above the allowed ones?",
    section=FILL,
)
def masked_attention_subtracts_1e4(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    allowed = _allowed(scores.shape, mask, causal)
    weights = _softmax(scores - 1e4 * ~allowed) * allowed.any(axis=-1, keepdims=True)
    return weights @ V, weights


@mistake(
    "masked_attention",
    believed="Every row has a key to attend to.",
    tell="The largest of no scores is minus infinity. What is minus infinity minus itself?",
    section=EMPTY,
)
def masked_attention_nan_rows(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    scores = np.where(_allowed(scores.shape, mask, causal), scores, -np.inf)
    with np.errstate(invalid="ignore"):
        e = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = e / e.sum(axis=-1, keepdims=True)
        return weights @ V, weights


@mistake(
    "masked_attention",
    believed="A query that may attend to nothing attends to everything.",
    tell="Which weights does a query get that may attend to nothing?",
    section=EMPTY,
)
def masked_attention_opens_empty_rows(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    allowed = _allowed(scores.shape, mask, causal)
    return _average(scores, allowed | ~allowed.any(axis=-1, keepdims=True), V)


@mistake(
    "masked_attention",
    believed="Only the weights of an empty row have to be 0.",
    tell="Look at the output of a query that may attend to nothing, not at its weights alone.",
    section=EMPTY,
)
def masked_attention_zeroes_empty_weights_only(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    allowed = _allowed(scores.shape, mask, causal)
    some = allowed.any(axis=-1, keepdims=True)
    weights = _softmax(np.where(allowed, scores, np.where(some, -np.inf, 0.0)))
    return weights @ V, weights * some


# --- attention under a mask: shapes, scale, arguments ---


@mistake(
    "masked_attention",
    believed="`np.where` will complain if the mask does not fit.",
    tell="Print the shape of your weights for a mask of shape (B, 1, 1, L) and inputs (B, L, d).",
    section=CONTRACT,
)
def masked_attention_lets_the_mask_enlarge(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    allowed = True if mask is None else mask
    if causal:
        allowed = allowed & _rect(*scores.shape[-2:])
    return _average(scores, allowed, V)


@mistake(
    "masked_attention",
    believed="A mask with an axis too many can be squeezed.",
    tell="What may a mask not do to the shape of the scores? And what should happen if it would?",
    section=CONTRACT,
)
def masked_attention_squeezes_the_mask(Q, K, V, mask=None, causal=False):
    if mask is not None and np.ndim(mask) > np.ndim(Q):
        mask = mask[:, 0]
    return _attend(Q, K, V, mask, causal)


@mistake(
    "masked_attention",
    believed="An assertion is an error like any other.",
    tell="Which kind of error does the question ask for?",
    section=CONTRACT,
)
def masked_attention_asserts(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    if mask is not None:
        ok = np.broadcast_shapes(np.shape(mask), scores.shape) == scores.shape
        if not ok:
            raise AssertionError("the mask does not fit")
    return _attend(Q, K, V, mask, causal)


@mistake(
    "masked_attention",
    believed="A mask has the shape of the scores.",
    tell="Which masks broadcast to the scores? Call your function with one of shape (B, 1, L_k).",
    section=CONTRACT,
)
def masked_attention_wants_full_masks(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    if mask is not None and mask.shape != scores.shape:
        raise ValueError("the mask does not have the shape of the scores")
    return _attend(Q, K, V, mask, causal)


@mistake(
    "masked_attention",
    believed="`.T` swaps the last two axes.",
    tell="Print the shape of K.T for a K with three axes.",
    section=WHOLE,
)
def masked_attention_two_axes_only(Q, K, V, mask=None, causal=False):
    scores = Q @ K.T / np.sqrt(K.shape[-1])
    return _average(scores, _allowed(scores.shape, mask, causal), V)


@mistake(
    "masked_attention",
    believed="With masks in place the scale does not matter.",
    tell="Compare your scores with the formula. Is a factor missing?",
    section=WHOLE,
)
def masked_attention_no_scale(Q, K, V, mask=None, causal=False):
    return _attend(Q * np.sqrt(K.shape[-1]), K, V, mask, causal)


@mistake(
    "masked_attention",
    believed="Masked queries are what the mask is about.",
    tell="For one query, add up its weights over all keys. What do you get?",
    section=WHOLE,
)
def masked_attention_softmax_over_queries(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    filled = np.where(_allowed(scores.shape, mask, causal), scores, -np.inf)
    weights = np.swapaxes(_softmax(np.swapaxes(filled, -1, -2)), -1, -2)
    return weights @ V, weights


@mistake(
    "masked_attention",
    believed="The causal mask can be written into the mask that came in.",
    tell="Print the mask before and after a call with causal=True.",
    section=WHOLE,
)
def masked_attention_changes_the_mask(Q, K, V, mask=None, causal=False):
    scores = _scores(Q, K)
    if mask is not None:
        np.broadcast_to(mask, scores.shape)
        if causal and mask.shape[-2] == scores.shape[-2]:
            mask &= _rect(*scores.shape[-2:])
    return _attend(Q, K, V, mask, causal)


@mistake(
    "masked_attention",
    believed="The queries are scaled once, so it may be done on the spot.",
    tell="Print Q before and after a call with a mask.",
    section=WHOLE,
)
def masked_attention_changes_the_queries(Q, K, V, mask=None, causal=False):
    result = _attend(Q, K, V, mask, causal)
    if mask is not None:
        Q /= np.sqrt(2 * K.shape[-1])
    return result


@mistake(
    "masked_attention",
    believed="The output is all that a caller needs.",
    tell="How many results does the question ask for?",
    section=WHOLE,
)
def masked_attention_returns_output_only(Q, K, V, mask=None, causal=False):
    return _attend(Q, K, V, mask, causal)[0]


@mistake(
    "masked_attention",
    believed="The weights come first, since they are computed first.",
    tell="In which order does the question ask for the two results?",
    section=WHOLE,
)
def masked_attention_results_exchanged(Q, K, V, mask=None, causal=False):
    return _attend(Q, K, V, mask, causal)[::-1]


# --- packed sequences ---


def _same(segments):
    return segments[:, :, None] == segments[:, None, :]


def _real(segments):
    return (segments >= 0)[:, None, :]


@mistake(
    "packed_causal_mask",
    believed="Inside a document all tokens see each other.",
    tell="The mask is causal as well. May a token see a later one of its document?",
    section=PACKED,
)
def packed_without_causal(segments):
    return (_same(segments) & _real(segments))[:, None]


@mistake(
    "packed_causal_mask",
    believed="Padding is a document like the others.",
    tell="Compare two padding tokens: both have the number -1. Are they of one document?",
    section=PACKED,
)
def packed_padding_is_a_document(segments):
    return (_same(segments) & _causal(segments.shape[1]))[:, None]


@mistake(
    "packed_causal_mask",
    believed="A document may read those before it.",
    tell="May the second document read the first? They only share a row to save space.",
    section=PACKED,
)
def packed_earlier_documents_too(segments):
    L = segments.shape[1]
    mask = segments[:, :, None] >= segments[:, None, :]
    both = _real(segments) & (segments >= 0)[:, :, None]
    return (mask & both & _causal(L))[:, None]


@mistake(
    "packed_causal_mask",
    believed="A causal mask keeps documents apart.",
    tell="May the second document read the first? They only share a row to save space.",
    section=PACKED,
)
def packed_causal_only(segments):
    both = _real(segments) & (segments >= 0)[:, :, None]
    return (_causal(segments.shape[1]) & both)[:, None]


@mistake(
    "packed_causal_mask",
    believed="Only padding keys have to be hidden; padding queries see their past.",
    tell="What may a padding token see? The question says it of queries as well as of keys.",
    section=PACKED,
)
def packed_padding_sees_all(segments):
    padding = (segments < 0)[:, :, None]
    return ((_same(segments) | padding) & _causal(segments.shape[1]) & _real(segments))[:, None]


@mistake(
    "packed_causal_mask",
    believed="0 marks padding.",
    tell="Which number marks padding in this question? May a document have the number 0?",
    section=PACKED,
)
def packed_zero_is_padding(segments):
    real = (segments > 0)[:, None, :]
    return (_same(segments) & real & _causal(segments.shape[1]))[:, None]


@mistake(
    "packed_causal_mask",
    believed="No row may be empty, so padding sees itself.",
    tell="What may a padding token see? Look at the diagonal.",
    section=EMPTY,
)
def packed_padding_sees_itself(segments):
    L = segments.shape[1]
    mask = _same(segments) & _causal(L) & _real(segments)
    return (mask | np.eye(L, dtype=bool))[:, None]


@mistake(
    "packed_causal_mask",
    believed="A token must not see itself.",
    tell="Does the first token of a document see anything in your mask?",
    section=CAUSAL,
)
def packed_strict(segments):
    L = segments.shape[1]
    return (_same(segments) & _real(segments) & np.tri(L, k=-1, dtype=bool))[:, None]


@mistake(
    "packed_causal_mask",
    believed="Documents are numbered 0, 1, 2 and so on.",
    tell="What does your mask show for documents with the numbers 7 and 900?",
    section=PACKED,
)
def packed_counts_to_the_number_of_documents(segments):
    mask = np.zeros_like(_same(segments))
    for number in range(len(np.unique(segments[segments >= 0]))):
        mask |= (segments == number)[:, :, None] & (segments == number)[:, None, :]
    return np.tril(mask)[:, None]


@mistake(
    "packed_causal_mask",
    believed="Numbers grow along the row.",
    tell="What does your mask show if the first document has number 7 and the second 0?",
    section=PACKED,
)
def packed_needs_growing_numbers(segments):
    mask = np.zeros_like(_same(segments))
    for b, row in enumerate(segments):
        real = row[row >= 0]
        for number in np.unique(real):
            start, stop = np.searchsorted(real, [number, number + 1])
            mask[b, start:stop, start:stop] = True
    return np.tril(mask)[:, None]


@mistake(
    "packed_causal_mask",
    believed="Neighboring numbers differ by 1 at most inside a document.",
    tell="Are documents 0 and 1 one document in your mask?",
    section=PACKED,
)
def packed_neighbors_join(segments):
    gap = np.abs(segments[:, :, None] - segments[:, None, :])
    both = _real(segments) & (segments >= 0)[:, :, None]
    return ((gap <= 1) & both & _causal(segments.shape[1]))[:, None]


@mistake(
    "packed_causal_mask",
    believed="All rows of a batch are packed in the same way.",
    tell="Do the masks of two rows with different documents differ in your result?",
    section=PACKED,
)
def packed_first_row_for_all(segments):
    first = np.broadcast_to(segments[:1], segments.shape)
    return (_same(first) & _real(first) & _causal(segments.shape[1]))[:, None]


@mistake(
    "packed_causal_mask",
    believed="The head axis comes by itself.",
    tell="The result has four axes, with one for the heads. Which of them do you lack?",
    section=PACKED,
)
def packed_without_head_axis(segments):
    return _same(segments) & _real(segments) & _causal(segments.shape[1])


@mistake(
    "packed_causal_mask",
    believed="The mask marks what is forbidden.",
    tell="Is your mask True where a query may attend, or where it must not?",
    section=CONTRACT,
)
def packed_inverted(segments):
    mask = _same(segments) & _real(segments) & _causal(segments.shape[1])
    return ~mask[:, None]


@mistake(
    "packed_causal_mask",
    believed="Ones and zeros are as good as True and False.",
    tell="What does `~mask` give for your numbers? And `mask & other`?",
    section=CONTRACT,
)
def packed_of_numbers(segments):
    mask = _same(segments) & _real(segments) & _causal(segments.shape[1])
    return mask[:, None].astype(int)


# --- prefix ---


def _in_prefix(prefix_lengths, L):
    return _padding(prefix_lengths, L)[:, None, None, :]


@mistake(
    "prefix_lm_mask",
    believed="A causal mask is enough: the prefix comes first anyway.",
    tell="Does the first token of a prefix see the last one of it?",
    section=PREFIX,
)
def prefix_causal_only(prefix_lengths, L):
    return np.repeat(_causal(L)[None, None], len(prefix_lengths), axis=0)


@mistake(
    "prefix_lm_mask",
    believed="The tokens of the prefix see everything.",
    tell="Does a token of the prefix see what comes after the prefix?",
    section=PREFIX,
)
def prefix_queries_see_everything(prefix_lengths, L):
    rows = np.swapaxes(_in_prefix(prefix_lengths, L), -1, -2)
    return rows | _causal(L)


@mistake(
    "prefix_lm_mask",
    believed="The continuation does not need the prefix.",
    tell="Does a token after the prefix see the prefix?",
    section=PREFIX,
)
def prefix_and_rest_apart(prefix_lengths, L):
    columns = _in_prefix(prefix_lengths, L)
    rows = np.swapaxes(columns, -1, -2)
    return (rows & columns) | (~rows & ~columns & _causal(L))


@mistake(
    "prefix_lm_mask",
    believed="The whole sequence is visible where there is a prefix.",
    tell="Is anything hidden in your mask? Look at the tokens after the prefix.",
    section=PREFIX,
)
def prefix_opens_everything(prefix_lengths, L):
    some = np.asarray(prefix_lengths)[:, None, None, None] > 0
    return some | np.repeat(_causal(L)[None, None], len(prefix_lengths), axis=0)


@mistake(
    "prefix_lm_mask",
    believed="Only the prefix is visible, to all.",
    tell="Do the tokens after the prefix see themselves and each other's past?",
    section=PREFIX,
)
def prefix_only(prefix_lengths, L):
    return np.repeat(_in_prefix(prefix_lengths, L), L, axis=2)


@mistake(
    "prefix_lm_mask",
    believed="Both masks have to allow a key.",
    tell="A later token of the prefix: which of your two masks hides it?",
    section=PREFIX,
)
def prefix_and_causal(prefix_lengths, L):
    return _in_prefix(prefix_lengths, L) & _causal(L)


@mistake(
    "prefix_lm_mask",
    believed="The prefix ends with the token number `length`.",
    tell="A prefix of 2 tokens: how many keys does the first query see?",
    section=PREFIX,
)
def prefix_one_too_long(prefix_lengths, L):
    return _in_prefix(np.asarray(prefix_lengths) + 1, L) | _causal(L)


@mistake(
    "prefix_lm_mask",
    believed="Positions are counted from 1.",
    tell="A prefix of 2 tokens: how many keys does the first query see?",
    section=PREFIX,
)
def prefix_one_too_short(prefix_lengths, L):
    return _in_prefix(np.asarray(prefix_lengths) - 1, L) | _causal(L)


@mistake(
    "prefix_lm_mask",
    believed="All prefixes of a batch are equally long.",
    tell="Do the masks of two sequences with unequal prefixes differ in your result?",
    section=PREFIX,
)
def prefix_of_the_first_sequence(prefix_lengths, L):
    first = np.full(len(prefix_lengths), prefix_lengths[0])
    return _in_prefix(first, L) | _causal(L)


@mistake(
    "prefix_lm_mask",
    believed="The longest prefix of the batch covers the others.",
    tell="Do the masks of two sequences with unequal prefixes differ in your result?",
    section=PREFIX,
)
def prefix_of_the_longest(prefix_lengths, L):
    longest = np.full(len(prefix_lengths), np.max(prefix_lengths))
    return _in_prefix(longest, L) | _causal(L)


@mistake(
    "prefix_lm_mask",
    believed="A batch of one mask is enough.",
    tell="NumPy lines up shapes from the right. Which axis of yours holds the sequences?",
    section=PREFIX,
)
def prefix_without_head_axis(prefix_lengths, L):
    return _padding(prefix_lengths, L)[:, None, :] | _causal(L)


@mistake(
    "prefix_lm_mask",
    believed="Every sequence has a prefix.",
    tell="What does your mask show for a prefix of length 0?",
    section=PREFIX,
)
def prefix_of_one_at_least(prefix_lengths, L):
    mask = _in_prefix(prefix_lengths, L) | _causal(L)
    none = np.asarray(prefix_lengths) == 0
    mask[none, :, 0, :2] = True
    return mask


@mistake(
    "prefix_lm_mask",
    believed="Prefix and rest are hidden from one another by the last column.",
    tell="What does your mask show where the prefix is the whole sequence?",
    section=PREFIX,
)
def prefix_last_token_stays_causal(prefix_lengths, L):
    return _in_prefix(np.minimum(prefix_lengths, L - 1), L) | _causal(L)


@mistake(
    "prefix_lm_mask",
    believed="A token must not see itself.",
    tell="Does a token after the prefix see itself?",
    section=CAUSAL,
)
def prefix_strict(prefix_lengths, L):
    return _in_prefix(prefix_lengths, L) | np.tri(L, k=-1, dtype=bool)


@mistake(
    "prefix_lm_mask",
    believed="The mask marks what is forbidden.",
    tell="Is your mask True where a query may attend, or where it must not?",
    section=CONTRACT,
)
def prefix_inverted(prefix_lengths, L):
    return ~(_in_prefix(prefix_lengths, L) | _causal(L))


@mistake(
    "prefix_lm_mask",
    believed="Ones and zeros are as good as True and False.",
    tell="What does `~mask` give for your numbers? And `mask & other`?",
    section=CONTRACT,
)
def prefix_of_numbers(prefix_lengths, L):
    return np.maximum(_in_prefix(prefix_lengths, L) * 1.0, np.tri(L))


# --- converters ---


def _convert(interface, mask, num_heads=1):
    if interface == "sdpa":
        return mask.clone()
    if interface == "float":
        return mask.float().log()
    if interface == "key_padding_mask":
        return ~mask[:, 0, 0]
    return ~mask[:, 0].repeat_interleave(num_heads, dim=0)


@mistake(
    "mask_for",
    believed="True means 'may attend' everywhere in PyTorch.",
    tell="What does True mean in the masks of `nn.MultiheadAttention`?",
    section=OPPOSITE,
)
def converters_never_turn(interface, mask, num_heads=1):
    made = _convert(interface, mask, num_heads)
    return ~made if interface in ("key_padding_mask", "attn_mask") else made


@mistake(
    "mask_for",
    believed="Only the key padding mask is the other way round.",
    tell="What does True mean in the attn_mask of `nn.MultiheadAttention`?",
    section=OPPOSITE,
)
def converters_attn_mask_not_turned(interface, mask, num_heads=1):
    made = _convert(interface, mask, num_heads)
    return ~made if interface == "attn_mask" else made


@mistake(
    "mask_for",
    believed="A key padding mask says which keys to keep.",
    tell="A key padding mask marks the padding. Does yours?",
    section=OPPOSITE,
)
def converters_key_padding_not_turned(interface, mask, num_heads=1):
    made = _convert(interface, mask, num_heads)
    return ~made if interface == "key_padding_mask" else made


@mistake(
    "mask_for",
    believed="All of PyTorch ignores where a mask is True.",
    tell="Which keys take part in `F.scaled_dot_product_attention`: those with True?",
    section=OPPOSITE,
)
def converters_turn_sdpa_too(interface, mask, num_heads=1):
    made = _convert(interface, mask, num_heads)
    return ~made if interface == "sdpa" else made


@mistake(
    "mask_for",
    believed="The sequences of a batch stand together, one head after another.",
    tell="B = 2, h = 3: to which sequence does the second of the 6 matrices belong?",
    section=CONVERTERS,
)
def converters_heads_in_wrong_order(interface, mask, num_heads=1):
    if interface == "attn_mask":
        return ~mask[:, 0].repeat(num_heads, 1, 1)
    return _convert(interface, mask, num_heads)


@mistake(
    "mask_for",
    believed="One matrix for each sequence is enough.",
    tell="How many matrices does `nn.MultiheadAttention` want: one for each sequence, or more?",
    section=CONVERTERS,
)
def converters_forget_the_heads(interface, mask, num_heads=1):
    return _convert(interface, mask, 1)


@mistake(
    "mask_for",
    believed="The module takes a mask with four axes.",
    tell="How many axes does the attn_mask of `nn.MultiheadAttention` have?",
    section=CONVERTERS,
)
def converters_four_axes(interface, mask, num_heads=1):
    if interface == "attn_mask":
        return ~mask.expand(-1, num_heads, -1, -1)
    return _convert(interface, mask, num_heads)


@mistake(
    "mask_for",
    believed="The first sequence speaks for the batch.",
    tell="Do the masks of two sequences differ in your result?",
    section=CONVERTERS,
)
def converters_first_sequence_for_all(interface, mask, num_heads=1):
    if interface == "attn_mask":
        return ~mask[:1, 0].expand(len(mask) * num_heads, -1, -1)
    return _convert(interface, mask, num_heads)


@mistake(
    "mask_for",
    believed="A key padding mask keeps its empty axes.",
    tell="Which shape does a key padding mask have?",
    section=CONVERTERS,
)
def converters_key_padding_keeps_axes(interface, mask, num_heads=1):
    return ~mask if interface == "key_padding_mask" else _convert(interface, mask, num_heads)


@mistake(
    "mask_for",
    believed="`squeeze` takes away the axes for heads and queries.",
    tell="What does `squeeze` do to a batch of one?",
    section=CONVERTERS,
)
def converters_squeeze_the_batch(interface, mask, num_heads=1):
    if interface == "key_padding_mask":
        return ~mask.squeeze()
    return _convert(interface, mask, num_heads)


@mistake(
    "mask_for",
    believed="`squeeze` takes away the axis for heads and no other.",
    tell="What does `squeeze` do to a batch of one, and to one query?",
    section=CONVERTERS,
)
def converters_squeeze_for_attn_mask(interface, mask, num_heads=1):
    if interface == "attn_mask":
        return ~mask.squeeze().repeat_interleave(num_heads, dim=0)
    return _convert(interface, mask, num_heads)


@mistake(
    "mask_for",
    believed="`squeeze` is the way to a smaller shape for every mask.",
    tell="What does `squeeze` do to a batch of one? Both masks for the module pass through it.",
    section=CONVERTERS,
)
def converters_squeeze_both(interface, mask, num_heads=1):
    if interface == "key_padding_mask":
        return ~mask.squeeze()
    return converters_squeeze_for_attn_mask.answer(interface, mask, num_heads)


@mistake(
    "mask_for",
    believed="A number 1 lets a key through.",
    tell="A mask of numbers is added to the scores. What does adding 0 do to a score?",
    section=ADDED,
)
def converters_float_ones_and_zeros(interface, mask, num_heads=1):
    return mask.float() if interface == "float" else _convert(interface, mask, num_heads)


@mistake(
    "mask_for",
    believed="A large negative number is minus infinity.",
    tell="Which number takes away all weight, however low the other scores are?",
    section=FILL,
)
def converters_float_minus_1e9(interface, mask, num_heads=1):
    if interface == "float":
        return (~mask).float() * -1e9
    return _convert(interface, mask, num_heads)


@mistake(
    "mask_for",
    believed="0 times minus infinity is 0.",
    tell="What is 0 times minus infinity? Print your mask of numbers.",
    section=ADDED,
)
def converters_float_nan(interface, mask, num_heads=1):
    if interface == "float":
        return (~mask).float() * -float("inf")
    return _convert(interface, mask, num_heads)


@mistake(
    "mask_for",
    believed="Minus infinity stands where the mask is True.",
    tell="Where does a mask of numbers hold minus infinity: at keys that are allowed?",
    section=ADDED,
)
def converters_float_turned(interface, mask, num_heads=1):
    return (~mask).float().log() if interface == "float" else _convert(interface, mask, num_heads)


@mistake(
    "mask_for",
    believed="All interfaces take numbers, so numbers will do.",
    tell="Print the type of each mask that you make. Which types does the question ask for?",
    section=ADDED,
)
def converters_all_numbers(interface, mask, num_heads=1):
    made = _convert(interface, mask, num_heads)
    return made if interface == "float" else made.float()


# --- a decoder's mask to mend ---


def _tokens_kept(tokens, pad_id):
    return (tokens != pad_id)[:, None, None, :]


@mistake(
    "mended_decoder_mask",
    believed="The diagonal was the only fault.",
    tell="Try a row with padding on the left. Which keys does your mask hide?",
    section=PADDING,
)
def decoder_still_counts_lengths(tokens, pad_id):
    keep = _padding((tokens != pad_id).sum(axis=1), tokens.shape[1])
    return keep[:, None, None, :] & _causal(tokens.shape[1])


@mistake(
    "mended_decoder_mask",
    believed="The lengths were the only fault.",
    tell="Without padding, which keys does the first query see?",
    section=CAUSAL,
)
def decoder_still_looks_one_ahead(tokens, pad_id):
    L = tokens.shape[1]
    return _tokens_kept(tokens, pad_id) & np.tri(L, k=1, dtype=bool)


@mistake(
    "mended_decoder_mask",
    believed="Both lines look right, so the fault must be elsewhere.",
    tell="Print the mask of one short row without padding, then of one with padding on the left.",
    section=BOTH,
)
def decoder_with_both_faults(tokens, pad_id):
    keep = _padding((tokens != pad_id).sum(axis=1), tokens.shape[1])
    return keep[:, None, None, :] & np.tri(tokens.shape[1], k=1, dtype=bool)


@mistake(
    "mended_decoder_mask",
    believed="To hide the next token, the diagonal has to go.",
    tell="Which keys does the first query see now? May a token see itself?",
    section=CAUSAL,
)
def decoder_strict(tokens, pad_id):
    L = tokens.shape[1]
    return _tokens_kept(tokens, pad_id) & np.tri(L, k=-1, dtype=bool)


@mistake(
    "mended_decoder_mask",
    believed="The padding always stands on the left.",
    tell="Try a row with padding on the right. Which keys does your mask hide?",
    section=PADDING,
)
def decoder_padding_always_left(tokens, pad_id):
    keep = _padding((tokens != pad_id).sum(axis=1), tokens.shape[1])[:, ::-1]
    return keep[:, None, None, :] & _causal(tokens.shape[1])


@mistake(
    "mended_decoder_mask",
    believed="Padding belongs to the query axis.",
    tell="What is hidden at padding: keys or queries? Which axis of the scores is that?",
    section=PADDING,
)
def decoder_on_query_axis(tokens, pad_id):
    keep = (tokens != pad_id)[:, None, :, None]
    return keep & _causal(tokens.shape[1])


@mistake(
    "mended_decoder_mask",
    believed="Padding has to be hidden on both axes.",
    tell="Which keys may a padding query see if the padding stands on the right?",
    section=PADDING,
)
def decoder_on_both_axes(tokens, pad_id):
    keep = tokens != pad_id
    return _tokens_kept(tokens, pad_id) & keep[:, None, :, None] & _causal(tokens.shape[1])


@mistake(
    "mended_decoder_mask",
    believed="Padding is always the token 0.",
    tell="Does your mask change with pad_id?",
    section=PADDING,
)
def decoder_pad_id_is_zero(tokens, pad_id):
    return _tokens_kept(tokens, 0) & _causal(tokens.shape[1])


@mistake(
    "mended_decoder_mask",
    believed="The mask marks the padding.",
    tell="Is your mask True at real tokens, or at padding?",
    section=CONTRACT,
)
def decoder_keep_inverted(tokens, pad_id):
    return ~_tokens_kept(tokens, pad_id) & _causal(tokens.shape[1])


@mistake(
    "mended_decoder_mask",
    believed="The causal mask was turned round.",
    tell="Row i belongs to query i. Which keys does row 0 allow?",
    section=CAUSAL,
)
def decoder_causal_turned(tokens, pad_id):
    return _tokens_kept(tokens, pad_id) & _causal(tokens.shape[1]).T


@mistake(
    "mended_decoder_mask",
    believed="One of the two masks has to allow a key.",
    tell="A later token that is real: does a query see it in your mask?",
    section=BOTH,
)
def decoder_with_or(tokens, pad_id):
    return _tokens_kept(tokens, pad_id) | _causal(tokens.shape[1])


@mistake(
    "mended_decoder_mask",
    believed="No row may be empty, so a token always sees itself.",
    tell="A padding token on the left: may it see itself?",
    section=EMPTY,
)
def decoder_diagonal_always_open(tokens, pad_id):
    L = tokens.shape[1]
    return (_tokens_kept(tokens, pad_id) & _causal(L)) | np.eye(L, dtype=bool)


@mistake(
    "mended_decoder_mask",
    believed="The head axis was one too many.",
    tell="Which shape does the question ask for?",
    section=BOTH,
)
def decoder_without_head_axis(tokens, pad_id):
    return (tokens != pad_id)[:, None, :] & _causal(tokens.shape[1])


@mistake(
    "mended_decoder_mask",
    believed="The first padding token ends the row.",
    tell="Try a row with padding on the left. What is left of it?",
    section=PADDING,
)
def decoder_ends_at_first_padding(tokens, pad_id):
    keep = np.logical_and.accumulate(tokens != pad_id, axis=1)
    return keep[:, None, None, :] & _causal(tokens.shape[1])


# --- attention with a cache to mend ---


def _cached(Q, K, V, allowed, fill=-np.inf):
    scores = _scores(Q, K)
    weights = _softmax(np.where(allowed, scores, fill))
    return weights @ V, weights


@mistake(
    "mended_cached_attention",
    believed="The fill value was the only fault.",
    tell="One new query and 5 keys: to how many of them does it attend?",
    section=ALIGNED,
)
def cached_still_top_left(Q, K, V):
    return _cached(Q, K, V, np.tri(Q.shape[-2], K.shape[-2], dtype=bool))


@mistake(
    "mended_cached_attention",
    believed="The position of the queries was the only fault.",
    tell="Your fill value is finite. What if all allowed scores are lower still?",
    section=FILL,
)
def cached_still_fills_minus_1e4(Q, K, V):
    return _cached(Q, K, V, _rect(Q.shape[-2], K.shape[-2]), -1e4)


@mistake(
    "mended_cached_attention",
    believed="-1e9 is low enough for all scores.",
    tell="Your fill value is finite. What if all allowed scores are lower still?",
    section=FILL,
)
def cached_fills_minus_1e9(Q, K, V):
    return _cached(Q, K, V, _rect(Q.shape[-2], K.shape[-2]), -1e9)


@mistake(
    "mended_cached_attention",
    believed="Both lines look right, so the fault must be elsewhere.",
    tell="Try one query and 5 keys. Then try scores below -10,000.",
    section=CACHE,
)
def cached_with_both_faults(Q, K, V):
    return _cached(Q, K, V, np.tri(Q.shape[-2], K.shape[-2], dtype=bool), -1e4)


@mistake(
    "mended_cached_attention",
    believed="With a cache everything is in the past, so no mask is needed.",
    tell="Does the first new query see the key of the second?",
    section=CACHE,
)
def cached_without_mask(Q, K, V):
    return _cached(Q, K, V, True)


@mistake(
    "mended_cached_attention",
    believed="With one query no mask is needed, and several are a square.",
    tell="Two new queries and 5 keys: which keys does the first of them see?",
    section=CACHE,
)
def cached_open_for_one_query_only(Q, K, V):
    L_q, L_k = Q.shape[-2], K.shape[-2]
    return _cached(Q, K, V, True if L_q == 1 else np.tri(L_q, L_k, dtype=bool))


@mistake(
    "mended_cached_attention",
    believed="A new token sees the cache and not itself.",
    tell="May a query see its own key? Look at the last weight of the last query.",
    section=CACHE,
)
def cached_strict(Q, K, V):
    L_q, L_k = Q.shape[-2], K.shape[-2]
    return _cached(Q, K, V, np.tri(L_q, L_k, L_k - L_q - 1, dtype=bool))


@mistake(
    "mended_cached_attention",
    believed="The first query stands one position further on.",
    tell="Does the first new query see a key that comes after it?",
    section=CACHE,
)
def cached_one_ahead(Q, K, V):
    L_q, L_k = Q.shape[-2], K.shape[-2]
    return _cached(Q, K, V, np.tri(L_q, L_k, L_k - L_q + 1, dtype=bool))


@mistake(
    "mended_cached_attention",
    believed="The triangle pointed the wrong way.",
    tell="Which keys does the first query see: those before it, or those after it?",
    section=CAUSAL,
)
def cached_turned(Q, K, V):
    return _cached(Q, K, V, np.tri(K.shape[-2], Q.shape[-2], dtype=bool).T)


@mistake(
    "mended_cached_attention",
    believed="Masked weights can be set to 0 at the end.",
    tell="What does a row of your weights sum to?",
    section=ZEROING,
)
def cached_zeroes_weights(Q, K, V):
    weights = _softmax(_scores(Q, K)) * _rect(Q.shape[-2], K.shape[-2])
    return weights @ V, weights


@mistake(
    "mended_cached_attention",
    believed="A score of 0 means no attention.",
    tell="What is exp(0)? How much weight does a score of 0 get?",
    section=BEFORE,
)
def cached_fills_zero(Q, K, V):
    return _cached(Q, K, V, _rect(Q.shape[-2], K.shape[-2]), 0.0)


@mistake(
    "mended_cached_attention",
    believed="The scale was one of the faults.",
    tell="Compare your scores with the formula. Is a factor missing?",
    section=WHOLE,
)
def cached_without_scale(Q, K, V):
    allowed = _rect(Q.shape[-2], K.shape[-2])
    return _cached(Q * np.sqrt(K.shape[-1]), K, V, allowed)


@mistake(
    "mended_cached_attention",
    believed="The output is all that a caller needs.",
    tell="How many results does the question ask for?",
    section=WHOLE,
)
def cached_output_only(Q, K, V):
    return _cached(Q, K, V, _rect(Q.shape[-2], K.shape[-2]))[0]


# --- a module to mend ---


def _module(forward):
    """Return what ``class(d_model, num_heads)`` is, for a class with this forward pass."""

    def build(d_model, num_heads):
        from torch import nn

        class MendedSentenceEncoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)

            def forward(self, x, keep):
                return forward(self.attention, x, keep)

        return MendedSentenceEncoder()

    return build


def _states(attention, x, ignore):
    return x + attention(x, x, x, key_padding_mask=ignore)[0]


def _mean(states, keep):
    return (states * keep[..., None]).sum(dim=1) / keep.sum(dim=1, keepdim=True)


@mistake(
    "MendedSentenceEncoder",
    believed="The mean was the only fault.",
    tell="What does True mean in a key padding mask of `nn.MultiheadAttention`?",
    section=OPPOSITE,
)
def encoder_still_ignores_real_tokens(d_model, num_heads):
    return _module(lambda a, x, keep: _mean(_states(a, x, keep), keep))(d_model, num_heads)


@mistake(
    "MendedSentenceEncoder",
    believed="The mask of the attention was the only fault.",
    tell="Over how many tokens does your mean run? Change x at padding and look.",
    section=POOL,
)
def encoder_still_averages_padding(d_model, num_heads):
    return _module(lambda a, x, keep: _states(a, x, ~keep).mean(dim=1))(d_model, num_heads)


@mistake(
    "MendedSentenceEncoder",
    believed="Both lines look right, so the fault must be elsewhere.",
    tell="What does True mean in a key padding mask? And over which tokens runs the mean?",
    section=OPPOSITE,
)
def encoder_with_both_faults(d_model, num_heads):
    return _module(lambda a, x, keep: _states(a, x, keep).mean(dim=1))(d_model, num_heads)


@mistake(
    "MendedSentenceEncoder",
    believed="The mean is enough to hide the padding.",
    tell="Do the real tokens still read the padding? Change x at padding and look.",
    section=PADDING,
)
def encoder_without_mask(d_model, num_heads):
    return _module(lambda a, x, keep: _mean(_states(a, x, None), keep))(d_model, num_heads)


@mistake(
    "MendedSentenceEncoder",
    believed="With zeros at padding the ordinary mean is right.",
    tell="By what do you divide: by the length of the row, or by the number of real tokens?",
    section=POOL,
)
def encoder_divides_by_the_length(d_model, num_heads):
    def forward(attention, x, keep):
        return (_states(attention, x, ~keep) * keep[..., None]).mean(dim=1)

    return _module(forward)(d_model, num_heads)


@mistake(
    "MendedSentenceEncoder",
    believed="The sum of the real tokens is their mean.",
    tell="By what do you divide the sum?",
    section=POOL,
)
def encoder_sums(d_model, num_heads):
    def forward(attention, x, keep):
        return (_states(attention, x, ~keep) * keep[..., None]).sum(dim=1)

    return _module(forward)(d_model, num_heads)


@mistake(
    "MendedSentenceEncoder",
    believed="A mask of numbers with 0 and 1 does the same as one of True and False.",
    tell="A mask of numbers is added to the scores. Which number hides a key?",
    section=ADDED,
)
def encoder_mask_of_numbers(d_model, num_heads):
    return _module(lambda a, x, keep: _mean(_states(a, x, (~keep).float()), keep))(
        d_model, num_heads
    )


@mistake(
    "MendedSentenceEncoder",
    believed="Zeros at padding hide it from the attention.",
    tell="A token of zeros has a key, too. How much weight does it get?",
    section=PADDING,
)
def encoder_zeroes_the_input(d_model, num_heads):
    def forward(attention, x, keep):
        return _mean(_states(attention, x * keep[..., None], None), keep)

    return _module(forward)(d_model, num_heads)


@mistake(
    "MendedSentenceEncoder",
    believed="The mean runs over the padding, the attention over the rest.",
    tell="Over which tokens does your mean run: the real ones or the padding?",
    section=POOL,
)
def encoder_averages_padding_alone(d_model, num_heads):
    def forward(attention, x, keep):
        states = _states(attention, x, ~keep) * ~keep[..., None]
        return states.sum(dim=1) / (~keep).sum(dim=1, keepdim=True).clamp(min=1)

    return _module(forward)(d_model, num_heads)


@mistake(
    "MendedSentenceEncoder",
    believed="The first tokens are the real ones.",
    tell="Try a sentence with padding on the left.",
    section=POOL,
)
def encoder_averages_the_first_tokens(d_model, num_heads):
    def forward(attention, x, keep):
        import torch

        first = torch.arange(keep.shape[1]) < keep.sum(dim=1, keepdim=True)
        return _mean(_states(attention, x, ~keep), first)

    return _module(forward)(d_model, num_heads)


@mistake(
    "MendedSentenceEncoder",
    believed="The residual was one of the faults.",
    tell="What does the question say is added to the result of the attention?",
    section=WHOLE,
)
def encoder_without_residual(d_model, num_heads):
    return _module(lambda a, x, keep: _mean(_states(a, x, ~keep) - x, keep))(d_model, num_heads)


@mistake(
    "MendedSentenceEncoder",
    believed="One sentence at a time was meant, so the batch is averaged as well.",
    tell="What is the shape of your result, and which does the question ask for?",
    section=POOL,
)
def encoder_averages_the_batch(d_model, num_heads):
    return _module(lambda a, x, keep: _states(a, x, ~keep)[keep].mean(dim=0))(d_model, num_heads)
