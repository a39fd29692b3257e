"""Tests of the loader: order, seeds, resuming, workers, ranks, broken images and errors."""

import multiprocessing
import pickle
import time
import warnings

import pytest
import torch

from antipode.data import loader as module
from antipode.data.chunks import Crops
from antipode.data.loader import Loader, in_order
from antipode.data.sources.source import BrokenImages, Decoded, Memory
from antipode.data.views.views import views
from antipode.data.workers import Ring, can_share
from antipode.training.step import step_on_crops, step_on_images
from antipode.types import Batch


class Read:
    """Random images of varying size, seeded by their id; ids in `broken` cannot be read."""

    def __init__(self, broken=(), reason="is broken"):
        self.broken = set(broken)
        self.reason = reason
        self.calls = 0

    def __call__(self, index):
        self.calls += 1
        if index in self.broken:
            raise ValueError(self.reason)
        generator = torch.Generator().manual_seed(index)
        return torch.randint(256, (3, 24 + index % 7, 30), dtype=torch.uint8, generator=generator)


def decoded(count=40, broken=(), reason="is broken"):
    return Decoded(
        Read(broken, reason), [f"{i}.jpg" for i in range(count)], torch.arange(count), size=16
    )


def memory(count=40):
    images = torch.randint(
        256, (count, 3, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    return Memory(images, torch.arange(count))


SOURCES = pytest.mark.parametrize("make", [memory, decoded])


def run(source, policy="simclr", start=0, **settings):
    settings = {"batch": 8, "epochs": 2, "seed": 1, "workers": 0} | settings
    return list(Loader(source, views(policy, size=12), **settings).steps(start))


def same(left, right):
    assert [(step, epoch) for step, epoch, _ in left] == [(step, epoch) for step, epoch, _ in right]
    for (_, _, a), (_, _, b) in zip(left, right, strict=True):
        assert torch.equal(a.image_ids, b.image_ids)
        assert all(torch.equal(x, y) for x, y in zip(a.views, b.views, strict=True))


@SOURCES
def test_an_epoch_is_every_image_once_in_an_order_of_its_own(make):
    steps = run(make())
    first, second = (
        torch.cat([b.image_ids for _, epoch, b in steps if epoch == e]) for e in (0, 1)
    )
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(40))
    assert first.tolist() != second.tolist()
    assert [step for step, _, _ in steps] == list(range(10))


@SOURCES
def test_same_seed_same_batches_and_another_seed_others(make):
    same(run(make()), run(make()))
    assert not torch.equal(run(make())[0][2].image_ids, run(make(), seed=2)[0][2].image_ids)


@SOURCES
@pytest.mark.parametrize("start", [3, 5, 7])
def test_a_restart_in_the_middle_goes_on_bit_for_bit(make, start):
    same(run(make(), start=start), run(make())[start:])


@pytest.mark.parametrize("chunk", [3, 64])
def test_workers_and_chunks_change_no_bit(monkeypatch, chunk):
    alone = run(decoded())
    monkeypatch.setattr(module, "CHUNK", chunk)
    same(run(decoded(), workers=2), alone)


@pytest.mark.parametrize("start", [0, 13])
def test_the_memory_of_workers_is_used_many_times_and_changes_no_bit(monkeypatch, start):
    """There are 10 slots, and 40 chunks; a slow reader finds each batch as it was written."""
    monkeypatch.setattr(module, "CHUNK", 4)
    settings = dict(batch=8, epochs=4, seed=1)
    make = views("simclr", size=12)
    loader = Loader(decoded(), make, workers=2, **settings)
    assert loader._ring().slots == 10
    kept = []
    for step, epoch, crops, unit, image_ids in loader.decoded(start):
        time.sleep(0.01)  # the workers run ahead
        kept.append((step, epoch, Batch(make.finish(crops, unit), image_ids)))
    same(kept, run(decoded(), epochs=4, start=start))


def test_forked_workers_write_to_the_memory_of_the_main_process():
    ring = Ring([(2, 3, 4, 4), (2, 3, 2, 2)], slots=3)
    assert all(part.sum() == 0 for number in range(3) for part in ring.slot(number, 2))
    worker = multiprocessing.get_context("fork").Process(target=fill, args=(ring, 1))
    worker.start()
    worker.join()
    for number in range(3):
        large, small = ring.slot(number, 1)
        assert large.shape == (1, 3, 4, 4) and small.shape == (1, 3, 2, 2)
        assert large.unique().tolist() == [10 * (number == 1)]
        assert small.unique().tolist() == [20 * (number == 1)]
    assert not can_share(0)


def fill(ring, number):
    for part, value in zip(ring.slot(number, 2), (10, 20), strict=True):
        part.fill_(value)


@SOURCES
@pytest.mark.parametrize("parts", [1, 2])
def test_what_a_step_starts_from_makes_the_views_of_the_loader(make, parts):
    """The tensors of `inputs` give the same batches as `steps`, part by part."""
    source = make()
    loader = Loader(source, views("simclr", size=12), batch=8, epochs=1, seed=1, workers=0)
    step = Seen(parts)
    images = source.images if make is memory else None
    take = step_on_crops(step, loader.views) if images is None else None
    take = take or step_on_images(step, images, loader.views)
    for (_, _, inputs), (_, _, batch) in zip(loader.inputs(), loader.steps(), strict=True):
        seen = take(*inputs)
        assert len(seen) == parts
        assert torch.equal(torch.cat([part.image_ids for part in seen]), batch.image_ids)
        for view, expected in enumerate(batch.views):
            made = torch.cat([part.views[view] for part in seen])
            assert torch.allclose(made, expected, atol=1e-5)


class Seen:
    """A step that returns the parts of its batch."""

    def __init__(self, accumulate):
        self.accumulate = accumulate

    def on_parts(self, parts):
        return [part() for part in parts]


@SOURCES
@pytest.mark.parametrize("world", [2, 4])
def test_ranks_in_a_row_are_the_batch_of_one_process(make, world):
    whole = run(make())
    ranks = [run(make(), rank=rank, world=world) for rank in range(world)]
    for (_, _, batch), *parts in zip(whole, *ranks, strict=True):
        assert torch.equal(batch.image_ids, torch.cat([part.image_ids for _, _, part in parts]))
        for view in range(2):
            joined = torch.cat([part.views[view] for _, _, part in parts])
            # not bit-equal, because the rounding of matrix products depends on the batch size
            assert torch.allclose(batch.views[view], joined, atol=1e-5)
    first_epoch = [
        torch.cat([b.image_ids for _, epoch, b in rank if epoch == 0]).tolist() for rank in ranks
    ]
    assert sorted(index for ids in first_epoch for index in ids) == list(range(40))


@SOURCES
def test_a_part_of_the_batch_meets_the_same_images_on_any_number_of_ranks(make):
    whole = run(make())
    ranks = [run(make(), rank=rank, world=2, parts=2) for rank in range(2)]
    for (_, _, batch), *shares in zip(whole, *ranks, strict=True):
        for part, expected in enumerate(batch.image_ids.chunk(2)):
            assert torch.equal(
                expected, torch.cat([share.image_ids.chunk(2)[part] for _, _, share in shares])
            )
    sentence = "a batch of 8 images cannot be divided evenly by 2 ranks with 3 parts each"
    with pytest.raises(ValueError, match=sentence):
        run(make(), rank=0, world=2, parts=3)


@SOURCES
def test_what_ranks_read_and_draw_is_bit_equal_to_one_process(make):
    def raw(rank, world):
        loader = Loader(
            make(),
            views("simclr", size=12),
            batch=8,
            epochs=1,
            seed=1,
            rank=rank,
            world=world,
            workers=0,
        )
        return list(loader.resident() if make is memory else loader.decoded())

    for (_, _, pixels, unit, _), *parts in zip(raw(0, 1), raw(0, 2), raw(1, 2), strict=True):
        assert torch.equal(unit, torch.cat([part[3] for part in parts]))
        if make is memory:
            assert torch.equal(pixels, torch.cat([part[2] for part in parts]))
        else:
            assert all(
                torch.equal(crop, torch.cat([part[2][v] for part in parts]))
                for v, crop in enumerate(pixels)
            )


def test_what_does_not_fill_a_batch_is_dropped():
    steps = run(memory(43), epochs=1)
    assert len(steps) == 5
    assert len(torch.cat([b.image_ids for _, _, b in steps]).unique()) == 40


@SOURCES
def test_methods_with_one_seed_see_the_same_images_with_the_same_draws(make):
    """Policies differ in their number of uniforms, but share the first ones, which set the crop."""
    source = make()
    ids = torch.arange(5)
    simclr, mocov1 = (
        Loader(source, views(p, size=12), batch=8, epochs=1, seed=1) for p in ("simclr", "mocov1")
    )
    assert torch.equal(simclr.uniforms(0, ids)[:, :, :24], mocov1.uniforms(0, ids)[:, :, :24])
    assert torch.equal(simclr.order(0), mocov1.order(0))
    assert not torch.equal(simclr.uniforms(0, ids), simclr.uniforms(1, ids))
    assert len(simclr.uniforms(0, ids).flatten().unique()) == simclr.uniforms(0, ids).numel()


@SOURCES
def test_the_global_generator_is_left_alone(make):
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    run(make(), epochs=1)
    assert torch.equal(torch.rand(1), expected)


def test_all_views_of_an_image_cost_one_decode():
    source = decoded()
    run(source, policy="msbreg", epochs=1)
    assert source.read.calls == 40


def test_a_crop_is_one_of_the_full_image():
    source = decoded()
    make = views("simclr", size=12)
    loader = Loader(source, make, batch=8, epochs=1, seed=1, workers=0)
    _, _, crops, unit, image_ids = next(loader.decoded())
    for row, index in enumerate(image_ids.tolist()):
        for view, crop in enumerate(make.cut(source.read(index), unit[row])):
            assert torch.equal(crops[view][row], crop)


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_images_are_replaced_counted_and_listed(workers):
    source = decoded(broken=(4, 5, 20))
    with pytest.warns(BrokenImages, match="is broken and is replaced by the next image"):
        steps = run(source, epochs=1, workers=workers)
    image_ids = torch.cat([batch.image_ids for _, _, batch in steps]).tolist()
    assert sorted(set(range(40)) - set(image_ids)) == [4, 5, 20]
    assert image_ids.count(6) == 3 and image_ids.count(21) == 2
    assert source.failed == dict.fromkeys(("4.jpg", "5.jpg", "20.jpg"), "is broken")


@pytest.mark.parametrize("workers", [0, 2])
def test_images_that_are_all_broken_end_in_the_same_sentence_whoever_reads_them(workers):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(
            ValueError, match=r"^40 images in a row cannot be read, the first: \d+.jpg is broken$"
        ):
            run(decoded(broken=range(40)), epochs=1, workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_reason_of_several_lines_is_told_whole(workers):
    source = decoded(8, broken=range(8), reason="it is so\n  for this reason")
    with (
        warnings.catch_warnings(),
        pytest.raises(ValueError, match=r"^8 images .* it is so\\n  for this reason$"),
    ):
        warnings.simplefilter("ignore")
        run(source, batch=4, epochs=1, workers=workers)


def test_no_worker_outlives_an_error():
    with warnings.catch_warnings(), pytest.raises(ValueError, match="in a row"):
        warnings.simplefilter("ignore")
        run(decoded(8, broken=range(8)), batch=4, epochs=1, workers=2)
    assert not multiprocessing.active_children()


def test_the_replacement_has_the_crop_of_the_slot_so_that_twins_differ():
    source = decoded(2, broken=(0,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = run(source, batch=2, epochs=1)[0][2]
    assert batch.image_ids.tolist() == [1, 1]
    assert not torch.equal(batch.views[0][0], batch.views[0][1])


def test_a_replacement_is_cropped_and_finished_with_the_numbers_of_the_broken_image():
    source = decoded(16, broken=(3, 4, 9))
    make = views("simclr", size=12)
    loader = Loader(source, make, batch=8, epochs=2, seed=1, workers=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps = list(loader.steps())
    next_readable = {3: 5, 4: 5, 9: 10}
    for step, epoch, batch in steps:
        planned = loader.order(epoch).view(2, 8)[step % 2]
        read = [next_readable.get(index, index) for index in planned.tolist()]
        unit = loader.uniforms(epoch, planned)
        cuts = [
            make.cut(source.read(index), numbers) for index, numbers in zip(read, unit, strict=True)
        ]
        crops = [torch.stack(view) for view in zip(*cuts, strict=True)]
        assert batch.image_ids.tolist() == read
        for view, expected in zip(batch.views, make.finish(crops, unit), strict=True):
            assert torch.equal(view, expected)


def test_a_loader_has_no_labels_that_could_leak_into_pretraining():
    images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    for source in (decoded(4), Memory(images, torch.arange(4))):
        assert source.labels is not None
        loader = Loader(source, views("simclr", size=8), batch=2, epochs=1, seed=0)
        assert loader.source.labels is None


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"batch": 41}, "between 1 and the 40 images of the data set, not 41"),
        ({"batch": 0}, "between 1 and the 40 images of the data set, not 0"),
        ({"batch": 9, "world": 2}, "9 images cannot be divided evenly by 2 ranks"),
        ({"rank": 2, "world": 2}, "the rank must be at least 0 and below 2, not 2"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        run(memory(), **settings)


@SOURCES
@pytest.mark.parametrize("workers", [0, 2])
def test_in_order_gives_every_image_once_with_its_id(make, workers):
    source = make()
    eval_view = views("eval", size=source.size)
    batches = list(in_order(source, eval_view, batch=16, workers=workers))
    assert torch.cat([ids for _, ids in batches]).tolist() == list(range(40))
    zeros = torch.zeros(1, 1, eval_view.slots)
    for index, view in enumerate(torch.cat([made for made, _ in batches])):
        if isinstance(source, Memory):
            assert torch.equal(view, eval_view(source.images[index : index + 1])[0][0])
            continue
        image = source.read_or_next(index)[1]
        (cut,) = eval_view.cut(image, zeros[0])
        assert torch.equal(view, eval_view.finish([cut[None]], zeros)[0][0])
        # a worker crops uint8 pixels, which differ by at most one of 255
        assert (view - eval_view(image[None])[0][0]).abs().max() < 1.01 / 255 / 0.22


def test_a_source_and_views_can_be_sent_to_a_worker():
    dataset = Crops(decoded(), views("simclr", size=12), 1)
    chunk = pickle.loads(pickle.dumps(dataset))[(0, 0, 0, torch.arange(3))]
    assert chunk.image_ids.tolist() == [0, 1, 2]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_steps_on_a_device_never_wait_for_it():
    loader = Loader(
        memory(), views("simclr", size=12).cuda(), batch=8, epochs=1, seed=1, device="cuda"
    )
    steps = loader.resident()
    next(steps)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _, _, images, unit, _ in steps:
            assert images.is_cuda and unit.is_cuda
    finally:
        torch.cuda.set_sync_debug_mode("default")
    on_host = run(memory(), epochs=1)
    assert [b.image_ids.tolist() for _, _, b in loader.steps()] == [
        b.image_ids.tolist() for _, _, b in on_host
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("workers", [0, 2])
def test_copies_beside_the_work_of_a_device_change_no_bit(monkeypatch, workers):
    """The device is kept busy, so that copies run far ahead of the work that reads them."""
    monkeypatch.setattr(module, "CHUNK", 4)
    settings = dict(batch=8, epochs=4, seed=1)
    make = views("simclr", size=12)
    host = list(Loader(decoded(), make, workers=0, **settings).decoded())
    loader = Loader(decoded(), make.cuda(), workers=workers, device="cuda", **settings)
    heavy = torch.randn(2048, 2048, device="cuda")
    kept = []
    for _, _, (image_ids, planned_ids, _, *crops) in loader.inputs():
        for _ in range(20):
            heavy = (heavy @ heavy).clamp(-1, 1)
        kept.append([part.clone() for part in (image_ids, planned_ids, *crops)])
    assert len(kept) == len(host)
    for (image_ids, _, *crops), (_, _, expected, _, expected_ids) in zip(kept, host, strict=True):
        assert torch.equal(image_ids.cpu(), expected_ids)
        assert all(torch.equal(a.cpu(), b) for a, b in zip(crops, expected, strict=True))
