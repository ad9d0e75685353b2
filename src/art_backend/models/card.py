"""The README of an exported model: what it is, how to load it, how to serve it."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from art_backend.engines.vllm import LORA_RANKS


@dataclass(frozen=True)
class ModelCard:
    """The facts about an exported version."""

    directory: Path
    project: str
    name: str
    step: int
    base_model: str
    """The base model's name: a hub id, or a directory."""
    base_source: str
    """The name that loads the base model on this machine: its hub id, or the directory of a local or packaged one."""
    rank: int | None
    """Of the adapter; ``None`` for a whole model."""

    @property
    def kind(self) -> str:
        return "a whole model" if self.rank is None else f"an adapter for {self.base_model}"

    @property
    def load(self) -> str:
        """Python that loads it."""
        return f"AutoModelForCausalLM.from_pretrained({str(self.directory)!r})"

    @property
    def serve(self) -> str:
        """The command that lets vLLM serve it."""
        folder = shlex.quote(str(self.directory))
        if self.rank is None:
            return f"vllm serve {folder} --served-model-name {shlex.quote(self.name)}"
        rank = next(allowed for allowed in LORA_RANKS if allowed >= self.rank)
        return (
            f"vllm serve {shlex.quote(self.base_source)} --enable-lora --max-lora-rank {rank} "
            f"--lora-modules {shlex.quote(f'{self.name}={self.directory}')}"
        )

    def write(self) -> str:
        """The card as Markdown."""
        library = "transformers" if self.rank is None else "peft"
        on_hub = self.base_model.count("/") == 1 and not self.base_model.startswith((".", "/", "~"))
        base = [f"base_model: {self.base_model}"] if on_hub else []
        head = ["---", *base, f"library_name: {library}", "pipeline_tag: text-generation", "tags:", "- art"]
        head += ["- lora"] if self.rank is not None else []
        return "\n".join([*head, "---", "", *self._body(), ""])

    def _body(self) -> list[str]:
        lines = [
            f"# {self.name}",
            "",
            f"Version {self.step} of `{self.project}/{self.name}`, {self.kind}, trained with ART. The folder includes the tokenizer.",
            "",
        ]
        if self.rank is not None and self.base_source != self.base_model:
            lines += [
                f"It was trained on the copy of the base model in `{self.base_source}`, which `adapter_config.json` names. On "
                f"another machine, put `{self.base_model}` there.",
                "",
            ]
        return [*lines, *self._loading(), *self._serving()]

    def _loading(self) -> list[str]:
        return [
            "## Load it",
            "",
            "With transformers" + ("" if self.rank is None else " and peft") + ":",
            "",
            "```python",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            f"tokenizer = AutoTokenizer.from_pretrained({str(self.directory)!r})",
            f"model = {self.load}",
            'messages = [{"role": "user", "content": "Hello!"}]',
            'inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)',
            "output = model.generate(**inputs, max_new_tokens=32)",
            'print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))',
            "```",
            "",
        ]

    def _serving(self) -> list[str]:
        folder = shlex.quote(str(self.directory))
        lines = ["## Serve it", "", "With vLLM:", "", "```bash", self.serve, "```", ""]
        if self.rank is not None:
            here = Path(self.base_source).is_dir()
            base = shlex.quote(self.base_source) if here else "base"
            return [
                *lines,
                "With llama.cpp (the two scripts are in its repository):",
                "",
                "```bash",
                *([] if here else [f"hf download {shlex.quote(self.base_source)} --local-dir base"]),
                f"python convert_hf_to_gguf.py {base} --outfile base.gguf",
                f"python convert_lora_to_gguf.py {folder} --base {base} --outfile adapter.gguf",
                "llama-server -m base.gguf --lora adapter.gguf",
                "```",
                "",
                "With Ollama: export it with `--merged`; the README in that folder has the commands.",
            ]
        return [
            *lines,
            "With llama.cpp (the script is in its repository):",
            "",
            "```bash",
            f"python convert_hf_to_gguf.py {folder} --outfile model.gguf",
            "llama-server -m model.gguf",
            "```",
            "",
            "With Ollama:",
            "",
            "```bash",
            f"cd {folder} && echo 'FROM .' > Modelfile && ollama create {shlex.quote(self.name)}",
            f"ollama run {shlex.quote(self.name)}",
            "```",
        ]
