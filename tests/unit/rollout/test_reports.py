"""Every report of an engine elsewhere that this one learnt from has a test that carries its name."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]

REPORTS = {
    "vllm_9744": "weights loaded with the prefix cache on: no block of one version serves another",
    "nemo_rl_4018": "keep is for running requests, not for the prefix cache",
    "prime_rl_1650": "asking for prompt logprobs, or not, never changes results",
    "vllm_46125": "the policy of an update is explicit, and in the answer",
    "sglang_6888": "available + evictable + held = total at every idle step (also sglang#11970)",
    "sglang_22273": "an abort never writes back",
    "vllm_46283": "what waits in vain is reclaimed at its deadline (also vllm-ascend#16662)",
    "vllm_56089": "the end of a request frees once, in any order of events",
    "nano_vllm_211": "a preempted sequence matches the cache first and counts then (also #233)",
    "vllm_12621": "a prefix is its tokens, not their hash (also openvino.genai#3722)",
    "vllm_7283": "an empty prompt is refused and the engine lives",
    "vllm_40302": "one length limit everywhere (also #16445)",
    "vllm_3574": "nothing of a stop string leaks from a stream (also #2577, #11089)",
    "vllm_47616": "a stop inside a speculated run cuts ids, logprobs, versions and text together",
    "vllm_53812": "speculation reserves the sampled token inside the length limit",
    "sglang_37450": "usage counts what was emitted, with speculation too (also #39826)",
    "vllm_10852": "n seeded samples are streams of their own (also #7808, #16449)",
    "vllm_11123": "the generator belongs to the request (also #13196)",
    "vllm_29071": "prompt logprobs are a full vector or a refusal (also #8268, #14239)",
    "vllm_42259": "raw, processed and surviving mass are all told (also trl#6789)",
    "trl_5224": "ids in, ids out (also rllm PR#272, sglang PR#26555)",
    "miles_1805": "a recovered engine is used only after it has the published version",
    "sglang_26263": "routing looks at the whole prefix",
}


def named() -> str:
    """Names of all tests that exist."""
    return "\n".join(
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    )


@pytest.mark.parametrize("report", sorted(REPORTS))
def test_a_report_has_a_test_of_its_name(report: str) -> None:
    assert re.search(rf"^test_{report}_", named(), re.MULTILINE), f"{report}: {REPORTS[report]}"


def test_there_are_as_many_as_were_collected() -> None:
    assert len(REPORTS) == 23
