"""Definitions for exercise 6: slow, plain, row by row. PyTorch is imported where it is needed.

What trains a model takes one of PyTorch and goes by the definition: gradients by
`torch.autograd.grad`, the norm and its limit by hand.
"""

import math

import numpy as np


def softmax_row(row):
    peak = max(row)
    exps = [math.exp(score - peak) for score in row]
    return [e / sum(exps) for e in exps]


def log_softmax_row(row):
    peak = max(row)
    total = math.log(sum(math.exp(score - peak) for score in row))
    return [score - peak - total for score in row]


def smoothed_loss(logits, targets, smoothing, ignored=(-100,)):
    """Return the mean loss over the targets that count, 0.0 where none does."""
    logits, targets = np.asarray(logits, dtype=float), np.asarray(targets)
    losses = []
    for place in np.ndindex(targets.shape):
        if targets[place] not in ignored:
            logs = log_softmax_row(logits[place])
            V = len(logs)
            wanted = [smoothing / V + (1 - smoothing) * (c == targets[place]) for c in range(V)]
            losses.append(-sum(w * log for w, log in zip(wanted, logs, strict=True)))
    return sum(losses) / len(losses) if losses else 0.0


def lm_loss(logits, targets, pad_id=None):
    """Return the mean cross-entropy over the targets that are neither `pad_id` nor -100."""
    return smoothed_loss(logits, targets, 0.0, (-100, pad_id))


def smoothed_loss_gradient(logits, targets, smoothing, ignored=(-100,)):
    """Return the gradient of `smoothed_loss` with respect to the logits: p - q, averaged."""
    logits, targets = np.asarray(logits, dtype=float), np.asarray(targets)
    gradient = np.zeros(logits.shape)
    counting = [p for p in np.ndindex(targets.shape) if targets[p] not in ignored]
    for place in counting:
        V = logits.shape[-1]
        for c, p in enumerate(softmax_row(logits[place])):
            wanted = smoothing / V + (1 - smoothing) * (c == targets[place])
            gradient[(*place, c)] = p - wanted
    return gradient / max(len(counting), 1)


def lm_loss_gradient(logits, targets, pad_id=None):
    """Return the gradient of `lm_loss` with respect to the logits."""
    return smoothed_loss_gradient(logits, targets, 0.0, (-100, pad_id))


def next_token_loss(logits, tokens):
    """Return the mean loss where the logits of each place are to predict the token after it."""
    tokens = np.asarray(tokens)
    targets = np.full(tokens.shape, -100)
    for row in range(len(tokens)):
        for place in range(tokens.shape[1] - 1):
            targets[row, place] = tokens[row, place + 1]
    return lm_loss(logits, targets)


def guess_and_floor(V):
    """Return the loss of equal scores for V tokens, and the least one after two softmaxes."""
    equal = lm_loss(np.zeros((1, V)), np.array([0]))
    certain = np.eye(V)[:1]  # no probabilities are farther apart
    return equal, lm_loss(certain, np.array([0]))


def loss_with_padding(counting, loss, padding, padding_loss):
    """Return the mean over all targets, those that count and those of the padding."""
    return float(np.mean([loss] * counting + [padding_loss] * padding))


# --- steps of training ---


def gradient_norm(model, x, y, loss_fn):
    """Return the norm of all gradients of a model together."""
    import torch

    moving = [p for p in model.parameters() if p.requires_grad]
    grads = torch.autograd.grad(loss_fn(model(x), y), moving)
    return math.sqrt(sum(float((grad**2).sum()) for grad in grads))


def train_step(model, opt, x, y, loss_fn, max_norm=None):
    """Make one step of training; the gradients stay as they were used."""
    import torch

    loss = loss_fn(model(x), y)
    moving = [p for p in model.parameters() if p.requires_grad]
    grads = torch.autograd.grad(loss, moving)
    norm = math.sqrt(sum(float((grad**2).sum()) for grad in grads))
    factor = min(1.0, max_norm / norm) if max_norm is not None and norm > 0 else 1.0
    for parameter, grad in zip(moving, grads, strict=True):
        parameter.grad = factor * grad
    opt.step()
    return loss.item()


def joined_step(model, opt, micro_batches, loss_fn):
    """Make one step on all micro-batches as one batch."""
    import torch

    micro_batches = [(x, y) for x, y in micro_batches if (y != -100).any()]
    scores = torch.cat([model(x) for x, _ in micro_batches])
    loss = loss_fn(scores, torch.cat([y for _, y in micro_batches]))
    moving = [p for p in model.parameters() if p.requires_grad]
    for parameter, grad in zip(moving, torch.autograd.grad(loss, moving), strict=True):
        parameter.grad = grad
    opt.step()


def epoch(model, opt, batches, loss_fn, max_norm):
    """Make a step on each batch; return the mean loss of a target that counts."""
    total, count = 0.0, 0
    for x, y in batches:
        n = int((y != -100).sum())
        total += n * train_step(model, opt, x, y, loss_fn, max_norm)
        count += n
    return total / count


def scores_in_evaluation(model, x):
    """Return the scores of a model in evaluation mode; its own mode stays."""
    was = model.training
    scores = model.eval()(x).detach().numpy()
    model.train(was)
    return scores


def answers(model, x):
    """Return the class with the best score, for each row."""
    return [int(np.argmax(scores)) for scores in scores_in_evaluation(model, x)]


def evaluate(model, batches):
    """Return loss and accuracy of a model in evaluation, over the targets that count."""
    losses, right = [], []
    for x, y in batches:
        for scores, target in zip(scores_in_evaluation(model, x), y.numpy(), strict=True):
            if target != -100:
                losses.append(-log_softmax_row(scores)[target])
                right.append(int(np.argmax(scores)) == target)
    return float(np.mean(losses)), float(np.mean(right))


def first_steps(gradient, lr, max_norm):
    """Return how far a weight moves in its first step: SGD, clipped SGD, Adam, clipped Adam."""
    import torch

    moves = []
    for optimizer in (torch.optim.SGD, torch.optim.Adam):
        for limit in (None, max_norm):
            model = torch.nn.Linear(1, 1, bias=False).double()
            start = model.weight.item()
            x = torch.full((1, 1), gradient, dtype=torch.double)  # d(w x)/dw = x
            opt = optimizer(model.parameters(), lr=lr)
            train_step(model, opt, x, None, lambda out, _: out.sum(), limit)
            moves.append(abs(model.weight.item() - start))
    return tuple(moves)


# --- schedule, monitor, mask ---


def trapezoid_rate(step, steps, peak, warmup, decay):
    """Return the learning rate of a step, counted from 0: a rise, a plateau, a fall."""
    if step + 1 < warmup:
        return peak * (step + 1) / warmup
    left = steps - step  # this step and those after it
    return peak * left / decay if left < decay else peak


def normalized_entropy(weights, mask):
    """Return the mean of entropy / largest entropy over queries with two keys or more: (h,)."""
    weights, mask = np.asarray(weights, dtype=float), np.asarray(mask)
    B, h, L, _ = weights.shape
    means = np.zeros(h)
    for head in range(h):
        found = []
        for b in range(B):
            for q in range(L):
                keys = int(mask[b, 0, q].sum())
                if keys >= 2:
                    entropy = -sum(w * math.log(w) for w in weights[b, head, q] if w > 0)
                    found.append(entropy / math.log(keys))
        means[head] = sum(found) / len(found)
    return means


def masked_softmax(scores, mask):
    """Return weights over the allowed keys; a row without one is 0."""
    scores, mask = np.asarray(scores, dtype=float), np.asarray(mask)
    mask = np.broadcast_to(mask, scores.shape)
    weights = np.zeros(scores.shape)
    for row in np.ndindex(scores.shape[:-1]):
        allowed = np.flatnonzero(mask[row])
        if len(allowed):
            weights[row][allowed] = softmax_row(scores[row][allowed])
    return weights


def masked_softmax_gradient(scores, mask, upstream):
    """Return the gradient of the scores, for the gradient `upstream` of `masked_softmax`.

    Weight j changes with score k by w_j ((j = k) - w_k).
    """
    weights, upstream = masked_softmax(scores, mask), np.asarray(upstream, dtype=float)
    gradient = np.zeros(weights.shape)
    for row in np.ndindex(weights.shape[:-1]):
        w, g = weights[row], upstream[row]
        for k in range(len(w)):
            gradient[row][k] = sum(g[j] * w[j] * ((j == k) - w[k]) for j in range(len(w)))
    return gradient
