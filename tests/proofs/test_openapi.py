"""The public API under requests made from its own OpenAPI document: nothing is ever a 500."""

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    response_schema_conformance,
    status_code_conformance,
)

from gateway.api.endpoints import ENDPOINTS, find
from gateway.api.openapi import document
from tests.support.stage import Stage

# Right requests and wrong ones; 25 operations with so many examples each take about 10 s.
EXAMPLES_AN_OPERATION = 20
CONFIG = SchemathesisConfig(
    projects=ProjectsConfig(
        default=ProjectConfig(generation=GenerationConfig(modes=list(GenerationMode)))
    )
)
SCHEMA = schemathesis.openapi.from_dict(document(), config=CONFIG)
CHECKS = [not_a_server_error, status_code_conformance, response_schema_conformance]


async def answers(conversation):
    await conversation.answer(b'{"id":"resp_1","object":"response"}')


@pytest.fixture(scope="module")
def url():
    with Stage() as stage:
        stage.scripts[""] = answers
        yield stage.gateway.gateway.url
        stage.told()


@SCHEMA.parametrize()
@settings(
    max_examples=EXAMPLES_AN_OPERATION,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_of_the_document_is_a_server_error(case, url):
    """Neither as generated nor, where a model is named, with the name of one that is served."""
    case.validate_response(case.call(base_url=url), checks=CHECKS)
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body = {**case.body, "model": "m"}
        case.validate_response(case.call(base_url=url), checks=CHECKS)


def test_every_public_path_is_in_the_document():
    paths = document()["paths"]
    own = {"/v1/models", "/livez", "/readyz", "/health", "/ping"}
    stored = {path for path in paths if "{" in path}
    assert paths.keys() == ENDPOINTS.keys() | own | stored
    for path in stored:
        endpoint = find(path.replace("{response_id}", "resp_1"))
        assert [endpoint.method.lower()] == list(paths[path])


def test_the_document_is_plain_json():
    assert json.loads(json.dumps(document())) == document()
