"""Threads that give way."""

import os
import sys
from threading import Thread, get_native_id

import pytest

from gateway.threads import give_way


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
def test_a_thread_gives_way_and_the_others_keep_their_priority():
    told = []

    def work():
        give_way()
        told.append(os.getpriority(os.PRIO_PROCESS, get_native_id()))

    before = os.getpriority(os.PRIO_PROCESS, get_native_id())
    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert told == [min(before + 5, 19)]
    assert os.getpriority(os.PRIO_PROCESS, get_native_id()) == before
