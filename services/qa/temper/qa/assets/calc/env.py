"""calc: integer expressions whose value is asked for.

A task is drawn from a hash of (split, index), so it is the same on every machine. Splits are disjoint by content: the hash
of an expression decides which split it may appear in, whatever the seeds.
"""

import hashlib
import random
import re
from decimal import Decimal, InvalidOperation

SHARES = (("train", 192), ("heldout", 224), ("eval", 256))  # upper bounds of the first hash byte
DRAWS = 512  # chance that none of so many draws falls into an eighth of the space: 1e-30
LONGEST_ANSWER = 64  # characters; keeps int() and Decimal() of hostile answers cheap
PIECES = re.compile(r"n|\[([-+*]+)\]|([-+*() ])")


class Environment:
    def __init__(self, params):
        self.low = int(params["low"])
        self.high = int(params["high"])
        self.suffix = str(params["suffix"])
        self.forms = [parse_form(form) for form in params["forms"]]
        if not 0 <= self.low <= self.high:
            raise ValueError(f"low and high: need 0 <= low <= high, got {self.low} and {self.high}")
        if not self.forms:
            raise ValueError("forms: at least one form is needed")

    def task(self, split, index):
        draw = random.Random(f"calc/{split}/{index}")
        for _ in range(DRAWS):
            expression = self.expression(draw)
            if split_of(expression) == split:
                break
        else:
            raise ValueError(f"forms: too few different expressions to fill split {split!r}")
        return {
            "prompt": expression + self.suffix,
            "private": {"expression": expression, "answer": str(value_of(expression))},
            "tags": {"operators": "".join(sorted(set(expression) & set("+-*")))},
        }

    def oracle(self, task, style):
        private = task["private"]
        if style == "tool":
            call = {"name": "python", "arguments": {"code": private["expression"]}}
            return [{"call": call}, {"answer": private["answer"]}]
        return [{"answer": private["answer"]}] if style == "direct" else []

    def score(self, task, answer, transcript):
        if answer is None or len(answer) > LONGEST_ANSWER:
            return 0.0
        try:
            given = Decimal(answer.strip())
        except InvalidOperation:
            return 0.0
        return 1.0 if given.is_finite() and given == Decimal(task["private"]["answer"]) else 0.0

    def expression(self, draw):
        parts = draw.choice(self.forms)
        return "".join(
            str(draw.randint(self.low, self.high)) if part is None else draw.choice(part) for part in parts
        )


def parse_form(form):
    """`n[+-]n` as [None, "+-", None]: None is an operand, a string one choice of its characters."""
    parts, end = [], 0
    for match in PIECES.finditer(form):
        if match.start() != end:
            break
        end = match.end()
        parts.append(None if match[0] == "n" else match[1] or match[2])
    if not parts or end != len(form):
        raise ValueError(f"forms: {form!r} is not made of n, [operators], operators, brackets and spaces")
    return parts


def value_of(expression):
    try:
        return eval(expression, {"__builtins__": {}})  # made of digits, operators and brackets by parse_form
    except SyntaxError as error:
        raise ValueError(f"forms: {expression!r} has no value: {error}") from None


def split_of(text):
    first = hashlib.sha256(text.encode()).digest()[0]
    return next(name for name, bound in SHARES if first < bound)
