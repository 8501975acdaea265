# The commands that developers and newcomers use. `make help` lists them.

# giouring (io_uring) links to a symbol of the runtime that Go guards since 1.23: every build that contains it needs this flag.
LDFLAGS := -ldflags=-checklinkname=0
BIN     := bin

# The Debian and Ubuntu packages that provide a program.
package_gcc := gcc libc6-dev
package_npm := npm
package_chromium := chromium
package_g++ := g++
package_cmake := cmake
package_systemd-analyze := systemd
package_java := default-jre-headless
NEEDED := gcc npm
# Modules of Debian's Python that are needed, with their packages.
package_ensurepip := python3-venv
MODULES :=
FUZZTIME := 60s
# Packages whose tests wait for other processes for the most part: built commands, a real llama.cpp, a browser. The race detector sees this process
# only, and makes all of it several times slower: `make race` runs all tests of the other packages, and of CONCURRENT what test-unit runs.
PROCESSES := ./cmd/... ./experiments/... ./fabric/backend ./report ./packaging
# Those that start goroutines, in their code or in their tests.
CONCURRENT = go list $$(grep -rlE '^[[:space:]]*go (func|[a-z][A-Za-z_.]*\()|\.Go\(func' --include='*.go' cmd experiments fabric/backend report packaging | xargs -n 1 dirname | sort -u | sed 's,^,./,')
# Packages with assembly, whose Go twins `make twins` tests (-tags noasm), and who computes with them.
TWINS := ./fabric ./fabric/decompose ./fabric/kernel ./fabric/lab/popcount ./internal/vec ./moe/hidden
# Runs tests. Many look at a real kernel and disk, under whatever load: up to three that fail are run once more, each alone. Both runs are printed; a data race is not run again.
# What was run again is listed in RERUNS, a file for each call, and printed at the end. CONTRIBUTING.md says what is known of such tests.
RERUNS := $(BIN)/reruns
GOTEST = mkdir -p $(RERUNS) && go tool gotestsum --format pkgname --format-hide-empty-pkg --rerun-fails=1 --rerun-fails-max-failures=3 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race --rerun-fails-report=$$(mktemp $(RERUNS)/XXXXXX)
# Packages whose tests `make vm` runs; options of experiments/vm/run.sh, for instance --suite bookworm-backports.
VM_PACKAGES := internal/uring internal/pagecache internal/proc internal/cgroup prefetch prefetch/room ebpf capture
VM_OPTIONS :=
# Minutes that `make soak` takes.
SOAK := 10
# Where `make install` puts things.
DESTDIR :=
PREFIX  := /usr/local

.PHONY: help build libraries install uninstall dist dist-check deps demo docs docs-check test twins race life reruns test-unit test-manifests spark llama-cpp-python soak vm bench experiments overhead dataset mutation coverage lint arm64 generated generate fuzz clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

build: libraries ## build the commands into bin/
	@mkdir -p $(BIN)
	go build $(LDFLAGS) -o $(BIN)/ ./cmd/... ./experiments/cmd/...

# What the two libraries between ggml and the device have in common (fabric/backend/backendtest has the same lists).
BACKEND := $(addprefix fabric/backend/tfmbs_,ggml.c weights.c reference.c products.c) fabric/driver/tfmbs_device.c
SHARED  := -std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden -Wl,-z,defs -pthread -Iinclude

libraries: # the C libraries
	@mkdir -p $(BIN)
	$(CC) $(SHARED) -o $(BIN)/libtfmbs_device.so fabric/driver/tfmbs_device.c
	$(CC) $(SHARED) -o $(BIN)/libggml-tfmbs.so fabric/backend/tfmbs_backend.c $(BACKEND) -ldl -lm
	$(CC) $(SHARED) -DAPI= -o $(BIN)/libtfmbs_intercept.so fabric/backend/tfmbs_intercept.c fabric/backend/tfmbs_detect.c $(BACKEND) -ldl -lm

# Nothing is compiled here: root needs no Go, and leaves no files of its own in the checkout.
install: ## install what make build made below PREFIX (/usr/local), or DESTDIR/PREFIX
	@packaging/install.sh $(BIN) "$(DESTDIR)" "$(PREFIX)"

uninstall: ## remove what make install installed, with the same PREFIX and DESTDIR
	@packaging/install.sh --remove "$(DESTDIR)" "$(PREFIX)"

dist: ## static archives and .deb for amd64 and arm64, in dist/; the same commit gives the same bytes
	packaging/dist.sh dist amd64 arm64

dist-check: ## are the packages the same when they are made twice, do they run, and does their removal leave nothing? (what is committed; minutes)
	packaging/check.sh

# Installs missing programs if possible (as root on Debian or Ubuntu), otherwise names them.
deps:
	@command -v go >/dev/null || { echo "missing: Go 1.26 or later (Debian 12's own is older; any Go from 1.21 on fetches the right one)"; exit 1; }
	@missing=""; \
	$(foreach p,$(NEEDED),command -v $(p) >/dev/null || missing="$$missing $(package_$(p))";) \
	$(foreach m,$(MODULES),/usr/bin/python3 -c 'import $(m)' 2>/dev/null || missing="$$missing $(package_$(m))";) \
	if [ -n "$$missing" ]; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "installing:$$missing"; apt-get update -qq && apt-get install -y --no-install-recommends $$missing; \
		else \
			echo "missing Debian packages:$$missing. Install them: sudo apt-get install$$missing"; exit 1; \
		fi; \
	fi
	@if [ "$$(id -u)" = 0 ] && [ -d /sys/kernel/tracing ] && [ ! -e /sys/kernel/tracing/events ]; then \
		echo "mounting tracefs, which tracer needs to observe pages read from disk"; mount -t tracefs tracefs /sys/kernel/tracing || true; \
	fi

demo: MODULES += ensurepip # fetches the real model
demo: deps build ## map, trace and draw a real llama.cpp run, then run it in too little memory; results in demo/
	./experiments/demo.sh

docs: ## make the tables and figures of the documents from experiments/results; the same data give the same bytes
	go run $(LDFLAGS) ./experiments/cmd/lab results docs

docs-check: # do they differ from their data? (a test of experiments/results asks the same)
	go run $(LDFLAGS) ./experiments/cmd/lab results docs --check

test: NEEDED += chromium g++ systemd-analyze # a report's page is opened in the first, the second compiles a pattern's header, the third is of what starts services
test: MODULES += ensurepip # makes the environments with pandas and others, which read the tables, and fetches a real model
test: deps ## run the tests, save what twins, race and life run; those that need root run only as root, and say so. Three packages at a time: their tests wait for processes and disks
	@rm -rf $(RERUNS)
	$(GOTEST) --packages=./... -- -p 3 -timeout 20m $(LDFLAGS)
	$(MAKE) -s test-manifests
	@$(MAKE) -s reruns

twins: deps ## run the tests of packages with assembly again, without it
	go tool gotestsum --format pkgname -- -tags noasm $(LDFLAGS) $(TWINS)

race: deps ## look for data races: run the tests of what starts goroutines, and of what calls that, with the race detector
	$(GOTEST) --hide-summary skipped --packages="$$(go list ./... | grep -vxE "$$(go list $(PROCESSES) | paste -sd '|')" | paste -sd ' ')" -- -race $(LDFLAGS)
	$(GOTEST) --hide-summary skipped --packages="$$($(CONCURRENT) | paste -sd ' ')" -- -race -short $(LDFLAGS)

# make test skips these: each takes both processors for a minute.
life: deps ## what a user does (root): the documents' commands are followed; the .deb is installed, helps and is purged in a copy of this machine
	LIFE=1 go test -count 1 -v $(LDFLAGS) -run '^(TestDocumentsCanBeFollowed|TestLife)$$' ./cmd ./packaging

reruns: # which tests were run again, and what came of it
	@cat $(RERUNS)/* 2>/dev/null | grep . || echo "no test was run again"

# A module of its own: see its go.mod.
test-manifests: ## test the manifests of Kubernetes
	@gotestsum=$$(go tool -n gotestsum) && cd packaging/kubernetes && $$gotestsum --format pkgname

# Elsewhere the test is skipped where there is no Java: it takes a Java, and 320 MB of Python's package index.
spark: NEEDED += java
spark: deps ## read a data set of 100 runs in Apache Spark
	SPARK=1 go test -count 1 $(LDFLAGS) -run '^TestDataset$$' -v ./cmd

# make test skips it: it takes cmake, g++ and Python's package index, and the first time ten minutes, in which a llama.cpp is built.
llama-cpp-python: NEEDED += cmake g++
llama-cpp-python: MODULES += ensurepip
llama-cpp-python: deps ## trace and help llama-cpp-python: a script, and its server (root)
	LLAMA_CPP_PYTHON=1 go test -count 1 -timeout 90m $(LDFLAGS) -run '^TestLlamaCppPython$$' -v ./cmd

test-unit: ## run the tests that need no root, no network and no llama.cpp: below two minutes
	go test -short $(LDFLAGS) ./...

soak: build ## run and kill the tools for SOAK minutes (10), and look for what is left (root)
	$(BIN)/lab soak --minutes $(SOAK)

vm: build ## in QEMU, with Debian's own kernel and cgroup v2: tests that depend on the kernel, and prefetchd in too little memory (no root; slow without KVM)
	@for package in $(VM_PACKAGES); do \
		mkdir -p $(BIN)/vm/$$(dirname $$package) && go test -c $(LDFLAGS) -o $(BIN)/vm/$$package.test ./$$package || exit 1; \
	done
	experiments/vm/run.sh --limit 7200 $(VM_OPTIONS) experiments/vm/tests.sh $(VM_PACKAGES)
	experiments/vm/run.sh --disk-rate 20 $(VM_OPTIONS) experiments/vm/scene.sh
	experiments/vm/run.sh --disk-rate 20 $(VM_OPTIONS) experiments/vm/scene.sh --limit high 120 8 85 60

bench: deps ## benchmarks
	go test -run '^$$' -bench . -benchmem $(LDFLAGS) ./...

dataset: build ## make the data set of captures for others, with data card and loader, in dist/ (root; a minute)
	@mkdir -p dist
	bin/lab dataset -o dist/tensorcast-captures.tar.gz

# QUICK=1 measures a part of it in less than ten minutes. It goes on where it was when it is run again; MATRIX has more flags.
experiments: build ## measure models x memory x strategies of experiments/matrix.yaml (root, a quiet machine, two hours; QUICK=1: ten minutes)
	bin/lab matrix $(if $(QUICK),--quick) $(MATRIX)

# Half an hour for all of them; "internal/mutation/run.py 23-33" puts some in. It needs python3.
mutation: ## put each fault of internal/mutation/faults.json into the code, and say which of them no test finds
	internal/mutation/run.py

coverage: deps ## the share of each package's statements that its own tests reach, as a table (root; as long as make test)
	@mkdir -p $(BIN); go test -cover -timeout 20m $(LDFLAGS) ./... > $(BIN)/coverage.txt; status=$$?; \
	grep -E '^(---|FAIL|panic)' $(BIN)/coverage.txt; \
	sed -n 's#^ok *\ttensorcast/\([^\t]*\)\t.*coverage: \([0-9.]*\)%.*#`\1` | \2#p' $(BIN)/coverage.txt | \
		paste -d '|' - - - | sed 's/^/| /; s/|`/ | `/g; s/|*$$/ |/'; exit $$status

overhead: build ## measure what tracer costs and whether it accounts for every op (root, a quiet machine)
	@mkdir -p demo
	bin/lab synth -o demo/1b.gguf --layers 22 --embd 2048 --ff 5632 --heads 16 --kv-heads 4 --type Q8_0
	bin/lab synth -o demo/tiny.gguf --layers 6 --embd 512 --ff 1408 --heads 8 --kv-heads 2 --type Q8_0
	bin/lab overhead -m demo/1b.gguf --pairs 40 --markdown --save demo/overhead-1b.json
	bin/lab overhead -m demo/tiny.gguf --tokens 512 --pairs 40 --markdown --save demo/overhead-tiny.json
	bin/lab accounting

# A fuzzer that is stopped by -fuzztime in the middle of an input may say "context deadline exceeded" and fail, before Go 1.27 (golang/go#75804).
fuzz: ## fuzz the parsers, FUZZTIME (a minute) each; then 10,000 damaged captures and streams of events, and a target that lies (root)
	@mkdir -p $(BIN)
	@for package in $$(grep -rl '^func Fuzz' --include='*_test.go' . | xargs -n 1 dirname | sort -u); do \
		list=$$(go test $(LDFLAGS) -list '^Fuzz' $$package) || { echo "$$list"; echo "make fuzz: the tests of $$package cannot be run"; exit 1; }; \
		for target in $$(echo "$$list" | grep '^Fuzz'); do \
			echo "== $$target in $$package"; \
			go test $(LDFLAGS) -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$package 2>&1 | tee $(BIN)/fuzz.log; \
			grep -q '^ok' $(BIN)/fuzz.log || { grep -q '^    context deadline exceeded' $(BIN)/fuzz.log && ! grep -q 'Failing input written' $(BIN)/fuzz.log; } || \
				{ echo "make fuzz: $$target in $$package failed; commit the input, which is below $$package/testdata/fuzz/$$target, with the fix"; exit 1; }; \
		done; \
	done
	go test $(LDFLAGS) -v -count 1 -timeout 60m -run '^TestDamagedCaptures$$' ./cmd/analyze -args -mutations 10000
	go test $(LDFLAGS) -run '^TestMutatedStreams$$' -v ./ebpf -args -streams 10000
	go test $(LDFLAGS) -run '^(TestLies|TestLiarIsLeft)$$' -timeout 1h ./cmd/tracer ./cmd/prefetchd -args -lies
	go test $(LDFLAGS) -run '^TestDamagedStreams$$' -v ./capture/preload -args -streams 10000

lint: ## gofmt, vet, staticcheck, golangci-lint (.golangci.yaml), tables of documents against their data; with clang 14 the layout of C, and generated code
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$unformatted" ]; then echo "gofmt -w these:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	go vet -tags noasm $(TWINS)
	go tool staticcheck ./...
	go tool -modfile=internal/lint/go.mod golangci-lint run --show-stats=false ./...
	@$(MAKE) -s docs-check
	staticcheck=$$(go tool -n staticcheck) && cd packaging/kubernetes && go vet ./... && $$staticcheck ./...
	@if clang-format --version 2>/dev/null | grep -q ' version 14\.'; then clang-format --dry-run --Werror $$(git ls-files '*.c' '*.h' | grep -v _amd64.h); \
	else echo "how C is laid out is not checked: there is no clang-format 14 (Debian 12: apt-get install clang-format)"; fi
	@if clang --version 2>/dev/null | grep -q ' version 14\.' && command -v llvm-strip >/dev/null && [ -e /usr/include/bpf/bpf_helpers.h ]; then $(MAKE) -s generated; \
	else echo "generated code is not checked: there is no clang 14 (Debian 12: apt-get install clang llvm libbpf-dev)"; fi

generated: # is what is committed what go generate makes?
	@sums() { git ls-files | tr '\n' '\0' | xargs -0 sha256sum; }; before=$$(sums) && go generate ./... && if [ "$$before" != "$$(sums)" ]; then \
		git status --short; echo "go generate has changed files: commit them"; exit 1; fi

arm64: ## vet everything for arm64, and build the tools for it (minutes, the first time)
	GOARCH=arm64 CGO_ENABLED=0 go vet ./...
	@mkdir -p $(BIN)/arm64
	GOARCH=arm64 CGO_ENABLED=0 go build $(LDFLAGS) -o $(BIN)/arm64/ ./cmd/...

generate: ## compile the BPF programs (needs clang, llvm, libbpf-dev)
	go generate ./...

clean: ## remove what was built
	rm -rf $(BIN) demo dist
