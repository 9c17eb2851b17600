# Every target works on a fresh machine: the environment is created first, from the versions in constraints.txt.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# TORCH=cpu takes PyTorch from its own index of CPU builds: elsewhere than here plain torch brings gigabytes of CUDA.
TORCH ?=
ifneq ($(filter-out cpu,$(TORCH)),)
$(error TORCH=$(TORCH): only TORCH=cpu is known; leave it out for what pip's own index holds)
endif
CPU_INDEX := $(if $(TORCH),--extra-index-url https://download.pytorch.org/whl/cpu)
INSTALL := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt $(CPU_INDEX)
SIZE := PyTorch's CPU build is 0.2 GB to download and 0.8 GB on disk, all of it 1.7 GB; its CUDA build takes several more
SAY_SIZE = @echo "installing into $(VENV): $(SIZE) ($(if $(TORCH),the CPU build is taken,make TORCH=cpu takes the CPU build on Linux))"
DATA := $(wildcard ../shared/data)
export DPFEDMETA_DATA ?= $(if $(DATA),$(abspath $(DATA)))

LINES := .cache/lines-reached.json
# Tests of what the processor's kernels compute.
OF_KERNELS := $(addprefix tests/,learning privacy simulation golden benchmarks core)

.PHONY: demo demo-federation docs test test-slow same-as mutants mutants-by-rule lint audit sbom peers simulators gpu gpu-carry gpu-wheels gpu-data clean

demo: $(VENV)/.installed
	name=demo-$$(date +%Y%m%d-%H%M%S) && \
	$(BIN)/python scripts/train.py --algo dp-agrlr-micro --dataset strokes --run.name $$name && \
	$(BIN)/python scripts/evaluate.py runs/$$name --shots 1 5 --no-fine-tuning

# A server and eight clients as processes of this machine: TLS, keys, images of each one's own.
demo-federation: $(VENV)/.installed-federation
	$(BIN)/python scripts/federate.py demo

# The site in docs/_build/html. Warnings are errors, sentences are short, every link and anchor is followed, nothing is loaded from elsewhere, and the
# search finds the right page for 30 queries and more. -a: a page that is not written again loses its entries in the search's index.
docs: $(VENV)/.installed-docs
	$(BIN)/python docs/check_prose.py
	$(BIN)/python -m sphinx -q -a -W --keep-going -b html docs docs/_build/html
	$(BIN)/python docs/check_site.py docs/_build/html
	$(BIN)/python docs/check_search.py docs/_build/html

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m "not slow" -q -n 2 --dist worksteal

test-slow: $(VENV)/.installed-test peers
	DPFEDMETA_FUZZ=100000 $(BIN)/python -m pytest -m slow -q -s
	# As on a processor without AVX: other kernels, other last bits.
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 $(BIN)/python -m pytest -m "not slow" -q -n 2 --dist worksteal $(OF_KERNELS)

# The golden runs of another commit and of this checkout, on this machine, bit for bit: make same-as BASE=COMMIT, some
# of them with RUNS="maml dp-agr".
same-as: $(VENV)/.installed-test
	@$(if $(BASE),,$(error type make same-as BASE=COMMIT))$(BIN)/python tests/golden/same_as.py '$(BASE)' $(RUNS)

# Plants mistakes one at a time: hours, not in CI; MUTANTS=ledger for some. First those in functions, each in a fork that
# has imported all and within a budget; what is not seen then, or is run by the import, is tried with all its tests.
MUTANTS ?= *
mutants: $(VENV)/.installed-test
	-$(BIN)/python tests/mutants/machine.py --written '$(MUTANTS)' --json mutants.json
	$(BIN)/python tests/mutants/run.py --go-on --json mutants.json --only '$(MUTANTS)'

# Mistakes by rule in the code that promises rest on: a sample, from SAMPLE="--count 60 --seed 1 --of accounting/".
SAMPLE ?= --count 60 --seed 1
mutants-by-rule: $(VENV)/.installed-test $(LINES)
	$(BIN)/python tests/mutants/machine.py --lines $(LINES) $(SAMPLE)

# Which tests reach which lines, in the time of the tests; remove the file when much has changed.
$(LINES): | $(VENV)/.installed-test
	mkdir -p $(dir $(LINES))
	$(BIN)/python tests/mutants/machine.py --lines $(LINES) --cover tests

lint: $(VENV)/.installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python .ci/audit

audit: $(VENV)/.installed-lint
	$(BIN)/python .ci/audit

# A list of all that is installed for servers and clients (CycloneDX 1.6), for whoever has to know: dist/sbom.json. The
# tool has an environment of its own, so it does not list itself.
sbom: $(VENV)/.installed-federation
	test -x $(VENV)/sbom/bin/cyclonedx-py || { $(PYTHON) -m venv $(VENV)/sbom && \
	    $(VENV)/sbom/bin/python -m pip install -q --disable-pip-version-check cyclonedx-bom==7.5.0; }
	mkdir -p dist
	$(VENV)/sbom/bin/cyclonedx-py environment --output-reproducible --validate -o dist/sbom.json $(BIN)/python
	@$(BIN)/python -c "import json; print('dist/sbom.json:', len(json.load(open('dist/sbom.json'))['components']), 'packages')"

# Beside the environment, since nothing else needs them: learn2learn and riskcal are compiled here, and some of what they
# need no longer installs; bench.py --peers and tests/benchmarks/test_real_libraries.py find them there.
peers: $(VENV)/.installed-test
	$(INSTALL) --target $(VENV)/peers cython==3.3.1
	PYTHONPATH=$(abspath $(VENV)/peers) $(INSTALL) --no-deps --no-build-isolation --use-pep517 \
	    --config-settings=--global-option=build_ext --target $(VENV)/peers learn2learn==0.2.0
	$(INSTALL) --no-deps --target $(VENV)/peers torchmeta==1.8.0 ordered-set==4.1.0 riskcal==1.5.1
	rm -rf $(VENV)/peers/tests  # it brings a package of this name, which would hide this project's

# One task in several simulators. Each has an environment of its own, since they ask for other versions; FedJAX asks for
# a JAX that its last version still ran with.
SIMULATORS := $(VENV)/simulators
APART := -m pip install -q --disable-pip-version-check $(CPU_INDEX)
simulators: $(VENV)/.installed-test
	for name in pfl flower fedjax; do test -d $(SIMULATORS)/$$name || $(PYTHON) -m venv $(SIMULATORS)/$$name; done
	$(SIMULATORS)/pfl/bin/python $(APART) 'pfl==0.6.0' 'torch==2.13.0'
	$(SIMULATORS)/flower/bin/python $(APART) 'flwr[simulation]==1.42.0' 'torch==2.13.0'
	$(SIMULATORS)/fedjax/bin/python $(APART) fedjax==0.0.17 jax==0.4.25 jaxlib==0.4.25 dm-haiku==0.0.12 optax==0.2.2 \
	    'numpy<2' 'scipy<1.13'
	$(BIN)/python -m benchmarks.simulators.run

# Everything that is measured on a GPU, in 9 minutes, with the PyTorch of PYTHON; nothing is installed into it.
# DEVICE=cpu runs the same at tiny sizes.
OUT ?= gpu-results
DEVICE ?= cuda
gpu:
	@$(if $(wildcard $(BIN)/python),$(if $(filter file,$(origin PYTHON)),$(BIN)/python,$(PYTHON)),$(PYTHON)) scripts/gpu.py --device $(DEVICE) --out "$(OUT)"

# What a machine without a network lacks: wheels for its Python, learn2learn in source, and data in pieces that fit
# into one transfer each.
gpu-carry: gpu-wheels gpu-data
	@du -sh .gpu/*

GPU_PYTHON ?= 3.12
GPU_WHEELS := annotated-types cffi cryptography dm-tree dp-accounting higher opacus platformdirs pycparser pydantic \
    pydantic_core typing-inspection
gpu-wheels:
	mkdir -p .gpu/wheels
	$(PYTHON) -m pip download -q --disable-pip-version-check --no-deps -c constraints.txt -d .gpu/wheels \
	    --only-binary=:all: --python-version $(GPU_PYTHON) --implementation cp \
	    $(foreach n,34 28 27 24 17 5,--platform manylinux_2_$(n)_x86_64) --platform manylinux2014_x86_64 \
	    --platform manylinux1_x86_64 $(filter-out higher,$(GPU_WHEELS))
	$(PYTHON) -m pip wheel -q --disable-pip-version-check --no-deps -c constraints.txt -w .gpu/wheels higher
	# Its source: what is measured of it is plain Python, and pip asks for Cython to look at it.
	$(PYTHON) -m pip install -q --disable-pip-version-check --target .gpu/cython cython==3.3.1
	PYTHONPATH=$(abspath .gpu/cython) $(PYTHON) -m pip download -q --disable-pip-version-check --no-deps \
	    --no-build-isolation --no-binary=:all: -d .gpu/wheels learn2learn==0.2.0
	rm -rf .gpu/cython

gpu-data:
	@test -d "$$DPFEDMETA_DATA" || { echo "error: set DPFEDMETA_DATA to the folder with cifar-fs/ and mini-imagenet/" >&2; exit 2; }
	rm -rf .gpu/data-*
	$(PYTHON) scripts/gpu_data.py "$$DPFEDMETA_DATA" .gpu

clean:
	rm -rf $(VENV) build dist *.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: dpfedmeta needs Python 3.11 or later, this is " + sys.version.split()[0] + "; type: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: setup.cfg pyproject.toml constraints.txt | $(BIN)/python
	$(SAY_SIZE)
	$(INSTALL) -e .
	touch $@

$(VENV)/.installed-federation: setup.cfg pyproject.toml constraints.txt | $(BIN)/python
	$(SAY_SIZE)
	$(INSTALL) -e '.[federation]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-test: setup.cfg pyproject.toml constraints.txt | $(BIN)/python
	$(SAY_SIZE)
	$(INSTALL) -e '.[test]'
	# Beside the environment, for its schema file alone: the package asks for an older numpy.
	$(INSTALL) --no-deps --target $(VENV)/wandb-schema sweeps==0.3.0
	touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: setup.cfg pyproject.toml constraints.txt | $(BIN)/python
	$(SAY_SIZE)
	$(INSTALL) -e '.[docs]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-lint: setup.cfg pyproject.toml constraints.txt | $(BIN)/python
	$(SAY_SIZE)
	$(INSTALL) -e '.[lint,test]'  # mypy reads the tests as well
	touch $@
