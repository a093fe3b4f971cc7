"""What exercise 5 asks for beyond the chapter, plainly right, in float64.

`test_exercises_encoder_layer.py` proves these against PyTorch.
"""

import functools
import math

import numpy as np

from . import encoder_layer as chapter


def rms_norm(x, gamma, eps=1e-5):
    """Divide each row by the root of its mean square (Zhang and Sennrich, 2019)."""
    x = np.asarray(x, dtype=np.float64)
    y = np.zeros(x.shape)
    for index in np.ndindex(x.shape[:-1]):
        mean_square = math.fsum(float(number) ** 2 for number in x[index]) / x.shape[-1]
        for c in range(x.shape[-1]):
            y[index][c] = x[index][c] / math.sqrt(mean_square + eps) * gamma[c]
    return y


def rms_norm_backward(dy, x, gamma, eps=1e-5):
    """Gradients ``(dx, dgamma)`` of `rms_norm`, one entry of the Jacobian matrix at a time.

    With the root r, ``dy_i / dx_j`` is ``gamma_i (1 / r if i = j else 0) - gamma_i x_i x_j / (d
    r^3)``: the quotient rule.
    """
    dx, dgamma = np.zeros(np.shape(x)), np.zeros(np.shape(gamma))
    d = x.shape[-1]
    for index in np.ndindex(x.shape[:-1]):
        row = [float(number) for number in x[index]]
        root = math.sqrt(math.fsum(number**2 for number in row) / d + eps)
        for i in range(d):
            dgamma[i] += dy[index][i] * row[i] / root
            for j in range(d):
                slope = (i == j) / root - row[i] * row[j] / (d * root**3)
                dx[index][j] += dy[index][i] * gamma[i] * slope
    return dx, dgamma


def swiglu(x, W1, W2, W3):
    """Feed-forward layer with a gate, ``(silu(x W1) * x W3) W2`` (Shazeer, 2020, equation 6)."""
    y = np.zeros((*x.shape[:-1], W2.shape[1]))
    for index in np.ndindex(x.shape[:-1]):
        for k in range(W1.shape[1]):
            z = float(x[index] @ W1[:, k])
            power = math.exp(-abs(z))
            gate = z / (1 + power) if z > 0 else z * power / (1 + power)
            y[index] += gate * float(x[index] @ W3[:, k]) * W2[k]
    return y


def rotary_encoding(x, positions):
    """Turn the pair of features 2i and 2i + 1 by ``position / 10000^(2i / d)``.

    Su et al. (2021), equation 15, with the features of a pair side by side.
    """
    x = np.asarray(x, dtype=np.float64)
    y, d = np.zeros(x.shape), x.shape[-1]
    for index in np.ndindex(x.shape[:-1]):
        for even in range(0, d, 2):
            angle = float(positions[index[-1]]) / 10000 ** (even / d)
            first, second = x[index][even : even + 2]
            y[index][even] = first * math.cos(angle) - second * math.sin(angle)
            y[index][even + 1] = first * math.sin(angle) + second * math.cos(angle)
    return y


def feed_forward_backward(dy, x, W1, b1, W2, b2):
    """Gradients ``(dx, dW1, db1, dW2, db2)``, one number of the hidden layer at a time."""
    dx, dW1, db1, dW2, db2 = (np.zeros(np.shape(a)) for a in (x, W1, b1, W2, b2))
    for index in np.ndindex(x.shape[:-1]):
        db2 += dy[index]
        for k in range(W1.shape[1]):
            before = float(x[index] @ W1[:, k] + b1[k])
            if before > 0:
                slope = float(dy[index] @ W2[k])
                dW2[k] += before * dy[index]
                db1[k] += slope
                dW1[:, k] += slope * x[index]
                dx[index] += slope * W1[:, k]
    return dx, dW1, db1, dW2, db2


def layer_parameters(d_model, num_heads, d_ff):
    """Count the entries of real arrays: of the attention, of the feed-forward layer, of both norms.

    The number of heads changes nothing: all heads together are as wide as the model.
    """
    d_k = d_model // num_heads
    into = [np.zeros((d_model, num_heads * d_k)) for _ in "qkv"]
    attention = [*into, *(np.zeros(num_heads * d_k) for _ in "qkv")]
    attention += [np.zeros((num_heads * d_k, d_model)), np.zeros(d_model)]
    two_maps = [np.zeros(s) for s in ((d_model, d_ff), d_ff, (d_ff, d_model), d_model)]
    norms = [np.zeros(d_model) for _ in range(4)]
    return tuple(sum(a.size for a in arrays) for arrays in (attention, two_maps, norms))


def silent_layer_rows(mean, deviation, gamma, beta, norm_first):
    """Mean and standard deviation of a row after a layer whose sublayers give 0."""
    d = 4
    x = mean + deviation * np.array([[1.0, -1.0, 1.0, -1.0]])
    square, row = np.zeros((d, d)), np.zeros(d)
    weights = {"W1": square, "b1": row, "W2": square, "b2": row}
    weights |= {f"W_{c}": square for c in "qkvo"} | {f"b_{c}": row for c in "qkvo"}
    for number in "12":
        weights[f"gamma{number}"] = np.full(d, gamma)
        weights[f"beta{number}"] = np.full(d, beta)
    y = chapter.encoder_layer(x, weights, 1, norm_first=norm_first)
    return y.mean(), y.std()


@functools.cache
def _new_layer(d_model, num_heads, d_ff, norm_first):
    import torch

    return torch.nn.TransformerEncoderLayer(
        d_model,
        num_heads,
        d_ff,
        dropout=0.0,
        batch_first=True,
        norm_first=norm_first,
        dtype=torch.float64,
    )


def torch_layer(state, x, num_heads, mask=None, norm_first=False, upstream=None):
    """PyTorch's own layer in float64; returns the output and the gradients by name.

    `state` is a dict of arrays; `mask` has shape (L, L) or (B, 1, 1, L), True = may attend, and
    every query has an allowed key.
    """
    import torch

    d_ff, d_model = state["linear1.weight"].shape
    layer = _new_layer(d_model, num_heads, d_ff, norm_first)
    layer.load_state_dict({name: torch.tensor(array) for name, array in state.items()})
    layer.zero_grad()
    x = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    masks = {}
    if mask is not None:
        hidden = torch.tensor(~np.asarray(mask))
        if hidden.ndim == 2:
            masks = {"src_mask": hidden}
        else:
            masks = {"src_key_padding_mask": hidden[:, 0, 0]}
    output = layer(x, **masks)
    gradients = {}
    if upstream is not None:
        output.backward(torch.tensor(upstream))
        gradients = {name: p.grad.numpy() for name, p in layer.named_parameters()}
        gradients["x"] = x.grad.numpy()
    return output.detach().numpy(), gradients
