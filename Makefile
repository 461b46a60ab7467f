# Sleigh. A fresh machine needs only `make demo` and `make test`. `make help` lists the other targets.
#
#   SAN=1      builds with AddressSanitizer and UndefinedBehaviorSanitizer, in build/san
#   DEBUG=1    builds with -O0 -g, in build/debug
#   CC, CXX, NVCC, PYTHON  the tools
#   CUDA=0     builds without CUDA even if nvcc is found
#   CUDA_ARCH="80 90a"  builds for these compute capabilities instead of those of this machine's GPUs; all: for 80 86 89 90a
#   CUDA_OPT="-Ofc max" passes more flags to nvcc; with these, nvcc compiles in a fifth of the time, but the kernels are slow
#   PROFILE=1  keeps the line numbers of CUDA kernels, for profilers
#   PORTABLE=1 builds a binary for other machines in build/portable; it needs glibc, libstdc++, cuBLAS and the library in that folder
#   PREFIX=/usr/local DESTDIR= libdir= mandir= ...  where `make install` puts files (packaging/package.mk)

CC      ?= cc
CXX     ?= c++
NVCC    ?= nvcc
PYTHON  ?= python3
BUILD   := build
OPT     := -O3 -g1

ifdef SAN # host code only; for kernels use compute-sanitizer
CUDA    := 0
BUILD   := build/san
OPT     := -O2 -g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
endif
ifdef PORTABLE
BUILD   := build/portable
endif
ifdef DEBUG
BUILD   := build/debug
OPT     := -O0 -g
endif

COMMIT   := $(shell git describe --always --dirty --exclude '*' 2>/dev/null)
CPPFLAGS := -I. -MMD -MP
# The same objects make the program, the archive and the shared library.
PIC      := -fPIC -fvisibility=hidden
# No contraction and no fast-math: equal inputs give equal bits (README).
CFLAGS   := -std=c11 -D_GNU_SOURCE= -Wall -Wextra -Werror -ffp-contract=off $(PIC) $(OPT)
CXXFLAGS := -std=c++17 -Wall -Wextra -Werror $(PIC) $(OPT)
LDLIBS   := -ljansson -lpcre2-8 -lsentencepiece -lstdc++ -ldl -lm -lpthread
CLI_LIBS := -lmicrohttpd -ledit
ifdef PORTABLE # Debian has no static SentencePiece, so its library is copied next to the binary
LDLIBS   := -Wl,-Bstatic -ljansson -lpcre2-8 -Wl,-Bdynamic -lsentencepiece \
    -Wl,-rpath,'$$ORIGIN' -lstdc++ -ldl -lm -lpthread
CLI_LIBS := -Wl,-Bstatic -lmicrohttpd -ledit -ltinfo -lbsd -lmd -Wl,-Bdynamic
CPPFLAGS += -DSLEIGH_NO_TLS
endif

# Sources are in the folders of layers (docs/architecture.md) and up to two levels below.
sources  = $(foreach d,$1 $1/* $1/*/*,$(wildcard $(addprefix $d/,$2)))
LIB_DIRS := base backend kv tokenizer grammar attention models engine
LIB_SRC  := $(filter-out backend/cuda/% %_cuda.c,$(foreach d,$(LIB_DIRS),$(call sources,$d,*.c *.cc)))
CLI_SRC  := $(foreach d,server cli,$(call sources,$d,*.c))
TEST_SRC := $(filter-out tests/fuzz/main.c,$(call sources,tests,*.c))

# The build has CUDA if nvcc and cuBLAS are found.
CUDA_HOME := $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v $(NVCC) 2>/dev/null)))
CUDA      ?= $(if $(wildcard $(CUDA_HOME)/include/cublasLt.h),1,0)
ifeq ($(CUDA),1)
ifndef CUDA_ARCH
CUDA_ARCH := $(if $(PORTABLE)$(filter deb,$(MAKECMDGOALS)),all,$(shell scripts/cuda_arch.sh $(NVCC)))
endif
override CUDA_ARCH := $(if $(filter all,$(CUDA_ARCH)),80 86 89 90a,$(CUDA_ARCH))
LIB_SRC   := $(foreach d,$(LIB_DIRS),$(call sources,$d,*.cu)) $(wildcard engine/attend/*_cuda.c backend/cuda/*.c) $(LIB_SRC) # the slowest first
# Kernels that are compiled again: for contexts of more than 131,072 rows, for K and V in host memory, for wide heads, for a cache
# of fp8 or int8.
AGAIN     := $(patsubst %,attention/cuda/%.cu, \
    $(addprefix santa/pps,.long.wide .long .wide .bytes.long.wide .bytes.long .bytes.wide .bytes) \
    $(addprefix quantised/santa_is,.offloaded.long.wide .offloaded.long .long.wide .long .offloaded.wide .offloaded .wide) \
    $(addprefix quantised/santa_is,.bytes.long.wide .bytes.long .bytes.wide .bytes) \
    $(addprefix santa/santa,.long .bytes.long .bytes) $(addprefix lists/quest,.offloaded .bytes) \
    santa/bernoulli.long lists/joined.long lists/vattention.offloaded buckets/saap.offloaded dense_decode.bytes)
CLI_SRC   += $(call sources,cli,*.cu)
TEST_SRC  += $(call sources,tests,*.cu)
TEST_AGAIN := tests/support/take_all_probe.long.cu tests/support/take_known_probe.long.cu
CPPFLAGS  += -DSLEIGH_CUDA -I$(CUDA_HOME)/include
LDLIBS    += -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublasLt -lcudart_static -lrt -ldl -lpthread -lstdc++
# Machine code for each architecture, and PTX of the last one without "a" for newer GPUs.
NVCCFLAGS := -std=c++17 -O3 -Xfatbin=-compress-all -Werror cross-execution-space-call -Xcompiler -Wall,-Wextra,-fPIC,-fvisibility=hidden \
    $(if $(PROFILE),-lineinfo) $(CUDA_OPT) \
    $(foreach a,$(CUDA_ARCH),-gencode=arch=compute_$(a),code=sm_$(a)) \
    $(foreach a,$(lastword $(filter-out %a,$(CUDA_ARCH))),-gencode=arch=compute_$(a),code=compute_$(a))
else
LIB_SRC += backend/cuda/packed.c # host code, which tests check without a GPU
endif

# One source makes one object for each instruction set. The program chooses at run time.
AVX2   := -mavx2 -mfma -mf16c
AVX512 := $(AVX2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512
ifneq ($(shell uname -m),x86_64)
LIB_SRC := $(filter-out %_avx2.c %_avx512.c,$(LIB_SRC))
endif

LIB_OBJ  := $(patsubst %,$(BUILD)/%.o,$(AGAIN) $(LIB_SRC))
CLI_OBJ  := $(patsubst %,$(BUILD)/%.o,$(CLI_SRC))
TEST_OBJ := $(patsubst %,$(BUILD)/%.o,$(TEST_AGAIN) $(TEST_SRC))

.PHONY: all demo demo-chat demo-program demo-prose test check bench fuzz setup venv format clean help FORCE
.DEFAULT_GOAL := all

include packaging/package.mk

all: $(BUILD)/sleigh $(BUILD)/sleigh-test $(PACKAGE) $(if $(PORTABLE),$(BUILD)/libsentencepiece.so.0) ## build the program, the library and the tests

# Kernels compile for minutes. A demo without a GPU takes the program that `make` has built with them, or builds one without CUDA.
ifeq ($(CUDA) $(origin CUDA),1 file)
ifneq ($(filter demo%,$(MAKECMDGOALS)),)
ifeq ($(wildcard $(BUILD)/backend/cuda/linear.cu.o)$(shell nvidia-smi -L 2>/dev/null | grep -o '^GPU'),)
DEMO := $(BUILD)/cpu
$(info sleigh: no GPU, so the demo builds without CUDA, in $(DEMO); `make` builds with CUDA)
endif
endif
endif

# Set-up runs first. The build runs in another make, because only a new make sees the packages that the set-up installed. The pages'
# commands run $(BUILD)/sleigh, so the program is copied there.
demo-program:
	@scripts/setup.sh
	@$(MAKE) --no-print-directory -j$$(nproc) $(if $(DEMO),CUDA=0 BUILD=$(DEMO) $(DEMO)/sleigh,$(BUILD)/sleigh)
	@$(if $(DEMO),cp $(DEMO)/sleigh $(BUILD)/sleigh)

demo: demo-program ## install packages, build, and answer questions with dense and sampled attention
	@$(PYTHON) scripts/demo.py --sleigh $(BUILD)/sleigh

demo-prose: demo-program ## install packages, build, and continue a passage of a book with dense and sampled attention
	@$(PYTHON) scripts/demo_prose.py --sleigh $(BUILD)/sleigh

demo-chat: demo-program ## the same, and talk to a small chat model with dense and sampled attention; downloads 93 MB once
	@$(PYTHON) scripts/demo_chat.py --sleigh $(BUILD)/sleigh

test: ## install packages, build, and run the whole test suite
	@scripts/setup.sh
	@$(MAKE) --no-print-directory -j$$(nproc) all venv
	@$(MAKE) --no-print-directory check

# Runs two cases at a time for each core, because cases wait for processes and clocks in two fifths of their time. Waiting threads must
# sleep, because busy waiting would slow down the other cases.
check: all venv ## build and run the test suite
	@env SLEIGH_BIN=$(BUILD)/sleigh OMP_WAIT_POLICY=passive $(BUILD)/sleigh-test -j $$(($$(nproc) * 2))

bench: $(BUILD)/sleigh ## measure prefill and decode of the embedded model at 8k and 32k tokens, on 2 threads
	@$(PYTHON) scripts/measure/bench_cpu.py --sleigh $(BUILD)/sleigh

# libFuzzer on the parsers that read files and text from outside the program (tests/fuzz). clang compiles these files again with
# instrumentation; the other objects are those of the normal build.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?=
FUZZ_CC      ?= clang
FUZZ_OPT     := -O1 -g1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined \
    -fno-omit-frame-pointer
FUZZ_SRC     := $(wildcard base/*.c grammar/*.c models/*.c server/api/*.c server/http/*.c) $(call sources,tokenizer,*.c *.cc) engine/model.c \
    $(addprefix attention/,auto.c auto_table.c params.c plan.c spec.c) $(addprefix cli/,attn/attn_list.c chat/pastes.c \
    chat/messages_file.c io.c eval/eval_grade.c \
    eval/eval_records.c eval/eval_scores.c output/plot_axes.c output/plot_data.c output/plot_numbers.c \
    output/plot_script.c records.c) $(filter-out %/test_fuzz.c,$(wildcard tests/fuzz/*.c))
FUZZ_OBJ     := $(patsubst %,$(BUILD)/fuzz/%.o,$(FUZZ_SRC))

fuzz: ## install clang, and fuzz the parsers for FUZZ_SECONDS each (60): all of them, or FUZZ_TARGETS="..."
	@scripts/setup.sh fuzz
	@$(MAKE) --no-print-directory -j$$(nproc) $(BUILD)/fuzz/sleigh-fuzz
	@scripts/check/fuzz.sh $(BUILD)/fuzz $(FUZZ_SECONDS) $(FUZZ_TARGETS)

$(BUILD)/fuzz/sleigh-fuzz: $(FUZZ_OBJ) $(filter-out %/main.c.o,$(CLI_OBJ)) $(BUILD)/libsleigh.a
	@rm -f $(@D)/rest.a
	@$(AR) rcs $(@D)/rest.a $(filter-out %/main.c.o,$(CLI_OBJ))
	@echo "  LINK $@"; $(FUZZ_CC) $(FUZZ_OPT) -fsanitize=fuzzer -o $@ $(FUZZ_OBJ) $(@D)/rest.a $(BUILD)/libsleigh.a \
	    $(LDLIBS) $(CLI_LIBS)

$(BUILD)/fuzz/%.c.o: %.c Makefile $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  FUZZ $<"; $(FUZZ_CC) $(CPPFLAGS) $(CFLAGS) $(FUZZ_OPT) -c $< -o $@

$(BUILD)/fuzz/%.cc.o: %.cc Makefile $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  FUZZ $<"; $(FUZZ_CC) $(CPPFLAGS) $(CXXFLAGS) $(FUZZ_OPT) -c $< -o $@

setup: ## install the packages that the build needs (with apt, as root)
	@scripts/setup.sh

venv: ## download the Python packages that some tests need (scripts/test_packages.txt)
	@PYTHON=$(PYTHON) scripts/venv.sh

$(BUILD)/libsleigh.a: $(LIB_OBJ)
	@rm -f $@
	@echo "  AR   $@"; $(AR) rcs $@ $^

$(BUILD)/sleigh: $(CLI_OBJ) $(BUILD)/libsleigh.a
	@echo "  LINK $@"; $(CC) $(OPT) -o $@ $^ $(LDLIBS) $(CLI_LIBS)

# The tests call the commands' modules, but not their main.
$(BUILD)/sleigh-test: $(TEST_OBJ) $(filter-out %/main.c.o,$(CLI_OBJ)) $(BUILD)/libsleigh.a
	@echo "  LINK $@"; $(CC) $(OPT) -o $@ $^ $(LDLIBS) $(CLI_LIBS)

# The static libmicrohttpd calls GnuTLS, and Debian has no static library for all that GnuTLS needs. These functions stand in
# its place. Without TLS, which the server then refuses, the library calls only those of its start and end.
ifdef PORTABLE
$(BUILD)/sleigh $(BUILD)/sleigh-test: $(BUILD)/no_gnutls.o
$(BUILD)/no_gnutls.o: $(BUILD)/flags
	@nm -u $$($(CC) -print-file-name=libmicrohttpd.a) 2>/dev/null | sed -n 's/^ *U \(gnutls_.*\)/int \1(void) { return -1; }/p' | \
	    sort -u | $(CC) $(PIC) -x c -c -o $@ -
endif

$(BUILD)/libsentencepiece.so.0:
	@cp $$($(CC) -print-file-name=$(@F)) $@

# References of CUDA tests, in double precision, run on all cores.
$(BUILD)/tests/cuda/%.o: CFLAGS += -fopenmp
$(BUILD)/sleigh-test: LDLIBS += $(if $(filter 1,$(CUDA)),-lgomp)
$(BUILD)/%_avx2.c.o: CFLAGS += $(AVX2)
$(BUILD)/%_avx512.c.o: CFLAGS += $(AVX512)
$(BUILD)/backend/cpu/int_ops_avx512.c.o: CFLAGS += -mavx512vnni
$(BUILD)/backend/cuda/cuda_device.c.o: CPPFLAGS += -DSLEIGH_CUDA_ARCH='"$(CUDA_ARCH)"'
$(BUILD)/cli/cmd_version.c.o: CPPFLAGS += -DSLEIGH_COMMIT='"$(COMMIT)"'

# The page's policy names its script and its style by SHA-256: of the lines between the tags, and of the line feed before them.
PAGE := server/page/index.html
page_hash = $(shell { echo; sed '1,/^<$1.*>$$/d; /^<\/$1>$$/,$$d' $(PAGE); } | sha256sum | tr -dc 0-9a-f | tr a-f A-F | \
    basenc -d --base16 | base64)
$(BUILD)/server/page/page.c.o: $(PAGE)
$(BUILD)/server/page/page.c.o: CPPFLAGS += -DPAGE_SCRIPT='"$(call page_hash,script)"' -DPAGE_STYLE='"$(call page_hash,style)"'

# A binary prints its commit and writes the commit into results, so a new commit compiles this file again.
$(BUILD)/commit: FORCE
	@mkdir -p $(@D)
	@echo '$(COMMIT)' | cmp -s - $@ || echo '$(COMMIT)' > $@
$(BUILD)/cli/cmd_version.c.o: $(BUILD)/commit

# Other flags (CUDA=0, another CUDA_ARCH) rebuild all objects.
FLAGS := $(CPPFLAGS) $(CFLAGS) $(NVCCFLAGS)
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(FLAGS)' | cmp -s - $@ || { echo '$(FLAGS)' > $@; $(if $(filter 1,$(CUDA)),echo '  CUDA_ARCH="$(CUDA_ARCH)"';) }
FORCE:

$(BUILD)/%.c.o: %.c Makefile $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  CC   $<"; $(CC) $(CPPFLAGS) $(CFLAGS) -c $< -o $@

$(BUILD)/%.cc.o: %.cc Makefile $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  CXX  $<"; $(CXX) $(CPPFLAGS) $(CXXFLAGS) -c $< -o $@

$(BUILD)/%.cu.o: %.cu Makefile $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  NVCC $<"; $(NVCC) $(CPPFLAGS) $(NVCCFLAGS) -c $< -o $@

# The same source with other macros (attention/cuda/long_context.cuh, offloaded_rows.cuh, head_dim.cuh, stored_rows.cuh).
define again
$(BUILD)/%.$1.cu.o: %.cu Makefile $(BUILD)/flags
	@mkdir -p $$(@D)
	@echo "  NVCC $$< $1"; $$(NVCC) $$(CPPFLAGS) $2 $$(NVCCFLAGS) -c $$< -o $$@
endef
$(eval $(call again,long,-DSL_LONG_CONTEXT))
$(eval $(call again,offloaded,-DSL_OFFLOADED_ROWS))
$(eval $(call again,offloaded.long,-DSL_OFFLOADED_ROWS -DSL_LONG_CONTEXT))
$(eval $(call again,wide,-DSL_WIDE_HEADS))
$(eval $(call again,long.wide,-DSL_LONG_CONTEXT -DSL_WIDE_HEADS))
$(eval $(call again,bytes,-DSL_BYTE_ROWS))
$(eval $(call again,bytes.long,-DSL_BYTE_ROWS -DSL_LONG_CONTEXT))
$(eval $(call again,bytes.wide,-DSL_BYTE_ROWS -DSL_WIDE_HEADS))
$(eval $(call again,bytes.long.wide,-DSL_BYTE_ROWS -DSL_LONG_CONTEXT -DSL_WIDE_HEADS))
$(eval $(call again,offloaded.wide,-DSL_OFFLOADED_ROWS -DSL_WIDE_HEADS))
$(eval $(call again,offloaded.long.wide,-DSL_OFFLOADED_ROWS -DSL_LONG_CONTEXT -DSL_WIDE_HEADS))

format: ## apply clang-format to all C, C++ and CUDA files
	clang-format -i $(LIB_SRC) $(CLI_SRC) $(TEST_SRC) tests/fuzz/main.c $(foreach d,$(LIB_DIRS) server cli tests,$(call sources,$d,*.h *.cuh))

clean: ## remove build/
	rm -rf build

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' Makefile packaging/package.mk

-include $(LIB_OBJ:.o=.d) $(CLI_OBJ:.o=.d) $(TEST_OBJ:.o=.d) $(FUZZ_OBJ:.o=.d)
