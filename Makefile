# The commands of the README. Everything is built below build/; nothing is installed outside it but the Debian packages
# that tools/setup.sh names (and only those that are missing).
.DEFAULT_GOAL := help
.PHONY: run build test soak lint bench install clean help

JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
NAME ?= gem
SOAK_MINUTES ?= 30
SAMPLE = What is 25 + 17?

help:
	@sed -n 's/^\([a-z]*\):.*## /make \1\t/p' $(MAKEFILE_LIST)

run: build ## build gem and let the bundled model answer a question
	@echo; echo '> $(SAMPLE)'
	@build/gem run --temperature 0 '$(SAMPLE)'
	@echo
	@echo 'Next:'
	@echo '  build/gem chat                                 talk with the bundled model'
	@echo '  build/gem run -m gemma-4-12b-it-qat-q4_0.gguf "Hello"   the same with a real checkpoint (docs/models.md)'
	@echo '  build/gem inspect -m FILE.gguf                 what a checkpoint is and how much memory it takes'
	@echo '  build/gem --help                               all verbs'

build: ## build the release program, build/gem
	@tools/setup.sh build
	@cmake --preset release -DGEM_TESTS=OFF >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
	@cmake --build build --target gem -j $(JOBS)

test: ## build and run all tests, sanitizers and fuzz seeds included
	@tools/setup.sh build test
	@tools/test.sh

soak: ## SOAK_MINUTES=30 of random clients against the server under sanitizers
	@tools/setup.sh build test
	@cmake --preset asan >build/configure-asan.log 2>&1 || { cat build/configure-asan.log; exit 1; }
	@cmake --build build/asan --target gem -j $(JOBS)
	@tools/soak build/asan/gem --minutes $(SOAK_MINUTES)

lint: ## formatting, layering, clang-tidy on changed code
	@tools/setup.sh build lint
	@tools/lint.sh

bench: ## kernel speeds (Google Benchmark) and gem bench on the bundled model
	@tools/setup.sh build bench
	@cmake --preset release -B build/bench -DGEM_TESTS=OFF -DGEM_BENCH=ON >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
	@cmake --build build/bench -j $(JOBS)
	@build/bench/bench/bench_kernels
	@build/bench/gem bench

install: build ## install gem below PREFIX=/usr/local as NAME=gem
	@tools/install.sh '$(PREFIX)' '$(NAME)'

clean: ## remove everything that was built
	@rm -rf build
