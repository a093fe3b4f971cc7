"""Grade notebooks: run a learner's answers, judge them, and say what to look at next.

In a notebook::

    from autograder import check

    check("softmax")    # one question
    check()             # every question of this notebook
"""

from .live import check

__all__ = ["check"]
