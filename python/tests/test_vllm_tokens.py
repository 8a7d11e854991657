"""What vllm_tokens.py calls agreement of two runs. Neither vLLM nor a GPU is needed."""
import pytest
import vllm_tokens


def run(*sequences, prefill=0.0):
    """A run of sequences of (token, its log-probability, that of token 9). `prefill`: how far prefill is from decode."""
    return {"prompts": vllm_tokens.PROMPTS[:len(sequences)], "tokens": [[token for token, _, _ in steps] for steps in sequences],
            "logprobs": [[{str(token): log, "9": other} for token, log, other in steps] for steps in sequences],
            "prefill": [[log + prefill for _, log, _ in steps] for steps in sequences]}


SAME = run([(1, -0.5, -2.0), (2, -0.3, -3.0)])


def test_equal_runs_agree():
    assert vllm_tokens.compare(SAME, SAME, 0.25)[0]


def test_a_near_tie_agrees_and_what_follows_it_does_not_count():
    one = run([(1, -0.5, -2.0), (3, -0.30, -0.31), (4, -0.1, -9.0)])
    other = run([(1, -0.6, -2.0), (9, -0.30, -0.30), (5, -7.0, -9.0)])
    other["logprobs"][0][1]["3"] = -0.32
    agrees, text = vllm_tokens.compare(one, other, 0.25)
    assert agrees and "0 of 1 sequences are the same; over 2 tokens" in text


def test_a_clear_choice_of_another_token_differs():
    other = run([(1, -0.5, -2.0), (9, -0.1, -0.1)])
    other["logprobs"][0][1]["2"] = -3.0
    assert not vllm_tokens.compare(SAME, other, 0.25)[0]


def test_a_token_that_the_other_run_does_not_know_differs():
    agrees, text = vllm_tokens.compare(SAME, run([(1, -0.5, -2.0), (9, -0.1, -0.1)]), 0.25)
    assert not agrees and "likeliest" in text


def test_decode_that_differs_from_prefill_does_not_agree():
    assert not vllm_tokens.compare(SAME, run([(1, -0.5, -2.0), (2, -0.3, -3.0)], prefill=0.5), 0.25)[0]


def test_runs_of_other_lengths_and_failed_ones_do_not_agree():
    assert not vllm_tokens.compare(SAME, run([(1, -0.5, -2.0)]), 0.25)[0]
    assert vllm_tokens.compare(SAME, {"error": "out of memory"}, 0.25) == (False, "out of memory")


def test_the_report_says_where_runs_differ_first_and_whether_prefill_did():
    near, far = (1, -0.5, -2.0), (1, -0.9, -2.0)
    agrees, text = vllm_tokens.compare(run([near, near, near], [near, near, near]), run([near, near, far], [near, far, near]), 0.25)
    assert not agrees and "and first by 0.400 at token 1 after a prompt of 300" in text
    assert "first tokens, which prefill makes, agree: by 0.000" in text
    agrees, text = vllm_tokens.compare(run([near], [near]), run([near], [far]), 0.25)
    assert not agrees and "first tokens, which prefill makes, differ: by 0.400 at token 0 after a prompt of 300" in text


def test_the_report_says_where_decode_is_furthest_from_prefill():
    made = run([(1, -0.5, -2.0), (2, -0.3, -3.0)])
    made["prefill"][0][1] = -4.3
    agrees, text = vllm_tokens.compare(SAME, made, 0.25)
    assert not agrees and "beside prefill by 4.000 at token 1 after a prompt of 37 (the yardstick: by 0.000 at token 1" in text
    assert "first tokens, which prefill makes, agree" in text


def test_backends_of_latent_attention_take_no_other_models(monkeypatch, capsys):
    monkeypatch.setattr(vllm_tokens.sys, "argv", ["vllm_tokens.py", "--backends", "FLASH_ATTN,FLASHMLA,CUSTOM", "--models", "deepseek,llama"])
    with pytest.raises(SystemExit):
        vllm_tokens.main()
    assert "FLASHMLA takes models with latent attention over all tokens, and not llama" in capsys.readouterr().err
    assert vllm_tokens.is_latent("deepseek, speculation") and not vllm_tokens.is_latent("deepseek selected")
