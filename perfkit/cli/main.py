"""`perfkit COMMAND …`: find the command, run it, turn errors into exit codes.

A command is a module of this package with

    a docstring        its help: the first line in `perfkit --help`, the rest in `perfkit COMMAND --help`
    add_arguments(parser)
    run(args) -> int   calls one library function and one renderer; imports what is heavy inside

This is the only place where an exception becomes an exit code: 0 fine, 1 a `--fail-on` condition
holds, 2 bad usage or input, 130 interrupted, 143 terminated. What nobody foresaw is one line and exit code 2 too,
because 1 would tell a CI job that a gate has tripped; PERFKIT_DEBUG=1 shows where it happened.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType, ModuleType
from typing import Any, NoReturn

import perfkit
from perfkit.cli.streams import finish_output, prepare, say
from perfkit.errors import PerfkitError

COMMANDS: tuple[str, ...] = (
    "demo", "run", "ingest", "analyze", "compare", "whatif", "mfu", "hardware", "simulate", "export", "store", "hang",
    "goodput", "health", "trace", "serve-metrics", "dashboard",
)  # fmt: skip

MAY_BE_EMPTY = ("--parallel", "--prefix")
"""Options to which an empty text says something. Everywhere else it is a shell variable that nobody has set, and as a
path it would mean the current folder."""


def load_command(name: str) -> ModuleType:
    """Import the module of a command (cheap: commands import heavy things inside `run`)."""
    return importlib.import_module(f"perfkit.cli.{name.replace('-', '_')}")


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line with the nearest right word, where argparse prints the whole usage."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        end = "" if message.endswith("?") else ";"
        self.exit(2, f"{self.prog}: {message}{end} `{self.prog} --help` shows examples\n")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        others = action.nargs in (argparse.PARSER, argparse.REMAINDER)  # arguments of a sub-command, or of a program
        if not (arg_string or others or set(action.option_strings) & set(MAY_BE_EMPTY)):
            name = action.option_strings[-1] if action.option_strings else action.metavar
            raise argparse.ArgumentError(None, f"{name} is empty; is a shell variable not set?")
        return super()._get_value(action, arg_string)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            name = action.option_strings[-1] if action.option_strings else str(action.metavar).lower()
            known = [str(choice) for choice in action.choices]
            hint = _did_you_mean(str(value), known) or f"; use one of {', '.join(known)}"
            raise argparse.ArgumentError(None, f"there is no {name} {value!r}{hint}")

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """End because of words that no argument takes."""
        word = next((word for word in words if word.startswith("-")), words[0])
        if not word.startswith("-"):
            self.error(f"nothing takes the argument {word!r}")
        self.error(f"there is no option {word}{_did_you_mean(word.partition('=')[0], self.options())}")

    def options(self) -> Iterator[str]:
        """Yield every option, those of sub-commands included."""
        for action in self._actions:
            yield from action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                for child in action.choices.values():
                    yield from child.options()


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""


def build_parser(commands: Sequence[str] = COMMANDS) -> Parser:
    """Build the parser with one sub-parser per command."""
    parser = Parser(
        prog="perfkit",
        description="What is my MFU, where did the rest go, who is to blame, and what do I fix first?",
        epilog="example: perfkit analyze traces/",
    )
    parser.add_argument("--version", action="version", version=f"perfkit {perfkit.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name in commands:
        module = load_command(name)
        summary, _, details = (module.__doc__ or "").strip().partition("\n")
        sub = subparsers.add_parser(
            name,
            help=summary,
            description=summary,
            epilog=details.strip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
        sub.set_defaults(run_command=module.run, parser=sub)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = sys.argv[1:] if argv is None else argv
    again = "; run the same command again to go on" if given[:1] == ["ingest"] else ""
    try:
        code = _run(given)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except PerfkitError as error:
        say(str(error))
        code = error.exit_code
    except KeyboardInterrupt:
        say(f"interrupted{again}")
        code = 130
    except BrokenPipeError:  # the reader of our output has left (`perfkit … | head`)
        code = 0
    except SystemExit as stop:
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
        code = 0  # the same, which rich turns into an exit with 1
    except _Terminated:
        say(f"terminated{again}")
        code = 128 + signal.SIGTERM
    except Exception as error:
        if os.environ.get("PERFKIT_DEBUG"):
            raise
        what = f"{type(error).__name__}: {error}".partition("\n")[0]
        say(f"{what}; run it again with PERFKIT_DEBUG=1 to see where, and report it")
        code = 2
    finish_output()
    return code


def _run(given: list[str]) -> int:
    parser = build_parser(given[:1] if given and given[0] in COMMANDS else COMMANDS)  # loading all takes 50 ms
    try:
        args, unknown = parser.parse_known_args(given)
        if unknown:
            getattr(args, "parser", parser).refuse(unknown)
    except SystemExit as stop:  # argparse: 0 after --help and --version, 2 on bad usage
        return int(stop.code or 0)
    if args.command is None:
        parser.print_help()
        return 2
    return int(args.run_command(args))


class _Terminated(BaseException):
    """SIGTERM: ends like Ctrl-C, so that workers end and temporary folders go."""


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _Terminated


def entry() -> None:
    """Console-script entry point."""
    signal.signal(signal.SIGTERM, _terminate)
    prepare()
    sys.exit(main())
