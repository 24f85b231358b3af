# What a manifest asks of pip, for the runtime's Python. Context: requirements.txt.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}

COPY requirements.txt /opt/gymbox/build/
RUN /opt/gymbox/build/venv/bin/pip install -q --no-cache-dir --target /opt/gymbox/packages \
      -r /opt/gymbox/build/requirements.txt \
 && python3 /opt/gymbox/build/self_contained.py packages /opt/gymbox/packages /opt/gymbox/rt
