// tests/test_package.c - an installed copy: its files, the symbols of the libraries, programs that embed them, the Debian
// package.
#include "tests/support/run_cli.h"

#include <stdlib.h>
#include <unistd.h>

// A prompt in the quotes of the shell. The tiny model answers it with the number.
#define FACT                                                                                                                   \
    "'One of the special magic numbers for tender-garlic is: 4711823. The full studio never broke a pale garlic again. What "  \
    "is the special magic number for tender-garlic mentioned in the text? Answer:'"

#ifdef __SANITIZE_ADDRESS__
#define NEEDS_PLAIN_BUILD() TEST_SKIP("a build with sanitizers is not installed")
#else
#define NEEDS_PLAIN_BUILD()                                                                                                    \
    if (system("test -e packaging/install.sh -a -e engine/sleigh.h")) TEST_SKIP("needs the source tree")
#endif

// Runs a script of /bin/sh in the root of the tree, with the variables bin (the program), build (its folder), tmp (the folder
// of the case) and root (an empty place to install to). The script ends at its first error.
static result script(const char *text) {
    char all[4096];
    snprintf(all, sizeof all,
             "set -eu; unset MAKEFLAGS MAKELEVEL MFLAGS SLEIGH_MODELS; bin=$0 build=$(dirname \"$0\") tmp=$1 root=$1/root\n"
             "make() { command make --no-print-directory CUDA=0 \"BUILD=$build\" \"DESTDIR=$root\" PREFIX=/opt/x \"$@\"; }\n%s",
             text);
    result r = RUN_SHELL(all, test_tmp());
    if (r.code) FAIL("exit code %d: %s%s", r.code, r.out, r.err);
    return r;
}

static void need(const char *tool) {
    char command[200];
    snprintf(command, sizeof command, "command -v %s >/dev/null 2>&1", tool);
    if (system(command)) TEST_SKIP("needs %s", tool);
}

// Global names of the archive begin with sl_, except names of C++, which hold a namespace or a hash. The loader finds the
// shared library under the name of its interface.
static void symbols(void) {
    NEEDS_PLAIN_BUILD();
    need("nm");
    result r = script("nm -g --defined-only \"$build/libsleigh.a\" | awk 'NF == 3 { print $3 }' |\n"
                      "    grep -vE '^(sl_|_Z|DW\\.ref\\.|__nv_|__fatbin|__cuda)' || :\n");
    CHECK_STR(r.out, "");
    r = script("readelf -d \"$build\"/libsleigh.so.*.*.* | grep SONAME");
    CHECK_HAS(r.out, "[libsleigh.so.0]");
}

static void install(void) {
    NEEDS_PLAIN_BUILD();
    need("make");
    result r =
        script("make install >&2; cd \"$root/opt/x\"; find . -type f -o -type l | sed 's/0[.][0-9.]*$/N/'; ls -l lib >&2");
    static const char *const files[] = {"bin/sleigh",
                                        "include/sleigh.h",
                                        "lib/libsleigh.a",
                                        "lib/libsleigh.so",
                                        "lib/libsleigh.so.N",
                                        "lib/pkgconfig/sleigh.pc",
                                        "share/man/man1/sleigh.1",
                                        "share/bash-completion/completions/sleigh",
                                        "share/sleigh/models/tiny/model.safetensors",
                                        "share/doc/sleigh/LICENSE",
                                        "share/doc/sleigh/README.md",
                                        "share/sleigh/installed"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char line[100];
        snprintf(line, sizeof line, "./%s\n", files[i]);
        CHECK_HAS(r.out, line);
    }
    if (!access("models/prose/model.safetensors", R_OK)) CHECK_HAS(r.out, "./share/sleigh/models/prose/model.safetensors\n");
    CHECK_HAS(r.err, "libsleigh.so -> libsleigh.so.0");
    // The scripts and pages that an installed page names are installed, and a script runs there.
    r = script(
        "cd \"$root/opt/x/share/doc/sleigh\"; cat README.md docs/*.md | grep -ohE 'scripts/[a-z_0-9]+[.](py|sh|cu|txt)' "
        "| sort -u |\n"
        "    while read -r file; do echo named; [ -e \"$file\" ] || echo \"lacks $file\"; done\n"
        "grep -ohE '[]][(][a-z0-9/-]+[.]md' README.md | cut -c 3- | while read -r file; do [ -e \"$file\" ] || echo "
        "\"lacks $file\"; done\n"
        "python3 scripts/train/tiny_text.py --tokens 256 --seed 1 --prompt >&2; find . -name __pycache__ -exec rm -r {} +; "
        "scripts/cuda_arch.sh >&2");
    CHECK_HAS(r.out, "named\n");
    CHECK_LACKS(r.out, "lacks");
    CHECK_HAS(r.err, "One of the special magic numbers for ");
    r = script("cd /; \"$root/opt/x/bin/sleigh\" generate -m tiny -p " FACT " --temp 0 -n 10");
    CHECK_HAS(r.out, "4711823");
    char model[300];
    snprintf(model, sizeof model, "%s/root/opt/x/share/sleigh/models/tiny", test_tmp()); // not that of the tree
    CHECK_HAS(r.err, model);
    // A second installation replaces the files. uninstall removes what both made, and no file of another program.
    r = script("make install-strip >&2; : >\"$root/opt/x/bin/other\"; make uninstall >&2; find \"$root\"");
    snprintf(model, sizeof model, "%s/root\n%s/root/opt\n%s/root/opt/x\n%s/root/opt/x/bin\n%s/root/opt/x/bin/other\n",
             test_tmp(), test_tmp(), test_tmp(), test_tmp(), test_tmp());
    CHECK_STR(r.out, model);
    r = script("rm \"$root/opt/x/bin/other\"; make install >&2; make uninstall >&2; find \"$root\" -mindepth 4");
    CHECK_STR(r.out, "");
    r = script("if make uninstall; then exit 1; fi");
    CHECK_HAS(r.err, "no copy of Sleigh is installed with PREFIX=/opt/x");
    // Without DESTDIR, root also updates the loader's list of libraries.
    spill(in_tmp("ldconfig"), "#!/bin/sh\n: >\"${0%/*}/updated\"\n", 31);
    r = script("[ \"$(id -u)\" = 0 ] || exit 0; chmod +x \"$tmp/ldconfig\"; export PATH=\"$tmp:$PATH\"\n"
               "make install; test ! -e \"$tmp/updated\"; make uninstall; test ! -e \"$tmp/updated\"\n"
               "make install DESTDIR= \"PREFIX=$tmp/own\"; rm \"$tmp/updated\"\n"
               "make uninstall DESTDIR= \"PREFIX=$tmp/own\"; rm \"$tmp/updated\"; test ! -e \"$tmp/own/bin\"\n");
    r = script("mkdir \"$tmp/empty\"; if BUILD= make \"BUILD=$tmp/empty\" install; then exit 1; fi; find \"$root\" -type f");
    CHECK_HAS(r.err, "is missing; run `make` first");
    CHECK_STR(r.out, "");
}

// The programs of examples/ compile with pkg-config's flags only, and run with the shared library and with the archive.
static void embed(void) {
    NEEDS_PLAIN_BUILD();
    need("make");
    need("pkg-config");
    need("${CC:-cc}");
    need("${CXX:-c++}");
    script("make install\n"
           "PKG_CONFIG_PATH=$root/opt/x/lib/pkgconfig; export PKG_CONFIG_PATH\n"
           "flags() { pkg-config --define-variable=\"prefix=$root/opt/x\" \"$@\" sleigh; }\n"
           "cp examples/embed.c examples/embed.cc \"$tmp\"; cd \"$tmp\"\n"
           "${CC:-cc} -std=c11 -Wall -Wextra -Werror -o c-shared embed.c $(flags --cflags --libs)\n"
           "${CXX:-c++} -std=c++17 -Wall -Wextra -Werror -o cc-shared embed.cc $(flags --cflags --libs)\n"
           "static=$(flags --cflags --libs --static | sed 's/-lsleigh/-l:libsleigh.a/')\n"
           "${CC:-cc} -std=c11 -o c-static embed.c $static\n"
           "${CXX:-c++} -std=c++17 -o cc-static embed.cc $static\n");
    static const char *const programs[] = {"c-shared", "cc-shared", "c-static", "cc-static"};
    for (int i = 0; i < 4; i++) {
        char line[500];
        snprintf(line, sizeof line,
                 "cd \"$tmp\"; LD_LIBRARY_PATH=$root/opt/x/lib ./%s \"$root/opt/x/share/sleigh/models/tiny\" " FACT,
                 programs[i]);
        CHECK_HAS(script(line).out, "4711823");
    }
}

// A package is made, installed, run and removed. As root dpkg installs it into a folder, else dpkg-deb unpacks it.
static void deb(void) {
    NEEDS_PLAIN_BUILD();
    need("dpkg-deb");
    need("dpkg-shlibdeps");
    script("COMPRESS=gzip packaging/deb.sh \"$build\" \"$tmp/out\"");
    result r = script("dpkg-deb --field \"$tmp\"/out/sleigh_*.deb Package Version Depends");
    CHECK_HAS(r.out, "Package: sleigh\nVersion: ");
    CHECK_HAS(r.out, "libc6 (>= ");
    CHECK_HAS(r.out, "libsentencepiece");
    r = script("dpkg=$root/var/lib/dpkg; mkdir -p \"$dpkg/info\" \"$dpkg/updates\" \"$dpkg/triggers\"; : >\"$dpkg/status\"\n"
               "if [ \"$(id -u)\" = 0 ]; then\n"
               "    dpkg --root=\"$root\" --log=/dev/null --force-depends -i \"$tmp\"/out/sleigh_*.deb >&2\n"
               "else\n"
               "    dpkg-deb -x \"$tmp\"/out/sleigh_*.deb \"$root\"\n"
               "fi\n"
               "cd /; \"$root/usr/bin/sleigh\" generate -m tiny -p " FACT " --temp 0 -n 10\n");
    CHECK_HAS(r.out, "4711823");
    CHECK_HAS(r.err, "/root/usr/share/sleigh/models/tiny");
    if (system("test \"$(id -u)\" = 0")) return;
    r = script("dpkg --root=\"$root\" --log=/dev/null --force-depends -P sleigh >&2; cd \"$root\"; find . ! -path './var*'");
    CHECK_STR(r.out, ".\n");
}

// scripts/setup.sh as root, where gnuplot and the tools for packages cannot be installed: the build does not need them. Without
// a compiler the build cannot run.
static void setup(void) {
    static const char id[] = "#!/bin/sh\necho 0\n", apt[] = "#!/bin/sh\necho \"apt-get $*\" >>\"${0%/*}/called\"\nexit 100\n";
    NEEDS_PLAIN_BUILD();
    spill(in_tmp("id"), id, strlen(id));
    spill(in_tmp("apt-get"), apt, strlen(apt));
    spill(in_tmp("python3"), "#!/bin/sh\nexit 1\n", 17); // a python without venv
    result r = script("unset -f make; chmod +x \"$tmp/id\" \"$tmp/apt-get\" \"$tmp/python3\"\n"
                      "for tool in sh dirname gcc g++ cc c++ make uname mktemp tail rm; do\n"
                      "    ln -s \"$(command -v $tool)\" \"$tmp/$tool\"\ndone\n"
                      "PATH=$tmp TMPDIR=$tmp scripts/setup.sh");
    CHECK_HAS(r.err, "the build does not need them: gnuplot-nox openmpi-bin pkgconf python3-venv ");
    CHECK_HAS(r.err, " dpkg-dev; the log is ");
    r = script("if PATH=$tmp TMPDIR=$tmp CC=no-such-cc scripts/setup.sh; then exit 1; fi; cat \"$tmp/called\"");
    CHECK_HAS(r.err, "sleigh: error: 'apt-get install -y --no-install-recommends gcc");
    CHECK_HAS(r.out, "apt-get update\napt-get install -y --no-install-recommends gnuplot-nox openmpi-bin pkgconf python3-venv ");
    CHECK_HAS(r.out, " dpkg-dev\napt-get update\n");
}

// The generations that a build is for follow from what nvidia-smi says and from what nvcc knows.
static void cuda_arch(void) {
    static const struct {
        const char *said, *want;
    } cases[] = {{"9.0\n", "90a\n"},  {"9.0\n9.0\n", "90a\n"}, {"8.9\n8.6\n", "86 89\n"}, {"9.0\n10.0\n", "90a 100\n"},
                 {"12.1\n", "120\n"}, {"8.7\n", "86\n"},       {"7.5\n", "90a\n"},        {"No devices found\n", "90a\n"},
                 {"", "90a\n"}};
    static const char smi[] = "#!/bin/sh\ncat \"${0%/*}/said\"\n",
                      nvcc[] = "#!/bin/sh\nfor x in 75 80 86 89 90 100 120; do echo sm_$x; done\n";
    NEEDS_PLAIN_BUILD();
    spill(in_tmp("nvidia-smi"), smi, strlen(smi));
    spill(in_tmp("nvcc"), nvcc, strlen(nvcc));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        spill(in_tmp("said"), cases[i].said, strlen(cases[i].said));
        result r = script("chmod +x \"$tmp/nvidia-smi\" \"$tmp/nvcc\"; PATH=$tmp:$PATH scripts/cuda_arch.sh nvcc");
        CHECK_STR(r.out, cases[i].want);
    }
}

// Without a GPU, `make demo` builds without CUDA, except if `make` has compiled the kernels before.
static void demo_build(void) {
    static const struct {
        const char *gpu, *before, *said, *nvcc, *cp;
    } cases[] = {
        {"", ":", "sleigh: no GPU, so the demo builds without CUDA, in ", "", "/b/cpu/sleigh "},
        {"GPU 0: A (UUID: GPU-1)", ":", "", "  NVCC attention/cuda/", ""},
        {"", "mkdir -p $tmp/b/backend/cuda; : >$tmp/b/backend/cuda/linear.cu.o", "", "  NVCC ", ""},
        {"", "CUDA=1; export CUDA", "", "  NVCC ", ""},
        {"", "CUDA=0; export CUDA", "", "", ""},
    };
    static const char smi[] = "#!/bin/sh\n[ ! -s \"${0%/*}/gpu\" ] || cat \"${0%/*}/gpu\"\n";
    char text[1000];
    NEEDS_PLAIN_BUILD();
    need("make");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        spill(in_tmp("nvidia-smi"), smi, strlen(smi));
        spill(in_tmp("gpu"), cases[i].gpu, strlen(cases[i].gpu));
        snprintf(text, sizeof text,
                 "unset -f make; unset CUDA BUILD; mkdir -p $tmp/cuda/bin $tmp/cuda/include; rm -rf $tmp/b; %s\n"
                 ": >$tmp/cuda/include/cublasLt.h; cp $tmp/nvidia-smi $tmp/cuda/bin/nvcc; chmod +x $tmp/cuda/bin/nvcc "
                 "$tmp/nvidia-smi\n"
                 "PATH=$tmp:$PATH make -n demo \"BUILD=$tmp/b\" \"NVCC=$tmp/cuda/bin/nvcc\" CUDA_ARCH=90a",
                 cases[i].before);
        result r = script(text);
        CHECK_HAS(r.out, cases[i].said);
        CHECK_HAS(r.out, cases[i].nvcc);
        CHECK_HAS(r.out, cases[i].cp);
        CHECK_HAS(r.out, "/b/sleigh\n");
        if (!*cases[i].said) CHECK_LACKS(r.out, "no GPU");
        if (!*cases[i].nvcc) CHECK_LACKS(r.out, "NVCC ");
        if (!*cases[i].cp) CHECK_LACKS(r.out, "/b/cpu");
    }
}

static const test_case cases[] = {
    {"setup", NEEDS_NOTHING, setup},
    {"demo_build", NEEDS_NOTHING, demo_build},
    {"cuda_arch", NEEDS_NOTHING, cuda_arch},
    {"symbols", NEEDS_NOTHING, symbols},
    {"install", NEEDS_NOTHING, install},
    {"embed", NEEDS_NOTHING, embed},
    {"deb", NEEDS_NOTHING, deb},
    {0},
};
extern const test_suite suite_package;
const test_suite suite_package = {"package", cases};
