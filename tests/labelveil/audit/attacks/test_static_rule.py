"""No predictable generator on a label's way, however it is imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from labelveil.audit.attacks.implementation import static_check
from labelveil.audit.verdict import Verdict


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\ndef f(n):\n    return np.random.default_rng().laplace(size=n)\n",
        "from numpy.random import default_rng\n",
        "import numpy.random as r\nx = r.laplace()\n",
        "import random\nx = random.random()\n",
        "import torch\nx = torch.randn(3)\n",
    ],
)
def test_a_generator_on_the_wire(tmp_path: Path, source: str) -> None:
    path = tmp_path / "noise.py"
    path.write_text(source)
    assert static_check([path], "a twin").verdict is Verdict.FAIL
    path.write_text("import numpy as np\nx = np.zeros(3)\n")
    assert static_check([path], "a twin").verdict is Verdict.PASS
