"""Mutations of the sources for mutate.py: written by hand (scripts/mutations/*.txt), or generated with fixed operators ("made").

A catalogue is plain text. `## PATH` names the file of the mutations that follow. A mutation is

        * the fault that the mutation makes [suites that should notice the fault]
    - text to replace, which occurs once in the file (`-2 ` the second of several times); several lines: several `-`
    + new text; several lines: several `+`; none: the old text is deleted
        = why no test can distinguish the mutant from the right program (equivalent)
    ? why the mutant survives although it is not equivalent

Lines before the first `##` are notes. A hash of the seed, the line's text and the new text chooses a generated mutation, so an edit at
another place of the tree does not change the choice."""
import hashlib
import os
import re
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
DATA = os.path.join(HERE, "mutations")
FOLDERS = ("attention", "models", "tokenizer", "engine", "engine/cli", "cuda")
# No mutations are generated for measured constants and benchmarks, where a changed figure breaks nothing, and for device.cuh, because
# its change rebuilds every kernel.
NOT_MADE = ("attention/auto_table.c", "engine/cli/bench/attn_timing.cu", "engine/cli/bench/attn_timing.h", "engine/backend/cuda/device.cuh")


class Stale(Exception):
    pass


class Mutation:
    def __init__(self, path, why, suites, kind):
        self.path, self.why, self.suites, self.kind = path, why, suites, kind
        self.old = self.new = ""
        self.nth = 0  # 0: the old text occurs once
        self.equivalent = self.explained = None
        self.at = 0  # offset of a made one
        self.folder = None

    def key(self):
        text = "\0".join((self.path, self.old, str(self.nth), self.new))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def apply(self, text):
        found = text.count(self.old)
        if found == 0 or (self.nth == 0 and found != 1) or self.nth > found:
            wanted = "once" if self.nth == 0 else f"at least {self.nth} times"
            raise Stale(f"{self.path}: {self.old!r} occurs {found} times, expected {wanted}")
        at = -1
        for _ in range(max(1, self.nth)):
            at = text.index(self.old, at + 1)
        return text[:at] + self.new + text[at + len(self.old):]

    def row(self):
        return {"key": self.key(), "folder": self.folder, "kind": self.kind, "path": self.path, "why": self.why,
                "old": self.old, "new": self.new, "suites": self.suites}


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def tracked():
    """Returns the files of the tree. Without git (in a copy of the tree), every file outside build/."""
    try:
        done = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, check=True, text=True)
        return sorted(p for p in done.stdout.split("\0") if p and os.path.isfile(os.path.join(ROOT, p)))
    except (OSError, subprocess.CalledProcessError):
        pass
    out = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [x for x in folders if x == ".ci" or not (x.startswith(".") or x in ("build", "shared", "__pycache__"))]
        out += [os.path.relpath(os.path.join(folder, x), ROOT) for x in files]
    return sorted(out)


def folder_of(path):
    """Returns the row of the table. All code that needs a GPU is one row."""
    if path.startswith("engine/backend/cuda/") or path.endswith((".cu", ".cuh", "_cuda.c")):
        return "cuda"
    return "engine/cli" if path.startswith("engine/cli/") else path.split("/")[0]


# ---- mutations written by hand ----


def parse(name, kind="hand"):
    """Returns the mutations of one catalogue."""
    out, path, last = [], None, None
    with open(os.path.join(DATA, name), encoding="utf-8") as f:
        lines = f.read().split("\n")
    for number, line in enumerate(lines, 1):
        where = f"scripts/mutations/{name}:{number}"
        if line.startswith("## "):
            path, last = line[3:].strip(), None
        elif path is None or not line.strip():
            continue
        elif line.startswith("* "):
            m = re.fullmatch(r"\* (.*?)(?: \[([^\]]*)\])?", line)
            out.append(Mutation(path, m[1], (m[2] or "").split(), kind))
            last = "*"
        elif not out or last is None:
            raise Stale(f"{where}: expected `* what it breaks [suites]`, found {line!r}")
        elif re.match(r"-\d* |-$", line):
            count = re.match(r"-(\d*) ?", line)
            out[-1].nth = int(count[1]) if count[1] else out[-1].nth
            out[-1].old += ("\n" if last == "-" else "") + line[count.end():]
            last = "-"
        elif line.startswith("+ ") or line == "+":
            out[-1].new += ("\n" if last == "+" else "") + line[2:]
            last = "+"
        elif line.startswith("= "):
            out[-1].equivalent = line[2:].strip()
        elif line.startswith("? "):
            out[-1].explained = line[2:].strip()
        else:
            raise Stale(f"{where}: expected a line that begins with `*`, `-`, `+`, `=` or `?`, found {line!r}")
    return out


def hand_written():
    out = []
    for name in sorted(os.listdir(DATA)):
        if name.endswith(".txt") and name not in ("made.txt", "suites.txt"):
            out += parse(name)
    for m in out:
        m.folder = folder_of(m.path)
    return out


# ---- generated mutations ----


def masked(text):
    """Replaces comments, strings and preprocessor lines by blanks, so that offsets do not change."""
    token = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:\\\n|[^\n])*', re.S | re.M)
    return token.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), without_branches(text))


# Branches of the preprocessor that the mutation run does not compile: CUDA on a CPU, GPUs before sm_90.
LEFT_OUT = ("#ifdef SLEIGH_CUDA", "#if __CUDA_ARCH__ < 900")
KEPT_TO_ELSE = ("#if __CUDA_ARCH__ >= 900",)


def without_branches(text):
    out, open_ = [], []
    for line in text.split("\n"):
        word = line.strip()
        if word.startswith("#if"):
            open_.append((word in LEFT_OUT, word in KEPT_TO_ELSE))
        elif word.startswith("#else") and open_:
            open_[-1] = (open_[-1][1], False)
        elif word.startswith("#endif") and open_:
            open_.pop()
        out.append(re.sub(r".", " ", line) if any(x[0] for x in open_) else line)
    return "\n".join(out)


def bodies(code):
    """Returns the spans of function bodies in masked text: braces after `)` at the top level of the file or of a namespace."""
    out, depth, start, outer = [], 0, None, []
    for m in re.finditer(r"[{}]", code):
        if m[0] == "{":
            before = code[:m.start()].rstrip()
            if start is None and re.search(r"(namespace(\s+\w+)?|extern)$", before):
                outer.append(depth)
            elif start is None and before.endswith(")") and depth == len(outer):
                start = (m.start(), depth)
            depth += 1
        else:
            depth -= 1
            if start and depth == start[1]:
                out.append((start[0], m.start()))
                start = None
            elif outer and outer[-1] == depth:
                outer.pop()
    return out


def pick(table):
    return lambda m: table[m[0]]


MIN_MAX = {"fminf": "fmaxf", "fmaxf": "fminf", "fmin": "fmax", "fmax": "fmin", "min": "max", "max": "min"}
FREEING = r"free|\w+_free|munmap|f?close\w*|va_end|va_start|fflush|fputs|puts|printf|fprintf|perror|assert"
OPERATORS = {  # name: (pattern in masked code, new text)
    "boundary": (r"(?<= )[<>]=?(?= )", pick({"<": "<=", "<=": "<", ">": ">=", ">=": ">"})),
    "equality": (r"(?<= )[!=]=(?= )", pick({"==": "!=", "!=": "=="})),
    "sign": (r"(?<= )[-+](?==? )", pick({"+": "-", "-": "+"})),
    "constant": (r"(?<![\w.])(?:0|[1-9]\d{0,5})(?![\w.'])", lambda m: str(int(m[0]) + 1)),
    "logic": (r"(?<= )(?:&&|\|\|)(?= )", pick({"&&": "||", "||": "&&"})),
    "negation": (r"(?<=[ (])!(?=[\w(*])", lambda m: ""),
    "min-max": (r"(?<![\w.])(?:%s)(?=\()" % "|".join(MIN_MAX), pick(MIN_MAX)),
    "return": (r"(?<=\breturn )(?!0;|-?1;|NULL;|sl_fail|out;)[^;{}]+(?=;)", lambda m: "0"),
    "call": (r"(?<=\n)[ ]+(?!(?:return|if|for|while|switch|sizeof|%s)\b)[a-z_]\w*\((?:[^;{}\n])*\);(?=\n)" % FREEING,
             lambda m: re.sub(r"\S.*", ";", m[0])),
}
# No test can notice these: checks of programmer errors, messages, the size of an allocation and whether it is freed (sanitizers notice
# it), progress bars. Without its waits a kernel hangs or races.
SKIPPED = re.compile(r"SL_CHECK|static_assert|_Static_assert|sl_fail|\basm\b|printf\(|\bfail\(|usage|case \d+:$|enum \{|"
                     r"\bcap(_\w+)?\b|alloc\(|_free\(|cudaFree|progress|"
                     r"_sync\(|__sync|barrier_|sl_wait_|sl_start_next|load_acquired|wait_done|__nanosleep|prefetch|SL_L2_")
# Lines that do nothing on a CPU.
DEVICE = re.compile(r"is_device|on_gpu|is_gpu|->cuda|_there\(|sl_cuda_|build_device")


def candidates(path, text):
    """Returns every mutation that the operators can generate in one file, in the order of the lines."""
    code, out, seen, on_device = masked(text), [], {}, folder_of(path) == "cuda"
    for first, end in bodies(code):
        head = code[max(code.rfind("}", 0, first), code.rfind(";", 0, first)) + 1:first]
        if not on_device and re.search(r"device|gpu|cuda|_there\(", head):
            continue
        for name, (pattern, new) in OPERATORS.items():
            for m in re.compile(pattern).finditer(code, first, end):
                begin = text.rfind("\n", 0, m.start() + (name == "call")) + 1
                stop = text.find("\n", m.end())
                line = text[begin:stop]
                if "\n" in text[m.start():m.end()].strip("\n") or SKIPPED.search(line) or (
                        not on_device and DEVICE.search(line)):
                    continue
                changed = text[begin:m.start()] + new(m) + text[m.end():stop]
                made = Mutation(path, name, [], "made")
                made.at, made.old, made.new = m.start(), line, changed
                # The number of this line among equal lines.
                made.nth = len(re.findall(re.escape(line), text[:begin])) + 1 if text.count(line) > 1 else 0
                if changed != line and seen.setdefault((line, changed, made.nth), made) is made:
                    out.append(made)
    return sorted(out, key=lambda x: (x.at, x.new))


def suites_by_file():
    out = {}
    with open(os.path.join(DATA, "suites.txt"), encoding="utf-8") as f:
        for line in f:
            words = line.split("#")[0].split()
            if words:
                out[words[0]] = words[1:]
    return out


def made(count, seed):
    """Returns `count` generated mutations, spread over the folders by their lines. In each folder the operators take turns."""
    table, places, lines = suites_by_file(), {}, {}
    for path in tracked():
        if not re.match(r"(attention|models|tokenizer|engine)/.*\.(c|cc|cu|cuh|h)$", path) or path in NOT_MADE:
            continue
        text = read(path)
        folder = folder_of(path)
        lines[folder] = lines.get(folder, 0) + text.count("\n")
        for m in candidates(path, text):
            m.folder = folder
            m.suites = table[max((p for p in table if path.startswith(p)), key=len)]
            rank = hashlib.sha256(f"{seed}\0{path}\0{m.old.strip()}\0{m.nth}\0{m.new.strip()}".encode()).hexdigest()
            places.setdefault(folder, {}).setdefault(m.why, []).append((rank, m))
    out, total = [], sum(lines.values())
    for folder in FOLDERS:
        ranked = [sorted(x, key=lambda y: y[0]) for _, x in sorted(places.get(folder, {}).items())]
        turns = [x[i][1] for i in range(max(map(len, ranked), default=0)) for x in ranked if i < len(x)]
        out += turns[:round(count * lines.get(folder, 0) / total)]
    explained = {(m.path, m.old.strip(), m.new.strip()): m for m in parse("made.txt", "made")}
    for m in out:
        why = explained.get((m.path, m.old.strip(), m.new.strip()))
        if why:
            m.equivalent, m.explained = why.equivalent, why.explained
    return out


# ---- checks of the catalogue, which CI runs ----

SAMPLE = """// a < b
#define LESS(a, b) ((a) < (b))
static int f(int a, const char *b);
static const int table[] = {1 + 1};
static int f(int a, const char *b) {
    const char *text = "a < b && !c"; /* 1 + 1 */
    if (a < 10 && !b)
        return a + 1;
    note(text);
    return fmin(a, 2) == 3 || a >= 0;
}
"""
SAMPLE_MADE = (
    "    if (a <= 10 && !b)", "    if (a < 11 && !b)", "    if (a < 10 || !b)", "    if (a < 10 && b)", "        return a - 1;",
    "        return a + 2;", "        return 0;", "    ;", "    return 0;", "    return fmax(a, 2) == 3 || a >= 0;",
    "    return fmin(a, 3) == 3 || a >= 0;", "    return fmin(a, 2) != 3 || a >= 0;", "    return fmin(a, 2) == 4 || a >= 0;",
    "    return fmin(a, 2) == 3 && a >= 0;", "    return fmin(a, 2) == 3 || a > 0;", "    return fmin(a, 2) == 3 || a >= 1;")


def check():
    """Returns one complaint for each fault of the catalogue."""
    out = []
    got, want = sorted(m.new for m in candidates("sample.c", SAMPLE)), sorted(SAMPLE_MADE)
    out += [f"operators: the sample gives {x!r}, which is not expected" for x in got if x not in want]
    out += [f"operators: the sample lacks {x!r}" for x in want if x not in got]
    files = tracked()
    unused = [x for x in suites_by_file() if not any(f.startswith(x) for f in files)]
    out += [f"scripts/mutations/suites.txt: no file begins with {x}" for x in unused]
    runner = read("tests/main.c")
    suites = set(re.findall(r"X\((\w+)\)", runner)) - {"scripts"}
    named = dict(suites_by_file())
    keys = {}
    for m in hand_written():
        named[f"{m.path}: {m.why}"] = m.suites
        text = read(m.path)
        try:
            if m.apply(text) == text:
                out.append(f"{m.path}: {m.old!r} is replaced by itself")
        except Stale as stale:
            out.append(str(stale))
        if keys.setdefault(m.key(), m) is not m:
            out.append(f"{m.path}: {m.old!r} to {m.new!r} is in the catalogue twice")
    for m in parse("made.txt", "made"):
        if all(m.old.strip() != x.strip() for x in read(m.path).split("\n")):
            out.append(f"scripts/mutations/made.txt: {m.path} has no line {m.old!r}")
        if not (m.equivalent or m.explained):
            out.append(f"scripts/mutations/made.txt: {m.path}: {m.old!r} has no reason")
    for what, names in named.items():
        wrong = [x for x in names if x.split("/")[0] not in suites]
        if wrong or not names:
            out.append(f"{what}: expected suites of tests/main.c, found {' '.join(names) or 'none'}")
    return out
