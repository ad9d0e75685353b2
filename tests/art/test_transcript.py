"""What a person reads of a rollout."""

import art
from art.rollouts.transcript import last_words, write_transcript
from art.terminal import break_lines, visible, wrap
from art.trajectories import History

CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
QUESTION = {
    "role": "user",
    "content": "Is it raining in Paris today, and should I take an umbrella with me when I leave?",
}


def test_calls_reasoning_and_long_lines(make_choice):
    thought = make_choice(content=None, message={"tool_calls": [CALL], "reasoning_content": "I should look."})
    trajectory = art.Trajectory(
        messages_and_choices=[
            QUESTION,
            thought,
            {"role": "tool", "content": "rain", "tool_call_id": "call_1"},
            make_choice("Yes."),
        ],
        metadata={"scenario_id": "a"},
        logs=["looked once"],
    )
    assert write_transcript(trajectory, 40) == (
        "user\n"
        "  Is it raining in Paris today, and\n"
        "  should I take an umbrella with me when\n"
        "  I leave?\n"
        "\n"
        "assistant\n"
        "  (thinking)\n"
        "  I should look.\n"
        "  (end of thinking)\n"
        '  → weather({"city": "Paris"})  [call_1]\n'
        "\n"
        "tool (answers call_1)\n"
        "  rain\n"
        "\n"
        "assistant\n"
        "  Yes.\n"
        "\n"
        "metadata\n"
        '  {"scenario_id": "a"}\n'
        "\n"
        "logs\n"
        "  looked once"
    )
    assert last_words(trajectory) == "Yes."


def test_a_branch_shows_only_where_it_leaves():
    said = [{"role": "assistant", "content": text} for text in ("one", "two")]
    trajectory = art.Trajectory(
        messages_and_choices=[QUESTION, said[0]],
        additional_histories=[
            History(messages_and_choices=[QUESTION, said[1]]),
            History(messages_and_choices=[{"role": "user", "content": "A sub-agent."}, said[1]]),
        ],
    )
    shown = write_transcript(trajectory, 80)
    assert shown.count("umbrella") == 1
    assert shown.split("\n\n")[-5:] == [
        "── conversation 2 of 3, begins with the first 1 messages of conversation 1",
        "assistant\n  two",
        "── conversation 3 of 3",
        "user\n  A sub-agent.",
        "assistant\n  two",
    ]


def test_a_terminal_gets_no_control_characters():
    hostile = "\x1b]0;title\x07 \x1b[2Jdone\r"
    assert visible(hostile) == "\\x1b]0;title\\x07 \\x1b[2Jdone\\r"
    trajectory = art.Trajectory(messages_and_choices=[{"role": "assistant", "content": hostile}])
    assert "\x1b" not in write_transcript(trajectory) + last_words(trajectory)


def test_lines_break_at_words_and_count_cells():
    assert wrap("with words", 6) == ["with", "words"]
    assert wrap("a verylongword", 6) == ["a", "verylo", "ngword"]
    assert break_lines("a verylongword\nwith words", 6) == "a\nverylongword\nwith\nwords"
    assert wrap("日本語日本語", 8) == ["日本語日", "本語"]
    assert wrap("a\n\nb", 8) == ["a", "", "b"]
    assert wrap("if x:\n\treturn", 20) == ["if x:", "    return"]


def test_parts_and_silence_are_told():
    parts = [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": "data:…"}}]
    stored = '[{"type": "text", "text": "as a log keeps it"}]'
    trajectory = art.Trajectory(
        messages_and_choices=[
            {"role": "user", "content": parts},
            {"role": "assistant", "content": None},
            {"role": "user", "content": stored},
            {"role": "user", "content": '[{"a": 1}]'},
        ]
    )
    assert write_transcript(trajectory).split("\n\n") == [
        "user\n  Look:\n  [image_url]",
        "assistant\n  (nothing)",
        "user\n  as a log keeps it",
        'user\n  [{"a": 1}]',
    ]


def test_reasoning_of_a_choice_that_became_a_dict(make_choice):
    choice = make_choice("Yes.", message={"reasoning_content": "It rains."}).model_dump()
    shown = write_transcript(art.Trajectory(messages_and_choices=[QUESTION, choice]))
    assert "  (thinking)\n  It rains.\n  (end of thinking)\n  Yes." in shown
