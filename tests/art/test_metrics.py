import pytest

from art.logs.rows import (
    build_row,
    count_groups,
)
from art.metrics import (
    MetricsBuilder,
    is_builder_managed_metric,
    is_cumulative_metric_key,
    to_cumulative_metric_key,
    track_api_cost,
)
from art.trajectories import Trajectory, TrajectoryGroup


async def test_flush_rolls_up_costs_and_accumulates():
    builder = MetricsBuilder("train")
    builder.add_cost("train/judge/a", 1.0)
    builder.add_cost("train/judge/b", 2.0)
    builder.add_cost("gpu", 4.0)
    builder.add_cost("gpu", 1.0)
    builder.add_data(step_num_scenarios=2, step_actor_tokens=100, scenario_ids=["a", "b", "a"])
    builder.add_user_timing(step_actor_s=4.0)
    builder.add_metric("throughput/step_trainer_idle_s", 3.0)
    row = await builder.flush()
    assert row == {
        "costs/train/judge/a": 1.0,
        "costs/train/judge/b": 2.0,
        "costs/train/judge": 3.0,
        "costs/train": 3.0,
        "costs/gpu": 5.0,
        "costs/all": 8.0,
        "costs/cum/train/judge/a": 1.0,
        "costs/cum/train/judge/b": 2.0,
        "costs/cum/train/judge": 3.0,
        "costs/cum/train": 3.0,
        "costs/cum/gpu": 5.0,
        "costs/cum/all": 8.0,
        "data/step_num_scenarios": 2.0,
        "data/step_actor_tokens": 100.0,
        "data/cum/num_scenarios": 2.0,
        "data/cum/actor_tokens": 100.0,
        "data/cum/num_unique_scenarios": 2.0,
        "time/step_actor_s": 4.0,
        "time/cum/actor_s": 4.0,
        "throughput/step_trainer_idle_s": 3.0,
        "throughput/cum/trainer_idle_s": 3.0,
        "throughput/avg_actor_tok_per_s": 25.0,
    }
    assert await builder.flush() == {}
    builder.add_cost("gpu", 1.0)
    builder.add_data(scenario_ids=["c"])
    again = await builder.flush()
    assert (again["costs/cum/all"], again["data/cum/num_unique_scenarios"]) == (9.0, 3.0)


def test_keys_are_checked():
    builder = MetricsBuilder("train")
    for key in ("plain", "costs/", "/x", "costs/cum/x"):
        with pytest.raises(ValueError, match=r"metric|total"):
            builder.add_metric(key, 1)
    with pytest.raises(ValueError, match="empty"):
        builder.add_cost("", 1)
    builder.add_metric("costs/a/b", 1)
    for key in ("costs/a", "costs/a/b/c"):
        with pytest.raises(ValueError, match="contain"):
            builder.add_metric(key, 1)
    for context in ("", "  "):
        with pytest.raises(ValueError, match="cost_context"):
            MetricsBuilder(context)
        with pytest.raises(ValueError, match="cost_context"):
            builder.for_cost_context(context)


async def test_throughput_is_of_both_and_only_where_this_step_has_part_in_it():
    builder = MetricsBuilder("train")
    builder.add_metric("data/step_trainer_tokens", 300.0)
    builder.add_user_timing(step_wall_s=9.0, step_eval_s=1.0)
    assert "throughput/avg_trainer_tok_per_s" not in await builder.flush(), "no seconds yet"
    builder.add_metric("time/step_trainer_s", 3.0)
    builder.add_metric("throughput/step_actor_idle_s", 2.0)
    row = await builder.flush()
    assert row["throughput/avg_trainer_tok_per_s"] == 100.0
    assert (row["throughput/cum/actor_idle_s"], row["time/cum/trainer_s"]) == (2.0, 3.0)
    builder.add_metric("loss/x", 1.0)
    assert await builder.flush() == {"loss/x": 1.0}


async def test_contexts_share_totals_but_not_steps():
    train = MetricsBuilder("train")
    evaluation = train.for_cost_context("eval")
    assert train.for_cost_context("train") is train
    assert evaluation is train.for_cost_context("eval")
    evaluation.add_cost("eval/x", 2.0)
    assert await train.flush() == {}
    train.add_cost("train/x", 1.0)
    assert (await train.flush())["costs/cum/all"] == 1.0
    assert (await evaluation.flush())["costs/cum/all"] == 3.0
    scoped = train.for_cost_context("judge", buffer_scope="train")
    scoped.add_cost("judge/y", 1.0)
    assert (await train.flush())["costs/judge/y"] == 1.0


async def test_state_continues_and_replaces():
    builder = MetricsBuilder("train")
    builder.add_cost("a", 1.0)
    builder.add_data(scenario_ids=["s"])
    await builder.flush()
    state = builder.state_dict()
    assert state == {"cum_state": {"costs/cum/a": 1.0, "costs/cum/all": 1.0}, "unique_scenario_ids": ["s"]}
    other = MetricsBuilder("train")
    other.add_cost("pending", 5.0)
    other.load_state_dict(state)
    assert await other.flush() == {}
    other.add_cost("a", 1.0)
    assert (await other.flush())["costs/cum/a"] == 2.0


async def test_measuring():
    builder = MetricsBuilder("train")
    with builder.measure("time/step_actor_s"), builder.measure("time/other_s"):
        pass
    assert set(await builder.flush()) >= {"time/step_actor_s", "time/other_s"}


def test_key_helpers():
    assert is_cumulative_metric_key("costs/cum/gpu")
    assert not is_cumulative_metric_key("costs/gpu")
    assert not is_cumulative_metric_key("costs/cum")
    assert to_cumulative_metric_key("time/step_wall_s") == "time/cum/wall_s"
    assert to_cumulative_metric_key("costs/all") == "costs/cum/all"
    assert [
        key
        for key in ("costs/x", "time/step_x", "time/x", "data/step_x", "reward", "loss/step_x")
        if is_builder_managed_metric(key)
    ] == [
        "costs/x",
        "time/step_x",
        "data/step_x",
    ]


def usage(**fields):
    return {"usage": fields}


@pytest.mark.parametrize(
    ("provider", "model", "response", "dollars"),
    [
        ("openai", "unknown", usage(cost=0.5), 0.5),
        ("openai", "unknown", usage(cost={"total_cost": 0.25}), 0.25),
        ("openai", "unknown", {"usage": {"model_extra": {"cost": 0.75}}}, 0.75),
        ("x", "y", {"_hidden_params": {"additional_headers": {"llm_provider-x-litellm-response-cost": "1.5"}}}, 1.5),
        ("OpenAI", "openai/gpt-4.1", usage(cost=True, prompt_tokens=1e6, completion_tokens=1e6), 10.0),
        (
            "openai",
            "openai/gpt-4.1",
            usage(prompt_tokens=1e6, completion_tokens=0, prompt_tokens_details={"cached_tokens": 4e5}),
            0.6 * 2 + 0.4 * 0.5,
        ),
        (
            "openai",
            "openai/gpt-4.1",
            usage(prompt_tokens=1e6, prompt_tokens_details={"cached_tokens": 9e6}),
            0.5,
        ),
        (
            "anthropic",
            "anthropic/claude-sonnet-4-6",
            usage(input_tokens=1e6, cache_creation_input_tokens=1e6, cache_read_input_tokens=1e6, output_tokens=1e6),
            3 + 3.75 + 0.30 + 15,
        ),
    ],
)
async def test_cost_of_a_response(provider, model, response, dollars):
    builder = MetricsBuilder("eval")
    assert builder.add_response_cost("api", response, provider=provider, model_name=model) == pytest.approx(dollars)
    assert (await builder.flush())["costs/eval/api"] == pytest.approx(dollars)


def test_prices_given_registered_and_missing():
    builder = MetricsBuilder("train")
    response = usage(prompt_tokens=1e6, completion_tokens=1e6)
    ask = {"provider": "openai", "model_name": "mine"}
    with pytest.raises(ValueError, match=r"no price for 'mine' by 'openai'.*register_model_pricing"):
        builder.add_response_cost("a", response, **ask)
    with pytest.raises(ValueError, match="prompt_per_million is not enough"):
        builder.add_response_cost("a", response, **ask, prompt_price_per_million=1.0)
    prices = {"prompt_price_per_million": 1.0, "completion_price_per_million": 2.0}
    assert builder.add_response_cost("a", response, **ask, **prices) == 3.0
    builder.register_model_pricing("mine", prompt_per_million=5, completion_per_million=6)
    assert builder.for_cost_context("eval").add_response_cost("a", response, **ask) == 11.0
    assert builder.add_response_cost("a", response, **ask, prompt_price_per_million=0.0) == 6.0
    with pytest.raises(ValueError, match="not 'other'"):
        builder.add_response_cost("a", response, provider="other", model_name="mine")
    with pytest.raises(ValueError, match="usage"):
        builder.add_response_cost("a", {}, **ask)


async def test_tracking_calls():
    @track_api_cost(
        source="judge", provider="openai", model_name="openai/gpt-4.1", response_getter=lambda pair: pair[1]
    )
    async def call():
        """Doc."""
        return "text", usage(prompt_tokens=1e6)

    @track_api_cost(source="judge", provider="openai", model_name="nobody/knows")
    def call_sync():
        return usage(prompt_tokens=1)

    assert call.__doc__ == "Doc."
    assert (await call())[0] == "text"
    builder = MetricsBuilder("train")
    with builder.activate_context():
        assert MetricsBuilder.get_active() is builder
        await call()
        with pytest.raises(ValueError, match="no price"):
            call_sync()
    assert call_sync() == usage(prompt_tokens=1)
    assert (await builder.flush())["costs/train/judge"] == 2.0
    for blank in ("source", "provider", "model_name"):
        arguments = {"source": "s", "provider": "p", "model_name": "m", blank: " "}
        with pytest.raises(ValueError, match=blank):
            track_api_cost(**arguments)
    with pytest.raises(TypeError, match=r"Unknown prices: prompt_price\. Known prices: prompt_price_per_million"):
        track_api_cost(source="s", provider="p", model_name="m", prompt_price=2.0)
    with pytest.raises(TypeError, match="Unknown prices: prompt_price"):
        builder.add_response_cost("s", {"usage": {"cost": 1.0}}, provider="p", model_name="m", prompt_price=2.0)


async def test_summary_of_a_batch():
    groups = [
        TrajectoryGroup([Trajectory(reward=0), Trajectory(reward=1)], metadata={"scenario_id": 5}),
        TrajectoryGroup([Trajectory(reward=1), Trajectory(reward=1 + 1e-13)], exceptions=[ValueError()]),
        TrajectoryGroup([Trajectory(reward=1, metadata={"scenario_id": "x"})], metadata={"id": "ignored"}),
        TrajectoryGroup([], metadata={"scenario_id": 5}),
    ]
    counts = {"data/step_num_scenarios": 4.0, "data/step_num_trajectories": 6.0, "data/step_num_groups_submitted": 4.0}
    assert count_groups(groups, trainable=False) == counts
    assert count_groups(groups, trainable=True) == {**counts, "data/step_num_groups_trainable": 1.0}
    builder = MetricsBuilder("train")
    row = await build_row(builder, groups, "train", {})
    assert row["data/cum/num_unique_scenarios"] == 2
    assert builder.state_dict()["unique_scenario_ids"] == ["5", "x"]


def test_tokens_that_are_read_from_a_cache_cost_what_a_prompt_costs_unless_it_is_said():
    builder = MetricsBuilder("train")
    builder.register_model_pricing("mine", prompt_per_million=2.0, completion_per_million=3.0)
    ask = {"provider": "anthropic", "model_name": "mine"}
    response = usage(input_tokens=1e6, cache_creation_input_tokens=1e6, cache_read_input_tokens=1e6, output_tokens=1e6)
    assert builder.add_response_cost("a", response, **ask) == 2 + 2 + 2 + 3
    explicit = {"cache_creation_price_per_million": 4.0, "cache_read_price_per_million": 0.5}
    assert builder.add_response_cost("a", response, **ask, **explicit) == 2 + 4 + 0.5 + 3
    cached = usage(prompt_tokens=1e6, completion_tokens=0, prompt_tokens_details={"cached_tokens": 1e6})
    ask["provider"] = "openai"
    assert builder.add_response_cost("a", cached, **ask) == 2.0
    assert builder.add_response_cost("a", cached, **ask, cached_prompt_price_per_million=0.25) == 0.25
