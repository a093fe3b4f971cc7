"""Right answers to exercise 6, written in unlike ways, and wrong ones that are not in the bank."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

NAN = math.nan

# --- predictions ---

RIGHT_LOSSES = {
    "two decimals": (3.91, 2.95, 1.5),
    "computed": [math.log(50), math.log(1 + 49 / math.e), (4 * 3 + 6 * 0.5) / 10],
    "an array": np.array([3.912, 2.946, 1.5]),
    "a tensor": torch.tensor([3.912, 2.946, 1.5]),
}
TRIVIAL_LOSSES = {"zeros": (0, 0, 0), "one number": 3.91, "words": ("a", "b", "c"), "None": None}
NEW_WRONG_LOSSES = {
    "only the real targets count": ((3.91, 2.95, 1.2), "(c) 1.2 is not the loss"),
    "decimal logarithm, three digits": ((1.699, 2.95, 1.5), "negative natural logarithm"),
    "one decimal": ((3.91, 2.9, 1.5), "(b) 2.9 is not the loss to two decimals"),
    "a slip in the last digit": ((3.91, 2.95, 1.51), "(c) 1.51 is not the loss to two decimals"),
}

RIGHT_STEPS = {
    "numbers": (4.0, 0.1, 0.1, 0.1),
    "integers among them": [4, 0.1, 0.1, 0.1],
    "an array": np.array([4.0, 0.1, 0.1, 0.1]),
}
TRIVIAL_STEPS = {"zeros": (0, 0, 0, 0), "one number": 4.0, "words": tuple("abcd"), "None": None}
NEW_WRONG_STEPS = {
    "gradient alone": ((40.0, 1.0, 0.1, 0.1), "(a) The weight does not move by 40"),
    "with a sign": ((-4.0, -0.1, -0.1, -0.1), "(a) -4: a distance has no sign"),
}

# --- lm_loss ---


def _ignoring(targets, pad_id):
    return targets if pad_id is None else torch.where(targets == pad_id, -100, targets)


def lm_sum(logits, targets, pad_id=None):
    targets = _ignoring(targets, pad_id)
    total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    return total / max((targets != -100).sum().item(), 1)


def lm_transposed(logits, targets, pad_id=None):
    targets = _ignoring(targets, pad_id)
    losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")  # (B, L)
    return losses.sum() / (targets != -100).sum().clamp(min=1)


def lm_selected(logits, targets, pad_id=None):
    keep = targets != -100
    if pad_id is not None:
        keep &= targets != pad_id
    if not keep.any():
        return logits.sum() * 0.0
    return F.cross_entropy(logits[keep], targets[keep])


def lm_gathered(logits, targets, pad_id=None):
    keep = (_ignoring(targets, pad_id) != -100).to(logits.dtype)
    logs = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
    chosen = logs.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    return -(chosen * keep).sum() / keep.sum().clamp(min=1)


def lm_one_hot(logits, targets, pad_id=None):
    keep = _ignoring(targets, pad_id) != -100
    wanted = F.one_hot(targets * keep, logits.shape[-1]) * keep[..., None]
    return -(wanted * F.log_softmax(logits, dim=-1)).sum() / max(int(keep.sum()), 1)


def lm_loops(logits, targets, pad_id=None):
    losses = [logits.sum() * 0]
    for row, wanted in zip(logits, targets.tolist(), strict=True):
        for scores, target in zip(row, wanted, strict=True):
            if target != -100 and target != pad_id:
                losses.append(torch.logsumexp(scores, 0) - scores[target])
    return sum(losses) / max(len(losses) - 1, 1)


def lm_module(logits, targets, pad_id=None):
    targets = _ignoring(targets, pad_id).reshape(-1)
    loss = nn.CrossEntropyLoss()(logits.reshape(-1, logits.shape[-1]), targets)
    return loss if (targets >= 0).any() else (0 * logits).sum()


def lm_float32(logits, targets, pad_id=None):
    return lm_selected(logits.float(), targets, pad_id)


def lm_shifted_peak(logits, targets, pad_id=None):
    peak = logits.amax(dim=-1, keepdim=True)
    logs = logits - peak - (logits - peak).exp().sum(dim=-1, keepdim=True).log()
    targets = _ignoring(targets, pad_id).flatten()
    total = F.nll_loss(logs.flatten(0, 1), targets, reduction="sum")
    return total / torch.count_nonzero(targets + 100).clamp(min=1)


def lm_copied_targets(logits, targets, pad_id=None):
    targets = targets.clone()
    if pad_id is not None:
        targets[targets == pad_id] = -100
    return lm_sum(logits, targets)


RIGHT_LM = {
    "sum over count": lm_sum,
    "transposed": lm_transposed,
    "selected": lm_selected,
    "gathered": lm_gathered,
    "one-hot": lm_one_hot,
    "loops": lm_loops,
    "module": lm_module,
    "float32 inside": lm_float32,
    "peak subtracted": lm_shifted_peak,
    "copied targets": lm_copied_targets,
}
TRIVIAL_LM = {
    "zero": lambda logits, targets, pad_id=None: torch.zeros(()),
    "None": lambda logits, targets, pad_id=None: None,
    "the logits": lambda logits, targets, pad_id=None: logits,
    "NaN": lambda logits, targets, pad_id=None: logits.sum() * NAN,
    "one number each": lambda logits, targets, pad_id=None: F.cross_entropy(
        logits.transpose(1, 2), targets, reduction="none"
    ),
}
NEW_WRONG_LM = {
    "half": (lambda *arguments: lm_sum(*arguments) / 2, "no target is padding"),
    "classes in reverse": (
        lambda logits, *rest: lm_sum(logits.flip(-1), *rest),
        "no target is padding",
    ),
    "an array": (
        lambda *arguments, **named: lm_sum(*arguments, **named).detach().numpy(),
        "of type ndarray, no tensor",
    ),
    "one more target": (
        lambda logits, targets, pad_id=None: (
            lm_sum(logits, targets, pad_id) * targets.numel() / (targets.numel() + 1)
        ),
        "The loss is",
    ),
}

# --- next_token_loss ---


def _predictions(loss):
    return lambda logits, tokens: loss(logits[:, :-1], tokens[:, 1:])


def next_by_ignored_target(logits, tokens):
    targets = torch.full_like(tokens, -100)
    targets[:, :-1] = tokens[:, 1:]
    return lm_sum(logits, targets)


def next_by_roll(logits, tokens):
    targets = tokens.roll(-1, dims=1)
    targets[:, -1] = -100
    return lm_transposed(logits, targets)


def next_by_place(logits, tokens):
    L = tokens.shape[1]
    losses = [F.cross_entropy(logits[:, t], tokens[:, t + 1]) for t in range(L - 1)]
    return sum(losses, logits.sum() * 0) / max(L - 1, 1)


def next_by_pad(logits, tokens):
    return lm_gathered(logits, F.pad(tokens[:, 1:], (0, 1), value=-100))


def next_by_narrow(logits, tokens):
    n = tokens.shape[1] - 1
    scores, targets = logits.narrow(1, 0, n), tokens.narrow(1, 1, n)
    return F.cross_entropy(scores.permute(0, 2, 1), targets, reduction="sum") / max(
        targets.numel(), 1
    )


RIGHT_NEXT = {
    "sum over count": _predictions(lm_sum),
    "transposed": _predictions(lm_transposed),
    "selected": _predictions(lm_selected),
    "one-hot": _predictions(lm_one_hot),
    "loops": _predictions(lm_loops),
    "float32 inside": _predictions(lm_float32),
    "ignored target": next_by_ignored_target,
    "roll": next_by_roll,
    "by place": next_by_place,
    "pad": next_by_pad,
    "narrow": next_by_narrow,
}
TRIVIAL_NEXT = {
    "zero": lambda logits, tokens: torch.zeros(()),
    "None": lambda logits, tokens: None,
    "the logits": lambda logits, tokens: logits,
    "NaN": lambda logits, tokens: logits.sum() * NAN,
}
NEW_WRONG_NEXT = {
    "two sequences exchanged": (
        lambda logits, tokens: lm_sum(logits[:, :-1].flip(0), tokens[:, 1:]),
        "The logits have shape",
    ),
    "half": (lambda logits, tokens: _predictions(lm_sum)(logits, tokens) / 2, "The loss is"),
}

# --- mended_loss ---


def _of_inputs(loss):
    return lambda model, tokens: loss(model(tokens[:, :-1]), tokens[:, 1:])


def _of_all(loss):
    return lambda model, tokens: loss(model(tokens)[:, :-1], tokens[:, 1:])


def mended_nll(model, tokens):
    logs = model(tokens[:, :-1]).log_softmax(dim=-1)
    return F.nll_loss(logs.transpose(1, 2), tokens[:, 1:])


RIGHT_MENDED_LOSS = {
    "inputs, flat": _of_inputs(lm_sum),
    "inputs, transposed": _of_inputs(lm_transposed),
    "inputs, loops": _of_inputs(lm_loops),
    "inputs, module": _of_inputs(lm_module),
    "all tokens, selected": _of_all(lm_selected),
    "all tokens, one-hot": _of_all(lm_one_hot),
    "all tokens, ignored target": lambda model, tokens: next_by_ignored_target(
        model(tokens), tokens
    ),
    "nll": mended_nll,
}
TRIVIAL_MENDED_LOSS = {
    "zero": lambda model, tokens: torch.zeros(()),
    "None": lambda model, tokens: None,
    "the scores": lambda model, tokens: model(tokens),
    "NaN": lambda model, tokens: model(tokens).sum() * NAN,
}
NEW_WRONG_MENDED_LOSS = {
    "sharper": (
        lambda model, tokens: lm_sum(model(tokens[:, :-1]) * 2, tokens[:, 1:]),
        "The loss is",
    ),
    "without the last sequence": (
        lambda model, tokens: mended_nll(model, tokens[:-1]),
        "The loss is",
    ),
}

# --- smoothed_loss ---


def smoothed_plain(logits, targets, smoothing):
    keep = targets != -100
    logs = F.log_softmax(logits[keep], dim=-1)
    right = logs.gather(1, targets[keep][:, None])[:, 0]
    losses = -(1 - smoothing) * right - smoothing * logs.mean(dim=-1)
    return losses.sum() / max(len(losses), 1)


def smoothed_one_hot(logits, targets, smoothing):
    V = logits.shape[-1]
    keep = targets != -100
    q = (1 - smoothing) * F.one_hot(targets.clamp(min=0), V) + smoothing / V
    losses = -(q * logits.log_softmax(-1)).sum(-1)
    return (losses * keep).sum() / keep.sum().clamp(min=1)


def smoothed_logsumexp(logits, targets, smoothing):
    scores, wanted = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    losses = [
        row.logsumexp(0) - (1 - smoothing) * row[target] - smoothing * row.mean()
        for row, target in zip(scores, wanted.tolist(), strict=True)
        if target != -100
    ]
    return torch.stack(losses).mean() if losses else logits.sum() * 0


def smoothed_nll(logits, targets, smoothing):
    logs = logits.reshape(-1, logits.shape[-1]).log_softmax(-1)
    flat = targets.reshape(-1)
    if (flat == -100).all():
        return torch.tensor(0.0)
    plain = F.nll_loss(logs, flat)
    return torch.lerp(plain, -logs[flat != -100].mean(), smoothing)


def smoothed_scatter(logits, targets, smoothing):
    keep = targets != -100
    scores, wanted = logits[keep], targets[keep]
    q = torch.full_like(scores, smoothing / scores.shape[-1])
    q.scatter_add_(1, wanted[:, None], torch.full_like(scores[:, :1], 1 - smoothing))
    return -(q * scores.log_softmax(1)).sum() / max(len(q), 1)


def smoothed_kl(logits, targets, smoothing):
    keep = targets != -100
    if not keep.any():
        return 0.0
    scores, V = logits[keep], logits.shape[-1]
    q = (1 - smoothing) * F.one_hot(targets[keep], V) + smoothing / V
    divergence = F.kl_div(scores.log_softmax(-1), q, reduction="sum")
    return (divergence + torch.special.entr(q).sum()) / len(q)


def smoothed_peak(logits, targets, smoothing):
    low = logits - logits.amax(-1, keepdim=True)
    logs = low - low.exp().sum(-1, keepdim=True).log()
    keep = targets != -100
    chosen = logs.gather(-1, (targets * keep)[..., None])[..., 0]
    losses = (1 - smoothing) * chosen + smoothing * logs.mean(-1)
    return -losses[keep].sum() / max(int(keep.sum()), 1)


def smoothed_float32(logits, targets, smoothing):
    return smoothed_plain(logits.float(), targets, smoothing)


RIGHT_SMOOTHED = {
    "plain": smoothed_plain,
    "one-hot": smoothed_one_hot,
    "logsumexp, a loop": smoothed_logsumexp,
    "nll and lerp": smoothed_nll,
    "scatter": smoothed_scatter,
    "divergence": smoothed_kl,
    "peak subtracted": smoothed_peak,
    "float32 inside": smoothed_float32,
}
TRIVIAL_SMOOTHED = {
    "zero": lambda logits, targets, smoothing: torch.zeros(()),
    "None": lambda logits, targets, smoothing: None,
    "the logits": lambda logits, targets, smoothing: logits,
    "NaN": lambda logits, targets, smoothing: NAN,
}
NEW_WRONG_SMOOTHED = {
    "a gradient of the target's part alone": (
        lambda logits, targets, smoothing: (
            smoothed_plain(logits, targets, 0.0)
            + (
                smoothed_plain(logits, targets, smoothing) - smoothed_plain(logits, targets, 0)
            ).detach()
        ),
        "The gradient",
    ),
    "half the smoothing": (
        lambda logits, targets, smoothing: smoothed_plain(logits, targets, smoothing / 2),
        "classes, smoothing is",
    ),
    "twice the loss": (
        lambda *arguments: 2 * smoothed_plain(*arguments),
        "smoothing is 0",
    ),
}

# --- train_step ---


def step_plain(model, opt, x, y, loss_fn, max_norm=None):
    loss = loss_fn(model(x), y)
    opt.zero_grad()
    loss.backward()
    if max_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    opt.step()
    return loss.item()


def step_zero_grad_first(model, opt, x, y, loss_fn, max_norm=None):
    model.zero_grad(set_to_none=False)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            parameter.grad = None
    loss = loss_fn(model(x), y)
    loss.backward()
    if max_norm:
        nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], max_norm)
    opt.step()
    return float(loss)


def step_closure(model, opt, x, y, loss_fn, max_norm=None):
    def closure():
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), math.inf if max_norm is None else max_norm)
        return loss

    return opt.step(closure).item()


def step_autograd(model, opt, x, y, loss_fn, max_norm=None):
    moving = [p for p in model.parameters() if p.requires_grad]
    loss = loss_fn(model(x), y)
    grads = torch.autograd.grad(loss, moving)
    norm = torch.cat([grad.flatten() for grad in grads]).norm()
    if max_norm is not None and norm > max_norm:
        grads = [grad * (max_norm / norm) for grad in grads]
    for parameter, grad in zip(moving, grads, strict=True):
        parameter.grad = grad
    opt.step()
    return loss.detach().numpy().item()


def step_by_hand(model, opt, x, y, loss_fn, max_norm=None):
    for parameter in model.parameters():
        parameter.grad = None
    loss = loss_fn(model(x), y)
    loss.backward()
    if max_norm is not None:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        norm = math.sqrt(sum((grad * grad).sum().item() for grad in grads))
        for grad in grads:
            grad.mul_(min(1.0, max_norm / (norm + 1e-6)))
    opt.step()
    return loss.tolist()


def step_groups(model, opt, x, y, loss_fn, max_norm=None):
    opt.zero_grad()
    with torch.enable_grad():
        loss = loss_fn(model(x), y)
    loss.backward()
    own = [p for group in opt.param_groups for p in group["params"]]
    if max_norm is not None:
        nn.utils.clip_grad_norm_(own, max_norm, foreach=False)
    opt.step()
    return loss.item()


def step_total_norm(model, opt, x, y, loss_fn, max_norm=None):
    model.zero_grad()
    loss = loss_fn(model(x), y)
    value = loss.item()
    loss.backward()
    if max_norm is not None:
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, norm)
    opt.step()
    return value


def step_numpy_number(model, opt, x, y, loss_fn, max_norm=None):
    return np.float64(step_plain(model, opt, x, y, loss_fn, max_norm))


RIGHT_STEP = {
    "plain": step_plain,
    "zero_grad first, to 0": step_zero_grad_first,
    "closure": step_closure,
    "by autograd.grad": step_autograd,
    "norm by hand": step_by_hand,
    "parameters of the optimizer": step_groups,
    "total norm": step_total_norm,
    "a number of NumPy": step_numpy_number,
}
TRIVIAL_STEP = {
    "nothing": lambda model, opt, x, y, loss_fn, max_norm=None: None,
    "zero": lambda model, opt, x, y, loss_fn, max_norm=None: 0.0,
    "NaN": lambda model, opt, x, y, loss_fn, max_norm=None: NAN,
    "the input": lambda model, opt, x, y, loss_fn, max_norm=None: x,
}


def step_half_the_norm(model, opt, x, y, loss_fn, max_norm=None):
    return step_plain(model, opt, x, y, loss_fn, max_norm and max_norm / 2)


def step_on_the_first_rows(model, opt, x, y, loss_fn, max_norm=None):
    return step_plain(model, opt, x[:2], y[: 2 * len(y) // len(x)], loss_fn, max_norm)


def step_by_groups(model, opt, x, y, loss_fn, max_norm=None):
    loss = loss_fn(model(x), y)
    opt.zero_grad()
    loss.backward()
    if max_norm is not None:
        share = max_norm / math.sqrt(len(opt.param_groups))
        for group in opt.param_groups:
            nn.utils.clip_grad_norm_(group["params"], share)
    opt.step()
    return loss.item()


NEW_WRONG_STEP = {
    "a share for each group": (step_by_groups, "two groups of parameters"),
    "a number of NumPy in single precision": (
        lambda *arguments: np.float32(step_plain(*arguments)),
        "of type float32; expected a Python number",
    ),
    "half the norm": (step_half_the_norm, "max_norm is"),
    "first rows": (step_on_the_first_rows, "after the call"),
}

# --- mended_epoch ---


def _counting(y):
    return (y != -100).sum().item()


def _epoch_with(step):
    def epoch(model, opt, batches, loss_fn, max_norm):
        total = count = 0
        for x, y in batches:
            total += step(model, opt, x, y, loss_fn, max_norm) * _counting(y)
            count += _counting(y)
        return total / count

    return epoch


def epoch_average(model, opt, batches, loss_fn, max_norm):
    losses = [step_plain(model, opt, x, y, loss_fn, max_norm) for x, y in batches]
    return np.average(losses, weights=[_counting(y) for _, y in batches])


def epoch_running_mean(model, opt, batches, loss_fn, max_norm):
    mean, seen = 0.0, 0
    for x, y in batches:
        seen += _counting(y)
        mean += (step_plain(model, opt, x, y, loss_fn, max_norm) - mean) * _counting(y) / seen
    return mean


RIGHT_EPOCH = {
    "plain": _epoch_with(step_plain),
    "zero_grad first": _epoch_with(step_zero_grad_first),
    "closure": _epoch_with(step_closure),
    "by autograd.grad": _epoch_with(step_autograd),
    "norm by hand": _epoch_with(step_by_hand),
    "total norm": _epoch_with(step_total_norm),
    "average": epoch_average,
    "running mean": epoch_running_mean,
}
TRIVIAL_EPOCH = {
    "nothing": lambda model, opt, batches, loss_fn, max_norm: None,
    "zero": lambda model, opt, batches, loss_fn, max_norm: 0.0,
    "NaN": lambda model, opt, batches, loss_fn, max_norm: NAN,
}
NEW_WRONG_EPOCH = {
    "an array": (
        lambda *arguments: np.array(epoch_average(*arguments)),
        "of type ndarray; expected a Python number",
    ),
    "first batch only": (
        lambda model, opt, batches, *rest: epoch_average(model, opt, batches[:1], *rest),
        "There are three batches",
    ),
    "batches in reverse": (
        lambda model, opt, batches, *rest: epoch_average(model, opt, batches[::-1], *rest),
        "There are three batches",
    ),
}

# --- trapezoid_rate ---


def rate_min(step, steps, peak, warmup, decay):
    return peak * min(1.0, (step + 1) / warmup, (steps - step) / decay)


def rate_branches(step, steps, peak, warmup, decay):
    if step < warmup:
        return peak / warmup * (step + 1)
    if step >= steps - decay:
        return peak * (1 - (step - (steps - decay)) / decay)
    return peak


def rate_interp(step, steps, peak, warmup, decay):
    return np.interp(step, [-1, warmup - 1, steps - decay, steps], [0.0, peak, peak, 0.0])


def rate_table(step, steps, peak, warmup, decay):
    rise = [peak * (i + 1) / warmup for i in range(warmup)]
    fall = [peak * (i + 1) / decay for i in range(decay)][::-1]
    return (rise + [peak] * (steps - warmup - decay) + fall)[step]


def rate_product(step, steps, peak, warmup, decay):
    return peak * min((step + 1) / warmup, 1) * min((steps - step) / decay, 1)


def rate_torch(step, steps, peak, warmup, decay):
    corners = torch.tensor([1.0, (step + 1) / warmup, (steps - step) / decay], dtype=torch.double)
    return peak * corners.min().item()


def rate_recursive(step, steps, peak, warmup, decay):
    if step < warmup:
        before = rate_recursive(step - 1, steps, peak, warmup, decay) if step else 0.0
        return before + peak / warmup
    if step > steps - decay:
        return rate_recursive(step - 1, steps, peak, warmup, decay) - peak / decay
    return peak


def rate_clipped(step, steps, peak, warmup, decay):
    rise, fall = np.clip([(step + 1) / warmup, (steps - step) / decay], 0, 1)
    return float(peak * rise + peak * fall - peak)


RIGHT_RATE = {
    "min": rate_min,
    "branches": rate_branches,
    "interpolated": rate_interp,
    "table": rate_table,
    "product": rate_product,
    "torch": rate_torch,
    "recursive": rate_recursive,
    "clipped and added": rate_clipped,
}
TRIVIAL_RATE = {
    "zero": lambda step, steps, peak, warmup, decay: 0.0,
    "None": lambda step, steps, peak, warmup, decay: None,
    "twice the peak": lambda step, steps, peak, warmup, decay: 2 * peak,
    "NaN": lambda step, steps, peak, warmup, decay: NAN,
}
NEW_WRONG_RATE = {
    "squared rise": (
        lambda step, *rest: rate_min(step, *rest) * min(1, (step + 1) / rest[2]),
        "trapezoid_rate(0",
    ),
    "half the peak": (
        lambda step, steps, peak, *rest: rate_min(step, steps, peak / 2, *rest),
        "trapezoid_rate(",
    ),
}

# --- accumulate_step ---


def _total(micro_batches):
    return sum(_counting(y) for _, y in micro_batches)


def accumulate_plain(model, opt, micro_batches, loss_fn):
    total = _total(micro_batches)
    opt.zero_grad()
    for x, y in micro_batches:
        if _counting(y):
            (loss_fn(model(x), y) * (_counting(y) / total)).backward()
    opt.step()


def accumulate_filtered(model, opt, micro_batches, loss_fn):
    kept = [(x, y) for x, y in micro_batches if not torch.all(y == -100)]
    opt.zero_grad()
    for x, y in kept:
        (loss_fn(model(x), y) * _counting(y) / _total(kept)).backward()
    opt.step()


def accumulate_scaled_afterwards(model, opt, micro_batches, loss_fn):
    model.zero_grad()
    total = 0
    for x, y in micro_batches:
        if n := _counting(y):
            (n * loss_fn(model(x), y)).backward()
            total += n
    for parameter in model.parameters():
        parameter.grad /= total
    opt.step()


def accumulate_autograd(model, opt, micro_batches, loss_fn):
    parameters = list(model.parameters())
    sums = [torch.zeros_like(p) for p in parameters]
    for x, y in micro_batches:
        if n := _counting(y):
            for kept, grad in zip(
                sums, torch.autograd.grad(loss_fn(model(x), y), parameters), strict=True
            ):
                kept += grad * n / _total(micro_batches)
    for parameter, kept in zip(parameters, sums, strict=True):
        parameter.grad = kept
    opt.step()


def accumulate_gradient_argument(model, opt, micro_batches, loss_fn):
    opt.zero_grad(set_to_none=False)
    total = _total(micro_batches)
    for x, y in micro_batches:
        if not _counting(y):
            continue
        loss = loss_fn(model(x), y)
        loss.backward(torch.tensor(_counting(y) / total, dtype=loss.dtype))
    opt.step()


def accumulate_closure(model, opt, micro_batches, loss_fn):
    def closure():
        opt.zero_grad()
        for x, y in micro_batches:
            if (y != -100).any():
                share = (y != -100).sum() / sum((z != -100).sum() for _, z in micro_batches)
                (share * loss_fn(model(x), y)).backward()

    opt.step(closure)


def accumulate_running_mean(model, opt, micro_batches, loss_fn):
    opt.zero_grad()
    seen = 0
    for x, y in [batch for batch in micro_batches if _counting(batch[1])]:
        n = _counting(y)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad *= seen / (seen + n)
        seen += n
        (loss_fn(model(x), y) * n / seen).backward()
    opt.step()


def accumulate_backwards(model, opt, micro_batches, loss_fn):
    accumulate_plain(model, opt, list(reversed(micro_batches)), loss_fn)


def accumulate_returns_the_loss(model, opt, micro_batches, loss_fn):
    accumulate_plain(model, opt, micro_batches, loss_fn)
    return 1.0


RIGHT_ACCUMULATE = {
    "plain": accumulate_plain,
    "filtered": accumulate_filtered,
    "scaled afterwards": accumulate_scaled_afterwards,
    "by autograd.grad": accumulate_autograd,
    "gradient of the loss": accumulate_gradient_argument,
    "closure": accumulate_closure,
    "running mean": accumulate_running_mean,
    "from the end": accumulate_backwards,
    "returns a number": accumulate_returns_the_loss,
}
TRIVIAL_ACCUMULATE = {
    "nothing": lambda model, opt, micro_batches, loss_fn: None,
    "a step without gradients": lambda model, opt, micro_batches, loss_fn: (
        opt.zero_grad(),
        opt.step(),
        None,
    )[-1],
    "gradients cleared": lambda model, opt, micro_batches, loss_fn: opt.zero_grad(),
}


def accumulate_first_counts_double(model, opt, micro_batches, loss_fn):
    accumulate_plain(model, opt, [*micro_batches[:1], *micro_batches], loss_fn)


def accumulate_twice(model, opt, micro_batches, loss_fn):
    accumulate_plain(model, opt, micro_batches, loss_fn)
    accumulate_plain(model, opt, micro_batches, loss_fn)


def accumulate_two_at_a_time(model, opt, micro_batches, loss_fn):
    opt.zero_grad()
    filled = [(x, y) for x, y in micro_batches if _counting(y)]
    for start in range(0, len(filled), 2):
        losses = [loss_fn(model(x), y) * _counting(y) for x, y in filled[start : start + 2]]
        for loss in losses:
            (loss / _total(micro_batches)).backward()
    opt.step()


NEW_WRONG_ACCUMULATE = {
    "two forward passes at a time": (
        accumulate_two_at_a_time,
        "before the backward pass of the first",
    ),
    "first counts double": (accumulate_first_counts_double, "three micro-batches"),
    "two steps": (accumulate_twice, "There is one micro-batch"),
}

# --- normalized_entropy ---


def _shares(entropies, mask):
    """Return the mean of entropies (B, h, L) over their largest values, for each head."""
    keys = mask.sum(-1)  # (B, 1, L)
    counting = keys >= 2
    return (entropies / keys.clamp(min=2).log() * counting).sum((0, 2)) / counting.sum()


def entropy_entr(weights, mask):
    return _shares(torch.special.entr(weights).sum(-1), mask)


def entropy_xlogy(weights, mask):
    keys = mask[:, 0].sum(-1)  # (B, L)
    entropies = -torch.xlogy(weights, weights).sum(-1).transpose(0, 1)  # (h, B, L)
    return (entropies[:, keys > 1] / keys[keys > 1].log()).mean(-1)


def entropy_where(weights, mask):
    logs = torch.where(weights > 0, weights, 1.0).log()
    return _shares(-(weights * logs).sum(-1), mask)


def entropy_clamped(weights, mask):
    return _shares(-(weights * weights.clamp(min=1e-30).log()).sum(-1), mask)


def entropy_categorical(weights, mask):
    chosen = mask[:, 0].sum(-1) > 1
    rows = weights.permute(0, 2, 1, 3)[chosen]  # (n, h, L)
    largest = mask[:, 0].sum(-1)[chosen].log()
    entropies = torch.distributions.Categorical(probs=rows).entropy()
    return (entropies / largest[:, None]).mean(0)


def entropy_loops(weights, mask):
    means = []
    for head in weights.transpose(0, 1):
        found = []
        for rows, allowed in zip(head.flatten(0, 1), mask.flatten(0, 2), strict=True):
            if (n := int(allowed.sum())) > 1:
                found.append(-sum(w * math.log(w) for w in rows.tolist() if w) / math.log(n))
        means.append(sum(found) / len(found))
    return torch.tensor(means)


def entropy_by_base(weights, mask):
    keys = mask.sum(-1, keepdim=True)
    logs = (weights + (weights == 0)).log() / keys.clamp(min=2).log()  # to the base of n
    counting = (keys >= 2)[..., 0]
    return -((weights * logs).sum(-1) * counting).sum((0, 2)) / counting.sum()


def entropy_numpy(weights, mask):
    w, keys = weights.numpy(), mask.numpy().sum(-1)
    logs = np.log(w, out=np.zeros_like(w), where=w > 0)
    shares = -(w * logs).sum(-1) / np.log(np.maximum(keys, 2)) * (keys > 1)
    return shares.sum((0, 2)) / (keys > 1).sum()


def entropy_nan_to_num(weights, mask):
    return _shares(-(weights * weights.log()).nan_to_num().sum(-1), mask)


RIGHT_ENTROPY = {
    "entr": entropy_entr,
    "xlogy": entropy_xlogy,
    "where": entropy_where,
    "clamped": entropy_clamped,
    "Categorical": entropy_categorical,
    "loops": entropy_loops,
    "logarithm to another base": entropy_by_base,
    "NumPy": entropy_numpy,
    "nan_to_num": entropy_nan_to_num,
}
TRIVIAL_ENTROPY = {
    "zeros": lambda weights, mask: torch.zeros(weights.shape[1]),
    "None": lambda weights, mask: None,
    "the weights": lambda weights, mask: weights,
    "NaN": lambda weights, mask: torch.full((weights.shape[1],), NAN),
}
NEW_WRONG_ENTROPY = {
    "heads in reverse": (
        lambda weights, mask: entropy_entr(weights.flip(1), mask),
        "nothing is masked",
    ),
    "nine tenths": (lambda weights, mask: entropy_entr(weights, mask) * 0.9, "The result"),
}

# --- mended_evaluate ---


def _restoring(results):
    def evaluate(model, batches):
        was = model.training
        model.eval()
        with torch.no_grad():
            found = results(model, batches)
        model.train(was)
        return found

    return evaluate


def sums(model, batches):
    total = right = count = 0
    for x, y in batches:
        scores = model(x)
        total += F.cross_entropy(scores, y, reduction="sum").item()
        right += (scores.argmax(-1) == y).sum().item()
        count += _counting(y)
    return total / count, right / count


def joined(model, batches):
    scores = torch.cat([model(x) for x, _ in batches])
    y = torch.cat([y for _, y in batches])
    keep = y != -100
    right = (scores[keep].argmax(1) == y[keep]).double().mean()
    return F.cross_entropy(scores, y).item(), right.item()


def selected(model, batches):
    losses, right = [], []
    for x, y in batches:
        scores, y = model(x)[y != -100], y[y != -100]
        losses += F.cross_entropy(scores, y, reduction="none").tolist()
        right += (scores.max(dim=1).indices == y).tolist()
    return sum(losses) / len(losses), sum(right) / len(right)


def averaged(model, batches):
    pairs = [sums(model, [batch]) for batch in batches]
    loss, accuracy = np.average(pairs, axis=0, weights=[_counting(y) for _, y in batches])
    return loss, accuracy


def loops(model, batches):
    losses, right = [], 0
    for x, y in batches:
        for row, target in zip(model(x).log_softmax(1).tolist(), y.tolist(), strict=True):
            if target != -100:
                losses.append(-row[target])
                right += row.index(max(row)) == target
    return sum(losses) / len(losses), right / len(losses)


def with_inference_mode(model, batches):
    was = model.training
    try:
        model.eval()
        with torch.inference_mode():
            return joined(model, batches)
    finally:
        model.train(was)


def module_by_module(model, batches):
    modes = {module: module.training for module in model.modules()}
    found = _restoring(sums)(model, batches)
    for module, mode in modes.items():
        module.training = mode
    return found


def detached(model, batches):
    was = model.training
    model.train(False)
    found = list(selected(model, batches))
    if was:
        model.train()
    return found


RIGHT_EVALUATE = {
    "sums": _restoring(sums),
    "joined": _restoring(joined),
    "selected": _restoring(selected),
    "averaged": _restoring(averaged),
    "loops": _restoring(loops),
    "inference mode": with_inference_mode,
    "module by module": module_by_module,
    "without no_grad": detached,
}
TRIVIAL_EVALUATE = {
    "zeros": lambda model, batches: (0.0, 0.0),
    "None": lambda model, batches: None,
    "one number": lambda model, batches: 0.5,
    "NaN": lambda model, batches: (NAN, NAN),
}


def _worst(model, batches):
    loss, _ = sums(model, batches)
    return loss, 0.0


def _exchanged(model, batches):
    return sums(model, batches)[::-1]


NEW_WRONG_EVALUATE = {
    "arrays": (
        lambda *arguments: tuple(map(np.array, _restoring(sums)(*arguments))),
        "of type ndarray; expected a Python number",
    ),
    "accuracy 0": (_restoring(_worst), "The accuracy is 0"),
    "exchanged": (_restoring(_exchanged), "The loss is"),
}

# --- mended_masked_softmax ---


def masked_infinity(scores, mask):
    return scores.masked_fill(~mask, -torch.inf).softmax(-1).masked_fill(~mask, 0.0)


def masked_where(scores, mask):
    weights = torch.where(mask, scores, -torch.inf).softmax(-1)
    return torch.where(mask, weights, 0.0)


def masked_nan_to_num(scores, mask):
    return F.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1).nan_to_num(0.0)


def masked_peak_subtracted(scores, mask):
    low = torch.finfo(scores.dtype).min
    below = (scores - scores.masked_fill(~mask, low).amax(-1, keepdim=True)).double()
    exps = below.masked_fill(~mask, -torch.inf).exp()
    return (exps / exps.sum(-1, keepdim=True).clamp(min=1e-300)).to(scores.dtype)


def masked_by_hand(scores, mask):
    wide = scores.double()
    peak = wide.where(mask, -torch.inf).amax(-1, keepdim=True)
    exps = torch.exp(wide - peak.nan_to_num(neginf=0.0)).where(mask, 0.0)
    return (exps / exps.sum(-1, keepdim=True).clamp(min=1e-300)).to(scores.dtype)


def masked_rows(scores, mask):
    weights = torch.zeros_like(scores)
    for place in np.ndindex(scores.shape[:-1]):
        if mask[place].any():
            weights[place][mask[place]] = scores[place][mask[place]].softmax(0)
    return weights


def masked_added(scores, mask):
    closed = ~mask & mask.any(-1, keepdim=True)
    bias = torch.zeros_like(scores).masked_fill(closed, -torch.inf)
    return (scores + bias).float().softmax(-1).to(scores.dtype) * mask


def masked_empty_rows_opened(scores, mask):
    alive = mask.any(-1, keepdim=True)
    weights = scores.masked_fill(~(mask | ~alive), -torch.inf).softmax(-1)
    return weights * alive


def masked_float32(scores, mask):
    return masked_infinity(scores.float(), mask).type_as(scores)


RIGHT_MASKED = {
    "minus infinity": masked_infinity,
    "where": masked_where,
    "nan_to_num": masked_nan_to_num,
    "peak subtracted": masked_peak_subtracted,
    "by hand": masked_by_hand,
    "rows": masked_rows,
    "added": masked_added,
    "empty rows opened": masked_empty_rows_opened,
    "float32 inside": masked_float32,
}
TRIVIAL_MASKED = {
    "zeros": lambda scores, mask: torch.zeros_like(scores),
    "None": lambda scores, mask: None,
    "the scores": lambda scores, mask: scores,
    "NaN": lambda scores, mask: scores * NAN,
}
NEW_WRONG_MASKED = {
    "sharper": (lambda scores, mask: masked_where(scores * 2, mask), "The scores are near 0"),
    "hidden keys at -1e8 in float32": (
        lambda scores, mask: scores.float().masked_fill(~mask, -1e8).softmax(-1).to(scores.dtype),
        "the lowest finite number of float32",
    ),
    "half the gradient": (
        lambda scores, mask: masked_where((scores.double() / 2 + scores.detach() / 2), mask).to(
            scores.dtype
        ),
        "The gradient of the scores",
    ),
}

# --- by question ---

RIGHT = {
    "predicted_losses": RIGHT_LOSSES,
    "lm_loss": RIGHT_LM,
    "next_token_loss": RIGHT_NEXT,
    "mended_loss": RIGHT_MENDED_LOSS,
    "smoothed_loss": RIGHT_SMOOTHED,
    "predicted_steps": RIGHT_STEPS,
    "train_step": RIGHT_STEP,
    "mended_epoch": RIGHT_EPOCH,
    "trapezoid_rate": RIGHT_RATE,
    "accumulate_step": RIGHT_ACCUMULATE,
    "normalized_entropy": RIGHT_ENTROPY,
    "mended_evaluate": RIGHT_EVALUATE,
    "mended_masked_softmax": RIGHT_MASKED,
}
TRIVIAL = {
    "predicted_losses": TRIVIAL_LOSSES,
    "lm_loss": TRIVIAL_LM,
    "next_token_loss": TRIVIAL_NEXT,
    "mended_loss": TRIVIAL_MENDED_LOSS,
    "smoothed_loss": TRIVIAL_SMOOTHED,
    "predicted_steps": TRIVIAL_STEPS,
    "train_step": TRIVIAL_STEP,
    "mended_epoch": TRIVIAL_EPOCH,
    "trapezoid_rate": TRIVIAL_RATE,
    "accumulate_step": TRIVIAL_ACCUMULATE,
    "normalized_entropy": TRIVIAL_ENTROPY,
    "mended_evaluate": TRIVIAL_EVALUATE,
    "mended_masked_softmax": TRIVIAL_MASKED,
}
NEW_WRONG = {
    "predicted_losses": NEW_WRONG_LOSSES,
    "lm_loss": NEW_WRONG_LM,
    "next_token_loss": NEW_WRONG_NEXT,
    "mended_loss": NEW_WRONG_MENDED_LOSS,
    "smoothed_loss": NEW_WRONG_SMOOTHED,
    "predicted_steps": NEW_WRONG_STEPS,
    "train_step": NEW_WRONG_STEP,
    "mended_epoch": NEW_WRONG_EPOCH,
    "trapezoid_rate": NEW_WRONG_RATE,
    "accumulate_step": NEW_WRONG_ACCUMULATE,
    "normalized_entropy": NEW_WRONG_ENTROPY,
    "mended_evaluate": NEW_WRONG_EVALUATE,
    "mended_masked_softmax": NEW_WRONG_MASKED,
}
