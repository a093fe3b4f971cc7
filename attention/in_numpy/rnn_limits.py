"""A recurrent network in NumPy: forward, back through time, last state."""

import math

import numpy as np

from .single_head import as_floating


def check_rnn(x, W_x, W_h, h0):
    """Raise ValueError unless inputs, weights and first state fit."""
    if x.ndim < 2:
        raise ValueError(f"x: expected axes (..., T, d_in), got shape {x.shape}")
    if W_h.ndim != 2 or W_h.shape[0] != W_h.shape[1]:
        raise ValueError(f"W_h: expected a square (H, H), got {W_h.shape}")
    H = W_h.shape[0]
    wanted = (x.shape[-1], H)
    if W_x.shape != wanted:
        raise ValueError(f"W_x: expected shape {wanted}, got {W_x.shape}")
    wanted = (*x.shape[:-2], H)
    if h0.shape != wanted:
        raise ValueError(f"h0: expected a state a sequence, {wanted}, got {h0.shape}")


def rnn_forward(x, W_x, W_h, b, h0):
    """Read a sequence step by step and return every state.

    Computes ``h_t = tanh(x_t W_x + h_{t-1} W_h + b)``: the network of Elman
    (1990), "Finding structure in time".

    Parameters
    ----------
    x : array_like, shape (..., T, d_in)
        Input vectors, one for each step.
    W_x : array_like, shape (d_in, H)
        Weights from the input to the state.
    W_h : array_like, shape (H, H)
        Weights from the state before to the state.
    b : array_like, shape (H,)
        Bias.
    h0 : array_like, shape (..., H)
        The state before the first step.

    Returns
    -------
    ndarray, shape (..., T, H)
        The states after steps 1 to T, without `h0`, in the floating dtype
        of the inputs (float64 for integers). No steps (T = 0), no states.

    Raises
    ------
    ValueError
        If shapes do not fit or an input does not hold real numbers.
    """
    x, h0 = as_floating("x", x), as_floating("h0", h0)
    W_x, W_h = as_floating("W_x", W_x), as_floating("W_h", W_h)
    b = as_floating("b", b)
    check_rnn(x, W_x, W_h, h0)
    if b.shape != W_h.shape[:1]:
        raise ValueError(f"b: expected shape {W_h.shape[:1]}, got {b.shape}")
    dtype = np.result_type(x, W_x, W_h, b, h0)
    work = np.promote_types(dtype, np.float32)  # float16 is too coarse
    x, W_x, W_h, b, h = (a.astype(work) for a in (x, W_x, W_h, b, h0))

    drive = x @ W_x + b  # (..., T, H): needs no state, so all steps at once
    hs = np.empty_like(drive)
    for t in range(x.shape[-2]):  # one after another: each step needs h
        h = np.tanh(drive[..., t, :] + h @ W_h)  # (..., H)
        hs[..., t, :] = h
    return hs.astype(dtype)


def rnn_backward(dhs, x, hs, W_x, W_h, h0):
    """Carry the gradients of all states back through time.

    The chain rule of ``h_t = tanh(x_t W_x + h_{t-1} W_h + b)``, from the
    last step to the first: Werbos (1990), "Backpropagation through time".

    Parameters
    ----------
    dhs : array_like, shape (..., T, H)
        Gradient of the loss with respect to each state that `rnn_forward`
        returned, as the loss uses it directly. 0 where it does not.
    x, W_x, W_h, h0 : array_like
        The arguments that `rnn_forward` was given.
    hs : array_like, shape (..., T, H)
        The states that `rnn_forward` returned.

    Returns
    -------
    dx, dW_x, dW_h, db, dh0 : ndarray
        Gradients in the shapes of x, W_x, W_h, b and h0, in the floating
        dtype of the arguments (float64 for integers). Those of W_x, W_h and
        b are sums over all sequences and steps, so they are 0 where T = 0.

    Raises
    ------
    ValueError
        If shapes do not fit or an input does not hold real numbers.
    """
    dhs, hs = as_floating("dhs", dhs), as_floating("hs", hs)
    x, h0 = as_floating("x", x), as_floating("h0", h0)
    W_x, W_h = as_floating("W_x", W_x), as_floating("W_h", W_h)
    check_rnn(x, W_x, W_h, h0)
    wanted = (*x.shape[:-1], W_h.shape[0])
    for name, array in (("hs", hs), ("dhs", dhs)):
        got = array.shape
        if got != wanted:
            raise ValueError(f"{name}: expected shape {wanted}, got {got}")
    dtype = np.result_type(dhs, x, hs, W_x, W_h, h0)
    work = np.promote_types(dtype, np.float32)
    dhs, x, hs = (a.astype(work) for a in (dhs, x, hs))
    W_x, W_h, h0 = (a.astype(work) for a in (W_x, W_h, h0))

    dz = np.empty_like(hs)  # gradients of what stands inside tanh
    dh_next = np.zeros_like(h0)  # what the step after t sends back
    for t in reversed(range(x.shape[-2])):
        dh = dhs[..., t, :] + dh_next  # the loss and the next step
        dz[..., t, :] = dh * (1 - hs[..., t, :] ** 2)
        dh_next = dz[..., t, :] @ W_h.T  # (..., H)

    previous = np.concatenate([h0[..., None, :], hs], axis=-2)[..., :-1, :]
    rows = math.prod(x.shape[:-1])  # every step of every sequence
    d_in, H = W_x.shape
    dz_rows = dz.reshape(rows, H)
    dW_x = x.reshape(rows, d_in).T @ dz_rows  # summed over the rows
    dW_h = previous.reshape(rows, H).T @ dz_rows
    gradients = (dz @ W_x.T, dW_x, dW_h, dz_rows.sum(axis=0), dh_next)
    return tuple(gradient.astype(dtype) for gradient in gradients)


def rnn_last_state(hs, lengths):
    """Pick each sequence's state after its last real step, before padding.

    Parameters
    ----------
    hs : array_like, shape (..., T, H)
        All states, as `rnn_forward` returns them.
    lengths : array_like of int, shape (...)
        The number of real steps of each sequence, from 1 to T.

    Returns
    -------
    ndarray, shape (..., H)
        A copy of the state after step ``lengths`` of each sequence.

    Raises
    ------
    ValueError
        If shapes do not fit, or a length is not an integer from 1 to T: a
        sequence of no steps has no state of its own.
    """
    hs, lengths = as_floating("hs", hs), np.asarray(lengths)
    if hs.ndim < 2:
        raise ValueError(f"hs: expected axes (..., T, H), got {hs.shape}")
    lead, got = hs.shape[:-2], lengths.shape
    if got != lead:
        raise ValueError(f"lengths: expected shape {lead}, got {got}")
    if lengths.size and lengths.dtype.kind not in "iu":
        raise ValueError(f"lengths: expected integers, got {lengths.dtype}")
    T = hs.shape[-2]
    bad = lengths[(lengths < 1) | (lengths > T)]
    if bad.size:
        raise ValueError(f"lengths: expected 1 to T = {T}, got {bad[0]}")
    index = lengths.astype(np.intp)[..., None, None] - 1  # (..., 1, 1)
    return np.take_along_axis(hs, index, axis=-2)[..., 0, :]  # (..., H)
