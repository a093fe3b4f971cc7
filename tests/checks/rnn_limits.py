"""Checks of exercise 1: recurrent networks, forward, backward and in chunks.

Where a check is not about the initial state or the bias, they are zero: ignoring one of them
then costs its own checks and no others. Sizes all differ, since equal ones hide exchanged axes.
"""

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

from ..oracle import exercise_rnn_limits as extra
from ..oracle import rnn_limits as oracle
from . import LIBRARY

ONE_STEP = "The whole function"
BACKWARD = "Back through time"
DISTANCE = "What a state passes back"
CLIPPING = "Clipping the gradient"
CHUNKS = "A long sequence in chunks"
GATES = "PyTorch's RNN and LSTM"
LAST = "Sequences of different lengths"

READY_MADE = (*LIBRARY, "jax", "sklearn", "tensorflow", "torch")

# --- rnn_forward ---

rnn_forward = Question("rnn_forward", section=ONE_STEP, forbid=READY_MADE)


@rnn_forward.check(points=0.25)
def one_step_is_right(learner, rng):
    B, D, H = _sizes(rng, 3)
    x, W_x, W_h, b, h0 = _cell(rng, B, 1, D, H)
    _compare_states(learner, x, W_x, W_h, 0 * b, 0 * h0, note="There is one step; h0 and b are 0.")


@rnn_forward.check(points=0.75)
def each_state_builds_on_the_one_before(learner, rng):
    B, T, D, H = _sizes(rng, 4)
    cases = [
        ((B, T, D, H), f"There are {B} sequences of {T} steps; h0 and b are 0."),
        ((1, T, H, H), "There is one sequence, and the input is as wide as the state."),
        ((T, T, T, T), f"All sizes are {T}: exchanged axes raise no error here."),
    ]
    for sizes, note in cases:
        x, W_x, W_h, b, h0 = _cell(rng, *sizes)
        _compare_states(learner, x, W_x, W_h, 0 * b, 0 * h0, note=note)


@rnn_forward.check(points=0.5)
def the_first_step_starts_from_h0(learner, rng):
    B, T, D, H = _sizes(rng, 4)
    for steps, note in ((1, "There is one step, and h0 is not 0."), (T, "h0 is not 0.")):
        x, W_x, W_h, b, h0 = _cell(rng, B, steps, D, H)
        _compare_states(learner, x, W_x, W_h, 0 * b, h0, note=note)


@rnn_forward.check(points=0.25)
def the_bias_counts_in_every_step(learner, rng):
    x, W_x, W_h, b, h0 = _cell(rng, *_sizes(rng, 4))
    _compare_states(learner, x, W_x, W_h, b, 0 * h0, note="b is not 0.")


@rnn_forward.check(points=0.25)
def large_inputs_give_states_near_1_and_no_nan(learner, rng):
    B, T, D, H = _sizes(rng, 4)
    x, W_x, W_h, b, h0 = _cell(rng, B, T, D, H)
    x[:, ::2] *= 4000.0
    note = "Every other input is in the thousands: tanh is near 1 or -1 there."
    _compare_states(learner, x, W_x, W_h, 0 * b, 0 * h0, note=note)


@rnn_forward.check(points=0.25)
def integer_inputs_work_too(learner, rng):
    B, T, D, H = _sizes(rng, 4)
    x = rng.integers(-1, 2, size=(B, T, D))
    x[:, 0] = np.arange(D) == 0  # the first states are not 0
    W_x = rng.choice([-1, 1], size=(D, H))
    W_h = rng.integers(-1, 2, size=(H, H))
    note = "x, W_x, W_h and b are arrays of integers; the states are not."
    _compare_states(learner, x, W_x, W_h, np.zeros(H, dtype=int), np.zeros((B, H)), note=note)


@rnn_forward.check(points=0.25)
def the_arguments_are_left_unchanged(learner, rng):
    x, W_x, W_h, b, h0 = _cell(rng, *_sizes(rng, 4))
    arguments = [x, W_x, W_h, 0 * b, 0 * h0]
    outcome = learner.run("rnn_forward", *arguments)
    expect_close(outcome["value"], oracle.rnn_forward(*arguments), "hs")
    expect_unchanged(outcome["arguments"], arguments, ["x", "W_x", "W_h", "b", "h0"])


@rnn_forward.probe
def equal_sizes_with_everything_that_counts(rng):
    yield tuple(_cell(rng, 4, 4, 4, 4))
    yield tuple(_cell(rng, 1, 3, 2, 1))
    yield tuple(_cell(rng, 2, 5, 3, 4))


# --- rnn_last_state ---

rnn_last_state = Question("rnn_last_state", section=LAST, forbid=READY_MADE)


@rnn_last_state.check(points=0.5)
def each_sequence_gives_its_own_last_state(learner, rng):
    B, T, H = _sizes(rng, 3)
    for sizes in ((B, T, H), (T, T, T)):
        hs, lengths = _padded(rng, *sizes)
        lengths = np.minimum(lengths, sizes[1] - 1)  # the longest has its own check
        _compare_last(learner, hs, lengths)


@rnn_last_state.check(points=0.25)
def the_shortest_and_the_longest_sequence_are_right(learner, rng):
    B, T, H = _sizes(rng, 3)
    hs = rng.normal(size=(B, T, H))
    _compare_last(learner, hs, rng.permutation([1, T, *rng.integers(1, T + 1, size=B - 2)]))


@rnn_last_state.check(points=0.25)
def what_stands_in_the_padding_has_no_influence(learner, rng):
    hs, lengths = _padded(rng, *_sizes(rng, 3))
    hs[np.arange(hs.shape[1]) >= lengths[:, None]] = np.nan
    _compare_last(learner, hs, lengths, note="The padding holds NaN.")


@rnn_last_state.check(points=0.25)
def a_batch_of_one_keeps_its_axis(learner, rng):
    T, H = _sizes(rng, 2)
    hs = rng.normal(size=(1, T, H))
    _compare_last(learner, hs, np.array([rng.integers(2, T)]), note="The batch has one sequence.")


@rnn_last_state.check(points=0.25)
def hs_and_lengths_are_left_unchanged(learner, rng):
    hs, lengths = _padded(rng, *_sizes(rng, 3))
    outcome = learner.run("rnn_last_state", hs, lengths)
    expect_close(outcome["value"], oracle.rnn_last_state(hs, lengths), "The result")
    expect_unchanged(outcome["arguments"], [hs, lengths], ["hs", "lengths"])


@rnn_last_state.probe
def lengths_of_every_kind(rng):
    yield rng.normal(size=(4, 4, 4)), np.array([2, 4, 1, 3])
    yield rng.normal(size=(2, 5, 3)), np.array([5, 5])


# --- read_backwards ---

read_backwards = Question("read_backwards", section=LAST, forbid=READY_MADE)


@read_backwards.check(points=0.25)
def sequences_without_padding_are_read_from_the_end(learner, rng):
    x, lengths, *weights = _batch(rng)
    lengths[:] = x.shape[1]
    _compare_backwards(learner, x, lengths, *weights, note="No sequence has padding.")


@read_backwards.check(points=0.5)
def the_first_token_read_is_the_last_real_one(learner, rng):
    x, lengths, *weights = _batch(rng)
    got = learner.call("read_backwards", x, lengths, *weights)
    right = extra.read_backwards(x, lengths, *weights)
    real = np.arange(x.shape[1]) < lengths[:, None]
    if getattr(got, "shape", None) == right.shape:  # what stands in the padding: a check below
        got = np.where(real[..., None], got, 0.0)
    note = f"The lengths are {lengths.tolist()}; only states of real tokens are compared."
    expect_close(got, right, "states", note=note)


@read_backwards.check(points=0.25)
def padding_gets_zeros(learner, rng):
    x, lengths, *weights = _batch(rng)
    note = f"The lengths are {lengths.tolist()}; the states of padding are 0."
    _compare_backwards(learner, x, lengths, *weights, note=note)


@read_backwards.check(points=0.25)
def what_the_padding_holds_has_no_influence(learner, rng):
    x, lengths, *weights = _batch(rng)
    x[np.arange(x.shape[1]) >= lengths[:, None]] = np.nan
    note = f"The lengths are {lengths.tolist()}; the padding holds NaN."
    _compare_backwards(learner, x, lengths, *weights, note=note)


@read_backwards.check(points=0.25)
def reading_leaves_the_arguments_unchanged(learner, rng):
    arguments = _batch(rng)
    outcome = learner.run("read_backwards", *arguments)
    lengths = arguments[1]
    note = f"The lengths are {lengths.tolist()}."
    expect_close(outcome["value"], extra.read_backwards(*arguments), "states", note=note)
    expect_unchanged(outcome["arguments"], arguments, ["x", "lengths", "W_x", "W_h", "b"])


@read_backwards.probe
def padding_of_zeros(rng):
    # with as many units as sequences, a mask without its axis raises no error
    for sizes in (_sizes(rng, 4), (4, 5, 3, 4)):
        x, lengths, *weights = _batch(rng, *sizes)
        x[np.arange(x.shape[1]) >= lengths[:, None]] = 0
        yield (x, lengths, *weights)


# --- rnn_backward ---

rnn_backward = Question("rnn_backward", section=BACKWARD, forbid=READY_MADE)
GRADIENTS = ("dx", "dW_x", "dW_h", "db", "dh0")


@rnn_backward.check(points=0.5)
def one_step_gives_the_gradients_of_x_and_h0(learner, rng):
    B, D, H = _sizes(rng, 3)
    _compare_gradients(learner, ("dx", "dh0"), *_problem(rng, B, 1, D, H), note="T is 1.")


@rnn_backward.check(points=0.75)
def one_step_gives_the_gradients_of_the_weights(learner, rng):
    B, D, H = _sizes(rng, 3)
    names = ("dW_x", "dW_h", "db")
    _compare_gradients(learner, names, *_problem(rng, B, 1, D, H, start=True), note="T is 1.")


@rnn_backward.check(points=0.75)
def gradients_flow_back_to_every_input(learner, rng):
    B, T, D, H = _sizes(rng, 4)
    note = f"There are {T} steps, and a loss at each of them."
    _compare_gradients(learner, ("dx",), *_problem(rng, B, T, D, H), note=note)


@rnn_backward.check(points=0.25)
def gradients_flow_back_to_h0(learner, rng):
    B, T, D, H = _sizes(rng, 4)
    note = f"There are {T} steps, and a loss at each of them."
    _compare_gradients(learner, ("dh0",), *_problem(rng, B, T, D, H), note=note)


@rnn_backward.check(points=0.5)
def the_gradients_of_w_x_and_b_collect_every_step(learner, rng):
    B, T, D, H = _sizes(rng, 4)
    note = f"There are {B} sequences of {T} steps."
    _compare_gradients(learner, ("dW_x", "db"), *_problem(rng, B, T, D, H), note=note)


@rnn_backward.check(points=0.5)
def the_gradient_of_w_h_collects_every_step(learner, rng):
    B, T, D, H = _sizes(rng, 4)
    note = f"There are {B} sequences of {T} steps; h0 is 0."
    _compare_gradients(learner, ("dW_h",), *_problem(rng, B, T, D, H), note=note)


@rnn_backward.check(points=0.25)
def the_gradient_of_w_h_counts_h0_too(learner, rng):
    B, T, D, H = _sizes(rng, 4)
    note = f"There are {T} steps; h0 is not 0."
    _compare_gradients(learner, ("dW_h",), *_problem(rng, B, T, D, H, start=True), note=note)


@rnn_backward.check(points=0.25)
def a_loss_at_the_last_step_alone_reaches_the_first(learner, rng):
    B, T, D, H = _sizes(rng, 4)
    dhs, *rest = _problem(rng, B, T, D, H)
    dhs[:, :-1] = 0
    note = "dhs is 0 but at the last step."
    _compare_gradients(learner, ("dx", "dh0"), dhs, *rest, note=note)


@rnn_backward.check(points=0.25)
def the_gradients_leave_the_arguments_unchanged(learner, rng):
    arguments = _problem(rng, *_sizes(rng, 4))
    outcome = learner.run("rnn_backward", *arguments)
    names = ["dhs", "x", "hs", "W_x", "W_h", "h0"]
    got = expect_tuple(outcome["value"], GRADIENTS)
    for name, array, right in zip(GRADIENTS, got, oracle.rnn_backward(*arguments), strict=True):
        expect_close(array, right, name)
    expect_unchanged(outcome["arguments"], arguments, names)


@rnn_backward.probe
def equal_sizes_and_a_start(rng):
    yield tuple(_problem(rng, 4, 4, 4, 4, start=True))
    yield tuple(_problem(rng, 2, 3, 5, 4, start=True))
    yield tuple(_problem(rng, 1, 1, 2, 1, start=True))


# --- gradient_norms ---

gradient_norms = Question("gradient_norms", section=DISTANCE, forbid=READY_MADE)


@gradient_norms.check(points=0.25)
def one_step_back_is_right(learner, rng):
    _compare_norms(learner, *_states(rng, 2, _sizes(rng, 1)[0]), note="There are two states.")


@gradient_norms.check(points=0.25)
def near_0_only_w_h_counts(learner, rng):
    T, H = _sizes(rng, 2)
    hs, W_h = _states(rng, T, H)
    note = f"There are {T} states near 0, where the slope of tanh is 1."
    _compare_norms(learner, 1e-6 * hs, W_h, note=note)


@gradient_norms.check(points=0.5)
def many_steps_back_are_right(learner, rng):
    T, H = _sizes(rng, 2)
    _compare_norms(learner, *_states(rng, T, H), note=f"There are {T} states of width {H}.")
    hs, W_h = _states(rng, T, T)
    hs[1] = np.sign(hs[1]) * 0.99
    note = f"There are {T} states of width {T}, and the numbers of hs[1] are 0.99 in size."
    _compare_norms(learner, hs, W_h, note=note)


@gradient_norms.check(points=0.25)
def what_cannot_reach_the_end_has_norm_0(learner, rng):
    H = 3
    hs, _ = _states(rng, H + 3, H)
    W_h = np.triu(rng.uniform(0.5, 1.5, size=(H, H)), k=1)
    note = f"W_h is 0 on and below its diagonal: after {H} steps nothing of a state is left."
    _compare_norms(learner, hs, W_h, note=note)


@gradient_norms.check(points=0.25)
def the_states_are_left_unchanged(learner, rng):
    arguments = _states(rng, *_sizes(rng, 2))
    outcome = learner.run("gradient_norms", *arguments)
    expect_close(outcome["value"], extra.gradient_norms(*arguments), "norms")
    expect_unchanged(outcome["arguments"], arguments, ["hs", "W_h"])


@gradient_norms.probe
def long_and_short(rng):
    yield tuple(_states(rng, 6, 2))
    yield tuple(_states(rng, 4, 4))


# --- predicted_growth ---

predicted_growth = Question("predicted_growth", section=DISTANCE)


@predicted_growth.check(points=0.5)
def both_factors_are_right(learner, rng):
    right = [extra.growth_per_step(state, gain=1.25) for state in (0.0, 0.6)]
    got = expect_numbers(learner.value("predicted_growth"), "ab")
    cases = ("states near 0", "states near 0.6 in size")
    wrong = [
        case
        for case, mine, factor in zip(cases, got, right, strict=True)
        if not np.isclose(mine, factor, rtol=0.01)
    ]
    expect(not wrong, f"Not the factor for {' nor for '.join(wrong)}.")


# --- clip_by_global_norm ---

clip_by_global_norm = Question("clip_by_global_norm", section=CLIPPING, forbid=READY_MADE)


@clip_by_global_norm.check(points=0.5)
def the_norm_is_that_of_all_gradients_together(learner, rng):
    grads = _gradients(rng)
    limit = _global_norm(grads) * rng.uniform(1.5, 3.0)
    _, norm = _clip(learner, grads, limit)
    _expect_number(norm, _global_norm(grads), "norm", f"max_norm is {limit:.3g}: above the norm.")
    limit = _global_norm(grads) * rng.uniform(0.2, 0.6)
    _, norm = _clip(learner, grads, limit)
    note = f"max_norm is {limit:.3g}. The norm to return is the one before clipping."
    _expect_number(norm, _global_norm(grads), "norm", note)


@clip_by_global_norm.check(points=0.5)
def large_gradients_are_scaled_down_together(learner, rng):
    grads = _gradients(rng)
    limit = _global_norm(grads) * rng.uniform(0.2, 0.6)
    clipped, _ = _clip(learner, grads, limit)
    note = f"Their norm is {_global_norm(grads):.4g}, max_norm is {limit:.4g}."
    _expect_arrays(clipped, extra.clip_by_global_norm(grads, limit)[0], note)


@clip_by_global_norm.check(points=0.5)
def gradients_below_the_limit_stay_as_they_are(learner, rng):
    grads = _gradients(rng)
    limit = _global_norm(grads) * rng.uniform(1.5, 3.0)
    clipped, _ = _clip(learner, grads, limit)
    note = f"Their norm is {_global_norm(grads):.4g}, max_norm is {limit:.4g}."
    _expect_arrays(clipped, grads, note)


@clip_by_global_norm.check(points=0.25)
def gradients_may_have_any_number_of_axes(learner, rng):
    grads = [np.array(rng.normal(size=shape)) for shape in ((2, 3, 4), (5,), (), (1, 2))]
    limit = _global_norm(grads) * rng.uniform(0.2, 0.6)
    clipped, norm = _clip(learner, grads, limit)
    note = "The gradients have the shapes (2, 3, 4), (5,), () and (1, 2)."
    _expect_number(norm, _global_norm(grads), "norm", note)
    _expect_arrays(clipped, extra.clip_by_global_norm(grads, limit)[0], note)


@clip_by_global_norm.check(points=0.25)
def gradients_that_are_zero_stay_finite(learner, rng):
    shapes = [(3, 2), (4,)]
    tiny = [0.02 * rng.normal(size=shape) for shape in shapes]
    for grads, note in (
        ([np.zeros(shape) for shape in shapes], "All gradients are 0."),
        ([tiny[0], np.zeros(4)], "One gradient is 0, the other one small."),
    ):
        clipped, norm = _clip(learner, grads, 1.0)
        _expect_number(norm, _global_norm(grads), "norm", note)
        _expect_arrays(clipped, grads, note)


@clip_by_global_norm.check(points=0.25)
def the_gradients_are_left_unchanged(learner, rng):
    grads = _gradients(rng)
    limit = 0.5 * _global_norm(grads)
    outcome = learner.run("clip_by_global_norm", grads, limit)
    clipped, _ = expect_tuple(outcome["value"], ("clipped", "norm"))
    _expect_arrays(clipped, extra.clip_by_global_norm(grads, limit)[0])
    after = outcome["arguments"][0]
    expect(len(after) == len(grads), "The call changed the caller's list.")
    expect_unchanged(after, grads, [f"grads[{i}]" for i in range(len(grads))])


@clip_by_global_norm.probe
def gradients_near_the_limit(rng):
    grads = _gradients(rng)
    for factor in (0.1, 0.9, 1.1, 10.0):
        yield grads, factor * _global_norm(grads)
    yield [np.array([3.0, 4.0]), np.array([[0.5]])], 1.0
    yield [np.array([0.1, -0.2]), np.array([[0.05]])], 1.0


# --- gru_step ---

gru_step = Question("gru_step", section=GATES, forbid=READY_MADE)


@gru_step.check(points=1.0)
def the_new_state_mixes_the_old_one_and_the_candidate(learner, rng):
    B, D, H = _sizes(rng, 3)
    for sizes, note in (
        ((B, D, H), f"There are {B} samples, inputs of width {D} and states of width {H}; b is 0."),
        ((1, H, H), "There is one sample, and the input is as wide as the state; b is 0."),
    ):
        x, h, W, U, b = _gated(rng, *sizes)
        _compare_step(learner, x, h, W, U, 0 * b, note=note)


@gru_step.check(points=0.5)
def each_unit_keeps_or_replaces_its_state_by_its_own_update_gate(learner, rng):
    B, D, H = _sizes(rng, 3)
    x, h, W, U, _ = _gated(rng, B, D, H)
    W[:, : 2 * H] = U[:, : 2 * H] = 0.0
    keep = rng.permutation(np.arange(H) % 2 == 0)
    b = np.concatenate([np.full(H, 30.0), np.where(keep, 30.0, -30.0), np.zeros(H)])
    note = (
        f"All reset gates are 1. The update gate is 1 in units {_list(keep)}, which keep their "
        f"state, and 0 in units {_list(~keep)}."
    )
    _compare_step(learner, x, h, W, U, b, note=note)


@gru_step.check(points=0.5)
def the_reset_gate_takes_the_old_state_out_of_the_candidate(learner, rng):
    B, D, H = _sizes(rng, 3)
    x, h, W, U, b = _gated(rng, B, D, H)
    W[:, : 2 * H] = U[:, : 2 * H] = 0.0
    reset = rng.permutation(np.arange(H) % 2 == 0)
    b[: 2 * H] = np.concatenate([np.where(reset, -30.0, 30.0), np.full(H, -30.0)])
    note = f"The update gates are 0. The reset gate is 0 in units {_list(reset)}, else 1."
    _compare_step(learner, x, h, W, U, b, note=note)


@gru_step.check(points=0.25)
def the_bias_of_each_gate_counts(learner, rng):
    x, h, W, U, b = _gated(rng, *_sizes(rng, 3))
    _compare_step(learner, x, h, W, U, b, note="b is not 0.")


@gru_step.check(points=0.25)
def gates_far_open_or_closed_stay_finite(learner, rng):
    x, h, W, U, b = _gated(rng, *_sizes(rng, 3))
    x = 5000.0 * np.sign(x)
    note = "The inputs are 5,000 in size: the gates are 0 or 1 nearly everywhere."
    _compare_step(learner, x, h, W, U, 0 * b, note=note)


@gru_step.check(points=0.25)
def the_step_leaves_its_arguments_unchanged(learner, rng):
    x, h, W, U, b = _gated(rng, *_sizes(rng, 3))
    arguments = [x, h, W, U, 0 * b]
    outcome = learner.run("gru_step", *arguments)
    expect_close(outcome["value"], extra.gru_step(*arguments), "The new state")
    expect_unchanged(outcome["arguments"], arguments, ["x", "h", "W", "U", "b"])


@gru_step.probe
def any_state(rng):
    yield tuple(_gated(rng, 3, 3, 3))
    yield tuple(_gated(rng, 2, 4, 3))
    yield tuple(_gated(rng, 3, 2, 1))  # three rows can be split as well as three columns


# --- train_chunks ---

train_chunks = Question("train_chunks", section=CHUNKS, forbid=(*LIBRARY, "jax", "tensorflow"))


@train_chunks.check(points=0.5)
def one_chunk_is_one_step_of_the_optimizer(learner, rng):
    for loss in ("MSELoss", "PoissonNLLLoss"):
        got, right = _train(learner, rng, [4], loss=loss)
        note = f"There is one chunk; the loss is nn.{loss}."
        _expect_losses(got, right, note)
        _expect_weights(got, right, note)


@train_chunks.check(points=0.75)
def each_chunk_starts_from_the_state_that_the_last_one_left(learner, rng):
    got, right = _train(learner, rng, [3, 3, 3], lr=0.0)
    note = "There are three chunks of three steps; the learning rate is 0."
    _expect_losses(got, right, note)
    expect_close(got["h"], right["h"], "h", note=note)


@train_chunks.check(points=1.0)
def several_chunks_give_the_right_losses_and_weights(learner, rng):
    for momentum, spread in ((0.5, 1.0), (0.0, 20.0)):
        got, right = _train(learner, rng, [3, 3, 3, 3], momentum=momentum, spread=spread)
        note = f"There are four chunks; the optimizer is SGD with momentum {momentum:g}."
        if spread > 1:
            note += f" The targets are {spread:g} in size: the gradients are large."
        _expect_losses(got, right, note)
        _expect_weights(got, right, note)


@train_chunks.check(points=0.25)
def chunks_may_differ_in_length(learner, rng):
    lengths = [int(rng.integers(2, 4)), 4, 1]
    got, right = _train(learner, rng, lengths, lr=0.0)
    note = f"The chunks have {lengths} steps; the learning rate is 0."
    _expect_losses(got, right, note)
    expect_close(got["h"], right["h"], "h", note=note)


@train_chunks.check(points=0.25)
def the_losses_are_plain_numbers(learner, rng):
    got, right = _train(learner, rng, [3, 2], lr=0.0)
    _expect_losses(got, right)
    for place, loss in enumerate(got["losses"]):
        if hasattr(loss, "detach"):
            kept = " that still holds the graph of its chunk" if loss.requires_grad else ""
            raise Failed(f"losses[{place}] is a tensor{kept}; expected a Python number.")


@train_chunks.check(points=0.25)
def the_state_comes_back_without_a_graph(learner, rng):
    got, right = _train(learner, rng, [3, 2], lr=0.0)
    expect_close(got["h"], right["h"], "h")
    expect(
        not got["h"].requires_grad,
        "h comes back with the graph of the last chunk: h.requires_grad is True.",
    )


# --- predicted_reach ---

predicted_reach = Question("predicted_reach", section=CHUNKS)


@predicted_reach.check(points=0.5)
def both_counts_are_right(learner, rng):
    right = extra.reach_of_a_step(step=7, chunk=4)
    got = expect_numbers(learner.value("predicted_reach"), "ab")
    cases = ("inputs that change the state", "inputs that get a gradient")
    wrong = [case for case, mine, n in zip(cases, got, right, strict=True) if mine != n]
    expect(not wrong, f"Not the number of {' nor of '.join(wrong)}.")


# --- inputs ---


def _sizes(rng, count):
    """Draw different sizes, so that no axis can be taken for another."""
    return tuple(int(n) for n in 3 + rng.permutation(count))


def _cell(rng, B, T, D, H):
    """Draw ``[x, W_x, W_h, b, h0]`` for which tanh is neither linear nor flat."""
    return [
        rng.normal(size=(B, T, D)),
        rng.normal(size=(D, H)) / np.sqrt(D),
        rng.normal(size=(H, H)) / np.sqrt(H),
        rng.choice([-1, 1], size=H) * rng.uniform(0.3, 0.8, size=H),
        rng.choice([-1, 1], size=(B, H)) * rng.uniform(0.3, 0.9, size=(B, H)),
    ]


def _padded(rng, B, T, H):
    """Draw states and lengths that differ, none of them the whole length."""
    lengths = 1 + rng.permutation(np.arange(B) % (T - 1))
    return rng.normal(size=(B, T, H)), lengths


def _problem(rng, B, T, D, H, start=False):
    """Draw ``[dhs, x, hs, W_x, W_h, h0]`` of one forward pass; h0 is 0 without `start`."""
    x, W_x, W_h, b, h0 = _cell(rng, B, T, D, H)
    h0 = h0 if start else 0 * h0
    return [
        rng.normal(size=(B, T, H)),
        x,
        oracle.rnn_forward(x, W_x, W_h, b, h0),
        W_x,
        W_h,
        h0,
    ]


def _gradients(rng):
    """Draw gradients of which the largest number and the largest norm are far apart."""
    n, m, k = _sizes(rng, 3)
    grads = [3.0 * rng.normal(size=(n, m)), 0.1 * rng.normal(size=m), rng.normal(size=(m, k))]
    return [grads[i] for i in rng.permutation(3)]


def _gated(rng, B, D, H):
    """Draw ``[x, h, W, U, b]`` for which no gate is shut."""
    return [
        rng.normal(size=(B, D)),
        rng.choice([-1, 1], size=(B, H)) * rng.uniform(0.3, 0.9, size=(B, H)),
        rng.normal(size=(D, 3 * H)) / np.sqrt(D),
        rng.normal(size=(H, 3 * H)) / np.sqrt(H),
        rng.choice([-1, 1], size=3 * H) * rng.uniform(0.3, 0.8, size=3 * H),
    ]


def _batch(rng, *sizes):
    """Draw ``[x, lengths, W_x, W_h, b]``: every sequence has padding, two have little."""
    B, T, D, H = sizes or _sizes(rng, 4)
    x, W_x, W_h, b, _ = _cell(rng, B, T, D, H)
    lengths = rng.integers(1, T, size=B)
    lengths[rng.permutation(B)[:2]] = T - 1
    return [x, lengths, W_x, W_h, b]


def _states(rng, T, H):
    hs = rng.choice([-1, 1], size=(T, H)) * rng.uniform(0.1, 0.9, size=(T, H))
    return [hs, rng.normal(size=(H, H)) * 1.2 / np.sqrt(H)]


# --- comparisons ---


def _compare_states(learner, *arguments, note):
    got = learner.call("rnn_forward", *arguments)
    expect_close(got, oracle.rnn_forward(*arguments), "hs", note=note)


def _compare_last(learner, hs, lengths, note=""):
    got = learner.call("rnn_last_state", hs, lengths)
    note = f"The lengths are {lengths.tolist()}, T is {hs.shape[1]}. {note}".strip()
    expect_close(got, oracle.rnn_last_state(hs, lengths), "The result", note=note)


def _compare_gradients(learner, names, *arguments, note):
    got = expect_tuple(learner.call("rnn_backward", *arguments), GRADIENTS)
    right = oracle.rnn_backward(*arguments)
    for name, array, expected in zip(GRADIENTS, got, right, strict=True):
        if name in names:
            expect_close(array, expected, name, note=note)


def _train(learner, rng, lengths, loss="MSELoss", lr=0.2, momentum=0.0, spread=1.0):
    """Let the learner's function train a cell; return what came of it and what is right.

    Cell, loss and optimizer cannot travel: they are made where the answer runs.
    """
    import torch

    B, D, H = _sizes(rng, 3)
    state = {
        name: torch.tensor(rng.normal(size=shape) * 0.6)
        for name, shape in (
            ("weight_ih_l0", (H, D)),
            ("weight_hh_l0", (H, H)),
            ("bias_ih_l0", (H,)),
            ("bias_hh_l0", (H,)),
        )
    }
    chunks = [
        (
            torch.tensor(rng.normal(size=(B, T, D))),
            torch.tensor(rng.normal(scale=spread, size=(B, T, H))),
        )
        for T in lengths
    ]
    h = torch.tensor(_cell(rng, B, 1, D, H)[-1][None])  # (1, B, H)

    cell = learner.call("torch.nn.RNN", D, H, batch_first=True)
    learner.method(cell, "double")
    learner.method(cell, "load_state_dict", state)
    parameters = learner.method(cell, "parameters")
    opt = learner.call("torch.optim.SGD", parameters, lr=lr, momentum=momentum)
    loss_fn = learner.call(f"torch.nn.{loss}")
    result = learner.call("train_chunks", cell, chunks, h, loss_fn, opt)
    losses, last = expect_tuple(result, ("losses", "h"))
    if not isinstance(losses, list | tuple) or len(losses) != len(chunks):
        found = f"a list of {len(losses)}" if isinstance(losses, list | tuple) else "no list"
        raise Failed(f"losses is {found}; expected a list of {len(chunks)}, one loss a chunk.")
    after = learner.method(cell, "state_dict")

    loss_fn = getattr(torch.nn, loss)()
    right = extra.train_chunks(state, chunks, h, loss_fn, lr, momentum)
    return (
        {"losses": losses, "h": last, "weights": after},
        dict(zip(("losses", "h", "weights"), right, strict=True)),
    )


def _expect_losses(got, right, note=""):
    numbers = []
    for place, loss in enumerate(got["losses"]):
        if getattr(loss, "shape", ()) != () or not hasattr(loss, "__float__"):
            raise Failed(f"losses[{place}] is no number, but of type {type(loss).__name__}.")
        numbers.append(float(loss.item() if hasattr(loss, "item") else loss))
    expect_close(np.array(numbers), right["losses"], "losses", note=note)


def _expect_weights(got, right, note):
    for name, tensor in right["weights"].items():
        expect_close(got["weights"][name], tensor, f"cell.{name} after training", note=note)


def _clip(learner, grads, limit):
    return expect_tuple(learner.call("clip_by_global_norm", grads, limit), ("clipped", "norm"))


def _global_norm(grads):
    return extra.clip_by_global_norm(grads, np.inf)[1]


def _expect_number(got, right, what, note):
    expect_close(got, right, what, rtol=1e-3, atol=1e-9, note=note)


def _expect_arrays(got, right, note=""):
    if not isinstance(got, list | tuple) or len(got) != len(right):
        found = f"{len(got)} items" if isinstance(got, list | tuple) else f"a {type(got).__name__}"
        raise Failed(f"clipped is {found}; expected a list of {len(right)} arrays.")
    for place, (array, expected) in enumerate(zip(got, right, strict=True)):
        expect_close(array, expected, f"clipped[{place}]", rtol=1e-3, atol=1e-9, note=note)


def _compare_step(learner, *arguments, note):
    got = learner.call("gru_step", *arguments)
    expect_close(got, extra.gru_step(*arguments), "The new state", note=note)


def _compare_backwards(learner, *arguments, note):
    got = learner.call("read_backwards", *arguments)
    expect_close(got, extra.read_backwards(*arguments), "states", note=note)


def _compare_norms(learner, *arguments, note):
    got = learner.call("gradient_norms", *arguments)
    expect_close(got, extra.gradient_norms(*arguments), "norms", rtol=1e-3, note=note)


def _list(flags):
    return ", ".join(str(j) for j in np.flatnonzero(flags))
