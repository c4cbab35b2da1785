"""The section `index`: where Redis is, and what of it must not show."""

import pytest

from gateway.config.errors import ConfigError
from gateway.config.load import load_config

MODELS = "models: [{name: m, replicas: [{url: 'http://a:1'}]}]"


@pytest.fixture
def loaded(tmp_path):
    def load(index, **environ):
        file = tmp_path / "gateway.yaml"
        file.write_text(f"{MODELS}\nindex:\n{index}\n")
        return load_config(file, environ)

    return load


def test_a_url_and_a_password_from_the_environment(loaded):
    config = loaded("  {backend: redis, url: 'redis://r', password: '${PW}'}", PW="open sesame")
    assert config.index.password.get_secret_value() == "open sesame"
    assert "sesame" not in repr(config)


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ("  backend: redis", "index.url: required with backend redis"),
        ("  backend: redis\n  url: http://r", "index.url: must begin with one of redis"),
        ("  backend: redis\n  url: redis+sentinel://s", "index.url: must name the primary"),
        ("  namespace: 'a{b}'", "index.namespace: must be 1 to 64"),
        ("  password: ''", "index.password: must not be empty"),
        ("  tls: {verify: maybe}", "index.tls.verify"),
        ("  entry_ttl_s: 0", "index.entry_ttl_s: must be > 0"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_key(loaded, index, says):
    with pytest.raises(ConfigError) as refused:
        loaded(index)
    text = str(refused.value)
    assert says in text
    assert "gateway.yaml:" in text


def test_a_url_with_a_password_is_not_shown_where_it_is_wrong(loaded):
    with pytest.raises(ConfigError) as refused:
        loaded("  backend: redis\n  url: redis://u:sesame@r/x")
    assert "sesame" not in str(refused.value)
