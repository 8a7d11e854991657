"""Expressions over the fields of a config, and the search for those that explain what was seen of a model.

An expression is "field", "a / b", "field * 2", "field + 1", "2 * a / b" or a number, and "flag ? expression" or
"!flag ? expression" in front of it. It is null where a field is null or a flag does not hold; a division floors. A
list of them means the first that is not null.
"""

import re


def value_of(name, fields):
    if re.fullmatch(r"-?[0-9.]+", name):
        return float(name) if "." in name else int(name)
    return fields.get(name)


def evaluate(expression, fields):
    while " ? " in expression:
        flag, expression = expression.split(" ? ", 1)
        if bool(fields.get(flag.lstrip("!"))) == flag.startswith("!"):
            return None
    words = expression.split()
    value = value_of(words[0], fields)
    for operator, word in zip(words[1::2], words[2::2]):
        operand = value_of(word, fields)
        if value is None or operand is None or isinstance(value, (str, list)) or isinstance(operand, (str, list)):
            return None
        if operator == "/" and operand == 0:
            return None
        value = {"*": lambda: value * operand, "/": lambda: value // operand, "+": lambda: value + operand}[operator]()
    return value if isinstance(value, (int, float)) else None


def first_of(chain, fields):
    return next((v for v in (evaluate(e, fields) for e in chain) if v is not None), 0)


# Which names are likely for what, the likeliest first.
LIKELY = {
    "layers": ["num_hidden_layers", "n_layer", "decoder_layers", "layers"],
    "q": ["num_attention_heads$", "n_heads?$", "decoder_attention_heads", "num_heads", "heads"],
    "kv": ["num_key_value_heads$", "kv_heads", "kv_n_heads", "key_value", "num_attention_heads$", "n_heads?$", "decoder_attention_heads", "heads"],
    "dim": ["^head_dim", "head_dim", "d_kv", "kv_channels", "head", "hidden_size /", "d_model /", "n_embd /"],
    "v": ["v_head_dim", "^head_dim", "head_dim", "d_kv", "head", "hidden_size /", "d_model /"],
    "window": ["^sliding_window$", "sliding_window", "window"],
    "chunk": ["chunk"],
    "rank": ["kv_lora_rank"],
    "rope": ["qk_rope_head_dim"],
    "selected": ["topk", "budget"],
    "soft_cap": ["soft"],
}


YES_OR_NO = ("causal", "sinks", "alibi", "position_bias", "prompt_window", "k_is_v")


def pool(fields, flags, role, values):
    if role in YES_OR_NO:
        return ["1"] + [f"{sign}{flag} ? 1" for flag in flags for sign in ("", "!")]
    numbers = [f for f, kind in fields.items() if kind == "number"]
    plain = list(numbers)
    plain += [f"{a} * 2" for a in numbers] + [f"{a} + 1" for a in numbers]
    if role in ("dim", "v"):
        wide = [f for f in numbers if re.search(r"hidden_size|d_model|embd|embed|dim|width|channels", f)]
        some = [f for f in numbers if "head" in f and "dim" not in f]
        plain += [f"{a} / {b}" for a in wide for b in some] + [f"2 * {a} / {b}" for a in wide for b in some]
        plain += [f"{a} + {b}" for a in numbers for b in numbers if a < b and "dim" in a and "dim" in b]
    if role in ("q", "kv"):
        plain += [f"{a} / {b}" for a in numbers for b in numbers if a != b and re.search("hidden|head", a) and re.search("head|group|d_kv", b)]
    if role == "window":
        plain += [f"{a} / 2{more}" for a in numbers for more in ("", " + 1")]
    guarded = [f"{sign}{flag} ? {e}" for flag in flags for sign in ("", "!") for e in numbers]
    constants = [str(v) for v in sorted(set(values)) if v]
    guarded += [f"{sign}{flag} ? {c}" for flag in flags for sign in ("", "!") for c in constants]
    likely = LIKELY.get(role, [])

    def rank(expression):
        body = expression.split(" ? ")[-1]
        name = next((i for i, pattern in enumerate(likely) if re.search(pattern, body)), len(likely))
        return len(expression.split()) > 1, name, len(expression.split()), len(expression)

    return sorted(plain, key=rank) + constants + sorted(guarded, key=rank)


def fit(role, samples, fields, flags):
    """A list of expressions that gives the value of each of samples [(values of fields, value)], or None. Values of 0
    may be given by null."""
    chain, left = [], samples
    expressions = pool(fields, flags, role, [v for _, v in samples])
    while any(value for _, value in left):
        best, best_cover, best_left = None, 0, None
        for expression in expressions:
            cover, rest, wrong = 0, [], False
            for given, value in left:
                found = evaluate(expression, given)
                if found is None:
                    rest.append((given, value))
                elif found != value:
                    wrong = True
                    break
                else:
                    cover += bool(value)
            if not wrong and cover > best_cover:
                best, best_cover, best_left = expression, cover, rest
        if best is None:
            return None
        chain.append(best)
        left = best_left
        if len(chain) > 4:
            return None
    return chain
