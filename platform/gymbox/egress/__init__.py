"""Egress: the process through which sandboxes reach what their network policy names, and nothing else.

A sandbox has no route out of its network namespace. What it has is a relay on its loopback and a unix socket in its
directory; behind that socket this process decides about each connection, makes it, and tells of it:

__main__    the process: which sandboxes there are, told over one socket by the provider
ways        one sandbox's connections: what kind each is, and what is refused
plain       HTTP without TLS, a request at a time
tunnels     CONNECT, and TLS that came without it
names       answers to questions about names
places      where a name leads, and what is never connected to
ledger      what was let through and what was refused
"""
