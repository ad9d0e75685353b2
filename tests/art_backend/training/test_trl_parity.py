"""The same rows, weights and options give the loss and the gradient that TRL's GRPOTrainer computes."""

import numpy as np
import pytest
import safetensors.torch
import torch
from peft import PeftConfig
from peft.utils.save_and_load import set_peft_model_state_dict
from tests.support.tiny import build_tiny_tokenizer
from transformers import AutoModelForCausalLM, TrainerCallback

from art.wire import Algorithm, LoraSpec, TokenRow, TrainOptions
from art_backend.training.algorithms.losses import TokenBatch, policy_loss
from art_backend.training.algorithms.presets import PRESETS
from art_backend.training.policy.adapter import AdapterPolicy
from art_backend.training.rows.batch import build_batch, weigh
from art_backend.training.rows.packing import pack_rows
from art_backend.training.rows.targets import read_targets
from art_backend.training.types import ScoredTrajectory, StepInput

trl = pytest.importorskip("trl", reason="the extra `trl` is not installed")
datasets = pytest.importorskip("datasets")

MAX_LENGTH = 40

SAME = {
    Algorithm.GRPO: {"loss_type": "grpo"},
    Algorithm.DAPO: {"loss_type": "dapo"},
    Algorithm.DR_GRPO: {"loss_type": "dr_grpo"},
    Algorithm.GSPO: {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    Algorithm.CISPO: {"loss_type": "cispo", "epsilon_high": 5.0},
}
"""TRL's names of the losses that both have."""


@pytest.fixture(scope="module")
def group():
    """Four multi-turn trajectories of one group, with observed tokens between the sampled ones."""
    random = np.random.default_rng(5)
    members = []
    for reward, turns in ((0.0, 1), (1.0, 2), (0.25, 3), (0.5, 2)):
        ids, sampled = random.integers(3, 61, 6).tolist(), [False] * 6
        for _ in range(turns):
            ids += random.integers(3, 61, 5).tolist()
            sampled += [True, True, True, False, False]
        row = TokenRow(
            token_ids=ids,
            sampled=sampled,
            logprobs=[-1.0 if s else 0.0 for s in sampled],
            policy_versions=[0 if s else -1 for s in sampled],
            temperature=1.0,
        )
        members.append(ScoredTrajectory(reward, [row]))
    return members


@pytest.fixture(scope="module")
def policy(base_path):
    policy = AdapterPolicy(base_path, LoraSpec(rank=4, alpha=8), precision="float32")
    torch.manual_seed(2)
    policy.weights.copy_(torch.randn_like(policy.weights) * 0.05)
    policy.publish_weights()
    return policy


def our_loss_and_gradient(policy, group, algorithm, kl_coef):
    """On policy: the engine is taken to have reported the trainer's own log-probabilities. The reference is the base model."""
    options = TrainOptions(algorithm=algorithm, scale_rewards=False)
    preset = PRESETS[algorithm]
    batch = build_batch(StepInput([group], options, 1), vocabulary=policy.vocabulary, max_length=MAX_LENGTH)
    policy.gradient.zero_()
    total = 0.0
    for pack in pack_rows(weigh(batch.members, preset.reduction, MAX_LENGTH), 50):
        targets = read_targets(pack, policy.device)
        with policy.as_reference(None):
            reference = targets.logprobs(policy.forward(pack), policy.head).logprobs
        new = targets.logprobs(policy.forward(pack), policy.head).logprobs
        loss = policy_loss(
            TokenBatch(
                logprobs=new,
                engine_logprobs=new.detach(),
                advantages=targets.advantages,
                weights=targets.weights,
                sequences=targets.rows,
                reference_logprobs=reference,
            ),
            level=preset.level,
            surrogate=preset.surrogate,
            epsilon=preset.epsilon,
            epsilon_high=preset.epsilon_high,
            importance_cap=2.0,
            kl_coef=kl_coef,
        )
        loss.loss.backward()
        total += loss.loss.item()
    return total, {name: view.clone() for name, view in policy._flat_views(policy.gradient).items()}


class Recorder(TrainerCallback):
    """Reads the gradient that TRL is about to apply."""

    def __init__(self):
        self.gradient = {}

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        assert model is not None
        self.gradient = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def trl_loss_and_gradient(base, group, directory, **options):
    """Of ``base`` with the adapter in ``directory``; switched off, it is the reference."""
    adapter = PeftConfig.from_pretrained(directory)
    adapter.inference_mode = False
    rows = [(t.reward, t.rows[0]) for t in group]
    n = len(rows)

    def rollout(prompts, trainer):
        assert len(prompts) == n
        starts = [row.sampled.index(True) for _, row in rows]
        cut = list(zip(rows, starts, strict=True))
        return {
            "prompt_ids": [row.token_ids[:s] for (_, row), s in cut],
            "completion_ids": [row.token_ids[s:] for (_, row), s in cut],
            "logprobs": [row.logprobs[s:] for (_, row), s in cut],
            "env_mask": [[int(x) for x in row.sampled[s:]] for (_, row), s in cut],
            "outcome": [reward for reward, _ in rows],
        }

    def reward(outcome, **_):
        return outcome

    recorder = Recorder()
    config = trl.GRPOConfig(
        output_dir=str(directory),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=n,
        num_generations=n,
        max_steps=1,
        learning_rate=1e-9,
        max_completion_length=MAX_LENGTH,
        max_grad_norm=0.0,
        scale_rewards="none",
        use_bias_correction_kl=False,  # its default weighs k3 by the ratio, whose gradient counts; ours is k3 as it is
        temperature=1.0,
        gradient_checkpointing=False,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        **options,
    )
    trainer = trl.GRPOTrainer(
        model=base,
        peft_config=adapter,
        reward_funcs=reward,
        args=config,
        train_dataset=datasets.Dataset.from_list([{"prompt": "unused"}]),
        processing_class=build_tiny_tokenizer(),
        rollout_func=rollout,
        callbacks=[recorder],
    )
    set_peft_model_state_dict(trainer.model, safetensors.torch.load_file(directory / "adapter_model.safetensors"))
    trainer.train()
    return trainer.state.log_history[0]["loss"], recorder.gradient


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("algorithm", "kl_coef"), [*((algorithm, 0.0) for algorithm in SAME), (Algorithm.GRPO, 0.3), (Algorithm.DAPO, 0.3)]
)
def test_loss_and_gradient_equal_trl_s(policy, group, base_path, tmp_path, algorithm, kl_coef):
    loss, gradient = our_loss_and_gradient(policy, group, algorithm, kl_coef)
    policy.save(tmp_path)
    base = AutoModelForCausalLM.from_pretrained(base_path, dtype=torch.float32)
    their_loss, their_gradient = trl_loss_and_gradient(base, group, tmp_path, beta=kl_coef, **SAME[algorithm])
    assert loss == pytest.approx(their_loss, rel=1e-4, abs=1e-6)
    assert gradient.keys() == their_gradient.keys()
    assert any(g.abs().max() > 1e-4 for g in gradient.values())
    for name, ours in gradient.items():
        torch.testing.assert_close(ours, their_gradient[name], rtol=1e-3, atol=1e-6)
