"""NeMo Gym's model server alone, as its own launcher makes it, but without Ray and its head server.

Run by the Python of its venv: `python nemo_gym_model.py PORT BACKEND_URL`.
"""

from __future__ import annotations

import logging
import sys

import uvicorn
from nemo_gym.server_utils import (
    BaseServerConfig,
    GlobalAIOHTTPAsyncClientConfig,
    ServerClient,
    set_global_aiohttp_client,
)
from omegaconf import OmegaConf
from responses_api_models.openai_model.app import SimpleModelServer, SimpleModelServerConfig


def main() -> None:
    port, backend = int(sys.argv[1]), sys.argv[2]
    head = BaseServerConfig(host="127.0.0.1", port=1)
    config = SimpleModelServerConfig(
        host="127.0.0.1",
        port=port,
        entrypoint="app.py",
        name="policy_model",
        openai_base_url=f"{backend}/v1",
        openai_api_key="none",
        openai_model="stub",
    )
    client = ServerClient(head_server_config=head, global_config_dict=OmegaConf.create({}))
    server = SimpleModelServer(config=config, server_client=client)
    app = server.setup_webserver()
    server.set_ulimit()
    server.setup_exception_middleware(app)

    async def with_client() -> None:
        set_global_aiohttp_client(GlobalAIOHTTPAsyncClientConfig())

    app.router.on_startup.append(with_client)
    # its launcher's choices: uvicorn's defaults, and an access log of which good answers are filtered out
    logging.getLogger("uvicorn.access").addFilter(lambda record: not record.getMessage().strip().endswith("200"))
    uvicorn.run(app, host="127.0.0.1", port=port, timeout_graceful_shutdown=0.5, timeout_keep_alive=30)


if __name__ == "__main__":
    main()
