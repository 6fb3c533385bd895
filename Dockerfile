# Images of trtfleet: targets `operator`, `worker` and `cli`. docs/testing.md tells how they are built without a registry.
#
# BASE needs Python 3.11 or newer with venv. WORKER_BASE is what the workers run on, for example NVIDIA's TensorRT image with
# its Python; engine libraries that it brings are seen beside those of requirements/worker.txt.
# A package index of your own: --secret id=pip.conf,src=… (and id=ca.crt, which pip.conf names as /run/secrets/ca.crt).
ARG BASE=python:3.11.14-slim-bookworm
ARG WORKER_BASE=${BASE}

# pip and the build backend: used by every stage below, kept by none.
FROM ${BASE} AS tools
COPY requirements/build.txt /requirements/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.crt,target=/run/secrets/ca.crt \
    python3 -m venv /tools \
    && /tools/bin/python -m pip install --no-cache-dir --disable-pip-version-check --require-hashes -r /requirements/build.txt \
    && ln -s /tools/lib/python3*/site-packages /tools/site-packages

FROM tools AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY tuner_job tuner_job
COPY operator operator
RUN SOURCE_DATE_EPOCH=315532800 /tools/bin/python -m pip wheel --no-cache-dir --no-deps --no-build-isolation --no-index -w /wheels .

# What each target needs, byte-compiled once, and its own code in a layer of its own: a new version brings only that.
FROM ${BASE} AS operator-packages
COPY --from=tools /tools /tools
COPY requirements/operator.txt /requirements/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.crt,target=/run/secrets/ca.crt \
    python3 -m venv --without-pip /opt/trtfleet \
    && python3 /tools/site-packages/pip --python /opt/trtfleet/bin/python install --no-cache-dir --no-compile --require-hashes \
       -r /requirements/operator.txt \
    && /opt/trtfleet/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/trtfleet/lib

FROM operator-packages AS operator-own
COPY --from=wheel /wheels /wheels
RUN python3 /tools/site-packages/pip --python /opt/trtfleet/bin/python install --no-compile --no-deps --no-index --prefix=/own \
       --no-warn-script-location /wheels/*.whl \
    && /opt/trtfleet/bin/python -m compileall -q --invalidation-mode unchecked-hash -s /own -p /opt/trtfleet /own/lib

FROM ${WORKER_BASE} AS worker-packages
COPY --from=tools /tools /tools
COPY requirements/worker.txt /requirements/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.crt,target=/run/secrets/ca.crt \
    python3 -m venv --without-pip --system-site-packages /opt/trtfleet \
    && python3 /tools/site-packages/pip --python /opt/trtfleet/bin/python install --no-cache-dir --no-compile --require-hashes \
       --ignore-installed -r /requirements/worker.txt \
    && /opt/trtfleet/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/trtfleet/lib

FROM worker-packages AS worker-own
COPY --from=wheel /wheels /wheels
RUN python3 /tools/site-packages/pip --python /opt/trtfleet/bin/python install --no-compile --no-deps --no-index --prefix=/own \
       --no-warn-script-location /wheels/*.whl \
    && /opt/trtfleet/bin/python -m compileall -q --invalidation-mode unchecked-hash -s /own -p /opt/trtfleet /own/lib

FROM ${BASE} AS cli-packages
COPY --from=tools /tools /tools
COPY requirements/run.txt /requirements/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.crt,target=/run/secrets/ca.crt \
    python3 -m venv --without-pip /opt/trtfleet \
    && python3 /tools/site-packages/pip --python /opt/trtfleet/bin/python install --no-cache-dir --no-compile --require-hashes \
       -r /requirements/run.txt \
    && /opt/trtfleet/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/trtfleet/lib

FROM cli-packages AS cli-own
COPY --from=wheel /wheels /wheels
RUN python3 /tools/site-packages/pip --python /opt/trtfleet/bin/python install --no-compile --no-deps --no-index --prefix=/own \
       --no-warn-script-location /wheels/*.whl \
    && /opt/trtfleet/bin/python -m compileall -q --invalidation-mode unchecked-hash -s /own -p /opt/trtfleet /own/lib

# The user has a number only, which no passwd lists: libraries that ask for a name find USER.
FROM ${BASE} AS operator
COPY --from=operator-packages /opt/trtfleet /opt/trtfleet
COPY --from=operator-own /own /opt/trtfleet
ENV PATH=/opt/trtfleet/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp USER=trtfleet
USER 65532:65532
ENTRYPOINT ["trtfleet-operator"]
CMD ["--config", "/etc/trtfleet/config.yaml"]

FROM ${WORKER_BASE} AS worker
COPY --from=worker-packages /opt/trtfleet /opt/trtfleet
COPY --from=worker-own /own /opt/trtfleet
ENV PATH=/opt/trtfleet/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp USER=trtfleet
USER 65532:65532
ENTRYPOINT ["python", "-m", "tuner_job.campaign.worker"]

FROM ${BASE} AS cli
COPY --from=cli-packages /opt/trtfleet /opt/trtfleet
COPY --from=cli-own /own /opt/trtfleet
ENV PATH=/opt/trtfleet/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp USER=trtfleet
USER 65532:65532
ENTRYPOINT ["trtfleet"]
