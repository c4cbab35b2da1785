"""The HTTP surface of a simulated replica, beside what a real vLLM answered."""

import json

import httpx
import pytest

MODEL = "demo-model"


def body_of(raw: str) -> dict:
    return json.loads(raw.partition("\n\n")[2])


def status_of(raw: str) -> int:
    return int(raw.split(" ", 2)[1])


def events_of(raw: str) -> list:
    lines = [line.removeprefix("data: ") for line in raw.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def shape(value):
    """Keys in order, all the way down; of a list the first element."""
    if isinstance(value, dict):
        return [(key, shape(inner)) for key, inner in value.items()]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [shape(value[0])]
    return type(value).__name__


def chat(text="hello", **fields) -> dict:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}


# Answers


def test_a_chat_stream_has_the_captured_events(replica, capture):
    ours = replica.post(
        "/v1/chat/completions",
        chat(stream=True, max_tokens=4, stream_options={"include_usage": True}),
    )
    theirs = events_of(capture("stream_chat.sse"))
    assert [shape(e) for e in events_of(ours.text)] == [shape(e) for e in theirs]
    captured_head = capture("stream_chat.headers").splitlines()
    assert "content-type: text/event-stream; charset=utf-8" in captured_head
    for name in ("content-type", "server", "vary", "transfer-encoding"):
        assert f"{name}: {ours.headers[name]}" in captured_head


def test_a_completion_stream_with_continuous_usage_has_the_captured_events(replica, capture):
    ours = replica.post(
        "/v1/completions",
        {
            "model": MODEL,
            "prompt": "hello there",
            "stream": True,
            "max_tokens": 3,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    )
    theirs = events_of(capture("stream_completions_contusage.sse"))
    assert [shape(e) for e in events_of(ours.text)] == [shape(e) for e in theirs]
    usages = [event["usage"]["completion_tokens"] for event in events_of(ours.text)]
    assert usages == [1, 2, 3, 3]


def test_a_stream_without_options_tells_no_usage(replica):
    events = events_of(replica.post("/v1/chat/completions", chat(stream=True, max_tokens=2)).text)
    assert len(events) == 3
    assert all("usage" not in event and event["choices"] for event in events)


def test_a_whole_chat_has_the_captured_fields_and_the_callers_id(replica, capture):
    ours = replica.post(
        "/v1/chat/completions",
        chat(max_tokens=3, return_token_ids=True),
        headers={"X-Request-Id": "my-id-1"},
    ).json()
    theirs = json.loads(capture("chat_nonstream_token_ids.json"))
    assert shape(ours) == shape(theirs)
    assert ours["id"] == theirs["id"] == "chatcmpl-my-id-1"
    choice = ours["choices"][0]
    assert choice["finish_reason"] == "length"
    assert len(choice["token_ids"]) == ours["usage"]["completion_tokens"] == 3
    assert len(ours["prompt_token_ids"]) == ours["usage"]["prompt_tokens"]


def test_a_whole_completion_has_one_choice_a_prompt(replica):
    ours = replica.post("/v1/completions", {"prompt": ["one", "two"], "max_tokens": 2}).json()
    assert [choice["index"] for choice in ours["choices"]] == [0, 1]
    assert ours["usage"]["completion_tokens"] == 4
    assert list(ours) == [
        *("id", "object", "created", "model", "choices", "service_tier", "system_fingerprint"),
        *("usage", "kv_transfer_params", "ec_transfer_params", "metrics"),
    ]


def test_a_stream_of_several_prompts_gives_every_choice_its_tokens(replica):
    prompts = ["one", "two", "three"]
    body = {"prompt": prompts, "max_tokens": 5, "stream": True}
    events = events_of(replica.post("/v1/completions", body).text)
    whole = replica.post("/v1/completions", {"prompt": prompts, "max_tokens": 5}).json()
    for index in range(3):
        mine = [e["choices"][0] for e in events if e["choices"][0]["index"] == index]
        assert len(mine) == 5
        assert "".join(c["text"] for c in mine) == whole["choices"][index]["text"]
        assert mine[-1]["finish_reason"] == "length"


def test_completions_take_token_ids_and_give_them_back(replica):
    ids = list(range(300, 340))
    ours = replica.post(
        "/v1/completions", {"prompt": ids, "max_tokens": 1, "return_token_ids": True}
    ).json()
    assert ours["choices"][0]["prompt_token_ids"] == ids
    assert ours["usage"]["prompt_tokens"] == 40


def test_completions_default_to_16_tokens(replica):
    ours = replica.post("/v1/completions", {"prompt": "x", "ignore_eos": True}).json()
    assert ours["usage"]["completion_tokens"] == 16
    assert ours["choices"][0]["finish_reason"] == "length"


def test_a_reply_stops_by_itself_unless_told_not_to(replica):
    natural = replica.post("/v1/chat/completions", chat("natural length")).json()
    count = natural["usage"]["completion_tokens"]
    assert natural["choices"][0]["finish_reason"] == "stop"
    assert 16 <= count <= 128
    longer = replica.post(
        "/v1/chat/completions", chat("natural length", ignore_eos=True, max_tokens=count + 9)
    ).json()
    assert longer["usage"]["completion_tokens"] == count + 9
    assert longer["choices"][0]["finish_reason"] == "length"
    patient = replica.post("/v1/chat/completions", chat("natural length", min_tokens=200)).json()
    assert patient["usage"]["completion_tokens"] == 200


def test_the_next_turn_hits_the_prompt_and_the_reply_before_it(replica):
    first_user = {"role": "user", "content": "A question that is asked only here, for once. " * 9}
    first = replica.post(
        "/v1/chat/completions", {"messages": [first_user], "return_token_ids": True}
    ).json()
    said = first["choices"][0]["message"]["content"]
    second = replica.post(
        "/v1/chat/completions",
        {
            "messages": [
                first_user,
                {"role": "assistant", "content": said},
                {"role": "user", "content": "And now?"},
            ],
            "return_token_ids": True,
        },
    ).json()
    known = first["prompt_token_ids"] + first["choices"][0]["token_ids"]
    assert second["prompt_token_ids"][: len(known)] == known
    # All but the last generated token has KV in the cache.
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == (len(known) - 1) // 16 * 16


def test_salts_do_not_share_the_cache(replica):
    def cached(salt):
        body = chat("salted " * 40, max_tokens=1, cache_salt=salt)
        usage = replica.post("/v1/chat/completions", body).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert cached("one") == 0
    assert cached("one") > 0
    assert cached("two") == 0


# Errors


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("err_404_model.http", "/v1/chat/completions", '{"model":"nope","messages":[]}'),
        ("err_badjson.http", "/v1/chat/completions", "{not json"),
        ("err_badtype.http", "/v1/chat/completions", '{"messages":[],"max_tokens":"x"}'),
        ("err_400_toolong_chat.http", "/v1/chat/completions", None),
        ("err_400_toolong_completions.http", "/v1/completions", None),
    ],
)
def test_errors_have_the_captured_status_and_words(replica, capture, name, path, body):
    if body is None:
        text = "word " * 40_000
        body = json.dumps(chat(text) if "chat" in path else {"prompt": text})
    theirs = capture(name)
    ours = httpx.post(
        replica.url + path, content=body, headers={"content-type": "application/json"}, timeout=30
    )
    assert ours.status_code == status_of(theirs)
    expected = body_of(theirs)["error"]
    expected["message"] = (
        expected["message"]
        .replace("smollm2-135m", MODEL)
        .replace("4096", "32768")
        .replace("4097", "32769")
    )
    assert ours.json() == {"error": expected}


def test_an_unknown_path_is_fastapis_404(replica, capture):
    ours = replica.get("/v1/nothing")
    assert (ours.status_code, ours.text) == (
        404,
        json.dumps(body_of(capture("err_404_path.http")), separators=(",", ":")),
    )


def test_a_wrong_method_is_405(replica):
    ours = replica.get("/v1/chat/completions")
    assert (ours.status_code, ours.json()) == (405, {"detail": "Method Not Allowed"})
    assert ours.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {}, "body.messages"),
        ("/v1/chat/completions", chat(cache_salt=""), "body.cache_salt"),
        ("/v1/chat/completions", chat(n=2), "n"),
        ("/v1/chat/completions", chat(max_tokens=0), "max_tokens"),
        ("/v1/chat/completions", chat(max_tokens=40_000), "input_tokens"),
        ("/v1/chat/completions", chat(tools=[]), "tools"),
        ("/v1/chat/completions", chat(None), "messages"),
        ("/v1/chat/completions", chat(stream_options={"include_usage": True}), "stream_options"),
        ("/v1/completions", {"prompt": "x", "echo": True}, "echo"),
        ("/v1/completions", {"prompt": ""}, "prompt"),
        ("/v1/completions", {}, "prompt"),
        ("/invocations", {"input": "embed me"}, None),
        ("/tokenize", {}, "body.messages"),
        ("/detokenize", {"tokens": [10**12]}, "tokens"),
        ("/v1/completions", {"prompt": [10**12]}, "prompt"),
        ("/v1/completions", {"prompt": [[]]}, "prompt"),
        ("/v1/completions", {"prompt": "x", "min_tokens": 20}, "min_tokens"),
        ("/v1/chat/completions", chat([5]), "messages"),
        ("/v1/chat/completions", {"messages": [{"role": 1}]}, "messages"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "assistant", "tool_calls": 5}]},
            "messages",
        ),
        ("/v1/chat/completions", chat(tools=[{"type": "function"}]), "tools"),
        (
            "/v1/chat/completions",
            chat(chat_template_kwargs={"messages": []}),
            "chat_template_kwargs",
        ),
        ("/v1/chat/completions", chat(chat_template="x"), None),
        ("/v1/chat/completions", chat(continue_final_message=True), None),
    ],
)
def test_bad_requests_are_400_and_name_the_parameter(replica, path, body, param):
    ours = replica.post(path, body)
    assert ours.status_code == 400
    error = ours.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert (error["param"], error["code"]) == (param, 400)


def test_half_a_surrogate_pair_is_400(replica):
    body = b'{"messages":[{"role":"user","content":"\\ud800"}]}'
    headers = {"content-type": "application/json"}
    ours = httpx.post(replica.url + "/v1/chat/completions", content=body, headers=headers)
    assert (ours.status_code, ours.json()["error"]["param"]) == (400, "prompt")


def test_a_body_that_is_not_declared_json_is_415(replica):
    ours = httpx.post(replica.url + "/v1/completions", content="{}", timeout=10)
    assert ours.status_code == 415


# The other endpoints


def test_models_have_the_captured_fields(replica, capture):
    ours = replica.get("/v1/models").json()
    assert shape(ours) == shape(json.loads(capture("v1_models.json")))
    assert ours["data"][0]["id"] == MODEL


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")]
)
def test_health_is_an_empty_200(replica, method, path):
    ours = httpx.request(method, replica.url + path, timeout=10)
    assert (ours.status_code, ours.content) == (200, b"")


def test_version_and_load(replica):
    assert replica.get("/version").json() == {"version": "0.32.0"}
    assert replica.get("/load").json() == {"server_load": 0}


def test_tokenize_gives_the_ids_that_a_chat_runs_on(replica, capture):
    ours = replica.post("/tokenize", chat("some text")).json()
    assert shape(ours) == shape(json.loads(capture("tokenize_chat.json")))
    ran = replica.post(
        "/v1/chat/completions", chat("some text", max_tokens=1, return_token_ids=True)
    ).json()
    assert ours["tokens"] == ran["prompt_token_ids"]
    assert ours["count"] == len(ours["tokens"])


def test_detokenize_undoes_tokenize(replica):
    tokens = replica.post("/tokenize", {"prompt": "a text, with 3 things"}).json()["tokens"]
    back = replica.post("/detokenize", {"tokens": tokens}).json()
    assert back == {"prompt": "a text, with 3 things"}


def test_given_prompt_ids_replace_the_messages(replica):
    ids = list(range(400, 433))
    body = chat("else", max_tokens=1, return_token_ids=True)
    ours = replica.post(
        "/v1/chat/completions", {**body, "kv_transfer_params": {"prompt_token_ids": ids}}
    ).json()
    assert ours["prompt_token_ids"] == ids


@pytest.mark.parametrize(("side", "kept"), [(None, [3, 4, 5]), ("right", [1, 2, 3])])
def test_truncation_keeps_the_last_tokens_by_default(replica, side, kept):
    body = {"prompt": [1, 2, 3, 4, 5], "max_tokens": 1, "return_token_ids": True}
    ours = replica.post(
        "/v1/completions", {**body, "truncate_prompt_tokens": 3, "truncation_side": side}
    ).json()
    assert ours["choices"][0]["prompt_token_ids"] == kept


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (chat(max_tokens=1), "chat.completion"),
        ({"prompt": "x", "max_tokens": 1}, "text_completion"),
    ],
)
def test_invocations_go_by_the_body(replica, body, kind):
    assert replica.post("/invocations", body).json()["object"] == kind


def test_event_sources_have_the_captured_fields(replica, capture):
    ours = replica.get("/kv_event_sources").json()
    assert shape(ours) == shape(body_of(capture("kv_event_sources.http")))
    assert ours["0"]["endpoint"] == replica.kv_events
    assert ours["0"]["topic"] == "kv@sim"


def without_model(samples):
    return [{k: v for k, v in labels.items() if k != "model_name"} for labels in samples]


def test_metrics_are_among_vllms_with_the_same_labels_and_buckets(replica, capture):
    replica.post("/v1/chat/completions", chat(max_tokens=2))

    def series(text):
        found = {}
        for line in text.splitlines():
            if line.startswith("vllm:") and "_created" not in line:
                name, _, rest = line.partition("{")
                labels = dict(
                    part.split("=", 1) for part in rest.rpartition("}")[0].split(",") if "=" in part
                )
                found.setdefault(name, []).append(labels)
        return found

    theirs, ours = series(capture("metrics_A.txt")), series(replica.get("/metrics").text)
    assert set(ours) <= set(theirs)
    for name, samples in ours.items():
        if name == "vllm:cache_config_info":
            assert set(samples[0]) <= set(theirs[name][0])
            continue
        assert without_model(samples) == without_model(theirs[name]), name
    assert "process_start_time_seconds" in replica.get("/metrics").text


def test_metrics_count_prompts_hits_and_outcomes(replica):
    queries = replica.metric("prefix_cache_queries_total")
    hits = replica.metric("prefix_cache_hits_total")
    stops = replica.metric("request_success_total", finished_reason="length")
    ids = list(range(1000, 1100))
    for _ in range(2):
        replica.post("/v1/completions", {"prompt": ids, "max_tokens": 1})
    assert replica.metric("prefix_cache_queries_total") - queries == 200
    assert replica.metric("prefix_cache_hits_total") - hits == 96
    assert replica.metric("request_success_total", finished_reason="length") - stops == 2
    assert replica.metric("num_requests_running") == 0
