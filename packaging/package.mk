# packaging/package.mk - the shared library, the installed copy, the Debian package. The Makefile includes it.
#
# `make install` copies what `make` has built, and builds nothing: a build as root could differ (another PATH, so no nvcc) and would leave
# root's files in build/.

PREFIX     ?= /usr/local
prefix     := $(PREFIX)
libdir     := $(prefix)/lib
includedir := $(prefix)/include
mandir     := $(prefix)/share/man
docdir     := $(prefix)/share/doc/sleigh
export DESTDIR prefix libdir includedir mandir docdir

VERSION := $(shell awk '/define SLEIGH_VERSION/ { gsub("\"", ""); print $$3 }' engine/sleigh.h)
# An interface that breaks old programs gets another number.
SONAME  := libsleigh.so.0
SHARED  := $(BUILD)/libsleigh.so.$(VERSION)
# A program under a sanitizer cannot load a library without it, and PORTABLE makes a program only.
PACKAGE := $(if $(SAN)$(PORTABLE),,$(SHARED) $(addprefix $(BUILD)/sleigh.,pc 1 bash))

.PHONY: install install-strip uninstall deb
.DELETE_ON_ERROR:

$(SHARED): $(LIB_OBJ) packaging/libsleigh.map
	@echo "  LINK $@"; $(CC) $(OPT) -shared -o $@ $(LIB_OBJ) -Wl,-soname,$(SONAME) -Wl,--no-undefined \
	    -Wl,--version-script=packaging/libsleigh.map $(LDLIBS)

$(BUILD)/sleigh.pc: packaging/sleigh.pc.in engine/sleigh.h $(BUILD)/flags
	@sed -e 's|@VERSION@|$(VERSION)|' -e 's|@LDLIBS@|$(LDLIBS)|' $< > $@

$(BUILD)/sleigh.1: $(BUILD)/sleigh
	@$< help --man > $@

$(BUILD)/sleigh.bash: $(BUILD)/sleigh
	@$< help --bash > $@

install: ## install what `make` has built, below PREFIX (/usr/local) and DESTDIR
	@packaging/install.sh install $(BUILD)

install-strip: ## the same without symbols
	@STRIP=$${STRIP:-strip} packaging/install.sh install $(BUILD)

uninstall: ## remove what `make install` installed, with the same PREFIX and DESTDIR
	@packaging/install.sh uninstall

# A package has CUDA code for all generations, so it gets a build folder of its own when there is nvcc.
deb: ## build a Debian package in build/; if there is nvcc, with the code of all GPU generations
	@scripts/setup.sh
	@$(MAKE) --no-print-directory $(if $(filter 1,$(CUDA)),BUILD=build/deb CUDA_ARCH="$(CUDA_ARCH)") all
	@packaging/deb.sh $(if $(filter 1,$(CUDA)),build/deb,$(BUILD)) build
