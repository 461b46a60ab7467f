"""Fresh mutations of the sources for mutate.py: small faults that are made from the syntax of the code.

sample() draws a function body in proportion to its lines, then one of OPERATORS that fits there, then a place. A mutation is a span of the
file and its new text. Two packages parse the sources:

    pip install tree-sitter==0.26.1 tree-sitter-c==0.24.2 tree-sitter-cuda==0.21.2

`mutations.py --self-test` checks the operators on a small file, and that every judgement in scripts/check/mutations.txt is about a line that a
file still has."""
import argparse
import hashlib
import os
import random
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
JUDGED = os.path.join(ROOT, "scripts/check/mutations.txt")
FOLDERS = ("base", "backend", "kv", "tokenizer", "grammar", "attention", "models", "engine", "server", "cli", "cuda")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def tracked():
    out = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout.decode().split("\0")
    return sorted(x for x in out if x and os.path.isfile(os.path.join(ROOT, x)))


def folder_of(path):
    if re.search(r"(^|/)cuda/|\.cuh?$|_cuda\.c$", path):
        return "cuda"
    return path.split("/")[0]


class Mutation:
    """One fault: bytes begin to end of a file become `new`. `why` names the operator. `form` says how a run-time switch chooses between
    both texts: an "expression", or a "statement". `same` holds two expressions that must have one type, so that the fault
    compiles."""

    def __init__(self, path, why, begin, end, new, form="expression", same=None):
        self.path, self.why, self.begin, self.end, self.new, self.form, self.same = path, why, begin, end, new, form, same
        self.folder = folder_of(path)
        self.line, self.n_lines, self.old_line, self.new_line, self.key = 0, 0, "", "", ""

    def place(self, code):
        """Fills in the line number, and the changed line before and after the mutation, without blanks at the margin."""
        self.line, self.n_lines = code.count(b"\n", 0, self.begin) + 1, code.count(b"\n", self.begin, self.end)
        begin = code.rfind(b"\n", 0, self.begin) + 1
        end = code.find(b"\n", self.end)
        after = code[begin:self.begin] + self.new.encode() + code[self.end:end]
        self.old_line = " ".join(code[begin:end].decode().split())
        self.new_line = " ".join(after.decode().split())
        self.key = hashlib.sha256(f"{self.path}\0{self.old_line}\0{self.new_line}".encode()).hexdigest()[:10]
        return self

    def row(self):
        return {"key": self.key, "folder": self.folder, "path": self.path, "line": self.line, "why": self.why, "old": self.old_line,
                "new": self.new_line}


# ---- syntax ----

BINARY = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "*": "/", "/": "*"}
MIN_MAX = {"fminf": "fmaxf", "fmaxf": "fminf", "fmin": "fmax", "fmax": "fmin", "min": "max", "max": "min", "sl_min": "sl_max",
           "sl_max": "sl_min"}
SYMMETRIC = {x.encode() for x in MIN_MAX} | {b"strcmp", b"strncmp", b"strcasecmp", b"memcmp"}  # results of these are compared with 0
UNITS = {"1000": "1024", "1024": "1000", "1e3": "1e6", "1e-3": "1", "1e6": "1e3", "1e-6": "1e-3", "1e9": "1e6", "1e-9": "1e-6", "100": "1",
         "60": "1", "8": "1", "0.5": "1.0", "2.0": "1.0"}
# Left out: checks of programmer errors, the size of an allocation and whether something is freed (sanitizers notice it), and what makes the
# result of a fault change from run to run: waits and barriers.
SKIPPED = re.compile(rb"SL_CHECK|static_assert|_Static_assert|\bcap(_\w+)?\b|\w*(alloc|resize|reserve|_grow\w*)\(|munmap|\bfree\(|fclose\(|"
                     rb"\bclose\(|out of memory|^\s*\(void\)|va_start|va_end|\basm\b|prefetch|pragma|__sync|barrier_|sl_wait_|__nanosleep")
FREEING = re.compile(rb"^(free|json_decref|\w+_(free|close|destroy|release|unlock|lock)|pthread_\w+|cudaFree\w*|fflush)\b")
# Lines that do nothing on a CPU.
DEVICE = re.compile(rb"is_device|on_gpu|is_gpu|_gpu\b|->cuda|_there\(|sl_cuda_|cuda_|build_device|device_|gpu_present")
CONSTANT = {"case_statement", "array_declarator", "sizeof_expression", "enumerator", "alignof_expression", "static_assert_declaration",
            "offsetof_expression", "bitfield_clause", "preproc_call", "preproc_def", "preproc_if", "string_literal", "type_descriptor",
            "template_argument_list", "decltype"}


def parser_of(path):
    import tree_sitter
    if path.endswith((".cu", ".cuh")):
        import tree_sitter_cuda as grammar
    else:
        import tree_sitter_c as grammar
    return tree_sitter.Parser(tree_sitter.Language(grammar.language()))


def walk(node):
    yield node
    for child in node.named_children:
        yield from walk(child)


def left_out(node):
    """A branch of the preprocessor that this build does not compile: CUDA on a CPU."""
    name = node.child_by_field_name("name")
    return node.type == "preproc_ifdef" and name is not None and name.text == b"SLEIGH_CUDA" and node.children[0].type == "#ifdef"


def functions(node, on_device):
    for child in node.named_children:
        if child.type == "function_definition":
            yield child
        elif child.type == "preproc_ifdef" and left_out(child) and not on_device:
            other = child.child_by_field_name("alternative")
            if other is not None:
                yield from functions(other, on_device)
        elif child.type.startswith("preproc_") or child.type in ("namespace_definition", "declaration_list", "template_declaration",
                                                                 "linkage_specification"):
            yield from functions(child, on_device)


def bare(node):
    while node is not None and node.type in ("parenthesized_expression", "condition_clause") and node.named_child_count == 1:
        node = node.named_children[0]
    return node


def is_value(node):
    """The node is read, not written, and no constant expression needs it."""
    up, child = node.parent, node
    while up is not None and up.type != "function_definition":
        if up.type in CONSTANT and not (up.type == "case_statement" and up.child_by_field_name("value") != child):
            return False
        if up.type == "declaration" and any(x.type == "storage_class_specifier" and x.text == b"static" for x in up.children):
            return False
        is_constant = up.type in ("declaration", "if_statement") and any(x.text == b"constexpr" for x in up.children)
        if is_constant and child.type != "compound_statement":
            return False
        up, child = up.parent, up
    up = node.parent
    written = up.type == "assignment_expression" and up.child_by_field_name("left") == node
    return not (written or up.type == "update_expression" or (up.type == "pointer_expression" and up.children[0].type == "&"))


class Body:
    """The candidates of one function body."""

    def __init__(self, path, code, function):
        self.path, self.code, self.out = path, code, {}
        self.body = function.child_by_field_name("body")
        self.lines = self.body.end_point[0] - self.body.start_point[0] + 1
        self.nodes = [x for x in walk(self.body) if not self.skips(x)]
        names = [x for x in walk(function.child_by_field_name("declarator")) if x.type == "identifier"]
        names += [x.child_by_field_name("declarator") for x in self.nodes if x.type in ("init_declarator", "declaration")]
        self.locals = sorted({x.text for x in names[1:] if x is not None and x.type == "identifier"})
        self.fields = {}
        for x in self.nodes:
            if x.type == "field_expression":
                self.fields.setdefault(x.child_by_field_name("argument").text, set()).add(x.child_by_field_name("field").text)
        kind = function.child_by_field_name("type")
        pointer = function.child_by_field_name("declarator").type == "pointer_declarator"
        text = kind.text if kind is not None else b""
        self.early = (" NULL" if pointer else "" if text == b"void" else
                      " 0" if re.fullmatch(rb"(unsigned |const )*(int|bool|double|float|s?size_t|long|char|u?int\d+_t)", text) else None)
        for node in self.nodes:
            self.visit(node)

    def skips(self, node):
        begin = self.code.rfind(b"\n", 0, node.start_byte) + 1
        line = self.code[begin:self.code.find(b"\n", node.start_byte)]
        inside = node.parent
        while inside is not None and inside != self.body:
            if inside.type == "ERROR" or (left_out(inside) and folder_of(self.path) != "cuda"):
                return True
            inside = inside.parent
        return bool(SKIPPED.search(line)) or (folder_of(self.path) != "cuda" and bool(DEVICE.search(line)))

    def add(self, why, node, new, form="expression", same=None):
        if isinstance(new, bytes):
            new = new.decode()
        if new != node.text.decode():
            self.out.setdefault(why, []).append(Mutation(self.path, why, node.start_byte, node.end_byte, new, form, same))

    def visit(self, node):
        handler = getattr(self, node.type, None)
        if handler:
            handler(node)

    def around(self, node, child, text):
        """The text of node in which child's text is replaced."""
        return node.text[:child.start_byte - node.start_byte] + text + node.text[child.end_byte - node.start_byte:]

    def call_expression(self, node):
        name, args = node.child_by_field_name("function"), node.child_by_field_name("arguments").named_children
        if not is_value(node):
            return
        for a, b in zip(args, args[1:]) if name.text not in SYMMETRIC else ():
            if a.text != b.text and "string_literal" not in (a.type, b.type):
                swapped = (node.text[:a.start_byte - node.start_byte] + b.text + self.code[a.end_byte:b.start_byte] + a.text +
                           node.text[b.end_byte - node.start_byte:])
                self.add("arguments swapped", node, swapped, same=(a.text, b.text))
        other = MIN_MAX.get(name.text.decode())
        if other:
            self.add("min for max", node, self.around(node, name, other.encode()))

    def binary_expression(self, node):
        sign = node.child_by_field_name("operator").text.decode()
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        if not is_value(node):
            return
        if sign in ("<", "<=", ">", ">="):
            self.add("border", node, self.around(node, node.child_by_field_name("operator"), BINARY[sign].encode()))
            self.add("border", node, self.around(node, right, b"(" + right.text + b") + 1"), same=(right.text, b"1"))
            self.add("border", node, self.around(node, right, b"(" + right.text + b") - 1"), same=(right.text, b"1"))
        elif sign in ("==", "!="):
            self.add("condition negated", node, self.around(node, node.child_by_field_name("operator"), BINARY[sign].encode()))
        elif sign in ("+", "-", "*", "/"):
            self.add("sum for mean" if sign == "/" else "term dropped", node, left.text)
            if sign in ("+", "*"):
                self.add("term dropped", node, right.text, same=(left.text, right.text))
            self.add("operator", node, self.around(node, node.child_by_field_name("operator"), BINARY[sign].encode()))
        elif sign in ("&&", "||"):
            self.add("condition dropped", node, left.text)
            self.add("condition dropped", node, right.text)

    def negatable(self, node):
        test = bare(node.child_by_field_name("condition"))
        if test is not None and is_value(test):
            self.add("condition negated", test, b"!(" + test.text + b")")

    if_statement = conditional_expression = negatable

    def number_literal(self, node):
        text = node.text.decode()
        if not is_value(node):
            return
        if re.fullmatch(r"\d{1,6}", text):
            self.add("one more or less", node, str(int(text) + 1))
            if int(text):
                self.add("one more or less", node, str(int(text) - 1))
        if text in UNITS:
            self.add("wrong unit", node, UNITS[text])

    def subscript_expression(self, node):
        index = node.child_by_field_name("index")
        if index is not None and index.type != "number_literal" and is_value(index):
            self.add("one more or less", index, b"(" + index.text + b") - 1")

    def identifier(self, node):
        if re.match(rb"SL_ERR_\w+$", node.text):
            codes = (b"SL_ERR_ARG", b"SL_ERR_IO", b"SL_ERR_FORMAT", b"SL_ERR_UNSUPPORTED", b"SL_ERR_MEMORY")
            for code in codes:
                self.add("error code", node, code)
        elif node.text in self.locals and is_value(node) and node.parent.type not in (
                "init_declarator", "declaration", "field_expression", "parameter_declaration", "pointer_declarator", "array_declarator"):
            for other in self.locals:
                if other != node.text:
                    self.add("other variable", node, other, same=(node.text, other))
        elif node.parent.type == "init_declarator" and node.parent.child_by_field_name("value") == node and node.text in self.locals:
            for other in self.locals:
                if other != node.text:
                    self.add("other variable", node, other, same=(node.text, other))

    def field_expression(self, node):
        base = node.child_by_field_name("argument")
        if not is_value(node) or node.parent.type in ("call_expression", "field_expression"):
            return
        for other in sorted(self.fields.get(base.text, ())):
            if other != node.child_by_field_name("field").text:
                text = self.around(node, node.child_by_field_name("field"), other)
                self.add("other field", node, text, same=(node.text, text))

    def expression_statement(self, node):
        child = node.named_children[0] if node.named_children else None
        if child is None:
            return
        if child.type == "assignment_expression":
            operator = child.child_by_field_name("operator")
            sign, left = operator.text, child.child_by_field_name("left")
            if sign == b"=" and left.type in ("field_expression", "subscript_expression"):
                self.add("stale value", node, ";", "statement")
            elif sign == b"=":
                self.add("statement dropped", node, ";", "statement")
            elif sign in (b"+=", b"|=", b"*=", b"-="):
                self.add("only the last counts", node, self.around(node, operator, b"="), "statement")
                self.add("statement dropped", node, ";", "statement")
        elif child.type == "update_expression" or (child.type == "call_expression" and not FREEING.match(child.text)):
            self.add("statement dropped", node, ";", "statement")
        self.returns(node)

    def returns(self, node):
        """A return before this statement, but not before statements that only free: sanitizers notice what is not freed."""
        frees = re.match(rb"(free|json_decref|\w+_(free|clear|close|unref))\(", node.text)
        if not frees and self.early is not None and node.parent.type == "compound_statement" and node != self.body.named_children[0]:
            self.add("early return", node, f"return{self.early};", "statement")

    def for_statement(self, node):
        self.returns(node)

    def break_statement(self, node):
        if node.parent.type != "case_statement" and self.within_loop(node):
            self.add("break for continue", node, "continue;", "statement")

    def continue_statement(self, node):
        self.add("break for continue", node, "break;", "statement")

    def within_loop(self, node):
        up = node.parent
        while up is not None and up != self.body:
            if up.type in ("for_statement", "while_statement", "do_statement"):
                return True
            if up.type == "switch_statement":
                return False
            up = up.parent
        return False


OPERATORS = ("arguments swapped", "min for max", "border", "condition negated", "condition dropped", "term dropped", "sum for mean",
             "operator", "one more or less", "wrong unit", "error code", "other variable", "other field", "stale value",
             "statement dropped", "only the last counts", "early return", "break for continue")


def bodies(path, text):
    code = text.encode()
    tree = parser_of(path).parse(code)
    on_device = folder_of(path) == "cuda"
    for function in functions(tree.root_node, on_device):
        head = code[function.start_byte:function.child_by_field_name("body").start_byte]
        if on_device or not re.search(rb"device|gpu|cuda|_there\(", head):
            yield Body(path, code, function)


def product_files(gpu):
    return [x for x in tracked() if re.match(rf"({'|'.join(FOLDERS)})/.*\.(c|cu|cuh|h)$", x)
            and (folder_of(x) == "cuda") == gpu and not re.search(r"unicode_tables|nfc_tables|jinja_cases", x)]


def sample(count, seed, gpu=False, only=""):
    """Returns `count` mutations with different keys that do not overlap, in the order in which they were drawn."""
    all_bodies = [b for path in product_files(gpu) if path.startswith(only) for b in bodies(path, read(path)) if b.out]
    draw, out, taken, keys = random.Random(f"sleigh {seed}"), [], {}, set()
    weights, tries = [b.lines for b in all_bodies], 0
    while len(out) < count and tries < 50 * count:
        tries += 1
        body = draw.choices(all_bodies, weights)[0]
        m = draw.choice(body.out[draw.choice([x for x in OPERATORS if x in body.out])])
        m.place(read(m.path).encode())
        if m.key not in keys and all(m.end <= begin or end <= m.begin for begin, end in taken.get(m.path, ())):
            taken.setdefault(m.path, []).append((m.begin, m.end))
            keys.add(m.key)  # equal lines of a file have equal keys
            out.append(m)
    return out


# ---- the text with switches ----


def one_line(text):
    return " ".join(re.sub(r"//[^\n]*", "", text).split())


def switched(m, number, old):
    """The text of a mutation's span with a run-time switch of mutant.h: sl_mutant(number) chooses the fault."""
    new, choose = one_line(m.new), f"sl_mutant({number})"
    if m.form == "statement":
        return f"{{ if ({choose}) {{ {new} }} else {{ {old} }} }}"
    if not m.same:
        return f"({choose} ? ({new}) : ({old}))"
    a, b = (one_line(x.decode()) for x in m.same)
    return f"SL_MUTANT({number}, ({a}), ({b}), ({new}), ({old}))"


def with_switches(text, mutations):
    """Returns the text of a file with all of its numbered mutations: pairs (number, mutation). Line numbers stay."""
    code = text.encode()
    for number, m in sorted(mutations, key=lambda x: -x[1].begin):
        old = code[m.begin:m.end].decode()
        code = code[:m.begin] + switched(m, number, old).encode() + code[m.end:]
    return code.decode()


# ---- judgements ----


def judged():
    """Reads scripts/check/mutations.txt: {(path, old line, new line): ("equivalent" or "explained", reason)}."""
    out, path, old, new = {}, "", "", ""
    with open(JUDGED, encoding="utf-8") as f:
        for i, line in enumerate(f, 1):
            mark, rest = line[:2], " ".join(line[2:].split())
            if line.startswith("## "):
                path = rest.strip()
            elif mark == "- ":
                old = rest
            elif mark == "+ ":
                new = rest
            elif mark in ("= ", "? "):
                out[path, old, new] = ("equivalent" if mark == "= " else "explained", rest)
            elif line.strip() and path:
                raise ValueError(f"scripts/check/mutations.txt:{i}: expected ## PATH, or a line that begins with -, +, = or ?, found {line!r}")
    return out


# ---- checks, which CI runs ----

SAMPLE = """// a < b
static const int table[] = {1 + 1};
int f(struct rows *x, const char *b, int n) {
    SL_CHECK(n > 2);
    int kept = n, sizes[4] = {0};
    if (n < 10 && !b) return sl_fail(x, SL_ERR_IO, "a < b");
    for (int i = 0; i < n; i++) {
        if (b[i] == 7) continue;
        x->sum += (double)x->row[i] / n; // + 1
        x->last = fmin(x->sum, x->least);
    }
    free(x->row);
    return kept;
}
"""
SAMPLE_MADE = (
    ("condition dropped", "if (n < 10) return sl_fail(x, SL_ERR_IO, \"a < b\");"),
    ("condition dropped", "if (!b) return sl_fail(x, SL_ERR_IO, \"a < b\");"),
    ("condition negated", "if (!(n < 10 && !b)) return sl_fail(x, SL_ERR_IO, \"a < b\");"),
    ("border", "if (n <= 10 && !b) return sl_fail(x, SL_ERR_IO, \"a < b\");"),
    ("border", "if (n < (10) + 1 && !b) return sl_fail(x, SL_ERR_IO, \"a < b\");"),
    ("error code", "if (n < 10 && !b) return sl_fail(x, SL_ERR_FORMAT, \"a < b\");"),
    ("arguments swapped", "if (n < 10 && !b) return sl_fail(SL_ERR_IO, x, \"a < b\");"),
    ("one more or less", "if (b[(i) - 1] == 7) continue;"),
    ("break for continue", "if (b[i] == 7) break;"),
    ("sum for mean", "x->sum += (double)x->row[i]; // + 1"),
    ("only the last counts", "x->sum = (double)x->row[i] / n; // + 1"),
    ("other field", "x->last = fmin(x->last, x->least);"),
    ("min for max", "x->last = fmax(x->sum, x->least);"),
    ("stale value", ";"),
    ("early return", "return 0;"),
    ("other variable", "int kept = b, sizes[4] = {0};"),
    ("other variable", "return n;"))


def self_test():
    """Returns one complaint for each fault of this file or of scripts/check/mutations.txt."""
    code, out = SAMPLE.encode(), []
    made = [m.place(code) for b in bodies("sample.c", SAMPLE) for some in b.out.values() for m in some]
    got = {(m.why, " ".join(m.new_line.split())) for m in made}
    out += [f"operators: the sample lacks {x}" for x in SAMPLE_MADE if x not in got]
    out += [f"operators: {x} changes a line that no mutation may change" for x in got
            if x[0] != "early return" and re.search(r"SL_CHECK|table|sizes\[[^4]|free", x[1])]
    text = with_switches(SAMPLE, [(i, m) for i, m in enumerate(made) if m.why in ("min for max", "break for continue")])
    out += [f"switches: {x!r} is missing" for x in ("? (fmax(x->sum, x->least)) : (fmin(x->sum, x->least)))", "{ break; } else { continue; } }")
            if x not in text]
    lines = {}
    for path, old, _ in judged():
        if path not in lines:
            lines[path] = " ".join(read(path).split()) if os.path.exists(os.path.join(ROOT, path)) else ""
        if old not in lines[path]:
            out.append(f"scripts/check/mutations.txt: {path} has no line {old!r}: judge again, or delete the entry")
    return out


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).add_argument(
        "--self-test", action="store_true", required=True)
    complaints = self_test()
    print("\n".join(complaints) or f"{len(judged())} judgements, all about current lines")
    sys.exit(bool(complaints))
