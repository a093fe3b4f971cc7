"""The page of known mistakes shows what is so."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_page_of_known_mistakes_is_current():
    """To mend: ``python tools/mistakes.py --write``."""
    command = [sys.executable, str(ROOT / "tools" / "mistakes.py"), "--check"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
