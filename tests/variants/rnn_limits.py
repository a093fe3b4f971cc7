"""Right answers to exercise 1, written in unlike ways, and wrong ones that are not in the bank."""

import functools
import itertools
import math

import numpy as np

# --- rnn_forward, right ---


def forward_list(x, W_x, W_h, b, h0):
    h, states = h0, []
    for t in range(x.shape[1]):
        h = np.tanh(x[:, t] @ W_x + h @ W_h + b)
        states.append(h)
    return np.stack(states, axis=1)


def forward_buffer(x, W_x, W_h, b, h0):
    B, T, _ = x.shape
    hs = np.empty((B, T, len(b)))
    for t in range(T):
        before = h0 if t == 0 else hs[:, t - 1]
        hs[:, t] = np.tanh(x[:, t] @ W_x + before @ W_h + b)
    return hs


def forward_inputs_first(x, W_x, W_h, b, h0):
    inner = np.einsum("btd,dh->bth", x, W_x) + b
    hs = np.zeros(inner.shape)
    h = h0
    for t in range(inner.shape[1]):
        h = hs[:, t] = np.tanh(inner[:, t] + np.einsum("bi,ij->bj", h, W_h))
    return hs


def forward_one_sequence_at_a_time(x, W_x, W_h, b, h0):
    result = []
    for sequence, h in zip(x, h0, strict=True):
        states = []
        for token in sequence:
            h = np.tanh(W_x.T @ token + W_h.T @ h + b)
            states.append(h)
        result.append(states)
    return np.array(result)


def forward_joined_weights(x, W_x, W_h, b, h0):
    W = np.concatenate([W_x, W_h, b[None]])  # one product for all three
    h, states, ones = h0, [], np.ones((len(x), 1))
    for t in range(x.shape[1]):
        h = np.tanh(np.concatenate([x[:, t], h, ones], axis=1) @ W)
        states.append(h)
    return np.array(states).transpose(1, 0, 2)


def forward_accumulate(x, W_x, W_h, b, h0):
    def step(h, token):
        return np.tanh(token @ W_x + h @ W_h + b)

    steps = itertools.accumulate(np.swapaxes(x, 0, 1), step, initial=h0)
    return np.stack(list(steps)[1:], axis=1)


def forward_recursive(x, W_x, W_h, b, h0):
    if x.shape[1] == 0:
        return np.zeros((len(x), 0, len(b)))
    h = np.tanh(x[:, 0] @ W_x + h0 @ W_h + b)
    return np.concatenate([h[:, None], forward_recursive(x[:, 1:], W_x, W_h, b, h)], axis=1)


def forward_float32(x, W_x, W_h, b, h0):
    return forward_list(*(np.asarray(a, dtype=np.float32) for a in (x, W_x, W_h, b, h0)))


def forward_numbers(x, W_x, W_h, b, h0):
    (B, T, D), H = x.shape, len(b)
    hs = np.zeros((B, T + 1, H))
    hs[:, 0] = h0
    for n, t, j in itertools.product(range(B), range(T), range(H)):
        inner = sum(x[n, t, i] * W_x[i, j] for i in range(D)) + b[j]
        inner += sum(hs[n, t, i] * W_h[i, j] for i in range(H))
        hs[n, t + 1, j] = math.tanh(inner)
    return hs[:, 1:]


class Forward:
    def __call__(self, x, W_x, W_h, b, h0):
        return forward_list(x, W_x, W_h, b, h0)


RIGHT_FORWARD = {
    "list": forward_list,
    "buffer": forward_buffer,
    "inputs first": forward_inputs_first,
    "one sequence at a time": forward_one_sequence_at_a_time,
    "joined weights": forward_joined_weights,
    "accumulate": forward_accumulate,
    "recursive": forward_recursive,
    "float32 inside": forward_float32,
    "single numbers": forward_numbers,
    "callable object": Forward(),
}

TRIVIAL_FORWARD = {
    "zeros": lambda x, W_x, W_h, b, h0: np.zeros((*x.shape[:2], len(b))),
    "the input": lambda x, W_x, W_h, b, h0: x,
    "the start": lambda x, W_x, W_h, b, h0: np.repeat(h0[:, None], x.shape[1], axis=1),
    "None": lambda x, W_x, W_h, b, h0: None,
    "a tuple": lambda x, W_x, W_h, b, h0: (forward_list(x, W_x, W_h, b, h0), h0),
    "a list": lambda x, W_x, W_h, b, h0: forward_list(x, W_x, W_h, b, h0).tolist(),
    "NaN": lambda x, W_x, W_h, b, h0: np.full((*x.shape[:2], len(b)), np.nan),
}


def forward_every_other_input(x, W_x, W_h, b, h0):
    x = x.copy()
    x[:, 1::2] = 0
    return forward_list(x, W_x, W_h, b, h0)


def forward_leaky(x, W_x, W_h, b, h0):
    h, states = h0, []
    for t in range(x.shape[1]):
        h = 0.5 * h + 0.5 * np.tanh(x[:, t] @ W_x + h @ W_h + b)
        states.append(h)
    return np.stack(states, axis=1)


NEW_WRONG_FORWARD = {
    "every other input": (forward_every_other_input, "sequences of"),
    "leaky": (forward_leaky, "There is one step"),
}

# --- rnn_last_state ---


def last_indexed(hs, lengths):
    return hs[np.arange(len(hs)), lengths - 1]


def last_loop(hs, lengths):
    return np.array([states[length - 1] for states, length in zip(hs, lengths, strict=True)])


def last_take_along_axis(hs, lengths):
    return np.take_along_axis(hs, (lengths - 1)[:, None, None], axis=1)[:, 0]


def last_boolean(hs, lengths):
    return hs[np.arange(hs.shape[1]) == lengths[:, None] - 1]


def last_where(hs, lengths):
    is_last = np.arange(1, hs.shape[1] + 1) == lengths[:, None]
    return np.where(is_last[..., None], hs, 0.0).sum(axis=1)


def last_kept(hs, lengths):
    last = np.zeros((len(hs), hs.shape[2]))
    for t in range(hs.shape[1]):
        last = np.where((t < lengths)[:, None], hs[:, t], last)
    return last


def last_flat(hs, lengths):
    B, T, H = hs.shape
    return hs.reshape(B * T, H)[np.arange(B) * T + lengths - 1]


def last_of_slices(hs, lengths):
    return np.concatenate([hs[i : i + 1, :length][:, -1] for i, length in enumerate(lengths)])


def last_choose(hs, lengths):
    return np.select(
        [(lengths == t + 1)[:, None] for t in range(hs.shape[1])], list(np.moveaxis(hs, 1, 0))
    )


RIGHT_LAST = {
    "indexed": last_indexed,
    "loop": last_loop,
    "take_along_axis": last_take_along_axis,
    "Boolean index": last_boolean,
    "where and sum": last_where,
    "kept while reading": last_kept,
    "flat": last_flat,
    "slices": last_of_slices,
    "select": last_choose,
}

TRIVIAL_LAST = {
    "zeros": lambda hs, lengths: np.zeros((len(hs), hs.shape[2])),
    "the input": lambda hs, lengths: hs,
    "None": lambda hs, lengths: None,
    "a tuple": lambda hs, lengths: (last_loop(hs, lengths), lengths),
    "a list": lambda hs, lengths: last_loop(hs, lengths).tolist(),
    "NaN": lambda hs, lengths: np.full((len(hs), hs.shape[2]), np.nan),
}


def last_sorted_by_length(hs, lengths):
    return last_loop(hs, lengths)[np.argsort(lengths, kind="stable")]


def last_two_averaged(hs, lengths):
    return (last_loop(hs, lengths) + last_loop(hs, np.maximum(lengths - 1, 1))) / 2


NEW_WRONG_LAST = {
    "sorted by length": (last_sorted_by_length, "The lengths are"),
    "two averaged": (last_two_averaged, "The lengths are"),
}

# --- rnn_backward ---


def backward_loop(dhs, x, hs, W_x, W_h, h0):
    dx, dW_x, dW_h = np.zeros(x.shape), np.zeros(W_x.shape), np.zeros(W_h.shape)
    db, carried = np.zeros(hs.shape[2]), np.zeros(h0.shape)
    for t in range(hs.shape[1] - 1, -1, -1):
        dz = (dhs[:, t] + carried) * (1 - hs[:, t] ** 2)
        dx[:, t] = dz @ W_x.T
        dW_x += x[:, t].T @ dz
        dW_h += (hs[:, t - 1] if t > 0 else h0).T @ dz
        db += dz.sum(axis=0)
        carried = dz @ W_h.T
    return dx, dW_x, dW_h, db, carried


def _all_dz(dhs, hs, W_h):
    dz, carried = np.zeros(hs.shape), 0.0
    for t in reversed(range(hs.shape[1])):
        dz[:, t] = (dhs[:, t] + carried) * (1 - hs[:, t] ** 2)
        carried = dz[:, t] @ W_h.T
    return dz, carried


def backward_products_at_the_end(dhs, x, hs, W_x, W_h, h0):
    dz, dh0 = _all_dz(dhs, hs, W_h)
    before = np.concatenate([h0[:, None], hs[:, :-1]], axis=1)
    dW_x = np.einsum("btd,bth->dh", x, dz)
    dW_h = np.einsum("bti,btj->ij", before, dz)
    return dz @ W_x.T, dW_x, dW_h, dz.sum(axis=(0, 1)), dh0


def backward_flat(dhs, x, hs, W_x, W_h, h0):
    dz, dh0 = _all_dz(dhs, hs, W_h)
    before = np.concatenate([h0[:, None], hs], axis=1)[:, :-1]
    flat = dz.reshape(-1, dz.shape[-1])
    dW_x = x.reshape(len(flat), -1).T @ flat
    dW_h = before.reshape(len(flat), -1).T @ flat
    return (flat @ W_x.T).reshape(x.shape), dW_x, dW_h, flat.sum(axis=0), dh0


def backward_one_sequence_at_a_time(dhs, x, hs, W_x, W_h, h0):
    parts = [
        backward_loop(*(a[n : n + 1] for a in (dhs, x, hs)), W_x, W_h, h0[n : n + 1])
        for n in range(len(x))
    ]
    dx, dW_x, dW_h, db, dh0 = zip(*parts, strict=True)
    return np.concatenate(dx), sum(dW_x), sum(dW_h), sum(db), np.concatenate(dh0)


def backward_by_paths(dhs, x, hs, W_x, W_h, h0):
    """Multiply Jacobians: d h_s / d h_t for every pair, then sum over all later losses."""
    B, T, H = hs.shape
    dz = np.zeros(hs.shape)
    slopes = 1 - hs**2
    for n in range(B):
        for t in range(T):
            reach = np.eye(H)
            for s in range(t, T):
                if s > t:
                    reach = reach @ (W_h * slopes[n, s])
                dz[n, t] += slopes[n, t] * (reach @ dhs[n, s])
    before = np.concatenate([h0[:, None], hs[:, :-1]], axis=1)
    return (
        dz @ W_x.T,
        sum(x[n].T @ dz[n] for n in range(B)),
        sum(before[n].T @ dz[n] for n in range(B)),
        dz.sum(axis=1).sum(axis=0),
        dz[:, 0] @ W_h.T,
    )


def backward_recursive(dhs, x, hs, W_x, W_h, h0):
    T = hs.shape[1]
    last = slice(T - 1, T)
    before = hs[:, T - 2] if T > 1 else h0
    dz = dhs[:, -1] * (1 - hs[:, -1] ** 2)
    here = (x[:, -1].T @ dz, before.T @ dz, dz.sum(0))
    if T == 1:
        return (dz @ W_x.T)[:, None], *here, dz @ W_h.T
    earlier = dhs[:, :-1].copy()
    earlier[:, -1] += dz @ W_h.T
    dx, dW_x, dW_h, db, dh0 = backward_recursive(earlier, x[:, :-1], hs[:, :-1], W_x, W_h, h0)
    dx = np.concatenate([dx, np.zeros_like(x[:, last]) + (dz @ W_x.T)[:, None]], axis=1)
    return dx, dW_x + here[0], dW_h + here[1], db + here[2], dh0


def backward_float32(dhs, x, hs, W_x, W_h, h0):
    return backward_loop(*(a.astype(np.float32) for a in (dhs, x, hs, W_x, W_h, h0)))


def backward_finite_differences(dhs, x, hs, W_x, W_h, h0):
    # the bias is not given, but what it added to each step is in the states
    with np.errstate(divide="ignore"):
        inner = np.arctanh(hs)
    before = np.concatenate([h0[:, None], hs[:, :-1]], axis=1)
    b = (inner - x @ W_x - before @ W_h)[0, 0]

    def loss(x, W_x, W_h, b, h0):
        return np.sum(dhs * forward_list(x, W_x, W_h, b, h0))

    arguments, gradients = [x, W_x, W_h, b, h0], []
    for place, array in enumerate(arguments):
        gradient = np.zeros(array.shape)
        for index in np.ndindex(array.shape):
            ends = []
            for change in (1e-5, -1e-5):
                other = array.copy()
                other[index] += change
                ends.append(loss(*arguments[:place], other, *arguments[place + 1 :]))
            gradient[index] = (ends[0] - ends[1]) / 2e-5
        gradients.append(gradient)
    return gradients


def backward_padded(dhs, x, hs, W_x, W_h, h0):
    states = np.concatenate([h0[:, None], hs], axis=1)
    dstates = np.concatenate([np.zeros_like(h0)[:, None], dhs], axis=1)
    dz = np.zeros(hs.shape)
    for t in range(hs.shape[1], 0, -1):
        dz[:, t - 1] = dstates[:, t] * (1 + states[:, t]) * (1 - states[:, t])
        dstates[:, t - 1] += dz[:, t - 1] @ W_h.T
    return [
        np.inner(dz, W_x),
        np.tensordot(x, dz, axes=((0, 1), (0, 1))),
        np.tensordot(states[:, :-1], dz, axes=((0, 1), (0, 1))),
        np.einsum("bth->h", dz),
        dstates[:, 0],
    ]


RIGHT_BACKWARD = {
    "loop": backward_loop,
    "products at the end": backward_products_at_the_end,
    "flat": backward_flat,
    "one sequence at a time": backward_one_sequence_at_a_time,
    "by paths": backward_by_paths,
    "recursive": backward_recursive,
    "float32 inside": backward_float32,
    "padded by the start, a list": backward_padded,
    "finite differences": backward_finite_differences,
}

TRIVIAL_BACKWARD = {
    "zeros": lambda dhs, x, hs, W_x, W_h, h0: tuple(
        np.zeros(a.shape) for a in (x, W_x, W_h, hs[0, 0], h0)
    ),
    "the inputs": lambda dhs, x, hs, W_x, W_h, h0: (x, W_x, W_h, dhs.sum(axis=(0, 1)), h0),
    "None": lambda dhs, x, hs, W_x, W_h, h0: None,
    "four results": lambda *arguments: backward_loop(*arguments)[:4],
    "one array": lambda dhs, x, hs, W_x, W_h, h0: dhs,
    "NaN": lambda *arguments: tuple(np.nan * a for a in backward_loop(*arguments)),
}


def backward_sign(dhs, x, hs, W_x, W_h, h0):
    return tuple(-gradient for gradient in backward_loop(dhs, x, hs, W_x, W_h, h0))


def backward_two_steps_at_most(dhs, x, hs, W_x, W_h, h0):
    before = np.concatenate([h0[:, None], hs[:, :-1]], axis=1)
    slopes = 1 - hs**2
    dz = dhs * slopes
    dz[:, :-1] += ((dhs * slopes)[:, 1:] @ W_h.T) * slopes[:, :-1]
    dW_h = np.einsum("bti,btj->ij", before, dz)
    return (
        dz @ W_x.T,
        np.einsum("btd,bth->dh", x, dz),
        dW_h,
        dz.sum(axis=(0, 1)),
        dz[:, 0] @ W_h.T,
    )


def backward_clipped(dhs, x, hs, W_x, W_h, h0):
    return tuple(np.clip(g, -0.5, 0.5) for g in backward_loop(dhs, x, hs, W_x, W_h, h0))


NEW_WRONG_BACKWARD = {
    "sign": (backward_sign, "dx[0, 0] differs"),
    "two steps at most": (backward_two_steps_at_most, "and a loss at each of them"),
    "clipped": (backward_clipped, "differs: got"),
}

# --- train_chunks ---


def train_plain(cell, chunks, h, loss_fn, opt):
    losses = []
    for x, y in chunks:
        out, h = cell(x, h)
        loss = loss_fn(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        h = h.detach()
        losses.append(loss.item())
    return losses, h


def train_detached_at_the_start(cell, chunks, h, loss_fn, opt):
    losses = []
    for x, y in chunks:
        h = h.detach()
        opt.zero_grad(set_to_none=False)
        out, h = cell(x, h)
        loss = loss_fn(out, y)
        loss.backward()
        opt.step()
        losses.append(float(loss))
    return losses, h.detach()


def train_zero_grad_at_the_end(cell, chunks, h, loss_fn, opt):
    losses = ()
    for x, y in chunks:
        out, h = cell(x, h)
        loss = loss_fn(out, y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        h.detach_()
        losses += (loss.item(),)
    return losses, h


def train_copied_state(cell, chunks, h, loss_fn, opt):
    import torch

    losses = []
    for x, y in chunks:
        out, h = cell(x, h)
        loss = loss_fn(out, y)
        cell.zero_grad()
        loss.backward()
        opt.step()
        h = torch.from_numpy(h.detach().numpy().copy())
        losses.append(float(loss.detach()))
    return losses, h


def train_by_autograd(cell, chunks, h, loss_fn, opt):
    import torch

    losses, weights = [], list(cell.parameters())
    for x, y in chunks:
        out, h = cell(x, h.data)
        loss = loss_fn(out, y)
        for weight, grad in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.grad = grad
        opt.step()
        losses.append(loss.tolist())
    return losses, h.data


def train_closure(cell, chunks, h, loss_fn, opt):
    import torch

    losses = []
    for x, y in chunks:
        kept = []

        def closure(x=x, y=y, start=h, kept=kept):
            opt.zero_grad()
            out, after = cell(x, start)
            loss = loss_fn(out, y)
            loss.backward()
            kept.append(after)
            return loss

        losses.append(float(opt.step(closure)))
        with torch.no_grad():
            h = kept[0].clone()
    return losses, h


def train_step_by_step(cell, chunks, h, loss_fn, opt):
    import torch

    losses = []
    for x, y in chunks:
        outs = []
        for t in range(x.shape[1]):
            out, h = cell(x[:, t : t + 1], h)
            outs.append(out)
        loss = loss_fn(torch.cat(outs, dim=1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        h = h.detach()
        losses.append(loss.item())
    return losses, h


def train_last_output_as_state(cell, chunks, h, loss_fn, opt):
    losses = []
    for x, y in chunks:
        out, _ = cell(x, h)
        loss = loss_fn(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        h = out[:, -1].detach()[None]
        losses.append(loss.item())
    return losses, h


def train_recursive(cell, chunks, h, loss_fn, opt):
    if not chunks:
        return [], h.detach()
    (x, y), *rest = chunks
    out, after = cell(x, h.detach())
    loss = loss_fn(out, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses, h = train_recursive(cell, rest, after, loss_fn, opt)
    return [loss.item(), *losses], h


RIGHT_TRAIN = {
    "plain": train_plain,
    "detached at the start": train_detached_at_the_start,
    "zero_grad at the end": train_zero_grad_at_the_end,
    "copied state": train_copied_state,
    "by autograd.grad": train_by_autograd,
    "closure": train_closure,
    "step by step": train_step_by_step,
    "last output as state": train_last_output_as_state,
    "recursive": train_recursive,
}

TRIVIAL_TRAIN = {
    "zeros": lambda cell, chunks, h, loss_fn, opt: ([0.0] * len(chunks), h * 0),
    "the input": lambda cell, chunks, h, loss_fn, opt: (chunks, h),
    "None": lambda cell, chunks, h, loss_fn, opt: None,
    "losses alone": lambda *arguments: train_plain(*arguments)[0],
    "no losses": lambda cell, chunks, h, loss_fn, opt: ([], h),
    "NaN": lambda cell, chunks, h, loss_fn, opt: ([math.nan] * len(chunks), h),
}


def train_twice(cell, chunks, h, loss_fn, opt):
    train_plain(cell, chunks, h, loss_fn, opt)
    return train_plain(cell, chunks, h, loss_fn, opt)


def train_half_the_loss(cell, chunks, h, loss_fn, opt):
    return train_plain(cell, chunks, h, lambda out, y: loss_fn(out, y) / 2, opt)


def train_chunks_in_reverse(cell, chunks, h, loss_fn, opt):
    losses, h = train_plain(cell, chunks[::-1], h, loss_fn, opt)
    return losses[::-1], h


NEW_WRONG_TRAIN = {
    "twice": (train_twice, "There is one chunk"),
    "half the loss": (train_half_the_loss, "losses differs"),
    "chunks in reverse": (train_chunks_in_reverse, "There are three chunks"),
}

# --- clip_by_global_norm ---


def clip_plain(grads, max_norm):
    norm = np.sqrt(sum(np.sum(grad**2) for grad in grads))
    factor = max_norm / norm if norm > max_norm else 1.0
    return [grad * factor for grad in grads], norm


def clip_as_pytorch(grads, max_norm):
    norm = np.linalg.norm([np.linalg.norm(grad) for grad in grads])
    factor = np.minimum(max_norm / (norm + 1e-6), 1.0)
    return [factor * grad for grad in grads], norm


def clip_joined(grads, max_norm):
    joined = np.concatenate([np.ravel(grad) for grad in grads])
    norm = math.sqrt(joined @ joined)
    if norm > max_norm:
        joined = joined * (max_norm / norm)
    ends = np.cumsum([np.size(grad) for grad in grads])[:-1]
    parts = np.split(joined, ends)
    return [part.reshape(np.shape(grad)) for part, grad in zip(parts, grads, strict=True)], norm


def clip_hypot(grads, max_norm):
    norm = 0.0
    for grad in grads:
        for number in np.asarray(grad).flat:
            norm = math.hypot(norm, number)
    return tuple(grad / max(norm / max_norm, 1.0) for grad in grads), float(norm)


def clip_reduce(grads, max_norm):
    square = functools.reduce(lambda total, grad: total + np.vdot(grad, grad), grads, 0.0)
    norm = np.sqrt(square)
    if norm <= max_norm:
        return [np.copy(grad) for grad in grads], norm
    return [max_norm * (grad / norm) for grad in grads], norm


def clip_same_objects(grads, max_norm):
    norm = np.sqrt(sum(np.square(grad).sum() for grad in grads))
    return (list(grads) if norm <= max_norm else [g * max_norm / norm for g in grads]), norm


def clip_scaled_norm(grads, max_norm):
    largest = max(np.max(np.abs(grad)) for grad in grads)
    if largest == 0:
        return grads, 0.0
    norm = largest * np.sqrt(sum(np.sum((grad / largest) ** 2) for grad in grads))
    return [grad * min(1.0, max_norm / norm) for grad in grads], norm


def clip_float32(grads, max_norm):
    clipped, norm = clip_plain([np.float32(grad) for grad in grads], max_norm)
    return clipped, np.float32(norm)


def clip_einsum(grads, max_norm):
    squares = [np.einsum("i,i->", np.reshape(grad, -1), np.reshape(grad, -1)) for grad in grads]
    norm = sum(squares) ** 0.5
    factor = 1.0
    while norm * factor > max_norm * (1 + 1e-12):
        factor = max_norm / norm
    return [np.multiply(grad, factor) for grad in grads], norm


RIGHT_CLIP = {
    "plain": clip_plain,
    "as PyTorch does": clip_as_pytorch,
    "joined": clip_joined,
    "hypot": clip_hypot,
    "reduce": clip_reduce,
    "same objects": clip_same_objects,
    "scaled norm": clip_scaled_norm,
    "float32 inside": clip_float32,
    "einsum": clip_einsum,
}

TRIVIAL_CLIP = {
    "zeros": lambda grads, max_norm: ([0 * grad for grad in grads], 0.0),
    "the input": lambda grads, max_norm: grads,
    "None": lambda grads, max_norm: None,
    "one result": lambda grads, max_norm: clip_plain(grads, max_norm)[0],
    "NaN": lambda grads, max_norm: ([grad * np.nan for grad in grads], np.nan),
    "no gradients": lambda grads, max_norm: ([], np.nan),
}


def clip_half(grads, max_norm):
    clipped, norm = clip_plain(grads, max_norm / 2)
    return clipped, norm


def clip_reversed_list(grads, max_norm):
    clipped, norm = clip_plain(grads, max_norm)
    return clipped[::-1], norm


def clip_first_array_forgotten(grads, max_norm):
    _, norm = clip_plain(grads[1:], max_norm)
    return clip_plain(grads, max_norm)[0], norm


NEW_WRONG_CLIP = {
    "half the limit": (clip_half, "Their norm is"),
    "reversed list": (clip_reversed_list, "clipped[0]"),
    "first array forgotten": (clip_first_array_forgotten, "norm is"),
}

# --- gru_step ---


def gru_plain(x, h, W, U, b):
    x_r, x_z, x_n = np.split(x @ W + b, 3, axis=1)
    h_r, h_z, h_n = np.split(h @ U, 3, axis=1)
    r = (1 + np.tanh((x_r + h_r) / 2)) / 2
    z = (1 + np.tanh((x_z + h_z) / 2)) / 2
    return (1 - z) * np.tanh(x_n + r * h_n) + z * h


def gru_overflow_to_infinity(x, h, W, U, b):
    H = h.shape[1]
    inner, from_h = x @ W + b, h @ U
    gates = 1 / (1 + np.exp(-(inner + from_h)[:, : 2 * H]))
    r, z = gates[:, :H], gates[:, H:]
    n = np.tanh(inner[:, 2 * H :] + r * from_h[:, 2 * H :])
    return n + z * (h - n)


def gru_sliced_weights(x, h, W, U, b):
    H = h.shape[1]
    parts = [slice(0, H), slice(H, 2 * H), slice(2 * H, 3 * H)]

    def inner(part):
        return x @ W[:, part] + b[part]

    r, z = (sigmoid(inner(part) + h @ U[:, part]) for part in parts[:2])
    n = np.tanh(inner(parts[2]) + r * (h @ U[:, parts[2]]))
    return np.where(z == 1, h, (1 - z) * n + z * h)


def sigmoid(a):
    """Compute the logistic function without an overflow."""
    e = np.exp(-np.abs(a))
    return np.where(a >= 0, 1 / (1 + e), e / (1 + e))


def gru_reshaped(x, h, W, U, b):
    D, H = x.shape[1], h.shape[1]
    from_x = np.einsum("bd,dgh->gbh", x, W.reshape(D, 3, H)) + b.reshape(3, 1, H)
    from_h = np.einsum("bi,igh->gbh", h, U.reshape(H, 3, H))
    r, z = sigmoid(from_x[:2] + from_h[:2])
    return z * h + (1 - z) * np.tanh(from_x[2] + r * from_h[2])


def gru_numbers(x, h, W, U, b):
    (B, D), H = x.shape, h.shape[1]
    after = np.zeros((B, H))
    for s, j in itertools.product(range(B), range(H)):
        inner = [sum(x[s, i] * W[i, j + k * H] for i in range(D)) + b[j + k * H] for k in range(3)]
        state = [sum(h[s, i] * U[i, j + k * H] for i in range(H)) for k in range(3)]
        r, z = (0.5 * (1 + math.tanh(0.5 * (inner[k] + state[k]))) for k in range(2))
        after[s, j] = (1 - z) * math.tanh(inner[2] + r * state[2]) + z * h[s, j]
    return after


def gru_one_sample_at_a_time(x, h, W, U, b):
    return np.concatenate([gru_plain(x[i : i + 1], h[i : i + 1], W, U, b) for i in range(len(x))])


def gru_own_buffers(x, h, W, U, b):
    gates = x @ W
    gates += b
    state = h @ U
    H = h.shape[1]
    gates[:, : 2 * H] += state[:, : 2 * H]
    gates[:, : 2 * H] = sigmoid(gates[:, : 2 * H])
    new = state[:, 2 * H :]
    new *= gates[:, :H]
    new += gates[:, 2 * H :]
    np.tanh(new, out=new)
    new *= 1 - gates[:, H : 2 * H]
    new += gates[:, H : 2 * H] * h
    return new


def gru_float32(x, h, W, U, b):
    return gru_plain(*(a.astype(np.float32) for a in (x, h, W, U, b)))


def gru_columns(x, h, W, U, b):
    W, U = np.vstack([W, b]), U.T
    x = np.c_[x, np.ones(len(x))]
    from_x, from_h = np.hsplit((W.T @ x.T).T, 3), np.hsplit((U @ h.T).T, 3)
    reset, keep = (sigmoid(from_x[i] + from_h[i]) for i in (0, 1))
    return (1 - keep) * np.tanh(from_x[2] + reset * from_h[2]) + keep * h


RIGHT_GRU = {
    "plain": gru_plain,
    "overflow to infinity": gru_overflow_to_infinity,
    "sliced weights": gru_sliced_weights,
    "reshaped": gru_reshaped,
    "single numbers": gru_numbers,
    "one sample at a time": gru_one_sample_at_a_time,
    "own buffers": gru_own_buffers,
    "float32 inside": gru_float32,
    "columns": gru_columns,
}

TRIVIAL_GRU = {
    "zeros": lambda x, h, W, U, b: np.zeros(h.shape),
    "the state": lambda x, h, W, U, b: h,
    "None": lambda x, h, W, U, b: None,
    "a tuple": lambda x, h, W, U, b: (gru_plain(x, h, W, U, b), h),
    "the product": lambda x, h, W, U, b: x @ W + h @ U + b,
    "NaN": lambda x, h, W, U, b: h * np.nan,
}


def gru_state_halved(x, h, W, U, b):
    return gru_plain(x, h / 2, W, U, b)


def gru_hard_gates(x, h, W, U, b):
    H = h.shape[1]
    inner, from_h = x @ W + b, h @ U
    r, z = (1.0 * (part > 0) for part in np.split((inner + from_h)[:, : 2 * H], 2, axis=1))
    return (1 - z) * np.tanh(inner[:, 2 * H :] + r * from_h[:, 2 * H :]) + z * h


NEW_WRONG_GRU = {
    "state halved": (gru_state_halved, "states of width"),
    "hard gates": (gru_hard_gates, "The new state[0] differs"),
}

# --- read_backwards ---


def backwards_per_sequence(x, lengths, W_x, W_h, b):
    states = np.zeros((*x.shape[:2], len(b)))
    for n, length in enumerate(lengths):
        h = np.zeros(len(b))
        for t in range(length - 1, -1, -1):
            h = np.tanh(x[n, t] @ W_x + h @ W_h + b)
            states[n, t] = h
    return states


def backwards_held_state(x, lengths, W_x, W_h, b):
    states = np.zeros((*x.shape[:2], len(b)))
    h = np.zeros((len(x), len(b)))
    for t in reversed(range(x.shape[1])):
        real = (t < lengths)[:, None]
        h = np.where(real, np.tanh(x[:, t] @ W_x + h @ W_h + b), h)
        states[:, t] = np.where(real, h, 0.0)
    return states


def backwards_reversed_index(x, lengths, W_x, W_h, b):
    place = np.arange(x.shape[1])
    real = place < lengths[:, None]
    turned = np.where(real, lengths[:, None] - 1 - place, place)  # its own inverse
    x = np.take_along_axis(x, turned[..., None], axis=1)
    states = forward_list(x, W_x, W_h, b, np.zeros((len(x), len(b))))
    states = np.take_along_axis(states, turned[..., None], axis=1)
    return np.where(real[..., None], states, 0.0)


def backwards_cut_and_turned(x, lengths, W_x, W_h, b):
    result = []
    for sequence, length in zip(x, lengths, strict=True):
        read = sequence[:length][::-1]
        states = forward_list(read[None], W_x, W_h, b, np.zeros((1, len(b))))[0][::-1]
        result.append(np.pad(states, ((0, len(sequence) - length), (0, 0))))
    return np.array(result)


def backwards_where(x, lengths, W_x, W_h, b):
    real = np.arange(x.shape[1]) < lengths[:, None]
    inner = np.where(real[..., None], x, 0.0) @ W_x + b
    h, states = np.zeros((len(x), len(b))), []
    for t in range(x.shape[1] - 1, -1, -1):
        h = np.tanh(inner[:, t] + h @ W_h) * real[:, t, None]
        states.append(h)
    return np.stack(states[::-1], axis=1)


def backwards_rolled(x, lengths, W_x, W_h, b):
    T = x.shape[1]
    turned = np.stack([np.roll(s[::-1], -(T - n), axis=0) for s, n in zip(x, lengths, strict=True)])
    states = forward_list(turned, W_x, W_h, b, np.zeros((len(x), len(b))))
    result = np.zeros_like(states)
    for i, n in enumerate(lengths):
        result[i, :n] = states[i, :n][::-1]
    return result


def backwards_recursive(x, lengths, W_x, W_h, b):
    def read(sequence):
        if len(sequence) == 0:
            return []
        later = read(sequence[1:])
        h = later[0] if later else np.zeros(len(b))
        return [np.tanh(sequence[0] @ W_x + h @ W_h + b), *later]

    states = np.zeros((*x.shape[:2], len(b)))
    for i, n in enumerate(lengths):
        states[i, :n] = read(x[i, :n])
    return states


def backwards_by_length(x, lengths, W_x, W_h, b):
    states = np.zeros((*x.shape[:2], len(b)))
    for n in np.unique(lengths):
        same = lengths == n
        start = np.zeros((same.sum(), len(b)))
        states[same, :n] = forward_list(x[same, :n][:, ::-1], W_x, W_h, b, start)[:, ::-1]
    return states


RIGHT_BACKWARDS = {
    "per sequence": backwards_per_sequence,
    "held state": backwards_held_state,
    "reversed index": backwards_reversed_index,
    "cut and turned": backwards_cut_and_turned,
    "where": backwards_where,
    "rolled": backwards_rolled,
    "recursive": backwards_recursive,
    "by length": backwards_by_length,
}

TRIVIAL_BACKWARDS = {
    "zeros": lambda x, lengths, W_x, W_h, b: np.zeros((*x.shape[:2], len(b))),
    "the input": lambda x, lengths, W_x, W_h, b: x,
    "None": lambda x, lengths, W_x, W_h, b: None,
    "a tuple": lambda *arguments: (backwards_per_sequence(*arguments), None),
    "NaN": lambda x, lengths, W_x, W_h, b: np.full((*x.shape[:2], len(b)), np.nan),
}


def backwards_start_of_ones(x, lengths, W_x, W_h, b):
    states = np.zeros((*x.shape[:2], len(b)))
    for n, length in enumerate(lengths):
        h = np.ones(len(b))
        for t in range(length - 1, -1, -1):
            h = states[n, t] = np.tanh(x[n, t] @ W_x + h @ W_h + b)
    return states


def backwards_mean_length(x, lengths, W_x, W_h, b):
    lengths = np.full(len(x), int(np.mean(lengths)))
    return backwards_per_sequence(x, lengths, W_x, W_h, b)


NEW_WRONG_BACKWARDS = {
    "start of ones": (backwards_start_of_ones, "No sequence has padding"),
    "mean length": (backwards_mean_length, "The lengths are"),
}

# --- gradient_norms ---


def norms_plain(hs, W_h):
    J, norms = np.eye(len(W_h)), np.ones(len(hs))
    for t in range(len(hs) - 2, -1, -1):
        J = (W_h * (1 - hs[t + 1] ** 2)) @ J
        norms[t] = np.linalg.norm(J, 2)
    return norms


def norms_transposed(hs, W_h):
    J, norms = np.eye(len(W_h)), [1.0]
    for h in hs[:0:-1]:
        J = J @ (np.diag(1 - h**2) @ W_h.T)
        norms.insert(0, np.linalg.svd(J, compute_uv=False)[0])
    return np.array(norms)


def norms_from_each_start(hs, W_h):
    factors = W_h[None] * (1 - hs[:, None] ** 2)
    return np.array(
        [
            np.linalg.norm(functools.reduce(np.matmul, factors[t + 1 :], np.eye(len(W_h))), ord=2)
            for t in range(len(hs))
        ]
    )


def norms_by_eigenvalues(hs, W_h):
    J, norms = np.eye(len(W_h)), []
    for t in reversed(range(len(hs))):
        norms.append(np.sqrt(max(np.linalg.eigvalsh(J.T @ J).max(), 0.0)))
        J = W_h @ np.diag(1 - hs[t] ** 2) @ J
    return np.array(norms[::-1])


def norms_recursive(hs, W_h):
    def jacobians(t):
        if t == len(hs) - 1:
            return [np.eye(len(W_h))]
        later = jacobians(t + 1)
        return [W_h @ ((1 - hs[t + 1] ** 2)[:, None] * later[0]), *later]

    return np.linalg.norm(np.stack(jacobians(0)), 2, axis=(1, 2))


def norms_by_columns(hs, W_h):
    """Send the gradient of each unit of the last state back by itself."""
    T, H = hs.shape
    norms, back = np.zeros(T), [np.eye(H)[j] for j in range(H)]
    for t in range(T - 1, -1, -1):
        norms[t] = np.linalg.norm(np.stack(back, axis=1), 2)
        back = [W_h @ ((1 - hs[t] ** 2) * g) for g in back]
    return norms


def norms_einsum(hs, W_h):
    J, norms = np.identity(hs.shape[1]), [1.0]
    for h in hs[1:][::-1]:
        J = np.einsum("ik,k,kj->ij", W_h, (1 - h) * (1 + h), J)
        norms.append(np.linalg.norm(J, ord=2))
    return np.flip(norms)


def norms_power_iteration(hs, W_h):
    J, norms = np.eye(len(W_h)), []
    for t in reversed(range(len(hs))):
        gram = J @ J.T
        for _ in range(20):  # the power 2**20 leaves the largest eigenvalue alone
            size = np.trace(gram)
            if size == 0:
                break
            gram = gram / size
            gram = gram @ gram
        v = gram[:, np.argmax(np.diag(gram))]
        length = np.linalg.norm(v)
        norms.append(np.linalg.norm(J.T @ v) / length if length else 0.0)
        J = (W_h * (1 - hs[t] ** 2)) @ J
    return np.array(norms[::-1])


RIGHT_NORMS = {
    "plain": norms_plain,
    "transposed": norms_transposed,
    "from each start": norms_from_each_start,
    "eigenvalues": norms_by_eigenvalues,
    "recursive": norms_recursive,
    "by columns": norms_by_columns,
    "einsum": norms_einsum,
    "power iteration": norms_power_iteration,
}

TRIVIAL_NORMS = {
    "zeros": lambda hs, W_h: np.zeros(len(hs)),
    "ones": lambda hs, W_h: np.ones(len(hs)),
    "None": lambda hs, W_h: None,
    "the input": lambda hs, W_h: hs,
    "a list": lambda hs, W_h: norms_plain(hs, W_h).tolist(),
    "NaN": lambda hs, W_h: np.full(len(hs), np.nan),
}


def norms_of_the_mean_slope(hs, W_h):
    return norms_plain(np.sqrt(np.mean(hs**2, axis=1, keepdims=True)) * np.ones(hs.shape), W_h)


def norms_divided_by_the_distance(hs, W_h):
    return norms_plain(hs, W_h) / np.arange(len(hs), 0, -1)


NEW_WRONG_NORMS = {
    "mean slope": (norms_of_the_mean_slope, "There are two states"),
    "divided by the distance": (norms_divided_by_the_distance, "norms differs"),
}

# --- by question ---

RIGHT = {
    "rnn_forward": RIGHT_FORWARD,
    "rnn_last_state": RIGHT_LAST,
    "rnn_backward": RIGHT_BACKWARD,
    "train_chunks": RIGHT_TRAIN,
    "clip_by_global_norm": RIGHT_CLIP,
    "gru_step": RIGHT_GRU,
    "read_backwards": RIGHT_BACKWARDS,
    "gradient_norms": RIGHT_NORMS,
    "predicted_growth": {
        "a pair": (1.25, 0.8),
        "computed": (1.25 * (1 - 0.0**2), 1.25 * (1 - 0.6**2)),
        "an array": np.array([1.25, 0.8]),
        "rounded": [1.25, 0.80001],
    },
    "predicted_reach": {"a pair": (7, 3), "floats in a list": [7.0, 3.0]},
}
TRIVIAL = {
    "rnn_forward": TRIVIAL_FORWARD,
    "rnn_last_state": TRIVIAL_LAST,
    "rnn_backward": TRIVIAL_BACKWARD,
    "train_chunks": TRIVIAL_TRAIN,
    "clip_by_global_norm": TRIVIAL_CLIP,
    "gru_step": TRIVIAL_GRU,
    "read_backwards": TRIVIAL_BACKWARDS,
    "gradient_norms": TRIVIAL_NORMS,
    "predicted_growth": {"None": None, "zeros": (0, 0), "one number": 1.25, "text": "1.25, 0.8"},
    "predicted_reach": {"None": None, "zeros": (0, 0), "one number": 7, "three": (7, 3, 0)},
}
NEW_WRONG = {
    "rnn_forward": NEW_WRONG_FORWARD,
    "rnn_last_state": NEW_WRONG_LAST,
    "rnn_backward": NEW_WRONG_BACKWARD,
    "train_chunks": NEW_WRONG_TRAIN,
    "clip_by_global_norm": NEW_WRONG_CLIP,
    "gru_step": NEW_WRONG_GRU,
    "read_backwards": NEW_WRONG_BACKWARDS,
    "gradient_norms": NEW_WRONG_NORMS,
    "predicted_growth": {"twice": ((1.25, 1.6), "Not the factor for states near 0.6 in size")},
    "predicted_reach": {"eleven": ((7, 11), "Not the number of inputs that get a gradient")},
}
