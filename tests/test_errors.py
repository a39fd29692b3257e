"""Wrong input raises ValueError with one clear sentence."""

import math

import numpy as np
import pytest
import torch

from antipode import functional as A
from antipode.core.negatives import Bank, InBatch, Queue
from antipode.core.objective import Adversarial, Contrast
from antipode.core.pairing import crops, halves, many_keys
from antipode.core.twin import constant
from antipode.nets.backbone import backbone
from antipode.nets.heads import mlp
from antipode.nets.norm import BatchNorm
from antipode.papers import arguments, build, methods
from antipode.types import Batch
from tests.toys import Tiny, batch, make

Z = torch.randn(6, 4)
ONE = torch.randn(1, 4)
Q = torch.randn(9, 4)

FUNCTIONAL = {
    "one image has no negatives": lambda: A.nt_xent(ONE, ONE, tau=0.1),
    "one image in DCL": lambda: A.dcl(ONE, ONE, tau=0.1),
    "one image in DCLW": lambda: A.dclw(ONE, ONE, tau=0.1),
    "one image has no multiplier": lambda: A.npc_multiplier(ONE, ONE, tau=0.1),
    "one image has no correlation": lambda: A.barlow_twins(ONE, ONE),
    "one image has no variance": lambda: A.vicreg(ONE, ONE),
    "a negative weight of Barlow Twins": lambda: A.barlow_twins(Z, Z, weight=-1.0),
    "an infinite weight of VICReg": lambda: A.vicreg(Z, Z, covariance=float("inf")),
    "a weight of VICReg in quotes": lambda: A.vicreg(Z, Z, variance="25"),
    "Barlow Twins of two widths": lambda: A.barlow_twins(Z, Z[:, :3]),
    "tau 0": lambda: A.nt_xent(Z, Z, tau=0),
    "tau below 0": lambda: A.dcl(Z, Z, tau=-1),
    "tau nan": lambda: A.dcl(Z, Z, tau=float("nan")),
    "tau None": lambda: A.nt_xent(Z, Z, tau=None),
    "tau a text": lambda: A.info_nce(Z, Z, Q, tau="a"),
    "complex views": lambda: A.nt_xent(Z + 0j, Z + 0j, tau=0.1),
    "sigma 0": lambda: A.dclw(Z, Z, tau=0.1, sigma=0),
    "alpha 0": lambda: A.nt_xent(Z, Z, tau=0.1, alpha=0),
    "views of two sizes": lambda: A.nt_xent(Z, Z[:5], tau=0.1),
    "views that would broadcast": lambda: A.byol(Z, ONE),
    "views of two widths": lambda: A.simsiam(Z, Z[:, :3]),
    "views with three axes": lambda: A.dcl(Z[None], Z[None], tau=0.1),
    "no images": lambda: A.dcl(Z[:0], Z[:0], tau=0.1),
    "no negatives": lambda: A.info_nce(Z, Z, Q[:0], tau=0.1),
    "negatives of another width": lambda: A.info_nce(Z, Z, Q[:, :3], tau=0.1),
    "keys that would broadcast": lambda: A.info_nce(Z, ONE, Q, tau=0.1),
    "keys of other images": lambda: A.info_nce(Z, torch.randn(2, 5, 4), Q, tau=0.1),
    "no keys": lambda: A.info_nce(Z, torch.randn(0, 6, 4), Q, tau=0.1),
    "one query axis": lambda: A.info_nce(Z[0], Z[0], Q, tau=0.1),
    "info_nce tau 0": lambda: A.info_nce(Z, Z, Q, tau=0),
    "alpha and decoupled": lambda: A.info_nce(Z, Z, Q, tau=0.1, alpha=5, decoupled=True),
    "strength below 0": lambda: A.jcl(Z, Z[None], Q, tau=0.1, strength=-1),
    "jcl without negatives": lambda: A.jcl(Z, Z[None], Q[:0], tau=0.1, strength=1),
    "odd views": lambda: A.centroid(torch.randn(3, 6, 4), torch.randn(3, 6, 4)),
    "views of unequal number": lambda: A.centroid(torch.randn(4, 6, 4), torch.randn(2, 6, 4)),
    "a flat regulariser": lambda: A.singular_value(Z[0]),
    "a regulariser of no image": lambda: A.brownian(Z[:0]),
    "uniformity of one": lambda: A.uniformity(ONE),
    "infinite tau": lambda: A.dcl(Z, Z, tau=float("inf")),
    "infinite alpha": lambda: A.nt_xent(Z, Z, tau=0.1, alpha=float("inf")),
    "strength nan": lambda: A.jcl(Z, Z[None], Q, tau=0.1, strength=float("nan")),
    "vectors without a dimension": lambda: A.info_nce(Z[:, :0], Z[:, :0], Q[:, :0], tau=0.1),
    "centroids of no image": lambda: A.centroid(torch.randn(2, 0, 4), torch.randn(2, 0, 4)),
    "a forward-mode derivative": lambda: torch.func.jvp(lambda z: A.dcl(z, Z, tau=0.1), (Z,), (Z,)),
    "k beyond the bank": lambda: A.knn(Z, torch.zeros(6).long(), Z, k=7),
    "k 0": lambda: A.knn(Z, torch.zeros(6).long(), Z, k=0),
    "labels of another length": lambda: A.knn(Z, torch.zeros(5).long(), Z, k=2),
    "labels that are fractions": lambda: A.knn(Z, torch.rand(6), Z, k=2),
    "labels beyond the classes": lambda: A.knn(Z, torch.arange(6), Z, k=2, classes=3),
    "negative labels": lambda: A.knn(Z, torch.arange(6) - 1, Z, k=2),
    "kNN tau 0": lambda: A.knn(Z, torch.zeros(6).long(), Z, k=2, tau=0),
    "a bound without negatives": lambda: A.mi_lower_bound(1.0, 0),
    "a bound with alpha a text": lambda: A.mi_lower_bound(1.0, 5, alpha="5"),
    "numpy views": lambda: A.nt_xent(Z.numpy(), Z.numpy(), tau=0.1),
    "a numpy view": lambda: A.byol(Z, Z.numpy()),
    "a numpy target": lambda: A.simsiam(Z, Z.numpy()),
    "numpy queries": lambda: A.info_nce(Z.numpy(), Z, Q, tau=0.1),
    "numpy negatives": lambda: A.jcl(Z, Z[None], Q.numpy(), tau=0.1, strength=1.0),
    "numpy centroids": lambda: A.centroid(Z[None].numpy(), Z[None].numpy()),
    "a numpy regulariser": lambda: A.singular_value(Z.numpy()),
    "a list of vectors": lambda: A.uniformity(Z.tolist()),
    "complex queries": lambda: A.info_nce(Z + 0j, Z, Q, tau=0.1),
    "a complex regulariser": lambda: A.brownian(Z + 0j),
    "complex features": lambda: A.knn(Z + 0j, torch.zeros(6).long(), Z, k=2),
    "three query axes": lambda: A.info_nce(Z[None], Z, Q, tau=0.1),
    "no queries": lambda: A.info_nce(Z[:0], Z[:0], Q, tau=0.1),
    "tau a number in quotes": lambda: A.dclw(Z, Z, tau=".1"),
    "two numpy taus": lambda: A.nt_xent(Z, Z, tau=np.array([0.1, 0.2])),
    "two taus": lambda: A.info_nce(Z, Z, Q, tau=torch.tensor([0.1, 0.2])),
    "alpha a number in quotes": lambda: A.nt_xent(Z, Z, tau=0.1, alpha="65536"),
    "alpha of a queue in quotes": lambda: A.info_nce(Z, Z, Q, tau=0.1, alpha="65536"),
    "sigma a text": lambda: A.dclw(Z, Z, tau=0.1, sigma="a"),
    "strength a text": lambda: A.jcl(Z, Z[None], Q, tau=0.1, strength="1"),
    "k a fraction": lambda: A.knn(Z, torch.zeros(6).long(), Z, k=5.0),
    "classes a fraction": lambda: A.knn(Z, torch.zeros(6).long(), Z, k=2, classes=4.0),
    "labels in a list": lambda: A.knn(Z, [0] * 6, Z, k=2),
    "labels of numpy": lambda: A.knn(Z, np.zeros(6, dtype=int), Z, k=2),
    "features without a number": lambda: A.knn(Z[:, :0], torch.zeros(6).long(), Z[:, :0], k=2),
    "a kNN tau in quotes": lambda: A.knn(Z, torch.zeros(6).long(), Z, k=2, tau=".1"),
    "votes beyond float64": lambda: A.knn(Z, torch.zeros(6).long(), Z, k=2, tau=0.001),
    "a tau that no float can hold": lambda: A.nt_xent(Z, Z, tau=10**400),
    "a matrix in the place of alpha": lambda: A.nt_xent(Z, Z, tau=0.1, alpha=Q),
    "gather a text": lambda: A.dcl(Z, Z, tau=0.1, gather="no"),
    "gather several": lambda: A.vicreg(Z, Z, gather=torch.tensor([1, 0])),
    "decoupled a text": lambda: A.info_nce(Z, Z, Q, tau=0.1, decoupled="no"),
    "a seed in the place of a generator": lambda: A.brownian(Z, generator=5),
    "a bound of a text": lambda: A.mi_lower_bound("1", 5),
}

PARTS = {
    "tau 0 in a contrast": lambda: Contrast(InBatch("all"), tau=0),
    "no negatives in a contrast": lambda: Contrast(tau=0.1),
    "two pools": lambda: Contrast(InBatch("all"), InBatch("pair"), tau=0.1),
    "a bank of none": lambda: Bank(0, 4),
    "one kind of negatives twice": lambda: make("custom", negatives="in-batch+in-batch"),
    "a queue of none": lambda: Queue(0, 4),
    "a subset of none": lambda: InBatch("all", subset=0),
    "an adversary without a bank": lambda: Adversarial(Contrast(Queue(4, 4), tau=0.1), tau=0.1),
    "an adversary at tau 0": lambda: Adversarial(Contrast(Bank(4, 4), tau=0.1), tau=0),
    "crops that all answer": lambda: crops(2, 2),
    "three halves": lambda: halves(3),
    "no keys": lambda: many_keys(0),
    "a momentum above 1": lambda: constant(1.5),
    "a head of one size": lambda: mlp([4]),
    "a head of size 0": lambda: mlp([4, 0]),
    "no groups": lambda: BatchNorm(4, groups=0),
    "a batch that no group divides": lambda: BatchNorm(4, groups=8)(torch.randn(251, 4)),
    "a head of an unknown norm": lambda: mlp([4, 4], norm="bacth"),
    "a stem for a module": lambda: build("simclr", Tiny(), stem="small"),
    "a hidden layer of size 0": lambda: build("simclr", Tiny(), hidden=0),
    "regularisers on something else": lambda: build("msbreg", Tiny(), on="predictions"),
    "an unknown momentum schedule": lambda: build(
        "custom", Tiny(), twin="ema", momentum_schedule="cos"
    ),
    "a bank's rate without a bank": lambda: build("custom", Tiny(), bank_lr=1.0),
    "an unknown backbone": lambda: backbone("resnet19"),
    "an unknown stem": lambda: backbone("resnet18", stem="tiny"),
    "no channels": lambda: backbone("resnet18", channels=0),
    "a backbone without features": lambda: backbone(torch.nn.Flatten(0)),
    "an unknown method": lambda: build("mocov4", Tiny()),
    "an unknown argument": lambda: build("simclr", Tiny(), temperature=0.1),
    "an unknown base": lambda: build("dcl", Tiny(), base="byol"),
    "a queue on SimCLR": lambda: build("dcl", Tiny(), queue=10),
    "a hidden layer on MoCo v1": lambda: build("dcl", Tiny(), base="mocov1", hidden=3),
    "an unknown form of JCL": lambda: build("jcl", Tiny(), form="mean"),
    "a strength for JCL's baseline": lambda: build("jcl", Tiny(), form="each", strength=1.0),
    "an unknown centroid": lambda: build("msbreg", Tiny(), centroid="median"),
    "an unknown singular form": lambda: build("msbreg", Tiny(), singular_form="svd"),
    "odd views of MSBReg": lambda: build("msbreg", Tiny(), views=3),
    "a memory of one image": lambda: build("npid", Tiny(), images=1),
    "DCLW with sigma 0": lambda: build("dclw", Tiny(), sigma=0.0),
    "Gaussian and decoupled": lambda: build(
        "custom", Tiny(), pairing="many-keys", views=3, strength=1.0, coupling="decoupled"
    ),
    "EqCo and decoupled": lambda: build("custom", Tiny(), alpha=10.0, coupling="decoupled"),
    "EqCo and weighted": lambda: build("custom", Tiny(), alpha=10.0, coupling="weighted"),
    "Gaussian of one key": lambda: build("custom", Tiny(), strength=1.0),
    "a queue that has no effect": lambda: build("custom", Tiny(), queue=10),
    "a bank's tau without a bank": lambda: build("custom", Tiny(), tau_bank=0.1),
    "tau without negatives": lambda: build("custom", Tiny(), negatives="none", tau=0.1),
    "a coupling without negatives": lambda: build(
        "custom", Tiny(), negatives="none", coupling="decoupled"
    ),
    "a momentum without a twin": lambda: build("custom", Tiny(), momentum=0.9),
    "unknown negatives": lambda: build("custom", Tiny(), negatives="memory"),
    "three views one way": lambda: build("custom", Tiny(), pairing="one-way", views=3),
    "an unknown pairing": lambda: build("custom", Tiny(), pairing="circle"),
    "an unknown coupling": lambda: build("custom", Tiny(), coupling="loose"),
    "no backbone": lambda: build("simclr", None),
    "half a place in a queue": lambda: build("mocov2", Tiny(), queue=2.5),
    "a queue in quotes": lambda: build("mocov2", Tiny(), queue="64"),
    "a weight that is NaN": lambda: build("msbreg", Tiny(), singular_value=math.nan),
    "an infinite weight": lambda: build("msbreg", Tiny(), uniform=math.inf),
    "a negative weight": lambda: build("msbreg", Tiny(), brownian=-1),
    "a negative weight of your own method": lambda: build("custom", Tiny(), uniform=-1.0),
    "a negative rate of the bank": lambda: build("adco", Tiny(), bank=8, bank_lr=-1),
    "a bank's momentum of one": lambda: build("adco", Tiny(), bank=8, bank_momentum=1.0),
    "an infinite strength of JCL": lambda: build("jcl", Tiny(), queue=8, strength=math.inf),
    "progress below 0": lambda: make("byol").before_step(-0.1),
    "progress beyond the end": lambda: make("byol").before_step(1.5),
    "progress that is NaN": lambda: make("simclr").before_step(math.nan),
}

BATCHES = {
    "too few views": lambda: make("simclr")(batch(1)),
    "too many views": lambda: make("simclr")(batch(3)),
    "one image with in-batch negatives": lambda: make("simclr")(batch(2, n=1)),
    "more negatives than other images": lambda: make("simo", negatives=9)(batch(2, n=8)),
    "views of unequal number": lambda: make("byol")(
        Batch([batch(1).views[0], batch(1, n=4).views[0]], torch.arange(8))
    ),
    "ids of another number": lambda: make("byol")(Batch(batch(2).views, torch.arange(4))),
    "no images": lambda: make("byol")(Batch([torch.zeros(0, 3, 8, 8)] * 2, torch.arange(0))),
    "ids that are fractions": lambda: make("simclr")(Batch(batch(2).views, torch.rand(8))),
    "views still in bytes": lambda: make("byol")(
        Batch([torch.zeros(8, 3, 8, 8).byte()] * 2, torch.arange(8))
    ),
    "one image in every place of the batch": lambda: make("simclr")(
        Batch(batch(2).views, torch.full((8,), 5))
    ),
    "one image, whose keys are the negatives": lambda: make("simo")(
        Batch(batch(2).views, torch.full((8,), 5))
    ),
    "one image in Inv. Spread": lambda: make("invspread")(
        Batch(batch(2).views, torch.full((8,), 5))
    ),
    "one image beside a bank": lambda: make("adco", fill=False, groups=1)(
        Batch(batch(2).views, torch.full((8,), 5))
    ),
    "one image in a regulariser": lambda: make("msbreg", uniform=0.1)(
        Batch(batch(4).views, torch.full((8,), 5))
    ),
    "an id beyond the memory": lambda: make("npid")(batch(1, start=35)),
    "image ids in a list": lambda: make("byol")(Batch(batch(2).views, list(range(8)))),
    "views that are no tensors": lambda: make("byol")(Batch([1, 2], torch.arange(8))),
    "a single number in the place of views": lambda: make("byol")(Batch(5, torch.arange(8))),
    "views without a batch": lambda: make("byol")(batch(2).views),
    "a step that ends with nothing": lambda: make("byol").after_step(None),
    "progress a text": lambda: make("byol").before_step("half"),
    "a negative seed of a learner": lambda: build("simclr", Tiny(), seed=-1),
    "a seed in quotes": lambda: build("simclr", Tiny(), seed="1"),
    "two methods at once": lambda: build(["simclr", "byol"], Tiny()),
    "channels in quotes": lambda: build("simclr", "resnet10-slim", channels="3"),
    "more channels than fit into memory": lambda: build("simclr", "resnet10-slim", channels=10**30),
    "a list of stems": lambda: build("simclr", "resnet10-slim", stem=["small"]),
    "ids with two axes": lambda: make("byol")(Batch(batch(2).views, torch.zeros(8, 1))),
}


@pytest.mark.parametrize("name", [*FUNCTIONAL, *PARTS, *BATCHES])
def test_wrong_input_is_refused_in_one_sentence(name):
    with pytest.raises(ValueError) as error:
        (FUNCTIONAL | PARTS | BATCHES)[name]()
    sentence = str(error.value)
    without_list = sentence.partition(" (choose from ")[0]  # the list of valid names may be long
    assert 15 < len(without_list) < 200 and "\n" not in sentence


def test_the_number_of_possible_negatives_is_named():
    with pytest.raises(ValueError, match="9 negatives asked for, but 8 images give a query only 7"):
        make("simo", negatives=9)(batch(2, n=8))


def test_simos_256_of_256_are_the_255_others():
    all_of_them, others = (make("simo", negatives=k, alpha=5.0) for k in (8, 7))
    others.load_state_dict(all_of_them.state_dict())
    views = batch(2, n=8)
    assert torch.equal(all_of_them(views).loss, others(views).loss)


def test_every_preset_says_what_is_wrong_with_its_temperature():
    without = {name for name in methods() if "tau" not in arguments(name)}
    assert {"byol", "simsiam", "msbreg"} <= without and len(without) < len(methods()) / 2
    for method in methods():
        if "tau" in arguments(method):
            with pytest.raises(ValueError, match="tau"):
                make(method, tau=-0.1)


MESSAGES = {
    "three query axes": r"queries are \(N,D\) .* got \(1, 6, 4\)",
    "numpy views": "tensors of real numbers, not numpy.ndarray",
    "no images": "at least one image",
    "labels in a list": "tensors of real numbers, not list",
    "complex queries": "not torch.complex64",
    "k a fraction": "k must be a whole number, not 5.0",
    "infinite tau": "tau must be positive and finite, got inf",
    "a seed in the place of a generator": "generator must be a torch.Generator or None, not 5",
    "image ids in a list": r"must be tensors, not \[0, 1",
    "a negative seed of a learner": r"a whole number from 0 to 2\^63 - 1, got -1",
    "alpha a number in quotes": "alpha must be a number, not '65536'",
    "votes beyond float64": "tau 0.001 is too small",
    "half a place in a queue": "mocov2's queue must be a whole number, not 2.5",
    "no backbone": "a name or a module, not None",
    "progress beyond the end": r"\[0,1\], got 1.5",
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_refusal_says_what_is_wrong(name):
    with pytest.raises(ValueError, match=MESSAGES[name]):
        (BATCHES | FUNCTIONAL | PARTS)[name]()


def test_an_endless_strength_is_not_called_negative():
    with pytest.raises(ValueError, match="finite number of 0 or more, got inf"):
        A.jcl(Z, Z[None], Q, tau=0.1, strength=math.inf)


def test_numbers_of_numpy_are_numbers():
    assert A.dcl(Z, Q[:6], tau=np.float32(0.5)) == A.dcl(Z, Q[:6], tau=0.5)
    assert build("simclr", Tiny(), dim=np.int64(5), tau=np.float64(0.2)).objective.tau == 0.2


def test_training_begins_at_progress_0_and_ends_at_1():
    for progress in (0, 0.5, 1.0):
        make("byol").before_step(progress)


def test_one_image_is_enough_without_negatives_from_the_batch():
    assert make("mocov2", groups=1)(batch(2, n=1)).loss.isfinite()


ALIKE = {
    "tau in an array": lambda wrapped: A.nt_xent(
        Z, Z.flip(0), tau=np.array(0.1) if wrapped else 0.1
    ),
    "tau of float32": lambda wrapped: A.dcl(
        Z, Z.flip(0), tau=np.float32(0.25) if wrapped else 0.25
    ),
    "alpha in a tensor": lambda wrapped: A.info_nce(
        Z, Z, Q, tau=0.1, alpha=torch.tensor([64.0]) if wrapped else 64.0
    ),
    "sigma in a tensor": lambda wrapped: A.dclw(
        Z, Z.flip(0), tau=0.1, sigma=torch.tensor([0.5]) if wrapped else 0.5
    ),
    "strength in an array": lambda wrapped: A.jcl(
        Z, Z[None], Q, tau=0.1, strength=np.array([2.0]) if wrapped else 2.0
    ),
    "k and classes in tensors": lambda wrapped: A.knn(
        Z,
        torch.arange(len(Z)),
        Z,
        k=torch.tensor(3) if wrapped else 3,
        classes=torch.tensor(len(Z)) if wrapped else len(Z),
    ),
    "tau of a vote in an array": lambda wrapped: A.knn(
        Z,
        torch.arange(len(Z)),
        Z,
        k=np.array([3]) if wrapped else 3,
        tau=np.array([0.1]) if wrapped else 0.1,
    ),
    "tau of a vote in a tensor": lambda wrapped: A.knn(
        Z, torch.arange(len(Z)), Z, k=3, tau=torch.tensor([0.1]) if wrapped else 0.1
    ),
}


@pytest.mark.parametrize("name", ALIKE)
def test_a_number_is_one_in_whatever_it_comes(name):
    torch.testing.assert_close(ALIKE[name](True), ALIKE[name](False))


def test_what_is_true_is_true_in_whatever_it_comes():
    for yes in (True, np.True_, 1):
        assert build("adco", Tiny(), bank=8, dim=4, hidden=8, symmetric=yes).views == 2
    with pytest.raises(ValueError, match="adco's symmetric must be true or false, not 'yes'"):
        build("adco", Tiny(), bank=8, dim=4, hidden=8, symmetric="yes")
    for several in (np.array([1, 0]), torch.tensor([1, 0])):
        with pytest.raises(ValueError, match="adco's symmetric must be true or false"):
            build("adco", Tiny(), bank=8, dim=4, hidden=8, symmetric=several)
