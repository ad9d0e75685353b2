from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from art_backend.engines.affinity import FORGET_AFTER_S, Homes


@dataclass(eq=False)
class Place:
    calls: int = 0


@given(st.data(), st.integers(1, 4))
@settings(max_examples=40)
def test_a_rollout_stays_where_it_is_and_a_new_one_goes_where_least_is_done(data, count):
    places, homes, known = [Place() for _ in range(count)], Homes(), {}
    running = []
    for _ in range(data.draw(st.integers(1, 40))):
        if running and data.draw(st.booleans()):
            running.pop(data.draw(st.integers(0, len(running) - 1))).calls -= 1
            continue
        in_service = data.draw(st.lists(st.sampled_from(places), min_size=1, unique_by=id))
        rollout = data.draw(st.one_of(st.none(), st.sampled_from("abcdef")))
        place = homes.find(rollout, in_service)
        assert any(place is other for other in in_service)
        if rollout in known and known[rollout] in in_service:
            assert place is known[rollout]
        else:
            assert place.calls == min(other.calls for other in in_service)
        if rollout is not None:
            known[rollout] = place
        place.calls += 1
        running.append(place)
        assert [homes.guests(p) for p in places] == [sum(home is p for home in known.values()) for p in places]


@given(st.integers(1, 5), st.integers(1, 60))
def test_rollouts_that_start_together_are_spread_evenly(count, rollouts):
    for busy in (True, False):
        places, homes = [Place() for _ in range(count)], Homes()
        chosen = Counter[int]()
        for n in range(rollouts):
            place = homes.find(f"rollout {n}", places)
            place.calls += busy  # or the call is over before the next begins
            chosen[id(place)] += 1
        assert max(chosen.values()) - min(chosen.get(id(p), 0) for p in places) <= 1


def test_a_rollout_that_has_ended_takes_no_room():
    now = 0.0
    places, homes = [Place(), Place()], Homes(now=lambda: now)
    first = homes.find("long ago", places)
    now += FORGET_AFTER_S + 1
    assert homes.guests(first) == 0
    kept = homes.find("now", places)
    now += FORGET_AFTER_S - 1
    assert homes.find("now", places) is kept
    now += 2
    assert homes.guests(kept) == 1, "counted from its last call"
