"""What training in NumPy needs: a loss, an optimizer, and a small classifier of sequences."""

import math

import numpy as np

from .encoder_layer import (
    draw_matrix,
    encoder_layer,
    encoder_layer_backward,
    init_encoder_layer,
    layer_norm,
    layer_norm_backward,
    positional_encoding,
)
from .multi_head import project_backward
from .single_head import as_floating, softmax


def check_targets(logits, targets):
    """Raise ValueError unless each row of logits has a class among its columns."""
    if logits.ndim != 2 or targets.shape != logits.shape[:1] or not targets.size:
        raise ValueError(
            "logits, targets: expected shapes (n, num_classes) and (n,) with n > 0, "
            f"got {logits.shape} and {targets.shape}"
        )
    if targets.dtype.kind not in "iu" or not ((targets >= 0) & (targets < logits.shape[1])).all():
        raise ValueError(f"targets: expected integers from 0 to {logits.shape[1] - 1}")


def cross_entropy(logits, targets):
    """Return the mean cross-entropy, and its gradient.

    Parameters
    ----------
    logits : array_like, shape (n, num_classes)
        Scores, before the softmax.
    targets : array_like of int, shape (n,)
        The right class of each row.

    Returns
    -------
    loss : float
        The mean of ``-log(softmax(logits)[right class])``.
    dlogits : ndarray, shape (n, num_classes)
        ``(softmax(logits) - one_hot(targets)) / n``.

    Raises
    ------
    ValueError
        If shapes do not fit together or a target is no class.
    """
    logits, targets = as_floating("logits", logits), np.asarray(targets)
    check_targets(logits, targets)
    row = np.arange(len(targets))
    peak = logits.max(axis=-1, keepdims=True)
    log_total = np.log(np.exp(logits - peak).sum(axis=-1)) + peak[:, 0]
    loss = (log_total - logits[row, targets]).mean()
    dlogits = softmax(logits)
    dlogits[row, targets] -= 1
    return float(loss), dlogits / len(targets)


class Adam:
    """Steps that are scaled for each number by the size of its gradients.

    Algorithm 1 of Kingma and Ba (2015), "Adam: a method for stochastic
    optimization".

    Parameters
    ----------
    parameters : dict of str to ndarray
        Floating arrays. `step` changes them in place.
    lr : float
        Learning rate: about how far a number moves in one step.
    betas : (float, float)
        How slowly the running means of gradient and squared gradient move.
    eps : float
        Added to the root, against division by 0.
    """

    def __init__(self, parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        self.parameters = parameters
        self.lr, self.betas, self.eps = lr, betas, eps
        self.steps = 0
        self.mean = {n: np.zeros_like(p) for n, p in parameters.items()}
        self.square = {n: np.zeros_like(p) for n, p in parameters.items()}

    def step(self, gradients):
        """Move every parameter against its running mean gradient, in place.

        Parameters
        ----------
        gradients : dict of str to ndarray
            One for each parameter.
        """
        self.steps += 1
        beta1, beta2 = self.betas
        # both means start at 0: divide by the weight gathered so far
        seen1, seen2 = 1 - beta1**self.steps, 1 - beta2**self.steps
        for name, parameter in self.parameters.items():
            gradient = gradients[name]
            mean, square = self.mean[name], self.square[name]
            mean += (1 - beta1) * (gradient - mean)
            square += (1 - beta2) * (gradient**2 - square)
            root = np.sqrt(square / seen2) + self.eps
            parameter -= self.lr * (mean / seen1) / root


# --- a classifier of sequences ---------------------------------------------------------------


def init_classifier(d_in, d_model, d_ff, num_classes, rng):
    """Draw the weights of a classifier with one encoder layer.

    Returns
    -------
    dict of str to ndarray
        ``W_in b_in`` from the tokens to d_model, the layer's 16 arrays,
        ``gamma beta`` of the last norm, ``W_out b_out`` to the classes.
    """
    return {
        "W_in": draw_matrix(d_in, d_model, rng),
        "b_in": np.zeros(d_model),
        **init_encoder_layer(d_model, d_ff, rng),
        "gamma": np.ones(d_model),
        "beta": np.zeros(d_model),
        "W_out": draw_matrix(d_model, num_classes, rng),
        "b_out": np.zeros(num_classes),
    }


def classify(tokens, weights, num_heads):
    """Return the scores of the classes for each sequence.

    Parameters
    ----------
    tokens : array_like, shape (B, L, d_in)
    weights : dict of str to ndarray
        As `init_classifier` makes them.
    num_heads : int

    Returns
    -------
    ndarray, shape (B, num_classes)
    """
    x = embed(tokens, weights)
    y = encoder_layer(x, weights, num_heads, norm_first=True)
    n = layer_norm(y, weights["gamma"], weights["beta"])
    return n.mean(axis=1) @ weights["W_out"] + weights["b_out"]


def embed(tokens, weights):
    """Project tokens, and add their positions: (B, L, d_model)."""
    x = tokens @ weights["W_in"] + weights["b_in"]
    return x + positional_encoding(*x.shape[1:])


def classifier_gradients(tokens, targets, weights, num_heads):
    """Return the mean loss of a batch, and the gradient of every weight.

    Parameters
    ----------
    tokens : array_like, shape (B, L, d_in)
    targets : array_like of int, shape (B,)
    weights, num_heads
        As in `classify`.

    Returns
    -------
    loss : float
    gradients : dict of str to ndarray
    """
    x = embed(tokens, weights)
    y = encoder_layer(x, weights, num_heads, norm_first=True)
    n = layer_norm(y, weights["gamma"], weights["beta"])  # (B, L, d_model)
    pooled = n.mean(axis=1)  # (B, d_model)
    W_out = weights["W_out"]
    loss, dlogits = cross_entropy(pooled @ W_out + weights["b_out"], targets)

    dpooled, dW_out, db_out = project_backward(dlogits, pooled, W_out)
    dn = dpooled[:, None] / n.shape[1]  # the mean shares out evenly
    dn = np.broadcast_to(dn, n.shape)  # (B, L, d_model)
    dy, dgamma, dbeta = layer_norm_backward(dn, y, weights["gamma"])
    dx, gradients = encoder_layer_backward(
        *(dy, x, weights, num_heads),
        norm_first=True,
    )
    _, dW_in, db_in = project_backward(dx, tokens, weights["W_in"])
    gradients |= {"W_in": dW_in, "b_in": db_in}
    gradients |= {"gamma": dgamma, "beta": dbeta}
    return loss, gradients | {"W_out": dW_out, "b_out": db_out}


def batches(n, batch, epochs, rng):
    """Yield the row numbers of each batch; every epoch has an order of its own.

    Parameters
    ----------
    n, batch, epochs : int
        Examples, examples in a batch (the last of an epoch may be smaller), and
        passes over all examples.
    rng : numpy.random.Generator
    """
    for _ in range(epochs):
        order = rng.permutation(n)
        yield from np.split(order, range(batch, n, batch))


def stratified_split(classes, share, rng):
    """Split row numbers in two parts that hold each class in equal shares.

    Parameters
    ----------
    classes : array_like of int, shape (n,)
    share : float
        The share of each class that goes to the second part, rounded.
    rng : numpy.random.Generator

    Returns
    -------
    first, second : ndarray of int
        In increasing order.
    """
    classes = np.asarray(classes)
    second = []
    for one in np.unique(classes):
        rows = rng.permutation(np.flatnonzero(classes == one))
        second.extend(rows[: round(share * len(rows))])
    second = np.sort(np.array(second, dtype=int))
    return np.setdiff1d(np.arange(len(classes)), second), second


def warmup_cosine(step, steps, warmup=0):
    """Return the factor of the learning rate: a rise to 1, then a fall to 0 along a cosine.

    Parameters
    ----------
    step, steps : int
        Which step it is, counted from 0, and how many there are.
    warmup : int
        The number of steps of the rise.
    """
    if step < warmup:
        return (step + 1) / warmup
    return (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


# --- targets that do not count ---------------------------------------------------------------

IGNORED = -100  # the target that PyTorch's losses leave out by default


def lm_loss(logits, targets, pad_id=None):
    """Return the mean cross-entropy over the targets that count, and its gradient.

    Parameters
    ----------
    logits : array_like, shape (..., V)
        Scores of the V classes, before the softmax.
    targets : array_like of int, shape (...)
        The right class of each position. Targets of -100 do not count.
    pad_id : int, optional
        Targets of this class do not count either.

    Returns
    -------
    loss : float
        0 where no target counts.
    dlogits : ndarray, shape (..., V)
        0 in the rows that do not count.

    Raises
    ------
    ValueError
        If shapes do not fit together or a target that counts is no class.
    """
    logits, targets = as_floating("logits", logits), np.asarray(targets)
    if logits.ndim < 1 or targets.shape != logits.shape[:-1]:
        raise ValueError(
            "logits, targets: expected shapes (..., V) and (...), "
            f"got {logits.shape} and {targets.shape}"
        )
    counts = targets != IGNORED
    if pad_id is not None:
        counts &= targets != pad_id
    dlogits = np.zeros_like(logits)
    if not counts.any():
        return 0.0, dlogits
    loss, dlogits[counts] = cross_entropy(logits[counts], targets[counts])
    return loss, dlogits


def next_token_loss(logits, tokens):
    """Return the loss of predicting each token from those before it, and its gradient.

    Parameters
    ----------
    logits : array_like, shape (..., L, V)
        Position t scores the token at t + 1; the last has nothing to predict.
    tokens : array_like of int, shape (..., L)
        A token of -100 is no target.

    Returns
    -------
    loss : float
    dlogits : ndarray, shape (..., L, V)
        0 at the last position.
    """
    logits, tokens = as_floating("logits", logits), np.asarray(tokens)
    if logits.ndim < 2:
        raise ValueError(f"logits: expected shape (..., L, V), got {logits.shape}")
    dlogits = np.zeros_like(logits)
    loss, dlogits[..., :-1, :] = lm_loss(logits[..., :-1, :], tokens[..., 1:])
    return loss, dlogits
