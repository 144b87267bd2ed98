#!/bin/sh
# Makes the database where there is none, and serves it: POSTGRES_USER, POSTGRES_PASSWORD and POSTGRES_DB.
set -eu
data=/var/lib/postgresql/data/pgdata
if [ ! -s "$data/PG_VERSION" ]; then
    secret=$(mktemp)
    printf '%s\n' "$POSTGRES_PASSWORD" > "$secret"
    # Made beside, and moved when it is whole: one that was interrupted is made anew.
    rm -rf "$data.new"
    initdb --pgdata "$data.new" --username "$POSTGRES_USER" --pwfile "$secret" \
        --auth-local trust --auth-host scram-sha-256 --encoding UTF8
    rm "$secret"
    echo 'host all all all scram-sha-256' >> "$data.new/pg_hba.conf"
    # The name is there before anybody can connect over the network.
    printf 'CREATE DATABASE "%s";\n' "$POSTGRES_DB" | postgres --single -D "$data.new" postgres >/dev/null
    mv "$data.new" "$data"
fi
exec postgres -D "$data" -c listen_addresses='*' -c unix_socket_directories=/tmp
