"""Recurrent and attention readers in PyTorch, and training in chunks."""

import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot


def train_chunks(cell, chunks, h, loss_fn, opt):
    """Train on one long sequence, cut into chunks: one step for each chunk.

    The state is carried from chunk to chunk as numbers, without the graph
    that made it, so gradients end where a chunk begins: truncated
    backpropagation through time (Williams and Peng, 1990).

    Parameters
    ----------
    cell : nn.RNN
        Batch first. An nn.LSTM works as well; its `h` is a pair of states.
    chunks : iterable of (Tensor, Tensor)
        Inputs of shape (B, T, d_in) and what `loss_fn` compares with.
    h : Tensor, shape (1, B, H)
        The state before the first chunk. It is not changed.
    loss_fn : callable
        Takes the states (B, T, H) and the targets, returns a scalar.
    opt : torch.optim.Optimizer

    Returns
    -------
    losses : list of float
        The loss of each chunk before its step.
    h : Tensor
        The state after the last chunk, without a graph.
    """
    losses = []
    h = without_graph(h)
    for x, y in chunks:
        states, h = cell(x, h)  # (B, T, H), (1, B, H)
        loss = loss_fn(states, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        h = without_graph(h)
        losses.append(loss.item())
    return losses, h


def without_graph(h):
    """Return a state, or an LSTM's two states, cut off from its graph."""
    if isinstance(h, tuple):
        return tuple(part.detach() for part in h)
    return h.detach()


class RecurrentReader(nn.Module):
    """Read a sequence into one state and classify the last state.

    Parameters
    ----------
    kind : {"rnn", "lstm"}
        A tanh network or an LSTM.
    d_in, width, num_classes : int
        Numbers in an input vector, in the state, and classes.
    forget_bias : float
        What is added to the bias of an LSTM's forget gate at the start. At
        0 an LSTM keeps about half of its memory at each step.

    Raises
    ------
    ValueError
        If `kind` is unknown.
    """

    def __init__(self, kind, d_in, width, num_classes, forget_bias=0.0):
        super().__init__()
        if kind not in ("rnn", "lstm"):
            raise ValueError(f"kind: expected rnn or lstm, got {kind!r}")
        layer = nn.RNN if kind == "rnn" else nn.LSTM
        self.cell = layer(d_in, width, batch_first=True)
        self.classify = nn.Linear(width, num_classes)
        if kind == "lstm":
            with torch.no_grad():  # its gates: input, forget, cell, output
                self.cell.bias_ih_l0[width : 2 * width] += forget_bias

    def forward(self, x):
        """Map inputs (B, T, d_in) to scores (B, num_classes)."""
        states, _ = self.cell(x)  # (B, T, width)
        return self.classify(states[:, -1])


class LookupReader(nn.Module):
    """Let the last step ask, and look the answer up in the steps before.

    One attention head: the weights come from comparing query and keys.

    Parameters
    ----------
    d_in, width, num_classes : int
        Numbers in an input vector; in query, key and value; and classes.
    """

    def __init__(self, d_in, width, num_classes):
        super().__init__()
        self.W_q = nn.Linear(d_in, width, bias=False)
        self.W_k = nn.Linear(d_in, width, bias=False)
        self.W_v = nn.Linear(d_in, width, bias=False)
        self.classify = nn.Linear(width, num_classes)

    def forward(self, x):
        """Map inputs (B, T, d_in) to scores (B, num_classes)."""
        Q = self.W_q(x[:, -1:])  # (B, 1, width)
        K, V = self.W_k(x[:, :-1]), self.W_v(x[:, :-1])  # (B, T - 1, width)
        scores = Q @ K.transpose(-1, -2) / math.sqrt(Q.shape[-1])
        context = scores.softmax(dim=-1) @ V  # (B, 1, width)
        return self.classify(context[:, 0])


class AttentionClassifier(nn.Module):
    """Let every step read from all with one head, and classify the mean.

    Parameters
    ----------
    d_in, width, num_classes : int
        Numbers in an input vector; in query, key and value; and classes.
    length : int or None
        The number of steps, each of which gets a learned vector of its own
        added. None leaves these out: then the order has no effect.
    """

    def __init__(self, d_in, width, num_classes, length=None):
        super().__init__()
        self.embed = nn.Linear(d_in, width)
        self.W_q = nn.Linear(width, width, bias=False)
        self.W_k = nn.Linear(width, width, bias=False)
        self.W_v = nn.Linear(width, width, bias=False)
        self.classify = nn.Linear(width, num_classes)
        self.position = None
        if length is not None:
            self.position = nn.Parameter(torch.randn(length, width))

    def forward(self, x):
        """Map inputs (B, T, d_in) to scores (B, num_classes)."""
        x = self.embed(x)  # (B, T, width)
        if self.position is not None:
            x = x + self.position
        Q, K, V = self.W_q(x), self.W_k(x), self.W_v(x)
        scores = Q @ K.transpose(-1, -2)  # (B, T, T)
        scores = scores / math.sqrt(Q.shape[-1])
        context = scores.softmax(dim=-1) @ V  # (B, T, width)
        return self.classify(torch.relu(context).mean(dim=1))


def recall_batch(batch, pairs, num_keys, num_values, generator):
    """Draw sequences that name a value for each of some keys, then ask.

    Parameters
    ----------
    batch, pairs : int
        Sequences, and pairs of key and value in each. The keys differ.
    num_keys, num_values : int
        How many keys and values there are to draw from.
    generator : torch.Generator

    Returns
    -------
    x : Tensor, shape (batch, pairs + 1, num_keys + num_values)
        Each step holds a one-hot key and a one-hot value. The last step
        asks: it has a key that came before, and no value.
    answer : Tensor of int, shape (batch,)
        The value that stood beside that key.

    Raises
    ------
    ValueError
        If there are not enough keys for so many pairs.
    """
    if not 1 <= pairs <= num_keys:
        raise ValueError(f"pairs: expected 1 to {num_keys}, got {pairs}")
    keys = torch.rand(batch, num_keys, generator=generator).argsort(dim=1)
    keys = keys[:, :pairs]  # (batch, pairs), no key twice
    values = torch.randint(num_values, (batch, pairs), generator=generator)
    asked = torch.randint(pairs, (batch, 1), generator=generator)

    x = torch.zeros(batch, pairs + 1, num_keys + num_values)
    x[:, :-1, :num_keys] = one_hot(keys, num_keys).float()
    x[:, :-1, num_keys:] = one_hot(values, num_values).float()
    key, answer = (part.gather(1, asked)[:, 0] for part in (keys, values))
    x[:, -1, :num_keys] = one_hot(key, num_keys).float()
    return x, answer


def train_reader(reader, batches, lr):
    """Train a reader with Adam, gradients clipped to norm 1; return losses.

    Parameters
    ----------
    reader : nn.Module
        Maps inputs (B, T, d_in) to scores (B, num_classes). It is changed.
    batches : iterable of (Tensor, Tensor)
        Inputs and the classes (B,), a pair for each step of training.
    lr : float
        The learning rate.
    """
    opt = torch.optim.Adam(reader.parameters(), lr=lr)
    losses = []
    for x, y in batches:
        loss = cross_entropy(reader(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(reader.parameters(), max_norm=1.0)
        opt.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def accuracy(reader, x, y):
    """Return the share of sequences whose highest score is their class."""
    return (reader(x).argmax(dim=-1) == y).float().mean().item()
