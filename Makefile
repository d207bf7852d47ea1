# make            builds build/bin/tonnage, the virtual driver and the Python environment .venv with the pinned PyTorch
# make demo       installs what is missing (Debian, as root or with sudo), builds, and runs the main job
# make test       the same, and all tests
# make lint       layout, includes, sizes, clang-tidy (make format mends the layout)
# make sanitize   the unit tests under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer
# make coverage   which lines the unit tests run, per room
# make bench      compares the virtual H200 with a real one, row by row, and measures speed
# make wheel      a wheel in dist/ (check-wheel: installs it in a fresh environment and runs it)
# make deb        a Debian package in dist/
# make install    PREFIX=/usr/local
# make clean      removes the build folders (distclean: the Python environments too)
PYTHON ?= python3
BUILD ?= build
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
CMAKE_OPTIONS ?=
VENV := .venv
TEST_VENV := .venv-test
PROGRAMS_VENV := .venv-programs
FRAMEWORKS_VENV := .venv-frameworks
TONNAGE := $(BUILD)/bin/tonnage
SITE = $(wildcard $(VENV)/lib/python3*/site-packages)
CUDA_INCLUDE = -DTONNAGE_CUDA_INCLUDE="$(abspath $(firstword $(wildcard $(VENV)/lib/python3*/site-packages/nvidia/cu13/include)))"
RECORDER_SOURCES := $(wildcard src/recorder/* src/recorder/*/* src/abi/*.h src/base/older_*)
PIP := -m pip install --quiet --disable-pip-version-check

.PHONY: all build recorder packages check-packages demo configure-tests build-tests test unit e2e lint format sanitize asan tsan \
  coverage bench wheel check-wheel deb install check-pip clean distclean programs frameworks
all: recorder

# What is needed from the distribution. `make` only says so; `make demo` and `make test` install it.
check-packages:
	@tools/packages.sh check
packages:
	@tools/packages.sh install

# CUDA's headers first: with them the build can begin while PyTorch is fetched (make -j2).
$(VENV)/.headers: requirements.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python $(PIP) $(shell grep '^nvidia-' requirements.txt)
	touch $@
$(VENV)/.made: requirements.txt | $(VENV)/.headers
	$(VENV)/bin/python $(PIP) -r requirements.txt
	touch $@

# Only what is shipped; `make test` adds the rest to the same folder.
$(BUILD)/CMakeCache.txt: | check-packages $(VENV)/.headers
	cmake -S . -B $(BUILD) -G Ninja $(CUDA_INCLUDE) -DTONNAGE_BUILD_TESTS=OFF -DTONNAGE_BUILD_BENCH=OFF -DTONNAGE_TORCH=OFF $(CMAKE_OPTIONS)
build: $(BUILD)/CMakeCache.txt
	cmake --build $(BUILD) --parallel $(JOBS) --target product

# The recorder for .venv's PyTorch; for any other one `tonnage run` compiles it when it is first needed.
recorder: $(BUILD)/lib/recorder/.made
$(BUILD)/lib/recorder/.made: $(RECORDER_SOURCES) $(VENV)/.made | build
	$(TONNAGE) recorder --build $(SITE)/torch --output $(BUILD)/lib/recorder --force --quiet
	touch $@

demo: packages
	$(MAKE) -j2 all
	$(TONNAGE) run --gpu "RTX 3060" -- $(VENV)/bin/python examples/train_resnet50.py --batch-size 64
	$(TONNAGE) run --gpu "RTX 3060" -- $(VENV)/bin/python examples/train_gpt2.py --batch-size 4 --bf16

# nvcc comes from PyPI where the machine has none (the plain CUDA program of the tests needs it).
$(TEST_VENV)/.made: requirements-test.txt requirements-nvcc.txt
	test -x $(TEST_VENV)/bin/python || $(PYTHON) -m venv $(TEST_VENV)
	$(TEST_VENV)/bin/python $(PIP) -r requirements-test.txt
	command -v nvcc > /dev/null || test -x /usr/local/cuda/bin/nvcc || $(TEST_VENV)/bin/python $(PIP) -r requirements-nvcc.txt
	touch $@

configure-tests: all
	cmake -S . -B $(BUILD) -G Ninja $(CUDA_INCLUDE) -DTONNAGE_BUILD_TESTS=ON -DTONNAGE_BUILD_BENCH=ON -DTONNAGE_TORCH=ON $(CMAKE_OPTIONS)
build-tests: configure-tests
	cmake --build $(BUILD) --parallel $(JOBS)
unit: build-tests
	cd $(BUILD) && ctest --output-on-failure --parallel $(JOBS)
e2e: build-tests $(TEST_VENV)/.made
	TONNAGE_BUILD=$(abspath $(BUILD)) $(TEST_VENV)/bin/python -m pytest -q -n 2 --dist worksteal tests/e2e $(PYTEST_ARGS)
test:
	tools/packages.sh install build test
	$(MAKE) -j2 all
	status=0; $(MAKE) unit || status=1; $(MAKE) e2e || status=1; exit $$status

# LINT_ARGS: --changed looks with clang-tidy only at what differs from main; --help says more.
lint: $(BUILD)/CMakeCache.txt
	test -f $(BUILD)/compile_commands.json || cmake -S . -B $(BUILD)
	$(PYTHON) tools/lint.py --build $(BUILD) $(LINT_ARGS)
format:
	$(PYTHON) tools/lint.py --format

# Presets of CMakePresets.json, each in a folder of its own.
sanitize:
	status=0; $(MAKE) asan || status=1; $(MAKE) tsan || status=1; exit $$status
asan tsan: $(VENV)/.headers
	tools/packages.sh check build test
	cmake --preset $@ $(CUDA_INCLUDE)
	cmake --build build-$@ --parallel $(JOBS)
	cd build-$@ && ctest --output-on-failure --parallel $(JOBS)
coverage: $(VENV)/.headers
	tools/packages.sh check build test
	cmake --preset coverage $(CUDA_INCLUDE)
	cmake --build build-coverage --parallel $(JOBS)
	find build-coverage -name '*.gcda' -delete
	cd build-coverage && ctest --output-on-failure --parallel $(JOBS)
	$(PYTHON) tools/coverage.py build-coverage

# `pip install .` into an environment of its own.
check-pip: all
	rm -rf $(BUILD)/pip && $(PYTHON) -m venv $(BUILD)/pip
	$(BUILD)/pip/bin/python $(PIP) .
	$(BUILD)/pip/bin/tonnage run --gpu "RTX 3060" -- $(abspath $(VENV))/bin/python -c "import torch; torch.zeros(1 << 20, device='cuda')"

# The real programs of bench/truth, from github.com, or from bare git mirrors: make programs MIRRORS=<folder with OWNER+NAME/repo>
programs: $(PROGRAMS_VENV)/.made
	bench/truth/programs/get.sh .programs $(MIRRORS)
	$(PROGRAMS_VENV)/bin/python bench/truth/programs/prep.py .programs
$(PROGRAMS_VENV)/.made: requirements-programs.txt $(VENV)/.made
	test -x $(PROGRAMS_VENV)/bin/python || $(VENV)/bin/python -m venv $(PROGRAMS_VENV)
	echo "$(abspath $(SITE))" > $$(echo $(PROGRAMS_VENV)/lib/python3*/site-packages)/zz_base.pth
	$(PROGRAMS_VENV)/bin/python $(PIP) -r requirements-programs.txt
	touch $@

# CuPy, Numba, Warp and JAX for tests/e2e/test_frameworks.py (bench/frameworks/README.md).
frameworks: $(FRAMEWORKS_VENV)/.made
$(FRAMEWORKS_VENV)/.made: bench/frameworks/requirements.txt $(VENV)/.made
	test -x $(FRAMEWORKS_VENV)/bin/python || $(VENV)/bin/python -m venv $(FRAMEWORKS_VENV)
	echo "$(abspath $(SITE))" > $$(echo $(FRAMEWORKS_VENV)/lib/python3*/site-packages)/zz_base.pth
	$(FRAMEWORKS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r bench/frameworks/requirements.txt
	touch $@

# How fast snapshots are read, beside pickle.load; a training step, a launch, the start; the rows of a real H200, byte by byte.
bench: configure-tests
	cmake --build $(BUILD) --parallel $(JOBS) --target product bench_snapshot
	mkdir -p $(BUILD)/bench
	test -f $(BUILD)/bench/snapshot.pickle || $(VENV)/bin/python bench/make_snapshot.py $(BUILD)/bench/snapshot.pickle --gib 1
	$(VENV)/bin/python bench/bench_snapshot.py $(BUILD)/bin/bench_snapshot $(BUILD)/bench/snapshot.pickle
	$(VENV)/bin/python bench/speed/run_speed.py --json $(BUILD)/bench/speed.json
	bench/truth/run_truth.py rows -j 2 --json $(BUILD)/bench/truth-rows.json
	test ! -d .programs || bench/truth/run_truth.py programs -j 2 --json $(BUILD)/bench/truth-programs.json

# The packages carry the recorder for the pinned PyTorch; for another one it is compiled on the user's machine. Compilers and
# CUDA's headers are given, so that ccache has what was compiled before.
PORTABLE_WHEEL := manylinux_2_31_x86_64
build-package/tools/.made:
	rm -rf build-package/tools && $(PYTHON) -m venv build-package/tools
	build-package/tools/bin/python $(PIP) wheel==0.45.1
	touch $@
wheel: all build-package/tools/.made
	rm -rf build-package/made build-package/lib/recorder && mkdir -p build-package/made build-package/lib dist
	cp -a $(BUILD)/lib/recorder build-package/lib/
	CC=cc CXX=c++ build-package/tools/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w build-package/made . \
	  --config-settings=build-dir=build-package \
	  --config-settings=cmake.define.$(patsubst -D%,%,$(CUDA_INCLUDE))
	build-package/tools/bin/python -m wheel tags --remove --platform-tag $(PORTABLE_WHEEL) build-package/made/*.whl
	rm -f dist/tonnage-*.whl && mv build-package/made/*.whl dist/
check-wheel: wheel
	$(PYTHON) tools/check_wheel.py dist --torch $(VENV)/bin/python
deb: all
	cd $(BUILD) && cpack -G DEB
	mkdir -p dist && rm -f dist/tonnage_*.deb && mv $(BUILD)/tonnage_*.deb dist/

install: all
	cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	rm -rf $(BUILD) build-asan build-tsan build-debug build-coverage build-package
distclean: clean
	rm -rf $(VENV) $(TEST_VENV) $(PROGRAMS_VENV) $(FRAMEWORKS_VENV) .venv-torch* .programs dist
