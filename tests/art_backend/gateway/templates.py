"""Small chat templates in the notations of well-known families, and the tiny tokenizer with the marks that they use.

Each is written for these tests: the marks, the layout of calls and the demands are the family's, the rest is left out.
"""

from dataclasses import dataclass

from tests.support.tiny import build_tiny_tokenizer
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class Template:
    text: str
    special: tuple[str, ...] = ()
    """Marks that are special tokens, which have no text."""
    marks: tuple[str, ...] = ()
    """Marks that are added tokens with a text."""


def with_template(template: Template) -> PreTrainedTokenizerFast:
    tokenizer = build_tiny_tokenizer()
    tokenizer.chat_template = template.text
    tokenizer.add_tokens(
        [AddedToken(mark, special=True, normalized=False) for mark in template.special], special_tokens=True
    )
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in template.marks])
    return tokenizer


MISTRAL = Template(
    """{%- set asked = messages | selectattr('role', 'equalto', 'user') | list %}
{%- for m in messages %}
{%- if m.role == 'user' %}
{%- if tools and m == asked[-1] %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST] {{ m.content }}[/INST]
{%- elif m.role == 'tool' %}
{%- if m.tool_call_id is not defined or m.tool_call_id | length != 9 %}
{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif -%}
[TOOL_RESULTS] {"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]
{%- elif m.tool_calls %}[TOOL_CALLS] [
{%- for call in m.tool_calls %}
{%- if call.id is not defined or call.id | length != 9 %}
{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif -%}
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}
{%- if not loop.last %}, {% endif %}{% endfor %}]<|im_end|>
{%- elif m.role == 'assistant' %} {{ m.content }}<|im_end|>
{%- else %}{{ m.content }}{% endif %}{% endfor %}""",
    special=(
        "[INST]",
        "[/INST]",
        "[TOOL_CALLS]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
    ),
)

LLAMA = Template(
    """{%- if messages[0].role == 'system' %}{% set system = messages[0].content | trim %}{% set messages = messages[1:] %}
{%- else %}{% set system = '' %}{% endif -%}
<|begin_of_text|><|start_header_id|>system<|end_header_id|>

{{ system }}<|eot_id|>
{%- for m in messages %}
{%- if m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif -%}
<|start_header_id|>assistant<|end_header_id|>

{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}<|eot_id|>
{%- elif m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>

{{ m.content | tojson }}<|eot_id|>
{%- else %}<|start_header_id|>{{ m.role }}<|end_header_id|>

{% if tools and loop.first %}Respond with {"name": function name, "parameters": dictionary}.
{% for tool in tools %}{{ tool | tojson(indent=4) }}

{% endfor %}{% endif %}{{ m.content | trim }}<|eot_id|>{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}""",
    special=(
        "<|begin_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|python_tag|>",
    ),
)

QWEN_CODER = Template(
    """{%- if tools %}
    {{- '<|im_start|>system\n' }}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
    {{- '\n<tools>' }}
    {%- for tool in tools %}
        {{- '\n<function>\n<name>' + tool.function.name + '</name>\n<description>' + tool.function.description | trim }}
        {{- '</description>\n' + tool.function.parameters | tojson + '\n</function>' }}
    {%- endfor %}
    {{- '\n</tools><|im_end|>\n' }}
{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {{- '<|im_start|>assistant' }}
        {%- if m.content or not m.tool_calls %}{{ '\n' + m.content | trim + ('\n' if m.tool_calls else '') }}{% endif %}
        {%- for call in m.tool_calls or [] %}
            {{- '\n<tool_call>\n<function=' + call.function.name + '>\n' }}
            {%- for key, value in call.function.arguments | items %}
                {{- '<parameter=' + key + '>\n' + (value if value is string else value | tojson) + '\n</parameter>\n' }}
            {%- endfor %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif m.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
    {%- elif m.role == 'user' or not (tools and loop.first) %}
        {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
    marks=("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
)

_CHATML = """{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}
{%- if m.tool_calls %}CALLS{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}{#- tools #}"""


def chatml(calls: str, special: tuple[str, ...] = (), marks: tuple[str, ...] = ()) -> Template:
    """ChatML that writes calls in some way."""
    return Template(_CHATML.replace("CALLS", calls), special, marks)


NOTATIONS = {
    "hermes": chatml(
        """{% for c in m.tool_calls %}{% if not loop.first %}{{ '\\n' }}{% endif -%}
        {{ '<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments | tojson + '}\\n</tool_call>' }}
        {%- endfor %}""",
        marks=("<tool_call>", "</tool_call>"),
    ),
    "llama": LLAMA,
    "mistral": MISTRAL,
    "mistral with arguments apart": chatml(
        "{% for c in m.tool_calls %}{{ '[TOOL_CALLS]' + c.function.name + '[ARGS]' + c.function.arguments | tojson }}{% endfor %}",
        special=("[TOOL_CALLS]", "[ARGS]"),
    ),
    "mistral with ids": chatml(
        "{% for c in m.tool_calls %}{{ '[TOOL_CALLS]' + c.function.name + '[CALL_ID]' + c.id + '[ARGS]'"
        " + c.function.arguments | tojson }}{% endfor %}",
        special=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    ),
    "qwen-coder": QWEN_CODER,
    "functions without a wrapper": chatml(
        """{% for c in m.tool_calls %}{{ '<function=' + c.function.name + '>\\n' }}{% for k, v in c.function.arguments | items -%}
        {{ '<parameter=' + k + '>\\n' + (v if v is string else v | tojson) + '\\n</parameter>\\n' }}{% endfor -%}
        {{ '</function>' }}{% endfor %}"""
    ),
    "glm": chatml(
        """{% for c in m.tool_calls %}{{ '\\n<tool_call>' + c.function.name }}{% for k, v in c.function.arguments | items -%}
        {{ '\\n<arg_key>' + k + '</arg_key>\\n<arg_value>' + (v if v is string else v | tojson) + '</arg_value>' }}{% endfor -%}
        {{ '\\n</tool_call>' }}{% endfor %}""",
        marks=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    "minimax": chatml(
        """{{ '<minimax:tool_call>\\n' }}{% for c in m.tool_calls %}{{ '<invoke name="' + c.function.name + '">\\n' -}}
        {% for k, v in c.function.arguments | items -%}
        {{ '<parameter name="' + k + '">' + (v if v is string else v | tojson) + '</parameter>\\n' }}{% endfor -%}
        {{ '</invoke>\\n' }}{% endfor %}{{ '</minimax:tool_call>' }}"""
    ),
    "deepseek": chatml(
        """{{ '<｜tool▁calls▁begin｜>' }}{% for c in m.tool_calls %}{% if not loop.first %}{{ '\\n' }}{% endif -%}
        {{ '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + c.function.name + '\\n```json\\n' + c.function.arguments | tojson -}}
        {{ '\\n```<｜tool▁call▁end｜>' }}{% endfor %}{{ '<｜tool▁calls▁end｜>' }}""",
        special=(
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁sep｜>",
        ),
    ),
    "pythonic": chatml(
        """{{ '[' }}{% for c in m.tool_calls %}{{ c.function.name + '(' }}{% for k, v in c.function.arguments | items -%}
        {{ k + '=' }}{% if v is string %}{{ '"' + v + '"' }}{% elif v is boolean %}{{ 'True' if v else 'False' }}{% else %}
        {{- v | tojson }}{% endif %}{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ')' }}
        {%- if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ']' }}"""
    ),
    "pythonic between tags": chatml(
        """{{ '<|tool_call_start|>[' }}{% for c in m.tool_calls %}{{ c.function.name + '(' }}{% for k, v in c.function.arguments | items -%}
        {{ k + '=' }}{% if v is string %}{{ '"' + v + '"' }}{% else %}{{ v | tojson }}{% endif -%}
        {% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ')' }}
        {%- if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ']<|tool_call_end|>' }}""",
        special=("<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    "a list between tags": chatml(
        """{{ '<|tool_call|>[' }}{% for c in m.tool_calls -%}
        {{ '{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments | tojson + '}' -}}
        {% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ']<|/tool_call|>' }}""",
        special=("<|tool_call|>", "<|/tool_call|>"),
    ),
    "whole calls": chatml("{{ '<calls>' + m.tool_calls | tojson + '</calls>' }}"),
    "command-r": chatml(
        """{{ '<|START_ACTION|>[' }}{% for c in m.tool_calls -%}
        {{ '{"tool_call_id": "' + c.id + '", "tool_name": "' + c.function.name + '", "parameters": ' + c.function.arguments | tojson + '}' -}}
        {% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ']<|END_ACTION|>' }}""",
        special=("<|START_ACTION|>", "<|END_ACTION|>"),
    ),
    "react": chatml(
        "{{ 'Action: ' + m.tool_calls[0].function.name + '\\nAction Input: ' + m.tool_calls[0].function.arguments | tojson }}"
        "{% if m.tool_calls | length > 1 %}{{ raise_exception('one at a time') }}{% endif %}"
    ),
}
"""Templates by the notation of their calls. Between them they have every way of writing calls that is known here."""
