"""Names of LMCache's files: what is one, what it tells, and which belong together."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.l2.file_form import Mode, NameForm, ParsedName, parse_name, sibling_names

# Names of files that LMCache 0.5.6 wrote (in-process: its own naming code run; multiprocess: a
# real pool), and of versions before.
IN_PROCESS = "-SEP-opt-SEP-ml-SEP-model@1@0@1ac772afde1cd3f1@bfloat16.data"
SIGNED = "-SEP-opt-SEP-ml-SEP-model@2@1@-956d789da941a0e@half.data"
LAYERWISE = "m@1@0@1ac772afde1cd3f1@bfloat16@31.data"
TAGGED = "m@1@0@1ac772afde1cd3f1@fp8_e4m3fn@tenant%a@site%b.data"
V0_3_10 = "vllm@-SEP-opt-SEP-ml-SEP-model@1@0@1ac772afde1cd3f1@bfloat16.data"
V0_3_9 = "vllm@-opt-ml-model@1@0@1ac772afde1cd3f1@bfloat16.data"
V0_3_7 = "vllm@-opt-ml-model@1@0@1ac772afde1cd3f1.data"
HASH = "06c94c3c9a869414799556a72012e915c1b7af5521c8d5f0cd9c2f74dfbd8331"
V0_4_1 = f"-SEP-opt-SEP-ml-SEP-model@1@0@{HASH}@bfloat16.data"
MULTIPROCESS = f"-SEP-models-SEP-smollm2-135m@0x01000100@0@{HASH}.data"
SALTED = f"Qwen-SEP-Qwen2-7B-Instruct@0x02010201@0@{HASH}@abc.data"
WITHOUT_GROUP = f"m@0x01000100@{HASH}.data"


def test_an_in_process_name_tells_everything_but_the_salt():
    assert parse_name(IN_PROCESS) == ParsedName(
        mode=Mode.IN_PROCESS,
        form=NameForm.CURRENT,
        model="/opt/ml/model",
        world_size=1,
        rank=0,
        digest="1ac772afde1cd3f1",
        dtype="bfloat16",
    )


def test_a_multiprocess_name_tells_ranks_and_salt():
    assert parse_name(SALTED) == ParsedName(
        mode=Mode.MULTIPROCESS,
        form=NameForm.CURRENT,
        model="Qwen/Qwen2-7B-Instruct",
        world_size=2,
        rank=1,
        digest=HASH,
        salt="abc",
    )


@pytest.mark.parametrize(
    ("name", "form", "digest", "dtype"),
    [
        (SIGNED, NameForm.CURRENT, "-956d789da941a0e", "half"),
        (LAYERWISE, NameForm.CURRENT, "1ac772afde1cd3f1", "bfloat16"),
        (TAGGED, NameForm.CURRENT, "1ac772afde1cd3f1", "fp8_e4m3fn"),
        (V0_4_1, NameForm.V0_4_1, HASH, "bfloat16"),
        (V0_3_10, NameForm.V0_3_10, "1ac772afde1cd3f1", "bfloat16"),
        (V0_3_9, NameForm.V0_3_9, "1ac772afde1cd3f1", "bfloat16"),
        (V0_3_7, NameForm.V0_3_7, "1ac772afde1cd3f1", None),
        (MULTIPROCESS, NameForm.CURRENT, HASH, None),
        (WITHOUT_GROUP, NameForm.CURRENT, HASH, None),
    ],
)
def test_every_version_is_known(name: str, form: NameForm, digest: str, dtype: str | None):
    parsed = parse_name(name)
    assert parsed is not None
    assert (parsed.form, parsed.digest, parsed.dtype) == (form, digest, dtype)


@pytest.mark.parametrize(
    "name",
    [
        "model-00001-of-00002.safetensors",
        "train.data",
        "user@1.data",
        "a@1@0@beef.data",  # no dtype, and not of 0.3.7
        "m@1@1@beef@half.data",  # rank 1 of 1
        "m@0@0@beef@half.data",
        "m@1@0@BEEF@half.data",
        "m@1@0@12345678901234567@half.data",  # more than 64 bits
        "m@1@0@beef@half.data.bak",
        "m@1@0@beef@half.tmp",
        "a/m@1@0@beef@half.data",
        f"m@0x1000100@0@{HASH}.data",
        f"m@0x01010100@0@{HASH}.data",  # rank 1 of 1
        f"m@0x01000100@0@{HASH}@.data",
        f"m@0x01000100@0@{HASH}@a@b.data",
        f"m@0x01000100@0@{HASH[:-1]}.data",
        "",
        ".data",
    ],
)
def test_nothing_else_is_one(name: str):
    assert parse_name(name) is None


@given(st.text(max_size=80))
def test_any_text_has_an_answer(name: str):
    parse_name(name)
    parse_name(f"{name}.data")


@pytest.mark.parametrize(
    ("name", "siblings"),
    [
        (IN_PROCESS, []),
        (
            "m@3@1@-beef@half@7.data",
            ["m@3@0@-beef@half@7.data", "m@3@2@-beef@half@7.data"],
        ),
        ("vllm@m@2@0@beef.data", ["vllm@m@2@1@beef.data"]),
        (f"m@2@0@{HASH}@half.data", [f"m@2@1@{HASH}@half.data"]),
        (
            # Four ranks on two hosts of two.
            f"m@0x04020200@0@{HASH}@s.data",
            [f"m@0x04000200@0@{HASH}@s.data", f"m@0x04010201@0@{HASH}@s.data",
             f"m@0x04030201@0@{HASH}@s.data"],
        ),
    ],
)  # fmt: skip
def test_siblings_are_the_other_ranks_of_the_chunk(name: str, siblings: list[str]):
    parsed = parse_name(name)
    assert parsed is not None
    assert list(sibling_names(name, parsed)) == siblings
    for sibling in siblings:
        other = parse_name(sibling)
        assert other is not None
        assert name in set(sibling_names(sibling, other))
        assert (other.digest, other.model, other.salt) == (
            parsed.digest,
            parsed.model,
            parsed.salt,
        )


def test_every_file_of_a_captured_pool_is_known():
    # The listing of a pool that two LMCache 0.5.6 servers wrote.
    listing = Path(__file__).parents[2] / "data/lmcache-0.5.6/lmc_l2_listing.txt"
    names = listing.read_text("utf-8").split()
    assert len(names) > 10
    for name in names:
        parsed = parse_name(name)
        assert parsed is not None, name
        assert parsed.model == "/models/smollm2-135m"
