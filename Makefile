# make book     set up, run every chapter, render the book           DATASET=cifar10 make book   on other images
# make test     set up, run all tests                                make lab      open the chapters in JupyterLab
# make bench    compare the kernels with their plain versions        make clean    remove what was built
# make batch    CHAPTER=05-random-initialisation SEEDS="0 1 2"       one JSON per seed; run again to resume
# make outputs  run the chapters and keep their outputs in book/     make lock     resolve the dependencies anew

PYTHON ?= python3
DATASET ?= photos
CHAPTER ?= 05-random-initialisation
SEEDS ?= 0 1 2
PARAMETERS ?=

UV_VERSION := 0.13.8
PAGES := $(shell sed -n 's|.*file: *book/\([^ ]*\).*|\1|p' _toc.yml)
CHAPTERS := $(patsubst book/%.ipynb,%,$(wildcard $(PAGES:%=book/%.ipynb)))
CODE := $(wildcard utils/*.py) .venv/ready
KEY := $(subst /,_,$(DATASET))
SPACE := $(subst ,, )
BATCH = _build/batch/$(CHAPTER)/$(KEY)$(subst /,_,$(subst $(SPACE),,$(PARAMETERS:%=,%)))
ONE_SEED = $(if $(shell grep -l '"SEEDS = ' book/$(CHAPTER).ipynb),SEEDS=1)
GIVEN := $(if $(filter photos,$(DATASET)),,DATASET=$(DATASET))
RUNS := $(CHAPTERS:%=_build/runs/$(KEY)/%.ipynb)
BIN := .venv/bin

export PYDEVD_DISABLE_FILE_VALIDATION := 1
export PYTHONWARNINGS := ignore::DeprecationWarning

ifneq ($(words $(DATASET)),1)
$(error DATASET is "$(DATASET)": give one name or one path without spaces)
endif
ifeq ($(filter $(CHAPTER),$(CHAPTERS)),)
$(error CHAPTER is "$(CHAPTER)": it must be one of $(CHAPTERS))
endif

.PHONY: book test bench batch lab outputs lock clean html
.DELETE_ON_ERROR:

book: $(RUNS)
	@$(MAKE) --no-print-directory html SOURCE=_build/runs/$(KEY)
	@echo "The book is ready: open _build/html/index.html"

# One chapter, executed by papermill; again only if the chapter, the code, the environment or the data has changed.
_build/runs/$(KEY)/%.ipynb: book/%.ipynb $(CODE) $(wildcard $(DATASET))
	@echo "Running $* on $(DATASET) …"
	@$(BIN)/python scripts/run_chapter.py $< $@ $(GIVEN)

# Pages from book/, notebooks from SOURCE, warnings are errors.
html: .venv/ready
	@rm -rf _build/source && mkdir -p _build/source
	@cp -p -R _config.yml _toc.yml book _vendor _build/source/
	@cp -p $(CHAPTERS:%=$(SOURCE)/%.ipynb) _build/source/book/
	@echo "Rendering the book …"
	@$(BIN)/jupyter-book build -q -W -n --keep-going _build/source --path-output . > _build/html.log 2>&1 \
		|| { grep -E 'WARNING|ERROR' _build/html.log; echo "The book has errors: see _build/html.log"; exit 1; }

test: .venv/ready
	@echo "1/3 unit tests, and every chapter with other parameters"
	@$(BIN)/pytest tests -q
	@echo "2/3 every chapter gives its committed outputs"
	@TQDM_DISABLE=1 $(BIN)/pytest -q --nbval --nbval-current-env --nbval-cell-timeout 600 $(CHAPTERS:%=book/%.ipynb)
	@echo "3/3 the book renders without a warning"
	@$(MAKE) --no-print-directory html SOURCE=book
	@echo "All tests passed. The book with its committed outputs: _build/html/index.html"

bench: .venv/ready
	@for file in benchmarks/*.py; do $(BIN)/python $$file || exit 1; done

batch: $(SEEDS:%=$(BATCH)/seed-%.json)
	@echo "The results are in $(BATCH)/"

$(BATCH)/seed-%.json: book/$(CHAPTER).ipynb $(CODE) $(wildcard $(DATASET))
	@echo "Running $(CHAPTER) on $(DATASET) with seed $* …"
	@$(BIN)/python scripts/run_chapter.py $< $(@:.json=.ipynb) $(GIVEN) SEED=$* $(ONE_SEED) RESULTS=$@ $(PARAMETERS)

lab: .venv/ready
	@$(BIN)/jupyter lab book

outputs: .venv/ready
	@for chapter in $(CHAPTERS:%=book/%.ipynb); do $(BIN)/python scripts/run_chapter.py $$chapter $$chapter || exit 1; done

.venv/ready: requirements.lock pyproject.toml scripts/vendor.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12 …"; exit 1; }
	@echo "Setting up .venv with the versions of requirements.lock (PyTorch is large: a few minutes) …"
	@$(PYTHON) -m venv .venv || { echo "Python's venv module is missing; on Debian: apt install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install -qq --disable-pip-version-check uv==$(UV_VERSION)
	@$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements.lock
	@$(BIN)/uv pip install -q --python $(BIN)/python --no-deps -e .
	@$(BIN)/python scripts/vendor.py _vendor
	@touch $@

lock:
	@$(BIN)/uv pip compile -q --universal --generate-hashes --no-header --group test pyproject.toml -o requirements.lock

clean:
	rm -rf _build .venv _vendor
