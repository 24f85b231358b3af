"""llama.cpp's own server with the small model behind it, as a user would start one: three dialects, no gymbox."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gymbox.models.local import bundled_model

TEMPLATE = """
{%- set ns = namespace(system='') %}
{%- if messages[0].role == 'system' %}{% set ns.system = messages[0].content %}{% endif %}
{%- if tools %}
{%- set ns.system = ns.system + 'Call functions in <tool_call></tool_call>:' %}
{%- for tool in tools %}{% set ns.system = ns.system + '\n' + (tool.function | tojson) %}{% endfor %}
{%- endif %}
{%- if ns.system %}{{- '<|im_start|>system\n' + ns.system + '<|im_end|>\n' }}{% endif %}
{%- for message in messages if message.role != 'system' %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.reasoning_content %}{{- '<think>\n' + message.reasoning_content + '\n</think>\n' }}{% endif %}
{%- if message.content %}{{- message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
{%- if message.content or not loop.first %}{{- '\n' }}{% endif %}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}
"""
"""The model's own format of turns, and calls as JSON between tags, which llama.cpp reads back as calls. The model's
own template knows no tools."""
THINKING = TEMPLATE.replace("{{- '<|im_start|>assistant\n' }}", "{{- '<|im_start|>assistant\n<think>\n' }}")
"""The same, of a model that always begins with a thought."""


@contextmanager
def llama_server(template: str | None = None) -> Iterator[str]:
    """Its address. One request at a time and nothing cached, so that a request gives the same tokens each time.

    Args:
        template: in the place of the model's own.
    """
    import xllamacpp

    settings: Any = xllamacpp.CommonParams()
    settings.model.path = str(bundled_model())
    settings.model_alias = {"m"}
    settings.n_ctx, settings.n_parallel, settings.cpuparams.n_threads = 1024, 1, 1
    settings.cache_prompt, settings.cache_ram_mib = False, 0
    settings.ui, settings.verbosity = False, -1
    if template is not None:
        settings.chat_template = template
    held = [xllamacpp.Server(settings)]
    try:
        yield str(held[0].listening_address)
    finally:
        # its destructor ends the server
        held.clear()
