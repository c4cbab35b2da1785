"""What it costs that gateways know each other's loads late, in virtual time (docs/adr/0041).

    python -m tests.measure.fleet_loads [--runs 40]

Mean TTFT of four gateways over that of one, the same traffic, and twice its standard error.
"""

import argparse
import statistics
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.support.fleet_simulation import BURSTS, CHATS, SHORT, Sharing, simulate

# Each with the seconds of a run.
TRAFFICS = {
    "13 chats a second": (CHATS, 60.0),
    "bursts of 100": (BURSTS, 60.0),
    "150 short ones": (SHORT, 15.0),
}
WAYS = {
    "nothing": Sharing(tick_s=None),
    "every 100 ms": Sharing(tick_s=0.1),
    "every 25 ms": Sharing(),
    "every 25 ms, and around decisions": Sharing(around_decisions=True),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=40)
    runs = parser.parse_args().runs
    with ProcessPoolExecutor() as pool:
        for name, (traffic, seconds) in TRAFFICS.items():

            def found(sharing, traffic=traffic, seconds=seconds):
                return list(pool.map(partial(simulate, sharing, traffic, seconds), range(runs)))

            alone = found(Sharing(num_gateways=1, tick_s=None))
            for told, sharing in WAYS.items():
                both = zip(found(sharing), alone, strict=True)
                ratios = [four.ttft_s / one.ttft_s for four, one in both]
                error = 2 * statistics.stdev(ratios) / len(ratios) ** 0.5
                print(f"{name}, told {told}: {statistics.mean(ratios):.3f} +- {error:.3f}")


if __name__ == "__main__":
    main()
