#!/bin/sh
# seed.sh puts v1 on all eight sites, as if it had been there for years. What was there before is removed.
set -eu
export SITES=${SITES:-.data/sites}
for site in eu-1 ap-1 ap-2 us-1 eu-2 us-2 eu-3 ap-3; do
  rm -rf "${SITES:?}/$site"
  "$(dirname "$0")/apply.sh" "$site" v1 "${site%-*}"
done
