"""What training in PyTorch needs: losses over the targets that count, steps, and monitors."""

from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

IGNORED = -100  # the target that PyTorch's losses leave out by default


# --- losses ----------------------------------------------------------------------------------


def log_probabilities(logits, targets, pad_id=None):
    """Return log-softmax, targets, and how many of these count.

    Returns
    -------
    log_p : Tensor, shape (n, V)
        At least float32: sums in half precision are too coarse.
    targets : Tensor of int64, shape (n,)
        `IGNORED` where they do not count.
    count : Tensor
        At least 1, to divide by.
    """
    if logits.ndim < 1 or targets.shape != logits.shape[:-1]:
        raise ValueError(
            "logits, targets: expected shapes (..., V) and (...), "
            f"got {tuple(logits.shape)} and {tuple(targets.shape)}"
        )
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise ValueError(f"targets: expected integers, got {targets.dtype}")
    targets = targets.flatten().long()
    if pad_id is not None:
        targets = targets.masked_fill(targets == pad_id, IGNORED)
    work = torch.promote_types(logits.dtype, torch.float32)
    rows = logits.reshape(-1, logits.shape[-1])  # (n, V)
    log_p = rows.to(work).log_softmax(dim=-1)
    return log_p, targets, (targets != IGNORED).sum().clamp(min=1)


def lm_loss(logits, targets, pad_id=None):
    """Return the mean cross-entropy over the targets that count.

    Parameters
    ----------
    logits : Tensor, shape (..., V)
        Scores of the V classes, before the softmax.
    targets : Tensor of int, shape (...)
        The right class of each position. Targets of -100 do not count.
    pad_id : int, optional
        Targets of this class do not count either.

    Returns
    -------
    Tensor
        A scalar in the dtype of `logits`; 0 where no target counts, with
        gradients of 0.

    Raises
    ------
    ValueError
        If the shapes do not fit together, or targets are no integers.
    """
    log_p, targets, count = log_probabilities(logits, targets, pad_id)
    total = F.nll_loss(log_p, targets, reduction="sum")  # leaves out -100
    return (total / count).to(logits.dtype)


def next_token_loss(logits, tokens):
    """Return the loss of predicting each token from those before it.

    Parameters
    ----------
    logits : Tensor, shape (..., L, V)
        What a causal model gives for `tokens`: position t scores the token
        at t + 1. The last position has nothing to predict.
    tokens : Tensor of int, shape (..., L)
        A token of -100 is no target.

    Returns
    -------
    Tensor
        As in `lm_loss`; 0 for L = 1.
    """
    if logits.ndim < 2:
        shape = tuple(logits.shape)
        raise ValueError(f"logits: expected shape (..., L, V), got {shape}")
    return lm_loss(logits[..., :-1, :], tokens[..., 1:])


def smoothed_loss(logits, targets, smoothing=0.1, pad_id=None):
    """Return `lm_loss` with smoothed labels.

    A share `smoothing` of each target is spread over all V classes alike:
    Szegedy et al. (2016), "Rethinking the Inception architecture".

    Parameters
    ----------
    logits, targets, pad_id
        As in `lm_loss`.
    smoothing : float
        From 0, which is `lm_loss`, to 1.
    """
    if not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing: expected 0 to 1, got {smoothing!r}")
    log_p, targets, count = log_probabilities(logits, targets, pad_id)
    right = F.nll_loss(log_p, targets, reduction="sum")  # leaves out -100
    counts = (targets != IGNORED)[:, None]
    every = -log_p.masked_fill(~counts, 0).sum() / log_p.shape[-1]
    total = (1 - smoothing) * right + smoothing * every
    return (total / count).to(logits.dtype)


# --- steps -----------------------------------------------------------------------------------


def train_step(model, opt, x, y, loss_fn, max_norm=None):
    """Take one step of training.

    Parameters
    ----------
    model : callable
        Maps `x` to what `loss_fn` takes.
    opt : torch.optim.Optimizer
    x, y
        A batch: inputs and targets.
    loss_fn : callable
        ``loss_fn(model(x), y)`` is a scalar.
    max_norm : float, optional
        Scale the gradients of all parameters that `opt` moves, together,
        down to this norm if theirs is larger: Pascanu et al. (2013), "On
        the difficulty of training recurrent neural networks".

    Returns
    -------
    float
        The loss before the step. The gradients are left as they were used.
    """
    opt.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    if max_norm is not None:
        nn.utils.clip_grad_norm_(moved_by(opt), max_norm)
    opt.step()
    return loss.item()


def accumulate_step(model, opt, micro_batches, loss_fn):
    """Take one step for several small batches, as if they were one.

    The mean over the joined batch is the mean of the means, each weighted
    with its share of the targets that count. Where a layer looks across
    the batch, as batch norm does, the two differ.

    Parameters
    ----------
    model, opt
        As in `train_step`.
    micro_batches : iterable of (x, y)
        Targets of -100 do not count. A pair without any other target adds
        nothing; if there is no target at all, nothing moves.
    loss_fn : callable
        ``loss_fn(model(x), y)`` is a mean over the targets that count.
    """
    micro_batches = list(micro_batches)
    counts = [int((y != IGNORED).sum()) for _, y in micro_batches]
    total = sum(counts)
    opt.zero_grad()
    for (x, y), count in zip(micro_batches, counts, strict=True):
        if count:  # the mean over nothing may be NaN
            loss = loss_fn(model(x), y) * (count / total)
            loss.backward()  # adds to the gradients; frees this graph
    opt.step()


def moved_by(opt):
    """Return the parameters that an optimizer moves."""
    return [p for group in opt.param_groups for p in group["params"]]


def warmup_inverse_root(step, warmup):
    """Return the factor of the learning rate: a rise to 1, then a fall.

    It falls as 1 / sqrt(step). Section 5.3 of Vaswani et al. (2017), scaled
    so that the highest value is 1. For PyTorch's ``LambdaLR``, which counts
    from 0.

    Parameters
    ----------
    step : int
        From 0.
    warmup : int
        The number of steps of the rise, at least 1.
    """
    if warmup < 1:
        raise ValueError(f"warmup: expected at least 1 step, got {warmup}")
    return min((step + 1) / warmup, (warmup / (step + 1)) ** 0.5)


# --- monitors --------------------------------------------------------------------------------


def gradient_norm(module):
    """Return the norm of all gradients of a module together.

    Parameters without a gradient add nothing; see `without_gradient`.
    """
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return sum(g.double().square().sum().item() for g in gradients) ** 0.5


def without_gradient(module):
    """Return the names of parameters that a loss did not reach.

    Trainable ones whose gradient is None, or 0 throughout.
    """
    return [
        name
        for name, p in module.named_parameters()
        if p.requires_grad and (p.grad is None or not p.grad.any())
    ]


@contextmanager
def recorded(modules):
    """Record what goes into modules and what comes out, in a with block.

    Parameters
    ----------
    modules : dict of str to nn.Module

    Yields
    ------
    dict of str to (tuple, Tensor)
        Arguments and output of the last call, by the names in `modules`.
    """
    seen = {}

    def watch(name):
        def hook(module, arguments, output):
            seen[name] = (arguments, output.detach())

        return hook

    handles = []
    try:
        for name, module in modules.items():
            handles.append(module.register_forward_hook(watch(name)))
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def activation_statistics(output):
    """Return size, largest magnitude and share of zeros of some numbers.

    Returns
    -------
    dict of str to float
        ``rms`` (the root of the mean square), ``largest`` and ``zeros``.
        NaN stays NaN in the first two.
    """
    output = output.detach().double()
    return {
        "rms": output.square().mean().sqrt().item(),
        "largest": output.abs().max().item(),
        "zeros": (output == 0).double().mean().item(),
    }


@torch.no_grad()
def attention_weights(attention, x, mask=None):
    """Return the weights that a `MultiHeadSelfAttention` uses.

    Parameters
    ----------
    attention : MultiHeadSelfAttention
    x : Tensor, shape (..., L, d_model)
    mask : Tensor of bool, optional
        As in `EncoderLayer`.

    Returns
    -------
    Tensor, shape (..., h, L, L)
        Without dropout. A query with no allowed key has weights of 0.
    """
    QK = F.linear(x, attention.in_proj_weight, attention.in_proj_bias)
    QK = QK.unflatten(-1, (3, attention.num_heads, -1))
    Q, K, _ = QK.movedim(-3, 0).transpose(-2, -3)  # (..., h, L, d_k)
    scores = Q @ K.transpose(-1, -2) / Q.shape[-1] ** 0.5
    if mask is None:
        return scores.softmax(dim=-1)
    if 3 <= mask.ndim <= x.ndim:
        mask = mask.unsqueeze(-3)  # an axis for the heads
    weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
    return weights.masked_fill(~mask, 0)  # an empty row was NaN


def attention_entropy(weights, keep=None):
    """Return how widely each head looks, in nats.

    The entropy of a row is 0 where it looks at one key, and the logarithm
    of the number of keys where it looks at all alike.

    Parameters
    ----------
    weights : Tensor, shape (..., h, L_q, L_k)
    keep : Tensor of bool, shape (..., L_q), optional
        Which queries count; by default all.

    Returns
    -------
    Tensor, shape (h,)
        The mean over all queries that count.
    """
    entropy = torch.special.entr(weights).sum(dim=-1)  # (..., h, L_q)
    if keep is None:
        keep = torch.ones_like(entropy[..., 0, :], dtype=torch.bool)
    return entropy.transpose(-1, -2)[keep].mean(dim=0)  # (n, h) to (h,)
