"""Known mistakes: small wrong answers, each with what was believed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that people really give.

    Attributes
    ----------
    id : str
        ``"softmax-axis-ignored"``.
    question : str
        The id of the question that it answers wrongly.
    believed : str
        What its author believed, in one sentence.
    tell : str
        What to say to the learner: one idea to check, never the answer.
    section : str
        The section of the chapter to reread.
    answer : object
        The wrong function, class or value itself.
    """

    id: str
    question: str
    believed: str
    tell: str
    section: str
    answer: object


def mistake(question, *, believed, tell, section):
    """Make the decorated function a known `Mistake`; its name, with dashes, is the id."""

    def register(answer):
        return Mistake(answer.__name__.replace("_", "-"), question, believed, tell, section, answer)

    return register


def mistake_value(question, id, value, *, believed, tell, section):
    """Make a wrong value a known `Mistake`, for a question whose answer is a plain value."""
    return Mistake(id, question, believed, tell, section, value)


def mistakes_of(module):
    """List the mistakes that a module defines, in order."""
    return [thing for thing in vars(module).values() if isinstance(thing, Mistake)]
