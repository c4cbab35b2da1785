# Two images from one file:
#   docker build -t warmroute .                                   the gateway
#   docker build -t warmroute-simulator --target simulator .      a simulated replica, for trials without a GPU
# tests/deploy/test_image.py performs these steps without a container runtime: keep to the instructions it knows.

# The Python that the tests run on.
FROM python:3.11-slim-bookworm AS base
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

# Builds the wheel, with a build back end that is pinned by hash as everything else is.
FROM base AS wheel
WORKDIR /src
COPY requirements-build.lock ./
RUN pip install --require-hashes -r requirements-build.lock
COPY pyproject.toml README.md LICENSE ./
COPY routing ./routing
COPY gateway ./gateway
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /dist .

# Installs into one folder, which is all that the images take over: no build back end, no sources.
FROM base AS install
WORKDIR /opt/warmroute
RUN python -m venv /opt/warmroute
ENV PATH=/opt/warmroute/bin:$PATH
COPY requirements.lock ./
RUN pip install --require-hashes -r requirements.lock
COPY --from=wheel /dist ./dist
RUN pip install --no-deps --no-index ./dist/*.whl && rm -r ./dist

FROM base AS runtime
COPY --from=install /opt/warmroute /opt/warmroute
# The root file system can be read-only: what libraries want to cache goes to /tmp.
ENV PATH=/opt/warmroute/bin:$PATH \
    HOME=/tmp \
    HF_HOME=/tmp/huggingface
# By number, so that Kubernetes' runAsNonRoot can tell; no such user has to exist.
USER 65532:65532

FROM runtime AS simulator
LABEL org.opencontainers.image.title="warmroute-simulator" \
      org.opencontainers.image.description="A vLLM-like replica with a modeled engine and KV cache" \
      org.opencontainers.image.licenses="Apache-2.0"
WORKDIR /opt/simulator
COPY loadtests ./loadtests
# 8000: the API. 5557 and 5558: KV events and their replay, on all interfaces for the gateway to subscribe to.
EXPOSE 8000 5557 5558
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=2)"]
ENTRYPOINT ["python", "-m", "loadtests.simulator"]
CMD ["--model", "demo", "--host", "0.0.0.0", "--port", "8000", \
     "--kv-events-endpoint", "tcp://*:5557", "--kv-events-replay-endpoint", "tcp://*:5558"]

FROM runtime AS gateway
LABEL org.opencontainers.image.title="warmroute" \
      org.opencontainers.image.description="A prefix-cache-aware gateway for fleets of vLLM replicas" \
      org.opencontainers.image.licenses="Apache-2.0"
WORKDIR /etc/warmroute
# 8080: clients. 9090: metrics, explain and operators; bound to 127.0.0.1 unless the configuration says otherwise.
EXPOSE 8080 9090
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/livez', timeout=2)"]
ENTRYPOINT ["warmroute", "serve", "--config", "/etc/warmroute/gateway.yaml"]
