# Nothing but Go, make and a shell is needed for everything above test-full.

GO ?= go
BIN := $(CURDIR)/bin

# A tree without git, or one that git refuses to read, builds too; it is called "dev" and has no commit.
VERSION = $(or $(shell git describe --tags --always --dirty 2>/dev/null),dev)
BUILDVCS = $(if $(shell git rev-parse HEAD 2>/dev/null),true,false)
VERSION_VAR := github.com/seed-a0a4f4e3/sluice/cmd/internal/cli.version

GOLANGCI_LINT := $(BIN)/golangci-lint-v2.15.0
WORKFLOWCHECK := $(BIN)/workflowcheck-v0.6.0

# Debian packages of test-full: a C compiler for the race detector, the real peers of the metric providers, and a browser
# for the Temporal UI.
PEERS := gcc libc6-dev prometheus victoria-metrics chromium

# One setting for everything but the race detector, so that its build cache is filled once.
export CGO_ENABLED := 0

.DEFAULT_GOAL := help

.PHONY: help
help: ## show this list
	@echo 'usage: make TARGET'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: build
build: ## build bin/sluice and bin/sluice-dev
	$(GO) build -buildvcs=$(BUILDVCS) -ldflags '-s -w -X $(VERSION_VAR)=$(VERSION)' -o bin/ ./cmd/sluice ./cmd/sluice-dev

.PHONY: demo
demo: build ## build, then walk a release through a simulated fleet
	bin/sluice-dev demo

.PHONY: test
test: ## vet and test; needs Go and make only
	$(GO) vet ./...
	$(GO) test -timeout 15m ./...

# Two packages at a time, because many start a server and a worker of their own. The longest package takes minutes under
# the race detector on two cores, so the limit only ends what hangs. Waves of 1,200 targets are walked without it.
.PHONY: test-full
test-full: export CGO_ENABLED := 1
test-full: peers ## test with the race detector, real peers and a browser; installs Debian packages, as root
	$(GO) test -race -tags full -timeout 30m -p 2 ./...
	CGO_ENABLED=0 $(GO) test -tags full -timeout 30m -run 'AcrossBatches|OverBatches' ./cmd/internal/e2e

# More random kills than test-full has. A seed gives the same rollout and the same kills each time, 0 draws one; the limit
# only ends what hangs.
KILLS ?= 200
SEED ?= 0

.PHONY: chaos
chaos: ## kill servers and workers at random, KILLS=200 times, from SEED on
	$(GO) test -v -tags full -timeout 6h ./cmd/internal/chaos -run RandomKills -seed $(SEED) -kills $(KILLS)

.PHONY: peers
peers:
	@missing() { \
		for p in $(PEERS); do \
			dpkg-query -W -f='$${Status}\n' $$p 2>/dev/null | grep -q 'ok installed$$' || echo $$p; \
		done; \
	}; \
	if [ -n "$$(missing)" ]; then \
		echo "installing" $$(missing); \
		[ "$$(id -u)" = 0 ] || { echo 'test-full installs them as root; or run: apt-get install' $$(missing) >&2; exit 1; }; \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get update -qq; \
		apt-get install -qq -y --no-install-recommends $$(missing) >/dev/null; \
	fi; \
	if [ -n "$$(missing)" ]; then echo 'test-full needs these Debian packages, which could not be installed:' $$(missing) >&2; exit 1; fi

# Flags of the bench, e.g. BENCH_FLAGS='-quick -json figures.json'; `bin/bench -h` lists them.
BENCH_FLAGS ?=

.PHONY: bench
bench: build ## measure Sluice beside the bare engine; takes minutes, on an idle machine; BENCH_FLAGS='-h' says more
	$(GO) build -o bin/bench ./tests/bench
	bin/bench $(BENCH_FLAGS)

.PHONY: lint
lint: $(GOLANGCI_LINT) $(WORKFLOWCHECK) ## check format, layers, workflow determinism and go.mod; installs its tools into bin/
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go' 2>/dev/null || find . -name '*.go')); \
	if [ -n "$$unformatted" ]; then echo 'not formatted; run make fmt:' >&2; echo "$$unformatted" >&2; exit 1; fi
	$(GO) vet -tags full ./...
	$(GOLANGCI_LINT) run ./...
	$(WORKFLOWCHECK) -config .workflowcheck.yaml ./workflows/...
	$(GO) mod tidy -diff

# The version is in the file's name, so that a new one is installed beside the old.
$(GOLANGCI_LINT):
	GOBIN=$(BIN) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
	mv $(BIN)/golangci-lint $@

$(WORKFLOWCHECK):
	GOBIN=$(BIN) $(GO) install go.temporal.io/sdk/contrib/tools/workflowcheck@v0.6.0
	mv $(BIN)/workflowcheck $@

.PHONY: fmt
fmt: ## format every Go file
	gofmt -w $$(git ls-files -co --exclude-standard '*.go' 2>/dev/null || find . -name '*.go')

.PHONY: clean
clean: ## remove bin/
	rm -rf bin
