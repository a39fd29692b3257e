# Two commands on a fresh machine with git, make and python3 (3.11 or newer): make demo, make test.
PYTHON ?= python3
BIN = .venv/bin
# Tests start many processes: without compiled files each of them would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo docs test test-all lint types install clean

# what a user needs, without the development extras
demo: .venv/demo
	$(BIN)/python examples/demo.py

.venv/demo: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e . \
		|| uv pip install --quiet --python $(BIN)/python -e .
	touch .venv/demo

# the documentation site, into site/; a broken link or a page outside the navigation fails
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "site/index.html: open it with $(BIN)/python -m http.server --directory site"

.venv/docs: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]' \
		|| uv pip install --quiet --python $(BIN)/python -e '.[docs]'
	touch .venv/docs

install: .venv/ready

# the stamp is remade when pyproject.toml changes; pip does nothing for what is already there
.venv/ready: pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'antipode needs Python 3.11 or newer')"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' \
		|| uv pip install --quiet --python $(BIN)/python -e '.[dev]'
	touch .venv/ready

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell src tests benchmarks docs docs_site examples README.md CHANGELOG.md CONTRIBUTING.md

types: install
	$(BIN)/mypy

# two workers, one thread each: more would fight over two cores
test: lint types
	$(BIN)/python -m pytest -n 2 --dist loadgroup

test-all: lint types
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m 'slow or not slow'

clean:
	rm -rf .venv build site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
