"""Read two places at once: how well can a layer of one, two or four heads do it?

Each place of a ring holds some random numbers and a mark that says which place it is. Each has to
report the numbers of its neighbor before, then those of its neighbor after.

``python book/experiments/two_places.py`` writes ``book/data/two_places.json``: the held-out error
of each number of heads for each seed, how much the weights change with the content, and the
attention maps of one seed before and after training. It takes about a minute on one core.
"""

import json
import time
from pathlib import Path

import torch
from torch import nn

from attention.in_torch.multi_head import MultiHeadAttention

L, WIDTH = 8, 8  # places, and numbers at each place
D_MODEL = WIDTH + L
SETTINGS = {
    "L": L,
    "width": WIDTH,
    "d_model": D_MODEL,
    "seeds": [0, 1, 2, 3, 4],
    "steps": 1500,
    "batch": 64,
    "lr": 0.01,
    "held_out": 2000,
}
# Layers of heads, one after another. All have the same width in total.
READERS = {"1 head": [1], "2 heads": [2], "4 heads": [4], "1 head, twice": [1, 1]}
RESULT = Path(__file__).resolve().parent.parent / "data" / "two_places.json"


def draw_ring(batch, generator, L=8, width=8):
    """Return inputs and targets, both of shape (batch, L, width + L)."""
    content = torch.randn(batch, L, width, generator=generator)
    place = torch.eye(L).expand(batch, L, L)
    before, after = content.roll(1, dims=1), content.roll(-1, dims=1)
    x = torch.cat([content, place], dim=-1)
    return x, torch.cat([before, after], dim=-1)


def train(model, steps, generator, batch=64, lr=0.01):
    """Train a model on fresh sequences with Adam; it is changed in place."""
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        x, target = draw_ring(batch, generator)
        output, _ = model(x)
        loss = nn.functional.mse_loss(output, target)
        opt.zero_grad()
        loss.backward()
        opt.step()


class Stack(nn.Module):
    """Attention layers one after another; each but the last adds to its input."""

    def __init__(self, heads):
        super().__init__()
        self.layers = nn.ModuleList(MultiHeadAttention(D_MODEL, h) for h in heads)

    def forward(self, x):
        """Return the last layer's output and weights."""
        *first, last = self.layers
        for layer in first:
            x = x + layer(x)[0]
        return last(x)


@torch.no_grad()
def evaluate(model, generator):
    """Measure a model on new sequences.

    Returns the mean squared error, the mean attention maps (h, L, L), and how much the weights on
    the neighbor before change with the content: their standard deviation over the sequences.
    """
    x, target = draw_ring(SETTINGS["held_out"], generator)
    output, weights = model(x)
    error = nn.functional.mse_loss(output, target).item()
    place = torch.arange(L)
    spread = weights[:, :, place, place - 1].std(dim=0).mean().item()
    return error, weights.mean(dim=0), spread


def main():
    torch.set_num_threads(1)
    start, done = time.perf_counter(), 0
    runs = len(READERS) * len(SETTINGS["seeds"])
    errors, maps = {name: [] for name in READERS}, {}
    spreads = {name: [] for name in READERS}
    for name, heads in READERS.items():
        for seed in SETTINGS["seeds"]:
            torch.manual_seed(seed)
            generator = torch.Generator().manual_seed(1000 + seed)
            model = Stack(heads)
            _, map_before, _ = evaluate(model, generator)
            train(model, SETTINGS["steps"], generator, SETTINGS["batch"], SETTINGS["lr"])
            error, map_after, spread = evaluate(model, generator)
            errors[name].append(round(error, 4))
            spreads[name].append(round(spread, 3))
            if seed == SETTINGS["seeds"][0]:
                maps[name] = {
                    "before": rounded(map_before),
                    "after": rounded(map_after),
                }
            done += 1
            left = (time.perf_counter() - start) / done * (runs - done)
            print(f"{done / runs:4.0%}  {left:4.0f} s left  {name:14} error {error:.4f}")
    RESULT.parent.mkdir(exist_ok=True)
    result = {"settings": SETTINGS, "errors": errors, "weight_spread": spreads, "maps": maps}
    RESULT.write_text(json.dumps(result) + "\n", encoding="utf-8")


def rounded(maps):
    return [[[round(w, 3) for w in row] for row in one] for one in maps.tolist()]


if __name__ == "__main__":
    main()
