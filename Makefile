# Each target does its own set-up: a virtual environment in .venv with everything pinned by constraints.txt.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Servers, a browser, strace, Graphviz, iproute2, Maven and the client of Kerberos, that pip does not bring; tests that need one which is not there are skipped. As root, on Debian: `make servers`.
DEBIAN_SERVERS := nginx-light rclone chromium strace graphviz iproute2 maven default-jdk-headless libgssapi-krb5-2
NPM_SERVERS := s3rver azurite

.PHONY: demo test test-all lint format ray hadoop hive iceberg faults faults-calls faults-epochs faults-hadoop faults-hosts faults-processes faults-properties frameworks fuzz sanitize bench compare docs notebooks dist servers clean

demo: $(INSTALLED)
	$(BIN)/featstore demo

# In three processes, since tests also wait; each takes whole modules (tests/conftest.py).
PYTEST := $(BIN)/python -m pytest --numprocesses 3

# What one waits for after a change: all but the tests that are marked `slow`.
test: $(INSTALLED) lint
	$(PYTEST) -m "not slow"

test-all: $(INSTALLED) lint
	$(PYTEST) $(OPTIONS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Ray, for the test of its recipe, which is skipped without it.
ray: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group ray

# A real HDFS, real Hive metastores and a REST catalog of Iceberg, for tests that are skipped without them; their jars, 124,
# 310 and 86 MB, come from Maven.
COPY_JARS = mvn --quiet --batch-mode --file $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$@
HADOOP := build/hadoop/jars
HIVE := build/hive/3.1.3 build/hive/4.0.1
ICEBERG := build/iceberg/jars
$(HADOOP): tests/hadoop/pom.xml
	rm -rf $@
	$(COPY_JARS)

$(ICEBERG): tests/iceberg/pom.xml
	rm -rf $@
	$(COPY_JARS)

# Its Iceberg extension is on PyPI for this version of duckdb, which is not that of the tests.
DUCKDB := build/iceberg/duckdb
$(DUCKDB): $(INSTALLED)
	rm -rf $@
	$(BIN)/python -m pip install --quiet --target $@ $(addsuffix ==1.5.5,duckdb duckdb-extension-iceberg duckdb-extension-avro)

# Iceberg's runtime for Spark does not load in the Spark of the tests.
ICEBERG_SPARK := build/iceberg/spark/installed
ICEBERG_RUNTIME := org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0
$(ICEBERG_SPARK): | $(INSTALLED)
	rm -rf $(@D)
	$(BIN)/python -m pip install --quiet --target $(@D) pyspark==4.1.4
	mvn --quiet --batch-mode dependency:copy -Dartifact=$(ICEBERG_RUNTIME) -DoutputDirectory=$(CURDIR)/$(@D)/pyspark/jars
	touch $@

$(HIVE): tests/hive/pom.xml
	rm -rf $@
	$(COPY_JARS) --activate-profiles $(@F)

hadoop: $(INSTALLED) $(HADOOP)
	$(BIN)/python -m pytest tests/hadoop tests/contracts/test_file_contract.py -k "hadoop"

hive: $(INSTALLED) $(HIVE)
	$(BIN)/python -m pytest tests/ingest/test_hive_metastores.py tests/ingest/test_hive_ql.py

iceberg: $(INSTALLED) $(ICEBERG) $(DUCKDB) $(ICEBERG_SPARK) build/hive/3.1.3
	$(BIN)/python -m pytest $(addprefix tests/table/test_iceberg_,catalogs.py mirror.py spark.py) -k "catalogs or duckdb or spark"

faults: ray $(HADOOP)
	$(MAKE) --jobs 2 --keep-going faults-epochs faults-hadoop faults-hosts faults-properties faults-processes faults-calls

# The campaigns, two at a time: ends of epochs (broken off, it goes on where it was), hosts that are cut off and killed,
# properties with 2,000 cases and 50,000 damaged files, other processes that are killed and stopped, and system calls that
# fail one at a time.
CAMPAIGN := $(BIN)/python -m pytest --hypothesis-profile=campaign
EPOCHS := tests/faults/test_epoch_end.py
faults-epochs:
	$(CAMPAIGN) $(EPOCHS)

# A minute for each outage of a real HDFS.
faults-hadoop: $(HADOOP)
	$(CAMPAIGN) tests/hadoop

# As root, with iproute2.
faults-hosts:
	$(CAMPAIGN) tests/hosts

CALLS := tests/faults/test_failing_calls.py
faults-calls:
	$(CAMPAIGN) $(CALLS)

faults-processes:
	$(CAMPAIGN) tests/faults --deselect $(EPOCHS) --deselect $(CALLS) tests/loader/test_ddp.py tests/staging/test_faults.py

faults-properties:
	$(CAMPAIGN) -m hypothesis tests/dispatch tests/staging tests/contracts tests/loader tests/tensors tests/native
	$(CAMPAIGN) tests/native/test_mutants.py tests/samples/test_sample_file.py

# tensorflow, JAX and torchrec, in an environment of their own, and the tests that need it.
FRAMEWORKS := build/frameworks/installed
$(FRAMEWORKS): $(INSTALLED) benchmarks/training_parts/environment.py
	rm -rf $(@D)
	$(BIN)/python benchmarks/training_parts/environment.py $(@D)

frameworks: $(FRAMEWORKS)
	$(BIN)/python -m pytest tests/loader/test_tensorflow_dataset.py tests/loader/test_numpy_feed.py tests/pages/test_frameworks.py tests/tensors/test_keyed_jagged.py

SECONDS ?= 300
fuzz: $(INSTALLED)
	$(BIN)/python fuzz/run.py --seconds $(SECONDS)

MUTANTS ?= 50000
sanitize: $(INSTALLED)
	$(BIN)/python fuzz/sanitize.py --mutants $(MUTANTS)

bench: $(INSTALLED)
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

# featstore beside other readers, each in an environment of its own below build/compare; adds the run to the page.
compare: $(INSTALLED)
	$(BIN)/python benchmarks/compare.py --directory build/compare/rows | tee build/compare.txt
	cd benchmarks && ../$(BIN)/python -m shared_parts.occasions compare ../build/compare.txt

# The site, into build/website/html; a link that leads nowhere fails.
docs: $(INSTALLED)
	$(BIN)/python -m website.build

# Executes the notebooks, which are committed with their outputs, and draws docs/plots, on the demo's table.
notebooks: $(INSTALLED)
	test -d demo/table || $(BIN)/featstore demo --engine local
	$(BIN)/python notebooks/execute.py
	$(BIN)/python notebooks/pictures.py

# Wheels and sdist, each tried in empty environments of every Python found. Where torch is to be had for some of them only:
# make dist TORCH=3.11
TORCH ?= 3.11,3.12,3.13
dist: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dist
	$(BIN)/python release/dist.py --torch $(TORCH)

servers:
	apt-get update --quiet
	apt-get install --yes $(DEBIAN_SERVERS)
	command -v npm || apt-get install --yes npm
	npm install --global $(NPM_SERVERS)

clean:
	rm -rf $(VENV) demo build *.egg-info

$(INSTALLED): pyproject.toml setup.py release/backend.py constraints.txt $(wildcard featstore/native/*.[ch])
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "featstore needs Python 3.11 or newer, found " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev --editable '.[all,demo]'
	touch $@
