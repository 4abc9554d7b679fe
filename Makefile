# make book     set up, run every chapter, render the book           DATASET=cifar10 make book   on other images
# make test     set up, run all tests                                make check, lint   the tests that run no notebook; no test
# make browser  a reader opens every rendered page, in Chromium, without a network
# make pdf      the whole book on one page, and as a PDF             make lab      open the chapters in JupyterLab
# make article  what both papers claim and what held, as a PDF        make release  check and build a version; nothing is uploaded
# make bench    the kernels beside plain versions       ONLY=step  some of them     RECORD=cpu  keep all in data/speed/
# make gpu      what a GPU can show, in ten minutes     RECORD=h100  the record's name     DEVICE=cpu  a rehearsal at toy size
# make grid     GRID=experiments/example.yaml   every run of a grid, a table and a page; run again to resume
# make record   GRID=experiments/affine.yaml    what a finished grid gave, into data/results/, for the chapters
# make verify   RECORD=small   compute a run of a record again (or of each), and compare     RUNS=all   DATASET=cifar10-subset
# make paper    the attacks at the papers' sizes, hours on two cores; run again to resume
# make batch    CHAPTER=three-starts-bilevel SEEDS="0 1 2"       the grid of these seeds
# make outputs  run the chapters and keep their outputs in book/     make lock     resolve the dependencies anew
# make clean    remove what was computed (distclean: the environment, too)     make install-check   as conda and Binder do
# JOBS=4        chapters, or tests, at a time                    TORCH=cpu     set up without CUDA, 4 GB smaller

PYTHON ?= python3
DATASET ?= photos
CHAPTER ?= three-starts-bilevel
SEEDS ?= 0 1 2
GRID ?= experiments/example.yaml
CORES := $(shell getconf _NPROCESSORS_ONLN)
JOBS ?= $(shell echo $$(($(CORES) < 2 ? 1 : $(CORES) < 8 ? 2 : $(CORES) / 4)))

PACKAGES := attacks audit evaluation experiments lab training utils
PAGES := $(shell sed -n 's|.*file: *book/\([^ ]*\).*|\1|p' _toc.yml)
CHAPTERS := $(patsubst book/%.ipynb,%,$(wildcard $(PAGES:%=book/%.ipynb)))
# The longest first, so that no worker is left with one at the end.
LONG := three-starts-decoreco decoreco-attack bilevel-attack can-anyone-tell unmixing-the-first-layer inside-the-solver
ORDERED := $(filter $(CHAPTERS),$(LONG)) $(filter-out $(LONG),$(CHAPTERS))
GIVEN := $(if $(filter photos,$(DATASET)),,"DATASET=$(DATASET)")
EXECUTED := _build/runs/$(subst /,+,$(DATASET))
BIN := .venv/bin
OFFLINE := { echo "The packages were not installed: without a network they cannot be. Connect, and call make again."; exit 1; }
# Tests that call make do not take part in the jobs of this one.
PYTEST := MAKEFLAGS= OMP_NUM_THREADS=1 TQDM_DISABLE=1 $(BIN)/pytest -q -n $(JOBS) --dist worksteal
export PYDEVD_DISABLE_FILE_VALIDATION := 1
export PYTHONWARNINGS := ignore::DeprecationWarning
$(foreach name,DATASET CHAPTER GRID,$(if $(filter 1,$(words $($(name)))),,$(error $(name) is "$($(name))": give one name or one path without spaces)))
$(shell mkdir -p _build)
.PHONY: book runs html pdf test lint check toys committed browser install-check bench gpu batch grid paper record verify lab \
	outputs older lock clean distclean article release .venv/ready

book: runs
	@$(MAKE) --no-print-directory html && echo "The book is ready: open _build/html/index.html"

# Every chapter that is older than what it may depend on, the longest first; one that fails stops no other.
runs: .venv/ready
	@echo "Running the chapters on $(DATASET) …"
	@older=$$($(MAKE) -s -j1 older) || exit 1; threads=$$(($(CORES) / $(JOBS))); [ -z "$$older" ] || JOBS=$(JOBS) TQDM_DISABLE=1 \
		OMP_NUM_THREADS=$${OMP_NUM_THREADS:-$$((threads ? threads : 1))} $(BIN)/python -m lab.run $$older $(EXECUTED) $(GIVEN)
older: $(ORDERED:%=$(EXECUTED)/%.ipynb)
$(EXECUTED)/%.ipynb: book/%.ipynb $(wildcard $(PACKAGES:%=%/*.py) $(PACKAGES:%=%/*/*.py)) requirements.lock $(wildcard data/*.* data/*/*.* $(DATASET))
	@echo $<

# What the pages are made of, in $(TO)/_build/source: pages from book/, notebooks from $(EXECUTED). Warnings are errors.
SHOWN = _config.yml _toc.yml CITATION.cff book $(PACKAGES) _vendor requirements.lock $(wildcard data/*.yaml data/results/*.csv) data/victims/entries.csv
LAY_OUT = rm -rf $(TO)/_build/source && mkdir -p $(TO)/_build/source && tar -cf - $(SHOWN) | tar -xf - -C $(TO)/_build/source && \
	cp $(CHAPTERS:%=$(EXECUTED)/%.ipynb) $(TO)/_build/source/book/
render = $(CURDIR)/$(BIN)/jupyter-book build -q --keep-going $(1) source --path-output .. > book.log 2>&1 || \
	{ grep -E '$(2)' book.log; echo "The book has errors: see $(TO)/_build/book.log"; exit 1; }

# Pages into $(TO)/_build/html, again only if one has changed.
html: TO := .
html: .venv/ready _vendor
	@$(LAY_OUT)
	@key=$$(cd $(TO)/_build/source && find . -type f ! -name '*.pyc' | LC_ALL=C sort | xargs cksum | cksum); cd $(TO)/_build; \
	if [ "$$key" = "$$(cat html.key 2> /dev/null)" ] && [ -e html/index.html ]; then echo "The pages: unchanged"; exit; fi; \
	echo "Rendering the book …"; rm -rf html.key html .doctrees; $(call render,-W -n,WARNING|ERROR); echo "$$key" > html.key

pdf: TO := _build/pdf
pdf: runs _vendor
	@echo "Rendering the book on one page, and printing it: a few minutes …"; $(LAY_OUT) && rm -rf $(TO)/_build/singlehtml
	@cd $(TO)/_build; $(call render,--builder singlehtml,ERROR)
	@$(BIN)/python tools/print_book.py $(TO)/_build/singlehtml _build/book.pdf

article: .venv/ready
	@$(BIN)/python tools/article.py
release: .venv/ready  # quick checks, all tests, then what people would upload, in _build/release
	@$(BIN)/python tools/release.py && $(MAKE) --no-print-directory test article && $(BIN)/python tools/release.py build

# Every stage, whatever fails before it; make names those that failed.
test: .venv/ready .snakemake-env/ready
	@failed=; for stage in "-j2 check html" committed browser; do \
		$(MAKE) --no-print-directory -k $$stage WHICH="not browser" EXECUTED=book TO=_build/test || failed=1; done; [ -z "$$failed" ] && \
	echo "All tests passed. The book with its committed outputs: _build/test/_build/html/index.html"
lint: .venv/ready
	@$(BIN)/ruff check -q . && $(BIN)/ruff format -q --check . && $(BIN)/mypy --no-error-summary && \
		$(BIN)/lint-imports --no-logo --cache-dir _build/imports > _build/imports.log || { cat _build/imports.log; exit 1; }
check: lint
	@$(PYTEST) tests -m "$(or $(WHICH),not chapters and not browser)"
toys: .venv/ready  # every notebook at toy size
	@$(PYTEST) $$(grep -l mark.chapters tests/test_*.py) -m chapters
committed: .venv/ready  # every chapter gives its committed outputs
	@$(PYTEST) --dist loadfile --nbval --nbval-current-env --nbval-cell-timeout 1800 --nbval-kernel-startup-timeout 600 \
		$(ORDERED:%=book/%.ipynb)
browser: .venv/ready  # without Chromium it says that the pages were not opened, and passes
	@$(MAKE) --no-print-directory html EXECUTED=book TO=_build/test
	@$(PYTEST) -rs tests/test_browser.py
install-check: .venv/ready
	@PYTHON=$(PYTHON) sh .ci/install.sh

bench: .venv/ready  # a record keeps what was measured, whatever fails
	$(if $(and $(RECORD),$(ONLY)),$(error Only a whole run is recorded: leave ONLY away))
	@rm -f _build/bench.json; $(BIN)/pytest -q tests/benchmarks $(if $(ONLY),-k "$(ONLY)") --benchmark-json=_build/bench.json; \
		status=$$?; $(if $(RECORD),[ ! -e _build/bench.json ] || cp _build/bench.json data/speed/$(RECORD).json;) exit $$status

# That the kernels of a GPU give the processor's numbers, then every benchmark; a rehearsal records nothing.
gpu: .venv/ready
	@$(BIN)/python -c 'import sys, torch; sys.exit("$(DEVICE)" != "cpu" and not torch.cuda.is_available())' || \
		{ echo "There is no GPU here: make gpu DEVICE=cpu rehearses it at toy size"; exit 1; }
	@$(BIN)/pytest -q -p no:xdist tests/test_kernels_on_a_gpu.py && $(MAKE) --no-print-directory bench $(if $(filter cpu,$(DEVICE)),\
		RECORD= ONLY="paper or limits" REHEARSE=yes PYTEST_ADDOPTS=--benchmark-max-time=0.01,RECORD=$(or $(RECORD),gpu) MINUTES=9)

run_grid = $(BIN)/python -m lab.grid $(1) $(GIVEN) $(2) $(PARAMETERS) $(PROFILE:%=--profile %)
grid: .venv/ready .snakemake-env/ready
	@$(call run_grid,$(GRID))
paper: .venv/ready .snakemake-env/ready  # the published attack alone takes hours on a CPU: it comes last
	@$(foreach name,bilevel ours published,$(call run_grid,experiments/paper-$(name).yaml) &&) true
batch: .venv/ready .snakemake-env/ready
	@{ printf 'experiment: $(CHAPTER)\ncross:\n  SEED:\n'; printf '  - %s\n' $(SEEDS); } > _build/batch-$(CHAPTER).yaml
	@$(call run_grid,_build/batch-$(CHAPTER).yaml,$(if $(shell grep -ls '"SEEDS = ' book/$(CHAPTER).ipynb),SEEDS=1))
record: .venv/ready  # of code that is committed, or DIRTY=1
	@$(BIN)/python -m lab.record $(GRID) $(GIVEN) $(PARAMETERS) $(if $(DIRTY),--dirty)
verify: .venv/ready .snakemake-env/ready
	@$(BIN)/python -m lab.verify $(if $(RECORD),"$(RECORD)") $(if $(RUNS),$(if $(filter all,$(RUNS)),--all,$(error RUNS is "$(RUNS)": say RUNS=all or nothing))) $(if $(GIVEN),--dataset "$(DATASET)")

# Snakemake has an environment of its own, beside the book's.
.snakemake-env/ready: tools/snakemake.txt | .venv/ready
	@echo "Setting up Snakemake in $(@D) …"; $(BIN)/uv venv -q --clear --python $(BIN)/python $(@D) && $(BIN)/uv pip install -q \
		--compile-bytecode --exclude-newer 2026-11-22 --python $(@D)/bin/python -r $< && touch $@ || $(OFFLINE)

lab: .venv/ready
	@$(BIN)/python tools/start_page.py _build/start.ipynb && $(BIN)/jupyter lab --allow-root --ServerApp.root_dir="$(CURDIR)" _build/start.ipynb
outputs:  # with their times, so that no chapter is older than itself
	@$(MAKE) --no-print-directory runs DATASET=photos && cp -p $(CHAPTERS:%=_build/runs/photos/%.ipynb) book/

# Set up again if a file has other contents, and anew if the Python is gone that programs name by the path it had then.
.venv/ready: requirements.lock pyproject.toml tools/set_up.sh tools/vendor.py tools/widgets.js
	@test ! -e $(BIN)/papermill || test -x "$$(sed -n '1s/^#!//p' $(BIN)/papermill)" || rm -rf .venv/*; key=$$(cat $^ | cksum); \
		[ "$$key" = "$$(cat $@ 2> /dev/null)" ] || { PYTHON="$(PYTHON)" TORCH="$(TORCH)" sh tools/set_up.sh && echo "$$key" > $@; }
_vendor: | .venv/ready; @$(BIN)/python tools/vendor.py $@
lock:
	@$(BIN)/uv pip compile -q --universal --generate-hashes --no-header --group test pyproject.toml -o requirements.lock || $(OFFLINE)
clean:; rm -rf _build
distclean: clean; rm -rf .venv .snakemake-env _vendor
