from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from perfkit.errors import InputError, UsageError  # noqa: E402
from perfkit.reference.data import Loader, TokenData, make_corpus  # noqa: E402


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus") / "c.bin", tokens=4001, vocab=97, seed=3)


@pytest.fixture(scope="module")
def data(corpus):
    return TokenData(corpus, seq_len=10, vocab=97)


def loader(data, **changes) -> Loader:
    options = {"global_batch": 8, "micro_batch": 2, "replica": 0, "replicas": 1, "seed": 5}
    return Loader(data, **{**options, **changes})


def take(source: Loader, steps: int) -> list[torch.Tensor]:
    return [batch for _, batch in zip(range(steps), source, strict=False)]


def test_the_same_seed_makes_the_same_corpus_and_another_another(tmp_path, corpus):
    again = make_corpus(tmp_path / "again.bin", tokens=4001, vocab=97, seed=3)
    other = make_corpus(tmp_path / "other.bin", tokens=4001, vocab=97, seed=4)
    assert again.read_bytes() == corpus.read_bytes() != other.read_bytes()
    assert np.frombuffer(corpus.read_bytes(), "<u2").max() < 97


def test_an_epoch_holds_every_sequence_once(data):
    source = loader(data, global_batch=4)
    seen = torch.cat([batch.flatten(0, 1) for batch in take(source, data.sequences // 4)])
    wanted = data.read(np.arange(data.sequences))
    assert sorted(map(tuple, seen.tolist())) == sorted(map(tuple, wanted.tolist()))


@settings(deadline=None, max_examples=30)
@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.integers(0, 90))
def test_the_samples_of_a_step_do_not_depend_on_how_many_replicas_share_them(data, replicas, micro_batch, skipped):
    def step(replicas: int, micro_batch: int) -> list[tuple[int, ...]]:
        rows = []
        for replica in range(replicas):
            source = loader(data, replicas=replicas, replica=replica, micro_batch=micro_batch)
            source.restore({"position": 8 * skipped})
            rows += take(source, 1)[0].flatten(0, 1).tolist()
        return rows

    assert step(replicas, micro_batch) == step(1, 8)


def test_a_restored_loader_goes_on_where_the_state_was_taken(data):
    source = loader(data)
    take(source, 57)  # beyond the first epoch
    state = source.state()
    rest = take(source, 3)
    again = loader(data)
    again.restore(state)
    assert all(torch.equal(a, b) for a, b in zip(rest, take(again, 3), strict=True))


def test_evaluation_and_training_share_no_sequence(tmp_path):
    (tmp_path / "count.bin").write_bytes(np.arange(4001, dtype="<u2").tobytes())  # a text may repeat itself
    data = TokenData(tmp_path / "count.bin", seq_len=10, vocab=4001)
    train, held = loader(data, last=300), loader(data, first=300)
    seen = {tuple(row) for batch in take(train, 40) for row in batch.flatten(0, 1).tolist()}
    kept = {tuple(row) for batch in take(held, 10) for row in batch.flatten(0, 1).tolist()}
    assert not seen & kept


def test_what_cannot_be_cut_or_read_is_refused(data, tmp_path):
    with pytest.raises(UsageError, match="global batch of 8"):
        loader(data, micro_batch=3)
    with pytest.raises(InputError, match="no such file"):
        TokenData(tmp_path / "absent.bin", seq_len=10, vocab=97)
    corpus = make_corpus(tmp_path / "c.bin", tokens=500, vocab=97, seed=3)
    with pytest.raises(InputError, match=r"model\.vocab is 50"):
        TokenData(corpus, seq_len=10, vocab=50)
    with pytest.raises(InputError, match="no two sequences"):
        TokenData(corpus, seq_len=400, vocab=97)
