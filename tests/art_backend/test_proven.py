"""Only kinds of models that are proven are registered, whichever engine serves them."""

import json

import pytest
from tests.support.tiny import build_tiny_tokenizer

from art.wire import LoraSpec, RegisterModel
from art_backend.engines.process import EngineSettings, Launch
from art_backend.errors import ModelNotAvailableError
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
    "gemma3_text": "Gemma3ForCausalLM",
    "glm4": "Glm4ForCausalLM",  # vLLM takes no adapter on its fused gate_up_proj
    "granite": "GraniteForCausalLM",
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
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding_window"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 128, "max_window_layers": 0}, "sliding"),
        ({"model_type": "qwen3", "num_hidden_layers": 1, "layer_types": ["sliding_attention"]}, "sliding_attention"),
        ({"model_type": "llama", "final_logit_softcapping": 30.0}, r"final_logit_softcapping=30\.0"),
        ({"model_type": "llama", "logits_scaling": 8.0}, r"logits_scaling=8\.0"),
    ],
)
def test_a_proven_kind_that_attends_or_ends_otherwise_is_refused(config, named, base):
    with pytest.raises(ModelNotAvailableError, match=named):
        check_proven(base(**config), "it")


def test_the_trainer_asks_the_same_question(base):
    with pytest.raises(ModelNotAvailableError, match="model_type='jamba'"):
        AdapterPolicy(base(model_type="jamba"), LoraSpec())


@pytest.mark.parametrize("content", ["", "[]", "{}", "{", '{"model_type": "llama", "hidden_size": "wide"}'])
def test_a_configuration_that_cannot_be_read_is_named(content, base):
    directory = base()
    (directory / "config.json").write_text(content)
    with pytest.raises(ModelNotAvailableError, match=r"config\.json is not the configuration of a model"):
        check_proven(directory, "it")


@pytest.mark.parametrize("kind", PROVEN)
def test_proven_kinds_pass_with_their_usual_settings(kind, base):
    window = {"sliding_window": None} if kind == "mistral" else {}
    check_proven(base(model_type=kind, **window), "it")


def _no_engine(settings: EngineSettings, port: int, api_key: str) -> Launch:
    raise ProcessDiedError("this test has no engine")
