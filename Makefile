# The front door: each target sets up what is missing. The build itself is CMake's.

DEMO = runs/demo
# About a minute on two cores.
DEMO_ITERS = 1800
DEMO_PROMPTS = --prompt "Once upon a time" --prompt "One sunny morning" --prompt "The fox"
DEMO_SAMPLES = $(DEMO_PROMPTS) --temperature 0 --temperature 0.7 --temperature 1.2 --max-tokens 160 --seed 7
CCACHE := $(shell command -v ccache)

# Each planted fault at so many random sizes, and so many random correct implementations.
DIAGNOSE_SIZES = 3
DIAGNOSE_CORRECT = 10000

.PHONY: build run test check bench bench-diagnose clean setup configure

build: configure
	@tools/build.sh heed
	@echo "build/heed is ready: try build/heed --help"

run: build
	@build/heed train builtin:stories --max-iters $(DEMO_ITERS) --out $(DEMO) --overwrite
	@build/heed plot $(DEMO) --overwrite
	@build/heed generate $(DEMO) $(DEMO_SAMPLES)
	@build/heed generate $(DEMO) $(DEMO_SAMPLES) --json --quiet >$(DEMO)/samples.json
	@tools/next_steps.sh $(DEMO)

test: configure
	@tools/build.sh
	@tools/run_tests.sh

check: configure
	@tools/setup.sh check
	@tools/check.sh

bench: build
	@tools/setup.sh bench
	@bench/compare.py

bench-diagnose: configure
	@tools/build.sh diagnose_confusion
	@build/tests/diagnose_confusion $(DIAGNOSE_SIZES) $(DIAGNOSE_CORRECT)

clean:
	@rm -rf build

setup:
	@tools/setup.sh

configure: setup
	@mkdir -p build
	@cmake --preset release $(if $(CCACHE),-DCMAKE_CXX_COMPILER_LAUNCHER=$(CCACHE)) \
	  >build/configure.log 2>&1 || { tail -n 20 build/configure.log; exit 1; }
