# Each target is one line that you could type yourself. The first use sets everything up.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.installed

.PHONY: book serve test lint release chapters mistakes bench

book: $(READY)
	$(BIN)/jupyter-book build . -W -n --keep-going

serve: book
	$(BIN)/python -m http.server --directory _build/html 8000

test: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

release: $(READY)
	$(BIN)/python -m autograder release

chapters: $(READY)
	$(BIN)/python tools/chapters.py

mistakes: $(READY)
	$(BIN)/python tools/mistakes.py

bench: $(READY)
	$(BIN)/python tools/bench.py

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Python 3.11 or newer is needed: make PYTHON=python3.11 ...')"
	$(PYTHON) -m venv .venv && $(BIN)/python -m pip install -q -r requirements.txt && touch $(READY)
