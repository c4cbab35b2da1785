from __future__ import annotations

import pytest

from gateway.config.environment import SubstitutionError, substitute

ENVIRON = {"HOST": "engine-0", "PORT": "8000", "EMPTY": "", "NESTED": "${HOST}"}

MODELS = """
models:
  - replicas: [{url: "http://engine-0:8000"}]
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://${HOST}:${PORT}", "http://engine-0:8000"),
        ("${UNSET:-a}", "a"),
        ("${EMPTY:-a}", "a"),
        ("${HOST:-a}", "engine-0"),
        ("${UNSET:-}", ""),
        ("${UNSET:-a:-b}", "a:-b"),
        ("${NESTED}", "${HOST}"),
        ("$$", "$"),
        ("$${HOST}", "${HOST}"),
        ("$$${HOST}", "$engine-0"),
        ("$HOST costs 5$", "$HOST costs 5$"),
    ],
)
def test_references_become_values(text: str, expected: str) -> None:
    assert substitute(text, ENVIRON) == expected


@pytest.mark.parametrize(
    "text", ["${UNSET}", "${EMPTY}", "${}", "${1A}", "${A B}", "${A-b}", "${A"]
)
def test_what_has_no_value_is_refused(text: str) -> None:
    with pytest.raises(SubstitutionError):
        substitute(text, ENVIRON)


def test_an_unquoted_value_gets_its_type_after_the_environment_was_filled_in(load) -> None:
    config = load(
        """
        listen:
          port: ${PORT}
        decision_headers: ${HEADERS}
        timeouts:
          connect_s: ${CONNECT_S:-1e-1}
        models:
          - name: ${NAME:-}
            replicas:
              - url: http://${HOST}:${PORT}
        """,
        {"PORT": "8001", "HEADERS": "false", "HOST": "engine-7"},
    )

    assert config.listen.port == 8001
    assert config.decision_headers is False
    assert config.timeouts.connect_s == 0.1
    assert config.models[0].name is None
    assert config.models[0].replicas[0].url == "http://engine-7:8001"


def test_a_quoted_value_stays_text(load, problems) -> None:
    assert load(MODELS + 'default_policy: "${P}"', {"P": "default"}).default_policy == "default"
    (problem,) = problems(MODELS + 'listen: {port: "${PORT}"}', {"PORT": "80"})
    assert problem == (
        "gateway.yaml:4: listen.port: must be a whole number, "
        "got the environment's value of '${PORT}'"
    )


def test_a_value_cannot_bring_structure(load) -> None:
    config = load(MODELS + "policies:\n  a:\n    kind: session\n    header: ${H}", {"H": "x-a"})
    assert config.policies["a"].header == "x-a"

    name = "m\nlisten: {port: 1}"
    models = "models:\n  - name: ${NAME}\n    replicas: [{url: 'http://a'}]"
    with pytest.raises(Exception, match="visible ASCII"):
        load(models, {"NAME": name})


def test_a_reference_in_an_aliased_value_is_told_at_each_of_its_places(problems) -> None:
    text = MODELS + "listen:\n  host: &host ${HOST}\nadmin:\n  host: *host\n"
    cure = "environment variable HOST is unset or empty, set it or write ${HOST:-default}"
    assert problems(text) == [
        f"gateway.yaml:5: listen.host: {cure}",
        f"gateway.yaml:7: admin.host: {cure}",
    ]
