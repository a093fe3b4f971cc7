"""Checks of exercise 6: losses, steps of training, monitors.

Models, optimizers and losses cannot travel: they are made where the answer runs, and each model has
a twin here, with the same weights, that the oracle trains. A check trains more than one kind of
model, or with more than one optimizer: scaled gradients cannot be seen behind Adam, nor extra
steps of the same direction behind a learning rate.
"""

import itertools
import math

import numpy as np

from autograder.checks import (
    Failed,
    Question,
    expect,
    expect_close,
    expect_numbers,
    expect_tuple,
    expect_unchanged,
)
from autograder.learner import LearnerError
from autograder.wire import Handle

from ..oracle import exercise_training as oracle
from . import LIBRARY

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

READY_MADE = (*LIBRARY, "jax", "sklearn", "tensorflow", "transformers")

# --- predicted_losses ---

predicted_losses = Question("predicted_losses", section=TARGET)


def _compare_loss(learner, place, right, hint):
    got = expect_numbers(learner.value("predicted_losses"), "abc")[place]
    letter = "abc"[place]
    message = f"({letter}) {got:.4g} is not the loss to two decimals. {hint}"
    expect(abs(got - right) < 0.0075, message)  # 2.95 and 2.94 of 2.946, but no 2.96


@predicted_losses.check(points=0.25)
def the_loss_of_a_blind_guess_is_right(learner, rng):
    hint = "Which probability does each token get, and what is its negative natural logarithm?"
    _compare_loss(learner, 0, oracle.guess_and_floor(50)[0], hint)


@predicted_losses.check(points=0.25)
def the_floor_of_the_loss_is_right(learner, rng):
    hint = (
        "The most certain probabilities are 1 and 0. What does a softmax make of these as scores?"
    )
    _compare_loss(learner, 1, oracle.guess_and_floor(50)[1], hint)


@predicted_losses.check(points=0.25)
def the_loss_with_the_padding_counted_is_right(learner, rng):
    hint = "Over how many targets is the mean taken, and what is their sum?"
    _compare_loss(learner, 2, oracle.loss_with_padding(4, 3.0, 6, 0.5), hint)


# --- lm_loss ---

lm_loss = Question("lm_loss", section=PADDED, forbid=READY_MADE)


def _loss_problem(rng, *sizes, scale=1.5):
    """Draw logits (B, L, V) and targets (B, L), as tensors; no two of the sizes are equal."""
    import torch

    B, L, V = sizes or _sizes(rng, 3)
    logits = torch.tensor(rng.normal(scale=scale, size=(B, L, V)))
    return logits, torch.tensor(rng.integers(0, V, size=(B, L)))


def _padded(rng, targets, pad):
    """Fill the ends of all sequences but one, of different lengths, with `pad`."""
    B, L = targets.shape
    targets = targets.clone()
    lengths = rng.permutation([1, L, *rng.integers(1, L, size=max(B - 2, 0))])[:B]
    for row, length in enumerate(lengths):
        targets[row, length:] = pad
    return targets


def _without(rng, targets, pad):
    """Make all targets of the value `pad` another one."""
    return targets.where(targets != pad, 1 if pad == 0 else 0)


def _compare_lm(learner, logits, targets, *pad, note):
    got = learner.call("lm_loss", logits, targets, *pad)
    expect_close(got, oracle.lm_loss(logits, targets, *pad), "The loss", note=note)


@lm_loss.check(points=0.5)
def without_padding_it_is_the_mean_over_all_targets(learner, rng):
    for sizes in (_sizes(rng, 3), (4, 4, 4), (1, 3, 5)):
        note = f"The logits have shape {sizes}; no target is padding."
        _compare_lm(learner, *_loss_problem(rng, *sizes), note=note)


@lm_loss.check(points=0.5)
def targets_of_pad_id_do_not_count(learner, rng):
    logits, targets = _loss_problem(rng)
    V = logits.shape[-1]
    pad = int(rng.integers(1, V))
    targets = _padded(rng, _without(rng, targets, pad), pad)
    note = f"pad_id is {pad}; {_count(targets, pad)} of {targets.numel()} targets are padding."
    _compare_lm(learner, logits, targets, pad, note=note)


@lm_loss.check(points=0.25)
def the_padding_may_have_the_number_0(learner, rng):
    logits, targets = _loss_problem(rng)
    targets = _padded(rng, _without(rng, targets, 0), 0)
    note = f"pad_id is 0; {_count(targets, 0)} of {targets.numel()} targets are padding."
    _compare_lm(learner, logits, targets, 0, note=note)


@lm_loss.check(points=0.25)
def targets_of_minus_100_never_count(learner, rng):
    logits, targets = _loss_problem(rng)
    ignored = _padded(rng, targets, -100)
    note = f"{_count(ignored, -100)} of {targets.numel()} targets are -100"
    _compare_lm(learner, logits, ignored, note=f"{note}; there is no pad_id.")
    pad = int(ignored[ignored != -100][0])
    _compare_lm(learner, logits, ignored, pad, note=f"{note}, {_count(ignored, pad)} are pad_id.")


@lm_loss.check(points=0.25)
def where_no_target_counts_it_is_0_and_has_a_gradient(learner, rng):
    import torch

    logits, targets = _loss_problem(rng)
    logits.requires_grad_()
    note = "All targets are -100."
    ignored = torch.full_like(targets, -100)
    got = learner.call("lm_loss", logits, ignored)
    expect_close(got, 0.0, "The loss", note=note)
    gradient = _gradient(learner, "lm_loss", logits.detach(), note, targets=ignored)
    expect_close(gradient, np.zeros(logits.shape), "The gradient", note=note)


@lm_loss.check(points=0.25)
def the_gradient_is_right(learner, rng):
    logits, targets = _loss_problem(rng)
    pad = int(targets[0, 0])
    note = f"{_count(targets, pad)} of {targets.numel()} targets are pad_id."
    got = _gradient(learner, "lm_loss", logits, note, targets=targets, pad_id=pad)
    expect_close(got, oracle.lm_loss_gradient(logits, targets, pad), "The gradient", note=note)


@lm_loss.check(points=0.25)
def large_logits_give_a_finite_loss(learner, rng):
    logits, targets = _loss_problem(rng, scale=3000.0)
    _compare_lm(learner, logits, targets, note="The logits are in the thousands.")


@lm_loss.check(points=0.25)
def logits_and_targets_are_left_unchanged(learner, rng):
    logits, targets = _loss_problem(rng)
    targets[:, -1] = pad = int(targets[0, 0])
    outcome = learner.run("lm_loss", logits, targets, pad)
    expect_close(outcome["value"], oracle.lm_loss(logits, targets, pad), "The loss")
    expect_unchanged(outcome["arguments"][:2], [logits, targets], ["logits", "targets"])


@lm_loss.probe
def sizes_in_which_axes_can_be_taken_for_others(rng):
    logits, targets = _loss_problem(rng, 4, 4, 4)
    yield logits, targets
    targets[0, :2] = -100
    yield logits, targets, 2
    yield *_loss_problem(rng, 2, 1, 3), 0


# --- next_token_loss ---

next_token_loss = Question("next_token_loss", section=SHIFTED, forbid=READY_MADE)


def _compare_next(learner, logits, tokens, note):
    got = learner.call("next_token_loss", logits, tokens)
    expect_close(got, oracle.next_token_loss(logits, tokens), "The loss", note=note, atol=1e-5)


@next_token_loss.check(points=0.5)
def the_logits_of_each_place_are_for_the_next_token(learner, rng):
    for sizes in (_sizes(rng, 3), (4, 5, 4), (1, 3, 5)):
        _compare_next(learner, *_loss_problem(rng, *sizes), f"The logits have shape {sizes}.")


@next_token_loss.check(points=0.25)
def logits_that_know_the_next_token_give_almost_no_loss(learner, rng):
    import torch

    B, L, V = 3, 5, 7
    tokens = torch.tensor(rng.permuted(np.tile(np.arange(V), (B, 1)), axis=1)[:, :L])
    logits = torch.zeros(B, L, V, dtype=torch.double)
    for t in range(L - 1):
        logits[torch.arange(B), t, tokens[:, t + 1]] = 8.0
    logits[:, -1, 0] = 300.0  # nothing comes after the last token
    note = "The logits of each place are 8 at the token that follows, and 0 elsewhere."
    _compare_next(learner, logits, tokens, note)


@next_token_loss.check(points=0.25)
def two_tokens_give_one_target(learner, rng):
    B, V = _sizes(rng, 2)
    _compare_next(learner, *_loss_problem(rng, B, 2, V), "Each sequence has two tokens.")


@next_token_loss.check(points=0.25)
def one_token_leaves_nothing_to_predict(learner, rng):
    logits, tokens = _loss_problem(rng, 3, 1, 4)
    logits.requires_grad_()
    note = "Each sequence has one token: no target is left."
    got = learner.call("next_token_loss", logits, tokens)
    expect_close(got, 0.0, "The loss", note=note)
    gradient = _gradient(learner, "next_token_loss", logits.detach(), note, tokens=tokens)
    expect_close(gradient, np.zeros(logits.shape), "The gradient", note=note)


@next_token_loss.check(points=0.25)
def the_gradient_goes_to_all_places_but_the_last(learner, rng):
    import torch

    logits, tokens = _loss_problem(rng)
    note = f"There are {len(tokens)} sequences of {tokens.shape[1]} tokens."
    got = _gradient(learner, "next_token_loss", logits, note, tokens=tokens)
    targets = torch.full_like(tokens, -100)
    targets[:, :-1] = tokens[:, 1:]
    expect_close(got, oracle.lm_loss_gradient(logits, targets), "The gradient", note=note)


@next_token_loss.check(points=0.25)
def logits_and_tokens_are_left_unchanged(learner, rng):
    logits, tokens = _loss_problem(rng)
    outcome = learner.run("next_token_loss", logits, tokens)
    expect_close(outcome["value"], oracle.next_token_loss(logits, tokens), "The loss")
    expect_unchanged(outcome["arguments"], [logits, tokens], ["logits", "tokens"])


@next_token_loss.probe
def short_and_square_sequences(rng):
    yield _loss_problem(rng, 4, 4, 4)
    yield _loss_problem(rng, 1, 3, 3)
    yield _loss_problem(rng, 3, 2, 5)


# --- mended_loss ---

mended_loss = Question(
    "mended_loss",
    section=TWICE,
    forbid=(*READY_MADE, lm_loss.id, next_token_loss.id),
)


def _language_model(learner, rng, V, scale):
    """Make a model that scores the next token by the one that it sees; returns its table too."""
    import torch

    table = torch.tensor(rng.normal(scale=scale, size=(V, V)))
    model = _new(learner, [("Embedding", V, V)], {"weight": table})
    return model, table


def _compare_mended(learner, model, table, tokens, note):
    got = learner.call("mended_loss", model, tokens)
    right = oracle.next_token_loss(table[tokens], tokens)
    expect_close(got, right, "The loss", note=note, atol=1e-5)
    return got


@mended_loss.check(points=0.5)
def a_model_that_knows_its_sequences_has_almost_no_loss(learner, rng):
    import torch

    V = int(rng.integers(5, 9))
    model, table = _language_model(learner, rng, V, 0.1)
    table = table + 8 * torch.eye(V, dtype=torch.double)
    learner.method(model, "load_state_dict", {"weight": table})
    tokens = torch.tensor(np.repeat(rng.integers(0, V, size=(4, 1)), 5, axis=1))
    note = "Each sequence repeats one token, and the model expects that."
    _compare_mended(learner, model, table, tokens, note)


@mended_loss.check(points=0.25)
def a_sequence_of_two_tokens_has_one_target(learner, rng):
    import torch

    V = int(rng.integers(5, 9))
    model, table = _language_model(learner, rng, V, 0.0)
    tokens = torch.tensor(rng.integers(0, V, size=(3, 2)))
    note = f"Each sequence has two tokens, and the model gives all {V} tokens the same score."
    _compare_mended(learner, model, table, tokens, note)


@mended_loss.check(points=0.25)
def it_is_the_mean_loss_of_each_next_token(learner, rng):
    import torch

    for B, L, V in (_sizes(rng, 3), (4, 5, 4)):
        model, table = _language_model(learner, rng, V, 2.0)
        tokens = torch.tensor(rng.integers(0, V, size=(B, L)))
        note = f"There are {B} sequences of {L} tokens."
        _compare_mended(learner, model, table, tokens, note)


@mended_loss.check(points=0.25)
def scores_in_the_thousands_give_a_finite_loss(learner, rng):
    import torch

    B, L, V = _sizes(rng, 3)
    model, table = _language_model(learner, rng, V, 3000.0)
    tokens = torch.tensor(rng.integers(0, V, size=(B, L)))
    _compare_mended(learner, model, table, tokens, "The scores are in the thousands.")


@mended_loss.check(points=0.25)
def the_model_can_learn_from_the_loss(learner, rng):
    import torch

    model, table = _language_model(learner, rng, 5, 0.0)
    tokens = torch.tensor(np.repeat(rng.integers(0, 5, size=(3, 1)), 4, axis=1))
    note = "The model gives all 5 tokens the same score."
    _expect_graph(_compare_mended(learner, model, table, tokens, note), note)


# --- smoothed_loss ---

smoothed_loss = Question(
    "smoothed_loss",
    section=TARGET,
    forbid=(
        *READY_MADE,
        ".cross_entropy",
        ".CrossEntropyLoss",
        ".cross_entropy_loss",
        ".linear_cross_entropy",
    ),
)


def _compare_smoothed(learner, logits, targets, smoothing, note):
    got = learner.call("smoothed_loss", logits, targets, smoothing)
    expect_close(got, oracle.smoothed_loss(logits, targets, smoothing), "The loss", note=note)


@smoothed_loss.check(points=0.25)
def without_smoothing_it_is_the_cross_entropy(learner, rng):
    logits, targets = _loss_problem(rng)
    _compare_smoothed(learner, logits[0], targets[0], 0.0, "smoothing is 0; one axis of targets.")


@smoothed_loss.check(points=0.25)
def the_smoothed_share_is_spread_over_all_classes(learner, rng):
    logits, targets = _loss_problem(rng)
    V = logits.shape[-1]
    for smoothing in (float(rng.uniform(0.1, 0.4)), 1.0):
        note = f"There are {V} classes, smoothing is {smoothing:.3g}; targets have one axis."
        _compare_smoothed(learner, logits[0], targets[0], smoothing, note)


@smoothed_loss.check(points=0.25)
def targets_may_have_any_number_of_axes(learner, rng):
    for sizes in (_sizes(rng, 3), (4, 4, 4)):
        note = f"The logits have shape {sizes}; smoothing is 0.2."
        _compare_smoothed(learner, *_loss_problem(rng, *sizes), 0.2, note)


@smoothed_loss.check(points=0.25)
def smoothed_targets_of_minus_100_do_not_count(learner, rng):
    logits, targets = _loss_problem(rng)
    targets = targets[0].clone()
    targets[rng.integers(len(targets))] = -100
    note = f"smoothing is 0.3; one of {len(targets)} targets is -100."
    _compare_smoothed(learner, logits[0], targets, 0.3, note)
    logits, targets = _loss_problem(rng)
    targets = _padded(rng, targets, -100)
    note = f"smoothing is 0.3; targets are (B, L), {_count(targets, -100)} of them -100."
    _compare_smoothed(learner, logits, targets, 0.3, note)


@smoothed_loss.check(points=0.25)
def large_logits_stay_finite_and_an_empty_mean_is_0(learner, rng):
    logits, targets = _loss_problem(rng, scale=2000.0)
    note = "The logits are in the thousands; smoothing is 0.1."
    _compare_smoothed(learner, logits[0], targets[0], 0.1, note)
    note = "All targets are -100."
    _compare_smoothed(learner, logits[0] / 2000, targets[0] * 0 - 100, 0.1, note)


@smoothed_loss.check(points=0.25)
def the_gradient_of_the_smoothed_loss_is_right(learner, rng):
    logits, targets = _loss_problem(rng)
    targets[0, 0] = -100
    note = f"smoothing is 0.2; one of {targets.numel()} targets is -100."
    got = _gradient(learner, "smoothed_loss", logits, note, targets=targets, smoothing=0.2)
    right = oracle.smoothed_loss_gradient(logits, targets, 0.2)
    expect_close(got, right, "The gradient", note=note)


@smoothed_loss.probe
def more_or_less_smoothing(rng):
    for smoothing in (0.05, 0.5, 0.9):
        logits, targets = _loss_problem(rng, 3, 5, 2)
        yield logits, targets, smoothing
        targets[0, 0] = -100
        yield logits, targets, smoothing


# --- predicted_steps ---

predicted_steps = Question("predicted_steps", section=CLIPPING)


def _compare_move(learner, places, hints):
    got = expect_numbers(learner.value("predicted_steps"), "abcd")
    right = oracle.first_steps(gradient=40.0, lr=0.1, max_norm=1.0)
    for place, hint in zip(places, hints, strict=True):
        letter = "abcd"[place]
        expect(got[place] >= 0, f"({letter}) {got[place]:.4g}: a distance has no sign.")
        close = math.isclose(got[place], right[place], rel_tol=0.02)
        expect(close, f"({letter}) The weight does not move by {got[place]:.4g}. {hint}")


@predicted_steps.check(points=0.25)
def the_steps_of_sgd_are_right(learner, rng):
    hint = "SGD subtracts the learning rate times the gradient."
    _compare_move(learner, (0, 1), (hint, f"{hint} What is the gradient after clipping?"))


@predicted_steps.check(points=0.5)
def the_steps_of_adam_are_right(learner, rng):
    hint = (
        "Adam divides its mean gradient by the root of its mean squared gradient. In the first "
        "step both means are those of one gradient."
    )
    _compare_move(learner, (2, 3), (hint, hint))


# --- train_step ---

train_step = Question("train_step", section=FIRST, forbid=READY_MADE)

LINEAR = [("Linear", 4, 3)]
DEEP = [("Linear", 4, 5), ("Tanh",), ("Linear", 5, 3)]
TAGGER = [("Embedding", 7, 4), ("Linear", 4, 5), ("Flatten", 0, 1)]  # (B, L) → (B L, 5)
SGD = ("SGD", {"lr": 0.3})
MOMENTUM = ("SGD", {"lr": 0.2, "momentum": 0.9})
ADAM = ("Adam", {"lr": 0.05})


def _regression(rng, n, scale=1.0):
    """Draw ``(x (n, 4), y (n, 3))``."""
    import torch

    return torch.tensor(rng.normal(size=(n, 4))), torch.tensor(rng.normal(size=(n, 3)) * scale)


def _tags(rng, B, L, counting=None):
    """Draw ``(x (B, L), y (B L,))``; all targets but `counting` of them are -100."""
    import torch

    y = rng.integers(0, 5, size=B * L)
    y[rng.permutation(B * L)[B * L if counting is None else counting :]] = -100
    return torch.tensor(rng.integers(0, 7, size=(B, L))), torch.tensor(y)


def _training(learner, rng, layers, loss, optimizer, stale=True, frozen=(), training=True):
    """Make model, loss and optimizer where the answer runs, and their twins here.

    With `stale` the model holds gradients of something that is over. Returns two tuples, the
    handles and the twins: ``(model, opt, loss_fn)``.
    """
    import torch

    parts = [getattr(torch.nn, name)(*sizes) for name, *sizes in layers]
    twin = parts[0] if len(parts) == 1 else torch.nn.Sequential(*parts)
    twin.double().train(training)
    state = {}
    for name, tensor in twin.state_dict().items():
        drawn = torch.tensor(rng.normal(size=tensor.shape) * 0.7)
        if name.endswith(("running_var", "num_batches_tracked")):
            drawn = drawn.abs() + 0.5
        state[name] = drawn.to(tensor.dtype)
    twin.load_state_dict(state)
    model = _new(learner, layers, state, training)
    for place in frozen:
        learner.method(learner.method(model, "__getitem__", place), "requires_grad_", False)
        twin[place].requires_grad_(False)
    if stale:
        x = _tags(rng, 2, 3)[0] if layers is TAGGER else _regression(rng, 6)[0]
        upstream = [torch.tensor(rng.normal(size=tuple(twin.eval()(x).shape)))]
        learner.step(model, x, upstream=upstream)
        learner.method(model, "train", training)
        twin.train(training)
    name, options = optimizer
    opt = learner.call(f"torch.optim.{name}", learner.method(model, "parameters"), **options)
    theirs = (model, opt, learner.call(f"torch.nn.{loss}"))
    ours = getattr(torch.optim, name)(twin.parameters(), **options)
    return theirs, (twin, ours, getattr(torch.nn, loss)())


def _new(learner, layers, state, training=True):
    """Make a layer, or an ``nn.Sequential`` of several, where the answer runs."""
    parts = [learner.call(f"torch.nn.{name}", *sizes) for name, *sizes in layers]
    model = parts[0] if len(parts) == 1 else learner.call("torch.nn.Sequential", *parts)
    learner.method(model, "load_state_dict", state, assign=True)  # in double precision
    if not training:
        learner.method(model, "train", False)
    return model


def _of_parameters(learner, model, function):
    """Apply a function that lives with the model to each of its parameters; returns a list."""
    mapped = learner.call("builtins.map", function, learner.method(model, "parameters"))
    return learner.call("builtins.list", mapped)


def _expect_weights(learner, model, twin, note):
    after = learner.method(model, "state_dict")
    for name, tensor in twin.state_dict().items():
        what = f"model.{name} after the call"
        expect_close(after.get(name), tensor, what, rtol=1e-3, atol=1e-6, note=note)


def _in_two_groups(learner, theirs, ours):
    """Put the parameters of the first layer and those of the last into groups of their own."""
    import torch

    (model, _, loss_fn), (twin, _, twin_loss_fn) = theirs, ours
    rates = (0.2, 0.4)
    groups = []
    for place, lr in zip((0, -1), rates, strict=True):
        parameters = learner.method(learner.method(model, "__getitem__", place), "parameters")
        # a dict would travel, and its parameters with it: hand over what makes one
        make = learner.call(
            "functools.partial", learner.value("builtins.dict"), params=parameters, lr=lr
        )
        groups.append(learner.call("itertools.islice", learner.call("builtins.iter", make, 0), 1))
    opt = learner.call("torch.optim.SGD", learner.call("itertools.chain", *groups))
    layers = (twin[0], twin[-1])
    ours_in_groups = torch.optim.SGD(
        [{"params": layer.parameters(), "lr": lr} for layer, lr in zip(layers, rates, strict=True)]
    )
    return (model, opt, loss_fn), (twin, ours_in_groups, twin_loss_fn)


def _step(learner, theirs, ours, x, y, *limit):
    """Make one step in both worlds; returns what the answer and the oracle return."""
    (model, opt, loss_fn), (twin, twin_opt, twin_loss_fn) = theirs, ours
    got = learner.call("train_step", model, opt, x, y, loss_fn, *limit)
    return got, oracle.train_step(twin, twin_opt, x, y, twin_loss_fn, *limit)


KINDS = (
    (LINEAR, "MSELoss", SGD, "a linear map, MSELoss and SGD"),
    (TAGGER, "CrossEntropyLoss", ADAM, "an embedding and a linear map, CrossEntropyLoss and Adam"),
    (DEEP, "L1Loss", MOMENTUM, "a network of two layers, L1Loss and SGD with momentum"),
)


def _batch(rng, layers, scale=1.0):
    return _tags(rng, 3, 4, 9) if layers is TAGGER else _regression(rng, 5, scale)


@train_step.check(points=0.5)
def one_step_moves_the_weights(learner, rng):
    for layers, loss, optimizer, words in KINDS:
        theirs, ours = _training(learner, rng, layers, loss, optimizer, stale=False)
        _step(learner, theirs, ours, *_batch(rng, layers))
        _expect_weights(learner, theirs[0], ours[0], f"It is {words}, without clipping.")


@train_step.check(points=0.25)
def the_loss_is_that_before_the_step(learner, rng):
    for layers, loss, optimizer, words in KINDS[:2]:
        theirs, ours = _training(learner, rng, layers, loss, optimizer, stale=False)
        got, right = _step(learner, theirs, ours, *_batch(rng, layers))
        expect_close(got, right, "The loss", note=f"It is {words}.")


@train_step.check(points=0.25)
def the_loss_is_a_plain_number(learner, rng):
    theirs, ours = _training(learner, rng, LINEAR, "MSELoss", SGD, stale=False)
    got, right = _step(learner, theirs, ours, *_regression(rng, 5))
    _expect_number(got, "The loss")
    expect_close(got, right, "The loss")


@train_step.check(points=0.5)
def gradients_of_earlier_steps_do_not_count(learner, rng):
    for layers, loss, optimizer, words in KINDS[:2]:
        theirs, ours = _training(learner, rng, layers, loss, optimizer, stale=False)
        for _ in range(3):
            _step(learner, theirs, ours, *_batch(rng, layers))
        _expect_weights(learner, theirs[0], ours[0], f"Three steps were made: {words}.")
    theirs, ours = _training(learner, rng, LINEAR, "MSELoss", SGD)
    _step(learner, theirs, ours, *_regression(rng, 5))
    _expect_weights(learner, theirs[0], ours[0], "The model held gradients before the call.")


@train_step.check(points=0.5)
def the_step_uses_gradients_of_norm_max_norm_at_most(learner, rng):
    for layers, loss in ((DEEP, "MSELoss"), (TAGGER, "CrossEntropyLoss")):
        theirs, ours = _training(learner, rng, layers, loss, SGD, stale=False)
        limit = float(rng.uniform(0.02, 0.05))
        _step(learner, theirs, ours, *_batch(rng, layers, 5.0), limit)
        note = (
            f"max_norm is {limit:.3g}, and the norm of all gradients together was larger; the "
            "optimizer is SGD."
        )
        _expect_weights(learner, theirs[0], ours[0], note)
    theirs, ours = _training(learner, rng, LINEAR, "MSELoss", SGD, stale=False)
    x = 100 * _regression(rng, 5)[0]
    y = ours[0](x).detach() + 0.1 * _regression(rng, 5)[1]
    norm = oracle.gradient_norm(ours[0], x, y, ours[2])
    _step(learner, theirs, ours, x, y, 0.7 * norm)
    note = (
        f"max_norm is {0.7 * norm:.3g}, the norm of all gradients {norm:.3g}, the loss is below 1."
    )
    _expect_weights(learner, theirs[0], ours[0], note)
    theirs, ours = _training(learner, rng, DEEP, "MSELoss", SGD, stale=False)
    theirs, ours = _in_two_groups(learner, theirs, ours)
    x, y = _regression(rng, 5, 5.0)
    limit = 0.3 * oracle.gradient_norm(ours[0], x, y, ours[2])
    _step(learner, theirs, ours, x, y, limit)
    note = (
        f"max_norm is {limit:.3g}; the optimizer has two groups of parameters, one for each layer."
    )
    _expect_weights(learner, theirs[0], ours[0], note)


@train_step.check(points=0.25)
def gradients_below_max_norm_stay_as_they_are(learner, rng):
    theirs, ours = _training(learner, rng, DEEP, "MSELoss", SGD, stale=False)
    x, y = _regression(rng, 5)
    norm = oracle.gradient_norm(ours[0], x, y, ours[2])
    _step(learner, theirs, ours, x, y, 1.2 * norm)
    note = f"max_norm is {1.2 * norm:.3g}, the norm of all gradients {norm:.3g}."
    _expect_weights(learner, theirs[0], ours[0], note)


@train_step.check(points=0.25)
def the_gradients_are_left_as_they_were_used(learner, rng):
    for limit in (None, 0.05):
        theirs, ours = _training(learner, rng, DEEP, "MSELoss", SGD, stale=False)
        _step(learner, theirs, ours, *_regression(rng, 5, 5.0), limit)
        read = learner.call("operator.attrgetter", "grad")
        left = _of_parameters(learner, theirs[0], read)
        note = f"max_norm is {limit:.3g}." if limit else "max_norm is None."
        for (name, parameter), grad in zip(ours[0].named_parameters(), left, strict=True):
            expect(grad is not None, f"model.{name}.grad is None after the call. {note}")
            what = f"model.{name}.grad after the call"
            expect_close(grad, parameter.grad, what, rtol=1e-3, note=note)


@train_step.check(points=0.25)
def the_model_runs_once_in_the_mode_that_it_is_in(learner, rng):
    layers = [("Linear", 4, 4), ("BatchNorm1d", 4), ("Linear", 4, 3)]
    for training in (True, False):
        theirs, ours = _training(
            learner, rng, layers, "MSELoss", SGD, stale=False, training=training
        )
        _step(learner, theirs, ours, *_regression(rng, 6))
        note = f"The model has a batch norm; its mode is {'train' if training else 'eval'}."
        _expect_weights(learner, theirs[0], ours[0], note)
        _expect_mode(learner, theirs[0], training)


@train_step.check(points=0.25)
def parameters_that_do_not_train_are_left_alone(learner, rng):
    theirs, ours = _training(learner, rng, DEEP, "MSELoss", SGD, stale=False, frozen=(0,))
    _step(learner, theirs, ours, *_regression(rng, 5, 5.0), 0.05)
    note = "The first layer is frozen (requires_grad is False), max_norm is 0.05."
    _expect_weights(learner, theirs[0], ours[0], note)


# --- mended_epoch ---

mended_epoch = Question("mended_epoch", section=CLIPPING, forbid=(*READY_MADE, train_step.id))


def _epoch(learner, theirs, ours, batches, limit):
    (model, opt, loss_fn), (twin, twin_opt, twin_loss_fn) = theirs, ours
    got = learner.call("mended_epoch", model, opt, batches, loss_fn, limit)
    return got, oracle.epoch(twin, twin_opt, batches, twin_loss_fn, limit)


@mended_epoch.check(points=0.5)
def the_step_of_one_batch_uses_clipped_gradients(learner, rng):
    for layers, loss in ((DEEP, "MSELoss"), (TAGGER, "CrossEntropyLoss")):
        theirs, ours = _training(learner, rng, layers, loss, SGD, stale=False)
        _epoch(learner, theirs, ours, [_batch(rng, layers, 5.0)], 0.05)
        note = "There is one batch, max_norm is 0.05, and the norm was larger."
        _expect_weights(learner, theirs[0], ours[0], note)


@mended_epoch.check(points=0.25)
def each_batch_gives_a_step_of_its_own_gradients(learner, rng):
    for layers, loss, optimizer, words in KINDS[:2]:
        theirs, ours = _training(learner, rng, layers, loss, optimizer)
        batches = [_batch(rng, layers) for _ in range(3)]
        _epoch(learner, theirs, ours, batches, 1e6)
        note = f"There are three batches: {words}. max_norm is 1e6, so nothing is clipped."
        _expect_weights(learner, theirs[0], ours[0], note)


@mended_epoch.check(points=0.5)
def the_loss_is_the_mean_over_all_targets_that_count(learner, rng):
    still = ("SGD", {"lr": 0.0})
    theirs, ours = _training(learner, rng, TAGGER, "CrossEntropyLoss", still, stale=False)
    batches = [_tags(rng, 2, 4, 1), _tags(rng, 3, 4, 12), _tags(rng, 2, 10, 2)]
    got, right = _epoch(learner, theirs, ours, batches, 1e6)
    note = "Of the 8, 12 and 20 targets of three batches 1, 12 and 2 count. The learning rate is 0."
    expect_close(got, right, "The loss", note=note)
    theirs, ours = _training(learner, rng, LINEAR, "MSELoss", still, stale=False)
    batches = [_regression(rng, 1, 5.0), _regression(rng, 6)]
    got, right = _epoch(learner, theirs, ours, batches, 1e6)
    note = "A regression: two batches of 1 and 6 rows. The learning rate is 0."
    expect_close(got, right, "The loss", note=note)


@mended_epoch.check(points=0.25)
def the_losses_are_those_before_each_step_and_the_mean_is_a_number(learner, rng):
    theirs, ours = _training(learner, rng, LINEAR, "MSELoss", SGD, stale=False)
    got, right = _epoch(learner, theirs, ours, [_regression(rng, 4)] * 2, 1e6)
    expect_close(got, right, "The loss", note="Two batches of the same size.")
    _expect_number(got, "The loss")


# --- trapezoid_rate ---

trapezoid_rate = Question("trapezoid_rate", section=WARMUP, forbid=READY_MADE)


def _schedule(rng):
    """Draw ``(steps, peak, warmup, decay)`` with a plateau of five steps or more."""
    warmup, decay = (int(n) for n in 6 + rng.permutation(8)[:2])
    return warmup + decay + int(rng.integers(5, 9)), float(rng.uniform(0.1, 2)), warmup, decay


def _compare_rates(learner, places, steps, peak, warmup, decay):
    for step in places:
        got = learner.call("trapezoid_rate", int(step), steps, peak, warmup, decay)
        right = oracle.trapezoid_rate(step, steps, peak, warmup, decay)
        what = f"trapezoid_rate({step}, {steps}, {peak:.3g}, {warmup}, {decay})"
        expect_close(got, right, what, rtol=1e-5, atol=0.0)


@trapezoid_rate.check(points=0.25)
def it_rises_by_equal_parts_from_the_first_step(learner, rng):
    schedule = _schedule(rng)
    _compare_rates(learner, range(schedule[2] - 1), *schedule)


@trapezoid_rate.check(points=0.25)
def between_rise_and_fall_it_is_the_peak_as_a_plain_number(learner, rng):
    steps, peak, warmup, decay = _schedule(rng)
    places = [warmup - 1, warmup, warmup + 2, steps - decay - 1, steps - decay]
    _compare_rates(learner, places, steps, peak, warmup, decay)
    got = learner.call("trapezoid_rate", warmup, steps, peak, warmup, decay)
    _expect_number(got, f"trapezoid_rate({warmup}, {steps}, {peak:.3g}, {warmup}, {decay})")


@trapezoid_rate.check(points=0.25)
def it_falls_by_equal_parts_to_the_last_step(learner, rng):
    schedule = _schedule(rng)
    steps, _, _, decay = schedule
    _compare_rates(learner, range(steps - decay + 1, steps), *schedule)


@trapezoid_rate.check(points=0.25)
def the_shortest_rise_and_fall_are_none(learner, rng):
    steps, peak, *_ = _schedule(rng)
    for warmup, decay in ((1, 4), (4, 1)):
        _compare_rates(learner, (0, 1, steps - 2, steps - 1), steps, peak, warmup, decay)


@trapezoid_rate.probe
def steps_around_the_corners(rng):
    for step in (0, 3, 4, 5, 13, 14, 15, 19):
        yield step, 20, 0.8, 5, 6


# --- accumulate_step ---

accumulate_step = Question("accumulate_step", section=ACCUMULATION, forbid=READY_MADE)

# The mean as many write it. Where no target counts, its gradient is NaN, unlike that of PyTorch's
# own losses. Source text, since a function cannot travel.
MASKED_MEAN = (
    "lambda scores, y: -(scores.log_softmax(-1).gather(-1, y.clamp(min=0)[:, None])[:, 0]"
    " * (y != -100)).sum() / (y != -100).sum()"
)


def _accumulate(learner, theirs, ours, micro_batches):
    (model, opt, loss_fn), (twin, twin_opt, twin_loss_fn) = theirs, ours
    learner.call("accumulate_step", model, opt, micro_batches, loss_fn)
    oracle.joined_step(twin, twin_opt, micro_batches, twin_loss_fn)


def _compare_accumulated(learner, rng, layers, loss, optimizer, micro_batches, note, **options):
    theirs, ours = _training(learner, rng, layers, loss, optimizer, **options)
    _accumulate(learner, theirs, ours, micro_batches)
    _expect_weights(learner, theirs[0], ours[0], note)


@accumulate_step.check(points=0.5)
def one_micro_batch_is_an_ordinary_step(learner, rng):
    for layers, loss, optimizer, words in KINDS:
        batch = _tags(rng, 3, 4) if layers is TAGGER else _regression(rng, 5)
        note = f"There is one micro-batch: {words}."
        _compare_accumulated(learner, rng, layers, loss, optimizer, [batch], note, stale=False)


@accumulate_step.check(points=0.5)
def equal_micro_batches_give_the_step_of_the_joined_batch(learner, rng):
    for layers, loss, optimizer, words in (*KINDS, (LINEAR, "MSELoss", ADAM, "MSELoss and Adam")):
        batches = [_tags(rng, 2, 4) if layers is TAGGER else _regression(rng, 4) for _ in range(3)]
        note = f"There are three micro-batches of the same size: {words}."
        _compare_accumulated(learner, rng, layers, loss, optimizer, batches, note, stale=False)


@accumulate_step.check(points=0.5)
def a_larger_micro_batch_counts_for_more(learner, rng):
    rows = [1, 2, 7]
    batches = [_regression(rng, n, scale) for n, scale in zip(rows, (6.0, 1.0, 1.0), strict=True)]
    note = f"A regression: the micro-batches have {rows} rows."
    _compare_accumulated(learner, rng, LINEAR, "MSELoss", SGD, batches, note, stale=False)
    batches = [_tags(rng, 2, 2), _tags(rng, 1, 9), _tags(rng, 3, 5)]
    note = "The micro-batches have 4, 9 and 15 targets, all of which count, in 2, 1 and 3 rows."
    _compare_accumulated(learner, rng, TAGGER, "CrossEntropyLoss", SGD, batches, note, stale=False)


@accumulate_step.check(points=0.5)
def targets_of_minus_100_carry_no_weight(learner, rng):
    counts = [1, 12, 3]
    batches = [_tags(rng, 3, 4, n) for n in counts]
    note = f"The micro-batches have 12 targets each, of which {counts} count."
    _compare_accumulated(learner, rng, TAGGER, "CrossEntropyLoss", SGD, batches, note, stale=False)


@accumulate_step.check(points=0.25)
def a_micro_batch_without_any_target_adds_nothing(learner, rng):
    for place, word in ((1, "second"), (0, "first"), (2, "last")):
        batches = [_tags(rng, 2, 3, 0 if i == place else 6) for i in range(3)]
        note = f"All targets of the {word} of three micro-batches are -100."
        theirs, ours = _training(learner, rng, TAGGER, "CrossEntropyLoss", SGD, stale=False)
        if place == 1:
            note += " loss_fn divides the sum of the losses by the number of targets that count."
            theirs = (*theirs[:2], learner.call("builtins.eval", MASKED_MEAN))
        _accumulate(learner, theirs, ours, batches)
        _expect_weights(learner, theirs[0], ours[0], note)


@accumulate_step.check(points=0.25)
def a_loss_that_is_nan_is_not_hidden(learner, rng):
    import torch

    batches = [_regression(rng, n) for n in (3, 4, 2)]
    batches[1][0][0] = torch.nan
    note = "x of the second micro-batch holds NaN, and all its targets count."
    _compare_accumulated(learner, rng, LINEAR, "MSELoss", SGD, batches, note, stale=False)


@accumulate_step.check(points=0.25)
def gradients_from_before_the_call_do_not_count(learner, rng):
    theirs, ours = _training(learner, rng, TAGGER, "CrossEntropyLoss", SGD, stale=False)
    for call in ("first", "second"):
        _accumulate(learner, theirs, ours, [_tags(rng, 2, 4)])
        note = f"This is the {call} call; each has one micro-batch."
        _expect_weights(learner, theirs[0], ours[0], note)
    theirs, ours = _training(learner, rng, LINEAR, "MSELoss", SGD)
    _accumulate(learner, theirs, ours, [_regression(rng, 4)])
    note = "The model held gradients before the first call, which has one micro-batch."
    _expect_weights(learner, theirs[0], ours[0], note)


@accumulate_step.check(points=0.25)
def each_micro_batch_is_done_before_the_next_is_begun(learner, rng):
    theirs, ours = _training(learner, rng, LINEAR, "MSELoss", SGD, stale=False)
    batches = [_regression(rng, 4) for _ in range(3)]
    diary = _keep_a_diary(learner, theirs[0])
    _accumulate(learner, theirs, ours, batches)
    _expect_weights(learner, theirs[0], ours[0], "There are three micro-batches of the same size.")
    passes = [name for name, *_ in learner.attribute(diary, "mock_calls")]
    expect(
        passes.count("backward") != 2,  # one for the weight, one for the bias
        "There were three micro-batches and one backward pass: the graphs of all three were in "
        "memory at once.",
    )
    expect(
        ("forward", "forward") not in itertools.pairwise(passes),
        "The model ran on a second micro-batch before the backward pass of the first: the graphs "
        "of both were in memory at once.",
    )


def _keep_a_diary(learner, model):
    """Return what notes the passes of a model, in order: see its ``mock_calls``.

    A line ``forward`` for each run, a line ``backward`` for the gradient of each parameter.
    """
    silent = {"forward.return_value": None, "backward.return_value": None}
    diary = learner.call("unittest.mock.Mock", **silent)
    learner.method(model, "register_forward_pre_hook", learner.attribute(diary, "forward"))
    note = learner.attribute(diary, "backward")
    # a hook of the tensor, not of its .grad: torch.autograd.grad calls it too
    _of_parameters(learner, model, learner.call("operator.methodcaller", "register_hook", note))
    return diary


# --- normalized_entropy ---

normalized_entropy = Question("normalized_entropy", section=ENTROPY, forbid=READY_MADE)


def _attention(rng, B, h, L, lengths=None, causal=False):
    """Draw weights (B, h, L, L) and their mask (B, 1, L, L); heads differ in how sharp they are.

    Padding attends to nothing.
    """
    import torch

    lengths = np.full(B, L) if lengths is None else np.asarray(lengths)
    keep = np.arange(L) < lengths[:, None]
    mask = (keep[:, :, None] & keep[:, None])[:, None]  # (B, 1, L, L)
    if causal:
        mask = mask & np.tril(np.ones((L, L), dtype=bool))
    scores = rng.normal(size=(B, h, L, L)) * np.linspace(0.3, 2.5, h)[:, None, None]
    weights = np.where(mask, np.exp(scores), 0.0)
    weights /= np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)
    return torch.tensor(weights), torch.tensor(mask)


def _compare_entropy(learner, weights, mask, note):
    got = learner.call("normalized_entropy", weights, mask)
    right = oracle.normalized_entropy(weights, mask)
    expect_close(got, right, "The result", note=note, rtol=1e-3, atol=1e-4)


@normalized_entropy.check(points=0.5)
def each_head_has_the_mean_of_its_queries(learner, rng):
    B, h, L = _sizes(rng, 3)
    equal = _attention(rng, 1, 2, L)
    note = f"There is one sequence of {L} tokens, nothing is masked, all weights are 1 / {L}."
    _compare_entropy(learner, 0 * equal[0] + 1 / L, equal[1], note)
    for sizes in ((B, h, L), (3, 3, 3)):
        note = f"B, h, L are {sizes}; nothing is masked."
        _compare_entropy(learner, *_attention(rng, *sizes), note)


@normalized_entropy.check(points=0.25)
def an_allowed_key_may_have_the_weight_0(learner, rng):
    L = int(rng.integers(4, 7))
    weights, mask = _attention(rng, 1, 3, L)
    weights[..., int(rng.integers(L))] = 0.0
    weights /= weights.sum(dim=-1, keepdim=True)
    note = "One sequence; nothing is masked, and one of the keys has the weight 0 for everyone."
    _compare_entropy(learner, weights, mask, note)


@normalized_entropy.check(points=0.5)
def a_query_is_measured_by_the_keys_that_it_may_attend_to(learner, rng):
    h, L = _sizes(rng, 2)
    note = "One sequence, with a causal mask: query 0 has one key, query 1 has two, and so on."
    _compare_entropy(learner, *_attention(rng, 1, h, L + 2, causal=True), note)


@normalized_entropy.check(points=0.25)
def queries_of_the_padding_do_not_count(learner, rng):
    lengths = [2, 6, 3]
    note = f"L is 6; the sequences have {lengths} real tokens, and padding attends to nothing."
    _compare_entropy(learner, *_attention(rng, 3, 3, 6, lengths), note)


@normalized_entropy.probe
def heads_of_every_kind(rng):
    yield _attention(rng, 3, 3, 3)
    yield _attention(rng, 2, 3, 5, [5, 2])
    yield _attention(rng, 2, 2, 4, [3, 4], causal=True)


# --- mended_evaluate ---

mended_evaluate = Question("mended_evaluate", section=MODES, forbid=READY_MADE)

ALMOST_ONE = 1 - 1e-9  # a probability of dropout that leaves nothing to chance
DROPS = [("Embedding", 7, 4), ("Dropout", ALMOST_ONE), ("Linear", 4, 5), ("Flatten", 0, 1)]
NORMS = [("Linear", 4, 4), ("BatchNorm1d", 4), ("Linear", 4, 5)]


def _evaluate(learner, rng, layers, batches, note, training=True):
    (model, *_), (twin, *_) = _training(
        learner, rng, layers, "CrossEntropyLoss", SGD, stale=False, training=training
    )
    for x, y in batches:  # make every other answer a right one
        best = oracle.answers(twin, x)
        for place in np.flatnonzero(y.numpy() != -100)[::2]:
            y[place] = best[place]
    got = expect_tuple(learner.call("mended_evaluate", model, batches), ("loss", "accuracy"))
    right = oracle.evaluate(twin, batches)
    for name, mine, expected in zip(("loss", "accuracy"), got, right, strict=True):
        expect_close(mine, expected, f"The {name}", note=note)
    return got, model, twin


@mended_evaluate.check(points=0.25)
def nothing_is_dropped(learner, rng):
    batches = [_tags(rng, 4, 5), _tags(rng, 4, 5)]
    note = "The model has dropout, and was in training mode. All targets count."
    _evaluate(learner, rng, DROPS, batches, note)


@mended_evaluate.check(points=0.5)
def padding_counts_neither_for_the_loss_nor_for_the_accuracy(learner, rng):
    batches = [_tags(rng, 4, 5, 8), _tags(rng, 4, 5, 13)]
    note = "Two batches of 20 targets, of which 8 and 13 count. The model has no dropout."
    _evaluate(learner, rng, TAGGER, batches, note)


@mended_evaluate.check(points=0.25)
def a_larger_batch_counts_for_more(learner, rng):
    batches = [_tags(rng, 1, 3), _tags(rng, 5, 4)]
    note = "Batches of 3 and 20 targets, all of which count. The model has no dropout."
    _evaluate(learner, rng, TAGGER, batches, note)


@mended_evaluate.check(points=0.5)
def the_model_comes_back_as_it_was(learner, rng):
    import torch

    for training in (True, False):
        batches = [
            (_regression(rng, n)[0], torch.tensor(rng.integers(0, 5, size=n))) for n in (4, 6)
        ]
        words = "train" if training else "eval"
        note = f"The model has a batch norm; its mode was {words}. All targets count."
        _, model, twin = _evaluate(learner, rng, NORMS, batches, note, training)
        _expect_weights(learner, model, twin, note)
        _expect_mode(learner, model, training)


@mended_evaluate.check(points=0.25)
def loss_and_accuracy_are_plain_numbers(learner, rng):
    note = "One batch of 6 targets, all of which count. The model has no dropout."
    got, *_ = _evaluate(learner, rng, TAGGER, [_tags(rng, 2, 3)], note)
    for name, number in zip(("loss", "accuracy"), got, strict=True):
        _expect_number(number, f"The {name}")


# --- mended_masked_softmax ---

mended_masked_softmax = Question("mended_masked_softmax", section=HALF, forbid=READY_MADE)


def _compare_masked(learner, scores, mask, note):
    got = learner.call("mended_masked_softmax", scores, mask)
    right = oracle.masked_softmax(scores.double(), mask)
    tolerance = 2e-2 if scores.dtype.itemsize == 2 else 1e-4
    expect_close(got, right, "weights", rtol=tolerance, atol=tolerance / 10, note=note)
    return got


def _scores(rng, *shape, dtype="float32"):
    """Draw scores and a mask in which every query has an allowed and a hidden key."""
    import torch

    mask = rng.random(shape) < 0.6
    mask[..., 0], mask[..., 1] = True, False
    mask = rng.permuted(mask, axis=-1)
    return torch.tensor(rng.normal(size=shape)).to(getattr(torch, dtype)), torch.tensor(mask)


@mended_masked_softmax.check(points=0.25)
def weights_have_the_type_of_the_scores(learner, rng):
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        note = f"The scores are near 0, in {dtype}."
        scores, mask = _scores(rng, 2, 3, 5, dtype=dtype)
        got = _compare_masked(learner, scores, mask, note)
        expect(got.dtype == scores.dtype, f"The weights are in {got.dtype}, the scores {dtype}.")


@mended_masked_softmax.check(points=0.5)
def hidden_keys_get_nothing_whatever_the_scores(learner, rng):
    import torch

    for dtype, low in (("float16", 20_000), ("float32", 3_000_000), ("bfloat16", 3_000_000)):
        scores, mask = _scores(rng, 4, 6, dtype=dtype)
        scores = (scores - low).to(scores.dtype)
        note = f"All scores are near -{low:,}, in {dtype}."
        _compare_masked(learner, scores, mask, note)
    scores, mask = _scores(rng, 4, 6)
    note = "The scores of hidden keys are 500 higher than those of allowed ones, in float32."
    _compare_masked(learner, scores + 500 * ~mask, mask, note)
    for dtype in ("float16", "float32", "bfloat16"):
        lowest = torch.finfo(getattr(torch, dtype)).min
        note = f"All scores are the lowest finite number of {dtype}."
        _compare_masked(learner, scores.to(getattr(torch, dtype)) * 0 + lowest, mask, note)


@mended_masked_softmax.check(points=0.25)
def a_query_without_a_key_has_weights_of_0(learner, rng):
    for dtype in ("float32", "float16"):
        scores, mask = _scores(rng, 2, 4, 5, dtype=dtype)
        mask[0, int(rng.integers(4))] = False
        note = f"One query has no allowed key; the scores are near 0, in {dtype}."
        _compare_masked(learner, scores, mask, note)


@mended_masked_softmax.check(points=0.25)
def the_gradient_is_finite_and_0_without_a_key(learner, rng):
    import torch

    for empty in (False, True):
        scores, mask = _scores(rng, 4, 5, dtype="float64")
        mask[int(rng.integers(4))] &= not empty
        upstream = torch.tensor(rng.normal(size=(4, 5)))
        note = f"{'One query has no' if empty else 'All queries have an'} allowed key."
        got = _gradient(
            learner, "mended_masked_softmax", scores, note, upstream=upstream, mask=mask
        )
        right = oracle.masked_softmax_gradient(scores, mask, upstream)
        expect_close(got, right, "The gradient of the scores", note=note)


@mended_masked_softmax.check(points=0.25)
def scores_and_mask_are_left_unchanged(learner, rng):
    scores, mask = _scores(rng, 3, 4)
    outcome = learner.run("mended_masked_softmax", scores, mask)
    right = oracle.masked_softmax(scores, mask)
    expect_close(outcome["value"], right, "weights")
    expect_unchanged(outcome["arguments"], [scores, mask], ["scores", "mask"])


@mended_masked_softmax.probe
def square_scores(rng):
    scores, mask = _scores(rng, 4, 4)
    yield scores, mask
    yield scores * 30, mask


# --- shared ---


def _sizes(rng, count):
    """Draw different sizes, so that no axis can be taken for another."""
    return tuple(int(n) for n in 3 + rng.permutation(count))


def _count(targets, value):
    return int((targets == value).sum())


def _expect_graph(got, note):
    """Check that backward() can be called on a result."""
    if not hasattr(got, "detach"):
        kind = got.type if isinstance(got, Handle) else type(got).__name__
        raise Failed(f"{note} The result is of type {kind}, no tensor: it has no backward().")
    if not got.requires_grad:
        raise Failed(f"{note} The result has no graph: backward() on it would fail.")


def _gradient(learner, name, scores, note, upstream=None, **arguments):
    """Return the gradient of an answer with respect to its first argument."""
    _expect_graph(learner.call(name, scores.clone().requires_grad_(), **arguments), note)
    function = learner.call("functools.partial", learner.value(name), **arguments)
    outcome = learner.operate(
        "call", "torch.autograd.functional.vjp", [function, scores, upstream], {"strict": True}
    )
    if "independent of input" in outcome.get("error", {}).get("message", ""):
        raise Failed(
            f"{note} The result has a graph, but one that does not reach the scores: backward() "
            "gives them no gradient, not even zeros."
        )
    if "error" in outcome:
        raise LearnerError(outcome["error"])
    return outcome["value"][1]


def _expect_number(got, what):
    """Check that a result is a number of Python."""
    if isinstance(got, int | float):  # float64 of NumPy is a float
        return
    if hasattr(got, "detach"):
        kept = ", and holds the graph of its batch" if got.requires_grad else ""
        raise Failed(f"{what} is a tensor{kept}; expected a Python number.")
    kind = got.type if isinstance(got, Handle) else type(got).__name__
    raise Failed(f"{what} is of type {kind}; expected a Python number.")


def _expect_mode(learner, model, training):
    mode = learner.attribute(model, "training")
    message = f"After the call model.training is {mode}, before it was {training}."
    expect(mode == training, message)
