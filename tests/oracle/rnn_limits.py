"""The tanh recurrent network, its gradients and its last state, one number at a time."""

import math

import numpy as np


def rnn_forward(x, W_x, W_h, b, h0):
    """All states of ``h_t = tanh(x_t W_x + h_{t-1} W_h + b)``.

    Shapes: x (..., T, d_in), W_x (d_in, H), W_h (H, H), b (H,), h0 (..., H). Returns (..., T, H).
    """
    x, W_x, W_h, b, h0 = (np.asarray(a, dtype=np.float64) for a in (x, W_x, W_h, b, h0))
    T, d_in = x.shape[-2:]
    H = len(W_h)
    hs = np.zeros((*x.shape[:-1], H))
    for index in np.ndindex(x.shape[:-2]):
        before = [float(number) for number in h0[index]]
        for t in range(T):
            after = []
            for j in range(H):
                terms = [x[index][t, i] * W_x[i, j] for i in range(d_in)]
                terms += [before[i] * W_h[i, j] for i in range(H)]
                after.append(math.tanh(math.fsum([*terms, b[j]])))
            hs[index][t] = after
            before = after
    return hs


def rnn_backward(dhs, x, hs, W_x, W_h, h0):
    """Gradients ``(dx, dW_x, dW_h, db, dh0)``, given those of the loss at every state.

    The derivative of tanh is ``1 - tanh**2``, and ``hs`` holds the values of tanh. Gradients of
    the parameters are sums over all steps and all sequences.
    """
    dhs, x, hs, W_x, W_h, h0 = (np.asarray(a, dtype=np.float64) for a in (dhs, x, hs, W_x, W_h, h0))
    T, d_in = x.shape[-2:]
    H = len(W_h)
    dx, dW_x, dW_h = np.zeros(x.shape), np.zeros(W_x.shape), np.zeros(W_h.shape)
    db, dh0 = np.zeros(H), np.zeros(h0.shape)
    for index in np.ndindex(x.shape[:-2]):
        from_later = [0.0] * H
        for t in range(T - 1, -1, -1):
            before = h0[index] if t == 0 else hs[index][t - 1]
            inner = []
            for j in range(H):
                total = dhs[index][t, j] + from_later[j]
                inner.append(total * (1 - hs[index][t, j] ** 2))
            for j in range(H):
                db[j] += inner[j]
                for i in range(d_in):
                    dx[index][t, i] += inner[j] * W_x[i, j]
                    dW_x[i, j] += x[index][t, i] * inner[j]
                for i in range(H):
                    dW_h[i, j] += before[i] * inner[j]
            from_later = [math.fsum(inner[j] * W_h[i, j] for j in range(H)) for i in range(H)]
        dh0[index] = from_later
    return dx, dW_x, dW_h, db, dh0


def rnn_last_state(hs, lengths):
    """The state after step ``lengths`` (counted from 1) of each sequence, shape (..., H)."""
    hs, lengths = np.asarray(hs, dtype=np.float64), np.asarray(lengths)
    last = np.zeros((*hs.shape[:-2], hs.shape[-1]))
    for index in np.ndindex(hs.shape[:-2]):
        last[index] = hs[index][int(lengths[index]) - 1]
    return last
