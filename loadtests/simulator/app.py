"""The ASGI application: routes, errors, and the endpoints that do not generate."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from loadtests.simulator.errors import ApiError, bad_request, parse_body, parse_json
from loadtests.simulator.exchange import ClientGone, Exchange, Receive, Scope, Send
from loadtests.simulator.generate import Generator, ServedModel
from loadtests.simulator.metrics import CONTENT_TYPE, SimulatorMetrics
from loadtests.simulator.prompts import PromptEncoder
from loadtests.simulator.schemas import DetokenizeRequest, TokenizeChatRequest, TokenizeTextRequest
from routing.lab.engine_model import EngineModel

VLLM_VERSION = "0.32.0"
# vLLM asks for its key on these paths only; everything else is open.
_GUARDED = ("/v1", "/v2", "/inference", "/cohere")

Handler = Callable[[Exchange], Awaitable[None]]


class SimulatorApp:
    """One replica's HTTP surface."""

    def __init__(
        self,
        model: ServedModel,
        engines: Sequence[EngineModel],
        encoder: PromptEncoder,
        generator: Generator,
        metrics: SimulatorMetrics,
        *,
        kv_event_sources: Mapping[str, object],
        api_key: str | None = None,
    ) -> None:
        self._model = model
        self._engines = engines
        self._encoder = encoder
        self._generator = generator
        self._metrics = metrics
        self._kv_event_sources = kv_event_sources
        self._authorization = None if api_key is None else f"Bearer {api_key}"
        self._routes: Mapping[str, Mapping[str, Handler]] = {
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._completions},
            "/v1/models": {"GET": self._models},
            "/invocations": {"POST": self._invocations},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/health": {"GET": self._healthy},
            "/ping": {"GET": self._healthy, "POST": self._healthy},
            "/version": {"GET": self._version},
            "/load": {"GET": self._load},
            "/metrics": {"GET": self._show_metrics},
            "/kv_event_sources": {"GET": self._sources},
            # In vLLM only with VLLM_SERVER_DEV_MODE=1; a simulator is never in production.
            "/reset_prefix_cache": {"POST": self._reset},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        exchange = Exchange(scope, receive, send)
        try:
            await self._dispatch(exchange)
        except ApiError as error:
            await exchange.reply(error.body(), status=error.status)
        except ClientGone:
            pass

    async def _dispatch(self, exchange: Exchange) -> None:
        if not self._authorized(exchange):
            await exchange.reply_json({"error": "Unauthorized"}, status=401)
            return
        methods = self._routes.get(exchange.path)
        if methods is None:
            await exchange.reply_json({"detail": "Not Found"}, status=404)
            return
        handler = methods.get(exchange.method)
        if handler is None:
            allow = [(b"allow", ", ".join(methods).encode())]
            await exchange.reply(b'{"detail":"Method Not Allowed"}', status=405, headers=allow)
            return
        await handler(exchange)

    def _authorized(self, exchange: Exchange) -> bool:
        if self._authorization is None or not exchange.path.startswith(_GUARDED):
            return True
        return exchange.header(b"authorization") == self._authorization

    async def _body(self, exchange: Exchange) -> Any:
        media_type = (exchange.header(b"content-type") or "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            message = "Unsupported Media Type: Only 'application/json' is allowed"
            raise ApiError(415, "Unsupported Media Type", message)
        return parse_json(await exchange.body())

    async def _chat(self, exchange: Exchange) -> None:
        await self._generator.chat(exchange, await self._body(exchange))

    async def _completions(self, exchange: Exchange) -> None:
        await self._generator.completions(exchange, await self._body(exchange))

    async def _invocations(self, exchange: Exchange) -> None:
        """SageMaker's one path: the body tells which endpoint is meant."""
        body = await self._body(exchange)
        fields = body if isinstance(body, dict) else {}
        if isinstance(fields.get("messages"), list):
            await self._generator.chat(exchange, body)
        elif fields.get("prompt"):
            await self._generator.completions(exchange, body)
        else:
            raise bad_request(
                "Cannot find suitable handler for request. Expected one of: "
                "['ChatCompletionRequest', 'CompletionRequest']"
            )

    async def _tokenize(self, exchange: Exchange) -> None:
        body = await self._body(exchange)
        request: TokenizeTextRequest | TokenizeChatRequest
        if isinstance(body, dict) and "prompt" in body:
            request = parse_body(TokenizeTextRequest, body)
            text = request.prompt
        else:
            request = parse_body(TokenizeChatRequest, body)
            text = self._generator.render(request)
        self._generator.check_model(request.model)
        ids = await self._encoder.encode(text, add_special_tokens=request.add_special_tokens)
        strings = self._encoder.token_strings(ids) if request.return_token_strs else None
        await exchange.reply_json(
            {
                "count": len(ids),
                "max_model_len": self._model.max_model_len,
                "tokens": ids,
                "token_strs": strings,
            }
        )

    async def _detokenize(self, exchange: Exchange) -> None:
        request = parse_body(DetokenizeRequest, await self._body(exchange))
        self._generator.check_model(request.model)
        self._encoder.check_ids(request.tokens, "tokens")
        await exchange.reply_json({"prompt": self._encoder.decode(request.tokens)})

    async def _models(self, exchange: Exchange) -> None:
        started_s = self._model.started_s
        permission = {
            "id": f"modelperm-{self._model.fingerprint}",
            "object": "model_permission",
            "created": started_s,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        card = {
            "id": self._model.name,
            "object": "model",
            "created": started_s,
            "owned_by": "vllm",
            "root": self._model.root,
            "parent": None,
            "max_model_len": self._model.max_model_len,
            "permission": [permission],
        }
        await exchange.reply_json({"object": "list", "data": [card]})

    async def _healthy(self, exchange: Exchange) -> None:
        await exchange.reply(content_type=None)

    async def _version(self, exchange: Exchange) -> None:
        await exchange.reply_json({"version": VLLM_VERSION})

    async def _load(self, exchange: Exchange) -> None:
        # As vLLM without --enable-server-load-tracking.
        await exchange.reply_json({"server_load": 0})

    async def _show_metrics(self, exchange: Exchange) -> None:
        await exchange.reply(self._metrics.render(), content_type=CONTENT_TYPE)

    async def _sources(self, exchange: Exchange) -> None:
        await exchange.reply_json(self._kv_event_sources)

    async def _reset(self, exchange: Exchange) -> None:
        external = exchange.flag("reset_external")
        done = [engine.reset_prefix_cache(external=external) for engine in self._engines]
        await exchange.reply_json({"success": all(done)})
