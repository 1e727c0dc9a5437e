#!/bin/sh
# check.sh SITE prints the version that runs on a site, and nothing where none is installed.
set -eu
if [ -f "$SITES/$1/version" ]; then
  cat "$SITES/$1/version"
fi
