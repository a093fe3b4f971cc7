"""The figure of the start page: the running example's attention weights, drawn twice.

``python book/experiments/landing_figure.py`` writes ``book/_static/landing_lines.svg`` (who
attends to whom, as lines) and ``book/_static/landing_weights.svg`` (the same numbers, as a table).
Both are put into the page itself, so that they take its colors in the light and the dark theme.
"""

from pathlib import Path

import numpy as np

TOKENS = ["cats", "chase", "mice"]
X = np.array([[2, 0, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]])
W_q = np.array([[1, 0], [0, 1], [1, 1], [2, 2]])  # (d_model, d_k)
W_k = np.array([[0, 0], [1, -1], [0, 2], [0, 1]])  # (d_model, d_k)
W_v = np.array([[1, 0, 0], [0, 2, 1], [0, 1, 0], [0, 0, 2]])  # (d_model, d_v)

STATIC = Path(__file__).resolve().parent.parent / "_static"

WIDTH, HEIGHT = 340, 250
ROWS = [92, 152, 212]  # the middle of each token's row


def attention_weights():
    """Return the weights of the running example, shape (L, L): one row for each query."""
    Q, K = X @ W_q, X @ W_k
    scores = np.exp(Q @ K.T / np.sqrt(Q.shape[-1]))
    return scores / scores.sum(axis=-1, keepdims=True)


def svg(label, title, body):
    """Wrap drawing commands into one SVG element that assistive technology reads as an image."""
    heading = f'<text class="figure-title" x="{WIDTH / 2}" y="20">{title}</text>'
    start = f'<svg class="landing" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
    return "\n".join([start, heading, *body, "</svg>", ""])


def describe(weights):
    """Say in words what both drawings show."""
    rows = (
        f"{query} attends to "
        + ", ".join(f"{key} {w:.2f}" for key, w in zip(TOKENS, row, strict=True))
        for query, row in zip(TOKENS, weights, strict=True)
    )
    return "; ".join(rows)


def draw_lines(weights):
    """Draw a line from each query to each key, as wide as the weight."""
    left, right = 84, WIDTH - 84
    body = [
        f'<text class="axis" x="{left - 12}" y="56" text-anchor="end">queries</text>',
        f'<text class="axis" x="{right + 12}" y="56" text-anchor="start">keys</text>',
    ]
    middle = (left + right) / 2
    for y_query, row in zip(ROWS, weights, strict=True):
        for y_key, w in zip(ROWS, row, strict=True):
            curve = f"M{left} {y_query}C{middle} {y_query} {middle} {y_key} {right} {y_key}"
            look = f'stroke-width="{16 * w:.1f}" stroke-opacity="{0.25 + 0.6 * w:.2f}"'
            body.append(f'<path class="line" d="{curve}" {look}/>')
    for token, y in zip(TOKENS, ROWS, strict=True):
        body.append(f'<text x="{left - 12}" y="{y + 6}" text-anchor="end">{token}</text>')
        body.append(f'<text x="{right + 12}" y="{y + 6}" text-anchor="start">{token}</text>')
    label = f"Lines from queries to keys, as wide as the attention weight: {describe(weights)}."
    return svg(label, "who attends to whom", body)


def draw_weights(weights):
    """Draw the weights as a table whose cells are the darker the larger the weight."""
    cell, left = 60, 92
    body = ['<text class="axis" x="80" y="56" text-anchor="end">query \\ key</text>']
    for j, token in enumerate(TOKENS):
        x = left + (j + 0.5) * 74
        body.append(f'<text x="{x}" y="56" text-anchor="middle">{token}</text>')
    for token, y, row in zip(TOKENS, ROWS, weights, strict=True):
        body.append(f'<text x="80" y="{y + 6}" text-anchor="end">{token}</text>')
        for j, w in enumerate(row):
            x, top = left + j * 74, y - cell / 2
            look = f'fill-opacity="{0.04 + 0.6 * w:.2f}"'
            box = f'x="{x + 2}" y="{top + 2}" width="70" height="{cell - 4}" rx="4"'
            body.append(f'<rect class="cell" {box} {look}/>')
            number = f'x="{x + 37}" y="{y + 6}" text-anchor="middle"'
            body.append(f'<text class="number" {number}>{w:.2f}</text>')
    label = f"Table of attention weights, one row for each query: {describe(weights)}."
    return svg(label, "the weights; each row adds up to 1", body)


def main():
    """Write both drawings."""
    weights = attention_weights()
    (STATIC / "landing_lines.svg").write_text(draw_lines(weights), encoding="utf-8")
    (STATIC / "landing_weights.svg").write_text(draw_weights(weights), encoding="utf-8")


if __name__ == "__main__":
    main()
