"""`hf:NAME` without a network connection: one sentence at once, or the copy in the cache."""

import socket
import sys
import time
from types import SimpleNamespace

import pytest

from antipode.data.sources import hub
from antipode.data.sources.catalog import load
from tests.data.test_hub import Dataset

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def closed_port():
    """Return the address of a port of this machine on which nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{held.getsockname()[1]}"


def package(monkeypatch, endpoint, answer):
    """Put a package in the place of `datasets`. Return its configuration."""
    config = SimpleNamespace(
        HF_HUB_OFFLINE=False, HF_ENDPOINT=endpoint, HF_DATASETS_CACHE="/the/cache"
    )
    module = SimpleNamespace(config=config, load_dataset=lambda *given: answer(config))
    monkeypatch.setitem(sys.modules, "datasets", module)
    return config


def test_without_a_network_the_cache_is_used_and_the_setting_is_restored(monkeypatch):
    seen = []

    def answer(config):
        seen.append(config.HF_HUB_OFFLINE)
        return {"train": Dataset(8), "test": Dataset(4)}

    config = package(monkeypatch, closed_port(), answer)
    assert len(load("hf:some/photos").test) == 4
    assert seen == [True] and config.HF_HUB_OFFLINE is False


def test_a_server_that_listens_and_a_proxy_are_left_to_the_package(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert hub._reachable(f"http://127.0.0.1:{server.getsockname()[1]}")
    closed = closed_port()
    assert not hub._reachable(closed)
    monkeypatch.setenv("https_proxy", "http://10.0.0.1:3128")
    assert hub._reachable(closed)


@pytest.mark.parametrize("offline", [False, True])
def test_the_real_package_is_not_asked_to_try_again(monkeypatch, tmp_path, capfd, offline):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", closed_port())
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", offline)
    reason = "HF_HUB_OFFLINE is set" if offline else "cannot be reached"
    began = time.monotonic()
    with pytest.raises(FileNotFoundError, match=rf"^hf:some/photos .*{reason}.*no copy in") as said:
        load("hf:some/photos")
    assert "needs a network connection" in str(said.value) and "\n" not in str(said.value)
    assert time.monotonic() - began < 5  # its retries take 23 s
    printed = capfd.readouterr()
    assert "Retrying" not in printed.out + printed.err
