"""files.py -- result files. They are written whole or not at all, and a JSON record is read whether or not it has been compressed since."""
import gzip
import json
import os


def write_text(path, text):
    """Writes beside the file's place and then renames, so that no reader sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text)
    os.replace(temporary, path)


def write_json(path, value):
    write_text(path, json.dumps(value))


def read_json(path):
    """The value in `path`, or, where there is no such file, in `path`.gz beside it. Runs write plain JSON; the repository has it compressed."""
    if path.exists():
        return json.loads(path.read_text())
    return json.loads(gzip.decompress(path.with_name(path.name + ".gz").read_bytes()))
