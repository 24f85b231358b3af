# Debian packages in an image that has apt.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
USER 0:0

ARG PACKAGES
RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -- ${PACKAGES} >/dev/null \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*
