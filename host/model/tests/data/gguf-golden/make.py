"""Makes the GGUF files in this folder, and `golden.json` with the results of Hugging Face transformers for them.

    pip install torch transformers accelerate gguf && OMP_NUM_THREADS=1 python make.py

Made with torch 2.15.0, transformers 5.23.0 and gguf 0.19.0. Together the files have every architecture, every type of tensor and every kind of
tokenizer that the trainer reads. Tensors of the types Q4_K, Q5_K and Q6_K are random blocks. transformers reads the files with `gguf_file=`. It ignores
scalings of rotary embeddings, the width of heads in some architectures, and the biases of a Llama, so this program sets them in its configuration.

`golden.json` has for each file: the ids and the decoded forms of some texts, with and without special tokens; a conversation's text and ids by the chat template;
log-probabilities of rows, each computed alone; and a greedy completion with its text.
"""

import json
import math
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as T
from gguf import TokenType
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

HERE = Path(__file__).parent
CORPUS = """The quick brown fox jumps over the lazy dog, and the dog doesn't mind. It's what they'd have done in 1999: 12 + 34 = 46, 100 - 58 = 42.
def add(left, right):\n    return left + right\n\n\nfor number in range(100):\n    print(number, add(number, 2024))
Die Straße war naß und die Bäume grün. L'été est là, où es-tu? Привет, мир! Как дела? こんにちは世界。 你好，世界！
"""
TEXTS = [
    "The dog doesn't mind.",
    "12 + 34 = 46",
    "  two spaces,\ttab and 2024 numbers\r\n\r\n  end  ",
    "def add(left, right):\n    return left + right\n",
    "Grüße, 世界! 😀 Привет\u00a0мир, It'S WE'LL iPhone",
    "<|im_start|>user\nHi<|im_end|>",
    "a<tool>b </s> <s>",
    " ",
]
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2+2?"}]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_level(pre):
    """Byte-level tokens, as in `tokenizer.ggml.model = "gpt2"`."""
    tokenizer = Tokenizer(models.BPE())
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre in ["gpt-2", "smollm"])
    first = pre_tokenizers.Digits(individual_digits=True)
    if pre in GGUF_PRE_TOKENIZER_SPLITS:
        first = pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[pre]), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, bytes_]) if pre != "gpt-2" else bytes_
    trainer = trainers.BpeTrainer(vocab_size=340, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([CORPUS], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    kinds = [TokenType.NORMAL] * len(tokens) + [TokenType.CONTROL] * len(SPECIAL) + [TokenType.USER_DEFINED]
    ids = {name: len(tokens) + id for id, name in enumerate(SPECIAL)}
    tokens += [*SPECIAL, "<tool>"]

    def write(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types(kinds)
        writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
        writer.add_bos_token_id(ids["<|im_start|>" if pre == "llama-bpe" else "<|endoftext|>"])
        writer.add_eos_token_id(ids["<|im_end|>"])
        writer.add_pad_token_id(ids["<|endoftext|>"])
        writer.add_add_bos_token(pre == "llama-bpe")

    return len(tokens), write


def pieces():
    """Pieces with scores, as in SentencePiece."""
    tokens = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<tool>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    control = [TokenType.UNKNOWN] + [TokenType.CONTROL] * 4 + [TokenType.USER_DEFINED]
    kinds = control + [TokenType.BYTE] * 256
    text = CORPUS.replace(" ", "▁")
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trained.train_from_iterator([text], trainers.BpeTrainer(vocab_size=220, show_progress=False))
    vocab = json.loads(trained.to_str())["model"]["vocab"]
    words = [word for word in sorted(vocab, key=vocab.get) if len(word) > 1 and "\n" not in word]
    scores = [0.0] * len(tokens) + [-float(rank) for rank in range(len(words))]
    tokens += words
    # Several pieces have the same score. Lengths and ids decide the order of merges among them.
    scores[-20:] = [scores[-20]] * 20
    letters = sorted({letter for letter in text if letter != "\n"})
    tokens += letters
    scores += [-1e4 - rank for rank in range(len(letters))]
    kinds += [TokenType.NORMAL] * (len(words) + len(letters))

    def write(writer):
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens)
        writer.add_token_scores(scores)
        writer.add_token_types(kinds)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)

    return len(tokens), write


def data(kind, shape, rng):
    """A tensor of random numbers of about 1 / sqrt(width), in the form of the file."""
    size = 1.5 / math.sqrt(shape[-1])
    values = (size * rng.standard_normal(shape)).astype(np.float32)
    if kind not in [T.Q4_K, T.Q5_K, T.Q6_K]:
        return gguf.quantize(values, kind)
    # The package cannot quantize to these types, so the blocks are random, with matching scales.
    block, bytes_ = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (values.size // block, bytes_), dtype=np.uint8)
    half = lambda number: np.frombuffer(np.float16(number).tobytes(), np.uint8)
    if kind == T.Q6_K:
        # Scales are -128 to 127, numbers are -32 to 31.
        blocks[:, -2:] = half(size / 1500)
    else:
        levels = 15 if kind == T.Q4_K else 31
        blocks[:, 0:2], blocks[:, 2:4] = half(size / 20 / levels), half(size / 20)
    blocks = blocks.reshape(*shape[:-1], -1)
    assert np.isfinite(gguf.dequantize(blocks, kind)).all()
    return blocks


# `types` are the types of the matrices in turn; `rope` is set for transformers, which ignores the file's.
FILES = {
    "llama-f32": {"arch": "llama", "types": [T.F32], "vocab": ("gpt-2",), "tied": True, "biases": True},
    "llama-f16": {"arch": "llama", "types": [T.F16], "vocab": ("llama-bpe",), "tied": True, "width": 16, "rope": "llama3"},
    "llama-q8_0": {"arch": "llama", "types": [T.Q8_0], "vocab": ("smollm",), "tied": True},
    "llama-pieces": {"arch": "llama", "types": [T.Q5_0, T.Q5_1], "vocab": None, "tied": False},
    "llama-k": {"arch": "llama", "types": [T.Q4_K, T.Q5_K, T.Q6_K], "vocab": None, "hidden": 256, "tied": True, "rope": "linear"},
    "qwen2-q4_0": {"arch": "qwen2", "types": [T.Q4_0, T.BF16], "vocab": ("qwen2",), "tied": False, "rope": "yarn"},
    "qwen3-q4_1": {"arch": "qwen3", "types": [T.Q4_1], "vocab": ("tekken",), "tied": True, "width": 16},
}
THETA = {"llama-f32": 10000.0, "llama-f16": 5000.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def write(name, arch, types, vocab, tied, hidden=32, width=8, rope=None, biases=False):
    rng = np.random.default_rng(list(name.encode()))
    tokens, write_vocab = byte_level(*vocab) if vocab else pieces()
    layers, inner, heads, keys = 2, 32, 4, 2
    writer = gguf.GGUFWriter(HERE / f"{name}.gguf", arch)
    writer.add_name(name)
    writer.add_context_length(256)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(keys)
    writer.add_layer_norm_rms_eps(1e-5)
    if name in THETA:
        writer.add_rope_freq_base(THETA[name])
    writer.add_vocab_size(tokens)
    writer.add_key_length(width)
    writer.add_value_length(width)
    if arch == "llama":
        writer.add_rope_dimension_count(width)
    write_vocab(writer)
    writer.add_chat_template(TEMPLATE)
    config = {"head_dim": width, "attention_bias": biases, "mlp_bias": biases}
    if rope == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(2.5)
        config["rope"] = {"rope_type": "linear", "factor": 2.5}
    if rope == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(16)
        config["rope"] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    if rope == "llama3":
        config["rope"] = LLAMA3
        writer.add_tensor("rope_freqs.weight", llama3_divisors(width, THETA[name]))
    kinds = iter(types * 100)

    def matrix(tensor, rows, columns):
        kind = next(kinds)
        if columns % gguf.GGML_QUANT_SIZES[kind][0]:
            kind = T.Q8_0
        writer.add_tensor(tensor + ".weight", data(kind, (rows, columns), rng), raw_dtype=kind)

    vector = lambda tensor, size, mean: writer.add_tensor(tensor, (mean + 0.2 * rng.standard_normal(size)).astype(np.float32))
    matrix("token_embd", tokens, hidden)
    vector("output_norm.weight", hidden, 1)
    if not tied:
        matrix("output", tokens, hidden)
    for layer in range(layers):
        part = f"blk.{layer}."
        sizes = {"attn_q": (heads * width, hidden), "attn_k": (keys * width, hidden), "attn_v": (keys * width, hidden), "attn_output": (hidden, heads * width)}
        sizes |= {"ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner)}
        for tensor, size in sizes.items():
            matrix(part + tensor, *size)
            if biases or (arch == "qwen2" and tensor in ["attn_q", "attn_k", "attn_v"]):
                vector(f"{part}{tensor}.bias", size[0], 0)
        vector(part + "attn_norm.weight", hidden, 1)
        vector(part + "ffn_norm.weight", hidden, 1)
        if arch == "qwen3":
            vector(part + "attn_q_norm.weight", width, 1)
            vector(part + "attn_k_norm.weight", width, 1)
    for step in [writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close]:
        step()
    return config


def llama3_divisors(width, theta):
    """The divisors of the frequencies, as llama.cpp's converter computes them."""
    low, high, factor, original = (LLAMA3[key] for key in ["low_freq_factor", "high_freq_factor", "factor", "original_max_position_embeddings"])
    divisors = []
    for frequency in theta ** -(np.arange(0, width, 2, dtype=np.float32) / width):
        length = 2 * math.pi / frequency
        smooth = (original / length - low) / (high - low)
        divisors.append(1 if length < original / high else factor if length > original / low else 1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


def load(name, changes):
    config = AutoConfig.from_pretrained(HERE, gguf_file=f"{name}.gguf")
    config.head_dim = changes["head_dim"]
    if config.model_type == "llama":
        config.attention_bias, config.mlp_bias = changes["attention_bias"], changes["mlp_bias"]
    if "rope" in changes:
        config.rope_parameters = {**changes["rope"], "rope_theta": config.rope_parameters["rope_theta"]}
    model = AutoModelForCausalLM.from_pretrained(HERE, gguf_file=f"{name}.gguf", config=config, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


@torch.no_grad()
def logps(model, prompt, completion):
    out = torch.log_softmax(model(input_ids=torch.tensor([prompt + completion])).logits[0], -1)
    return [out[len(prompt) - 1 + t, token].item() for t, token in enumerate(completion)]


@torch.no_grad()
def greedy(model, prompt, count):
    ids = list(prompt)
    for _ in range(count):
        ids.append(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax().item())
    return ids[len(prompt) :]


def golden(name, changes):
    model, tokenizer = load(name, changes), AutoTokenizer.from_pretrained(HERE, gguf_file=f"{name}.gguf")
    texts, rows = [], []
    for text in TEXTS:
        ids, all_ids = tokenizer.encode(text, add_special_tokens=False), tokenizer.encode(text)
        decoded = tokenizer.decode(ids, skip_special_tokens=True)
        texts.append({"text": text, "ids": ids, "with_special": all_ids, "decoded": decoded})
        if len(ids) > 3:
            rows.append({"prompt_ids": ids[:2], "completion_ids": ids[2:], "logps": logps(model, ids[:2], ids[2:])})
    prompt = texts[0]["ids"]
    ids = greedy(model, prompt, 12)
    chat = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    return {
        "name": name,
        "weights": sum(weight.numel() for weight in model.parameters()),
        "texts": texts,
        "rows": rows,
        "greedy": {"prompt_ids": prompt, "ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=True)},
        "chat": {"text": chat, "ids": tokenizer.encode(chat, add_special_tokens=False)},
        "eos": tokenizer.eos_token_id,
    }


def make():
    results = [golden(name, write(name, **settings)) for name, settings in FILES.items()]
    lines = ",\n".join(json.dumps(result) for result in results)
    (HERE / "golden.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    make()
