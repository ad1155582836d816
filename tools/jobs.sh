#!/bin/sh
# Prints how many compilers may run at once: one a core, and a GiB of free memory for each, so that
# a small machine builds too; never more than four.
set -eu

cores=$(nproc)
gibs=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo)
jobs=4
[ "$cores" -ge "$jobs" ] || jobs=$cores
[ "${gibs:-1}" -ge "$jobs" ] || jobs=${gibs:-1}
[ "$jobs" -ge 1 ] || jobs=1
echo "$jobs"
