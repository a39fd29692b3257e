"""Queue, bank and batch as stores of negatives."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antipode import rng
from antipode.core.negatives import Bank, InBatch, Queue
from antipode.papers.npid import Memory
from antipode.types import Pair

OWNER, KEY = torch.arange(1), rng.key(0)


def numbered(start, count):
    """Keys that carry their own number."""
    return torch.arange(start, start + count, dtype=torch.float32)[:, None].repeat(1, 2)


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 12), batches=st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_a_queue_of_any_size_with_any_batches_keeps_the_last(size, batches):
    queue, seen = Queue(size, 2), 0
    start = queue.vectors.clone()
    for count in batches:
        queue.push(numbered(seen + 100, count), OWNER, lambda: KEY)
        seen += count
    kept = sorted(queue.vectors[:, 0].tolist())
    last = list(range(max(0, seen - size) + 100, seen + 100))
    assert kept[-len(last) :] == last
    assert len(kept) == size and set(kept[: -len(last)]) <= set(start[:, 0].tolist())


@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 12), count=st.integers(13, 30), step=st.integers(0, 1000))
def test_a_drawing_queue_keeps_random_keys_of_the_last_batch(size, count, step):
    queue = Queue(size, 2, draw=True)
    queue.push(numbered(100, 5), OWNER, lambda: KEY)
    queue.push(numbered(200, count), OWNER, lambda: rng.fold(KEY, step))
    kept = queue.vectors[:, 0].tolist()
    assert len(set(kept)) == size and all(200 <= x < 200 + count for x in kept)


def test_a_draw_is_fair():
    queue, counts = Queue(4, 2, draw=True), torch.zeros(16)
    for step in range(2000):
        queue.push(numbered(0, 16), OWNER, partial(rng.fold, KEY, step))
        counts[queue.vectors[:, 0].long()] += 1
    assert (counts - 500).abs().max() < 4 * (2000 * 0.25 * 0.75) ** 0.5


def pair(n=6, views=1, step=0):
    keys = torch.nn.functional.normalize(torch.randn(n * views, 4), dim=1)
    ids = torch.arange(n)
    return Pair(keys[:n], keys[None, :n], ids, keys, ids.repeat(views), rng.fold(KEY, step))


def test_in_batch_excludes_every_view_of_the_own_image():
    p = pair(views=2)
    scores = InBatch("all")(p)
    assert torch.equal(scores.isinf(), p.image_ids[:, None] == p.pool_ids)
    assert torch.allclose(scores[~scores.isinf()], (p.query @ p.pool.T)[~scores.isinf()])


def test_ids_decide_not_places():
    p = pair()
    ids = torch.tensor([3, 3, 5, 8, 8, 8])
    scores = InBatch("pair")(p._replace(image_ids=ids, pool_ids=ids))
    assert torch.equal(scores.isinf(), ids[:, None] == ids)


def test_a_subset_is_drawn_without_replacement_from_the_others_and_anew_each_step():
    for shared in (True, False):
        part, seen = InBatch("all", subset=3, shared=shared), set()
        for step in range(20):
            p = pair(views=2, step=step)
            whole, drawn = InBatch("all")(p), part(p)
            assert drawn.shape == (6, 3) and drawn.isfinite().all()
            for row, all_scores in zip(drawn, whole, strict=True):
                assert len(set(row.tolist())) == 3 and set(row.tolist()) <= set(all_scores.tolist())
            seen.add(tuple((whole[0][None] == drawn[0][:, None]).nonzero()[:, 1].tolist()))
        assert len(seen) > 10


def test_a_subset_may_have_as_many_vectors_as_others_exist_and_one_more_for_the_keys_of_a_pair():
    """SiMo calls the N-1 other keys of a batch K = N."""
    for pool, views, most in (("pair", 1, 6), ("all", 2, 10)):
        p = pair(views=views)
        others = InBatch(pool)(p).isfinite().sum(1)
        assert (InBatch(pool, subset=most)(p).isfinite().sum(1) == others).all()
        with pytest.raises(ValueError, match=f"{most + 1} negatives asked for, but 6 images"):
            InBatch(pool, subset=most + 1)(p)


def test_a_shared_subset_is_one_for_all_queries_but_those_in_it():
    columns = []
    p = pair(n=12)
    whole, drawn = InBatch("pair")(p), InBatch("pair", subset=3)(p)
    for row, scores in zip(drawn, whole, strict=True):
        columns.append(frozenset((scores[None] == row[:, None]).nonzero()[:, 1].tolist()))
    common = max(set(columns), key=columns.count)
    assert columns.count(common) == 12 - 3 and len(common) == 3
    own = InBatch("pair", subset=3, shared=False)(p)
    apart = [
        frozenset((s[None] == r[:, None]).nonzero()[:, 1].tolist())
        for r, s in zip(own, whole, strict=True)
    ]
    assert len(set(apart)) > 6


def test_every_other_image_is_drawn_equally_often():
    part, counts = InBatch("pair", subset=2), torch.zeros(6, 6)
    for step in range(1500):
        p = pair(step=step)
        drawn, whole = part(p), InBatch("pair")(p)
        counts += (whole[:, None] == drawn[:, :, None]).any(1)
    assert (counts.diagonal() == 0).all()
    expected = 1500 * 2 / 5
    off = counts[~torch.eye(6, dtype=torch.bool)]
    assert (off - expected).abs().max() < 5 * (1500 * 0.4 * 0.6) ** 0.5


def test_a_bank_knows_after_loading_how_full_it_is():
    bank, other = Bank(10, 2), Bank(10, 2)
    assert bank.push(numbered(0, 4), OWNER, lambda: KEY) is False and bank.filling
    other.load_state_dict(bank.state_dict())
    assert other.count == 4 and other.filling
    assert other.push(numbered(4, 8), OWNER, lambda: KEY) is True and not other.filling
    assert other.weight[:, 0].tolist() == list(range(10))
    assert other.push(numbered(50, 8), OWNER, lambda: KEY) is False
    assert other.weight[:, 0].tolist() == list(range(10))


def test_a_bank_is_used_at_length_one():
    bank, p = Bank(5, 4, fill=False), pair()
    before = bank(p)
    with torch.no_grad():
        bank.weight.mul_(torch.rand(5, 1) + 0.5)
    assert torch.allclose(bank(p), before, atol=1e-6)


def test_one_image_alone_is_refused_only_where_asking_is_free():
    """Tensors without data stand for a GPU's: whoever looked at their ids would fail."""
    alone = torch.full((6,), 3)
    p = pair()._replace(image_ids=alone, pool_ids=alone)
    with pytest.raises(
        ValueError, match="a batch that holds image 3 alone, 6 times, has nothing to repel"
    ):
        InBatch("pair")(p)
    assert InBatch("pair")(Pair(*(part.to("meta") for part in p))).shape == (6, 6)
    differing = p._replace(image_ids=torch.arange(6) // 5, pool_ids=torch.arange(6) // 5)
    assert InBatch("pair")(differing).logsumexp(1).isfinite().all()


def test_the_last_embedding_of_an_image_that_is_in_a_batch_twice_moves_npids_memory():
    memory, keys = Memory(9, 4, momentum=0.5), torch.randn(6, 4)
    before, image_ids = memory.vectors.clone(), torch.tensor([2, 7, 2, 0, 7, 2])
    memory.push(keys, image_ids, lambda: KEY)
    for image in range(9):
        own = [keys[i] for i in range(6) if image_ids[i] == image]
        mixed = 0.5 * before[image] + 0.5 * own[-1] if own else before[image]
        assert torch.allclose(memory.vectors[image], mixed / mixed.norm(), atol=1e-6)
