#!/bin/sh
# apply.sh SITE VERSION REGION puts a release into the folder of one site and notes in the site's own log that it did.
set -eu
site=$SITES/$1 version=$2 region=$3
release=$(dirname "$0")/releases/$version
if [ ! -d "$release" ]; then
  echo "there is no release $version in $(dirname "$0")/releases" >&2
  exit 1
fi

# The new release is complete before it takes the old one's place, and the version is written last.
rm -rf "$site/next"
mkdir -p "$site/next"
cp "$release"/*.* "$site/next"
if [ -d "$release/$region" ]; then
  cp "$release/$region"/*.* "$site/next"
fi
rm -rf "$site/current"
mv "$site/next" "$site/current"
echo "$version" >"$site/version.new"
mv "$site/version.new" "$site/version"

echo "$(date -u +%H:%M:%S) $1 ${SLUICE_DIRECTION:-seed} ${SLUICE_FROM:-nothing} -> $version" >>"$site/changes"
