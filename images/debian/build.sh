#!/usr/bin/env bash
# Images for a site that no registry answers: from Debian's packages alone, with debootstrap.
#
#   images/debian/build.sh [SUITE]      (as root; SUITE must bring Python 3.11: bookworm)
#
# makes gradmatrix-base, gradmatrix-postgres and gradmatrix-redis. Prints the variables that docker-compose.yml takes.
set -euo pipefail
cd "$(dirname "$0")"
suite=${1:-bookworm}

if ! docker image inspect gradmatrix-base >/dev/null 2>&1; then
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    debootstrap --variant=minbase --include=ca-certificates,git,g++,python3,python3-venv "$suite" "$root" >&2
    # A site's own certificate authorities are part of how it reaches its packages.
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    tar -C "$root" -c . | docker import --change 'ENV LANG=C.UTF-8' - gradmatrix-base >/dev/null
fi
for part in postgres redis; do
    docker build --build-arg BASE_IMAGE=gradmatrix-base -t "gradmatrix-$part" -f "$part.Dockerfile" . >&2
done
cat <<'VARIABLES'
GRADMATRIX_BASE_IMAGE=gradmatrix-base
GRADMATRIX_POSTGRES_IMAGE=gradmatrix-postgres
GRADMATRIX_REDIS_IMAGE=gradmatrix-redis
VARIABLES
