"""Only kinds of models that are proven are registered, whichever engine serves them."""

import json

import pytest
from tests.support.tiny import build_tiny_tokenizer

from art.wire import LoraSpec, RegisterModel
from art_backend.engines.process import EngineSettings, Launch
from art_backend.errors import ModelNotAvailableError
from art_backend.models.base import context_length
from art_backend.planning.architecture import PROVEN, check_proven
from art_backend.process import ProcessDiedError
from art_backend.service import Service
from art_backend.settings import Settings
from art_backend.training.policy.adapter import AdapterPolicy

UNPROVEN = {
    "nemotron_h": "NemotronHForCausalLM",
    "jamba": "JambaForCausalLM",
    "falcon_h1": "FalconH1ForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "glm4": "Glm4ForCausalLM",  # vLLM takes no adapter on its fused gate_up_proj
    "gpt_oss": "GptOssForCausalLM",
    "mamba": "MambaForCausalLM",
    "somebody_s_own": "SomethingNew",
}


@pytest.fixture
def base(tmp_path):
    """``base(**config)``: a directory that looks like a base model until its weights are read."""

    def make(**config):
        directory = tmp_path / "base"
        build_tiny_tokenizer().save_pretrained(directory)
        (directory / "config.json").write_text(json.dumps(config))
        (directory / "model.safetensors").touch()
        return directory

    return make


@pytest.mark.parametrize("engine", ["torch", "vllm"])
@pytest.mark.parametrize("kind", UNPROVEN)
async def test_other_kinds_are_refused_by_name_at_register(kind, engine, base, tmp_path):
    directory = base(model_type=kind, architectures=[UNPROVEN[kind]])
    service = Service(Settings(path=tmp_path / "data", api_key="k", engine=engine), _no_engine)
    with pytest.raises(ModelNotAvailableError, match=f"model_type='{kind}'.*{', '.join(PROVEN)}") as refused:
        await service.register(RegisterModel(project="p", name="m", base_model=str(directory)))
    assert refused.value.param == "base_model"
    assert service.served() == []
    assert service.runs.list_models() == []
    await service.close()


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"model_type": "qwen3", "num_hidden_layers": 1, "layer_types": ["chunked_attention"]}, "chunked_attention"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
    ],
)
def test_a_proven_kind_that_attends_otherwise_is_refused(config, named, base):
    with pytest.raises(ModelNotAvailableError, match=named):
        check_proven(base(**config), "it")


def test_the_trainer_asks_the_same_question(base):
    with pytest.raises(ModelNotAvailableError, match="model_type='jamba'"):
        AdapterPolicy(base(model_type="jamba"), LoraSpec())


@pytest.mark.parametrize("content", ["", "[]", "{}", "{", '{"model_type": "llama", "hidden_size": "wide"}'])
def test_a_configuration_that_cannot_be_read_is_named(content, base):
    directory = base()
    (directory / "config.json").write_text(content)
    with pytest.raises(ModelNotAvailableError, match=r"config\.json is not a model configuration"):
        check_proven(directory, "it")


@pytest.mark.parametrize("kind", PROVEN)
def test_proven_kinds_pass_with_their_usual_settings(kind, base):
    check_proven(base(model_type=kind), "it")


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({}, None),
        ({"max_position_embeddings": 8192, "rope_parameters": {"rope_type": "yarn"}}, 8192),
        (
            {
                "max_position_embeddings": 131_072,
                "original_max_position_embeddings": 4096,
                "rope_scaling": {"type": "longrope"},
            },
            4096,
        ),
        (
            {
                "max_position_embeddings": 131_072,
                "rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 2048},
            },
            2048,
        ),
    ],
)
def test_positions_that_change_with_the_length_limit_it(config, length, base):
    assert context_length(base(**config)) == length


def _no_engine(settings: EngineSettings, port: int, api_key: str) -> Launch:
    raise ProcessDiedError("this test has no engine")
