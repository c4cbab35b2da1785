"""Names of keys in Redis: which carry the layout's number, and that they stay where they were."""

from redis.crc import key_slot

from gateway.index.segments import Names
from gateway.redis import layout
from gateway.redis.layout import exchange_keys, whereabouts_key


def names():
    blocks = Names("ns")
    tag = b"%016x" % 64
    return {
        "made anew": [
            *(blocks.of_blocks(tag), blocks.of_predictions(tag)),
            *exchange_keys("ns")[:2],
        ],
        "for all": [exchange_keys("ns")[2], whereabouts_key("ns", "d")],
    }


def test_what_gateways_make_anew_has_the_number_of_its_layout():
    assert names() == {
        "made anew": [
            *(b"ns:1:b:{0000000000000040}", b"ns:1:p:{0000000000000040}"),
            *(b"{ns}:1:gateways", b"{ns}:1:lives"),
        ],
        "for all": [b"{ns}:holds", b"ns:w:d"],
    }


def test_another_layout_shares_only_what_operators_and_clients_said(monkeypatch):
    before = names()
    monkeypatch.setattr(layout, "LAYOUT", 2)
    after = names()
    assert not set(before["made anew"]) & set(after["made anew"])
    assert before["for all"] == after["for all"]


def test_a_user_may_be_allowed_all_of_it_by_two_patterns():
    every = [name for some in names().values() for name in some]
    assert all(name.startswith((b"ns:", b"{ns}:")) for name in every)


def test_the_exchange_is_on_one_node_whatever_the_layout(monkeypatch):
    slots = {key_slot(key) for key in exchange_keys("ns")}
    monkeypatch.setattr(layout, "LAYOUT", 2)
    assert slots | {key_slot(key) for key in exchange_keys("ns")} == slots
    assert len(slots) == 1
