"""Wrong answers to exercise 1 that people really give, each with exactly one fault.

What surrounds the fault is right and shared. Torch is imported by the functions that need it.
"""

import numpy as np

from autograder.mistakes import mistake, mistake_value

ONE_STEP = "The whole function"
BACKWARD = "Back through time"
DISTANCE = "What a state passes back"
CLIPPING = "Clipping the gradient"
CHUNKS = "A long sequence in chunks"
GATES = "PyTorch's RNN and LSTM"
LAST = "Sequences of different lengths"


def _states(x, W_x, W_h, b, h0, step=None):
    """Run the right recurrence, or one with another `step(inner)` in place of tanh."""
    h, states = h0, []
    for t in range(x.shape[1]):
        h = (step or np.tanh)(x[:, t] @ W_x + h @ W_h + b)
        states.append(h)
    return np.stack(states, axis=1)


# --- rnn_forward ---


@mistake(
    "rnn_forward",
    believed="The recurrence is linear, and the activation belongs to the output layer.",
    tell="How large can a state get? Print the largest number of yours.",
    section=ONE_STEP,
)
def rnn_tanh_missing(x, W_x, W_h, b, h0):
    return _states(x, W_x, W_h, b, h0, step=lambda inner: inner)


@mistake(
    "rnn_forward",
    believed="The activation is applied to what is returned, not to what is carried on.",
    tell="Which state does step t + 1 read: before or after tanh?",
    section=ONE_STEP,
)
def rnn_tanh_on_the_output_only(x, W_x, W_h, b, h0):
    return np.tanh(_states(x, W_x, W_h, b, h0, step=lambda inner: inner))


@mistake(
    "rnn_forward",
    believed="tanh is taken of the input's part; the old state is added as it is.",
    tell="Where does your tanh close? Count the brackets of the formula.",
    section=ONE_STEP,
)
def rnn_tanh_closes_too_early(x, W_x, W_h, b, h0):
    h, states = h0, []
    for t in range(x.shape[1]):
        h = np.tanh(x[:, t] @ W_x) + h @ W_h + b
        states.append(h)
    return np.stack(states, axis=1)


@mistake(
    "rnn_forward",
    believed="W_x belongs to the state and W_h to the input.",
    tell="Which of the two matrices has d_in rows?",
    section=ONE_STEP,
)
def rnn_weights_exchanged(x, W_x, W_h, b, h0):
    return _states(x, W_h, W_x, b, h0)


@mistake(
    "rnn_forward",
    believed="Any squashing function does: the sigmoid is the usual one.",
    tell="Can your states be negative? Compare the range of your function with that of tanh.",
    section=ONE_STEP,
)
def rnn_sigmoid_for_tanh(x, W_x, W_h, b, h0):
    return _states(x, W_x, W_h, b, h0, step=lambda inner: (1 + np.tanh(inner / 2)) / 2)


@mistake(
    "rnn_forward",
    believed="A rectifier is as good as tanh.",
    tell="Can your states be negative, and stay below 1? Those of this question can.",
    section=ONE_STEP,
)
def rnn_relu_for_tanh(x, W_x, W_h, b, h0):
    return _states(x, W_x, W_h, b, h0, step=lambda inner: np.maximum(inner, 0))


@mistake(
    "rnn_forward",
    believed="tanh is a quotient of exponentials, and can be computed as one.",
    tell="Print np.exp(1000.0), and the quotient that you make of it. What does NumPy have ready?",
    section=ONE_STEP,
)
def rnn_tanh_from_exponentials(x, W_x, W_h, b, h0):
    def quotient(inner):
        up, down = np.exp(inner), np.exp(-inner)
        return (up - down) / (up + down)

    return _states(x, W_x, W_h, b, h0, step=quotient)


@mistake(
    "rnn_forward",
    believed="The first step starts from zeros: h0 is left out, or read from an empty slot.",
    tell="Call your function with two different h0. Does the first state change? If you read "
    "hs[:, t - 1]: which slot is that when t is 0, and what is in it?",
    section=ONE_STEP,
)
def rnn_h0_ignored(x, W_x, W_h, b, h0):
    return _states(x, W_x, W_h, b, np.zeros_like(h0))


@mistake(
    "rnn_forward",
    believed="h0 counts as the first of the T states.",
    tell="After which input does the first state stand that you return?",
    section=ONE_STEP,
)
def rnn_states_shifted_by_h0(x, W_x, W_h, b, h0):
    return np.concatenate([h0[:, None], _states(x, W_x, W_h, b, h0)[:, :-1]], axis=1)


@mistake(
    "rnn_forward",
    believed="Step t reads the input of the step before, as it reads the state of the step before.",
    tell="Change the last input of a sequence. Does the last state change?",
    section=ONE_STEP,
)
def rnn_reads_the_input_before(x, W_x, W_h, b, h0):
    before = np.concatenate([0 * x[:, :1], x[:, :-1]], axis=1)
    return _states(before, W_x, W_h, b, h0)


@mistake(
    "rnn_forward",
    believed="All states means h0 as well: T + 1 of them.",
    tell="Count the states that you return, and the steps.",
    section=ONE_STEP,
)
def rnn_returns_h0_too(x, W_x, W_h, b, h0):
    return np.concatenate([h0[:, None], _states(x, W_x, W_h, b, h0)], axis=1)


@mistake(
    "rnn_forward",
    believed="The state is what the network returns: the last one.",
    tell="How many axes has what you return? One state for every step is asked for.",
    section=ONE_STEP,
)
def rnn_last_state_only(x, W_x, W_h, b, h0):
    return _states(x, W_x, W_h, b, h0)[:, -1]


@mistake(
    "rnn_forward",
    believed="h0 is what every step starts from.",
    tell="Which array do you multiply by W_h in step 2? Follow it through your loop.",
    section=ONE_STEP,
)
def rnn_state_not_carried(x, W_x, W_h, b, h0):
    return np.tanh(x @ W_x + (h0 @ W_h)[:, None] + b)


@mistake(
    "rnn_forward",
    believed="The new state adds itself to the old one.",
    tell="Does the formula have a term h without a W_h before tanh is taken, or after?",
    section=ONE_STEP,
)
def rnn_adds_the_old_state(x, W_x, W_h, b, h0):
    h, states = h0, []
    for t in range(x.shape[1]):
        h = h + np.tanh(x[:, t] @ W_x + h @ W_h + b)
        states.append(h)
    return np.stack(states, axis=1)


@mistake(
    "rnn_forward",
    believed="W_h is stored as PyTorch stores it, and has to be transposed.",
    tell="Write out one number of h @ W_h by hand. Which index of W_h is summed over?",
    section=ONE_STEP,
)
def rnn_w_h_transposed(x, W_x, W_h, b, h0):
    return _states(x, W_x, W_h.T, b, h0)


@mistake(
    "rnn_forward",
    believed="W_x is stored as PyTorch stores it, and has to be transposed.",
    tell="Write out the shapes of x[:, t] and W_x. Which axes have to agree in a product?",
    section=ONE_STEP,
)
def rnn_w_x_transposed(x, W_x, W_h, b, h0):
    return _states(x, W_x.T, W_h, b, h0)


@mistake(
    "rnn_forward",
    believed="Weights multiply from the left, as in many formulas.",
    tell="x[:, t] holds one input in each row. Which product multiplies each row by W_x?",
    section=ONE_STEP,
)
def rnn_weights_from_the_left(x, W_x, W_h, b, h0):
    h, states = h0, []
    for t in range(x.shape[1]):
        h = np.tanh(W_x @ x[:, t] + W_h @ h + b)
        states.append(h)
    return np.stack(states, axis=1)


@mistake(
    "rnn_forward",
    believed="The bias can be left out.",
    tell="Call your function with two different b. Does anything change?",
    section=ONE_STEP,
)
def rnn_bias_forgotten(x, W_x, W_h, b, h0):
    return _states(x, W_x, W_h, 0, h0)


@mistake(
    "rnn_forward",
    believed="The bias is added to the state, after tanh.",
    tell="Is b inside or outside of tanh in the formula?",
    section=ONE_STEP,
)
def rnn_bias_outside_tanh(x, W_x, W_h, b, h0):
    return _states(x, W_x, W_h, 0, h0, step=lambda inner: np.tanh(inner) + b)


@mistake(
    "rnn_forward",
    believed="The bias starts the recurrence, and is added once.",
    tell="In which steps do you add b? The formula has it in all.",
    section=ONE_STEP,
)
def rnn_bias_in_the_first_step_only(x, W_x, W_h, b, h0):
    first = _states(x[:, :1], W_x, W_h, b, h0)
    if x.shape[1] == 1:
        return first
    return np.concatenate([first, _states(x[:, 1:], W_x, W_h, 0, first[:, 0])], axis=1)


@mistake(
    "rnn_forward",
    believed="Time is the first axis.",
    tell="x has the shape (B, T, d_in). What does x[t] take?",
    section=ONE_STEP,
)
def rnn_time_axis_first(x, W_x, W_h, b, h0):
    h, states = h0, []
    for t in range(x.shape[0]):
        h = np.tanh(x[t] @ W_x + h @ W_h + b)
        states.append(h)
    return np.stack(states, axis=0)


@mistake(
    "rnn_forward",
    believed="np.stack puts the steps where they belong.",
    tell="Print the shape of your result. Which axis counts the steps?",
    section=ONE_STEP,
)
def rnn_stacked_along_axis_0(x, W_x, W_h, b, h0):
    return np.swapaxes(_states(x, W_x, W_h, b, h0), 0, 1)


@mistake(
    "rnn_forward",
    believed="A reshape brings (T, B, H) into the order (B, T, H).",
    tell="Follow one state of sequence 1 through your reshape. Where does it end?",
    section=ONE_STEP,
)
def rnn_stacked_and_reshaped(x, W_x, W_h, b, h0):
    hs = _states(x, W_x, W_h, b, h0)
    return np.ascontiguousarray(np.swapaxes(hs, 0, 1)).reshape(hs.shape)


@mistake(
    "rnn_forward",
    believed="The sequences of a batch are one long sequence.",
    tell="Does the second sequence start from its own h0, or from the end of the first?",
    section=ONE_STEP,
)
def rnn_carries_state_between_sequences(x, W_x, W_h, b, h0):
    h, hs = h0[:1], []
    for sequence in x:
        hs.append(_states(sequence[None], W_x, W_h, b, h)[0])
        h = hs[-1][-1:]
    return np.stack(hs)


@mistake(
    "rnn_forward",
    believed="The sequence is read from its end.",
    tell="Change the last input of a sequence. Which of your states change?",
    section=ONE_STEP,
)
def rnn_reads_backwards(x, W_x, W_h, b, h0):
    return _states(x[:, ::-1], W_x, W_h, b, h0)[:, ::-1]


@mistake(
    "rnn_forward",
    believed="States have the type of the inputs.",
    tell="Which dtype has the array that you write the states into, when all that it is made "
    "from holds integers?",
    section=ONE_STEP,
)
def rnn_integer_buffer(x, W_x, W_h, b, h0):
    return _states(x, W_x, W_h, b, h0).astype(x.dtype)


@mistake(
    "rnn_forward",
    believed="h = h0 makes a copy.",
    tell="Print h0 before and after the call.",
    section=ONE_STEP,
)
def rnn_h0_overwritten(x, W_x, W_h, b, h0):
    hs = _states(x, W_x, W_h, b, h0)
    h0[...] = hs[:, -1]
    return hs


@mistake(
    "rnn_forward",
    believed="One list may hold the same array again and again: each entry keeps its value.",
    tell="Do your states differ from step to step? Ask whether you append an array or a copy.",
    section=ONE_STEP,
)
def rnn_one_buffer_for_all_states(x, W_x, W_h, b, h0):
    hs = _states(x, W_x, W_h, b, h0)
    return np.repeat(hs[:, -1:], x.shape[1], axis=1)


@mistake(
    "rnn_forward",
    believed="h[:] = ... makes a new state, and the list keeps the old ones.",
    tell="Print h0 before and after the call. How many arrays does your list hold, and how many "
    "names for one array?",
    section=ONE_STEP,
)
def rnn_h0_is_the_buffer_for_all_states(x, W_x, W_h, b, h0):
    h, states = h0, []
    for t in range(x.shape[1]):
        h[...] = np.tanh(x[:, t] @ W_x + h @ W_h + b)
        states.append(h)
    return np.stack(states, axis=1)


@mistake(
    "rnn_forward",
    believed="h0 is the first state of the sequence that is being read.",
    tell="Print the shape of h before the first step of one sequence. Whose states does it hold?",
    section=ONE_STEP,
)
def rnn_each_sequence_starts_from_all_of_h0(x, W_x, W_h, b, h0):
    result = []
    for sequence in x:
        h, states = h0, []
        for token in sequence:
            h = np.tanh(token @ W_x + h @ W_h + b)
            states.append(h)
        result.append(states)
    return np.array(result)


@mistake(
    "rnn_forward",
    believed="h0 is the first state of the sequence that is being read, and fits into a row.",
    tell="Print the shape of h before the first step of one sequence. Whose states does it hold?",
    section=ONE_STEP,
)
def rnn_all_of_h0_into_one_row(x, W_x, W_h, b, h0):
    hs = np.zeros((len(x), x.shape[1], len(b)))
    for n in range(len(x)):
        h = h0
        for t in range(x.shape[1]):
            h = np.tanh(x[n, t] @ W_x + h @ W_h + b)
            hs[n, t] = h
    return hs


@mistake(
    "rnn_forward",
    believed="All sequences start from the same state.",
    tell="Change the second row of h0. Do the states of the second sequence change?",
    section=ONE_STEP,
)
def rnn_first_row_of_h0_for_all(x, W_x, W_h, b, h0):
    return _states(x, W_x, W_h, b, np.repeat(h0[:1], len(h0), axis=0))


# --- rnn_last_state ---


@mistake(
    "rnn_last_state",
    believed="The last state is the one at the end of the array.",
    tell="What has the cell read when it reaches the end of a short sequence in a long array?",
    section=LAST,
)
def last_state_of_the_array(hs, lengths):
    return hs[:, -1]


@mistake(
    "rnn_last_state",
    believed="A sequence of n steps ends at index n.",
    tell="At which index stands the state after the first step?",
    section=LAST,
)
def last_state_off_by_one(hs, lengths):
    return hs[np.arange(len(hs)), lengths]


@mistake(
    "rnn_last_state",
    believed="A sequence of n steps ends at index n, or at the end where there is none.",
    tell="At which index stands the state after the first step?",
    section=LAST,
)
def last_state_off_by_one_clipped(hs, lengths):
    return hs[np.arange(len(hs)), np.minimum(lengths, hs.shape[1] - 1)]


@mistake(
    "rnn_last_state",
    believed="A sequence of n steps ends at index n - 2.",
    tell="Take a sequence of one step. Which index do you read?",
    section=LAST,
)
def last_state_one_too_early(hs, lengths):
    return hs[np.arange(len(hs)), np.asarray(lengths) - 2]


@mistake(
    "rnn_last_state",
    believed="hs[:, lengths - 1] pairs each sequence with its own length.",
    tell="Print the shape of hs[:, lengths - 1]. Which pairs does it hold?",
    section=LAST,
)
def last_state_of_all_pairs(hs, lengths):
    return hs[:, np.asarray(lengths) - 1]


@mistake(
    "rnn_last_state",
    believed="The axes of hs are (time, batch, state).",
    tell="Which axis of hs counts the sequences? Look at the order of your two indices.",
    section=LAST,
)
def last_state_axes_exchanged(hs, lengths):
    return hs[np.asarray(lengths) - 1, np.arange(len(hs))]


@mistake(
    "rnn_last_state",
    believed="The longest sequence says where all of them end.",
    tell="Which index do you read in the shortest sequence?",
    section=LAST,
)
def last_state_of_the_longest(hs, lengths):
    return hs[:, int(np.max(lengths)) - 1]


@mistake(
    "rnn_last_state",
    believed="All sequences are as long as the first one.",
    tell="Does your result change when only the length of the second sequence does?",
    section=LAST,
)
def last_state_of_the_first_length(hs, lengths):
    return hs[:, int(lengths[0]) - 1]


@mistake(
    "rnn_last_state",
    believed="Lengths count from the end of the array.",
    tell="What does a negative index count from?",
    section=LAST,
)
def last_state_counted_from_the_end(hs, lengths):
    return hs[np.arange(len(hs)), -np.asarray(lengths)]


@mistake(
    "rnn_last_state",
    believed="The state that stands for a sequence is its first one.",
    tell="Which inputs has the state that you return seen?",
    section=LAST,
)
def last_state_is_the_first(hs, lengths):
    return hs[:, 0]


@mistake(
    "rnn_last_state",
    believed="A sequence is summed up by the mean of its states.",
    tell="How many states go into each row of your result?",
    section=LAST,
)
def last_state_is_the_mean(hs, lengths):
    return np.stack([states[:n].mean(axis=0) for states, n in zip(hs, lengths, strict=True)])


@mistake(
    "rnn_last_state",
    believed="A sequence is summed up by the largest number of each unit.",
    tell="How many states go into each row of your result?",
    section=LAST,
)
def last_state_is_the_maximum(hs, lengths):
    return np.stack([states[:n].max(axis=0) for states, n in zip(hs, lengths, strict=True)])


@mistake(
    "rnn_last_state",
    believed="The mask of real steps picks the last of them.",
    tell="How many steps of a sequence does your mask let through?",
    section=LAST,
)
def last_state_is_the_sum(hs, lengths):
    return np.stack([states[:n].sum(axis=0) for states, n in zip(hs, lengths, strict=True)])


@mistake(
    "rnn_last_state",
    believed="Multiplying by 0 takes out whatever stands there.",
    tell="What is 0 times NaN?",
    section=LAST,
)
def last_state_by_multiplication(hs, lengths):
    one_hot = np.arange(hs.shape[1]) == np.asarray(lengths)[:, None] - 1
    return np.sum(hs * one_hot[..., None], axis=1)


@mistake(
    "rnn_last_state",
    believed="Axes of length 1 are in the way.",
    tell="What shape do you return when the batch holds one sequence?",
    section=LAST,
)
def last_state_squeezed(hs, lengths):
    return np.squeeze(hs[np.arange(len(hs)), np.asarray(lengths) - 1])


@mistake(
    "rnn_last_state",
    believed="lengths -= 1 changes the function's own lengths only.",
    tell="Print lengths before and after the call.",
    section=LAST,
)
def last_state_lengths_changed(hs, lengths):
    lengths -= 1
    return hs[np.arange(len(hs)), lengths]


@mistake(
    "rnn_last_state",
    believed="The padding may be cleared in place.",
    tell="Print hs before and after the call.",
    section=LAST,
)
def last_state_padding_cleared(hs, lengths):
    hs[np.arange(hs.shape[1]) >= np.asarray(lengths)[:, None]] = 0
    return hs[np.arange(len(hs)), np.asarray(lengths) - 1]


@mistake(
    "rnn_last_state",
    believed="One index for each sequence takes the time axis away.",
    tell="Print the shape of your result. Which of its axes has the length 1, and is it asked for?",
    section=LAST,
)
def last_state_time_axis_kept(hs, lengths):
    return np.take_along_axis(hs, (np.asarray(lengths) - 1)[:, None, None], axis=1)


# --- rnn_backward ---


def _back(
    dhs,
    x,
    hs,
    W_x,
    W_h,
    h0,
    *,
    slope=lambda hs, t: 1 - hs[:, t] ** 2,
    inner=None,
    before=lambda hs, h0, t: hs[:, t - 1] if t else h0,
    carry=lambda dz, dh, W_h: dz @ W_h.T,
    into_x=lambda dz, dh, W_x: dz @ W_x.T,
    upstream=lambda dhs, t: dhs[:, t],
    times=None,
):
    """Go back through time; each option replaces one part of the right way."""
    B, T, H = hs.shape
    dx, dW_x, dW_h, db = np.zeros(x.shape), np.zeros(W_x.shape), np.zeros((H, H)), np.zeros(H)
    later = np.zeros((B, H))
    for t in reversed(range(T)) if times is None else times(T):
        dh = upstream(dhs, t) + later
        dz = dh * slope(hs, t) if inner is None else inner(dh, hs, t)
        dx[:, t] = into_x(dz, dh, W_x)
        dW_x += x[:, t].T @ dz
        dW_h += before(hs, h0, t).T @ dz
        db += dz.sum(axis=0)
        later = carry(dz, dh, W_h)
    return dx, dW_x, dW_h, db, later


@mistake(
    "rnn_backward",
    believed="The backward pass of tanh is 1 - tanh² of the gradient that comes in.",
    tell="Let dhs be 0. Which gradients should come out, and which do?",
    section=BACKWARD,
)
def rnn_backward_tanh_of_gradient(dhs, x, hs, W_x, W_h, h0):
    return _back(dhs, x, hs, W_x, W_h, h0, inner=lambda dh, hs, t: 1 - np.tanh(dh) ** 2)


@mistake(
    "rnn_backward",
    believed="The slope of tanh replaces the gradient that comes in.",
    tell="Double dhs. By how much should every gradient grow?",
    section=BACKWARD,
)
def rnn_backward_slope_without_gradient(dhs, x, hs, W_x, W_h, h0):
    return _back(dhs, x, hs, W_x, W_h, h0, inner=lambda dh, hs, t: 1 - hs[:, t] ** 2)


@mistake(
    "rnn_backward",
    believed="tanh lets gradients through as they are.",
    tell="What is the derivative of tanh, written with the value of tanh itself?",
    section=BACKWARD,
)
def rnn_backward_slope_forgotten(dhs, x, hs, W_x, W_h, h0):
    return _back(dhs, x, hs, W_x, W_h, h0, slope=lambda hs, t: 1.0)


@mistake(
    "rnn_backward",
    believed="The derivative of tanh is 1 - h.",
    tell="What does your slope give for a state of -0.5? Compare it with that for 0.5.",
    section=BACKWARD,
)
def rnn_backward_slope_not_squared(dhs, x, hs, W_x, W_h, h0):
    return _back(dhs, x, hs, W_x, W_h, h0, slope=lambda hs, t: 1 - hs[:, t])


@mistake(
    "rnn_backward",
    believed="hs holds what goes into tanh.",
    tell="Is tanh in hs already? Print its largest number.",
    section=BACKWARD,
)
def rnn_backward_tanh_taken_twice(dhs, x, hs, W_x, W_h, h0):
    return _back(dhs, x, hs, W_x, W_h, h0, slope=lambda hs, t: 1 - np.tanh(hs[:, t]) ** 2)


@mistake(
    "rnn_backward",
    believed="The derivative h (1 - h) of the sigmoid is that of tanh too.",
    tell="What is the derivative of tanh where h is 0? And what does yours give?",
    section=BACKWARD,
)
def rnn_backward_slope_of_the_sigmoid(dhs, x, hs, W_x, W_h, h0):
    return _back(dhs, x, hs, W_x, W_h, h0, slope=lambda hs, t: hs[:, t] * (1 - hs[:, t]))


@mistake(
    "rnn_backward",
    believed="The slope is taken at the state that goes into the step.",
    tell="Which state is the tanh of step t: the one that it makes, or the one that it reads?",
    section=BACKWARD,
)
def rnn_backward_slope_of_the_step_before(dhs, x, hs, W_x, W_h, h0):
    def inner(dh, hs, t):
        return dh * (1 - (hs[:, t - 1] if t else h0) ** 2)

    return _back(dhs, x, hs, W_x, W_h, h0, inner=inner)


@mistake(
    "rnn_backward",
    believed="Each state is changed by its own step only.",
    tell="State t has two ways to the loss. Which one does your code leave out?",
    section=BACKWARD,
)
def rnn_backward_nothing_carried(dhs, x, hs, W_x, W_h, h0):
    dx, dW_x, dW_h, db, _ = _back(
        dhs, x, hs, W_x, W_h, h0, carry=lambda dz, dh, W_h: np.zeros_like(dh)
    )
    first = dhs[:, 0] * (1 - hs[:, 0] ** 2)
    return dx, dW_x, dW_h, db, first @ W_h.T


@mistake(
    "rnn_backward",
    believed="The loss is at the last step only.",
    tell="Which of the T slices of dhs does your code read?",
    section=BACKWARD,
)
def rnn_backward_loss_at_the_last_step_only(dhs, x, hs, W_x, W_h, h0):
    last = dhs.shape[1] - 1
    return _back(dhs, x, hs, W_x, W_h, h0, upstream=lambda dhs, t: dhs[:, t] * (t == last))


@mistake(
    "rnn_backward",
    believed="Gradients go back by the same product as states go forward.",
    tell="dh[i] sums over all j that unit i feeds. Which index of W_h is that?",
    section=BACKWARD,
)
def rnn_backward_w_h_not_transposed(dhs, x, hs, W_x, W_h, h0):
    return _back(dhs, x, hs, W_x, W_h, h0, carry=lambda dz, dh, W_h: dz @ W_h)


@mistake(
    "rnn_backward",
    believed="Gradients reach the input by the same product as the input reaches the state.",
    tell="Write out the shapes of dz and W_x. Which axis of W_x is summed over on the way back?",
    section=BACKWARD,
)
def rnn_backward_w_x_not_transposed(dhs, x, hs, W_x, W_h, h0):
    return _back(dhs, x, hs, W_x, W_h, h0, into_x=lambda dz, dh, W_x: dz @ W_x)


@mistake(
    "rnn_backward",
    believed="What is carried back is the gradient of the state, before the slope of tanh.",
    tell="The old state goes into tanh. Which gradient comes out of it on the way back?",
    section=BACKWARD,
)
def rnn_backward_carries_before_the_slope(dhs, x, hs, W_x, W_h, h0):
    return _back(dhs, x, hs, W_x, W_h, h0, carry=lambda dz, dh, W_h: dh @ W_h.T)


@mistake(
    "rnn_backward",
    believed="The gradient of the input is taken before the slope of tanh.",
    tell="The input goes into tanh as well. Which gradient comes out of it on the way back?",
    section=BACKWARD,
)
def rnn_backward_dx_before_the_slope(dhs, x, hs, W_x, W_h, h0):
    return _back(dhs, x, hs, W_x, W_h, h0, into_x=lambda dz, dh, W_x: dh @ W_x.T)


@mistake(
    "rnn_backward",
    believed="The gradient is carried from step to step without W_h.",
    tell="What stands between h before a step and tanh? It stands there on the way back too.",
    section=BACKWARD,
)
def rnn_backward_carries_without_w_h(dhs, x, hs, W_x, W_h, h0):
    return _back(dhs, x, hs, W_x, W_h, h0, carry=lambda dz, dh, W_h: dz)


@mistake(
    "rnn_backward",
    believed="The slope of tanh is in the gradient that is carried back already.",
    tell="State t has two ways to the loss. Does the gradient of both pass its tanh in your code?",
    section=BACKWARD,
)
def rnn_backward_slope_for_its_own_loss_only(dhs, x, hs, W_x, W_h, h0):
    own, kept = dhs * (1 - hs**2), []

    def inner(dh, hs, t):
        kept.append(own[:, t] + (kept[-1] @ W_h.T if kept else 0.0))
        return kept[-1]

    return _back(dhs, x, hs, W_x, W_h, h0, inner=inner)


@mistake(
    "rnn_backward",
    believed="Time runs forward in the backward pass too.",
    tell="To know the gradient of state t you need that of state t + 1. Which do you have first?",
    section=BACKWARD,
)
def rnn_backward_runs_forward(dhs, x, hs, W_x, W_h, h0):
    return _back(dhs, x, hs, W_x, W_h, h0, times=range)


@mistake(
    "rnn_backward",
    believed="A weight's gradient is that of the first step, which is reached last.",
    tell="W_x is used in every step. What has to be done with the gradients of all its uses?",
    section=BACKWARD,
)
def rnn_backward_weights_overwritten(dhs, x, hs, W_x, W_h, h0):
    dx, _, _, _, dh0 = _back(dhs, x, hs, W_x, W_h, h0)
    first = (_inner(dhs, x, hs, W_x, W_h, h0))[:, 0]
    return dx, x[:, 0].T @ first, h0.T @ first, first.sum(axis=0), dh0


def _inner(dhs, x, hs, W_x, W_h, h0):
    """Return the right gradient of what goes into tanh, for every step."""
    kept = np.zeros(hs.shape)

    def keep(dh, hs, t):
        kept[:, t] = dh * (1 - hs[:, t] ** 2)
        return kept[:, t]

    _back(dhs, x, hs, W_x, W_h, h0, inner=keep)
    return kept


@mistake(
    "rnn_backward",
    believed="The gradients of a batch are averaged.",
    tell="Repeat one sequence twice in a batch. Should the gradient of W_x stay, or double?",
    section=BACKWARD,
)
def rnn_backward_mean_over_the_batch(dhs, x, hs, W_x, W_h, h0):
    dx, dW_x, dW_h, db, dh0 = _back(dhs, x, hs, W_x, W_h, h0)
    return dx, dW_x / len(x), dW_h / len(x), db / len(x), dh0


@mistake(
    "rnn_backward",
    believed="The gradients of all steps are averaged.",
    tell="Compare your weight gradients for one step and for two. Is there a factor too much?",
    section=BACKWARD,
)
def rnn_backward_mean_over_time(dhs, x, hs, W_x, W_h, h0):
    dx, dW_x, dW_h, db, dh0 = _back(dhs, x, hs, W_x, W_h, h0)
    T = x.shape[1]
    return dx, dW_x / T, dW_h / T, db / T, dh0


@mistake(
    "rnn_backward",
    believed="The bias gets the mean over the batch.",
    tell="b is added in every sequence. Is the gradient of a sum of uses their sum or their mean?",
    section=BACKWARD,
)
def rnn_backward_bias_mean(dhs, x, hs, W_x, W_h, h0):
    dx, dW_x, dW_h, db, dh0 = _back(dhs, x, hs, W_x, W_h, h0)
    return dx, dW_x, dW_h, db / len(x), dh0


@mistake(
    "rnn_backward",
    believed="Each sequence has its own gradient of the bias.",
    tell="Print the shape of db beside that of b.",
    section=BACKWARD,
)
def rnn_backward_bias_not_summed_over_the_batch(dhs, x, hs, W_x, W_h, h0):
    dx, dW_x, dW_h, _, dh0 = _back(dhs, x, hs, W_x, W_h, h0)
    return dx, dW_x, dW_h, _inner(dhs, x, hs, W_x, W_h, h0).sum(axis=1), dh0


@mistake(
    "rnn_backward",
    believed="W_h meets the state that its step makes.",
    tell="Which state is multiplied by W_h in step t: number t, or the one before?",
    section=BACKWARD,
)
def rnn_backward_w_h_meets_the_new_state(dhs, x, hs, W_x, W_h, h0):
    return _back(dhs, x, hs, W_x, W_h, h0, before=lambda hs, h0, t: hs[:, t])


@mistake(
    "rnn_backward",
    believed="There is nothing before the first step.",
    tell="Which array is multiplied by W_h in the first step?",
    section=BACKWARD,
)
def rnn_backward_w_h_without_h0(dhs, x, hs, W_x, W_h, h0):
    return _back(
        dhs, x, hs, W_x, W_h, h0, before=lambda hs, h0, t: hs[:, t - 1] if t else np.zeros_like(h0)
    )


@mistake(
    "rnn_backward",
    believed="hs[:, t - 1] is the state before step t, for every t.",
    tell="Which state does hs[:, t - 1] read when t is 0?",
    section=BACKWARD,
)
def rnn_backward_index_wraps_at_step_0(dhs, x, hs, W_x, W_h, h0):
    return _back(dhs, x, hs, W_x, W_h, h0, before=lambda hs, h0, t: hs[:, t - 1])


@mistake(
    "rnn_backward",
    believed="The matrix product puts the gradient of W_h the right way round.",
    tell="Entry (i, j) of W_h leads from unit i to unit j. Is that so in your gradient?",
    section=BACKWARD,
)
def rnn_backward_dw_h_transposed(dhs, x, hs, W_x, W_h, h0):
    dx, dW_x, dW_h, db, dh0 = _back(dhs, x, hs, W_x, W_h, h0)
    return dx, dW_x, dW_h.T, db, dh0


@mistake(
    "rnn_backward",
    believed="The gradient of W_x has the layout of PyTorch's weights.",
    tell="Print the shape of dW_x beside that of W_x.",
    section=BACKWARD,
)
def rnn_backward_dw_x_transposed(dhs, x, hs, W_x, W_h, h0):
    dx, dW_x, dW_h, db, dh0 = _back(dhs, x, hs, W_x, W_h, h0)
    return dx, dW_x.T, dW_h, db, dh0


@mistake(
    "rnn_backward",
    believed="h0 is given, so it has no gradient.",
    tell="Change h0 a little. Does the loss change?",
    section=BACKWARD,
)
def rnn_backward_dh0_zero(dhs, x, hs, W_x, W_h, h0):
    *gradients, dh0 = _back(dhs, x, hs, W_x, W_h, h0)
    return (*gradients, np.zeros_like(dh0))


@mistake(
    "rnn_backward",
    believed="The gradient of h0 is that of what goes into tanh in the first step.",
    tell="Between h0 and tanh stands a matrix. Is it in your dh0?",
    section=BACKWARD,
)
def rnn_backward_dh0_before_w_h(dhs, x, hs, W_x, W_h, h0):
    *gradients, _ = _back(dhs, x, hs, W_x, W_h, h0)
    return (*gradients, _inner(dhs, x, hs, W_x, W_h, h0)[:, 0])


@mistake(
    "rnn_backward",
    believed="dh0 is the gradient of the first state.",
    tell="Is h0 the first entry of hs, or does it stand before it?",
    section=BACKWARD,
)
def rnn_backward_dh0_of_the_first_state(dhs, x, hs, W_x, W_h, h0):
    *gradients, _ = _back(dhs, x, hs, W_x, W_h, h0)
    first = dhs[:, 0].copy()
    if hs.shape[1] > 1:
        first = first + _inner(dhs, x, hs, W_x, W_h, h0)[:, 1] @ W_h.T
    return (*gradients, first)


@mistake(
    "rnn_backward",
    believed="h0 is a parameter that all sequences share.",
    tell="Print the shape of dh0 beside that of h0.",
    section=BACKWARD,
)
def rnn_backward_dh0_summed(dhs, x, hs, W_x, W_h, h0):
    *gradients, dh0 = _back(dhs, x, hs, W_x, W_h, h0)
    return (*gradients, dh0.sum(axis=0))


@mistake(
    "rnn_backward",
    believed="The gradients of the weights come first.",
    tell="Compare the order of what you return with that in the question.",
    section=BACKWARD,
)
def rnn_backward_order_of_results(dhs, x, hs, W_x, W_h, h0):
    dx, dW_x, dW_h, db, dh0 = _back(dhs, x, hs, W_x, W_h, h0)
    return dW_x, dW_h, db, dx, dh0


@mistake(
    "rnn_backward",
    believed="dhs[:, t] += ... changes the function's own gradients only.",
    tell="Print dhs before and after the call.",
    section=BACKWARD,
)
def rnn_backward_dhs_overwritten(dhs, x, hs, W_x, W_h, h0):
    gradients = _back(dhs, x, hs, W_x, W_h, h0)
    dz = _inner(dhs, x, hs, W_x, W_h, h0)
    dhs[:, :-1] += dz[:, 1:] @ W_h.T
    return gradients


# --- train_chunks ---


def _train(cell, chunks, h, loss_fn, opt, *, after=None, number=None):
    """Train the right way; `after(h)` is the next chunk's state, `number(loss)` what is kept."""
    losses = []
    for x, y in chunks:
        states, h = cell(x, h)
        loss = loss_fn(states, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        h = (after or (lambda h: h.detach()))(h)
        losses.append((number or (lambda loss: loss.item()))(loss))
    return losses, h


@mistake(
    "train_chunks",
    believed="The state that is carried to the next chunk is nothing but numbers.",
    tell="Print h.grad_fn after a chunk. What does the next backward() walk into? With "
    "retain_graph=True it would stop as well, for the weights have changed by then.",
    section=CHUNKS,
)
def rnn_hidden_not_detached(cell, chunks, h, loss_fn, opt):
    return _train(cell, chunks, h, loss_fn, opt, after=lambda h: h)


@mistake(
    "train_chunks",
    believed="The graph has to be cut before each chunk; after the last one it does no harm.",
    tell="Print h.requires_grad after the call. What does the returned state still hold?",
    section=CHUNKS,
)
def rnn_last_state_with_graph(cell, chunks, h, loss_fn, opt):
    losses = []
    for x, y in chunks:
        states, h = cell(x, h.detach())
        loss = loss_fn(states, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses, h


@mistake(
    "train_chunks",
    believed="Each chunk starts from the initial state.",
    tell="Which h goes into the second chunk?",
    section=CHUNKS,
)
def rnn_chunks_all_start_from_h(cell, chunks, h, loss_fn, opt):
    losses, last = [], h
    for chunk in chunks:
        loss, last = _train(cell, [chunk], h, loss_fn, opt)
        losses += loss
    return losses, last


@mistake(
    "train_chunks",
    believed="The states of all steps are all that a cell returns; its second result can go.",
    tell="Which h goes into the second chunk, and which do you return?",
    section=CHUNKS,
)
def rnn_new_state_thrown_away(cell, chunks, h, loss_fn, opt):
    return [_train(cell, [chunk], h, loss_fn, opt)[0][0] for chunk in chunks], h


@mistake(
    "train_chunks",
    believed="A cell called without a state goes on from the last one.",
    tell="What state does nn.RNN start from when it is given none?",
    section=CHUNKS,
)
def rnn_chunks_start_from_nothing(cell, chunks, h, loss_fn, opt):
    losses = []
    for x, y in chunks:
        states, h = cell(x)
        loss = loss_fn(states, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        h = h.detach()
        losses.append(loss.item())
    return losses, h


@mistake(
    "train_chunks",
    believed="The state is set back to zero after each chunk.",
    tell="What of the first chunk does the second one know?",
    section=CHUNKS,
)
def rnn_state_reset_after_each_chunk(cell, chunks, h, loss_fn, opt):
    return _train(cell, chunks, h, loss_fn, opt, after=lambda h: h.detach() * 0)


@mistake(
    "train_chunks",
    believed="backward() replaces the gradients of the chunk before.",
    tell="Print a gradient after each backward(). What does it start from?",
    section=CHUNKS,
)
def rnn_chunks_zero_grad_missing(cell, chunks, h, loss_fn, opt):
    losses = []
    for x, y in chunks:
        states, h = cell(x, h)
        loss = loss_fn(states, y)
        loss.backward()
        opt.step()
        h = h.detach()
        losses.append(loss.item())
    return losses, h


@mistake(
    "train_chunks",
    believed="backward() is needed for the last chunk only: gradients of all chunks reach it.",
    tell="In how many of the chunks does the optimizer make a step?",
    section=CHUNKS,
)
def rnn_step_after_the_last_chunk_only(cell, chunks, h, loss_fn, opt):
    losses, total = [], 0.0
    for x, y in chunks:
        states, h = cell(x, h)
        loss = loss_fn(states, y)
        total = total + loss
        losses.append(loss.item())
    opt.zero_grad()
    total.backward()
    opt.step()
    return losses, h.detach()


@mistake(
    "train_chunks",
    believed="The gradients of all chunks are collected, and one step is made in the end.",
    tell="In how many of the chunks does the optimizer make a step?",
    section=CHUNKS,
)
def rnn_gradients_collected_over_chunks(cell, chunks, h, loss_fn, opt):
    losses = []
    opt.zero_grad()
    for x, y in chunks:
        states, h = cell(x, h)
        loss = loss_fn(states, y)
        loss.backward()
        h = h.detach()
        losses.append(loss.item())
    opt.step()
    return losses, h


@mistake(
    "train_chunks",
    believed="The loss counts at the last step of a chunk only.",
    tell="Which of the states of a chunk do you compare with targets?",
    section=CHUNKS,
)
def rnn_loss_at_the_end_of_a_chunk(cell, chunks, h, loss_fn, opt):
    losses = []
    for x, y in chunks:
        states, h = cell(x, h)
        loss = loss_fn(states[:, -1], y[:, -1])
        opt.zero_grad()
        loss.backward()
        opt.step()
        h = h.detach()
        losses.append(loss.item())
    return losses, h


@mistake(
    "train_chunks",
    believed="The last state of a chunk is its last output.",
    tell="Print the shape of the h that you were given beside that of the h that you return.",
    section=CHUNKS,
)
def rnn_returns_the_last_output(cell, chunks, h, loss_fn, opt):
    losses, h = _train(cell, chunks, h, loss_fn, opt)
    return losses, h[0]


@mistake(
    "train_chunks",
    believed="The caller keeps the state; what was passed in is what goes back.",
    tell="Is the state that you return another one than the state that you were given?",
    section=CHUNKS,
)
def rnn_returns_the_first_state(cell, chunks, h, loss_fn, opt):
    return _train(cell, chunks, h, loss_fn, opt)[0], h


@mistake(
    "train_chunks",
    believed="The loss can be kept as it is.",
    tell="What type do your losses have, and what does a tensor with a graph keep in memory?",
    section=CHUNKS,
)
def rnn_losses_kept_as_tensors(cell, chunks, h, loss_fn, opt):
    return _train(cell, chunks, h, loss_fn, opt, number=lambda loss: loss)


@mistake(
    "train_chunks",
    believed="A detached loss is a number.",
    tell="What type do your losses have? A tensor has a method that gives a Python number.",
    section=CHUNKS,
)
def rnn_losses_kept_as_detached_tensors(cell, chunks, h, loss_fn, opt):
    return _train(cell, chunks, h, loss_fn, opt, number=lambda loss: loss.detach())


@mistake(
    "train_chunks",
    believed="One number says how training went.",
    tell="How many losses do you return for three chunks?",
    section=CHUNKS,
)
def rnn_mean_loss_only(cell, chunks, h, loss_fn, opt):
    losses, h = _train(cell, chunks, h, loss_fn, opt)
    return sum(losses) / len(losses), h


@mistake(
    "train_chunks",
    believed="The losses add up from chunk to chunk.",
    tell="Is the loss of the second chunk its own, or that of both chunks?",
    section=CHUNKS,
)
def rnn_losses_added_up(cell, chunks, h, loss_fn, opt):
    losses, h = _train(cell, chunks, h, loss_fn, opt)
    return [float(loss) for loss in np.cumsum(losses)], h


@mistake(
    "train_chunks",
    believed="The loss of a chunk is that after its step.",
    tell="With which weights do you compute the loss that you keep?",
    section=CHUNKS,
)
def rnn_losses_after_the_step(cell, chunks, h, loss_fn, opt):
    losses = []
    for x, y in chunks:
        start = h
        _, h = _train(cell, [(x, y)], start, loss_fn, opt)
        losses.append(loss_fn(cell(x, start)[0], y).item())
    return losses, h


@mistake(
    "train_chunks",
    believed="The state is computed anew with the weights after the step.",
    tell="How often does the cell read each chunk, and with which weights the second time?",
    section=CHUNKS,
)
def rnn_state_after_the_step(cell, chunks, h, loss_fn, opt):
    losses = []
    for x, y in chunks:
        start = h
        loss, _ = _train(cell, [(x, y)], start, loss_fn, opt)
        losses += loss
        h = cell(x, start)[1].detach()
    return losses, h


@mistake(
    "train_chunks",
    believed="A step follows backward(), whatever stands between them.",
    tell="The weights are the same before and after the call. Which gradients does step() find?",
    section=CHUNKS,
)
def rnn_chunks_zero_grad_before_step(cell, chunks, h, loss_fn, opt):
    losses = []
    for x, y in chunks:
        states, h = cell(x, h)
        loss = loss_fn(states, y)
        loss.backward()
        opt.zero_grad()
        opt.step()
        h = h.detach()
        losses.append(loss.item())
    return losses, h


@mistake(
    "train_chunks",
    believed="The loss of a regression is the mean square.",
    tell="Which of your arguments do you not use?",
    section=CHUNKS,
)
def rnn_loss_function_ignored(cell, chunks, h, loss_fn, opt):
    return _train(cell, chunks, h, lambda states, y: ((states - y) ** 2).mean(), opt)


@mistake(
    "train_chunks",
    believed="A loss compares two things, in any order.",
    tell="Which comes first in loss_fn: what the cell made, or what it should have made?",
    section=CHUNKS,
)
def rnn_loss_arguments_exchanged(cell, chunks, h, loss_fn, opt):
    return _train(cell, chunks, h, lambda states, y: loss_fn(y, states), opt)


@mistake(
    "train_chunks",
    believed="Gradients of a recurrent network are always clipped to norm 1.",
    tell="Does the question ask you to change the gradients before the optimizer's step?",
    section=CHUNKS,
)
def rnn_chunks_clipped(cell, chunks, h, loss_fn, opt):
    import torch

    losses = []
    for x, y in chunks:
        states, h = cell(x, h)
        loss = loss_fn(states, y)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(cell.parameters(), 1.0)
        opt.step()
        h = h.detach()
        losses.append(loss.item())
    return losses, h


@mistake(
    "train_chunks",
    believed="The state has to be detached after every step.",
    tell="How many steps back does a gradient go in your function, and how long is a chunk?",
    section=CHUNKS,
)
def rnn_detached_at_every_step(cell, chunks, h, loss_fn, opt):
    import torch

    losses = []
    for x, y in chunks:
        states = []
        for t in range(x.shape[1]):
            state, h = cell(x[:, t : t + 1], h.detach())
            states.append(state)
        loss = loss_fn(torch.cat(states, dim=1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        h = h.detach()
        losses.append(loss.item())
    return losses, h


@mistake(
    "train_chunks",
    believed="A step is the learning rate times the gradient; the optimizer knows the rate.",
    tell="What else may an optimizer do? Which method of `opt` makes the step?",
    section=CHUNKS,
)
def rnn_step_by_hand(cell, chunks, h, loss_fn, opt):
    import torch

    losses = []
    for x, y in chunks:
        states, h = cell(x, h)
        loss = loss_fn(states, y)
        opt.zero_grad()
        loss.backward()
        with torch.no_grad():
            for group in opt.param_groups:
                for weight in group["params"]:
                    weight -= group["lr"] * weight.grad
        h = h.detach()
        losses.append(loss.item())
    return losses, h


@mistake(
    "train_chunks",
    believed="A chunk shorter than the others is left out, as in many data loaders.",
    tell="How many chunks of the list does your function train on when the last one is short?",
    section=CHUNKS,
)
def rnn_short_chunk_dropped(cell, chunks, h, loss_fn, opt):
    length = chunks[0][0].shape[1]
    full = [chunk for chunk in chunks if chunk[0].shape[1] >= length]
    return _train(cell, full, h, loss_fn, opt)


@mistake(
    "train_chunks",
    believed="All chunks have the length of the first one.",
    tell="Try chunks of three and of one step. Which of their steps do you read?",
    section=CHUNKS,
)
def rnn_chunks_cut_to_the_first(cell, chunks, h, loss_fn, opt):
    length = chunks[0][0].shape[1]
    cut = [(x[:, :length], y[:, :length]) for x, y in chunks]
    return _train(cell, cut, h, loss_fn, opt)


# --- clip_by_global_norm ---


def _norm(grads):
    return float(np.sqrt(sum(np.sum(np.square(grad)) for grad in grads)))


def _clipped(grads, norm, max_norm):
    factor = max_norm / norm if norm > max_norm else 1.0
    return [grad * factor for grad in grads]


@mistake(
    "clip_by_global_norm",
    believed="Each gradient is clipped by its own norm.",
    tell="Divide your clipped gradients by the old ones. Is the factor the same in all arrays?",
    section=CLIPPING,
)
def clip_each_by_its_own_norm(grads, max_norm):
    return [_clipped([grad], _norm([grad]), max_norm)[0] for grad in grads], _norm(grads)


@mistake(
    "clip_by_global_norm",
    believed="Clipping cuts off each number at max_norm.",
    tell="Does the clipped gradient still point where the old one pointed?",
    section=CLIPPING,
)
def clip_each_number(grads, max_norm):
    return [np.clip(grad, -max_norm, max_norm) for grad in grads], _norm(grads)


@mistake(
    "clip_by_global_norm",
    believed="Clipping brings every gradient to the norm max_norm.",
    tell="What becomes of gradients whose norm is below max_norm?",
    section=CLIPPING,
)
def clip_scales_up_too(grads, max_norm):
    norm = _norm(grads)
    return [grad * (max_norm / (norm + 1e-12)) for grad in grads], norm


@mistake(
    "clip_by_global_norm",
    believed="Clipping multiplies by max_norm / norm, whatever the norm is.",
    tell="What is max_norm / norm when the norm is below max_norm? And when it is 0?",
    section=CLIPPING,
)
def clip_min_forgotten(grads, max_norm):
    norm = np.float64(_norm(grads))
    return [grad * (max_norm / norm) for grad in grads], norm


@mistake(
    "clip_by_global_norm",
    believed="Clipping multiplies by max_norm / norm, whatever the norm is.",
    tell="What is max_norm / norm when the norm is below max_norm? And when it is 0?",
    section=CLIPPING,
)
def clip_min_forgotten_with_plain_numbers(grads, max_norm):
    norm = _norm(grads)
    return [grad * (float(max_norm) / norm) for grad in grads], norm


@mistake(
    "clip_by_global_norm",
    believed="min(1, max_norm / norm) is right for gradients of any size, 0 included.",
    tell="Let all gradients be 0. What do you divide by?",
    section=CLIPPING,
)
def clip_divides_a_plain_number_by_zero(grads, max_norm):
    norm = _norm(grads)
    return [grad * min(1.0, float(max_norm) / norm) for grad in grads], norm


@mistake(
    "clip_by_global_norm",
    believed="max_norm / norm is right for gradients of any size, 0 included.",
    tell="Let all gradients be 0. What do you divide by?",
    section=CLIPPING,
)
def clip_divides_by_zero(grads, max_norm):
    norm = _norm(grads)
    return [grad / np.float64(norm) * min(norm, max_norm) for grad in grads], norm


@mistake(
    "clip_by_global_norm",
    believed="The norms of the arrays add up.",
    tell="Take the gradients [3.0] and [4.0]. What is the length of the vector (3, 4)?",
    section=CLIPPING,
)
def clip_by_the_sum_of_norms(grads, max_norm):
    norm = sum(_norm([grad]) for grad in grads)
    return _clipped(grads, norm, max_norm), norm


@mistake(
    "clip_by_global_norm",
    believed="The norm of all gradients is the largest of their norms.",
    tell="Take the gradients [3.0] and [4.0]. What is the length of the vector (3, 4)?",
    section=CLIPPING,
)
def clip_by_the_largest_norm(grads, max_norm):
    norm = max(_norm([grad]) for grad in grads)
    return _clipped(grads, norm, max_norm), norm


@mistake(
    "clip_by_global_norm",
    believed="The norm is the sum of squares.",
    tell="Take the gradient [3.0, 4.0]. What is the length of this vector?",
    section=CLIPPING,
)
def clip_root_missing(grads, max_norm):
    norm = _norm(grads) ** 2
    return _clipped(grads, norm, max_norm), norm


@mistake(
    "clip_by_global_norm",
    believed="The norm is the root of the mean of squares.",
    tell="Take the gradient [3.0, 4.0]. What is the length of this vector?",
    section=CLIPPING,
)
def clip_root_mean_square(grads, max_norm):
    norm = _norm(grads) / np.sqrt(sum(np.size(grad) for grad in grads))
    return _clipped(grads, norm, max_norm), norm


@mistake(
    "clip_by_global_norm",
    believed="The norm is the sum of absolute values.",
    tell="Take the gradient [3.0, -4.0]. What is the length of this vector?",
    section=CLIPPING,
)
def clip_sum_of_absolute_values(grads, max_norm):
    norm = float(sum(np.sum(np.abs(grad)) for grad in grads))
    return _clipped(grads, norm, max_norm), norm


@mistake(
    "clip_by_global_norm",
    believed="The norm is the largest absolute value.",
    tell="Take the gradient [3.0, -4.0]. What is the length of this vector?",
    section=CLIPPING,
)
def clip_largest_absolute_value(grads, max_norm):
    norm = float(max(np.max(np.abs(grad)) for grad in grads))
    return _clipped(grads, norm, max_norm), norm


@mistake(
    "clip_by_global_norm",
    believed="The norm of a matrix is its largest singular value.",
    tell="Count the numbers that go into the norm of a matrix of yours. Does each one count?",
    section=CLIPPING,
)
def clip_spectral_norm(grads, max_norm):
    def one(grad):
        return np.linalg.norm(grad, 2) if np.ndim(grad) == 2 else _norm([grad])

    norm = float(np.sqrt(sum(one(grad) ** 2 for grad in grads)))
    return _clipped(grads, norm, max_norm), norm


@mistake(
    "clip_by_global_norm",
    believed="The norm of an array is taken along its last axis.",
    tell="Print the norm that you return. Is it one number?",
    section=CLIPPING,
)
def clip_norm_of_each_row(grads, max_norm):
    def one(grad):
        norms = np.sqrt(np.sum(np.square(grad), axis=-1, keepdims=True))
        return grad * np.minimum(1.0, max_norm / np.maximum(norms, 1e-300))

    return [one(grad) for grad in grads], _norm(grads)


@mistake(
    "clip_by_global_norm",
    believed="Gradients are vectors or matrices, whose norm np.linalg.norm gives with 'fro'.",
    tell="Call your function with a gradient of three axes, and with one of none.",
    section=CLIPPING,
)
def clip_vectors_and_matrices_only(grads, max_norm):
    norm = float(np.sqrt(sum(np.linalg.norm(np.atleast_2d(grad), "fro") ** 2 for grad in grads)))
    return _clipped(grads, norm, max_norm), norm


@mistake(
    "clip_by_global_norm",
    believed="Gradients are scaled when their norm is below the limit.",
    tell="Which gradients does your condition let through as they are?",
    section=CLIPPING,
)
def clip_condition_reversed(grads, max_norm):
    norm = _norm(grads)
    factor = max_norm / norm if 0 < norm < max_norm else 1.0
    return [grad * factor for grad in grads], norm


@mistake(
    "clip_by_global_norm",
    believed="The factor is norm / max_norm.",
    tell="By which factor has a norm of 10 to be multiplied to become 5?",
    section=CLIPPING,
)
def clip_factor_inverted(grads, max_norm):
    norm = _norm(grads)
    factor = norm / max_norm if norm > max_norm else 1.0
    return [grad * factor for grad in grads], norm


@mistake(
    "clip_by_global_norm",
    believed="A gradient that is too large is divided by its norm.",
    tell="What is the norm of your clipped gradients when max_norm is not 1?",
    section=CLIPPING,
)
def clip_to_norm_1(grads, max_norm):
    norm = _norm(grads)
    return [grad / norm if norm > max_norm else grad * 1.0 for grad in grads], norm


@mistake(
    "clip_by_global_norm",
    believed="Only the largest array has to be scaled.",
    tell="Divide your clipped gradients by the old ones. Is the factor the same in all arrays?",
    section=CLIPPING,
)
def clip_the_largest_array_only(grads, max_norm):
    norm = _norm(grads)
    largest = int(np.argmax([_norm([grad]) for grad in grads]))
    clipped = _clipped(grads, norm, max_norm)
    return [clipped[i] if i == largest else grads[i] for i in range(len(grads))], norm


@mistake(
    "clip_by_global_norm",
    believed="Gradients that are too large are left out.",
    tell="What is the norm of your clipped gradients, and what should it be?",
    section=CLIPPING,
)
def clip_drops_large_gradients(grads, max_norm):
    norm = _norm(grads)
    return [grad * float(norm <= max_norm) for grad in grads], norm


@mistake(
    "clip_by_global_norm",
    believed="The norm to return is that of the clipped gradients.",
    tell="Is the norm that you return ever above max_norm?",
    section=CLIPPING,
)
def clip_returns_the_norm_after(grads, max_norm):
    norm = _norm(grads)
    return _clipped(grads, norm, max_norm), min(norm, max_norm)


@mistake(
    "clip_by_global_norm",
    believed="The number to return is the factor.",
    tell="What does the question call the second result?",
    section=CLIPPING,
)
def clip_returns_the_factor(grads, max_norm):
    norm = _norm(grads)
    return _clipped(grads, norm, max_norm), max_norm / norm if norm > max_norm else 1.0


@mistake(
    "clip_by_global_norm",
    believed="The caller wants the gradients changed where they are.",
    tell="Print the gradients before and after the call.",
    section=CLIPPING,
)
def clip_in_place(grads, max_norm):
    norm = _norm(grads)
    for grad in grads:
        grad *= min(1.0, max_norm / max(norm, 1e-300))
    return grads, norm


# --- gru_step ---


def _sigmoid(a):
    return (1 + np.tanh(a / 2)) / 2


def _parts(x, h, W, U, b):
    """Return what x and h contribute to reset, update and candidate."""
    return np.split(x @ W + b, 3, axis=-1), np.split(h @ U, 3, axis=-1)


def _gru(x, h, W, U, b, *, gate=_sigmoid, order=(0, 1, 2), candidate=None, mix=None):
    """Make the right step; each option replaces one part of it."""
    from_x, from_h = _parts(x, h, W, U, b)
    i, j, k = order
    r, z = gate(from_x[i] + from_h[i]), gate(from_x[j] + from_h[j])
    n = np.tanh(from_x[k] + r * from_h[k]) if candidate is None else candidate(r, z)
    return (1 - z) * n + z * h if mix is None else mix(z, n)


@mistake(
    "gru_step",
    believed="An update gate of 1 means: take the candidate.",
    tell="Let the update gate be 1. Which state should come out, and which does?",
    section=GATES,
)
def gru_update_gate_reversed(x, h, W, U, b):
    return _gru(x, h, W, U, b, mix=lambda z, n: z * n + (1 - z) * h)


@mistake(
    "gru_step",
    believed="The reset gate acts on the state, before the product with U.",
    tell="Is the reset gate applied before or after the product with U, in the formula above?",
    section=GATES,
)
def gru_reset_before_the_product(x, h, W, U, b):
    def candidate(r, z):
        H = h.shape[-1]
        return np.tanh((x @ W + b)[:, 2 * H :] + (r * h) @ U[:, 2 * H :])

    return _gru(x, h, W, U, b, candidate=candidate)


@mistake(
    "gru_step",
    believed="The candidate is a plain recurrent step; the reset gate has no part in it.",
    tell="Let the reset gate be 0. Should the old state still be seen in the candidate?",
    section=GATES,
)
def gru_reset_ignored(x, h, W, U, b):
    def candidate(r, z):
        from_x, from_h = _parts(x, h, W, U, b)
        return np.tanh(from_x[2] + from_h[2])

    return _gru(x, h, W, U, b, candidate=candidate)


@mistake(
    "gru_step",
    believed="The reset gate acts on all that goes into the candidate.",
    tell="Let the reset gate be 0. Should the input still be seen in the candidate?",
    section=GATES,
)
def gru_reset_acts_on_the_input_too(x, h, W, U, b):
    def candidate(r, z):
        from_x, from_h = _parts(x, h, W, U, b)
        return np.tanh(r * (from_x[2] + from_h[2]))

    return _gru(x, h, W, U, b, candidate=candidate)


@mistake(
    "gru_step",
    believed="The bias of the candidate stands inside the reset gate.",
    tell="Let the reset gate be 0. Should the bias still be seen in the candidate?",
    section=GATES,
)
def gru_reset_acts_on_the_bias(x, h, W, U, b):
    def candidate(r, z):
        H = h.shape[-1]
        from_x, from_h = _parts(x, h, W, U, b)
        bias = b[2 * H :]
        return np.tanh(from_x[2] - bias + r * (from_h[2] + bias))

    return _gru(x, h, W, U, b, candidate=candidate)


@mistake(
    "gru_step",
    believed="The reset gate acts on the candidate, after tanh.",
    tell="Is the reset gate inside or outside of tanh in the formula?",
    section=GATES,
)
def gru_reset_outside_tanh(x, h, W, U, b):
    def candidate(r, z):
        from_x, from_h = _parts(x, h, W, U, b)
        return r * np.tanh(from_x[2] + from_h[2])

    return _gru(x, h, W, U, b, candidate=candidate)


@mistake(
    "gru_step",
    believed="The update gate comes first, then the reset gate.",
    tell="Which third of the columns of W belongs to which gate?",
    section=GATES,
)
def gru_gates_exchanged(x, h, W, U, b):
    return _gru(x, h, W, U, b, order=(1, 0, 2))


@mistake(
    "gru_step",
    believed="The candidate comes first, then the gates.",
    tell="Which third of the columns of W belongs to the candidate?",
    section=GATES,
)
def gru_candidate_first(x, h, W, U, b):
    return _gru(x, h, W, U, b, order=(1, 2, 0))


@mistake(
    "gru_step",
    believed="The columns of the three parts alternate.",
    tell="Columns 0 to H - 1 are one part. Which columns do you take for it?",
    section=GATES,
)
def gru_columns_interleaved(x, h, W, U, b):
    order = np.concatenate([np.arange(part, 3 * h.shape[-1], 3) for part in range(3)])
    return _gru(x, h, W[:, order], U[:, order], b[order])


@mistake(
    "gru_step",
    believed="The candidate is the new state.",
    tell="Let the update gate be 1. Which state should come out, and which does?",
    section=GATES,
)
def gru_update_gate_unused(x, h, W, U, b):
    return _gru(x, h, W, U, b, mix=lambda z, n: n)


@mistake(
    "gru_step",
    believed="The new state is the old one and a share of the candidate.",
    tell="Let the update gate be 0. What is left of the old state in the formula, and in yours?",
    section=GATES,
)
def gru_old_state_kept_whole(x, h, W, U, b):
    return _gru(x, h, W, U, b, mix=lambda z, n: h + (1 - z) * n)


@mistake(
    "gru_step",
    believed="The old state is scaled by the gate, and the candidate is added whole.",
    tell="Let the update gate be 1. What should become of the candidate?",
    section=GATES,
)
def gru_candidate_added_whole(x, h, W, U, b):
    return _gru(x, h, W, U, b, mix=lambda z, n: z * h + n)


@mistake(
    "gru_step",
    believed="tanh is taken of the mixture as well.",
    tell="Let the update gate be 1. Does the state come out exactly as it was?",
    section=GATES,
)
def gru_tanh_of_the_mixture(x, h, W, U, b):
    return _gru(x, h, W, U, b, mix=lambda z, n: np.tanh((1 - z) * n + z * h))


@mistake(
    "gru_step",
    believed="Gates use tanh, as the state does.",
    tell="What range must a gate have so that it closes at one end and opens at the other?",
    section=GATES,
)
def gru_gates_with_tanh(x, h, W, U, b):
    return _gru(x, h, W, U, b, gate=np.tanh)


@mistake(
    "gru_step",
    believed="The candidate is a sigmoid, as the gates are.",
    tell="Can your candidate be negative?",
    section=GATES,
)
def gru_candidate_with_sigmoid(x, h, W, U, b):
    def candidate(r, z):
        from_x, from_h = _parts(x, h, W, U, b)
        return _sigmoid(from_x[2] + r * from_h[2])

    return _gru(x, h, W, U, b, candidate=candidate)


@mistake(
    "gru_step",
    believed="The gates share their weight: a softmax over the units.",
    tell="Can two of your gates be 1 at the same time?",
    section=GATES,
)
def gru_gates_with_softmax(x, h, W, U, b):
    def softmax(a):
        e = np.exp(a - a.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    return _gru(x, h, W, U, b, gate=softmax)


@mistake(
    "gru_step",
    believed="e^a / (1 + e^a) is the sigmoid for all a.",
    tell="Print np.exp(1000.0), and the quotient that you make of it.",
    section=GATES,
)
def gru_sigmoid_overflows(x, h, W, U, b):
    return _gru(x, h, W, U, b, gate=lambda a: np.exp(a) / (1 + np.exp(a)))


@mistake(
    "gru_step",
    believed="The gates look at the input only.",
    tell="Do your gates change when only h does?",
    section=GATES,
)
def gru_gates_without_the_state(x, h, W, U, b):
    (x_r, x_z, x_n), (_, _, h_n) = _parts(x, h, W, U, b)
    z = _sigmoid(x_z)
    return (1 - z) * np.tanh(x_n + _sigmoid(x_r) * h_n) + z * h


@mistake(
    "gru_step",
    believed="One gate serves for reset and update.",
    tell="How many thirds of W do you use?",
    section=GATES,
)
def gru_one_gate_for_both(x, h, W, U, b):
    return _gru(x, h, W, U, b, order=(1, 1, 2))


@mistake(
    "gru_step",
    believed="A gate is one number for the whole state.",
    tell="Can one unit keep its state while another one replaces it?",
    section=GATES,
)
def gru_one_gate_for_all_units(x, h, W, U, b):
    return _gru(
        x, h, W, U, b, gate=lambda a: _sigmoid(a).mean(axis=-1, keepdims=True) + np.zeros_like(a)
    )


@mistake(
    "gru_step",
    believed="The bias can be left out.",
    tell="Call your function with two different b. Does anything change?",
    section=GATES,
)
def gru_bias_forgotten(x, h, W, U, b):
    return _gru(x, h, W, U, 0 * b)


@mistake(
    "gru_step",
    believed="The state may be updated where it is.",
    tell="Print h before and after the call.",
    section=GATES,
)
def gru_state_overwritten(x, h, W, U, b):
    h[...] = _gru(x, h, W, U, b)
    return h


@mistake(
    "gru_step",
    believed="np.split cuts along the columns.",
    tell="Along which axis does np.split cut when it is told none? Print the shape of a part.",
    section=GATES,
)
def gru_split_along_the_batch(x, h, W, U, b):
    x_r, x_z, x_n = np.split(x @ W + b, 3)
    h_r, h_z, h_n = np.split(h @ U, 3)
    r, z = _sigmoid(x_r + h_r), _sigmoid(x_z + h_z)
    return (1 - z) * np.tanh(x_n + r * h_n) + z * h


# --- read_backwards ---


def _real(x, lengths):
    return (np.arange(x.shape[1]) < np.asarray(lengths)[:, None])[..., None]


def _right_to_left(x, lengths, W_x, W_h, b, start=None):
    """Read from the last real token to the first; the states of padding are 0."""
    states = np.zeros((*x.shape[:2], len(W_h)))
    for n, length in enumerate(int(length) for length in lengths):
        h = np.zeros(len(W_h))
        for t in reversed(range(length)):
            h = np.tanh(x[n, t] @ W_x + h @ W_h + b)
            states[n, t] = h
    return states


def _forward(x, W_x, W_h, b):
    return _states(x, W_x, W_h, b, np.zeros((len(x), len(W_h))))


@mistake(
    "read_backwards",
    believed="Turning the whole array round turns each sequence round.",
    tell="Which position of a short sequence does the cell read first? Is there a token in it?",
    section=LAST,
)
def read_backwards_starts_in_the_padding(x, lengths, W_x, W_h, b):
    states = _forward(x[:, ::-1], W_x, W_h, b)[:, ::-1]
    return np.where(_real(x, lengths), states, 0.0)


@mistake(
    "read_backwards",
    believed="Padding that is set to 0 leaves the state alone.",
    tell="What does a step make of a zero input, when the bias is not 0?",
    section=LAST,
)
def read_backwards_padding_cleared_first(x, lengths, W_x, W_h, b):
    real = _real(x, lengths)
    states = _forward(np.where(real, x, 0.0)[:, ::-1], W_x, W_h, b)[:, ::-1]
    return np.where(real, states, 0.0)


@mistake(
    "read_backwards",
    believed="What stands in the padding of the result does not matter.",
    tell="Print your states behind the end of a short sequence.",
    section=LAST,
)
def read_backwards_padding_not_cleared(x, lengths, W_x, W_h, b):
    states = _right_to_left(x, lengths, W_x, W_h, b)
    return np.where(_real(x, lengths), states, np.tanh(b))


@mistake(
    "read_backwards",
    believed="Multiplying by 0 takes out whatever stands there.",
    tell="What is 0 times NaN?",
    section=LAST,
)
def read_backwards_padding_multiplied_away(x, lengths, W_x, W_h, b):
    real = _real(x, lengths)
    h, states = np.zeros((len(x), len(W_h))), []
    for t in reversed(range(x.shape[1])):
        h = np.tanh(x[:, t] @ W_x + h @ W_h + b) * real[:, t]
        states.insert(0, h)
    return np.stack(states, axis=1)


@mistake(
    "read_backwards",
    believed="States come out in the order in which the tokens were read.",
    tell="Where should the state stand that has read the last token alone?",
    section=LAST,
)
def read_backwards_in_reading_order(x, lengths, W_x, W_h, b):
    states = _right_to_left(x, lengths, W_x, W_h, b)
    result = np.zeros_like(states)
    for n, length in enumerate(lengths):
        result[n, :length] = states[n, :length][::-1]
    return result


@mistake(
    "read_backwards",
    believed="What was turned round by its length is turned back as a whole.",
    tell="At which end of your result does the padding stand?",
    section=LAST,
)
def read_backwards_turned_back_whole(x, lengths, W_x, W_h, b):
    states = _right_to_left(x, lengths, W_x, W_h, b)
    result = np.zeros_like(states)
    for n, length in enumerate(lengths):
        result[n, len(result[n]) - length :] = states[n, :length]
    return result


@mistake(
    "read_backwards",
    believed="Reading backward changes the order of the result only.",
    tell="Change the first token of a sequence. Which of your states change?",
    section=LAST,
)
def read_backwards_reads_forward(x, lengths, W_x, W_h, b):
    return np.where(_real(x, lengths), _forward(x, W_x, W_h, b), 0.0)


@mistake(
    "read_backwards",
    believed="A sequence of n tokens ends at index n.",
    tell="At which index stands the last token of a sequence of one token?",
    section=LAST,
)
def read_backwards_one_token_too_late(x, lengths, W_x, W_h, b):
    longer = np.minimum(np.asarray(lengths) + 1, x.shape[1])
    return np.where(_real(x, lengths), _right_to_left(x, longer, W_x, W_h, b), 0.0)


@mistake(
    "read_backwards",
    believed="The last token has nothing to its right, so it is left out.",
    tell="Which tokens has your last real state read?",
    section=LAST,
)
def read_backwards_last_token_left_out(x, lengths, W_x, W_h, b):
    return _right_to_left(x, np.asarray(lengths) - 1, W_x, W_h, b)


@mistake(
    "read_backwards",
    believed="All sequences are as long as the longest one.",
    tell="Which position of a short sequence does the cell read first?",
    section=LAST,
)
def read_backwards_lengths_ignored(x, lengths, W_x, W_h, b):
    return _forward(x[:, ::-1], W_x, W_h, b)[:, ::-1]


@mistake(
    "read_backwards",
    believed="states[n, length - T:] is the padding of every sequence.",
    tell="What does the slice [-k:] take when k is 0?",
    section=LAST,
)
def read_backwards_clears_whole_sequences(x, lengths, W_x, W_h, b):
    states = _right_to_left(x, lengths, W_x, W_h, b)
    for n, length in enumerate(lengths):
        states[n, length - x.shape[1] :] = 0.0
    return states


@mistake(
    "read_backwards",
    believed="x may be turned round in place.",
    tell="Print x before and after the call.",
    section=LAST,
)
def read_backwards_in_place(x, lengths, W_x, W_h, b):
    states = _right_to_left(x, lengths, W_x, W_h, b)
    for n, length in enumerate(lengths):
        x[n, :length] = x[n, :length][::-1].copy()
    return states


def _mask_without_axis(x, lengths, W_x, W_h, b):
    """Hold the state back by a mask (B,), which NumPy takes for a mask of units."""
    h, states = np.zeros((len(x), len(W_h))), np.zeros((*x.shape[:2], len(W_h)))
    for t in reversed(range(x.shape[1])):
        real = t < np.asarray(lengths)  # (B,)
        h = np.where(real, np.tanh(x[:, t] @ W_x + h @ W_h + b), h)
        states[:, t] = h
    return states


@mistake(
    "read_backwards",
    believed="A mask with one entry for each sequence picks rows.",
    tell="Print the shapes of your mask and of the state. To which axis does NumPy fit the mask?",
    section=LAST,
)
def read_backwards_mask_without_axis(x, lengths, W_x, W_h, b):
    states = _mask_without_axis(x, lengths, W_x, W_h, b)
    for t in range(x.shape[1]):
        states[:, t] = np.where(t < np.asarray(lengths), states[:, t], 0.0)
    return states


@mistake(
    "read_backwards",
    believed="A mask with one entry for each sequence picks rows; only the result needs an axis.",
    tell="Print the shapes of the state and of the mask that holds it back. To which axis does "
    "NumPy fit the mask?",
    section=LAST,
)
def read_backwards_mask_without_axis_in_the_loop(x, lengths, W_x, W_h, b):
    states = _mask_without_axis(x, lengths, W_x, W_h, b)
    return np.where(_real(x, lengths), states, 0.0)


# --- gradient_norms ---


def _factor(hs, W_h, t):
    """Return d h_t / d h_{t-1}: row i holds where a change of unit i goes."""
    return W_h * (1 - hs[t] ** 2)


def _norms(hs, W_h, *, factor=_factor, size=lambda J: np.linalg.norm(J, 2), join=None):
    J = np.eye(hs.shape[1])
    norms = [size(J)]
    for t in range(len(hs) - 1, 0, -1):
        J = factor(hs, W_h, t) @ J if join is None else join(factor(hs, W_h, t), J)
        norms.append(size(J))
    return np.array(norms[::-1])


@mistake(
    "gradient_norms",
    believed="The norm of a product is the product of the norms.",
    tell="Take a matrix with a single 1 above the diagonal. What is its norm, and that of its "
    "square?",
    section=DISTANCE,
)
def gradient_norms_multiplied(hs, W_h):
    norms = np.ones(len(hs))
    for t in reversed(range(len(hs) - 1)):
        norms[t] = norms[t + 1] * np.linalg.norm(_factor(hs, W_h, t + 1), 2)
    return norms


@mistake(
    "gradient_norms",
    believed="The factors may be multiplied in any order.",
    tell="A change goes through step t + 1 first. At which end of the product is that factor?",
    section=DISTANCE,
)
def gradient_norms_order_of_factors(hs, W_h):
    return _norms(hs, W_h, join=lambda factor, J: J @ factor)


@mistake(
    "gradient_norms",
    believed="The slope is taken at the state that goes into the step.",
    tell="Which state is the tanh of step t + 1: hs[t] or hs[t + 1]?",
    section=DISTANCE,
)
def gradient_norms_slope_one_early(hs, W_h):
    return _norms(hs, W_h, factor=lambda hs, W_h, t: W_h * (1 - hs[t - 1] ** 2))


@mistake(
    "gradient_norms",
    believed="The slope of tanh is close enough to 1.",
    tell="Does your result change when the states are closer to 1?",
    section=DISTANCE,
)
def gradient_norms_slope_missing(hs, W_h):
    return _norms(hs, W_h, factor=lambda hs, W_h, t: W_h)


@mistake(
    "gradient_norms",
    believed="The derivative of tanh is 1 - h.",
    tell="What does your slope give for a state of -0.5? Compare it with that for 0.5.",
    section=DISTANCE,
)
def gradient_norms_slope_not_squared(hs, W_h):
    return _norms(hs, W_h, factor=lambda hs, W_h, t: W_h * (1 - hs[t]))


@mistake(
    "gradient_norms",
    believed="The slope belongs to the unit where a change comes from.",
    tell="Entry (i, j) of the factor goes from unit i to unit j. Which of the two has the tanh?",
    section=DISTANCE,
)
def gradient_norms_slope_of_the_wrong_unit(hs, W_h):
    return _norms(hs, W_h, factor=lambda hs, W_h, t: W_h * (1 - hs[t] ** 2)[:, None])


@mistake(
    "gradient_norms",
    believed="W_h has to be transposed on the way back, here too.",
    tell="Entry (i, j) of W_h leads from unit i to unit j. Is that so in your factor?",
    section=DISTANCE,
)
def gradient_norms_w_h_transposed(hs, W_h):
    return _norms(hs, W_h.T)


@mistake(
    "gradient_norms",
    believed="The norm of a matrix is the root of the sum of its squares.",
    tell="What should the last entry be? And what does your norm give for the identity?",
    section=DISTANCE,
)
def gradient_norms_frobenius(hs, W_h):
    return _norms(hs, W_h, size=np.linalg.norm)


@mistake(
    "gradient_norms",
    believed="np.linalg.norm(J) is the largest factor by which J lengthens a vector.",
    tell="What does np.linalg.norm compute of a matrix when it is told no order? Try the identity.",
    section=DISTANCE,
)
def gradient_norms_frobenius_but_at_the_end(hs, W_h):
    norms = _norms(hs, W_h, size=np.linalg.norm)
    norms[-1] = 1.0
    return norms


@mistake(
    "gradient_norms",
    believed="The norm of a matrix is its spectral radius.",
    tell="Take a matrix with a single 1 above the diagonal. What is its largest eigenvalue, and "
    "how much longer can it make a vector?",
    section=DISTANCE,
)
def gradient_norms_spectral_radius(hs, W_h):
    return _norms(hs, W_h, size=lambda J: np.abs(np.linalg.eigvals(J)).max())


@mistake(
    "gradient_norms",
    believed="np.linalg.norm(J, 1) is the length that a vector can get.",
    tell="Which order of np.linalg.norm gives the largest singular value?",
    section=DISTANCE,
)
def gradient_norms_column_sums(hs, W_h):
    return _norms(hs, W_h, size=lambda J: np.linalg.norm(J, 1))


@mistake(
    "gradient_norms",
    believed="The result is ordered by distance, nearest first.",
    tell="Which state does entry 0 of your result belong to?",
    section=DISTANCE,
)
def gradient_norms_nearest_first(hs, W_h):
    return _norms(hs, W_h)[::-1].copy()


@mistake(
    "gradient_norms",
    believed="The first factor belongs to the last state itself.",
    tell="What is the derivative of the last state with respect to itself?",
    section=DISTANCE,
)
def gradient_norms_one_factor_too_many(hs, W_h):
    J, norms = np.eye(hs.shape[1]), []
    for t in range(len(hs) - 1, -1, -1):
        J = _factor(hs, W_h, t) @ J
        norms.append(np.linalg.norm(J, 2))
    return np.array(norms[::-1])


@mistake(
    "gradient_norms",
    believed="Each state depends on the one before it only.",
    tell="How many factors lie between hs[0] and the last state? How many do you use?",
    section=DISTANCE,
)
def gradient_norms_of_single_steps(hs, W_h):
    return _norms(hs, W_h, join=lambda factor, J: factor)


@mistake(
    "gradient_norms",
    believed="hs may be turned into slopes in place.",
    tell="Print hs before and after the call.",
    section=DISTANCE,
)
def gradient_norms_in_place(hs, W_h):
    norms = _norms(hs, W_h)
    hs *= -hs
    hs += 1
    return norms


# --- predictions ---

growth_without_tanh = mistake_value(
    "predicted_growth",
    "growth-without-tanh",
    (1.25, 1.25),
    believed="Only W_h decides whether gradients grow or shrink.",
    tell="A step also multiplies by the slope of tanh. What is it where the state is 0.6?",
    section=DISTANCE,
)
growth_slope_without_w_h = mistake_value(
    "predicted_growth",
    "growth-slope-without-w-h",
    (1.0, 0.64),
    believed="Only the slope of tanh decides whether gradients grow or shrink.",
    tell="A step also multiplies by W_h. By how much does W_h change the length of a vector?",
    section=DISTANCE,
)
growth_slope_not_squared = mistake_value(
    "predicted_growth",
    "growth-slope-not-squared",
    (1.25, 0.5),
    believed="The slope of tanh is 1 - h.",
    tell="What is the slope where the state is 0.6? It is 1 minus a square.",
    section=DISTANCE,
)
growth_state_for_slope_at_06 = mistake_value(
    "predicted_growth",
    "growth-state-for-slope-at-0.6",
    (1.25, 0.75),
    believed="Away from 0 a step multiplies the gradient by the state.",
    tell="What is the slope where the state is 0.6? It is 1 minus a square.",
    section=DISTANCE,
)
growth_square_for_slope_at_06 = mistake_value(
    "predicted_growth",
    "growth-square-for-slope-at-0.6",
    (1.25, 0.45),
    believed="Away from 0 the slope of tanh is the square of the state.",
    tell="What is the slope where the state is 0.6? It is 1 minus a square.",
    section=DISTANCE,
)
growth_w_h_near_0_only = mistake_value(
    "predicted_growth",
    "growth-w-h-near-0-only",
    (1.25, 0.64),
    believed="Near 0 W_h decides, away from 0 the slope of tanh does.",
    tell="A step also multiplies by W_h. By how much does W_h change the length of a vector?",
    section=DISTANCE,
)
growth_w_h_at_06_only = mistake_value(
    "predicted_growth",
    "growth-w-h-at-0.6-only",
    (1.0, 0.8),
    believed="Near 0 a step leaves the gradient as it is.",
    tell="A step also multiplies by W_h. By how much does W_h change the length of a vector?",
    section=DISTANCE,
)
growth_state_for_slope = mistake_value(
    "predicted_growth",
    "growth-state-for-slope",
    (0.0, 0.75),
    believed="A step multiplies the gradient by the state.",
    tell="Where is tanh steepest? What is its slope there?",
    section=DISTANCE,
)
growth_slope_of_the_inner_value = mistake_value(
    "predicted_growth",
    "growth-tanh-taken-twice",
    (1.25, 1.25 * (1 - float(np.tanh(0.6)) ** 2)),
    believed="0.6 is what goes into tanh.",
    tell="Is 0.6 what goes into tanh, or what comes out?",
    section=DISTANCE,
)
growth_order = mistake_value(
    "predicted_growth",
    "growth-pair-exchanged",
    (0.8, 1.25),
    believed="The states at 0.6 come first.",
    tell="Which of the two cases does the question name first?",
    section=DISTANCE,
)
growth_state_squared = mistake_value(
    "predicted_growth",
    "growth-slope-is-the-square",
    (0.0, 0.45),
    believed="The slope of tanh is the square of the state.",
    tell="Where is tanh steepest? What is its slope there?",
    section=DISTANCE,
)

reach_gradient_as_far_as_values = mistake_value(
    "predicted_reach",
    "reach-gradient-as-far-as-values",
    (7, 7),
    believed="Where a state goes, its gradient goes back.",
    tell="What does detach() take from a state: its numbers, or where they came from?",
    section=CHUNKS,
)
reach_values_end_with_the_chunk = mistake_value(
    "predicted_reach",
    "reach-values-end-with-the-chunk",
    (3, 3),
    believed="A chunk knows nothing of the chunks before it.",
    tell="From which state does the second chunk start?",
    section=CHUNKS,
)
reach_exchanged = mistake_value(
    "predicted_reach",
    "reach-pair-exchanged",
    (3, 7),
    believed="Gradients reach further than values.",
    tell="Which of the two numbers does the question ask for first?",
    section=CHUNKS,
)
reach_a_whole_chunk = mistake_value(
    "predicted_reach",
    "reach-always-a-whole-chunk",
    (7, 4),
    believed="Gradients always reach back as many steps as a chunk is long.",
    tell="At which step does the chunk begin that step 7 is in?",
    section=CHUNKS,
)
reach_own_step_left_out = mistake_value(
    "predicted_reach",
    "reach-own-step-left-out",
    (6, 2),
    believed="The input of the step itself does not count.",
    tell="Does the input of step 7 change the state after step 7?",
    section=CHUNKS,
)
reach_both_chunks = mistake_value(
    "predicted_reach",
    "reach-of-the-whole-stream",
    (12, 12),
    believed="In the end everything depends on everything.",
    tell="Can the state after step 7 depend on input 8?",
    section=CHUNKS,
)
reach_the_whole_chunk_and_stream = mistake_value(
    "predicted_reach",
    "reach-to-the-end-of-the-chunk",
    (8, 4),
    believed="A chunk is one unit: what changes one of its states changes all.",
    tell="Can the state after step 7 depend on input 8, which is in the same chunk?",
    section=CHUNKS,
)
reach_values_of_a_chunk = mistake_value(
    "predicted_reach",
    "reach-values-of-a-chunk",
    (4, 3),
    believed="A state remembers as many inputs as a chunk is long.",
    tell="From which state does the second chunk start, and what has that state read?",
    section=CHUNKS,
)
reach_a_chunk_for_both = mistake_value(
    "predicted_reach",
    "reach-a-chunk-for-both",
    (4, 4),
    believed="Values and gradients both reach back as many steps as a chunk is long.",
    tell="From which state does the second chunk start, and at which step does it begin?",
    section=CHUNKS,
)
reach_values_of_the_stream = mistake_value(
    "predicted_reach",
    "reach-values-of-the-stream",
    (12, 3),
    believed="Every input of the stream has a part in every state.",
    tell="Can the state after step 7 depend on input 8?",
    section=CHUNKS,
)
reach_gradients_of_the_stream = mistake_value(
    "predicted_reach",
    "reach-gradients-of-the-stream",
    (7, 12),
    believed="A gradient goes to every input that asks for one.",
    tell="Can input 8 change the state after step 7? And where does the graph of this chunk begin?",
    section=CHUNKS,
)
