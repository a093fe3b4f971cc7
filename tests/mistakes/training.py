"""Wrong answers to exercise 6 that people really give, each with exactly one fault.

What surrounds the fault is right; PyTorch is imported where it is needed.
"""

import functools
import itertools
import math

from autograder.mistakes import mistake, mistake_value

TARGET = "What a target is"
PADDED = "Padded targets"
SHIFTED = "Shifted targets"
TWICE = "The softmax applied twice"
FIRST = "Before training: overfit one batch"
ENTROPY = "Attention entropy, head by head"
WARMUP = "Depth, norm placement and warm-up"
CLIPPING = "Clipping"
ACCUMULATION = "Batches that do not fit: accumulation"
MODES = "Dropout, eval and seeds"
HALF = "Half precision"


# --- predicted_losses ---


def _losses(id, value, believed, tell, section=TARGET):
    return mistake_value(
        "predicted_losses", id, value, believed=believed, tell=tell, section=section
    )


guess_in_bits = _losses(
    "guess-in-bits",
    (5.64, 2.95, 1.5),
    "Entropies are measured in bits.",
    "Which logarithm does the question ask for, and which does PyTorch use?",
)
guess_in_decimal_logarithms = _losses(
    "guess-in-decimal-logarithms",
    (1.7, 2.95, 1.5),
    "log is the logarithm to base 10, as on a calculator.",
    "Which logarithm does the question ask for? A calculator has two keys.",
)
guess_is_the_probability = _losses(
    "guess-is-the-probability",
    (0.02, 2.95, 1.5),
    "The loss of a guess is the probability of being right.",
    "0.02 is a probability. What does the loss make of it?",
)
guess_is_the_share_of_errors = _losses(
    "guess-is-the-share-of-errors",
    (0.98, 2.95, 1.5),
    "The loss of a guess is the probability of being wrong.",
    "0.98 is the share of wrong answers. Is the loss that share, or a logarithm?",
)
floor_is_zero = _losses(
    "floor-is-zero",
    (3.91, 0.0, 1.5),
    "Who is always right and certain has no loss.",
    "The loss gets no ones and zeros: it gets what a second softmax makes of them. What is that?",
    TWICE,
)
floor_of_scores_one_and_minus_one = _losses(
    "floor-of-two-classes",
    (3.91, 0.31, 1.5),
    "The second softmax sees two numbers: the right one and the rest.",
    "How many zeros stand beside the one, and what is exp(0)?",
    TWICE,
)
floor_is_that_of_a_guess = _losses(
    "floor-is-that-of-a-guess",
    (3.91, 3.91, 1.5),
    "A second softmax makes all probabilities equal.",
    "Is e / (e + 49) the same as 1 / 50?",
    TWICE,
)
floor_without_the_logarithm = _losses(
    "floor-without-the-logarithm",
    (3.91, 0.05, 1.5),
    "The loss is the probability that the second softmax gives.",
    "0.05 is what the right token gets from the second softmax. What does the loss make of it?",
    TWICE,
)
floor_with_fifty_zeros = _losses(
    "floor-with-fifty-zeros",
    (3.91, 2.96, 1.5),
    "Beside the one stand 50 zeros.",
    "How many tokens are there in all, and how many of them have the probability 0?",
    TWICE,
)
padding_leaves_the_loss_alone = _losses(
    "padding-leaves-the-loss-alone",
    (3.91, 2.95, 3.0),
    "Padding never counts.",
    "Who tells the loss function which targets are padding? Here nobody did.",
    PADDED,
)
padding_adds_to_the_loss = _losses(
    "padding-adds-to-the-loss",
    (3.91, 2.95, 3.75),
    "The losses of the padding are added, and the mean is still taken over the real targets.",
    "How many targets does a function see that knows nothing of padding?",
    PADDED,
)
padding_has_half_the_say = _losses(
    "padding-has-half-the-say",
    (3.91, 2.95, 1.75),
    "The loss is the mean of two means: one of the real targets and one of the padding.",
    "Are there as many real targets as padded ones?",
    PADDED,
)

# --- lm_loss ---


def _flat(logits, targets, pad_id=None):
    """Return scores (n, V) and targets (n,), in which all that does not count is -100."""
    if pad_id is not None:
        targets = targets.masked_fill(targets == pad_id, -100)
    return logits.flatten(0, 1), targets.flatten()


def _mean(scores, targets):
    import torch.nn.functional as F

    total = F.cross_entropy(scores, targets, reduction="sum")
    return total / (targets != -100).sum().clamp(min=1)


_lm = functools.partial(mistake, "lm_loss", section=PADDED)


@_lm(
    believed="cross_entropy wants (B, V, L), and reshape gives it.",
    tell="Print one row of logits before and after your reshape. Whose scores stand side by side?",
)
def loss_logits_viewed_not_transposed(logits, targets, pad_id=None):
    B, L, V = logits.shape
    moved = logits.reshape(B, V, L).transpose(1, 2)
    return _mean(*_flat(moved, targets, pad_id))


@_lm(
    believed="The order of tokens in a flat list does not matter.",
    tell="Flatten a small example by hand: does the target of each place meet the scores of it?",
)
def loss_targets_flattened_along_the_batch(logits, targets, pad_id=None):
    return _mean(*_flat(logits, targets.T, pad_id))


@_lm(
    believed="Padding is learned like any other token.",
    tell="Which targets are left out of your mean if pad_id is 1?",
)
def loss_pad_id_ignored(logits, targets, pad_id=None):
    return _mean(*_flat(logits, targets))


@_lm(
    believed="`if pad_id` asks whether there is one.",
    tell="What is bool(0)? In many vocabularies 0 is the padding.",
)
def loss_pad_id_zero_is_none(logits, targets, pad_id=None):
    return _mean(*_flat(logits, targets, pad_id or None))


@_lm(
    believed="Who gives no pad_id means 0.",
    tell="Without pad_id, does a target of 0 count? Here it is a token like any other.",
)
def loss_pad_id_is_zero_by_default(logits, targets, pad_id=None):
    return _mean(*_flat(logits, targets, 0 if pad_id is None else pad_id))


@_lm(
    believed="There is one number to be ignored: pad_id, or else -100.",
    tell="What does your loss make of a target of -100 when pad_id is given?",
)
def loss_pad_id_instead_of_minus_100(logits, targets, pad_id=None):
    import torch.nn.functional as F

    scores, targets = _flat(logits, targets)
    ignored = -100 if pad_id is None else pad_id
    total = F.cross_entropy(scores, targets, reduction="sum", ignore_index=ignored)
    return total / (targets != ignored).sum().clamp(min=1)


@_lm(
    believed="Only pad_id marks what does not count.",
    tell="What happens to targets of -100?",
)
def loss_minus_100_taken_for_a_class(logits, targets, pad_id=None):
    scores, targets = _flat(logits, targets % logits.shape[-1], pad_id)
    return _mean(scores, targets)


@_lm(
    believed="The mean is taken over all places; padding adds 0 to the sum.",
    tell="By how many targets do you divide the sum? Print the number beside that of the targets.",
)
def loss_divided_by_all_places(logits, targets, pad_id=None):
    scores, targets = _flat(logits, targets, pad_id)
    return _mean(scores, targets) * (targets != -100).sum() / targets.numel()


@_lm(
    believed="The loss of a batch is the sum over its targets.",
    tell="Try a batch twice as large. Does your loss double?",
)
def loss_is_the_sum(logits, targets, pad_id=None):
    scores, targets = _flat(logits, targets, pad_id)
    return _mean(scores, targets) * (targets != -100).sum()


@_lm(
    believed="The loss is the sum over a sequence, averaged over the batch.",
    tell="Does your loss grow with the length of the sequences? Count what you divide by.",
)
def loss_summed_over_a_sequence(logits, targets, pad_id=None):
    scores, flat = _flat(logits, targets, pad_id)
    return _mean(scores, flat) * (flat != -100).sum() / len(targets)


@_lm(
    believed="The mean over a batch is the mean of the sequences' means.",
    tell="A sequence of one token and one of ten: how much does each token count in your mean?",
)
def loss_mean_of_the_sequences_means(logits, targets, pad_id=None):
    means = [
        _mean(*_flat(one[None], row[None], pad_id))
        for one, row in zip(logits, targets, strict=True)
        if ((row != -100) & (row != (-100 if pad_id is None else pad_id))).any()
    ]
    return sum(means) / len(means) if means else logits.sum() * 0


@_lm(
    believed="cross_entropy's own mean will do.",
    tell="What is the mean of nothing?",
)
def loss_nan_where_nothing_counts(logits, targets, pad_id=None):
    import torch.nn.functional as F

    return F.cross_entropy(*_flat(logits, targets, pad_id))


@_lm(
    believed="Where nothing counts, a new 0 will do.",
    tell="Call backward() on your result where no target counts. Where would the gradient go?",
)
def loss_zero_without_a_graph(logits, targets, pad_id=None):
    import torch

    scores, targets = _flat(logits, targets, pad_id)
    return _mean(scores, targets) if (targets != -100).any() else torch.tensor(0.0)


@_lm(
    believed="Where nothing counts, the number 0.0 will do.",
    tell="Call backward() on your result where no target counts. Has a float one?",
)
def loss_zero_as_a_number(logits, targets, pad_id=None):
    scores, targets = _flat(logits, targets, pad_id)
    return _mean(scores, targets) if (targets != -100).any() else 0.0


@_lm(
    believed="A new 0 with requires_grad=True has a backward().",
    tell="Call backward() on your result where no target counts, and print logits.grad. Is it 0, "
    "or None?",
)
def loss_zero_that_hangs_on_nothing(logits, targets, pad_id=None):
    import torch

    scores, targets = _flat(logits, targets, pad_id)
    if (targets != -100).any():
        return _mean(scores, targets)
    return torch.tensor(0.0, requires_grad=True)


@_lm(
    believed="The loss wants probabilities.",
    tell="What does cross_entropy do to its input first?",
)
def loss_softmax_before_cross_entropy(logits, targets, pad_id=None):
    return _mean(*_flat(logits.softmax(dim=-1), targets, pad_id))


@_lm(
    believed="The logarithm of a softmax can be taken in two steps.",
    tell="What is log(0)? How small can a probability of your softmax become?",
)
def loss_log_of_softmax(logits, targets, pad_id=None):
    scores, targets = _flat(logits, targets, pad_id)
    keep = targets != -100
    chosen = scores[keep].softmax(dim=-1).gather(1, targets[keep][:, None])
    return -chosen.log().sum() / keep.sum().clamp(min=1)


@_lm(
    believed="A small number inside the logarithm does no harm.",
    tell="How large can your loss become at most? Try scores in the thousands.",
)
def loss_log_with_a_small_number(logits, targets, pad_id=None):
    scores, targets = _flat(logits, targets, pad_id)
    keep = targets != -100
    chosen = scores[keep].softmax(dim=-1).gather(1, targets[keep][:, None])
    return -(chosen + 1e-9).log().sum() / keep.sum().clamp(min=1)


@_lm(
    believed="nll_loss takes the scores.",
    tell="nll_loss takes logarithms of probabilities. Have you made any?",
)
def loss_nll_of_raw_scores(logits, targets, pad_id=None):
    scores, targets = _flat(logits, targets, pad_id)
    keep = targets != -100
    return -scores[keep].gather(1, targets[keep][:, None]).sum() / keep.sum().clamp(min=1)


@_lm(
    believed="The softmax goes along the tokens.",
    tell="Which numbers are to sum to 1: those of all V tokens at one place, or of all places?",
)
def loss_softmax_over_the_places(logits, targets, pad_id=None):
    scores, targets = _flat(logits.log_softmax(dim=1), targets, pad_id)
    keep = targets != -100
    return -scores[keep].gather(1, targets[keep][:, None]).sum() / keep.sum().clamp(min=1)


@_lm(
    believed="Only the value of a loss matters.",
    tell="What does `.detach()` (or `no_grad`) cut off, and who needs it?",
)
def loss_cut_off_from_the_logits(logits, targets, pad_id=None):
    return _mean(*_flat(logits, targets, pad_id)).detach()


@_lm(
    believed="A loss is a number.",
    tell="What does `.item()` cut off, and who needs it?",
)
def loss_as_a_number(logits, targets, pad_id=None):
    return _mean(*_flat(logits, targets, pad_id)).item()


@_lm(
    believed="The padding can be marked in the targets as they are.",
    tell="Compare targets before and after the call. What does the underscore at the end of a "
    "method say, and what does `targets[...] =` do?",
)
def loss_targets_overwritten(logits, targets, pad_id=None):
    if pad_id is not None:
        targets.masked_fill_(targets == pad_id, -100)
    return _mean(*_flat(logits, targets))


@_lm(
    believed="The loss counts at the last place of each sequence only.",
    tell="How many places of a sequence have a target?",
)
def loss_of_the_last_place(logits, targets, pad_id=None):
    return _mean(*_flat(logits[:, -1:], targets[:, -1:], pad_id))


@_lm(
    believed="The loss also makes the shift.",
    tell="Is targets[:, t] the target of logits[:, t], or of the place before it? Who shifts?",
)
def loss_shifts_its_targets(logits, targets, pad_id=None):
    return _mean(*_flat(logits[:, :-1], targets[:, 1:], pad_id))


# --- next_token_loss ---

_next = functools.partial(mistake, "next_token_loss", section=SHIFTED)


@_next(
    believed="Both the data code and the loss should shift, to be safe.",
    tell="How many places apart are your logits and their targets?",
)
def next_token_shifted_twice(logits, tokens):
    logits, targets = logits[:, :-1], tokens[:, 1:]
    return _mean(*_flat(logits[:, :-1], targets[:, 1:]))


@_next(
    believed="The targets are the tokens.",
    tell="Which token has the model already seen at place t, and which one is it to predict?",
)
def next_token_not_shifted(logits, tokens):
    return _mean(*_flat(logits, tokens))


@_next(
    believed="The last token has nothing after it, so its place goes; the rest stays.",
    tell="You leave out a place. Do the others meet the token after them?",
)
def next_token_last_place_dropped_only(logits, tokens):
    return _mean(*_flat(logits[:, :-1], tokens[:, :-1]))


@_next(
    believed="The targets stand one place to the left.",
    tell="Does place t of yours predict the token after it, or the one before?",
)
def next_token_shifted_backwards(logits, tokens):
    return _mean(*_flat(logits[:, 1:], tokens[:, :-1]))


@_next(
    believed="roll moves all tokens one place to the left.",
    tell="What does roll put at the last place? Is it the next token?",
)
def next_token_rolled(logits, tokens):
    return _mean(*_flat(logits, tokens.roll(-1, dims=1)))


@_next(
    believed="A roll to the right moves the targets.",
    tell="Try tokens.roll(1) on [1, 2, 3]. Is each token in the place of the one before it?",
)
def next_token_rolled_to_the_right(logits, tokens):
    return _mean(*_flat(logits, tokens.roll(1, dims=1)))


@_next(
    believed="A flat list of tokens can be shifted as a whole.",
    tell="After the last token of a sequence, whose token comes in your flat list?",
)
def next_token_shifted_across_sequences(logits, tokens):
    return _mean(logits.flatten(0, 1)[:-1], tokens.flatten()[1:])


@_next(
    believed="The first axis is that of the tokens.",
    tell="Which axis of tokens is the batch, and which the sequence?",
)
def next_token_shifted_along_the_batch(logits, tokens):
    return _mean(*_flat(logits[:-1], tokens[1:]))


@_next(
    believed="After the last token comes token 0.",
    tell="What is the target of your last place, and who says so?",
)
def next_token_padded_with_zero(logits, tokens):
    import torch.nn.functional as F

    return _mean(*_flat(logits, F.pad(tokens[:, 1:], (0, 1))))


@_next(
    believed="cross_entropy's own mean will do.",
    tell="How many targets are there when each sequence has one token, and what is their mean?",
)
def next_token_nan_for_one_token(logits, tokens):
    import torch.nn.functional as F

    return F.cross_entropy(*_flat(logits[:, :-1], tokens[:, 1:]))


@_next(
    believed="For one token a new 0 will do.",
    tell="Call backward() on your result for sequences of one token. Where would the gradient go?",
)
def next_token_zero_without_a_graph(logits, tokens):
    import torch

    if tokens.shape[1] == 1:
        return torch.tensor(0.0)
    return _mean(*_flat(logits[:, :-1], tokens[:, 1:]))


@_next(
    believed="A new 0 with requires_grad=True has a backward().",
    tell="Call backward() on your result for sequences of one token, and print logits.grad. Is it "
    "0, or None?",
)
def next_token_zero_that_hangs_on_nothing(logits, tokens):
    import torch

    if tokens.shape[1] == 1:
        return torch.tensor(0.0, requires_grad=True)
    return _mean(*_flat(logits[:, :-1], tokens[:, 1:]))


@_next(
    believed="For one token the number 0.0 will do.",
    tell="Call backward() on your result for sequences of one token. Has a float one?",
)
def next_token_zero_as_a_number(logits, tokens):
    if tokens.shape[1] == 1:
        return 0.0
    return _mean(*_flat(logits[:, :-1], tokens[:, 1:]))


@_next(
    believed="The sum of the losses is divided by all tokens.",
    tell="How many of the L tokens are predicted?",
)
def next_token_divided_by_all_tokens(logits, tokens):
    L = tokens.shape[1]
    return _mean(*_flat(logits[:, :-1], tokens[:, 1:])) * (L - 1) / L


@_next(
    believed="The loss of a sequence is the sum over its tokens.",
    tell="Does your loss grow with the length of the sequences?",
)
def next_token_summed_over_the_sequence(logits, tokens):
    return _mean(*_flat(logits[:, :-1], tokens[:, 1:])) * (tokens.shape[1] - 1)


@_next(
    believed="The loss is the sum over all predictions.",
    tell="Does your loss grow with the size of the batch?",
)
def next_token_summed(logits, tokens):
    targets = tokens[:, 1:]
    return _mean(*_flat(logits[:, :-1], targets)) * targets.numel()


@_next(
    believed="What counts is what comes after the whole sequence: one prediction.",
    tell="How many predictions does a sequence of five tokens give?",
)
def next_token_last_prediction_only(logits, tokens):
    return _mean(*_flat(logits[:, :-1][:, -1:], tokens[:, 1:][:, -1:]))


@_next(
    believed="The first token cannot be predicted well, so its prediction is left out too.",
    tell="Which token do the logits of place 0 predict, and does it count for you?",
)
def next_token_first_place_dropped(logits, tokens):
    return _mean(*_flat(logits[:, 1:-1], tokens[:, 2:]))


@_next(
    believed="cross_entropy wants (B, V, L), and reshape gives it.",
    tell="Print one row of logits before and after your reshape. Whose scores stand side by side?",
)
def next_token_logits_reshaped(logits, tokens):
    scores = logits[:, :-1]
    B, L, V = scores.shape
    return _mean(*_flat(scores.reshape(B, V, L).transpose(1, 2), tokens[:, 1:]))


@_next(
    believed="The loss wants probabilities.",
    tell="What does cross_entropy do to its input first?",
)
def next_token_softmax_first(logits, tokens):
    return _mean(*_flat(logits.softmax(dim=-1)[:, :-1], tokens[:, 1:]))


@_next(
    believed="Token 0 is padding, always.",
    tell="All tokens are real here. Which ones do you leave out?",
)
def next_token_zero_ignored(logits, tokens):
    return _mean(*_flat(logits[:, :-1], tokens[:, 1:], 0))


@_next(
    believed="Only the value of a loss matters.",
    tell="What does `.detach()` (or `no_grad`) cut off, and who needs it?",
)
def next_token_cut_off_from_the_logits(logits, tokens):
    return _mean(*_flat(logits[:, :-1], tokens[:, 1:])).detach()


@_next(
    believed="A loss is a number.",
    tell="What does `.item()` cut off, and who needs it?",
)
def next_token_as_a_number(logits, tokens):
    return _mean(*_flat(logits[:, :-1], tokens[:, 1:])).item()


@_next(
    believed="The tokens can be shifted in place.",
    tell="Compare tokens before and after the call.",
)
def next_token_tokens_overwritten(logits, tokens):
    tokens[:, :-1] = tokens[:, 1:].clone()
    tokens[:, -1] = -100
    return _mean(*_flat(logits, tokens))


# --- mended_loss ---

_mended_loss = functools.partial(mistake, "mended_loss")


@_mended_loss(
    believed="The shift was the fault.",
    tell="What does cross_entropy do first to what it is given? What do you give it?",
    section=TWICE,
)
def mended_loss_still_softmax(model, tokens):
    scores = model(tokens[:, :-1]).softmax(dim=-1)
    return _mean(*_flat(scores, tokens[:, 1:]))


@_mended_loss(
    believed="The softmax was the fault.",
    tell="Follow A B C D through your function: which token meets which scores?",
    section=SHIFTED,
)
def mended_loss_still_shifted_twice(model, tokens):
    import torch.nn.functional as F

    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    scores = model(inputs)
    return F.cross_entropy(*_flat(scores[:, :-1], targets[:, 1:]))


@_mended_loss(
    believed="With two shifts in the code, none is left if both go.",
    tell="Which token has the model already seen at place t, and which is its target there?",
    section=SHIFTED,
)
def mended_loss_without_a_shift(model, tokens):
    return _mean(*_flat(model(tokens), tokens))


@_mended_loss(
    believed="The second shift goes, and so does the first one of the targets.",
    tell="Which token does the model see last at place t, and which is its target?",
    section=SHIFTED,
)
def mended_loss_inputs_are_targets(model, tokens):
    inputs = tokens[:, :-1]
    return _mean(*_flat(model(inputs), inputs))


@_mended_loss(
    believed="The scores are those of the token before.",
    tell="Follow A B C D through your function: does each place predict what follows it?",
    section=SHIFTED,
)
def mended_loss_shifted_backwards(model, tokens):
    return _mean(*_flat(model(tokens)[:, 1:], tokens[:, :-1]))


@_mended_loss(
    believed="nll_loss takes probabilities.",
    tell="nll_loss only picks numbers and changes their sign. Where is the logarithm?",
    section=TWICE,
)
def mended_loss_nll_of_probabilities(model, tokens):
    import torch.nn.functional as F

    scores, targets = _flat(model(tokens[:, :-1]).softmax(dim=-1), tokens[:, 1:])
    return F.nll_loss(scores, targets)


def _log_of_softmax(model, tokens, change):
    """Return the mean loss by way of probabilities, which `change` may alter."""
    scores, targets = _flat(model(tokens[:, :-1]), tokens[:, 1:])
    return -change(scores.softmax(dim=-1)).log().gather(1, targets[:, None]).mean()


@_mended_loss(
    believed="The logarithm of a softmax can be taken in two steps.",
    tell="What is log(0)? How small can a probability of your softmax become?",
    section=TARGET,
)
def mended_loss_log_of_softmax(model, tokens):
    return _log_of_softmax(model, tokens, lambda p: p)


@_mended_loss(
    believed="Probabilities that are kept away from 0 make the logarithm safe.",
    tell="How large can your loss become at most? Try scores in the thousands.",
    section=TARGET,
)
def mended_loss_clamped_probabilities(model, tokens):
    return _log_of_softmax(model, tokens, lambda p: p.clamp(min=1e-9))


@_mended_loss(
    believed="Only the value of a loss matters.",
    tell="What does `.detach()` (or `no_grad`) cut off, and who needs it?",
    section=TARGET,
)
def mended_loss_cut_off_from_the_model(model, tokens):
    return _mean(*_flat(model(tokens[:, :-1]), tokens[:, 1:])).detach()


@_mended_loss(
    believed="A loss is a number.",
    tell="What does `.item()` cut off, and who needs it?",
    section=TARGET,
)
def mended_loss_as_a_number(model, tokens):
    return _mean(*_flat(model(tokens[:, :-1]), tokens[:, 1:])).item()


# --- smoothed_loss ---

_smoothed = functools.partial(mistake, "smoothed_loss", section=TARGET)


def _smooth(logits, targets, target_share, class_share):
    """Return the loss in which the target and each class have these shares."""
    keep = targets != -100
    logs = logits[keep].log_softmax(dim=-1)
    right = logs.gather(-1, targets[keep][:, None])[:, 0]
    losses = -target_share * right - class_share * logs.sum(dim=-1)
    return losses.sum() / max(len(losses), 1)


@_smoothed(
    believed="The share is spread over the other classes.",
    tell="Over how many classes does the question spread the share? Is the right one among them?",
)
def smoothing_over_the_other_classes(logits, targets, smoothing):
    share = smoothing / (logits.shape[-1] - 1)
    return _smooth(logits, targets, 1 - smoothing - share, share)


@_smoothed(
    believed="The right class keeps 1 - smoothing, and each other one gets smoothing / V.",
    tell="What do your q sum to? The right class gets its part of the share too.",
)
def smoothing_leaves_out_the_right_class(logits, targets, smoothing):
    share = smoothing / logits.shape[-1]
    return _smooth(logits, targets, 1 - smoothing - share, share)


@_smoothed(
    believed="The share is added; the target keeps its 1.",
    tell="What do your q sum to?",
)
def smoothing_added_to_the_target(logits, targets, smoothing):
    return _smooth(logits, targets, 1.0, smoothing / logits.shape[-1])


@_smoothed(
    believed="smoothing is what the target keeps.",
    tell="Try smoothing = 0. Is that the cross-entropy?",
)
def smoothing_shares_exchanged(logits, targets, smoothing):
    return _smooth(logits, targets, smoothing, (1 - smoothing) / logits.shape[-1])


@_smoothed(
    believed="Each class gets smoothing.",
    tell="What do your q sum to? The share is divided among V classes.",
)
def smoothing_for_each_class(logits, targets, smoothing):
    return _smooth(logits, targets, 1 - smoothing, smoothing)


@_smoothed(
    believed="Smoothing makes the target less certain, and that is all.",
    tell="Where does the share go that the target gives away?",
)
def smoothing_goes_nowhere(logits, targets, smoothing):
    return _smooth(logits, targets, 1 - smoothing, 0.0)


@_smoothed(
    believed="Smoothing is done by the optimizer's options.",
    tell="What in your loss depends on smoothing?",
)
def smoothing_ignored(logits, targets, smoothing):
    return _smooth(logits, targets, 1.0, 0.0)


@_smoothed(
    believed="`smoothing or 0.1` gives the usual value where there is none.",
    tell="Is 0 no value? Try smoothing = 0.",
)
def smoothing_zero_is_taken_for_none(logits, targets, smoothing):
    smoothing = smoothing or 0.1
    return _smooth(logits, targets, 1 - smoothing, smoothing / logits.shape[-1])


@_smoothed(
    believed="The mean of the probabilities is smoothed, then the logarithm is taken.",
    tell="Which is averaged over the classes: p, or log p?",
)
def smoothing_of_probabilities(logits, targets, smoothing):
    keep = targets != -100
    logs = logits[keep].log_softmax(dim=-1)
    right = logs.gather(-1, targets[keep][:, None])[:, 0]
    mixed = (1 - smoothing) * right.exp() + smoothing / logits.shape[-1]
    losses = -(mixed.log() if smoothing else right)
    return losses.sum() / max(len(losses), 1)


@_smoothed(
    believed="The loss wants probabilities.",
    tell="What does log_softmax do to its input? Give it the scores as they are.",
)
def smoothing_after_two_softmaxes(logits, targets, smoothing):
    return _smooth(logits.softmax(dim=-1), targets, 1 - smoothing, smoothing / logits.shape[-1])


@_smoothed(
    believed="The logarithm of a softmax can be taken in two steps.",
    tell="What is log(0)? How small can a probability of your softmax become?",
)
def smoothing_log_of_softmax(logits, targets, smoothing):
    keep = targets != -100
    logs = logits[keep].softmax(dim=-1).log()
    right = logs.gather(-1, targets[keep][:, None])[:, 0]
    losses = -(1 - smoothing) * right - smoothing * logs.mean(dim=-1)
    return losses.sum() / max(len(losses), 1)


@_smoothed(
    believed="A small number inside the logarithm does no harm.",
    tell="How large can -log p become at most in your loss? Try scores in the thousands.",
)
def smoothing_log_with_a_small_number(logits, targets, smoothing):
    keep = targets != -100
    logs = (logits[keep].softmax(dim=-1) + 1e-9).log()
    right = logs.gather(-1, targets[keep][:, None])[:, 0]
    losses = -(1 - smoothing) * right - smoothing * logs.mean(dim=-1)
    return losses.sum() / max(len(losses), 1)


@_smoothed(
    believed="Only the value of a loss matters.",
    tell="What does `.detach()` (or `no_grad`) cut off, and who needs it?",
)
def smoothing_cut_off_from_the_logits(logits, targets, smoothing):
    return _smooth(logits.detach(), targets, 1 - smoothing, smoothing / logits.shape[-1])


@_smoothed(
    believed="A loss is a number.",
    tell="What does `.item()` cut off, and who needs it?",
)
def smoothing_as_a_number(logits, targets, smoothing):
    return _smooth(logits, targets, 1 - smoothing, smoothing / logits.shape[-1]).item()


@_smoothed(
    believed="Only the target's part looks at which targets count.",
    tell="At a place whose target is -100, does the part of all classes count in your sum?",
)
def smoothing_counts_ignored_places(logits, targets, smoothing):
    keep = targets != -100
    logs = logits.log_softmax(dim=-1)
    right = logs[keep].gather(-1, targets[keep][:, None])[:, 0]
    total = -(1 - smoothing) * right.sum() - smoothing * logs.mean(dim=-1).sum()
    return total / keep.sum() if keep.any() else total * 0


@_smoothed(
    believed="The part of all classes is a mean over everything.",
    tell="Over which places does the mean of your second part go? Does one of -100 count in it?",
)
def smoothing_mean_over_all_places(logits, targets, smoothing):
    keep = targets != -100
    if not keep.any():
        return logits.sum() * 0
    logs = logits.log_softmax(dim=-1)
    right = logs[keep].gather(-1, targets[keep][:, None])
    return -(1 - smoothing) * right.mean() - smoothing * logs.mean()


@_smoothed(
    believed="The mean over a batch is the mean of the sequences' means.",
    tell="A sequence of one target and one of four: how much does each target count in your mean?",
)
def smoothing_mean_of_the_sequences_means(logits, targets, smoothing):
    if targets.ndim == 1:
        logits, targets = logits[None], targets[None]
    share = smoothing / logits.shape[-1]
    means = [
        _smooth(one, row, 1 - smoothing, share)
        for one, row in zip(logits, targets, strict=True)
        if (row != -100).any()
    ]
    return sum(means) / len(means) if means else logits.sum() * 0


@_smoothed(
    believed="A target of -100 is the class 100 from the end.",
    tell="What does your loss make of a target of -100?",
)
def smoothing_knows_no_ignored_targets(logits, targets, smoothing):
    if not (targets != -100).any():
        return logits.sum() * 0
    share = smoothing / logits.shape[-1]
    return _smooth(logits, targets % logits.shape[-1], 1 - smoothing, share)


@_smoothed(
    believed="The sum is divided by the number of places.",
    tell="By how many targets do you divide if one of them is -100?",
)
def smoothing_divided_by_all_places(logits, targets, smoothing):
    share = smoothing / logits.shape[-1]
    loss = _smooth(logits, targets, 1 - smoothing, share)
    return loss * (targets != -100).sum() / targets.numel()


@_smoothed(
    believed="The loss of a batch is the sum over its targets.",
    tell="Try a batch twice as large. Does your loss double?",
)
def smoothing_summed(logits, targets, smoothing):
    share = smoothing / logits.shape[-1]
    return _smooth(logits, targets, 1 - smoothing, share) * (targets != -100).sum()


@_smoothed(
    believed="The mean of no targets is no concern of the loss.",
    tell="What is your loss if all targets are -100? Print the count that you divide by.",
)
def smoothing_nan_where_nothing_counts(logits, targets, smoothing):
    keep = targets != -100
    return _smooth(logits, targets, 1 - smoothing, smoothing / logits.shape[-1]) * (
        1.0 if keep.any() else math.nan
    )


@_smoothed(
    believed="Axis 1 is that of the classes.",
    tell="Along which axis does your softmax go if the logits are (B, L, V)?",
)
def smoothing_softmax_along_axis_1(logits, targets, smoothing):
    keep = targets != -100
    logs = logits.log_softmax(dim=1)[keep]
    right = logs.gather(-1, targets[keep][:, None])[:, 0]
    losses = -(1 - smoothing) * right - smoothing * logs.mean(dim=-1)
    return losses.sum() / max(len(losses), 1)


# --- predicted_steps ---


def _steps(id, value, believed, tell, section=CLIPPING):
    return mistake_value(
        "predicted_steps", id, value, believed=believed, tell=tell, section=section
    )


steps_of_adam_follow_the_gradient = _steps(
    "steps-of-adam-follow-the-gradient",
    (4.0, 0.1, 4.0, 0.1),
    "Adam's first step is that of SGD.",
    "What does Adam divide its mean gradient by? After one step both means know one gradient.",
    WARMUP,
)
steps_of_adam_shrink_by_clipping = _steps(
    "steps-of-adam-shrink-by-clipping",
    (4.0, 0.1, 0.1, 0.0025),
    "Clipping scales any optimizer's step down by the same factor.",
    "Multiply a gradient by 1/40. What happens to the root of its mean square?",
    WARMUP,
)
steps_are_never_clipped = _steps(
    "steps-are-never-clipped",
    (4.0, 4.0, 0.1, 0.1),
    "Clipping a single weight changes nothing.",
    "The norm of one number is its size. Is it above max_norm?",
)
steps_are_clipped_to_max_norm = _steps(
    "steps-are-clipped-to-max-norm",
    (4.0, 1.0, 0.1, 0.1),
    "Clipping limits the step itself.",
    "What is clipped, the gradient or the step? What comes after it?",
)
steps_of_adam_start_slowly = _steps(
    "steps-of-adam-start-slowly",
    (4.0, 0.1, 0.01, 0.01),
    "Adam's first mean is a tenth of the gradient, so its first step is a tenth as long.",
    "Adam corrects both means for having started at 0. What is left after the correction?",
    WARMUP,
)
steps_of_adam_divide_by_the_square = _steps(
    "steps-of-adam-divide-by-the-square",
    (4.0, 0.1, 0.0025, 0.1),
    "Adam divides the gradient by the mean of its square.",
    "Adam divides by a root. What is 40 divided by the root of its square?",
    WARMUP,
)
steps_are_the_learning_rate = _steps(
    "steps-are-the-learning-rate",
    (0.1, 0.1, 0.1, 0.1),
    "A learning rate of 0.1 moves every weight by 0.1.",
    "Which optimizer multiplies the learning rate by the gradient, and which by its sign?",
    WARMUP,
)

# --- train_step ---


def _clip(model, max_norm):
    import torch

    if max_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)


_train = functools.partial(mistake, "train_step", section=FIRST)
_train_clip = functools.partial(mistake, "train_step", section=CLIPPING)


@_train(
    believed="backward replaces the gradients.",
    tell="Print a gradient before and after backward(), in two steps. What does it start from?",
)
def train_zero_grad_missing(model, opt, x, y, loss_fn, max_norm=None):
    loss = loss_fn(model(x), y)
    loss.backward()
    _clip(model, max_norm)
    opt.step()
    return loss.item()


@_train(
    believed="The gradients are emptied once they have been computed.",
    tell="What does the optimizer find in .grad when it makes its step?",
)
def train_zero_grad_after_backward(model, opt, x, y, loss_fn, max_norm=None):
    loss = loss_fn(model(x), y)
    loss.backward()
    opt.zero_grad()
    opt.step()
    return loss.item()


@_train(
    believed="Whoever uses the gradients empties them afterwards.",
    tell="What is in .grad after the call? And what if something was in it before the first one?",
)
def train_zero_grad_at_the_end(model, opt, x, y, loss_fn, max_norm=None):
    loss = loss_fn(model(x), y)
    loss.backward()
    _clip(model, max_norm)
    opt.step()
    opt.zero_grad()
    return loss.item()


@_train(
    believed="It does no harm to clean up as well.",
    tell="What is in .grad after the call?",
)
def train_gradients_cleared_twice(model, opt, x, y, loss_fn, max_norm=None):
    opt.zero_grad()
    return train_zero_grad_at_the_end.answer(model, opt, x, y, loss_fn, max_norm)


@_train(
    believed="backward() trains the model.",
    tell="Who changes the weights, and what does it find in .grad when it does?",
)
def train_without_a_step(model, opt, x, y, loss_fn, max_norm=None):
    loss = loss_fn(model(x), y)
    opt.zero_grad()
    loss.backward()
    _clip(model, max_norm)
    return loss.item()


@_train(
    believed="Two steps learn more than one.",
    tell="How often does the optimizer make a step in one call?",
)
def train_two_steps(model, opt, x, y, loss_fn, max_norm=None):
    loss = loss_fn(model(x), y)
    opt.zero_grad()
    loss.backward()
    _clip(model, max_norm)
    opt.step()
    opt.step()
    return loss.item()


@_train_clip(
    believed="Clipping can stand after the step.",
    tell="Which gradients does the step use, those before or after your clipping?",
)
def train_clip_after_step(model, opt, x, y, loss_fn, max_norm=None):
    loss = loss_fn(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    _clip(model, max_norm)
    return loss.item()


@_train_clip(
    believed="Each parameter is clipped by itself.",
    tell="Print the norm of all gradients together after your clipping. Is it max_norm?",
)
def train_clip_each_parameter(model, opt, x, y, loss_fn, max_norm=None):
    import torch

    loss = loss_fn(model(x), y)
    opt.zero_grad()
    loss.backward()
    for parameter in model.parameters() if max_norm is not None else ():
        torch.nn.utils.clip_grad_norm_([parameter], max_norm)
    opt.step()
    return loss.item()


@_train_clip(
    believed="Clipping cuts each number off at max_norm.",
    tell="Print the norm of all gradients together after your clipping. Does it exceed max_norm, "
    "and does the direction stay?",
)
def train_clip_each_number(model, opt, x, y, loss_fn, max_norm=None):
    import torch

    loss = loss_fn(model(x), y)
    opt.zero_grad()
    loss.backward()
    if max_norm is not None:
        torch.nn.utils.clip_grad_value_(model.parameters(), max_norm)
    opt.step()
    return loss.item()


@_train_clip(
    believed="Clipping can stand before backward, or be left out.",
    tell="Which gradients are clipped in your function? Before backward() there are none.",
)
def train_never_clips(model, opt, x, y, loss_fn, max_norm=None):
    return train_clip_after_step.answer(model, opt, x, y, loss_fn)


@_train_clip(
    believed="Clipping brings the norm to max_norm.",
    tell="What happens in your function to gradients whose norm is below max_norm?",
)
def train_small_gradients_scaled_up(model, opt, x, y, loss_fn, max_norm=None):
    import torch

    loss = loss_fn(model(x), y)
    opt.zero_grad()
    loss.backward()
    if max_norm is not None:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.stack([(grad**2).sum() for grad in grads]).sum().sqrt()
        for grad in grads:
            grad *= max_norm / norm
    opt.step()
    return loss.item()


@_train_clip(
    believed="The norm is the sum of the squares.",
    tell="Print the norm after your clipping. Has a root gone missing?",
)
def train_clip_without_the_root(model, opt, x, y, loss_fn, max_norm=None):
    loss = loss_fn(model(x), y)
    opt.zero_grad()
    loss.backward()
    if max_norm is not None:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        total = sum((grad**2).sum() for grad in grads)
        for grad in grads:
            grad *= min(1.0, max_norm / total.item())
    opt.step()
    return loss.item()


@_train_clip(
    believed="Norms of the parameters add up.",
    tell="Is the norm of (3, 4) equal to 3 + 4?",
)
def train_clip_by_the_sum_of_norms(model, opt, x, y, loss_fn, max_norm=None):
    loss = loss_fn(model(x), y)
    opt.zero_grad()
    loss.backward()
    if max_norm is not None:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        total = sum(grad.norm() for grad in grads)
        for grad in grads:
            grad *= min(1.0, max_norm / total.item())
    opt.step()
    return loss.item()


@_train_clip(
    believed="The norm of the gradients is the largest number in them.",
    tell="Print the norm of all gradients together, the root of the sum of squares, after your "
    "clipping. Is it max_norm?",
)
def train_clip_by_the_largest_number(model, opt, x, y, loss_fn, max_norm=None):
    import torch

    loss = loss_fn(model(x), y)
    opt.zero_grad()
    loss.backward()
    if max_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm, norm_type=math.inf)
    opt.step()
    return loss.item()


@_train_clip(
    believed="A loss that is brought down to max_norm has gradients of that size.",
    tell="What do you scale, the gradients or the loss? Print the norm of all gradients together "
    "at the step.",
)
def train_loss_scaled_instead(model, opt, x, y, loss_fn, max_norm=None):
    loss = loss_fn(model(x), y)
    opt.zero_grad()
    factor = 1.0 if max_norm is None else min(1.0, max_norm / loss.item())
    (factor * loss).backward()
    opt.step()
    return loss.item()


@_train_clip(
    believed="Each group of the optimizer is clipped by itself.",
    tell="An optimizer may have several groups of parameters. Print the norm of all gradients "
    "together after your clipping. Is it max_norm?",
)
def train_clip_each_group(model, opt, x, y, loss_fn, max_norm=None):
    import torch

    loss = loss_fn(model(x), y)
    opt.zero_grad()
    loss.backward()
    for group in opt.param_groups if max_norm is not None else ():
        torch.nn.utils.clip_grad_norm_(group["params"], max_norm)
    opt.step()
    return loss.item()


@_train_clip(
    believed="An optimizer has one group of parameters, number 0.",
    tell="An optimizer may have several groups of parameters. Which gradients does your clipping "
    "see, and which does it change?",
)
def train_clip_first_group(model, opt, x, y, loss_fn, max_norm=None):
    import torch

    loss = loss_fn(model(x), y)
    opt.zero_grad()
    loss.backward()
    if max_norm is not None:
        torch.nn.utils.clip_grad_norm_(opt.param_groups[0]["params"], max_norm)
    opt.step()
    return loss.item()


@_train_clip(
    believed="Gradients are clipped when the loss is larger than max_norm.",
    tell="Which number do you compare with max_norm? Print it beside the norm of all gradients.",
)
def train_clips_if_the_loss_is_large(model, opt, x, y, loss_fn, max_norm=None):
    loss = loss_fn(model(x), y)
    opt.zero_grad()
    loss.backward()
    if max_norm is not None and loss.item() > max_norm:
        _clip(model, max_norm)
    opt.step()
    return loss.item()


@_train_clip(
    believed="Clipping keeps the weights small.",
    tell="What do you clip, the gradients or the weights?",
)
def train_weights_clipped(model, opt, x, y, loss_fn, max_norm=None):
    import torch

    loss = loss_fn(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if max_norm is not None:
        with torch.no_grad():
            norm = sum((p**2).sum() for p in model.parameters()).sqrt()
            for parameter in model.parameters():
                parameter *= min(1.0, max_norm / norm.item())
    return loss.item()


@_train_clip(
    believed="There is always something to clip by.",
    tell="What does your function do if max_norm is None?",
)
def train_clips_at_1_by_default(model, opt, x, y, loss_fn, max_norm=None):
    loss = loss_fn(model(x), y)
    opt.zero_grad()
    loss.backward()
    _clip(model, 1.0 if max_norm is None else max_norm)
    opt.step()
    return loss.item()


@_train(
    believed="The loss can be returned as it is.",
    tell="What type has your result, and what does it keep in memory?",
)
def train_loss_with_its_graph(model, opt, x, y, loss_fn, max_norm=None):
    loss = loss_fn(model(x), y)
    opt.zero_grad()
    loss.backward()
    _clip(model, max_norm)
    opt.step()
    return loss


@_train(
    believed="detach() makes a number of a tensor.",
    tell="What type has your result?",
)
def train_loss_detached(model, opt, x, y, loss_fn, max_norm=None):
    return train_loss_with_its_graph.answer(model, opt, x, y, loss_fn, max_norm).detach()


@_train(
    believed="An array of NumPy is a number.",
    tell="Print type(...) of your result. Which method of a tensor returns a float?",
)
def train_loss_as_an_array(model, opt, x, y, loss_fn, max_norm=None):
    return train_loss_detached.answer(model, opt, x, y, loss_fn, max_norm).numpy()


@_train(
    believed="A step has nothing to report.",
    tell="What does your function return?",
)
def train_returns_nothing(model, opt, x, y, loss_fn, max_norm=None):
    train_loss_with_its_graph.answer(model, opt, x, y, loss_fn, max_norm)


@_train(
    believed="The loss of a step is the one after it.",
    tell="Which weights does the loss that you return belong to? How often does the model run?",
)
def train_loss_after_the_step(model, opt, x, y, loss_fn, max_norm=None):
    train_loss_with_its_graph.answer(model, opt, x, y, loss_fn, max_norm)
    return loss_fn(model(x), y).item()


@_train(
    believed="The model may run once for the loss and once for its gradient.",
    tell="How often does the model run in one call? A batch norm counts that.",
)
def train_model_runs_twice(model, opt, x, y, loss_fn, max_norm=None):
    value = loss_fn(model(x), y).item()
    train_loss_with_its_graph.answer(model, opt, x, y, loss_fn, max_norm)
    return value


@_train(
    believed="A step of training puts the model into training mode.",
    tell="In which mode is the model after the call, if it was in evaluation mode before?",
)
def train_sets_training_mode(model, opt, x, y, loss_fn, max_norm=None):
    model.train()
    return train_loss_with_its_graph.answer(model, opt, x, y, loss_fn, max_norm).item()


@_train(
    believed="Evaluation mode makes training repeatable.",
    tell="In which mode does your function run the model, and who decides that?",
)
def train_sets_evaluation_mode(model, opt, x, y, loss_fn, max_norm=None):
    model.eval()
    return train_loss_with_its_graph.answer(model, opt, x, y, loss_fn, max_norm).item()


@_train(
    believed="Every parameter has a gradient.",
    tell="What is .grad of a parameter that is frozen?",
)
def train_frozen_parameters_have_gradients(model, opt, x, y, loss_fn, max_norm=None):
    import torch

    loss = loss_fn(model(x), y)
    opt.zero_grad()
    loss.backward()
    if max_norm is not None:
        norm = torch.stack([(p.grad**2).sum() for p in model.parameters()]).sum().sqrt()
        for parameter in model.parameters():
            parameter.grad *= min(1.0, max_norm / norm.item())
    opt.step()
    return loss.item()


@_train(
    believed="All that is in the model trains.",
    tell="What does your function do to parameters that the caller has frozen?",
)
def train_thaws_the_model(model, opt, x, y, loss_fn, max_norm=None):
    model.requires_grad_(True)
    return train_loss_with_its_graph.answer(model, opt, x, y, loss_fn, max_norm).item()


@_train(
    believed="A step is the learning rate times the gradient.",
    tell="Whose step do you make? opt may be Adam, or have momentum.",
)
def train_step_by_hand(model, opt, x, y, loss_fn, max_norm=None):
    import torch

    loss = loss_fn(model(x), y)
    opt.zero_grad()
    loss.backward()
    _clip(model, max_norm)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= opt.param_groups[0]["lr"] * parameter.grad
    return loss.item()


@_train(
    believed="A new optimizer for each step keeps things clean.",
    tell="Which optimizer makes the step? What does Adam remember from step to step?",
)
def train_optimizer_forgets(model, opt, x, y, loss_fn, max_norm=None):
    opt.state.clear()
    return train_loss_with_its_graph.answer(model, opt, x, y, loss_fn, max_norm).item()


# --- mended_epoch ---

_epoch = functools.partial(mistake, "mended_epoch")


def _trained(model, opt, x, y, loss_fn, max_norm, *, clip="before", zero=True):
    loss = loss_fn(model(x), y)
    if zero:
        opt.zero_grad()
    loss.backward()
    if clip == "before":
        _clip(model, max_norm)
    opt.step()
    if clip == "after":
        _clip(model, max_norm)
    return loss.item()


def _counted(y):
    return (y != -100).sum().item()


def _weighted(losses, weights):
    return sum(n * w for n, w in zip(losses, weights, strict=True)) / sum(weights)


@_epoch(
    believed="The mean was the fault.",
    tell="Which gradients does opt.step() use, and where do the clipped ones go?",
    section=CLIPPING,
)
def epoch_still_clips_after_the_step(model, opt, batches, loss_fn, max_norm):
    losses = [_trained(model, opt, *batch, loss_fn, max_norm, clip="after") for batch in batches]
    return _weighted(losses, [_counted(y) for _, y in batches])


@_epoch(
    believed="The clipping was the fault.",
    tell="A batch with 2 targets and one with 98: how much does each target weigh in your mean?",
    section=ACCUMULATION,
)
def epoch_still_mean_of_means(model, opt, batches, loss_fn, max_norm):
    losses = [_trained(model, opt, *batch, loss_fn, max_norm) for batch in batches]
    return sum(losses) / len(losses)


@_epoch(
    believed="A batch weighs as much as it has rows.",
    tell="How many targets of a batch count? Its length says something else.",
    section=ACCUMULATION,
)
def epoch_weighs_by_all_targets(model, opt, batches, loss_fn, max_norm):
    losses = [_trained(model, opt, *batch, loss_fn, max_norm) for batch in batches]
    return _weighted(losses, [y.numel() for _, y in batches])


@_epoch(
    believed="Each parameter is clipped by itself.",
    tell="Print the norm of all gradients together after your clipping. Is it max_norm?",
    section=CLIPPING,
)
def epoch_clips_each_parameter(model, opt, batches, loss_fn, max_norm):
    losses = [train_clip_each_parameter.answer(model, opt, *b, loss_fn, max_norm) for b in batches]
    return _weighted(losses, [_counted(y) for _, y in batches])


@_epoch(
    believed="zero_grad once an epoch will do.",
    tell="What do the gradients of the second batch start from?",
    section=FIRST,
)
def epoch_gradients_add_up(model, opt, batches, loss_fn, max_norm):
    opt.zero_grad()
    losses = [_trained(model, opt, *batch, loss_fn, max_norm, zero=False) for batch in batches]
    return _weighted(losses, [_counted(y) for _, y in batches])


@_epoch(
    believed="backward() replaces the gradients.",
    tell="What do the gradients of each batch start from? Print one before and after backward().",
    section=FIRST,
)
def epoch_gradients_never_cleared(model, opt, batches, loss_fn, max_norm):
    losses = [_trained(model, opt, *batch, loss_fn, max_norm, zero=False) for batch in batches]
    return _weighted(losses, [_counted(y) for _, y in batches])


@_epoch(
    believed="Clipping brings the norm to max_norm.",
    tell="What happens in your function to gradients whose norm is below max_norm?",
    section=CLIPPING,
)
def epoch_small_gradients_scaled_up(model, opt, batches, loss_fn, max_norm):
    step = train_small_gradients_scaled_up.answer
    losses = [step(model, opt, *batch, loss_fn, max_norm) for batch in batches]
    return _weighted(losses, [_counted(y) for _, y in batches])


@_epoch(
    believed="The loss of a batch is the one after its step.",
    tell="Which weights does the loss of each batch belong to: those before its step, or after?",
    section=FIRST,
)
def epoch_loss_after_each_step(model, opt, batches, loss_fn, max_norm):
    losses = []
    for x, y in batches:
        _trained(model, opt, x, y, loss_fn, max_norm)
        losses.append(loss_fn(model(x), y).item())
    return _weighted(losses, [_counted(y) for _, y in batches])


@_epoch(
    believed="The weighted mean is divided by the number of batches.",
    tell="By what do you divide the sum of the losses?",
    section=ACCUMULATION,
)
def epoch_divides_by_the_batches(model, opt, batches, loss_fn, max_norm):
    total = 0.0
    for x, y in batches:
        total += _counted(y) * _trained(model, opt, x, y, loss_fn, max_norm)
    return total / len(batches)


@_epoch(
    believed="The losses of an epoch are added up.",
    tell="The question asks for a mean. Over what?",
    section=ACCUMULATION,
)
def epoch_returns_the_sum(model, opt, batches, loss_fn, max_norm):
    total = 0.0
    for x, y in batches:
        total += _counted(y) * _trained(model, opt, x, y, loss_fn, max_norm)
    return total


@_epoch(
    believed="The loss of an epoch is measured when it is over.",
    tell="Which weights does the loss of each batch belong to in your mean?",
    section=FIRST,
)
def epoch_losses_after_the_steps(model, opt, batches, loss_fn, max_norm):
    for batch in batches:
        _trained(model, opt, *batch, loss_fn, max_norm)
    losses = [loss_fn(model(x), y).item() for x, y in batches]
    return _weighted(losses, [_counted(y) for _, y in batches])


@_epoch(
    believed="Losses can be added as tensors.",
    tell="What type has your result?",
    section=FIRST,
)
def epoch_returns_a_tensor(model, opt, batches, loss_fn, max_norm):
    import torch

    losses = [_trained(model, opt, *batch, loss_fn, max_norm) for batch in batches]
    return torch.tensor(_weighted(losses, [_counted(y) for _, y in batches]))


@_epoch(
    believed="The gradients of an epoch are collected, and the step is made at its end.",
    tell="How many steps does the question ask for?",
    section=ACCUMULATION,
)
def epoch_one_step_at_the_end(model, opt, batches, loss_fn, max_norm):
    losses = []
    opt.zero_grad()
    for x, y in batches:
        loss = loss_fn(model(x), y)
        loss.backward()
        losses.append(loss.item())
    _clip(model, max_norm)
    opt.step()
    return _weighted(losses, [_counted(y) for _, y in batches])


# --- trapezoid_rate ---

_rate = functools.partial(mistake, "trapezoid_rate", section=WARMUP)


@_rate(
    believed="A rise from 0 starts at 0.",
    tell="What is your rate in step 0, and what does that step do?",
)
def rate_starts_at_zero(step, steps, peak, warmup, decay):
    return peak * min(1.0, step / warmup, (steps - step) / decay)


@_rate(
    believed="From the first step of the rise to the last there are warmup - 1 parts.",
    tell="What is your rate in step 0, and what if warmup is 1?",
)
def rate_rises_in_one_part_less(step, steps, peak, warmup, decay):
    rise = step / (warmup - 1) if step < warmup else 1.0
    return peak * min(rise, (steps - step) / decay)


@_rate(
    believed="The peak comes one step after the rise.",
    tell="What is your rate in step `warmup - 1`?",
)
def rate_peaks_one_step_late(step, steps, peak, warmup, decay):
    return peak * min(1.0, (step + 1) / (warmup + 1), (steps - step) / decay)


@_rate(
    believed="A fall to 0 ends at 0.",
    tell="What is your rate in the last step, steps - 1, and what does that step do?",
)
def rate_ends_at_zero(step, steps, peak, warmup, decay):
    return peak * min(1.0, (step + 1) / warmup, (steps - 1 - step) / decay)


@_rate(
    believed="The last step has the number `steps`.",
    tell="What is your rate in step steps - 1? Steps count from 0.",
)
def rate_falls_one_step_late(step, steps, peak, warmup, decay):
    return peak * min(1.0, (step + 1) / warmup, (steps + 1 - step) / decay)


@_rate(
    believed="After the rise the rate stays.",
    tell="What is your rate in the last step?",
)
def rate_never_falls(step, steps, peak, warmup, decay):
    return peak * min(1.0, (step + 1) / warmup)


@_rate(
    believed="The rise can be left out.",
    tell="What is your rate in step 0?",
)
def rate_never_rises(step, steps, peak, warmup, decay):
    return peak * min(1.0, (steps - step) / decay)


@_rate(
    believed="The fall begins right after the rise.",
    tell="What is your rate in the step after the warm-up? How many of the steps fall?",
)
def rate_without_a_plateau(step, steps, peak, warmup, decay):
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (steps - step) / (steps - warmup + 1)


@_rate(
    believed="decay is the step in which the fall begins.",
    tell="In which step does your rate begin to fall? decay is a number of steps, at the end.",
)
def rate_falls_from_step_decay(step, steps, peak, warmup, decay):
    if step < decay:
        return peak * min(1.0, (step + 1) / warmup)
    return peak * (steps - step) / (steps - decay)


@_rate(
    believed="The fall is counted from the end of the rise.",
    tell="In which step does your rate begin to fall? decay counts from the end.",
)
def rate_falls_after_the_rise(step, steps, peak, warmup, decay):
    return peak * min(1.0, (step + 1) / warmup, max(0.0, 1 - (step + 1 - warmup) / decay))


@_rate(
    believed="Rise and fall are whole numbers.",
    tell="What is (step + 1) // warmup during the rise?",
)
def rate_by_whole_division(step, steps, peak, warmup, decay):
    return peak * min(1, (step + 1) // warmup, (steps - step) // decay)


@_rate(
    believed="The schedule is a factor; the peak is somebody else's.",
    tell="What does your rate have to do with peak?",
)
def rate_without_the_peak(step, steps, peak, warmup, decay):
    return min(1.0, (step + 1) / warmup, (steps - step) / decay)


@_rate(
    believed="Nothing keeps the rise from going on.",
    tell="What is your rate on the plateau? Is it above the peak?",
)
def rate_without_a_top(step, steps, peak, warmup, decay):
    return peak * min((step + 1) / warmup, (steps - step) / decay)


@_rate(
    believed="The fall follows a cosine, as in chapter 5.",
    tell="Print your rates at the end. Do they fall by equal parts?",
)
def rate_falls_along_a_cosine(step, steps, peak, warmup, decay):
    left = min(1.0, (steps - step) / decay)
    return peak * min(1.0, (step + 1) / warmup, (1 - math.cos(math.pi * left)) / 2)


@_rate(
    believed="The fall begins one step before the last decay steps.",
    tell="What is your rate in step steps - decay, the first of the last decay steps?",
)
def rate_falls_one_step_early(step, steps, peak, warmup, decay):
    return peak * min(1.0, (step + 1) / warmup, (steps - step) / (decay + 1))


@_rate(
    believed="The rate follows the highest of the three lines.",
    tell="Which of the lines is the rate during the rise, the highest or the lowest? Print your "
    "rate in step 0.",
)
def rate_takes_the_highest_line(step, steps, peak, warmup, decay):
    return peak * max(1.0, (step + 1) / warmup, (steps - step) / decay)


@_rate(
    believed="Rise and fall are two lines, of which the higher one counts.",
    tell="During the rise, how high is the line of the fall? Print both in step 0.",
)
def rate_takes_the_higher_of_rise_and_fall(step, steps, peak, warmup, decay):
    return peak * min(1.0, max((step + 1) / warmup, (steps - step) / decay))


@_rate(
    believed="A tensor of one number is a number.",
    tell="Print type(...) of your result. Does a rate need a tensor?",
)
def rate_as_a_tensor(step, steps, peak, warmup, decay):
    import torch

    return torch.tensor(peak * min(1.0, (step + 1) / warmup, (steps - step) / decay))


# --- accumulate_step ---

_accumulate = functools.partial(mistake, "accumulate_step", section=ACCUMULATION)


def _collect(model, micro_batches, loss_fn, weights, before=lambda: None):
    """Add up the gradients of weighted losses; a weight of 0 leaves a micro-batch out."""
    for (x, y), weight in zip(micro_batches, weights, strict=True):
        before()
        if weight:
            (loss_fn(model(x), y) * weight).backward()


def _shares(micro_batches):
    counts = [_counted(y) for _, y in micro_batches]
    return [count / sum(counts) for count in counts]


@_accumulate(
    believed="zero_grad belongs right before every backward.",
    tell="How many micro-batches are in .grad when the step is made?",
)
def accumulation_zero_grad_inside(model, opt, micro_batches, loss_fn):
    _collect(model, micro_batches, loss_fn, _shares(micro_batches), opt.zero_grad)
    opt.step()


@_accumulate(
    believed="The gradients are empty when a step begins.",
    tell="What do your gradients start from in the second call?",
)
def accumulation_zero_grad_missing(model, opt, micro_batches, loss_fn):
    _collect(model, micro_batches, loss_fn, _shares(micro_batches))
    opt.step()


@_accumulate(
    believed="Emptying the gradients after the step prepares the next call.",
    tell="What if the parameters hold gradients before your first call?",
)
def accumulation_zero_grad_at_the_end(model, opt, micro_batches, loss_fn):
    _collect(model, micro_batches, loss_fn, _shares(micro_batches))
    opt.step()
    opt.zero_grad()


@_accumulate(
    believed="Gradients are emptied after backward, before they are used.",
    tell="Does the optimizer make a step at all, and what does it find in .grad then?",
)
def accumulation_zero_grad_before_the_step(model, opt, micro_batches, loss_fn):
    _collect(model, micro_batches, loss_fn, _shares(micro_batches))
    opt.zero_grad()
    opt.step()


@_accumulate(
    believed="Gradients add up, and their sum is that of the joined batch.",
    tell="Is the sum of three means the mean of all? Compare the size of your gradient with that "
    "of the joined batch.",
)
def accumulation_not_scaled(model, opt, micro_batches, loss_fn):
    opt.zero_grad()
    _collect(model, micro_batches, loss_fn, [float(n > 0) for n in _shares(micro_batches)])
    opt.step()


@_accumulate(
    believed="The mean of all is the mean of the micro-batches' means.",
    tell="One micro-batch has 2 targets, the other 98. How much does a target of each weigh?",
)
def accumulation_mean_of_means(model, opt, micro_batches, loss_fn):
    opt.zero_grad()
    weights = [(n > 0) / len(micro_batches) for n in _shares(micro_batches)]
    _collect(model, micro_batches, loss_fn, weights)
    opt.step()


@_accumulate(
    believed="The mean is taken over the micro-batches that have a target.",
    tell="One micro-batch has 2 targets, the other 98. How much does a target of each weigh?",
)
def accumulation_mean_of_means_that_count(model, opt, micro_batches, loss_fn):
    opt.zero_grad()
    shares = _shares(micro_batches)
    counting = sum(n > 0 for n in shares)
    _collect(model, micro_batches, loss_fn, [(n > 0) / counting for n in shares])
    opt.step()


@_accumulate(
    believed="A micro-batch weighs as much as it has rows.",
    tell="How many targets do count in a micro-batch? len(y) knows nothing of -100, nor of more "
    "axes than one.",
)
def accumulation_weighs_by_rows(model, opt, micro_batches, loss_fn):
    opt.zero_grad()
    rows = [len(x) for x, _ in micro_batches]
    counts = _shares(micro_batches)
    weights = [(c > 0) * n / sum(rows) for n, c in zip(rows, counts, strict=True)]
    _collect(model, micro_batches, loss_fn, weights)
    opt.step()


@_accumulate(
    believed="A micro-batch weighs as much as it has targets, padding included.",
    tell="How many targets do count in a micro-batch? Neither len nor numel knows of -100.",
)
def accumulation_weighs_by_all_targets(model, opt, micro_batches, loss_fn):
    opt.zero_grad()
    sizes = [y.numel() for _, y in micro_batches]
    counts = _shares(micro_batches)
    weights = [(c > 0) * n / sum(sizes) for n, c in zip(sizes, counts, strict=True)]
    _collect(model, micro_batches, loss_fn, weights)
    opt.step()


@_accumulate(
    believed="The counts weigh the losses, and the sum is divided by the number of micro-batches.",
    tell="What do the weights of your losses sum to?",
)
def accumulation_weights_do_not_sum_to_one(model, opt, micro_batches, loss_fn):
    opt.zero_grad()
    counts = [_counted(y) for _, y in micro_batches]
    _collect(model, micro_batches, loss_fn, [n / len(counts) for n in counts])
    opt.step()


@_accumulate(
    believed="The sum over all targets is what the joined batch would have.",
    tell="loss_fn is a mean. Is the loss of the joined batch a mean or a sum?",
)
def accumulation_sums_over_targets(model, opt, micro_batches, loss_fn):
    opt.zero_grad()
    _collect(model, micro_batches, loss_fn, [_counted(y) for _, y in micro_batches])
    opt.step()


@_accumulate(
    believed="A target of 0 is padding.",
    tell="Which targets do not count? Is 0 among them?",
)
def accumulation_takes_zero_for_padding(model, opt, micro_batches, loss_fn):
    opt.zero_grad()
    counts = [((y != -100) & (y != 0)).sum().item() for _, y in micro_batches]
    _collect(model, micro_batches, loss_fn, [n / sum(counts) for n in counts])
    opt.step()


@_accumulate(
    believed="Targets that count are those that are not negative.",
    tell="In a regression a target may be -0.5. Which number alone says that a target does not "
    "count?",
)
def accumulation_leaves_out_negative_targets(model, opt, micro_batches, loss_fn):
    opt.zero_grad()
    counts = [(y >= 0).sum().item() for _, y in micro_batches]
    _collect(model, micro_batches, loss_fn, [n / max(sum(counts), 1) for n in counts])
    opt.step()


@_accumulate(
    believed="Each loss is divided by the number of targets so far.",
    tell="By which total do you divide the first loss, and by which the last? What do your "
    "weights sum to?",
)
def accumulation_divides_by_the_running_total(model, opt, micro_batches, loss_fn):
    opt.zero_grad()
    counts = [_counted(y) for _, y in micro_batches]
    totals = itertools.accumulate(counts)
    weights = [n / max(total, 1) for n, total in zip(counts, totals, strict=True)]
    _collect(model, micro_batches, loss_fn, weights)
    opt.step()


@_accumulate(
    believed="The weight 0 takes a micro-batch out.",
    tell="What is 0 times NaN? loss_fn may be any function that returns the mean.",
)
def accumulation_multiplies_nan_by_zero(model, opt, micro_batches, loss_fn):
    opt.zero_grad()
    for (x, y), share in zip(micro_batches, _shares(micro_batches), strict=True):
        (loss_fn(model(x), y) * share).backward()
    opt.step()


@_accumulate(
    believed="A loss of NaN marks a micro-batch without a target.",
    tell="A loss may be NaN for other reasons: training may have diverged. What tells whether a "
    "micro-batch has a target?",
)
def accumulation_leaves_out_losses_of_nan(model, opt, micro_batches, loss_fn):
    opt.zero_grad()
    for (x, y), share in zip(micro_batches, _shares(micro_batches), strict=True):
        loss = loss_fn(model(x), y)
        if not loss.isnan():
            (loss * share).backward()
    opt.step()


@_accumulate(
    believed="nan_to_num makes a 0 of the loss of nothing.",
    tell="Which losses does nan_to_num change? One may be NaN because training has diverged.",
)
def accumulation_makes_nan_a_number(model, opt, micro_batches, loss_fn):
    opt.zero_grad()
    for (x, y), share in zip(micro_batches, _shares(micro_batches), strict=True):
        (loss_fn(model(x), y).nan_to_num() * share).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.nan_to_num_()
    opt.step()


@_accumulate(
    believed="A batch without targets ends the step.",
    tell="What happens in your loop to the micro-batches after an empty one?",
)
def accumulation_stops_at_an_empty_one(model, opt, micro_batches, loss_fn):
    opt.zero_grad()
    shares = _shares(micro_batches)
    end = next((i for i, n in enumerate(shares) if not n), len(shares))
    _collect(model, micro_batches[:end], loss_fn, shares[:end])
    opt.step()


@_accumulate(
    believed="The step comes with the last micro-batch, which has a target.",
    tell="What does your loop skip if the last micro-batch has no target?",
)
def accumulation_no_step_after_an_empty_one(model, opt, micro_batches, loss_fn):
    opt.zero_grad()
    shares = _shares(micro_batches)
    _collect(model, micro_batches, loss_fn, shares)
    if shares[-1]:
        opt.step()


@_accumulate(
    believed="Each micro-batch is worth a step.",
    tell="How many steps does the optimizer make in one call?",
)
def accumulation_step_inside(model, opt, micro_batches, loss_fn):
    opt.zero_grad()
    for (x, y), share in zip(micro_batches, _shares(micro_batches), strict=True):
        if share:
            (loss_fn(model(x), y) * share).backward()
            opt.step()


@_accumulate(
    believed="Small steps on each micro-batch add up to the large one.",
    tell="How many steps does the optimizer make in one call, and on which weights does it compute "
    "the second gradient?",
)
def accumulation_separate_steps(model, opt, micro_batches, loss_fn):
    for (x, y), share in zip(micro_batches, _shares(micro_batches), strict=True):
        if share:
            opt.zero_grad()
            (loss_fn(model(x), y) * share).backward()
            opt.step()


@_accumulate(
    believed="A step is the learning rate times the gradient.",
    tell="Whose step do you make? opt may be Adam, or have momentum.",
)
def accumulation_step_by_hand(model, opt, micro_batches, loss_fn):
    import torch

    opt.zero_grad()
    _collect(model, micro_batches, loss_fn, _shares(micro_batches))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= opt.param_groups[0]["lr"] * parameter.grad


@_accumulate(
    believed="The losses can be added up, and backward called once.",
    tell="When is the graph of the first micro-batch freed?",
)
def accumulation_one_backward(model, opt, micro_batches, loss_fn):
    opt.zero_grad()
    pairs = zip(micro_batches, _shares(micro_batches), strict=True)
    sum(loss_fn(model(x), y) * share for (x, y), share in pairs if share).backward()
    opt.step()


@_accumulate(
    believed="One backward pass for each loss is enough to save memory.",
    tell="When does your function run the model on the second micro-batch: before or after the "
    "graph of the first is freed?",
)
def accumulation_all_forward_passes_first(model, opt, micro_batches, loss_fn):
    opt.zero_grad()
    pairs = zip(micro_batches, _shares(micro_batches), strict=True)
    losses = [loss_fn(model(x), y) * share for (x, y), share in pairs if share]
    for loss in losses:
        loss.backward()
    opt.step()


@_accumulate(
    believed="The micro-batches can be put together again.",
    tell="How much memory does the joined batch take? And what if lengths differ?",
)
def accumulation_joins_the_batches(model, opt, micro_batches, loss_fn):
    import torch

    opt.zero_grad()
    x, y = (torch.cat(parts) for parts in zip(*micro_batches, strict=True))
    loss_fn(model(x), y).backward()
    opt.step()


# --- normalized_entropy ---

_entropy = functools.partial(mistake, "normalized_entropy", section=ENTROPY)


def _entropies(weights):
    import torch

    return torch.special.entr(weights).sum(dim=-1)  # (B, h, L)


def _relative(entropies, mask, count=None):
    """Return the mean over queries with two keys or more of entropies / log(number of keys)."""
    keys = mask.sum(dim=-1)  # (B, 1, L)
    counting = keys >= 2
    shares = entropies / keys.clamp(min=2).log() * counting
    return shares.sum(dim=(0, 2)) / (counting.sum() if count is None else count)


@_entropy(
    believed="w log w needs no care.",
    tell="What is 0 times the logarithm of 0 in floating-point numbers?",
)
def entropy_nan_for_zero_weights(weights, mask):
    return _relative(-(weights * weights.log()).sum(dim=-1), mask)


@_entropy(
    believed="The weight of a masked key alone needs care.",
    tell="An allowed key may have the weight 0 too. What is 0 times the logarithm of 0?",
)
def entropy_nan_for_allowed_zero_weights(weights, mask):
    logs = weights.masked_fill(~mask, 1.0).log()
    return _relative(-(weights * logs).sum(dim=-1), mask)


@_entropy(
    believed="Entropy is not divided by anything.",
    tell="What is your result for equal weights? It should be 1.",
)
def entropy_not_divided(weights, mask):
    counting = mask.sum(dim=-1) >= 2
    return (_entropies(weights) * counting).sum(dim=(0, 2)) / counting.sum()


@_entropy(
    believed="The largest entropy is log L.",
    tell="A query may attend to two keys only. How large can its entropy become?",
)
def entropy_divided_by_log_l(weights, mask):
    counting = mask.sum(dim=-1) >= 2
    shares = _entropies(weights) / math.log(weights.shape[-1]) * counting
    return shares.sum(dim=(0, 2)) / counting.sum()


@_entropy(
    believed="The largest entropy is the number of keys.",
    tell="What is your result for equal weights? It should be 1.",
)
def entropy_divided_by_the_keys(weights, mask):
    keys = mask.sum(dim=-1)
    counting = keys >= 2
    shares = _entropies(weights) / keys.clamp(min=2) * counting
    return shares.sum(dim=(0, 2)) / counting.sum()


@_entropy(
    believed="The entropy of natural logarithms is divided by one of base 2.",
    tell="What is your result for equal weights? Do both logarithms have the same base?",
)
def entropy_of_two_bases(weights, mask):
    return _relative(_entropies(weights), mask) * math.log(2)


@_entropy(
    believed="The sign takes care of itself.",
    tell="Is log w positive or negative for weights below 1?",
)
def entropy_negative(weights, mask):
    return -_relative(_entropies(weights), mask)


@_entropy(
    believed="A query with one key counts as 0 / log 1.",
    tell="What is log 1? What becomes of a query with one key in your mean?",
)
def entropy_nan_for_a_single_key(weights, mask):
    keys = mask.sum(dim=-1)
    shares = (_entropies(weights) / keys.log()).masked_fill(keys == 0, 0.0)
    return shares.sum(dim=(0, 2)) / (keys > 0).sum()


@_entropy(
    believed="A query with one key has the share 0, and counts.",
    tell="By how many queries do you divide? Which of them have a choice?",
)
def entropy_counts_queries_with_one_key(weights, mask):
    return _relative(_entropies(weights), mask, (mask.sum(dim=-1) > 0).sum())


@_entropy(
    believed="A query with one key has the largest entropy that it can have, so its share is 1.",
    tell="Which queries count? What does your mean do with one that has a single key?",
)
def entropy_counts_single_keys_as_one(weights, mask):
    keys = mask.sum(dim=-1)  # (B, 1, L)
    shares = _entropies(weights) / keys.clamp(min=2).log() + (keys == 1)
    return shares.sum(dim=(0, 2)) / (keys > 0).sum()


@_entropy(
    believed="The mean is taken over all places.",
    tell="By how many queries do you divide? Which of them have a choice?",
)
def entropy_divided_by_all_queries(weights, mask):
    return _relative(_entropies(weights), mask, mask.shape[0] * mask.shape[2])


@_entropy(
    believed="The mean over sequences of the mean over queries is the mean over all.",
    tell="A sequence of 2 tokens and one of 6: how much does each query weigh?",
)
def entropy_mean_of_the_sequences_means(weights, mask):
    means = [
        _relative(_entropies(w[None]), m[None])
        for w, m in zip(weights, mask, strict=True)
        if (m.sum(dim=-1) >= 2).any()
    ]
    return sum(means) / len(means)


@_entropy(
    believed="The mean of the entropies is divided by the mean of the largest ones.",
    tell="Is the mean of a / b the same as the mean of a over the mean of b?",
)
def entropy_ratio_of_means(weights, mask):
    keys = mask.sum(dim=-1)
    counting = keys >= 2
    largest = (keys.clamp(min=2).log() * counting).sum()
    return (_entropies(weights) * counting).sum(dim=(0, 2)) / largest


@_entropy(
    believed="The keys of a query stand in a column of the mask.",
    tell="How many keys does query 1 have under a causal mask? Print your count for each query.",
)
def entropy_counts_keys_along_the_queries(weights, mask):
    return _relative(_entropies(weights), mask.transpose(-1, -2))


@_entropy(
    believed="Allowed keys are those with a weight above 0.",
    tell="Who says which keys are allowed? Can one of them have the weight 0?",
)
def entropy_counts_keys_with_a_weight(weights, mask):
    keys = (weights > 0).sum(dim=-1)  # (B, h, L)
    counting = mask.sum(dim=-1) >= 2
    shares = _entropies(weights) / keys.clamp(min=2).log() * counting
    return shares.sum(dim=(0, 2)) / counting.sum()


@_entropy(
    believed="All sequences of a batch look alike: the first will do.",
    tell="Which sequences of the batch are in your mean?",
)
def entropy_of_the_first_sequence(weights, mask):
    return _relative(_entropies(weights[:1]), mask[:1])


@_entropy(
    believed="The shares of all queries are added up.",
    tell="Does your result grow with the number of queries?",
)
def entropy_summed_over_queries(weights, mask):
    return _relative(_entropies(weights), mask, 1)


@_entropy(
    believed="Head 0 speaks for all, or their mean does.",
    tell="Do the numbers of your result differ from head to head?",
)
def entropy_mean_over_the_heads(weights, mask):
    found = _relative(_entropies(weights), mask)
    return found.mean() + found * 0


@_entropy(
    believed="A small number inside the logarithm does no harm.",
    tell="How small is it beside your smallest weights? For equal weights the result should be 1.",
)
def entropy_with_a_large_small_number(weights, mask):
    return _relative(-(weights * (weights + 0.01).log()).sum(dim=-1), mask)


# --- mended_evaluate ---

_evaluated = functools.partial(mistake, "mended_evaluate", section=MODES)


def _results(model, batches, numbers=_counted):
    """Return loss and accuracy, both divided by what `numbers(y)` sums to."""
    import torch
    import torch.nn.functional as F

    total = right = count = 0
    with torch.no_grad():
        for x, y in batches:
            scores = model(x)
            total += F.cross_entropy(scores, y, reduction="sum").item()
            right += (scores.argmax(dim=-1) == y).sum().item()
            count += numbers(y)
    return total / count, right / count


@_evaluated(
    believed="no_grad() switches off dropout.",
    tell="Call the function twice. What is still random in the model?",
)
def evaluate_without_eval(model, batches):
    return _results(model, batches)


@_evaluated(
    believed="The mode is set for evaluation, and the caller sets it back.",
    tell="In which mode is the model after the call, if it was training before?",
)
def evaluate_leaves_evaluation_mode(model, batches):
    model.eval()
    return _results(model, batches)


@_evaluated(
    believed="After an evaluation training goes on.",
    tell="In which mode is the model after the call, if it was in evaluation mode before?",
)
def evaluate_always_back_to_training(model, batches):
    model.eval()
    found = _results(model, batches)
    model.train()
    return found


def _quietly(model, function):
    was = model.training
    model.eval()
    found = function()
    model.train(was)
    return found


@_evaluated(
    believed="The share of right answers is taken over all places.",
    tell="By what do you divide when a target is -100?",
)
def evaluate_counts_padding(model, batches):
    return _quietly(model, lambda: _results(model, batches, lambda y: y.numel()))


@_evaluated(
    believed="The loss leaves padding out by itself; only the accuracy had to be mended.",
    tell="By what do you divide the sum of the losses, and by what the number of right answers?",
)
def evaluate_loss_over_all_places(model, batches):
    def results():
        loss, _ = _results(model, batches, lambda y: y.numel())
        return loss, _results(model, batches)[1]

    return _quietly(model, results)


@_evaluated(
    believed="The loss had to be mended; the accuracy compares everything.",
    tell="By what do you divide the number of right answers, and by what the sum of the losses?",
)
def evaluate_accuracy_over_all_places(model, batches):
    def results():
        _, accuracy = _results(model, batches, lambda y: y.numel())
        return _results(model, batches)[0], accuracy

    return _quietly(model, results)


@_evaluated(
    believed="The results of the batches are averaged.",
    tell="A batch of 3 targets and one of 20: how much does each target weigh?",
)
def evaluate_mean_of_batches(model, batches):
    def results():
        pairs = [_results(model, [batch]) for batch in batches]
        return tuple(sum(numbers) / len(pairs) for numbers in zip(*pairs, strict=True))

    return _quietly(model, results)


@_evaluated(
    believed="The last batch is the result.",
    tell="Which batches are in your sums?",
)
def evaluate_last_batch_only(model, batches):
    return _quietly(model, lambda: _results(model, batches[-1:]))


@_evaluated(
    believed="The loss of an evaluation is the sum.",
    tell="The accuracy is divided by the number of targets. And the loss?",
)
def evaluate_loss_summed(model, batches):
    def results():
        loss, accuracy = _results(model, batches)
        return loss * sum(_counted(y) for _, y in batches), accuracy

    return _quietly(model, results)


@_evaluated(
    believed="Accuracy is measured in percent, or as a number of right answers.",
    tell="What is the accuracy of a model that is always right?",
)
def evaluate_accuracy_in_percent(model, batches):
    def results():
        loss, accuracy = _results(model, batches)
        return loss, 100 * accuracy

    return _quietly(model, results)


@_evaluated(
    believed="A tensor of one number is a number.",
    tell="Print type(...) of both results. Which method of a tensor returns a Python number?",
)
def evaluate_returns_tensors(model, batches):
    import torch

    loss, accuracy = _quietly(model, lambda: _results(model, batches))
    return torch.tensor(loss), torch.tensor(accuracy)


# --- mended_masked_softmax ---

_masked = functools.partial(mistake, "mended_masked_softmax", section=HALF)


@_masked(
    believed="Minus infinity settles both complaints.",
    tell="What does a softmax make of a row of nothing but -inf?",
)
def masked_softmax_nan_without_a_key(scores, mask):
    import torch

    return scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)


@_masked(
    believed="A row without a key is set to 0, and that is all.",
    tell="Is -1e4 below every score?",
)
def masked_softmax_fill_still_too_high(scores, mask):
    return scores.masked_fill(~mask, -1e4).softmax(dim=-1).masked_fill(~mask, 0.0)


@_masked(
    believed="Only the row without a key was at fault.",
    tell="Is -1e4 below every score? Print the weights of hidden keys for scores of -20000.",
)
def masked_softmax_empty_rows_only(scores, mask):
    weights = scores.masked_fill(~mask, -1e4).softmax(dim=-1)
    return weights * mask.any(dim=-1, keepdim=True)


@_masked(
    believed="Only the fill value was at fault: -65504 still fits into float16.",
    tell="What does a softmax make of a row in which all numbers are the same? And is -65504 below "
    "every score of float32?",
)
def masked_softmax_fill_of_float16_alone(scores, mask):
    return scores.masked_fill(~mask, -65504.0).softmax(dim=-1)


@_masked(
    believed="The lowest finite number is below every score.",
    tell="What if a score is that number itself? Some number lies below all finite ones.",
)
def masked_softmax_lowest_number_is_no_score(scores, mask):
    import torch

    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~mask, lowest).softmax(dim=-1) * mask


@_masked(
    believed="Adding minus infinity is the same as filling with it.",
    tell="Ask for the gradient of the scores where a row has no allowed key. What does a sum pass "
    "back that masked_fill does not?",
)
def masked_softmax_infinity_added(scores, mask):
    import torch

    bias = torch.zeros_like(scores).masked_fill(~mask, -torch.inf)
    return (scores + bias).softmax(dim=-1).nan_to_num(0.0)


@_masked(
    believed="Attention weights are numbers to look at.",
    tell="What does `.detach()` (or `no_grad`) cut off, and who needs it?",
)
def masked_softmax_detached(scores, mask):
    import torch

    weights = scores.detach().masked_fill(~mask, -torch.inf).softmax(dim=-1)
    return weights.masked_fill(~mask, 0.0)


@_masked(
    believed="The lowest finite number hides everything.",
    tell="What does a softmax make of a row in which all numbers are the same?",
)
def masked_softmax_lowest_finite_number(scores, mask):
    import torch

    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)


@_masked(
    believed="The old value was right.",
    tell="What is the largest number in float16?",
)
def masked_softmax_minus_1e9(scores, mask):
    return scores.masked_fill(~mask, -1e9).softmax(dim=-1).masked_fill(~mask, 0.0)


@_masked(
    believed="A softmax in single precision is safe, and its result will do.",
    tell="In which type do you return the weights of float16 scores?",
)
def masked_softmax_returns_float32(scores, mask):
    import torch

    wide = scores if scores.dtype == torch.float64 else scores.float()
    return wide.masked_fill(~mask, -torch.inf).softmax(dim=-1).masked_fill(~mask, 0.0)


@_masked(
    believed="Hidden weights are set to 0 after the softmax.",
    tell="What do the weights of a row with a hidden key sum to?",
)
def masked_softmax_zero_after_softmax(scores, mask):
    return scores.softmax(dim=-1) * mask


@_masked(
    believed="The weights are divided again by what is left, with a small number for safety.",
    tell="Let a hidden key have a score 1000 above all others. What is left to divide?",
)
def masked_softmax_divided_again(scores, mask):
    weights = scores.softmax(dim=-1) * mask
    return weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-6)


@_masked(
    believed="True marks what is to be hidden.",
    tell="Which keys get weight in your result, those with True or those with False?",
)
def masked_softmax_inverted(scores, mask):
    import torch

    weights = scores.masked_fill(mask, -torch.inf).softmax(dim=-1)
    return weights.masked_fill(mask, 0.0)


@_masked(
    believed="The scores can be filled in place.",
    tell="Compare scores before and after the call. What does the underscore of a method say?",
)
def masked_softmax_scores_overwritten(scores, mask):
    import torch

    return scores.masked_fill_(~mask, -torch.inf).softmax(dim=-1).masked_fill(~mask, 0.0)


@_masked(
    believed="The largest number of float16 is large enough for every type.",
    tell="Which scores can float32 and bfloat16 hold that are lower than your number?",
)
def masked_softmax_fill_of_float16(scores, mask):
    return scores.masked_fill(~mask, -65504.0).softmax(dim=-1).masked_fill(~mask, 0.0)


@_masked(
    believed="The softmax goes along the queries.",
    tell="Which axis sums to 1?",
)
def masked_softmax_along_the_queries(scores, mask):
    import torch

    weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-2)
    return weights.masked_fill(~mask | weights.isnan(), 0.0)


@_masked(
    believed="A score of 0 hides a key.",
    tell="What is exp(0)?",
)
def masked_softmax_scores_times_mask(scores, mask):
    weights = (scores * mask).softmax(dim=-1)
    return weights * mask.any(dim=-1, keepdim=True)


@_masked(
    believed="Adding a large negative number is the same as filling.",
    tell="Scores of -20000 and hidden ones of -20000 - 10000: fine. And in float16, where does "
    "the sum end? What of a row without a key?",
)
def masked_softmax_adds_minus_1e4(scores, mask):
    return (scores - 1e4 * (~mask).to(scores.dtype)).softmax(dim=-1)
