"""Several ranks, which are threads here. Each has its own completions."""

import threading

import capo_rl
import numpy as np
import pytest
from capo_rl.batch import flat

from conftest import batches, changed, mask_of, table

STATE = {"weight", "exp_avg", "exp_avg_sq"}


class Table:
    """The meeting point of the threads."""

    def __init__(self, size):
        self.size, self.told, self.barrier = size, [None] * size, threading.Barrier(size)

    def tell(self, rank, array):
        self.told[rank] = array.copy()
        self.barrier.wait()
        told = list(self.told)
        self.barrier.wait()
        return told


class Seat:
    """A collective whose ranks are threads."""

    def __init__(self, table, rank):
        self.table, self.rank, self.size, self.bytes = table, rank, table.size, 0

    def all_reduce_sum(self, array):
        assert array.dtype == np.float64 and array.ndim == 1
        self.bytes += array.nbytes
        array[:] = sum(self.table.tell(self.rank, array))

    def all_gather(self, array):
        assert array.dtype == np.int64 and array.ndim == 1
        self.bytes += array.nbytes
        return self.table.tell(self.rank, array)


def on_ranks(size, work):
    """The results of ``work(seat)`` on each of the ranks."""
    shared, results = Table(size), [None] * size

    def run(rank):
        try:
            results[rank] = work(Seat(shared, rank))
        except BaseException as error:
            shared.barrier.abort()
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in results:
        if isinstance(error, BaseException) and not isinstance(error, threading.BrokenBarrierError):
            raise error
    return results


def part(batch, rows):
    """Some completions of a batch."""
    own = {name: value[rows] for name, value in flat(batch).items() if isinstance(value, np.ndarray) and name not in STATE}
    return changed(batch, **own, group_size=1)


def moments(state):
    """First and second moments of a saved state, float32 ``[2, R, D]``."""
    width, rows = (int.from_bytes(state["state"][at : at + 8], "little") for at in (20, 36))
    start = 8 + 4 + 4 * 8 + 10 + 12 * rows
    return np.frombuffer(state["state"][start:-4], np.float32).reshape(2, rows, width)


def weight_of(case):
    keys = table(case)
    shared = {name: keys[name] for name in ("semantics", "optimizer") if name in keys}
    return capo_rl.Weight("capo.curvature-weight", **shared)


@pytest.mark.parametrize("make", [mask_of, weight_of])
@pytest.mark.parametrize("case", ["paper-token-adam", "authors-token-adam"])
def test_two_ranks_decide_like_one_process(case, make):
    files, whole = batches(case), make(case)
    assert whole.traits == {"TOKEN_WISE", "SUMS_RANKS"}
    decided, states = [], []
    for path in files:
        batch = capo_rl.load_batch(path)
        decision, _ = whole(batch)
        whole.step_end(batch, decision)
        decided.append(decision)
        states.append(moments(whole.state_dict()))

    def run(seat):
        one, steps = make(case), []
        for path in files:
            batch = capo_rl.load_batch(path)
            count = batch.completion_mask.shape[0]
            cut = count // 3 + 1
            own = part(batch, slice(0, cut) if seat.rank == 0 else slice(cut, count))
            decision, _ = one(own, collective=seat)
            before = seat.bytes
            records = one.step_end(own, decision, collective=seat)
            assert list(records.values()) == [seat.bytes - before], records
            steps.append((decision, one.state_dict()))
        return steps

    first, second = on_ranks(2, run)
    for step, (mine, theirs) in enumerate(zip(first, second, strict=True)):
        assert mine[1] == theirs[1], "the ranks' states are the same bits"
        together = np.concatenate([mine[0], theirs[0]])
        assert np.allclose(together, decided[step], rtol=1e-5, atol=0)
        largest = np.abs(states[step]).max(axis=2, keepdims=True, initial=0)
        assert (np.abs(moments(mine[1]) - states[step]) <= 1e-6 * largest).all()
    assert any((decision == 0).any() or (decision < 1).any() for decision in decided)


def test_one_rank_needs_no_collective():
    batch = capo_rl.load_batch(batches("paper-token-adam")[0])
    alone, one = mask_of("paper-token-adam"), mask_of("paper-token-adam")
    token_mask, _ = alone(batch)
    alone.step_end(batch, token_mask)
    (records,) = on_ranks(1, lambda seat: one.step_end(batch, token_mask, True, seat))
    assert records == {} and one.state_dict() == alone.state_dict()


def test_exceptions_of_a_collective_are_causes_of_errors():
    class Broken(Seat):
        def all_gather(self, array):
            raise ConnectionError("the other node is gone")

    mask, batch = mask_of("paper-token-adam"), capo_rl.load_batch(batches("paper-token-adam")[0])
    token_mask, _ = mask(batch)
    before = mask.state_dict()
    with pytest.raises(capo_rl.CapoError, match="component `capo.curvature`: `collective.all_gather` raised ConnectionError: the other node is gone") as raised:
        mask.step_end(batch, token_mask, collective=Broken(Table(2), 0))
    assert isinstance(raised.value.__cause__, ConnectionError)
    assert mask.state_dict() == before

    class Interrupted(Seat):
        def all_gather(self, array):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mask.step_end(batch, token_mask, collective=Interrupted(Table(2), 0))


def test_an_error_on_one_rank_is_an_error_on_all():
    batch = capo_rl.load_batch(batches("paper-token-adam")[0])

    def run(seat):
        mask = mask_of("paper-token-adam")
        own = part(batch, slice(0, 2) if seat.rank == 0 else slice(2, 4))
        token_mask = own.completion_mask
        mask.step_end(own, token_mask, collective=seat)
        if seat.rank == 1:
            own = changed(own, vocab_size=own.last_layer.vocab_size + 1)
        with pytest.raises(capo_rl.CapoError) as raised:
            mask.step_end(own, token_mask, collective=seat)
        return str(raised.value), mask.state_dict()

    (first, mine), (second, theirs) = on_ranks(2, run)
    assert first == "component `capo.curvature`: rank 1 could not end the step (its own error says why)"
    assert "the curvature state has 40 and" in second
    assert mine == theirs, "nothing has changed on either"


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"rank": 2}, ValueError, "`collective` has rank 2 of 2 \\(ranks count from 0 to one below `size`\\)"),
        ({"all_gather": None}, capo_rl.CapoError, "`collective.all_gather` raised TypeError"),
        ({"all_gather": lambda array: [array]}, capo_rl.CapoError, "it gave 1 arrays for 2 ranks \\(it must be one of each\\)"),
        ({"all_gather": lambda array: [array.astype(np.float32)] * 2}, capo_rl.CapoError, "an array of `all_gather` is no compact array of int64"),
    ],
)
def test_refuses_wrong_collectives(change, error, sentence):
    seat = Seat(Table(2), 0)
    for name, value in change.items():
        setattr(seat, name, value)
    mask, batch = mask_of("paper-token-adam"), capo_rl.load_batch(batches("paper-token-adam")[0])
    with pytest.raises(error, match=sentence):
        mask.step_end(batch, batch.completion_mask, collective=seat)
    with pytest.raises(TypeError, match="`collective` is of type `object`, which has no `rank` \\(it must have"):
        mask.step_end(batch, batch.completion_mask, collective=object())
