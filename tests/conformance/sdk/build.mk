# How the official SDKs are built for the conformance tests: each version that has a folder here, LANGUAGE/VERSION, with
# what pins it, into build/sdk/LANGUAGE-VERSION. Where the tool of a language is missing, its tests are skipped and say so.
AGENTS := tests/conformance/sdk
TOOL_python := $(PYTHON)
TOOL_node := npm
TOOL_java := mvn

SDK_VERSIONS := $(shell cd $(AGENTS) && ls -d */[0-9]* | sort --version-sort)
SDK_LANGUAGES := $(sort $(foreach sdk,$(SDK_VERSIONS),$(firstword $(subst /, ,$(sdk)))))
SDK_BUILDABLE := $(foreach language,$(SDK_LANGUAGES),$(if $(shell command -v $(TOOL_$(language))),$(language)))
built = $(patsubst %,build/sdk/%/.installed,$(subst /,-,$(1)))
# All versions, and the newest of each language.
OFFICIAL_SDKS := $(call built,$(foreach language,$(SDK_BUILDABLE),$(filter $(language)/%,$(SDK_VERSIONS))))
NEWEST_SDKS := $(call built,$(foreach language,$(SDK_BUILDABLE),$(lastword $(filter $(language)/%,$(SDK_VERSIONS)))))

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
