# An environment's image on any Linux image: what its base is, its files (never its data or tests), and what the runtime
# that is mounted into its sandboxes wants to know. No step runs a program, since the base may have none.
# Context: the environment's files under files/; under follows/, accounts and variables as the base has them.
ARG BASE_IMAGE
ARG PACKAGES_IMAGE
FROM ${PACKAGES_IMAGE} AS packages
FROM ${BASE_IMAGE}
USER 0:0

COPY follows/ /
COPY --from=packages /opt/gymbox/packages /opt/gymbox/packages
COPY files/ /opt/gymbox/environment/
