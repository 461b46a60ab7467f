# Sleigh. `make demo` and `make test` are all that a fresh machine needs; `make help` lists the rest.
#
#   SAN=1      AddressSanitizer and UndefinedBehaviorSanitizer, in build/san
#   DEBUG=1    -O0 -g, in build/debug
#   CC, CXX, NVCC, PYTHON  the tools to use
#   CUDA=0     leave CUDA out where nvcc is found
#   CUDA_ARCH="80 90a"  compute capabilities to build for, instead of all
#   CUDA_OPT="-Ofc max" more flags for nvcc: these make slow kernels in a fifth of the time
#   PORTABLE=1 in build/portable, a binary to carry elsewhere: needs glibc, libstdc++, cuBLAS and the file that lies beside it

CC      ?= cc
CXX     ?= c++
NVCC    ?= nvcc
PYTHON  ?= python3
BUILD   := build
OPT     := -O3 -g1

ifdef SAN # of the host code: a machine with a GPU has compute-sanitizer
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
# No contraction, no fast-math: equal bits from equal inputs is a promise (README).
CFLAGS   := -std=c11 -D_GNU_SOURCE= -Wall -Wextra -Werror -fopenmp -ffp-contract=off $(OPT)
CXXFLAGS := -std=c++17 -Wall -Wextra -Werror $(OPT)
LDLIBS   := -ljansson -lpcre2-8 -lutf8proc -lsentencepiece -lopenblas -lstdc++ -ldl -lm -fopenmp
ifdef PORTABLE # Debian has no static SentencePiece: its library goes beside the binary
LDLIBS   := -Wl,-Bstatic -ljansson -lpcre2-8 -lutf8proc -lopenblas -lgomp -lgfortran -lquadmath -Wl,-Bdynamic -lsentencepiece \
    -Wl,-rpath,'$$ORIGIN' -lstdc++ -ldl -lm -lpthread
endif

# The sources lie in folders of up to four levels. The library is everything but the commands and the tests.
sources  = $(foreach d,$1 $1/* $1/*/*,$(wildcard $(addprefix $d/,$2)))
LIB_SRC  := $(filter-out engine/cli/% engine/backend/cuda/% %_cuda.c,$(foreach d,engine attention tokenizer models,$(call sources,$d,*.c *.cc)))
CLI_SRC  := $(call sources,engine/cli,*.c)
TEST_SRC := $(filter-out tests/fuzz/main.c,$(call sources,tests,*.c))

# CUDA is built in where nvcc and cuBLAS are found.
CUDA_HOME := $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v $(NVCC) 2>/dev/null)))
CUDA      ?= $(if $(wildcard $(CUDA_HOME)/include/cublasLt.h),1,0)
CUDA_ARCH ?= 80 86 89 90a
ifeq ($(CUDA),1)
LIB_SRC   := $(wildcard attention/cuda/*.cu engine/backend/cuda/*.cu engine/*.cu engine/*_cuda.c engine/backend/cuda/*.c) $(LIB_SRC) # the slowest first
CLI_SRC   += $(call sources,engine/cli,*.cu)
TEST_SRC  += $(call sources,tests,*.cu)
CPPFLAGS  += -DSLEIGH_CUDA -I$(CUDA_HOME)/include
LDLIBS    += -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublasLt -lcudart_static -lrt -ldl -lpthread -lstdc++
# Machine code for each, and PTX of the last plain one for GPUs to come.
NVCCFLAGS := -std=c++17 -O3 -lineinfo -Xcompiler -Wall,-Wextra $(CUDA_OPT) \
    $(foreach a,$(CUDA_ARCH),-gencode=arch=compute_$(a),code=sm_$(a)) \
    $(foreach a,$(lastword $(filter-out %a,$(CUDA_ARCH))),-gencode=arch=compute_$(a),code=compute_$(a))
endif

# One source, one object per instruction set; which one runs is decided at run time.
AVX2   := -mavx2 -mfma -mf16c
AVX512 := $(AVX2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512
ifneq ($(shell uname -m),x86_64)
LIB_SRC := $(filter-out %_avx2.c %_avx512.c,$(LIB_SRC))
endif

LIB_OBJ  := $(patsubst %,$(BUILD)/%.o,$(LIB_SRC))
CLI_OBJ  := $(patsubst %,$(BUILD)/%.o,$(CLI_SRC))
TEST_OBJ := $(patsubst %,$(BUILD)/%.o,$(TEST_SRC))

.PHONY: all demo test check bench fuzz setup format clean help FORCE
.DEFAULT_GOAL := all

all: $(BUILD)/sleigh $(BUILD)/sleigh-test $(if $(PORTABLE),$(BUILD)/libsentencepiece.so.0) ## build the binary, the library and the tests

# Set-up runs first, in a make of its own, so that the build below finds what it installed.
demo: ## set up, build, and answer needle questions with dense and sampled attention
	@scripts/setup.sh
	@$(MAKE) --no-print-directory -j$$(nproc) $(BUILD)/sleigh
	@$(PYTHON) scripts/demo.py --sleigh $(BUILD)/sleigh

test: ## set up, build, and run the whole test suite
	@scripts/setup.sh
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@$(MAKE) --no-print-directory check

# As many cases at a time as there are cores; threads that wait must sleep then, or they take the cores from each other.
check: all ## run the test suite of what is built
	@SLEIGH_BIN=$(BUILD)/sleigh OMP_WAIT_POLICY=passive $(BUILD)/sleigh-test -j $$(nproc)

bench: $(BUILD)/sleigh ## measure decode and prefill of the embedded model at 8k and 32k, on 2 threads
	@$(PYTHON) scripts/bench_cpu.py --sleigh $(BUILD)/sleigh

# libFuzzer on everything that reads what others wrote (tests/fuzz): clang makes these files anew, the rest is what gcc built.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?=
FUZZ_CC      ?= clang
FUZZ_OPT     := -O1 -g1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined \
    -fno-omit-frame-pointer
FUZZ_SRC     := $(wildcard engine/base/*.c models/*.c tokenizer/*.c tokenizer/*.cc) engine/model.c \
    $(addprefix attention/,auto.c auto_table.c params.c plan.c spec.c) $(addprefix engine/cli/,attn_list.c io.c eval/eval_grade.c \
    eval/eval_records.c eval/eval_scores.c records.c) $(wildcard tests/fuzz/*.c)
FUZZ_OBJ     := $(patsubst %,$(BUILD)/fuzz/%.o,$(FUZZ_SRC))

fuzz: ## fuzz the readers for FUZZ_SECONDS each (60), all or FUZZ_TARGETS="..."; sets clang up
	@scripts/setup.sh fuzz
	@$(MAKE) --no-print-directory -j$$(nproc) $(BUILD)/fuzz/sleigh-fuzz
	@scripts/fuzz.sh $(BUILD)/fuzz $(FUZZ_SECONDS) $(FUZZ_TARGETS)

$(BUILD)/fuzz/sleigh-fuzz: $(FUZZ_OBJ) $(filter-out %/main.c.o,$(CLI_OBJ)) $(BUILD)/libsleigh.a
	@rm -f $(@D)/rest.a
	@$(AR) rcs $(@D)/rest.a $(filter-out %/main.c.o,$(CLI_OBJ))
	@echo "  LINK $@"; $(FUZZ_CC) $(FUZZ_OPT) -fsanitize=fuzzer -o $@ $(FUZZ_OBJ) $(@D)/rest.a $(BUILD)/libsleigh.a \
	    $(filter-out -fopenmp,$(LDLIBS)) -lgomp

$(BUILD)/fuzz/%.c.o: %.c Makefile $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  FUZZ $<"; $(FUZZ_CC) $(CPPFLAGS) $(filter-out -fopenmp,$(CFLAGS)) $(FUZZ_OPT) -c $< -o $@

$(BUILD)/fuzz/%.cc.o: %.cc Makefile $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  FUZZ $<"; $(FUZZ_CC) $(CPPFLAGS) $(CXXFLAGS) $(FUZZ_OPT) -c $< -o $@

setup: ## install the packages that the build needs (apt, as root)
	@scripts/setup.sh

$(BUILD)/libsleigh.a: $(LIB_OBJ)
	@rm -f $@
	@echo "  AR   $@"; $(AR) rcs $@ $^

$(BUILD)/sleigh: $(CLI_OBJ) $(BUILD)/libsleigh.a
	@echo "  LINK $@"; $(CC) $(OPT) -o $@ $^ $(LDLIBS)

# With the commands' modules, less their main.
$(BUILD)/sleigh-test: $(TEST_OBJ) $(filter-out %/main.c.o,$(CLI_OBJ)) $(BUILD)/libsleigh.a
	@echo "  LINK $@"; $(CC) $(OPT) -o $@ $^ $(LDLIBS)

$(BUILD)/libsentencepiece.so.0:
	@cp $$($(CC) -print-file-name=$(@F)) $@

$(BUILD)/%_avx2.c.o: CFLAGS += $(AVX2)
$(BUILD)/%_avx512.c.o: CFLAGS += $(AVX512)
$(BUILD)/engine/cli/cmd_version.c.o: CPPFLAGS += -DSLEIGH_COMMIT='"$(COMMIT)"'

# What a binary says of itself, and holds results against, is true of each commit.
$(BUILD)/commit: FORCE
	@mkdir -p $(@D)
	@echo '$(COMMIT)' | cmp -s - $@ || echo '$(COMMIT)' > $@
$(BUILD)/engine/cli/cmd_version.c.o: $(BUILD)/commit

# Objects made with other flags (CUDA=0, another CUDA_ARCH) are made anew.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CPPFLAGS) $(CFLAGS) $(NVCCFLAGS)' | cmp -s - $@ || echo '$(CPPFLAGS) $(CFLAGS) $(NVCCFLAGS)' > $@
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

format: ## clang-format over our own C
	clang-format -i $(LIB_SRC) $(CLI_SRC) $(TEST_SRC) tests/fuzz/main.c $(foreach d,attention engine models tests tokenizer,$(call sources,$d,*.h *.cuh))

clean: ## remove build/
	rm -rf build

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' Makefile

-include $(LIB_OBJ:.o=.d) $(CLI_OBJ:.o=.d) $(TEST_OBJ:.o=.d) $(FUZZ_OBJ:.o=.d)
