# The sandbox runtime: Python, the in-sandbox server, and its two users. Context: sandboxes/.
# Builds from the real debian:trixie-slim as well as from the one that gymbox.setup_base_image makes.
ARG BASE_IMAGE=debian:trixie-slim
FROM ${BASE_IMAGE}

RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends python3 python3-venv >/dev/null \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*

# group 10003 is the proxy's: it may connect to the server's socket, the agent may not
RUN groupadd --gid 10003 gymbox-proxy \
 && groupadd --gid 10002 gymbox-server && useradd --uid 10002 --gid 10002 --no-create-home gymbox-server \
 && groupadd --gid 10001 agent && useradd --uid 10001 --gid 10001 --create-home --shell /bin/bash agent \
 && install -d -o agent -g agent /workspace && install -d /opt/gymbox/environment

# bytecode without column numbers, and without tests: each sandbox holds less of it in memory
ENV PYTHONNODEBUGRANGES=1
RUN python3 -m compileall -q -f -x '/(test|idlelib|tkinter|lib2to3|dist-packages)/' \
    "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"

COPY requirements.lock /opt/gymbox/
RUN python3 -m venv /opt/gymbox/venv \
 && /opt/gymbox/venv/bin/pip install -q --no-cache-dir --require-hashes -r /opt/gymbox/requirements.lock

# tests only: where /coverage is mounted, measure the code that runs in the sandbox
ARG COVERAGE=""
RUN if [ -n "${COVERAGE}" ]; then \
      /opt/gymbox/venv/bin/pip install -q --no-cache-dir "coverage==${COVERAGE}" \
      && printf '[run]\nparallel = True\nsigterm = True\npatch = _exit\nsource = /opt/gymbox/lib\ndata_file = /coverage/data\n' \
         > /opt/gymbox/coveragerc \
      && printf 'import os; os.path.isdir("/coverage") and (%s, %s)\n' \
         'os.environ.setdefault("COVERAGE_PROCESS_START", "/opt/gymbox/coveragerc")' \
         '__import__("coverage").process_startup()' \
         > "$(/opt/gymbox/venv/bin/python -c 'import site; print(site.getsitepackages()[0])')/coverage.pth"; \
    fi

# a path that does not depend on the version of the base's Python
COPY gymbox_sandbox /opt/gymbox/lib/gymbox_sandbox
RUN echo /opt/gymbox/lib > "$(/opt/gymbox/venv/bin/python -c 'import site; print(site.getsitepackages()[0])')/gymbox.pth" \
 && /opt/gymbox/venv/bin/python -m compileall -q /opt/gymbox/lib

# the root file system is read-only when it runs
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 LANG=C.UTF-8
WORKDIR /workspace
