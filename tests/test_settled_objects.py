"""Tests of the plugin in conftest.py that keeps garbage collection short."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Settled


@pytest.fixture
def settled(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> Settled:
    plugin = pytestconfig.pluginmanager.get_plugin("settled")
    monkeypatch.setattr(plugin, "LONG_SECONDS", 0.0)  # each search counts as long
    return plugin


def test_a_long_search_within_a_test_hides_no_object_of_that_test(settled: Settled) -> None:
    """Hypothesis warns of a generator that nobody refers to, and asks right after a search of its own."""
    holder = [object()]
    gc.collect()
    assert settled.was_long
    assert any(referrer is holder for referrer in gc.get_referrers(holder[0]))


def test_what_a_long_search_kept_is_left_out_once_the_test_is_over(settled: Settled) -> None:
    holder = [object()]
    gc.collect()
    settled.pytest_runtest_logfinish()
    assert not any(referrer is holder for referrer in gc.get_referrers(holder[0]))
    assert not settled.was_long
