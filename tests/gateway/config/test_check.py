from __future__ import annotations

from io import StringIO
from pathlib import Path
from textwrap import dedent

from gateway.config import check_file


def check(folder: Path, text: str, environ: dict[str, str] | None = None) -> tuple[int, list[str]]:
    file = folder / "gateway.yaml"
    file.write_text(dedent(text), encoding="utf-8")
    out = StringIO()
    status = check_file(file, environ or {}, out)
    return status, out.getvalue().replace(f"{folder}/", "").splitlines()


def test_a_valid_file_is_summed_up(tmp_path: Path) -> None:
    status, lines = check(
        tmp_path,
        """
        models:
          - name: qwen3-8b
            aliases: [small, fast]
            tokenizer: Qwen/Qwen3-8B
            api_key: ${KEY}
            replicas:
              - url: http://engine-0:8000
              - url: http://engine-1:8000
                id: spare
          - name: qwen3-32b
            tokenizer: Qwen/Qwen3-32B
            policy: agents
            replicas: [{url: "http://engine-2:8000"}]
        policies:
          agents: {kind: session}
        rules:
          - when: {path: /v1/completions}
            policy: agents
        """,
        {"KEY": "canary"},
    )
    assert status == 0
    assert lines == [
        "gateway.yaml: valid",
        "  model qwen3-8b, also called small, fast: 2 replicas, policy default",
        "    replica engine-0:8000: http://engine-0:8000",
        "    replica spare: http://engine-1:8000",
        "  model qwen3-32b: 1 replica, policy agents",
        "    replica engine-2:8000: http://engine-2:8000",
        "  policy agents: session",
        "  policy default: expected_ttft",
        "  rule rules[0]: path /v1/completions -> policy agents",
    ]


def test_pools_and_rules_are_summed_up_without_the_values_of_headers(tmp_path: Path) -> None:
    status, lines = check(
        tmp_path,
        """
        models:
          - name: m
            tokenizer: org/m
            replicas: [{url: "http://engine-0:8000"}]
            discovery: [{kind: file, path: /replicas.yaml}]
          - name: m
            pool: trial
            weight: 0.5
            tokenizer: org/m
            discovery:
              - {kind: file, path: /one.yaml}
              - {kind: dns, host: engines.test, port: 8000}
              - {kind: file, path: /two.yaml}
        policies:
          spread: {kind: least_loaded}
        auth:
          keys: [{name: team-a, key: k}]
        rules:
          - name: testers
            when: {headers: {x-trial: secret, x-b: c}, api_key: team-a}
            pool: trial
          - when: {lora: sql, path: /v1/completions}
            pool: trial
            policy: spread
        """,
    )
    assert status == 0
    assert lines == [
        "gateway.yaml: valid",
        "  model m: 1 replica and those found by file, policy default",
        "    replica engine-0:8000: http://engine-0:8000",
        "    discovery file: /replicas.yaml",
        "  model m, pool trial with weight 0.5: replicas found by file, dns, policy default",
        "    discovery file: /one.yaml",
        "    discovery dns: engines.test, port 8000",
        "    discovery file: /two.yaml",
        "  policy default: expected_ttft",
        "  policy spread: least_loaded",
        "  rule testers: api_key team-a, header x-trial, header x-b -> pool trial",
        "  rule rules[1]: lora sql, path /v1/completions -> policy spread, pool trial",
    ]


def test_a_pool_without_a_share_and_without_a_rule_is_warned_of(tmp_path: Path) -> None:
    text = """
        models:
          - name: m
            tokenizer: org/m
            replicas: [{{url: "http://engine-0:8000"}}]
          - name: m
            pool: trial
            weight: 0
            tokenizer: org/m
            replicas: [{{url: "http://engine-1:8000"}}]
        rules:
          - when: {{headers: {{x-trial: "yes"}}}}
            {}
        """
    assert check(tmp_path, text.format("policy: default"))[1][-1] == (
        "gateway.yaml:8: models[1].weight: warning: "
        "no rule names this pool, so it gets no requests, got 0"
    )
    assert "warning" not in check(tmp_path, text.format("pool: trial"))[1][-1]


def test_a_rule_with_a_pool_leaves_the_names_of_other_pools_to_later_rules(tmp_path: Path) -> None:
    text = """
        models:
          - {{name: m, tokenizer: org/m, replicas: [{{url: "http://engine-0:8000"}}]}}
          - {{name: n, tokenizer: org/n, replicas: [{{url: "http://engine-1:8000"}}]}}
        rules:
          - when: {{headers: {{x-a: b}}}}
            {}
          - when: {{headers: {{x-a: b}}}}
            pool: n
        """
    assert "never matches" in check(tmp_path, text.format("policy: default"))[1][-1]
    assert "never matches" in check(tmp_path, text.format("pool: n"))[1][-1]
    assert "warning" not in check(tmp_path, text.format("pool: m"))[1][-1]


def test_what_can_hardly_be_meant_is_warned_of(tmp_path: Path) -> None:
    status, lines = check(
        tmp_path,
        """
        admin:
          host: 10.0.0.1
        models:
          - replicas: [{url: "http://engine-0:8000"}]
        policies:
          chat:
            kind: expected_ttft
            fixed_s: 0.1
          hot:
            kind: expected_ttft
            profile: balanced
            decode_steps: 5
          forgotten:
            kind: session
        rules:
          - when: {path: /v1/completions}
            policy: chat
          - when:
              path: /v1/completions
              headers: {x-priority: batch}
            policy: hot
        """,
    )
    assert status == 0
    assert lines[1] == ("  model (name read from the replicas): 1 replica, policy default")
    found = [line.split(": warning: ") for line in lines if "warning" in line]
    assert [place for place, _ in found] == [
        "gateway.yaml:3: admin.host",
        "gateway.yaml:5: models[0].tokenizer",
        "gateway.yaml:14: policies.forgotten",
        "gateway.yaml:9: policies.chat.fixed_s",
        "gateway.yaml:13: policies.hot.decode_steps",
        "gateway.yaml:19: rules[1]",
    ]
    assert [text.partition(",")[0] for _, text in found] == [
        "the admin listener has no authentication",
        "not given",
        "no rule",
        "has no effect with profile additive",
        "has no effect with profile balanced",
        "never matches",
    ]


def test_a_tokenizer_folder_that_is_not_there_is_warned_of(tmp_path: Path) -> None:
    text = """
        models:
          - tokenizer: {}
            replicas: [{{url: "http://engine-0:8000"}}]
        """
    assert "no such folder" in check(tmp_path, text.format("/models/absent"))[1][-1]
    assert "warning" not in check(tmp_path, text.format(tmp_path))[1][-1]


def test_a_file_that_is_not_there_is_warned_of_wherever_it_is_named(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.touch()
    _, lines = check(
        tmp_path,
        f"""
        listen: {{tls: {{cert_file: {there}, key_file: /absent/tls.key}}}}
        auth:
          keys_file: /absent/keys.yaml
        models:
          - tokenizer: {tmp_path}
            replicas: [{{url: "https://engine-0:8000"}}]
            tls:
              ca_file: /absent/ca.pem
        """,
    )
    warned = [line.partition(": warning: ") for line in lines if "warning" in line]
    assert [place.partition(": ")[2] for place, _, _ in warned] == [
        "listen.tls.key_file",
        "models[0].tls.ca_file",
        "auth.keys_file",
    ]
    assert all(text.startswith("no such file on this machine") for _, _, text in warned)


def test_policies_that_match_no_prompts_need_no_tokenizer(tmp_path: Path) -> None:
    _, lines = check(
        tmp_path,
        """
        models:
          - replicas: [{url: "http://engine-0:8000"}]
        policies:
          default: {kind: least_loaded}
        """,
    )
    assert [line for line in lines if "warning" in line] == []
