"""The `halfstep` command."""

import argparse
import json
import os
import sys

import halfstep
from halfstep.cli import demo

# What a shell reports of a program that a signal ended: 128 and the signal's number.
_INTERRUPTED, _BROKEN_PIPE = 128 + 2, 128 + 13


def main(argv=None):
    """Runs one command; its exit status: 0, 1 (a check failed) or 2 (it could not start).

    130 after Ctrl-C and 141 when nobody reads the output any more, both without a word.
    """
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()  # so that a closed pipe is noticed here and not at exit
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes what is left once more at exit; it goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE


def _run(argv):
    parser = argparse.ArgumentParser("halfstep", description=halfstep.__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=f"halfstep {halfstep.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, help, add_arguments, run in COMMANDS:
        command = commands.add_parser(name, help=help, description=help)
        add_arguments(command)
        command.set_defaults(run=run)
    args = parser.parse_args(argv)
    if "run" not in args:
        parser.print_help()
        return 0
    return args.run(args)


def _info(args):
    print(json.dumps(halfstep.build_info(), indent=1))
    return 0


COMMANDS = (
    (
        "demo",
        "train a small vision transformer on handwritten digits, in plain torch and with halfstep",
        demo.add_arguments,
        demo.run,
    ),
    ("info", "print how halfstep was built and what it can use here", lambda parser: None, _info),
)
