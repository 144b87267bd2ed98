#!/usr/bin/env bash
# An image to build others on, from Debian's packages alone, with debootstrap; nothing is done where it is there already.
#
#   images/debian/base.sh [SUITE]      (as root; SUITE must bring Python 3.11: bookworm)
#
# Prints the variable that names it.
set -euo pipefail
suite=${1:-bookworm}

if ! docker image inspect gradmatrix-base >/dev/null 2>&1; then
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    debootstrap --variant=minbase --include=ca-certificates,git,g++,python3,python3-dev,python3-venv "$suite" "$root" >&2
    # A site's own certificate authorities are part of how it reaches its packages.
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    tar -C "$root" -c . | docker import --change 'ENV LANG=C.UTF-8' - gradmatrix-base >/dev/null
fi
echo GRADMATRIX_BASE_IMAGE=gradmatrix-base
