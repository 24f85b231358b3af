"""E2B: a server that lets E2B's own SDK use a controller's sandboxes.

It speaks what that SDK speaks: E2B's REST API for the life of a sandbox, and what `envd` answers inside each of
theirs, which is Connect's protocol (JSON, uncompressed) for commands and files, and plain HTTP for the bytes of files.
Of gymbox it uses `gymbox.client` and nothing else, so whatever it can do, a program of anybody's can.
"""
