"""What the learners' modules share: the adapter, and --fault NAME among the arguments."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples" / "diagnose"))

from heed_live import answer_torch as answer  # noqa: E402, F401

_PLANTED = sys.argv[2] if sys.argv[1:2] == ["--fault"] else None


def fault(*names):
    return _PLANTED in names
