# The service: api, beat and worker are one image with different commands.
# BASE_IMAGE is any Debian with Python 3.11; what it lacks of git, g++ and venv is installed.
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE}

# g++ is for inductor; python3-venv only where Python is the distribution's own.
RUN if ! command -v git >/dev/null || ! command -v g++ >/dev/null || ! python3 -c 'import ensurepip, venv'; then \
      apt-get update \
      && apt-get install --yes --no-install-recommends ca-certificates git g++ $(test -e /usr/bin/python3 && echo python3-venv) \
      && rm -rf /var/lib/apt/lists/*; \
    fi \
    && useradd --system --uid 10001 --home-dir /var/lib/gradmatrix --create-home gradmatrix

ENV PATH=/opt/gradmatrix/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    GRADMATRIX_HOME=/var/lib/gradmatrix

# What changes seldom comes first, so that a new commit installs only itself.
COPY requirements/main.txt requirements/build.txt /tmp/requirements/
RUN python3 -m venv /opt/gradmatrix \
    && pip install --no-cache-dir --require-hashes -r /tmp/requirements/main.txt \
    && python3 -m venv /tmp/build \
    && /tmp/build/bin/pip install --no-cache-dir --require-hashes -r /tmp/requirements/build.txt
COPY . /tmp/source
RUN cd /tmp/source && /tmp/build/bin/python -m hatchling build -t wheel -d /tmp/wheel \
    && pip install --no-cache-dir --no-deps --no-index /tmp/wheel/*.whl \
    && rm -rf /tmp/source /tmp/build /tmp/wheel /tmp/requirements \
    && gradmatrix --version

USER gradmatrix
WORKDIR /var/lib/gradmatrix
VOLUME /var/lib/gradmatrix
EXPOSE 8470
ENTRYPOINT ["gradmatrix"]
CMD ["api", "--listen", "0.0.0.0:8470"]
