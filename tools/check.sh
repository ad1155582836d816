#!/bin/sh
# Formatting, the include ladder, shell scripts, clang-tidy. Runs all and fails when one did.
set -eu

cd "$(dirname "$0")/.."
status=0

echo "check: clang-format"
git ls-files -z '*.cc' '*.h' | xargs -0 clang-format --dry-run -Werror || status=1

echo "check: includes"
tools/check_includes.sh || status=1

echo "check: shellcheck"
git ls-files -z '*.sh' .ci/run | xargs -0 shellcheck || status=1

# Its finds go to stdout; stderr counts the warnings of system headers.
echo "check: clang-tidy"
git ls-files -z 'src/*.cc' |
  xargs -0 -P "$(nproc)" -n 1 clang-tidy -p build --quiet 2>/dev/null || status=1

[ "$status" -ne 0 ] || echo "check: all is well"
exit "$status"
