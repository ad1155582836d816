# The front door: each target sets up what is missing. The build itself is CMake's.

DEMO = build/heed train builtin:stories --preset shakespeare-cpu --out runs/demo --overwrite
CCACHE := $(shell command -v ccache)

.PHONY: build run test check bench clean setup configure

build: configure
	@tools/build.sh heed
	@echo "build/heed is ready: try build/heed --help"

run: build
	@$(DEMO)

test: configure
	@tools/build.sh
	@tools/run_tests.sh

check: configure
	@tools/setup.sh check
	@tools/check.sh

bench: build
	@build/heed bench

clean:
	@rm -rf build

setup:
	@tools/setup.sh

configure: setup
	@mkdir -p build
	@cmake --preset release $(if $(CCACHE),-DCMAKE_CXX_COMPILER_LAUNCHER=$(CCACHE)) \
	  >build/configure.log 2>&1 || { tail -n 20 build/configure.log; exit 1; }
