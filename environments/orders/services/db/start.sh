#!/bin/sh
set -eu
cp -a /opt/cluster /var/lib/postgresql/data
exec postgres -D /var/lib/postgresql/data "$@"
