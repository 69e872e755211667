# The two commands of the README are `make demo` and `make test`. Both start on a bare Debian 12 and
# install what is missing. Everything else here is for working on the library.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

JOBS ?= $(shell nproc)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export CTEST_PARALLEL_LEVEL := $(JOBS)

.PHONY: help demo tour test test-verbs test-wheel guest python browser soak check tidy format clean

help:
	@echo 'make demo    builds the library and shows it: processes serve a model, die, join and leave'
	@echo 'make tour    a tour in eight parts on the simulator; it checks what it shows'
	@echo 'make test    everything that needs no special hardware: release, asan and tsan'
	@echo 'make test-verbs    the verbs network on SoftRoCE devices, in a guest without KVM'
	@echo 'make test-wheel    builds the Python wheel, installs it into a fresh environment, tests it'
	@echo 'make soak    what takes longer: long fuzzing, and each test under many seeds'
	@echo 'make check   the quick loop before a commit (scripts/check)'
	@echo 'make tidy    the house rules; make format applies clang-format'
	@echo 'make clean   removes build/'

demo:
	@scripts/install-deps build
	cmake --preset release
	cmake --build --preset release --target demo fabric_tool
	@build/release/examples/demo

tour:
	@scripts/install-deps build
	cmake --preset release
	cmake --build --preset release --target tour
	@build/release/examples/tour

build-%:
	cmake --preset $*
	cmake --build --preset $*

# Three builds and one ctest over them; its summary is the last thing printed.
test: guest python
	@scripts/install-deps build test
	@scripts/test.py asan tsan release

# Where it cannot be installed the test says so and is skipped.
guest:
	@scripts/install-deps guest || true

# Where it cannot be made the tests say so and are skipped.
python:
	@scripts/install-deps build python || true
	@scripts/python-venv || true

test-wheel: python
	@scripts/python-wheel

test-verbs: guest
	@scripts/install-deps build test
	cmake --preset release
	cmake --build --preset release --target conformance_tests guest_tests planted_guest
	@tests/guest/boot.py --bin build/release/tests --bin tests/guest tests/guest/suite

# Where the browser cannot be installed, the test that needs it says so and is skipped.
browser:
	@scripts/install-deps browser || true

soak: guest browser
	@scripts/install-deps build test
	@$(MAKE) --no-print-directory build-asan
	@$(MAKE) --no-print-directory build-release
	@scripts/soak

check:
	@scripts/check

tidy:
	@scripts/install-deps build
	@python3 scripts/tidy.py

format:
	@scripts/install-deps build test
	@git ls-files --cached --others --exclude-standard '*.h' '*.cc' | xargs clang-format -i

clean:
	rm -rf build
