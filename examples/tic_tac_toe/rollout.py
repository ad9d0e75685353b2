"""The agent. Against an opponent it is the demo's; against itself, it plays both sides of one board."""

import asyncio
import itertools
from typing import Any

import art
from art.demo.game import AGENT, OPPONENT, Outcome, free_squares, grid, parse_move, place, reward, winner
from art.demo.rollout import MAX_TOKENS, opening_messages, play

from .environment import SWAP, open_at_random

__all__ = ["play", "play_both_sides", "play_group", "split_sides"]


async def play_group(model: art.TrainableModel, seed: int, size: int) -> art.TrajectoryGroup:
    """``size`` games from the same opening, with the trajectories of both sides."""
    games = await asyncio.gather(*(play_both_sides(model, seed) for _ in range(size)))
    return art.TrajectoryGroup(itertools.chain.from_iterable(games))


async def split_sides(group: art.TrajectoryGroup) -> list[art.TrajectoryGroup]:
    """A group for X and one for O: each side is compared with its own kind."""
    sides = {mark: [one for one in group if one.metadata["side"] == mark] for mark in (AGENT, OPPONENT)}
    return [art.TrajectoryGroup(trajectories) for trajectories in sides.values() if trajectories]


async def play_both_sides(model: art.TrainableModel, seed: int) -> list[art.Trajectory]:
    """Play one game in which the model is both X and O, and score each side for itself.

    Each side has a rollout and a conversation of its own, and is shown the board as if it were X. Who answers with no free
    square ends the game; the other side then gets what a draw is worth, since it did not beat anybody. A side that never came
    to move has no trajectory.
    """
    async with model.rollout() as x, model.rollout() as o:
        sides = {AGENT: x, OPPONENT: o}
        talks: dict[str, list[Any]] = {mark: opening_messages() for mark in sides}
        legal, outcomes = {AGENT: 0, OPPONENT: 0}, {AGENT: Outcome.DRAW, OPPONENT: Outcome.DRAW}
        board, mark = open_at_random(seed), AGENT
        while free_squares(board):
            seen = board if mark == AGENT else board.translate(SWAP)
            talks[mark].append({"role": "user", "content": grid(seen)})
            completion = (
                await sides[mark]
                .openai_client()
                .chat.completions.create(
                    model=model.get_inference_name(), messages=talks[mark], max_tokens=MAX_TOKENS, temperature=1.0
                )
            )
            answer = completion.choices[0].message.content or ""
            talks[mark].append({"role": "assistant", "content": answer})
            if (square := parse_move(answer, board)) is None:
                outcomes[mark] = Outcome.ILLEGAL
                break
            legal[mark] += 1
            board = place(board, square, mark)
            other = OPPONENT if mark == AGENT else AGENT
            if winner(board) == mark:
                outcomes |= {mark: Outcome.WIN, other: Outcome.LOSS}
                break
            mark = other
        return [
            side.trajectory(
                reward=reward(outcomes[mark], legal[mark]),
                messages_and_choices=talks[mark],
                metrics={
                    "win": float(outcomes[mark] is Outcome.WIN),
                    "illegal": float(outcomes[mark] is Outcome.ILLEGAL),
                },
                metadata={"seed": seed, "side": mark},
            )
            for mark, side in sides.items()
            if len(talks[mark]) > len(opening_messages())
        ]
