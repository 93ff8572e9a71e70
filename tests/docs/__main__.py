"""``python -m tests.docs``: write the generated blocks of the documents again."""

from __future__ import annotations

from tests.docs.documents import rewrite


def main() -> None:
    for name in rewrite():
        print(f"written: {name}")


if __name__ == "__main__":
    main()
