"""The families of reasoning-gym as environments.

One item of a family is (configuration, seed). A task owns a run of seeds and takes the first item whose prompt falls into
its split, so that splits are disjoint by content and not only by seed. The verifier is the family's own `score_answer`.
"""

import dataclasses
import difflib
import functools
import hashlib
import json
import random
import re

import reasoning_gym
from reasoning_gym.factory import DATASETS

SHARES = (("train", 128), ("heldout", 192), ("eval", 256))  # upper bounds of the first hash byte of a prompt
BASES = {
    "train": 0,
    "heldout": 700_000_000,
    "eval": 1_400_000_000,
}  # below 2**31: some families use 32-bit seeds
TRIES = 64  # seeds of a task; chance that none falls into a quarter of the space: 1e-8
PER_DATASET = 16  # tasks that share one dataset object: loading word lists is dearer than drawing items
TASKS = 700_000_000 // TRIES
RESERVED = ("binary", "family", "seed", "size")
EXAMPLES = (
    "example_answer",
    "example_correct_answer",
    "possible_answer",
)  # where families without an answer keep one


class Environment:
    def __init__(self, params):
        self.family = params["family"]
        if self.family not in DATASETS:
            raise ValueError(f"family: reasoning-gym has no {self.family!r}")
        self.binary = bool(params["binary"])
        self.config = {name: value for name, value in params.items() if name not in RESERVED}
        check_names(self.family, self.config)
        self.dataset = functools.lru_cache(maxsize=4)(self.open_dataset)
        self.entry = functools.lru_cache(maxsize=4096)(self.find_entry)
        self.dataset("train", 0)  # a configuration that the family refuses is found here

    def task(self, split, index):
        entry = self.entry(split, index)
        return {
            "prompt": entry["question"],
            "private": {"split": split, "index": index, "answer": entry["answer"]},
            "tags": {"family": self.family},
        }

    def oracle(self, task, style):
        entry = self.entry(task["private"]["split"], task["private"]["index"])
        answer = answer_of(entry)
        if answer is None:
            return []
        if style == "direct":
            return [{"answer": answer}]
        solution = worked(self.family, entry, answer) if style == "tool" else None
        if solution is None:
            return []
        code, output = solution
        return [{"call": {"name": "python", "arguments": {"code": code}}}, {"answer": str(output)}]

    def score(self, task, answer, transcript):
        split, index = task["private"]["split"], task["private"]["index"]
        entry = self.entry(split, index)
        reward = float(self.dataset(split, index // PER_DATASET).score_answer(answer, entry))
        return float(reward >= 1.0) if self.binary else reward

    def find_entry(self, split, index):
        if not 0 <= index < TASKS:
            raise ValueError(f"index: {index} is outside 0..{TASKS - 1}")
        dataset = self.dataset(split, index // PER_DATASET)
        first = index % PER_DATASET * TRIES
        for item in range(first, first + TRIES):
            entry = dataset[item]
            if split_of(entry["question"]) == split:
                return entry
        raise ValueError(f"{self.family}: too few different prompts to fill split {split!r}")

    def open_dataset(self, split, number):
        per = TRIES * PER_DATASET
        random.seed(0)  # families that touch the global generator must not depend on what ran before
        return reasoning_gym.create_dataset(
            self.family, seed=BASES[split] + number * per, size=per, **self.config
        )


def check_names(family, config):
    known = [field.name for field in dataclasses.fields(DATASETS[family][1]) if field.name not in RESERVED]
    for name in config:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
            raise ValueError(f"{name}: {family} has no such parameter ({hint})")


def split_of(text):
    first = hashlib.sha256(text.encode()).digest()[0]
    return next(name for name, bound in SHARES if first < bound)


def answer_of(entry):
    """The dataset's own answer, else the example in its metadata, else None."""
    if entry["answer"] is not None:
        return str(entry["answer"])
    found = next((entry["metadata"][key] for key in EXAMPLES if entry["metadata"].get(key)), None)
    return found if found is None or isinstance(found, str) else json.dumps(found)


def worked(family, entry, answer):
    """(code, what it prints) as a solution with the tool; None when the family has none.

    Of the family's candidates, the first that prints the dataset's answer counts. If none does and the arithmetic is
    exact, the first candidate stands with what it prints: then the dataset is wrong, and admission must see that.
    """
    candidates = CANDIDATES[family](entry, answer) if family in CANDIDATES else ()
    results = [(code, printed(code)) for code in candidates]
    matching = [result for result in results if result[1] == answer.strip()]
    if matching:
        return matching[0]
    return results[0] if results and family not in INEXACT else None


def printed(code):
    """What the python tool shows for `code`: the value of its last line. Only ever sees code written below."""
    *setup, last = code.split("\n")
    scope = {}
    try:
        exec("\n".join(setup), scope)
        return str(eval(last, scope))
    except (ArithmeticError, SyntaxError, ValueError):
        return None


def expression_code(entry, answer):
    expression = entry["metadata"].get("expression")
    if expression is None:
        expression = re.search(r"([^\n]+?)\s*=\s*\?\s*$", entry["question"])[1]
    places = len(answer.partition(".")[2])
    return expression, f"round({expression}, {places})", f"int({expression})"


def gcd_code(entry, _answer):
    return (f"import math\nmath.gcd({', '.join(map(str, entry['metadata']['numbers']))})",)


def lcm_code(entry, _answer):
    return (f"import math\nmath.lcm({', '.join(map(str, entry['metadata']['numbers']))})",)


def bits_code(entry, _answer):
    return (f"bin({entry['metadata']['number']}).count('1')",)


def bitwise_code(entry, _answer):
    return (f"hex({entry['metadata']['problem']})",)


def primes_code(entry, _answer):
    low, high = entry["metadata"]["start"], entry["metadata"]["end"]
    return (
        f"sum(n > 1 and all(n % d for d in range(2, int(n ** .5) + 1)) for n in range({low}, {high} + 1))",
    )


def letters_code(entry, _answer):
    text, letter = " ".join(entry["metadata"]["span"]), entry["metadata"]["target_letter"]
    return f"{text!r}.count({letter!r})", f"{text!r}.lower().count({letter!r})"


def backward_code(entry, _answer):
    return (f"{entry['metadata']['word']!r}[::-1]",)


def power_code(entry, _answer):
    base, exponent = entry["metadata"]["base"], entry["metadata"]["exponent"]
    return f"{base} ** {exponent}", f"({base}) ** {exponent}"


CANDIDATES = {
    "basic_arithmetic": expression_code,
    "bitwise_arithmetic": bitwise_code,
    "chain_sum": expression_code,
    "count_bits": bits_code,
    "count_primes": primes_code,
    "decimal_arithmetic": expression_code,
    "decimal_chain_sum": expression_code,
    "gcd": gcd_code,
    "lcm": lcm_code,
    "letter_counting": letters_code,
    "power_function": power_code,
    "products": expression_code,
    "spell_backward": backward_code,
}
INEXACT = (
    "decimal_arithmetic",
    "decimal_chain_sum",
    "power_function",
)  # floats print other digits than the dataset
