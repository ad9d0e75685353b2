"""The block cache: shared prefixes, and what happens when room runs out."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_backend.engines.contract import Sampling
from art_backend.engines.torch_engine.adapters import Adapter
from art_backend.engines.torch_engine.blocks import BlockCache
from art_backend.engines.torch_engine.scheduler import Scheduler
from art_backend.engines.torch_engine.sequence import BLOCK_SIZE, Sequence


def make_sequence(tokens, max_tokens=4, max_length=10_000):
    return Sequence(list(tokens), Sampling(max_tokens), None, max_length, False, lambda output: None)


class World:
    """A scheduler whose "model" notes, per slot, which tokens lie before it: that is what keys and values depend on."""

    def __init__(self, num_blocks=64, max_num_seqs=8, token_budget=24, seed=0):
        self.cache = BlockCache(num_blocks)
        self.scheduler = Scheduler(self.cache, max_num_seqs=max_num_seqs, token_budget=token_budget)
        self.memory = {}
        self.random = random.Random(seed)
        self.finished = []

    def step(self):
        chunks, copies = self.scheduler.plan()
        contents = [[self.memory.get(source * BLOCK_SIZE + i) for i in range(BLOCK_SIZE)] for source, _ in copies]
        for (_, target), content in zip(copies, contents, strict=True):
            for i, value in enumerate(content):
                self.memory[target * BLOCK_SIZE + i] = value
        for chunk in chunks:
            for position in range(chunk.start, chunk.end):
                self.memory[chunk.place(position)] = tuple(chunk.sequence.tokens[: position + 1])
        for chunk in chunks:  # every position that a query sees holds the right history
            for position in range(chunk.end):
                assert self.memory[chunk.place(position)] == tuple(chunk.sequence.tokens[: position + 1])
        for chunk in chunks:
            if chunk.samples:
                sequence = chunk.sequence
                sequence.append(self.random.randrange(3), 0.0, [])
                if sequence.finish_reason:
                    self.scheduler.remove(sequence)
                    self.finished.append(sequence)
                else:
                    self.cache.seal(sequence)
        return chunks

    def run(self):
        while self.scheduler.has_work:
            assert self.step(), "nothing was planned though sequences wait"

    def generate(self, tokens, **kwargs):
        before = self.scheduler.prompt_tokens_computed
        sequence = make_sequence(tokens, **kwargs)
        self.scheduler.add(sequence)
        self.run()
        return sequence, self.scheduler.prompt_tokens_computed - before


def test_next_turn_computes_only_what_is_new():
    world = World()
    first, computed = world.generate(range(100, 150), max_tokens=5)
    assert computed == 50
    turn = [*first.tokens, *range(7)]
    _, computed = world.generate(turn)
    assert computed == 8  # seven new tokens, and the last sampled one, which was never an input


@pytest.mark.parametrize("length", [47, 48, 49])
def test_the_same_prompt_again_computes_one_token(length):
    world = World()
    world.generate(range(200, 200 + length))
    _, computed = world.generate(range(200, 200 + length))
    assert computed == 1


def test_a_group_computes_its_prompt_once():
    world = World(token_budget=1000, max_num_seqs=16)
    for _ in range(16):
        world.scheduler.add(make_sequence(range(100, 100 + 10 * BLOCK_SIZE + 1)))
    world.step()
    assert world.scheduler.prompt_tokens_computed == 10 * BLOCK_SIZE + 16
    world.run()


def test_members_wait_for_a_leader_that_needs_several_steps():
    world = World(token_budget=BLOCK_SIZE, max_num_seqs=4)
    for _ in range(3):
        world.scheduler.add(make_sequence(range(100, 100 + 5 * BLOCK_SIZE + 1)))
    world.run()
    assert world.scheduler.prompt_tokens_computed == 5 * BLOCK_SIZE + 3


def test_members_go_on_when_the_leader_is_aborted():
    world = World(token_budget=BLOCK_SIZE, max_num_seqs=4)
    leader, follower = (make_sequence(range(100, 100 + 5 * BLOCK_SIZE + 1)) for _ in range(2))
    world.scheduler.add(leader)
    world.scheduler.add(follower)
    world.step()
    world.step()
    world.scheduler.remove(leader)
    world.run()
    assert world.finished == [follower]
    assert world.scheduler.prompt_tokens_computed == 5 * BLOCK_SIZE + 1


def test_adapters_do_not_share():
    cache = BlockCache(32)
    one = make_sequence(range(40))
    one.adapter = Adapter(1, "one", Path("one"), {})
    cache.attach(one)
    for block in one.blocks:
        block.filled = BLOCK_SIZE
    one.num_computed = 40
    cache.detach(one)
    other = make_sequence(range(40))
    other.adapter = Adapter(2, "other", Path("other"), {})
    cache.attach(other)
    assert other.num_computed == 0
    cache.detach(other)
    cache.forget(1)
    assert cache.num_cached == 0
    assert cache.num_available == 32


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_query_sees_its_own_history_whatever_happens(data):
    """Random turns, groups, aborts and a cache far too small; ``World.step`` checks each key that is read."""
    world = World(
        num_blocks=data.draw(st.integers(8, 30)),
        max_num_seqs=data.draw(st.integers(1, 6)),
        token_budget=data.draw(st.integers(1, 60)),
        seed=data.draw(st.integers(0, 99)),
    )
    histories = [[0] * 5, [1, 2] * 20]
    for _ in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(["new", "turn", "step", "step", "abort"]))
        if action == "new":
            stem = data.draw(st.sampled_from(histories))
            tokens = stem[: data.draw(st.integers(1, len(stem)))] + data.draw(st.lists(st.integers(0, 2), max_size=20))
            for _ in range(data.draw(st.integers(1, 3))):
                world.scheduler.add(make_sequence(tokens[:90], data.draw(st.integers(1, 20)), max_length=110))
        elif action == "turn" and world.finished:
            tokens = data.draw(st.sampled_from(world.finished)).tokens
            histories.append(tokens)
            world.scheduler.add(make_sequence([*tokens, 1, 0][:100], 3, max_length=110))
        elif action == "abort" and world.scheduler.running:
            world.scheduler.remove(data.draw(st.sampled_from(world.scheduler.running)))
        elif world.scheduler.has_work:
            world.step()
    world.run()
    assert world.cache.num_held == 0
    world.cache.forget()
    assert world.cache.num_available == world.cache.num_blocks
