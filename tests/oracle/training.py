"""Losses and steps of training, slow and plainly right: loops over single numbers in float64.

Checks and tests compare with these. `test_oracle_training.py` proves them against PyTorch.
"""

import math

import numpy as np

IGNORED = -100


def softmax_row(row):
    peak = max(row)
    powers = [math.exp(number - peak) for number in row]
    total = math.fsum(powers)
    return [power / total for power in powers]


def lm_loss(logits, targets, pad_id=None):
    """Mean cross-entropy over the targets that are neither `pad_id` nor -100, and its gradient."""
    logits, targets = np.asarray(logits, dtype=np.float64), np.asarray(targets)
    gradient = np.zeros(logits.shape)
    counted = [
        index
        for index in np.ndindex(targets.shape)
        if targets[index] != IGNORED and targets[index] != pad_id
    ]
    losses = []
    for index in counted:
        row = [float(number) for number in logits[index]]
        right = int(targets[index])
        peak = max(row)
        losses.append(math.log(math.fsum(math.exp(z - peak) for z in row)) + peak - row[right])
        for j, share in enumerate(softmax_row(row)):
            gradient[index][j] = (share - (1.0 if j == right else 0.0)) / len(counted)
    return (math.fsum(losses) / len(counted) if counted else 0.0), gradient


def next_token_loss(logits, tokens):
    """Position t scores the token at t + 1; the last position scores nothing."""
    logits, tokens = np.asarray(logits, dtype=np.float64), np.asarray(tokens)
    targets = np.full(tokens.shape, IGNORED)
    for index in np.ndindex(tokens.shape):
        *lead, t = index
        if t + 1 < tokens.shape[-1]:
            targets[index] = tokens[(*lead, t + 1)]
    return lm_loss(logits, targets)


def smoothed_loss(logits, targets, smoothing=0.1, pad_id=None):
    """Cross-entropy with targets ``(1 - smoothing) * one_hot + smoothing / V``."""
    logits, targets = np.asarray(logits, dtype=np.float64), np.asarray(targets)
    losses = []
    for index in np.ndindex(targets.shape):
        if targets[index] in (IGNORED, pad_id):
            continue
        row = [float(number) for number in logits[index]]
        peak = max(row)
        log_total = math.log(math.fsum(math.exp(z - peak) for z in row)) + peak
        for j, z in enumerate(row):
            share = smoothing / len(row) + (1 - smoothing if j == targets[index] else 0.0)
            losses.append(-share * (z - log_total))
    counted = sum(1 for i in np.ndindex(targets.shape) if targets[i] not in (IGNORED, pad_id))
    return math.fsum(losses) / counted if counted else 0.0


def linear_gradients(W, b, x, y):
    """Loss and gradients of the scores ``x @ W + b`` of each row, for classes `y` (-100: none)."""
    x = np.asarray(x, dtype=np.float64)
    scores = np.zeros((len(x), W.shape[1]))
    for i, j in np.ndindex(scores.shape):
        scores[i, j] = math.fsum([*(x[i, k] * W[k, j] for k in range(len(W))), b[j]])
    loss, dscores = lm_loss(scores, y)
    dW, db = np.zeros(W.shape), np.zeros(b.shape)
    for i, j in np.ndindex(scores.shape):
        db[j] += dscores[i, j]
        for k in range(len(W)):
            dW[k, j] += x[i, k] * dscores[i, j]
    return loss, dW, db


def clip(gradients, max_norm):
    """Scale arrays together down to a norm, if theirs is larger."""
    norm = math.sqrt(math.fsum(float(number) ** 2 for g in gradients for number in g.flat))
    factor = max_norm / norm if max_norm is not None and norm > max_norm else 1.0
    return [g * factor for g in gradients]


def linear_step(W, b, x, y, lr, max_norm=None):
    """One step of gradient descent: new weights, the loss before, and the gradients as used."""
    loss, dW, db = linear_gradients(W, b, x, y)
    dW, db = clip([dW, db], max_norm)
    return W - lr * dW, b - lr * db, loss, dW, db


def entropy(weights):
    """Entropy in nats of each row of weights; 0 log 0 is 0."""
    weights = np.asarray(weights, dtype=np.float64)
    found = np.zeros(weights.shape[:-1])
    for index in np.ndindex(found.shape):
        found[index] = -math.fsum(a * math.log(a) for a in weights[index] if a > 0)
    return found
