#!/bin/sh
# Installs the Debian packages that are missing: those of the build, and with "check" or
# "bench" those of that target too. Needs root or sudo only when something is missing.
set -eu

packages="g++ cmake ninja-build pkg-config
  zlib1g-dev libutf8proc-dev libfmt-dev libexpected-dev nlohmann-json3-dev libhwy-dev libcli11-dev libtomlplusplus-dev
  libcurl4-openssl-dev libssl-dev ca-certificates
  libgtest-dev libgmock-dev librapidcheck-dev
  gnuplot-nox"
case "${1:-}" in
  check) packages="$packages clang-format clang-tidy shellcheck" ;;
  bench) packages="$packages python3-torch libopenblas0-openmp" ;;
esac

if ! command -v dpkg-query >/dev/null; then
  # Elsewhere the build says what it lacks.
  exit 0
fi

missing=""
for package in $packages; do
  state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

as_root=""
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: missing packages, and no sudo; run as root: apt-get install$missing" >&2
    exit 1
  fi
  as_root="sudo"
fi

echo "setup: installing$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT

apt() {
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" \
    >"$log" 2>&1
}

# The lists may be absent or older than the mirror: refresh them when the first try fails.
# shellcheck disable=SC2086
if ! apt install --no-install-recommends $missing; then
  if ! apt update || ! apt install --no-install-recommends $missing; then
    tail -n 20 "$log" >&2
    echo "setup: apt-get failed; see above" >&2
    exit 1
  fi
fi
