"""``python -m art_backend``. Ctrl-C ends it without a traceback, also while it still loads."""

import signal


def main(program: str = "python -m art_backend") -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from art_backend.command import cli  # takes seconds

    signal.signal(signal.SIGINT, signal.default_int_handler)
    cli(prog_name=program)


if __name__ == "__main__":
    main()
