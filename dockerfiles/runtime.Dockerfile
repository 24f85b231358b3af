# The sandbox runtime for any Linux image: Python with its libraries and loader and the in-sandbox server, in one folder
# that needs nothing of the image it is mounted into. Context: sandboxes/ and self_contained.py.
ARG BASE_IMAGE=debian:trixie-slim
FROM ${BASE_IMAGE}

RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends python3 python3-venv patchelf libstdc++6 >/dev/null \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*

# as long as names in the loader that it takes the place of, see self_contained.py
COPY self_contained.py /opt/gymbox/build/
RUN python3 /opt/gymbox/build/self_contained.py runtime /opt/gymbox/rt

COPY requirements.lock /opt/gymbox/build/
RUN python3 -m venv /opt/gymbox/build/venv \
 && /opt/gymbox/build/venv/bin/pip install -q --no-cache-dir --no-compile --require-hashes \
      --target /opt/gymbox/rt/lib/python3/dist-packages -r /opt/gymbox/build/requirements.lock \
 && python3 /opt/gymbox/build/self_contained.py packages /opt/gymbox/rt/lib/python3/dist-packages /opt/gymbox/rt

# /opt/gymbox/packages: what an environment's manifest asks of pip; empty here, so that there is something to copy.
# Bytecode is taken unchecked, since the volume is read-only, and without column numbers, which saves memory
COPY gymbox_sandbox /opt/gymbox/rt/lib/python3/dist-packages/gymbox_sandbox
ENV PYTHONNODEBUGRANGES=1
RUN mkdir /opt/gymbox/packages \
 && echo /opt/gymbox/packages > /opt/gymbox/rt/lib/python3/dist-packages/gymbox.pth \
 && /opt/gymbox/rt/bin/python3 -m compileall -q -f --invalidation-mode unchecked-hash /opt/gymbox/rt/lib
