"""Plain: the server of sandboxes that are made of an image alone: commands and files, and no tools of its own."""

from gymbox_sandbox import ResourcesServer


class Plain(ResourcesServer):
    """Nothing but a workspace."""
