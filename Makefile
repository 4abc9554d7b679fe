# make book     set up, run every chapter, render the book           DATASET=cifar10 make book   on other images
# make test     set up, run all tests                                make check, lint   the tests that run no notebook; no test
# make browser  a reader opens every rendered page, in Chromium, without a network
# make pdf      the whole book on one page, and as a PDF             make lab      open the chapters in JupyterLab
# make bench    the kernels beside plain versions       ONLY=step  some of them     RECORD=cpu  keep all in data/speed/
# make gpu      what a GPU can show, in ten minutes     RECORD=h100  the record's name     DEVICE=cpu  a rehearsal at toy size
# make grid     GRID=experiments/example.yaml   every run of a grid, a table and a page; run again to resume
# make record   GRID=experiments/affine.yaml    what a finished grid gave, into data/results/, for the chapters
# make verify   RECORD=small   compute a run of a record again (or of each), and compare     RUNS=all   DATASET=cifar10-subset
# make paper    the attacks at the papers' sizes, hours on two cores; run again to resume
# make batch    CHAPTER=three-starts-bilevel SEEDS="0 1 2"       the grid of these seeds
# make outputs  run the chapters and keep their outputs in book/     make lock     resolve the dependencies anew
# make clean    remove what was computed (distclean: the environment, too)     make install-check   as conda and Binder do
# JOBS=1        one chapter at a time                                TORCH=cpu     set up without CUDA, 4 GB smaller

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
LONG := $(filter $(CHAPTERS),three-starts-decoreco decoreco-attack bilevel-attack can-anyone-tell unmixing-the-first-layer inside-the-solver)
ORDERED := $(LONG) $(filter-out $(LONG),$(CHAPTERS))
quoted = '$(subst ','\'',$(1))'
matches = $(shell printf '%s' $(call quoted,$(1)) | grep -xE '$(2)')
# The folder of what is run on a file is a number of the file's path and bytes: no two share one.
number = $(firstword $(shell { printf '%s' $(quoted); test ! -f $(quoted) || cat < $(quoted); } | cksum))
GIVEN := $(if $(filter photos,$(DATASET)),,$(call quoted,DATASET=$(DATASET)))
EXECUTED := _build/runs/$(call number,$(DATASET))
BIN := .venv/bin
OFFLINE := { echo "The packages were not installed: without a network they cannot be. Connect, and call make again."; exit 1; }
# Tests that call make do not take part in the jobs of this one.
PYTEST := MAKEFLAGS= OMP_NUM_THREADS=1 TQDM_DISABLE=1 $(BIN)/pytest -q -n 2 --dist worksteal

export PYDEVD_DISABLE_FILE_VALIDATION := 1
export PYTHONWARNINGS := ignore::DeprecationWarning
$(if $(filter 1,$(words $(DATASET))),,$(error DATASET is "$(DATASET)": give one name or one path without spaces))
$(if $(call matches,$(JOBS),[1-9][0-9]*),,$(error JOBS is "$(JOBS)": it must be a whole number larger than 0))
# Whatever is asked for, but to clean up, writes into _build and runs in an environment that is whole: its Python is
# there, and if it was set up finds its packages; its programs are in the folder of their installation.
ifeq ($(filter clean distclean,$(MAKECMDGOALS)),)
$(if $(shell mkdir -p _build 2> /dev/null && test -w _build && echo yes),,\
	$(error $(CURDIR)/_build cannot be written: take a copy of this folder to a place where you may write))
WHOLE = { test -e $(BIN)/python || test ! -L $(BIN)/python; } && { test ! -e .venv/ready || { $(BIN)/python -c 'import uv' && \
	test -x "$$(sed -n '1s/^\#!//p' $(BIN)/papermill)"; }; } && echo yes
$(if $(shell { $(WHOLE); } 2> /dev/null),,$(error The Python of .venv is gone, or this folder was moved: make distclean, then the same again))
endif

.PHONY: book runs html pdf test lint check browser install-check bench gpu batch grid paper record verify lab outputs lock clean distclean

book: runs
	@$(MAKE) --no-print-directory html && echo "The book is ready: open _build/html/index.html"

# Every chapter that is older than what it may depend on, on its share of the cores; one that fails stops no other.
runs: .venv/ready
	@printf 'Running the chapters on %s …\n' $(call quoted,$(DATASET))
	@threads=$$(($(CORES) / $(JOBS))); export OMP_NUM_THREADS=$${OMP_NUM_THREADS:-$$((threads ? threads : 1))} TQDM_DISABLE=1; \
		$(MAKE) -sk -j$(JOBS) $(patsubst %,--%,$(filter output-sync,$(.FEATURES))) $(ORDERED:%=$(EXECUTED)/%.ipynb)

$(EXECUTED)/%.ipynb: book/%.ipynb $(shell find $(PACKAGES) -name '*.py' 2> /dev/null) requirements.lock $(wildcard data/*.* data/*/*.*)
	@exec $(BIN)/python -m lab.run $< $@ $(GIVEN)

# What the pages are made of, in $(TO)/_build/source: pages from book/, notebooks from $(EXECUTED). Warnings are errors.
SHOWN = _config.yml _toc.yml book $(PACKAGES) _vendor requirements.lock data/quantities.yaml data/claims.yaml data/numbers.yaml \
	data/victims/entries.csv $(wildcard data/results/*.csv)
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

stage = echo "$(1)/4 $(2)"; $(3) || failed="$$failed $(1)";
test: .venv/ready .snakemake-env/ready
	@failed=; $(call stage,1,the linter; the types; the tests that run no notebook; the book with its committed outputs renders,\
		$(MAKE) --no-print-directory -k -j2 check html EXECUTED=book TO=_build/test) \
	$(call stage,2,every chapter at toy size with right and wrong parameters,\
		$(PYTEST) $$(grep -l mark.chapters tests/test_*.py) -m chapters) \
	$(call stage,3,every chapter gives its committed outputs,\
		$(PYTEST) --dist loadfile --nbval --nbval-current-env --nbval-cell-timeout 1800 \
		--nbval-kernel-startup-timeout 600 $(ORDERED:%=book/%.ipynb)) \
	$(call stage,4,a reader opens every page on a screen and on a phone,$(PYTEST) -rs tests/test_browser.py) \
	[ -z "$$failed" ] || { echo "Tests failed in stage:$$failed (of 4)"; exit 1; }; \
	echo "All tests passed. The book with its committed outputs: _build/test/_build/html/index.html"

browser: .venv/ready  # without Chromium it says that the pages were not opened, and passes
	@$(MAKE) --no-print-directory html EXECUTED=book TO=_build/test
	@$(PYTEST) -rs tests/test_browser.py

lint: .venv/ready
	@$(BIN)/ruff check -q . && $(BIN)/ruff format -q --check . && $(BIN)/mypy --no-error-summary && \
		$(BIN)/lint-imports --no-logo --cache-dir _build/imports > _build/imports.log || { cat _build/imports.log; exit 1; }
check: lint
	@$(PYTEST) tests -m "not chapters and not browser"
install-check: .venv/ready
	@PYTHON=$(PYTHON) sh .ci/install.sh

NAMED = $(if $(call matches,$(RECORD),[a-z0-9]+(-[a-z0-9]+)*),,$(error RECORD is "$(RECORD)": give a word of small letters and digits, such as cpu))
bench: .venv/ready  # a record keeps what was measured, whatever fails
	$(if $(and $(RECORD),$(ONLY)),$(error Only a whole run is recorded: leave ONLY away))$(if $(RECORD),$(NAMED))
	@rm -f _build/bench.json; $(BIN)/pytest -q tests/benchmarks $(if $(ONLY),-k $(call quoted,$(ONLY))) --benchmark-json=_build/bench.json; \
		status=$$?; [ $$status != 5 ] || echo "No benchmark has such a name: see $(BIN)/pytest tests/benchmarks --collect-only -q"; \
		$(if $(RECORD),[ ! -e _build/bench.json ] || cp _build/bench.json data/speed/$(RECORD).json;) exit $$status

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
	$(if $(strip $(SEEDS)),,$(error SEEDS is empty: give some, as in SEEDS="0 1 2"))
	@{ printf 'experiment: $(CHAPTER)\ncross:\n  SEED:\n'; printf '  - %s\n' $(SEEDS); } > _build/batch-$(CHAPTER).yaml
	@$(call run_grid,_build/batch-$(CHAPTER).yaml,$(if $(shell grep -l '"SEEDS = ' book/$(CHAPTER).ipynb),SEEDS=1))
record: .venv/ready  # of code that is committed, or DIRTY=1
	@$(BIN)/python -m lab.record $(GRID) $(GIVEN) $(PARAMETERS) $(if $(DIRTY),--dirty)
verify: .venv/ready .snakemake-env/ready
	@$(BIN)/python -m lab.verify $(RECORD) $(if $(filter all,$(RUNS)),--all) $(if $(GIVEN),--dataset $(call quoted,$(DATASET)))

# Snakemake has an environment of its own, beside the book's.
.snakemake-env/ready: tools/snakemake.txt | .venv/ready
	@echo "Setting up Snakemake in $(@D) …"; $(BIN)/uv venv -q --clear --python $(BIN)/python $(@D) && $(BIN)/uv pip install -q \
		--compile-bytecode --exclude-newer 2026-11-22 --python $(@D)/bin/python -r $< && touch $@ || $(OFFLINE)

lab: .venv/ready
	@$(BIN)/python tools/start_page.py _build/start.ipynb && $(BIN)/jupyter lab --allow-root --ServerApp.root_dir="$(CURDIR)" _build/start.ipynb

outputs:  # with their times, so that the chapters are not older than themselves
	@$(MAKE) --no-print-directory runs DATASET=photos && cp -p $(CHAPTERS:%=_build/runs/$(call number,photos)/%.ipynb) book/

# Set up again only if one of the files has other contents.
SET_UP := requirements.lock pyproject.toml tools/set_up.sh tools/vendor.py tools/widgets.js
.venv/ready: $(SET_UP)
	@key=$$(cat $^ | cksum); [ "$$key" = "$$(cat $@ 2> /dev/null)" ] || PYTHON="$(PYTHON)" TORCH="$(TORCH)" sh tools/set_up.sh && \
		echo "$$key" > $@
_vendor: | .venv/ready
	@$(BIN)/python tools/vendor.py $@
lock:
	@$(BIN)/uv pip compile -q --universal --generate-hashes --no-header --group test pyproject.toml -o requirements.lock || $(OFFLINE)
clean:
	rm -rf _build
distclean: clean
	rm -rf .venv .snakemake-env _vendor
