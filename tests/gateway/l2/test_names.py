"""Names of LMCache's files, against what LMCache 0.5.6 itself computed and wrote."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.kvevents.decode import BlocksStored, batch_events
from gateway.l2.chunks import Algorithm, Unhashable, chunk_hasher
from gateway.l2.file_form import Mode, NameForm, ParsedName, parse_name
from gateway.l2.names import FileNames, is_salt, path_index, why_no_match
from gateway.l2.seeds import MAX_SEED, hash_of_text
from routing.hashing import pack_tokens
from tests.support.captures import batches

DATA = Path(__file__).parents[2] / "data/lmcache-0.5.6"
TOKENS = pack_tokens(range(48))
FILES = (DATA / "lmc_l2_listing.txt").read_text().split()

IN_PROCESS = [
    (
        Algorithm.SHA256_CBOR,
        None,
        11230124004819357437,
        ["1ac772afde1cd3f1", "1e8ee5649ca3c16a", "f0f059fbc9d2c925"],
    ),
    (
        Algorithm.SHA256_CBOR,
        0,
        5625442194607170974,
        ["7913e9343b88bdf9", "17c587bb83dc4528", "2203bd5a0985d389"],
    ),
    (
        Algorithm.SHA256_CBOR,
        42,
        None,
        ["4ff60dc147c6caa8", "515280c4afc5212b", "1fa00a70a5818840"],
    ),
    (
        Algorithm.BUILTIN,
        0,
        5313149338359954478,
        ["6e9ca116c2360103", "677ea5bfa434164c", "-956d789da941a0e"],
    ),
    (
        Algorithm.BUILTIN,
        42,
        None,
        ["-2766fc509717fe9b", "c82dad39f2d30ec", "-666aac72a1918c0a"],
    ),
    (
        Algorithm.SHA256,
        None,
        None,
        ["ea7cf6c7ac5b561c", "bc8177ac546e3555", "c0612854afcab527"],
    ),
]


@pytest.mark.parametrize(("algorithm", "seed", "root", "hexed"), IN_PROCESS)
def test_in_process_names_are_those_of_lmcache(algorithm, seed, root, hexed):
    hasher = chunk_hasher(algorithm, 16, seed)
    names = FileNames(Mode.IN_PROCESS, "/opt/ml/model")
    made = [names.of(digest, 0) for digest in hasher.hashes(TOKENS)]
    assert made == [f"-SEP-opt-SEP-ml-SEP-model@1@0@{x}@bfloat16.data" for x in hexed]
    assert root in (None, hasher.root)


MULTIPROCESS = [
    "32748aa00c5090e4f0e1f149078a07381f4f618d898c1cbac17e36521c3de48f",
    "b41527751e5bac5a664450d89585d03c64c3985924969dfb1808b151dd214695",
    "320e30afd39a7564af8275d2395baf6b3011f85f8659a7bc75725adb4be6a072",
]


def test_multiprocess_names_are_those_of_lmcache():
    hasher = chunk_hasher(Algorithm.BLAKE3, 16, None)
    digests = list(hasher.hashes(TOKENS))
    assert hasher.root.hex() == "7e3eff9ef7613a50340eb12677ee03b83ac759fcba9bb32705f07248d56d473b"
    assert [digest.hex() for digest in digests] == MULTIPROCESS
    one = FileNames(Mode.MULTIPROCESS, "/opt/ml/model")
    assert one.of(digests[0], 0) == (
        f"-SEP-opt-SEP-ml-SEP-model@0x01000100@0@{MULTIPROCESS[0]}.data"
    )
    two = FileNames(Mode.MULTIPROCESS, "Qwen/Qwen2-7B-Instruct", world_size=2)
    assert two.of(digests[0], 1, "abc") == (
        f"Qwen-SEP-Qwen2-7B-Instruct@0x02010201@0@{MULTIPROCESS[0]}@abc.data"
    )


def test_a_chain_goes_on_behind_any_chunk():
    for algorithm, seed in ((Algorithm.BLAKE3, None), (Algorithm.BUILTIN, 7)):
        hasher = chunk_hasher(algorithm, 16, seed)
        whole = list(hasher.hashes(TOKENS))
        assert list(hasher.hashes(TOKENS, 2, whole[1])) == whole[2:]


def test_only_full_chunks_have_a_hash():
    hasher = chunk_hasher(Algorithm.BLAKE3, 16, None)
    assert len(list(hasher.hashes(pack_tokens(range(47))))) == 2
    assert list(hasher.hashes(pack_tokens(range(15)))) == []


def test_builtin_hashes_without_a_seed_are_refused_with_the_cure():
    with pytest.raises(Unhashable, match="PYTHONHASHSEED"):
        chunk_hasher(Algorithm.BUILTIN, 256, None)


@pytest.mark.parametrize("own_seed", ["0", "1", "random"])
def test_builtin_hashes_do_not_depend_on_our_own_process(own_seed):
    code = (
        "from gateway.l2.chunks import Algorithm, chunk_hasher\n"
        "from routing.hashing import pack_tokens\n"
        "hasher = chunk_hasher(Algorithm.BUILTIN, 16, 42)\n"
        "print([f'{x:x}' for x in hasher.hashes(pack_tokens(range(48)))])"
    )
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": own_seed, "PYTHONPATH": str(DATA.parents[2])},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert told.strip() == "['-2766fc509717fe9b', 'c82dad39f2d30ec', '-666aac72a1918c0a']"


@pytest.mark.parametrize("seed", [0, 1, 42, 123456789, MAX_SEED])
def test_a_seeded_hash_of_text_is_that_of_another_process(seed):
    texts = [str(seed), "vllm-none-hash", "x" * 8]
    code = f"print([hash(text) for text in {texts!r}])"
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    told = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert told.strip() == str([hash_of_text(text, seed) for text in texts])


def test_several_base_paths_share_the_chunks_by_their_hash():
    assert [path_index(-5, 3), path_index(5, 3), path_index(4, 1)] == [2, 2, 0]
    assert path_index(b"\1" * 32, 3) == 0, "the multiprocess form has one path"


# Of tokens 0 to 15, made by that version's own code with vLLM 0.32's hashes and PYTHONHASHSEED=0.
# Where `builtin` hashes a None, the hash is that of Python 3.12, as in the versions' images.
WHOLE = (
    "427775380de1a56403c11f804cb27f725681b05b56d984e75f4cd79b89fb324e",
    "d830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c",
)
OLDER = [
    (
        NameForm.V0_4_1,
        Algorithm.SHA256_CBOR,
        f"-SEP-opt-SEP-ml-SEP-model@1@0@{WHOLE[0]}@bfloat16.data",
    ),
    (
        NameForm.V0_4_1,
        Algorithm.BUILTIN,
        "-SEP-opt-SEP-ml-SEP-model@1@0@6e9ca116c2360103@bfloat16.data",
    ),
    (
        NameForm.V0_3_13,
        Algorithm.SHA256_CBOR,
        f"-SEP-opt-SEP-ml-SEP-model@1@0@{WHOLE[1]}@bfloat16.data",
    ),
    (
        NameForm.V0_3_10,
        Algorithm.BUILTIN,
        "vllm@-SEP-opt-SEP-ml-SEP-model@1@0@7733fb4ad2cf185d@bfloat16.data",
    ),
    (
        NameForm.V0_3_9,
        Algorithm.BUILTIN,
        "vllm@-opt-ml-model@1@0@7733fb4ad2cf185d@bfloat16.data",
    ),
    (
        NameForm.V0_3_7,
        Algorithm.BUILTIN,
        "vllm@-opt-ml-model@1@0@7733fb4ad2cf185d.data",
    ),
]


@pytest.mark.parametrize(("form", "algorithm", "name"), OLDER)
def test_names_of_older_versions(form, algorithm, name):
    names = FileNames(Mode.IN_PROCESS, "/opt/ml/model", form=form)
    [digest, *_] = chunk_hasher(algorithm, 16, 0, form).hashes(TOKENS)
    assert names.of(digest, 0) == name
    parsed = parse_name(name)
    assert parsed.form.shape is form.shape
    assert "hashes" in why_no_match(names, [parsed]), "all other parts agree"


def test_hashes_of_older_versions_are_chained():
    hashes = list(chunk_hasher(Algorithm.SHA256_CBOR, 16, 0, NameForm.V0_3_13).hashes(TOKENS))
    assert hashes[2].hex() == "ee4c34c217da17ac84268f864db16efed5fcefe10fcc4a9625a719adc68e654f"
    builtin = list(chunk_hasher(Algorithm.BUILTIN, 16, 0, NameForm.V0_3_9).hashes(TOKENS))
    assert [f"{x:x}" for x in builtin[1:]] == ["-25406c296b203494", "40ded8b70154706e"]


@pytest.mark.parametrize("salt", ["a/b", "a\\b", "a@b", "a\0b", "\ud800", "x" * 129])
def test_salts_that_lmcache_refuses(salt):
    assert not is_salt(salt)
    assert is_salt("tenant-a")


names = st.builds(
    FileNames,
    st.sampled_from(Mode),
    st.sampled_from(["/opt/ml/model", "Qwen/Qwen2-7B", "m"]),
    st.integers(1, 16),
    st.sampled_from(["bfloat16", "half", "fp8_e4m3fn"]),
)


@given(names, st.data())
def test_a_name_says_what_it_was_made_of(spec, data):
    rank = data.draw(st.integers(0, spec.world_size - 1))
    if spec.mode is Mode.MULTIPROCESS:
        digest = data.draw(st.binary(min_size=32, max_size=32))
        salt = data.draw(st.sampled_from(["", "tenant-a"]))
        parsed = parse_name(spec.of(digest, rank, salt))
        assert (parsed.digest, parsed.salt) == (digest.hex(), salt)
    else:
        digest = data.draw(st.integers(-(2**63), 2**63 - 1))
        parsed = parse_name(spec.of(digest, rank))
        assert (int(parsed.digest, 16), parsed.dtype) == (digest, spec.dtype)
    made_of = (parsed.mode, parsed.model, parsed.world_size, parsed.rank)
    assert made_of == (spec.mode, spec.model, spec.world_size, rank)


@pytest.mark.parametrize(
    "name", ["", ".data", "x.data", "m@1@0@ff@half.tmp", "a@b@c@d@e.data", "m@1@0@xyz@half.data"]
)
def test_other_files_are_not_lmcaches(name):
    assert parse_name(name) is None


def test_every_captured_file_has_the_name_that_its_parts_make():
    spec = FileNames(Mode.MULTIPROCESS, "/models/smollm2-135m")
    assert len(FILES) == 54
    for name in FILES:
        parsed = parse_name(name)
        assert (parsed.model, parsed.world_size, parsed.rank) == ("/models/smollm2-135m", 1, 0)
        assert spec.of(bytes.fromhex(parsed.digest), 0) == name


def test_captured_prompts_name_the_files_that_lmcache_wrote_for_them():
    spec = FileNames(Mode.MULTIPROCESS, "/models/smollm2-135m")
    hasher = chunk_hasher(Algorithm.BLAKE3, 256, None)
    named = {
        spec.of(digest, 0) for packed in _captured_prompts() for digest in hasher.hashes(packed)
    }
    assert len(named) == 19, "three prompts of 7, 7 and 5 chunks"
    assert named <= set(FILES)


def _captured_prompts():
    tokens_by_handle = {None: b""}
    for _, _, payload in batches(DATA / "kv_retain_B.frames.bin"):
        for event in batch_events(payload):
            if isinstance(event, BlocksStored):
                tokens = tokens_by_handle[event.parent] + event.packed_tokens
                tokens_by_handle[event.hashes[-1]] = tokens
                yield tokens


FOUND = ParsedName(Mode.IN_PROCESS, NameForm.CURRENT, "/opt/ml/model", 1, 0, "ff", "half")


@pytest.mark.parametrize(
    ("ours", "why"),
    [
        (FileNames(Mode.MULTIPROCESS, "/opt/ml/model"), "mode"),
        (FileNames(Mode.IN_PROCESS, "qwen", dtype="half"), "model_path"),
        (FileNames(Mode.IN_PROCESS, "/opt/ml/model", 2, dtype="half"), "world_size"),
        (FileNames(Mode.IN_PROCESS, "/opt/ml/model"), "dtype"),
        (FileNames(Mode.IN_PROCESS, "/opt/ml/model", form=NameForm.V0_3_9), "name_form"),
        (FileNames(Mode.IN_PROCESS, "/opt/ml/model", dtype="half"), "PYTHONHASHSEED"),
    ],
)
def test_why_nothing_matches_names_the_setting(ours, why):
    assert why in why_no_match(ours, [FOUND])
