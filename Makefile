# `make demo`, `make test`, `make check`, `make bench`: each installs what it needs and reports it. `make help` lists all.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-slurm check quota man packages packages-test test-kubernetes golden screenshots bench fuzz soak hardware

export PATH := $(CURDIR)/target/tools/bin:$(PATH)
SETUP := tests/setup

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

demo: ## a demo of one minute, with or without a GPU; STAY=1 keeps it running until you press Enter
	@$(SETUP) compiler redis
	@cargo build --quiet --package bailiff-exporter --package bailiff-enforcer --package bailiff --package bailiff-quota --package fake-nvml --package fake-cuda --package end-to-end
	@target/debug/demo $(if $(STAY),--stay)

test: check quota ## run all checks and tests
	@$(SETUP) compiler nextest prometheus python redis openssl faketime allocators systemd chromium shells slurm jupyter
	cargo build --workspace
	cargo nextest run --workspace

test-slurm: ## tests with a real Slurm cluster, as root
	@$(SETUP) compiler nextest slurm
	cargo build --workspace
	cargo nextest run --workspace -E 'test(/^slurm/)'

test-kubernetes: ## tests with a real API server, built from Debian's source at first (10 minutes, 3 GB); KUBE_APISERVER=PATH is a newer one
	@$(SETUP) compiler nextest openssl python
	@[ -n "$(KUBE_APISERVER)" ] || tests/kube-apiserver
	cargo build --workspace
	cargo nextest run --workspace --run-ignored only -E 'test(/^real_api_server/)$(if $(KUBE_APISERVER), + test(/^admission_policies/))'

test-fast: ## tests without root, network and browser: three minutes once built
	@$(SETUP) compiler nextest redis
	cargo nextest run --workspace -E 'not package(end-to-end) and not package(bailiff-quota)'

check: ## check format, lints, documentation, and licences, sources and advisories of dependencies
	@$(SETUP) compiler deny
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
	cargo deny --log-level error check bans licenses sources
	cargo deny --manifest-path fuzz/Cargo.toml --config deny.toml --locked --log-level error check sources
	@packaging/advisories

quota: ## build the quota library for glibc 2.17 and newer, into target/*-unknown-linux-gnu/quota/
	@$(SETUP) compiler zig
	@crates/quota/portable

man: ## generate the man pages of all programs and commands, into target/man/
	@$(SETUP) compiler
	cargo run --quiet --package man-pages -- target/man

packages: ## build the .deb and the .rpm, into target/packages/ (release builds take minutes)
	@$(SETUP) compiler zig packager
	@packaging/build $(KIND)

packages-test: packages ## install, upgrade, remove and purge the packages on a clean Debian
	@$(SETUP) debian
	@lintian --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs target/packages/bailiff_*_$$(dpkg --print-architecture).deb
	@packaging/test target/packages/bailiff_*_$$(dpkg --print-architecture).deb target/packages/bailiff-*.$$(uname -m).rpm

golden: ## regenerate golden files and generated docs; review the diff
	@$(SETUP) compiler nextest prometheus python
	cargo build --workspace
	UPDATE_GOLDEN=1 cargo nextest run --workspace -E 'test(/^(golden|kubernetes)::/) or binary(documentation)'

screenshots: ## regenerate the images of docs/images/; check each before you commit it
	@$(SETUP) compiler nextest redis chromium pngquant
	cargo build --workspace
	BAILIFF_SCREENSHOTS=$(CURDIR)/docs/images cargo nextest run --workspace -E 'test(/^(status_page|report)::/)' --run-ignored only
	pngquant --force --strip --ext .png 64 docs/images/*.png

bench: ## measure speed and size, compared with nvitop-exporter, all-smi and plain Redis
	@$(SETUP) compiler python peers redis tmux
	cargo build --release --package bailiff-exporter --package bailiff-enforcer --package bailiff --package fake-nvml --package fake-cuda --package end-to-end
	cargo build --profile quota --package bailiff-quota
	@target/release/bench
	@cargo run --quiet --release --package bailiff-exporter --example page_cost
	@cargo run --quiet --release --package bailiff-enforcer --example tick_cost

hardware: ## compare NVIDIA's driver with GPU Bailiff's assumptions; without a GPU, prepare target/hardware/ for a machine with one
	@$(SETUP) compiler zig
	@tests/pack-hardware
	@target/hardware/hardware --out target/hardware/report || { code=$$?; [ $$code != 69 ] || echo "copy target/hardware/ to a machine with a GPU, and run ./hardware there"; exit $$code; }

fuzz: ## fuzz all parsers for ten minutes, after a build of minutes; FUZZ_SECONDS is the time for each target
	@$(SETUP) compiler c++
	@fuzz/run

soak: ## long tests (90 minutes): more random walks and histories, repeated server kills, and mutations of the engine that the oracle must detect
	@$(SETUP) compiler redis
	BAILIFF_STEPS=40000 cargo test --package bailiff-lease --test interleavings -- --nocapture
	BAILIFF_KILLS=25 cargo test --package bailiff-lease --test faults -- --include-ignored --nocapture
	BAILIFF_TRACES=200000 cargo test --package bailiff-engine --test oracle -- histories
	cargo test --package bailiff-engine --test mutants -- --ignored --nocapture
	cargo build --package bailiff --package bailiff-exporter --package bailiff-quota --package fake-nvml --package fake-cuda
	BAILIFF_RACES=1000 BAILIFF_KILLS=500 cargo test --package bailiff-quota --test shared
	BAILIFF_ENDS=200 cargo test --package end-to-end --test cases -- signalled_run --nocapture
	BAILIFF_SAMPLES=1000 cargo test --package end-to-end --test cases -- driver_errors_end_no_process --nocapture
	cargo build --package bailiff-enforcer --package end-to-end
	target/debug/trial 1800
