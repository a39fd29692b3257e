"""Features are a function of weights, images and view; labels reach evaluations only, and of them the test's never."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from antipode.data.source import Memory
from antipode.data.splits import Splits
from antipode.data.views import views
from antipode.evaluation.features import extract, key
from antipode.evaluation.task import Task


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3 * 64, 5)
        self.norm = nn.BatchNorm1d(5)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.norm(self.linear(x.flatten(1)))


def images(n=50, seed=0, classes=3):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (n, 3, 8, 8), generator=generator, dtype=torch.uint8)
    return Memory(pixels, torch.arange(n) % classes)


def task(**changes):
    splits = Splits("toy", pretrain=images(), train=images(), test=images(20, seed=1), size=8)
    return Task(Net().eval(), replace(splits, **changes), 8, views("eval", size=8), torch.device("cpu"))


def test_features_are_the_networks_own_and_leave_its_mode_and_state_alone():
    net, source, look = Net().train(), images(), views("eval", size=8)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = extract(net, look, source, batch=7)
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    with torch.no_grad():
        torch.testing.assert_close(found.x, net.eval()(look(source.images)[0]))
    assert torch.equal(found.y, source.labels)


def test_the_cache_answers_for_the_same_weights_images_and_view_only(tmp_path):
    net, source, look = Net(), images(), views("eval", size=8)
    first = extract(net, look, source, cache=tmp_path)
    calls = net.calls
    again = extract(net, look, source, cache=tmp_path)
    assert net.calls == calls
    assert torch.equal(first.x, again.x)
    with torch.no_grad():
        net.linear.weight[0, 0] += 1e-3
    assert not torch.equal(extract(net, look, source, cache=tmp_path).x, first.x)
    assert len(list(tmp_path.iterdir())) == 2


def test_the_key_changes_with_whatever_changes_features():
    source, look = images(), views("eval", size=8)
    torch.manual_seed(0)
    net = Net()
    keys = [key(net, look, source)]
    assert key(net, views("eval", size=8), replace(source, labels=None)) == keys[0]  # labels are not features
    pixels = source.images.clone()
    pixels[-1, -1, -1, -1] ^= 1
    keys.append(key(net, look, replace(source, images=pixels)))
    keys.append(key(net, views("eval", size=9), source))
    keys.append(key(net, views("eval", size=8, mean=(0.5, 0.5, 0.5)), source))
    keys.append(key(nn.Sequential(net, nn.ReLU()), look, source))
    net.norm.running_mean[0] = 1
    keys.append(key(net, look, source))
    assert len(set(keys)) == len(keys)


def test_the_key_is_the_same_in_another_process():
    code = (
        "import torch; from tests.evaluation.test_features import *; torch.manual_seed(0);"
        "print(key(Net(), views('shapes-eval', size=8), images()))"
    )
    found = {subprocess.check_output([sys.executable, "-c", code], text=True) for _ in range(2)}
    torch.manual_seed(0)
    assert found == {key(Net(), views("shapes-eval", size=8), images()) + "\n"}


def test_a_damaged_cache_is_made_again(tmp_path):
    net, source, look = Net(), images(), views("eval", size=8)
    first = extract(net, look, source, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:100])
    assert torch.equal(extract(net, look, source, cache=tmp_path).x, first.x)
    assert np.load(file)["x"].shape == (50, 5)


def test_features_that_are_no_numbers_are_refused():
    net = Net()
    with torch.no_grad():
        net.linear.bias[0] = torch.nan
    with pytest.raises(ValueError, match="50 of 50 images have features that are not numbers"):
        extract(net, views("eval", size=8), images())


@pytest.mark.dist
@pytest.mark.xdist_group("ranks")
def test_two_ranks_make_the_features_of_one(tmp_path):
    code = tmp_path / "two.py"
    code.write_text(
        "import sys, torch; from antipode import dist; from tests.evaluation.test_features import *\n"
        "torch.set_num_threads(1); dist.setup('cpu'); torch.manual_seed(0)\n"
        "found = extract(Net(), views('eval', size=8), images(51), batch=7)\n"  # 51: shares are not equal
        "torch.save(tuple(found), f'{sys.argv[1]}/{dist.rank()}.pt'); dist.leave()\n"
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(["src", "."])}
    subprocess.run([*launch, str(code), str(tmp_path)], check=True, env=environment, capture_output=True, timeout=300)
    torch.manual_seed(0)
    alone = extract(Net(), views("eval", size=8), images(51), batch=7)
    for rank in range(2):
        x, y = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(x, alone.x)
        assert torch.equal(y, alone.y)


WRONG = {
    "no test split": ({"test": None}, "test", "toy has no test split to score on"),
    "no labels": ({"train": replace(images(), labels=None)}, "train", "toy has no labels for its train images"),
    "some labels": ({"train": replace(images(), labels=torch.arange(50) - 1)}, "train", "no labels"),
    "one class": ({"train": replace(images(), labels=torch.zeros(50).long())}, "train", "one class only"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_no_protocol_could_judge_is_refused(name):
    changes, part, sentence = WRONG[name]
    with pytest.raises(ValueError, match=sentence):
        task(**changes).features(part)


def test_a_task_without_a_head_says_so():
    with pytest.raises(ValueError, match="no head"):
        task().features("test", of="head")
