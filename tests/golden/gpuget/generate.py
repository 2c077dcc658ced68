#!/usr/bin/env python3
"""Writes argparse.json: how Python's argparse parses command lines with GPU.py's flags.

    python3.11 tests/golden/gpuget/generate.py

Later versions of Python use slightly different texts. The drop-in keeps the texts of 3.11.
"""
import contextlib
import io
import json
import os
import pathlib
import random
import sys
import argparse

assert sys.version_info[:2] == (3, 11), sys.version
os.environ["COLUMNS"] = "80"

TEXT = dict(type=str)
INT = dict(type=int)
FLAG = dict(action="store_true")
FLAGS = [
    ("--gpu-count", FLAG, "how many GPUs this machine has"),
    ("--managed-gpu-count", FLAG, "how many GPUs are managed"),
    ("--redis-server", TEXT, "where Redis is (localhost)"),
    ("--redis-port", INT, "its port (6379)"),
    ("--redis-db", INT, "its database (0)"),
    ("--redis-prefix", TEXT, "what all keys begin with (GPU)"),
    ("--redis-manage-all", FLAG, "manage all GPUs"),
    ("--redis-manage", TEXT, "manage these, such as 0,1"),
    ("--redis-manage-count", INT, "manage the last so many"),
    ("--force", FLAG, "replace an existing pool"),
    ("--get", FLAG, "wait for a GPU and print its number"),
    ("--release", INT, "give the GPU of this number back"),
    ("--log", FLAG, "print what happened, oldest first"),
    ("--info", FLAG, "count them"),
    ("--idle", FLAG, "list the GPUs without a holder"),
    ("--managed", FLAG, "list the managed GPUs"),
    ("--active", FLAG, "list the held GPUs and their holders"),
    ("--redis-delete", FLAG, "forget the pool"),
    ("--redis-purge", FLAG, "free the GPUs of exited processes of this host"),
]


def parser():
    made = argparse.ArgumentParser(
        prog="GPU.py",
        description="GPUs allocated through Redis, each to one holder. Stands in for GPUGET's GPU.py.",
    )
    alone = made.add_mutually_exclusive_group()
    for name, how, told in FLAGS:
        (alone if name.startswith("--redis-manage") else made).add_argument(name, help=told, **how)
    return made


def case(words):
    out, err = io.StringIO(), io.StringIO()
    told = dict(words=words)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            given = vars(parser().parse_args(words))
        except SystemExit as end:
            told["code"] = end.code
            told["error"] = err.getvalue().rpartition("GPU.py: error: ")[2].rstrip("\n")
            return told
    told["code"] = 0
    told["given"] = {
        "--" + name.replace("_", "-"): "" if value is True else str(value)
        for name, value in given.items()
        if value is not None and value is not False
    }
    return told


LINES = """

--get
--release 3
--release=3
--rel 3
--rel=3
--release -5
--release=-5
--release -.5
--release -5x
--release
--release --get
--release --
--release -- 3
--release=
--release 3.0
--release abc
--release 0x3
--release 1_0
--release 007
--release 99999999999999999999999
--release 3 --release 4
--idl
--i
--a
--l
--g
--m
--ma
--managed
--managed-
--re
--red
--redis-
--redis-p
--redis-p=1
--redis-po 6380
--redis-pr x
--redis-pu
--redis-d
--redis-de
--redis-db
--redis-db one
--redis-s here
--redis-manage
--redis-manage 0,1
--redis-manage=0,1
--redis-manage=
--redis-manage-a
--redis-manage-c 2
--redis-manage-count -2
--redis-manage-count x
--redis-manage-all --redis-manage 0
--redis-manage 0 --redis-manage-all
--redis-manage 0 --redis-manage-count 2
--redis-manage-count 2 --redis-manage-count 3
--redis-manage-all --redis-manage-all
--redis-manage-all --redis-manage-count x
--force --redis-manage-all
--force=1 --redis-manage-all
--force=
--get=now
--get --release 3 --log
--delete
--redis-host here
3
3 4
--get 3
--get 3 --unknown 4
--unknown --get
--unknown=4
-
- --get
--
-- --get
--get -- 3
-3
-x
-get
-h
--help
--he
--help=x
--h=
-hh
-hx
-hhx
-h=x
-h=
-h=hh
--unknown -h
--release x -h
-h --release x
-h --redis-p
--redis-p -h
---get
--Get
--=
--=x
--release=it's
""".split("\n")


def lines():
    for line in LINES[1:-1]:
        yield line.split()
    for words in (["--release", ""], [""], ["--release", "a b"], ["--release", "-a b"], ["-a b"], ["--re b"],
                  ["--redis-prefix", ""], ["--redis-prefix", "-x"], ["--redis-prefix=-x"], ["--redis-prefix", "é"],
                  ["--release", " 7 "], ["--release", "\t7\n"], ["--release", "é"], ["--release", "a\\b"],
                  ["--release", "a'b\"c"], ["--redis-server", "a=b"], ["--redis-server=a=b"]):
        yield words
    dice = random.Random(20240613)
    pieces = [name for name, _, _ in FLAGS] * 2 + ["-h", "--help", "--", "-", "3", "-5", "x", "", "a b", "-x", "--x"]
    for _ in range(400):
        words = []
        for _ in range(dice.randint(1, 4)):
            word = dice.choice(pieces)
            if word.startswith("--") and dice.random() < 0.3:
                word = word[: dice.randint(3, max(3, len(word)))]
            if word.startswith("--") and len(word) > 2 and dice.random() < 0.2:
                word += "=" + dice.choice(["3", "", "x", "-5", "--get"])
            words.append(word)
        yield words


here = pathlib.Path(__file__).parent
cases = [case(words) for words in lines()]
with open(here / "argparse.json", "w") as golden:
    golden.write('{"python": %s, "usage": %s, "help": %s, "cases": [\n' % tuple(
        map(json.dumps, (sys.version.split()[0], parser().format_usage(), parser().format_help()))))
    golden.write(",\n".join(map(json.dumps, cases)) + "\n]}\n")
