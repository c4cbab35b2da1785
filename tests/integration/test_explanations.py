"""What a gateway says of a request that another one knows more about."""

from tests.support.api_replicas import ApiReplica, KeepsResponses
from tests.support.fixtures import engines
from tests.support.several import several

__all__ = ["engines", "several"]

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
SESSION = "x-amzn-sagemaker-session-id"


async def opens_sessions(conversation):
    asks = conversation.request.header(SESSION.encode()) == b"NEW_SESSION"
    port = conversation.writer.get_extra_info("sockname")[1]
    opened = b"x-amzn-sagemaker-new-session-id: s-%d\r\n" % port
    await conversation.answer(b"{}", extra=opened if asks else b"")


async def test_a_session_that_another_gateway_opened(several, redis_server, replicas):
    fleet = await replicas(*[opens_sessions] * 4)
    a, b = await several(redis_server, fleet)
    opened = await a.client.post(CHAT, json=BODY, headers={SESSION: "NEW_SESSION"})
    home = opened.headers["x-warmroute-replica"]
    session = {SESSION: opened.headers["x-amzn-sagemaker-new-session-id"]}
    told = (await b.admin.post("/admin/explain", json=BODY, headers=session)).json()
    answer = await b.client.post(CHAT, json=BODY, headers=session)
    assert answer.headers["x-warmroute-replica"] == told["replica"] == home
    assert answer.headers["x-warmroute-reason"] == told["reason"] == "session"


async def test_a_stored_response_that_another_gateway_knows(several, redis_server, engines):
    fleet = await engines(ApiReplica(KeepsResponses("a")), ApiReplica(KeepsResponses("b")))
    a, b = await several(redis_server, fleet)
    made = (await a.client.post("/v1/responses", json={"model": "m", "input": "hello"})).json()
    path = f"/v1/responses/{made['id']}"
    told = (await b.admin.post("/admin/explain", params={"path": path})).json()
    answer = await b.client.get(path)
    assert told == {"replica": answer.headers["x-warmroute-replica"], "reason": "stored"}
