# dptrace without torch, to read, compare and draw traces:
#   docker build -t dptrace .
#   docker run --rm --user "$(id -u)" -v "$PWD:/work" dptrace analyze runs/ddp
FROM python:3.13-slim AS build
WORKDIR /source
COPY . .
# hadolint ignore=DL3013
RUN pip wheel --no-cache-dir --wheel-dir /wheels .

FROM python:3.13-slim
# hadolint ignore=DL3013
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels dptrace \
    && useradd --create-home --uid 1000 dptrace
USER 1000
WORKDIR /work
ENTRYPOINT ["dptrace"]
CMD ["--help"]
