#!/bin/sh
# Runs every test of the build folder, keeps the full log there, shows what failed and the closing
# lines, and ends with the runner's status.
set -u

log=build/tests.log
echo "running the tests; all output goes to $log"
status=0
ctest --test-dir build --output-on-failure -j "$(nproc)" >"$log" 2>&1 || status=$?
if [ "$status" -ne 0 ]; then
  # A failing test's own words stand between its result line and the next test's.
  awk '/^ *[0-9]+\/[0-9]+ Test +#/ { shown = /\*\*\*|Not Run|Failed/ }
       /^ *Start +[0-9]+:/ { next }
       shown { print }' "$log" | head -n 400
fi
sed -n '/tests passed,/,$p' "$log"
exit "$status"
