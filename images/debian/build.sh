#!/usr/bin/env bash
# Images for a site that no registry answers: from Debian's packages alone, with debootstrap.
#
#   images/debian/build.sh [SUITE]      (as root; SUITE must bring Python 3.11: bookworm)
#
# makes gradmatrix-base, gradmatrix-postgres and gradmatrix-redis. Prints the variables that docker-compose.yml takes.
set -euo pipefail
cd "$(dirname "$0")"

./base.sh "$@"
for part in postgres redis; do
    docker build --build-arg BASE_IMAGE=gradmatrix-base -t "gradmatrix-$part" -f "$part.Dockerfile" . >&2
done
cat <<'VARIABLES'
GRADMATRIX_POSTGRES_IMAGE=gradmatrix-postgres
GRADMATRIX_REDIS_IMAGE=gradmatrix-redis
VARIABLES
