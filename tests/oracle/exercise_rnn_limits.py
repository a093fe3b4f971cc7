"""What exercise 1 asks for beyond the chapter, one number at a time."""

import math

import numpy as np

from .rnn_limits import rnn_forward


def clip_by_global_norm(grads, max_norm):
    """Scale all gradients by one factor so that their common norm is at most `max_norm`.

    Returns ``(clipped, norm)``: new arrays, and the norm before clipping (Pascanu et al., 2013).
    """
    grads = [np.asarray(grad, dtype=np.float64) for grad in grads]
    norm = math.sqrt(math.fsum(float(number) ** 2 for grad in grads for number in grad.flat))
    factor = max_norm / norm if norm > max_norm else 1.0
    return [factor * grad for grad in grads], norm


def gru_step(x, h, W, U, b):
    """One step of a gated recurrent unit; the columns of W, U and b are reset, update, candidate.

    Shapes: x (B, d_in), h (B, H), W (d_in, 3H), U (H, 3H), b (3H,). Returns (B, H). It is the
    form of PyTorch, whose reset gate acts on the product ``h U`` (Cho et al., 2014, had it on h).
    """
    x, h, W, U, b = (np.asarray(a, dtype=np.float64) for a in (x, h, W, U, b))
    (B, H), d_in = h.shape, x.shape[-1]
    after = np.zeros((B, H))
    for n in range(B):
        for j in range(H):
            from_x, from_h = [], []
            for part in range(3):
                c = part * H + j
                from_x.append(math.fsum([b[c], *(x[n, i] * W[i, c] for i in range(d_in))]))
                from_h.append(math.fsum(h[n, i] * U[i, c] for i in range(H)))
            reset = _sigmoid(from_x[0] + from_h[0])
            update = _sigmoid(from_x[1] + from_h[1])
            candidate = math.tanh(from_x[2] + reset * from_h[2])
            after[n, j] = (1 - update) * candidate + update * h[n, j]
    return after


def _sigmoid(a):
    return (1 + math.tanh(a / 2)) / 2


def read_backwards(x, lengths, W_x, W_h, b):
    """States of a tanh cell that reads each sequence from its last real token to its first.

    The state at position t has read the tokens ``lengths - 1``, ..., t. Padding gets zeros.
    """
    x = np.asarray(x, dtype=np.float64)
    states = np.zeros((*x.shape[:2], len(W_h)))
    for n, length in enumerate(int(length) for length in lengths):
        for t in range(length):
            read = np.array([x[n, s] for s in range(length - 1, t - 1, -1)])
            states[n, t] = rnn_forward(read, W_x, W_h, b, np.zeros(len(W_h)))[-1]
    return states


def gradient_norms(hs, W_h):
    """The largest singular value of ``d h_T / d h_t`` for every t, by the sum over all paths.

    ``d h_T[j] / d h_t[i]`` is the sum, over all ways to go from unit i to unit j in T - t steps,
    of the product of the derivatives on the way. Shapes: hs (T, H). Returns (T,).
    """
    hs, W_h = np.asarray(hs, dtype=np.float64), np.asarray(W_h, dtype=np.float64)
    T, H = hs.shape
    norms = np.zeros(T)
    for start in range(T):
        reached = np.eye(H)  # row i: where a change of unit i has got to
        for t in range(start + 1, T):
            after = np.zeros((H, H))
            for i in range(H):
                for k in range(H):
                    after[i, k] = (1 - hs[t, k] ** 2) * math.fsum(reached[i] * W_h[:, k])
            reached = after
        # the largest singular value, from the eigenvalues of a symmetric matrix
        norms[start] = math.sqrt(max(0.0, np.linalg.eigvalsh(reached @ reached.T)[-1]))
    return norms


def train_chunks(state, chunks, h, loss_fn, lr, momentum=0.0):
    """Truncated backpropagation through time, written with functions of tensors alone.

    The cell is given by the state dict of an ``nn.RNN(batch_first=True)``. Returns
    ``(losses, h, state)``: the last state and the state dict after training.
    """
    import torch

    weights = {name: tensor.detach().clone() for name, tensor in state.items()}
    moving = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    losses, h = [], h[0].detach()
    for x, y in chunks:
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
        states = []
        for t in range(x.shape[1]):
            inner = x[:, t] @ leaves["weight_ih_l0"].T + leaves["bias_ih_l0"]
            inner = inner + h @ leaves["weight_hh_l0"].T + leaves["bias_hh_l0"]
            h = torch.tanh(inner)
            states.append(h)
        loss = loss_fn(torch.stack(states, dim=1), y)
        grads = torch.autograd.grad(loss, list(leaves.values()))
        for name, grad in zip(leaves, grads, strict=True):
            moving[name] = momentum * moving[name] + grad
            weights[name] = weights[name] - lr * moving[name]
        h = h.detach()
        losses.append(loss.item())
    return losses, h[None], weights


def growth_per_step(state, gain):
    """By how much the norm of the gradient changes per step when all states are ``+-state``.

    The recurrent matrix is `gain` times a rotation.
    """
    turn = np.array([[0.8, -0.6], [0.6, 0.8]])
    norms = gradient_norms(state * np.array([[1, -1], [-1, -1], [1, 1]]), gain * turn)
    return float(norms[0] / norms[1])


def reach_of_a_step(step, chunk):
    """What step number `step` of a stream looks back on when its chunks have `chunk` steps.

    Returns ``(values, gradients)``: how many inputs change the state after this step, and how
    many inputs get a gradient from a loss on it, when the state is carried as numbers.
    """
    W_x, W_h, b = np.array([[0.5]]), np.array([[0.75]]), np.zeros(1)
    x = np.sin(np.arange(1.0, step + 1))[:, None]
    hs = rnn_forward(x, W_x, W_h, b, np.zeros(1))
    values = 0
    for t in range(step):
        other = x.copy()
        other[t] += 1.0
        values += abs(rnn_forward(other, W_x, W_h, b, np.zeros(1))[-1, 0] - hs[-1, 0]) > 1e-9
    start = (step - 1) // chunk * chunk  # earlier states are numbers by now
    before = hs[start - 1] if start else np.zeros(1)
    gradients = 0
    for t in range(step):
        ends = []
        for change in (-1e-4, 1e-4):
            other = x.copy()
            other[t] += change
            ends.append(rnn_forward(other[start:], W_x, W_h, b, before)[-1, 0])
        gradients += abs(ends[1] - ends[0]) > 1e-9
    return int(values), int(gradients)
