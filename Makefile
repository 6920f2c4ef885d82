.DEFAULT_GOAL := help
.PHONY: help setup check test demo sim fix bench docs clean-demo
NOX := .venv/bin/nox --session

help: ## Show what you can do here
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
setup: ## Install every role, as locked, into .venv, and what builds images
	@tools/setup.sh builder
check: ## Everything that must be green before a commit (about a minute)
	@tools/setup.sh && $(NOX) check
test: ## All of check, then real engines, packages and acceptance (minutes, as root)
	@tools/setup.sh engines && $(NOX) test
demo: ## Start a control plane, build an image with it, pull it and run it (as root)
	@tools/setup.sh demo && .venv/bin/python -m tools.demo
sim: ## Hunt for bugs with many seeds: make sim SEEDS=5000
	@tools/setup.sh && $(NOX) soak -- $(or $(SEEDS),1000)
fix: ## Format, and fix what tools can fix
	@tools/setup.sh && $(NOX) fix
bench: ## Measure, each number against its goal
	@tools/setup.sh engines && $(NOX) bench
docs: ## Write the generated pages, and check all links
	@tools/setup.sh && $(NOX) docs
clean-demo: ## Stop the demo and remove all that it made
	@if [ -x .venv/bin/python ]; then .venv/bin/python -m tools.demo --clean; fi
