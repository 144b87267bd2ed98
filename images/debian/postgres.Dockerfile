# PostgreSQL of Debian, with the variables and the folder that docker-compose.yml gives it.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN apt-get update && apt-get install --yes --no-install-recommends postgresql && rm -rf /var/lib/apt/lists/* \
    && mkdir -p /var/lib/postgresql/data && chown postgres:postgres /var/lib/postgresql/data \
    && ln -s /usr/lib/postgresql/*/bin/* /usr/local/bin/
COPY postgres.sh /usr/local/bin/
USER postgres
VOLUME /var/lib/postgresql/data
STOPSIGNAL SIGINT
EXPOSE 5432
ENTRYPOINT ["postgres.sh"]
