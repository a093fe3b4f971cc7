"""Right answers to exercise 5, written in unlike ways, and wrong ones that are not in the bank."""

import math
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

# --- predictions ---

RIGHT_PARAMETERS = {
    "the numbers": (440, 640, 40),
    "an array": np.array([440, 640, 40]),
    "numbers of NumPy": tuple(np.array([440, 640, 40])),
    "floats": [440.0, 640.0, 40.0],
}
TRIVIAL_PARAMETERS = {"zeros": (0, 0, 0), "one number": 1120, "words": ("a", "b", "c")}
NEW_WRONG_PARAMETERS = {
    "all matrices as wide as the hidden layer": ((1240, 640, 40), "(a) 1240 is not the number")
}

RIGHT_ROWS = {
    "pairs": ((1, 2), (3, 5)),
    "an array": np.array([[1, 2], [3, 5]]),
    "arrays": (np.array([1, 2]), np.array([3.0, 5.0])),
}
TRIVIAL_ROWS = {
    "zeros": ((0, 0), (0, 0)),
    "two numbers": (1, 2),
    "words": (("a", "b"), ("c", "d")),
    "None": None,
}
NEW_WRONG_ROWS = {"everything added": (((4, 7), (3, 5)), "(a) Mean 4 and standard deviation 7")}

# --- layer_norm ---


def norm_plain(x, gamma, beta, eps=1e-5):
    mean = x.mean(axis=-1, keepdims=True)
    variance = x.var(axis=-1, keepdims=True)
    return gamma * (x - mean) / np.sqrt(variance + eps) + beta


def norm_by_moments(x, gamma, beta, eps=1e-5):
    mean = np.mean(x, -1)[..., None]
    variance = np.mean(x * x, -1)[..., None] - mean**2
    return (x - mean) * (variance + eps) ** -0.5 * gamma + beta


def norm_by_loops(x, gamma, beta, eps=1e-5):
    y = np.empty(x.shape)
    for index in np.ndindex(x.shape[:-1]):
        row = x[index] - sum(x[index]) / len(x[index])
        y[index] = row / math.sqrt(sum(n * n for n in row) / len(row) + eps) * gamma + beta
    return y


def norm_by_einsum(x, gamma, beta, eps=1e-5):
    d = x.shape[-1]
    centered = x @ (np.eye(d) - 1 / d)
    root = np.sqrt(np.einsum("...i,...i->...", centered, centered) / d + eps)
    return np.einsum("...i,...,i->...i", centered, 1 / root, gamma) + beta


def norm_in_place(x, gamma, beta, eps=1e-5):
    y = x.copy()
    y -= y.mean(axis=-1, keepdims=True)
    y /= np.sqrt(np.mean(np.square(y), axis=-1, keepdims=True) + eps)
    y *= gamma
    y += beta
    return y


def norm_transposed(x, gamma, beta, eps=1e-5):
    columns = np.moveaxis(x, -1, 0)
    y = (columns - columns.mean(axis=0)) / np.sqrt(columns.var(axis=0) + eps)
    return np.moveaxis(y, 0, -1) * gamma + beta


def norm_float32(x, gamma, beta, eps=1e-5):
    return norm_plain(*(np.asarray(a, dtype=np.float32) for a in (x, gamma, beta)), eps)


def norm_along_axis(x, gamma, beta, eps=1e-5):
    def one(row):
        deviation = row - np.average(row)
        return gamma * deviation / np.hypot(np.std(row), math.sqrt(eps)) + beta

    return np.apply_along_axis(one, -1, x)


def norm_recursive(x, gamma, beta, eps=1e-5):
    if x.ndim > 1:
        return np.stack([norm_recursive(row, gamma, beta, eps) for row in x])
    return norm_plain(x, gamma, beta, eps)


RIGHT_NORM = {
    "plain": norm_plain,
    "moments": norm_by_moments,
    "loops": norm_by_loops,
    "einsum": norm_by_einsum,
    "in place on a copy": norm_in_place,
    "features first": norm_transposed,
    "float32 inside": norm_float32,
    "along the axis": norm_along_axis,
    "recursion": norm_recursive,
}
TRIVIAL_NORM = {
    "x": lambda x, gamma, beta, eps=1e-5: x,
    "zeros": lambda x, gamma, beta, eps=1e-5: np.full(x.shape, np.nan),
    "None": lambda x, gamma, beta, eps=1e-5: None,
    "a number": lambda x, gamma, beta, eps=1e-5: 1.0,
}


def norm_mean_absolute(x, gamma, beta, eps=1e-5):
    centered = x - x.mean(axis=-1, keepdims=True)
    return gamma * centered / (np.abs(centered).mean(axis=-1, keepdims=True) + eps) + beta


def norm_by_median(x, gamma, beta, eps=1e-5):
    centered = x - np.median(x, axis=-1, keepdims=True)
    return gamma * centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + eps) + beta


NEW_WRONG_NORM = {
    "mean absolute deviation": (norm_mean_absolute, "differs"),
    "median": (norm_by_median, "differs"),
}

# --- layer_norm_backward ---


def _normal(x, eps):
    centered = x - x.mean(axis=-1, keepdims=True)
    root = np.sqrt((centered**2).mean(axis=-1, keepdims=True) + eps)
    return centered / root, root


def _rows(x):
    return tuple(range(x.ndim - 1))


def norm_backward_plain(dy, x, gamma, eps=1e-5):
    normal, root = _normal(x, eps)
    g = dy * gamma
    mean = g.mean(axis=-1, keepdims=True)
    dx = (g - mean - normal * (g * normal).mean(axis=-1, keepdims=True)) / root
    return dx, (dy * normal).sum(axis=_rows(x)), dy.sum(axis=_rows(x))


def norm_backward_flat(dy, x, gamma, eps=1e-5):
    d = x.shape[-1]
    parts = norm_backward_plain(dy.reshape(-1, d), x.reshape(-1, d), gamma, eps)
    return [parts[0].reshape(x.shape), *parts[1:]]


def norm_backward_chain(dy, x, gamma, eps=1e-5):
    d = x.shape[-1]
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = (centered**2).mean(axis=-1, keepdims=True)
    normal = centered / np.sqrt(variance + eps)
    dnormal = dy * gamma
    dvariance = (dnormal * centered * -0.5 * (variance + eps) ** -1.5).sum(-1, keepdims=True)
    dcentered = dnormal / np.sqrt(variance + eps) + dvariance * 2 * centered / d
    dmean = -dcentered.sum(axis=-1, keepdims=True)
    return dcentered + dmean / d, (dy * normal).sum(axis=_rows(x)), dy.sum(axis=_rows(x))


def norm_backward_jacobian(dy, x, gamma, eps=1e-5):
    d = x.shape[-1]
    normal, root = _normal(x, eps)
    jacobian = np.eye(d) - 1 / d - normal[..., :, None] * normal[..., None, :] / d
    dx = np.einsum("...i,...ij->...j", dy * gamma, jacobian) / root
    dgamma = np.einsum("ni,ni->i", dy.reshape(-1, d), normal.reshape(-1, d))
    return dx, dgamma, np.einsum("ni->i", dy.reshape(-1, d))


def norm_backward_loops(dy, x, gamma, eps=1e-5):
    dx, dgamma, dbeta = np.zeros(x.shape), 0 * gamma, 0 * gamma
    for index in np.ndindex(x.shape[:-1]):
        normal, root = _normal(x[index], eps)
        g = dy[index] * gamma
        dx[index] = (g - g.mean() - normal * (g @ normal) / len(g)) / root
        dgamma += dy[index] * normal
        dbeta += dy[index]
    return dx, dgamma, dbeta


def norm_backward_scaled(dy, x, gamma, eps=1e-5):
    d = x.shape[-1]
    normal, root = _normal(x, eps)
    g = dy * gamma
    total, along = g.sum(-1, keepdims=True), (g * normal).sum(-1, keepdims=True)
    dx = (d * g - total - normal * along) / (d * root)
    flat = (dy * normal).reshape(-1, d)
    return dx, flat.sum(axis=0), dy.reshape(-1, d).sum(axis=0)


def norm_backward_autograd(dy, x, gamma, eps=1e-5):
    leaves = [torch.tensor(a, requires_grad=True) for a in (x, gamma, 0 * gamma)]
    y = F.layer_norm(leaves[0], gamma.shape, leaves[1], leaves[2], eps)
    return tuple(g.numpy() for g in torch.autograd.grad(y, leaves, torch.tensor(dy)))


def norm_backward_differences(dy, x, gamma, eps=1e-5):
    dx = np.zeros(x.shape)
    for column in range(x.shape[-1]):  # rows do not touch each other, so all move at once
        step = 1e-6 * (np.arange(x.shape[-1]) == column)
        step = step * _normal(x, eps)[1]
        change = _normal(x + step, eps)[0] - _normal(x - step, eps)[0]
        width = 2e-6 * _normal(x, eps)[1][..., 0]
        dx[..., column] = (dy * gamma * change).sum(axis=-1) / width
    return dx, (dy * _normal(x, eps)[0]).sum(axis=_rows(x)), dy.sum(axis=_rows(x))


def norm_backward_one_by_one(dy, x, gamma, eps=1e-5):
    if x.ndim == 1:
        return norm_backward_loops(dy, x, gamma, eps)
    parts = [norm_backward_one_by_one(a, b, gamma, eps) for a, b in zip(dy, x, strict=True)]
    dx, dgamma, dbeta = zip(*parts, strict=True)
    return np.stack(dx), sum(dgamma), sum(dbeta)


RIGHT_NORM_BACKWARD = {
    "plain": norm_backward_plain,
    "flat": norm_backward_flat,
    "chain rule": norm_backward_chain,
    "Jacobian": norm_backward_jacobian,
    "loops": norm_backward_loops,
    "scaled by d": norm_backward_scaled,
    "autograd": norm_backward_autograd,
    "differences": norm_backward_differences,
    "recursion": norm_backward_one_by_one,
}
TRIVIAL_NORM_BACKWARD = {
    "None": lambda dy, x, gamma, eps=1e-5: None,
    "zeros": lambda dy, x, gamma, eps=1e-5: (0 * x, 0 * gamma, 0 * gamma),
    "dy": lambda dy, x, gamma, eps=1e-5: (x, gamma, gamma),
}


def norm_backward_clipped(dy, x, gamma, eps=1e-5):
    return tuple(np.clip(a, -0.2, 0.2) for a in norm_backward_plain(dy, x, gamma, eps))


def norm_backward_twice_beta(dy, x, gamma, eps=1e-5):
    dx, dgamma, dbeta = norm_backward_plain(dy, x, gamma, eps)
    return dx, dgamma, 2 * dbeta


NEW_WRONG_NORM_BACKWARD = {
    "clipped": (norm_backward_clipped, "dbeta differs"),
    "dbeta twice": (norm_backward_twice_beta, "dbeta differs"),
}

# --- rms_norm ---


def rms_plain(x, gamma, eps=1e-5):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * gamma


def rms_loops(x, gamma, eps=1e-5):
    y = np.empty(x.shape)
    for index in np.ndindex(x.shape[:-1]):
        y[index] = gamma * x[index] / math.sqrt(np.dot(x[index], x[index]) / x.shape[-1] + eps)
    return y


def rms_by_norm(x, gamma, eps=1e-5):
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    return gamma * x / np.hypot(length / math.sqrt(x.shape[-1]), math.sqrt(eps))


def rms_einsum(x, gamma, eps=1e-5):
    square = np.einsum("...i,...i->...", x, x) / x.shape[-1]
    return np.einsum("...i,...,i->...i", x, (square + eps) ** -0.5, gamma)


def rms_in_place(x, gamma, eps=1e-5):
    y = np.array(x)
    y /= np.sqrt(np.square(y).sum(axis=-1, keepdims=True) / y.shape[-1] + eps)
    y *= gamma
    return y


def rms_float32(x, gamma, eps=1e-5):
    return rms_plain(x.astype(np.float32), gamma.astype(np.float32), np.float32(eps))


def rms_from_moments(x, gamma, eps=1e-5):
    square = x.var(axis=-1, keepdims=True) + x.mean(axis=-1, keepdims=True) ** 2
    return x * gamma * (square + eps) ** -0.5


def rms_recursive(x, gamma, eps=1e-5):
    if x.ndim > 1:
        return np.array([rms_recursive(row, gamma, eps) for row in x])
    return rms_plain(x, gamma, eps)


RIGHT_RMS = {
    "plain": rms_plain,
    "loops": rms_loops,
    "norm": rms_by_norm,
    "einsum": rms_einsum,
    "in place on a copy": rms_in_place,
    "float32 inside": rms_float32,
    "moments": rms_from_moments,
    "recursion": rms_recursive,
}
TRIVIAL_RMS = {
    "x": lambda x, gamma, eps=1e-5: x,
    "zeros": lambda x, gamma, eps=1e-5: 0 * x,
    "None": lambda x, gamma, eps=1e-5: None,
}


def rms_largest(x, gamma, eps=1e-5):
    return gamma * x / np.sqrt((x**2).max(axis=-1, keepdims=True) + eps)


def rms_signs_lost(x, gamma, eps=1e-5):
    return rms_plain(np.abs(x), gamma, eps)


NEW_WRONG_RMS = {"largest": (rms_largest, "differs"), "absolute": (rms_signs_lost, "differs")}

# --- rms_norm_backward ---


def rms_backward_plain(dy, x, gamma, eps=1e-5):
    root = np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)
    normal, g = x / root, dy * gamma
    dx = (g - normal * (g * normal).mean(axis=-1, keepdims=True)) / root
    return dx, (dy * normal).sum(axis=_rows(x))


def rms_backward_quotient(dy, x, gamma, eps=1e-5):
    d = x.shape[-1]
    root = np.sqrt(np.einsum("...i,...i->...", x, x) / d + eps)[..., None]
    along = np.einsum("...i,...i,i->...", dy, x, gamma)[..., None]
    dgamma = np.einsum("ni->i", (dy * x / root).reshape(-1, d))
    return dy * gamma / root - x * along / (d * root**3), dgamma


def rms_backward_chain(dy, x, gamma, eps=1e-5):
    square = np.square(x).mean(axis=-1, keepdims=True) + eps
    dnormal = dy * gamma
    dsquare = (dnormal * x * -0.5 * square**-1.5).sum(axis=-1, keepdims=True)
    dx = dnormal * square**-0.5 + dsquare * 2 * x / x.shape[-1]
    return [dx, (dy * x * square**-0.5).reshape(-1, x.shape[-1]).sum(axis=0)]


def rms_backward_jacobian(dy, x, gamma, eps=1e-5):
    d = x.shape[-1]
    root = np.sqrt((x * x).sum(axis=-1, keepdims=True) / d + eps)
    normal = x / root
    jacobian = (np.eye(d) - normal[..., :, None] * normal[..., None, :] / d) / root[..., None]
    dx = ((dy * gamma)[..., None, :] @ jacobian)[..., 0, :]
    return dx, np.tensordot(dy * normal, np.ones(x.shape[:-1]), axes=(_rows(x), _rows(x)))


def rms_backward_loops(dy, x, gamma, eps=1e-5):
    dx, dgamma = np.zeros(x.shape), 0 * gamma
    for index in np.ndindex(x.shape[:-1]):
        root = math.sqrt(x[index] @ x[index] / len(gamma) + eps)
        normal, g = x[index] / root, dy[index] * gamma
        dx[index] = (g - normal * (g @ normal) / len(gamma)) / root
        dgamma += dy[index] * normal
    return dx, dgamma


def rms_backward_autograd(dy, x, gamma, eps=1e-5):
    leaves = [torch.tensor(a, requires_grad=True) for a in (x, gamma)]
    y = leaves[1] * leaves[0] / (leaves[0].square().mean(-1, keepdim=True) + eps).sqrt()
    return tuple(g.numpy() for g in torch.autograd.grad(y, leaves, torch.tensor(dy)))


def rms_backward_differences(dy, x, gamma, eps=1e-5):
    dx, ones = np.zeros(x.shape), np.ones(x.shape[-1])
    width = 1e-5 * np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)
    for column in range(x.shape[-1]):  # tokens do not touch each other, so all move at once
        step = width * (np.arange(x.shape[-1]) == column)
        change = rms_plain(x + step, ones, eps) - rms_plain(x - step, ones, eps)
        dx[..., column] = (dy * gamma * change).sum(axis=-1) / (2 * width[..., 0])
    return dx, (dy * rms_plain(x, ones, eps)).sum(axis=_rows(x))


def rms_backward_one_by_one(dy, x, gamma, eps=1e-5):
    if x.ndim == 1:
        return rms_backward_plain(dy, x, gamma, eps)
    parts = [rms_backward_one_by_one(a, b, gamma, eps) for a, b in zip(dy, x, strict=True)]
    dx, dgamma = zip(*parts, strict=True)
    return np.stack(dx), sum(dgamma)


def rms_backward_float32(dy, x, gamma, eps=1e-5):
    return rms_backward_plain(*(a.astype(np.float32) for a in (dy, x, gamma)), np.float32(eps))


RIGHT_RMS_BACKWARD = {
    "plain": rms_backward_plain,
    "quotient rule": rms_backward_quotient,
    "chain rule": rms_backward_chain,
    "Jacobian": rms_backward_jacobian,
    "loops": rms_backward_loops,
    "autograd": rms_backward_autograd,
    "differences": rms_backward_differences,
    "recursion": rms_backward_one_by_one,
    "float32 inside": rms_backward_float32,
}
TRIVIAL_RMS_BACKWARD = {
    "None": lambda dy, x, gamma, eps=1e-5: None,
    "zeros": lambda dy, x, gamma, eps=1e-5: (0 * x, 0 * gamma),
    "its arguments": lambda dy, x, gamma, eps=1e-5: (dy, gamma),
}


def rms_backward_clipped(dy, x, gamma, eps=1e-5):
    return tuple(np.clip(a, -0.1, 0.1) for a in rms_backward_plain(dy, x, gamma, eps))


def rms_backward_negative(dy, x, gamma, eps=1e-5):
    dx, dgamma = rms_backward_plain(dy, x, gamma, eps)
    return -dx, dgamma


NEW_WRONG_RMS_BACKWARD = {
    "clipped": (rms_backward_clipped, "dgamma differs"),
    "negative": (rms_backward_negative, "differs"),
}

# --- feed_forward ---


def forward_plain(x, W1, b1, W2, b2):
    return np.maximum(x @ W1 + b1, 0) @ W2 + b2


def forward_where(x, W1, b1, W2, b2):
    before = np.matmul(x, W1) + b1
    return np.where(before > 0, before, 0.0) @ W2 + b2


def forward_einsum(x, W1, b1, W2, b2):
    before = np.einsum("...i,ij->...j", x, W1) + b1
    return np.einsum("...j,jk->...k", before * (before > 0), W2) + b2


def forward_loops(x, W1, b1, W2, b2):
    y = np.empty((*x.shape[:-1], len(b2)))
    for index in np.ndindex(x.shape[:-1]):
        y[index] = b2
        for k in range(len(b1)):
            y[index] += max(0.0, x[index] @ W1[:, k] + b1[k]) * W2[k]
    return y


def forward_in_place(x, W1, b1, W2, b2):
    hidden = x @ W1
    hidden += b1
    hidden[hidden < 0] = 0
    return hidden @ W2 + b2


def forward_float32(x, W1, b1, W2, b2):
    return forward_plain(*(a.astype(np.float32) for a in (x, W1, b1, W2, b2)))


def forward_absolute(x, W1, b1, W2, b2):
    before = np.tensordot(x, W1, axes=1) + b1
    return ((before + np.abs(before)) / 2) @ W2 + b2


def forward_with_ones(x, W1, b1, W2, b2):
    ones = np.ones((*x.shape[:-1], 1))
    hidden = np.concatenate([x, ones], axis=-1) @ np.vstack([W1, b1])
    hidden = np.concatenate([hidden.clip(min=0), ones], axis=-1)
    return hidden @ np.vstack([W2, b2])


def forward_column_by_column(x, W1, b1, W2, b2):
    parts = [np.fmax(x @ W1[:, k] + b1[k], 0)[..., None] * W2[k] for k in range(len(b1))]
    return b2 + sum(parts)


RIGHT_FORWARD = {
    "plain": forward_plain,
    "where": forward_where,
    "einsum": forward_einsum,
    "loops": forward_loops,
    "in place on its own temporaries": forward_in_place,
    "float32 inside": forward_float32,
    "absolute values": forward_absolute,
    "a column of ones": forward_with_ones,
    "hidden numbers one by one": forward_column_by_column,
}
TRIVIAL_FORWARD = {
    "x": lambda x, W1, b1, W2, b2: x,
    "zeros": lambda x, W1, b1, W2, b2: 0 * x,
    "None": lambda x, W1, b1, W2, b2: None,
}


def forward_tanh(x, W1, b1, W2, b2):
    return np.tanh(x @ W1 + b1) @ W2 + b2


def forward_normalized(x, W1, b1, W2, b2):
    y = forward_plain(x, W1, b1, W2, b2)
    return y / np.linalg.norm(y, axis=-1, keepdims=True)


NEW_WRONG_FORWARD = {
    "tanh": (forward_tanh, "feed_forward(x)"),
    "normalized": (forward_normalized, "feed_forward(x)"),
}

# --- swiglu ---


def swiglu_plain(x, W1, W2, W3):
    z = x @ W1
    return (z * (1 + np.tanh(z / 2)) / 2 * (x @ W3)) @ W2


def swiglu_exponential(x, W1, W2, W3):
    z = x @ W1
    with np.errstate(over="ignore"):
        return (z / (1 + np.exp(-z)) * (x @ W3)) @ W2


def swiglu_two_sides(x, W1, W2, W3):
    z = np.matmul(x, W1)
    power = np.exp(-np.abs(z))
    return np.matmul(z * np.where(z >= 0, 1, power) / (1 + power) * np.matmul(x, W3), W2)


def swiglu_logarithms(x, W1, W2, W3):
    z = np.tensordot(x, W1, axes=1)
    return (z * np.exp(-np.logaddexp(0, -z)) * np.tensordot(x, W3, axes=1)) @ W2


def swiglu_fused(x, W1, W2, W3):
    z, up = np.split(x @ np.concatenate([W1, W3], axis=1), 2, axis=-1)
    hidden = 0.5 * z + 0.5 * z * np.tanh(0.5 * z)
    hidden *= up
    return hidden @ W2


def swiglu_einsum(x, W1, W2, W3):
    z = np.einsum("...i,ij->...j", x, W1)
    gate = z / (1 + np.exp(-z.clip(-700, 700)))
    return np.einsum("...j,...i,ij,jk->...k", gate, x, W3, W2)


def swiglu_loops(x, W1, W2, W3):
    y = np.zeros((*x.shape[:-1], W2.shape[1]))
    for index in np.ndindex(x.shape[:-1]):
        for k in range(W1.shape[1]):
            z = x[index] @ W1[:, k]
            gate = z * (1 + math.tanh(z / 2)) / 2
            y[index] += gate * (x[index] @ W3[:, k]) * W2[k]
    return y


def swiglu_flat(x, W1, W2, W3):
    flat = x.reshape(-1, x.shape[-1])
    return swiglu_plain(flat, W1, W2, W3).reshape(x.shape)


def swiglu_float32(x, W1, W2, W3):
    return swiglu_plain(*(a.astype(np.float32) for a in (x, W1, W2, W3)))


RIGHT_SWIGLU = {
    "plain": swiglu_plain,
    "exponential": swiglu_exponential,
    "two sides": swiglu_two_sides,
    "logarithms": swiglu_logarithms,
    "one matrix for both maps": swiglu_fused,
    "einsum": swiglu_einsum,
    "loops": swiglu_loops,
    "flat": swiglu_flat,
    "float32 inside": swiglu_float32,
}
TRIVIAL_SWIGLU = {
    "x": lambda x, W1, W2, W3: x,
    "zeros": lambda x, W1, W2, W3: 0 * x,
    "None": lambda x, W1, W2, W3: None,
}


def swiglu_with_tanh(x, W1, W2, W3):
    return (np.tanh(x @ W1) * (x @ W3)) @ W2


def swiglu_halved(x, W1, W2, W3):
    return swiglu_plain(x, W1, W2, W3) / 2


NEW_WRONG_SWIGLU = {
    "tanh": (swiglu_with_tanh, "swiglu(x)"),
    "halved": (swiglu_halved, "swiglu(x)"),
}

# --- mended_feed_forward_backward ---


def maps_plain(dy, x, W1, b1, W2, b2):
    before = x @ W1 + b1
    hidden = np.maximum(before, 0)
    dhidden = dy @ W2.T
    dbefore = dhidden * (before > 0)
    rows = tuple(range(x.ndim - 1))
    dW2 = np.tensordot(hidden, dy, axes=(rows, rows))
    dW1 = np.tensordot(x, dbefore, axes=(rows, rows))
    return dbefore @ W1.T, dW1, dbefore.sum(axis=rows), dW2, dy.sum(axis=rows)


def maps_flat(dy, x, W1, b1, W2, b2):
    flat_x, flat_dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    hidden = np.maximum(flat_x @ W1 + b1, 0)
    dbefore = (flat_dy @ W2.T) * (hidden > 0)
    return (
        (dbefore @ W1.T).reshape(x.shape),
        flat_x.T @ dbefore,
        dbefore.sum(axis=0),
        hidden.T @ flat_dy,
        flat_dy.sum(axis=0),
    )


def maps_einsum(dy, x, W1, b1, W2, b2):
    shape, x, dy = x.shape, x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    hidden = np.maximum(x @ W1 + b1, 0)
    dbefore = np.einsum("no,fo->nf", dy, W2) * np.sign(hidden)
    return [
        np.einsum("nf,df->nd", dbefore, W1).reshape(shape),
        np.einsum("nd,nf->df", x, dbefore),
        np.einsum("nf->f", dbefore),
        np.einsum("nf,no->fo", hidden, dy),
        np.einsum("no->o", dy),
    ]


def maps_loops(dy, x, W1, b1, W2, b2):
    dx, dW1, db1, dW2, db2 = (np.zeros(a.shape) for a in (x, W1, b1, W2, b2))
    for index in np.ndindex(x.shape[:-1]):
        before = x[index] @ W1 + b1
        dbefore = np.where(before > 0, W2 @ dy[index], 0)
        dx[index] = W1 @ dbefore
        dW1 += np.outer(x[index], dbefore)
        db1 += dbefore
        dW2 += np.outer(np.maximum(before, 0), dy[index])
        db2 += dy[index]
    return dx, dW1, db1, dW2, db2


def maps_autograd(dy, *arrays):
    leaves = [torch.tensor(a, requires_grad=True) for a in arrays]
    x, W1, b1, W2, b2 = leaves
    y = torch.relu(x @ W1 + b1) @ W2 + b2
    return tuple(g.numpy() for g in torch.autograd.grad(y, leaves, torch.tensor(dy)))


def maps_swapped(dy, x, W1, b1, W2, b2):
    before = x @ W1 + b1
    on = before > 0
    dbefore = np.where(on, dy @ np.transpose(W2), 0.0)
    rows = tuple(range(x.ndim - 1))
    dW1 = (np.swapaxes(x, -1, -2) @ dbefore).reshape(-1, *W1.shape).sum(axis=0)
    dW2 = (np.swapaxes(before * on, -1, -2) @ dy).reshape(-1, *W2.shape).sum(axis=0)
    return dbefore @ W1.T, dW1, np.sum(dbefore, axis=rows), dW2, np.sum(dy, axis=rows)


def maps_float32(*arrays):
    return maps_plain(*(a.astype(np.float32) for a in arrays))


def maps_in_place(dy, x, W1, b1, W2, b2):
    hidden = x @ W1 + b1
    hidden[hidden < 0] = 0
    dbefore = dy @ W2.T
    dbefore[hidden == 0] = 0
    ones = np.ones(x.shape[:-1]).reshape(1, -1)
    flat = dbefore.reshape(-1, len(b1))
    dW2 = hidden.reshape(-1, len(b1)).T @ dy.reshape(-1, len(b2))
    db2 = (ones @ dy.reshape(-1, len(b2)))[0]
    return dbefore @ W1.T, x.reshape(-1, x.shape[-1]).T @ flat, (ones @ flat)[0], dW2, db2


RIGHT_MAPS = {
    "tensordot": maps_plain,
    "flat": maps_flat,
    "einsum": maps_einsum,
    "loops": maps_loops,
    "autograd": maps_autograd,
    "swapped axes": maps_swapped,
    "float32 inside": maps_float32,
    "in place on its own temporaries": maps_in_place,
}
TRIVIAL_MAPS = {
    "None": lambda dy, x, W1, b1, W2, b2: None,
    "zeros": lambda dy, x, W1, b1, W2, b2: (0 * x, 0 * W1, 0 * b1, 0 * W2, 0 * b2),
    "the arrays": lambda dy, x, W1, b1, W2, b2: (x, W1, b1, W2, b2),
}


def maps_clipped(*arrays):
    return tuple(np.clip(a, -0.3, 0.3) for a in maps_plain(*arrays))


def maps_negative(*arrays):
    return tuple(-a for a in maps_plain(*arrays))


NEW_WRONG_MAPS = {"clipped": (maps_clipped, "dW2"), "negative": (maps_negative, "dW2")}

# --- dropout ---


def dropout_plain(x, p, training=True, rng=None):
    if not training:
        return x
    rng = np.random.default_rng() if rng is None else rng
    return np.where(rng.random(x.shape) < p, 0.0, x / (1 - p))


def dropout_binomial(x, p, training=True, rng=None):
    if not training or p == 0:
        return x.copy()
    rng = rng or np.random.default_rng()
    return x * rng.binomial(1, 1 - p, size=x.shape) / (1 - p)


def dropout_choice(x, p, training=True, rng=None):
    rng = np.random.default_rng() if rng is None else rng
    return x * rng.choice([0, 1 / (1 - p)], p=[p, 1 - p], size=x.shape) if training else x


def dropout_in_place(x, p, training=True, rng=None):
    y = np.array(x, dtype=float)
    if training:
        rng = np.random.default_rng() if rng is None else rng
        y[rng.uniform(size=x.shape) < p] = 0
        y /= 1 - p
    return y


def dropout_loops(x, p, training=True, rng=None):
    rng = rng if rng is not None else np.random.default_rng()
    y = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        if not training:
            y[index] = x[index]
        elif rng.random() >= p:
            y[index] = x[index] / (1 - p)
    return y


def dropout_float32(x, p, training=True, rng=None):
    keep = (rng or np.random.default_rng()).random(x.shape, dtype=np.float32) >= p
    return x.astype(np.float32) * keep / np.float32(1 - p) if training else x


def dropout_normal(x, p, training=True, rng=None):
    if not training:
        return x + 0
    rng = np.random.default_rng() if rng is None else rng
    ranks = rng.uniform(low=-1.0, high=1.0, size=x.shape)
    return np.multiply(x, (ranks > 2 * p - 1).astype(float)) / (1.0 - p)


def dropout_masked(x, p, training=True, rng=None):
    if not training:
        return 1 * x
    keep = (np.random.default_rng() if rng is None else rng).random(x.shape) > p
    return np.ma.masked_array(x / (1 - p), ~keep).filled(0)


RIGHT_DROPOUT = {
    "where": dropout_plain,
    "binomial": dropout_binomial,
    "choice": dropout_choice,
    "in place on a copy": dropout_in_place,
    "loops": dropout_loops,
    "float32 inside": dropout_float32,
    "another interval": dropout_normal,
    "masked array": dropout_masked,
}
TRIVIAL_DROPOUT = {
    "x": lambda x, p, training=True, rng=None: x,
    "zeros": lambda x, p, training=True, rng=None: 0 * x,
    "None": lambda x, p, training=True, rng=None: None,
}


def dropout_half_always(x, p, training=True, rng=None):
    return dropout_plain(x, 0.5, training, rng) if p < 0.9 else 0 * x


def dropout_noise(x, p, training=True, rng=None):
    y = dropout_plain(x, p, training, rng)
    return y + 0.1 * (y != 0) if training else y


def dropout_of_a_chosen_half(x, p, training=True, rng=None):
    if not training:
        return x
    rng = rng or np.random.default_rng()
    y = x.ravel() / (1 - p)
    y[rng.choice(x.size, round(p * x.size), replace=False)] = 0
    return y.reshape(x.shape)


def dropout_seed_of_the_size(x, p, training=True, rng=None):
    return dropout_plain(x, p, training, rng or np.random.default_rng(x.size))


NEW_WRONG_DROPOUT = {
    "an exact number": (dropout_of_a_chosen_half, "12 times, with p = 0.5"),
    "a seed that depends on x": (dropout_seed_of_the_size, "Two calls without rng"),
    "one half always": (dropout_half_always, "With p = 0.2 a share of"),
    "noise": (dropout_noise, "What stays, divided by x"),
}

# --- mended_dropout ---


def mended_plain(x, dy, p, training=True, rng=None):
    if not training:
        return x, dy
    rng = np.random.default_rng() if rng is None else rng
    factor = (rng.random(x.shape) >= p) / (1 - p)
    return x * factor, dy * factor


def mended_where(x, dy, p, training=True, rng=None):
    if not training:
        return x.copy(), dy.copy()
    dropped = (rng or np.random.default_rng()).random(x.shape) < p
    return np.where(dropped, 0, x / (1 - p)), np.where(dropped, 0, dy / (1 - p))


def mended_binomial(x, dy, p, training=True, rng=None):
    rng = rng or np.random.default_rng()
    factor = rng.binomial(1, 1 - p, size=x.shape) / (1 - p) if training else 1
    return [x * factor, dy * factor]


def mended_choice(x, dy, p, training=True, rng=None):
    rng = np.random.default_rng() if rng is None else rng
    factor = rng.choice([0, 1 / (1 - p)], p=[p, 1 - p], size=x.shape) if training else 1.0
    return tuple(factor * np.stack([x, dy]))


def mended_in_place(x, dy, p, training=True, rng=None):
    y, dx = np.array(x, dtype=float), np.array(dy, dtype=float)
    if training:
        dropped = (np.random.default_rng() if rng is None else rng).uniform(size=x.shape) < p
        for array in (y, dx):
            array[dropped] = 0
            array /= 1 - p
    return y, dx


def mended_loops(x, dy, p, training=True, rng=None):
    rng = np.random.default_rng() if rng is None else rng
    y, dx = np.zeros(x.shape), np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        if not training:
            y[index], dx[index] = x[index], dy[index]
        elif rng.random() >= p:
            y[index], dx[index] = x[index] / (1 - p), dy[index] / (1 - p)
    return y, dx


def mended_float32(x, dy, p, training=True, rng=None):
    x, dy = x.astype(np.float32), dy.astype(np.float32)
    keep = (rng or np.random.default_rng()).random(x.shape, dtype=np.float32) >= p
    scale = np.float32(1 - p)
    return (x * keep / scale, dy * keep / scale) if training else (x, dy)


def mended_by_ones(x, dy, p, training=True, rng=None):
    factor = dropout_normal(np.ones(x.shape), p, training, rng)
    return x * factor, dy * factor


def mended_restarted(x, dy, p, training=True, rng=None):
    rng = np.random.default_rng() if rng is None else rng
    state = rng.bit_generator.state
    y = dropout_plain(x, p, training, rng)
    rng.bit_generator.state = state  # the same numbers once more
    return y, dropout_plain(dy, p, training, rng)


RIGHT_MENDED_DROPOUT = {
    "one factor": mended_plain,
    "where": mended_where,
    "binomial": mended_binomial,
    "choice": mended_choice,
    "in place on copies": mended_in_place,
    "loops": mended_loops,
    "float32 inside": mended_float32,
    "dropout of ones": mended_by_ones,
    "generator put back": mended_restarted,
}
TRIVIAL_MENDED_DROPOUT = {
    "its arguments": lambda x, dy, p, training=True, rng=None: (x, dy),
    "zeros": lambda x, dy, p, training=True, rng=None: (0 * x, 0 * dy),
    "None": lambda x, dy, p, training=True, rng=None: None,
}


def mended_drops_columns(x, dy, p, training=True, rng=None):
    if not training:
        return x, dy
    y, dx = mended_plain(x, dy, p, training, rng)
    return y, dx * (np.arange(x.shape[-1]) > 0)


def mended_adds_noise(x, dy, p, training=True, rng=None):
    y, dx = mended_plain(x, dy, p, training, rng)
    return y, dx + 0.1 * (dx != 0) if training else dx


NEW_WRONG_MENDED_DROPOUT = {
    "first column": (mended_drops_columns, "were dropped in one of y and dx"),
    "noise": (mended_adds_noise, "What stays of dx, divided by dy"),
}

# --- positional_encoding ---


def positions_plain(L, d_model):
    angle = np.arange(L)[:, None] / 10000 ** (np.arange(0, d_model, 2) / d_model)
    encoding = np.zeros((L, d_model))
    encoding[:, 0::2] = np.sin(angle)
    encoding[:, 1::2] = np.cos(angle)[:, : d_model // 2]
    return encoding


def positions_exponentials(L, d_model):
    rates = np.exp(-np.log(10000.0) * np.arange(0, d_model, 2) / d_model)
    angle = np.outer(np.arange(L), rates)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(L, -1)[:, :d_model]


def positions_loops(L, d_model):
    encoding = np.zeros((L, d_model))
    for position in range(L):
        for i in range(0, d_model, 2):
            angle = position / 10000 ** (i / d_model)
            encoding[position, i] = math.sin(angle)
            if i + 1 < d_model:
                encoding[position, i + 1] = math.cos(angle)
    return encoding


def positions_shifted(L, d_model):
    column = np.arange(d_model)
    angle = np.arange(L)[:, None] * 10000.0 ** (-2 * (column // 2) / d_model)
    return np.sin(angle + (column % 2) * np.pi / 2)


def positions_complex(L, d_model):
    angle = np.arange(L)[:, None] / 10000 ** (2 * np.arange((d_model + 1) // 2) / d_model)
    wave = np.exp(1j * angle)
    return np.dstack([wave.imag, wave.real]).reshape(L, -1)[:, :d_model]


def positions_where(L, d_model):
    column = np.arange(d_model)
    angle = np.arange(L)[:, None] / np.power(10000, (column - column % 2) / d_model)
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle))


def positions_float32(L, d_model):
    rates = (10000 ** (-np.arange(0, d_model, 2) / d_model)).astype(np.float32)
    angle = np.arange(L, dtype=np.float32)[:, None] * rates
    encoding = np.empty((L, d_model), dtype=np.float32)
    encoding[:, ::2], encoding[:, 1::2] = np.sin(angle), np.cos(angle[:, : d_model // 2])
    return encoding


def positions_padded(L, d_model):
    even = d_model + d_model % 2
    encoding = np.zeros((L, even))
    angle = np.einsum("l,i->li", np.arange(L), 10000 ** (-np.arange(0, even, 2) / d_model))
    encoding[:, 0::2], encoding[:, 1::2] = np.sin(angle), np.cos(angle)
    return encoding[:, :d_model]


RIGHT_POSITIONS = {
    "plain": positions_plain,
    "exponentials": positions_exponentials,
    "loops": positions_loops,
    "shifted sines": positions_shifted,
    "complex": positions_complex,
    "where": positions_where,
    "float32 inside": positions_float32,
    "padded": positions_padded,
}
TRIVIAL_POSITIONS = {
    "zeros": lambda L, d_model: np.zeros((L, d_model)),
    "ones": lambda L, d_model: np.ones((L, d_model)),
    "None": lambda L, d_model: None,
}


def positions_base_1000(L, d_model):
    column = np.arange(d_model)
    angle = np.arange(L)[:, None] / 1000 ** ((column - column % 2) / d_model)
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle))


def positions_normalized(L, d_model):
    encoding = positions_plain(L, d_model)
    return encoding / np.linalg.norm(encoding, axis=-1, keepdims=True).clip(1e-9)


NEW_WRONG_POSITIONS = {
    "base 1000": (positions_base_1000, "[1:, ::2]"),
    "normalized": (positions_normalized, "Row 0"),
}

# --- rotary_encoding ---


def _angles(d, positions):
    return np.asarray(positions)[:, None] / 10000 ** (np.arange(0, d, 2) / d)


def rotary_plain(x, positions):
    angle = _angles(x.shape[-1], positions)
    cos, sin = np.cos(angle), np.sin(angle)
    y = np.empty(x.shape)
    y[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    y[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return y


def rotary_complex(x, positions):
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * _angles(x.shape[-1], positions))
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def rotary_matrices(x, positions):
    angle = _angles(x.shape[-1], positions)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    return np.einsum("ablp,...lpb->...lpa", turn, pairs).reshape(x.shape)


def rotary_blocks(x, positions):
    y = np.zeros(x.shape)
    d = x.shape[-1]
    for place, row in enumerate(_angles(d, positions)):
        R = np.zeros((d, d))
        for i, a in enumerate(row):
            R[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [
                [math.cos(a), -math.sin(a)],
                [math.sin(a), math.cos(a)],
            ]
        y[..., place, :] = x[..., place, :] @ R.T
    return y


def rotary_partner(x, positions):
    angle = np.repeat(_angles(x.shape[-1], positions), 2, axis=-1)
    partner = np.stack([-x[..., 1::2], x[..., 0::2]], axis=-1).reshape(x.shape)
    return x * np.cos(angle) + partner * np.sin(angle)


def rotary_loops(x, positions):
    y = np.empty(x.shape)
    for *lead, place, i in np.ndindex(*x.shape[:-1], x.shape[-1] // 2):
        a = positions[place] / 10000 ** (2 * i / x.shape[-1])
        first, second = x[(*lead, place, slice(2 * i, 2 * i + 2))]
        y[(*lead, place, 2 * i)] = first * math.cos(a) - second * math.sin(a)
        y[(*lead, place, 2 * i + 1)] = first * math.sin(a) + second * math.cos(a)
    return y


def rotary_polar(x, positions):
    radius = np.hypot(x[..., 0::2], x[..., 1::2])
    angle = np.arctan2(x[..., 1::2], x[..., 0::2]) + _angles(x.shape[-1], positions)
    y = np.empty(x.shape)
    y[..., 0::2], y[..., 1::2] = radius * np.cos(angle), radius * np.sin(angle)
    return y


def rotary_float32(x, positions):
    angle = _angles(x.shape[-1], positions).astype(np.float32)
    first, second = x[..., ::2].astype(np.float32), x[..., 1::2].astype(np.float32)
    parts = first * np.cos(angle) - second * np.sin(angle), first * np.sin(angle)
    return np.stack([parts[0], parts[1] + second * np.cos(angle)], axis=-1).reshape(x.shape)


def rotary_in_place(x, positions):
    y = x.copy()
    for i, angle in enumerate(_angles(x.shape[-1], positions).T):
        first = y[..., 2 * i].copy()
        y[..., 2 * i] = first * np.cos(angle) - y[..., 2 * i + 1] * np.sin(angle)
        y[..., 2 * i + 1] = first * np.sin(angle) + y[..., 2 * i + 1] * np.cos(angle)
    return y


RIGHT_ROTARY = {
    "plain": rotary_plain,
    "complex": rotary_complex,
    "matrices": rotary_matrices,
    "one matrix a position": rotary_blocks,
    "partner": rotary_partner,
    "loops": rotary_loops,
    "polar": rotary_polar,
    "float32 inside": rotary_float32,
    "in place on a copy": rotary_in_place,
}
TRIVIAL_ROTARY = {
    "x": lambda x, positions: x,
    "zeros": lambda x, positions: 0 * x,
    "None": lambda x, positions: None,
}


def rotary_mirrored(x, positions):
    return rotary_plain(x[..., ::-1], positions)


def rotary_half_angle(x, positions):
    return rotary_plain(x, np.asarray(positions) / 2)


NEW_WRONG_ROTARY = {
    "mirrored": (rotary_mirrored, "rotary_encoding"),
    "half the angle": (rotary_half_angle, "rotary_encoding"),
}

# --- encoder_layer ---


def _attend(x, w, num_heads, mask=None):
    B, L, d = x.shape
    q, k, v = (
        (x @ w[f"W_{c}"] + w[f"b_{c}"]).reshape(B, L, num_heads, -1).swapaxes(1, 2) for c in "qkv"
    )
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -1e30)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    context = powers / powers.sum(axis=-1, keepdims=True) @ v
    return context.swapaxes(1, 2).reshape(B, L, d) @ w["W_o"] + w["b_o"]


def _think(x, w):
    return np.maximum(x @ w["W1"] + w["b1"], 0) @ w["W2"] + w["b2"]


def _norm(x, w, number):
    return norm_plain(x, w[f"gamma{number}"], w[f"beta{number}"])


def layer_plain(x, weights, num_heads, mask=None, norm_first=False):
    w = weights
    if norm_first:
        x = x + _attend(_norm(x, w, 1), w, num_heads, mask)
        return x + _think(_norm(x, w, 2), w)
    x = _norm(x + _attend(x, w, num_heads, mask), w, 1)
    return _norm(x + _think(x, w), w, 2)


def layer_by_sublayers(x, weights, num_heads, mask=None, norm_first=False):
    sublayers = [lambda x: _attend(x, weights, num_heads, mask), lambda x: _think(x, weights)]
    for number, sublayer in enumerate(sublayers, start=1):
        before = _norm(x, weights, number) if norm_first else x
        x = x + sublayer(before)
        x = x if norm_first else _norm(x, weights, number)
    return x


def layer_head_by_head(x, weights, num_heads, mask=None, norm_first=False):
    w, d = weights, x.shape[-1] // num_heads

    def attend(x):
        L = x.shape[1]
        allowed = np.broadcast_to(True if mask is None else mask, (len(x), 1, L, L))[:, 0]
        y = np.zeros(x.shape) + w["b_o"]
        for h in range(num_heads):
            mine = slice(h * d, (h + 1) * d)
            q, k, v = (x @ w[f"W_{c}"][:, mine] + w[f"b_{c}"][mine] for c in "qkv")
            scores = np.einsum("bqd,bkd->bqk", q, k) / np.sqrt(d)
            powers = np.exp(scores - scores.max(axis=-1, keepdims=True)) * allowed
            y += powers / powers.sum(axis=-1, keepdims=True) @ v @ w["W_o"][mine]
        return y

    if norm_first:
        x = x + attend(_norm(x, w, 1))
        return x + _think(_norm(x, w, 2), w)
    x = _norm(x + attend(x), w, 1)
    return _norm(x + _think(x, w), w, 2)


def layer_sample_by_sample(x, weights, num_heads, mask=None, norm_first=False):
    rows = []
    for b in range(len(x)):
        one = mask if mask is None or mask.ndim < 3 else mask[min(b, len(mask) - 1)][None]
        rows.append(layer_plain(x[b : b + 1], weights, num_heads, one, norm_first))
    return np.concatenate(rows)


def layer_in_place(x, weights, num_heads, mask=None, norm_first=False):
    y = x.copy()
    if norm_first:
        y += _attend(_norm(y, weights, 1), weights, num_heads, mask)
        y += _think(_norm(y, weights, 2), weights)
    else:
        y += _attend(y, weights, num_heads, mask)
        y = _norm(y, weights, 1)
        y += _think(y, weights)
        y = _norm(y, weights, 2)
    return y


def layer_float32(x, weights, num_heads, mask=None, norm_first=False):
    w = {name: array.astype(np.float32) for name, array in weights.items()}
    return layer_plain(x.astype(np.float32), w, num_heads, mask, norm_first)


def layer_fused(x, weights, num_heads, mask=None, norm_first=False):
    w = weights
    W = np.concatenate([w["W_q"], w["W_k"], w["W_v"]], axis=1)
    b = np.concatenate([w["b_q"], w["b_k"], w["b_v"]])

    def attend(x):
        B, L, d = x.shape
        q, k, v = (x @ W + b).reshape(B, L, 3, num_heads, -1).transpose(2, 0, 3, 1, 4)
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(d // num_heads)
        scores = scores if mask is None else np.where(mask, scores, -np.inf)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        context = (powers / powers.sum(-1, keepdims=True)) @ v
        return context.transpose(0, 2, 1, 3).reshape(B, L, d) @ w["W_o"] + w["b_o"]

    first, second = (_norm(x, w, 1), None) if norm_first else (x, None)
    x = x + attend(first)
    second = _norm(x, w, 2) if norm_first else (x := _norm(x, w, 1))
    x = x + _think(second, w)
    return x if norm_first else _norm(x, w, 2)


def layer_torch(x, weights, num_heads, mask=None, norm_first=False):
    w = {name: torch.tensor(array) for name, array in weights.items()}
    x = torch.tensor(x)
    allowed = None if mask is None else torch.tensor(mask)

    def norm(x, number):
        return F.layer_norm(x, x.shape[-1:], w[f"gamma{number}"], w[f"beta{number}"])

    def attend(x):
        parts = ((x @ w[f"W_{c}"] + w[f"b_{c}"]).unflatten(-1, (num_heads, -1)) for c in "qkv")
        q, k, v = (part.transpose(1, 2) for part in parts)
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return context.transpose(1, 2).flatten(2) @ w["W_o"] + w["b_o"]

    def think(x):
        return torch.relu(x @ w["W1"] + w["b1"]) @ w["W2"] + w["b2"]

    x = x + attend(norm(x, 1)) if norm_first else norm(x + attend(x), 1)
    return (x + think(norm(x, 2)) if norm_first else norm(x + think(x), 2)).numpy()


RIGHT_LAYER = {
    "plain": layer_plain,
    "sublayers in a loop": layer_by_sublayers,
    "head by head": layer_head_by_head,
    "sample by sample": layer_sample_by_sample,
    "in place on a copy": layer_in_place,
    "float32 inside": layer_float32,
    "fused projection": layer_fused,
    "PyTorch inside": layer_torch,
}
TRIVIAL_LAYER = {
    "x": lambda x, weights, num_heads, mask=None, norm_first=False: x,
    "zeros": lambda x, weights, num_heads, mask=None, norm_first=False: 0 * x,
    "None": lambda x, weights, num_heads, mask=None, norm_first=False: None,
}


def layer_parallel(x, weights, num_heads, mask=None, norm_first=False):
    w = weights
    if norm_first:
        both = _attend(_norm(x, w, 1), w, num_heads, mask) + _think(_norm(x, w, 2), w)
        return x + both
    return _norm(x + _attend(x, w, num_heads, mask) + _think(x, w), w, 2)


def layer_tanh(x, weights, num_heads, mask=None, norm_first=False):
    return np.tanh(layer_plain(x, weights, num_heads, mask, norm_first))


NEW_WRONG_LAYER = {
    "sublayers in parallel": (layer_parallel, "The output"),
    "tanh at the end": (layer_tanh, "The output"),
}

# --- PositionalEncoding ---


def _positions_module(make, forward, register):
    """Return what ``class(d_model, max_len=512)`` is, for a class with these parts."""

    def build(d_model, max_len=512):
        class PositionalEncoding(nn.Module):
            def __init__(self):
                super().__init__()
                register(self, torch.tensor(make(max_len, d_model)).float())

            def forward(self, x):
                return forward(self, x)

        return PositionalEncoding()

    return build


def _buffer(self, table):
    self.register_buffer("pe", table)


def _unsaved_buffer(self, table):
    self.register_buffer("table", table, persistent=False)


def _batched_buffer(self, table):
    self.register_buffer("pe", table[None])


def _double_buffer(self, table):
    self.register_buffer("encoding", table.double().clone().to(torch.float32))


def _buffer_object(self, table):
    self.pe = nn.Buffer(table)


def _add(self, x):
    return x + self.pe[: x.shape[1]]


RIGHT_POSITIONS_MODULE = {
    "plain": _positions_module(positions_plain, _add, _buffer),
    "exponentials": _positions_module(
        positions_exponentials, lambda self, x: x + self.pe[: x.size(-2), :], _buffer
    ),
    "not saved": _positions_module(
        positions_loops, lambda self, x: x + self.table.narrow(0, 0, x.shape[-2]), _unsaved_buffer
    ),
    "with a batch axis": _positions_module(
        positions_shifted, lambda self, x: x + self.pe[:, : x.shape[1]], _batched_buffer
    ),
    "another name": _positions_module(
        positions_where,
        lambda self, x: x + self.encoding.index_select(0, torch.arange(x.shape[1])),
        _double_buffer,
    ),
    "nn.Buffer": _positions_module(positions_complex, _add, _buffer_object),
    "expanded": _positions_module(
        positions_padded,
        lambda self, x: torch.add(x, self.pe[: x.shape[1]].expand_as(x)),
        _buffer,
    ),
    "a copy changed in place": _positions_module(
        positions_float32, lambda self, x: x.clone().add_(self.pe[: x.shape[1]]), _buffer
    ),
}
TRIVIAL_POSITIONS_MODULE = {
    "None": lambda d_model, max_len=512: None,
    "identity": lambda d_model, max_len=512: nn.Identity(),
    "a linear layer": lambda d_model, max_len=512: nn.Linear(d_model, d_model),
}
NEW_WRONG_POSITIONS_MODULE = {
    "reversed": (
        _positions_module(
            positions_plain, lambda self, x: x + self.pe[: x.shape[1]].flip(0), _buffer
        ),
        "The output",
    ),
    "halved": (
        _positions_module(positions_plain, lambda self, x: x + self.pe[: x.shape[1]] / 4, _buffer),
        "The output",
    ),
}

# --- EncoderLayer and MendedEncoderLayer ---


def _as_padding(mask):
    return mask is not None and mask.dim() == 4


class _Layer(nn.Module):
    """The parts of a layer under PyTorch's names; subclasses wire them."""

    def __init__(self, d_model, num_heads, d_ff, dropout, norm_first=False):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(
            d_model, num_heads, dropout=dropout, batch_first=True
        )
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self.p, self.h, self.norm_first = dropout, num_heads, norm_first

    def attend(self, x, mask):
        options = {}
        if _as_padding(mask):
            options["key_padding_mask"] = ~mask[:, 0, 0]
        elif mask is not None:
            options["attn_mask"] = ~mask
        return self.self_attn(x, x, x, need_weights=False, **options)[0]

    def think(self, x):
        return self.linear2(self.dropout(torch.relu(self.linear1(x))))

    def forward(self, x, mask=None):
        if self.norm_first:
            x = x + self.dropout(self.attend(self.norm1(x), mask))
            return x + self.dropout(self.think(self.norm2(x)))
        x = self.norm1(x + self.dropout(self.attend(x, mask)))
        return self.norm2(x + self.dropout(self.think(x)))


class LayerWithWeights(_Layer):
    """Asks for the attention weights, and gives every head a mask."""

    def attend(self, x, mask):
        B, L, _ = x.shape
        hidden = None
        if mask is not None:
            hidden = ~mask.expand(B, self.h, L, L).reshape(B * self.h, L, L)
        return self.self_attn(x, x, x, attn_mask=hidden)[0]


class LayerWithAddedMask(_Layer):
    """Adds -inf to the scores."""

    def attend(self, x, mask):
        B, L, _ = x.shape
        added = None
        if mask is not None:
            added = torch.zeros(B, self.h, L, L, dtype=x.dtype)
            added = added.masked_fill(~mask, -math.inf).flatten(0, 1)
        return self.self_attn(x, x, x, attn_mask=added, need_weights=False)[0]


class LayerBySublayers(_Layer):
    """One function for both sublayers."""

    def add(self, x, norm, sublayer):
        if self.norm_first:
            return x + self.dropout(sublayer(norm(x)))
        return norm(x + self.dropout(sublayer(x)))

    def forward(self, x, mask=None):
        x = self.add(x, self.norm1, partial(self.attend, mask=mask))
        return self.add(x, self.norm2, self.think)


class LayerFunctional(_Layer):
    """Functional dropout that is told the mode."""

    def drop(self, x):
        return F.dropout(x, self.p, self.training)

    def think(self, x):
        return self.drop(self.linear2(self.drop(F.relu(self.linear1(x)))))

    def forward(self, x, mask=None):
        start = self.norm1(x) if self.norm_first else x
        x = x + self.drop(self.attend(start, mask))
        x = x if self.norm_first else self.norm1(x)
        x = x + self.think(self.norm2(x) if self.norm_first else x)
        return x if self.norm_first else self.norm2(x)


class LayerSequence(_Layer):
    """Works with the sequence axis first."""

    def __init__(self, d_model, num_heads, d_ff, dropout, norm_first=False):
        super().__init__(d_model, num_heads, d_ff, dropout, norm_first)
        self.self_attn = nn.MultiheadAttention(d_model, num_heads, dropout)

    def attend(self, x, mask):
        return super().attend(x.transpose(0, 1), mask).transpose(0, 1)


class _Attention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.randn(3 * d_model, d_model) / d_model**0.5)
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * d_model))
        self.out_proj = nn.Linear(d_model, d_model)
        self.num_heads = num_heads

    def forward(self, x, mask):
        qkv = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        q, k, v = qkv.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return self.out_proj((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class LayerOwnAttention(_Layer):
    """Attention written out, no dropout inside of it."""

    def __init__(self, d_model, num_heads, d_ff, dropout, norm_first=False):
        super().__init__(d_model, num_heads, d_ff, dropout, norm_first)
        self.self_attn = _Attention(d_model, num_heads)

    def attend(self, x, mask):
        return self.self_attn(x, mask)


class LayerFusedKernel(LayerOwnAttention):
    """PyTorch's fused attention on the same parameters."""

    def attend(self, x, mask):
        s = self.self_attn
        q, k, v = F.linear(x, s.in_proj_weight, s.in_proj_bias).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.h, -1)).transpose(1, 2) for part in (q, k, v))
        p = self.p if self.training else 0.0
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        return s.out_proj(context.transpose(1, 2).reshape(x.shape))


class LayerThreeDropouts(_Layer):
    """A dropout for each place, and the feed-forward layer in a Sequential that is not kept."""

    def __init__(self, d_model, num_heads, d_ff, dropout, norm_first=False):
        super().__init__(d_model, num_heads, d_ff, dropout, norm_first)
        self.dropout1, self.dropout2 = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, x, mask=None):
        if self.norm_first:
            return self.second(x + self.dropout1(self.attend(self.norm1(x), mask)))
        return self.second(self.norm1(x + self.dropout1(self.attend(x, mask))))

    def second(self, x):
        steps = nn.Sequential(self.linear1, nn.ReLU(), self.dropout, self.linear2, self.dropout2)
        steps = steps.train(self.training)
        return x + steps(self.norm2(x)) if self.norm_first else self.norm2(x + steps(x))


RIGHT_LAYER_MODULE = {
    "plain": _Layer,
    "with attention weights": LayerWithWeights,
    "added mask": LayerWithAddedMask,
    "sublayers": LayerBySublayers,
    "functional dropout": LayerFunctional,
    "sequence first": LayerSequence,
    "own attention": LayerOwnAttention,
    "fused kernel": LayerFusedKernel,
    "three dropouts": LayerThreeDropouts,
}
TRIVIAL_LAYER_MODULE = {
    "None": lambda d_model, num_heads, d_ff, dropout, norm_first=False: None,
    "zeros": lambda d_model, num_heads, d_ff, dropout, norm_first=False: nn.Linear(
        d_model, d_model, bias=False
    ),
}


class LayerTwice(_Layer):
    def forward(self, x, mask=None):
        return super().forward(super().forward(x, mask), mask)


class LayerWithoutGradient(_Layer):
    def think(self, x):
        return super().think(x).detach()


class LayerGelu(_Layer):
    def think(self, x):
        return self.linear2(self.dropout(F.gelu(self.linear1(x))))


NEW_WRONG_LAYER_MODULE = {
    "twice": (LayerTwice, "The output"),
    "detached": (LayerWithoutGradient, "gradient"),
    "GELU": (LayerGelu, "The output"),
}


class LayerWithoutDropoutAfterAttention(LayerFunctional):
    def forward(self, x, mask=None):
        if self.norm_first:
            x = x + self.attend(self.norm1(x), mask)
            return x + self.think(self.norm2(x))
        x = self.norm1(x + self.attend(x, mask))
        return self.norm2(x + self.think(x))


class LayerDropsHalf(LayerFunctional):
    def drop(self, x):
        return F.dropout(x, training=self.training)


class LayerAlwaysDropsALittle(LayerFunctional):
    def drop(self, x):
        return F.dropout(x, 0.1)


NEW_WRONG_MENDED_MODULE = {
    "no dropout after attention": (LayerWithoutDropoutAfterAttention, "In training mode"),
    "a half always": (LayerDropsHalf, "In training mode"),
    "a tenth in evaluation too": (LayerAlwaysDropsALittle, "The output"),
    "twice": (LayerTwice, "The output"),
    "GELU": (LayerGelu, "The output"),
}

# --- Encoder ---


def _build(num_layers, *options):
    return [_Layer(*options) for _ in range(num_layers)]


class StackPlain(nn.Module):
    def __init__(self, num_layers, d_model, num_heads, d_ff, dropout, norm_first=False):
        super().__init__()
        options = d_model, num_heads, d_ff, dropout, norm_first
        self.layers = nn.ModuleList(_build(num_layers, *options))

    def forward(self, x, mask=None):
        for layer in self.layers:
            x = layer(x, mask)
        return x


class StackIndexed(StackPlain):
    def forward(self, x, mask=None):
        for i in range(len(self.layers)):
            x = self.layers[i](x, mask=mask)
        return x


class StackRecursive(StackPlain):
    def forward(self, x, mask=None, done=0):
        if done == len(self.layers):
            return x
        return self.forward(self.layers[done](x, mask), mask, done + 1)


class StackAppended(StackPlain):
    def __init__(self, num_layers, d_model, num_heads, d_ff, dropout, norm_first=False):
        super().__init__(0, d_model, num_heads, d_ff, dropout)
        for _ in range(num_layers):
            self.layers.append(LayerOwnAttention(d_model, num_heads, d_ff, dropout, norm_first))


class StackSequential(StackPlain):
    def __init__(self, num_layers, *options, **more):
        super().__init__(0, *options, **more)
        layers = (LayerBySublayers(*options, **more) for _ in range(num_layers))
        self.layers = nn.Sequential(*layers)


class StackReduced(StackPlain):
    def forward(self, x, mask=None):
        import functools

        return functools.reduce(lambda x, layer: layer(x, mask), self.layers, x)


class _PytorchLayer(nn.TransformerEncoderLayer):
    def forward(self, x, mask=None):
        if _as_padding(mask):
            return super().forward(x, src_key_padding_mask=~mask[:, 0, 0])
        return super().forward(x, src_mask=None if mask is None else ~mask)


class StackOfPytorchLayers(StackPlain):
    def __init__(self, num_layers, d_model, num_heads, d_ff, dropout, norm_first=False):
        super().__init__(0, d_model, num_heads, d_ff, dropout)
        for _ in range(num_layers):
            layer = _PytorchLayer(
                d_model, num_heads, d_ff, dropout, norm_first=norm_first, batch_first=True
            )
            self.layers.append(layer)


class StackNamed(StackPlain):
    def __init__(self, num_layers, *options, **more):
        nn.Module.__init__(self)
        self.layers = nn.ModuleDict({str(i): _Layer(*options, **more) for i in range(num_layers)})

    def forward(self, x, mask=None):
        for layer in self.layers.values():
            x = layer(x, mask)
        return x


RIGHT_STACK = {
    "plain": StackPlain,
    "indexed": StackIndexed,
    "recursion": StackRecursive,
    "appended": StackAppended,
    "sequential": StackSequential,
    "reduce": StackReduced,
    "PyTorch's layers": StackOfPytorchLayers,
    "a dict of layers": StackNamed,
}
TRIVIAL_STACK = {
    "None": lambda num_layers, d_model, num_heads, d_ff, dropout, norm_first=False: None,
    "a linear layer": lambda num_layers, d_model, *options, **more: nn.Linear(d_model, d_model),
}


class StackAveraged(StackPlain):
    def forward(self, x, mask=None):
        outputs = []
        for layer in self.layers:
            outputs.append(x := layer(x, mask))
        return sum(outputs) / len(outputs)


class StackAnyway(StackPlain):
    def forward(self, x, mask=None):
        return torch.tanh(super().forward(x, mask))


NEW_WRONG_STACK = {
    "averaged": (StackAveraged, "The output"),
    "tanh": (StackAnyway, "The output"),
}

# --- by question ---

RIGHT = {
    "predicted_parameters": RIGHT_PARAMETERS,
    "layer_norm": RIGHT_NORM,
    "layer_norm_backward": RIGHT_NORM_BACKWARD,
    "rms_norm": RIGHT_RMS,
    "rms_norm_backward": RIGHT_RMS_BACKWARD,
    "feed_forward": RIGHT_FORWARD,
    "swiglu": RIGHT_SWIGLU,
    "mended_feed_forward_backward": RIGHT_MAPS,
    "dropout": RIGHT_DROPOUT,
    "mended_dropout": RIGHT_MENDED_DROPOUT,
    "positional_encoding": RIGHT_POSITIONS,
    "rotary_encoding": RIGHT_ROTARY,
    "predicted_rows": RIGHT_ROWS,
    "encoder_layer": RIGHT_LAYER,
    "PositionalEncoding": RIGHT_POSITIONS_MODULE,
    "EncoderLayer": RIGHT_LAYER_MODULE,
    "MendedEncoderLayer": RIGHT_LAYER_MODULE,
    "Encoder": RIGHT_STACK,
}
TRIVIAL = {
    "predicted_parameters": TRIVIAL_PARAMETERS,
    "layer_norm": TRIVIAL_NORM,
    "layer_norm_backward": TRIVIAL_NORM_BACKWARD,
    "rms_norm": TRIVIAL_RMS,
    "rms_norm_backward": TRIVIAL_RMS_BACKWARD,
    "feed_forward": TRIVIAL_FORWARD,
    "swiglu": TRIVIAL_SWIGLU,
    "mended_feed_forward_backward": TRIVIAL_MAPS,
    "dropout": TRIVIAL_DROPOUT,
    "mended_dropout": TRIVIAL_MENDED_DROPOUT,
    "positional_encoding": TRIVIAL_POSITIONS,
    "rotary_encoding": TRIVIAL_ROTARY,
    "predicted_rows": TRIVIAL_ROWS,
    "encoder_layer": TRIVIAL_LAYER,
    "PositionalEncoding": TRIVIAL_POSITIONS_MODULE,
    "EncoderLayer": TRIVIAL_LAYER_MODULE,
    "MendedEncoderLayer": TRIVIAL_LAYER_MODULE,
    "Encoder": TRIVIAL_STACK,
}
NEW_WRONG = {
    "predicted_parameters": NEW_WRONG_PARAMETERS,
    "layer_norm": NEW_WRONG_NORM,
    "layer_norm_backward": NEW_WRONG_NORM_BACKWARD,
    "rms_norm": NEW_WRONG_RMS,
    "rms_norm_backward": NEW_WRONG_RMS_BACKWARD,
    "feed_forward": NEW_WRONG_FORWARD,
    "swiglu": NEW_WRONG_SWIGLU,
    "mended_feed_forward_backward": NEW_WRONG_MAPS,
    "dropout": NEW_WRONG_DROPOUT,
    "mended_dropout": NEW_WRONG_MENDED_DROPOUT,
    "positional_encoding": NEW_WRONG_POSITIONS,
    "rotary_encoding": NEW_WRONG_ROTARY,
    "predicted_rows": NEW_WRONG_ROWS,
    "encoder_layer": NEW_WRONG_LAYER,
    "PositionalEncoding": NEW_WRONG_POSITIONS_MODULE,
    "EncoderLayer": NEW_WRONG_LAYER_MODULE,
    "MendedEncoderLayer": NEW_WRONG_MENDED_MODULE,
    "Encoder": NEW_WRONG_STACK,
}
