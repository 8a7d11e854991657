"""Which layer of a model type is of which kind, where a file does not list them: rules that give the lists that the
config class makes."""

import re


def lists_of(t, count_field, counts, changes):
    """Of several numbers of layers the list that the config class makes; None where it makes none."""
    made = {}
    for count in counts:
        try:
            config = t.make({count_field: count, **changes})
        except Exception:
            continue
        found = t.list_of(config, count)
        if found is not None:
            made[count] = found
    return made


def gives(rules, made, fields):
    for count, kinds in made.items():
        for layer, kind in enumerate(kinds):
            if kind != next((r["kind"] for r in rules if applies(r, layer, count, fields)), None):
                return False
    return True


def applies(rule, layer, count, fields):
    def number(expressions):
        for e in expressions:
            flag, _, e = e.rpartition(" ? ")
            if flag and not fields.get(flag):
                continue
            value = int(e) if e.isdigit() else fields.get(e)
            if value is not None:
                return value
        return None

    if "last" in rule:
        return layer >= count - rule["last"]
    if "every" in rule:
        period = number(rule["every"])
        return bool(period) and (layer + rule.get("plus", 0)) % period == 0
    if "from" in rule:
        start = number(rule["from"])
        return start is not None and layer >= start
    return True


def candidates(kinds, fields, periods):
    for kind in kinds:
        yield [{"kind": kind}]
    pairs = [(a, b) for a in kinds for b in kinds if a != b]
    for last in (0, 1):
        for special, usual in pairs:
            for period in periods:
                most = fields[period] if isinstance(period, str) else period
                for plus in range(int(most)):
                    expressions = [period] if isinstance(period, str) else [str(period)]
                    rules = [{"every": expressions, "plus": plus, "kind": special}, {"kind": usual}]
                    for final in (kinds if last else [None]):
                        yield ([{"last": 1, "kind": final}] if last else []) + rules
    for special, usual in pairs:
        for name, value in fields.items():
            if isinstance(value, int) and not isinstance(value, bool) and re.search("layers|dense", name):
                yield [{"from": [name], "kind": special}, {"kind": usual}]
        for first in (1, 2, 3):
            yield [{"from": [str(first)], "kind": special}, {"kind": usual}]


def pattern_of(t, count_field):
    """Rules for a type, or None where no rules were found. They are tried in order; the first that applies counts."""
    if count_field is None:
        return None
    default = t.raw.get(count_field) or 12
    counts = (default, 13, 22, 5)
    made = lists_of(t, count_field, counts, {})
    if default not in made or len(made) < 2:
        return None
    fields = {k: v for k, v in t.raw.items() if isinstance(v, int) and not isinstance(v, bool)}
    numbers = [k for k in fields if re.search("pattern|period|interval|every|group_size", k) and 1 < fields[k] < 40]
    kinds = list(dict.fromkeys(k for made_ in made.values() for k in made_))
    rules = next((r for r in candidates(kinds, fields, numbers + list(range(2, 13))) if gives(r, made, fields)), None)
    if rules is None:
        return None
    # A period that is a number of a field must follow the field; one that is not may still be such a field's.
    for rule in rules:
        for name in numbers if "every" in rule else []:
            changed = lists_of(t, count_field, counts, {name: fields[name] + 1})
            followed = [dict(r, every=[name]) if r is rule else r for r in rules]
            plus = rule.get("plus", 0)
            if changed and changed != made:
                for other in (plus, plus - 1, plus + 1, 0):
                    followed = [dict(r, every=[name], plus=other) if r is rule else r for r in rules]
                    if gives(followed, changed, {**fields, name: fields[name] + 1}) and (other == plus or gives(followed, made, fields)):
                        rule.update(every=[name], plus=other)
                        break
    # A switch that gives the later layers a window.
    if "use_sliding_window" in t.raw and len(rules) == 1:
        changes = {"use_sliding_window": True, "sliding_window": 64, **({"max_window_layers": 3} if "max_window_layers" in t.raw else {})}
        switched = lists_of(t, count_field, counts, changes)
        for trial in ([{"from": ["use_sliding_window ? max_window_layers"], "kind": "sliding_attention"}] + rules,
                      [{"from": ["use_sliding_window ? 0"], "kind": "sliding_attention"}] + rules):
            if switched and switched != made and gives(trial, switched, {**t.raw, **changes}):
                return trial
    return rules
