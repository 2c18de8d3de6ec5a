# Everything a contributor needs. `make help` lists it.
SHELL := /bin/bash
GO ?= go
MODULES := . broker oteloutbox cmd demo proof
TESTED := ./... ./broker/... ./oteloutbox/... ./cmd/... ./demo/...
EVERY := $(TESTED) ./proof/...
# PostgreSQL versions that the tests start; the first is the one that every suite uses.
POSTGRES ?= 18.6.0 14.24.0 15.19.0 16.15.0 17.11.0
SEEDS ?= 100000

.DEFAULT_GOAL := help

.PHONY: help
help: ## This list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Watch it work: a real PostgreSQL, an embedded NATS, faults at the press of a key
	$(GO) run ./demo

# grpcnotrace: gRPC's traces would keep every exported method in the binary, see proof/rig/binary_test.go.
VERSION ?=
.PHONY: build
build: ## Build bin/outbox; VERSION=v1.2.3 is what it says of itself
	CGO_ENABLED=0 $(GO) build -tags grpcnotrace -trimpath -ldflags="-s -w $(if $(VERSION),-X main.release=$(VERSION))" -o bin/outbox ./cmd/outbox

.PHONY: manual
manual: build ## Write the manual's pages and what completes commands in shells into bin/manual
	rm -rf bin/manual && mkdir -p bin/manual/completion && bin/outbox man bin/manual/man1 && gzip -9n bin/manual/man1/*
	bin/outbox completion bash > bin/manual/completion/outbox.bash
	bin/outbox completion zsh > bin/manual/completion/_outbox
	bin/outbox completion fish > bin/manual/completion/outbox.fish

.PHONY: dist
dist: ## Build what a release has, except what a network is needed for: archives, packages, checksums; VERSION=v1.2.3
	$(GO) run ./proof/fetch goreleaser
	VERSION=$(or $(VERSION),v0.0.0) $$($(GO) run ./proof/fetch -path goreleaser) release -f deploy/goreleaser.yaml --snapshot --clean --skip=sbom

.PHONY: servers
servers: ## Fetch the real servers that the tests start (PostgreSQL, Kafka, NATS, ElasticMQ, moto, Redis, RabbitMQ, PgBouncer, Prometheus, Chromium), readers for Node, Python and Java, and axe into a cache
	$(GO) run ./proof/fetch $(addprefix postgres@,$(POSTGRES)) kafka nats elasticmq moto redis rabbitmq pgbouncer prometheus chromium readers axe

.PHONY: tools
tools: ## Fetch the tools that check what is packaged (Helm, kustomize, goreleaser, buildah, shells) into the cache
	$(GO) run ./proof/fetch tools

.PHONY: lint
lint: ## Formatting, vet and staticcheck
	@test -z "$$(gofmt -l .)" || { echo "run: make fmt   (not formatted:)"; gofmt -l .; exit 1; }
	GOGC=400 $(GO) vet $(EVERY)
	GOGC=400 $(GO) tool staticcheck $(EVERY)

.PHONY: fmt
fmt: ## Format the code
	gofmt -w .

.PHONY: api
api: ## Write the lists of what public packages declare, api/; a test compares them
	$(GO) test ./internal/house -run PublicDeclaration -update

# What the modules require of each other: the version that is released next. go.work ties them until then.
RELEASE := v0.1.0
OURS := github.com/pgoutbox/outbox
.PHONY: tidy
tidy: ## go mod tidy in every module
	GOWORK=off $(GO) mod tidy
	@for m in broker oteloutbox cmd demo proof; do (cd $$m && \
	  for o in "" /broker /oteloutbox /demo; do $(GO) mod edit -require $(OURS)$$o@$(RELEASE) -replace $(OURS)$$o=..$$o; done && \
	  $(GO) mod edit -dropreplace $(OURS)/$$m -droprequire $(OURS)/$$m && GOWORK=off $(GO) mod tidy && \
	  for o in "" /broker /oteloutbox /demo; do $(GO) mod edit -dropreplace $(OURS)$$o; done) || exit 1; done

.PHONY: release-check
release-check: ## Publish the committed modules into a proxy in a folder, and do in empty folders what the documents tell users to do
	$(GO) run ./proof/releasecheck

# Most tests wait for servers most of the time, so several share a core. What measures is in proof, one package at a
# time. The output is a line for each package, and all of what has failed, with the command that runs it again.
# $(1) are flags of go test that an experiment has as well.
TESTS = go tool gotestsum --format pkgname --hide-summary skipped --format-hide-empty-pkg --jsonfile $(abspath bin)/tests.json \
	--post-run-command "$(GO) run ./proof/again $(filter -race,$(1))" -- -vet=off -timeout 20m $(1)
# What each broker's adapter does when the server is killed, freezes or comes back: a minute for each.
FAULTS := 'WhenTheServerFails|UnderFaults|LosesLeaders'
# Hundreds of tables with a relay each, at which the race detector has nothing more to see.
TABLES := 'Matrix|AMessageIsTheSameByEachWay|WhatAProbeFindsWell'
.PHONY: test
test: export OUTBOX_TEST_SERVERS := postgres,nats
test: export OUTBOX_TEST_MAJORS := 18
test: bin ## The library, the engine's simulation, all strategies on one PostgreSQL, NATS, HTTP, gRPC, files, the binary: Go alone is needed
	@$(GO) run ./proof/fetch postgres@18.6.0 nats
	@OUTBOX_STRESS_ROWS=5000 $(TESTS) -p 3 -parallel 4 -skip $(FAULTS)'|'$(TABLES) $(TESTED)
	@echo "PASSED. Not run here, but by make test-all: other brokers, other versions of PostgreSQL, servers that are killed or stand by,"
	@echo "what takes long, browsers, packages, real processes under faults, the race detector."

# With the race detector. The compiler collects garbage seldom, which saves a quarter of its time; the tests run as users do.
RACE = $(call TESTS,-race -toolexec 'env GOGC=400')
OLDEST = OUTBOX_TEST_POSTGRES_MAJOR=14 OUTBOX_TEST_MAJORS=14 $(RACE) -p 2 -parallel 4
.PHONY: test-all
test-all: export OUTBOX_TEST_SERVERS := all
test-all: bin lint servers tools ## What CI runs beside: lint, and with the race detector all brokers, browsers, packages, faults, nemesis, the articles' systems, the oldest PostgreSQL
	OUTBOX_TEST_MAJORS=18 OUTBOX_STRESS_ROWS=20000 $(RACE) -p 3 -parallel 4 -skip $(FAULTS)'|'$(TABLES) $(TESTED)
	$(RACE) -p 1 ./proof/...
	$(RACE) -run 'Nothing|Stress' ./relay/polling
	$(RACE) -p 2 -parallel 4 -run $(FAULTS) ./broker/... ./relay/...
	$(OLDEST) . ./inbox ./schema ./admin/...
	$(OLDEST) -run IsASource ./relay/...
	GOGC=800 $(TESTS) -run TestEveryScheduleKeepsThePromises ./relay
	$(TESTS) -run $(TABLES) ./relay/mapped
	@echo PASSED

bin:
	@mkdir -p bin

.PHONY: test-short
test-short: ## Seconds, with Go alone: no servers
	$(GO) test -short $(EVERY)

.PHONY: test-debezium
test-debezium: servers ## Run Debezium Server (fetched, 820 MB) and the relay on the same rows, and compare what they send
	$(GO) run ./proof/fetch debezium
	OUTBOX_TEST_SERVERS=all $(GO) test ./cmd/outbox -run DebeziumServer -debezium . -count 1 -timeout 30m -v

.PHONY: site
site: ## Build the documentation as a site into bin/site
	$(GO) run ./proof/fetch mkdocs-material
	$(GO) run ./proof/site

FUZZTIME ?= 2m
.PHONY: fuzz
fuzz: ## Run each fuzzer for FUZZTIME, one after the other
	@grep -rn "^func Fuzz" --include=*_test.go . | sed -E 's/^(.*)\/[^/]*:[0-9]+:func (Fuzz[A-Za-z]*).*/\1 \2/' | while read -r dir name; do \
	  (cd $$dir && $(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -parallel 1 .) || exit 1; done

.PHONY: simulate
simulate: ## Drive the engine through SEEDS schedules of faults
	GOGC=800 $(GO) test ./relay -run TestEveryScheduleKeepsThePromises -sim.seeds=$(SEEDS) -timeout 2h -v

DAYS ?= 1
.PHONY: simulate-fleet
simulate-fleet: ## DAYS of a fleet with 1,000 databases and 20 processes; the drawings of balance go to fleet.txt
	$(GO) test ./cmd/internal/fleet -run TestADayOfFaultsAndRollouts -parts 1000 -members 20 -for 24h -days $(DAYS) \
		-draw $(CURDIR)/fleet.txt -timeout 5h -v

# One of them: make matrix CELLS='outbox/replication/drained/payload_altered'
CELLS ?= .*
.PHONY: matrix
matrix: servers ## Every preset, strategy, start and event of a mapped table, instead of each pair of these (5,000 cells, an hour)
	OUTBOX_MATRIX=full OUTBOX_TEST_SERVERS=all $(GO) test ./relay/mapped -run 'TestMatrix/$(CELLS)' -count 1 -parallel 8 -timeout 4h

RUNS ?= 30
.PHONY: nemesis
nemesis: servers ## Real relays on real servers, RUNS seeded schedules of faults (about 5 s each); STRATEGY=lease, SEED=17
	$(GO) run ./proof/nemesis -runs $(RUNS) $(if $(SEED),-seed $(SEED)) $(if $(STRATEGY),-strategy $(STRATEGY))

MESSAGES ?= 100000
.PHONY: order
order: servers ## MESSAGES by every strategy on every table, at 100/s, at full speed, as a backlog: what was lost and out of order
	$(GO) run ./proof/order -messages $(MESSAGES) $(if $(STRATEGY),-only $(STRATEGY))

HELD ?= 0,1000000
.PHONY: held
held: servers ## HELD messages that wait (a quarter of an hour for a million of one kind): what other keys notice, memory, what is lost or out of order
	$(GO) run ./proof/held -held $(HELD)

ROUNDS ?= 100
.PHONY: gap
gap: servers ## For how long a receiver hears nothing when the relay that owns the destination is killed, ROUNDS times; BEFORE=path measures another program
	$(GO) run ./proof/gap -rounds $(ROUNDS) $(if $(BEFORE),-outbox $(BEFORE))

.PHONY: peers
peers: ## Build bin/outbox-peers: other libraries, for the comparison of strategies
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags="-s -w" -o bin/outbox-peers ./proof/bench/peers

.PHONY: bench-program
bench-program: ## Build bin/outbox-bench, which measures
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags="-s -w" -o bin/outbox-bench ./proof/bench

BENCH_OUT ?= bin/bench
MEASURED := --outbox bin/outbox
DRAIN := bin/outbox-bench drain $(MEASURED) --json
SWEEPS := batch=500,1500,3000,10000 bytes=100,256,1000,4000,10000 headers=0,3 keys=1,100,10000,100000 relays=1,2,4 rtt=0s,1ms held=off,on
# In the order in which the page has them.
RESULTS := drain-kafka drain-kafka-1000 drain-nats drain-nats-1000 drain-replication drain-exactly-once latency-kafka latency-nats latency-busy write \
	sweep-batch sweep-bytes sweep-headers sweep-backlog sweep-keys sweep-relays sweep-rtt sweep-held
.PHONY: bench
bench: build bench-program servers ## Measure, on a quiet machine (an hour and a half), and write docs/benchmarks.md
	@mkdir -p $(BENCH_OUT) docs/benchmarks
	$(DRAIN) > $(BENCH_OUT)/drain-kafka.jsonl
	$(DRAIN) --bytes 1000 > $(BENCH_OUT)/drain-kafka-1000.jsonl
	$(DRAIN) --broker nats --messages 500000 > $(BENCH_OUT)/drain-nats.jsonl
	$(DRAIN) --broker nats --messages 500000 --bytes 1000 > $(BENCH_OUT)/drain-nats-1000.jsonl
	$(DRAIN) --contenders pgoutput,replication,catchup --messages 500000 > $(BENCH_OUT)/drain-replication.jsonl
	$(DRAIN) --contenders relay,exactlyonce --messages 500000 > $(BENCH_OUT)/drain-exactly-once.jsonl
	for s in $(SWEEPS); do $(DRAIN) --messages 300000 --rounds 1 --sweep $$s > $(BENCH_OUT)/sweep-$${s%%=*}.jsonl || exit 1; done
	$(DRAIN) --rounds 1 --sweep backlog=1000000,10000000 > $(BENCH_OUT)/sweep-backlog.jsonl
	bin/outbox-bench latency $(MEASURED) --rate 2,20,200,1000 --for 30s \
		--contenders floor,relay,inprocess,replication --json > $(BENCH_OUT)/latency-kafka.jsonl
	bin/outbox-bench latency $(MEASURED) --broker nats --rounds 2 --json > $(BENCH_OUT)/latency-nats.jsonl
	bin/outbox-bench latency $(MEASURED) --rate 2,20,200,1000 --for 30s --idle 1s --busy 1 \
		--contenders floor,relay,replication --json > $(BENCH_OUT)/latency-busy.jsonl
	bin/outbox-bench write $(MEASURED) --json > $(BENCH_OUT)/write.jsonl
	bin/outbox-bench report $(patsubst %,$(BENCH_OUT)/%.jsonl,$(RESULTS)) --plots docs/benchmarks --into docs/benchmarks.md

# Where there is a Debezium Server: the folder that "go run ./proof/fetch debezium" prints.
DEBEZIUM ?=
STRATEGIES := bin/outbox-bench strategies $(MEASURED) --rounds 1 --peers bin/outbox-peers $(if $(DEBEZIUM),--debezium $(DEBEZIUM)) --json
.PHONY: bench-strategies
bench-strategies: build bench-program peers servers ## Measure all strategies beside what the articles print, and write docs/strategies.md
	@mkdir -p $(BENCH_OUT)/strategies docs/benchmarks
	$(STRATEGIES) > $(BENCH_OUT)/strategies/strategies.jsonl
	$(STRATEGIES) --workload ours --for -1ns > $(BENCH_OUT)/strategies/strategies-ours.jsonl
	bin/outbox-bench report $(BENCH_OUT)/strategies/*.jsonl --plots docs/benchmarks --into docs/strategies.md

ROUNDS ?= 7
.PHONY: bench-brokers
bench-brokers: servers ## Each broker's adapter beside the barest loop on the same library (ROUNDS of 1.8 s each, three minutes in all)
	$(GO) run ./proof/brokerbench -rounds $(ROUNDS) $(BROKERS)

.PHONY: mutants
mutants: ## Break one mechanism after the other, and show which test notices
	$(GO) run ./proof/mutants

# Its database is on the network, so it is no part of make test.
.PHONY: vulnerabilities
vulnerabilities: ## Known vulnerabilities in what we call (needs the vulnerability database)
	@for m in $(MODULES); do (cd $$m && $(GO) run golang.org/x/vuln/cmd/govulncheck@v1.1.4 ./...) || exit 1; done

.PHONY: clean
clean: ## Remove what was built here; the cache of servers stays
	rm -rf bin dist
