# make            builds build/bin/tonnage and the pinned Python environment .venv
# make demo       installs what is missing (Debian, as root or with sudo), builds, and runs the main job
# make test       the same, and all tests
# make bench      compares the virtual H200 with a real one, row by row, and measures speed
# make install    PREFIX=/usr/local
# make clean      removes build/ (distclean: the Python environments too)
PYTHON ?= python3
BUILD ?= build
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
VENV := .venv
TEST_VENV := .venv-test
PROGRAMS_VENV := .venv-programs
TONNAGE := $(BUILD)/bin/tonnage
SITE = $(wildcard $(VENV)/lib/python3*/site-packages)
RECORDER_SOURCES := $(wildcard src/recorder/* src/recorder/*/* src/abi/*.h)

.PHONY: all build recorder packages check-packages demo test unit e2e bench install check-pip clean distclean programs
all: build recorder

# What is needed from the distribution. `make` only says so; `make demo` and `make test` install it.
check-packages:
	@tools/packages.sh check
packages:
	@tools/packages.sh install

$(VENV)/.made: requirements.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

$(BUILD)/CMakeCache.txt: | check-packages $(VENV)/.made
	cmake -S . -B $(BUILD) -G Ninja -DTONNAGE_CUDA_INCLUDE="$(abspath $(firstword $(wildcard $(VENV)/lib/python3*/site-packages/nvidia/cu13/include)))"

build: $(VENV)/.made $(BUILD)/CMakeCache.txt
	cmake --build $(BUILD) --parallel $(JOBS)

# The recorder for .venv's PyTorch; for any other one `tonnage run` compiles it when it is first needed.
recorder: $(BUILD)/lib/recorder/.made
$(BUILD)/lib/recorder/.made: $(RECORDER_SOURCES) $(VENV)/.made | build
	$(TONNAGE) recorder --build $(SITE)/torch --output $(BUILD)/lib/recorder --force --quiet
	touch $@

demo: packages
	$(MAKE) all
	$(TONNAGE) run --gpu "RTX 3060" -- $(VENV)/bin/python examples/train_resnet50.py --batch-size 64
	$(TONNAGE) run --gpu "RTX 3060" -- $(VENV)/bin/python examples/train_gpt2.py --batch-size 4 --bf16

# nvcc comes from PyPI where the machine has none (the plain CUDA program of the tests needs it).
$(TEST_VENV)/.made: requirements-test.txt requirements-nvcc.txt
	test -x $(TEST_VENV)/bin/python || $(PYTHON) -m venv $(TEST_VENV)
	$(TEST_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-test.txt
	command -v nvcc > /dev/null || test -x /usr/local/cuda/bin/nvcc || $(TEST_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-nvcc.txt
	touch $@

unit: all
	cd $(BUILD) && ctest --output-on-failure --parallel $(JOBS)
e2e: all $(TEST_VENV)/.made
	TONNAGE_BUILD=$(abspath $(BUILD)) $(TEST_VENV)/bin/python -m pytest -q -n 2 --dist worksteal tests/e2e $(PYTEST_ARGS)
test: packages
	$(MAKE) all
	status=0; $(MAKE) unit || status=1; $(MAKE) e2e || status=1; exit $$status

# `pip install .` into an environment of its own.
check-pip: all
	rm -rf $(BUILD)/pip && $(PYTHON) -m venv $(BUILD)/pip
	$(BUILD)/pip/bin/python -m pip install --quiet --disable-pip-version-check .
	$(BUILD)/pip/bin/tonnage run --gpu "RTX 3060" -- $(abspath $(VENV))/bin/python -c "import torch; torch.zeros(1 << 20, device='cuda')"

# The real programs of bench/truth, from github.com, or from bare git mirrors: make programs MIRRORS=<folder with OWNER+NAME/repo>
programs: $(PROGRAMS_VENV)/.made
	bench/truth/programs/get.sh .programs $(MIRRORS)
	$(PROGRAMS_VENV)/bin/python bench/truth/programs/prep.py .programs
$(PROGRAMS_VENV)/.made: requirements-programs.txt $(VENV)/.made
	test -x $(PROGRAMS_VENV)/bin/python || $(VENV)/bin/python -m venv $(PROGRAMS_VENV)
	echo "$(abspath $(SITE))" > $$(echo $(PROGRAMS_VENV)/lib/python3*/site-packages)/zz_base.pth
	$(PROGRAMS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-programs.txt
	touch $@

bench: all
	mkdir -p $(BUILD)/bench
	for b in $(wildcard $(BUILD)/bin/*_bench); do $$b --benchmark_out=$(BUILD)/bench/$$(basename $$b).json --benchmark_out_format=json || exit 1; done
	$(VENV)/bin/python bench/speed/run_speed.py --json $(BUILD)/bench/speed.json
	bench/truth/run_truth.py rows -j 2 --json $(BUILD)/bench/truth-rows.json
	test ! -d .programs || bench/truth/run_truth.py programs -j 2 --json $(BUILD)/bench/truth-programs.json

install: all
	cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	rm -rf $(BUILD)
distclean: clean
	rm -rf $(VENV) $(TEST_VENV) $(PROGRAMS_VENV) .venv-torch* .programs
