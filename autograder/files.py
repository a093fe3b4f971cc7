"""Files that are written whole or not at all."""

from __future__ import annotations

import os


def write_whole(path, text):
    """Write a text file so that nobody ever sees a part of it.

    Parameters
    ----------
    path : pathlib.Path
        Its folder is made if need be.
    text : str
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
