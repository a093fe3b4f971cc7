"""Encoders of 2 to 12 layers learn to sort letters: post- or pre-norm, warm-up, clipping.

``python book/experiments/warmup.py`` writes ``book/data/warmup.json``: the loss at the end of
training for each norm, depth, learning rate, cure and seed. It takes about ten minutes on one
core.
"""

import itertools
import json
from pathlib import Path

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from attention.in_torch.encoder_layer import Encoder, PositionalEncoding
from attention.in_torch.training import IGNORED, lm_loss, train_step

LETTERS = "abcdefgh"
PAD, ASK, STOP = 8, 9, 10
SIGNS = LETTERS + "_=."

SETTINGS = {
    "depths": [2, 6, 12],
    "learning_rates": [0.003, 0.006, 0.012],
    "batch": 32,
    "steps": 200,
    "warmup": 50,
    "max_norm": 0.5,
    "last": 20,
    "seeds": [0, 1, 2],
}
CURES = {  # steps of warm-up, largest gradient norm
    "none": (0, None),
    "clipping": (0, SETTINGS["max_norm"]),
    "warm-up": (SETTINGS["warmup"], None),
}
NORMS = {"post-norm": False, "pre-norm": True}  # norm_first
RESULT = Path(__file__).resolve().parent.parent / "data" / "warmup.json"


def draw_words(batch, rng):
    """Draw words and the answer: their letters in order, ``dbh=bdh.``

    Parameters
    ----------
    batch : int
    rng : numpy.random.Generator

    Returns
    -------
    tokens : Tensor of int, shape (batch, 14)
        A word of 2 to 6 different letters, ``=``, its letters in order,
        ``.``, and padding.
    targets : Tensor of int, shape (batch, 14)
        At each position the token after it, from ``=`` on; the rest is -100.
    """
    tokens = np.full((batch, 14), PAD)
    targets = np.full((batch, 14), IGNORED)
    for row in range(batch):
        n = rng.integers(2, 7)
        word = rng.permutation(len(LETTERS))[:n]
        line = [*word, ASK, *np.sort(word), STOP]
        tokens[row, : len(line)] = line
        targets[row, n : len(line) - 1] = line[n + 1 :]
    return torch.tensor(tokens), torch.tensor(targets)


class Sorter(nn.Module):
    """A causal model: scores of the next token at each position.

    Parameters
    ----------
    num_layers : int
    norm_first : bool
    dropout : float
    """

    def __init__(self, num_layers=2, norm_first=True, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(len(SIGNS), 32)
        self.positions = PositionalEncoding(32, max_len=14)
        sizes = (32, 4, 64)  # d_model, heads, d_ff
        self.encoder = Encoder(num_layers, *sizes, dropout, norm_first)
        # pre-norm leaves the stream as it is: it needs a norm at the end
        self.norm = nn.LayerNorm(32) if norm_first else nn.Identity()
        self.out = nn.Linear(32, len(SIGNS))

    def forward(self, tokens):
        """Map tokens (B, L) to scores (B, L, 11)."""
        L = tokens.shape[-1]
        causal = torch.ones(L, L, device=tokens.device).tril().bool()
        x = self.positions(self.embed(tokens))
        return self.out(self.norm(self.encoder(x, causal)))


def one_run(depth, norm_first, lr, warmup, max_norm, seed):
    """Train from one seed; return the loss of every step."""
    torch.manual_seed(seed)
    model, rng = Sorter(depth, norm_first), np.random.default_rng(seed)
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    rise = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda step: min(1.0, (step + 1) / warmup) if warmup else 1.0
    )
    losses = []
    for _ in range(SETTINGS["steps"]):
        batch = draw_words(SETTINGS["batch"], rng)
        losses.append(train_step(model, opt, *batch, lm_loss, max_norm))
        rise.step()
    return losses


def main():
    torch.set_num_threads(1)
    runs = list(itertools.product(NORMS, SETTINGS["depths"], SETTINGS["learning_rates"], CURES))
    results = []
    for norm, depth, lr, cure in tqdm(runs):
        of_seeds = [
            one_run(depth, NORMS[norm], lr, *CURES[cure], seed) for seed in SETTINGS["seeds"]
        ]
        ends = [float(np.mean(losses[-SETTINGS["last"] :])) for losses in of_seeds]
        run = {"norm": norm, "depth": depth, "lr": lr, "cure": cure}
        results.append(run | {"loss": [round(end, 3) for end in ends]})
    text = json.dumps({"settings": SETTINGS, "results": results})
    RESULT.write_text(text + "\n", encoding="utf-8")
    for result in results:
        print(*result.values())


if __name__ == "__main__":
    main()
