import warnings

import pytest

from art.backend.options import SftKeywords, TrainKeywords, build_options
from art.compat import training
from art.wire import Algorithm, KlPlace, SftOptions, TrainOptions


def scale_down(rewards, scale):
    return [r / 2 for r in rewards]


@pytest.fixture(autouse=True)
def fresh_warnings():
    training._warned.clear()


def test_defaults_are_those_of_the_service():
    assert build_options(5e-6, {}) == TrainOptions()
    assert build_options(5e-6, {"epsilon": None, "kl_coef": 0.0, "kimi_k2_tau": None}) == TrainOptions()


def test_options_by_their_own_and_by_other_names():
    options = build_options(
        1e-3,
        {
            "kl_coef": 0.1,
            "packed_sequence_length": 512,
            "loss_type": "grpo",
            "normalize_advantages": False,
            "adam_params": {"beta1": 0.8, "beta2": 0.95},
            "max_grad_norm": 0.5,
        },
    )
    assert options == TrainOptions(
        learning_rate=1e-3,
        kl_coef=0.1,
        micro_batch_tokens=512,
        algorithm=Algorithm.GRPO,
        scale_rewards=False,
        adam_betas=(0.8, 0.95),
        max_grad_norm=0.5,
    )


def test_own_names_win():
    assert build_options(1.0, {"truncated_importance_sampling": 5.0, "importance_cap": 3.0}).importance_cap == 3.0
    assert build_options(1.0, {"importance_cap": 3.0, "truncated_importance_sampling": 5.0}).importance_cap == 3.0
    assert build_options(1.0, {"importance_cap": None}).importance_cap is None


def test_an_option_without_effect_warns_once_and_only_when_set():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_options(1.0, {"plot_tensors": False, "logprob_calculation_chunk_size": 1024})
    with pytest.warns(UserWarning, match="plot_tensors=True") as caught:
        build_options(1.0, {"plot_tensors": True})
        build_options(1.0, {"plot_tensors": True})
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("options", "algorithm"),
    [
        ({"loss_fn": "cispo"}, Algorithm.CISPO),
        ({"loss_fn": "ppo"}, Algorithm.DAPO),
        ({"loss_type": "dr_grpo"}, Algorithm.DR_GRPO),
        ({"loss_type": "bnpo"}, Algorithm.DAPO),
        ({"loss_type": "cispo"}, Algorithm.CISPO),
        ({"loss_fn": "cispo", "algorithm": "gspo"}, Algorithm.GSPO),
        ({"algorithm": "gspo", "loss_fn": "cispo"}, Algorithm.GSPO),
    ],
)
def test_names_of_losses_by_other_trainers(options, algorithm):
    assert build_options(1.0, options).algorithm is algorithm


def test_kl_by_its_older_name_acts_on_the_advantage():
    options = build_options(1.0, {"kl_penalty_coef": 0.1, "kl_penalty_reference_step": 3})
    assert (options.kl_coef, options.kl_in, options.kl_reference_step) == (0.1, KlPlace.ADVANTAGE, 3)
    assert build_options(1.0, {"kl_penalty_coef": 0.1, "kl_in": "loss"}).kl_in is KlPlace.LOSS
    assert build_options(1.0, {"kl_penalty_coef": 0.0, "kl_coef": 0.2}) == TrainOptions(learning_rate=1.0, kl_coef=0.2)


def test_functions_travel_by_name():
    options = build_options(1.0, {"advantage": scale_down, "loss": "my.losses:own"})
    assert (options.advantage, options.loss) == (f"{__name__}:scale_down", "my.losses:own")


def test_a_function_of_the_program_itself_has_to_move():
    def like_main(): ...

    like_main.__module__, like_main.__qualname__ = "__main__", "like_main"
    with pytest.raises(ValueError, match="module beside the program"):
        build_options(1.0, {"advantage": like_main})


def test_ratios_over_sequences_are_gspo():
    assert build_options(1.0, {"importance_sampling_level": "sequence"}).algorithm is Algorithm.GSPO
    assert (
        build_options(1.0, {"importance_sampling_level": "sequence", "algorithm": "gspo"}).algorithm is Algorithm.GSPO
    )
    assert build_options(1.0, {"importance_sampling_level": "token"}).algorithm is TrainOptions().algorithm


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"advantage_balance": 0.5}, "advantage_balance=0.5 .*advantage=…"),
        ({"drop_zero_advantage_trajectories": False}, "drop_zero_advantage_trajectories=False .*never trained"),
        ({"importance_sampling_level": "average"}, "importance_sampling_level='average' .*token, sequence"),
        ({"importance_sampling_level": "geometric_average"}, "importance_sampling_level='geometric_average'"),
        ({"importance_sampling_level": "sequence", "loss_fn": "cispo"}, "algorithm='gspo' .*algorithm='cispo'"),
        ({"kimi_k2_tau": 0.1}, "kimi_k2_tau=0.1 .*loss=…"),
        ({"loss_fn_config": {"clip_high_threshold": 4}}, "loss_fn_config=.*epsilon_high"),
        ({"loss_type": "dr_grpo", "max_completion_length": 256}, "max_completion_length .*learning_rate"),
        ({"mask_prob_ratio": True}, "mask_prob_ratio=True .*loss=…"),
        ({"num_trajectories_learning_rate_multiplier_power": 0.5}, "multiplier_power=0.5 .*learning_rate"),
        ({"ppo": True, "loss_fn": "cispo"}, "ppo=True clips .*leave one of them out"),
        ({"scale_learning_rate_by_reward_std_dev": True}, "by_reward_std_dev=True .*learning_rate"),
    ],
)
def test_what_would_change_the_mathematics_and_is_not_there_is_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        build_options(1.0, options)


def test_what_changes_nothing_is_taken_without_a_word():
    neutral = {"kimi_k2_tau": 0.0, "loss_fn_config": {}, "max_completion_length": 256, "ppo": True}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build_options(5e-6, neutral) == TrainOptions()


def test_unknown_names_are_errors():
    with pytest.raises(TypeError, match="unknown options: a, b"):
        build_options(1.0, {"b": 1, "a": 2})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("loss_type", "mystery", "loss_type='mystery' is not available"),
        ("kl_ref_adapter_path", "/a", "Set kl_reference_step"),
        ("schedule", "linear", "needs total_steps"),
        ("loss", lambda batch: batch, "loss=.* cannot be named"),
        ("advantage", "no_colon", "advantage: "),
        ("max_negative_advantage_importance_sampling_weight", 0.5, "negative_advantage_cap: "),
        ("loss_fn", "mystery", "loss_fn='mystery' is not available"),
        ("epsilon", -1, "epsilon: .*greater than or equal to 0"),
        ("overlong", "maybe", "overlong: "),
    ],
)
def test_values_that_cannot_be_honoured_are_errors(name, value, message):
    with pytest.raises(ValueError, match=message):
        build_options(1.0, {name: value})


def test_keywords_are_the_options_of_the_service():
    of_the_frontend = {"allow_training_without_logprobs"}
    assert set(TrainKeywords.__annotations__) - of_the_frontend == set(TrainOptions.model_fields) - {"learning_rate"}
    assert set(SftKeywords.__annotations__) == set(SftOptions.model_fields) - {"learning_rates", "batch_size"}
