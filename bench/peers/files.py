"""files.py -- result files that are whole or absent: written beside their place, then renamed."""
import json
import os


def write_text(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text)
    os.replace(temporary, path)


def write_json(path, value):
    write_text(path, json.dumps(value))
