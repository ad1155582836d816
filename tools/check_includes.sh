#!/bin/sh
# The ladder: a file may include files of its own folder and of folders on lower rows. Fails naming
# each include that leans the wrong way, and each folder that has no row.
set -eu

cd "$(dirname "$0")/.."
# shellcheck disable=SC2016  # the program is awk's
find src -name '*.h' -o -name '*.cc' | sort | xargs awk '
  BEGIN {
    rows = "base|tensor text|kernels io data|nn|model optim|infer train baseline|eval inspect|" \
           "verify report|serve|cli python"
    count = split(rows, row, "|")
    for (i = 1; i <= count; ++i) {
      n = split(row[i], folder, " ")
      for (j = 1; j <= n; ++j) rank[folder[j]] = i
    }
  }
  FNR == 1 {
    split(FILENAME, part, "/")
    own = part[2]
    if (!(own in rank)) { print FILENAME ": folder " own " has no row"; wrong = 1 }
  }
  /^#include "/ {
    split($2, piece, "\"")
    split(piece[2], part, "/")
    other = part[1]
    if (other == own) next
    if (!(other in rank)) {
      print FILENAME ":" FNR ": includes " piece[2] ", which is in no folder of the ladder"
      wrong = 1
    } else if (rank[other] >= rank[own]) {
      print FILENAME ":" FNR ": " own " may not include " piece[2]
      wrong = 1
    }
  }
  END { exit wrong }'
