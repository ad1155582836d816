#!/bin/sh
# Builds one target of build/, or all: a line of progress on a terminal, nothing but warnings and
# errors elsewhere.
set -eu

quiet=--quiet
[ ! -t 1 ] || quiet=
exec cmake --build --preset release --target "${1:-all}" -- $quiet -j "$(tools/jobs.sh)"
