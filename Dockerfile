# An image with distrl and all pinned packages. For clusters, see docs/machines.md.
#
#   docker build -t distrl .
#   docker build -t distrl --build-arg JAX='jax[cuda12]==0.5.3' .    for a learner on GPUs
FROM python:3.10-slim-bookworm

# tini is the first process: it forwards signals and reaps orphaned processes. EnvPool's Procgen
# needs the libraries.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgl1 libglib2.0-0 tini \
    && rm -rf /var/lib/apt/lists/*

# The packages are a separate layer, which changes to the code do not invalidate.
WORKDIR /opt/distrl
COPY requirements requirements
ARG JAX=""
# hadolint ignore=DL3013
RUN pip install --no-cache-dir -r requirements/bootstrap.txt \
    && pip install --no-cache-dir --no-deps -r requirements/py310.txt \
    && if [ -n "$JAX" ]; then pip install --no-cache-dir "$JAX"; fi

COPY setup.py pyproject.toml README.md LICENSE ./
COPY distrl distrl
COPY programs programs
COPY launch launch
RUN pip install --no-cache-dir --no-deps --no-build-isolation -e . \
    && python -m compileall -q distrl programs launch \
    && python -c "import envpool, jax, launchpad, reverb"

RUN useradd --uid 1000 --create-home distrl && mkdir /runs && chown distrl /runs
USER 1000
ENV PYTHONUNBUFFERED=1 TF_CPP_MIN_LOG_LEVEL=2
WORKDIR /runs
ENTRYPOINT ["tini", "--"]
CMD ["distrl", "--help"]
