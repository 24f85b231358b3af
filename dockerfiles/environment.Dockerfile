# An environment's image: the sandbox runtime, what its manifest asks for, and its files (never its data or tests).
# Context: the environment's files under files/, its pip requirements in requirements.txt.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
USER root

ARG PACKAGES=""
COPY requirements.txt /opt/gymbox/environment-requirements.txt
RUN if [ -n "${PACKAGES}" ]; then \
      apt-get update -qq && apt-get install -y -qq --no-install-recommends -- ${PACKAGES} >/dev/null \
      && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*; \
    fi \
 && if [ -s /opt/gymbox/environment-requirements.txt ]; then \
      /opt/gymbox/venv/bin/pip install -q --no-cache-dir -r /opt/gymbox/environment-requirements.txt; \
    fi

COPY files/ /opt/gymbox/environment/
