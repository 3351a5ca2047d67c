# The image of `gpuscaler run`, `gpuscaler metrics` and `gpuscaler exporter`. It has no shell script and no compiler, fetches nothing at run
# time, works with a read-only root, and runs as an unprivileged user.
#
#   docker build --tag gpuscaler .
#   docker build --tag gpuscaler --build-arg EXTRAS="aws" .
#
# Every package comes from a lock file with hashes, so that two builds have the same packages.
ARG PYTHON=3.11
# @sha256:…, which takes precedence over the tag, for the same base in every build.
ARG DIGEST=

FROM python:${PYTHON}-slim${DIGEST} AS build
# Extras of the package, by their names in pyproject.toml: what a cloud or a GPU needs besides the core.
ARG EXTRAS="aws exporter"
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /source
COPY requirements/ requirements/
RUN python -m venv /opt/build \
 && /opt/build/bin/python -m pip install --require-hashes --only-binary :all: --requirement requirements/build.txt
# The last step compiles everything with unchecked hashes. Some builders round the modification times of sources, so that bytecode checked by
# time would be compiled again at every start. It compiles all modules, because pip's imports leave bytecode that is checked by time.
RUN python -m venv --without-pip /opt/gpuscaler \
 && locks="--requirement requirements/core.txt" \
 && for extra in ${EXTRAS}; do locks="${locks} --requirement requirements/${extra}.txt"; done \
 && /opt/build/bin/python -m pip --python /opt/gpuscaler/bin/python install --no-compile --require-hashes --only-binary :all: ${locks}
COPY pyproject.toml README.md LICENSE ./
COPY src/ src/
RUN /opt/build/bin/python -m hatchling build --target wheel --directory dist \
 && /opt/build/bin/python -m pip --python /opt/gpuscaler/bin/python install --no-compile --no-deps --no-index dist/*.whl \
 && /opt/build/bin/python -m pip --python /opt/gpuscaler/bin/python check \
 && /opt/gpuscaler/bin/python -m compileall -qf --invalidation-mode unchecked-hash /opt/gpuscaler/lib \
 && /opt/gpuscaler/bin/gpuscaler --version

FROM python:${PYTHON}-slim${DIGEST}
LABEL org.opencontainers.image.title="gpuscaler" \
      org.opencontainers.image.description="Scales GPU capacity on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/gpuscaler /opt/gpuscaler
# Write no bytecode beside the code, and flush the log line by line.
ENV PATH=/opt/gpuscaler/bin:${PATH} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# A numeric user, so that Kubernetes can verify that it is not root.
USER 65532:65532
WORKDIR /tmp
EXPOSE 8080
ENTRYPOINT ["gpuscaler"]
CMD ["--help"]
