"""Files of tokens that passes, warm-ups and sweeps train on."""

import numpy as np
import pytest
from each import in_each
from test_passes import folder, one_thread, run  # noqa: F401  # fixtures that every test here uses


def token_file(where, tokens):
    path = where / "tokens.npy"
    np.save(path, tokens)
    return ["--pass", "forward", "--data", str(path)]


@pytest.mark.parametrize("kind", [np.uint16, np.int32])
def test_a_token_file_is_read(kind, tmp_path, capsys):
    assert run(*token_file(tmp_path, np.arange(100, dtype=kind))) == 0
    assert "custom" in capsys.readouterr().out


@in_each(
    ("tokens", "says"),
    [
        (np.full(50, 100, np.uint16), "token 0 has id 100, and the vocabulary ends at 99; raise --vocab-size"),
        (np.full(50, -1, np.int32), "token 0 has id -1"),
        (np.zeros(50, np.int64), "tokens of type int64; --data takes uint16 or int32"),
        (np.zeros(50, np.float32), "tokens of type float32"),
        (np.zeros((5, 50), np.uint16), "an array of shape (5, 50)"),
        (np.zeros(10, np.uint16), "10 tokens, but a sequence needs 17; lower --context-length"),
    ],
)
def test_an_unsuitable_token_file_is_refused_with_the_reason(tokens, says, tmp_path, capsys):
    assert run(*token_file(tmp_path, tokens)) == 2
    assert says in capsys.readouterr().err


def test_a_file_that_is_not_an_array_is_refused(tmp_path, capsys):
    path = tmp_path / "tokens.npy"
    path.write_text("not an array")
    assert run("--data", str(path)) == 2
    printed = capsys.readouterr().err
    assert "tokens.npy: not a .npy file of numbers; --data takes one that numpy.save wrote" in printed
    assert "pickle" not in printed  # numpy advises to trust the file
