"""One metrics page of several workers' pages."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.observability.catalog import rules
from gateway.observability.declaring import Across
from gateway.observability.metrics import Metrics
from gateway.observability.summing import Sum, parse


def page_of(requests=0, ttft_s=(), in_flight=0, valid=1, replica="a"):
    metrics = Metrics()
    metrics.request.ended.labels("m", "/v1/chat/completions", "200").inc(requests)
    for seconds in ttft_s:
        metrics.request.ttft.labels("m", "none").observe(seconds)
    metrics.request.retries.labels(replica, "refused").inc()
    metrics.replica.in_flight.labels(replica).set(in_flight)
    metrics.config.valid.set(valid)
    return metrics.page().decode()


def values(total):
    return {
        series: number
        for family in parse(total).values()
        for series, number in family.values.items()
    }


OK = 'warmroute_requests_total{model="m",path="/v1/chat/completions",status="200"}'
RETRIES = 'warmroute_retries_total{reason="refused",replica="a"}'


def total_of(*pages):
    total = Sum(rules())
    for worker, page in enumerate(pages):
        total.note(worker, page)
    return total


def test_counters_and_histograms_add_up_and_gauges_follow_their_rules():
    total = total_of(
        page_of(requests=3, ttft_s=(0.05, 0.3), in_flight=2),
        page_of(requests=4, ttft_s=(0.05,), in_flight=5, valid=0),
    )
    found = values(total.page())
    assert found[OK] == 7
    assert found['warmroute_ttft_seconds_bucket{le="0.06",model="m",tier="none"}'] == 2
    assert found['warmroute_ttft_seconds_count{model="m",tier="none"}'] == 3
    assert abs(found['warmroute_ttft_seconds_sum{model="m",tier="none"}'] - 0.4) < 1e-9
    assert found['warmroute_replica_in_flight_requests{replica="a"}'] == 7
    assert found["warmroute_config_valid"] == 0


def test_the_page_of_one_worker_is_its_own_but_for_the_times_of_creation():
    page = page_of(requests=3, ttft_s=(0.05,), in_flight=2, replica='a "b" {c}')
    kept = [line for line in page.splitlines() if "_created" not in line]
    assert total_of(page).page().splitlines() == kept


def test_what_a_worker_counted_outlives_it():
    total = total_of(page_of(requests=3), page_of(requests=4))
    total.gone(0)
    assert values(total.page())[OK] == 7
    total.note(7, page_of(requests=1))
    assert values(total.page())[OK] == 8


def test_gauges_do_not_outlive_their_worker():
    total = total_of(page_of(in_flight=3), page_of(in_flight=4))
    total.gone(0)
    assert values(total.page())['warmroute_replica_in_flight_requests{replica="a"}'] == 4


def test_a_worker_that_drops_a_departed_replica_takes_nothing_from_the_sum():
    """Until no worker shows that replica any more: then nobody counts it."""
    total = total_of(page_of(), page_of())
    assert values(total.page())[RETRIES] == 2
    total.note(0, page_of(replica="b"))
    assert values(total.page())[RETRIES] == 2
    total.note(1, page_of(replica="b"))
    assert RETRIES not in values(total.page())


def test_without_any_worker_the_counters_are_still_there():
    total = total_of(page_of(requests=3))
    total.gone(0)
    assert values(total.page())[OK] == 3
    assert values(total.page())[RETRIES] == 1


def test_every_gauge_says_how_it_is_combined():
    """A metric that is new gets no rule by accident: `_gauge` wants one."""
    gauges = [name for name, family in parse(Metrics().page().decode()).items()
              if family.kind == "gauge"]  # fmt: skip
    assert gauges
    assert set(gauges) <= rules().keys()
    assert {rules()[name] for name in gauges} == set(Across)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("count"), st.integers(0, 2), st.integers(1, 5)),
            st.tuples(st.just("crash"), st.integers(0, 2), st.just(0)),
        ),
        max_size=30,
    )
)
def test_a_counter_never_goes_back_and_misses_nothing_that_was_scraped(steps):
    total, counted, runs, expected, last = Sum(rules()), [0, 0, 0], [0, 1, 2], 0, 0
    for what, worker, number in steps:
        if what == "count":
            counted[worker] += number
            expected += number
            total.note(runs[worker], page_of(requests=counted[worker]))
        else:
            total.gone(runs[worker])
            counted[worker], runs[worker] = 0, max(runs) + 1
        shown = values(total.page()).get(OK, 0)
        assert shown >= last
        assert shown == expected
        last = shown
