"""Keys: a vendor's own API that would be asked without one is refused before anything has started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from pydantic import SecretStr

from gymbox.errors import ConfigError
from gymbox.models.replicas import Replica

_SHOWN_IN = ("authorization", "x-api-key")


def refuse_without_key(
    name: str,
    replicas: Iterable[Replica],
    key: SecretStr | None,
    headers: Mapping[str, SecretStr],
    *,
    host: str,
    variable: str,
) -> None:
    """
    Args:
        name: the model's.
        host: where nobody is answered without a key; other addresses may do without.
        variable: the environment variable from which the model's key is read.

    Raises:
        ConfigError: one of the replicas is there, and has no key.
    """
    if any(each.lower() in _SHOWN_IN for each in headers):
        return
    for replica in replicas:
        given = replica.api_key or key
        if urlsplit(replica.url).hostname == host and not (given and given.get_secret_value()):
            raise ConfigError(
                f"model {name!r} is to be asked at {replica.url}, which wants a key, and there is none: set "
                f"{variable}, or the model's api_key; another server is named by its base_url"
            )
