"""Pages for people: feedback for one person, a report on the class.

Each is one small file that needs nothing else, is readable on a phone and follows the reader's
light or dark theme. All that comes from a submission is escaped.
"""

from __future__ import annotations

from collections import Counter
from html import escape
from statistics import mean, median

from .outputs import WORDS, max_points, points_of, status_of
from .report import MARKS, STATUS_WORDS, number

STYLE = """
:root { color-scheme: light dark; --line: #8885; --soft: #8882; --bar: #2a7f8f; --bad: #b3402a; }
@media (prefers-color-scheme: dark) { :root { --bar: #6cc0cf; --bad: #f0907c; } }
body { font: 1rem/1.55 system-ui, sans-serif; max-width: 46rem; margin: 0 auto; padding: 1.2rem;
  overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .4rem; }
code { font-family: ui-monospace, monospace; background: var(--soft); padding: .1em .25em; }
pre { white-space: pre-wrap; font: inherit; margin: .4rem 0; padding-left: .8rem;
  border-left: 3px solid var(--bar); }
details { border-top: 1px solid var(--line); padding: .5rem 0; }
summary { cursor: pointer; } summary b { float: right; font-weight: 500; }
ul { list-style: none; padding-left: .2rem; margin: .3rem 0; } .no { color: var(--bad); }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; padding: .3rem .6rem .3rem 0; vertical-align: top;
  border-bottom: 1px solid var(--line); }
.small { opacity: .75; }
svg { width: 100%; height: auto; }
svg text { fill: currentColor; font: 11px system-ui, sans-serif; }
"""


def page(title, body):
    """Wrap the body of a page."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def feedback(report):
    """Return the feedback page of one notebook.

    Parameters
    ----------
    report : Report

    Returns
    -------
    str
    """
    head = f"<h1>{escape(report.notebook)}</h1><p class=small>{escape(report.submission)}</p>"
    title = f"{report.notebook}: {report.submission}"
    if report.status != "graded":
        return page(title, f"{head}<p>The notebook cannot be read: {escape(report.reason)}</p>")
    points = f"{number(report.points)} of {number(report.max_points)} points"
    parts = [head, f"<p><b>{points}</b></p>"]
    first_open = report.next_question()
    for question in report.questions:
        status = STATUS_WORDS.get(question.status, question.status)
        checks = "".join(
            f'<li class="{"yes" if check.passed else "no"}">{"✓" if check.passed else "✗"} '
            f"{escape(check.name.replace('_', ' '))}</li>"
            for check in question.checks
        )
        told = f"<pre>{escape(question.feedback)}</pre>" if question.feedback else ""
        opened = " open" if question is first_open else ""
        parts.append(
            f"<details{opened}><summary>{MARKS.get(question.status, '✗')} "
            f"<code>{escape(question.id)}</code> <span class=small>{status}</span>"
            f"<b>{number(question.points)} / {number(question.max_points)}</b></summary>"
            f"{told}<ul>{checks}</ul></details>"
        )
    walls = [name for name, stood in report.isolation.items() if not stood]
    without = f" Graded without walls for: {', '.join(walls)}." if walls else ""
    parts.append(f"<p class=small>Seed of the hidden inputs: {report.seed}.{without}</p>")
    return page(title, "\n".join(parts))


def class_report(results, course):
    """Return the report on a class: points, questions, and the mistakes made most.

    Parameters
    ----------
    results : Results
    course : Course

    Returns
    -------
    str
    """
    most = max_points(results, course)
    rows = [(s, results.of(s)) for s in results.submissions]
    scores = [points_of(reports) for _, reports in rows if status_of(reports) != "missing"]
    parts = ["<h1>Class report</h1>"]
    parts.append(f"<p class=small>{escape(', '.join(results.stems))}</p>")
    if scores:
        parts.append(
            f"<p>{len(results.submissions)} submissions, {len(scores)} with a notebook. "
            f"Median {number(median(scores))} of {number(most)} points, mean "
            f"{mean(scores):.1f}.</p><h2>Points</h2>{histogram(scores, most)}"
        )
    parts += ["<h2>Points per question</h2>", _questions(rows, results, course)]
    parts += ["<h2>The mistakes this class makes most</h2>", _mistakes(rows, results, course)]
    parts += ["<h2>Submissions</h2>", _people(rows, results, most)]
    return page("Class report", "\n".join(parts))


def histogram(scores, most, bins=10):
    """Draw how many submissions have how many points, as SVG."""
    counts = [0] * bins
    for score in scores:
        counts[min(bins - 1, int(bins * score / most) if most else 0)] += 1
    width, height, top = 440, 160, max(counts)
    step = width / bins
    bars = []
    for i, count in enumerate(counts):
        tall = 120 * count / top
        bars.append(
            f'<rect x="{i * step + 4:.1f}" y="{130 - tall:.1f}" width="{step - 8:.1f}" '
            f'height="{tall:.1f}" fill="var(--bar)"/>'
        )
        if count:
            bars.append(
                f'<text x="{(i + 0.5) * step:.1f}" y="{125 - tall:.1f}" text-anchor="middle">'
                f"{count}</text>"
            )
        bars.append(f'<text x="{i * step:.1f}" y="148">{number(most * i / bins)}</text>')
    spoken = "; ".join(
        f"{count} with {number(most * i / bins)} to {number(most * (i + 1) / bins)}"
        for i, count in enumerate(counts)
        if count
    )
    return (
        f'<svg viewBox="0 -6 {width + 24} {height}" role="img" aria-label="Histogram of points: '
        f'{spoken}">{"".join(bars)}<text x="{width:.0f}" y="148">{number(most)}</text></svg>'
    )


def _questions(rows, results, course):
    graded = [report for _, reports in rows for report in reports if report is not None]
    lines = []
    for stem in results.stems:
        for question in course.questions(stem) if stem in course.stems() else []:
            found = [q for report in graded for q in report.questions if q.id == question.id]
            if not found:
                continue
            share = sum(q.points for q in found) / (len(found) * question.max_points)
            statuses = Counter(STATUS_WORDS.get(q.status, q.status) for q in found)
            told = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
            lines.append(
                f"<tr><td><code>{escape(question.id)}</code><br>"
                f"<span class=small>{told}</span></td><td>{share:.0%}{_bar(share)}</td></tr>"
            )
    return f"<table><tr><th>question</th><th>mean share</th></tr>{''.join(lines)}</table>"


def _bar(share):
    return (
        '<svg viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true" style="height:6px">'
        '<rect width="100" height="6" fill="var(--soft)"/>'
        f'<rect width="{100 * share:.1f}" height="6" fill="var(--bar)"/></svg>'
    )


def _mistakes(rows, results, course):
    known = {m.id: m for stem in course.stems() for m in course.mistakes(stem)}
    made = Counter(
        question.mistake
        for _, reports in rows
        for report in reports
        if report is not None
        for question in report.questions
    )
    del made[None]
    lines = [
        f"<tr><td>{count}</td><td><code>{escape(known[name].question)}</code><br>"
        f"{escape(known[name].believed)}</td></tr>"
        for name, count in made.most_common(15)
        if name in known
    ]
    if not lines:
        return "<p>None that has a name.</p>"
    return f"<table><tr><th>how often</th><th>what was believed</th></tr>{''.join(lines)}</table>"


def _people(rows, results, most):
    lines = []
    for submission, reports in rows:
        links = " ".join(
            f'<a href="{escape(submission.name)}/{escape(stem)}.html">{escape(stem)}</a>'
            for stem, report in zip(results.stems, reports, strict=True)
            if report is not None
        )
        status = status_of(reports)
        notes = "; ".join([*([WORDS[status]] if status in WORDS else []), *submission.notes])
        lines.append(
            f"<tr><td>{escape(submission.name)}<br><span class=small>{escape(notes)}</span></td>"
            f"<td>{number(points_of(reports))}</td><td>{links}</td></tr>"
        )
    return (
        f"<table><tr><th>submission</th><th>points of {number(most)}</th><th>feedback</th></tr>"
        f"{''.join(lines)}</table>"
    )
