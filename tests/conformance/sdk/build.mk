# How the official SDKs are built for the conformance tests: each version that has a folder here, LANGUAGE/VERSION, with
# what pins it, into build/sdk/LANGUAGE-VERSION. Where the tools of a language are missing, its tests are skipped and say so.
AGENTS := tests/conformance/sdk
TOOLS_python := $(PYTHON)
TOOLS_node := npm
TOOLS_java := mvn javac
TOOLS_go := go
TOOLS_rust := cargo

SDK_VERSIONS := $(shell cd $(AGENTS) && ls -d */[0-9]* | sort --version-sort)
SDK_LANGUAGES := $(sort $(foreach sdk,$(SDK_VERSIONS),$(firstword $(subst /, ,$(sdk)))))
SDK_BUILDABLE := $(foreach language,$(SDK_LANGUAGES),$(shell type $(TOOLS_$(language)) >/dev/null 2>&1 && echo $(language)))
built = $(patsubst %,build/sdk/%/.installed,$(subst /,-,$(1)))
# All versions, and the newest of each language that is built soon enough for every run.
OFFICIAL_SDKS := $(call built,$(foreach language,$(SDK_BUILDABLE),$(filter $(language)/%,$(SDK_VERSIONS))))
SDK_QUICK := $(foreach language,$(SDK_BUILDABLE),$(shell grep -qs '^slow_to_build = true' $(AGENTS)/$(language)/sdk.toml || echo $(language)))
NEWEST_SDKS := $(call built,$(foreach language,$(SDK_QUICK),$(lastword $(filter $(language)/%,$(SDK_VERSIONS)))))

.PHONY: sdk-languages
sdk-languages: # those whose newest SDK `make test` builds here
	@echo $(SDK_QUICK)

build/sdk/python-%/.installed: $(AGENTS)/python/%/requirements.lock
	@rm -rf $(@D) && $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check --no-input install --quiet --require-hashes -r $<
	@touch $@

NPM_QUIETLY := --loglevel=error --ignore-scripts --no-audit --no-fund --no-update-notifier
build/sdk/node-%/.installed: $(AGENTS)/node/%/package.json $(AGENTS)/node/%/package-lock.json
	@rm -rf $(@D) && mkdir -p $(@D) && cp $^ $(@D)
	@cd $(@D) && npm ci $(NPM_QUIETLY) --prefer-offline
	@touch $@

# Maven has no lock file: the sums of the jars are compared.
MVN_JARS := mvn --quiet --batch-mode --no-transfer-progress \
  org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies
.PRECIOUS: build/sdk/java-%/jars
build/sdk/java-%/jars: $(AGENTS)/java/%/pom.xml $(AGENTS)/java/%/jars.sha256
	@rm -rf $@ $@.new && $(MVN_JARS) --file $< -DoutputDirectory=$(abspath $@.new)
	@cd $@.new && sha256sum --quiet --strict --check $(abspath $(word 2,$^))
	@mv $@.new $@ && touch $@

build/sdk/java-%/.installed: build/sdk/java-%/jars $(wildcard $(AGENTS)/java/*.java)
	@rm -rf $(@D)/agent && javac -d $(@D)/agent -cp '$</*' $(filter %.java,$^)
	@touch $@

build/sdk/go-%/.installed: $(AGENTS)/go/%/go.mod $(AGENTS)/go/%/go.sum $(wildcard $(AGENTS)/go/*.go)
	@rm -rf $(@D) && mkdir -p $(@D) && cp $^ $(@D)
	@cd $(@D) && go build -buildvcs=false -trimpath -o agent .
	@touch $@

# The lock names no registry: cargo writes the one that it uses into a lock of its own, and from there it goes into ours.
build/sdk/rust-%/.installed: $(AGENTS)/rust/%/Cargo.toml $(AGENTS)/rust/%/Cargo.lock $(wildcard $(AGENTS)/rust/src/*.rs)
	@rm -rf $(@D) && mkdir -p $(@D)/src && cp $< $(@D) && cp $(filter %.rs,$^) $(@D)/src
	@cd $(@D) && cargo generate-lockfile --quiet
	@awk -v source="$$(grep -m 1 '^source = ' $(@D)/Cargo.lock)" '/^checksum = / {print source} {print}' \
	  $(AGENTS)/rust/$*/Cargo.lock > $(@D)/Cargo.lock
	@cd $(@D) && cargo build --quiet --release --locked --target-dir target && mv target/release/agent . && rm -rf target
	@touch $@
