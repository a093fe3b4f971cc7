"""Twelve encoder layers on handwritten digits: post-norm and pre-norm, with and without warm-up.

``python book/experiments/depth.py`` writes ``book/data/depth.json``: the loss along training and
the held-out accuracy, for five seeds each. It takes about two minutes on one core.
"""

import json
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from attention.in_numpy.training import stratified_split
from attention.in_torch.encoder_layer import Encoder, PositionalEncoding

SETTINGS = {
    "num_layers": 12,
    "d_model": 32,
    "num_heads": 4,
    "d_ff": 64,
    "epochs": 6,
    "batch": 32,
    "learning_rates": [0.001, 0.003],
    "warmup": 100,
    "seeds": [0, 1, 2, 3, 4],
}
KINDS = {  # norm_first, steps of warm-up
    "post-norm, no warm-up": (False, 0),
    "post-norm, warm-up": (False, SETTINGS["warmup"]),
    "pre-norm, no warm-up": (True, 0),
    "pre-norm, warm-up": (True, SETTINGS["warmup"]),
}
STEPS_A_POINT = 15  # the curves are means over so many steps
RESULT = Path(__file__).resolve().parent.parent / "data" / "depth.json"


class Classifier(nn.Module):
    """Tokens, positions, a stack of encoder layers, the mean, scores of ten classes."""

    def __init__(self, norm_first):
        super().__init__()
        s = SETTINGS
        self.embed = nn.Linear(8, s["d_model"])
        self.positions = PositionalEncoding(s["d_model"], max_len=8)
        self.encoder = Encoder(
            s["num_layers"], s["d_model"], s["num_heads"], s["d_ff"], 0.0, norm_first
        )
        # pre-norm leaves the stream as it is: it needs a norm at the end
        self.norm = nn.LayerNorm(s["d_model"]) if norm_first else nn.Identity()
        self.classify = nn.Linear(s["d_model"], 10)
        for parameter in self.encoder.parameters():
            if parameter.ndim == 2:
                nn.init.xavier_uniform_(parameter)

    def forward(self, images):
        """Map images (B, 8, 8) to scores (B, 10)."""
        x = self.positions(self.embed(images))
        return self.classify(self.norm(self.encoder(x)).mean(dim=1))


def one_run(norm_first, warmup, lr, seed, training, held_out):
    """Train from one seed; return the losses of all steps and the held-out accuracy."""
    torch.manual_seed(seed)
    model = Classifier(norm_first)
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    rise = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda step: min(1.0, (step + 1) / warmup) if warmup else 1.0
    )
    x, y = training
    losses = []
    for _ in range(SETTINGS["epochs"]):
        for rows in torch.randperm(len(x)).split(SETTINGS["batch"]):
            loss = cross_entropy(model(x[rows]), y[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
            rise.step()
            losses.append(loss.item())
    with torch.no_grad():
        right = model(held_out[0]).argmax(dim=-1) == held_out[1]
    return losses, right.float().mean().item()


def main():
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.images / 8 - 1, dtype=torch.float32)
    y = torch.tensor(digits.target)
    rows = stratified_split(digits.target, 0.2, np.random.default_rng(0))
    training, held_out = [(x[part], y[part]) for part in rows]

    runs = [(name, lr) for lr in SETTINGS["learning_rates"] for name in KINDS]
    results = []
    for name, lr in tqdm(runs):
        of_seeds = [
            one_run(*KINDS[name], lr, seed, training, held_out) for seed in SETTINGS["seeds"]
        ]
        points = [np.reshape(losses, (-1, STEPS_A_POINT)).mean(axis=1) for losses, _ in of_seeds]
        results.append(
            {
                "kind": name,
                "lr": lr,
                "loss": [[round(float(loss), 3) for loss in curve] for curve in points],
                "accuracy": [round(accuracy, 3) for _, accuracy in of_seeds],
            }
        )
    text = json.dumps({"settings": SETTINGS, "steps_a_point": STEPS_A_POINT, "results": results})
    RESULT.write_text(text + "\n", encoding="utf-8")
    for result in results:
        print(f"{result['kind']:22} lr {result['lr']}: accuracy {result['accuracy']}")


if __name__ == "__main__":
    main()
