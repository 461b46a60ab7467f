#!/usr/bin/env python3
"""Makes tests/vocabularies: a small vocabulary of each kind that Sleigh reads, and the ids that other encoders compute with it.

    python3 scripts/goldens/make_vocabularies.py [FOLDER [KIND]]  needs tokenizers, sentencepiece, tiktoken, protobuf, regex; tests do not

bpe/      byte-level BPE in Llama 3's shape: tokenizer.json, and the same ranks as a tiktoken file (ranks.model)
llama/    SentencePiece BPE with byte fallback in Llama 2's shape: tokenizer.model, and the same merges as a tokenizer.json
unigram/  SentencePiece unigram with rules of normalisation, control pieces and user-defined pieces: tokenizer.model
qwen/     byte-level BPE in Qwen's shape, with NFC, single digits and the added tokens of Qwen3: tokenizer.json

Each folder has vectors.jsonl, one object per line. The libraries named above computed them:
  text      the text to encode
  ids       the ids with special strings parsed (tokenizers), or SentencePiece's ids; SentencePiece parses no special strings
  ids_plain, ids_hf   only if different: the ids with special strings read as text (tiktoken; qwen: tokenizers); the ids of a
            Hugging Face tokenizer, which parses them (tokenizers)
  merged    only if different: the ids without ignore_merges (tokenizers)
  decoded   only if it is not the text: the text that the ids decode to (sentencepiece; qwen: tokenizers)
  strip_none, strip_one, strip_all   only if different from decoded: the text that the same model decodes with other settings of
            blanks: no blank added before a text; one blank added; one blank added and runs of blanks reduced (sentencepiece)"""
import base64
import io
import json
import os
import random
import sys
from importlib.metadata import version

import regex
import sentencepiece
import tiktoken
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../train"))
import tiny_text
from bpe import LLAMA3_PAT, SPECIALS, b2u, train_merges

LINES = """Der schnelle braune Fuchs springt über den faulen Hund, und Größe zählt überhaupt nicht.
L'été dernier, nous avons mangé des crêpes à l'œuvre ; « c'est déjà ça », dit-elle.
El niño añadió: ¿qué pasó mañana? ¡Nada, señor!
Быстрая коричневая лиса прыгает через ленивую собаку, и снег идёт.
Η γρήγορη καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί.
敏捷的棕色狐狸跳过了懒狗。你好，世界！今天天气很好，我们去公园。
素早い茶色の狐はのろまな犬を飛び越える。こんにちは、世界。カタカナもある。
빠른 갈색 여우가 게으른 개를 뛰어넘는다. 안녕하세요, 세계!
الثعلب البني السريع يقفز فوق الكلب الكسول. مرحبا بالعالم
השועל החום המהיר קופץ מעל הכלב העצלן. שלום עולם
तेज भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है। नमस्ते दुनिया
สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ
Con cáo nâu nhanh nhẹn nhảy qua con chó lười biếng. Xin chào thế giới
🦥 😀 👍🏽 🇩🇪 👩‍👩‍👧 naïve café résumé — “quotes” … €5 ½ ² 1,234.56 100%
int main(void) { for (int i = 0; i < n; i++) sum += x[i] * y[i]; return sum / 2; }
def f(x):\n\tif x is None:\n\t\treturn {'a': [1, 2, 3]}\n    return x ** 2  # comment
{"name": "value", "list": [1, 22, 333, 4444], "ok": true, "none": null}
It's don't I'll we've they're he'd I'm IT'S DON'T I'LL WE'VE""".split("\n")
# White space beyond ASCII, and characters that other engines take for white space.
WHITE = [0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
NOT_WHITE = [0x180E, 0x200B, 0x2060, 0xFEFF]
TEXTS = [
    "", " ", "  ", "   a", "a   ", "\n", "\n\n\n", " \n \n", "\t\ta\t", "\r\n", "a\r\n\r\nb", "a\0b", "\0", "Hello, world!", " Hello",
    "Hello  world   !", "hello\nworld", "1", "12", "1234567", "3.14159 and 2,718", "a1b22c333", "x" * 23, "x" * 24, "x" * 25,
    "the " * 30, "=" * 70, "zyzzyva zyzzyvas", " quixotic", "zyzzyva\n quixotic!", "don't DON'T Don't I'LL", "a'b'c", "\u0301a e\u0301", "e\u0301\u0327",
    "\U0001f9a5", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U00020000\U0010fffd", "\ufffd", "\u2581 \u2581\u2581x", "<0x41> <0xFF>",
    "ΣΊΣΥΦΟΣ σίσυφος", "ǅ ﬃ ß ẞ", "½ ² ٣ 四 Ⅻ", "!?.,;:", " !?", "(a) [b] {c}", "http://example.com/a?b=c&d=%20", "a" + "\u0300" * 30,
]
QWEN_PAT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|"
            r"\s+")
QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
                "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>",
                "<|video_pad|>"]
QWEN_ADDED = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
              "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"]  # added tokens that are not special
# Texts that NFC changes: marks out of order, Hangul letters, exclusions from composition, marks that decompose themselves.
NFC_TEXTS = ["a\u0307\u0323 a\u0323\u0307", "\u212b \u2126 \u212a", "\u1100\u1161\u11a8 \uac00\u11a8 \u1161\u11a8", "\u0958 \ufb1d \ufb2c",
             "\u0344 x\u0344 \u0340\u0341", "\u0f73\u0f73 \u0f71\u0f72", "\u1e9b\u0323", "\U0001d15e \U000110a5", "\u0301e\u0301",
             "Tie\u0302\u0301ng Vie\u0323\u0302t", "e\u0301" * 40, "q\u0307\u0323" * 9, "a\u0327\u0300\u0315\u0300\u05ae\u0062", "\u2260 =\u0338 <\u0338"]
SPECIAL_TEXTS = {
    "bpe": ["<|begin_of_text|>hello<|eot_id|>", "<|eot_id|<|eot_id|>", "<|start_header_id|>user<|end_header_id|>\n\nhi", "<|begin_of_text"],
    "llama": ["<s>hello</s>", "<s> hello </s> world", "</s></s>", "<unk>", "<s", "a<s>b"],
    "qwen": ["<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", "a<|im_end|>b<|endoftext|>", "<|im_end",
             "<tool_call>\n{\"name\": \"f\"}\n</tool_call>", "<tool_call<think>>", "<think>hmm</think>", "e<|im_end|>\u0301",
             "e<think>\u0301 e\u0301</think>", "<|im_e\u0301nd|>", "12 345 6789", "it'\u017f IT'S we'RE I'D", *NFC_TEXTS],
    "unigram": ["<sep>", "a<sep><sep>b", "<sep><se", "ＡＢＣ ｱ", "ﬁne ﬀ ﬃ", "a\u00a0\u00a0b", "x\u200by", "①②", "<ctl>", "\u3000a", "e\u0301"],
}
ADDED = ["<tool>", "<tool_call>", "<tool_", "<to", "ol>", "über"]  # some begin with others, or overlap them
ADDED_TEXTS = ["<tool>", "<tool_call>", "<tool_cal", "<tool_x", "<tox", "<t", "<tool<tool>", "x<tool_call>ol>über<to", "<tool_tool>ol>"]


def corpus():
    r = random.Random(7)
    return [tiny_text.filler_sentence(r) for _ in range(3000)] + [line.replace("\\n", "\n").replace("\\t", "\t") for line in LINES] * 40


def texts(kind):
    lines = [line.replace("\\n", "\n").replace("\\t", "\t") for line in LINES]
    blanks = [t for c in map(chr, WHITE + NOT_WHITE) for t in (f"a{c}b", f"a{c}{c}b", f" {c}\nb{c}", f"{c}{c}")]
    return TEXTS + lines + blanks + SPECIAL_TEXTS[kind]


def write(folder, name, data):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())


def dump(data):
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"


def write_rows(folder, rows, name="vectors.jsonl"):
    write(folder, name, "".join(dump({k: v for k, v in row.items() if v is not None}) for row in rows))


def unless(value, usual):
    return None if value == usual else value


# ---- byte-level BPE ----

def added_token(i, text, special):
    return {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}


def byte_ranks():
    """Returns ranks of the bytes, of the merges of the corpus, of white space with neighbours, and of words without merges."""
    words = {}
    for line in corpus():
        for word in regex.findall(LLAMA3_PAT, line):
            words[word.encode()] = words.get(word.encode(), 0) + 1
    ranks = {bytes([b]): b for b in range(256)}
    tokens = [left + right for left, right in train_merges(words, 240)]
    for c in map(chr, WHITE + NOT_WHITE):
        for text in (c, c + c, c + "b"):
            tokens += [text.encode()[:n] for n in range(2, len(text.encode()) + 1)]
    for token in tokens + [b"zyzzyva", b" quixotic"]:
        ranks.setdefault(token, len(ranks))
    return ranks


def all_merges(ranks):
    """Every split of a token into two tokens is a merge of the token's rank. This is tiktoken's rule."""
    out = []
    for token, rank in ranks.items():
        splits = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        out += sorted(splits, key=lambda s: (ranks[s[0]], ranks[s[1]]))
    return out


def bpe_json(ranks, ignore_merges=True, added=()):
    n = len(ranks)
    names = SPECIALS[:2] + ["<|reserved_special_token_0|>", "<|reserved_special_token_1|>", "<|finetune_right_pad_id|>",
                            "<|reserved_special_token_2|>"] + SPECIALS[2:4] + ["<|eom_id|>", SPECIALS[4], "<|python_tag|>"]
    bos = {"SpecialToken": {"id": SPECIALS[0], "type_id": 0}}
    tokens = [added_token(n + i, s, True) for i, s in enumerate(names)]
    tokens += [added_token(n + len(names) + i, s, False) for i, s in enumerate(added)]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": LLAMA3_PAT}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
        "post_processor": {"type": "Sequence", "processors": [
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
            {"type": "TemplateProcessing", "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
             "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
             "special_tokens": {SPECIALS[0]: {"id": SPECIALS[0], "ids": [n], "tokens": [SPECIALS[0]]}}}]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": ignore_merges,
                  "vocab": {b2u(t): i for t, i in ranks.items()},
                  "merges": [b2u(a) + " " + b2u(b) for a, b in all_merges(ranks)]},
    }


def make_bpe(folder):
    ranks = byte_ranks()
    data = bpe_json(ranks)
    write(folder, "tokenizer.json", dump(data))
    write(folder, "ranks.model", "".join(f"{base64.b64encode(t).decode()} {i}\n" for t, i in ranks.items()))
    hf, merged = (Tokenizer.from_str(json.dumps(bpe_json(ranks, flag))) for flag in (True, False))
    tik = tiktoken.Encoding("ours", pat_str=LLAMA3_PAT, mergeable_ranks=ranks,
                            special_tokens={t["content"]: t["id"] for t in data["added_tokens"]})
    rows = []
    for text in texts("bpe"):
        ids, plain = hf.encode(text, add_special_tokens=False).ids, tik.encode_ordinary(text)
        assert ids == tik.encode(text, allowed_special="all") and tik.decode(ids) == text
        rows.append({"text": text, "ids": ids, "ids_plain": unless(plain, ids),
                     "merged": unless(merged.encode(text, add_special_tokens=False).ids, ids)})
    assert sum(r["merged"] is not None for r in rows) >= 3
    write_rows(folder, rows)
    write_rows(os.path.join(folder, "added"), [{"text": s, "id": len(ranks) + 11 + i} for i, s in enumerate(ADDED)], "tokens.jsonl")
    hf = Tokenizer.from_str(json.dumps(bpe_json(ranks, True, ADDED)))
    write_rows(os.path.join(folder, "added"), [{"text": t, "ids": hf.encode(t, add_special_tokens=False).ids} for t in ADDED_TEXTS])
    return f"bpe: {len(ranks)} ranks, {len(rows)} texts"


# ---- Qwen ----

def qwen_json(vocab, merges, added):
    """Has the fields of a published Qwen3 tokenizer.json. added: (id, text, special)"""
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [added_token(*token) for token in added],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": QWEN_PAT}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": merges},
    }


def qwen_merges():
    """Trains with tokenizers. The ids of the bytes come first, in the order of GPT-2's alphabet, then the merges."""
    empty = Tokenizer.from_str(json.dumps(qwen_json({}, [], [])))
    trainer = BpeTrainer(vocab_size=560, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    empty.train_from_iterator(corpus(), trainer)
    model = json.loads(empty.to_str())["model"]
    return model["vocab"], [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]


def make_qwen(folder):
    vocab, merges = qwen_merges()
    added = [(len(vocab) + i, t, t in QWEN_SPECIAL) for i, t in enumerate(QWEN_SPECIAL + QWEN_ADDED)]
    data = qwen_json(vocab, merges, added)
    write(folder, "tokenizer.json", dump(data))
    write(folder, "tokenizer_config.json", dump({"add_bos_token": False, "add_prefix_space": False, "bos_token": None,
                                                 "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None,
                                                 "tokenizer_class": "Qwen2Tokenizer"}))
    hf = Tokenizer.from_str(json.dumps(data))
    plain = Tokenizer.from_str(json.dumps(qwen_json(vocab, merges, [t for t in added if not t[2]])))
    rows = []
    for text in texts("qwen"):
        ids = hf.encode(text).ids
        ids_plain = [hf.token_to_id(t) for t in plain.encode(text).tokens]
        rows.append({"text": text, "ids": ids, "ids_plain": unless(ids_plain, ids),
                     "decoded": unless(hf.decode(ids, skip_special_tokens=False), text)})
    assert all(hf.token_to_id(t) == i for i, t, _ in added) and sum(r["decoded"] is not None for r in rows) >= len(NFC_TEXTS)
    write_rows(folder, rows)
    return f"qwen: {len(vocab)} tokens, {len(added)} added, {len(rows)} texts"


# ---- SentencePiece ----

def train(**options):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus()), model_writer=out, num_threads=1, minloglevel=2,
                                             hard_vocab_limit=False, **options)
    model = proto.ModelProto.FromString(out.getvalue())
    model.normalizer_spec.normalization_rule_tsv = ""  # the library writes a path of this machine
    return model


def decode(model, ids, prefix=None, squeeze=None):
    """Decodes by the model with these settings of blanks. The unknown piece decodes to <unk>, as in Sleigh."""
    changed = proto.ModelProto()
    changed.CopyFrom(model)
    changed.trainer_spec.unk_surface = "<unk>"
    if prefix is not None:
        changed.normalizer_spec.add_dummy_prefix, changed.normalizer_spec.remove_extra_whitespaces = prefix, squeeze
    return sentencepiece.SentencePieceProcessor(model_proto=changed.SerializeToString()).decode(ids)


def llama_json(model):
    pieces = {p.piece: i for i, p in enumerate(model.pieces)}
    merges = []
    for piece, i in pieces.items():
        splits = [(piece[:k], piece[k:]) for k in range(1, len(piece)) if piece[:k] in pieces and piece[k:] in pieces]
        merges += sorted(splits, key=lambda s: (pieces[s[0]], pieces[s[1]]))
    merges.sort(key=lambda m: pieces[m[0] + m[1]])
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added_token(i, model.pieces[i].piece, True) for i in range(3)],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                                           {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": None,
        "post_processor": {"type": "TemplateProcessing", "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                     {"type": "ByteFallback"}, {"type": "Fuse"},
                                                     {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": True, "byte_fallback": True, "vocab": pieces, "merges": [" ".join(m) for m in merges]},
    }


def decodings(model, text, ids):
    usual = decode(model, ids)
    kept, one, all_ = (decode(model, ids, *blanks) for blanks in ((False, False), (True, False), (True, True)))
    return {"decoded": unless(usual, text), "strip_none": unless(kept, usual), "strip_one": unless(one, usual),
            "strip_all": unless(all_, usual)}


def make_llama(folder):
    model = train(model_type="bpe", vocab_size=700, byte_fallback=True, split_digits=True, normalization_rule_name="identity",
                  remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, character_coverage=0.985)
    spm = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    write(folder, "tokenizer.model", model.SerializeToString())
    write(folder, "tokenizer.json", dump(llama_json(model)))
    write(folder, "tokenizer_config.json", dump({"add_bos_token": True, "add_eos_token": False, "bos_token": {"content": "<s>"},
                                                 "eos_token": "</s>", "unk_token": "<unk>", "tokenizer_class": "LlamaTokenizer"}))
    hf = Tokenizer.from_str(json.dumps(llama_json(model)))
    rows = []
    for text in texts("llama"):
        ids = spm.encode(text)
        parsed = hf.encode(text, add_special_tokens=False).ids if text else []
        rows.append({"text": text, "ids": ids, "ids_hf": unless(parsed, ids), **decodings(model, text, ids)})
    differ = [r["text"] for r in rows if r["ids_hf"] is not None]
    assert set(differ) <= set(SPECIAL_TEXTS["llama"]) and len(differ) >= 4, differ
    write_rows(folder, rows)
    return f"llama: {len(model.pieces)} pieces, {len(rows)} texts"


def is_tie(spm, text):
    """Two encodings have about the same score, so that the library's rounding decides which one it returns."""
    scores = [sum(map(spm.get_score, ids)) for ids in spm.nbest_encode(text, nbest_size=2)] if text else []
    return len(scores) == 2 and abs(scores[0] - scores[1]) < 1e-3


def make_unigram(folder):
    rules = {"Ａ": "A", "Ｂ": "B", "Ｃ": "C", "ﬁ": "fi", "ﬀ": "ff", "ﬃ": "ffi", "\u00a0": " ", "\u3000": " ", "\u200b": "", "①": "1",
             "e\u0301": "é", "e\u0301\u0327": "ȩ́", "\t": " "}
    path = os.path.join(folder, "rules.tsv")
    write(folder, "rules.tsv", "".join("{}\t{}\n".format(*(" ".join(f"{ord(c):X}" for c in s) for s in rule)) for rule in rules.items()))
    model = train(model_type="unigram", vocab_size=400, normalization_rule_tsv=path, user_defined_symbols=["<sep>", "<sep><sep>"],
                  control_symbols=["<ctl>"], character_coverage=0.985, bos_id=-1, eos_id=2, unk_id=1)
    os.remove(path)
    spm = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    write(folder, "tokenizer.model", model.SerializeToString())
    rows = []
    for text in texts("unigram"):
        if is_tie(spm, text):
            continue
        ids = spm.encode(text)
        rows.append({"text": text, "ids": ids, **decodings(model, text, ids)})
    write_rows(folder, rows)
    return f"unigram: {len(model.pieces)} pieces, {len(rows)} texts, {len(model.normalizer_spec.precompiled_charsmap)} bytes of rules"


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../..", "tests", "vocabularies")
    for make, name in ((make_bpe, "bpe"), (make_llama, "llama"), (make_unigram, "unigram"), (make_qwen, "qwen")):
        if name in (sys.argv[2:] or [name]):
            print(make(os.path.join(out, name)))
    versions = ", ".join(f"{name} {version(name)}" for name in ("tokenizers", "sentencepiece", "tiktoken"))
    write(out, "README.md", f"# Small vocabularies\n\nMade by `scripts/goldens/make_vocabularies.py` with {versions}.\nThe script describes the files.\n")


if __name__ == "__main__":
    main()
