#!/usr/bin/env python3
"""Makes the bucket file of a model, for the attention methods saap and saap-kmeans: models/bucket_file.h has its format.

    python3 scripts/train/train_saap.py                                   the embedded model's file, from texts of its own kind
    python3 scripts/train/train_saap.py --model DIR --text BOOK... --tokens 32k --buckets 1024 --width 1024 --steps 40000 --lr 1e-5
    python3 scripts/train/train_saap.py --selftest --out FILE             a few steps, twice

Steps (P.-E. Mazare et al.: Inference-time sparse attention with asymmetric indexing, sections 4 and 6, appendix A):

1. Run the model on the prompts, and keep the queries and keys of each layer in a folder. --text: each file gives prompts of --tokens tokens
   from its start; the first prompt of each file comes first. --ids: each line is a prompt of token ids (`sleigh tokenize` prints ids).
2. For each layer and KV head, spherical k-means on the keys before RoPE, and on the keys after RoPE: 10 iterations from random keys. faiss does
   it where the package is installed, otherwise Lloyd's iterations here. The first key (the sink) is left out.
3. For each layer and KV head, train the classifier of queries before RoPE, d -> width -> buckets with batch norm and ReLU. The loss is
   KL(attention mass of the buckets, classifier). Queries of all heads of the group train one classifier. Only queries count whose nearest
   key, the largest inner product without the sink, is more than --back tokens away; of a head without such queries, all count. Their mass
   leaves out the sink and the last --window keys. A batch comes from one prompt.
4. Number the buckets so that consecutive buckets have similar centroids. saap-is keeps statistics of groups of consecutive buckets.
5. Fold the batch norm into the first matrix, round matrices and centroids to bf16, and write the file.

The last prompt (--held-out) is left out of 2 and 3. The table on stdout shows it: how evenly its keys fill the buckets (C sum n_c^2 / n^2; 1 is
even), and the share of its attention mass that l buckets hold, chosen for the group by the classifier, by centroids, and by the true mass (the
best choice). The same seed, machine and number of threads give the same file. Only Llama models: a folder with one file of weights or shards, or a
GGUF file (source_model.py)."""
import argparse
import json
import os
import struct
import sys
import tempfile
import time

import numpy as np
import torch
import torch.nn.functional as F

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../measure"))
import tiny_documents
from bpe import Tok
from measured_parts import count
from source_model import folder_of, hash_of_gguf, is_gguf, open_source, prompts_of_texts, weight_files

START = time.time()
FNV_START, FNV_PRIME, MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1


def log(*text):
    print(f"{time.time() - START:6.1f}", *text, file=sys.stderr, flush=True)


# ---- the hash of a model: sl_config_hash of models/config.h, then sl_tensors_hash of models/safetensors.h ----


def fnv1a(state, data):
    for byte in data:
        state = (state ^ byte) * FNV_PRIME & MASK
    return state


def config_text(c):
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type")) or "default"
    if c["model_type"] != "llama" or kind not in ("default", "llama3"):
        sys.exit(f"train_saap: model_type {c['model_type']} with RoPE {kind}: expected llama with default or llama3")

    def f(x):
        return "%.9g" % np.float32(x)

    heads = c["num_attention_heads"]
    fields = [
        ("model_type", c["model_type"]), ("vocab_size", c["vocab_size"]), ("hidden_size", c["hidden_size"]),
        ("intermediate_size", c["intermediate_size"]), ("num_hidden_layers", c["num_hidden_layers"]), ("num_attention_heads", heads),
        ("num_key_value_heads", c.get("num_key_value_heads") or heads), ("head_dim", c.get("head_dim") or c["hidden_size"] // heads),
        ("rms_norm_eps", f(c["rms_norm_eps"])), ("tie_word_embeddings", int(bool(c.get("tie_word_embeddings")))),
        ("rope_theta", f(rope.get("rope_theta") or c.get("rope_theta") or 10000)), ("rope_type", "plain" if kind == "default" else kind),
        ("factor", f(1 if kind == "default" else rope["factor"])), ("low_freq_factor", f(rope["low_freq_factor"] if kind == "llama3" else 0)),
        ("high_freq_factor", f(rope["high_freq_factor"] if kind == "llama3" else 0)),
        ("original_max_position_embeddings", rope["original_max_position_embeddings"] if kind == "llama3" else 0)]
    return "".join(f"{name}={value}\n" for name, value in fields)


def model_hash(folder, config):
    tensors, block, blocks = {}, 4096, 8
    for path in weight_files(folder):
        with open(path, "rb") as file:
            size, = struct.unpack("<Q", file.read(8))
            for name, t in json.loads(file.read(size)).items():
                if name != "__metadata__":
                    tensors[name] = (path, 8 + size + t["data_offsets"][0], t["data_offsets"][1] - t["data_offsets"][0], t)
    state = fnv1a(FNV_START, config_text(config).encode())
    for name in sorted(tensors, key=lambda s: s.encode()):
        path, at, size, t = tensors[name]
        state = fnv1a(state, name.encode() + b"\0" + t["dtype"].encode() + b"\0" + struct.pack(f"<{1 + len(t['shape'])}Q", len(t["shape"]), *t["shape"]))
        step = (size - block) // (blocks - 1)
        parts = [(0, size)] if size <= blocks * block else [(i * step, block) for i in range(blocks - 1)] + [(size - block, block)]
        with open(path, "rb") as file:
            for offset, n in parts:
                file.seek(at + offset)
                state = fnv1a(state, file.read(n))
    return f"fnv1a:{state:016x}"


def name_of(a, config):
    """The hash that the file names."""
    return hash_of_gguf(a.model, a.sleigh) if is_gguf(a.model) else model_hash(a.model, config)


def write_tensors(path, metadata, tensors):
    """Writes a safetensors file with the tensors and texts in the given order."""
    names = {torch.bfloat16: "BF16", torch.float32: "F32"}
    header, at = {"__metadata__": metadata}, 0
    for name, x in tensors:
        size = x.numel() * x.element_size()
        header[name] = dict(dtype=names[x.dtype], shape=list(x.shape), data_offsets=[at, at + size])
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".part", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, x in tensors:
            file.write(x.contiguous().view(torch.uint8).numpy().tobytes())
    os.replace(path + ".part", path)


# ---- queries and keys ----


def prompts_of(a):
    """Returns a list of int64 tensors."""
    if a.ids:
        with open(a.ids) as file:
            return [torch.tensor([int(x) for x in line.split()]) for line in file if line.strip()]
    if a.text:
        return prompts_of_texts(a.model, a.sleigh, a.text, a.tokens, a.prompts)
    gen = tiny_documents.Gen(Tok.load(os.path.join(a.model, "tokenizer.json")), a.seed, n_sent=8000, n_story=500)
    return [torch.from_numpy(gen.sequence(a.tokens)[0].astype(np.int64)) for _ in range(a.prompts)]


def capture(model, prompts, a, folder):
    """Writes q [heads][T][d] and k [KV heads][T][d] after RoPE in bf16, as the cache has them, for each prompt and layer."""
    inner = model.before_attention
    for i, ids in enumerate(prompts):
        layer = 0

        def recording(*arguments):
            nonlocal layer
            q, k, v = inner(*arguments)
            if layer >= a.dense_layers:
                states = [x.transpose(0, 1).to(torch.bfloat16).contiguous().cpu() for x in (q, k)]
                torch.save(states, os.path.join(folder, f"{i}.{layer}"))
            layer += 1
            return q, k, v

        model.before_attention = recording
        with torch.no_grad():
            model.states(ids[None].to(a.device))
        log(f"prompt {i + 1} of {len(prompts)}: {len(ids)} tokens")
    model.before_attention = inner


def rotate_back(x, cos, sin):
    """x [..., T, d] after RoPE. Returns x before RoPE."""
    p, q = x.chunk(2, -1)
    return torch.cat((p * cos + q * sin, q * cos - p * sin), -1)


class Prompt:
    """One KV head of a layer in one prompt: q [group][T][d], k [T][d] after RoPE; before: the same before RoPE."""

    def __init__(self, folder, i, layer, head, model, device):
        q, k = torch.load(os.path.join(folder, f"{i}.{layer}"))
        group = len(q) // len(k)
        self.q, self.k = (x.to(device).float() for x in (q[head * group:(head + 1) * group], k[head]))
        cos, sin = model.rope(self.k.shape[0], device)
        # the engine compares keys before RoPE in bf16
        self.q_before, self.k_before = rotate_back(self.q, cos, sin), rotate_back(self.k, cos, sin).bfloat16().float()


# ---- k-means ----


def assign(keys, centroids):
    """The index of the largest inner product, the lowest one among equals."""
    return torch.cat([(part @ centroids.T).argmax(1) for part in keys.split(16384)])


def spherical_kmeans(keys, n, iterations, seed):
    """keys [N, d]. Returns centroids of norm 1 [n, d]."""
    try:
        import faiss
        kmeans = faiss.Kmeans(keys.shape[1], n, niter=iterations, spherical=True, seed=seed, max_points_per_centroid=len(keys))
        kmeans.train(keys.cpu().numpy())
        return torch.from_numpy(kmeans.centroids).to(keys.device)
    except ImportError:
        pass
    rng = torch.Generator().manual_seed(seed)
    if len(keys) < n:
        sys.exit(f"train_saap: {len(keys)} keys for {n} buckets: expected more tokens")
    centroids = F.normalize(keys[torch.randperm(len(keys), generator=rng)[:n].to(keys.device)], dim=1)
    for _ in range(iterations):
        bucket = assign(keys, centroids)
        sums = torch.zeros_like(centroids).index_add_(0, bucket, keys)
        empty = torch.bincount(bucket, minlength=n) == 0
        sums[empty] = keys[torch.randint(len(keys), (int(empty.sum()),), generator=rng).to(keys.device)]
        centroids = F.normalize(sums, dim=1)
    return centroids


def by_likeness(centroids):
    """Returns an order of the centroids [C, d] in which consecutive ones are similar: split in halves along the first principal direction."""

    def split(rows):
        if len(rows) < 3:
            return rows
        x = centroids[rows].double()
        _, _, directions = torch.linalg.svd(x - x.mean(0), full_matrices=False)
        side = x @ (directions[0] * directions[0][directions[0].abs().argmax()].sign())
        rows = rows[side.argsort(stable=True)]
        return torch.cat((split(rows[:len(rows) // 2]), split(rows[len(rows) // 2:])))

    return split(torch.arange(len(centroids)))


# ---- the classifier ----


def targets_of(prompt, bucket, n_buckets, a, rng, back):
    """Returns the queries before RoPE [N, d] of all heads of the group whose nearest key is more than `back` tokens away, and their mass of each
    bucket [N, C]."""
    T, d = prompt.k.shape
    first = a.window + a.back  # a query here has keys outside of the window
    inputs, masses, position = [], [], torch.arange(T, device=prompt.k.device)
    for q, q_before in zip(prompt.q, prompt.q_before):
        if T <= first + 1:
            break
        rows = first + torch.randperm(T - first, generator=rng)[:a.queries].sort().values.to(q.device)
        for part in rows.split(512):
            score = q[part] @ prompt.k.T / d ** 0.5
            score[:, 0] = -torch.inf
            score[position[None] > part[:, None]] = -torch.inf
            far = part - score.argmax(1) > back
            score, part = score[far], part[far]
            score[position[None] > part[:, None] - a.window] = -torch.inf
            mass = torch.zeros(len(part), n_buckets, device=q.device).index_add_(1, bucket, score.softmax(1))
            inputs.append(q_before[part])
            masses.append(mass)
    return (torch.cat(inputs), torch.cat(masses)) if inputs else (prompt.k.new_zeros(0, d), prompt.k.new_zeros(0, n_buckets))


class Classifier(torch.nn.Module):
    def __init__(self, d, width, n_buckets):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(d, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, n_buckets)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu())

    def folded(self):
        """Returns w1, b1, w2, b2 without the batch norm."""
        scale = self.norm.weight / (self.norm.running_var + self.norm.eps).sqrt()
        return ((self.first.weight * scale[:, None]).detach(), ((self.first.bias - self.norm.running_mean) * scale + self.norm.bias).detach(),
                self.last.weight.detach(), self.last.bias.detach())


def train(data, a, n_buckets, seed, device):
    """data: (inputs, masses) of each prompt. Returns w1, b1, w2, b2 and the last loss."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    data = [pair for pair in data if len(pair[0]) > 1]
    if not data:
        sys.exit(f"train_saap: no query has keys outside of the window of {a.window}: expected longer prompts")
    net = Classifier(data[0][0].shape[1], a.width, n_buckets).to(device)
    optimiser = torch.optim.Adam(net.parameters(), a.lr)
    falling = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda i: min(1, 2 * (1 - i / a.steps)))  # constant, then to 0 on a line
    smooth = 0
    for i in range(a.steps):
        inputs, masses = data[int(torch.randint(len(data), (1,), generator=rng))]
        rows = torch.randint(len(inputs), (min(a.batch, len(inputs)),), generator=rng).to(device)
        loss = F.kl_div(net(inputs[rows]).log_softmax(1), masses[rows], reduction="batchmean")
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        falling.step()
        smooth = loss.item() if i == 0 else 0.98 * smooth + 0.02 * loss.item()
    return net.folded(), smooth


# ---- one KV head ----


def mass_of_choice(score, mass, l):
    """score [N, C] chooses l buckets of each row. Returns the mean share of the mass in them."""
    return float(mass.gather(1, score.topk(min(l, score.shape[1]), 1).indices).sum(1).mean())


def held_out(prompt, bucket, centroids, classifier, a, n_buckets, rng):
    """Figures of a prompt that the training did not see. The queries of a group at one position choose together."""
    inputs, mass, T = [], [], prompt.k.shape[0]
    first = a.window + a.back
    rows = first + torch.randperm(max(T - first, 0), generator=rng)[:256].to(prompt.k.device)
    for q, q_before in zip(prompt.q, prompt.q_before):
        score = q[rows] @ prompt.k.T / q.shape[1] ** 0.5
        position = torch.arange(T, device=q.device)
        score[:, 0] = -torch.inf
        score[position[None] > rows[:, None] - a.window] = -torch.inf
        mass.append(torch.zeros(len(rows), n_buckets, device=q.device).index_add_(1, bucket, score.softmax(1)))
        inputs.append(q_before[rows])
    w1, b1, w2, b2 = classifier
    mass, by_net, by_centroid = torch.stack(mass).mean(0), 0, 0
    for x in inputs:
        by_net = by_net + ((x @ w1.T + b1).relu() @ w2.T + b2).softmax(1)
        by_centroid = by_centroid + F.normalize(x, dim=1) @ centroids.T
    count = torch.bincount(bucket, minlength=n_buckets).double()
    row = dict(imbalance=round(float(n_buckets * (count ** 2).sum() / count.sum() ** 2), 2))
    for l in (4, 16, 32):
        row |= {f"{name}_{l}": round(mass_of_choice(score, mass, l), 3) for name, score in
                (("classifier", by_net), ("centroids", by_centroid), ("best", mass))}
    return row


def make_head(folder, n_prompts, layer, head, model, a):
    """Returns the tensors of one KV head, and a row of the table."""
    seed = a.seed * 100003 + layer * 1009 + head
    rng, device = torch.Generator().manual_seed(seed), a.device
    prompts = [Prompt(folder, i, layer, head, model, device) for i in range(n_prompts)]
    seen, last = (prompts[:-1], prompts[-1]) if n_prompts > 1 else (prompts, prompts[0])
    out = {}
    for name in ("k_before", "k"):
        keys = torch.cat([getattr(p, name)[1:] for p in seen])
        keys = keys[torch.randperm(len(keys), generator=rng)[:a.kmeans_keys].to(device)]
        centroids = spherical_kmeans(keys, a.buckets, a.iterations, seed)
        out["centroids" if name == "k_before" else "centroids_roped"] = centroids.bfloat16().cpu()
    centroids = out["centroids"].float().to(device)
    buckets = [assign(p.k_before, centroids) for p in prompts]
    data = [targets_of(p, b, a.buckets, a, rng, a.back) for p, b in zip(seen, buckets)]
    if not any(len(x) > 1 for x, _ in data):
        log(f"layer {layer}, KV head {head}: no query looks more than {a.back} tokens back, so all of its queries count")
        data = [targets_of(p, b, a.buckets, a, rng, -1) for p, b in zip(seen, buckets)]
    (w1, b1, w2, b2), loss = train(data, a, a.buckets, seed, device)
    out |= dict(w1=w1.bfloat16().cpu(), b1=b1.cpu(), w2=w2.bfloat16().cpu(), b2=b2.cpu())
    order = by_likeness(out["centroids"])
    out |= {name: out[name][order] for name in ("centroids", "w2", "b2")}
    row = dict(layer=layer, head=head, queries=sum(len(x) for x, _ in data), loss=round(loss, 4))
    return out, row | held_out(last, buckets[n_prompts - 1], centroids, (w1, b1, w2, b2), a, a.buckets, rng)


# ---- the program ----


def options(arguments):
    here = os.path.dirname(os.path.abspath(__file__))
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default=os.path.join(here, "../..", "models", "tiny"))
    p.add_argument("--sleigh", default="build/sleigh", help="the program, for a GGUF file")
    p.add_argument("--out", help="default: saap.safetensors in the folder of the model")
    p.add_argument("--text", nargs="+", help="text files; default: texts of the embedded model's kind")
    p.add_argument("--ids", help="a file with a prompt of token ids on each line, in place of texts")
    p.add_argument("--prompts", type=int, default=13, help="the last one is held out")
    p.add_argument("--tokens", type=count, default=8192, help="of a prompt")
    p.add_argument("--buckets", type=int, default=256)
    p.add_argument("--width", type=int, default=256, help="of the classifier; a multiple of 16")
    p.add_argument("--dense-layers", type=int, default=1, help="first layers that get no buckets")
    p.add_argument("--window", type=int, default=2047, help="last keys that are always read")
    p.add_argument("--back", type=int, default=1024, help="a query counts whose nearest key lies further back")
    p.add_argument("--iterations", type=int, default=10, help="of k-means")
    p.add_argument("--kmeans-keys", type=count, default=131072, help="most keys of k-means")
    p.add_argument("--queries", type=int, default=1500, help="of a prompt and query head, that are looked at")
    p.add_argument("--steps", type=int, default=1500, help="of the classifier (the paper: 40000)")
    p.add_argument("--batch", type=int, default=1000)
    p.add_argument("--lr", type=float, default=2e-3, help="of Adam; constant for half of the steps, then to 0 (the paper: 1e-5)")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--selftest", action="store_true")
    a = p.parse_args(arguments)
    if a.selftest and not a.out:
        p.error("--selftest needs --out FILE, which it overwrites")
    if a.width % 16 or not 16 <= a.width <= 8192:
        p.error(f"--width {a.width}: expected a multiple of 16 from 16 to 8192")
    if not 1 <= a.buckets <= 4096:
        p.error(f"--buckets {a.buckets}: expected 1 to 4096")
    a.out = a.out or os.path.join(folder_of(a.model), "saap.safetensors")
    return a


def run(a):
    torch.set_num_threads(a.threads)
    config, model = open_source(a.model, a.device)
    name = name_of(a, config)
    n_layers, n_heads, d = config["num_hidden_layers"], config["num_key_value_heads"], config["head_dim"]
    prompts = prompts_of(a)
    parts = dict(centroids=torch.zeros(n_layers, n_heads, a.buckets, d, dtype=torch.bfloat16))
    parts |= dict(centroids_roped=torch.zeros_like(parts["centroids"]), w1=torch.zeros(n_layers, n_heads, a.width, d, dtype=torch.bfloat16),
                  b1=torch.zeros(n_layers, n_heads, a.width), w2=torch.zeros(n_layers, n_heads, a.buckets, a.width, dtype=torch.bfloat16),
                  b2=torch.zeros(n_layers, n_heads, a.buckets))
    with tempfile.TemporaryDirectory() as folder:
        capture(model, prompts, a, folder)
        for layer in range(a.dense_layers, n_layers):
            for head in range(n_heads):
                made, row = make_head(folder, len(prompts), layer, head, model, a)
                for key, x in made.items():
                    parts[key][layer, head] = x
                log(f"layer {layer}, KV head {head}")
                print(json.dumps(row), flush=True)
    texts = dict(format_version="1", buckets=str(a.buckets), width=str(a.width), dense_layers=str(a.dense_layers), model=name)
    order = ["centroids", "centroids_roped", "w1", "w2", "b1", "b2"]
    write_tensors(a.out, texts, [(key, parts[key]) for key in order])
    log(f"{a.out}: {os.path.getsize(a.out)} bytes")


def main(options, run, small):
    """The program. options: parses arguments; run: makes the file a.out. With --selftest: two runs with the arguments `small` write equal files."""
    a = options(sys.argv[1:])
    if not a.selftest:
        return run(a)
    files = []
    for _ in range(2):
        run(options(["--out", a.out, *small]))
        with open(a.out, "rb") as file:
            files.append(file.read())
    if files[0] != files[1]:
        sys.exit(f"{os.path.basename(sys.argv[0])}: two runs with one seed wrote different files")


if __name__ == "__main__":
    main(options, run, "--prompts 3 --tokens 512 --buckets 16 --width 16 --window 100 --back 32 --iterations 3 --queries 100 --steps 10 --batch 64 "
                       "--dense-layers 3 --device cpu".split())
